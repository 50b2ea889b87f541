"""What is peculiar to `tcp://`: addresses, strangers on the port, pairing, the end, and descriptors.

All sockets are real and on loopback. `RawRank` is a peer made of plain sockets, so that the wire is spoken by two
programs and not by one with itself.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from paceline.core.errors import ConfigError, RefusedError, TransportError
from paceline.core.messages import Exiting
from paceline.core.wire import DialHandshake, Lane
from paceline.transports import framed
from paceline.transports.api import Channel
from paceline.transports.conformance.stage import exchange
from paceline.transports.tcp import TcpTransport
from paceline.transports.tcp_listener import PENDING_PRELUDES

from support.patience import PATIENCE_S
from support.transports import (
    CREDENTIALS,
    TCP,
    Landing,
    block,
    connect,
    heartbeat,
    is_closed,
    meeting,
    pass_the_time,
    pattern,
    proven_from,
    raw_rank,
    read_exactly,
    run,
    run_as_if_at_once,
    shake,
    tcp_once,
)

# --- addresses


def test_port_zero_is_a_port_of_its_own_for_each_listener() -> None:
    """Field case F61: the real port is in the listener's URL, and nobody looks for a free one beforehand."""

    async def main() -> None:
        listeners = [await TcpTransport().listen("tcp://127.0.0.1:0", CREDENTIALS) for _ in range(50)]
        assert len({listener.url for listener in listeners}) == 50
        assert all(not listener.url.endswith(":0") for listener in listeners)
        for listener in listeners:
            await listener.aclose()

    run(main)


@pytest.mark.parametrize("url", ["tcp://localhost:0", "tcp://[::1]:0", "tcp://:0", "tcp://127.0.0.1:0/"])
def test_names_and_both_families_work(url: str) -> None:
    """Field case F62, N-28: no host means loopback, an IPv6 address stands in brackets."""

    async def main() -> None:
        async with meeting(attrs.evolve(TCP, url=url)) as met:
            assert met.listener.url.startswith(("tcp://127.0.0.1:", "tcp://[::1]:"))
            rank, coordinator = await met.join()
            assert rank.peer == met.listener.url.removeprefix("tcp://")
            await rank.send(heartbeat(1))
            assert await coordinator.receive() == heartbeat(1)

    run(main)


@pytest.mark.parametrize(
    "url",
    [
        "tcp://host",
        "tcp://host:port",
        "tcp://host:70000",
        "tcp://[::1:5",
        "memory://name",
        "tcp://host:1/x",
        "tcp://u@h:1",
    ],
)
def test_an_address_that_makes_no_sense_is_a_mistake_of_configuration(url: str) -> None:
    """ConfigError, before anything is tried."""

    async def main() -> None:
        with pytest.raises(ConfigError):
            await TcpTransport().listen(url, CREDENTIALS)
        with pytest.raises(ConfigError):
            await TcpTransport().dial(url, CREDENTIALS)

    run(main)


def test_a_dial_needs_a_real_port() -> None:
    """Port 0 is a wish of listeners."""

    async def main() -> None:
        with pytest.raises(ConfigError, match="needs a port of 1 to 65535"):
            await TcpTransport().dial("tcp://127.0.0.1:0", CREDENTIALS)

    run(main)


def test_a_port_in_use_is_named_with_a_remedy() -> None:
    """Field case F61: the message says which address, what holds it and what to do."""
    holder = socket.create_server(("127.0.0.1", 0))
    port = holder.getsockname()[1]

    async def main() -> None:
        with pytest.raises(TransportError, match=rf"127\.0\.0\.1:{port}: the port is in use: .*choose another port"):
            await TcpTransport().listen(f"tcp://127.0.0.1:{port}", CREDENTIALS)
        with pytest.raises(TransportError, match=r"192\.0\.2\.1:5: this machine has no such address"):
            await TcpTransport().listen("tcp://192.0.2.1:5", CREDENTIALS)

    with holder:
        run(main)


