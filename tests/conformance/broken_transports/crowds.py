"""Faults that show only beside other channels, after other channels, or when nothing is said for a while."""

from __future__ import annotations

import os
from typing import Any

import trio

from paceline.core.errors import TransportError
from paceline.core.messages import BulkBlock, Exiting, SaveConsensusModel
from paceline.transports.api import Channel, Credentials, Place

from . import leaks
from .base import SoundChannel, SoundTransport

WORKERS = 6
IDLE_S = 0.1
MEBIBYTE = 1 << 20

_writers: trio.lowlevel.RunVar[trio.Lock] = trio.lowlevel.RunVar("writers")
_workers: trio.lowlevel.RunVar[trio.Semaphore] = trio.lowlevel.RunVar("workers")


def _writer() -> trio.Lock:
    return _writers.get(None) or _kept(_writers, trio.Lock())


def _worker() -> trio.Semaphore:
    return _workers.get(None) or _kept(_workers, trio.Semaphore(WORKERS))


def _kept(place: trio.lowlevel.RunVar[Any], thing: Any) -> Any:
    place.set(thing)
    return thing


class OneWriterOfBlocks(SoundTransport):
    """One for all channels of a process: it waits for the slowest rank."""

    class layer(SoundChannel):
        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            async with _writer():
                await self.inner.send_bulk(block, data)


class FewWorkers(SoundTransport):
    """Whatever is sent takes one of a few threads: when as many ranks are slow, no heartbeat leaves."""

    class layer(SoundChannel):
        async def send(self, message: Any) -> None:
            async with _worker():
                await self.inner.send(message)

        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            async with _worker():
                await self.inner.send_bulk(block, data)


class SaysItAgainOnTheNext(SoundTransport):
    """What could not be sent waits for the next channel, as in a broker."""

    def __init__(self) -> None:
        self.unsent: list[Any] = []

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        return _Stubborn(await super().dial(url, credentials), self.unsent)


class _Stubborn(SoundChannel):
    def __init__(self, inner: Channel, unsent: list[Any]) -> None:
        super().__init__(inner)
        self.unsent = unsent

    async def send(self, message: Any) -> None:
        while self.unsent:
            await self.inner.send(self.unsent.pop(0))
        try:
            await self.inner.send(message)
        except TransportError:
            self.unsent.append(message)
            raise


class TakesSilenceForDeath(SoundTransport):
    """A time limit on reading, for both lanes alike."""

    class layer(SoundChannel):
        async def receive_bulk(self, place: Place) -> BulkBlock:
            with trio.move_on_after(IDLE_S):
                return await self.inner.receive_bulk(place)
            await self.inner.aclose()
            raise TransportError(f"link to {self.peer}: timed out")


class TakesShortMessagesOnly(SoundTransport):
    """A message above a mebibyte ends its channel, as by default that of a websocket does."""

    class layer(SoundChannel):
        async def send(self, message: Any) -> None:
            text = getattr(message, "reason" if isinstance(message, Exiting) else "stem", "")
            if isinstance(message, Exiting | SaveConsensusModel) and len(text) > MEBIBYTE:
                await self.inner.aclose()
                raise TransportError(f"link to {self.peer}: 1009, the message is too big")
            await self.inner.send(message)


def _taken() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    leaks.LEFT.append(lambda: os.close(descriptor))


class LeaksWhereNobodyAnswers(SoundTransport):
    """The socket of a dial that failed is nobody's."""

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        try:
            return await super().dial(url, credentials)
        except TransportError:
            _taken()
            raise


class LeaksWhenCancelledHalfWay(SoundTransport):
    """That of a dial that was cancelled after it had begun, too."""

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        await trio.lowlevel.checkpoint()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            _taken()
            raise
        return await super().dial(url, credentials)
