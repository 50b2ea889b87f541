"""Listeners and dials: addresses, credentials, handlers, and who is let in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import attrs
import trio
import trio.testing

from paceline.core.errors import ConfigError, TransportError
from paceline.transports.api import Channel, Credentials, Listener
from paceline.transports.conformance.kit import CREDENTIALS
from paceline.transports.memory import MemoryTransport

from .base import SoundChannel, SoundListener, SoundTransport


class SaysAnotherScheme(SoundTransport):
    """Is declared for one scheme and says another."""

    scheme = "dove"


class TakesAnyAddress(SoundTransport):
    """What stands before the colon is no business of its own."""

    async def listen(self, url: str, credentials: Credentials) -> Listener:
        try:
            return await super().listen(url, credentials)
        except ConfigError:
            return await super().listen("memory://anything", credentials)


class NamesNoPeer(SoundTransport):
    """A channel to whom?"""

    class layer(SoundChannel):
        def __init__(self, inner: Channel) -> None:
            super().__init__(inner)
            self.peer = ""


class KeepsItsAddress(SoundTransport):
    """Stops to serve, and gives the address back when it likes."""

    class listener(SoundListener):
        async def serve(self, handler: Callable[[Channel], Awaitable[None]]) -> None:
            self.closed = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(super().serve, handler)
                await self.closed.wait()
                nursery.cancel_scope.cancel()

        async def aclose(self) -> None:
            self.closed.set()


class ServesOn(SoundTransport):
    """Nobody tells its loop that it was closed."""

    class listener(SoundListener):
        async def serve(self, handler: Callable[[Channel], Awaitable[None]]) -> None:
            await super().serve(handler)
            await trio.sleep_forever()


class ClosesItsChannelsToo(SoundTransport):
    """Who shuts the door throws out who is inside."""

    class listener(SoundListener):
        async def serve(self, handler: Callable[[Channel], Awaitable[None]]) -> None:
            self.inside: list[Channel] = []

            async def noted(channel: Channel) -> None:
                self.inside.append(channel)
                await handler(channel)

            await super().serve(noted)

        async def aclose(self) -> None:
            await super().aclose()
            for channel in self.inside:
                await channel.aclose()


class RunsItsHandlerTwice(SoundTransport):
    """Tries a handler that has returned once more."""

    class listener(SoundListener):
        async def serve(self, handler: Callable[[Channel], Awaitable[None]]) -> None:
            async def twice(channel: Channel) -> None:
                await handler(channel)
                await handler(channel)

            await super().serve(twice)


class TakesAnyCredentials(SoundTransport):
    """What is too short is made longer."""

    @staticmethod
    def padded(given: Credentials) -> Credentials:
        return attrs.evolve(given, run_id=given.run_id[:16].ljust(16), token=given.token[:32].ljust(32))

    async def listen(self, url: str, credentials: Credentials) -> Listener:
        return await super().listen(url, self.padded(credentials))

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        return await super().dial(url, self.padded(credentials))


class IsHurtByCancelledDials(SoundTransport):
    """A dial that is cancelled leaves a lock behind that nobody opens."""

    locked = False

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        if self.locked:
            raise TransportError(f"nobody answers at {url}: another dial is under way")
        try:
            for _ in range(5):
                await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            self.locked = True
            raise
        return await super().dial(url, credentials)


class ServesWhoeverKnocks(SoundTransport):
    """Runs its handler for every connection, whatever it says. `knock` is how a stranger connects."""

    capabilities = attrs.evolve(MemoryTransport.capabilities, across_processes=True)

    @staticmethod
    async def knock(url: str) -> trio.abc.Stream:
        near, _ = trio.testing.memory_stream_pair()
        await MemoryTransport().dial(url, CREDENTIALS)
        return near


class ListensToAllTheWorld(SoundTransport):
    """Opens a socket beside its name, and claims that nobody else can come."""

    class listener(SoundListener):
        def __init__(self, inner: Listener, layer: Callable[[Channel], Channel]) -> None:
            super().__init__(inner, layer)
            self.beside = trio.socket.socket()
            self.beside.listen()

        async def aclose(self) -> None:
            with suppress(OSError):
                self.beside.close()
            await super().aclose()
