"""`memory://name`: coordinator and ranks in one process, in one trio run.

For tests, notebooks and embedders that run the whole cohort as tasks. Every message and block still becomes the bytes
of a frame and is parsed again, so what works here has been framed. Nothing depends on a clock or a random source: who
waits is woken in the order in which it began to wait.

Names belong to the process. Both ends hold their credentials in the same memory, so these are compared at the dial
and frames carry no tags (N-28).
"""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

import attrs
import trio

from ..core.errors import ConfigError, RefusedError, TransportError
from ..core.messages import RejectCode
from ..core.wire import Role
from .api import Buffer, Capabilities, Channel, Credentials
from .framed import FramedChannel, check_credentials, run_handler

__all__ = ["MemoryListener", "MemoryTransport"]

PIPE_BYTES = 256 * 1024
"""How much one direction of one lane holds before its writer waits, about what a socket on loopback takes at first."""

BACKLOG = 128
"""How many dialled channels may wait for `serve`; the next dial is told that nobody answers."""

_listeners: dict[str, MemoryListener] = {}
"""Who listens in this process, by name."""


class MemoryTransport:
    """Listens and dials inside this process."""

    scheme = "memory"
    capabilities = Capabilities(across_processes=False, across_hosts=False, authenticated=True, separate_bulk=True)

    async def listen(self, url: str, credentials: Credentials) -> MemoryListener:
        """Take a name; `TransportError` when it is taken."""
        await trio.lowlevel.checkpoint()
        check_credentials(credentials)
        name = _name_in(url)
        if name in _listeners:
            raise TransportError(f"memory://{name} is taken: close the other listener, or choose another name")
        listener = MemoryListener(name=name, credentials=credentials)
        _listeners[name] = listener
        return listener

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        """A channel to the listener of that name. There is no retry: a name that nobody has taken in this process is
        a `TransportError` at once."""
        await trio.lowlevel.checkpoint()
        check_credentials(credentials)
        name = _name_in(url)
        listener = _listeners.get(name)
        if listener is None:
            raise TransportError(f"nobody answers at memory://{name}: no listener of that name in this process")
        return listener.connect(credentials)


class MemoryListener:
    """The coordinator's end of a name."""

    def __init__(self, *, name: str, credentials: Credentials) -> None:
        self.url = f"memory://{name}"
        self._name = name
        self._credentials = credentials
        self._dialled = 0
        self._closed = False
        self._waiting: deque[FramedChannel] = deque()
        self._news = trio.lowlevel.ParkingLot()

    async def serve(self, handler: Callable[[Channel], Awaitable[None]]) -> None:
        """Accept until `aclose`; returns when every handler has returned."""
        async with trio.open_nursery() as nursery:
            while not self._closed:
                while self._waiting:
                    nursery.start_soon(run_handler, self._waiting.popleft(), handler)
                await self._news.park()

    async def aclose(self) -> None:
        """Give the name back. Channels that no handler has seen are closed, the others go on."""
        if not self._closed:
            self._closed = True
            del _listeners[self._name]
            while self._waiting:
                self._waiting.popleft().close("the listener was closed")
            self._news.unpark_all()
        await trio.lowlevel.checkpoint()

    def connect(self, credentials: Credentials) -> FramedChannel:
        """Make both ends of a channel, leave one to `serve` and return the other; used by `MemoryTransport.dial`."""
        self._compare(credentials)
        if len(self._waiting) >= BACKLOG:
            raise TransportError(f"nobody answers at {self.url}: {BACKLOG} dialled channels wait for serve()")
        self._dialled += 1
        control, bulk = _lane_pair(), _lane_pair()
        near = FramedChannel(peer=self.url, role=Role.RANK, control=control[0], bulk=bulk[0])
        far = FramedChannel(peer=f"{self.url}#{self._dialled}", role=Role.COORDINATOR, control=control[1], bulk=bulk[1])
        self._waiting.append(far)
        self._news.unpark_all()
        return near

    def _compare(self, credentials: Credentials) -> None:
        """N-22 without the wire: the same refusals in the same order."""
        if credentials.run_id != self._credentials.run_id:
            raise RefusedError(f"{self.url} belongs to another run", code=RejectCode.OTHER_RUN)
        if not hmac.compare_digest(credentials.token, self._credentials.token):
            raise RefusedError(f"wrong token for the run at {self.url}", code=RejectCode.OTHER_RUN)


class _Pipe:
    """One direction of a lane: at most `PIPE_BYTES` written and not yet read.

    As with a socket, bytes written before the writer closed stay readable, and a write to a reader that is gone
    fails. A call that has moved bytes does not raise `trio.Cancelled` for them.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._writer_closed = False
        self._reader_closed = False
        self._waiting = trio.lowlevel.ParkingLot()

    async def send(self, views: Sequence[Buffer]) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        for view in views:
            while len(view) > 0:
                await self._until(lambda: len(self._held) < PIPE_BYTES or self._reader_closed or self._writer_closed)
                if self._writer_closed:
                    raise trio.ClosedResourceError
                if self._reader_closed:
                    raise BrokenPipeError
                room = PIPE_BYTES - len(self._held)
                self._held += view[:room]
                view = view[room:]
                self._waiting.unpark_all()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def receive_into(self, buffer: Buffer) -> int:
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._until(lambda: len(self._held) > 0 or self._writer_closed or self._reader_closed)
        if self._reader_closed:
            raise trio.ClosedResourceError
        taken = min(len(buffer), len(self._held))
        buffer[:taken] = self._held[:taken]
        del self._held[:taken]
        self._waiting.unpark_all()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return taken

    def close_writer(self) -> None:
        self._writer_closed = True
        self._waiting.unpark_all()

    def close_reader(self) -> None:
        self._reader_closed = True
        self._held.clear()
        self._waiting.unpark_all()

    async def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            await self._waiting.park()


@attrs.frozen
class _PipeLane:
    """One end of a lane: a pipe out, a pipe in."""

    outgoing: _Pipe
    incoming: _Pipe

    async def send(self, views: Sequence[Buffer]) -> None:
        await self.outgoing.send(views)

    async def receive_into(self, buffer: Buffer) -> int:
        return await self.incoming.receive_into(buffer)

    def close(self) -> None:
        self.outgoing.close_writer()
        self.incoming.close_reader()


def _lane_pair() -> tuple[_PipeLane, _PipeLane]:
    up, down = _Pipe(), _Pipe()
    return _PipeLane(up, down), _PipeLane(down, up)


def _name_in(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != MemoryTransport.scheme or not parts.netloc or parts.path not in ("", "/"):
        raise ConfigError(f"{url!r} is no address of this transport: it must read memory://name")
    return parts.netloc
