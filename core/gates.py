"""What is counted before a gate opens, and when waiting for one has to end (protocol C-4, G-1, G-8, M-15, M-16).

Two counters stand for the firing gate: `short`, voters that are not satisfied yet, and `movers`, voters with a step. A
`Batch` keeps both by looking at its own rank only; whatever else may change them is followed by `count_gate`, which
looks at everyone. Time opens no gate: it only ends a run in which nothing moves any more. When each of this has its
turn is said in `table_joint.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import attachment, ladder, recovery
from .cadence_inputs import hardware_of, window_cap
from .dispatch.book import Book
from .effects import Alert, Emit
from .errors import InvariantError
from .ledger import reopen
from .messages import ThrottleReason
from .phases import IDLE, PENDING, UNDER_WAY
from .policies import Cadence, overshoot
from .policy_choice import names_of, own
from .schema import dataset_length

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .dispatch.desk import FinalWindow
    from .peer import Peer

__all__ = [
    "begin", "cadence_of", "ceiling", "count_gate", "hand_back", "handed_out", "lead_exceeded", "limit_lead",
    "limits_lead", "met", "note_satisfied", "overdue", "plan_ended",
]  # fmt: skip

LEAD = ThrottleReason.LEAD
"""Asked for about every rank; see `phases.py`."""


# --- what the joint table asks for -----------------------------------------------------------------------------------


def hand_back(co: Coordinator) -> None:
    """Batches came back, or somebody who can be given some (D-7, D-16): they go out again."""
    co.returned = False
    co.desk.redistribute()


def limits_lead(co: Coordinator) -> bool:
    """Whether the run has a lead limit at all (G-8)."""
    return co.config.max_batch_diff is not None


def limit_lead(co: Coordinator) -> None:
    """G-8: measured from who is the slowest now; who is parked is waited for no longer."""
    count_gate(co)
    if co.desk.limit_lead():
        count_gate(co)


def lead_exceeded(co: Coordinator) -> bool:
    """Whether a rank is to be parked that was not when the lead limit was judged: a finish comes later in a pass, and
    an async rank carries steps over it. No report that follows would have to be one that takes the pass (C-4)."""
    count_gate(co)
    return bool(co.desk.leading())


def begin(co: Coordinator) -> None:
    """Training begins if the run has just formed (C-25): the book, the balancer, the first epoch that is not closed
    (D-23)."""
    if co.starting:
        co.starting = False
        _start(co)


def overdue(co: Coordinator) -> bool:
    """Whether what is missing is missing for too long (M-15, M-16)."""
    due = ceiling(co)
    return due is not None and co.now > due


def handed_out(co: Coordinator) -> tuple[int, int, FinalWindow | None]:
    """How far dispatch has come. What is handed out or closed after the gates were judged may change them; nothing else
    does."""
    return co.book.next_plan_id, co.book.last_closed_epoch, co.desk.window


# --- counting --------------------------------------------------------------------------------------------------------


def met(peer: Peer, quiesced: bool) -> bool:
    """Whether the firing gate waits no longer for this voter, of whom the desk says whether it is quiesced (G-1). One
    that is parked by the lead limit has met its quota, for only the average releases it (G-5)."""
    return quiesced or peer.steps >= peer.quota or peer.throttled == LEAD


def count_gate(co: Coordinator) -> None:
    """The counters of C-4 anew, after something other than a step has changed."""
    short = movers = 0
    low = math.inf
    quotas, quiesced = co.desk.quotas(co.voters), co.desk.quiesced(co.voters)
    for rank in co.voters:
        peer = co.peers[rank]
        peer.quota = quotas[rank]
        peer.satisfied = met(peer, rank in quiesced)
        if not peer.satisfied:
            short += 1
        if peer.steps:
            movers += 1
        if peer.steps < low and rank not in quiesced:
            low = peer.steps
    co.short, co.movers, co.low = short, movers, low
    if not 0 < short < len(co.voters):
        co.cycle.waiting_since = None
    elif co.cycle.waiting_since is None:
        co.cycle.waiting_since = co.now
    limit = co.config.max_batch_diff
    co.park_above = math.inf if limit is None else low + limit


def plan_ended(co: Coordinator, peer: Peer) -> None:
    """C-4 for the end of a plan: the next one goes out at once (D-9), looking at this rank alone. The pass is taken if
    it matters to others: batches came back, the last free one was given away, the lead limit counts who has work, or
    nobody has to wait for this rank any more because its part of a final window is done, of which others still have
    some (D-7). While batches are free a rank is done in no other way but by its steps, and those `count_batch` sees."""
    desk = co.desk
    if co.returned or co.config.max_batch_diff is not None or co.run.phase != UNDER_WAY:
        co.urgent = True
        return
    desk.follow_up()
    if desk.advice_due or desk.used_up() or (not peer.satisfied and met(peer, bool(desk.quiesced((peer.rank,))))):
        co.urgent = True


def note_satisfied(co: Coordinator, peer: Peer) -> None:
    """The gate waits for this rank no longer (G-1); from the first one on, for the others (M-16): then their patience
    with them begins, and its end is a deadline as any other (C-4)."""
    peer.satisfied = True
    co.short -= 1
    if co.cycle.waiting_since is None:
        co.cycle.waiting_since = co.now
        co.deadline = min(co.deadline, ladder.next_due(co))


def ceiling(co: Coordinator) -> float | None:
    """When missing evidence becomes a stall (M-15, M-16), exceeded strictly; None when nobody is waited for."""
    cycle = co.cycle
    if co.run.phase is not UNDER_WAY or attachment.detached(co):
        return None  # the window of a rank without a link ends that wait (M-42)
    if cycle.phase is PENDING:
        return max(cycle.pending_since, cycle.last_evidence_at) + co.config.reduce_ceiling
    if cycle.phase is not IDLE:
        return None
    # Whoever is below quota keeps the cohort waiting, also where that is all of it: then each waits for all others, and
    # a lone rank for itself. The ladder says nothing then, because nobody has done its part yet; but a run in which
    # nobody trains any more has to end as well (I38).
    owing = [peer for peer in map(co.peers.__getitem__, co.voters) if not peer.satisfied]
    if not owing:
        return None
    limit = co.config.window_ceiling
    if any([peer.total_steps == 0 for peer in owing]):
        limit = max(limit, co.config.scaled(co.config.first_step_s))
    busy = co.actions.duties
    moved = [_moved_at(co, peer) for peer in owing] if busy else [peer.last_progress for peer in owing]
    return max(cycle.idle_since, *moved) + limit


def _moved_at(co: Coordinator, peer: Peer) -> float:
    """The newest progress of a rank; a duty counts as such for the role limit (M-11)."""
    duty = co.actions.under_way(peer.rank)
    until = None if duty is None else co.actions.until(duty)
    return peer.last_progress if until is None else max(peer.last_progress, min(co.now, until))


def _start(co: Coordinator) -> None:
    config = co.config
    if config.batch_size is None or config.num_epochs is None or co.dataset is None:
        raise InvariantError("training begins, but the door let a rank in before the run was fully described (M-5)")
    picks = dataset_length(co.dataset) * config.repeats
    co.book = Book(picks, config.batch_size, config.epoch_splits, config.num_epochs, config.drop_last,
                   next_plan_id=recovery.first_number(co.generation) + 1)  # fmt: skip
    left_out = co.book.never_trained
    if left_out:
        co.emit(Alert("tail", "data set", f"{left_out} of {picks} samples are in no whole batch of {config.batch_size} "
                      "and with one pass have no second chance: nobody trains them; set drop_last = False, or a "
                      "batch_size that divides them (D-2)"))  # fmt: skip
    co.balancer = cadence_of(co, co.voters)
    brought = own(names_of(co))
    if brought:
        co.emit(Emit("Policies", brought))
    reopen(co)
    if config.policy == "async":
        for rank in co.voters:
            overshoot(co, rank)
    co.roles.assign()
    co.actions.begin()
    if co.book.first_live < config.num_epochs:
        co.desk.dispatch_epoch(co.book.first_live)


def cadence_of(co: Coordinator, ranks: list[int]) -> Cadence:
    """A fresh balancer for these ranks, as the config and the policies of the coordinator say."""
    config = co.config
    if config.batch_size is None or co.dataset is None:
        raise InvariantError("a balancer is made, but the run is not fully described yet (M-5)")
    return co.policies.cadence(
        ranks=ranks, anchor=config.first_anchor, min_anchor=config.first_min_anchor,
        max_anchor=config.max_anchor, overhead_target=config.overhead_target,
        growth_applies=config.policy != "sync", max_batch_diff=config.max_batch_diff,
        cap=window_cap(dataset_length(co.dataset) * config.repeats, config.epoch_splits, config.batch_size),
        relax_allowed=config.relax_up, speed_ratios=_by_rank(config.speed_ratios),
        anchor_ratios=_by_rank(config.anchor_hint),
        hardware=hardware_of({rank: co.peers[rank].devices for rank in ranks}),
    )  # fmt: skip


def _by_rank(ratios: tuple[float, ...] | None) -> dict[int, float] | None:
    """A knob that has one number per rank."""
    return None if ratios is None else dict(enumerate(ratios))
