"""Who holds a role, the final evaluation, the epoch callback (M-33 to M-35, K-17, K-20, C-25, W-6)."""

from __future__ import annotations

from typing import Any

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.peer import Peer
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase, WorkerPhase
from paceline.core.roles import CHECKPOINT, EPOCH, EVALUATE, ROLES

from support.cohort import Cohort
from support.duties import EVAL, SAVE, arm, armed, evaluated, hand, result
from support.hand import Hand, alerts, messages, named
from support.rank import NEXT, PLAN, Rank, of, reports

# --- the final evaluation (K-17, C-25) -------------------------------------------------------------------------------


def ending(ranks: int = 2, **knobs: Any) -> Hand:
    """A run whose work is done: nothing to train at all."""
    run = Hand(ranks, num_epochs=0, callbacks=ROLES, **knobs).form()
    assert run.co.run.phase == RunPhase.FINAL_EVAL
    return run


def test_k17_the_final_evaluation_comes_before_the_shutdown() -> None:
    """K-17, C-25: its broadcast precedes Shutdown; it names no cycle."""
    run = ending()
    (order,) = messages(run.effects, m.ExecuteEvalCallback)
    assert (order.schedule_id, order.cycle, order.on_consensus) == (2**64 - 1, None, True)
    assert not messages(run.effects, m.Shutdown) and run.co.explain()[0].code == "E24"
    effects = evaluated(run, order)
    kinds = [type(e.message) for e in effects if isinstance(e, fx.Send)]
    assert kinds == [m.EvalBroadcast] * 2 + [m.Shutdown] * 2
    assert run.co.run.phase == RunPhase.SHUTTING_DOWN


def test_k17_a_stop_is_followed_by_the_final_evaluation_too() -> None:
    """C-25, M-54."""
    run = hand()
    run.feed(ev.OperatorRequest(ev.Operator.STOP))
    assert run.co.run.phase == RunPhase.FINAL_EVAL and not messages(run.effects, m.Shutdown)


def stopped(ranks: int = 2) -> tuple[Hand, list[Any]]:
    """A run whose last cycle, the one after a stop, is armed; and what arming it said."""
    run = hand(ranks)
    run.step(0)
    return run, run.feed(ev.OperatorRequest(ev.Operator.STOP))


def test_k17_the_last_cycle_of_a_stop_arms_the_final_evaluation() -> None:
    """K-17, K-3: that the cycle ends the run is known at its arm, so its target is told before it ships, and the run
    asks nobody a second time."""
    run, effects = stopped()
    (order,) = messages(effects, m.ExecuteEvalCallback)
    assert (order.schedule_id, order.cycle, order.version) == (m.FINAL_EVALUATION, 1, 1)
    kinds = [type(e.message) for e in effects if isinstance(e, fx.Send) and e.rank == order.target_rank]
    assert kinds.index(m.ExecuteEvalCallback) < kinds.index(m.RequestParams)
    after = run.average()
    assert run.co.run.phase == RunPhase.FINAL_EVAL and not messages(after, m.ExecuteEvalCallback)
    assert messages(evaluated(run, order), m.Shutdown)


def test_k17_an_order_whose_cycle_made_no_consensus_is_given_once_more_without_one() -> None:
    """K-17, C-17: the target would wait for a version that never comes."""
    run, _ = stopped()
    (again,) = messages(run.average(refused=(0,)), m.ExecuteEvalCallback)
    assert (again.schedule_id, again.cycle, again.version) == (m.FINAL_EVALUATION, None, 0)
    assert run.co.run.phase == RunPhase.FINAL_EVAL
    assert len([duty for duty in run.co.actions.duties if duty.role == EVALUATE]) == 1
    assert messages(evaluated(run, again), m.Shutdown)


def test_k17_a_target_that_dies_in_the_last_cycle_is_replaced_when_there_is_a_consensus() -> None:
    """K-17: sooner, the next one would evaluate the consensus before the last."""
    run, effects = stopped(3)
    (order,) = messages(effects, m.ExecuteEvalCallback)
    assert not messages(run.feed(ev.LinkLost(order.target_rank, 1, "reset")), m.ExecuteEvalCallback)
    for rank in (1, 2):
        run.ready(rank)
    run.reduce()
    run.ack(1)
    (again,) = messages(run.ack(2), m.ExecuteEvalCallback)
    assert (again.target_rank, again.cycle) == (1, None)


