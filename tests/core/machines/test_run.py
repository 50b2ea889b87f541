"""The run: forming, stopping, saving, shutting down (C-25, M-4 to M-6, M-50 to M-54)."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import CyclePhase, RunPhase

from support.cohort import Cohort, Fault
from support.hand import Hand, alerts, messages, named, pending
from support.words import hello

STOP = ev.OperatorRequest(ev.Operator.STOP)
START = ev.OperatorRequest(ev.Operator.START)


# --- forming (M-4, M-6) ----------------------------------------------------------------------------------------------


def test_target_ranks_close_the_window_at_once() -> None:
    """M-4: and cycle 0 asks the lowest rank for the state, the others for nothing (M-6)."""
    hand = Hand(3)
    requests = messages(hand.effects, m.RequestParams)
    opened = next(e for e in hand.effects if isinstance(e, fx.OpenRound))

    assert [(r.cycle, r.observer) for r in requests] == [(0, False), (0, True), (0, True)]
    assert opened.members == ((0, 1, 0),) and opened.observers == ((1, 1), (2, 1))
    assert opened.key.kind == m.RoundKind.STATE


def test_min_ranks_alone_close_it_only_at_the_join_timeout() -> None:
    """M-4."""
    hand = Hand(2, target_ranks=4, min_ranks=2)
    hand.tick(299)
    assert not hand.co.run.window_closed
    hand.tick(2)
    assert hand.co.run.window_closed and hand.co.cycle.pending


def test_too_few_ranks_fail_the_run_at_the_hard_limit_naming_who_came() -> None:
    """M-4, C-25."""
    hand = Hand(1, target_ranks=4, min_ranks=2)
    hand.tick(602)
    assert hand.co.run.status == "failed" and "1 of 2" in hand.co.run.text and "(here: 0)" in hand.co.run.text
    assert messages(hand.effects, m.Shutdown) and hand.co.run.phase == RunPhase.SHUTTING_DOWN
    nobody = Hand(0, target_ranks=1)
    effects = nobody.tick(602)
    assert nobody.co.finished and nobody.co.run.status == "failed"
    assert len([e for e in effects if isinstance(e, fx.Finish)]) == 1 and not nobody.co.run.shutdown_issued


def test_a_run_that_nobody_starts_fails_with_what_to_do() -> None:
    """M-4: everyone is there, and a manual window waits for the operator alone."""
    hand = Hand(2, target_ranks=2, min_ranks=2, start="manual")
    hand.tick(602)
    assert hand.co.run.status == "failed" and "no operator started it" in hand.co.run.text


def test_a_forming_run_that_everyone_has_left_ends() -> None:
    """M-54: after `rejoin_window_s` without a rank; who comes back in time is in time."""
    hand = Hand(1, target_ranks=2)
    hand.feed(ev.LinkLost(0, 1, "gone"))
    hand.tick(59)
    assert not hand.co.finished
    hand.knock(1)
    hand.tick(100)
    assert not hand.co.finished and hand.co.alive == [0]
    hand.say(0, m.Exiting, reason="changed its mind")
    hand.tick(61)
    assert hand.co.finished and "everyone who came has left" in hand.co.run.text


@pytest.mark.parametrize(("start", "begins"), [("auto", False), ("manual", True), ("hybrid", True)])
def test_an_operator_may_close_the_window_unless_it_is_automatic(start: str, begins: bool) -> None:
    """M-4: and manual runs wait for nothing else."""
    hand = Hand(2, target_ranks=3, start=start)
    effects = hand.feed(START)
    assert hand.co.run.window_closed is begins and bool(alerts(effects, "unserved_role")) is not begins


def test_the_next_lowest_rank_takes_the_place_of_a_source_that_dies() -> None:
    """M-6: attempt + 1, everyone asked again, nobody trains before."""
    hand = Hand(3)
    hand.ready(0)
    hand.reduce()
    hand.ack(1, outcome=m.Outcome.OBSERVER) if hand.co.peers[1].shipped is not None else hand.ready(1)
    effects = hand.feed(ev.LinkLost(0, 1, "reset"))

    assert (hand.co.cycle.number, hand.co.cycle.attempt, hand.co.cycle.source) == (0, 1, 1)
    assert [r.observer for r in messages(effects, m.RequestParams)] == [False, True]
    hand.form()
    assert hand.co.voters == [1, 2] and hand.co.run.phase == RunPhase.TRAINING


def test_a_rank_that_does_not_form_in_time_is_dropped() -> None:
    """M-6: as long as min_ranks remain, else the run fails; the pending round ends before the shutdown (I10)."""
    for least, status in ((2, "ok"), (3, "failed")):
        hand = Hand(3, min_ranks=least)
        for rank in range(3):
            hand.ready(rank)
        hand.reduce()
        hand.ack(0, outcome=m.Outcome.OBSERVER), hand.ack(1, outcome=m.Outcome.OBSERVER)
        hand.tick(61)
        assert hand.co.run.status == status
        if status == "ok":
            assert hand.co.run.phase == RunPhase.TRAINING and hand.co.voters == [0, 1]
        else:
            assert hand.co.cycle.phase == CyclePhase.STALLED and messages(hand.effects, m.Shutdown)


@pytest.mark.parametrize("goes", [True, False])
def test_a_run_that_does_not_form_waits_for_the_exits_of_who_is_there(goes: bool) -> None:
    """C-25, M-53, W-21: Finish ends the links, and who has not read its Shutdown by then looks for a coordinator that
    it takes for dead. So each is told and waited for, at most `exit_grace_s`; who knocks meanwhile is told closing."""
    hand = Hand(2, target_ranks=3, min_ranks=3, max_join_timeout_s=301.0, exit_grace_s=20.0)
    hand.tick(302)
    assert hand.co.run.phase == RunPhase.SHUTTING_DOWN and not hand.co.finished
    assert {stop.rank for stop in messages(hand.effects, m.Shutdown)} == {0, 1}
    (refuse,) = [e for e in hand.feed(ev.HelloReceived(9, hello(60))) if isinstance(e, fx.Refuse)]
    assert refuse.reject.code == m.RejectCode.CLOSING
    hand.say(0, m.Exiting, reason="done")
    assert not hand.co.finished
    effects = hand.say(1, m.Exiting, reason="done") if goes else hand.tick(21, silent=())
    assert hand.co.finished and effects[-1] == fx.Finish("failed", hand.co.run.text)


def test_a_run_to_which_nobody_comes_is_over_at_once() -> None:
    """C-25: there is nobody to wait for."""
    hand = Hand(0, target_ranks=1)
    effects = hand.tick(601)
    assert hand.co.finished and isinstance(effects[-1], fx.Finish) and not messages(effects, m.Shutdown)


def test_formation_ends_when_too_few_are_left() -> None:
    """M-6."""
    hand = Hand(2, min_ranks=2)
    hand.feed(ev.LinkLost(1, 1, "reset"))
    assert hand.co.run.status == "failed"


@pytest.mark.parametrize("ranks", [0, 1, 2])
def test_a_stop_while_forming_ends_the_run_without_a_trace(ranks: int) -> None:
    """M-54: whether or not cycle 0 is pending; nobody is told to save."""
    hand = Hand(ranks, target_ranks=2)
    hand.feed(STOP)
    assert hand.co.run.status == "stopped" and not hand.co.cycle.pending
    assert len(messages(hand.effects, m.Shutdown)) == ranks and not messages(hand.effects, m.ShutdownWithSave)


def test_an_operator_asks_for_what_is_not_there() -> None:
    """K-1: loudly dropped."""
    hand = Hand(2).form()
    assert alerts(hand.feed(ev.OperatorRequest(ev.Operator.EVAL)), "unserved_role")
    assert alerts(hand.feed(START), "unserved_role")
    assert alerts(hand.say(0, m.Intent, intent_id=1, kind=m.IntentKind.EVAL_NOW), "unserved_role")


# --- stopping (M-54, G-10) -------------------------------------------------------------------------------------------


def test_a_stop_while_idle_forces_one_average_of_what_is_there() -> None:
    """G-10: without the quota; the Update carries no plan, then everyone is told once."""
    hand = Hand(2).form()
    hand.step(0)
    effects = hand.feed(STOP)
    assert hand.co.cycle.pending and hand.co.cycle.number == 1
    hand.feed(STOP)
    effects = hand.average()

    assert all(update.next_plan is None for update in messages(effects, m.Update))
    assert len(messages(effects, m.Shutdown)) == 2 and hand.co.cycle.global_step == 1
    assert hand.co.run.status == "stopped"


def test_a_stop_while_pending_takes_in_the_steps_since() -> None:
    """C-25: a cycle armed after the request has to finish."""
    hand = Hand(policy="async", samples=400).form()
    for rank in (0, 1):
        hand.step(rank, 3)
    hand.step(0)
    hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    hand.ready(0, shipped_steps=4), hand.ready(1)
    hand.reduce()
    hand.step(1)
    hand.ack(0), hand.ack(1)
    assert hand.co.cycle.number == 2 and hand.co.cycle.pending and hand.co.run.phase == RunPhase.TRAINING
    hand.average()
    assert hand.co.cycle.global_step == 8 and hand.co.run.phase == RunPhase.SHUTTING_DOWN


def test_a_stop_without_steps_ends_at_once() -> None:
    """M-54: although plans are out."""
    hand = Hand(2).form()
    effects = hand.say(1, m.Intent, intent_id=1, kind=m.IntentKind.STOP_NOW)
    assert len(messages(effects, m.Shutdown)) == 2 and hand.co.cycle.number == 0


def test_nothing_is_shut_down_while_a_cycle_is_pending_that_has_lost_its_only_mover() -> None:
    """I10, M-53: nobody holds a step any more, and still the cycle ends first."""
    hand = Hand(2, samples=2, num_epochs=1).form()
    hand.step(0)
    hand.complete(0)
    hand.feed(ev.LinkLost(0, 1, "reset"))
    assert hand.co.cycle.pending and hand.co.movers == 0
    assert not messages(hand.feed(STOP), m.Shutdown)
    hand.ready(1)
    hand.reduce()
    assert messages(hand.ack(1, outcome=m.Outcome.UNREALIZED), m.Shutdown)


def test_a_stop_that_has_a_path_leaves_the_consensus() -> None:
    """Issue 2: Ctrl-C once ends with a checkpoint; the record goes first (M-51)."""
    hand = pending(save_path="runs")
    hand.feed(STOP)
    effects = hand.average()
    kinds = [type(e).__name__ for e in effects if isinstance(e, (fx.WriteMeta, fx.SaveConsensus))]
    assert kinds == ["WriteMeta", "SaveConsensus"]
    record = next(e.record for e in effects if isinstance(e, fx.WriteMeta))
    assert record["global_step"] == 6 and record["uncovered"] == {"0": [[3, 12], [18, 12]]}


# --- the end (M-53, C-25) --------------------------------------------------------------------------------------------


def test_the_coordinator_listens_until_everyone_is_gone() -> None:
    """M-53."""
    hand = Hand(2, num_epochs=0)
    hand.form()
    assert hand.co.run.phase == RunPhase.SHUTTING_DOWN
    hand.say(0, m.Exiting, reason="done")
    assert not hand.co.finished
    effects = hand.feed(ev.LinkLost(1, 1, "closed"))
    assert hand.co.finished and isinstance(effects[-1], fx.Finish) and not alerts(effects, "rank_lost")
    assert hand.feed(ev.Tick()) == [] and hand.co.poll_timeout() is None


def test_who_does_not_go_is_cut_off_after_the_grace() -> None:
    """M-53: exit_grace_s."""
    hand = Hand(2, num_epochs=0).form()
    effects = hand.tick(31)
    assert hand.co.finished and len([e for e in effects if isinstance(e, fx.CloseLink)]) == 2
    assert isinstance(effects[-1], fx.Finish)  # nothing follows the end, not even that


def test_times_that_are_over_are_over_at_their_very_instant() -> None:
    """M-52, M-53: the Tick that is due at the deadline of a save, and of the grace, is the one that ends it."""
    hand = saving()
    assert hand.co.run.save_deadline is not None
    hand.now = hand.co.run.save_deadline
    assert len(messages(hand.feed(ev.Tick()), m.Shutdown)) == 3
    assert hand.co.run.phase == RunPhase.SHUTTING_DOWN and hand.co.run.exit_deadline is not None
    hand.now = hand.co.run.exit_deadline
    hand.feed(ev.Tick())
    assert hand.co.finished


def test_nothing_answers_after_the_end_but_the_door() -> None:
    """M-53: messages change nothing; a Hello is told closing."""
    hand = Hand(1, num_epochs=0).form()
    hand.say(0, m.Exiting, reason="done")
    assert hand.co.finished
    hand.say(0, m.Heartbeat, step_count=0, state="x")
    assert hand.co.take_ready().effects == ()
    hand.knock(1)
    assert [e.reject.code for e in hand.effects if isinstance(e, fx.Refuse)] == [m.RejectCode.CLOSING]


# --- saving (M-50 to M-52) -------------------------------------------------------------------------------------------


def saving(ranks: int = 3, **knobs: Any) -> Hand:
    """A run that has lost a rank too many: the rest has been told to save."""
    hand = Hand(ranks + 1, max_failure=1, save_path="runs", **knobs).form()
    hand.feed(ev.LinkLost(ranks, 1, "reset"))
    assert hand.co.save_issued
    return hand


def saved(hand: Hand, rank: int, error: str | None = None) -> list[Any]:
    """The answer of a rank."""
    assert hand.co.run.save is not None
    return hand.say(rank, m.CheckpointResult, decision_id=hand.co.run.save.decision_id, version=0, elapsed_ms=1.0,
                    error=error)  # fmt: skip


def test_a_save_goes_to_all_once_and_names_the_lowest_voter() -> None:
    """M-50, M-51, I9: the record first; nothing is armed or handed out after it."""
    hand = saving()
    order = [type(e.message).__name__ if isinstance(e, fx.Send) else type(e).__name__ for e in hand.effects]
    assert order.index("WriteMeta") < order.index("ShutdownWithSave")
    told = messages(hand.effects, m.ShutdownWithSave)
    assert [(save.saver, save.stem) for save in told] == [(0, "runs/max_failure")] * 3
    before = len(hand.effects)
    for rank in range(3):
        hand.step(rank, 3)
        hand.complete(rank)
    hand.feed(ev.LinkLost(2, 1, "reset"))
    later = hand.effects[before:]
    kinds = (m.RequestParams, m.StartEpoch, m.ShutdownWithSave)
    assert not any(messages(later, kind) for kind in kinds) and len(told) == 3


@pytest.mark.parametrize("how", ["error", "death"])
def test_a_saver_that_fails_is_replaced_under_the_same_decision(how: str) -> None:
    """M-52."""
    hand = saving()
    effects = saved(hand, 0, "disk full") if how == "error" else hand.feed(ev.LinkLost(0, 1, "reset"))
    again = messages(effects, m.ShutdownWithSave)

    assert [(save.saver, save.decision_id) for save in again] == [(1, hand.co.run.decisions)]
    assert bool(alerts(effects, "checkpoint_failed")) is (how == "error")


def test_a_settled_save_is_followed_by_one_shutdown() -> None:
    """M-52, M-53: when all have saved, or the time is over."""
    hand = saving()
    for rank in range(3):
        effects = saved(hand, rank)
    assert len(messages(effects, m.Shutdown)) == 3 and hand.co.run.phase == RunPhase.SHUTTING_DOWN
    hand.tick(31)
    assert hand.co.finished and len(messages(hand.effects, m.Shutdown)) == 3

    slow = saving()
    effects = slow.tick(31)
    assert len(messages(effects, m.Shutdown)) == 3
    slow.tick(31)
    assert slow.co.finished and slow.co.run.status == "saved"


def test_no_candidate_left_changes_nothing() -> None:
    """M-52: the averager's own copy is written anyway."""
    hand = saving(1)
    assert not messages(saved(hand, 0, "disk full"), m.ShutdownWithSave)
    assert [e for e in hand.effects if isinstance(e, fx.SaveConsensus)]


