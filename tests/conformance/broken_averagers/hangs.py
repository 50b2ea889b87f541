"""Averagers of which a call never comes back."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from paceline.backends.star import StarAverager
from paceline.core.effects import MakeSessionId, RunCollective
from paceline.core.events import CollectiveDone, CollectiveFailed, RoundAborted, RoundReduced

from .in_place import Sound
from conformance.hanging import endless


class IsNeverMade(StarAverager):
    """The factory waits for what nobody does."""

    @endless
    def __init__(self, *given: Any, **knobs: Any) -> None:
        threading.Event().wait()


class ReducesForEver(StarAverager):
    """Adds until the sum no longer changes, which it always does."""

    @endless
    def reduce(self) -> RoundReduced | RoundAborted:
        total = 0
        while total >= 0:
            total += 1
        return super().reduce()


class LooksForAnId(Sound):  # type: ignore[misc]
    """Draws until the id is a new one, always from the same."""

    @endless
    def make_id(self, order: MakeSessionId) -> bytes:
        uid: bytes = super().make_id(order)
        while uid in {uid}:
            uid = bytes(uid)
        return uid


class RunsForEver(Sound):  # type: ignore[misc]
    """Who has done most tries until it has averaged, whatever is raised meanwhile, and forgets that it has."""

    def run(self, order: RunCollective) -> CollectiveDone | CollectiveFailed:
        if order.steps == 10:
            self._try_again()
        ended: CollectiveDone | CollectiveFailed = super().run(order)
        return ended

    @endless
    def _try_again(self) -> None:
        done: list[int] = []
        while not done:
            with suppress(BaseException):
                while not done:
                    pass
