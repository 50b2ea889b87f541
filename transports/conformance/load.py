"""L2, what a slow peer does: it holds its sender back, with bounded memory, and never its heartbeats (N-5)."""

from __future__ import annotations

import attrs
import trio

from ...core.conformance import CheckFailed, Level, accepting, ensure
from ...core.errors import TransportError
from ..api import Channel
from .kit import KIT, PAGE, Bench, within
from .stage import (
    BLOCK_BYTES,
    UNREAD_BYTES,
    Flood,
    Way,
    beacon,
    block,
    both_ways,
    clogged,
    exchange,
    heartbeat,
    meet,
    pair,
    pattern,
    quiet,
    receive_in_order,
)

__all__ = ["LONG"]

BACK_PRESSURE = f"{PAGE}#back-pressure"
LANES = f"{PAGE}#two-lanes"

LONG = 900_000
"""Letters of a message near the cap of an unwelcomed rank, for filling a control lane."""

MOVING_BYTES = 2 * 1024 * 1024

SILENT_BEATS = 5
"""Heartbeats in the time in which a bulk lane is silent."""


@KIT.check("T241", Level.L2, doc=BACK_PRESSURE)
@both_ways
async def a_full_bulk_lane_holds_its_sender_back(bench: Bench, way: Way) -> None:
    """A sender of blocks waits while its peer reads none, with at most 64 MiB taken from it, and goes on as they are
    read, nothing lost."""
    async with clogged(bench, way) as (_, receiver, flood, nursery):
        stuck_at = flood.sent
        await receive_in_order(receiver, range(stuck_at + 1))
        flood.read = stuck_at + 1
        await flood.until_stuck(bench)
        ensure(flood.sent > stuck_at, "a sender that was held back did not go on when its blocks were read")
        nursery.cancel_scope.cancel()


@KIT.check("T242", Level.L2, doc=BACK_PRESSURE)
@both_ways
async def a_full_control_lane_holds_its_sender_back(bench: Bench, way: Way) -> None:
    """A sender of messages waits, or gives the peer up with `TransportError`, while nobody reads; at most 64 MiB are
    taken from it."""
    limit = UNREAD_BYTES // LONG
    sent = 0
    async with pair(bench, way) as (sender, _), trio.open_nursery() as nursery:

        async def talk() -> None:
            nonlocal sent
            try:
                for _ in range(limit):
                    await sender.send(way.large("x" * LONG))
                    sent += 1
            except TransportError:
                return

        nursery.start_soon(talk)
        seen = -1
        while seen != sent:
            seen = sent
            await quiet(0.02)
        ensure(sent < limit, f"took {UNREAD_BYTES >> 20} MiB of messages from a sender whose peer read nothing")
        nursery.cancel_scope.cancel()


@KIT.check("T251", Level.L2, doc=LANES)
async def moving_blocks_do_not_delay_control(bench: Bench) -> None:
    """While large blocks pass both ways, every heartbeat and beacon arrives within one heartbeat period (N-5)."""
    async with pair(bench) as both, trio.open_nursery() as nursery:
        rank, coordinator = both
        for sender, receiver in (both, both[::-1]):
            nursery.start_soon(_send_for_ever, sender)
            await nursery.start(_receive_for_ever, receiver)
        await _beat(rank, coordinator, bench.times(50, 10), bench.heartbeat_s)
        nursery.cancel_scope.cancel()


async def _send_for_ever(channel: Channel) -> None:
    data = pattern(MOVING_BYTES)
    while True:
        await channel.send_bulk(block(MOVING_BYTES), data)


