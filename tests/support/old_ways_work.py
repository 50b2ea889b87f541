"""Old ways of handing out work, of the worker and of the balancer, put back (see `mutants.py`)."""

from __future__ import annotations

from typing import Any

import attrs

from paceline.core import messages as m
from paceline.core import peer as peers
from paceline.core.cadence import Balancer
from paceline.core.dispatch.book import Book
from paceline.core.dispatch.desk import Desk
from paceline.core.engine import SAME, Kind
from paceline.core.phases import PeerPhase
from paceline.core.worker_orders import WorkerOrders

from .mutants import OldWays, Patch, around, change_rows, raise_for_a_bad_link

OLD_WAYS = OldWays()

# --- dispatch ------------------------------------------------------------------------------------------------------


@OLD_WAYS.old_way("17.1 #10")
def two_chunks_at_once(patch: Patch) -> None:
    """A plan rides in the Update, and the end of the old one brings another."""

    def change(may: Any, desk: Desk, peer: Any) -> bool:
        return peer.attached and len(desk.co.book.holdings(peer.rank).plans) < 2

    around(patch, Desk, "may_serve", change)


@OLD_WAYS.old_way("17.1 #11")
def exempt_from_the_budget(patch: Patch) -> None:
    """The budget of a window does not hold for everybody."""
    patch.setattr(Desk, "left", lambda desk, rank: 1 << 20)


@OLD_WAYS.old_way("17.2 #17")
def not_capped_by_what_is_left(patch: Patch) -> None:
    """A full window again, whatever the rank has had of this one."""

    def change(size: Any, desk: Desk, rank: int, pool: Any) -> int:
        return min(desk.co.balancer.counts[rank], pool.free)

    around(patch, Desk, "size", change)


@OLD_WAYS.old_way("17.2 #19")
def the_probe_is_not_capped(patch: Patch) -> None:
    """The first chunk of an async rank is a tenth of its part of the data."""

    def change(size: Any, desk: Desk, rank: int, pool: Any) -> int:
        probe = desk.co.book.picks // (len(desk.co.seats) * 10 * desk.co.book.batch_size)
        return min(probe, pool.free)

    around(patch, Desk, "size", change)


@OLD_WAYS.old_way("17.2 #18")
def a_served_slot_is_not_marked(patch: Patch) -> None:
    """What was served of a planned window is not taken off."""
    patch.setattr(Desk, "_serve", lambda desk, rank, epoch, batches: None)


@OLD_WAYS.old_way("17.1 #12")
def a_lost_plan_stays_in_flight(patch: Patch) -> None:
    """A failed send undoes nothing."""
    patch.setattr(Desk, "rollback", lambda desk, rank, plan_id: None)


@OLD_WAYS.old_way("17.1 #13")
def only_the_newest_is_undone(patch: Patch) -> None:
    """A rollback of any plan but the newest does nothing."""

    def change(rollback: Any, book: Book, rank: int, plan_id: int) -> bool:
        plans = book.holdings(rank).plans
        return bool(plans) and plans[-1].plan.plan_id == plan_id and bool(rollback(book, rank, plan_id))

    around(patch, Book, "rollback", change)


@OLD_WAYS.old_way("17.1 #14")
def latched_before_it_is_out(patch: Patch) -> None:
    """An epoch counts as sent before it is."""

    def change(dispatch: Any, desk: Desk, epoch: int) -> None:
        desk.dispatched_epoch = epoch
        dispatch(desk, epoch)

    around(patch, Desk, "dispatch_epoch", change)


@OLD_WAYS.old_way("17.1 #27")
def start_of_an_epoch_stops_at_a_bad_link(patch: Patch) -> None:
    """The first plan that cannot be sent ends the start of the epoch."""

    def change(attached: Any, desk: Desk) -> list[int]:
        return list(desk.co.voters)

    around(patch, Desk, "_attached", change)
    raise_for_a_bad_link(patch, m.StartEpoch)


@OLD_WAYS.old_way("17.1 #38")
def the_dead_keep_what_they_hold(patch: Patch) -> None:
    """What a dead rank had in hand is never free again."""
    patch.setattr(Book, "forfeit", lambda book, rank: 0)


