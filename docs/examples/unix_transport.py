"""`unix:///path`: a whole transport, for ranks on one host. docs/guides/write-a-transport.md goes through it.

A rank connects to the path, makes a pair of sockets for its bulk lane, and hands one of the two over with its greeting,
so the listener has nothing to pair. The file is for its owner only (mode 0600): whoever can open it is let in, and the
frames need no keys (protocol N-28).

    paceline conform transport unix_transport:UnixTransport@unix:///tmp/kit
"""

import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import trio

from paceline.core.errors import ConfigError, TransportError
from paceline.core.wire import Role
from paceline.transports.api import Capabilities, Channel, Credentials
from paceline.transports.framed import FramedChannel, check_credentials, run_handler
from paceline.transports.socket_lane import SocketLane

GREETING = b"paceline"
HANDSHAKE_S = 2.0
Socket = trio.socket.SocketType


class UnixListener:
    def __init__(self, path: str, bound: Socket) -> None:
        self.url, self.path, self.bound = f"unix://{path}", path, bound

    async def serve(self, handler: Callable[[Channel], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            with suppress(trio.ClosedResourceError):  # aclose; the nursery still waits for the handlers
                while self.bound.fileno() >= 0:
                    connected, _ = await self.bound.accept()
                    nursery.start_soon(self.arrive, connected, handler)

    async def arrive(self, control: Socket, handler: Callable[[Channel], Awaitable[None]]) -> None:
        channel = None
        with control, suppress(OSError), trio.move_on_after(HANDSHAKE_S):
            channel = await self.greet(control)
        if channel is not None:
            await run_handler(channel, handler)

    async def greet(self, control: Socket) -> FramedChannel | None:
        said, extra, *_ = await control.recvmsg(len(GREETING), socket.CMSG_LEN(4))
        if not extra:
            return None
        with trio.socket.from_stdlib_socket(socket.socket(fileno=struct.unpack("i", extra[0][2])[0])) as bulk:
            if said != GREETING:
                return None
            await control.send(GREETING)
            lanes = SocketLane(control.dup()), SocketLane(bulk.dup())
        return FramedChannel(peer=self.url, role=Role.COORDINATOR, control=lanes[0], bulk=lanes[1])

    async def aclose(self) -> None:
        if self.bound.fileno() >= 0:
            self.bound.close()
            os.unlink(self.path)
        await trio.lowlevel.checkpoint()


class UnixTransport:
    scheme = "unix"
    capabilities = Capabilities(across_processes=True, across_hosts=False, authenticated=False, separate_bulk=True)

    async def listen(self, url: str, credentials: Credentials) -> UnixListener:
        check_credentials(credentials)
        path = path_in(url)
        if Path(path).is_socket() and not await answers(path):
            os.unlink(path)  # left behind by a coordinator that was killed
        bound = trio.socket.socket(socket.AF_UNIX)
        try:
            await bound.bind(path)
            os.chmod(path, 0o600)
            bound.listen(128)
        except OSError as error:
            bound.close()
            raise TransportError(f"cannot listen at {path}: {error}; is another run there?") from error
        return UnixListener(path, bound)

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        check_credentials(credentials)
        path = path_in(url)
        control = trio.socket.socket(socket.AF_UNIX)
        bulk, theirs = trio.socket.socketpair()
        channel = FramedChannel(peer=url, role=Role.RANK, control=SocketLane(control), bulk=SocketLane(bulk))
        handed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", theirs.fileno()))
        try:
            with theirs, trio.fail_after(HANDSHAKE_S):
                await control.connect(path)
                await control.sendmsg([GREETING], [handed])
                if await control.recv(len(GREETING)) != GREETING:
                    raise ConnectionError("no greeting came back")
        except (OSError, trio.TooSlowError) as error:
            channel.close("nobody answered")
            raise TransportError(f"nobody answers at {path} ({error}): is the coordinator running there?") from error
        except trio.Cancelled:
            channel.close("the dial was cancelled")
            raise
        return channel


async def answers(path: str) -> bool:
    with suppress(OSError), trio.socket.socket(socket.AF_UNIX) as probe:
        await probe.connect(path)
        return True
    return False


def path_in(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "unix" or parts.netloc or len(parts.path) < 2:
        raise ConfigError(f"{url!r} is no address of this transport: it must read unix:///path")
    return parts.path
