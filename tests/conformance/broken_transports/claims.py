"""Claims that are not true, and one that is not made."""

from __future__ import annotations

import attrs

from paceline.transports.api import Channel, Credentials, Listener
from paceline.transports.memory import MemoryTransport
from paceline.transports.tcp import TcpTransport

from .base import OverTcp, SoundTransport


class LiesAboutAuthentication(SoundTransport):
    """Claims to know its ranks, and compares nothing."""

    key = Credentials(run_id=bytes(16), token=bytes(32))

    async def listen(self, url: str, credentials: Credentials) -> Listener:
        return await super().listen(url, self.key)

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        return await super().dial(url, self.key)


class LiesAboutProcesses(SoundTransport):
    """Claims to be reachable from other processes."""

    capabilities = attrs.evolve(MemoryTransport.capabilities, across_processes=True)


class LiesAboutHosts(SoundTransport):
    """Claims to be reachable from other hosts, with a URL that names none."""

    capabilities = attrs.evolve(MemoryTransport.capabilities, across_hosts=True)

    async def listen(self, url: str, credentials: Credentials) -> Listener:
        listener = await super().listen(url, credentials)
        listener.url = "memory:///name"
        return listener


class HidesASeparateBulkLane(SoundTransport):
    """Keeps its lanes apart and does not claim it."""

    capabilities = attrs.evolve(MemoryTransport.capabilities, separate_bulk=False)


class HidesAuthentication(SoundTransport):
    """Refuses strangers and does not claim it."""

    capabilities = attrs.evolve(MemoryTransport.capabilities, authenticated=False)


class ClaimsInWords(SoundTransport):
    """A claim is True or False."""

    capabilities = attrs.evolve(MemoryTransport.capabilities, authenticated="yes")  # type: ignore[arg-type]


class HidesItsPort(OverTcp):
    """Can be dialled from another process and does not claim it."""

    capabilities = attrs.evolve(TcpTransport.capabilities, across_processes=False)

