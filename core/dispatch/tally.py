"""The metrics of an epoch, from the chunks of its ranks and from what of them was merged (K-20).

A chunk tells its metrics when it is trained; what a consensus contains is known later, and of a rank that died or was
refused it may be less. So the two are kept apart: what a rank says of its chunks is summed, and how many picks of it
were covered weighs it. Each pick is covered once (I42), so each counts once, at the rank where it was finally trained:

    samples(r)     = covered picks of r                           the cohort's: all picks of the epoch
    loss(r)        = sum(avg_loss * samples) / sum(samples)       over the chunks of r that have one
    loss           = sum(loss(r) * samples(r)) / sum(samples(r))  over the ranks that have one
    scalar         = sum(sum_r * part(r)) / sum(count_r * part(r))   part(r) = covered / told picks, at most 1
    throughput(r)  = 1000 * told picks / share_complete_ms        without the idle time at a barrier
    epoch_ms       = the longest sum of durations of a rank, or the age of the pool

A value without data is absent, never zero, and so is one that is no finite number (C-20, O-3).
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

import attrs

from ..messages import Metrics
from ..values import state, value

__all__ = ["LONGEST_NAME", "MOST_SCALARS", "EpochTally", "RankTally", "Spread"]

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
class RankTally:
    """What one rank said of its chunks, summed: durations in milliseconds, `scalars` as (sum, count); and the picks and
    batches of it that a consensus contains."""

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

    def add(self, metrics: Metrics, names: Container[str]) -> None:
        """One more chunk; of its scalars those with these names."""
        self.told += metrics.samples
        self.epoch_ms += _finite(metrics.epoch_ms)
        self.share_ms += _finite(metrics.share_complete_ms)
        self.compute_ms += _finite(metrics.compute_only_ms)
        self.starve_ms += _finite(metrics.data_starve_ms)
        if metrics.avg_loss is not None and math.isfinite(metrics.avg_loss):
            self.loss_sum += metrics.avg_loss * metrics.samples
            self.loss_samples += metrics.samples
        for name, (total, count) in metrics.scalars.items():
            if name in names and math.isfinite(total):
                before = self.scalars.get(name, (0.0, 0.0))
                self.scalars[name] = before[0] + total, before[1] + count

    @property
    def loss(self) -> float | None:
        """The mean loss of its chunks."""
        return _finite_or_none(self.loss_sum / self.loss_samples) if self.loss_samples else None

    @property
    def throughput(self) -> float | None:
        """Samples per second of its own work."""
        return _finite_or_none(1000 * self.told / self.share_ms) if self.share_ms > 0 else None

    @property
    def part(self) -> float:
        """How much of what it told was finally trained by it."""
        return min(1.0, self.covered / self.told) if self.told else 0.0


@state
class EpochTally:
    """An open epoch, by rank. `opened_at` is the monotonic second at which its pool began (K-20), `parts` says how many
    of its sub-epoch records are out (O-5), `names` are those of its scalars."""

    opened_at: float = 0.0
    ranks: dict[int, RankTally] = attrs.field(factory=dict)
    divergence: Spread | None = None
    parts: int = 0
    names: list[str] = attrs.field(factory=list)

    def add(self, rank: int, metrics: Metrics) -> None:
        """One more chunk of a rank. The first `MOST_SCALARS` names are kept, all others are dropped."""
        if metrics.scalars:
            fresh = [name for name in metrics.scalars if name not in self.names and len(name) <= LONGEST_NAME]
            self.names += fresh[: max(0, MOST_SCALARS - len(self.names))]
        self.of(rank).add(metrics, self.names)

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
            "avg_loss": _mean([(tally.loss, tally.covered) for tally in seen]),
            "epoch_ms": max([tally.epoch_ms for tally in seen], default=0.0) or (now - self.opened_at) * 1000,
            "throughput": sum(speeds) if speeds else None,
        }

    def scalars(self) -> dict[str, float | None]:
        """The means of what scripts count by themselves."""
        seen = self._ascending()
        return {name: _ratio([(tally.scalars.get(name, (0.0, 0.0)), tally.part) for tally in seen])
                for name in sorted(self.names)}  # fmt: skip

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


def _mean(weighed: list[tuple[float | None, int]]) -> float | None:
    known = [(number, weight) for number, weight in weighed if number is not None and weight]
    whole = sum(weight for _, weight in known)
    return _finite_or_none(sum(number * weight for number, weight in known) / whole) if whole else None


def _ratio(sums: list[tuple[tuple[float, float], float]]) -> float | None:
    count = sum(count * part for (_, count), part in sums)
    return _finite_or_none(sum(total * part for (total, _), part in sums) / count) if count > 0 else None
