"""A sound transport to break: memory:// with a layer over each channel that passes everything on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from paceline.core.messages import BulkBlock
from paceline.transports.api import Capabilities, Channel, Credentials, Listener, Place, Transport
from paceline.transports.memory import MemoryTransport
from paceline.transports.tcp import TcpTransport


class SoundChannel:
    """Passes everything on. What is broken overrides a method."""

    def __init__(self, inner: Channel) -> None:
        self.inner = inner
        self.peer = inner.peer

    async def send(self, message: Any) -> None:
        await self.inner.send(message)

    async def receive(self) -> Any:
        return await self.inner.receive()

    async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
        await self.inner.send_bulk(block, data)

    async def receive_bulk(self, place: Place) -> BulkBlock:
        return await self.inner.receive_bulk(place)

    async def aclose(self) -> None:
        await self.inner.aclose()


class SoundListener:
    """Passes everything on, its channels in their layer."""

    def __init__(self, inner: Listener, layer: Callable[[Channel], Channel]) -> None:
        self.inner = inner
        self.layer = layer
        self.url = inner.url

    async def serve(self, handler: Callable[[Channel], Awaitable[None]]) -> None:
        await self.inner.serve(lambda channel: handler(self.layer(channel)))

    async def aclose(self) -> None:
        await self.inner.aclose()


class SoundTransport:
    """memory:// under a layer that changes nothing; it passes the whole kit."""

    scheme = "memory"
    capabilities: ClassVar[Capabilities] = MemoryTransport.capabilities
    below: ClassVar[Callable[[], Transport]] = MemoryTransport
    layer: ClassVar[type[SoundChannel]] = SoundChannel
    listener: ClassVar[type[SoundListener]] = SoundListener

    async def listen(self, url: str, credentials: Credentials) -> Listener:
        return self.listener(await type(self).below().listen(url, credentials), self.layer)

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        return self.layer(await type(self).below().dial(url, credentials))


class OverTcp(SoundTransport):
    """The same over tcp://, for what only shows where processes die."""

    scheme = "tcp"
    capabilities = TcpTransport.capabilities
    below = staticmethod(lambda: TcpTransport(once=True, handshake_s=60.0))
