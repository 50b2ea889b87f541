"""Wrong about values that are rare, and about sums of many. Each is the averager of the guide with one thing wrong."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from paceline.backends.divergence import digest
from paceline.backends.layout import Values, narrow, widen
from paceline.core.events import RoundAborted, RoundReduced
from paceline.core.messages import BulkBlock, RoundResult
from paceline.core.round import mass
from paceline.core.schema import EntryClass

from conformance.examples import example

Plain: Any = example("plain_averager").PlainAverager
Reduced = RoundReduced | RoundAborted
Scattered = tuple[RoundResult, list[tuple[BulkBlock, memoryview]]]


class _LooksForItself(Plain):
    """Judges by `sound` what has come, field by field, and by `whole` what it has made."""

    def __init__(self, *given: Any, **knobs: Any) -> None:
        super().__init__(*given, **knobs)
        looks = self

        class judging:
            def __init__(self, layout: Any) -> None:
                self.layout = layout

            def __getattr__(self, name: str) -> Any:
                return getattr(self.layout, name)

            def finite(self, flat: memoryview) -> bool:
                judge = looks.whole_sound if flat is looks.new else looks.sound
                return all(judge(field, widen(flat[field.offset :][: field.nbytes], field.entry.dtype))
                           for field in self.layout.fields if field.entry.cls in (EntryClass.PARAM, EntryClass.BUFFER)
                           )  # fmt: skip

        self.riding, self.whole = judging(self.riding), judging(self.whole)

    def sound(self, field: Any, values: Values) -> bool:
        return bool(np.isfinite(values).all())

    def whole_sound(self, field: Any, values: Values) -> bool:
        return bool(np.isfinite(values).all())


class LooksForNaN(_LooksForItself):
    """An infinity is a number."""

    def sound(self, field: Any, values: Values) -> bool:
        return not bool(np.isnan(values).any())


class LooksAtFloat32(_LooksForItself):
    """Other dtypes are seldom."""

    def sound(self, field: Any, values: Values) -> bool:
        return field.entry.dtype != "float32" or super().sound(field, values)


class LooksAtTheSum(_LooksForItself):
    """A sum is finite if all of it is; that it may be infinite although all of it is finite does not come to mind."""

    def sound(self, field: Any, values: Values) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(values.sum()))


class LooksAtParameters(_LooksForItself):
    """What overflows in a buffer is seen by nobody."""

    def whole_sound(self, field: Any, values: Values) -> bool:
        return field.entry.cls != EntryClass.PARAM or super().whole_sound(field, values)


class FlushesSubnormals(Plain):
    """What is smaller than the smallest normal number is 0, as in a processor that was told to be fast."""

    def _mean(self, movers: list[int]) -> memoryview:
        made: memoryview = super()._mean(movers)
        for field in self.riding.fields:
            if field.entry.dtype == "float32" and field.nbytes:
                values = np.frombuffer(made[field.offset :][: field.nbytes], "<f4")
                values[np.abs(values) < np.finfo(np.float32).tiny] = 0
        return made


class TellsTheMass(Plain):
    """Steps are what the contributions weigh: true as long as gamma is 1."""

    def scatter(self, rank: int) -> Scattered:
        result, blocks = super().scatter(rank)
        total = round(self.round.divisor(self.gamma)) if result.total_steps else 0
        return attrs.evolve(result, total_steps=total), blocks


class DigestsWhatStays(Plain):
    """Names the bits of the last consensus when there is no new one."""

    def reduce(self) -> Reduced:
        reduced: Reduced = super().reduce()
        stays = isinstance(reduced, RoundReduced) and not reduced.realized and not reduced.refused
        return attrs.evolve(reduced, digest=digest(self.consensus)) if stays and self.consensus else reduced


# --- many ranks


class CountsInFloat32(Plain):
    """Counts steps as it counts everything."""

    def scatter(self, rank: int) -> Scattered:
        result, blocks = super().scatter(rank)
        return attrs.evolve(result, total_steps=int(np.float32(result.total_steps))), blocks


class HasRoomFor64(Plain):
    """Who is in the sum is a bit of one word."""

    def _mean(self, movers: list[int]) -> memoryview:
        word = sum(1 << rank for rank in movers) & 0xFFFF_FFFF_FFFF_FFFF
        made: memoryview = super()._mean([rank for rank in movers if word >> rank & 1])
        return made


class SumsASet(Plain):
    """Who is in the sum is a set, and comes in the order of a set: up to eight ranks or so that is ascending."""

    def _mean(self, movers: list[int]) -> memoryview:
        made: memoryview = super()._mean(list(set(movers)))
        return made


class SumsInATree(Plain):
    """Two and two, and then the sums two and two: for three ranks that is one after the other."""

    def _mean(self, movers: list[int]) -> memoryview:
        made = memoryview(bytearray(self.riding.nbytes))
        for field in self.riding.fields:
            if not field.nbytes:
                continue
            where = slice(field.offset, field.offset + field.nbytes)
            param = field.entry.cls == EntryClass.PARAM
            weights = [mass(self.round.steps(rank), self.gamma) if param else 1.0 for rank in movers]
            parts = [widen(self.shipped[rank][where], field.entry.dtype) for rank in movers]
            wide = parts[0].dtype.type
            with np.errstate(over="ignore", invalid="ignore"):
                sums = [part * wide(weight) for part, weight in zip(parts, weights, strict=True)]
                while len(sums) > 1:
                    pairs = [sums[at] + sums[at + 1] for at in range(0, len(sums) - 1, 2)]
                    sums = [*pairs, *sums[len(pairs) * 2 :]]
                narrow(sums[0] / wide(sum(weights)), field.entry.dtype, made[where])
        return made
