"""L3, death: processes at the other end that are killed, stopped, or end without a word.

No check waits for a timer of anybody's to run out: the loss must come out of a blocked call by itself.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from ...core.conformance import CheckFailed, Level, NotChecked, ensure, raising
from ...core.conformance.blame import said
from ...core.errors import TransportError
from ..api import Channel, Transport
from .kit import KIT, NO_DIAL, PAGE, Bench, Killable, due, within
from .stage import Landing, Meeting, beacon, exchange, heartbeat, meet, meeting, pattern

__all__: list[str] = []

ADDRESSES, DOC = f"{PAGE}#addresses", f"{PAGE}#death"
START_S = 60.0
"""For the start of an interpreter on a machine that is busy with something else."""


@asynccontextmanager
async def _process(bench: Bench, role: str, url: str) -> AsyncIterator[trio.Process]:
    """A child in this role; killed at the end, if it still lives."""
    if bench.address is None:
        raise NotChecked("no process can be told how to make this transport: give the bench an address")
    module = f"{__package__}.peer"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    child = await trio.lowlevel.open_process(
        [sys.executable, "-m", module, role, bench.address, url],
        stdin=subprocess.PIPE,  # it and what it starts end with this process, however that ends
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for who started it
        env={**os.environ, "PYTHONPATH": path},
    )
    assert child.stdin is not None and child.stdout is not None
    async with child.stdin, child.stdout:
        try:
            yield child
        finally:
            child.kill()
            with trio.CancelScope(shield=True):
                await child.wait()


async def _arrival(bench: Bench, met: Meeting, child: trio.Process) -> Channel:
    """The channel of a child, after it has said its first heartbeat; `CheckFailed` when it ends before."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_fail_at_its_end, child)
        with within(bench.patiently(START_S), "the arrival of a process that dials"):
            channel = await met.arrivals.receive()
            ensure(await channel.receive() == heartbeat(1), "the heartbeat of a process came as something else")
        nursery.cancel_scope.cancel()
    return channel


async def _fail_at_its_end(child: trio.Process) -> None:
    code = await child.wait()
    if code == NO_DIAL:
        raise CheckFailed(f"another process could not dial: {await _first_words(child)}")


async def _first_words(child: trio.Process) -> str:
    """The first thing a child prints."""
    assert child.stdout is not None
    return bytes(await child.stdout.receive_some()).decode().strip()


@asynccontextmanager
async def _killable(bench: Bench) -> AsyncIterator[Killable]:
    async with meet(bench) as met, _process(bench, "idle", met.listener.url) as child:
        yield await _arrival(bench, met, child), child.kill


@asynccontextmanager
async def _coordinator(bench: Bench) -> AsyncIterator[tuple[Transport, trio.Process, str]]:
    """A transport that may dial, a child that has begun to listen, and where."""
    async with bench.open() as (transport, url), _process(bench, "coordinate", url) as child:
        with within(bench.patiently(START_S), "the start of a coordinator in another process"):
            there = await _first_words(child)
        ensure(there.startswith(f"{transport.scheme}://"), f"a coordinator in another process said {there!r}")
        yield transport, child, there


async def no_process_gets_in(bench: Bench) -> None:
    """Without `across_processes` another process that dials gets a `TransportError` or `ConfigError` at once."""
    async with meet(bench) as met, _process(bench, "leave", met.listener.url) as child:
        with within(bench.patiently(START_S), "a dial from another process"):
            words = await _first_words(child)
            code = await child.wait()
        ensure(code == NO_DIAL, "another process could dial: claim across_processes")
        kind = words.partition(":")[0]
        impossible = kind in ("TransportError", "ConfigError")
        ensure(impossible, f"a dial that cannot work from another process raised {words}")


@KIT.check("T320", Level.L3, doc=ADDRESSES, needs="across_processes", gate=True)
async def the_address_of_a_killed_coordinator_is_free_again(bench: Bench) -> None:
    """What a killed process left behind does not keep its address: who listens there again is served, as a coordinator
    that is started again is (M-40).

    All checks listen at one address, and from here on coordinators are killed at it: so it is a gate."""
    async with _coordinator(bench) as (transport, child, there):
        rank = await transport.dial(there, bench.credentials)
        child.kill()
        await child.wait()
        await rank.aclose()
        try:
            async with meeting(transport, there, bench.credentials) as met:
                await exchange(await met.join())
        except TransportError as error:
            raise CheckFailed(
                f"listen at {there}, whose coordinator was killed, raised {said(error)}; where nobody answers, what a "
                "dead process left there must be cleared away, and the address taken"
            ) from error


@KIT.check("T321", Level.L3, doc=DOC, needs="across_processes", unclaimed=no_process_gets_in)
async def another_process_can_dial(bench: Bench) -> None:
    """Another process of this host reaches the listener by its URL, both lanes included."""
    async with meet(bench) as met, _process(bench, "flood", met.listener.url) as child:
        coordinator = await _arrival(bench, met, child)
        landing = Landing()
        header = await coordinator.receive_bulk(landing)
        ensure(landing.memory == [pattern(header.bytes, 0)], "a block of another process came with other bytes")


