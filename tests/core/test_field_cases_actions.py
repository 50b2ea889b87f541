"""Faults that users of comparable systems have met: resuming, joining, evaluations, decisions; ids in the docstrings.

As in `test_field_cases.py`, the cases that a decision can answer. Those that need an optimizer are in
`tests/backends/test_field_cases_state.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.cadence_inputs import NudgeDown
from paceline.core.ledger import Resume
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase, WorkerPhase
from paceline.core.simulation.action import act

from support import duties
from support.cohort import Cohort, Fault
from support.field import QUICK, averaged, pass_time
from support.hand import Hand, alerts, messages, named
from support.rank import Rank
from support.resuming import resumed
from support.runs import CLIMB, schedules
from support.words import hello

# --- resuming (C5, C6) ------------------------------------------------------------------------------------------------


def stopped_at(first: Cohort, merged: int) -> Cohort:
    """The run asked to stop once so many batches are merged, and then over."""
    first.run_until(lambda: first.co.cycle.global_step >= merged)
    first.strike("stop")
    first.run()
    return first


@pytest.mark.parametrize("ranks", [2, 1])
def test_a_resumed_run_begins_at_the_schedule_position_it_ended_at(ranks: int) -> None:
    """F38, K-12, W-8: the position is global_step, set once: neither twice as far nor right for one step only."""
    first = stopped_at(Cohort(ranks=2, samples=400, num_epochs=2, save_path="runs"), 60)
    base = first.co.cycle.global_step
    second = resumed(first, ranks=ranks, samples=400, num_epochs=2)
    seen: dict[int, list[int]] = {rank: [] for rank in range(ranks)}

    def stepped() -> bool:
        for rank, process in second.seats.items():
            if process.worker.local_step > len(seen[rank]):
                seen[rank].append(process.worker.position - 1)
        return second.co.cycle.version > first.co.cycle.version

    second.run_until(stepped)

    for positions in seen.values():
        assert positions[:3] == [base, base + 1, base + 2]
    merged = sum(second.events("Cycle")[0]["merged"].values())
    assert second.co.cycle.global_step == base + merged
    ahead = [process.worker for process in second.processes if process.worker.version > first.co.cycle.version]
    assert all(worker.global_step == base + merged for worker in ahead)


def test_averages_go_on_in_the_windows_of_the_run_that_was_saved() -> None:
    """F39, K-2, B-16: a bundle belongs to a consensus, so no steps since the last average can be in it; the cadence
    goes on where it stood, and each window after it has the length it would have had: not that of the anchor with which
    a run begins."""
    knobs: dict[str, Any] = dict(ranks=2, samples=240, num_epochs=3, anchor=5, min_anchor=1)
    first = Cohort(**knobs, save_path="runs", checkpoint_every=1)
    first.run_until(lambda: first.co.cycle.version == 3)
    first.co.balancer.apply(NudgeDown(0.5))  # as a guard would
    first.run()
    written = [effect.record for effect in first.effects if isinstance(effect, fx.WriteMeta)]
    record = next(one for one in written if 0 < one["version"] < written[-1]["version"])
    assert set(record["balancer"]["counts"]) == {record["balancer"]["anchor"]} == {3}
    second = Cohort(**knobs, resume=Resume.read(record))
    before = [facts for facts in first.events("Covered") if facts["cycle"] <= record["cycle"]]
    covered = [part for facts in before for part in facts["slices"]]
    assert set(second.ghost.merged) == {(e, b) for _, e, low, count in covered for b in range(low, low + count)}
    second.run_until(lambda: second.co.run.phase == RunPhase.TRAINING)
    assert second.co.balancer.saved() == record["balancer"]
    told = [facts["merged"] for facts in first.events("Cycle") if facts["version"] > record["version"]]
    second.run_until(lambda: len(second.events("Cycle")) == 3)

    assert [facts["merged"] for facts in second.events("Cycle")] == told[:3]
    assert [facts["version"] for facts in second.events("Cycle")] == [record["version"] + n for n in (1, 2, 3)]


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, 5), min_size=3, max_size=3), st.integers(0, 3))
def test_runs_of_any_size_train_what_the_ones_before_them_left(worlds: list[int], early: int) -> None:
    """F48, D-23, I52: positions are the ledger's and no rank's. The ghost counts every batch over all three runs, and
    the end of the last one asks for each exactly once."""
    knobs: dict[str, Any] = dict(samples=120, num_epochs=1)
    first = stopped_at(Cohort(ranks=worlds[0], save_path="runs", **knobs), 8 + early)
    second = stopped_at(resumed(first, ranks=worlds[1], **knobs), 28 + early)
    third = resumed(second, ranks=worlds[2], **knobs)
    given_out = {batch for batch in range(60)} - {batch for _, batch in second.ghost.merged}
    third.run()

    assert third.finish is not None and third.finish.status == "ok"
    plans = [message.plan for message in third.sent(m.StartEpoch)]
    plans += [message.next_plan for message in third.sent(m.Update) if message.next_plan is not None]
    batches = [batch for plan in plans for batch in range(plan.offset // 2, (plan.offset + plan.size) // 2)]
    assert sorted(batches) == sorted(given_out), "nothing before the ledger is known, and nothing else"


# --- joining (C6) -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["hello", "completion", "acks"])
def test_a_rank_that_joins_at_the_end_of_an_epoch_begins_with_the_next_one(first: str) -> None:
    """F51, M-28, D-20: its Hello before the last completion of epoch 0, behind it, or while the average is out. Its
    first plan is of epoch 1 and not empty, the epoch is told once and without it, epoch 1 hands out all there is."""
    hand = Hand(2, samples=24, num_epochs=3, max_ranks=3).form()
    hand.window()
    hand.step(0, 3)
    hand.step(1, 2)
    knock = ev.HelloReceived(7, hello(24))
    begun = len(hand.effects)
    if first == "hello":
        hand.feed(knock)
    hand.step(1)
    hand.complete(0)
    hand.complete(1)
    if first == "completion":
        hand.feed(knock)
    assert (2 in hand.co.cycle.participants) == (first == "hello")
    if first == "acks":
        hand.feed(knock)
    averaged(hand)
    ended = named(hand.effects[begun:], "EpochEnd")
    assert [end["epoch"] for end in ended] == [0] and ended[0]["batches"] == 12
    assert set(ended[0]["ranks"]) == {"0", "1"}, "of the two ranks that were in it"
    if first != "hello":
        assert hand.co.peers[2].phase == PeerPhase.JOINING
        duties.arm(hand)
        averaged(hand)
    assert hand.co.peers[2].phase == PeerPhase.VOTER
    plans = [message.plan for message in messages(hand.effects, m.StartEpoch, 2)]
    plans += [u.next_plan for u in messages(hand.effects, m.Update, 2) if u.next_plan is not None]

    assert plans and all(plan.epoch >= 1 and plan.size > 0 for plan in plans)
    assert [end["epoch"] for end in named(hand.effects, "EpochEnd")].count(0) == 1
    while hand.co.book.last_closed_epoch < 1:
        for rank in hand.co.voters:
            while (head := hand.co.book.head(rank)) is not None:
                hand.step(rank, head.slice.count - head.done)
                hand.complete(rank)
        averaged(hand)
    slices = [part for facts in named(hand.effects, "Covered") for part in facts["slices"] if part[1] == 1]
    assert sorted(b for _, _, low, count in slices for b in range(low, low + count)) == list(range(12))


# --- evaluations and decisions (C11) ----------------------------------------------------------------------------------


def test_an_evaluation_blocks_nobody_and_sees_its_version_from_start_to_end() -> None:
    """F78, K-14, K-3: rank 1 ships to the next average meanwhile; rank 0 contributes when it is done; nobody is
    excluded, though that is switched on; the result names the version that was evaluated."""
    run = duties.hand(laggards="exclude", suspect_initial_s=5.0)
    duties.armed(run, duties.EVAL)
    run.average()
    (order,) = messages(run.effects, m.ExecuteEvalCallback)
    duties.arm(run)
    effects = run.ready(1) + run.feed(ev.RoundProgress(run.co.cycle.key, 1, 100, True))
    assert not messages(effects, m.Update) and run.co.peers[1].shipped
    effects = run.tick(30.0)
    assert not named(effects, "Suspect") and not named(effects, "Excluded") and run.co.cycle.pending
    (told,) = named(duties.evaluated(run, order), "Evaluated")
    assert told["version"] == order.version == 1
    run.ready(0)
    run.reduce()
    run.ack(0), run.ack(1)
    assert run.co.cycle.version == 2


def test_an_update_waits_until_the_training_process_has_evaluated() -> None:
    """F78, W-3: orders are carried out one after another, so nothing is adopted under an evaluation."""
    rank = Rank(WorkerPhase.TRAINING, callbacks=("evaluate",))
    orders = rank.control(m.ExecuteEvalCallback, schedule_id=1, epoch=0, target_rank=1, version=rank.worker.version,
                          on_consensus=True)  # fmt: skip
    (evaluate,) = [order for order in orders if isinstance(order, fx.Evaluate)]
    assert evaluate.version == rank.worker.version
    assert not rank.control(m.SetGlobalStep, serve=False, version=rank.worker.version, global_step=9)
    assert rank.worker.inbox and rank.worker.global_step == 0, "the training process is inside its call"


def test_a_long_evaluation_is_no_silence_and_no_stall() -> None:
    """F79, M-2, M-11, K-17: 120 s within the limit cost nobody anything; past it the role goes on, and the late result
    is refused."""
    run = duties.hand(**{**QUICK, "suspect_initial_s": 5.0, "role_limit_s": 300.0, "reduce_ceiling_s": 2000.0,
                         "window_ceiling_s": 4000.0})  # fmt: skip
    duties.armed(run, duties.EVAL)
    run.average()
    (order,) = messages(run.effects, m.ExecuteEvalCallback)
    run.step(1, 3), run.complete(1)
    effects = pass_time(run, 120.0)
    assert run.co.alive == [0, 1] and not named(effects, "Died") and not named(effects, "Suspect")
    assert messages(duties.evaluated(run, order, elapsed_ms=120_000.0), m.EvalBroadcast)

    duties.wish(run, 1, duties.EVAL, 9)
    run.step(0, 3), run.complete(0)
    run.average()
    order = messages(run.effects, m.ExecuteEvalCallback)[-1]
    effects = pass_time(run, 301.0)
    assert alerts(effects, "unserved_role") and run.co.roles.holder("evaluate") == 1
    assert not messages(duties.evaluated(run, order), m.EvalBroadcast)


def test_an_evaluation_over_nothing_is_answered_and_counts_for_nothing() -> None:
    """F80, F20, K-14, K-16: a count of 0 is no metric, neither 0 nor NaN, and nobody waits for one."""
    run = duties.hand()
    duties.armed(run, duties.EVAL)
    run.average()
    (order,) = messages(run.effects, m.ExecuteEvalCallback)
    effects = duties.evaluated(run, order, metric=0.0, count=0)

    (told,) = named(effects, "Evaluated")
    assert told["metric"] is None and told["count"] == 0
    assert not messages(effects, m.EvalBroadcast) and not run.co.actions.under_way(order.target_rank)


def test_a_batch_that_was_filtered_out_counts_as_done_and_distorts_nothing() -> None:
    """F80, W-2, C-20: its samples are as dispatched, it has no loss and took no time; speeds stay numbers."""
    hand = Hand(2, samples=400).form()
    hand.step(0, 3, batch_ms=0.0, data_ms=0.0, batch_loss=None)
    hand.step(1, 3)
    hand.complete(0), hand.complete(1)
    (told,) = named(hand.average(), "Cycle")

    assert told["merged"] == {"0": 3, "1": 3} and told["loss"]["0"] is None
    assert told["step_ms"]["0"] == 0.0 and all(count >= 1 for count in told["counts"].values())


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(schedules(200), st.integers(0, 150), st.integers(0, 1))
def test_a_stop_that_one_rank_wishes_is_one_decision_for_all(schedule: bytes, when: int, who: int) -> None:
    """F81, K-1, M-54: at any time, in any phase; all end with the same version, and are told once."""
    cohort = Cohort(ranks=2, samples=200, num_epochs=1)
    cohort.run_until(lambda: cohort.co.run.phase == RunPhase.TRAINING)
    asked = 0

    def wished() -> bool:
        nonlocal asked
        asked += 1
        return asked > when or cohort.co.finished

    cohort.run_until(wished, schedule)
    cohort.do(act("stop", who))
    cohort.do(act("stop", who))
    cohort.run(schedule)

    assert len({process.worker.version for process in cohort.processes}) == 1
    assert len(messages(cohort.effects, m.Shutdown)) == 2
    assert len([facts for facts in cohort.events("PhaseChanged") if facts["phase"] == "stopping"]) <= 1


def test_two_wishes_around_a_cycle_are_one_checkpoint_each_id_once() -> None:
    """F81, K-1: both ranks' timers fire before one arm: one decision; the same wish again is nothing."""
    run = duties.hand()
    duties.wish(run, 0, duties.SAVE, 1)
    duties.wish(run, 1, duties.SAVE, 1)
    duties.arm(run)
    assert len({order.decision_id for order in messages(run.effects, m.Checkpoint)}) == 1
    run.average()
    duties.wish(run, 1, duties.SAVE, 1)
    assert not run.co.actions.wished["checkpoint"]
    (order,) = messages(run.effects, m.Checkpoint)
    assert not messages(duties.arm(run), m.Checkpoint)
    assert order.target_rank == 0 and run.co.cycle.phase == CyclePhase.PENDING


