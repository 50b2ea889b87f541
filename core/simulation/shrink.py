"""The shortest schedule that still breaks the same invariant, or still reaches a mark, by delta debugging.

    small = shrink(outcome.schedule, codec)                     # what broke an invariant
    small = shrink(run.schedule(), codec, mark="a rank died")   # what came upon something worth keeping

A schedule that lost some of its actions is still one: what cannot happen any more is left out (`play` without strict).
So the search takes away ever smaller stretches of it, keeps what still fails in the same way, and ends when no single
action can go. Then it tries the setup: fewer ranks, fewer samples, each knob at its default. What it gives holds only
actions that happened, up to the one that broke the invariant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from ..errors import PacelineError
from .frames import RecordCodec
from .marks import Marks
from .schedule import Schedule, Timed, play
from .setup import Setup
from .violation import Violation
from .world import World

__all__ = ["shrink"]

MOST_RUNS = 3_000
"""Replays that a search may take; what it has by then is good enough."""


def shrink(
    schedule: Schedule, codec: RecordCodec | None = None, *, mark: str | None = None, most: int = MOST_RUNS
) -> Schedule:
    """A schedule that breaks `schedule.breaks` too, or reaches the mark without breaking anything, and from which
    nothing can be taken away. One that does not comes back as it is."""
    return _Search(schedule, codec, mark, most).run()


class _Search:
    def __init__(self, schedule: Schedule, codec: RecordCodec | None, mark: str | None, most: int) -> None:
        self.best = schedule
        self.codec = codec
        self.mark = mark
        self.left = most

    def run(self) -> Schedule:
        if not self._try(self.best.setup, self.best.actions):
            return self.best
        length = None
        while length != len(self.best.actions) and self.left > 0:
            length = len(self.best.actions)
            self._stretches()
            self._setups()
        return self.best

    def _stretches(self) -> None:
        """Take away stretches of half the length, then of a quarter, down to single actions."""
        size = max(1, len(self.best.actions) // 2)
        while self.left > 0:
            start = len(self.best.actions) - size
            while start > -size and self.left > 0:
                actions = self.best.actions
                self._try(self.best.setup, actions[: max(0, start)] + actions[max(0, start) + size :])
                start = min(start, len(self.best.actions)) - size
            if size == 1:
                return
            size //= 2

    def _setups(self) -> None:
        """Try what makes the run itself smaller."""
        first = self.best.setup
        changes: list[dict[str, Any]] = [
            {"ranks": first.ranks - 1}, {"samples": first.samples // 2}, {"blocks": 1}, {"callbacks": ()},
            {"stateful": False}, {"wire": False},
        ]  # fmt: skip
        for change in changes:
            self._smaller(change)
        for name, _ in first.knobs:
            self._smaller({"knobs": {knob: value for knob, value in self.best.setup.knobs if knob != name}})

    def _smaller(self, change: dict[str, Any]) -> None:
        """Try the same actions with another setup."""
        try:
            setup = attrs.evolve(self.best.setup, **change)
        except PacelineError:
            return
        if setup != self.best.setup and self.left > 0:
            self._try(setup, self.best.actions)

    def _try(self, setup: Setup, actions: Iterable[Timed]) -> bool:
        """Whether these actions lead there; if so they are the best so far, as far as they happened."""
        self.left -= 1
        happened: list[Timed] = []
        try:
            there = self._leads_there(setup, actions, happened)
        except Violation as violation:
            there = self.mark is None and violation.name == self.best.breaks
        except PacelineError:  # a setup or an action that is none
            there = False
        if there:
            self.best = attrs.evolve(self.best, setup=setup, actions=tuple(happened))
        return there

    def _leads_there(self, setup: Setup, actions: Iterable[Timed], happened: list[Timed]) -> bool:
        """Play them, noting what happened; True once the mark is reached, and the run goes on well after that."""
        marks, length = Marks(), None
        world = World(setup, codec=self.codec if setup.wire else None)
        world.reached = marks.reach
        for timed in actions:
            happened.append(timed)
            steps = list(play(world, (timed,), strict=False))
            for step in steps:
                marks.watch(world, step)
            if not steps:
                happened.pop()
            elif self.mark is not None and marks.reached[self.mark]:
                length = len(happened)
                break
        if self.best.dullest and (self.mark is None or length is not None):
            for _ in play(world, (), dullest=True):
                pass
        return length is not None
