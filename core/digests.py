"""Whether everybody was delivered the same consensus (protocol C-18)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cycle import Cycle

__all__ = ["minority"]

AVERAGER = -1
"""Stands for the averager among the ranks whose digests are compared."""


def minority(cycle: Cycle) -> tuple[int, ...] | None:
    """The ranks that were delivered other bytes than more than half, ascending; None if no more than half agree."""
    digests = _of(cycle)
    if not digests:
        return ()
    best, count = Counter(digests.values()).most_common(1)[0]
    if 2 * count <= len(digests):
        return None
    return tuple(sorted(rank for rank, digest in digests.items() if digest != best and rank != AVERAGER))


def _of(cycle: Cycle) -> dict[int, bytes]:
    """Digests of who acknowledged, the averager's own as rank AVERAGER."""
    co = cycle.co
    if not co.config.digest:
        return {}
    peers = [co.peers[rank] for rank in cycle.participants if cycle.takes_part(rank)]
    known = {peer.rank: peer.digest for peer in peers if peer.digest is not None and peer.alive}
    if cycle.reduced is not None and cycle.reduced.digest is not None and known:
        known[AVERAGER] = cycle.reduced.digest
    return known
