"""Faults that users of comparable systems have met in collectives; ids are in the docstrings.

See `test_field_cases.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import WorkerPhase

from support.cohort import Cohort, Fault
from support.field import QUICK, pass_time
from support.hand import alerts, messages, named
from support.hand_collective import Joint, joint
from support.runs import IN_PLACE
from support.words import hello


def inside(cohort: Cohort, *ranks: int, attempt: int = 0) -> bool:
    """Whether these ranks are in the call of this attempt of cycle 1."""
    calls = [cohort.seats[rank].inside for rank in ranks]
    return all(call is not None and (call.cycle, call.attempt) == (1, attempt) for call in calls)


def test_a_newcomer_is_given_the_state_when_the_average_is_over() -> None:
    """F05, M-23, M-30: it is welcomed at once, hears from the coordinator all the time, and asks nobody who is busy."""
    hand = joint(2, max_ranks=4, samples=400, **QUICK)
    hand.ack(0)
    effects = hand.feed(ev.HelloReceived(9, hello(hand.samples)))
    assert [e.welcome.status for e in effects if isinstance(e, fx.Admit)] == [m.WelcomeStatus.JOINING]
    effects = pass_time(hand, 15.0)
    assert len(messages(effects, m.Beacon, 2)) >= 14 and not messages(effects, m.NewSession)
    assert [reason.code for reason in hand.co.explain(2)] == ["E18"]
    effects = hand.ack(1)
    assert [message.rank for message in messages(effects, m.RequestSessionId)] == [0]
    effects = hand.uid()
    assert {message.state_from for message in messages(effects, m.NewSession)} == {0}
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
    (update,) = messages(hand.average(), m.Update, 2)

    assert (update.outcome, update.version) == (m.Outcome.OBSERVER, 2), "the version of the finish that promotes it"


def test_one_rank_that_fails_frees_its_neighbours() -> None:
    """F06, C-38, R-15, W-20: in the step that reports it the next session is begun; nobody waits for a timer, all go
    back to what they were, and average in a new communicator."""
    cohort = Cohort(ranks=3, samples=60, **IN_PLACE)
    cohort.run_until(lambda: inside(cohort, 0, 1))
    before = [(process.theta, cohort.ghost.unmerged[process.number]) for process in cohort.processes]
    version, since = cohort.co.cycle.version, cohort.now
    cohort.strike("fail", 1)
    cohort.run_until(lambda: inside(cohort, 0, 1, 2, attempt=1))
    assert cohort.now == since and cohort.co.cycle.version == version and cohort.co.cycle.attempt == 1
    assert [(process.theta, cohort.ghost.unmerged[process.number]) for process in cohort.processes] == before
    for process in cohort.processes:
        entered = [order.session_id for order in cohort.said[process.number] if isinstance(order, fx.BuildSession)]
        assert entered == [1, 2]
    cohort.run()

    assert cohort.finish is not None and cohort.finish.status == "ok" and not cohort.events("Died")


def test_a_failure_that_is_no_hang_ends_the_rank_that_has_it() -> None:
    """F06, R-18: an error that will not go away is no reason to repeat for ever; the others go on without it."""
    hand = joint(3)
    effects = hand.failed(1, retryable=False)
    assert [died["rank"] for died in named(effects, "Died")] == [1]
    hand.uid()
    hand.average()

    assert hand.co.cycle.version == 1 and hand.co.alive == [0, 2]


def test_everyone_inside_with_heartbeats_flowing_is_a_diagnosed_end() -> None:
    """F01, F06, M-15, C-41: nobody is called dead; past the ceiling one stall, one save, and no other call."""
    hand = joint(2, **QUICK)
    effects = pass_time(hand, 70.0)

    assert not named(effects, "Died") and len(named(effects, "Stalled")) == 1
    assert {save.reason for save in messages(effects, m.ShutdownWithSave)} == {m.SaveReason.REDUCE_STALL}
    assert len(alerts(effects, "stalled")) == 1


def test_acks_of_one_call_open_no_other() -> None:
    """F03, N-6, C-35: duplicates of the call before, of the same cycle or of the last one, are fenced."""
    hand = joint(3)
    hand.failed(2)
    hand.uid()
    for repeat in (1, 2):
        hand.ack(0, attempt=0)
        assert hand.co.fenced[0, "SyncAck"] == repeat and not hand.co.peers[0].acked
    hand.ack(0, attempt=1)
    hand.ack(1)
    assert hand.co.peers[0].acked and hand.co.cycle.pending and hand.co.fenced[0, "SyncAck"] == 2
    hand.ack(2)

    assert hand.co.cycle.version == 1


def test_a_rank_without_a_batch_is_in_every_call() -> None:
    """F52, R-9, W-14: it enters at once from its idle state, with no mass, and nobody waits for a batch of it."""
    cohort = Cohort(ranks=3, samples=8, batch_size=1, num_epochs=1, anchor=4, **IN_PLACE)
    cohort.run_until(lambda: bool(cohort.sent(m.SyncNow)) and cohort.co.cycle.number == 1)
    idle = [process.rank for process in cohort.processes if process.worker.phase == WorkerPhase.WAITING]
    cohort.run()
    calls = [sum(isinstance(order, fx.RunCollective) for order in cohort.said[rank]) for rank in (0, 1, 2)]

    assert idle and len(set(calls)) == 1
    assert cohort.finish is not None and cohort.finish.status == "ok" and cohort.co.cycle.global_step == 8


@pytest.mark.parametrize("seconds", [30.0, 200.0])
def test_an_evaluation_holds_nobody_inside_a_call(seconds: float) -> None:
    """F78, F79, K-14, W-14: it begins after the ack, so that the average of everyone ends; no message of it needs an
    answer of others, and its time is none of the next call's."""
    hand = Joint(2, samples=400, callbacks=("evaluate",)).form()
    hand.feed(ev.OperatorRequest(ev.Operator.EVAL))
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
    (order,) = messages(hand.effects, m.ExecuteEvalCallback)
    effects = hand.average()
    assert len(messages(effects, m.Update)) == 2 and order.cycle == 1
    other = 1 - order.target_rank
    hand.step(other, 3)
    hand.complete(other)
    effects = hand.tick(seconds)
    assert not named(effects, "Suspect") and hand.co.alive == [0, 1]
    found: dict[str, Any] = dict(schedule_id=order.schedule_id, epoch=0, version=1, elapsed_ms=1.0, metric=2.0)
    effects = hand.say(order.target_rank, m.EvalResult, **found)

    assert [facts["version"] for facts in named(effects, "Evaluated")] == [1]


@pytest.mark.parametrize("when", [0, 20, 40, 60])
def test_a_stop_is_one_decision_for_all(when: int) -> None:
    """F81, M-54: whoever wishes it, whenever; all end after the same version, with the same parameters."""
    cohort = Cohort(ranks=3, samples=90, **IN_PLACE)
    cohort.run(faults=[Fault(when, "stop")])
    versions = {process.worker.version for process in cohort.processes}
    contents = {process.consensus for process in cohort.processes}

    assert len(versions) == len(contents) == 1
