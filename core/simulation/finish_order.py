"""The effects of a finish come in the order of C-15 (I4, I5)."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from .. import effects as fx
from .violation import Violation, require

__all__ = ["in_order"]

ORDER = ("Cycle", "Covered", "Update", "SetGlobalStep", "CloseRound", "AverageEnd", "SyncEnd")
"""What a finish says, in the order of C-15."""


def in_order(effects: tuple[Any, ...]) -> None:
    """I4: a finish has its effects in the order of C-15, each part once; steps fall before any plan is sized. I5: one
    Update for each voter. Only the first finish of a batch is looked at, up to the next arm."""
    named = [(_part(effect), effect) for effect in effects]
    begin = next(index for index, (name, _) in enumerate(named) if name == "Cycle")
    finish = list(takewhile(lambda pair: pair[0] != "SyncStart", named[begin:]))
    names = [name for name, _ in finish]
    places = [[index for index, name in enumerate(names) if name == part] for part in ORDER]
    for part, found, following in zip(ORDER, places, places[1:], strict=False):
        if found and following and found[-1] > following[0]:
            raise Violation("I4", f"{part} comes after what follows it: {names}")
    updated = [effect.rank for name, effect in finish if name == "Update"]
    require(len(updated) == len(set(updated)), "I5", f"two Updates for one rank: {updated}")


def _part(effect: Any) -> str:
    kind = effect.__class__
    if kind is fx.CloseRound and effect.key.is_transfer:
        return "transfer"
    return str(effect.name if kind is fx.Emit else type(effect.message if kind is fx.Send else effect).__name__)
