"""Faults that earlier systems had in averaging, each kept away by a rule: a test of it and the proof.

A test here is marked with the old ways it stands against (`support/old_ways_cycle.py`). It runs as it is and has to
pass; then `test_the_old_way_is_caught` runs it once more for each of them with the machine changed back, and it has to
fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase, WorkerPhase

from support.cohort import Cohort
from support.hand import Hand, messages, named, pending
from support.old_ways_cycle import OLD_WAYS
from support.rank import Rank, of, reports


def plans(hand: Hand, rank: int) -> list[m.Plan]:
    """What a rank has in flight."""
    return [entry.plan for entry in hand.co.book.holdings(rank).plans]


def detach(hand: Hand, rank: int) -> list[Any]:
    """The last message to a rank could not be sent; its link is not known to be lost yet."""
    peer = hand.co.peers[rank]
    return hand.feed(ev.SendFailed((rank, peer.incarnation, peer.control_seq)))


# --- the cycle -----------------------------------------------------------------------------------------------------


class Watching:
    """A guard that fails, and remembers in which phase it was asked."""

    reports_telemetry = False

    def __init__(self) -> None:
        self.hand: Hand | None = None
        self.seen: list[CyclePhase] = []

    def observe(self, cycle: Any) -> Any:
        assert self.hand is not None
        self.seen.append(self.hand.co.cycle.phase)
        raise ValueError("a guard that fails")

    def saved(self) -> dict[str, Any]:
        return {}

    def restore(self, saved: Any) -> bool:
        return False


@OLD_WAYS.against("phase_before_finish")
def test_the_phase_changes_after_the_cycle_is_finished() -> None:
    """17.1 #1, C-13, I4: what runs inside finish sees it pending, and what fails there leaves nobody out."""
    guard = Watching()
    hand = guard.hand = pending(guard=guard)
    effects = hand.average()

    assert guard.seen == [CyclePhase.PENDING] and hand.co.cycle.phase == CyclePhase.IDLE
    assert len(messages(effects, m.Update)) == 2


@OLD_WAYS.against("fan_out_stops_at_a_bad_link")
def test_a_bad_link_does_not_end_the_fan_out() -> None:
    """17.1 #2, C-14, N-11, I5: the Update of everyone else leaves, with its plan."""
    hand = pending(3)
    for rank in range(3):
        hand.ready(rank)
    hand.reduce()
    detach(hand, 0)
    effects = [effect for rank in range(3) for effect in hand.ack(rank)]

    assert [update.rank for update in messages(effects, m.Update)] == [1, 2]
    assert all(update.next_plan is not None for update in messages(effects, m.Update))


@OLD_WAYS.against("plans_sized_before_steps_fall")
def test_steps_fall_before_plans_are_sized() -> None:
    """17.1 #3, C-15: the next window is a whole one."""
    effects = pending().average()

    assert [update.next_plan and update.next_plan.size for update in messages(effects, m.Update)] == [6, 6]


@OLD_WAYS.against("ack_moves_the_step_count")
def test_an_ack_moves_no_step_count() -> None:
    """17.1 #4, C-6, C-2: the number it carries is no step, and the next real one counts."""
    hand = pending()
    hand.ready(0), hand.ready(1)
    hand.reduce()
    hand.ack(0, step_count=10**9), hand.ack(1)
    hand.step(0)

    assert hand.co.peers[0].steps == 1 and not hand.co.refused


@OLD_WAYS.against("gate_on_wall_time")
def test_the_gate_fires_however_short_the_steps_were() -> None:
    """17.1 #5, G-2, I26: counts only."""
    hand = Hand().form()
    hand.step(0, 3, batch_ms=0.0, data_ms=0.0)
    hand.step(1, 3, batch_ms=0.0, data_ms=0.0)

    assert hand.co.cycle.pending


@OLD_WAYS.against("evidence_counts_as_a_step")
def test_evidence_of_an_average_is_no_step() -> None:
    """17.1 #8, C-8, W-14, I44: the base rises by what was merged."""
    hand = pending()
    hand.average()

    assert hand.co.cycle.global_step == 6 == hand.co.book.covered


@OLD_WAYS.against("nobody_is_parked")
def test_who_could_go_on_is_parked_in_a_run_of_whole_shares() -> None:
    """17.1 #9, C-11.6, I6."""
    hand = Hand(policy="sync").form()
    effects = hand.step(0) + hand.step(1)

    assert [throttle.rank for throttle in messages(effects, m.Throttle)] == [0, 1]


@OLD_WAYS.against("silent_while_pending")
def test_beacons_leave_while_an_average_is_waited_for() -> None:
    """17.1 #17, N-8, I40: waiting never silences the coordinator."""
    hand = pending()
    effects = hand.tick(5.0)

    assert hand.co.cycle.pending and len(messages(effects, m.Beacon, 0)) >= 5


