"""What a finished cycle leaves behind, in the exact order of C-15.

The order is the point. Steps fall before any plan is sized, or every tail folds a one-batch chunk. Version and base
travel with the consensus in one message, or early batches of a window use an earlier schedule position. The nudge of
the meta-controller goes through the seam before the guard's verdict, or a Stable of the same cycle erases it. A guard
or policy that raises is alerted and read as Stable; every later step still runs, once (C-13).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import attrs

from . import in_place
from . import messages as m
from .cadence_inputs import NudgeDown, Stable, SuppressGrowth, Verdict, WindowReport
from .effects import Alert, CloseRound, Emit
from .guard import GuardInput, telemetry
from .phases import VOTER
from .policies import UNCHANGED, apply, consulted, overshoot, readings

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .cycle import Cycle

__all__ = ["finish_cycle", "finish_formation"]

DIVERGED_CYCLES = 3
"""Cycles in a row in which nothing but non-finite contributions arrived, before the run ends (D-12)."""
UNHEALTHY_REFUSALS = 3
"""Refusals in a row for non-finite values that end an incarnation (D-12)."""


def finish_cycle(cycle: Cycle) -> None:
    """C-15 from 1 to 13."""
    co = cycle.co
    reduce_ms = (cycle.last_ack_at - cycle.armed_at) * 1000
    merged, refused, realized = _accepted(cycle)
    cycle.last_reduce_ms = reduce_ms
    _judge(cycle, merged, realized, reduce_ms)
    _settle_ledger(cycle, merged, refused, realized)
    _promote(cycle)
    co.desk.refresh_window(finishing=True)
    _fan_out(cycle, merged, refused, realized)
    _tail(cycle)
    cycle.finished = cycle.number
    cycle.idle_since = co.now
    co.emit(CloseRound(cycle.key))
    co.emit(Emit("AverageEnd", {"cycle": cycle.number, "ms": (co.now - cycle.armed_at) * 1000}))
    co.actions.finished(realized)
    co.emit(Emit("SyncEnd", {"cycle": cycle.number, "version": cycle.version}))
    _tell_fenced(co)
    _check_health(cycle, refused, realized)


def finish_formation(cycle: Cycle) -> None:
    """Cycle 0: C-15.6 to 13 only; everyone that acknowledged becomes a voter (M-6)."""
    co, checked = cycle.co, cycle.checking
    _promote(cycle)
    if checked:
        co.joins.unsent()
    co.tell(co.voters, m.Update, cycle=0, attempt=cycle.attempt, version=cycle.version,
            global_step=cycle.global_step, outcome=m.Outcome.OBSERVER, merged_steps=0)  # fmt: skip
    co.tell(co.voters, m.SetGlobalStep, version=cycle.version, global_step=cycle.global_step)
    co.emit(CloseRound(cycle.key))  # of cycle 0, whatever its ranks remember (M-45)
    cycle.finished, cycle.number = 0, max(cycle.number, cycle.known)
    cycle.idle_since = co.now
    co.emit(Emit("AverageEnd", {"cycle": 0, "ms": (co.now - cycle.armed_at) * 1000}))
    co.emit(Emit("SyncEnd", {"cycle": 0, "version": cycle.version}))
    co.run.formed()


def _accepted(cycle: Cycle) -> tuple[dict[int, int], dict[int, m.Refusal], bool]:
    """C-15.1: merged steps of each member, who was refused and why, and whether there is a consensus at all."""
    if cycle.co.config.is_collective:
        return in_place.accepted(cycle)
    reduced = cycle.reduced
    if reduced is None:
        return dict.fromkeys(cycle.members, 0), {}, False
    accepted = set(reduced.accepted) if reduced.realized else set()
    merged = {rank: cycle.co.shipped_by(rank) if rank in accepted else 0 for rank in cycle.members}
    return merged, dict(reduced.refused), reduced.realized


def _judge(cycle: Cycle, merged: dict[int, int], realized: bool, reduce_ms: float) -> None:
    """C-15.2 to 4: balancer, guard, meta-controller, version and counters. An unrealized cycle has no verdict (B-30):
    what the balancer proposed for it is forgotten with the next report."""
    co = cycle.co
    anchor_before = co.balancer.anchor
    co.actions.stage_slack()
    window = _window_report(cycle, reduce_ms)
    consulted(co, "cadence.report", lambda: co.balancer.report(window, co.voters), None, UNCHANGED)
    co.roles.calibrate()
    verdict: Verdict | None = None
    seen, names = _guard_input(cycle, merged), {rank: str(rank) for rank in co.peers}
    if realized:
        verdict = _verdict(cycle, seen)
        _nudge(co, verdict)
        cycle.version += 1
    cycle.sync_rounds += 1
    if verdict is not None:
        apply(co, verdict)
    if isinstance(verdict, NudgeDown):
        co.emit(Alert("drift", f"cycle {cycle.number}", "the ranks drift apart; the window is shortened"))
    if co.config.policy == "async":
        for rank in co.voters:
            overshoot(co, rank)
    cycle_steps = sum(merged.values())
    cycle.global_step += cycle_steps
    if verdict is not None:
        _tell_divergence(cycle, seen, verdict, names)
    co.emit(Emit("Cycle", _cycle_facts(cycle, merged, realized, reduce_ms, verdict, names)))
    if co.balancer.anchor != anchor_before:
        co.emit(Emit("AnchorChanged", {"from": anchor_before, "to": co.balancer.anchor}))


def _verdict(cycle: Cycle, seen: GuardInput) -> Verdict:
    """What the guard says; where it raises, or says what is no verdict, Stable (C-13)."""
    co = cycle.co
    stable: Verdict = Stable()
    verdict = consulted(co, "guard", lambda: co.guard.observe(seen), stable, "read as Stable")
    if isinstance(verdict, Stable):
        return Stable(verdict.relax_up or co.config.relax_up)
    if isinstance(verdict, (SuppressGrowth, NudgeDown)):
        return verdict
    co.emit(Alert("callback_failed", "guard", f"{verdict!r} is no verdict; read as Stable"))
    return Stable()


def _nudge(co: Coordinator, verdict: Verdict) -> None:
    """B-40: the meta-controller's nudge goes through the seam first, and is told by itself: what the guard takes on top
    in the same cycle is not its doing. One that raises, or says what is no nudge, has not nudged (C-13)."""
    meta = co.meta
    if meta is None:
        return
    rates = [co.peers[r].lr for r in co.voters if co.peers[r].lr is not None]
    lr, before, phase = rates[0] if rates else None, co.balancer.anchor, co.balancer.phase
    nudge = consulted(co, "meta", lambda: meta.observe(lr, before, verdict, phase), None, "read as no nudge")
    if isinstance(nudge, NudgeDown):
        apply(co, nudge)
        co.emit(Emit("MetaNudge", {"factor": nudge.factor, "from": before, "to": co.balancer.anchor}))
    elif nudge is not None:
        co.emit(Alert("callback_failed", "meta", f"{nudge!r} is no nudge; read as none"))


def _tell_divergence(cycle: Cycle, seen: GuardInput, verdict: Verdict, names: Mapping[int, str]) -> None:
    """What the guard saw and said, for people (O-1, B-31), and the aggregate of the epoch (C-15.4). Nothing of it may
    fail: a guard of the embedder's need not say whether it wants telemetry."""
    co, norms = cycle.co, seen.pre_norms
    epoch = co.actions.epoch_label()
    co.desk.note_divergence(epoch, seen.signal)
    co.emit(Emit("Divergence", {
        "d": seen.signal, "k_used": seen.k_used, "k_max": seen.k_max, "version": cycle.version,
        "deltas": _by_rank(names, seen.divergences, seen.divergences.values()),
        "norms": None if norms is None else _by_rank(names, norms, norms.values()), "epoch": epoch,
    }))  # fmt: skip
    if getattr(co.guard, "reports_telemetry", False):
        told = telemetry(seen)
        co.emit(Emit("GuardTelemetry", {
            "cycle": cycle.number, "divergence": told.divergence,
            "cosines": _by_rank(names, told.cosines, told.cosines.values()),
            "shifts": _by_rank(names, told.shifts, told.shifts.values()),
        }))  # fmt: skip
    co.emit(Emit("Verdict", {"cycle": cycle.number, "verdict": type(verdict).__name__, **attrs.asdict(verdict)}))


