"""Why is rank r waiting, for whom, since when, until when, by which rule, and by which numbers (protocol O-4).

Codes are stable; `reasons.py` says what each of them means. A reason names the ranks whose move ends it, the second at
which it ends by itself, or, where neither is known, what an operator can do. `numbers` are those that the rule went by,
so that nobody has to take it on trust.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from . import gates, in_place
from . import messages as m
from .actions import Duty
from .attachment import detached
from .detector import Learned
from .dispatch.holds import why_held
from .errors import LocalProtocolError
from .finish import UNHEALTHY_REFUSALS
from .gates import LEAD
from .instants import shown
from .ladder import EXCLUDE_AT, STEP, Stage, learned, rungs, step_clock
from .phases import PENDING, VOTER, PeerPhase, RunPhase
from .reasons import CODES
from .roles import EPOCH, EVALUATE
from .values import maker, value

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .peer import Peer

__all__ = ["Reason", "explain"]


Numbers = Mapping[str, float | int | None]

HELD = {
    "E03": "has used its budget of this window", "E04": "waits for the epoch to close", "E06": "has no work left",
    "E24": "waits for the last average before the stop",
}  # fmt: skip
"""What `why_held` says of a rank that is linked, in words."""


@value(kw_only=True)
class Reason:
    """One thing that does not move: `rank`, or with None the whole run. `since` is the monotonic second at which that
    wait began, `until` the one at which it ends by itself, None when only the named ranks, or an operator by `action`,
    can end it. `then` says what is done at `until`."""

    code: str
    rank: int | None
    what: str
    rule: str
    since: float
    until: float | None
    waiting_for: tuple[int, ...]
    numbers: Numbers = attrs.field(factory=dict, hash=False)
    action: str = ""
    then: str = ""

    def __str__(self) -> str:
        who = "" if self.rank is None else f"rank {self.rank} "
        whom = f", waits for {list(self.waiting_for)}" if self.waiting_for else ""
        do = f"; {self.action}" if self.action else ""
        until = "no time ends it" if self.until is None else f"until {shown(self.until, 1)} s"
        return f"{self.code} {who}{self.what}{whom} ({self.rule}); since {shown(self.since, 1)} s, {until}{do}"


new_reason: Callable[..., Reason] = maker(Reason)


class _Shared:
    """What more than one rank waits for, or is measured by. Looked up once for all of them: there are as many that ask
    as there are ranks, and each answer takes a look at every rank."""

    def __init__(self, co: Coordinator) -> None:
        self.co = co

    @functools.cached_property
    def voters(self) -> tuple[int, ...]:
        return tuple(self.co.voters)

    @functools.cached_property
    def holding(self) -> tuple[int, ...]:
        """Who holds the next average up (G-1), or in a pending cycle this one (C-12)."""
        if self.co.cycle.pending:
            return tuple(self.co.cycle.debtors())
        return tuple(rank for rank in self.co.voters if not self.co.peers[rank].satisfied)

    @functools.cached_property
    def holding_plans(self) -> tuple[int, ...]:
        """Those of them that have something to train."""
        return tuple(rank for rank in self.holding if self.co.book.holdings(rank).plans)

    @functools.cached_property
    def detached(self) -> tuple[int, ...]:
        return tuple(peer.rank for peer in detached(self.co))

    @functools.cached_property
    def in_stage(self) -> tuple[int, ...]:
        """Who is in a stage of the pending cycle, and owes what ends it (M-10)."""
        peers = [self.co.peers[rank] for rank in self.co.cycle.participants]
        return tuple(peer.rank for peer in peers if _owes(self.co, peer) and peer.climb.stage is not None)

    @functools.cached_property
    def outside(self) -> tuple[int, ...]:
        """Who has not begun with the call that others are in (R-13)."""
        return tuple(in_place.outside(self.co.cycle))

    @functools.cached_property
    def upload_bytes(self) -> int:
        """What each rank ships."""
        return 0 if self.co.schema is None else sum(entry.nbytes for entry in self.co.schema.riding())


def explain(co: Coordinator, rank: int | None = None) -> list[Reason]:
    """All that is not moving; with a rank, what keeps that one: its own reasons and those of the whole run. A rank that
    is gone has none of its own. Raises `LocalProtocolError` for one that never had a seat."""
    if rank is not None and rank not in co.peers:
        here = ", ".join(map(str, co.alive)) or "nobody"
        raise LocalProtocolError(f"rank {rank} has no seat in this run, so it waits for nothing; ranks here: {here}")
    return [reason for reason in _everything(co) if rank is None or reason.rank in (None, rank)]


def _everything(co: Coordinator) -> list[Reason]:
    shared = _Shared(co)
    if co.run.phase == RunPhase.FORMING:
        missing = [reason for peer in detached(co) for reason in _of_rank(shared, peer)]
        return [_forming(co), *_renewing(co), *missing]
    if co.run.phase == RunPhase.FINAL_EVAL:
        return _evaluating(co)
    if co.run.phase in (RunPhase.SHUTTING_DOWN, RunPhase.STOPPED):
        return _ending(co)
    reasons: list[Reason] = []
    for rank in co.alive:
        peer = co.peers[rank]
        reasons += _of_rank(shared, peer)
        if peer.refusals_in_row:
            reasons.append(_refused(peer))
    reasons += _renewing(co)
    if co.run.below_min_since is not None:
        what = f"too few ranks: {co.alive_count} of {co.config.min_ranks}; others may join"
        reasons.append(_reason("E23", None, what, co.run.below_min_since, co.run.rejoin_deadline, (),
                               {"alive": co.alive_count, "min_ranks": co.config.min_ranks}))  # fmt: skip
    return reasons


def _ending(co: Coordinator) -> list[Reason]:
    """E26 of a run that was saved, for good; E25 while the exits of who is there are awaited (M-53)."""
    run, reasons = co.run, []
    if run.save is not None:
        saved = "nothing: no save_path is set" if run.save.stem is None else run.save.stem
        action = "start the run again, without a path" if run.save.stem is None else "resume from the newest bundle"
        reasons.append(_reason("E26", None, f"{run.save.reason.name.lower()}: {run.text}; saved as {saved}",
                               run.ended_at, None, (), {"version": co.cycle.version}, action))  # fmt: skip
    if run.phase == RunPhase.SHUTTING_DOWN:
        what, there = f"shutting down: {run.text}", tuple(co.alive)
        since, until, then = run.ended_at, run.exit_deadline, ""
        if until is None:
            until, then = run.save_deadline, "all are told to go"
            there = tuple(rank for rank in co.alive if not co.peers[rank].stopped)
        elif run.save is not None:
            since = until - co.config.scaled(co.config.exit_grace_s)
        reasons.append(_reason("E25", None, what, since, until, there, then=then))
    return reasons


def _forming(co: Coordinator) -> Reason:
    config, run = co.config, co.run
    if run.window_closed:
        missing = tuple(co.cycle.unformed())
        until = run.closed_at + config.scaled(config.formation_s)
        what = "the digests of what all brought are awaited" if co.cycle.checking else "the initial state is on its way"
        return _reason("E19", None, f"forming: {what}", run.closed_at, until, missing, rule="M-6",
                       then="who is not done with it is dropped")  # fmt: skip
    wanted = config.target_ranks or config.min_ranks if run.expected is None else max(1, run.expected)
    what = f"forming: {co.alive_count} ranks here, {wanted} wanted"
    numbers = {"here": co.alive_count, "wanted": wanted, "min_ranks": config.min_ranks}
    again = run.expected is not None  # it had formed, and needs no operator a second time (M-45)
    by_itself = again or config.start != "manual"
    soon = by_itself and co.alive_count >= config.min_ranks
    limit_s = config.scaled(config.join_timeout_s if soon else config.max_join_timeout_s)
    until = min(run.opened_at + limit_s, run.rejoin_deadline)
    action = "" if again or config.start == "auto" else "an operator may start it (M-4)"
    then = "" if soon and until < run.rejoin_deadline else "the run fails"
    return _reason("E19", None, what, run.opened_at, until, (), numbers, action, then=then)


def _renewing(co: Coordinator) -> list[Reason]:
    """E20: nobody averages before the session is there (M-30)."""
    renewal = co.sessions.renewal
    if renewal is None:
        until = co.sessions.paused_until
        what = "a call failed although its members seem to live; the next attempt waits"
        return [] if until is None else [_reason("E20", None, what, co.sessions.broken_at, until, (), rule="R-18",
                                                 then="it is tried again")]  # fmt: skip
    rank = renewal.generator[0]
    what = f"rank {rank} makes the id of session {renewal.session_id}"
    if renewal.tried:
        what += f"; asked before: {', '.join(map(str, renewal.tried))}"
    return [_reason("E20", None, what, renewal.since, co.sessions.deadline, (rank,))]


def _evaluating(co: Coordinator) -> list[Reason]:
    """What is still done at the end of a run, and who waits for that. A duty that its cycle never let begin is none."""
    begun = [duty for duty in co.actions.duties if duty.role != EPOCH and duty.since is not None]
    busy, waited = [_busy(co, duty) for duty in begun], tuple(sorted({duty.rank for duty in begun}))
    since = min([reason.since for reason in busy], default=co.now)
    until = max([reason.until for reason in busy if reason.until is not None], default=None)
    others = [rank for rank in co.alive if rank not in waited]
    what = "waits for the final evaluation"
    return busy + [_reason("E24", rank, what, since, until, waited) for rank in others if waited]


def _busy(co: Coordinator, duty: Duty) -> Reason:
    """E21, E24: a rank evaluates or saves, and has begun with it; the role limit ends the wait (K-17)."""
    assert duty.since is not None, "a duty under way has begun"
    what = "evaluates" if duty.role == EVALUATE else f"is in the {duty.role} callback"
    code, rule = "E21", "M-11" if duty.role == EPOCH else "K-17"
    if duty.decision_id == m.FINAL_EVALUATION:
        code, rule, what = "E24", "M-54", "makes the final evaluation"
    numbers = {"version": duty.version, "limit_s": co.config.scaled(co.config.role_limit_s)}
    return _reason(code, duty.rank, what, duty.since, co.actions.until(duty), (duty.rank,), numbers, rule=rule)


def _refused(peer: Peer) -> Reason:
    """E27: what it ships is not taken; its next contribution shows whether it is whole again (D-12)."""
    what = f"had {peer.refusals_in_row} contributions refused in a row, {UNHEALTHY_REFUSALS} end it"
    return _reason("E27", peer.rank, what, peer.since.refused, None, (peer.rank,),
                   {"refused": peer.refusals_in_row, "limit": UNHEALTHY_REFUSALS})  # fmt: skip


def _of_rank(shared: _Shared, peer: Peer) -> list[Reason]:
    co, rank = shared.co, peer.rank
    if peer.detached_at is not None:
        what = "has lost its link and may come back"
        return [_reason("E22", rank, what, peer.detached_at, peer.return_until, ())]
    if not peer.attached:
        until = peer.last_seen + co.config.staleness_s
        return [_reason("E22", rank, "has lost its link", peer.since.link, until, (), rule="N-10")]
    duty = co.actions.under_way(rank)
    if duty is not None:
        return [_busy(co, duty)]
    if peer.phase is not VOTER:
        return [_outside(shared, peer)]
    if co.joins.consensus_lost and (peer.satisfied or not co.book.holdings(rank).in_flight_batches):
        what = "waits for the averager, which asks a rank for the consensus that it lacks"
        return [_reason("E11", rank, what, co.joins.lost_at, None, shared.voters, rule="M-44")]
    if co.cycle.phase is PENDING:
        waits = _in_cycle(shared, peer)
        if waits is not None:
            return [waits]
    if peer.throttled is LEAD:
        numbers = {"lead": peer.steps - co.low, "limit": co.config.max_batch_diff}
        since = peer.since.parked
        return [_reason("E08", rank, "is parked by the lead limit", since, None, shared.holding, numbers)]
    held = co.book.holdings(rank)
    if held.in_flight_batches:
        return [] if peer.satisfied else [_training(co, peer)]
    return [_idle(shared, peer, bool(held.plans))]


def _training(co: Coordinator, peer: Peer) -> Reason:
    """E01, E02, E14: it owes steps and has what to take them on. What a step may take is learned (M-11)."""
    known, clock = learned(co, peer, STEP), step_clock(co, peer)
    since = max(peer.last_progress, peer.since.work)
    numbers = {"steps": peer.steps, "quota": peer.quota, **_learned(known)}
    if STEP in peer.climb.suspected and co.now > clock + known.seconds:
        until, then = _next_rung(co, peer, STEP, clock, known)
        return _reason("E14", peer.rank, _late("step", known), since, until, (peer.rank,), numbers, then=then)
    code, until = "E02" if peer.total_steps == 0 else "E01", max(clock, since) + known.seconds
    return _reason(code, peer.rank, f"trains: {peer.steps} of {peer.quota} steps", since, until, (), numbers)


def _idle(shared: _Shared, peer: Peer, holds_plan: bool) -> Reason:
    """E03 to E06, E24: nothing to train, and why nothing is given."""
    co, rank, since = shared.co, peer.rank, peer.since.idle
    if holds_plan and not co.stopping:
        what = "has trained its plan, its Metrics are awaited"
        return _reason("E05", rank, what, peer.last_progress, None, (rank,))
    code = why_held(co.desk, rank)
    if code == "E04":
        return _at_barrier(shared, rank, since)
    numbers = {"steps": peer.steps, "quota": peer.quota, "left": 0} if code == "E03" else None
    since = max(since, co.run.stopped_at) if code == "E24" else since
    return _reason(code, rank, HELD[code], since, None, shared.holding, numbers)


def _at_barrier(shared: _Shared, rank: int, since: float) -> Reason:
    """E04: the next epoch begins when this one is closed (D-4), and in whole shares only with everyone there (D-21)."""
    waits = shared.holding_plans
    if rank in waits:
        waits = tuple(other for other in waits if other != rank)
    numbers = {"epoch": shared.co.book.first_live}
    return _reason("E04", rank, HELD["E04"], since, None, waits or shared.detached, numbers)


def _outside(shared: _Shared, peer: Peer) -> Reason:
    """A rank without a vote: what it has to do or to get before it is promoted."""
    co, rank = shared.co, peer.rank
    if peer.phase == PeerPhase.LAGGING and not peer.back:
        return _reason("E16", rank, "was excluded; it comes back by itself", peer.since.seat, None, (rank,))
    transfer = co.joins.open.get(rank)
    if transfer is not None:
        donor = (transfer.donor[0],)
        what = "joins: its frozen and local state is on the way"
        return _reason("E17", rank, what, peer.since.donor, None, donor)
    what = f"joins: becomes a voter at the end of a cycle; {peer.missed} missed so far"
    numbers = {"missed": peer.missed, "patience": co.config.join_patience}
    return _reason("E18", rank, what, peer.since.seat, None, shared.voters, numbers)


def _escalated(co: Coordinator, peer: Peer) -> Reason | None:
    """What the ladder has said about a rank in this cycle, with the numbers it went by (M-12, M-13)."""
    climb = peer.climb
    if climb.stage is None or climb.stage not in climb.suspected:
        return None
    known = learned(co, peer, climb.stage)
    what = _late(climb.stage.name.lower(), known)
    until, then = _next_rung(co, peer, climb.stage, climb.evidence_at, known)
    if not climb.nudges:
        return _reason("E14", peer.rank, what, climb.began_at, until, (peer.rank,), _learned(known), then=then)
    numbers = {"nudges": climb.nudges, **_learned(known)}
    what += f"; asked again {climb.nudges} times"
    return _reason("E15", peer.rank, what, climb.began_at, until, (peer.rank,), numbers, then=then)


def _late(name: str, known: Learned) -> str:
    what = f"is late with its {name}: {known.seconds:.3g} s allowed"
    if known.median is not None and known.deviation is not None:
        what += f" (median {known.median:.3g}, deviation {known.deviation:.3g} of {known.count})"
    return what


def _next_rung(co: Coordinator, peer: Peer, stage: Stage, clock: float, known: Learned) -> tuple[float | None, str]:
    """When something more is done about who is late, and what: it is asked again, excluded, or the run is over (M-13 to
    M-16)."""
    coming = [step for step in rungs(co, peer, stage) if clock + step * known.seconds >= co.now]
    if not coming:
        return gates.ceiling(co), ""
    step = min(coming)
    excluded = co.config.laggards == "exclude" and step == EXCLUDE_AT
    return clock + step * known.seconds, "it is excluded" if excluded else "it is asked again"


def _learned(known: Learned) -> Numbers:
    return {"deadline": known.seconds, "median": known.median, "deviation": known.deviation, "count": known.count}


def _owes(co: Coordinator, peer: Peer) -> bool:
    """Whether it takes part in the pending cycle and has not acknowledged it."""
    return co.cycle.takes_part(peer.rank) and not peer.acked


def _in_cycle(shared: _Shared, peer: Peer) -> Reason | None:
    """What a rank waits for, or owes, in a pending cycle; None if it may go on."""
    co, cycle = shared.co, shared.co.cycle
    ceiling = max(cycle.pending_since, cycle.last_evidence_at) + co.config.reduce_ceiling
    if _owes(co, peer):
        owes = _owed(shared, peer, ceiling)
        if owes is not None:
            return owes
    if co.config.barrier_paced:
        return _reason("E07", peer.rank, "is parked for the average", peer.climb.began_at, ceiling, shared.in_stage)
    return None


def _owed(shared: _Shared, peer: Peer, ceiling: float) -> Reason | None:
    """E09 to E15: the stage in which this rank is (M-10). None if it is in none: its part is done, and those who are
    in one hold the cycle."""
    co, rank, stage, since = shared.co, peer.rank, peer.climb.stage, peer.climb.began_at
    escalated = _escalated(co, peer)
    if escalated is not None:
        return escalated
    if co.config.is_collective:
        late = shared.outside
        what = "is on its way into" if rank in late or not late else "is in"
        return _reason("E13", rank, f"{what} the collective of cycle {co.cycle.number}", since, ceiling,
                       late or shared.in_stage)  # fmt: skip
    if stage is None:
        return None if shared.in_stage else _reason("E11", rank, "waits for the averager", since, ceiling, ())
    known = learned(co, peer, stage)
    until, numbers = peer.climb.evidence_at + known.seconds, _learned(known)
    if stage == Stage.SNAPSHOT:
        return _reason("E09", rank, "owes its snapshot", since, until, (rank,), numbers)
    if stage == Stage.UPLOAD:
        size = shared.upload_bytes
        what = f"owes its upload: {peer.bytes_in} of {size} bytes are here"
        numbers = {"bytes": peer.bytes_in, "of": size, **numbers}
        return _reason("E10", rank, what, since, until, (rank,), numbers)
    return _reason("E12", rank, "owes its acknowledgement", since, until, (rank,), numbers)


def _reason(code: str, rank: int | None, what: str, since: float, until: float | None, waiting_for: tuple[int, ...],
            numbers: Numbers | None = None, action: str = "", *, rule: str = "", then: str = "") -> Reason:  # fmt: skip
    return new_reason(code, rank, what, rule or CODES[code].rule, since, until, waiting_for, numbers or {}, action,
                      "" if until is None else then or CODES[code].then)  # fmt: skip
