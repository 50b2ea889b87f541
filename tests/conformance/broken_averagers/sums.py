"""Wrong arithmetic. Each is the star averager with one thing wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from paceline.backends.averager import RoundEvent
from paceline.backends.divergence import digest
from paceline.backends.layout import Block, FlatLayout, narrow, widen
from paceline.backends.star import StarAverager
from paceline.backends.star_sum import WeightedSum
from paceline.core.effects import AbortRound, OpenRound
from paceline.core.events import RoundAborted, RoundReduced
from paceline.core.schema import EntryClass, Schema


class _OwnSum(StarAverager):
    """Sums by `adder`, a class like `WeightedSum`."""

    adder: type[WeightedSum] = WeightedSum

    def __init__(self, schema: Schema, *, gamma: float = 1.0, digest: bool = True) -> None:
        super().__init__(schema, gamma=gamma, digest=digest)
        self._sum = self.adder(self.riding)


class IgnoresGamma(StarAverager):
    """Always weighs by steps."""

    def __init__(self, schema: Schema, *, gamma: float = 1.0, digest: bool = True) -> None:
        super().__init__(schema, digest=digest)


class DividesByTheWorld(_OwnSum):
    """Counts idle ranks in the divisor, as a mean over the cohort does."""

    class adder(WeightedSum):
        idle = 0

        def divide(self, divisor: float, movers: int, into: memoryview) -> bool:
            return super().divide(divisor + self.idle, movers, into)

    def reduce(self) -> RoundReduced | RoundAborted:
        current = self.round
        assert current is not None and isinstance(self._sum, self.adder)
        self._sum.idle = sum(current.steps(rank) == 0 for rank in current.members)
        return super().reduce()


class WeighsBuffers(_OwnSum):
    """Buffers by mass: the fast rank's statistics dominate."""

    class adder(WeightedSum):
        weights = 0.0

        def clear(self) -> None:
            super().clear()
            self.weights = 0.0

        def add(self, block: Block, data: memoryview, mass: float) -> None:
            super().add(block, data, mass)
            for piece in block.pieces:
                if piece.cls == EntryClass.BUFFER:
                    values = widen(data[piece.start : piece.stop], piece.dtype)
                    target = self._sums[piece.segment][piece.first : piece.last]
                    target += values * target.dtype.type(mass - 1.0)
                    self.weights += mass if piece.first == 0 else 0.0

        def divide(self, divisor: float, movers: int, into: memoryview) -> bool:
            return super().divide(divisor, self.weights or movers, into)  # type: ignore[arg-type]


class SumsInTheWireType(_OwnSum):
    """Rounds each product to the entry's dtype."""

    class adder(WeightedSum):
        def add(self, block: Block, data: memoryview, mass: float) -> None:
            rounded = bytearray(data)
            for piece in block.pieces:
                part = memoryview(rounded)[piece.start : piece.stop]
                if piece.cls == EntryClass.PARAM:
                    values = widen(data[piece.start : piece.stop], piece.dtype)
                    narrow(values * values.dtype.type(mass), piece.dtype, part)
            super().add(block, memoryview(rounded), 1.0)


class NarrowsDoubles(_OwnSum):
    """float64 entries by way of float32."""

    class adder(WeightedSum):
        def divide(self, divisor: float, movers: int, into: memoryview) -> bool:
            for vector in self._sums:
                with np.errstate(over="ignore"):
                    vector[:] = vector.astype(np.float32)
            return super().divide(divisor, movers, into)


class ScalesEachContribution(_OwnSum):
    """Divides before it sums, by the mass so far: a running mean, with as many roundings as ranks."""

    class adder(WeightedSum):
        def __init__(self, layout: FlatLayout) -> None:
            super().__init__(layout)
            self.parts: list[tuple[Block, bytes, float]] = []

        def clear(self) -> None:
            super().clear()
            self.parts = []

        def add(self, block: Block, data: memoryview, mass: float) -> None:
            self.parts.append((block, bytes(data), mass))

        def divide(self, divisor: float, movers: int, into: memoryview) -> bool:
            for block, data, mass in self.parts:
                super().add(block, memoryview(data), mass / divisor)
            return super().divide(1.0, movers, into)


