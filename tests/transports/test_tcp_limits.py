"""The limits of `tcp://` against peers that want too much: how many, how long, how large (N-25, M-3)."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
import trio

from paceline.core.errors import RefusedError, RemoteProtocolError
from paceline.core.messages import BULK_KIND, KIND_OF, Exiting, Hello, RejectCode
from paceline.core.wire import MAX_BLOCK, MAX_HELLO, refusal_prelude
from paceline.transports import tcp, tcp_listener
from paceline.transports.registry import find_transport
from paceline.transports.tcp import TcpTransport
from paceline.transports.tcp_listener import PENDING_PRELUDES
from paceline.transports.tcp_socket import TcpLane

from support.patience import PATIENCE_S
from support.transports import (
    CREDENTIALS,
    TCP,
    Landing,
    connect,
    is_closed,
    meeting,
    pass_the_time,
    raw_rank,
    read_exactly,
    run,
    run_as_if_at_once,
    tcp_once,
)


def _head(kind: int, length: int, sequence: int = 0) -> bytes:
    return struct.pack("<4sBBHIQ", b"PCLF", kind, 0, 0, length, sequence)


def test_too_many_knocking_are_turned_away_and_the_next_get_in() -> None:
    """N-25, N-29: 64 preludes pending, one more is told busy, and places are given back."""
    assert PENDING_PRELUDES == 64

    async def main() -> None:
        async with meeting(TCP) as met:
            idle = [await connect(met.listener.url) for _ in range(PENDING_PRELUDES)]
            turned_away = await connect(met.listener.url)
            assert await read_exactly(turned_away, 64) == refusal_prelude(RejectCode.BUSY)
            assert await is_closed(turned_away)
            with pytest.raises(RefusedError, match="code 14"):
                await met.transport.dial(met.listener.url, CREDENTIALS)
            for stranger in (*idle, turned_away):
                stranger.close()
            patient = tcp_once(once=False, dial_total_s=PATIENCE_S)
            rank = await patient.dial(met.listener.url, CREDENTIALS)
            await rank.aclose()

    run(main)


@pytest.mark.parametrize(("kind", "length"), [
    (KIND_OF[Hello], MAX_HELLO + 1), (KIND_OF[Hello], 2**32 - 1), (KIND_OF[Exiting], MAX_HELLO + 1),
])  # fmt: skip
def test_a_length_above_the_cap_ends_the_link_at_its_head(kind: int, length: int) -> None:
    """N-25: 20 bytes of a peer that knows the token, and no memory is set aside for what they claim."""

    async def main() -> None:
        async with meeting(TCP) as met:
            rank = await raw_rank(met.listener.url)
            coordinator = await met.arrivals.receive()
            tracemalloc.start()
            await rank.control.send(_head(kind, length))
            with pytest.raises(RemoteProtocolError, match=f"claims {length} bytes, {MAX_HELLO} are allowed"):
                await coordinator.receive()
            assert tracemalloc.get_traced_memory()[1] < MAX_HELLO / 2
            tracemalloc.stop()
            rank.close()

    run(main)


def test_a_block_above_the_cap_asks_for_no_memory() -> None:
    """N-25, N-26: neither by the length of its frame nor by what its map says."""

    async def main() -> None:
        async with meeting(TCP) as met:
            rank = await raw_rank(met.listener.url)
            coordinator = await met.arrivals.receive()
            await rank.bulk.send(_head(BULK_KIND, MAX_BLOCK + (1 << 20), 1) + bytes(64))
            landing = Landing()
            with pytest.raises(RemoteProtocolError, match=f"claims {MAX_BLOCK + (1 << 20)} bytes"):
                await coordinator.receive_bulk(landing)
            assert landing.memory == []
            rank.close()

    run(main)


def test_the_times_of_a_listener_are_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """M-3: handshake and write without progress, at both ends, by the time_scale of the run; not those of others."""
    stalls: list[float] = []

    class Noted(TcpLane):
        def __init__(self, connected: trio.socket.SocketType, write_stall_s: float) -> None:
            stalls.append(write_stall_s)
            super().__init__(connected, write_stall_s)

    monkeypatch.setattr(tcp, "TcpLane", Noted)
    monkeypatch.setattr(tcp_listener, "TcpLane", Noted)

    async def main() -> None:
        transport = find_transport("tcp://127.0.0.1:0", 0.1)
        assert isinstance(transport, TcpTransport)
        transport.handshake_s = 2.0
        async with meeting(TCP, transport=transport) as met:
            await met.join()
            assert set(stalls) == {30.0 * 0.1} and len(stalls) == 4  # two lanes, two ends
            silent = await connect(met.listener.url)
            pass_the_time()
            assert await is_closed(silent) and trio.current_time() == pytest.approx(0.2)
            silent.close()

    run_as_if_at_once(main)