def test_a_name_without_an_address_cannot_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the name."""

    async def no_address(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(trio.socket, "getaddrinfo", no_address)

    async def main() -> None:
        with pytest.raises(TransportError, match="the name 'no-such-host' stands for no address"):
            await TcpTransport().listen("tcp://no-such-host:5", CREDENTIALS)

    run(main)


def test_a_port_can_be_taken_again_at_once() -> None:
    """Field case F61: connections of the former coordinator in TIME_WAIT do not keep the next one out."""

    async def main() -> None:
        async with meeting(TCP) as met:
            _, coordinator = await met.join()
            await coordinator.aclose()
            url = met.listener.url
        again = await TcpTransport().listen(url, CREDENTIALS)
        assert again.url == url
        await again.aclose()

    run(main)


# --- strangers


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", bytes(64), b"\xff" * 200, b"P", b""],
    ids=["http", "tls", "zeros", "long", "one byte", "nothing"],
)
def test_noise_is_closed_without_an_answer(noise: bytes) -> None:
    """N-29, field case F76: at no cost beyond one prelude, and nobody else notices."""

    async def main() -> None:
        async with meeting(TCP) as met:
            both = await met.join()
            stranger = await connect(met.listener.url)
            await stranger.send(noise)
            if len(noise) < 4:
                stranger.shutdown(socket.SHUT_WR)
            assert await is_closed(stranger)
            stranger.close()
            await exchange(both)
            await met.join()

    run(main)


def test_slow_strangers_are_closed_when_their_time_is_over() -> None:
    """N-25: `handshake_s` bounds a prelude, a proof, and the wait for the other lane."""

    async def main() -> None:
        async with meeting(TCP) as met:
            silent, half = await connect(met.listener.url), await connect(met.listener.url)
            await half.send(b"PCLN\x01")
            mute = await connect(met.listener.url)
            handshake = DialHandshake(
                run_id=CREDENTIALS.run_id, token=CREDENTIALS.token, lane=Lane.CONTROL, nonce=os.urandom(32)
            )
            await mute.send(handshake.first)
            assert len(await read_exactly(mute, 64)) == 64
            pass_the_time()
            for stranger in (silent, half, mute):
                assert await is_closed(stranger)
                stranger.close()

    run_as_if_at_once(main)


def test_a_wrong_proof_gets_no_answer() -> None:
    """N-22: neither does a recorded one, because the listener's nonce is new."""

    async def main() -> None:
        async with meeting(TCP) as met:
            nonce = os.urandom(32)
            honest = DialHandshake(run_id=CREDENTIALS.run_id, token=CREDENTIALS.token, lane=Lane.CONTROL, nonce=nonce)
            recorded = await connect(met.listener.url)
            await recorded.send(honest.first)
            third = honest.receive(await read_exactly(recorded, 64))
            replayed = await connect(met.listener.url)
            await replayed.send(honest.first)
            await read_exactly(replayed, 64)
            await replayed.send(third)
            assert await is_closed(replayed)
            recorded.close()
            replayed.close()

    run(main)


def test_a_public_peer_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """N-28: tcp:// authenticates and does not encrypt."""
    with caplog.at_level(logging.WARNING):
        run(lambda: proven_from(["8.8.8.8", "8.8.8.8", "10.0.0.1", "127.0.0.1", "fe80::1", "2001:4860::1"]))
    assert [record.getMessage().split()[0] for record in caplog.records] == ["8.8.8.8", "2001:4860::1"]


# --- pairing