def test_results_of_other_decisions_are_nothing() -> None:
    """I24: each decision id once."""
    hand = saving()
    hand.say(0, m.CheckpointResult, decision_id=77, version=0, elapsed_ms=1.0, error="x")
    assert hand.co.run.save is not None and hand.co.run.save.saver == 0
    calm = Hand(2).form()
    calm.say(0, m.CheckpointResult, decision_id=1, version=0, elapsed_ms=1.0)
    assert calm.co.run.phase == RunPhase.TRAINING


def test_the_files_of_the_averager_are_told_about() -> None:
    """K-6, K-7."""
    hand = saving()
    assert named(hand.feed(ev.ConsensusSaved(1, 0)), "CheckpointWritten")
    assert alerts(hand.feed(ev.MetaWritten(1, 0, "no space")), "checkpoint_failed")
    assert alerts(hand.feed(ev.CallbackFailed("hook", "boom")), "callback_failed")


# --- policies, whole runs --------------------------------------------------------------------------------------------


def test_lock_step_is_one_step_each_per_average() -> None:
    """G-6, G-8: sync with max_batch_diff 0; 12 batches of each rank are 12 averages."""
    cohort = Cohort(ranks=2, samples=48, num_epochs=1, policy="sync", max_batch_diff=0)
    cohort.run()
    merged = [event["merged"] for event in cohort.events("Cycle")]
    assert merged == [{"0": 1, "1": 1}] * 12


