"""Which of two rows of the collective flavour comes first, what is counted as stale, and what is merely passed over.

A message that is wrong in two ways has one answer: stale comes before impossible, the end of a rank before a retry.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import WorkerPhase

from support.matrix import names
from support.rank import Rank, of, reports

J, W, P, D, X = (
    WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.THROTTLED, WorkerPhase.DRAINING, WorkerPhase.IN_COLLECTIVE,
)  # fmt: skip
PEER_DEAD: dict[str, Any] = {"dead_rank": 2, "dead_incarnation": 1}


def rank(phase: WorkerPhase = X, **settings: Any) -> Rank:
    """Rank 1 of 3 that averages in place."""
    return Rank(phase, collective=True, **settings)


def observer() -> Rank:
    """A rank without a vote, inside the call of cycle 0."""
    r = rank(J)
    r.session()
    r.sync(0)
    return r


def counts(r: Rank) -> tuple[int, int, int]:
    """What was counted as stale, as refused and as a violation."""
    return r.worker.fenced, r.worker.refused, r.worker.violations


# --- SyncNow -------------------------------------------------------------------------------------------------------


def test_a_rank_that_cannot_average_says_so_of_a_finished_cycle_too() -> None:
    """R-18 before N-6: whoever asks does not know yet that it must not ask."""
    r = Rank(W)
    orders = r.control(m.SyncNow, cycle=0, attempt=0, session_id=1, version=0, global_step=0)
    assert [failed.retryable for failed in reports(orders, m.RoundFailed)] == [False] and counts(r) == (0, 0, 0)


def test_a_request_of_a_finished_cycle_is_stale_and_one_that_was_tried_is_not() -> None:
    """N-6, M-13: the first is counted, the second is a nudge that has come too late."""
    r = rank(P)
    r.sync(0)
    assert counts(r) == (1, 0, 0)
    r.sync(1)
    r.broke(1)
    assert r.sync(1) == [] and counts(r) == (1, 0, 0)


def test_a_nudge_of_what_was_tried_is_looked_at_no_further() -> None:
    """M-13 before N-2: whichever session it names, it asks for nothing."""
    r = rank()
    r.broke(1)
    assert r.sync(1, session=9) == [] and r.worker.phase == P and counts(r) == (0, 0, 0)


@pytest.mark.parametrize("phase", [J, W, P])
def test_a_torn_session_is_waited_out_like_a_failed_call(phase: WorkerPhase) -> None:
    """R-15, R-18: the wait for the next session begins when the call is not entered."""
    r = rank(phase, session_wait_s=20.0)
    if phase == J:
        r.session()
    r.control(m.DeclareDead, **PEER_DEAD)
    assert r.worker.session_deadline is None
    r.sync(0 if phase == J else 1)
    assert r.worker.session_deadline == 20.0 and r.worker.phase == (J if phase == J else P)


# --- sessions ------------------------------------------------------------------------------------------------------


def test_a_session_that_is_not_new_is_stale() -> None:
    """M-31, N-6."""
    for phase in (W, P, X):
        r = rank(phase)
        assert r.session() == [] and counts(r) == (1, 0, 0)


def test_who_leaves_passes_over_what_is_about_sessions() -> None:
    """W-23, M-32: it is no longer asked, which is nobody's fault and nothing stale."""
    r = rank(D)
    assert r.control(m.RequestSessionId, session_id=4) == [] and r.session(2) == [] and counts(r) == (0, 0, 0)


def test_who_leaves_waits_for_no_session() -> None:
    """W-28, R-15: the wait ends with the wish to leave; the grace alone bounds what is left."""
    r = rank(session_wait_s=0.5, leave_grace_s=5.0, heartbeat_s=50.0)
    r.broke(1)
    r.feed(ev.LeaveRequested())
    r.now = 0.5
    assert r.feed(ev.Tick()) == [] and r.worker.phase == D and counts(r) == (0, 0, 0)


def test_a_cycle_that_an_observer_was_in_is_put_back_before_it_is_repeated() -> None:
    """R-15 before M-31: it is the call of this rank that is repeated, not one that began before it was here."""
    r = observer()
    r.done(0)
    (run,) = of(r.session(2, cycle=0, attempt=1), fx.RunCollective)
    assert (run.attempt, run.observer, run.restore) == (1, True, True)


# --- the end of a call ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["done", "broke"])
def test_the_end_of_another_call_ends_nothing(way: str) -> None:
    """W-14, R-15 before W-28: who wants to leave is still inside its own."""
    r = rank()
    r.feed(ev.LeaveRequested())
    assert getattr(r, way)(1, attempt=4) == [] and r.worker.phase == X


