"""What goes with what in one batch of effects: a broadcast reaches all who are there, a life that ends is told so.

A message that is never sent breaks no book: somebody at the other end waits for it, or goes on with what was so before.
So it is asked here for each thing that happened whether those whom it concerns were told, by what a watcher knows of
them: who was let in, has not ended, and has a link (N-11).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from .. import effects as fx
from .. import messages as m
from .violation import require

__all__ = ["NOTABLE", "OVER", "Life", "broadcasts", "chain_of_end"]

Life = tuple[int, int]
"""A rank and an incarnation."""
OVER = frozenset({"Died", "Left"})
"""A life ends with these."""
NOTABLE = frozenset({*OVER, "EpochEnd", "Evaluated", "RoleChanged"})
"""Events that are looked at."""


def broadcasts(event: fx.Emit, effects: tuple[Any, ...], there: Collection[Life], *, stopping: bool) -> None:
    """Each of these lives was told of it, once at least; of an end not by who is stopping itself."""
    name, facts = event.name, event.facts
    if name in OVER and not stopping:
        life = {"dead_rank": facts["rank"], "dead_incarnation": facts["incarnation"]}
        left = _untold(effects, there, m.DeclareDead, life)
        require(not left, "M-18", f"{name} rank {facts['rank']}: lives {left} are there and were not told")
    elif name == "EpochEnd":
        left = _untold(effects, there, m.EpochAggregated, {"epoch": facts["epoch"]})
        require(not left, "K-20", f"epoch {facts['epoch']} is closed: lives {left} are there and were not told")
    elif name == "Evaluated" and facts["metric"] is not None:
        left = _untold(effects, there, m.EvalBroadcast, {"metric": facts["metric"]})
        require(not left, "K-16", f"rank {facts['rank']} has evaluated: lives {left} are there and were not told")
    elif name == "RoleChanged" and facts["role"] == "epoch":
        holder = m.NO_RANK if facts["to"] is None else facts["to"]
        left = _untold(effects, there, m.SetEpochCallbackRole, {"holder": holder})
        require(not left, "M-33", f"the role goes to {facts['to']}: lives {left} are there and were not told")


def _untold(effects: tuple[Any, ...], there: Collection[Life], kind: type, said: dict[str, Any]) -> list[Life]:
    """To whom no message of this kind was sent that says so."""
    words = [effect.message for effect in effects if effect.__class__ is fx.Send and effect.message.__class__ is kind]
    told = {(word.rank, word.incarnation) for word in words if all(getattr(word, n) == said[n] for n in said)}
    return [life for life in there if life not in told]


def chain_of_end(event: fx.Emit, effects: tuple[Any, ...]) -> None:
    """M-18, M-8: with a life that has ended its link is closed; one that died is told so."""
    life = (event.facts["rank"], event.facts["incarnation"])
    closed = any(e.__class__ is fx.CloseLink and (e.rank, e.incarnation) == life for e in effects)
    require(closed, "M-18", f"life {life} has ended, and its link is not closed")
    if event.name == "Died":
        fenced = any(e.__class__ is fx.SendFenced and (e.rank, e.incarnation) == life for e in effects)
        require(fenced, "M-18", f"life {life} was given up and is not told so")
