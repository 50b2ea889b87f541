"""The learning-rate meta-controller: shorten the window when the optimizer's regime changes.

A guard sees only divergence. Two things it cannot see make a window that was right yesterday too long today. The
learning rate falls off a *cliff* (a step schedule): what the ranks learn from now on is finer than the drift a long
window allows. Or the guard complains *cycle after cycle*, which no single verdict shows. The controller watches the
rate, the anchor and the verdicts of the last cycles and answers with a nudge, or with nothing (B-40).

How hard it nudges depends on where the anchor stands against its own recent mean: an anchor that has just grown is
pushed down harder than one that has already come down (B-43). It is asked once per cycle, after the guard has judged
and before that verdict is applied, so that the nudge goes through the balancer's seam first (C-15.4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import attrs

from .cadence import CadencePhase
from .cadence_inputs import NudgeDown, Stable, Verdict
from .values import state

__all__ = ["Meta", "MetaController"]

RATE_WINDOW = 3
ANCHOR_WINDOW = 5
VERDICT_WINDOW = 5
CLIFF_DROP = 0.3
CLIFF_BASE = 0.5
SUSTAINED = {CadencePhase.WARMUP: (5, 0.3), CadencePhase.STABLE: (3, 0.5), CadencePhase.MATURE: (2, 0.7)}
"""Per phase: how many complaints in a row count as sustained, and the base factor then (B-42). The verdict window is at
least the largest of them, or the watcher would be silently off in Warmup."""
FACTOR_MIN, FACTOR_MAX = 0.1, 0.95
SETTLED_TREND = 0.10


class Meta(Protocol):
    """A meta-controller. Any object of this shape may be supplied; one that raises has not nudged (C-13). A class
    attribute `claims` names what it can do, and the conformance kit holds it to that."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        """Take in one realized cycle and say whether to nudge; see `MetaController.observe`."""
        ...

    def saved(self) -> dict[str, Any]:
        """The history, ready for JSON; a snapshot keeps it."""
        ...

    def restore(self, saved: Mapping[str, Any]) -> bool:
        """Take over a history; False, and nothing changed, if it is not one of this controller."""
        ...


@state
class MetaController:
    """Windows over learning rate, anchor and verdicts; one observation per cycle (B-40)."""

    claims: ClassVar[tuple[str, ...]] = ("cliffs", "sustained")

    rates: list[float] = attrs.field(init=False, factory=list)
    anchors: list[int] = attrs.field(init=False, factory=list)
    complaints: list[bool] = attrs.field(init=False, factory=list)

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        """Take in one cycle and say whether to nudge.

        `lr` is the rate of the lowest rank that has reported one, None if nobody has; a rate that is negative or no
        finite number is none. `anchor` is the one in force before the guard's verdict, `verdict` the guard's of this
        cycle. In phase Probe, or without a rate, the cycle is remembered and nothing is done.
        """
        self.anchors = [*self.anchors[1 - ANCHOR_WINDOW :], anchor]
        self.complaints = [*self.complaints[1 - VERDICT_WINDOW :], not isinstance(verdict, Stable)]
        if lr is None or not math.isfinite(lr) or lr < 0:
            return None
        self.rates = [*self.rates[1 - RATE_WINDOW :], lr]
        if phase == CadencePhase.PROBE:
            return None
        bases = []
        if self._cliff():
            bases.append(CLIFF_BASE)
        length, base = SUSTAINED[phase]
        if len(self.complaints) >= length and all(self.complaints[-length:]):
            bases.append(base)
        if not bases:
            return None
        return NudgeDown(_kept(math.prod(_kept(base - (1 - base) * self.trend) for base in bases)))

    def saved(self) -> dict[str, Any]:
        return {
            "meta": "windows", "rates": list(self.rates), "anchors": list(self.anchors),
            "complaints": list(self.complaints),
        }  # fmt: skip

    def restore(self, saved: Mapping[str, Any]) -> bool:
        if saved.get("meta") != "windows":
            return False
        kept: list[list[Any]] = []
        for name, usable in (("rates", _is_rate), ("anchors", _is_anchor), ("complaints", _is_answer)):
            window = saved.get(name)
            if not isinstance(window, list) or not all(map(usable, window)):
                return False
            kept.append(window)
        rates, anchors, complaints = kept
        self.rates = [float(rate) for rate in rates[-RATE_WINDOW:]]
        self.anchors, self.complaints = anchors[-ANCHOR_WINDOW:], complaints[-VERDICT_WINDOW:]
        return True

    @property
    def trend(self) -> float:
        """Where the anchor stands against the mean of its window, relative to it; 0 with fewer than two (B-43)."""
        if len(self.anchors) < 2:
            return 0.0
        mean = sum(self.anchors) / len(self.anchors)
        return (self.anchors[-1] - mean) / mean

    @property
    def settled(self) -> bool:
        """Whether the anchor has come to rest; for people, nothing depends on it (B-43)."""
        return abs(self.trend) < SETTLED_TREND

    def _cliff(self) -> bool:
        """Whether the rate fell by more than three tenths between the last two cycles (B-41); a rising one never."""
        if len(self.rates) < 2:
            return False
        before, now = self.rates[-2:]
        return before > 0 and (before - now) / before > CLIFF_DROP


def _is_rate(thing: object) -> bool:
    return isinstance(thing, int | float) and 0 <= thing < math.inf


def _is_anchor(thing: object) -> bool:
    return isinstance(thing, int) and thing >= 1


def _is_answer(thing: object) -> bool:
    return isinstance(thing, bool)


def _kept(factor: float) -> float:
    return max(FACTOR_MIN, min(factor, FACTOR_MAX))
