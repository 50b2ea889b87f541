"""Checkpoints and evaluations and their rules, one by one (protocol section 12, B-14)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.peer import Window
from paceline.core.phases import RunPhase, WorkerPhase
from paceline.core.roles import CHECKPOINT, EPOCH, EVALUATE, ROLES

from support.cohort import Cohort
from support.duties import EVAL, SAVE, arm, armed, evaluated, hand, result, wish
from support.hand import Hand, alerts, messages, named
from support.hand_collective import joint
from support.rank import NEXT, Rank, of, reports

# --- wishes and triggers (K-1, K-2) ----------------------------------------------------------------------------------


def test_k1_a_wish_waits_for_the_next_arm_and_counts_once_per_id() -> None:
    """K-1: the rank asks, the coordinator decides, at its own target."""
    run = hand()
    assert not messages(wish(run, 1, SAVE), m.Checkpoint)
    wish(run, 1, SAVE)
    (order,) = messages(arm(run), m.Checkpoint)
    assert (order.target_rank, order.cycle, order.version) == (0, 1, 1)
    run.average()
    result(run, order)
    wish(run, 1, SAVE)
    assert not messages(arm(run), m.Checkpoint), "the id was served"


@pytest.mark.parametrize(("kind", "callbacks"), [(SAVE, ()), (EVAL, ("checkpoint",))])
def test_k2_a_wish_that_nobody_can_serve_is_dropped_loudly(kind: m.IntentKind, callbacks: tuple[str, ...]) -> None:
    """K-2: neither path nor callback, or no function; the same for an operator, and outside of training."""
    run = hand(callbacks=callbacks)
    assert alerts(wish(run, 0, kind), "unserved_role")
    operator = ev.Operator.CHECKPOINT if kind == SAVE else ev.Operator.EVAL
    assert alerts(run.feed(ev.OperatorRequest(operator)), "unserved_role")
    assert alerts(Hand(1, target_ranks=2).feed(ev.OperatorRequest(operator)), "unserved_role")


def test_k1_an_operator_may_wish_too() -> None:
    """K-1."""
    run = hand()
    run.feed(ev.OperatorRequest(ev.Operator.EVAL))
    run.feed(ev.OperatorRequest(ev.Operator.CHECKPOINT))
    effects = arm(run)
    assert messages(effects, m.Checkpoint) and messages(effects, m.ExecuteEvalCallback)


def stems(cohort: Cohort) -> list[str]:
    """Where bundles went, in order."""
    return [effect.stem for effect in cohort.effects if isinstance(effect, fx.SaveConsensus)]


def test_k2_the_cadence_counts_multiples_and_the_one_shot_comes_once() -> None:
    """K-2: the largest multiple reached, once each; checkpoint_at_epoch once."""
    every = Cohort(ranks=2, samples=60, num_epochs=6, save_path="runs", checkpoint_every=2)
    every.run()
    assert len([stem for stem in stems(every) if ".v" in stem]) == 2, "epochs 2 and 4"
    once = Cohort(ranks=2, samples=60, num_epochs=6, save_path="runs", checkpoint_at_epoch=3)
    once.run()
    assert len([stem for stem in stems(once) if ".v" in stem]) == 1
    assert stems(once)[-1] == "runs/consensus", "K-4"


def test_k2_an_evaluation_follows_the_cycle_that_covers_its_epoch() -> None:
    """K-2, K-17: epochs 1 and 3 of six by the cadence, the last by the final evaluation."""
    cohort = Cohort(ranks=2, samples=60, num_epochs=6, eval_every=2, callbacks=ROLES)
    cohort.run()
    results = cohort.events("Evaluated")
    assert [(r["epoch"], r["final"]) for r in results] == [(1, False), (3, False), (5, True)]
    order = [e.name for e in cohort.effects if isinstance(e, fx.Emit) and e.name in ("EpochEnd", "Evaluated")]
    assert order.index("Evaluated") == 2, "after the second epoch was covered"


def test_k2_knobs_that_nobody_can_serve_are_told_when_training_begins() -> None:
    """Section 15: a path or a callback, a function."""
    assert len(alerts(hand(callbacks=(), checkpoint_every=1, eval_every=1).effects, "unserved_role")) == 2
    assert not alerts(hand(callbacks=(), checkpoint_every=1, save_path="runs").effects, "unserved_role")


# --- armed actions (K-3, C-11, C-17) ---------------------------------------------------------------------------------


def test_k3_what_is_armed_leaves_before_the_requests_of_its_cycle() -> None:
    """C-11.2, I6: the elected rank knows before it ships its copy."""
    run = hand()
    wish(run, 0, EVAL)
    effects = armed(run, SAVE)
    kinds = [type(e.message) for e in effects if isinstance(e, fx.Send)]
    first = kinds.index(m.RequestParams)
    assert kinds.index(m.Checkpoint) < kinds.index(m.ExecuteEvalCallback) < first
    start = next(i for i, e in enumerate(effects) if isinstance(e, fx.Emit) and e.name == "SyncStart")
    assert start < next(i for i, e in enumerate(effects) if isinstance(e, fx.Send) and e.message in messages(
        effects, m.Checkpoint))  # fmt: skip


def rank_with_armed(policy: str = "cadence") -> Rank:
    """A rank that is asked for all three for version 1, the evaluation first."""
    rank = Rank(WorkerPhase.TRAINING, policy, callbacks=ROLES)
    rank.control(m.ExecuteEvalCallback, schedule_id=3, epoch=0, target_rank=1, version=1, on_consensus=True, cycle=1)
    rank.control(m.Checkpoint, decision_id=2, version=1, target_rank=1, cycle=1)
    rank.control(m.SaveConsensusModel, decision_id=1, version=1, target_rank=1, cycle=1, stem="x")
    return rank


@pytest.mark.parametrize("policy", ["cadence", "async"])
def test_k3_armed_actions_run_right_after_the_adoption_in_their_order(policy: str) -> None:
    """K-3, W-12.4: save, checkpoint, evaluation; before the release and before the next plan."""
    rank = rank_with_armed(policy)
    rank.request(1)
    rank.copied(1)
    rank.staged(1)
    orders = rank.update(1, version=1, plan=NEXT)
    names = [type(order).__name__ for order in orders]
    assert names[:4] == ["Adopt", "Save", "FireCallback", "Evaluate"]
    assert (orders[1].optimizer, orders[1].model) == (False, True)
    assert [order.version for order in orders[1:4]] == [1, 1, 1]


def test_k3_an_unrealized_cycle_leaves_them_for_the_next_adoption() -> None:
    """K-3, C-17: the same version number."""
    rank = rank_with_armed()
    orders = rank.cycle(1, outcome=m.Outcome.UNREALIZED, version=0)
    assert not of(orders, fx.Evaluate) and not of(orders, fx.FireCallback)
    orders = rank.cycle(2, version=1)
    assert of(orders, fx.Evaluate) and of(orders, fx.FireCallback) and of(orders, fx.Save)
    assert not of(rank.cycle(3, version=2), fx.Evaluate), "once"


def test_k3_a_newer_one_takes_the_place_of_an_older_and_an_old_decision_is_fenced() -> None:
    """K-3, K-1, I24, N-6."""
    rank = rank_with_armed()
    rank.control(m.Checkpoint, decision_id=7, version=1, target_rank=1, cycle=2)
    orders = rank.cycle(1, version=1)
    assert [order.decision_id for order in of(orders, fx.FireCallback)] == [7]
    fenced = rank.worker.fenced
    assert not rank.control(m.Checkpoint, decision_id=7, version=1, target_rank=1)
    assert not rank.control(m.Checkpoint, decision_id=2, version=1, target_rank=1)
    assert rank.worker.fenced == fenced + 2


def test_c17_a_bundle_of_an_unrealized_cycle_is_written_after_the_next() -> None:
    """C-17: and a wish in between arms no second callback, because one waits at its target."""
    run = hand(save_path="runs")
    (order,) = messages(armed(run, SAVE), m.Checkpoint)
    effects = run.average(refused=(0, 1), outcome=m.Outcome.REFUSED)
    assert not [e for e in effects if isinstance(e, (fx.SaveConsensus, fx.WriteMeta))]
    later = armed(run, SAVE)
    assert not messages(later, m.Checkpoint)
    effects = run.average()
    saved = [e for e in effects if isinstance(e, fx.SaveConsensus)]
    assert [(save.version, save.stem) for save in saved] == [(1, "runs/checkpoint.v1")]
    assert order.version == 1


def test_w18_a_function_that_is_not_there() -> None:
    """W-18, K-9: a missing checkpoint callback is an error that names the rank, a missing evaluation nothing."""
    rank = Rank(WorkerPhase.WAITING)
    (told,) = reports(rank.control(m.Checkpoint, decision_id=1, version=9, target_rank=1, cycle=9))
    assert told.error is not None and "rank 1" in told.error
    assert not rank.control(m.ExecuteEvalCallback, schedule_id=1, epoch=0, target_rank=1, version=0, on_consensus=True)


# --- bundles (K-4, K-6, K-7, K-8) ------------------------------------------------------------------------------------


def test_k6_the_record_is_written_at_the_finish_with_final_counters() -> None:
    """K-6, C-15.12: after the round is closed; version and steps are those of the consensus."""
    run = hand(save_path="runs")
    armed(run, SAVE)
    effects = run.average()
    kinds = [e.name if isinstance(e, fx.Emit) else type(e).__name__ for e in effects]
    places = [kinds.index(name) for name in ("CloseRound", "AverageEnd", "WriteMeta", "SaveConsensus", "SyncEnd")]
    assert places == sorted(places)
    (meta,) = [e.record for e in effects if isinstance(e, fx.WriteMeta)]
    assert (meta["version"], meta["global_step"], meta["cycle"], meta["reason"]) == (1, 6, 1, "checkpoint")
    assert meta["uncovered"]["0"][0][0] > 0


def test_k4_every_arm_of_the_tail_writes_the_final_bundle_and_the_end_only_if_that_failed() -> None:
    """K-4, K-8: no second copy of the same consensus at the shutdown, but another try after a full disk."""
    for fails in (False, True):
        run = hand(1, samples=12, num_epochs=1, save_path="runs", callbacks=())
        arm(run)
        effects = run.average()
        saved = [e for e in effects if isinstance(e, fx.SaveConsensus)]
        assert [(s.stem, s.version) for s in saved] == [("runs/consensus", 1)]
        if fails:
            assert alerts(run.feed(ev.ConsensusSaved(saved[0].decision_id, 1, "no space")), "checkpoint_failed")
        arm(run)
        effects = run.average()
        (last,) = [e for e in effects if isinstance(e, fx.SaveConsensus)]
        assert last.version == 2 and run.co.run.phase == RunPhase.SHUTTING_DOWN


def test_k8_a_final_bundle_that_failed_is_tried_again_at_the_end() -> None:
    """K-8: the disk had no room, the training went on."""
    run = hand(1, samples=12, num_epochs=1, save_path="runs")
    arm(run)
    run.average()
    arm(run)
    effects = run.average()
    (last,) = [e for e in effects if isinstance(e, fx.SaveConsensus)]
    assert run.co.run.phase == RunPhase.FINAL_EVAL
    run.feed(ev.ConsensusSaved(last.decision_id, 2, "no space"))
    (final,) = messages(run.effects, m.ExecuteEvalCallback)
    effects = evaluated(run, final)
    assert [e.version for e in effects if isinstance(e, fx.SaveConsensus)] == [2]


def test_k4_the_tail_of_whole_shares_and_of_a_closed_last_epoch() -> None:
    """K-4: plans minus steps where nothing is free; a closed epoch has no pool to look into."""
    run = hand(2, samples=24, num_epochs=1, policy="sync")
    assert run.co.actions._in_tail() is False
    run.step(0, 6), run.step(1, 3)
    assert run.co.actions._in_tail() is True
    run.co.book.last_closed_epoch = 0
    assert run.co.actions._in_tail() is True


def test_k7_where_the_averager_keeps_nothing_a_rank_writes() -> None:
    """K-7, K-3: SaveConsensusModel to the checkpoint role, before the requests; the record is the coordinator's."""
    run = hand(save_path="runs")
    run.co.config = _with_averager(run, "shared")
    (order,) = messages(armed(run, SAVE), m.SaveConsensusModel)
    assert (order.target_rank, order.cycle, order.version, order.stem) == (0, 1, 1, "runs/checkpoint.v1")
    effects = run.average()
    assert [e for e in effects if isinstance(e, fx.WriteMeta)]
    assert not [e for e in effects if isinstance(e, fx.SaveConsensus)]