def _by_rank(names: Mapping[int, str], ranks: Iterable[int], facts: Iterable[Any]) -> dict[str, Any]:
    """What is known of each of these ranks, as the facts of an event hold it: ranks are text there, as in JSON. That is
    made once for all of them, because a finish names every rank in nine places."""
    return dict(zip(map(names.__getitem__, ranks), facts, strict=True))


def _cycle_facts(
    cycle: Cycle, merged: dict[int, int], realized: bool, reduce_ms: float, verdict: Verdict | None,
    names: Mapping[int, str],
) -> dict[str, Any]:  # fmt: skip
    co = cycle.co
    voters, counts, peers = co.voters, co.balancer.counts, [co.peers[rank] for rank in co.voters]
    windows = [peer.window for peer in peers]
    return {
        "cycle": cycle.number, "attempt": cycle.attempt, "version": cycle.version, "realized": realized,
        "merged": _by_rank(names, merged, merged.values()), "global_step": cycle.global_step,
        "reduce_ms": reduce_ms, "anchor": co.balancer.anchor,
        "verdict": None if verdict is None else type(verdict).__name__,
        "counts": _by_rank(names, voters, [counts[rank] for rank in voters]),
        "divergence": _by_rank(names, voters, [peer.divergence for peer in peers]),
        "loss": _by_rank(names, voters, [one.loss_sum / one.loss_count if one.loss_count else None for one in windows]),
        "step_ms": _by_rank(names, voters, readings(co, voters)),
    }  # fmt: skip


