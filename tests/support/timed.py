"""A cohort in virtual time that passes as it does on machines: steps of any length, links with a latency.

    run = Timed((0.5, 12.0), ranks=2, policy="sync")
    run.strike_at(30.0, "pause", 1)
    run.until(lambda: run.cohort.co.cycle.version == 3)

`Clockwork` makes everything happen, to the second that the pace says (nothing is drawn). What the coordinator told and
was told is kept with its second, from the beginning of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core.simulation.action import COORDINATOR, act
from paceline.core.simulation.clockwork import Clockwork, Pace
from paceline.core.simulation.dice import Dice
from paceline.core.simulation.world import Step

from .cohort import Cohort

MOST_STEPS = 40_000
"""Actions of a run; one that needs more does not end."""


class Even(Dice):
    """Dice that always say the least: a step takes the very time that the pace gives it."""

    def unit(self) -> float:
        return 0.0


class Timed:
    """See the module. `step_s` is what a step takes at each rank, `pace` what else takes how long; the rest goes to the
    cohort. `heard` are the reports that the coordinator was given, `told` its effects, each with its second."""

    def __init__(self, step_s: tuple[float, ...], pace: dict[str, float] | None = None, **made: Any) -> None:
        self.cohort = Cohort(**made)
        self.began = self.cohort.now
        self.heard: list[tuple[float, Any]] = []
        self.told: list[tuple[float, Any]] = []
        quick = {"copy_s": 0.05, "part_s": 0.05, "reduce_s": 0.05}
        self.clockwork = Clockwork(self.cohort, Pace(step_s=step_s, **{**quick, **(pace or {})}), Even(1), self._hear)

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.clockwork.now - self.began

    def _hear(self, step: Step) -> None:
        for turn in step.turns:
            if turn.who == COORDINATOR:
                if isinstance(turn.event, ev.Received):
                    self.heard.append((step.at - self.began, turn.event.message))
                self.told += [(step.at - self.began, effect) for effect in turn.effects]

    def strike_at(self, second: float, kind: str, who: int = COORDINATOR, amount: int = 0) -> None:
        """At that second of the run this action happens, to the process of that number."""
        self.clockwork.at(self.began + second, lambda: self.strike(kind, who, amount))

    def strike(self, kind: str, who: int = COORDINATOR, amount: int = 0) -> None:
        """It happens now."""
        self.clockwork.do(act(kind, who, amount))

    def until(self, done: Callable[[], Any]) -> None:
        """Until `done()` holds; a run that ends before, or comes to rest, is an error."""
        for _ in range(MOST_STEPS):
            if done():
                return
            assert not self.cohort.over and self.clockwork.advance(), f"it ended before: {self.cohort.finish}"
        raise AssertionError(f"it never came to that: {self.cohort.co.explain()}")

    def until_second(self, second: float) -> None:
        """Up to that second of the run."""
        reached: list[bool] = []
        self.clockwork.at(self.began + second, lambda: reached.append(True))
        self.until(lambda: reached)

    def run(self) -> fx.Finish:
        """To the end of the run."""
        self.until(lambda: self.cohort.over)
        assert self.cohort.finish is not None
        return self.cohort.finish

    def when(self, kind: type, **fields: Any) -> list[float]:
        """The seconds at which the coordinator was given a report of this kind, with these fields."""
        return [at for at, report in self.heard if _fits(report, kind, fields)]

    def sent(self, kind: type, **fields: Any) -> list[float]:
        """The seconds at which it sent a message of this kind, with these fields."""
        return [at for at, effect in self.told if isinstance(effect, fx.Send) and _fits(effect.message, kind, fields)]

    def events(self, name: str) -> list[tuple[float, dict[str, Any]]]:
        """The timeline events of this name, each with its second."""
        return [(at, effect.facts) for at, effect in self.told if isinstance(effect, fx.Emit) and effect.name == name]


def _fits(message: Any, kind: type, fields: dict[str, Any]) -> bool:
    return isinstance(message, kind) and all(getattr(message, name) == value for name, value in fields.items())
