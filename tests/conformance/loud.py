"""Sound plug-ins that print, when they are imported and when they are made."""

from __future__ import annotations

from typing import Any

from paceline.backends.star import StarAverager
from paceline.core.guard import LevelGuard

print("it speaks")


class Guard(LevelGuard):
    """A guard."""

    def __init__(self) -> None:
        super().__init__()
        print("it speaks", flush=True)


class Averager(StarAverager):
    """An averager."""

    def __init__(self, *given: Any, **knobs: Any) -> None:
        super().__init__(*given, **knobs)
        print("it speaks")
