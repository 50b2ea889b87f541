"""Why is rank r waiting, for whom, since when, until when, by which rule (protocol O-4).

Codes are stable; a reason names either a deadline or the ranks whose move ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import messages as m
from .phases import CyclePhase, PeerPhase, RunPhase
from .values import value

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .peer import Peer

__all__ = ["Reason", "explain"]


@value(kw_only=True)
class Reason:
    """One thing that does not move. `since` and `until` are monotonic seconds, `until` None when only the named
    ranks or an operator can end it."""

    code: str
    rank: int | None
    what: str
    rule: str
    since: float
    until: float | None
    waiting_for: tuple[int, ...]

    def __str__(self) -> str:
        who = "" if self.rank is None else f"rank {self.rank} "
        whom = f", waits for {list(self.waiting_for)}" if self.waiting_for else ""
        return f"{self.code} {who}{self.what}{whom} ({self.rule})"


def explain(co: Coordinator, rank: int | None = None) -> list[Reason]:
    """Reasons for one rank, or for all that is not moving."""
    if co.run.phase == RunPhase.FORMING:
        until = co.run.opened_at + co.config.scaled(co.config.join_timeout_s)
        what = f"forming: {co.alive_count} ranks here, {co.config.target_ranks or co.config.min_ranks} wanted"
        return [_reason("E19", None, what, "M-4", co.run.opened_at, until, ())]
    if co.run.phase == RunPhase.SHUTTING_DOWN:
        code, what = ("E26", f"saved and stopping: {co.run.text}") if co.save_issued else ("E25", "shutting down")
        return [_reason(code, None, what, "M-53", co.now, co.run.exit_deadline, tuple(co.alive))]
    if co.run.phase == RunPhase.STOPPED:
        return [_reason("E26", None, f"the run is over: {co.run.text}", "C-25", co.now, None, ())]
    ranks = co.voters if rank is None else [r for r in co.voters if r == rank]
    return [reason for r in ranks for reason in _of_rank(co, co.peers[r])]


def _of_rank(co: Coordinator, peer: Peer) -> list[Reason]:
    cycle, since = co.cycle, peer.last_progress
    owing = tuple(r for r in cycle.participants if not co.peers[r].acked and co.peers[r].alive)
    ceiling = max(cycle.pending_since, cycle.last_evidence_at) + co.config.reduce_ceiling
    if cycle.phase == CyclePhase.PENDING and peer.rank in owing:
        if peer.shipped is None:
            return [_reason("E09", peer.rank, "owes its snapshot", "M-10", cycle.armed_at, ceiling, ())]
        if cycle.reduced is None:
            others = tuple(r for r in cycle.participants if co.peers[r].alive and co.peers[r].shipped is None)
            return [_reason("E10", peer.rank, "uploads, or others do", "M-10", cycle.armed_at, ceiling, others)]
        return [_reason("E12", peer.rank, "owes its acknowledgement", "M-10", cycle.armed_at, ceiling, ())]
    if peer.throttled == m.ThrottleReason.LEAD:
        return [_reason("E08", peer.rank, "is parked by the lead limit", "G-8", since, None, _short(co))]
    if cycle.phase == CyclePhase.PENDING and co.config.barrier_paced:
        return [_reason("E07", peer.rank, "is parked for the average", "C-11", cycle.armed_at, ceiling, owing)]
    if co.book.holdings(peer.rank).in_flight_batches and not peer.satisfied:
        code = "E02" if peer.total_steps == 0 else "E01"
        return [_reason(code, peer.rank, f"trains: {peer.steps} of {peer.quota} steps", "G-1", since, None, ())]
    if co.desk.quiesced(peer.rank):
        return [_reason("E06", peer.rank, "has no work left", "G-4", since, None, _short(co))]
    if co.desk.left(peer.rank) == 0:
        return [_reason("E03", peer.rank, "has used its budget of this window", "D-5", since, None, _short(co))]
    return []


def _short(co: Coordinator) -> tuple[int, ...]:
    return tuple(r for r in co.voters if not co.peers[r].satisfied and co.peers[r].phase == PeerPhase.VOTER)


def _reason(code: str, rank: int | None, what: str, rule: str, since: float, until: float | None,
            waiting_for: Any) -> Reason:  # fmt: skip
    return Reason(code=code, rank=rank, what=what, rule=rule, since=since, until=until, waiting_for=waiting_for)
