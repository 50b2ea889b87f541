"""What one action of a simulated run led to, for whoever looks on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..values import maker, value
from .action import Action

__all__ = ["Run", "Step", "Turn", "new_step", "new_turn"]


@value
class Turn:
    """One event of one machine (`COORDINATOR`, or the number of a process), and the effects it had."""

    who: int
    event: Any
    effects: tuple[Any, ...]


@value
class Run:
    """Quiet events of one machine, one after the other (`quiet.py`): each had one effect, or none had any."""

    who: int
    events: tuple[Any, ...]
    effects: tuple[Any, ...]

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Each by itself."""
        if not self.effects:
            return tuple([Turn(self.who, event, ()) for event in self.events])
        pairs = zip(self.events, self.effects, strict=True)
        return tuple([Turn(self.who, event, (effect,)) for event, effect in pairs])


@value
class Step:
    """What an action led to: the turns of the machines, in order, `parts` with runs as they are. `moved` says what went
    over a bulk lane."""

    action: Action
    at: float
    parts: tuple[Turn | Run, ...]
    moved: str = ""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every turn by itself."""
        found: list[Turn] = []
        for part in self.parts:
            if isinstance(part, Run):
                found += part.turns
            else:
                found.append(part)
        return tuple(found)

    @property
    def events(self) -> tuple[tuple[int, Any], ...]:
        """Every event, with the machine that took it."""
        return tuple((turn.who, turn.event) for turn in self.turns)

    @property
    def effects(self) -> tuple[tuple[int, Any], ...]:
        """Every effect, with the machine that gave it."""
        return tuple((turn.who, effect) for turn in self.turns for effect in turn.effects)


new_step: Callable[..., Step] = maker(Step)
new_turn: Callable[..., Turn] = maker(Turn)
"""What the constructors make, for what every action leads to."""
