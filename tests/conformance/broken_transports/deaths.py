"""Deaths of processes, over tcp://: not noticed, hidden, or felt by those whom they do not concern."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from paceline.core.errors import TransportError
from paceline.core.messages import BulkBlock
from paceline.transports.api import Channel, Credentials, Listener, Place

from .base import OverTcp, SoundChannel, SoundListener
from .ends import ForgetsToNoticeDeath, NamesNobody
from .leaks import LEFT


class WaitsForTheDead(OverTcp):
    """Relies on somebody else's heartbeats."""

    layer = ForgetsToNoticeDeath.layer


class BuriesNobodyByName(OverTcp):
    """Says that somebody is gone, and not who."""

    layer = NamesNobody.layer


class GivesTheLastBlockTwice(OverTcp):
    """At the end of the stream its buffer still holds a block."""

    class layer(SoundChannel):
        last: BulkBlock | None = None

        async def receive_bulk(self, place: Place) -> BulkBlock:
            try:
                self.last = await self.inner.receive_bulk(place)
            except TransportError:
                if self.last is None:
                    raise
            assert self.last is not None
            return self.last


class AsksEachInTurn(OverTcp):
    """One loop for all channels of a process, which waits for each of them in turn."""

    class layer(SoundChannel):
        turns: ClassVar[list[SoundChannel]] = []

        async def receive(self) -> Any:
            for other in self.turns:
                if other is not self:
                    await other.inner.receive()
            self.turns.append(self)
            return await self.inner.receive()

        async def aclose(self) -> None:
            self.turns.clear()
            await self.inner.aclose()


class LeavesItsSocketsToItsChildren(OverTcp):
    """Its sockets are open in whatever its process starts, and so for the coordinator, when the process is gone."""

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        channel = await super().dial(url, credentials)
        for name in os.listdir("/dev/fd"):
            with suppress(OSError):  # the one that listed them is closed
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    os.set_inheritable(int(name), True)
        return channel


class KeepsTheAddressOfTheDead(OverTcp):
    """A file says that an address is taken; who is killed leaves it behind, and nobody asks whether he lives."""

    class listener(SoundListener):
        async def aclose(self) -> None:
            await super().aclose()
            taken(self.url).unlink(missing_ok=True)

    async def listen(self, url: str, credentials: Credentials) -> Listener:
        listener = await super().listen(url, credentials)
        file = taken(listener.url)
        try:
            file.touch(exist_ok=False)
        except FileExistsError as error:
            await listener.inner.aclose()
            LEFT.append(lambda: file.unlink(missing_ok=True))
            raise TransportError(f"{url} is taken: there is {file.name}") from error
        return listener


def taken(url: str) -> Path:
    """The file for the address of a listener."""
    return Path(tempfile.gettempdir()) / f"paceline-kit-{urlsplit(url).port}"
