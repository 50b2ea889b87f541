"""A hand whose ranks are late: what the escalation ladder says of them (M-10 to M-16)."""

from __future__ import annotations

from typing import Any

from paceline.core import effects as fx
from paceline.core import events as ev

from .hand import Hand, pending


def said(effects: list[Any], *names: str) -> list[tuple[str, int, str]]:
    """Name, rank and stage of the ladder's events among effects."""
    wanted = names or ("Suspect", "Nudge", "Excluded")
    return [(e.name, e.facts["rank"], e.facts["stage"]) for e in effects if isinstance(e, fx.Emit) and e.name in wanted]


def ship(hand: Hand, *ranks: int) -> None:
    """These ranks have given their whole contribution."""
    for rank in ranks:
        hand.ready(rank)
        hand.feed(ev.RoundProgress(hand.co.cycle.key, rank, 100, True))


def owes_snapshot(**knobs: Any) -> Hand:
    """Cycle 1 is armed, rank 1 has shipped and rank 0 says nothing."""
    hand = pending(samples=400, **{"suspect_initial_s": 10.0, **knobs})
    ship(hand, 1)
    return hand