@pytest.mark.parametrize("steps", [0, 1])
def test_k4_a_collective_that_is_stopped_leaves_its_model_too(steps: int) -> None:
    """K-4, K-7: the last cycle arms the final bundle, before any further step; without one the consensus that nobody
    has stepped away from is written at once. In both cases once, and before the shutdown."""
    run = joint(2, save_path="runs", samples=400)
    run.average()
    for rank in (0, 1):
        run.step(rank, steps)
    begun = len(run.effects)
    run.feed(ev.OperatorRequest(ev.Operator.STOP))
    if steps:
        run.average()
    effects = run.effects[begun:]
    (order,) = messages(effects, m.SaveConsensusModel)
    assert (order.stem, order.version, order.cycle) == ("runs/consensus", 1 + steps, 1 + steps)
    (meta,) = [e for e in effects if isinstance(e, fx.WriteMeta)]
    assert (meta.record["decision_id"], meta.record["version"]) == (order.decision_id, order.version)
    sent = [type(e.message) for e in effects if isinstance(e, fx.Send) and e.rank == order.target_rank]
    assert sent.index(m.SaveConsensusModel) < sent.index(m.Shutdown)
    assert not steps or sent.index(m.SaveConsensusModel) < sent.index(m.SyncNow)


def _with_averager(run: Hand, name: str) -> Any:
    config = attrs.evolve(run.co.config)
    object.__setattr__(config, "averager", name)
    return config


