"""Rounds kept wrongly: what counts, who is waited for, what is left. Each is the star averager with one thing wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import attrs

from paceline.backends.averager import Capabilities, RoundEvent
from paceline.backends.star import StarAverager
from paceline.core.effects import AbortRound, AdmitContribution, CloseRound, OpenRound, RemoveFromRound
from paceline.core.errors import LocalProtocolError, RemoteProtocolError
from paceline.core.events import RoundAborted, RoundProgress, RoundReduced
from paceline.core.messages import BulkBlock, Contribution, Outcome, RoundKey, RoundResult
from paceline.core.schema import Schema


class PlacesAView(StarAverager):
    """Every second byte of a larger piece: an assignment fills it, a socket cannot."""

    def place(self, block: BulkBlock) -> memoryview:
        super().place(block)
        return memoryview(bytearray(2 * block.bytes))[::2]


class ScattersAView(StarAverager):
    """The same on the way back."""

    def scatter(self, rank: int) -> tuple[RoundResult, list[tuple[BulkBlock, memoryview]]]:
        result, blocks = super().scatter(rank)
        return result, [(block, _spread(data)) for block, data in blocks]


def _spread(data: memoryview) -> memoryview:
    wide = bytearray(2 * len(data))
    wide[::2] = data
    return memoryview(wide)[::2]


class TakesAnySchema(StarAverager):
    """A hash that differs is somebody else's worry."""

    def on_header(self, rank: int, incarnation: int, attempt: int, contribution: Contribution
                  ) -> tuple[RoundEvent, ...]:  # fmt: skip
        return super().on_header(rank, incarnation, attempt, attrs.evolve(contribution, schema_hash=self._schema_hash))


class BelievesEverySteps(StarAverager):
    """The limit of OpenRound is a recommendation."""

    def open(self, opened: OpenRound) -> None:
        super().open(attrs.evolve(opened, members=tuple((r, i, 1 << 60) for r, i, _ in opened.members)))


class TrustsFinite(StarAverager):
    """Believes the header that says all values are finite."""

    def on_block(self, block: BulkBlock) -> tuple[RoundEvent, ...]:
        lane = self._lanes.get(block.rank)
        if lane is not None and lane.placed is not None:
            memory = lane.placed[2]
            for at in range(0, block.bytes - 3, 4):
                if bytes(memory[at : at + 4]) == b"\x00\x00\xc0\x7f":
                    memory[at : at + 4] = bytes(4)
        return super().on_block(block)


class TakesAnyAttempt(StarAverager):
    """Matches contributions by rank, whatever round they were made for."""

    def on_header(self, rank: int, incarnation: int, attempt: int, contribution: Contribution
                  ) -> tuple[RoundEvent, ...]:  # fmt: skip
        if self.round is None:
            return ()
        opened = self.round.opened
        known = {r: i for r, i, _ in opened.members}
        own = attrs.evolve(contribution, generation=opened.key.generation, cycle=opened.key.cycle,
                           attempt=opened.attempt, incarnation=known.get(rank, incarnation))  # fmt: skip
        return super().on_header(rank, own.incarnation, opened.attempt, own)


class OverwritesDeposits(StarAverager):
    """The second contribution of a rank counts."""

    def on_header(self, rank: int, incarnation: int, attempt: int, contribution: Contribution
                  ) -> tuple[RoundEvent, ...]:  # fmt: skip
        if self.round is not None and rank in self.round.members:
            self.round.members[rank].steps = None
            self.round.members[rank].arrived = 0
        return super().on_header(rank, incarnation, attempt, contribution)


class ShoutsAtLateFrames(StarAverager):
    """Ends the link of a rank whose frame is merely late."""

    def place(self, block: BulkBlock) -> memoryview:
        opened = self.round.opened if self.round is not None else None
        if opened is None or (block.key, block.attempt) != (opened.key, opened.attempt):
            raise RemoteProtocolError("a frame of another round", rank=block.rank)
        return super().place(block)


class NeedsNoAdmission(StarAverager):
    """What the bulk lane says is enough."""

    def on_header(self, rank: int, incarnation: int, attempt: int, contribution: Contribution
                  ) -> tuple[RoundEvent, ...]:  # fmt: skip
        events = super().on_header(rank, incarnation, attempt, contribution)
        if self.round is not None and rank in self.round.members:
            self.admit(AdmitContribution(self.round.opened.key, attempt, rank, contribution.steps))
        return events


class WaitsForTheDead(StarAverager):
    """A rank that was removed is still waited for."""

    def remove(self, removed: RemoveFromRound) -> tuple[RoundEvent, ...]:
        return ()


class CountsTheDead(StarAverager):
    """A rank that goes with blocks in the sum leaves them there, and the attempt goes on."""

    def remove(self, removed: RemoveFromRound) -> tuple[RoundEvent, ...]:
        member = self.round.members.get(removed.rank) if self.round is not None else None
        if member is not None:
            member.added = 0
        return super().remove(removed)


class HearsOtherRounds(StarAverager):
    """Does what it is told, for whatever round it was meant."""

    def close(self, closed: CloseRound) -> None:
        super().close(CloseRound(self.round.opened.key) if self.round is not None else closed)


class NeverTired(StarAverager):
    """Cannot be aborted, and says that it can."""

    def abort(self, aborted: AbortRound) -> None:
        raise LocalProtocolError("an average is always finished")


class AbortsInSilence(StarAverager):
    """Can be aborted, and says that it cannot."""

    capabilities: ClassVar[Capabilities] = attrs.evolve(StarAverager.capabilities, abortable=False)


class CapableInWords(StarAverager):
    """Capabilities as a dictionary."""

    capabilities: ClassVar[Any] = {"in_place": False, "abortable": True}


