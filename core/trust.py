"""What a step of each rank costs: the trust windows of the cadence balancer (B-4).

A reading is what one window cost, per batch that was really run. The last few readings of a rank are its trust window;
their plain mean is the smoothed cost, by which shares are counted. The mean is worked out when a reading comes, since
one report asks for it several times. Who brings no reading for so many reports in a row is unknown again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import attrs

from .values import state

__all__ = ["MISS_LIMIT", "TRUST_WINDOW", "TrustWindows"]

TRUST_WINDOW = 5
MISS_LIMIT = 5


@state
class TrustWindows:
    """Readings of each rank in milliseconds per step, the oldest first, and what follows from them: `misses`, reports
    in a row without a reading, and the means, 0 where a cost is unknown."""

    readings: dict[int, list[float]] = attrs.field(factory=dict)
    misses: dict[int, int] = attrs.field(factory=dict)
    means: dict[int, float] = attrs.field(factory=dict)

    def put(self, rank: int, readings: list[float]) -> None:
        """From here on these are the readings of the rank; none: it is unknown."""
        self.readings[rank], self.misses[rank] = readings, 0
        self.means[rank] = _mean(readings) if readings else 0.0

    def of(self, ranks: Iterable[int]) -> dict[int, float]:
        """The means of these ranks, which are all known here."""
        means = self.means
        return {rank: means[rank] for rank in ranks}

    def take(self, feed: Mapping[int, tuple[float, int]]) -> None:
        """Fold in one window: for each rank its cost and its batches (B-4.1)."""
        known, misses, means = self.readings, self.misses, self.means
        for rank, (cost, batches) in feed.items():
            reading = cost / batches if batches > 0 and cost < math.inf else 0.0
            if reading > 0:
                known[rank] = readings = [*known[rank][1 - TRUST_WINDOW :], reading]
                misses[rank], means[rank] = 0, _mean(readings)
                continue
            self.misses[rank] += 1
            if self.silent(rank):
                self.readings[rank], self.means[rank] = [], 0.0

    def silent(self, rank: int) -> bool:
        """Whether nothing it once said counts any more (B-4.1, B-4.3)."""
        return self.misses[rank] >= MISS_LIMIT


def _mean(readings: list[float]) -> float:
    """No mean lies above its largest reading: the bound keeps a sum that overflows finite. The newest is asked first,
    because it answers most of the time."""
    mean = sum(readings) / len(readings)
    return mean if mean <= readings[-1] else min(mean, max(readings))
