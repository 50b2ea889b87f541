"""A channel over two byte lanes: what every stream-like transport shares.

A transport of this package brings two ordered byte lanes per peer (two sockets, two pairs of pipes) and, where it
authenticates, the keys its handshake made. `FramedChannel` does the rest: frames through `Link` and `BulkFramer`,
one writer at a time, and the end of the channel.

How a channel ends
------------------
A channel has one end, with one cause, written down by whoever meets it first. From then on both lanes are closed,
every call raises `TransportError` with that cause, everything blocked wakes with it, and nothing that arrived but was
not yet delivered is delivered any more. There is no way back.

Frames are whole (N-4). A frame gets its number when it is sealed, so from that moment it must reach the lane whole:
a cancelled or failed write ends the channel, for a peer can neither repair a torn frame nor a hole in the numbers. A
call that is cancelled before that moment, while it waits for its turn, leaves no trace. Reading is alike: bytes of
the control lane wait inside the `Link`, so a cancelled `receive` loses nothing, whereas a bulk block goes straight
into memory that the caller takes back with the cancellation, so once its first byte is taken the channel ends.

The control lane judges loss. Two lanes are two streams, and the network may show the end of one before the last bytes
of the other: a rank that says `Exiting` and closes must not look dead because the bulk lane was looked at first. So
whoever meets the end anywhere but at the reading side of the control lane gives that reader `LANE_SKEW_S` to deliver
what the peer had still said, and to meet the end itself, before the channel is closed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import trio

from ..core.errors import LocalProtocolError, RemoteProtocolError, TransportError
from ..core.messages import BulkBlock
from ..core.wire import (
    FRAME_HEAD,
    FRAME_TAG,
    MAP_PREFIX,
    NONCE_BYTES,
    BulkFramer,
    Link,
    LinkKeys,
    ListenHandshake,
    Role,
)
from .api import Buffer, Channel, Credentials, Place
from .codec import MsgpackCodec

__all__ = ["ByteLane", "FramedChannel", "check_credentials", "fill", "run_handler"]

_log = logging.getLogger(__name__)

CONTROL_READ_BYTES = 64 * 1024
"""How much of the control lane is read at once; a `Link` holds at most one unfinished frame and this much more."""

THREAD_BYTES = 1024 * 1024
"""From this size on a tag over a block is computed in a thread: a megabyte takes about a millisecond, which a
heartbeat may wait, sixteen do not (N-5)."""

LANE_SKEW_S = 1.0
"""How long the reader of the control lane may go on delivering after the end was seen elsewhere."""

CLOSED_BY_PEER = "closed by the peer"
TORN_BY_PEER = "closed by the peer in the middle of a frame"
RESET = "connection reset by the peer"
CLOSED_HERE = "closed here"

T = TypeVar("T")


class ByteLane(Protocol):
    """Ordered bytes both ways. Both coroutines follow trio's rule for cancellation: when `trio.Cancelled` comes out
    of `receive_into` no byte was taken, and a call that took or gave bytes in one go does not raise it."""

    async def send(self, views: Sequence[Buffer]) -> None:
        """Write all views in order. `OSError` when the peer is gone or takes nothing, `trio.ClosedResourceError`
        when this end was closed; after any exception an unknown part may have been written."""
        ...

    async def receive_into(self, buffer: Buffer) -> int:
        """Wait for bytes, put at most `len(buffer)` of them there, return how many: 0 is the end of the stream."""
        ...

    def close(self) -> None:
        """Close at once, wake everything blocked here with `trio.ClosedResourceError`; idempotent."""
        ...


async def fill(lane: ByteLane, buffer: Buffer) -> None:
    """Receive until `buffer` is full, straight into it; `EOFError` when the stream ends before."""
    filled = 0
    while filled < len(buffer):
        taken = await lane.receive_into(buffer[filled:])
        if taken == 0:
            raise EOFError(TORN_BY_PEER)
        filled += taken


def check_credentials(credentials: Credentials) -> None:
    """`LocalProtocolError` unless every field has its shape. Done before anything is bound or dialled: found out at a
    connection, the mistake would look like one of the peer."""
    ListenHandshake(run_id=credentials.run_id, token=credentials.token, nonce=bytes(NONCE_BYTES))
    if credentials.bulk_auth not in ("full", "header"):
        raise LocalProtocolError(f"bulk_auth is full or header, not {credentials.bulk_auth!r}")


async def run_handler(channel: FramedChannel, handler: Callable[[Channel], Awaitable[None]]) -> None:
    """Run a listener's handler on one channel and close the channel after it. What the handler raises ends its own
    channel only: a lost peer is no news to a log, a misbehaving one is a line, anything else is a fault of ours or of
    the embedder with its traceback."""
    try:
        await handler(channel)
    except* TransportError as lost:
        _log.info("%s", _texts(lost))
    except* RemoteProtocolError as violation:
        _log.warning("link to %s ended by a violation: %s", channel.peer, _texts(violation))
    except* Exception:
        _log.exception("the handler of %s failed; its channel is closed", channel.peer)
    finally:
        await channel.aclose()


def _texts(group: BaseExceptionGroup[Exception]) -> str:
    return "; ".join(str(error) for error in group.exceptions)


class FramedChannel:
    """A `Channel` over two byte lanes; see `transports.api.Channel` for the contract of its methods.

    `role` is whose end this is. Keys are None where the transport needs no tags (one process, one host, N-28).
    """

    def __init__(
        self,
        *,
        peer: str,
        role: Role,
        control: ByteLane,
        bulk: ByteLane,
        control_keys: LinkKeys | None = None,
        bulk_keys: LinkKeys | None = None,
        bulk_auth: str = "full",
    ) -> None:
        self.peer = peer
        codec = MsgpackCodec()
        self._control = control
        self._bulk = bulk
        self._link = Link(codec=codec, keys=control_keys, role=role)
        self._framer = BulkFramer(codec=codec, keys=bulk_keys, role=role, bulk_auth=bulk_auth)
        self._threaded_from = THREAD_BYTES if bulk_keys is not None and bulk_auth == "full" else math.inf
        self._control_writer = trio.Lock()
        self._bulk_writer = trio.Lock()
        self._reading: set[str] = set()
        self._control_buffer = memoryview(bytearray(CONTROL_READ_BYTES))
        self._bulk_head = memoryview(bytearray(FRAME_HEAD + MAP_PREFIX))
        self._bulk_tag = memoryview(bytearray(FRAME_TAG))
        self._ended = trio.Event()
        self._cause = ""

    # --- the control lane

    async def send(self, message: Any) -> None:
        """Send one message; whole, or the channel ends."""
        async with self._control_writer:
            await self._may_begin()
            frame = self._link.send(message)
            await self._write(self._control, (memoryview(frame),))

    async def receive(self) -> Any:
        """The next message; cancelling it loses nothing."""
        with self._only_reader("control"):
            await self._may_begin()
            while (message := self._decoded()) is None:
                taken = await self._ending(self._control.receive_into(self._control_buffer), judge=True)
                if taken == 0:
                    self.close(self._control_end())
                    raise self._loss()
                self._link.receive_data(self._control_buffer[:taken])
            return message

    # --- the bulk lane

    async def send_bulk(self, block: BulkBlock, data: Buffer) -> None:
        """Send one block; whole, or the channel ends. The memory may be reused once this returns."""
        if data.nbytes != block.bytes or data.ndim != 1 or data.format != "B" or not data.contiguous:
            raise LocalProtocolError(
                f"a block of {block.bytes} bytes needs one-dimensional contiguous bytes of that length, "
                f"got {data.nbytes} bytes of format {data.format} in {data.ndim} dimensions"
            )
        async with self._bulk_writer:
            await self._may_begin()
            if block.bytes >= self._threaded_from:
                head, tag = await trio.to_thread.run_sync(self._framer.seal, block, data)
            else:
                head, tag = self._framer.seal(block, data)
            await self._write(self._bulk, (memoryview(head), data, memoryview(tag)))

    async def receive_bulk(self, place: Place) -> BulkBlock:
        """Receive one block into the memory `place` names; cancelling it inside a block ends the channel."""
        with self._only_reader("bulk"):
            await self._may_begin()
            begun = await self._ending(self._bulk.receive_into(self._bulk_head))
            if begun == 0:
                await self._give_way(CLOSED_BY_PEER)
                raise self._loss()
            try:
                return await self._ending(self._rest_of_block(begun, place))
            except trio.Cancelled:
                self.close("a receive was cancelled in the middle of a bulk block (N-4)")
                raise
            except BaseException as error:
                self.close(f"a bulk block could not be placed: {error!r}")
                raise

    # --- the end

    async def aclose(self) -> None:
        """Close both lanes at once; idempotent, and done even when the caller is cancelled."""
        self.close(CLOSED_HERE)
        await trio.lowlevel.checkpoint()

    def close(self, cause: str) -> None:
        """End the channel, unless it has ended: the first cause stays. Control goes first, so that a peer which sees
        the lanes in that order meets the end where it is judged."""
        if not self._ended.is_set():
            self._cause = cause
            self._ended.set()
            self._control.close()
            self._bulk.close()

    def _loss(self) -> TransportError:
        return TransportError(f"link to {self.peer}: {self._cause}")

    async def _may_begin(self) -> None:
        """Last point at which a call can be cancelled or refused without a trace."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._ended.is_set():
            raise self._loss()

    async def _ending(self, operation: Awaitable[T], *, judge: bool = False) -> T:
        """Run an operation on a lane; what it meets there ends the channel and comes out as the contract says. The
        `judge` is the reader of the control lane: it waits for nobody."""
        try:
            return await operation
        except RemoteProtocolError as error:
            self.close(str(error))
            raise
        except (OSError, EOFError, trio.ClosedResourceError) as error:
            if judge:
                self.close(_cause_of(error))
            else:
                await self._give_way(_cause_of(error))
            raise self._loss() from error

    async def _give_way(self, cause: str) -> None:
        """Let the reader of the control lane meet the end first; see "The control lane judges loss" above."""
        try:
            with trio.move_on_after(LANE_SKEW_S):
                await self._ended.wait()
        finally:
            self.close(cause)

    # --- pieces

    async def _write(self, lane: ByteLane, views: Sequence[Buffer]) -> None:
        try:
            await self._ending(lane.send(views))
        except BaseException:
            # Nothing but a cancellation gets here with the channel still open.
            self.close("a send was cancelled in the middle of a frame (N-4)")
            raise

    def _decoded(self) -> Any:
        try:
            return self._link.next_message()
        except RemoteProtocolError as error:
            self.close(str(error))
            raise

    def _control_end(self) -> str:
        """Whether the stream ended between two frames or inside one. Both are the death of the peer, not its fault."""
        self._link.receive_eof()
        return CLOSED_BY_PEER if self._link.ended else TORN_BY_PEER

    async def _rest_of_block(self, begun: int, place: Place) -> BulkBlock:
        """The frame whose first `begun` bytes lie in the head buffer. Never reads past its end, so that nothing of
        the next block needs a copy."""
        head = self._bulk_head
        await fill(self._bulk, head[begun:])
        self._framer.open_head(head[:FRAME_HEAD])
        raw_map = memoryview(bytearray(self._framer.map_bytes(head[FRAME_HEAD:])))
        await fill(self._bulk, raw_map)
        block = self._framer.open_map(raw_map)
        target = place(block)
        if target.nbytes != block.bytes or target.ndim != 1 or target.format != "B" or not target.contiguous:
            raise LocalProtocolError(f"place gave {target.nbytes} bytes of format {target.format} for {block}")
        await fill(self._bulk, target)
        await fill(self._bulk, self._bulk_tag)
        if block.bytes >= self._threaded_from:
            await trio.to_thread.run_sync(self._framer.verify, target, self._bulk_tag)
        else:
            self._framer.verify(target, self._bulk_tag)
        return block

    @contextmanager
    def _only_reader(self, lane: str) -> Iterator[None]:
        """One reader per lane: two would share the bytes of one frame."""
        if lane in self._reading:
            raise LocalProtocolError(f"another task already receives on the {lane} lane of {self.peer}")
        self._reading.add(lane)
        try:
            yield
        finally:
            self._reading.remove(lane)


def _cause_of(error: Exception) -> str:
    """In words. A broken pipe is a write after the peer's orderly end; everything else the system calls a reset came
    without one."""
    if isinstance(error, trio.ClosedResourceError):
        return CLOSED_HERE
    if isinstance(error, BrokenPipeError):
        return CLOSED_BY_PEER
    if isinstance(error, ConnectionError):
        return RESET
    return str(error)
