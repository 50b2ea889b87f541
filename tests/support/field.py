"""What the stories of the field cases share: their times, and how time and work pass in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.core import events as ev
from paceline.core import messages as m

from .hand import Hand

QUICK: dict[str, Any] = {"heartbeat_timeout_s": 5.0, "reduce_ceiling_s": 60.0, "window_ceiling_s": 120.0}
"""Dead after 5 s of silence, a stalled average after 60 s, a stalled window after 120 s."""


def pass_time(hand: Hand, seconds: float, silent: Iterable[int] = ()) -> list[Any]:
    """Ticks at every deadline; all ranks but the silent ones send a heartbeat before each."""
    effects: list[Any] = []
    end = hand.now + seconds
    while hand.now < end and not hand.co.finished:
        due = hand.co.poll_timeout()
        assert due is not None
        hand.now = min(end, max(due, hand.now))
        for rank in hand.co.alive:
            if rank not in silent:
                effects += hand.say(rank, m.Heartbeat, step_count=0, state="x")
        effects += hand.feed(ev.Tick())
    return effects


def work(hand: Hand, rank: int, **fields: Any) -> None:
    """The rank trains whatever it is given, until it is given no more."""
    while (head := hand.co.book.head(rank)) is not None:
        hand.step(rank, head.slice.count - head.done, **fields)
        hand.complete(rank)


def averaged(hand: Hand) -> None:
    """One average in which who joins is the first to acknowledge: nobody waits for it."""
    ranks = hand.co.cycle.participants
    for rank in ranks:
        hand.ready(rank)
    hand.reduce()
    for rank in reversed(ranks):
        hand.ack(rank)
