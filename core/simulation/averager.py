"""The averager of a simulated run: the production `Round` decides, and one number per rank is what it sums.

It does what `backends.star` does with tensors: contributions come in parts, are admitted, refused or dropped; when the
round has collected them it divides (R-5, R-6), and each receiver gets its result once it has said that it is ready for
this attempt (R-9). A consensus whose cycle did not finish is taken back (K-10). It also writes the bundles (K-7).
"""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from ..round import Member, Round, RoundPhase, Verdict, mass
from ..values import state
from .frozen import frozen, thaw
from .process import Process, digest
from .setup import Setup
from .violation import require

__all__ = ["Averager", "blocks_in"]

BLOCK_BYTES = 8
NONFINITE, REDUCING, SCATTERING = m.Refusal.NONFINITE, RoundPhase.REDUCING, RoundPhase.SCATTERING
"""Asked for about every rank; see `../phases.py`."""
OUTSIDE = frozenset({"setup", "schema_hash", "round", "seen"})
OF_ROUND = frozenset({"members", "observers", "opened"})


def blocks_in(part: tuple[Any, ...], blocks: int) -> int:
    """How many blocks of data a part of a bulk lane stands for, where a model has `blocks`. A result and a state have
    all of them or none, a header those that are in it (`Averager.take`), the static part of a state counts as one."""
    if part[0] in ("block", "static"):
        return 1
    if part[-1] is None:
        return 1 if part[0] == "state" else 0
    return blocks if part[0] != "header" or blocks == 1 else 0


