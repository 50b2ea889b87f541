"""Faults that show only where a frame is not like the one before it, or a peer is lost in the middle of something."""

from __future__ import annotations

import os
from typing import Any

import attrs
import trio

from paceline.core.errors import TransportError
from paceline.core.messages import Batch, BulkBlock, Exiting, SaveConsensusModel
from paceline.transports.api import Place
from paceline.transports.conformance.stage import block

from . import leaks
from .base import SoundChannel, SoundTransport


class SmallOnesOvertake(SoundTransport):
    """Long messages take another way, which is slower."""

    class layer(SoundChannel):
        held: Any = None

        async def send(self, message: Any) -> None:
            if isinstance(message, Exiting | SaveConsensusModel) and self.held is None:
                self.held = message
                return
            held, self.held = self.held, None
            await self.inner.send(message)
            if held is not None:
                await self.inner.send(held)

        async def aclose(self) -> None:
            if self.held is not None:
                await self.inner.send(self.held)
            await self.inner.aclose()


class SmallBlocksOvertake(SoundTransport):
    """A small block need not wait for the copy of a large one."""

    class layer(SoundChannel):
        held: tuple[BulkBlock, bytes] | None = None

        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            if block.bytes == 700_001 and self.held is None:
                self.held = (block, bytes(data))
                return
            held, self.held = self.held, None
            await self.inner.send_bulk(block, data)
            if held is not None:
                await self.inner.send_bulk(held[0], memoryview(held[1]))


class KnowsOneAttempt(SoundTransport):
    """Rebuilds the header from what it thinks matters."""

    class layer(SoundChannel):
        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            await self.inner.send_bulk(attrs.evolve(block, attempt=0), data)


class SpeaksSinglePrecision(SoundTransport):
    """Four bytes are enough for a time."""

    class layer(SoundChannel):
        async def send(self, message: Any) -> None:
            if isinstance(message, Batch):
                message = attrs.evolve(message, batch_ms=round(message.batch_ms))
            await self.inner.send(message)


class LosesLongMessagesWhenCancelled(SoundTransport):
    """A long message comes in two reads; what was read is gone when the second one is cancelled."""

    class layer(SoundChannel):
        async def receive(self) -> Any:
            message = await self.inner.receive()
            if isinstance(message, Exiting | SaveConsensusModel):
                await trio.lowlevel.checkpoint()
            return message


class SendsToTheDead(SoundTransport):
    """Who is held back is not told why."""

    class layer(SoundChannel):
        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            try:
                await self.inner.send_bulk(block, data)
            except TransportError:
                await trio.sleep_forever()


class HandsBlocksOutAfterTheEnd(SoundTransport):
    """The end was told, and there is a block left."""

    class layer(SoundChannel):
        over = False

        async def receive(self) -> Any:
            try:
                return await self.inner.receive()
            except TransportError:
                self.over = True
                raise

        async def receive_bulk(self, place: Place) -> BulkBlock:
            if self.over:
                return block(10)
            return await self.inner.receive_bulk(place)


class KeepsADescriptorOfWhatHadNoPlace(SoundTransport):
    """What is written down about a fault stays open."""

    class layer(SoundChannel):
        async def receive_bulk(self, place: Place) -> BulkBlock:
            def watched(header: BulkBlock) -> memoryview:
                try:
                    return place(header)
                except Exception:
                    taken = os.open(os.devnull, os.O_RDONLY)
                    leaks.LEFT.append(lambda: os.close(taken))
                    raise

            return await self.inner.receive_bulk(watched)