def test_a_rank_made_by_hand_gets_in() -> None:
    """The wire, the dial id in the nonce and the opening blocks are all a foreign dialler needs."""

    async def main() -> None:
        async with meeting(TCP) as met:
            rank = await raw_rank(met.listener.url)
            coordinator = await met.arrivals.receive()
            await rank.control.send(rank.frame(heartbeat(1)))
            assert await coordinator.receive() == heartbeat(1)
            landing = Landing()
            await rank.bulk.send(rank.bulk_frame(block(5), pattern(5)))
            await coordinator.receive_bulk(landing)
            assert landing.memory == [pattern(5)]
            rank.close()

    run(main)


@pytest.mark.parametrize("lane", [Lane.CONTROL, Lane.BULK])
def test_a_lane_without_its_other_lane_is_closed(lane: Lane) -> None:
    """N-26: both are needed within `handshake_s`, and a lane of another dial, or the same lane twice, is no pair."""

    async def main() -> None:
        async with meeting(TCP) as met:
            dial_id = os.urandom(16)
            first, second, stranger = [await connect(met.listener.url) for _ in range(3)]
            await shake(first, lane, dial_id + os.urandom(16))
            await shake(second, lane, dial_id + os.urandom(16))
            other = Lane.BULK if lane is Lane.CONTROL else Lane.CONTROL
            await shake(stranger, other, os.urandom(32))
            pass_the_time()
            for lonely in (first, second, stranger):
                assert await is_closed(lonely)
                lonely.close()
            with pytest.raises(trio.WouldBlock):
                met.arrivals.receive_nowait()

    run_as_if_at_once(main)


def test_a_dial_has_one_time_for_both_of_its_lanes() -> None:
    """N-25, M-3: that of the lane that came first; the second one does not begin it anew."""

    async def main() -> None:
        async with meeting(TCP, transport=tcp_once(handshake_s=10.0)) as met:
            listener: Any = met.listener
            dial_id = os.urandom(16)
            control = await connect(listener.url)
            begun = trio.current_time()
            await shake(control, Lane.CONTROL, dial_id + os.urandom(16))
            while not listener._unpaired:
                await trio.lowlevel.checkpoint()
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, trio.testing.MockClock)
            clock.jump(6.0)
            late = await connect(listener.url)
            await shake(late, Lane.BULK, dial_id + os.urandom(16))
            pass_the_time()
            assert await is_closed(control)
            assert trio.current_time() - begun == pytest.approx(10.0)
            for connected in (control, late):
                connected.close()

    run_as_if_at_once(main)


def test_a_bulk_lane_that_does_not_open_with_the_opening_block_is_closed() -> None:
    """N-26: an opening names no rank and carries nothing."""

    async def main() -> None:
        async with meeting(TCP) as met:
            rank = await raw_rank(met.listener.url, opened=False)
            await rank.bulk.send(rank.bulk_frame(block(5), pattern(5)))
            assert await is_closed(rank.control)
            rank.close()

    run(main)


def test_a_crowd_that_dials_at_once_is_paired_right() -> None:
    """N-25, N-28: more than knock at a time; whoever was turned away comes again, and no lanes are mixed up."""
    ranks = 2 * PENDING_PRELUDES
    seen: list[int] = []

    async def handler(channel: Channel) -> None:
        number = (await channel.receive()).step_count
        assert (await channel.receive_bulk(Landing())).rank == number
        seen.append(number)

    async def join(number: int, url: str) -> None:
        rank = await tcp_once(once=False, dial_total_s=PATIENCE_S).dial(url, CREDENTIALS)
        await rank.send(heartbeat(number))
        await rank.send_bulk(block(0, rank=number), pattern(0))
        with pytest.raises(TransportError, match="closed by the peer"):
            await rank.receive()
        await rank.aclose()

    async def main() -> None:
        listener = await tcp_once().listen("tcp://127.0.0.1:0", CREDENTIALS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve, handler)
            async with trio.open_nursery() as crowd:
                for number in range(ranks):
                    crowd.start_soon(join, number, listener.url)
            await listener.aclose()

    run(main)
    assert sorted(seen) == list(range(ranks))


# --- the end of a channel


