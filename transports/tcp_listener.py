"""The coordinator's end of `tcp://`: from an accepted connection to a channel with two proved lanes.

Each accepted connection walks through three gates, and all three together take at most `handshake_s`:

    pending     has proved nothing yet. At most PENDING_PRELUDES at a time; one more is told that we are busy and closed
                at once (N-25, N-29). Costs one prelude of memory; whoever does not begin like a prelude is closed at
                its first bytes.
    unpaired    has proved the token and waits for the other lane of its dial. At most UNPAIRED_LANES; these are our
                own ranks, so the bound is there only to have one. It is apart from the bound above, because control
                lanes that wait for their bulk lanes must not be what keeps these out.
    open        both lanes are there, opening blocks have been exchanged, the handler runs.

What fails at a gate is closed and costs nobody else anything.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import math
import os
from collections.abc import Awaitable, Callable

import attrs
import trio

from ..core.errors import RemoteProtocolError, TransportError
from ..core.messages import NO_RANK, BulkBlock, RejectCode, RoundKey, RoundKind
from ..core.wire import (
    NONCE_BYTES,
    PRELUDE_1,
    PRELUDE_3,
    Lane,
    LinkKeys,
    ListenHandshake,
    Role,
    check_magic,
    refusal_prelude,
)
from .api import Buffer, Channel, Credentials
from .framed import FramedChannel, fill, run_handler
from .tcp_socket import TcpLane, address_text, on_one_host

__all__ = ["DIAL_ID_BYTES", "TcpListener", "open_lanes"]

DIAL_ID_BYTES = 16
"""How much of the front of a dialler's nonce names the dial; see `tcp`."""

PENDING_PRELUDES = 64
UNPAIRED_LANES = 1024

ACCEPT_PAUSE_S = 0.1
"""Pause after the system could not give us a connection for want of descriptors or memory."""