class SumsAsTheyCome(_OwnSum):
    """In the order of arrival of the last block, which is that of the network."""

    class adder(ScalesEachContribution.adder):
        order: ClassVar[list[float]] = []

        def divide(self, divisor: float, movers: int, into: memoryview) -> bool:
            for block, data, mass in sorted(self.parts, key=lambda part: self.order.index(part[2])):
                WeightedSum.add(self, block, memoryview(data), mass)
            return WeightedSum.divide(self, divisor, movers, into)

    def open(self, opened: OpenRound) -> None:
        super().open(opened)
        self.adder.order = []

    def on_header(self, rank: int, incarnation: int, attempt: int, contribution: Any) -> tuple[RoundEvent, ...]:
        self.adder.order.append(float(contribution.steps))
        return super().on_header(rank, incarnation, attempt, contribution)


class RealizesOverflow(_OwnSum):
    """A consensus with infinities is a consensus."""

    class adder(WeightedSum):
        def divide(self, divisor: float, movers: int, into: memoryview) -> bool:
            super().divide(divisor, movers, into)
            return True


class KeepsTheOldSum(StarAverager):
    """Forgets to clear its accumulators between two cycles."""

    def open(self, opened: OpenRound) -> None:
        if self.round is not None or self.consensus is not None:
            self._sum.clear = lambda: None  # type: ignore[method-assign]
        super().open(opened)


class DigestsAndMore(StarAverager):
    """Hashes whether it was asked to or not."""

    def reduce(self) -> RoundReduced | RoundAborted:
        reduced = super().reduce()
        if isinstance(reduced, RoundReduced) and self._consensus.kept is not None:
            return RoundReduced(reduced.key, reduced.attempt, reduced.accepted, reduced.refused, reduced.realized,
                                digest(self._consensus.kept))  # fmt: skip
        return reduced


class DigestsTheSum(StarAverager):
    """Hashes something else than what it delivers."""

    def reduce(self) -> RoundReduced | RoundAborted:
        reduced = super().reduce()
        if isinstance(reduced, RoundReduced) and reduced.digest is not None:
            return RoundReduced(reduced.key, reduced.attempt, reduced.accepted, reduced.refused, reduced.realized,
                                digest(memoryview(b"sum" + bytes(self._consensus.kept or b""))))  # fmt: skip
        return reduced


class AveragesEverything(StarAverager):
    """What is frozen or local travels too."""

    def __init__(self, schema: Schema, *, gamma: float = 1.0, digest: bool = True) -> None:
        super().__init__(schema, gamma=gamma, digest=digest)
        self.riding = self.whole


class GoesTooFar(_OwnSum):
    """A tenth beyond the mean, in the hope that it goes on like this."""

    class adder(WeightedSum):
        def divide(self, divisor: float, movers: int, into: memoryview) -> bool:
            return super().divide(0.9 * divisor, movers, into)


class WeighsTiedTwice(_OwnSum):
    """An entry with two names is added under both."""

    class adder(WeightedSum):
        def divide(self, divisor: float, movers: int, into: memoryview) -> bool:
            finite = super().divide(divisor, movers, into)
            for field in self._layout.fields:
                if field.entry.aliases:
                    where = slice(field.offset, field.offset + field.nbytes)
                    narrow(2 * widen(into[where], field.entry.dtype), field.entry.dtype, into[where])
            return finite


class KeepsThePartialSum(_OwnSum):
    """The attempt after an abort goes on from where the one before stood."""

    class adder(WeightedSum):
        gave_up = False

        def clear(self) -> None:
            if not self.gave_up:
                super().clear()
            self.gave_up = False

    def abort(self, aborted: AbortRound) -> None:
        super().abort(aborted)
        assert isinstance(self._sum, self.adder)
        self._sum.gave_up = True
