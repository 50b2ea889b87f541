"""Faults that earlier systems had in averaging in place, each kept away by a rule: a test of it and the proof.

See `test_section17_cycle.py`; the old ways are in `support/old_ways_collective.py`. Some stand for a rule that section
17 has no row for: without the rule the fault would be there, and nobody is known to have had it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import WorkerPhase

from support.cohort import Cohort
from support.hand import messages, named
from support.hand_collective import Joint, joint
from support.old_ways_collective import OLD_WAYS
from support.rank import Rank, of
from support.runs import IN_PLACE


def ended_well(cohort: Cohort) -> bool:
    """Everything is trained and merged."""
    return cohort.finish is not None and cohort.finish.status == "ok"


@OLD_WAYS.against("a_call_is_no_step")
def test_an_ack_exceeds_the_count_of_the_arm() -> None:
    """17.1 #7, W-14, C-6: also of a rank that was synchronised while it waited for a plan."""
    cohort = Cohort(ranks=3, samples=40, **IN_PLACE)
    cohort.run()

    assert ended_well(cohort) and not cohort.co.refused


@OLD_WAYS.against("a_call_is_a_batch")
def test_the_proof_of_a_call_is_no_step() -> None:
    """17.1 #8, W-14, C-8, I44: the schedule counts batches and nothing else."""
    cohort = Cohort(ranks=2, samples=40, **IN_PLACE)
    cohort.run()

    assert cohort.co.cycle.global_step == 40


@OLD_WAYS.against("shutdown_over_a_pending_call")
def test_nobody_is_shut_down_while_others_may_spin() -> None:
    """17.1 #18, M-53, I10: the stop waits for the end of the cycle."""
    hand = joint(2)
    effects = hand.feed(ev.OperatorRequest(ev.Operator.STOP)) + hand.ack(0)
    assert not messages(effects, m.Shutdown)

    assert messages(hand.ack(1), m.Shutdown)


@OLD_WAYS.against("the_handle_of_the_first_call")
def test_a_second_death_frees_everyone_again() -> None:
    """17.1 #26, W-20, R-15: what is aborted is the session of now."""
    rank = Rank(WorkerPhase.IN_COLLECTIVE, collective=True)
    aborts = of(rank.control(m.DeclareDead, dead_rank=2, dead_incarnation=1), fx.AbortCollective)
    rank.broke(1)
    rank.session(2, cycle=1, attempt=1, members=((0, 1), (1, 1)))
    aborts += of(rank.control(m.DeclareDead, dead_rank=0, dead_incarnation=1), fx.AbortCollective)

    assert [abort.session_id for abort in aborts] == [1, 2]


@OLD_WAYS.against("something_follows_the_call")
def test_nothing_touches_the_parameters_after_the_call() -> None:
    """17.1 #36, R-13, W-12: the average is complete when the call returns; the Update only says that it counts."""
    cohort = Cohort(ranks=2, samples=40, **IN_PLACE)
    cohort.run()

    orders = [order for process in cohort.processes for order in cohort.said[process.number]]
    assert orders and not any(isinstance(order, fx.Adopt) for order in orders)


@OLD_WAYS.against("any_ack_of_the_cycle_counts")
def test_an_ack_of_an_attempt_that_was_given_up_finishes_nothing() -> None:
    """17.2 #3, N-6, C-35: the retry needs the acks of the retry."""
    hand = joint(3)
    hand.feed(ev.LinkLost(2, 1, "reset"))
    hand.uid()
    hand.ack(0, attempt=0), hand.ack(1, attempt=0)
    assert hand.co.cycle.pending
    hand.average()

    assert hand.co.cycle.version == 1


@OLD_WAYS.against("calls_are_matched_by_position")
def test_a_call_is_named_by_cycle_and_attempt() -> None:
    """17.2 #4, R-1, W-20: the request waited for the end of a step, and the attempt it was for is over."""
    rank = Rank(WorkerPhase.TRAINING, collective=True)
    rank.control(m.SyncNow, serve=False, cycle=1, attempt=0, session_id=1, version=1, global_step=0)
    rank.session(2, cycle=1, attempt=1, members=((0, 1), (1, 1)))
    (run,) = of(rank.step(), fx.RunCollective)

    assert (run.attempt, run.session_id) == (1, 2)


@OLD_WAYS.against("a_success_stays")
def test_a_call_that_succeeded_at_some_ranks_only_is_taken_back() -> None:
    """W-14, R-15, I44: who came out of it has the same steps to give again."""
    rank = Rank(WorkerPhase.TRAINING, collective=True)
    rank.step(3)
    rank.sync(1)
    rank.done(1)
    (run,) = of(rank.session(2, cycle=1, attempt=1), fx.RunCollective)

    assert (run.steps, run.restore) == (3, True)


@OLD_WAYS.against("steps_before_the_update")
def test_no_step_is_taken_on_an_average_that_may_be_taken_back() -> None:
    """W-14, W-11: it would be erased, and keep its count, its mass and its covered picks."""
    rank = Rank(WorkerPhase.TRAINING, collective=True)
    rank.sync(1)

    assert not of(rank.done(1), fx.Unpark)
    assert of(rank.update(1, merged=0, version=1, base=9), fx.Unpark)


@OLD_WAYS.against("the_dead_gave_nothing", "the_dead_gave_what_it_had_reported")
def test_what_a_dead_rank_gave_is_in_the_books_as_in_the_consensus() -> None:
    """M-19, I42, I44, I52: its call was over; the ack and the reports of its last two steps were lost with it."""
    hand = Joint(3, samples=200).form()
    for rank, steps in ((0, 3), (1, 3), (2, 1)):
        hand.step(rank, steps)
    hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    for rank in (0, 1):
        hand.ack(rank, total_steps=9)
    hand.feed(ev.LinkLost(2, 1, "reset"))

    assert hand.co.cycle.global_step == hand.co.book.covered == 9 and hand.co.book.replayed == 0


@OLD_WAYS.against("armed_without_a_session")
def test_no_average_begins_before_its_session() -> None:
    """G-1, M-30: the ranks would meet in a communicator that a dead one is a member of."""
    hand = joint(3)
    hand.average()
    hand.feed(ev.LinkLost(2, 1, "reset"))
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
    assert not hand.co.cycle.pending
    hand.uid()

    assert hand.co.cycle.pending


@OLD_WAYS.against("anybody_may_make_the_id")
def test_only_who_was_asked_makes_the_id() -> None:
    """M-31, N-6: two ids would make two communicators."""
    hand = joint(3)
    hand.feed(ev.LinkLost(2, 1, "reset"))
    hand.uid(1)
    assert not hand.co.sessions.current()
    hand.uid(0)

    assert hand.co.sessions.current()


@OLD_WAYS.against("the_generator_is_waited_for")
def test_a_rank_that_makes_no_id_holds_nobody() -> None:
    """M-32, I40: 5 seconds, then the next one."""
    hand = joint(3)
    hand.feed(ev.LinkLost(2, 1, "reset"))
    effects: list[Any] = hand.tick(5.5)

    assert [message.rank for message in messages(effects, m.RequestSessionId)] == [1]
    assert not named(effects, "Stalled")


@pytest.mark.parametrize(("name", "test"), OLD_WAYS.cases, ids=[f"{n}-{t.__name__}" for n, t in OLD_WAYS.cases])
def test_the_old_way_is_caught(name: str, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 17: without the rule the test above fails."""
    OLD_WAYS.caught(name, test, monkeypatch)


def test_every_old_way_has_a_test() -> None:
    """And each test names its row."""
    OLD_WAYS.complete()
