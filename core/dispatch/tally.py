"""The metrics of an epoch, from the chunks of its ranks and from what of them was merged (K-20).

A chunk tells its metrics when it is trained; what a consensus contains is known earlier or later, and of a rank that
died or was refused it may be less. So what is said of a chunk waits for its batches, and counts as far as they were
covered: a chunk that was refused, or trained by a rank that died before the average, is in no number. Each pick is
covered once (I42), so each counts once, where it was finally trained:

    samples(r)     = covered picks of r                           the cohort's: all picks of the epoch
    loss           = sum(avg_loss(c) * covered(c)) / sum(covered(c))   over the chunks c that have one, of r or of all
    scalar         = sum(sum(c) * part(c)) / sum(count(c) * part(c))   part(c) = covered / told picks of c, at most 1
    throughput(r)  = 1000 * told picks / share_complete_ms        without the idle time at a barrier
    epoch_ms       = the longest sum of durations of a rank, or the age of the pool

A value without data is absent, never zero, and so is one that is no finite number (C-20, O-3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import attrs

from ..messages import Metrics
from ..values import state, value
from .pool import Range, merge_ranges

__all__ = ["LONGEST_NAME", "MOST_SCALARS", "EpochTally", "Picks", "RankTally", "Spread", "Told"]

Picks = Callable[[int, int], int]
"""How many picks of the epoch so many batches from this one on are: the last batch may be short (D-3)."""

MOST_SCALARS, LONGEST_NAME = 256, 128
"""Names of scalars in an epoch, and characters of one: what is told to all ranks has an end, whatever one rank says."""
LONGEST_MS = 1e15
"""Some 30,000 years: sums of shorter durations stay finite."""


@value
class Spread:
    """The largest divergences of the averages of an epoch, summed up (C-15.4)."""

    cycles: int
    least: float
    most: float
    total: float
    last: float


@state
class Told:
    """What a rank said of one chunk: where its batches lie, its picks, the mean loss, scalars as (sum, count); and how
    many of the picks a consensus contains by now."""

    parts: tuple[Range, ...]
    picks: int
    loss: float | None
    scalars: dict[str, tuple[float, float]]
    covered: int = 0

    @property
    def part(self) -> float:
        """How much of it counts."""
        return min(1.0, self.covered / self.picks) if self.picks else 0.0


@state
class RankTally:
    """What one rank said of its chunks: durations in milliseconds, summed; losses and `scalars` (sum, count) of those
    whose batches have all found their end; `waiting` are the other ones, `early` covered batches of chunks that are not
    told yet. And the picks and batches of it that a consensus contains."""

    told: int = 0
    covered: int = 0
    covered_batches: int = 0
    loss_sum: float = 0.0
    loss_samples: int = 0
    epoch_ms: float = 0.0
    share_ms: float = 0.0
    compute_ms: float = 0.0
    starve_ms: float = 0.0
    scalars: dict[str, tuple[float, float]] = attrs.field(factory=dict)
    waiting: list[Told] = attrs.field(factory=list)
    early: list[Range] = attrs.field(factory=list)

    def add(self, metrics: Metrics, names: Container[str], parts: Iterable[Range], picks: Picks) -> None:
        """One more chunk, made of these batches; of its scalars those with these names."""
        self.told += metrics.samples
        self.epoch_ms += _finite(metrics.epoch_ms)
        self.share_ms += _finite(metrics.share_complete_ms)
        self.compute_ms += _finite(metrics.compute_only_ms)
        self.starve_ms += _finite(metrics.data_starve_ms)
        loss = None if metrics.avg_loss is None else _finite_or_none(metrics.avg_loss)
        scalars = {name: (float(total), float(count)) for name, (total, count) in metrics.scalars.items()
                   if name in names and math.isfinite(total)}  # fmt: skip
        chunk = Told(tuple(parts), metrics.samples, loss, scalars)
        self.early = _credit(self.early, chunk, picks)
        self.waiting.append(chunk)

    def cover(self, first: int, count: int, picks: Picks) -> None:
        """So many batches from this one on are in a consensus. What is trained again is of the newer chunk."""
        self.covered += picks(first, count)
        self.covered_batches += count
        runs = [(first, count)]
        for chunk in reversed(self.waiting):
            runs = _credit(runs, chunk, picks)
        self.early += runs

    def settle(self, trained: Sequence[Range], flying: Sequence[Range]) -> None:
        """After an average: of its batches these are trained and may still come into one, these are parts of plans that
        it has. Every other batch has found its end: what of a chunk is not covered now never will be."""
        before, self.waiting = self.waiting, []
        for chunk in before:
            if any(_cut(run, chunk.parts)[0] for run in trained):
                self.waiting.append(chunk)
            else:
                self.loss_sum, self.loss_samples = _losses(self.loss_sum, self.loss_samples, [chunk])
                for name in chunk.scalars:
                    self.scalars[name] = _scalar(self.scalars, name, [chunk])
        if self.early:
            self.early = merge_ranges([piece for run in self.early for piece in _cut(run, flying)[0]])

    @property
    def losses(self) -> tuple[float, int]:
        """The sum of the losses of its covered picks, and how many picks that are."""
        return _losses(self.loss_sum, self.loss_samples, self.waiting)

    @property
    def loss(self) -> float | None:
        """The mean loss of its covered picks."""
        return _quotient(*self.losses)

    def scalar(self, name: str) -> tuple[float, float]:
        """Sum and count of a scalar, as far as its chunks are covered."""
        return _scalar(self.scalars, name, self.waiting)

    @property
    def throughput(self) -> float | None:
        """Samples per second of its own work."""
        return _finite_or_none(1000 * self.told / self.share_ms) if self.share_ms > 0 else None


@state
class EpochTally:
    """An open epoch, by rank. `opened_at` is the monotonic second at which its pool began (K-20), `parts` says how many
    of its sub-epoch records are out (O-5), `names` are those of its scalars."""

    opened_at: float = 0.0
    ranks: dict[int, RankTally] = attrs.field(factory=dict)
    divergence: Spread | None = None
    parts: int = 0
    names: list[str] = attrs.field(factory=list)

    def add(self, rank: int, metrics: Metrics, parts: Iterable[Range], picks: Picks) -> None:
        """One more chunk of a rank, made of these batches. The first `MOST_SCALARS` names are kept, all others are
        dropped."""
        if metrics.scalars:
            fresh = [name for name in metrics.scalars if name not in self.names and len(name) <= LONGEST_NAME]
            self.names += fresh[: max(0, MOST_SCALARS - len(self.names))]
        self.of(rank).add(metrics, self.names, parts, picks)

    def of(self, rank: int) -> RankTally:
        """What is known of a rank."""
        if rank not in self.ranks:
            self.ranks[rank] = RankTally()
        return self.ranks[rank]

    def diverged(self, largest: float) -> None:
        """The largest divergence of one more average (C-15.4)."""
        known = self.divergence or Spread(0, largest, largest, 0.0, largest)
        self.divergence = Spread(known.cycles + 1, min(known.least, largest), max(known.most, largest),
                                 known.total + largest, largest)  # fmt: skip

    def cohort(self, now: float) -> dict[str, float | None]:
        """The view of all ranks together."""
        seen = self._ascending()
        speeds = [speed for tally in seen if (speed := tally.throughput) is not None]
        return {
            "samples": float(sum(tally.covered for tally in seen)),
            "batches": float(sum(tally.covered_batches for tally in seen)),
            "avg_loss": _ratio([tally.losses for tally in seen]),
            "epoch_ms": max([tally.epoch_ms for tally in seen], default=0.0) or (now - self.opened_at) * 1000,
            "throughput": sum(speeds) if speeds else None,
        }

    def scalars(self) -> dict[str, float | None]:
        """The means of what scripts count by themselves."""
        seen = self._ascending()
        return {name: _ratio([tally.scalar(name) for tally in seen]) for name in sorted(self.names)}

    def by_rank(self, share: Mapping[int, float]) -> dict[str, dict[str, float | None]]:
        """The view of each rank, with the share of the work that the schedule gives it (B-15)."""
        return {
            str(rank): {
                "samples": float(tally.covered), "avg_loss": tally.loss, "epoch_ms": tally.epoch_ms,
                "compute_ms": tally.compute_ms, "starve_ms": tally.starve_ms, "throughput": tally.throughput,
                "share": share.get(rank),
            }
            for rank, tally in sorted(self.ranks.items())
        }  # fmt: skip

    def _ascending(self) -> list[RankTally]:
        return [self.ranks[rank] for rank in sorted(self.ranks)]


def _finite(number: float) -> float:
    """A duration; one that is none, or longer than anything lasts, counts nothing."""
    return number if 0 <= number <= LONGEST_MS else 0.0


def _finite_or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _quotient(total: float, count: float) -> float | None:
    return _finite_or_none(total / count) if count > 0 else None


def _ratio(sums: Sequence[tuple[float, float]]) -> float | None:
    return _quotient(sum(total for total, _ in sums), sum(count for _, count in sums))


def _losses(total: float, picks: int, chunks: Iterable[Told]) -> tuple[float, int]:
    """These losses, and those of the chunks, as far as they are covered."""
    for chunk in chunks:
        if chunk.loss is not None:
            total, picks = total + chunk.loss * chunk.covered, picks + chunk.covered
    return total, picks


def _scalar(known: Mapping[str, tuple[float, float]], name: str, chunks: Iterable[Told]) -> tuple[float, float]:
    """What is known of a scalar, and what the chunks say of it, as far as they are covered."""
    total, count = known.get(name, (0.0, 0.0))
    for chunk in chunks:
        told = chunk.scalars.get(name)
        if told is not None:
            total, count = total + told[0] * chunk.part, count + told[1] * chunk.part
    return total, count


def _credit(runs: list[Range], chunk: Told, picks: Picks) -> list[Range]:
    """Count for a chunk what of these covered batches is its; gives the others."""
    if len(runs) == len(chunk.parts) == 1 and runs[0] == chunk.parts[0]:  # as a rule a window is one chunk
        chunk.covered += picks(*runs[0])
        return []
    others = []
    for run in runs:
        own, rest = _cut(run, chunk.parts)
        chunk.covered += sum(picks(*piece) for piece in own)
        others += rest
    return others


def _cut(run: Range, parts: Iterable[Range]) -> tuple[list[Range], list[Range]]:
    """The pieces of a run of batches that lie in one of the parts, and those that lie in none."""
    inside: list[Range] = []
    outside = [run]
    for first, count in parts:
        rest: list[Range] = []
        for low, size in outside:
            start, end = max(low, first), min(low + size, first + count)
            if start >= end:
                rest.append((low, size))
                continue
            inside.append((start, end - start))
            rest += [piece for piece in ((low, start - low), (end, low + size - end)) if piece[1]]
        outside = rest
    return inside, outside
