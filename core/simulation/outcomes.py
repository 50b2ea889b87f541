"""What the memory of the model checker is made of (`parts.py`): outcomes of actions, and what stands in the world for
the parts that an action may not ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..values import value
from .action import Action

__all__ = ["MARKER", "SAME", "CentralOutcome", "Change", "LaneChange", "Later", "LocalOutcome", "Offer", "Trained",
           "Wide"]  # fmt: skip

MARKER = object()
"""Stands in a lane for whatever is behind the oldest entry."""


@value
class LaneChange:
    """What an outcome does to a lane: `kept` is the rest behind the entry that was read, `before` and `after` are what
    stands around it now."""

    kept: bool
    before: tuple[int, ...]
    after: tuple[int, ...]


SAME = LaneChange(True, (), ())


@value
class LocalOutcome:
    """New parts of one process, the batches it has trained, and its lanes, in the order of `LANES`."""

    parts: tuple[int, int, int]
    trained: tuple[Any, ...]
    lanes: tuple[LaneChange, ...]


@value
class Wide:
    """An action that at this process reads or writes more than its parts: it is done on the whole world."""


@value
class CentralOutcome:
    """New parts of the world, by place; by place the number of the `Change` of each process that is changed;
    and the processes that came."""

    parts: tuple[tuple[int, int], ...]
    processes: tuple[tuple[int, int], ...]
    newcomers: tuple[int, ...]


@value
class Change:
    """What an outcome does to one process: its shell, its lanes, and from which of them the oldest entry is taken."""

    shell: int
    lanes: tuple[LaneChange, ...]
    read: str | None


@value
class Offer:
    """What can happen with one process: by itself, at the coordinator, and the faults that can strike it."""

    own: tuple[Action, ...]
    central: tuple[Action, ...]
    faults: tuple[Action, ...]


class Later:
    """Stands for a part of the world until somebody asks it for anything: `put` then puts the part in, and gives it."""

    __slots__ = ("_put",)

    def __init__(self, put: Callable[[], Any]) -> None:
        self._put = put

    def __getattr__(self, name: str) -> Any:
        return getattr(self._put(), name)


class Trained(dict[Any, int]):
    """What the ghost knows was trained; `asked` is called when that is looked at."""

    asked: Callable[[], None]

    def __contains__(self, pick: object) -> bool:
        self.asked()
        return super().__contains__(pick)
