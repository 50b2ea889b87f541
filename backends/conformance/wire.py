"""An averager at the end of real lanes: every byte that the checks ship or fetch crosses a transport on its way.

The checks drive an averager by plain calls, in orders that no timing brings about twice. `Carried` stands in front of
one and keeps that: a call that brings bytes sends them from a rank's channel to the coordinator's, into the very memory
that the averager named, and returns when they are there. What only a driver would notice otherwise shows here: memory
that a socket cannot write into, blocks that a transport refuses to send, records that change on the wire.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import trio

from ...core.conformance import CheckFailed, accepting, not_ended
from ...core.errors import TransportError
from ...core.messages import BulkBlock, Contribution, RoundKey, RoundKind, RoundResult
from ...transports.api import Channel
from ...transports.codec import decode_record, encode_record
from ...transports.conformance import Bench, bench_for
from ...transports.conformance.stage import Meeting, meet
from ...transports.limit import Call, ended
from ..averager import Averager, RoundEvent
from ..layout import header_block

__all__ = ["Carried", "Wire", "wired"]

Ends = tuple[Channel, Channel]
"""The rank's and the coordinator's."""


class Wire:
    """Channels of one transport, one for each rank, made when a rank first needs it. Calls come from one thread; trio
    runs in another."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._ends: dict[int, Ends] = {}
        self._met: Meeting
        self._token: trio.lowlevel.TrioToken
        self._over: trio.Event
        self._up = threading.Event()
        self._serving: Call[None]
        self._failure: Exception | None = None

    def carry(self, block: BulkBlock, data: memoryview, memory: memoryview, *, up: bool) -> BulkBlock:
        """One block from a rank to the coordinator (`up`) or back, into `memory`; the header as it came. `CheckFailed`
        if it does not arrive."""
        what = f"a block of {block.bytes} bytes {'from' if up else 'to'} rank {block.rank}"

        async def cross() -> BulkBlock:
            rank, coordinator = self._ends.get(block.rank) or await self._met.join()
            self._ends[block.rank] = rank, coordinator
            source, target = (rank, coordinator) if up else (coordinator, rank)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(source.send_bulk, block, data)
                return await target.receive_bulk(lambda header: memory)

        with accepting(f"sending {what}, over the transport,"):
            return self._run(cross, block.rank, what)

    def _run(self, cross: Callable[[], Awaitable[BulkBlock]], rank: int, what: str) -> BulkBlock:
        async def bounded() -> BulkBlock:
            try:
                with trio.move_on_after(self._patience_s):
                    return await cross()
                raise CheckFailed(f"{what} did not arrive within {self._patience_s:g} s")
            except BaseException:
                for end in self._ends.pop(rank, ()):  # what is half way must not meet the next check
                    await end.aclose()
                raise

        # Who carries waits as long as a block may take and its channel may take to close; a loop that blocks is ended.
        call = partial(trio.from_thread.run, bounded, trio_token=self._token)
        return ended(call, 2 * self._patience_s, stop=self._serving.end)

    async def serve(self, bench: Bench) -> None:
        """Hold the door open until `close`."""
        async with meet(bench) as met:
            self._met, self._token, self._over = met, trio.lowlevel.current_trio_token(), trio.Event()
            self._up.set()
            await self._over.wait()

    def start(self, bench: Bench) -> None:
        """Run it in a thread of its own, which is up when this returns; what cannot be listened at is raised."""

        def main() -> None:
            try:
                trio.run(self.serve, bench)
            except BaseException as failure:
                self._failure = not_ended(failure)
            finally:
                self._up.set()

        self._serving = Call(main, "the wire of the kit")
        self._serving.begin()
        if not self._up.wait(2 * self._patience_s):
            raise TransportError(f"nobody can listen at {bench.target}: {self._serving.end()}")
        if isinstance(self._failure, CheckFailed):
            raise TransportError(f"nobody can listen at {bench.target}: {self._failure}") from self._failure
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End `serve`, if it has not ended by itself."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._over.set)
        if not self._serving.still and not self._serving.over.wait(2 * self._patience_s):
            self._serving.end()


@contextmanager
def wired(over: str, patience_s: float) -> Iterator[Wire]:
    """A wire over the transport `over`, a URL or `module:factory@url` as in `bench_for`. What cannot be listened at is
    raised as it is."""
    wire = Wire(patience_s)
    wire.start(bench_for(over))
    try:
        yield wire
    finally:
        wire.close()


class Carried:
    """An averager behind a wire. What carries no bytes is the averager's own."""

    def __init__(self, averager: Averager, wire: Wire) -> None:
        self._averager, self._wire = averager, wire
        self._placed: list[tuple[BulkBlock, bytearray, memoryview]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._averager, name)

    def on_header(
        self, rank: int, incarnation: int, attempt: int, contribution: Contribution
    ) -> tuple[RoundEvent, ...]:
        """The record crosses as a block of kind COUNTS, and what is decoded is taken in."""
        key = RoundKey(generation=contribution.generation, cycle=contribution.cycle, kind=RoundKind.PARAMS)
        data = encode_record(contribution)  # the kit's own, so no fault of the averager
        block = header_block(key, attempt, rank, incarnation, len(data))
        memory = bytearray(len(data))
        self._wire.carry(block, memoryview(data), memoryview(memory), up=True)
        came = decode_record(Contribution, memoryview(memory))
        return self._averager.on_header(rank, incarnation, attempt, came)

    def place(self, block: BulkBlock) -> memoryview:
        """The averager names its memory now; the bytes that are written into what this gives cross at `on_block`."""
        memory = self._averager.place(block)
        own = bytearray(len(memory))
        self._placed.append((block, own, memory))
        return memoryview(own)

    def on_block(self, block: BulkBlock) -> tuple[RoundEvent, ...]:
        at = max(index for index, (placed, _, _) in enumerate(self._placed) if placed == block)
        _, data, memory = self._placed.pop(at)
        return self._averager.on_block(self._wire.carry(block, memoryview(data), memory, up=True))

    def scatter(self, rank: int) -> tuple[RoundResult, list[tuple[BulkBlock, memoryview]]]:
        """What the rank has received: the record, and each block in memory of its own."""
        result, blocks = self._averager.scatter(rank)
        with accepting("the record of a result, on its way to a rank,"):
            data = encode_record(result)
        memory = bytearray(len(data))
        key = RoundKey(generation=1, cycle=0, kind=RoundKind.PARAMS)
        head = header_block(key, 0, rank, 1, len(data))
        self._wire.carry(head, memoryview(data), memoryview(memory), up=False)
        fetched = []
        for block, body in blocks:
            room = memoryview(bytearray(block.bytes))
            fetched.append((self._wire.carry(block, body, room, up=False), room))
        return decode_record(RoundResult, memoryview(memory)), fetched