@OLD_WAYS.old_way("17.2 #11")
def an_extension_is_lost_on_a_waiting_rank(patch: Patch) -> None:
    """A rank without a plan has nothing to extend."""
    change_rows(
        patch, "worker", lambda row: row.event == "ExtendPartition" and row.effects == ("hold_plan", "begin"),
        kind=Kind.IGNORE, effects=(), target=SAME,
    )  # fmt: skip


@OLD_WAYS.old_way("17.2 #11")
def extensions_stop_at_a_bad_link(patch: Patch) -> None:
    """The first extension that cannot be sent ends the distribution."""

    def change(attached: Any, desk: Desk) -> list[int]:
        return list(desk.co.voters)

    around(patch, Desk, "_attached", change)
    raise_for_a_bad_link(patch, m.ExtendPartition)


@OLD_WAYS.old_way("17.2 #12")
def a_completion_after_a_forfeit_counts(patch: Patch) -> None:
    """The end of a plan that is not held any more is counted, and the numbers made to fit."""
    change_rows(
        patch, "peer", lambda row: row.event == "Metrics" and row.source == (PeerPhase.EXITED, PeerPhase.DEAD),
        kind=Kind.ACCEPT, effects=("complete_plans",),
    )  # fmt: skip

    def change(complete: Any, peer: peers.Peer, event: m.Metrics) -> None:
        peer.co.book.covered += event.batches

    around(patch, peers.Peer, "complete_plans", change)


@OLD_WAYS.old_way("17.2 #14")
def what_is_in_hand_counts_as_done(patch: Patch) -> None:
    """A record of what is left names the free batches only."""

    def change(uncovered: Any, book: Book, epoch: int) -> Any:
        return list(book.pools[epoch].free_ranges()) if epoch in book.pools else uncovered(book, epoch)

    around(patch, Book, "uncovered", change)


@OLD_WAYS.old_way("17.1 #40")
def durations_are_maximised(patch: Patch) -> None:
    """The time of a rank in an epoch is that of its longest chunk."""

    def change(completed: Any, desk: Desk, rank: int, epoch: int, metrics: m.Metrics, *parts: Any) -> None:
        before = desk.tally(epoch).of(rank).epoch_ms
        completed(desk, rank, epoch, metrics, *parts)
        desk.tally(epoch).of(rank).epoch_ms = max(before, metrics.epoch_ms)

    around(patch, Desk, "completed", change)


@OLD_WAYS.old_way("17.1 #41")
def the_ranks_label_counts(patch: Patch) -> None:
    """Metrics are kept under whatever epoch the rank names."""

    def change(completed: Any, desk: Desk, rank: int, epoch: int, metrics: m.Metrics, *parts: Any) -> None:
        completed(desk, rank, metrics.epoch, metrics, *parts)

    around(patch, Desk, "completed", change)


# --- the worker ----------------------------------------------------------------------------------------------------


@OLD_WAYS.old_way("17.1 #6")
def an_update_zeroes_the_steps(patch: Patch) -> None:
    """After an Update a rank has no steps, whatever it did since its snapshot."""

    def change(commit: Any, worker: WorkerOrders, event: m.Update) -> None:
        commit(worker, event)
        worker.steps_since_avg = 0

    around(patch, WorkerOrders, "commit", change)


@OLD_WAYS.old_way("17.1 #37")
def an_idle_rank_counts_as_one(patch: Patch) -> None:
    """A rank without steps ships its parameters as if it had one."""

    def change(take: Any, worker: WorkerOrders, event: m.RequestParams) -> None:
        steps, worker.steps_since_avg = worker.steps_since_avg, max(1, worker.steps_since_avg)
        take(worker, event)
        worker.steps_since_avg = steps

    around(patch, WorkerOrders, "take_copy", change)


@OLD_WAYS.old_way("17.2 #9")
def the_base_comes_later(patch: Patch) -> None:
    """An Update lowers the steps; the schedule base follows in another message."""

    def change(commit: Any, worker: WorkerOrders, event: m.Update) -> None:
        base = worker.global_step
        commit(worker, event)
        worker.global_step = base

    around(patch, WorkerOrders, "commit", change)


