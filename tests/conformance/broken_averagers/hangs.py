"""Averagers of which a call never comes back. `asked` is how long the kit waits for these."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, ClassVar

from paceline.backends.star import StarAverager
from paceline.core.effects import MakeSessionId, RunCollective
from paceline.core.events import CollectiveDone, CollectiveFailed, RoundAborted, RoundReduced

from .in_place import Sound


class IsNeverMade(StarAverager):
    """The factory waits for what nobody does."""

    asked: ClassVar[dict[str, Any]] = {"check_s": 0.3}

    def __init__(self, *given: Any, **knobs: Any) -> None:
        threading.Event().wait()


class ReducesForEver(StarAverager):
    """Adds until the sum no longer changes, which it always does."""

    asked: ClassVar[dict[str, Any]] = {"check_s": 0.3}

    def reduce(self) -> RoundReduced | RoundAborted:
        total = 0
        while total >= 0:
            total += 1
        return super().reduce()


class LooksForAnId(Sound):  # type: ignore[misc]
    """Draws until the id is a new one, always from the same."""

    asked: ClassVar[dict[str, Any]] = {"check_s": 0.3}

    def make_id(self, order: MakeSessionId) -> bytes:
        uid: bytes = super().make_id(order)
        while uid in {uid}:
            uid = bytes(uid)
        return uid


class RunsForEver(Sound):  # type: ignore[misc]
    """Who has done most tries until it has averaged, whatever is raised meanwhile, and forgets that it has."""

    asked: ClassVar[dict[str, Any]] = {"patience_s": 0.3}

    def run(self, order: RunCollective) -> CollectiveDone | CollectiveFailed:
        done: list[int] = []
        while order.steps == 10 and not done:
            with suppress(BaseException):
                while not done:
                    pass
        ended: CollectiveDone | CollectiveFailed = super().run(order)
        return ended
