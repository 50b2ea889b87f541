"""By what a voter is held that has nothing to train (protocol D-8, O-4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .desk import Desk

__all__ = ["why_held"]


def why_held(desk: Desk, rank: int) -> str:
    """The code that `explain` has for it: a stop (E24), a lost link (E22), no batch that it could be given, with an
    epoch to follow (E04) or without (E06), or a budget that is used up (E03)."""
    co = desk.co
    if co.stopping or co.save_issued:
        return "E24"
    if not co.peers[rank].attached:
        return "E22"
    if desk.quiesced((rank,)):
        entered = desk.enterable()
        follows = len(entered) > 0 and entered[-1] + 1 < co.book.num_epochs
        return "E04" if desk.used_up() and follows else "E06"
    return "E04" if desk.left(rank) else "E03"