@state
class Averager:
    """`values` are the contributions of the round in hand, `ready` who waits for the result of which attempt, `sent`
    who has it. `consensus` is the last one, and while it is `tentative`, because its cycle has not finished, `before`
    the one it would be taken back to. `barred` is as in `Round.open`, for the cycle `barred_in`; `given_up` is the
    round that was aborted last, also when it was reduced before. `transfers` are open ones, by number: their donor and
    joiner (M-24).
    """

    setup: Setup
    gamma: float = 1.0
    schema_hash: bytes = b""
    round: Round | None = None
    values: dict[int, float | None] = attrs.field(factory=dict)
    ready: dict[tuple[int, int], tuple[int, int]] = attrs.field(factory=dict)
    sent: set[int] = attrs.field(factory=set)
    consensus: float | None = None
    before: float | None = None
    tentative: bool = False
    barred: dict[int, int] = attrs.field(factory=dict)
    barred_in: m.RoundKey | None = None
    given_up: m.RoundKey | None = None
    bundles: deque[Any] = attrs.field(factory=deque)
    record: bool = False
    full: bool = False
    transfers: dict[int, tuple[tuple[int, int], tuple[int, int]]] = attrs.field(factory=dict)
    seen: tuple[Any, ...] | None = None

    # --- orders of the coordinator -----------------------------------------------------------------------------

    def perform(self, effect: Any) -> list[Any]:
        """One effect about rounds and files; gives the events that it leads to at once."""
        self.seen = None
        if isinstance(effect, fx.SaveConsensus):
            self.bundles.append((effect.decision_id, effect.version, self.record, False))
            self.record = False
        elif isinstance(effect, fx.WriteMeta):
            self.record = True
        elif isinstance(effect, (fx.OpenRound, fx.CloseRound)) and effect.key.is_transfer:
            self._transfer(effect)
        elif isinstance(effect, fx.OpenRound):
            self._open(effect)
        elif self.round is not None and effect.key == self.round.opened.key:
            return self._in_round(self.round, effect)
        return []

    def _in_round(self, current: Round, effect: Any) -> list[Any]:
        if isinstance(effect, fx.AdmitContribution):
            if effect.attempt == current.opened.attempt:
                return self._after(current, current.admit(effect.rank, effect.steps))
        elif isinstance(effect, fx.RemoveFromRound):
            return self._after(current, current.remove(effect.rank))
        elif isinstance(effect, fx.AbortRound):
            self._take_back()
            current.abort("the coordinator gave the round up")
            self.given_up = current.opened.key
        elif isinstance(effect, fx.CloseRound):
            self.round, self.tentative = None, False
            self.values.clear()
        return []

    def _open(self, opened: fx.OpenRound) -> None:
        known = None if self.round is None or self.round.phase == RoundPhase.ABORTED else self.round.opened.key
        require(known in (None, opened.key, self.given_up), "R-1", f"{opened.key} is opened, {known} was not closed")
        self._take_back()
        if opened.key != self.barred_in:
            self.barred, self.barred_in = {}, opened.key
        nbytes = BLOCK_BYTES * self.setup.blocks
        self.schema_hash = self.schema_hash or self.setup.schema.hash()
        self.round = Round.open(opened, self.schema_hash, self.setup.blocks, nbytes, self.barred)
        self.values.clear()
        self.sent.clear()

    def _transfer(self, effect: Any) -> None:
        if isinstance(effect, fx.CloseRound):
            self.transfers.pop(effect.key.cycle, None)
        else:
            rank, incarnation, _ = effect.members[0]
            joiner = effect.observers[0] if effect.observers else (m.NO_RANK, effect.key.generation)
            self.transfers[effect.key.cycle] = ((rank, incarnation), joiner)

    def forget(self) -> None:
        """Its process is gone, with all that it held; the disk is what it was."""
        fresh = Averager(self.setup, gamma=self.gamma, schema_hash=self.schema_hash, full=self.full)
        for field in attrs.fields(Averager):
            setattr(self, field.name, getattr(fresh, field.name))

    def regain(self, rank: int, incarnation: int, number: int, generation: int, value: float | None) -> bool:
        """A rank gives the consensus back (M-44); False if it was not asked."""
        if self.transfers.get(number) != ((rank, incarnation), (m.NO_RANK, generation)):
            return False
        self.seen, self.consensus = None, value
        return True

    def _take_back(self) -> None:
        """K-10: what a save writes must not hold steps whose picks count as uncovered."""
        if self.tentative:
            self.tentative, self.consensus = False, self.before

    # --- what the bulk lanes bring -----------------------------------------------------------------------------

    def knows_not(self, part: tuple[Any, ...]) -> bool:
        """The part belongs to a cycle that is over."""
        return self.round is None or self.round.opened.key.cycle != part[1]

    def take(self, process: Process, part: tuple[Any, ...]) -> list[Any]:
        """One part of a contribution of a rank."""
        self.seen = None
        if part[0] == "block":
            return self._block(process, *part[1:])
        _, cycle, attempt, steps, finite, value = part
        events = self._header(process, cycle, attempt, steps, finite, value)
        if value is not None:
            blocks = [("block", cycle, attempt, number) for number in range(self.setup.blocks)]
            if len(blocks) == 1:
                return events + self._block(process, *blocks[0][1:])
            process.bulk_up.extendleft(reversed(blocks))
        return events

    def _header(self, process: Process, cycle: int, attempt: int, steps: int, finite: bool, value: Any) -> list[Any]:
        self.ready[process.rank, process.incarnation] = (cycle, attempt)
        current = self.round
        if current is None or current.opened.key.cycle != cycle:
            return []
        if process.rank in current.observers:
            return []  # it says that it is ready to receive, and ships nothing
        nbytes = 0 if value is None else BLOCK_BYTES * self.setup.blocks
        header = m.Contribution(
            generation=current.opened.key.generation, rank=process.rank, incarnation=process.incarnation, cycle=cycle,
            attempt=attempt, schema_hash=self.schema_hash, steps=steps, finite=finite, bytes=nbytes,
        )  # fmt: skip
        verdict = current.header(process.rank, process.incarnation, attempt, header)
        events = self._after(current, verdict)
        if verdict == Verdict.ACCEPTED:
            self.values[process.rank] = value
            if not nbytes:
                events.insert(0, ev.RoundProgress(current.opened.key, process.rank, 0, True))
        return events

    def _block(self, process: Process, cycle: int, attempt: int, number: int) -> list[Any]:
        current = self.round
        if current is None or current.opened.key.cycle != cycle:
            return []
        verdict = current.block(process.rank, process.incarnation, attempt, number)
        if verdict == Verdict.DROPPED:
            return []
        complete = number + 1 == self.setup.blocks
        progress = ev.RoundProgress(current.opened.key, process.rank, BLOCK_BYTES * (number + 1), complete)
        return [progress, *self._after(current, verdict)]

    def _after(self, current: Round, verdict: Verdict) -> list[Any]:
        for rank, member in current.members.items():
            if member.refusal == NONFINITE:
                self.barred[rank] = member.incarnation
        if verdict == Verdict.ABORTED:
            return [ev.RoundAborted(current.opened.key, current.opened.attempt, current.cause)]
        for _ in current.additions():
            pass  # the sum is made at once, when all are there
        return []

    # --- the end of a round ------------------------------------------------------------------------------------

    @property
    def collected(self) -> bool:
        """Everything is in."""
        return self.round is not None and self.round.phase == REDUCING

    def reduce(self) -> Any:
        """Divide (R-6); gives RoundReduced, or RoundAborted when the source of a state is gone (M-6)."""
        self.seen = None
        current = self.round
        assert current is not None and self.collected, "nothing is collected"
        opened = current.opened
        moves_state = opened.key.kind == m.RoundKind.STATE
        accepted = current.accepted()
        if moves_state and not accepted:
            current.abort("the source of the state is gone")
            return ev.RoundAborted(opened.key, opened.attempt, current.cause)
        value = self.values[accepted[0]] if moves_state else self._mean(current)
        if value is not None:
            self.before, self.consensus, self.tentative = self.consensus, value, True
        current.reduced(realized=value is not None)
        name = None if value is None else digest(value)
        accepted, refused = current.accepted(), current.refused()
        return ev.RoundReduced(opened.key, opened.attempt, accepted, refused, value is not None, name)

    def _mean(self, current: Round) -> float | None:
        """The weighted mean of what was accepted, in ascending order of ranks (R-5, R-6); None without any step."""
        total = 0.0
        for rank in current.accepted():
            value = self.values.get(rank)
            if current.steps(rank) and value is not None:
                total += mass(current.steps(rank), self.gamma) * value
        return total / current.divisor(self.gamma) if current.movers() else None

    def result(self, rank: int, incarnation: int) -> tuple[Any, ...] | None:
        """What a receiver that is ready is to be sent now, once; None if there is nothing for it."""
        current = self.round
        if current is None or current.phase != SCATTERING or rank in self.sent:
            return None
        key, attempt = current.opened.key, current.opened.attempt
        known = current.members.get(rank) or current.observers.get(rank)
        if known is None or known.incarnation != incarnation or rank not in current.receivers():
            return None
        if self.ready.get((rank, incarnation)) != (key.cycle, attempt):
            return None
        self.seen = None
        self.sent.add(rank)
        outcome = current.outcome(rank)
        gets = current.realized or outcome in (m.Outcome.REFUSED, m.Outcome.OBSERVER)
        own = key.kind == m.RoundKind.STATE and rank in current.members  # the source stages its own copy (M-6)
        member = current.members.get(rank)
        refusal = None if member is None else member.refusal
        total = current.total_steps()
        current.staged(rank)
        return ("result", key.cycle, attempt, outcome, total, refusal, self.consensus if gets and not own else None)

    def owes(self, rank: int, incarnation: int) -> bool:
        """Whether a rank that is ready may still be sent a result of the round in hand."""
        current = self.round
        if current is None or rank in self.sent:
            return False
        asked = (current.opened.key.cycle, current.opened.attempt)
        return self.ready.get((rank, incarnation)) == asked

    def write(self) -> list[Any]:
        """The next file of the oldest bundle: the consensus, then its record (K-6, K-7)."""
        self.seen = None
        decision, version, with_record, half = self.bundles.popleft()
        error = "no space left on device" if self.full else None
        if half:
            return [ev.MetaWritten(decision, version, error)]
        if with_record and error is None:
            self.bundles.appendleft((decision, version, True, True))
        return [ev.ConsensusSaved(decision, version, error)]

    # --- as a value -----------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, ...]:
        """Plain and hashable; the same object again while nothing has changed."""
        if self.seen is None:
            current = self.round
            inside: tuple[Any, ...] | None = None
            if current is not None:
                members = tuple(frozen(member) for member in current.members.values())
                inside = (current.opened, members, tuple(current.observers.values()), frozen(current, OF_ROUND))
            self.seen = (frozen(self, OUTSIDE), inside)
        return self.seen

    def load(self, snapshot: tuple[Any, ...]) -> None:
        """Become what the snapshot was made of."""
        if self.seen is snapshot:
            return
        thaw(self, snapshot[0], OUTSIDE)
        self.seen, self.round = snapshot, None
        self.schema_hash = self.schema_hash or self.setup.schema.hash()
        if snapshot[1] is not None:
            opened, members, observers, rest = snapshot[1]
            made = Round.open(opened, self.schema_hash, self.setup.blocks, BLOCK_BYTES * self.setup.blocks)
            made.members = {fields[0]: Member(*fields) for fields in members}
            made.observers = {observer.rank: observer for observer in observers}
            thaw(made, rest, OF_ROUND)
            self.round = made
