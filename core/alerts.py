"""Equal alerts are one, with a count (protocol O-2).

What fails once fails, as a rule, many times in a row; a person has to see that it does, not every time. An alert is
told at once. Further ones of its kind and path are counted, and told as one when it was said 10 s ago, with the newest
text and the count so far. Once 10 s have passed without another one it is forgotten.

At most 200 alerts are remembered: one more, and the oldest is forgotten, after its count is told.
"""

from __future__ import annotations

import attrs

from .effects import Alert
from .values import state

__all__ = ["FOLD_S", "LIVE_LIMIT", "Alerts", "Counted"]

FOLD_S = 10.0
"""Equal alerts within this time are one (O-2). For people, so `time_scale` leaves it."""
LIVE_LIMIT = 200
"""Alerts that are remembered (O-2)."""

Counted = tuple[Alert, int]
"""An alert, and how often it was given since it was told first."""


@state
class _Live:
    """An alert that was told at `told_at`, of `told` ones; `count` were given since, the newest of them `alert`."""

    alert: Alert
    told_at: float
    count: int = 1
    told: int = 1


@state
class Alerts:
    """See the module. Pure: time is an argument, which never goes back."""

    live: dict[tuple[str, str], _Live] = attrs.field(factory=dict)

    def take(self, alert: Alert, now: float) -> list[Counted]:
        """One alert; gives what is to be told now, in order."""
        due = self.due(now)
        key = alert.kind, alert.path
        known = self.live.get(key)
        if known is not None:
            known.alert, known.count = alert, known.count + 1
            return due
        if len(self.live) >= LIVE_LIMIT:
            due += self._untold(self.live.pop(next(iter(self.live))))
        self.live[key] = _Live(alert, now)
        return [*due, (alert, 1)]

    def due(self, now: float) -> list[Counted]:
        """What was counted and is to be told now."""
        told: list[Counted] = []
        for key, known in list(self.live.items()):  # in the order of `told_at`
            if now < known.told_at + FOLD_S:
                break
            del self.live[key]
            if known.count > known.told:  # it goes on
                told += self._untold(known)
                self.live[key] = _Live(known.alert, now, known.count, known.count)
        return told

    def close(self) -> list[Counted]:
        """The end of the run: what was counted and is not told yet."""
        told = [counted for known in self.live.values() for counted in self._untold(known)]
        self.live.clear()
        return told

    @staticmethod
    def _untold(known: _Live) -> list[Counted]:
        return [(known.alert, known.count)] if known.count > known.told else []