def test_k17_the_final_evaluation_answers_the_wishes_that_wait() -> None:
    """K-1, K-3, K-17: a rank keeps one armed evaluation, the newest, so an older one would never be answered."""
    run = hand()
    armed(run, EVAL)
    run.average(refused=(0, 1))
    assert [duty.since for duty in run.co.actions.duties if duty.role == EVALUATE] == [None]
    run.step(0)
    effects = run.feed(ev.OperatorRequest(ev.Operator.STOP))
    (order,) = messages(effects, m.ExecuteEvalCallback)
    assert order.schedule_id == m.FINAL_EVALUATION
    assert [duty.decision_id for duty in run.co.actions.duties if duty.role == EVALUATE] == [m.FINAL_EVALUATION]
    run.average()
    assert messages(evaluated(run, order), m.Shutdown)


def test_k17_past_the_role_limit_the_next_rank_is_asked_and_then_nobody() -> None:
    """K-17: strictly past; late results are refused; the run ends all the same."""
    run = ending(role_limit_s=20.0)
    (first,) = messages(run.effects, m.ExecuteEvalCallback)
    assert not messages(run.tick(20.0), m.ExecuteEvalCallback)
    due = run.co.poll_timeout()
    assert due is not None and run.now < due, "the instant itself is within the limit, and nothing is due at it"
    effects = run.tick(1.0)
    (second,) = messages(effects, m.ExecuteEvalCallback)
    assert alerts(effects, "unserved_role") and second.target_rank != first.target_rank
    assert not messages(evaluated(run, first), m.EvalBroadcast) and run.co.run.phase == RunPhase.FINAL_EVAL
    assert messages(run.tick(21.0), m.Shutdown)


def test_k17_a_death_passes_the_final_evaluation_on() -> None:
    """C-25: to the next candidate at once."""
    run = ending(3)
    (order,) = messages(run.effects, m.ExecuteEvalCallback)
    (again,) = messages(run.feed(ev.LinkLost(order.target_rank, 1, "reset")), m.ExecuteEvalCallback)
    assert again.target_rank == 1 and again.schedule_id == order.schedule_id


def test_k17_a_coordinator_that_was_away_counts_no_role_limit_against_a_rank() -> None:
    """M-9."""
    run = ending(role_limit_s=20.0, heartbeat_timeout_s=300.0)
    run.now += 200.0
    run.feed(ev.Tick())
    assert not alerts(run.effects, "unserved_role") and run.co.run.phase == RunPhase.FINAL_EVAL


def test_c25_too_many_deaths_in_the_final_evaluation_save_the_run() -> None:
    """M-21, C-25: until a shutdown is issued."""
    run = ending(save_path="runs", max_failure=1)
    effects = run.feed(ev.LinkLost(1, 1, "reset"))
    assert messages(effects, m.ShutdownWithSave) and run.co.run.phase == RunPhase.SHUTTING_DOWN


def test_k17_a_rank_that_evaluates_is_explained() -> None:
    """O-4: E21, with the role limit."""
    run = hand()
    armed(run, EVAL)
    run.average()
    (reason,) = run.co.explain(0)
    assert (reason.code, reason.until) == ("E21", run.now + 300.0)


# --- roles (M-33 to M-35) --------------------------------------------------------------------------------------------


def test_m33_the_lowest_rank_holds_the_roles_until_speeds_are_known_then_the_fastest() -> None:
    """M-33, M-34, D-18: told before the first plan, anew at the first calibration, never after."""
    run = hand()
    told = messages(run.effects, m.SetEpochCallbackRole)
    assert [(t.rank, t.holder) for t in told] == [(0, 0), (1, 0)]
    kinds = [type(e.message) for e in run.effects if isinstance(e, fx.Send)]
    assert kinds.index(m.SetEpochCallbackRole) < kinds.index(m.StartEpoch)
    for rank, ms in ((0, 30.0), (1, 10.0)):
        run.step(rank, 3, batch_ms=ms)
        run.complete(rank)
    told = messages(run.average(), m.SetEpochCallbackRole)
    assert [t.holder for t in told] == [1, 1] and run.co.roles.holders == dict.fromkeys(ROLES, 1)
    run.step(0, 1, batch_ms=1.0)
    assert not messages(run.window(), m.SetEpochCallbackRole), "sticky"


def test_m34_the_holders_death_moves_a_role_and_only_a_change_is_told() -> None:
    """M-34: among ranks that brought the callback."""
    run = hand(3)
    assert not messages(run.feed(ev.LinkLost(2, 1, "reset")), m.SetEpochCallbackRole)
    effects = run.feed(ev.LinkLost(0, 1, "reset"))
    assert [t.holder for t in messages(effects, m.SetEpochCallbackRole)] == [1]
    assert [fact["role"] for fact in named(effects, "RoleChanged")] == list(ROLES)
    assert not messages(hand(callbacks=()).effects, m.SetEpochCallbackRole)