def test_a_lead_above_the_limit_parks_and_the_average_releases() -> None:
    """G-5, G-8, I28, 17.2 #1: a parked rank counts as having met its quota."""
    hand = Hand(2, anchor=5, max_batch_diff=1, samples=400).form()
    assert not messages(hand.step(0), m.Throttle)
    throttle = messages(hand.step(0), m.Throttle)
    assert [(t.cycle, t.reason) for t in throttle] == [(1, m.ThrottleReason.LEAD)]
    hand.step(1, 2)
    assert not hand.co.cycle.pending
    assert messages(hand.step(1, 2), m.Throttle, 1) and hand.co.cycle.pending
    hand.average()
    assert hand.co.peers[0].throttled is None


def test_returned_picks_of_a_whole_share_run_go_out_as_extensions() -> None:
    """D-22, 17.2 #11: equal pieces to attached voters, in the pass of the death."""
    hand = Hand(3, policy="sync").form()
    hand.step(2, 2)
    effects = hand.feed(ev.LinkLost(2, 1, "reset"))
    pieces = messages(effects, m.ExtendPartition)
    assert [piece.plan.size for piece in pieces] == [10, 10]
    assert [piece.extends for piece in pieces] == [hand.plan(0).plan_id, hand.plan(1).plan_id]


