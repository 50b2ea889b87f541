"""Wrong about who is there: lives, observers, the refused, the lost, and other averagers. Each is the averager of the
guide with one thing wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from paceline.backends.averager import RoundEvent
from paceline.core.effects import AdmitContribution, CloseRound, OpenRound, RemoveFromRound
from paceline.core.events import RoundReduced
from paceline.core.messages import BulkBlock, Contribution, Outcome, Refusal, RoundKey, RoundKind, RoundResult
from paceline.core.round import Round, RoundPhase, Settled

from .values import Plain, Reduced, Scattered

Events = tuple[RoundEvent, ...]


class TakesOlderLives(Plain):
    """Only a newer life is foreign: what the one before sent late is taken for its successor's."""

    def on_header(self, rank: int, incarnation: int, attempt: int, contribution: Contribution) -> Events:
        member = self.round.members.get(rank) if self.round else None
        if member is not None and incarnation < member.incarnation:
            incarnation = member.incarnation
            contribution = attrs.evolve(contribution, incarnation=incarnation)
        events: Events = super().on_header(rank, incarnation, attempt, contribution)
        return events


class KnowsFirstLives(Plain):
    """Stamps what it sends for the first life of each rank, as they all are in a test."""

    def scatter(self, rank: int) -> Scattered:
        result, blocks = super().scatter(rank)
        return result, [(attrs.evolve(block, incarnation=1), data) for block, data in blocks]


class TakesAnyKind(Plain):
    """Generation and cycle are a key."""

    def _number(self, block: BulkBlock) -> int | None:
        key = self.round.opened.key if self.round else None
        if key is not None and (block.key.generation, block.key.cycle) == (key.generation, key.cycle):
            block = attrs.evolve(block, key=key)
        number: int | None = super()._number(block)
        return number


# --- who receives, and who is told what


class ObserversComeLast(Plain):
    """Members, then observers: ascending as long as those have the highest numbers."""

    def receivers(self, key: RoundKey, attempt: int) -> tuple[int, ...]:
        found: tuple[int, ...] = super().receivers(key, attempt)
        return tuple(sorted(found, key=lambda rank: (rank in self.round.observers, rank)))


class RefusesAsTheyCome(Plain):
    """Who is refused stands in the order in which that was found out."""

    def open(self, opened: OpenRound) -> None:
        super().open(opened)
        self.came: list[int] = []

    def on_header(self, rank: int, *header: Any) -> Events:
        self.came.append(rank)
        events: Events = super().on_header(rank, *header)
        return events

    def reduce(self) -> Reduced:
        reduced: Reduced = super().reduce()
        if isinstance(reduced, RoundReduced):
            as_they_came = tuple(sorted(reduced.refused, key=lambda each: self.came.index(each[0])))
            reduced = attrs.evolve(reduced, refused=as_they_came)
        return reduced


class ObserversNeverGo(Plain):
    """Nobody waits for an observer, so nobody has to be told that it is gone."""

    def remove(self, removed: RemoveFromRound) -> Events:
        if self.round and removed.rank in self.round.observers:
            return ()
        events: Events = super().remove(removed)
        return events


class LooksForTheMember(Plain):
    """Who is removed was a member."""

    def remove(self, removed: RemoveFromRound) -> Events:
        if self.round and self.round.opened.key == removed.key:
            self.round.members[removed.rank].gone = True
        events: Events = super().remove(removed)
        return events


class DeafAfterTheReduce(Plain):
    """Who went after the reduce has contributed, and that is all."""

    def remove(self, removed: RemoveFromRound) -> Events:
        collecting = self.round is not None and self.round.phase == RoundPhase.COLLECTING
        events: Events = super().remove(removed) if collecting else ()
        return events


class SendsHalfAState(Plain):
    """The source is gone: what was to be its state is sent as far as it came, and zeros from there on."""

    def reduce(self) -> Reduced:
        current = self.round
        if current is None or current.opened.key.kind != RoundKind.STATE or current.accepted():
            reduced: Reduced = super().reduce()
            return reduced
        self.new = next(iter(self.shipped.values()), memoryview(bytearray(self.whole.nbytes)))
        current.reduced(realized=True)
        return RoundReduced(current.opened.key, current.opened.attempt, (), current.refused(), True, None)


