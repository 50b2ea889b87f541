"""Who takes part, not only who is alive (protocol O-5): for dumps, records and displays. Nothing here decides anything.

A rank whose heartbeats flow and whose steps are in no consensus is alive and of no use; that is what `participation`
shows, as the part of the finished cycles of its life in which it was merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .phases import ALIVE

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .cycle import Cycle
    from .peer import Peer

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


def participation(co: Coordinator, peer: Peer) -> dict[str, Any]:
    """O-5 of one rank. What there is no measurement of is None, never 0 (O-3); `idle_share` is the part of its windows
    in which it showed no training when the cycle was armed."""
    return {
        "participation": peer.merges / peer.cycles if peer.cycles else None,
        "last_merge_s": None if peer.merged_at is None else co.now - peer.merged_at,
        "idle_share": peer.idle_ms / peer.window_ms if peer.window_ms > 0 else None,
        "fenced": sum(count for (rank, _), count in co.fenced.items() if rank == peer.rank),
        "refused": sum(count for (rank, _), count in co.refused.items() if rank == peer.rank),
        "handled": peer.handled_seq, "copy_ms": peer.copy_ms,
        "only_alive": peer.phase in ALIVE and peer.cycles > 0 and not peer.merges,
    }  # fmt: skip
