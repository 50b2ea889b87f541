"""Who takes part, not only who is alive (protocol O-5): for dumps, records and displays. Nothing here decides anything.

A rank whose heartbeats flow and whose steps are in no consensus is alive and of no use; that is what `participation`
shows, as the part of the cycles finished in its life in which it was merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .phases import ALIVE

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .cycle import Cycle

__all__ = ["idled", "participation"]


def idled(cycle: Cycle) -> dict[str, float]:
    """How many milliseconds each member of a cycle that is armed now has shown no training, within its window (O-5);
    kept for `idle_share`."""
    now, begun, peers, idle = cycle.co.now, cycle.idle_since, cycle.co.peers, {}
    window = (now - begun) * 1000
    for rank in cycle.members:
        peer = peers[rank]
        seen = peer.last_progress
        idle[str(rank)] = unused = (now - (seen if seen > begun else begun)) * 1000
        peer.idle_ms, peer.window_ms = peer.idle_ms + unused, peer.window_ms + window
    return idle


def participation(co: Coordinator, ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
    """O-5 of each of these ranks. What there is no measurement of is None, never 0 (O-3); `idle_share` is the part of
    its windows in which it showed no training when the cycle was armed, and `only_alive` says that it lives and is not
    in the last finished cycle."""
    fenced, refused, told = _by_rank(co.fenced), _by_rank(co.refused), {}
    for rank in ranks:
        peer = co.peers[rank]
        told[rank] = {
            "participation": peer.merges / peer.cycles if peer.cycles else None,
            "last_merge_s": None if peer.merged_at is None else co.now - peer.merged_at,
            "idle_share": peer.idle_ms / peer.window_ms if peer.window_ms > 0 else None,
            "fenced": fenced.get(rank, 0), "refused": refused.get(rank, 0),
            "handled": peer.handled_seq, "copy_ms": peer.copy_ms,
            "only_alive": peer.phase in ALIVE and peer.cycles > 0 and peer.merged_in != co.cycle.finished,
        }  # fmt: skip
    return told


def _by_rank(counts: Mapping[tuple[int, str], int]) -> dict[int, int]:
    """Messages of each rank, whatever the reason."""
    sums: dict[int, int] = {}
    for (rank, _), count in counts.items():
        sums[rank] = sums.get(rank, 0) + count
    return sums
