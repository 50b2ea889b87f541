"""Faults that earlier systems had in handing out work, each kept away by a rule: a test of it and the proof.

A test here is marked with the old ways it stands against (`support/old_ways_work.py`). It runs as it is and has to
pass; then `test_the_old_way_is_caught` runs it once more for each of them with the machine changed back, and it has to
fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.cadence import Balancer, CadencePhase
from paceline.core.cadence_inputs import NudgeDown, Stable
from paceline.core.dispatch.book import Book
from paceline.core.peer import Window
from paceline.core.phases import WorkerPhase

from support.cadence_reports import feed, staged, window
from support.hand import Hand, messages, named
from support.old_ways_work import OLD_WAYS
from support.rank import NEXT, Rank, of, reports


def plans(hand: Hand, rank: int) -> list[m.Plan]:
    """What a rank has in flight."""
    return [entry.plan for entry in hand.co.book.holdings(rank).plans]


def detach(hand: Hand, rank: int) -> list[Any]:
    """The last message to a rank could not be sent; its link is not known to be lost yet."""
    peer = hand.co.peers[rank]
    return hand.feed(ev.SendFailed((rank, peer.incarnation, peer.control_seq)))


# --- dispatch ------------------------------------------------------------------------------------------------------


@OLD_WAYS.against("two_chunks_at_once")
def test_the_end_of_a_plan_brings_no_second_one() -> None:
    """17.1 #10, D-15, W-15, I11: the Update comes before the end of the old plan is reported."""
    hand = Hand(samples=400).form()
    for rank in (0, 1):
        hand.step(rank, 3)
    hand.average()
    assert max(len(plans(hand, rank)) for rank in (0, 1)) == 1
    for rank in (0, 1):
        hand.complete(rank)

    assert [len(plans(hand, rank)) for rank in (0, 1)] == [1, 1]


@OLD_WAYS.against("exempt_from_the_budget")
def test_nobody_streams_ahead_of_an_average() -> None:
    """17.1 #11, D-5, I14: who has done its window is held."""
    hand = Hand(samples=400).form()
    hand.step(0, 3)
    hand.complete(0)

    assert not plans(hand, 0) and not hand.co.cycle.pending


@OLD_WAYS.against("not_capped_by_what_is_left")
def test_a_chunk_is_capped_by_what_is_left_of_the_window() -> None:
    """17.2 #17, D-5, D-6, I14: two of three steps are in flight, so one may follow."""
    hand = Hand(samples=400).form()
    (plan,) = plans(hand, 0)
    hand.co.desk.rollback(0, plan.plan_id)
    assert hand.co.desk.take(0, 0, 2) is not None

    assert hand.co.desk.size(0, hand.co.book.pools[0]) == 1


@OLD_WAYS.against("the_probe_is_not_capped")
def test_the_first_chunk_of_an_async_rank_is_capped_too() -> None:
    """17.2 #19, D-6: count and overshoot are all it may have, however large the data are."""
    hand = Hand(policy="async", samples=20_000).form()
    allowed = hand.co.balancer.counts[0] + hand.co.balancer.overshoots[0]

    assert 0 < hand.co.book.holdings(0).in_flight_batches <= allowed


@OLD_WAYS.against("a_served_slot_is_not_marked")
def test_a_slot_is_served_once() -> None:
    """17.2 #18, D-7, I50: what was given of a planned window is not given again."""
    hand = Hand(samples=2 * 15, num_epochs=1, anchor=4).form()
    hand.window()
    desk = hand.co.desk
    assert desk.window is not None

    assert sum(desk.window.left.values()) == hand.co.book.pools[0].free == 0


@OLD_WAYS.against("a_lost_plan_stays_in_flight")
def test_a_plan_that_was_never_sent_is_free_again() -> None:
    """17.1 #12, N-10, D-14, I49."""
    hand = Hand(samples=400).form()
    free = hand.co.book.pools[0].free
    ((number, _),) = hand.co.peers[0].tokens.items()
    hand.feed(ev.SendFailed((0, 1, number)))

    assert not plans(hand, 0) and hand.co.book.pools[0].free == free + 3


