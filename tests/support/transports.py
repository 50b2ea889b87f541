"""What the tests of transports share: the transports to run over, a meeting of both ends, and a peer made by hand.

A test that takes `kind` and is marked `every_transport` runs over each transport of this package, and asks nothing of
it that `transports.api` does not promise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from paceline.core.messages import BulkBlock
from paceline.core.wire import BulkFramer, DialHandshake, Lane, Link, LinkKeys, Role
from paceline.transports.api import Credentials, Transport
from paceline.transports.codec import MsgpackCodec
from paceline.transports.conformance import stage
from paceline.transports.conformance.kit import CREDENTIALS
from paceline.transports.conformance.stage import Landing, Meeting, beacon, block, heartbeat, pattern
from paceline.transports.memory import MemoryTransport
from paceline.transports.tcp import TcpTransport
from paceline.transports.tcp_listener import OPENING

from .patience import PATIENCE_S

__all__ = ["CREDENTIALS", "Landing", "Meeting", "beacon", "block", "heartbeat", "pattern"]
"""What the tests have from the conformance kit, which has it for all authors of transports."""


@attrs.frozen
class Kind:
    """A transport under test: `make` gives one that does not dial twice, `url` an address nobody listens at yet."""

    name: str
    make: Callable[[], Transport]
    url: str


MEMORY = Kind("memory", MemoryTransport, "memory://test")
TCP = Kind("tcp", lambda: tcp_once(), "tcp://127.0.0.1:0")

every_transport = pytest.mark.parametrize("kind", [MEMORY, TCP], ids=lambda kind: kind.name)


IDLE_S = 0.05
"""Where both ends are in this process and nothing has moved for so long, nothing will before a limit of time."""


async def proven_from(addresses: Iterable[str]) -> None:
    """A listener of `tcp://` has peers at these addresses that have proved themselves (N-28)."""
    listener: Any = await TcpTransport().listen("tcp://127.0.0.1:0", CREDENTIALS)
    for address in addresses:
        listener._warn_of_public(SimpleNamespace(remote=(address, 1)))
    await listener.aclose()


def run(main: Callable[[], Awaitable[None]], clock: trio.abc.Clock | None = None) -> None:
    """Run an async test."""

    async def bounded() -> None:
        with trio.fail_after(PATIENCE_S):
            await main()

    trio.run(bounded, clock=clock)


def run_as_if_at_once(main: Callable[[], Awaitable[None]]) -> None:
    """Run an async test in which no time passes, however long the machine takes, before it calls `pass_the_time`."""
    run(main, MockClock())


def pass_the_time() -> None:
    """From here on time jumps to the next limit as soon as nothing moves: who has one runs into it, and nobody else."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    clock.autojump_threshold = IDLE_S


def let_no_time_pass() -> None:
    """From here on no time passes again."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    clock.autojump_threshold = math.inf


def meeting(
    kind: Kind, *, credentials: Credentials = CREDENTIALS, transport: Transport | None = None
) -> AbstractAsyncContextManager[Meeting]:
    """A listener whose handler hands its channel to the test and keeps it open until the meeting is over."""
    return stage.meeting(transport or kind.make(), kind.url, credentials)


def tcp_once(**changes: Any) -> TcpTransport:
    """tcp:// that dials once, and gives up no handshake that is only slow: its limit is there for tests in which time
    passes at once, and it is shorter than that of the test."""
    return TcpTransport(**{"once": True, "handshake_s": PATIENCE_S / 2, **changes})


async def read_exactly(connected: trio.socket.SocketType, size: int) -> bytes:
    """`size` bytes, or fewer when the stream ends before."""
    got = b""
    while len(got) < size and (piece := await connected.recv(size - len(got))):
        got += piece
    return got


async def is_closed(connected: trio.socket.SocketType) -> bool:
    """Waits for the end of a stream on which nothing more should come; a reset is an end too."""
    try:
        return await connected.recv(1) == b""
    except ConnectionResetError:
        return True


async def connect(url: str) -> trio.socket.SocketType:
    """A plain connection to the port of a `tcp://` URL with an IPv4 address."""
    host, port = url.removeprefix("tcp://").rsplit(":", 1)
    connected = trio.socket.socket()
    await connected.connect((host, int(port)))
    return connected


async def shake(
    connected: trio.socket.SocketType, lane: Lane, nonce: bytes, credentials: Credentials = CREDENTIALS
) -> LinkKeys:
    """The dialler's half of a handshake on a plain socket."""
    handshake = DialHandshake(run_id=credentials.run_id, token=credentials.token, lane=lane, nonce=nonce)
    await connected.send(handshake.first)
    await connected.send(handshake.receive(await read_exactly(connected, 64)))
    return handshake.keys


@attrs.define
class RawRank:
    """A rank made of plain sockets and the wire alone: an independent peer, which may misbehave."""

    control: trio.socket.SocketType
    bulk: trio.socket.SocketType
    link: Link
    framer: BulkFramer

    def frame(self, message: Any) -> bytes:
        return self.link.send(message)

    def bulk_frame(self, header: BulkBlock, data: memoryview) -> bytes:
        head, tag = self.framer.seal(header, data)
        return head + data + tag

    def close(self) -> None:
        self.control.close()
        self.bulk.close()


async def raw_rank(url: str, *, opened: bool = True) -> RawRank:
    """Dial by hand, as the top of `transports.tcp` says: both lanes, one dial id and, if `opened`, opening blocks."""
    dial_id = os.urandom(16)
    control, bulk = await connect(url), await connect(url)
    control_keys = await shake(control, Lane.CONTROL, dial_id + os.urandom(16))
    bulk_keys = await shake(bulk, Lane.BULK, dial_id + os.urandom(16))
    codec = MsgpackCodec()
    rank = RawRank(
        control=control,
        bulk=bulk,
        link=Link(codec=codec, keys=control_keys, role=Role.RANK),
        framer=BulkFramer(codec=codec, keys=bulk_keys, role=Role.RANK),
    )
    if opened:
        opening = rank.bulk_frame(OPENING, memoryview(b""))
        await bulk.send(opening)
        assert len(await read_exactly(bulk, len(opening))) == len(opening)
    return rank
