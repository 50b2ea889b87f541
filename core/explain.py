"""Why is rank r waiting, for whom, since when, until when, by which rule, and by which numbers (protocol O-4).

Codes are stable. A reason names the ranks whose move ends it, the second at which it ends by itself, or, where neither
is known, what an operator can do. `numbers` are those that the rule went by, so that nobody has to take it on trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from . import in_place
from . import messages as m
from .actions import Duty
from .detector import Learned
from .finish import UNHEALTHY_REFUSALS
from .ladder import FIRST_NUDGE, Stage, learned
from .phases import CyclePhase, PeerPhase, RunPhase
from .roles import EPOCH, EVALUATE
from .values import value

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .peer import Peer

__all__ = ["Reason", "explain"]


Numbers = Mapping[str, float | int | None]

HELD = {
    "E03": ("has used its budget of this window", "D-5"), "E04": ("waits for the epoch to close", "D-4"),
    "E06": ("has no work left", "G-4"), "E24": ("waits for the last average before the stop", "M-54"),
}  # fmt: skip
"""What `Desk.why_held` says of a rank that is linked, in words, and its rule."""


@value(kw_only=True)
class Reason:
    """One thing that does not move. `since` and `until` are monotonic seconds, `until` None when only the named
    ranks, or an operator by `action`, can end it."""

    code: str
    rank: int | None
    what: str
    rule: str
    since: float
    until: float | None
    waiting_for: tuple[int, ...]
    numbers: Numbers = attrs.field(factory=dict, hash=False)
    action: str = ""

    def __str__(self) -> str:
        who = "" if self.rank is None else f"rank {self.rank} "
        whom = f", waits for {list(self.waiting_for)}" if self.waiting_for else ""
        do = f"; {self.action}" if self.action else ""
        return f"{self.code} {who}{self.what}{whom} ({self.rule}){do}"


def explain(co: Coordinator, rank: int | None = None) -> list[Reason]:
    """Reasons for one rank, or for all that is not moving."""
    if co.run.phase == RunPhase.FORMING:
        missing = [reason for r in co.alive if co.peers[r].detached for reason in _of_rank(co, co.peers[r])]
        return [_forming(co), *_renewing(co), *missing]
    if co.run.phase == RunPhase.FINAL_EVAL:
        return [_busy(co, duty) for duty in co.actions.duties if duty.role != EPOCH]
    if co.run.phase in (RunPhase.SHUTTING_DOWN, RunPhase.STOPPED):
        return _ending(co)
    ranks = co.alive if rank is None else [r for r in co.alive if r == rank]
    reasons = [reason for r in ranks for reason in (*_of_rank(co, co.peers[r]), *_refused(co, co.peers[r]))]
    reasons += _renewing(co)
    if co.run.below_min_since is not None:
        what = f"too few ranks: {co.alive_count} of {co.config.min_ranks}; others may join"
        reasons.append(_reason("E23", None, what, "M-21", co.run.below_min_since, co.run.rejoin_deadline, (),
                               {"alive": co.alive_count, "min_ranks": co.config.min_ranks}))  # fmt: skip
    return reasons


def _ending(co: Coordinator) -> list[Reason]:
    """E26 of a run that was saved, for good; E25 while the exits of who is there are awaited (M-53)."""
    run, reasons = co.run, []
    if run.save is not None:
        saved = "nothing: no save_path is set" if run.save.stem is None else run.save.stem
        action = "start the run again, without a path" if run.save.stem is None else "resume from the newest bundle"
        reasons.append(_reason("E26", None, f"{run.save.reason.name.lower()}: {run.text}; saved as {saved}", "C-16",
                               co.now, None, (), {"version": co.cycle.version}, action))  # fmt: skip
    if run.phase == RunPhase.SHUTTING_DOWN:
        until = run.save_deadline if run.exit_deadline is None else run.exit_deadline
        reasons.append(_reason("E25", None, f"shutting down: {run.text}", "M-53", co.now, until, tuple(co.alive)))
    return reasons


def _forming(co: Coordinator) -> Reason:
    config, run = co.config, co.run
    if run.window_closed:
        missing = tuple(rank for rank in co.alive if not co.peers[rank].acked)
        until = run.closed_at + config.scaled(config.formation_s)
        what = "the digests of what all brought are awaited" if co.cycle.checking else "the initial state is on its way"
        return _reason("E19", None, f"forming: {what}", "M-6", run.closed_at, until, missing)
    wanted = config.target_ranks or config.min_ranks if run.expected is None else max(1, run.expected)
    what = f"forming: {co.alive_count} ranks here, {wanted} wanted"
    numbers = {"here": co.alive_count, "wanted": wanted, "min_ranks": config.min_ranks}
    again = run.expected is not None  # it had formed, and needs no operator a second time (M-45)
    by_itself = again or config.start != "manual"
    soon = by_itself and co.alive_count >= config.min_ranks
    limit_s = config.scaled(config.join_timeout_s if soon else config.max_join_timeout_s)
    until = min(run.opened_at + limit_s, run.rejoin_deadline)
    action = "" if again or config.start == "auto" else "an operator may start it (M-4)"
    return _reason("E19", None, what, "M-4", run.opened_at, until, (), numbers, action)


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
    what = "evaluates" if duty.role == EVALUATE else f"is in the {duty.role} callback"
    code, rule = "E21", "M-11" if duty.role == EPOCH else "K-17"
    if duty.decision_id == m.FINAL_EVALUATION:
        code, rule, what = "E24", "M-54", "makes the final evaluation"
    numbers = {"version": duty.version, "limit_s": co.config.scaled(co.config.role_limit_s)}
    since = co.now if duty.since is None else duty.since
    return _reason(code, duty.rank, what, rule, since, co.actions.until(duty), (duty.rank,), numbers)


def _refused(co: Coordinator, peer: Peer) -> list[Reason]:
    """E27: what it ships is not taken; its next contribution shows whether it is whole again (D-12)."""
    if not peer.refusals_in_row:
        return []
    what = f"had {peer.refusals_in_row} contributions refused in a row, {UNHEALTHY_REFUSALS} end it"
    return [_reason("E27", peer.rank, what, "D-12", co.cycle.idle_since, None, (peer.rank,),
                    {"refused": peer.refusals_in_row, "limit": UNHEALTHY_REFUSALS})]  # fmt: skip


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
    if co.joins.consensus_lost and (peer.satisfied or not co.book.holdings(rank).in_flight_batches):
        what = "waits for the averager, which asks a rank for the consensus that it lacks"
        return [_reason("E11", rank, what, "M-44", since, None, tuple(co.voters))]
    if cycle.phase == CyclePhase.PENDING:
        waits = _in_cycle(co, peer)
        if waits is not None:
            return [waits]
    if peer.throttled == m.ThrottleReason.LEAD:
        numbers = {"lead": peer.steps - co.low, "limit": co.config.max_batch_diff}
        return [_reason("E08", rank, "is parked by the lead limit", "G-8", since, None, _short(co), numbers)]
    held = co.book.holdings(rank)
    if held.in_flight_batches:
        return [] if peer.satisfied else [_training(co, peer)]
    return [_idle(co, peer, bool(held.plans))]


def _training(co: Coordinator, peer: Peer) -> Reason:
    """E01, E02: it owes steps and has what to take them on. What a step may take is learned (M-11)."""
    known = learned(co, peer, Stage.STEP)
    numbers = {"steps": peer.steps, "quota": peer.quota, **_learned(known)}
    code, rule = ("E02", "M-11") if peer.total_steps == 0 else ("E01", "G-1")
    what = f"trains: {peer.steps} of {peer.quota} steps"
    return _reason(code, peer.rank, what, rule, peer.last_progress, peer.last_progress + known.seconds, (), numbers)


def _idle(co: Coordinator, peer: Peer, holds_plan: bool) -> Reason:
    """E03 to E06, E24: nothing to train, and why nothing is given."""
    rank, since = peer.rank, peer.last_progress
    if holds_plan and not co.stopping:
        return _reason("E05", rank, "has trained its plan, its Metrics are awaited", "D-15", since, None, (rank,))
    code = co.desk.why_held(rank)
    what, rule = HELD[code]
    numbers: dict[str, Numbers] = {
        "E03": {"steps": peer.steps, "quota": peer.quota, "left": 0}, "E04": {"epoch": co.book.first_live},
    }  # fmt: skip
    return _reason(code, rank, what, rule, since, None, _short(co), numbers.get(code))


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
    numbers = {"missed": peer.missed, "patience": co.config.join_patience}
    return _reason("E18", rank, what, "M-23", since, None, tuple(co.voters), numbers)


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
        numbers = {"nudges": climb.nudges, **_learned(known)}
        return _reason("E15", peer.rank, f"{what}; asked again {climb.nudges} times", "M-13", since, until,
                       (peer.rank,), numbers)  # fmt: skip
    return _reason("E14", peer.rank, what, "M-12", since, since + FIRST_NUDGE * known.seconds, (peer.rank,),
                   _learned(known))  # fmt: skip


def _learned(known: Learned) -> Numbers:
    return {"deadline": known.seconds, "median": known.median, "deviation": known.deviation, "count": known.count}


def _in_cycle(co: Coordinator, peer: Peer) -> Reason | None:
    """What a rank waits for, or owes, in a pending cycle; None if it may go on."""
    cycle, rank = co.cycle, peer.rank
    ceiling = max(cycle.pending_since, cycle.last_evidence_at) + co.config.reduce_ceiling
    owing = tuple(r for r in cycle.participants if cycle.takes_part(r) and not co.peers[r].acked)
    holding = tuple(r for r in owing if co.peers[r].climb.stage is not None)
    if rank in owing:
        owes = _owed(co, peer, holding, ceiling)
        if owes is not None:
            return owes
    if co.config.barrier_paced:
        return _reason("E07", rank, "is parked for the average", "C-11", cycle.armed_at, ceiling, holding)
    return None


def _owed(co: Coordinator, peer: Peer, holding: tuple[int, ...], ceiling: float) -> Reason | None:
    """E09 to E15: the stage in which this rank is (M-10). None if it is in none: its part is done, and those who are
    in one hold the cycle."""
    cycle, rank = co.cycle, peer.rank
    escalated = _escalated(co, peer)
    if escalated is not None:
        return escalated
    if co.config.is_collective:
        late = tuple(in_place.outside(cycle))
        what = "is on its way into" if rank in late or not late else "is in"
        return _reason("E13", rank, f"{what} the collective of cycle {cycle.number}", "R-13", cycle.armed_at, ceiling,
                       late or holding)  # fmt: skip
    stage, since = peer.climb.stage, peer.climb.evidence_at
    if stage is None:
        waits = _reason("E11", rank, "waits for the averager", "M-10", since, ceiling, ())
        return None if holding else waits
    known = learned(co, peer, stage)
    until, numbers = since + known.seconds, _learned(known)
    if stage == Stage.SNAPSHOT:
        return _reason("E09", rank, "owes its snapshot", "M-10", cycle.armed_at, until, (rank,), numbers)
    if stage == Stage.UPLOAD:
        size = sum(entry.nbytes for entry in co.schema.riding()) if co.schema is not None else 0
        what = f"owes its upload: {peer.bytes_in} of {size} bytes are here"
        numbers = {"bytes": peer.bytes_in, "of": size, **numbers}
        return _reason("E10", rank, what, "M-10", cycle.armed_at, until, (rank,), numbers)
    return _reason("E12", rank, "owes its acknowledgement", "M-10", cycle.armed_at, until, (rank,), numbers)


def _short(co: Coordinator) -> tuple[int, ...]:
    return tuple(r for r in co.voters if not co.peers[r].satisfied and co.peers[r].phase == PeerPhase.VOTER)


def _reason(code: str, rank: int | None, what: str, rule: str, since: float, until: float | None,
            waiting_for: tuple[int, ...], numbers: Numbers | None = None, action: str = "") -> Reason:  # fmt: skip
    return Reason(code=code, rank=rank, what=what, rule=rule, since=since, until=until, waiting_for=waiting_for,
                  numbers=numbers or {}, action=action)  # fmt: skip