# --- results and failover (K-9, K-16, K-18) --------------------------------------------------------------------------


def test_k9_an_error_passes_the_role_on_and_the_next_rank_is_armed_for_the_next_cycle() -> None:
    """K-9: each rank once, then it is given up; training goes on."""
    run = hand(3)
    (order,) = messages(armed(run, SAVE), m.Checkpoint)
    run.average()
    seen = []
    for _ in range(3):
        seen.append(order.target_rank)
        effects = result(run, order, "disk full")
        assert alerts(effects, "checkpoint_failed")
        orders = messages(arm(run), m.Checkpoint)
        run.average()
        order = orders[0] if orders else order
    assert seen == [0, 1, 2] and not orders
    assert alerts(effects, "checkpoint_failed")[-1].path == "cohort"
    (again,) = messages(armed(run, SAVE), m.Checkpoint)
    assert again.target_rank == 0, "a new decision starts anew"


def test_k9_success_pins_the_role() -> None:
    """K-9, M-34: a later calibration does not move it."""
    run = hand()
    assert not run.co.roles.calibrated
    (order,) = messages(armed(run, SAVE), m.Checkpoint)
    run.co.roles.calibrated = True
    run.average()
    result(run, order)
    run.co.roles.calibrated = False
    run.co.balancer._trust.put(0, [50.0])
    arm(run)
    run.average()
    assert run.co.roles.calibrated and run.co.roles.holder(CHECKPOINT) == 0 != run.co.roles.holder(EVALUATE)


