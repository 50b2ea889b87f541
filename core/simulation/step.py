"""What one action of a simulated run led to, for whoever looks on."""

from __future__ import annotations

from typing import Any

from ..values import value
from .action import Action

__all__ = ["Step", "Turn"]


@value
class Turn:
    """One event of one machine (`COORDINATOR`, or the number of a process), and the effects it had."""

    who: int
    event: Any
    effects: tuple[Any, ...]


@value
class Step:
    """What an action led to: the turns of the machines, in order. `moved` says what went over a bulk lane."""

    action: Action
    at: float
    turns: tuple[Turn, ...]
    moved: str = ""

    @property
    def events(self) -> tuple[tuple[int, Any], ...]:
        """Every event, with the machine that took it."""
        return tuple((turn.who, turn.event) for turn in self.turns)

    @property
    def effects(self) -> tuple[tuple[int, Any], ...]:
        """Every effect, with the machine that gave it."""
        return tuple((turn.who, effect) for turn in self.turns for effect in turn.effects)