# --- from one moment to the next


class ReducesAgain(Plain):
    """Gives what it has made to whoever asks, however often."""

    made: Reduced | None = None

    def open(self, opened: OpenRound) -> None:
        self.made = None
        super().open(opened)

    def reduce(self) -> Reduced:
        self.made = self.made or super().reduce()
        return self.made


class SendsAfterTheClose(Plain):
    """Has nothing to say when the round is over, and says it."""

    closed = False

    def open(self, opened: OpenRound) -> None:
        self.closed = False
        super().open(opened)

    def close(self, closed: CloseRound) -> None:
        super().close(closed)
        self.closed = self.round is None

    def scatter(self, rank: int) -> Scattered:
        if self.closed:
            return RoundResult(outcome=Outcome.UNREALIZED, total_steps=0, bytes=0, refusal=None), []
        sent: Scattered = super().scatter(rank)
        return sent


class BeginsAgain(Plain):
    """A second header in the middle of a contribution: the rest is taken as its first half."""

    def on_header(self, rank: int, incarnation: int, attempt: int, contribution: Contribution) -> Events:
        member = self.round.members.get(rank) if self.round else None
        if member is not None and member.settled == Settled.PENDING and member.arrived:
            opened, life = self.round.opened, (contribution.incarnation, contribution.attempt)
            key = (contribution.generation, contribution.cycle)
            if (key, life) == ((opened.key.generation, opened.key.cycle), (member.incarnation, opened.attempt)):
                member.steps, member.arrived = None, 0
        events: Events = super().on_header(rank, incarnation, attempt, contribution)
        return events


class NeverForgives(Plain):
    """Who once shipped what is not finite is refused for good."""

    def __init__(self, *given: Any, **knobs: Any) -> None:
        super().__init__(*given, **knobs)
        self.ill: dict[int, int] = {}

    def open(self, opened: OpenRound) -> None:
        super().open(opened)
        blocks, size = len(self.layout.blocks), self.layout.nbytes
        self.round = Round.open(opened, self.schema_hash, blocks, size, self.ill)

    def reduce(self) -> Reduced:
        reduced: Reduced = super().reduce()
        if isinstance(reduced, RoundReduced):
            found = [rank for rank, why in reduced.refused if why == Refusal.NONFINITE]
            self.ill |= {rank: self.round.members[rank].incarnation for rank in found}
        return reduced


class BuriesForEver(Plain):
    """Who was lost once is admitted no more, in whichever life."""

    def __init__(self, *given: Any, **knobs: Any) -> None:
        super().__init__(*given, **knobs)
        self.lost: set[int] = set()

    def remove(self, removed: RemoveFromRound) -> Events:
        if self.round and self.round.opened.key == removed.key:
            self.lost.add(removed.rank)
        events: Events = super().remove(removed)
        return events

    def admit(self, admitted: AdmitContribution) -> Events:
        events: Events = () if admitted.rank in self.lost else super().admit(admitted)
        return events


class LandsAllInOnePlace(Plain):
    """One block is on its way at a time, so one piece of memory does for all ranks of an attempt."""

    def open(self, opened: OpenRound) -> None:
        super().open(opened)
        self.landing = memoryview(bytearray(self.layout.blocks[0].nbytes))

    def place(self, block: BulkBlock) -> memoryview:
        self.placed = super().place(block)
        return self.landing[: block.bytes]

    def on_block(self, block: BulkBlock) -> Events:
        if self._number(block) is not None:
            self.shipped[block.rank][block.offset :][: block.bytes] = self.landing[: block.bytes]
        events: Events = super().on_block(block)
        return events


class HasOneMemory(Plain):
    """Made once, when the class is: all averagers of the process keep what they are shipped in it."""

    kept: ClassVar[dict[int, memoryview]] = {}

    def open(self, opened: OpenRound) -> None:
        super().open(opened)
        self.kept.clear()
        self.shipped = self.kept