@pytest.mark.parametrize("when", ["pending", "under way"])
def test_k9_a_target_that_dies_is_replaced_with_the_next_cycle(when: str) -> None:
    """K-9, M-18.6: before it acted or after, the next rank is armed."""
    run = hand(3)
    wish(run, 1, EVAL, 0)
    armed(run, SAVE)
    if when == "under way":
        run.average()
    run.feed(ev.LinkLost(0, 1, "reset"))
    if when == "pending":
        run.average()
    effects = arm(run)
    assert [order.target_rank for order in messages(effects, m.Checkpoint)] == [1]
    assert [order.target_rank for order in messages(effects, m.ExecuteEvalCallback)] == [1]


def test_k16_a_result_is_broadcast_and_then_handed_to_the_embedder() -> None:
    """K-16: to everyone, who waits to be let in too, with the version it is of; then the hook."""
    run = hand(2, max_ranks=3)
    (order,) = messages(armed(run, EVAL), m.ExecuteEvalCallback)
    run.average()
    run.knock(1)
    assert run.co.voters == [0, 1] and run.co.alive == [0, 1, 2]
    effects = evaluated(run, order, metric=0.75)
    told = messages(effects, m.EvalBroadcast)
    assert [(t.rank, t.metric, t.version) for t in told] == [(r, 0.75, 1) for r in range(3)]
    kinds = [type(e) for e in effects]
    assert kinds.index(fx.Invoke) > max(i for i, e in enumerate(effects) if isinstance(e, fx.Send))
    assert effects[kinds.index(fx.Invoke)] == fx.Invoke("eval_result", (order.schedule_id, 0, 1, 0.75, 10))
    before = dict(run.co.refused)
    assert not messages(evaluated(run, order), m.EvalBroadcast), "the second one is refused"
    assert run.co.refused != before