def test_a_rank_that_waits_gets_its_first_piece_as_a_plan_and_the_next_as_extensions() -> None:
    """D-22."""
    hand = Hand(2, policy="sync", samples=24, num_epochs=1).form()
    hand.step(0), hand.step(1)
    hand.average()
    hand.step(0, 5)
    hand.complete(0)
    assert hand.co.cycle.number == 1
    effects = hand.feed(ev.LinkLost(1, 1, "reset"))
    assert len(messages(effects, m.StartEpoch, 0)) == 1
    assert sum(message.plan.size for message in messages(effects, m.StartEpoch, 0)) == 10
    assert hand.co.book.holdings(0).in_flight_batches == 5


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
@pytest.mark.parametrize(("samples", "ranks"), [(2, 4), (3, 4), (5, 3), (9, 4)])
def test_data_smaller_than_the_cohort(policy: str, samples: int, ranks: int) -> None:
    """I54: ranks with nothing to do get no plan and hold nobody up."""
    cohort = Cohort(ranks=ranks, samples=samples, policy=policy, drop_last=False)
    cohort.run()
    assert cohort.finish is not None and cohort.finish.status == "ok"


def test_async_ranks_cross_into_the_next_epoch() -> None:
    """G-7, I13: two plans of two epochs may be out, never three epochs (D-4)."""
    cohort = Cohort(ranks=2, samples=20, num_epochs=4, policy="async", anchor=3)
    open_epochs: set[int] = set()
    cohort.run_until(lambda: open_epochs.add(len(cohort.co.book.pools)) or cohort.finish is not None)
    assert 2 in open_epochs and max(open_epochs) == 2