def test_who_wants_to_leave_repeats_nothing() -> None:
    """W-28 before R-15: its contribution and its ack were given; the others repeat the cycle without it."""
    r = rank()
    r.feed(ev.LeaveRequested())
    r.session(2, cycle=1, attempt=1)
    told = reports(r.done(1))
    assert [type(report) for report in told] == [m.SyncAck, m.Exiting] and r.worker.phase == D


def test_who_wants_to_leave_and_cannot_average_leaves() -> None:
    """W-28 before R-18: it goes with a goodbye, as it wished."""
    r = rank()
    r.feed(ev.LeaveRequested())
    orders = r.broke(1, retryable=False)
    assert [type(report) for report in reports(orders)] == [m.Exiting] and not of(orders, fx.Stop)


def test_who_cannot_average_repeats_nothing() -> None:
    """R-18 before R-15: the next attempt would fail like this one."""
    r = rank()
    r.session(2, cycle=1, attempt=1)
    orders = r.broke(1, retryable=False)
    assert [stop.status for stop in of(orders, fx.Stop)] == ["failed"] and not of(orders, fx.RunCollective)


@pytest.mark.parametrize("way", ["done", "broke"])
def test_an_observer_repeats_like_everybody(way: str) -> None:
    """R-15 before M-23: with the next attempt staged it does not come out first."""
    r = observer()
    r.session(2, cycle=0, attempt=1)
    (run,) = of(getattr(r, way)(0), fx.RunCollective)
    assert (run.attempt, run.observer) == (1, True) and r.worker.phase == X


def test_an_observer_waits_for_the_next_session_no_longer_than_others() -> None:
    """R-15, R-18."""
    r = rank(J, session_wait_s=20.0)
    r.session()
    r.sync(0)
    r.broke(0)
    assert (r.worker.phase, r.worker.session_deadline) == (J, 20.0)


# --- inside --------------------------------------------------------------------------------------------------------


def test_a_rank_inside_hears_without_answering() -> None:
    """W-22, W-21: a beacon, and what names its own life, change no count."""
    r = rank()
    r.control(m.Beacon, run_phase=1, cycle_phase=1, cycle=1)
    r.feed(ev.Received(m.Fenced(generation=1, incarnation=1, cycle=3, why="stale")))
    assert counts(r) == (0, 0, 0) and r.worker.phase == X


@pytest.mark.parametrize("answer", [
    m.Welcome(rank=1, incarnation=1, generation=1, status=m.WelcomeStatus.RESUMED, control_seq=0, report_seq=0,
              config={}),
    m.Reject(code=1, text="over"),
], ids=["Welcome", "Reject"])  # fmt: skip
def test_an_answer_to_no_hello_ends_the_session(answer: Any) -> None:
    """N-7: a rank inside a call has not knocked."""
    r = rank()
    (stop,) = r.feed(ev.Received(answer))
    assert "has not knocked" in stop.text and counts(r) == (0, 0, 1)


def test_a_life_that_ends_inside_a_call_is_aborted_first() -> None:
    """W-20, W-21, W-24: then nothing of it is left, and the rank looks for its new seat from Joining."""
    r = rank()
    orders = r.feed(ev.Received(m.Fenced(generation=1, incarnation=2, cycle=3, why="stale")))
    assert names(orders) == ("AbortCollective", "AbandonPlan", "Unpark", "Publish", "Dial")
    assert (r.worker.phase, r.worker.call, r.worker.session, r.worker.linked) == (J, None, None, False)


# --- results of a consensus that was taken back ---------------------------------------------------------------------


def test_the_result_of_the_first_run_is_dropped_though_the_second_has_begun() -> None:
    """W-14, K-3: callbacks end in the order in which they began, so the first result is of the void consensus."""
    r = rank(WorkerPhase.TRAINING, callbacks=("checkpoint",))
    r.control(m.Checkpoint, decision_id=5, version=1, target_rank=1, cycle=1)
    r.sync(1)
    r.done(1)
    r.session(2, cycle=1, attempt=1)
    r.done(1, attempt=1)
    assert r.feed(ev.ActionDone("checkpoint", 5, 1, 1.0, count=1)) == [] and r.worker.phase == P
    assert not r.feed(ev.ActionDone("checkpoint", 5, 1, 1.0, count=2))
    told = reports(r.update(1, attempt=1, merged=0, version=1, base=9), m.CheckpointResult)
    assert len(told) == 1 and not r.worker.void
