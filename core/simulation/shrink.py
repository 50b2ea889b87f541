"""The shortest schedule that still breaks the same invariant, by delta debugging.

    small = shrink(outcome.schedule, codec)

A schedule that lost some of its actions is still one: what cannot happen any more is left out (`play` without strict).
So the search takes away ever smaller stretches of it, keeps what still fails in the same way, and ends when no single
action can go. Then it tries the setup: fewer ranks, fewer samples, one part per contribution. What it gives holds only
actions that happened, up to the one that broke the invariant.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ..errors import PacelineError
from ..wire import PayloadCodec
from .schedule import Schedule, Timed, play
from .setup import Setup
from .violation import Violation
from .world import World

__all__ = ["shrink"]

MOST_RUNS = 3_000
"""Replays that a search may take; what it has by then is good enough."""


def shrink(schedule: Schedule, codec: PayloadCodec | None = None, most: int = MOST_RUNS) -> Schedule:
    """A schedule that breaks `schedule.breaks` too and from which nothing can be taken away. One that does not break it
    comes back as it is."""
    return _Search(schedule, codec, most).run()


class _Search:
    def __init__(self, schedule: Schedule, codec: PayloadCodec | None, most: int) -> None:
        self.best = schedule
        self.codec = codec
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
        for change in ({"ranks": self.best.setup.ranks - 1}, {"samples": self.best.setup.samples // 2},
                       {"blocks": 1}, {"callbacks": ()}, {"stateful": False}):  # fmt: skip
            try:
                setup = attrs.evolve(self.best.setup, **change)
            except PacelineError:
                continue
            if setup != self.best.setup:
                self._try(setup, self.best.actions)

    def _try(self, setup: Setup, actions: Iterable[Timed]) -> bool:
        """Whether these actions break the invariant; if so they are the best so far, as far as they happened."""
        self.left -= 1
        happened: list[Timed] = []
        world = World(setup, codec=self.codec if setup.wire else None)
        try:
            for timed in actions:
                happened.append(timed)
                if not any(True for _ in play(world, (timed,), strict=False)):
                    happened.pop()
            if self.best.dullest:
                for _ in play(world, (), dullest=True):
                    pass
        except Violation as violation:
            if violation.name == self.best.breaks:
                self.best = attrs.evolve(self.best, setup=setup, actions=tuple(happened))
                return True
        except PacelineError:
            pass
        return False