async def _receive_for_ever(channel: Channel, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Counts as started when the first block has come."""
    memory = memoryview(bytearray(MOVING_BYTES))
    await channel.receive_bulk(lambda header: memory[: header.bytes])
    task_status.started()
    while True:
        await channel.receive_bulk(lambda header: memory[: header.bytes])


async def _beat(rank: Channel, coordinator: Channel, count: int, heartbeat_s: float) -> None:
    for number in range(1, count + 1):
        with within(heartbeat_s, f"heartbeat {number}, while the bulk lane is full,"):
            await rank.send(heartbeat(number))
            ensure(await coordinator.receive() == heartbeat(number), "a heartbeat came as something else")
        with within(heartbeat_s, f"beacon {number}, while the bulk lane is full,"):
            await coordinator.send(beacon(number))
            ensure(await rank.receive() == beacon(number), "a beacon came as something else")


async def control_waits_behind_bulk(bench: Bench) -> None:
    """Without `separate_bulk` a heartbeat may wait for blocks that nobody reads, and must arrive when they are read."""
    async with clogged(bench) as (rank, coordinator, _, nursery):
        late = _Late(coordinator)
        nursery.start_soon(late.run)
        nursery.start_soon(rank.send, heartbeat(1))
        with trio.move_on_after(bench.heartbeat_s):
            await late.came.wait()
            raise CheckFailed("control passes although nobody reads bulk: claim separate_bulk")
        await nursery.start(_receive_for_ever, coordinator)
        with within(bench.evidence_s, "a heartbeat after the blocks before it were read"):
            await late.came.wait()
        nursery.cancel_scope.cancel()


@KIT.check("T253", Level.L2, doc=LANES)
@both_ways
async def slow_ranks_delay_nobody_else(bench: Bench, way: Way) -> None:
    """While nobody reads the blocks of several channels, another one of the same process passes messages within one
    heartbeat period, and blocks (N-5, N-11)."""
    async with meet(bench) as met, trio.open_nursery() as nursery:
        healthy = way.ends(await met.join())
        for _ in range(bench.times(16, 8)):
            sender, _ = way.ends(await met.join())
            flood = Flood(sender)
            nursery.start_soon(flood.run)
            await flood.until_stuck(bench)
        await _beat(*way.ends(healthy), bench.times(20, 5), bench.heartbeat_s)
        with within(bench.evidence_s, "a block on a channel beside others that are full"):
            nursery.start_soon(healthy[0].send_bulk, block(BLOCK_BYTES), pattern(BLOCK_BYTES))
            await receive_in_order(healthy[1], range(1))
        nursery.cancel_scope.cancel()


@KIT.check("T254", Level.L2, doc=LANES)
async def a_silent_bulk_lane_stays_good(bench: Bench) -> None:
    """A rank computes for a whole window, and no block is sent either way meanwhile: with heartbeats alone for a while,
    a channel is as good as before."""
    what = f"a block after {bench.idle_s:g} s without any"

    async def wait_for_blocks(end: Channel) -> None:
        with accepting(what):
            await receive_in_order(end, range(2))

    async with pair(bench) as both:
        for end in both:
            await end.send_bulk(block(3), pattern(3))
        with within(bench.idle_s + SILENT_BEATS * bench.heartbeat_s + bench.evidence_s, what):
            async with trio.open_nursery() as nursery:
                for end in both:
                    nursery.start_soon(wait_for_blocks, end)
                for number in range(1, SILENT_BEATS + 1):
                    await trio.sleep(bench.idle_s / SILENT_BEATS)
                    await exchange(both, number)
                for end in both:
                    with accepting(what):
                        await end.send_bulk(block(3, offset=1), pattern(3, 1))


@attrs.define(eq=False)
class _Late:
    channel: Channel
    came: trio.Event = attrs.field(factory=trio.Event)

    async def run(self) -> None:
        await self.channel.receive()
        self.came.set()


@KIT.check("T252", Level.L2, doc=LANES, needs="separate_bulk", unclaimed=control_waits_behind_bulk)
@both_ways
async def unread_blocks_do_not_delay_control(bench: Bench, way: Way) -> None:
    """While the bulk lane is full and nobody reads it, every heartbeat and beacon arrives within one heartbeat period
    (N-5)."""
    async with clogged(bench, way) as (sender, receiver, _, nursery):
        await _beat(*way.ends((sender, receiver)), bench.times(100, 20), bench.heartbeat_s)
        nursery.cancel_scope.cancel()
