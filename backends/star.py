"""The star averager: every rank ships a copy to the coordinator's process, which sums as the blocks arrive (R-11).

A passive object. A driver reads the bulk lanes, asks `place` where the data of a block goes, says `on_block` when it
is there, and hands the returned events to the coordinator. `core.round` decides who counts and which block may be
added when; `star_sum` does the arithmetic; this module keeps the memory.

How a block travels. It is received into one of at most `WAITING_BLOCKS` buffers of its rank. There it waits until the
same block of all lower ranks is in the sum, is added, and its buffer is free again. A rank that is ahead of the others
fills its two buffers, `ready_for` turns false, its lane is not read, and the flow control of the transport holds the
sender. So memory is bounded by the number of ranks and the sum of one model, however unequal the ranks are.

How a round ends. `collected` turns true when nobody is waited for; `reduce` divides and hashes; its event must reach
the coordinator before any byte of `scatter` leaves (R-2). The consensus replaces the last one only when it is whole
and finite, and the last one stays readable beside it (R-10).

A state transfer (R-20, cycle 0) is the same round with one member and no arithmetic: the source's bytes are received
into place and handed on. They begin with what a consensus holds, so version 0 becomes the first last consensus.
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import AbstractContextManager
from typing import ClassVar

from ..core.effects import AbortRound, AdmitContribution, CloseRound, OpenRound, RemoveFromRound
from ..core.errors import LocalProtocolError, RemoteProtocolError
from ..core.events import RoundAborted, RoundProgress, RoundReduced
from ..core.messages import BulkBlock, Contribution, Outcome, Refusal, RoundKey, RoundKind, RoundResult
from ..core.round import Round, RoundPhase, Settled, Verdict, mass
from ..core.schema import Schema
from ..core.values import state
from .averager import Capabilities, RoundEvent
from .divergence import digest
from .layout import BLOCK_BYTES, DoubleBuffer, FlatLayout, allocate, block_finite
from .star_sum import WeightedSum

__all__ = ["WAITING_BLOCKS", "StarAverager"]

WAITING_BLOCKS = 2
"""Blocks of one rank that may be received and not yet added: one on the wire while one waits its turn."""


@state
class _Lane:
    """Where the blocks of one incarnation land."""

    incarnation: int
    free: list[memoryview]
    waiting: deque[memoryview]
    """Received and not added, in order."""
    placed: tuple[BulkBlock, int, memoryview] | None = None
    """The block that is being received: header, number, memory."""

    def take(self, nbytes: int) -> memoryview:
        """Memory for a block. What was placed and never arrived is left to whoever may still write into it."""
        self.placed = None
        return self.free.pop() if self.free else allocate(nbytes)

    def forget(self) -> None:
        """Drop what waits, and what is on its way."""
        self.free.extend(self.waiting)
        self.waiting.clear()
        self.placed = None


class StarAverager:
    """The coordinator's half of the star averager; see `Averager` for the methods.

    `dropped[rank]` counts frames that belonged to nothing open (R-1), `refusals[rank, reason]` refused contributions
    (R-4). `round` is the round in hand, or None.
    """

    name: ClassVar[str] = "star"
    capabilities: ClassVar[Capabilities] = Capabilities(
        in_place=False, abortable=True, needs_session=False, devices=("cpu", "cuda", "mps", "xpu")
    )

    def __init__(self, schema: Schema, *, gamma: float = 1.0, digest: bool = True) -> None:
        self.gamma = gamma
        self.riding = FlatLayout.riding(schema)
        self.whole = FlatLayout.whole(schema)
        self.round: Round | None = None
        self.dropped: Counter[int] = Counter()
        self.refusals: Counter[tuple[int, Refusal]] = Counter()
        self._schema_hash = schema.hash()
        self._digest = digest
        self._sum = WeightedSum(self.riding)
        self._consensus = DoubleBuffer(self.riding.nbytes)
        self._tentative = False  # the last consensus is of a cycle that has not finished
        self._lanes: dict[int, _Lane] = {}
        self._state: memoryview | None = None
        self._barred: dict[int, int] = {}
        self._barred_in: RoundKey | None = None

    @property
    def consensus(self) -> memoryview | None:
        """The last consensus in the riding layout, None before the first. For a reader that outlives the call, such
        as a writer to disk, use `reading`."""
        return self._consensus.kept

    def reading(self) -> AbstractContextManager[memoryview]:
        """The last consensus, not overwritten while the block lasts (R-10, K-7)."""
        return self._consensus.reading()

    def restore(self, flat: memoryview) -> None:
        self._consensus.spare()[:] = flat
        self._consensus.keep()

    # --- orders of the coordinator -----------------------------------------------------------------------------

    def open(self, opened: OpenRound) -> None:
        """Begin an attempt. A rank that was refused for non-finite values in an earlier attempt of the same round
        stays refused: it would ship the very same copy."""
        self._take_back()
        if opened.key != self._barred_in:
            self._barred, self._barred_in = {}, opened.key
        moves_state = opened.key.kind == RoundKind.STATE
        layout = self.whole if moves_state else self.riding
        self.round = Round.open(opened, self._schema_hash, len(layout.blocks), layout.nbytes, self._barred)
        old, self._lanes = self._lanes, {}
        for rank, incarnation, _ in opened.members:
            lane = old.get(rank)
            if lane is None or lane.incarnation != incarnation:
                lane = _Lane(incarnation, [], deque())
            lane.forget()
            self._lanes[rank] = lane
        # Fresh memory for each attempt: a lane of a former source may still be writing into the old one.
        self._state = allocate(layout.nbytes) if moves_state else None
        if not moves_state:
            self._sum.clear()

    def admit(self, admitted: AdmitContribution) -> tuple[RoundEvent, ...]:
        current = self.round
        if current is None or admitted.key != current.opened.key or admitted.attempt != current.opened.attempt:
            return ()
        return self._after(current, admitted.rank, current.admit(admitted.rank, admitted.steps))

    def remove(self, removed: RemoveFromRound) -> tuple[RoundEvent, ...]:
        current = self.round
        if current is None or removed.key != current.opened.key:
            return ()
        return self._after(current, removed.rank, current.remove(removed.rank))

    def abort(self, aborted: AbortRound) -> None:
        if self.round is not None and aborted.key == self.round.opened.key:
            self._take_back()
            self.round.abort("the coordinator gave the round up")

    def close(self, closed: CloseRound) -> None:
        if self.round is not None and closed.key == self.round.opened.key:
            self.round = self._state = None
            self._tentative = False
            for lane in self._lanes.values():
                lane.forget()

    # --- what the bulk lanes bring -----------------------------------------------------------------------------

    def ready_for(self, rank: int) -> bool:
        lane = self._lanes.get(rank)
        return lane is None or len(lane.waiting) + (lane.placed is not None) < WAITING_BLOCKS

    def on_header(
        self, rank: int, incarnation: int, attempt: int, contribution: Contribution
    ) -> tuple[RoundEvent, ...]:
        current = self.round
        stamp = (contribution.rank, contribution.incarnation, contribution.attempt)
        if current is None or stamp != (rank, incarnation, attempt) or not _names(contribution, current.opened.key):
            self.dropped[rank] += 1
            return ()
        if rank in current.observers:
            return ()  # it says that it is ready to receive, and ships nothing
        verdict = current.header(rank, incarnation, attempt, contribution)
        if verdict == Verdict.REFUSED and current.members[rank].counts:
            self.refusals[rank, Refusal.DUPLICATE] += 1
            return ()
        events = self._after(current, rank, verdict)
        if verdict == Verdict.ACCEPTED and contribution.bytes == 0:
            return (RoundProgress(current.opened.key, rank, 0, True), *events)
        return events

    def place(self, block: BulkBlock) -> memoryview:
        """Memory for the data of a block. A block that belongs to nothing open gets memory that is thrown away, since
        its bytes must leave the lane. Raises `RemoteProtocolError` for a block that does not continue its rank's
        contribution (N-26), `LocalProtocolError` if the lane was read although `ready_for` was false."""
        if block.bytes > BLOCK_BYTES:
            text = f"a block of {block.bytes} bytes, the limit is {BLOCK_BYTES} (N-25)"
            raise RemoteProtocolError(text, rank=block.rank)
        verdict, number = self._expected(block)
        if verdict == Verdict.VIOLATION:
            raise RemoteProtocolError("a block without a contribution it belongs to (N-26)", rank=block.rank)
        if verdict != Verdict.ACCEPTED:
            return memoryview(bytearray(block.bytes))
        layout = self._layout()
        fault = layout.fault(layout.blocks[number], block)
        if fault is not None:
            raise RemoteProtocolError(fault, rank=block.rank)
        lane = self._lanes[block.rank]
        if len(lane.waiting) >= WAITING_BLOCKS:
            raise LocalProtocolError(f"rank {block.rank} has {WAITING_BLOCKS} blocks waiting; ask ready_for first")
        if self._state is not None:
            memory = self._state[block.offset : block.offset + block.bytes]
        else:
            memory = lane.take(layout.blocks[0].nbytes)
        lane.placed = (block, number, memory)
        return memory[: block.bytes]

    def on_block(self, block: BulkBlock) -> tuple[RoundEvent, ...]:
        current, lane = self.round, self._lanes.get(block.rank)
        placed = lane.placed if lane is not None else None
        if current is None or lane is None or placed is None or placed[0] != block:
            self.dropped[block.rank] += 1
            return ()
        _, number, memory = placed
        lane.placed = None
        if self._expected(block) != (Verdict.ACCEPTED, number):
            self.dropped[block.rank] += 1
            lane.free.append(memory)
            return ()
        layout = self._layout()
        if not block_finite(layout.blocks[number], memory[: block.bytes]):
            return self._after(current, block.rank, current.nonfinite(block.rank))
        if self._state is None:
            lane.waiting.append(memory)
        verdict = current.block(block.rank, block.incarnation, block.attempt, number)
        complete = number + 1 == len(layout.blocks)
        progress = RoundProgress(current.opened.key, block.rank, block.offset + block.bytes, complete)
        return (progress, *self._after(current, block.rank, verdict))

    # --- the end of a round ------------------------------------------------------------------------------------

    @property
    def collected(self) -> bool:
        return self.round is not None and self.round.phase == RoundPhase.REDUCING

    def reduce(self) -> RoundReduced | RoundAborted:
        """Divide, check, hash (R-6). Raises `LocalProtocolError` unless `collected`."""
        current = self.round
        if current is None or not self.collected:
            raise LocalProtocolError("there is no collected round to reduce; wait for `collected`")
        opened = current.opened
        if self._state is not None and not current.accepted():
            current.abort("the source of the state is gone")
            return RoundAborted(opened.key, opened.attempt, current.cause)
        flat: memoryview | None = None
        if self._state is not None:
            flat = self._state
            self._consensus.spare()[:] = flat[: self.riding.nbytes]
        elif current.movers():
            flat = self._consensus.spare()
            if not self._sum.divide(current.divisor(self.gamma), current.movers(), flat):
                flat = None
                for rank in current.overflowed():
                    self._refused(rank, Refusal.NONFINITE)
        if flat is not None:
            self._consensus.keep()
            self._tentative = True
        current.reduced(realized=flat is not None)
        name = digest(flat) if flat is not None and self._digest else None
        accepted, refused = current.accepted(), current.refused()
        return RoundReduced(opened.key, opened.attempt, accepted, refused, flat is not None, name)

    def receivers(self, key: RoundKey, attempt: int) -> tuple[int, ...]:
        current = self.round
        if current is None or (current.opened.key, current.opened.attempt) != (key, attempt):
            return ()
        return current.receivers() if current.phase == RoundPhase.SCATTERING else ()

    def scatter(self, rank: int) -> tuple[RoundResult, list[tuple[BulkBlock, memoryview]]]:
        """The result for one receiver and the blocks that follow it. In a cycle that is not realized only refused
        ranks and observers get bytes, those of the last consensus if there is one (R-8)."""
        current = self.round
        if current is None or current.phase != RoundPhase.SCATTERING or rank not in current.receivers():
            raise LocalProtocolError(f"rank {rank} has nothing to receive; reduce first, and only for receivers (R-2)")
        outcome = current.outcome(rank)
        flat: memoryview | None = self._state
        if flat is None and (current.realized or outcome in (Outcome.REFUSED, Outcome.OBSERVER)):
            flat = self._consensus.kept
        if self._state is not None and rank in current.members:
            flat = None  # the source stages its own copy (M-6)
        member = current.members.get(rank)
        result = RoundResult(
            outcome=outcome,
            total_steps=current.total_steps(),
            bytes=0 if flat is None else len(flat),
            refusal=None if member is None else member.refusal,
        )
        if flat is None:
            return result, []
        incarnation = member.incarnation if member is not None else current.observers[rank].incarnation
        key, attempt = current.opened.key, current.opened.attempt
        return result, list(self._layout().cut(flat, key, attempt, rank, incarnation))

    def on_scattered(self, rank: int) -> None:
        if self.round is not None:
            self.round.staged(rank)

    # --- inside ------------------------------------------------------------------------------------------------

    def _take_back(self) -> None:
        """A consensus whose cycle did not finish is none: what a save writes must not hold steps whose picks count as
        uncovered, or a resume would train them twice (K-10, I52). `close` is what makes it final, not that all of
        it was sent: a cycle is tried again after that too (C-18)."""
        if self._tentative:
            self._tentative = False
            self._consensus.revert()

    def _layout(self) -> FlatLayout:
        return self.riding if self._state is None else self.whole

    def _expected(self, block: BulkBlock) -> tuple[Verdict, int]:
        if self.round is None or block.key != self.round.opened.key:
            return Verdict.DROPPED, 0
        return self.round.expected_block(block.rank, block.incarnation, block.attempt)

    def _after(self, current: Round, rank: int, verdict: Verdict) -> tuple[RoundEvent, ...]:
        """What follows from a verdict: refusals are counted, memory of who no longer counts is free, and what has
        become possible is added."""
        if verdict == Verdict.DROPPED:
            self.dropped[rank] += 1
            return ()
        member = current.members.get(rank)
        if member is not None and not member.counts:
            if member.settled == Settled.REFUSED and verdict != Verdict.ACCEPTED:
                self._refused(rank, member.refusal)
            self._lanes[rank].forget()
        if verdict == Verdict.ABORTED:
            return (RoundAborted(current.opened.key, current.opened.attempt, current.cause),)
        self._add(current)
        return ()

    def _refused(self, rank: int, refusal: Refusal | None) -> None:
        if refusal is not None:
            self.refusals[rank, refusal] += 1
        if refusal == Refusal.NONFINITE:
            self._barred[rank] = self._lanes[rank].incarnation

    def _add(self, current: Round) -> None:
        if self._state is not None:
            return
        for rank, number in current.additions():
            lane = self._lanes[rank]
            memory = lane.waiting.popleft()
            block = self.riding.blocks[number]
            self._sum.add(block, memory[: block.nbytes], mass(current.members[rank].steps or 0, self.gamma))
            lane.free.append(memory)


def _names(contribution: Contribution, key: RoundKey) -> bool:
    return (contribution.generation, contribution.cycle) == (key.generation, key.cycle)
