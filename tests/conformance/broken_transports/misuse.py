"""What callers do wrong is taken, repaired or passed on as something else."""

from __future__ import annotations

from typing import Any

import attrs

from paceline.core.errors import LocalProtocolError, TransportError
from paceline.core.messages import BulkBlock, Exiting
from paceline.transports.api import Place

from .base import SoundChannel, SoundTransport


class CutsWhatIsTooLong(SoundTransport):
    """Data that is longer than its block is cut to fit."""

    class layer(SoundChannel):
        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            flat = data.cast("B") if data.ndim == 1 else data
            await self.inner.send_bulk(block, flat[: block.bytes] if flat.nbytes > block.bytes else data)


class SaysLostForRefused(SoundTransport):
    """Whatever goes wrong with a block, the link is lost."""

    class layer(SoundChannel):
        async def receive_bulk(self, place: Place) -> BulkBlock:
            try:
                return await self.inner.receive_bulk(place)
            except LocalProtocolError:
                raise
            except Exception as error:
                raise TransportError(f"link to {self.peer}: {error}") from error


class SkipsRefusedBlocks(SoundTransport):
    """A block that found no place is read and forgotten, and the channel goes on."""

    class layer(SoundChannel):
        async def receive_bulk(self, place: Place) -> BulkBlock:
            refused: list[Exception] = []

            def anywhere(header: BulkBlock) -> memoryview:
                try:
                    return place(header)
                except Exception as error:
                    refused.append(error)
                    return memoryview(bytearray(header.bytes))

            header = await self.inner.receive_bulk(anywhere)
            if refused:
                raise refused[0]
            return header


class SpeaksAsciiOnly(SoundTransport):
    """Letters that its wire does not know are left out."""

    class layer(SoundChannel):
        async def send(self, message: Any) -> None:
            if isinstance(message, Exiting):
                message = attrs.evolve(message, reason=message.reason.encode("ascii", "ignore").decode())
            await self.inner.send(message)


class FillsShortMemory(SoundTransport):
    """Memory that is too short gets what it can hold."""

    class layer(SoundChannel):
        async def receive_bulk(self, place: Place) -> BulkBlock:
            given = whole = memoryview(b"")

            def long_enough(header: BulkBlock) -> memoryview:
                nonlocal given, whole
                given = place(header)
                whole = given if len(given) == header.bytes else memoryview(bytearray(header.bytes))
                return whole

            header = await self.inner.receive_bulk(long_enough)
            if whole is not given:
                given[:] = whole[: len(given)]
            return header