@OLD_WAYS.against("only_the_newest_is_undone")
def test_any_plan_can_be_undone() -> None:
    """17.1 #13, D-14: the older of two."""
    book = Book(80, 2, 1, 1, True)
    book.open_pool(0, (0, 1), None)
    older, newer = book.take(0, 0, 3), book.take(0, 0, 3)
    assert older is not None and newer is not None
    book.rollback(0, older.plan_id)

    assert [entry.plan for entry in book.holdings(0).plans] == [newer] and book.pools[0].free == 37


@OLD_WAYS.against("latched_before_it_is_out")
def test_an_epoch_is_latched_when_it_is_out() -> None:
    """17.1 #14, D-21: what fails on the way can be done again."""
    hand = Hand(policy="sync").form()
    desk, give = hand.co.desk, Book.give
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Book, "give", lambda *arguments: pytest.fail("once"))
        with pytest.raises(pytest.fail.Exception):
            desk.dispatch_epoch(1)
    assert Book.give is give and desk.dispatched_epoch == 0
    desk.dispatch_epoch(1)

    assert desk.dispatched_epoch == 1


@OLD_WAYS.against("start_of_an_epoch_stops_at_a_bad_link")
def test_a_bad_link_does_not_end_the_start_of_an_epoch() -> None:
    """17.1 #27, D-18, N-11: the others get their shares, of all of it."""
    hand = Hand(3, policy="sync")
    for rank in range(3):
        hand.ready(rank)
    hand.reduce()
    detach(hand, 0)
    effects = [effect for rank in range(3) for effect in hand.ack(rank, outcome=m.Outcome.OBSERVER)]

    starts = messages(effects, m.StartEpoch)
    assert [start.rank for start in starts] == [1, 2] and sum(start.plan.size for start in starts) == 60


@OLD_WAYS.against("the_dead_keep_what_they_hold")
def test_what_a_dead_rank_held_is_trained_by_others() -> None:
    """17.1 #38, M-18, D-19, I30."""
    hand = Hand(samples=400).form()
    hand.step(0)
    hand.feed(ev.LinkLost(0, 1, "reset"))
    pool = hand.co.book.pools[0]

    assert pool.free + pool.outstanding == pool.total and pool.outstanding == hand.co.book.holdings(1).in_flight_batches


@OLD_WAYS.against("an_extension_is_lost_on_a_waiting_rank")
def test_a_waiting_rank_trains_an_extension() -> None:
    """17.2 #11, W-16: the plan it extends has ended, so it is a plan of its own."""
    rank = Rank(WorkerPhase.WAITING)
    orders = rank.control(m.ExtendPartition, cycle=0, extends=7, plan=NEXT)

    assert [train.plan for train in of(orders, fx.Train)] == [NEXT]


@OLD_WAYS.against("extensions_stop_at_a_bad_link")
def test_a_bad_link_does_not_end_the_extensions() -> None:
    """17.2 #11, D-22, N-10: what comes back goes to who can be reached, whole batches of it."""
    hand = Hand(4, policy="sync", samples=80).form()
    detach(hand, 0)
    effects = hand.feed(ev.LinkLost(3, 1, "reset"))
    extensions = messages(effects, m.ExtendPartition)

    assert {extension.rank for extension in extensions} == {1, 2}
    assert all(extension.plan.size % 2 == 0 for extension in extensions)


@OLD_WAYS.against("a_completion_after_a_forfeit_counts")
def test_a_completion_after_a_forfeit_changes_nothing() -> None:
    """17.2 #12, N-6, D-19, I42, I49: the plan is somebody else's by then."""
    hand = Hand(samples=400).form()
    (plan,) = plans(hand, 0)
    hand.step(0, 3)
    hand.feed(ev.LinkLost(0, 1, "reset"))
    covered = hand.co.book.covered
    hand.complete(0, (plan.plan_id,))

    assert hand.co.fenced.get((0, "Metrics")) == 1 and hand.co.book.covered == covered == 0