@OLD_WAYS.against("later_steps_move_the_clock")
def test_the_time_of_a_reduce_ends_with_its_last_ack() -> None:
    """17.2 #2, C-10: neither a step nor a death after it counts."""
    hand = Hand(policy="async", samples=400).form()
    for rank in (0, 1):
        hand.step(rank, 3)
    for rank in (0, 1):
        hand.ready(rank)
    hand.now += 0.5
    hand.reduce()
    hand.ack(0)
    hand.now += 4.0
    hand.step(0)
    hand.feed(ev.LinkLost(1, 1, "reset"))

    assert hand.co.cycle.version == 1 and hand.co.cycle.last_reduce_ms == pytest.approx(500.0)


@OLD_WAYS.against("evidence_without_a_number")
def test_a_straggler_does_not_fill_the_next_gate() -> None:
    """17.2 #3, N-6, C-6: an ack of the last cycle counts for the last cycle."""
    hand = pending(samples=400)
    hand.average()
    for rank in (0, 1):
        hand.step(rank, 3)
    assert hand.co.cycle.number == 2
    for rank in (0, 1):
        hand.ready(rank)
    hand.reduce()
    hand.ack(0)
    hand.ack(1, cycle=1)

    assert hand.co.cycle.pending and hand.co.fenced.get((1, "SyncAck")) == 1


@OLD_WAYS.against("rounds_by_position")
def test_a_result_belongs_to_the_round_it_names() -> None:
    """17.2 #4, R-1: of another key it is dropped, and the next one is not shifted by it."""
    hand = pending()
    hand.ready(0), hand.ready(1)
    hand.reduce(key=m.RoundKey(generation=1, cycle=0, kind=m.RoundKind.PARAMS))

    assert hand.co.cycle.reduced is None and hand.co.fenced.get((m.NO_RANK, "RoundReduced")) == 1


@OLD_WAYS.against("a_step_is_evidence")
def test_no_step_finishes_a_cycle() -> None:
    """17.2 #5, C-8, I2: nor can a step carry what only an ack says."""
    hand = Hand(policy="async", samples=400).form()
    hand.step(0, 3), hand.step(1, 3)
    assert hand.co.cycle.pending
    hand.step(0), hand.step(1)

    assert hand.co.cycle.pending and (hand.co.cycle.number, hand.co.cycle.owing) == (1, 2)
    assert "divergence" not in {field.name for field in attrs.fields(m.Batch)}


@OLD_WAYS.against("a_stall_is_a_rest")
def test_nothing_is_asked_of_a_cohort_that_stalled() -> None:
    """C-41, 17.2 #6, C-16, C-2, M-50: one save, and the cycle does not come back."""
    hand = pending()
    hand.tick(302.0)

    assert hand.co.cycle.phase == CyclePhase.STALLED and hand.co.save_issued
    assert not messages(hand.tick(5.0), m.RequestParams)


@OLD_WAYS.against("a_lost_rank_ends_averaging")
def test_a_rank_that_is_lost_in_a_round_does_not_end_it() -> None:
    """17.2 #7, R-11, C-37: the others are averaged."""
    hand = pending(3)
    hand.feed(ev.LinkLost(0, 1, "reset"))
    assert hand.co.run.phase == RunPhase.TRAINING
    for rank in (1, 2):
        hand.ready(rank)
    hand.reduce()
    hand.ack(1), hand.ack(2)

    assert hand.co.cycle.version == 1 and hand.co.cycle.global_step == 6


@OLD_WAYS.against("a_lost_request_waits_for_the_ceiling")
def test_a_rank_that_never_got_the_request_is_asked_again() -> None:
    """17.2 #8, M-13: long before the ceiling, which is at 300 s."""
    hand = pending(suspect_initial_s=10.0)
    effects = hand.tick(20.5)

    assert [(message.rank, message.cycle, message.attempt) for message in messages(effects, m.RequestParams)] == [
        (0, 1, 0), (1, 1, 0),
    ]  # fmt: skip


# --- the gate ------------------------------------------------------------------------------------------------------


@OLD_WAYS.against("no_work_is_no_excuse")
def test_a_rank_without_work_does_not_hold_the_gate() -> None:
    """17.1 #16, G-4: one batch for two ranks."""
    hand = Hand(samples=2, num_epochs=1).form()
    worker = 0 if plans(hand, 0) else 1
    hand.step(worker)
    hand.complete(worker)

    assert hand.co.cycle.pending


@OLD_WAYS.against("a_finished_share_is_no_excuse")
def test_a_sync_run_goes_on_when_a_rank_has_finished_its_share() -> None:
    """17.2 #10, G-4, G-6, I28: the rest of the epoch is averaged too."""
    cohort = Cohort(policy="sync", partition_ratios=(1.0, 3.0), samples=24, num_epochs=1)
    cohort.run()

    assert cohort.finish is not None and cohort.finish.status == "ok"