async def _ensure_evidenced(bench: Bench, coordinator: Channel, kill: Callable[[], None], what: str) -> None:
    """The death of a rank ends what waits on either lane."""
    told: list[str] = []

    async def wait_on_bulk() -> None:
        with raising(TransportError, "receive_bulk, blocked while the peer was killed,"):
            await coordinator.receive_bulk(Landing())
        told.append("bulk")

    with within(bench.evidence_s, f"the evidence that {what} was killed"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_on_bulk)
            kill()
            with raising(TransportError, "receive, blocked while the peer was killed,", naming=[coordinator.peer]):
                await coordinator.receive()
    ensure(told == ["bulk"], "only the control lane heard of the death")


@KIT.check("T322", Level.L3, doc=DOC, needs="across_processes")
async def a_killed_rank_is_evidenced(bench: Bench) -> None:
    """`kill -9` of a rank's process ends what waits on either lane, within the time for evidence (M-17)."""
    async with (bench.killable or (lambda: _killable(bench)))() as (coordinator, kill):
        await _ensure_evidenced(bench, coordinator, kill, "a rank")


@KIT.check("T323", Level.L3, doc=DOC, needs="across_processes")
async def a_rank_killed_inside_a_block_leaves_whole_ones(bench: Bench) -> None:
    """Of a rank that is killed while it sends blocks, those that come are whole and in order; then the end is told
    (N-4, M-17)."""
    async with meet(bench) as met, _process(bench, "flood", met.listener.url) as child:
        coordinator = await _arrival(bench, met, child)
        killed_at = 5

        async def wait_on_control() -> None:
            with raising(TransportError, "receive at a channel whose peer was killed"):
                while True:
                    await coordinator.receive()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_on_control)
            number = 0
            with raising(TransportError, "receive_bulk at a channel whose peer was killed"):
                while True:
                    landing = Landing()
                    with within(bench.patiently(START_S), "the next block, or the end,"):
                        header = await coordinator.receive_bulk(landing)
                    ensure(header.offset == number, f"block {header.offset} came where {number} is due")
                    whole = landing.memory == [pattern(header.bytes, number)]
                    ensure(whole, f"block {number} of a killed rank was handed out torn")
                    number += 1
                    if number == killed_at:
                        child.kill()
        ensure(number >= killed_at, f"only {number} blocks came before the end")


@KIT.check("T324", Level.L3, doc=DOC, needs="across_processes")
async def an_exit_without_a_word_is_a_loss(bench: Bench) -> None:
    """A process that ends with exit code 0 and closes nothing is lost like any other, after what it had said."""
    async with meet(bench) as met, _process(bench, "leave", met.listener.url) as child:
        coordinator = await _arrival(bench, met, child)
        what = "receive from a process that has ended"
        with due(TransportError, what, bench.evidence_s, naming=[coordinator.peer]):
            await coordinator.receive()


@KIT.check("T325", Level.L3, doc=DOC, needs="across_processes")
async def a_killed_coordinator_is_evidenced(bench: Bench) -> None:
    """`kill -9` of the coordinator's process is told to every rank, on either lane, within the time for evidence, and a
    dial afterwards finds nobody (M-17, W-21)."""
    async with _coordinator(bench) as (transport, child, there):
        async with AsyncExitStack() as ranks:
            dialled = [await transport.dial(there, bench.credentials) for _ in range(3)]
            for rank in dialled:
                ranks.push_async_callback(rank.aclose)
                ensure(await rank.receive() == beacon(1), "a beacon came as something else")
            child.kill()
            for rank in dialled:
                what = "receive from a coordinator that was killed"
                wait = rank.receive if rank is not dialled[0] else functools.partial(rank.receive_bulk, Landing())
                with due(TransportError, what, bench.evidence_s, naming=[rank.peer]):
                    await wait()
        with due(TransportError, "a dial to a coordinator that was killed", bench.limit_s):
            await transport.dial(there, bench.credentials)


@KIT.check("T326", Level.L3, doc=DOC, needs="across_processes")
async def a_stopped_rank_delays_nobody(bench: Bench) -> None:
    """A rank that is stopped with its bulk lane full does not delay the heartbeats of another one (N-5)."""
    async with meet(bench) as met, _process(bench, "flood", met.listener.url) as child:
        stuck = await _arrival(bench, met, child)
        await stuck.receive_bulk(Landing())
        child.send_signal(signal.SIGSTOP)
        both = await met.join()
        for number in range(1, 20):
            with within(2 * bench.heartbeat_s, f"heartbeat and beacon {number}, while another rank is stopped,"):
                await exchange(both, number)


@KIT.check("T327", Level.L3, doc=DOC, needs="across_processes")
async def a_killed_parent_is_evidenced(bench: Bench) -> None:
    """`kill -9` of a rank that has started another program is evidenced in the same time, though that program lives on:
    it has inherited no end of the channel (M-17)."""
    async with meet(bench) as met, _parent(bench, met.listener.url) as rank:
        coordinator = await _arrival(bench, met, rank)
        await _ensure_evidenced(bench, coordinator, rank.kill, "a rank whose child lives on")


@asynccontextmanager
async def _parent(bench: Bench, url: str) -> AsyncIterator[trio.Process]:
    """A rank with a child of its own, of which nothing is left afterwards."""
    async with _process(bench, "parent", url) as rank:
        assert rank.stdin is not None and rank.stdout is not None
        try:
            yield rank
        finally:
            rank.kill()
            with trio.move_on_after(bench.patiently(START_S), shield=True):
                await rank.stdin.aclose()
                while await rank.stdout.receive_some():  # its end is that of the child, whose output it is too
                    pass