@OLD_WAYS.against("what_is_in_hand_counts_as_done")
def test_a_record_names_everything_that_is_not_covered() -> None:
    """17.2 #14, D-12, K-10, I52: also what was in hand when the run stopped."""
    hand = Hand(samples=60, num_epochs=1, save_path="x").form()
    hand.step(0)
    hand.co.run.begin_save(m.SaveReason.REDUCE_STALL, "a test")
    (meta,) = [effect.record for effect in hand.co.take_ready().effects if isinstance(effect, fx.WriteMeta)]

    assert meta["uncovered"] == {"0": [[0, 30]]}


@OLD_WAYS.against("durations_are_maximised")
def test_the_times_of_chunks_are_summed() -> None:
    """17.1 #40, K-20: per rank; the epoch took as long as its slowest rank."""
    hand = Hand(samples=12, num_epochs=1).form()
    effects = hand.step(0, 3) + hand.complete(0) + hand.step(1, 3) + hand.complete(1)
    extra = m.Metrics(run_id=b"", generation=1, rank=0, incarnation=1, report_seq=0, cycle=0, plan_ids=(), epoch=0,
                      batches=0, samples=0, epoch_ms=4.0, share_complete_ms=0.0, compute_only_ms=0.0,
                      data_starve_ms=0.0)  # fmt: skip
    hand.co.desk.completed(0, 0, extra)
    effects = hand.average()

    assert [end["epoch_ms"] for end in named(effects, "EpochEnd")] == [5.0]


@OLD_WAYS.against("the_ranks_label_counts")
def test_metrics_belong_to_the_epoch_of_their_plan() -> None:
    """17.1 #41, K-20, N-7: there is no epoch 41 of 2, whatever a rank calls it."""
    hand = Hand().form()
    hand.step(0, 3)
    hand.say(0, m.Metrics, cycle=0, plan_ids=(hand.co.book.holdings(0).plans[0].plan.plan_id,), epoch=41, batches=3,
             samples=6, epoch_ms=1.0, share_complete_ms=1.0, compute_only_ms=1.0, data_starve_ms=0.0)  # fmt: skip

    assert list(hand.co.desk.tallies) == [0] and hand.co.desk.tallies[0].of(0).told == 6


# --- the worker ----------------------------------------------------------------------------------------------------


@OLD_WAYS.against("an_update_zeroes_the_steps")
def test_steps_after_the_snapshot_keep_their_mass() -> None:
    """17.1 #6, W-12, I46."""
    rank = Rank(WorkerPhase.TRAINING, "async")
    rank.step(2)
    rank.request(1)
    rank.step(1)
    rank.copied(1), rank.staged(1), rank.update(1)

    assert rank.worker.steps_since_avg == 1


@OLD_WAYS.against("an_idle_rank_counts_as_one")
def test_a_rank_without_steps_has_no_vote() -> None:
    """17.1 #37, R-5, R-9: it takes part with an empty header."""
    rank = Rank(WorkerPhase.WAITING)
    orders = rank.request(1) + rank.copied(1)

    assert of(orders, fx.TakeSnapshot)[0].header_only and reports(orders, m.SnapshotReady)[0].shipped_steps == 0


@OLD_WAYS.against("the_base_comes_later")
def test_the_schedule_does_not_dip_at_an_update() -> None:
    """17.2 #9, W-12, W-8, I43: steps fall and base rises in one act."""
    rank = Rank(WorkerPhase.TRAINING)
    rank.step(3)
    before = rank.worker.position
    rank.cycle(1, base=6, version=1)

    assert rank.worker.position == 6 >= before


@OLD_WAYS.against("the_end_overtakes_its_steps")
def test_the_end_of_a_plan_follows_its_steps() -> None:
    """17.2 #20, N-3, W-2: on one lane, in the order in which they happened."""
    rank = Rank(WorkerPhase.TRAINING)
    orders = rank.step(4, last=True) + rank.end(7)
    kinds = [type(report) for report in reports(orders) if not isinstance(report, m.LrUpdate)]

    assert kinds == [m.Batch] * 4 + [m.Metrics]