@OLD_WAYS.old_way("17.2 #20")
def the_end_overtakes_its_steps(patch: Patch) -> None:
    """Steps and ends of plans are on two queues, and the second is read first."""
    late: list[Any] = []

    def count(original: Any, worker: WorkerOrders, event: Any) -> None:
        late.append(event) if event.last else original(worker, event)

    step = WorkerOrders.count_step

    def end(original: Any, worker: WorkerOrders, event: Any) -> None:
        hand = worker.hand
        original(worker, event)
        worker.hand, after = hand, worker.hand
        while late:
            step(worker, late.pop(0))
        worker.hand = after

    around(patch, WorkerOrders, "count_step", count)
    around(patch, WorkerOrders, "end_plan", end)


# --- cadence -------------------------------------------------------------------------------------------------------


@OLD_WAYS.old_way("17.1 #28")
def a_commit_overwrites_a_nudge(patch: Patch) -> None:
    """What was proposed before a nudge is committed after it."""

    def change(apply: Any, balancer: Balancer, verdict: Any) -> None:
        proposal = balancer.proposal
        apply(balancer, verdict)
        if type(verdict).__name__ == "NudgeDown":
            balancer.proposal = proposal

    around(patch, Balancer, "apply", change)


@OLD_WAYS.old_way("17.1 #29")
def two_scales_in_a_report(patch: Patch) -> None:
    """Each rank is measured by whatever is known of it."""
    from paceline.core import cadence

    def change(select: Any, report: Any, voters: Any) -> Any:
        feed = {r: (report.wall_ms.get(r, 0.0), report.wall_batches.get(r, 0)) for r in voters}
        return {**feed, **{r: (ms, report.delivered_batches[r]) for r, ms in report.delivered_ms.items() if ms > 0}}

    around(patch, cadence, "select_feed", change)


@OLD_WAYS.old_way("17.1 #30")
def the_first_batch_counts_like_any(patch: Patch) -> None:
    """The marginal rate includes the batch that started the window."""

    def change(count: Any, window: Any, batch_ms: float, data_ms: float, loss: float | None) -> None:
        window.first_batch_ms = window.first_batch_ms or batch_ms + data_ms
        count(window, batch_ms, data_ms, loss)

    around(patch, peers.Window, "count", change)


@OLD_WAYS.old_way("17.1 #31")
def overhead_from_the_reduce_alone(patch: Patch) -> None:
    """What starting a window costs is no overhead."""

    def change(propose: Any, balancer: Balancer, report: Any, *rest: Any) -> Any:
        return propose(balancer, attrs.evolve(report, fill_ms={}), *rest)

    around(patch, Balancer, "_propose", change)


@OLD_WAYS.old_way("17.1 #32")
def windows_have_no_cap(patch: Patch) -> None:
    """A window may be longer than an epoch."""
    patch.setattr(Balancer, "_fit_cap", lambda balancer: None)


@OLD_WAYS.old_way("17.1 #33")
def a_silent_anchor_stays(patch: Patch) -> None:
    """A pinned anchor rank is waited for although it never reports."""
    patch.setattr(
        Balancer, "_anchor_reading", lambda balancer, readings: balancer.ms(balancer.anchor_rank or 0)
    )


@OLD_WAYS.old_way("17.1 #42")
def overshoot_by_ones(patch: Patch) -> None:
    """The overshoot grows by one a cycle."""

    def change(derive: Any, balancer: Balancer, rank: int, reduce_ms: float | None, most: int | str) -> int:
        balancer.overshoots[rank] = balancer.overshoots.get(rank, 2) + 1
        return balancer.overshoots[rank]

    around(patch, Balancer, "overshoot", change)


@OLD_WAYS.old_way("17.1 #43")
def callbacks_count_as_training(patch: Patch) -> None:
    """The time of a callback stays in the window of its rank."""
    patch.setattr(peers.Window, "exclude", lambda window, elapsed_ms: None)
