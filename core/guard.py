"""Convergence guards: do the ranks drift apart faster than averaging pulls them together?

Between two averages every rank walks its own way. How far each walked, relative to the size of the consensus, is its
*divergence*. A guard looks at one number per cycle, the largest divergence of the cohort, and answers with a verdict.
The verdict says nothing about how: the balancer's seam decides what suppressing growth or nudging down does (B-12).

Two guards ship, and one that does nothing. `LevelGuard` asks whether the divergence is both high and rising; it is
cheap to trust and never shortens a window. `GrowthGuard` estimates the exponential rate at which divergence grows per
local step, as one estimates a Lyapunov exponent, and may nudge.

A guard is pure and sees realized cycles only. A divergence that is no finite number, or negative, reads like a missing
one: as 0. A rank whose parameters are not finite is refused by the data plane long before (R-4); here one such number
would only poison an average for the rest of the run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import attrs

from .cadence_inputs import NudgeDown, Stable, SuppressGrowth, Verdict
from .named import is_target, made, named
from .values import state, value

if TYPE_CHECKING:
    from .config import Config

__all__ = [
    "GrowthGuard",
    "Guard",
    "GuardInput",
    "GuardTelemetry",
    "LevelGuard",
    "NoGuard",
    "chosen",
    "cosine",
    "default_threshold",
    "telemetry",
]

LEVEL_WINDOW = 5
LEVEL_RISE = 3
LEVEL_THRESHOLD = 0.01
OVERWRITE_THRESHOLD = 0.05
BLEND_THRESHOLD = 0.3

DIVERGENCE_FLOOR = 1e-8
GROWTH_KEEP = 0.9
GROWTH_NEW = 0.1
SOFT_GROWTH = 1e-3
HARD_GROWTH = 1e-2
GROWTH_EVENTS = 3
GROWTH_NUDGE = 0.5

NORM_FLOOR = 1e-10


@value(kw_only=True)
class GuardInput:
    """What one realized cycle showed (B-30).

    `divergences` maps each rank to `|pre - post| / |post|` of its parameters (R-16); a missing one reads as 0.
    `pre_norms` are there for all ranks or None, `post_norm` is the norm of the consensus or None. `k_used` is the sum
    of the merged steps of the cohort, `k_max` the largest number that one rank merged.
    """

    divergences: Mapping[int, float] = attrs.field(hash=False)
    k_used: int
    k_max: int
    pre_norms: Mapping[int, float] | None = attrs.field(default=None, hash=False)
    post_norm: float | None = None

    @functools.cached_property
    def signal(self) -> float:
        """D, the largest divergence of the cohort; 0 without any. Guard and timeline ask for it several times."""
        return max([d for d in self.divergences.values() if 0 < d < math.inf], default=0.0)


class Guard(Protocol):
    """A convergence guard. Any object of this shape may be supplied; one that raises counts as Stable (C-13).

    `reports_telemetry` says whether its cycles show up as `GuardTelemetry` on the timeline. A class attribute `claims`
    may name what `paceline.core.conformance.policies` is to test.
    """

    @property
    def reports_telemetry(self) -> bool: ...

    def observe(self, cycle: GuardInput) -> Verdict:
        """Look at one realized cycle and judge."""
        ...

    def saved(self) -> dict[str, Any]:
        """The history, ready for JSON (B-16)."""
        ...

    def restore(self, saved: Mapping[str, Any]) -> bool:
        """Take over a history; False, and nothing changed, if it is not one of this guard."""
        ...


@state
class LevelGuard:
    """Suppresses growth while the divergence is above `threshold` and has risen three cycles in a row (B-33).

    It never nudges (I64). `default_threshold` says which threshold suits which adoption.
    """

    reports_telemetry: ClassVar[bool] = True
    claims: ClassVar[tuple[str, ...]] = ("free_of_world",)

    threshold: float = LEVEL_THRESHOLD
    recent: list[float] = attrs.field(init=False, factory=list)

    def observe(self, cycle: GuardInput) -> Verdict:
        self.recent = [*self.recent[1 - LEVEL_WINDOW :], cycle.signal]
        if len(self.recent) < LEVEL_RISE:
            return Stable()
        first, second, last = self.recent[-LEVEL_RISE:]
        return SuppressGrowth() if first < second < last and last > self.threshold else Stable()

    def saved(self) -> dict[str, Any]:
        return {"guard": "level", "recent": list(self.recent)}

    def restore(self, saved: Mapping[str, Any]) -> bool:
        recent = saved.get("recent")
        if saved.get("guard") != "level" or not isinstance(recent, list) or not all(map(_is_reading, recent)):
            return False
        self.recent = [float(divergence) for divergence in recent[-LEVEL_WINDOW:]]
        return True


@state
class GrowthGuard:
    """Watches the growth rate of the divergence per local step (B-34).

    The rate between two cycles is `ln(D_t / D_before) / k_max`, smoothed by an exponential average with the start-up
    bias taken out as Adam does (Kingma and Ba, 2015). Above `soft` for three cycles it suppresses growth, above `hard`
    for three it nudges by a half; an infinite `hard` switches the nudge off. Time is counted in steps of one rank and
    not of the cohort, so that the verdict does not depend on how many ranks train (I64).
    """

    reports_telemetry: ClassVar[bool] = True
    claims: ClassVar[tuple[str, ...]] = ("free_of_world", "nudges")

    soft: float = SOFT_GROWTH
    hard: float = HARD_GROWTH
    previous: float | None = attrs.field(init=False, default=None)
    average: float = attrs.field(init=False, default=0.0)
    rates: int = attrs.field(init=False, default=0)
    soft_streak: int = attrs.field(init=False, default=0)
    hard_streak: int = attrs.field(init=False, default=0)

    def observe(self, cycle: GuardInput) -> Verdict:
        rate = self._smoothed_rate(cycle)
        self.soft_streak = self.soft_streak + 1 if rate > self.soft else 0
        self.hard_streak = self.hard_streak + 1 if rate > self.hard else 0
        if self.hard_streak >= GROWTH_EVENTS:
            self.hard_streak = 0
            return NudgeDown(GROWTH_NUDGE)
        if self.soft_streak >= GROWTH_EVENTS:
            self.soft_streak = 0
            return SuppressGrowth()
        return Stable()

    def _smoothed_rate(self, cycle: GuardInput) -> float:
        """The smoothed rate after this cycle; minus infinity if the cycle gives none, which breaks both streaks."""
        before, now = self.previous, cycle.signal
        self.previous = now if now > DIVERGENCE_FLOOR else None
        if before is None or self.previous is None or cycle.k_max <= 0:
            return -math.inf
        # A difference of logarithms, because the ratio of two finite divergences may overflow.
        rate = (math.log(now) - math.log(before)) / cycle.k_max
        self.average = GROWTH_KEEP * self.average + GROWTH_NEW * rate
        self.rates += 1
        return self.average / (1 - GROWTH_KEEP**self.rates)

    def saved(self) -> dict[str, Any]:
        return {
            "guard": "growth",
            "previous": self.previous,
            "average": self.average,
            "rates": self.rates,
            "soft_streak": self.soft_streak,
            "hard_streak": self.hard_streak,
        }

    def restore(self, saved: Mapping[str, Any]) -> bool:
        previous, average = saved.get("previous"), saved.get("average")
        counters = [saved.get(name) for name in ("rates", "soft_streak", "hard_streak")]
        if (
            saved.get("guard") != "growth"
            or not (previous is None or (_is_reading(previous) and previous > DIVERGENCE_FLOOR))
            or not (isinstance(average, int | float) and math.isfinite(average))
            or not all(isinstance(counter, int) and counter >= 0 for counter in counters)
        ):
            return False
        self.previous, self.average = previous, float(average)
        self.rates, self.soft_streak, self.hard_streak = (saved[n] for n in ("rates", "soft_streak", "hard_streak"))
        return True


@state
class NoGuard:
    """Always Stable, and silent on the timeline (B-33)."""

    reports_telemetry: ClassVar[bool] = False
    claims: ClassVar[tuple[str, ...]] = ("free_of_world",)

    def observe(self, cycle: GuardInput) -> Verdict:
        return Stable()

    def saved(self) -> dict[str, Any]:
        return {"guard": "none"}

    def restore(self, saved: Mapping[str, Any]) -> bool:
        return saved.get("guard") == "none"


def default_threshold(*, blends: bool) -> float:
    """LevelGuard's threshold by the way a consensus is adopted (B-33).

    Blending (EASGD) keeps the ranks apart on purpose, by about 0.1; a floor below that standing spread would read it
    as divergence for ever.
    """
    return BLEND_THRESHOLD if blends else OVERWRITE_THRESHOLD


@value
class GuardTelemetry:
    """Numbers for people, derived from one cycle (B-31); no verdict depends on them.

    `cosines[r]` is between -1 and 1, or None where it has no meaning; `shifts[r]` is `pre - post` of the norms. Both
    are empty without norms.
    """

    divergence: float
    cosines: Mapping[int, float | None] = attrs.field(hash=False)
    shifts: Mapping[int, float] = attrs.field(hash=False)


def telemetry(cycle: GuardInput) -> GuardTelemetry:
    """Divergence, cosines and magnitude shifts of one cycle, ranks ascending (B-31)."""
    cosines: dict[int, float | None] = {}
    shifts: dict[int, float] = {}
    if cycle.pre_norms is not None and cycle.post_norm is not None:
        post_norm = cycle.post_norm
        for rank, before in sorted(cycle.pre_norms.items()):
            cosines[rank] = cosine(before, post_norm, cycle.divergences.get(rank, 0.0))
            shifts[rank] = before - post_norm
    return GuardTelemetry(cycle.signal, cosines, shifts)


def cosine(pre_norm: float, post_norm: float, divergence: float) -> float | None:
    """Cosine between a rank's parameters and the consensus, from three norms alone by the law of cosines (B-31).

    None where the consensus has no direction (`post_norm` below 1e-10) or the numbers are too large or not finite; 0
    where the rank's parameters have none.
    """
    if post_norm < NORM_FLOOR:
        return None
    if pre_norm < NORM_FLOOR:
        return 0.0
    distance = divergence * post_norm
    cosine_value = (pre_norm * pre_norm + post_norm * post_norm - distance * distance) / (2 * pre_norm * post_norm)
    if -1.0 <= cosine_value <= 1.0:
        return cosine_value
    return math.copysign(1.0, cosine_value) if math.isfinite(cosine_value) else None


def _is_reading(number: object) -> bool:
    return isinstance(number, int | float) and 0 <= number < math.inf


def chosen(config: Config) -> Guard:
    """The guard that a config names, or the object it holds (B-33). Raises `ConfigError` for a `module:factory` that
    does not give one."""
    guard, threshold = config.guard, config.guard_threshold
    if not isinstance(guard, str):
        given: Guard = guard
        return given
    if is_target(guard):
        own: Guard = made(named(guard, "guard"), f"guard {guard!r}", Guard)
        return own
    if guard == "growth":
        return GrowthGuard()
    if guard == "none":
        return NoGuard()
    blends = config.alpha is not None and config.alpha < 1.0  # with 1 it overwrites
    return LevelGuard(default_threshold(blends=blends) if threshold is None else threshold)