@pytest.mark.parametrize("odd", [{"metric": float("nan")}, {"metric": float("inf")}, {"count": 0}, {"error": "boom"},
                                 {"metric": None}])  # fmt: skip
def test_k14_a_metric_that_is_none_is_told_to_nobody(odd: dict[str, Any]) -> None:
    """K-14, K-16: not a number, infinite, counted over nothing; an error is told and never fatal."""
    run = hand()
    (order,) = messages(armed(run, EVAL), m.ExecuteEvalCallback)
    run.average()
    effects = evaluated(run, order, **odd)
    assert not messages(effects, m.EvalBroadcast) and named(effects, "Evaluated")[0]["metric"] is None
    assert bool(alerts(effects, "callback_failed")) is ("error" in odd)


def test_k14_the_rank_reports_no_metric_that_is_none() -> None:
    """K-14: absent, never zero."""
    for metric, count in ((float("nan"), 5), (float("inf"), 5), (1.0, 0)):
        rank = Rank(WorkerPhase.WAITING, callbacks=ROLES)
        rank.control(m.ExecuteEvalCallback, schedule_id=1, epoch=4, target_rank=1, version=0, on_consensus=True)
        done = ev.ActionDone("evaluate", 1, 0, 2.0, metric=metric, count=count)
        (told,) = reports(rank.feed(done), m.EvalResult)
        assert (told.metric, told.epoch, told.version) == (None, 4, 0)


def test_k18_time_of_a_callback_is_taken_out_of_the_window() -> None:
    """K-18, C-20: what the steps so far carry at once, the rest from the step that carries it."""
    window = Window()
    window.exclude(50.0)
    window.count(60.0, 1.0, None)
    assert (window.wall_ms, window.first_batch_ms) == (10.0, 11.0)
    window.count(10.0, 0.0, None)
    window.exclude(4.0)
    assert (window.wall_ms, window.delivered_ms) == (16.0, 6.0)
    run = hand()
    run.step(0)
    run.say(0, m.EpochFnElapsed, epoch=0, elapsed_ms=4.0)
    assert run.co.peers[0].window.wall_ms == 6.0
    for odd in (float("nan"), float("inf"), -4.0):  # a negative time would make the rank slower than it is
        run.say(0, m.EpochFnElapsed, epoch=0, elapsed_ms=odd)
        assert run.co.peers[0].window.wall_ms == 6.0 and run.co.actions.cost_ms[EPOCH] == 4.0


def test_b14_the_holder_gets_time_for_its_callbacks_before_the_last_window_of_an_epoch() -> None:
    """B-14: epoch callback always, checkpoint and evaluation when the epoch is due; one call per rank."""
    run = hand(2, samples=36, num_epochs=4, checkpoint_every=2, eval_every=1, save_path="runs", anchor=3)
    run.co.actions.cost_ms = {EPOCH: 200.0, CHECKPOINT: 1000.0, EVALUATE: 400.0}
    staged: list[tuple[int, float]] = []
    run.co.balancer = _Noting(run.co.balancer, staged)
    arm(run)
    run.average()
    assert not staged, "not calibrated, and twelve batches are left of eighteen"
    arm(run)
    run.average()
    holder = run.co.roles.holder(EPOCH)
    assert dict(staged)[holder] == 600.0, "6 of 18 batches are left; epoch 0 has no checkpoint"


class _Noting:
    """A balancer that tells what slack is staged."""

    def __init__(self, balancer: Any, told: list[tuple[int, float]]) -> None:
        self._balancer, self._told = balancer, told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._balancer, name)

    def stage_slack(self, rank: int, ms: float) -> None:
        """Note it and pass it on."""
        self._told.append((rank, ms))
        self._balancer.stage_slack(rank, ms)


def test_k2_no_epoch_is_left_out_when_ranks_cross_into_the_next_one() -> None:
    """K-2, G-7: under async an epoch may be covered by a cycle at whose arm a part of it was in flight."""
    for seed in range(12):
        cohort = Cohort(ranks=2, samples=40, num_epochs=4, policy="async", eval_every=1, callbacks=ROLES)
        cohort.run([(seed * 7 + index * index) % 11 for index in range(300)])
        epochs = [result["epoch"] for result in cohort.events("Evaluated") if not result["final"]]
        assert epochs and epochs[-1] == 2 and epochs == sorted(set(epochs))