def _window_report(cycle: Cycle, reduce_ms: float) -> WindowReport:
    voters = cycle.co.voters
    windows = [cycle.co.peers[rank].window for rank in voters]
    return WindowReport(
        wall_ms=dict(zip(voters, [window.wall_ms for window in windows], strict=True)),
        wall_batches=dict(zip(voters, [window.wall_batches for window in windows], strict=True)),
        delivered_ms=dict(zip(voters, [window.delivered_ms for window in windows], strict=True)),
        delivered_batches=dict(zip(voters, [window.delivered_batches for window in windows], strict=True)),
        fill_ms=dict(zip(voters, [window.fill_ms for window in windows], strict=True)),
        reduce_ms=reduce_ms,
        capable=cycle.co.config.policy != "sync",
    )


def _guard_input(cycle: Cycle, merged: dict[int, int]) -> GuardInput:
    voters = set(cycle.co.voters)
    peers = {rank: cycle.co.peers[rank] for rank in cycle.members if rank in voters}
    norms = {rank: norm for rank, peer in peers.items() if (norm := peer.pre_norm) is not None}
    posts = [norm for peer in peers.values() if (norm := peer.post_norm) is not None]
    return GuardInput(
        divergences={rank: peer.divergence or 0.0 for rank, peer in peers.items()},
        k_used=sum(merged.values()), k_max=max(merged.values(), default=0),
        pre_norms=norms if len(norms) == len(peers) else None, post_norm=posts[0] if posts else None,
    )  # fmt: skip


def _settle_ledger(cycle: Cycle, merged: dict[int, int], refused: dict[int, m.Refusal], realized: bool) -> None:
    """C-15.5: merged picks become covered, refused ones return, limbo ends, steps fall."""
    co = cycle.co
    voters = [peer for peer in map(co.peers.__getitem__, cycle.members) if peer.phase == VOTER]
    steps = {peer.rank: merged[peer.rank] for peer in voters}
    covered = co.book.resolve_limbo(merged) + co.book.merge(steps)
    for rank in co.alive:  # O-5: also who is in no cycle, or it would seem to take part
        co.peers[rank].cycles += 1
    for rank, count in merged.items():
        if count:
            co.peers[rank].refusals_in_row = 0  # D-12: also of one that was excluded meanwhile (M-14)
    for peer in voters:
        rank = peer.rank
        if steps[rank]:
            peer.steps -= steps[rank]
            peer.merges, peer.merged_at, peer.merged_in = peer.merges + 1, co.now, cycle.number
        if rank in refused:
            count = co.book.refuse(rank, cycle.number)
            peer.steps -= count
            peer.void_before = cycle.number
            peer.refusals_in_row = peer.refusals_in_row + 1 if refused[rank] == m.Refusal.NONFINITE else 0
            peer.since.refused = co.now if peer.refusals_in_row == 1 else peer.since.refused
            co.returned = True
            co.emit(Emit("Refused", {"rank": rank, "why": refused[rank].name.lower(), "steps": count}))
            co.emit(Alert("refused", f"rank {rank}", f"contribution of cycle {cycle.number} refused: "
                          f"{refused[rank].name.lower()}; {count} steps are trained again"))  # fmt: skip
    co.desk.note_covered(covered)
    co.desk.tell_parts()
    co.emit(Emit("Covered", {
        "cycle": cycle.number, "replayed": co.book.replayed,
        "slices": list(map(list, covered)),
    }))  # fmt: skip


