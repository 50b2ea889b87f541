"""Lanes without a bound, without copies, and in each other's way."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import trio

from paceline.core.errors import TransportError
from paceline.core.messages import BulkBlock
from paceline.transports.api import Channel

from .base import SoundChannel, SoundTransport


class _Pumping(SoundChannel):
    """Sends blocks from a queue of its own, in a task that nobody waits for."""

    bound: float = math.inf

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self.queue, self.waiting = trio.open_memory_channel[tuple[BulkBlock, memoryview]](self.bound)
        self.pump: Any = None

    async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
        if self.pump is None:
            self.pump = trio.lowlevel.spawn_system_task(self.run)
        await self.queue.send((block, self.kept(data)))

    def kept(self, data: memoryview) -> memoryview:
        return memoryview(bytes(data))

    async def run(self) -> None:
        try:
            async for block, data in self.waiting:
                await self.inner.send_bulk(block, data)
        except TransportError:
            self.waiting.close()

    async def aclose(self) -> None:
        self.queue.close()
        await self.inner.aclose()


class UnboundedBuffering(SoundTransport):
    """A sender is never held back."""

    layer = _Pumping


class SendsFromReusedMemory(SoundTransport):
    """Returns before the bytes are gone, and without a copy of them."""

    class layer(_Pumping):
        bound = 4

        def kept(self, data: memoryview) -> memoryview:
            return data


class ControlBehindBulk(SoundTransport):
    """One connection, one writer for both lanes."""

    class layer(SoundChannel):
        def __init__(self, inner: Channel) -> None:
            super().__init__(inner)
            self.writer = trio.Lock()

        async def send(self, message: Any) -> None:
            async with self.writer:
                await self.inner.send(message)

        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            async with self.writer:
                await self.inner.send_bulk(block, data)


class UnboundedMessages(SoundTransport):
    """Keeps every message that its peer does not read."""

    class layer(SoundChannel):
        def __init__(self, inner: Channel) -> None:
            super().__init__(inner)
            self.queue, self.waiting = trio.open_memory_channel[Any](math.inf)
            self.pump: Any = None

        async def send(self, message: Any) -> None:
            if self.pump is None:
                self.pump = trio.lowlevel.spawn_system_task(self.run)
            await self.queue.send(message)

        async def run(self) -> None:
            with suppress(TransportError):
                async for message in self.waiting:
                    await self.inner.send(message)

        async def aclose(self) -> None:
            self.queue.close()
            await self.inner.aclose()


class BlocksFirst(SoundTransport):
    """A message is sent when no block is."""

    class layer(SoundChannel):
        sending = 0

        async def send(self, message: Any) -> None:
            while self.sending:
                await trio.sleep(0.01)
            await self.inner.send(message)

        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            self.sending += 1
            try:
                await self.inner.send_bulk(block, data)
            finally:
                self.sending -= 1
