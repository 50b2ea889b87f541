"""What runs below a link of `tcp://`, where it listens, and whom it warns of (N-28, N-29)."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio

from paceline.core.errors import RefusedError
from paceline.core.messages import RejectCode
from paceline.core.wire import Lane
from paceline.transports import tcp, tcp_listener
from paceline.transports.socket_lane import SocketLane
from paceline.transports.tcp import TcpTransport
from paceline.transports.tcp_listener import TcpListener
from paceline.transports.tcp_socket import TcpLane, on_one_host

from support.transports import CREDENTIALS, TCP, connect, is_closed, meeting, proven_from, run, shake


@pytest.mark.parametrize("noise", [b"GET ", b"\x16\x03\x01", bytes(1), b"PCLG" + bytes(60)], ids=repr)
def test_noise_is_closed_at_its_first_bytes(noise: bytes) -> None:
    """N-29: at no cost beyond them; it does not wait for the rest of a prelude that will not come."""

    async def main() -> None:
        async with meeting(TCP, transport=TcpTransport(handshake_s=math.inf)) as met:
            stranger = await connect(met.listener.url)
            await stranger.send(noise)
            assert await is_closed(stranger)
            stranger.close()

    run(main)


def test_who_has_proved_itself_is_looked_at_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """N-28: it is the authenticated peer that a public address is a mistake of; noise comes from anywhere."""
    looked_at: list[TcpLane] = []
    monkeypatch.setattr(TcpListener, "_warn_of_public", lambda listener, lane: looked_at.append(lane))

    async def main() -> None:
        async with meeting(TCP) as met:
            stranger = await connect(met.listener.url)
            await stranger.send(b"GET / HTTP/1.1\r\n\r\n" + bytes(64))
            assert await is_closed(stranger) and looked_at == []
            await met.join()
            assert len(looked_at) == 2, "both lanes of a rank"
            stranger.close()

    run(main)


def test_no_more_addresses_are_remembered_than_the_bound(caplog: pytest.LogCaptureFixture) -> None:
    """N-28: one warning per address, and a crowd of them costs neither memory nor a log."""
    with caplog.at_level(logging.WARNING):
        run(lambda: proven_from(f"8.8.{number // 200}.{number % 200}" for number in range(300)))
    assert len(caplog.records) == 256


def test_a_listener_without_a_host_is_for_this_one_alone() -> None:
    """N-28: the coordinator binds loopback unless configured."""

    async def main() -> None:
        listener = await TcpTransport().listen("tcp://:0", CREDENTIALS)
        assert listener.url.startswith("tcp://127.0.0.1:")
        assert listener._listening.getsockname()[0] == "127.0.0.1"
        await listener.aclose()

    run(main)


def test_nothing_waits_to_be_joined_with_more() -> None:
    """N-28, N-5: NODELAY on both lanes of both ends."""

    async def main() -> None:
        async with meeting(TCP) as met:
            for channel in await met.join():
                for lane in (channel._control, channel._bulk):
                    told = lane._socket.getsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY)
                    assert told != 0

    run(main)


def test_the_pieces_of_a_frame_go_to_the_system_together() -> None:
    """N-28: one call for all of them; what it does not take is given to it again, from where it stopped."""

    class Counted:
        """A socket that takes five bytes at a time."""

        def __init__(self) -> None:
            self.calls: list[list[bytes]] = []

        async def sendmsg(self, views: Sequence[memoryview]) -> int:
            await trio.lowlevel.checkpoint()
            self.calls.append([bytes(view) for view in views])
            return min(5, sum(map(len, views)))

    async def main() -> None:
        socket: Any = Counted()
        pieces = (memoryview(b"head"), memoryview(b""), memoryview(b"data"), memoryview(b"tag"))
        await SocketLane(socket).send(pieces)
        assert socket.calls == [[b"head", b"data", b"tag"], [b"ata", b"tag"], [b"g"]]

    run(main)


@pytest.mark.parametrize(("own", "other", "same"), [
    ("127.0.0.1", "127.0.0.1", True), ("127.0.0.1", "127.9.9.9", True), ("::1", "::1", True),
    ("10.0.0.1", "10.0.0.1", True), ("10.0.0.1", "10.0.0.2", False), ("127.0.0.1", "10.0.0.1", False),
    ("::ffff:10.0.0.1", "::ffff:10.0.0.1", True), ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
    ("::ffff:127.0.0.1", "::ffff:127.0.0.2", True), ("::ffff:127.0.0.1", "::ffff:10.0.0.2", False),
    ("fe80::1%eth0", "fe80::1%eth0", True), ("fe80::1%eth0", "fe80::2%eth0", False),
])  # fmt: skip
def test_who_is_on_this_host(own: str, other: str, same: bool) -> None:
    """N-26: a connection within a host has one address at both ends, or both are of loopback."""
    assert on_one_host((own, 1), (other, 2)) is same
    assert on_one_host((other, 2), (own, 1)) is same


HEADER = attrs.evolve(CREDENTIALS, bulk_auth="header")


def test_tags_over_headers_alone_are_refused_by_a_rank_of_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """N-26: whoever is between two hosts could change tensors unnoticed. The rank says so in one line; with the tags
    over everything it gets in."""
    monkeypatch.setattr(tcp, "on_one_host", lambda own, other: False)

    async def main() -> None:
        async with meeting(TCP, credentials=HEADER) as met:
            with pytest.raises(RefusedError, match=r"another host.*set bulk_auth = full") as refused:
                await met.transport.dial(met.listener.url, HEADER)
            assert refused.value.code == RejectCode.CONFIG and not refused.value.retry
        async with meeting(TCP) as met:
            await met.join()

    run(main)


def test_tags_over_headers_alone_are_refused_by_the_coordinator_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """N-26: also if the rank does not mind."""
    monkeypatch.setattr(tcp_listener, "on_one_host", lambda own, other: False)

    async def main() -> None:
        async with meeting(TCP, credentials=HEADER) as met:
            connected = await connect(met.listener.url)
            await shake(connected, Lane.CONTROL, bytes(32))
            assert await is_closed(connected)
            connected.close()

    run(main)