@pytest.mark.parametrize(("knobs", "left_out"), [
    ({"samples": 61}, "1 of 61 samples"), ({"samples": 62}, None), ({"samples": 61, "drop_last": False}, None),
    ({"samples": 61, "num_epochs": 2}, None), ({"samples": 61, "repeats": 2}, None),
    ({"samples": 62, "epoch_splits": 2, "num_epochs": 2}, "2 of 62 samples"),
    ({"samples": 62, "epoch_splits": 2, "num_epochs": 3}, None),
    ({"samples": 62, "epoch_splits": 2}, "1 of 62 samples"),
])  # fmt: skip
@pytest.mark.parametrize("policy", ["cadence", "sync"])
def test_a_run_of_one_pass_says_what_it_leaves_out(knobs: dict[str, Any], left_out: str | None, policy: str) -> None:
    """D-2: once, when training begins, with what to do about it. A further pass has its tails elsewhere."""
    told = alerts(Hand(2, policy=policy, **{"num_epochs": 1, **knobs}).form().effects, "tail")

    assert [alert.text.partition(" are in no")[0] for alert in told] == ([] if left_out is None else [left_out])
    assert all("drop_last = False" in alert.text and not alert.critical for alert in told)


def test_a_short_plan_is_told_and_its_picks_are_trained_by_others() -> None:
    """D-9."""
    hand = Hand(2, samples=400).form()
    hand.step(0, 2)
    effects = hand.complete(0)
    assert alerts(effects, "short_plan")
    assert messages(effects, m.StartEpoch, 0)[0].plan.size == 2, "what is left of its window, from the hole"


