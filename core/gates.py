"""Steps 6 to 9 of the pass: what is counted, and when a count opens a gate (protocol C-3, C-4, G-1, G-8, M-15, M-16).

Two counters stand for the firing gate: `short`, voters that are not satisfied yet, and `movers`, voters with a step. A
`Batch` keeps both by looking at its own rank only; whatever else may change them is followed by `count_gate`, which
looks at everyone. Time opens no gate: it only ends a run in which nothing moves any more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import ladder
from .cadence import Balancer
from .cadence_inputs import window_cap
from .dispatch.book import Book
from .errors import InvariantError
from .ledger import reopen
from .messages import ThrottleReason
from .phases import CyclePhase, RunPhase
from .schema import dataset_length

if TYPE_CHECKING:
    from .coordinator import Coordinator

__all__ = ["ceiling", "count_gate", "judge"]


def judge(co: Coordinator) -> None:
    """Lead limit, finish, ladder, ceilings, arm, in this order."""
    if co.run.phase not in (RunPhase.FORMING, RunPhase.TRAINING):
        return
    count_gate(co)
    if co.run.phase == RunPhase.TRAINING and co.desk.limit_lead():
        count_gate(co)
    if co.cycle.phase == CyclePhase.PENDING:
        co.cycle_engine.fire(co.cycle, "Judge", None)
        if co.starting:
            _start(co)
        count_gate(co)
    ladder.judge(co)
    due = ceiling(co)
    if due is not None and co.now > due:
        co.cycle_engine.fire(co.cycle, "Ceiling", None)
    if co.cycle.phase == CyclePhase.IDLE:
        co.cycle_engine.fire(co.cycle, "Judge", None)


def count_gate(co: Coordinator) -> None:
    """The counters of C-4 anew, after something other than a step has changed."""
    short = movers = 0
    low = math.inf
    desk, lead = co.desk, ThrottleReason.LEAD
    for rank in co.voters:
        peer = co.peers[rank]
        peer.quota = desk.quota(rank)
        quiesced = desk.quiesced(rank)
        peer.satisfied = quiesced or peer.steps >= peer.quota or peer.throttled == lead
        if not peer.satisfied:
            short += 1
        if peer.steps:
            movers += 1
        if not quiesced and peer.steps < low:
            low = peer.steps
    co.short, co.movers, co.low = short, movers, low
    if not 0 < short < len(co.voters):
        co.cycle.waiting_since = None
    elif co.cycle.waiting_since is None:
        co.cycle.waiting_since = co.now
    limit = co.config.max_batch_diff
    co.park_above = math.inf if limit is None else low + limit


def ceiling(co: Coordinator) -> float | None:
    """When missing evidence becomes a stall (M-15, M-16), exceeded strictly; None when nobody waits for anybody."""
    cycle = co.cycle
    if co.run.phase != RunPhase.TRAINING or any(co.peers[rank].detached for rank in co.alive):
        return None  # the window of a rank without a link ends that wait (M-42)
    if cycle.phase == CyclePhase.PENDING:
        return max(cycle.pending_since, cycle.last_evidence_at) + co.config.reduce_ceiling
    if cycle.phase != CyclePhase.IDLE:
        return None
    owing = ladder.waiting_steps(co)
    if not owing:
        return None
    limit = co.config.window_ceiling
    if any(peer.total_steps == 0 for peer in owing):
        limit = max(limit, co.config.scaled(co.config.first_step_s))
    return max(cycle.idle_since, max(peer.last_progress for peer in owing)) + limit


def _start(co: Coordinator) -> None:
    """Training begins (C-25): the book, the balancer, the first epoch that is not closed (D-23)."""
    co.starting = False
    config = co.config
    if config.batch_size is None or config.num_epochs is None or co.dataset is None:
        raise InvariantError("training begins, but the door let a rank in before the run was fully described (M-5)")
    picks = dataset_length(co.dataset) * config.repeats
    co.book = Book(picks, config.batch_size, config.epoch_splits, config.num_epochs, config.drop_last)
    given = config.speed_ratios
    co.balancer = Balancer(
        ranks=co.voters, anchor=config.first_anchor, min_anchor=config.first_min_anchor,
        max_anchor=config.max_anchor, overhead_target=config.overhead_target,
        growth_applies=config.policy != "sync", max_batch_diff=config.max_batch_diff,
        cap=window_cap(picks, config.epoch_splits, config.batch_size), relax_allowed=config.relax_up,
        speed_ratios=None if given is None else dict(enumerate(given)),
    )  # fmt: skip
    reopen(co)
    if config.policy == "async":
        for rank in co.voters:
            co.balancer.overshoot(rank, None, config.max_overshoot)
    co.roles.assign()
    co.actions.begin()
    if co.book.first_live < config.num_epochs:
        co.desk.dispatch_epoch(co.book.first_live)