@OLD_WAYS.against("a_rank_without_a_slot_blocks", "the_last_window_outlives_its_counts")
def test_the_last_window_is_planned_for_the_counts_in_force() -> None:
    """17.1 #15, D-7, G-4, I50: planned anew when they change, and who has no slot in it holds up nobody."""
    hand = Hand(samples=2 * 15, num_epochs=1, anchor=4).form()
    hand.window()  # 8 of 15 are gone, and the 7 that are left are one planned window
    desk, book = hand.co.desk, hand.co.book
    assert desk.window is not None and sum(desk.window.planned.values()) == 7
    for rank in (0, 1):
        for plan in plans(hand, rank):
            book.rollback(rank, plan.plan_id)
    hand.co.balancer.counts.update({0: 60, 1: 4})
    desk.refresh_window()

    assert desk.window is not None and desk.window.planned == {0: 7, 1: 0}
    assert desk.quiesced((0, 1)) == {1}


@OLD_WAYS.against("parked_and_still_owing")
def test_a_parked_rank_counts_as_having_met_its_quota() -> None:
    """17.2 #1, G-5, G-8: with a lead limit of 0 nobody could reach a quota of 3."""
    hand = Hand(max_batch_diff=0).form()
    assert messages(hand.step(0), m.Throttle, 0)
    hand.step(1, 2)

    assert hand.co.peers[1].throttled == m.ThrottleReason.LEAD and hand.co.cycle.pending


@OLD_WAYS.against("throttle_to_a_bad_link_ends_the_tick")
def test_a_throttle_that_cannot_be_sent_is_an_event_like_any_other() -> None:
    """17.2 #13, G-8, N-10: the pass goes on, and so does the run."""
    hand = Hand(max_batch_diff=0).form()
    detach(hand, 0)
    plan = hand.co.desk.take(0, 0, 2)  # a step that was on its way when the link broke
    assert plan is not None
    effects = hand.step(0)

    assert named(effects, "Throttle") and not messages(effects, m.Throttle)
    assert hand.co.run.phase == RunPhase.TRAINING


# --- the end -------------------------------------------------------------------------------------------------------


@OLD_WAYS.against("shutdown_while_pending")
def test_no_shutdown_while_an_average_is_in_flight() -> None:
    """17.1 #18, M-53, I10."""
    hand = pending()
    effects = hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    assert not messages(effects, m.Shutdown)

    assert messages(hand.average(), m.Shutdown)


@OLD_WAYS.against("the_end_before_the_last_steps")
def test_steps_that_were_reported_are_merged_before_the_end() -> None:
    """17.1 #19, G-10, N-3, M-54: a stop averages once more, below every quota."""
    hand = Hand().form()
    hand.step(0)
    effects = hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    assert messages(effects, m.RequestParams) and not messages(effects, m.Shutdown)
    hand.average()

    assert hand.co.cycle.global_step == 1 and hand.co.run.phase == RunPhase.SHUTTING_DOWN


@OLD_WAYS.against("the_departed_die_as_well")
def test_who_has_left_does_not_die_as_well() -> None:
    """17.1 #21, M-1, M-8, I19: one end per incarnation, and max_failure counts no departure."""
    hand = Hand(3, max_failure=1).form()
    hand.say(0, m.Exiting, reason="leave")
    hand.feed(ev.LinkLost(0, 1, "closed"))

    assert hand.co.peers[0].phase == PeerPhase.EXITED and hand.co.deaths == 0
    assert hand.co.run.phase == RunPhase.TRAINING


@OLD_WAYS.against("an_error_says_goodbye")
def test_an_error_is_not_announced_as_a_clean_end() -> None:
    """17.1 #22, W-24: the end of its link is the report of its death."""
    rank = Rank(WorkerPhase.TRAINING)
    rank.feed(ev.TrainingFailed("out of memory"))

    assert not reports(rank.orders, m.Exiting) and of(rank.orders, fx.Stop)[0].status == "failed"


@OLD_WAYS.against("a_handle_is_a_life")
def test_a_run_is_over_when_everyone_said_goodbye() -> None:
    """17.1 #23, M-17, M-53, I38: not when the last record of a rank is gone, nor when a grace is over."""
    hand = Hand(num_epochs=0).form()
    assert hand.co.run.phase == RunPhase.SHUTTING_DOWN
    for rank in (0, 1):
        hand.say(rank, m.Exiting, reason="done")

    assert hand.co.finished


@OLD_WAYS.against("red_alert_at_a_clean_end")
def test_a_clean_end_raises_no_alert() -> None:
    """17.1 #39, C-22: the rank was gone before its Shutdown could be written."""
    hand = Hand(num_epochs=0).form()
    effects = detach(hand, 0) + hand.say(1, m.Exiting, reason="done")

    assert named(effects, "SendFailed") and not [e for e in effects if isinstance(e, fx.Alert) and e.critical]


# --- the proof -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "test"), OLD_WAYS.cases, ids=[name for name, _ in OLD_WAYS.cases])
def test_the_old_way_is_caught(name: str, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 17: with the old way put back the test of the rule fails."""
    OLD_WAYS.caught(name, test, monkeypatch)


def test_every_old_way_has_a_test_that_names_its_row() -> None:
    """Section 17: a mutant that nothing is run against proves nothing."""
    OLD_WAYS.complete()