class WantsItsOwnMemory(StarAverager):
    """Says that memory of the host is none of its business, and takes it."""

    capabilities = attrs.evolve(StarAverager.capabilities, devices=("cuda",))


class NamesOneDevice(StarAverager):
    """A device with its number, where a type is meant."""

    capabilities = attrs.evolve(StarAverager.capabilities, devices=("cpu", "cuda:0"))


class RealizesNothing(StarAverager):
    """An average of nobody is an average."""

    def reduce(self) -> RoundReduced | RoundAborted:
        reduced = super().reduce()
        return attrs.evolve(reduced, realized=True) if isinstance(reduced, RoundReduced) else reduced


class WritesOverReaders(StarAverager):
    """One buffer for all consensuses."""

    def reduce(self) -> RoundReduced | RoundAborted:
        held = self._consensus.kept
        reduced = super().reduce()
        if held is not None and self._consensus.kept is not None:
            held[:] = self._consensus.kept
        return reduced

    @contextmanager
    def reading(self) -> Iterator[memoryview]:
        with super().reading() as held:
            yield held


class KeepsTheUnfinished(StarAverager):
    """A consensus is one as soon as it is divided."""

    def _take_back(self) -> None:
        pass


class ReusesPlacedMemory(StarAverager):
    """The buffer of a block on its way is given away again at the next attempt."""

    def open(self, opened: OpenRound) -> None:
        for lane in self._lanes.values():
            if lane.placed is not None:
                lane.free.append(lane.placed[2])
        super().open(opened)


class PlacesShort(StarAverager):
    """Memory one byte short of its block."""

    def place(self, block: BulkBlock) -> memoryview:
        return super().place(block)[:-1]


class TakesBlocksInAnyOrder(StarAverager):
    """Where a block says that it belongs, there it goes."""

    def place(self, block: BulkBlock) -> memoryview:
        try:
            return super().place(block)
        except RemoteProtocolError:
            return memoryview(bytearray(block.bytes))


class ForgetsTheLastBlock(StarAverager):
    """Sends all blocks but one."""

    def scatter(self, rank: int) -> tuple[RoundResult, list[tuple[BulkBlock, memoryview]]]:
        result, blocks = super().scatter(rank)
        return result, blocks[:-1]


class StampsOneForAll(StarAverager):
    """The blocks of the first receiver for all of them."""

    def scatter(self, rank: int) -> tuple[RoundResult, list[tuple[BulkBlock, memoryview]]]:
        result, blocks = super().scatter(rank)
        return result, [(attrs.evolve(block, rank=0), data) for block, data in blocks]


class TellsAllTheSame(StarAverager):
    """Everybody is told that it was merged."""

    def scatter(self, rank: int) -> tuple[RoundResult, list[tuple[BulkBlock, memoryview]]]:
        result, blocks = super().scatter(rank)
        return attrs.evolve(result, outcome=Outcome.MERGED), blocks


class SendsBeforeTheEnd(StarAverager):
    """An empty result for whoever asks too early."""

    def scatter(self, rank: int) -> tuple[RoundResult, list[tuple[BulkBlock, memoryview]]]:
        try:
            return super().scatter(rank)
        except LocalProtocolError:
            return RoundResult(outcome=Outcome.UNREALIZED, total_steps=0, bytes=0), []


class ForgetsObservers(StarAverager):
    """Only who contributed receives."""

    def receivers(self, key: RoundKey, attempt: int) -> tuple[int, ...]:
        members = self.round.members if self.round is not None else {}
        return tuple(rank for rank in super().receivers(key, attempt) if rank in members)


class NeverComplete(StarAverager):
    """Progress without an end."""

    def on_block(self, block: BulkBlock) -> tuple[RoundEvent, ...]:
        events = super().on_block(block)
        return tuple(attrs.evolve(e, complete=False) if isinstance(e, RoundProgress) else e for e in events)


class StateIsAContribution(StarAverager):
    """A state transfer hands on what rides, and nothing else."""

    def scatter(self, rank: int) -> tuple[RoundResult, list[tuple[BulkBlock, memoryview]]]:
        result, blocks = super().scatter(rank)
        if self._state is None or not blocks:
            return result, blocks
        return result, [(block, data[: self.riding.nbytes]) for block, data in blocks[:1]]


class KnowsNoGamma(StarAverager):
    """Is made from a schema, and from nothing else."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)


class HasRoomForOne(StarAverager):
    """One block of a rank, and no more."""

    def ready_for(self, rank: int) -> bool:
        member = self.round.members.get(rank) if self.round is not None else None
        return super().ready_for(rank) and (member is None or member.arrived == 0)


class ReadsWhatItRefused(StarAverager):
    """Lets everything that came have its say, however little."""

    def __init__(self, schema: Schema, *, gamma: float = 1.0, digest: bool = True) -> None:
        super().__init__(schema, gamma=gamma, digest=digest)
        self.given: dict[int, memoryview] = {}

    def place(self, block: BulkBlock) -> memoryview:
        self.given[block.rank] = super().place(block)
        return self.given[block.rank]

    def reduce(self) -> RoundReduced | RoundAborted:
        reduced = super().reduce()
        if isinstance(reduced, RoundReduced) and self._consensus.kept is not None:
            out = [memory for rank, memory in self.given.items() if rank not in reduced.accepted]
            self._consensus.kept[0] ^= any(bytes(memory).strip(b"\0") for memory in out)
        return reduced


class KeepsWhatItWasLent(StarAverager):
    """The memory of the rank that brings the last consensus back is as good as its own."""

    lent: memoryview | None = None

    def restore(self, flat: memoryview) -> None:
        self.lent = flat

    @property
    def consensus(self) -> memoryview | None:
        return super().consensus if self.lent is None else self.lent
