"""Ends that are not told, told twice, told wrongly; and closing that cannot be repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import trio

from paceline.core.errors import TransportError
from paceline.core.messages import BulkBlock
from paceline.transports.api import Channel, Credentials, Listener, Place
from paceline.transports.tcp import TcpTransport

from .base import SoundChannel, SoundListener, SoundTransport


class ForgetsToNoticeDeath(SoundTransport):
    """Relies on somebody else's heartbeats: an end of the stream is no news."""

    class layer(SoundChannel):
        async def receive(self) -> Any:
            try:
                return await self.inner.receive()
            except TransportError:
                await trio.sleep_forever()


class ForgetsTheBulkLane(SoundTransport):
    """Notices the death on the control lane only."""

    class layer(SoundChannel):
        async def receive_bulk(self, place: Place) -> BulkBlock:
            try:
                return await self.inner.receive_bulk(place)
            except TransportError:
                await trio.sleep_forever()
                raise


class TwoLossNotices(SoundTransport):
    """Each lane has an end of its own, with a cause of its own."""

    class layer(SoundChannel):
        async def receive_bulk(self, place: Place) -> BulkBlock:
            try:
                return await self.inner.receive_bulk(place)
            except TransportError as error:
                raise TransportError(f"link to {self.peer}: the bulk connection was lost") from error


class NamesNobody(SoundTransport):
    """An error of the system as it is."""

    class layer(SoundChannel):
        async def receive(self) -> Any:
            try:
                return await self.inner.receive()
            except TransportError as error:
                raise TransportError("connection reset") from error


class ClosesOnce(SoundTransport):
    """A second close is taken for a mistake."""

    class layer(SoundChannel):
        closed = False

        async def aclose(self) -> None:
            if self.closed:
                raise TransportError(f"{self.peer} is closed already")
            self.closed = True
            await self.inner.aclose()


class HandlerEndsServe(SoundTransport):
    """No fence between the handlers of one listener."""

    class listener(SoundListener):
        async def serve(self, handler: Callable[[Channel], Awaitable[None]]) -> None:
            failures: list[Exception] = []
            failed = trio.Event()

            async def unfenced(channel: Channel) -> None:
                try:
                    await handler(channel)
                except ValueError as error:
                    failures.append(error)
                    failed.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.inner.serve, unfenced)
                await failed.wait()
                raise failures[0]


class WrongException(SoundTransport):
    """What the system raised, without a word about whom it concerns."""

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        try:
            return await super().dial(url, credentials)
        except TransportError as error:
            raise ConnectionRefusedError(111, "Connection refused") from error


class SecondChoice(SoundTransport):
    """Listens somewhere else when an address is taken, and says nothing."""

    async def listen(self, url: str, credentials: Credentials) -> Listener:
        try:
            return await super().listen(url, credentials)
        except TransportError:
            return await super().listen(f"{url}-2", credentials)


class OneLossEndsAll(SoundTransport):
    """Who closes one channel closes all of them."""

    class layer(SoundChannel):
        everyone: ClassVar[list[Channel]] = []

        def __init__(self, inner: Channel) -> None:
            super().__init__(inner)
            self.everyone.append(inner)

        async def aclose(self) -> None:
            while self.everyone:
                await self.everyone.pop().aclose()


class WaitsForEver(TcpTransport):
    """A handshake without a limit: who connects and says nothing stays."""

    def __init__(self) -> None:
        super().__init__(once=True, handshake_s=1e9)