# --- cadence -------------------------------------------------------------------------------------------------------


@OLD_WAYS.against("a_commit_overwrites_a_nudge")
def test_a_nudge_survives_the_stable_verdict_of_its_cycle() -> None:
    """17.1 #28, B-12, I62: what was proposed before it is dropped."""
    balancer = staged()
    assert balancer.proposal == 20
    balancer.apply(NudgeDown(0.5))
    balancer.apply(Stable())

    assert balancer.anchor == 5


@OLD_WAYS.against("two_scales_in_a_report")
def test_a_report_is_read_on_one_scale() -> None:
    """17.1 #29, B-3, I63: one rank without a delivered sample puts all on the compute scale."""
    balancer = Balancer(ranks=(0, 1))
    balancer.report(window({0: 10.0, 1: 10.0}, delivered={0: 40.0}, capable=True), (0, 1))

    assert balancer.counts == {0: 10, 1: 10}


@OLD_WAYS.against("the_first_batch_counts_like_any")
def test_the_first_batch_of_a_window_is_kept_apart() -> None:
    """17.1 #30, C-20: what it costs more is the fill, and no speed."""
    ledger = Window()
    for batch_ms in (100.0, 10.0, 10.0):
        ledger.count(batch_ms, 0.0, None)

    assert (ledger.delivered_ms, ledger.delivered_batches, ledger.fill_ms) == (20.0, 2, 90.0)


@OLD_WAYS.against("overhead_from_the_reduce_alone")
def test_what_starting_a_window_costs_is_overhead_too() -> None:
    """17.1 #31, B-10: so the window grows although the reduce is free."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0}, times=5)
    feed(balancer, {0: 100.0, 1: 50.0}, fill_ms={0: 1e4})

    assert balancer.proposal == 20


@OLD_WAYS.against("windows_have_no_cap")
def test_a_window_is_no_longer_than_an_epoch() -> None:
    """17.1 #32, B-8, I61."""
    balancer = feed(Balancer(ranks=(0, 1), anchor=30, cap=50), {0: 100.0, 1: 10.0})

    assert sum(balancer.counts.values()) == 50


@OLD_WAYS.against("a_silent_anchor_stays")
def test_a_pinned_anchor_that_never_reports_is_replaced() -> None:
    """17.1 #33, B-4: after five reports without it the phases go on."""
    balancer = Balancer(ranks=(0, 1, 2), anchor_ratios={0: 1.0, 1: 2.0, 2: 2.0})
    assert balancer.anchor_rank == 0
    feed(balancer, {0: 0.0, 1: 20.0, 2: 10.0}, times=5)

    assert balancer.anchor_rank == 1 and balancer.phase > CadencePhase.PROBE


@OLD_WAYS.against("overshoot_by_ones")
def test_the_overshoot_is_what_fits_into_a_reduce() -> None:
    """17.1 #42, G-9: at once, and at most one window."""
    balancer = feed(Balancer(ranks=(0, 1), anchor=20), {0: 10.0, 1: 10.0})

    assert balancer.overshoot(0, 120.0, "auto") == 12 and balancer.overshoot(0, 1e6, "auto") == 20


@OLD_WAYS.against("callbacks_count_as_training")
def test_the_time_of_a_callback_is_no_slowness() -> None:
    """17.1 #43, K-18: it leaves the window of its rank."""
    hand = Hand().form()
    hand.step(0, 2, batch_ms=100.0)
    hand.say(0, m.EpochFnElapsed, epoch=0, elapsed_ms=90.0)

    assert hand.co.peers[0].window.wall_ms == pytest.approx(110.0)


# --- the proof -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "test"), OLD_WAYS.cases, ids=[name for name, _ in OLD_WAYS.cases])
def test_the_old_way_is_caught(name: str, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 17: with the old way put back the test of the rule fails."""
    OLD_WAYS.caught(name, test, monkeypatch)


def test_every_old_way_has_a_test_that_names_its_row() -> None:
    """Section 17: a mutant that nothing is run against proves nothing."""
    OLD_WAYS.complete()
