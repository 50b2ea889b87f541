"""`tcp://` between processes, which are killed, stopped and asked to end by real signals.

Nothing here waits for a time: a test goes on when the channel says something. The loss of a process must come out of
a blocked call by itself, with no timer of anybody's running out.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from paceline.core.errors import TransportError
from paceline.transports.tcp import TcpTransport

from support.transports import CREDENTIALS, TCP, Landing, beacon, heartbeat, meeting, run

PROGRAM = Path(__file__).parents[1] / "support" / "tcp_process.py"


@asynccontextmanager
async def process(role: str, url: str) -> AsyncIterator[trio.Process]:
    """A child in this role; killed at the end, if it still lives."""
    child = await trio.lowlevel.open_process([sys.executable, str(PROGRAM), role, url], stdout=subprocess.PIPE)
    assert child.stdout is not None
    async with child.stdout:
        try:
            yield child
        finally:
            child.kill()
            with trio.CancelScope(shield=True):
                await child.wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_a_rank_that_is_killed_is_lost_at_once(number: signal.Signals) -> None:
    """M-17: the kernel's EOF or RST is the evidence, on both lanes."""

    async def main() -> None:
        async with meeting(TCP) as met, process("idle", met.listener.url) as child:
            coordinator = await met.arrivals.receive()
            assert await coordinator.receive() == heartbeat(1)
            told: list[str] = []

            async def wait_on_bulk() -> None:
                with pytest.raises(TransportError) as loss:
                    await coordinator.receive_bulk(Landing())
                told.append(str(loss.value))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_on_bulk)
                child.send_signal(number)
                with pytest.raises(TransportError, match=r"closed by the peer|connection reset") as loss:
                    await coordinator.receive()
            assert told == [str(loss.value)]

    run(main)


def test_a_rank_killed_in_the_middle_of_its_blocks_leaves_only_whole_ones() -> None:
    """N-4, M-17: every block before the torn one, then the end."""

    async def main() -> None:
        async with meeting(TCP) as met, process("flood", met.listener.url) as child:
            coordinator = await met.arrivals.receive()
            landing = Landing()
            whole = 0

            async def wait_on_control() -> None:
                with pytest.raises(TransportError):
                    while True:
                        await coordinator.receive()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_on_control)
                with pytest.raises(TransportError):
                    while True:
                        header = await coordinator.receive_bulk(landing)
                        whole += 1
                        assert header.offset == whole
                        if whole == 5:
                            child.send_signal(signal.SIGKILL)
            assert whole >= 5
            assert len(landing.blocks) in (whole, whole + 1)

    run(main)


def test_an_orderly_exit_without_a_word_is_a_loss_too() -> None:
    """Field case F13: exit code 0 is no farewell; what was said before is delivered."""

    async def main() -> None:
        async with meeting(TCP) as met, process("leave", met.listener.url) as child:
            coordinator = await met.arrivals.receive()
            assert await coordinator.receive() == heartbeat(1)
            with pytest.raises(TransportError, match=r"closed by the peer|connection reset"):
                await coordinator.receive()
            assert await child.wait() == 0

    run(main)


def test_a_stopped_rank_that_floods_delays_nobody() -> None:
    """N-5, field case F64: one rank is stopped with its lanes full, another one's heartbeats come all the same."""

    async def main() -> None:
        async with (
            meeting(TCP) as met,
            process("flood", met.listener.url) as flooding,
        ):
            stuck = await met.arrivals.receive()
            await stuck.receive_bulk(Landing())
            flooding.send_signal(signal.SIGSTOP)
            async with process("beating", met.listener.url):
                healthy = await met.arrivals.receive()
                assert await healthy.receive() == heartbeat(1)
                for number in range(1, 20):
                    await healthy.send(beacon(number))
                    assert await healthy.receive() == heartbeat(number)

    run(main)


def test_heartbeats_arrive_while_the_blocks_of_the_same_rank_are_stuck() -> None:
    """N-5: the coordinator reads no block, so the rank's bulk lane is full or soon will be; beacons and heartbeats go
    to and fro all the same. That not all blocks fit is sure: they never end."""

    async def main() -> None:
        async with meeting(TCP) as met, process("stuck", met.listener.url):
            coordinator = await met.arrivals.receive()
            assert await coordinator.receive() == heartbeat(1)
            for number in range(1, 50):
                await coordinator.send(beacon(number))
                assert await coordinator.receive() == heartbeat(number)
            assert (await coordinator.receive_bulk(Landing())).offset == 1

    run(main)


def test_a_coordinator_that_is_killed_is_lost_at_once() -> None:
    """M-17, W-21: seen by every rank."""

    async def main() -> None:
        async with process("coordinate", "tcp://127.0.0.1:0") as child:
            assert child.stdout is not None
            url = bytes(await child.stdout.receive_some()).decode().strip()
            ranks = [await TcpTransport().dial(url, CREDENTIALS) for _ in range(3)]
            for rank in ranks:
                assert (await rank.receive()).cycle == 1
            child.send_signal(signal.SIGKILL)
            for rank in ranks:
                with pytest.raises(TransportError, match=r"closed by the peer|connection reset"):
                    await rank.receive()
                await rank.aclose()
            with pytest.raises(TransportError, match="nobody answers at"):
                await TcpTransport(dial_total_s=0).dial(url, CREDENTIALS)

    run(main)