WARNED_ADDRESSES = 256
"""How many addresses are remembered for the warning of N-28."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_log = logging.getLogger(__name__)

OPENING = BulkBlock(
    key=RoundKey(generation=0, cycle=0, kind=RoundKind.COUNTS),
    attempt=0,
    rank=NO_RANK,
    incarnation=0,
    entry=0,
    offset=0,
    bytes=0,
)
"""The first block of each direction of a bulk lane. Its rank names nobody, so it can be no part of a round."""


async def open_lanes(channel: FramedChannel, role: Role) -> None:
    """Exchange opening blocks, the rank first; closes the channel when that fails."""
    try:
        if role is Role.RANK:
            await channel.send_bulk(OPENING, memoryview(b""))
        await channel.receive_bulk(_place_opening)
        if role is Role.COORDINATOR:
            await channel.send_bulk(OPENING, memoryview(b""))
    except BaseException:
        channel.close("the bulk lane did not open")
        raise


def _place_opening(block: BulkBlock) -> Buffer:
    if block != OPENING:
        raise RemoteProtocolError(f"a bulk lane opens with an empty block of no rank, not with {block}")
    return memoryview(bytearray())


@attrs.define(eq=False, kw_only=True)
class _Proved:
    """A connection whose peer knows the token."""

    lane: TcpLane
    kind: Lane
    keys: LinkKeys
    dial_id: bytes
    deadline: float
    paired: trio.Event = attrs.field(factory=trio.Event)


class TcpListener:
    """A bound socket; made by `TcpTransport.listen`. Times in seconds."""

    def __init__(
        self,
        *,
        listening: trio.socket.SocketType,
        url: str,
        credentials: Credentials,
        handshake_s: float,
        write_stall_s: float,
    ) -> None:
        self.url = url
        self._listening = listening
        self._credentials = credentials
        self._handshake_s = handshake_s
        self._write_stall_s = write_stall_s
        self._closed = False
        self._pending = 0
        self._unpaired: dict[tuple[bytes, Lane], _Proved] = {}
        self._arriving: dict[int, trio.CancelScope] = {}
        self._accepted = 0
        self._warned: set[str] = set()

    async def serve(self, handler: Callable[[Channel], Awaitable[None]]) -> None:
        """Accept until `aclose`; returns when every handler has returned."""
        async with trio.open_nursery() as nursery:
            while (connected := await self._accept()) is not None:
                if self._pending >= PENDING_PRELUDES:
                    await _turn_away(connected)
                else:
                    self._pending += 1
                    nursery.start_soon(self._arrive, connected, handler)

    async def aclose(self) -> None:
        """Stop accepting, close the socket and whatever has no handler yet; channels that are served go on."""
        if not self._closed:
            self._closed = True
            self._listening.close()
            for scope in self._arriving.values():
                scope.cancel()
        await trio.lowlevel.checkpoint()

    async def _accept(self) -> trio.socket.SocketType | None:
        """The next connection, None once this listener is closed."""
        while not self._closed:
            try:
                connected, _ = await self._listening.accept()
                return connected
            except trio.ClosedResourceError:
                return None
            except OSError as error:
                # Anything else is about the one connection that was to be accepted, and over with it.
                if error.errno in _EXHAUSTED:
                    _log.error(
                        "cannot accept connections at %s: %s; is the limit of open files too low?", self.url, error
                    )
                    await trio.sleep(ACCEPT_PAUSE_S)
        return None

    async def _arrive(self, connected: trio.socket.SocketType, handler: Callable[[Channel], Awaitable[None]]) -> None:
        """One connection through its gates. The second lane of a dial carries on for both."""
        number = self._accepted
        self._accepted += 1
        channel: FramedChannel | None = None
        with trio.move_on_after(self._handshake_s) as scope:
            self._arriving[number] = scope
            try:
                proved = await self._proved(connected, scope.deadline)
                if proved is not None:
                    channel = await self._paired(proved)
            finally:
                del self._arriving[number]
        if channel is not None:
            await run_handler(channel, handler)

    # --- gates

    async def _proved(self, connected: trio.socket.SocketType, deadline: float) -> _Proved | None:
        """The listener's half of N-21 and N-22; None and closed when the peer is refused or is none of ours."""
        proved: _Proved | None = None
        try:
            proved = await self._judge(TcpLane(connected, self._write_stall_s), deadline)
        except (OSError, EOFError, RemoteProtocolError) as error:
            # A stranger learns nothing, not even that its proof was wrong (N-22).
            _log.debug("a connection to %s did not get in: %s", self.url, error)
        finally:
            self._pending -= 1
            if proved is None:
                connected.close()
        return proved

    async def _judge(self, lane: TcpLane, deadline: float) -> _Proved | None:
        handshake = ListenHandshake(
            run_id=self._credentials.run_id,
            token=self._credentials.token,
            nonce=os.urandom(NONCE_BYTES),
        )
        first = memoryview(bytearray(PRELUDE_1))
        begun = await lane.receive_into(first)
        check_magic(first[:begun])
        await fill(lane, first[begun:])
        await lane.send((memoryview(handshake.receive_first(first)),))
        if handshake.refused:
            return None
        third = memoryview(bytearray(PRELUDE_3))
        await fill(lane, third)
        handshake.receive_proof(third)
        if self._credentials.bulk_auth == "header" and not on_one_host(lane.own, lane.remote):
            raise RemoteProtocolError(f"{lane.remote[0]} is another host, and bulk_auth is header (N-26)")
        if handshake.lane is Lane.BULK:
            lane.write_stall_s = math.inf
        self._warn_of_public(lane)
        nonce = first[PRELUDE_1 - NONCE_BYTES :]
        return _Proved(
            lane=lane,
            kind=handshake.lane,
            keys=handshake.keys,
            dial_id=nonce[:DIAL_ID_BYTES].tobytes(),
            deadline=deadline,
        )

    async def _paired(self, proved: _Proved) -> FramedChannel | None:
        """The channel, if this lane is the second of its dial; None when the other one took over or did not come."""
        other = Lane.BULK if proved.kind is Lane.CONTROL else Lane.CONTROL
        partner = self._unpaired.pop((proved.dial_id, other), None)
        if partner is None:
            await self._wait_for_partner(proved)
            return None
        partner.paired.set()
        by_kind = {proved.kind: proved, partner.kind: partner}
        control, bulk = by_kind[Lane.CONTROL], by_kind[Lane.BULK]
        channel = FramedChannel(
            peer=address_text(control.lane.remote),
            role=Role.COORDINATOR,
            control=control.lane,
            bulk=bulk.lane,
            control_keys=control.keys,
            bulk_keys=bulk.keys,
            bulk_auth=self._credentials.bulk_auth,
        )
        with trio.move_on_at(partner.deadline):
            try:
                await open_lanes(channel, Role.COORDINATOR)
                return channel
            except (TransportError, RemoteProtocolError) as error:
                _log.debug("a dial to %s did not open its lanes: %s", self.url, error)
        return None

    async def _wait_for_partner(self, proved: _Proved) -> None:
        """Until the other lane takes this one over; if none does in time, it is closed (N-26)."""
        key = (proved.dial_id, proved.kind)
        if key in self._unpaired or len(self._unpaired) >= UNPAIRED_LANES:
            proved.lane.close()
            return
        self._unpaired[key] = proved
        try:
            await proved.paired.wait()
        finally:
            if not proved.paired.is_set():
                del self._unpaired[key]
                proved.lane.close()

    def _warn_of_public(self, lane: TcpLane) -> None:
        """Frames are authenticated and not encrypted; over public networks that is worth one line per host (N-28)."""
        host = str(lane.remote[0])
        if host in self._warned or len(self._warned) >= WARNED_ADDRESSES:
            return
        if ipaddress.ip_address(host.partition("%")[0]).is_global:
            self._warned.add(host)
            _log.warning("%s is a public address and tcp:// is not encrypted: use a private network or a tunnel", host)


async def _turn_away(connected: trio.socket.SocketType) -> None:
    """Refuse unread. A socket that has sent nothing yet takes the 64 bytes without waiting."""
    try:
        await connected.send(refusal_prelude(RejectCode.BUSY))
    except OSError as error:
        _log.debug("a connection was gone before it was refused: %s", error)
    finally:
        connected.close()
