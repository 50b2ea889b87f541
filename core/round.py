"""One data round: who is expected, who contributed, when to reduce, when to give up. No tensor, no byte, no time.

A round belongs to one attempt of one cycle (R-1) and walks Collecting → Reducing → Scattering → Done; it may fall to
Aborted from anywhere before the end (R-2). The averager asks it before it touches any number:

- **A member settles in one of four ways.** It contributed (header accepted, admitted by the coordinator, every block
  here), or it was refused, or it was removed, or the round is aborted. When nobody is unsettled, collecting is over.
- **Two lanes must agree.** The header arrives on the bulk lane, the admission on the report lane by way of the
  coordinator; they are not ordered against each other, so either may be first. Nothing of a rank enters the sum
  before both are there and name the same steps (R-11): otherwise picks could be in the consensus and be trained
  again.
- **The order of addition is fixed, the order of arrival is not.** Block k of a rank is added after block k of every
  lower rank that still counts (R-6, R-11). A lower rank whose header or admission is missing may still count, so it
  holds back all higher ones. That alone makes the sum a function of the contributions and not of the network (I60).
- **A sum cannot be undone.** A rank that drops out with blocks in the sum takes the attempt with it; the cohort
  repeats it from the retained copies (R-4, R-18). Whatever is not in the sum yet is simply forgotten.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

import attrs

from .effects import OpenRound
from .errors import LocalProtocolError
from .messages import Contribution, Outcome, Refusal, RoundKind
from .values import state, value

__all__ = ["FLOAT32_MAX", "Member", "Round", "RoundPhase", "Settled", "Verdict", "float32", "mass"]

FLOAT32_MAX = 3.4028234663852886e38


class RoundPhase(IntEnum):
    """Where a round stands (R-2)."""

    COLLECTING = 0
    REDUCING = 1
    SCATTERING = 2
    DONE = 3
    ABORTED = 4


class Settled(IntEnum):
    """Where one member stands: PENDING is the only one that is waited for."""

    PENDING = 0
    CONTRIBUTED = 1
    REFUSED = 2
    REMOVED = 3


class Verdict(IntEnum):
    """What became of something that arrived."""

    ACCEPTED = 0
    REFUSED = 1
    """The contribution does not count, its rank stays in the round (R-4)."""
    DROPPED = 2
    """It belongs to another attempt or life, or to a rank that no longer counts: counted and forgotten (R-1)."""
    VIOLATION = 3
    """No correct peer sends this: its link ends (N-7, N-26)."""
    ABORTED = 4
    """The attempt cannot be finished because of it."""


COLLECTING, REDUCING, SCATTERING = RoundPhase.COLLECTING, RoundPhase.REDUCING, RoundPhase.SCATTERING
PENDING, CONTRIBUTED, REFUSED = Settled.PENDING, Settled.CONTRIBUTED, Settled.REFUSED
"""Asked for about every member; see `phases.py`."""


def float32(number: float) -> float:
    """`number` rounded once to the nearest float32; what lies beyond the largest one becomes infinite."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
    return rounded


def mass(steps: int, gamma: float) -> float:
    """Weight of a contribution for parameters: `steps ** gamma`, rounded once to float32 (R-5, R-6).

    0 for 0 steps at any gamma, since a raw power would give an idle rank full weight at gamma 0 and an infinite one
    below. Finite and positive for every step count from 1 to 2**64 - 1 and every gamma from -2 to 2 (I55): 2**64
    squared is just past the largest float32, and counts as that.
    """
    if steps == 0:
        return 0.0
    return min(float32(float(steps) ** gamma), FLOAT32_MAX)


