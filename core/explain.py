"""Why is rank r waiting, for whom, since when, until when, by which rule (protocol O-4).

Codes are stable; a reason names either a deadline or the ranks whose move ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import messages as m
from .actions import Duty
from .ladder import FIRST_NUDGE, learned
from .phases import CyclePhase, PeerPhase, RunPhase
from .roles import EPOCH, EVALUATE
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
        missing = [reason for r in co.alive if co.peers[r].detached for reason in _of_rank(co, co.peers[r])]
        return [_forming(co), *_renewing(co), *missing]
    if co.run.phase == RunPhase.FINAL_EVAL:
        return [_busy(co, duty) for duty in co.actions.duties if duty.role != EPOCH]
    if co.run.phase == RunPhase.SHUTTING_DOWN:
        code, what = ("E26", f"saved and stopping: {co.run.text}") if co.save_issued else ("E25", "shutting down")
        return [_reason(code, None, what, "M-53", co.now, co.run.exit_deadline, tuple(co.alive))]
    if co.run.phase == RunPhase.STOPPED:
        return [_reason("E26", None, f"the run is over: {co.run.text}", "C-25", co.now, None, ())]
    ranks = co.alive if rank is None else [r for r in co.alive if r == rank]
    reasons = [reason for r in ranks for reason in _of_rank(co, co.peers[r])]
    reasons += _renewing(co)
    if co.run.below_min_since is not None:
        what = f"too few ranks: {co.alive_count} of {co.config.min_ranks}; others may join"
        reasons.append(_reason("E23", None, what, "M-21", co.run.below_min_since, co.run.rejoin_deadline, ()))
    return reasons


def _forming(co: Coordinator) -> Reason:
    config, run = co.config, co.run
    if run.window_closed:
        missing = tuple(rank for rank in co.alive if not co.peers[rank].acked)
        until = run.closed_at + config.scaled(config.formation_s)
        return _reason("E19", None, "forming: the initial state is on its way", "M-6", run.closed_at, until, missing)
    what = f"forming: {co.alive_count} ranks here, {config.target_ranks or config.min_ranks} wanted"
    until = run.opened_at + config.scaled(config.join_timeout_s)
    return _reason("E19", None, what, "M-4", run.opened_at, until, ())


def _renewing(co: Coordinator) -> list[Reason]:
    """E20: nobody averages before the session is there (M-30)."""
    renewal = co.sessions.renewal
    if renewal is None:
        until = co.sessions.paused_until
        what = "a call failed although its members seem to live; the next attempt waits"
        return [] if until is None else [_reason("E20", None, what, "R-18", co.sessions.broken_at, until, ())]
    rank = renewal.generator[0]
    what = f"makes the id of session {renewal.session_id}"
    if renewal.tried:
        what += f"; asked before: {', '.join(map(str, renewal.tried))}"
    return [_reason("E20", rank, what, "M-30", renewal.since, co.sessions.deadline, (rank,))]


def _busy(co: Coordinator, duty: Duty) -> Reason:
    """E21, E24: a rank evaluates or saves; the role limit ends the wait (K-17)."""
    code = "E24" if duty.decision_id == m.FINAL_EVALUATION else "E21"
    what = "evaluates" if duty.role == EVALUATE else f"is in the {duty.role} callback"
    rule = "M-11" if duty.role == EPOCH else "K-17"
    return _reason(code, duty.rank, what, rule, duty.since or co.now, co.actions.until(duty), (duty.rank,))


def _of_rank(co: Coordinator, peer: Peer) -> list[Reason]:
    rank, cycle, since = peer.rank, co.cycle, peer.last_progress
    if peer.detached_at is not None:
        what = "has lost its link and may come back"
        return [_reason("E22", rank, what, "M-42", peer.detached_at, peer.return_until, ())]
    if not peer.attached:
        until = peer.last_seen + co.config.staleness_s
        return [_reason("E22", rank, "has lost its link", "N-10", peer.last_seen, until, ())]
    duty = co.actions.under_way(rank)
    if duty is not None:
        return [_busy(co, duty)]
    if peer.phase != PeerPhase.VOTER:
        return [_outside(co, peer)]
    if co.joins.consensus_lost:
        what = "waits for the averager, which asks a rank for the consensus it has lost"
        return [_reason("E11", rank, what, "M-44", since, None, tuple(co.voters))]
    if cycle.phase == CyclePhase.PENDING:
        waits = _in_cycle(co, peer)
        if waits is not None:
            return [waits]
    if peer.throttled == m.ThrottleReason.LEAD:
        return [_reason("E08", rank, "is parked by the lead limit", "G-8", since, None, _short(co))]
    held = co.book.holdings(rank)
    if held.in_flight_batches:
        code = "E02" if peer.total_steps == 0 else "E01"
        what = f"trains: {peer.steps} of {peer.quota} steps"
        return [] if peer.satisfied else [_reason(code, rank, what, "G-1", since, None, ())]
    if co.stopping:
        return [_reason("E24", rank, "waits for the last average before the stop", "M-54", since, None, _short(co))]
    if held.plans:
        return [_reason("E05", rank, "has trained its plan, its Metrics are awaited", "D-15", since, None, (rank,))]
    if co.desk.quiesced(rank):
        return [_reason("E06", rank, "has no work left", "G-4", since, None, _short(co))]
    if co.desk.left(rank) == 0:
        return [_reason("E03", rank, "has used its budget of this window", "D-5", since, None, _short(co))]
    return [_reason("E04", rank, "waits for the epoch to close", "D-4", since, None, _short(co))]


def _outside(co: Coordinator, peer: Peer) -> Reason:
    """A rank without a vote: what it has to do or to get before it is promoted."""
    rank, since = peer.rank, peer.last_progress
    if peer.phase == PeerPhase.LAGGING and not peer.back:
        return _reason("E16", rank, "was excluded; it comes back by itself", "M-14", since, None, (rank,))
    transfer = co.joins.open.get(rank)
    if transfer is not None:
        donor = (transfer.donor[0],)
        return _reason("E17", rank, "joins: its frozen and local state is on the way", "M-24", since, None, donor)
    what = f"joins: becomes a voter at the end of a cycle; {peer.missed} missed so far"
    return _reason("E18", rank, what, "M-23", since, None, tuple(co.voters))


def _escalated(co: Coordinator, peer: Peer) -> Reason | None:
    """What the ladder has said about a rank in this cycle, with the numbers it went by (M-12, M-13)."""
    climb = peer.climb
    if climb.stage is None or climb.stage not in climb.suspected:
        return None
    known, since, name = learned(co, peer, climb.stage), climb.evidence_at, climb.stage.name.lower()
    what = f"is late with its {name}: {known.seconds:.3g} s allowed"
    if known.median is not None and known.deviation is not None:
        what += f" (median {known.median:.3g}, deviation {known.deviation:.3g} of {known.count})"
    if climb.nudges:
        until = since + (FIRST_NUDGE + climb.nudges) * known.seconds
        return _reason("E15", peer.rank, f"{what}; asked again {climb.nudges} times", "M-13", since, until,
                       (peer.rank,))  # fmt: skip
    return _reason("E14", peer.rank, what, "M-12", since, since + FIRST_NUDGE * known.seconds, (peer.rank,))


def _in_cycle(co: Coordinator, peer: Peer) -> Reason | None:
    """What a rank waits for, or owes, in a pending cycle; None if it may go on."""
    cycle, rank = co.cycle, peer.rank
    ceiling = max(cycle.pending_since, cycle.last_evidence_at) + co.config.reduce_ceiling
    living = [r for r in cycle.participants if cycle.takes_part(r)]
    if rank in living and not peer.acked:
        escalated = _escalated(co, peer)
        if escalated is not None:
            return escalated
        if co.config.is_collective:
            others = tuple(r for r in living if not co.peers[r].acked)
            return _reason("E13", rank, f"is in the collective of cycle {cycle.number} or on its way there", "R-13",
                           cycle.armed_at, ceiling, others)  # fmt: skip
        if peer.shipped is None:
            return _reason("E09", rank, "owes its snapshot", "M-10", cycle.armed_at, ceiling, (rank,))
        if cycle.reduced is None:
            others = tuple(r for r in living if co.peers[r].shipped is None)
            code, what = ("E10", "waits for the snapshots of others") if others else ("E11", "waits for the averager")
            return _reason(code, rank, what, "M-10", cycle.armed_at, ceiling, others)
        return _reason("E12", rank, "owes its acknowledgement", "M-10", cycle.armed_at, ceiling, (rank,))
    if co.config.barrier_paced:
        owing = tuple(r for r in living if not co.peers[r].acked)
        return _reason("E07", rank, "is parked for the average", "C-11", cycle.armed_at, ceiling, owing)
    return None


def _short(co: Coordinator) -> tuple[int, ...]:
    return tuple(r for r in co.voters if not co.peers[r].satisfied and co.peers[r].phase == PeerPhase.VOTER)


def _reason(code: str, rank: int | None, what: str, rule: str, since: float, until: float | None,
            waiting_for: Any) -> Reason:  # fmt: skip
    return Reason(code=code, rank=rank, what=what, rule=rule, since=since, until=until, waiting_for=waiting_for)