def test_metrics_of_a_plan_that_is_not_held_change_nothing() -> None:
    """D-9, I48: fenced."""
    hand = Hand(2).form()
    before = hand.co.book.holdings(0).plans[0].plan
    hand.complete(0, (99,))
    assert hand.co.fenced[0, "Metrics"] == 1 and hand.co.book.holdings(0).plans[0].plan == before


@pytest.mark.parametrize("when", range(0, 130, 7))
@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_a_killed_rank_costs_nothing_but_time(policy: str, when: int) -> None:
    """Issue 2, I42: every sample merged exactly once, the steps that died with the rank are trained again."""
    cohort = Cohort(ranks=2, samples=40, policy=policy)
    cohort.run(faults=[Fault(when, "crash", 1, 1)])
    assert cohort.finish is not None and cohort.finish.status == "ok"


def test_everyone_that_waits_is_told_why() -> None:
    """I39, O-4: in every state of a run some reason is given for each voter that does not train."""
    cohort = Cohort(ranks=3, samples=40, max_batch_diff=1)
    codes: set[str] = set()

    def told() -> bool:
        for rank in cohort.co.voters:
            trains = cohort.co.book.holdings(rank).in_flight_batches > 0
            reasons = cohort.co.explain(rank)
            codes.update(reason.code for reason in reasons)
            assert trains or reasons, f"rank {rank} waits and nobody says why"
            assert all(str(reason) for reason in reasons)
        return cohort.finish is not None

    cohort.run_until(told)
    assert {"E01", "E02", "E09", "E12"} <= codes and not cohort.co.explain(), "a run that is over waits for nothing"