@state
class Member:
    """A rank asked to contribute, and how far it is. `limit` is the most steps it may claim (R-4)."""

    rank: int
    incarnation: int
    limit: int
    settled: Settled = PENDING
    steps: int | None = None
    """Steps its header states; None before the header."""
    admitted: int | None = None
    """Steps its report lane states; None before the admission."""
    arrived: int = 0
    """Blocks received, in order."""
    added: int = 0
    """Blocks in the sum."""
    refusal: Refusal | None = None
    staged: bool = False
    gone: bool = False
    """Nothing more is sent to it. A contribution that was complete before keeps counting (C-15.1)."""

    @property
    def cleared(self) -> bool:
        """Header and admission are both here and agree: its blocks may enter the sum (R-11)."""
        return self.steps is not None and self.admitted is not None

    @property
    def counts(self) -> bool:
        """It may have, or may still get, blocks in the sum."""
        return self.settled in (PENDING, CONTRIBUTED)


@value
class _Observer:
    """Receives, and contributes nothing: mass 0 (M-23, R-5)."""

    rank: int
    incarnation: int


@state
class Round:
    """The round of one attempt. Every method is one event; it returns a verdict and never raises for what a peer did.

    `blocks` and `nbytes` are the size of a full contribution, the same for every rank, as the schema says (N-25).
    `barred` maps a rank to the incarnation that was refused for non-finite values in an earlier attempt of this
    cycle: its retained copy would be no better this time.
    """

    opened: OpenRound
    schema_hash: bytes
    blocks: int
    nbytes: int
    members: dict[int, Member]
    observers: dict[int, _Observer]
    phase: RoundPhase = COLLECTING
    realized: bool = False
    cause: str = ""
    unsettled: int = 0
    waiting_for: set[int] = attrs.field(factory=set)
    """Receivers that have not staged the result; never iterated."""

    @classmethod
    def open(
        cls, opened: OpenRound, schema_hash: bytes, blocks: int, nbytes: int, barred: dict[int, int] | None = None
    ) -> Round:
        """A fresh round in Collecting, or past it if no member can contribute."""
        members = {rank: Member(rank, incarnation, limit) for rank, incarnation, limit in sorted(opened.members)}
        observers = {rank: _Observer(rank, incarnation) for rank, incarnation in sorted(opened.observers)}
        if len(members) != len(opened.members) or len(observers) != len(opened.observers) or members.keys() & observers:
            raise LocalProtocolError(f"round {opened.key} names a rank twice: {opened.members}, {opened.observers}")
        if opened.key.kind == RoundKind.STATE and len(members) > 1:
            raise LocalProtocolError(f"a state transfer has one source, round {opened.key} names {list(members)} (M-6)")
        made = cls(opened, schema_hash, blocks, nbytes, members, observers, unsettled=len(members))
        for rank, member in members.items():
            if barred is not None and barred.get(rank) == member.incarnation:
                made._refuse(member, Refusal.NONFINITE)
        made._judge()
        return made

    # --- events ------------------------------------------------------------------------------------------------

    def header(self, rank: int, incarnation: int, attempt: int, contribution: Contribution) -> Verdict:
        """A contribution announces itself (R-4). The reason of a refusal is in `members[rank].refusal`, but for a
        second header behind a complete first contribution: that one is refused alone and the first stands (R-1)."""
        member = self._current(rank, incarnation, attempt)
        if member is None or not member.counts:
            return Verdict.DROPPED
        if member.steps is not None:
            if member.settled == CONTRIBUTED or member.arrived == self._expected_blocks(member):
                return Verdict.REFUSED
            # A lane is ordered, so the rest of the first one will never come: it is torn.
            return self._drop_out(member, Refusal.DUPLICATE, "began its contribution twice")
        refusal = self._fault(member, contribution)
        if refusal is None and member.admitted not in (None, contribution.steps):
            refusal = Refusal.STEPS
        if refusal is not None:
            return self._drop_out(member, refusal, "")
        member.steps = contribution.steps
        self._settle(member)
        return Verdict.ACCEPTED

    def admit(self, rank: int, steps: int) -> Verdict:
        """The report lane of the rank states `steps` too (C-7, R-11); other steps than the header's refuse it."""
        member = self.members.get(rank)
        if member is None or not member.counts or member.admitted is not None or self.phase != COLLECTING:
            return Verdict.DROPPED
        if member.steps not in (None, steps):
            return self._drop_out(member, Refusal.STEPS, "")
        member.admitted = steps
        self._settle(member)
        return Verdict.ACCEPTED

    def expected_block(self, rank: int, incarnation: int, attempt: int) -> tuple[Verdict, int]:
        """ACCEPTED and the number of the block that the rank has to send next. Else a number that means nothing and
        DROPPED if its bytes no longer matter, VIOLATION if it has announced none or has sent all of them."""
        member = self._current(rank, incarnation, attempt)
        if member is None or not member.counts:
            return Verdict.DROPPED, 0
        if member.steps is None or member.arrived >= self._expected_blocks(member):
            return Verdict.VIOLATION, 0
        return Verdict.ACCEPTED, member.arrived

    def block(self, rank: int, incarnation: int, attempt: int, number: int) -> Verdict:
        """Block `number` of the rank is here."""
        verdict, expected = self.expected_block(rank, incarnation, attempt)
        if verdict != Verdict.ACCEPTED:
            return verdict
        if number != expected:
            return Verdict.VIOLATION
        member = self.members[rank]
        member.arrived += 1
        self._settle(member)
        return Verdict.ACCEPTED

    def additions(self) -> Iterator[tuple[int, int]]:
        """The blocks that may be added now, as (rank, block), in the one order that R-6 allows. Each is counted as in
        the sum when it is yielded. One pass is enough, since a rank only waits for lower ones."""
        if self.phase not in (COLLECTING, REDUCING):
            return
        bound = self.blocks
        for rank, member in self.members.items():
            if not member.counts:
                continue
            if not member.cleared:
                return
            if self._expected_blocks(member) == 0:
                continue
            while member.added < min(member.arrived, bound):
                member.added += 1
                yield rank, member.added - 1
            bound = min(bound, member.added)
            if bound == 0:
                return

    def nonfinite(self, rank: int) -> Verdict:
        """A block of the rank holds a value that is not finite although its header said there is none (R-4)."""
        member = self.members.get(rank)
        if member is None or not member.counts:
            return Verdict.DROPPED
        return self._drop_out(member, Refusal.NONFINITE, "sent a value that is not finite against its header")

    def remove(self, rank: int) -> Verdict:
        """The rank is gone: wait for it no longer (R-2). What it has only begun, or what was not admitted, is dropped;
        a contribution that is complete and admitted stays."""
        self.observers.pop(rank, None)
        self.waiting_for.discard(rank)
        member = self.members.get(rank)
        verdict = Verdict.ACCEPTED
        if member is not None:
            member.gone = True
            if member.settled == PENDING and self.phase == COLLECTING:
                verdict = self._drop_out(member, None, "was lost in the middle of its contribution")
        self._judge()
        return verdict

    def reduced(self, realized: bool) -> None:
        """The division is done, or there was nothing to divide: the result may leave (R-2)."""
        if self.phase != REDUCING:
            raise LocalProtocolError(f"round {self.opened.key} is {self.phase.name}, there is nothing to reduce")
        self.realized = realized
        self.phase = SCATTERING
        self.waiting_for.update(self.receivers())
        self._judge()

    def overflowed(self) -> tuple[int, ...]:
        """The consensus itself is not finite: every contribution that carried values is refused, and so the cycle is
        not realized (R-6). Returns their ranks, ascending. An idle rank carried none and stays accepted."""
        carriers = tuple(rank for rank in self.members if self.steps(rank) > 0)
        for rank in carriers:
            self._refuse(self.members[rank], Refusal.NONFINITE)
        return carriers

    def staged(self, rank: int) -> None:
        """The rank has its result. After the last one the round is Done."""
        if self.phase == SCATTERING:
            self.waiting_for.discard(rank)
            self._judge()

    def abort(self, cause: str) -> Verdict:
        """Give the attempt up; the next one starts from the retained copies (R-18)."""
        if self.phase in (RoundPhase.DONE, RoundPhase.ABORTED):
            return Verdict.DROPPED
        self.phase, self.cause = RoundPhase.ABORTED, cause
        return Verdict.ABORTED

    # --- answers -----------------------------------------------------------------------------------------------

    def expected(self) -> tuple[int, ...]:
        """Members that are still waited for, ascending."""
        return tuple(rank for rank, member in self.members.items() if member.settled == PENDING)

    def accepted(self) -> tuple[int, ...]:
        """Members whose contribution counts, idle ones with 0 steps included (R-9), ascending."""
        return tuple(rank for rank, member in self.members.items() if member.settled == CONTRIBUTED)

    def refused(self) -> tuple[tuple[int, Refusal], ...]:
        """Refused members with the reason, ascending."""
        return tuple((rank, member.refusal) for rank, member in self.members.items() if member.refusal is not None)

    def receivers(self) -> tuple[int, ...]:
        """Members and observers that are still there to receive, ascending."""
        return tuple(sorted([rank for rank, member in self.members.items() if not member.gone] + list(self.observers)))

    def steps(self, rank: int) -> int:
        """Steps of the rank that count: 0 unless its contribution is accepted."""
        member = self.members[rank]
        return member.steps or 0 if member.settled == CONTRIBUTED else 0

    def total_steps(self) -> int:
        """Steps merged by this round; 0 unless it is realized."""
        return sum(self.steps(rank) for rank in self.members) if self.realized else 0

    def divisor(self, gamma: float) -> float:
        """Summed mass of exactly the accepted contributions for parameters, in float64, ascending (R-6)."""
        return sum((mass(self.steps(rank), gamma) for rank in self.members), 0.0)

    def movers(self) -> int:
        """Accepted contributions with at least one step: the divisor for buffers (R-7)."""
        return sum(1 for rank in self.members if self.steps(rank) > 0)

    def outcome(self, rank: int) -> Outcome:
        """What a receiver is told became of its contribution."""
        if rank in self.observers:
            return Outcome.OBSERVER
        if self.members[rank].settled == REFUSED:
            return Outcome.REFUSED
        return Outcome.MERGED if self.realized else Outcome.UNREALIZED

    # --- inside ------------------------------------------------------------------------------------------------

    def _current(self, rank: int, incarnation: int, attempt: int) -> Member | None:
        member = self.members.get(rank)
        if member is None or member.gone or member.incarnation != incarnation or attempt != self.opened.attempt:
            return None
        return member if self.phase == COLLECTING else None

    def _expected_bytes(self, steps: int) -> int:
        return 0 if steps == 0 and self.opened.key.kind != RoundKind.STATE else self.nbytes

    def _expected_blocks(self, member: Member) -> int:
        return self.blocks if member.steps is not None and self._expected_bytes(member.steps) else 0

    def _fault(self, member: Member, contribution: Contribution) -> Refusal | None:
        """The first test of R-4 that the header fails, or None."""
        if contribution.schema_hash != self.schema_hash:
            return Refusal.SCHEMA
        if not 0 <= contribution.steps <= member.limit:
            return Refusal.STEPS
        if not contribution.finite:
            return Refusal.NONFINITE
        return None if contribution.bytes == self._expected_bytes(contribution.steps) else Refusal.SHAPE

    def _settle(self, member: Member) -> None:
        complete = member.cleared and member.arrived == self._expected_blocks(member)
        if complete and member.settled == PENDING:
            member.settled = CONTRIBUTED
            self.unsettled -= 1
            self._judge()

    def _refuse(self, member: Member, refusal: Refusal | None) -> None:
        if member.settled == PENDING:
            self.unsettled -= 1
        member.settled = Settled.REMOVED if refusal is None else REFUSED
        member.refusal = refusal

    def _drop_out(self, member: Member, refusal: Refusal | None, what: str) -> Verdict:
        """The member will not count. What it has in the sum cannot be taken out again (R-4)."""
        self._refuse(member, refusal)
        if member.added:
            return self.abort(f"rank {member.rank} {what} with {member.added} of {self.blocks} blocks in the sum")
        self._judge()
        return Verdict.REFUSED if refusal is not None else Verdict.ACCEPTED

    def _judge(self) -> None:
        if self.phase == COLLECTING and self.unsettled == 0:
            self.phase = REDUCING
        if self.phase == SCATTERING and not self.waiting_for:
            self.phase = RoundPhase.DONE