def test_a_reset_is_told_apart_from_an_orderly_close() -> None:
    """M-17: both are evidence at once; the text says which it was."""

    async def main() -> None:
        async with meeting(TCP) as met:
            for reset, text in ((False, "closed by the peer"), (True, "connection reset by the peer")):
                rank = await raw_rank(met.listener.url)
                coordinator = await met.arrivals.receive()
                if reset:
                    rank.control.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                rank.close()
                with pytest.raises(TransportError, match=text):
                    await coordinator.receive()

    run(main)


def test_a_torn_block_is_never_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """N-4: the peer dies inside a block of which all but the last byte arrived."""
    monkeypatch.setattr(framed, "LANE_SKEW_S", 0.0)

    async def main() -> None:
        async with meeting(TCP) as met:
            rank = await raw_rank(met.listener.url)
            coordinator = await met.arrivals.receive()
            await rank.bulk.send(rank.bulk_frame(block(1000), pattern(1000))[:-1])
            rank.close()
            with pytest.raises(TransportError, match="closed by the peer in the middle of a frame"):
                await coordinator.receive_bulk(Landing())

    run(main)


def test_a_peer_that_takes_no_message_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """M-3: a write without progress ends the link, and the text says so."""
    monkeypatch.setattr(framed, "LANE_SKEW_S", 0.0)

    async def main() -> None:
        async with meeting(TCP, transport=tcp_once(write_stall_s=0.05)) as met:
            rank, coordinator = await met.join()
            long = Exiting(reason="x" * 1_000_000, report_seq=1)
            with pytest.raises(TransportError, match=r"took no byte for 0\.05 s"):
                for _ in range(1000):
                    await rank.send(long)
            with pytest.raises(TransportError):
                while True:
                    await coordinator.receive()

    run(main)


@pytest.mark.parametrize("upward", [True, False], ids=["a contribution", "a consensus"])
def test_a_bulk_lane_may_be_held_back_for_as_long_as_it_takes(upward: bool) -> None:
    """R-11: the averager does not read a rank that is ahead of the others, nor a rank the consensus while it is in a
    step. That is no stall of who writes (M-3, N-5)."""

    async def main() -> None:
        async with meeting(TCP, transport=tcp_once(write_stall_s=0.01)) as met:
            ends = await met.join()
            writer, reader = ends if upward else reversed(ends)
            blocks = 40

            async def ship() -> None:
                for number in range(blocks):
                    await writer.send_bulk(block(512 * 1024, offset=number), pattern(512 * 1024))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ship)
                await trio.testing.wait_all_tasks_blocked(0.1)  # many times the bound: the lane is full and waits
                for number in range(blocks):
                    assert (await reader.receive_bulk(Landing())).offset == number

    run(main)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors where the system lists them")
def test_no_descriptor_is_left_behind() -> None:
    """Channels, refused dials, noise, dials that nobody answers and lonely lanes give everything back."""

    async def main() -> None:
        async with meeting(TCP) as met:
            await met.join()
            before = open_descriptors()
            for round_number in range(100):
                rank, coordinator = await met.join()
                await (rank if round_number % 2 else coordinator).aclose()
                with pytest.raises(TransportError):
                    await (coordinator if round_number % 2 else rank).receive()
            for _ in range(20):
                with pytest.raises(RefusedError):
                    await met.transport.dial(met.listener.url, attrs.evolve(CREDENTIALS, token=bytes(32)))
                stranger = await connect(met.listener.url)
                await stranger.send(b"GET / HTTP/1.1\r\n\r\n")
                assert await is_closed(stranger)
                stranger.close()
            lonely = await connect(met.listener.url)
            await shake(lonely, Lane.CONTROL, os.urandom(32))
            pass_the_time()
            assert await is_closed(lonely)
            lonely.close()
            await trio.testing.wait_all_tasks_blocked()
            assert open_descriptors() == before

    run_as_if_at_once(main)
