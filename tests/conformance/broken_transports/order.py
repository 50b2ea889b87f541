"""Frames that are lost, doubled, moved, cut or spilt."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, ClassVar

import attrs
import trio

from paceline.core.errors import TransportError
from paceline.core.messages import BulkBlock, Exiting
from paceline.core.wire import MAX_BLOCK
from paceline.transports.api import Place

from .base import SoundChannel, SoundTransport


class DropsTheLastFrame(SoundTransport):
    """Closes before its last message has been written."""

    class layer(SoundChannel):
        async def send(self, message: Any) -> None:
            if not isinstance(message, Exiting) or message.reason != "done":
                await self.inner.send(message)


class Reorders(SoundTransport):
    """Two messages change places when both are there to be read."""

    class layer(SoundChannel):
        held: Any = None

        async def send(self, message: Any) -> None:
            held, self.held = self.held, None
            if held is None:
                self.held = message
            else:
                await self.inner.send(message)
                await self.inner.send(held)


class DeliversTwice(SoundTransport):
    """Sends again what it could not know was received."""

    class layer(SoundChannel):
        again: Any = None

        async def receive(self) -> Any:
            again, self.again = self.again, None
            if again is None:
                again = self.again = await self.inner.receive()
            return again


class SwapsBlocks(SoundTransport):
    """Spreads blocks over two connections and takes whichever comes first."""

    class layer(SoundChannel):
        held: tuple[BulkBlock, bytes] | None = None

        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            held, self.held = self.held, None
            if held is None:
                self.held = (block, bytes(data))
            else:
                await self.inner.send_bulk(block, data)
                await self.inner.send_bulk(held[0], memoryview(held[1]))


class SpillsOverThePlace(SoundTransport):
    """Writes a whole page where less was asked for."""

    class layer(SoundChannel):
        async def receive_bulk(self, place: Place) -> BulkBlock:
            def and_one_more(header: BulkBlock) -> memoryview:
                given = place(header)
                whole = memoryview(given.obj)
                if len(whole) > len(given):
                    whole[-1:] = b"\0"
                return given

            return await self.inner.receive_bulk(and_one_more)


class CutsLargeBlocks(SoundTransport):
    """A length of sixteen bits: the largest blocks come short."""

    class layer(SoundChannel):
        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            cut = block.bytes % (MAX_BLOCK - 1) if block.bytes == MAX_BLOCK else block.bytes
            await self.inner.send_bulk(attrs.evolve(block, bytes=cut), data[:cut])


class TakesFramesAboveTheCap(SoundTransport):
    """Swallows what it cannot send."""

    class layer(SoundChannel):
        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            if block.bytes <= MAX_BLOCK:
                await self.inner.send_bulk(block, data)


class TearsAFrameOnCancellation(SoundTransport):
    """Sends a block as two pieces. When its sender is cancelled between them, the receiver makes do with the first."""

    class layer(SoundChannel):
        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            begun = block.bytes // 4
            await self.inner.send_bulk(attrs.evolve(block, bytes=begun, entry=block.bytes), data[:begun])
            await self.inner.send_bulk(attrs.evolve(block, bytes=block.bytes - begun, entry=begun), data[begun:])

        async def receive_bulk(self, place: Place) -> BulkBlock:
            whole = memoryview(b"")

            def first(header: BulkBlock) -> memoryview:
                nonlocal whole
                whole = place(attrs.evolve(header, bytes=header.entry, entry=0))
                return whole[: header.bytes]

            header = await self.inner.receive_bulk(first)
            with suppress(TransportError):  # the rest does not come any more
                await self.inner.receive_bulk(lambda rest: whole[rest.entry :])
            return attrs.evolve(header, bytes=header.entry, entry=0)


class LosesAMessageWhenCancelled(SoundTransport):
    """Waits once more between taking a message and handing it out."""

    class layer(SoundChannel):
        async def receive(self) -> Any:
            message = await self.inner.receive()
            await trio.lowlevel.checkpoint()
            return message


class DeliversAfterClose(SoundTransport):
    """Reads ahead, and empties its own buffer whatever was closed."""

    class layer(SoundChannel):
        def __init__(self, inner: Any) -> None:
            super().__init__(inner)
            self.ahead: deque[Any] = deque()

        async def aclose(self) -> None:
            with trio.move_on_after(0.01), suppress(TransportError):
                while True:
                    self.ahead.append(await self.inner.receive())
            await self.inner.aclose()

        async def receive(self) -> Any:
            return self.ahead.popleft() if self.ahead else await self.inner.receive()


class Interleaves(SoundTransport):
    """Sends a block in two halves, and takes any two that follow each other for one block."""

    class layer(SoundChannel):
        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            half = block.bytes // 2
            for piece in (data[:half], data[half:]):
                await self.inner.send_bulk(attrs.evolve(block, bytes=len(piece), entry=block.bytes), piece)

        async def receive_bulk(self, place: Place) -> BulkBlock:
            came = bytearray()

            def behind(header: BulkBlock) -> memoryview:
                came.extend(bytes(header.bytes))
                return memoryview(came)[len(came) - header.bytes :]

            first, _ = [await self.inner.receive_bulk(behind) for _ in range(2)]
            header = attrs.evolve(first, bytes=first.entry, entry=0)
            place(header)[:] = came[: header.bytes].ljust(header.bytes)
            return header


class OneHeaderForAll(SoundTransport):
    """Keeps the header of the newest block where every channel finds it."""

    class layer(SoundChannel):
        newest: ClassVar[list[BulkBlock]] = []

        async def receive_bulk(self, place: Place) -> BulkBlock:
            self.newest.append(await self.inner.receive_bulk(place))
            return self.newest[-2:][0]