# --- one number for one life (C14) ------------------------------------------------------------------------------------


def test_lives_are_numbered_by_the_coordinator_alone() -> None:
    """F95, M-7, N-6: deaths and joins, some of them together. Every message names the generation of the run and the
    life it was meant for, a rank's lives rise by one, and in the end both sides have the same numbers."""
    cohort = Cohort(ranks=3, samples=400, num_epochs=2, stateful=True, **CLIMB)
    faults = [Fault(when, "crash", rank) for when, rank in ((60, 0), (60, 2), (320, 1), (500, 0), (700, 2))]
    faults += [Fault(when, "join", rank) for when, rank in ((120, 0), (121, 2), (400, 1), (580, 0), (800, 2))]
    cohort.run(faults=faults)

    admitted: dict[int, list[int]] = {}
    for effect in cohort.effects:
        if isinstance(effect, fx.Admit):
            admitted.setdefault(effect.rank, []).append(effect.incarnation)
            assert effect.welcome.generation == cohort.co.generation
        elif isinstance(effect, fx.Send):
            assert effect.message.generation == cohort.co.generation
            assert effect.message.incarnation == effect.incarnation == admitted[effect.rank][-1]
    assert all(lives == list(range(1, len(lives) + 1)) for lives in admitted.values())
    assert sum(map(len, admitted.values())) > 5, "some came back"
    for rank, process in cohort.seats.items():
        assert process.worker.settings.incarnation == process.incarnation == cohort.co.peers[rank].incarnation
        assert process.worker.settings.generation == cohort.co.generation