def test_m35_a_pinned_rank_keeps_its_roles_beyond_its_death_but_for_the_checkpoint() -> None:
    """M-35: reported as unserved; at its return the pin holds again."""
    run = hand(3, role_policy=2)
    assert run.co.roles.holders == dict.fromkeys(ROLES, 2)
    effects = run.feed(ev.LinkLost(2, 1, "reset"))
    assert run.co.roles.holders == {EPOCH: 2, EVALUATE: 2, CHECKPOINT: 0}
    assert [alert.path for alert in alerts(effects, "unserved_role")] == [EPOCH, EVALUATE]
    assert alerts(armed(run, EVAL), "unserved_role"), "the evaluation is left out"
    run.co.peers[2] = Peer(run.co, 2, 2, phase=PeerPhase.JOINING, callbacks=ROLES)
    run.co.alive.append(2)
    run.co.promote(run.co.peers[2])
    assert run.co.roles.holders == dict.fromkeys(ROLES, 2)
    back = messages(run.co.take_ready().effects, m.SetEpochCallbackRole)
    assert [(word.rank, word.holder) for word in back] == [(2, 2)], "its new life knows of no role that has stayed"


def test_m33_a_pin_beyond_the_world_is_clamped_and_one_without_callback_fails_over() -> None:
    """M-33, K-9."""
    assert hand(2, role_policy=9).co.roles.holders == dict.fromkeys(ROLES, 1)
    run = hand(2, role_policy=1)
    run.co.peers[1].callbacks = ()
    (order,) = messages(armed(run, SAVE), m.Checkpoint)
    run.average()
    result(run, order, "rank 1 has no checkpoint callback")
    assert order.target_rank == 1 and messages(arm(run), m.Checkpoint)[0].target_rank == 0


def test_m33_a_rank_that_comes_later_learns_who_calls_the_epoch_callback() -> None:
    """M-33."""
    run = hand(2)
    run.co.peers[2] = Peer(run.co, 2, 1, phase=PeerPhase.JOINING, callbacks=ROLES)
    run.co.promote(run.co.peers[2])
    (told,) = messages(run.co.take_ready().effects, m.SetEpochCallbackRole)
    assert (told.rank, told.holder) == (2, 0)


# --- the epoch callback (W-6, K-20) ----------------------------------------------------------------------------------


def test_w6_the_epoch_callback_comes_before_the_first_plan_of_each_epoch() -> None:
    """W-6: epoch 0 included, once each, only at the holder; EpochFnElapsed afterwards."""
    rank = Rank(WorkerPhase.WAITING, callbacks=ROLES)
    rank.control(m.SetEpochCallbackRole, holder=1)
    orders = rank.control(m.StartEpoch, cycle=0, plan=PLAN)
    assert [type(order) for order in orders] == [fx.FireCallback, fx.Train]
    (told,) = reports(rank.feed(ev.ActionDone("epoch", 0, 0, 7.0)), m.EpochFnElapsed)
    assert (told.epoch, told.elapsed_ms) == (0, 7.0)
    rank.end(7)
    assert not of(rank.control(m.StartEpoch, cycle=0, plan=NEXT), fx.FireCallback)
    rank.end(8)
    later = m.Plan(plan_id=9, epoch=3, offset=0, size=4)
    assert [call.epoch for call in of(rank.control(m.StartEpoch, cycle=0, plan=later), fx.FireCallback)] == [3]


def test_w6_a_role_that_moves_in_the_middle_of_an_epoch_calls_nothing_twice() -> None:
    """W-6: the epoch began under another holder, which has called it."""
    rank = Rank(WorkerPhase.WAITING, callbacks=ROLES)
    rank.control(m.SetEpochCallbackRole, holder=0)
    rank.control(m.StartEpoch, cycle=0, plan=PLAN)
    rank.control(m.SetEpochCallbackRole, holder=1)
    rank.end(7)
    assert not of(rank.control(m.StartEpoch, cycle=0, plan=NEXT), fx.FireCallback)


def test_k20_a_closed_epoch_is_handed_out_told_and_recorded_in_this_order() -> None:
    """K-20: user callback, EpochAggregated, record."""
    cohort = Cohort(ranks=2, samples=20, num_epochs=1)
    cohort.run()
    order = [e for e in cohort.effects if isinstance(e, fx.Invoke) or (isinstance(e, fx.Emit) and e.name == "EpochEnd")
             or (isinstance(e, fx.Send) and isinstance(e.message, m.EpochAggregated))]  # fmt: skip
    assert [type(e) for e in order] == [fx.Invoke, fx.Send, fx.Send, fx.Emit]
    assert order[0].callback == "epoch_closed" and order[0].arguments[0] == 0


def test_i6_nothing_is_armed_while_the_run_forms() -> None:
    """C-11.2, M-6: cycle 0 moves the initial state and nothing else."""
    run = Hand(2, save_path="runs", callbacks=ROLES)
    assert run.co.cycle.phase == CyclePhase.PENDING
    assert not messages(run.effects, m.Checkpoint) and run.co.actions.bundle is None
