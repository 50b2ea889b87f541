"""Ranks and coordinators of other versions of the protocol, over real sockets (F67). What they say is made here from
the text of N-20 and N-21, whatever this version makes of it."""

from __future__ import annotations

import struct

import pytest
import trio

from paceline.core.errors import RefusedError
from paceline.transports.conformance.stage import exchange
from paceline.transports.tcp import TcpTransport

from support.transports import CREDENTIALS, TCP, connect, is_closed, meeting, read_exactly, run

FIRST, SECOND = struct.Struct("<4sBBBBB7s16s32s"), struct.Struct("<4sBBBBBB6s32s16s")
"""The first bytes of a rank, and the answer: "PCLN", format 1, 1 or 2. Then the lowest and highest protocol and the
lane; there the chosen one, the code of a refusal, the lowest and the highest."""
REFUSED_FOR_PROTOCOL = 1


def first(low: int, high: int) -> bytes:
    """What a rank that speaks these protocols begins with."""
    return FIRST.pack(b"PCLN", 1, 1, low, high, 0, bytes(7), CREDENTIALS.run_id, bytes(32))


@pytest.mark.parametrize(("low", "high"), [(2, 2), (2, 3), (200, 255)])
def test_a_rank_of_later_protocols_only_is_told_what_is_spoken_here(low: int, high: int) -> None:
    """F67, N-20, N-29: one answer that any version can read, and the end; nobody else notices."""

    async def main() -> None:
        async with meeting(TCP) as met:
            both = await met.join()
            stranger = await connect(met.listener.url)
            await stranger.send(first(low, high))
            magic, layout, kind, chosen, refusal, lowest, highest, *_ = SECOND.unpack(
                await read_exactly(stranger, SECOND.size)
            )
            assert (magic, layout, kind, chosen) == (b"PCLN", 1, 2, 0)
            assert (refusal, lowest, highest) == (REFUSED_FOR_PROTOCOL, 1, 1)
            assert await is_closed(stranger)
            stranger.close()
            await exchange(both)
            await met.join()

    run(main)


def test_a_rank_that_speaks_later_protocols_too_is_answered_in_the_common_one() -> None:
    """F67, N-20: the highest that both know."""

    async def main() -> None:
        async with meeting(TCP) as met:
            later = await connect(met.listener.url)
            await later.send(first(1, 7))
            _, _, _, chosen, refusal, *_ = SECOND.unpack(await read_exactly(later, SECOND.size))
            assert (chosen, refusal) == (1, 0)
            later.close()

    run(main)


@pytest.mark.parametrize(("low", "high", "theirs"), [(2, 2, "protocol 2"), (3, 9, "protocols 3 to 9")])
def test_a_coordinator_of_later_protocols_is_named_in_one_line(low: int, high: int, theirs: str) -> None:
    """F67, N-29: both versions and what to do; a dial that cannot succeed is not repeated."""
    dialled = 0

    async def main() -> None:
        async def refuse(stream: trio.SocketStream) -> None:
            nonlocal dialled
            dialled += 1
            data = b""
            while len(data) < FIRST.size:
                data += await stream.receive_some(FIRST.size - len(data))
            await stream.send_all(SECOND.pack(
                b"PCLN", 1, 2, 0, REFUSED_FOR_PROTOCOL, low, high, bytes(6), bytes(32), bytes(16)))  # fmt: skip

        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, refuse, listeners)
            port = listeners[0].socket.getsockname()[1]
            with pytest.raises(RefusedError) as refused:
                await TcpTransport().dial(f"tcp://127.0.0.1:{port}", CREDENTIALS)
            text = str(refused.value)
            assert f"the coordinator speaks {theirs}, this rank protocol 1: install the same paceline on both" in text
            assert "\n" not in text and not refused.value.retry
            nursery.cancel_scope.cancel()

    run(main)
    assert dialled == 1
