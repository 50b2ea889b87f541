"""`unix:///path`: a whole transport, for ranks on one host. docs/guides/write-a-transport.md goes through it.

A rank connects to the path, makes a pair of sockets for its bulk lane, and hands one of the two over with its greeting,
so the listener has nothing to pair. The file is for its owner only (mode 0600): whoever can open it is let in, and the
frames need no keys (protocol N-28).

    paceline conform transport unix_transport:UnixTransport@unix:///tmp/paceline-kit
"""

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


class UnixListener:
    def __init__(self, path: Path, bound: trio.socket.SocketType) -> None:
        self.url, self.path, self.bound = f"unix://{path}", path, bound

    async def serve(self, handler: Callable[[Channel], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            with suppress(trio.ClosedResourceError):  # aclose; the nursery still waits for the handlers
                while self.bound.fileno() >= 0:
                    connected, _ = await self.bound.accept()
                    nursery.start_soon(self.arrive, connected, handler)

    async def arrive(self, control: trio.socket.SocketType, handler: Callable[[Channel], Awaitable[None]]) -> None:
        channel = None
        with control, suppress(OSError, IndexError), trio.move_on_after(HANDSHAKE_S):
            said, extra, *_ = await control.recvmsg(len(GREETING), socket.CMSG_LEN(4))
            (handed,) = struct.unpack("i", extra[0][2])  # IndexError: a stranger, who hands nothing over
            with trio.socket.from_stdlib_socket(socket.socket(fileno=handed)) as bulk:
                if said == GREETING:
                    await control.send(GREETING)
                    channel = channel_over(control, bulk, self.url, Role.COORDINATOR)
        if channel is not None:
            await run_handler(channel, handler)

    async def aclose(self) -> None:
        if self.bound.fileno() >= 0:
            self.bound.close()
            self.path.unlink()
        await trio.lowlevel.checkpoint()


class UnixTransport:
    scheme = "unix"
    capabilities = Capabilities(across_processes=True, across_hosts=False, authenticated=False, separate_bulk=True)

    async def listen(self, url: str, credentials: Credentials) -> UnixListener:
        path = path_for(url, credentials)
        if path.is_socket() and not await answers(path):
            path.unlink()  # left behind by a coordinator that was killed
        try:
            with trio.socket.socket(socket.AF_UNIX) as bound:
                await bound.bind(path)
                path.chmod(0o600)
                bound.listen(128)
                return UnixListener(path, bound.dup())
        except OSError as error:
            raise TransportError(f"cannot listen at {path}: {error}; is another run there?") from error

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        path = path_for(url, credentials)
        bulk, theirs = trio.socket.socketpair()
        try:
            with trio.socket.socket(socket.AF_UNIX) as control, bulk, theirs, trio.fail_after(HANDSHAKE_S):
                await control.connect(path)
                handed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", theirs.fileno()))
                await control.sendmsg([GREETING], [handed])
                if await control.recv(len(GREETING)) != GREETING:
                    raise ConnectionError("no greeting came back")
                return channel_over(control, bulk, url, Role.RANK)
        except (OSError, trio.TooSlowError) as error:
            raise TransportError(f"nobody answers at {path} ({error}): is the coordinator running there?") from error


def channel_over(control: trio.socket.SocketType, bulk: trio.socket.SocketType, url: str, role: Role) -> Channel:
    """Over copies of both sockets: who made these closes them, however the handshake ends."""
    return FramedChannel(peer=url, role=role, control=SocketLane(control.dup()), bulk=SocketLane(bulk.dup()))


async def answers(path: Path) -> bool:
    with suppress(OSError), trio.socket.socket(socket.AF_UNIX) as probe:
        await probe.connect(path)
        return True
    return False


def path_for(url: str, credentials: Credentials) -> Path:
    check_credentials(credentials)
    parts = urlsplit(url)
    if parts.scheme != "unix" or parts.netloc or len(parts.path) < 2:
        raise ConfigError(f"{url!r} is no address of this transport: it must read unix:///path")
    return Path(parts.path)