def _promote(cycle: Cycle) -> None:
    """C-15.6: an observer that holds this consensus whole becomes a voter (M-25); the others have missed one (M-26). Of
    a cycle without a consensus an observer inside a collective has nothing that the voters have; where there is no
    voter, the session has given it all that the version is (M-45)."""
    co = cycle.co
    given = not co.voters and co.lost_tail.reseating
    for rank in cycle.observers:
        peer = co.peers[rank]
        if not cycle.takes_part(rank):
            continue
        if not peer.acked:
            peer.missed += 1
        elif peer.outcome != m.Outcome.UNREALIZED or given:
            co.promote(peer)


def _fan_out(cycle: Cycle, merged: dict[int, int], refused: dict[int, m.Refusal], realized: bool) -> None:
    """C-15.7 to 9: compose, then one Update per voter; a failure of one changes nothing for another (C-14)."""
    co = cycle.co
    plans = {} if co.stopping else co.desk.compose()
    usual = m.Outcome.MERGED if realized else m.Outcome.UNREALIZED
    outcomes = dict.fromkeys(refused, m.Outcome.REFUSED) | dict.fromkeys(cycle.observers, m.Outcome.OBSERVER)
    own: dict[str, Sequence[Any]] = {
        "outcome": list(map(outcomes.get, co.voters, repeat(usual))),
        "merged_steps": list(map(merged.get, co.voters, repeat(0))),
        "next_plan": list(map(plans.get, co.voters)),
    }
    co.tell(co.voters, m.Update, own, cycle=cycle.number, attempt=cycle.attempt, version=cycle.version,
            global_step=cycle.global_step)  # fmt: skip
    co.tell(co.voters, m.SetGlobalStep, version=cycle.version, global_step=cycle.global_step)


def _tail(cycle: Cycle) -> None:
    """C-15.10: a new window begins."""
    co = cycle.co
    for rank in co.voters:
        peer = co.peers[rank]
        peer.window.reset()
        peer.climb.suspected = ()
        peer.throttled = None
        peer.divergence = peer.pre_norm = peer.post_norm = peer.digest = None
    co.returned = False
    co.desk.holds.clear()
    co.desk.hand_out()
    co.desk.advise()


def _tell_fenced(co: Coordinator) -> None:
    """One event per rank and reason for what was fenced since this was told last (O-1): the timeline need not hold
    every stale message (N-6)."""
    for (rank, why), count in co.fenced.items():
        fresh = count - co.fenced_told.get((rank, why), 0)
        if fresh:
            co.fenced_told[rank, why] = count
            who = None if rank == m.NO_RANK else rank
            co.emit(Emit("Fenced", {"rank": who, "why": why, "count": fresh}))


def _check_health(cycle: Cycle, refused: dict[int, m.Refusal], realized: bool) -> None:
    """D-12: a rank that only sends rubbish goes; a cohort that only sends rubbish is saved and stopped."""
    co = cycle.co
    sick = not realized and any(why == m.Refusal.NONFINITE for why in refused.values())
    cycle.sick_cycles = cycle.sick_cycles + 1 if sick else 0
    if cycle.sick_cycles >= DIVERGED_CYCLES:
        co.emit(Alert("diverged", "cohort", "no finite contribution in three cycles", critical=True))
        co.condemn(m.SaveReason.DIVERGED, "no rank had finite parameters in three cycles in a row")
        return  # who else would be left to save anything?
    for rank in co.voters:
        if co.peers[rank].refusals_in_row >= UNHEALTHY_REFUSALS:
            co.lose(rank, "unhealthy: non-finite parameters three times in a row")
