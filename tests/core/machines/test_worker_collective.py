"""A worker in a collective: what counts when, what is taken back, and how it gets out (W-14, W-20, R-13, R-15)."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import WorkerPhase

from support.rank import NEXT, PLAN, Rank, of, reports


def rank(phase: WorkerPhase = WorkerPhase.TRAINING, **settings: Any) -> Rank:
    """Rank 1 of 3 that averages in place."""
    return Rank(phase, collective=True, **settings)


def books(r: Rank) -> tuple[int, int, int, int, int]:
    """What a call changes, and the step count, which it raises."""
    w = r.worker
    return w.version, w.global_step, w.cycle, w.steps_since_avg, w.local_step


def test_a_call_is_one_act_and_a_step_of_its_own() -> None:
    """W-14, C-6: version, base, steps and cycle at once; the ack exceeds the count of the arm without a batch."""
    r = rank()
    r.step(3)
    before = r.worker.local_step
    (run,) = of(r.sync(1, base=40), fx.RunCollective)
    assert (run.cycle, run.attempt, run.session_id, run.steps, run.observer, run.restore) == (1, 0, 1, 3, False, False)
    (ack,) = reports(r.done(1, total=9), m.SyncAck)

    assert books(r) == (1, 49, 1, 0, before + 1)
    assert (ack.step_count, ack.shipped_steps, ack.total_steps, ack.outcome) == (before + 1, 3, 9, m.Outcome.MERGED)
    assert ack.digest is None and ack.state_complete


@pytest.mark.parametrize("session", [0, 5])
def test_a_newcomer_is_called_into_no_session_that_it_was_not_told_of(session: int) -> None:
    """N-2, M-31: also where it knows of none, and so of none that is torn."""
    r = Rank(WorkerPhase.JOINING, collective=True)
    r.worker.session = None
    (stop,) = of(r.sync(1, session=session), fx.Stop)

    assert stop.status == "failed" and "session" in stop.text and r.worker.violations == 1


@pytest.mark.parametrize("fate", ["at once", "after a retry", "as a newcomer of a retry"])
def test_an_ack_carries_the_generation_of_its_session(fate: str) -> None:
    """N-1, N-6, M-43: with any other it is fenced, and its number is missing on the lane."""
    r = rank(WorkerPhase.JOINING if "newcomer" in fate else WorkerPhase.TRAINING)
    if fate != "as a newcomer of a retry":
        r.sync(1)
    if fate != "at once":
        r.broke(1)
        r.session(2, cycle=1, attempt=1)
    (ack,) = reports(r.done(1, attempt=int(fate != "at once")), m.SyncAck)

    assert ack.generation == r.worker.settings.generation == 1


def test_no_step_is_taken_between_the_call_and_its_update() -> None:
    """W-14, W-12: what a retry would have to take back must not have been trained on; plans wait."""
    r = rank(WorkerPhase.WAITING)
    r.sync(1)
    r.done(1)
    assert r.worker.phase == WorkerPhase.THROTTLED
    assert not of(r.control(m.StartEpoch, cycle=1, plan=PLAN), fx.Train)
    orders = r.update(1, merged=0, version=1, base=9)

    assert [type(order) for order in orders] == [fx.Unpark, fx.Train], "nothing is left to adopt"
    assert r.worker.phase == WorkerPhase.TRAINING and r.worker.call is None


def test_an_update_of_other_steps_is_a_violation() -> None:
    """W-12: and so is one of a call that this rank was not in."""
    for fields in ({"merged": 2}, {"attempt": 1, "merged": 3}):
        r = rank()
        r.step(3)
        r.sync(1)
        r.done(1)
        assert [stop.status for stop in of(r.update(1, **fields), fx.Stop)] == ["failed"]


def test_the_plan_in_hand_goes_on_after_the_update() -> None:
    """W-4, W-12: it was parked, not given up; a new one goes to the mailbox."""
    r = rank()
    r.step(2)
    r.sync(1)
    r.done(1)
    orders = r.update(1, merged=2, version=1, base=9, plan=NEXT)

    assert [type(order) for order in orders] == [fx.Unpark]
    assert r.worker.hand == (PLAN,) and r.worker.mailbox == (NEXT,)


@pytest.mark.parametrize(("total", "refusal", "outcome", "steps", "version"), [
    (9, None, m.Outcome.MERGED, 0, 1), (0, None, m.Outcome.UNREALIZED, 3, 0),
    (6, m.Refusal.NONFINITE, m.Outcome.REFUSED, 0, 1), (0, m.Refusal.NONFINITE, m.Outcome.REFUSED, 0, 0),
])  # fmt: skip
def test_what_a_call_makes_of_own_steps(
    total: int, refusal: m.Refusal | None, outcome: m.Outcome, steps: int, version: int
) -> None:
    """W-14, R-13, C-17: a call in which all skipped changes nothing; who was not finite loses its steps either way."""
    r = rank()
    r.step(3)
    r.sync(1)
    (ack,) = reports(r.done(1, total=total, refusal=refusal), m.SyncAck)

    assert (ack.outcome, ack.shipped_steps, ack.refusal) == (outcome, 3 if outcome == m.Outcome.MERGED else 0, refusal)
    assert (r.worker.steps_since_avg, r.worker.version) == (steps, version)
    r.update(1, outcome=outcome, merged=ack.shipped_steps, version=version, base=total)
    assert r.worker.steps_since_avg == steps and r.worker.phase == WorkerPhase.TRAINING


def test_a_success_that_does_not_count_is_taken_back() -> None:
    """W-14, R-15: the retry is of the same steps, on the old version and base; only the local step stays."""
    r = rank()
    r.step(3)
    before = books(r)
    r.sync(1, base=40)
    r.done(1, total=9)
    orders = r.session(2, cycle=1, attempt=1, members=((1, 1), (2, 1)))
    (run,) = of(orders, fx.RunCollective)
    assert (run.attempt, run.session_id, run.steps, run.restore) == (1, 2, 3, True)
    assert books(r) == (*before[:4], before[4] + 1)
    (ack,) = reports(r.done(1, total=6, attempt=1), m.SyncAck)

    assert books(r) == (1, 46, 1, 0, before[4] + 2)
    assert (ack.attempt, ack.shipped_steps, ack.step_count) == (1, 3, before[4] + 2)


def test_a_failure_can_be_told_whatever_its_words_are() -> None:
    """R-18, N-24: a library has words of its own."""
    r = rank()
    r.sync(1)
    (failed,) = reports(r.feed(ev.CollectiveFailed(1, 0, "\udcff" + "x" * 5000, True)), m.RoundFailed)
    assert failed.cause.startswith("?xx") and len(failed.cause) < 1000


def test_a_failure_is_repeated_as_it_was() -> None:
    """R-15: what failed was put back by who failed; nothing is restored twice."""
    r = rank()
    r.step(3)
    r.sync(1)
    (failed,) = reports(r.broke(1), m.RoundFailed)
    assert (failed.cycle, failed.attempt, failed.retryable) == (1, 0, True)
    (run,) = of(r.session(2, cycle=1, attempt=1), fx.RunCollective)

    assert (run.steps, run.restore) == (3, False)


def test_a_session_that_overtook_its_request_is_the_one_that_is_used() -> None:
    """W-20, W-3: NewSession is served in the middle of a step, SyncNow waits for its end; no call in a dead session."""
    r = rank()
    r.control(m.SyncNow, serve=False, cycle=1, attempt=0, session_id=1, version=1, global_step=0)
    r.control(m.DeclareDead, serve=False, dead_rank=2, dead_incarnation=1)
    r.session(2, cycle=1, attempt=1, members=((0, 1), (1, 1)))
    orders = r.step()
    (run,) = of(orders, fx.RunCollective)

    assert (run.attempt, run.session_id) == (1, 2) and [s.session_id for s in of(orders, fx.BuildSession)] == [2]


def test_a_call_with_a_dead_member_is_not_entered() -> None:
    """W-20, R-15: DeclareDead came first; the rank waits outside, and goes on with the next session."""
    r = rank()
    r.control(m.DeclareDead, dead_rank=2, dead_incarnation=1)
    r.step(2)
    assert not of(r.sync(1), fx.RunCollective) and r.worker.phase == WorkerPhase.THROTTLED
    (run,) = of(r.session(2, cycle=1, attempt=1, members=((0, 1), (1, 1))), fx.RunCollective)

    assert run.steps == 2 and r.worker.phase == WorkerPhase.IN_COLLECTIVE


def test_each_death_aborts_the_session_of_its_own_time() -> None:
    """W-20: the handle of now, not that of the first call; once per session."""
    r = rank()
    r.sync(1)
    aborts = of(r.control(m.DeclareDead, dead_rank=2, dead_incarnation=1), fx.AbortCollective)
    r.broke(1)
    r.session(2, cycle=1, attempt=1, members=((0, 1), (1, 1)))
    aborts += of(r.control(m.DeclareDead, dead_rank=0, dead_incarnation=1), fx.AbortCollective)

    assert [abort.session_id for abort in aborts] == [1, 2]


@pytest.mark.parametrize("end", ["success", "failure"])
def test_a_new_session_frees_who_is_inside(end: str) -> None:
    """W-20, R-15, F06: whichever way the call of before ends, the next one follows, and nothing is said of it."""
    r = rank()
    r.step(2)
    r.sync(1)
    assert [a.session_id for a in of(r.session(2, cycle=1, attempt=1), fx.AbortCollective)] == [1]
    orders = r.done(1, total=6) if end == "success" else r.broke(1)
    (run,) = of(orders, fx.RunCollective)

    assert not reports(orders) and (run.attempt, run.steps, run.restore) == (1, 2, end == "success")


def test_a_session_is_built_once_and_together_with_a_call() -> None:
    """M-31, W-20: at rest it is only kept; all members meet in the next call."""
    r = rank()
    assert r.session(2, state_from=0) == []
    orders = r.sync(1)
    assert [type(o) for o in orders] == [fx.Park, fx.BuildSession, fx.ShareState, fx.RunCollective]
    assert [(s.source, s.adopts) for s in of(orders, fx.ShareState)] == [(0, False)], "a voter lets it pass by"
    r.done(1)
    r.update(1, merged=0, version=1, base=9)

    assert [type(o) for o in r.sync(2)] == [fx.Park, fx.RunCollective]


def test_who_joins_takes_the_state_and_counts_nothing() -> None:
    """M-23, M-31: no vote, no mass; version and base come with the Update that promotes it."""
    r = rank(WorkerPhase.JOINING)
    r.session(4, cycle=7, attempt=2, state_from=0)
    (run,) = of(r.orders, fx.RunCollective)
    assert [s.adopts for s in of(r.orders, fx.ShareState)] == [True] and (run.steps, run.observer) == (0, True)
    (ack,) = reports(r.feed(ev.CollectiveDone(cycle=7, attempt=2, total_steps=9)), m.SyncAck)
    assert (ack.outcome, ack.shipped_steps, ack.step_count) == (m.Outcome.OBSERVER, 0, 1)
    assert r.worker.phase == WorkerPhase.JOINING and r.worker.version == 0
    r.update(7, attempt=2, outcome=m.Outcome.OBSERVER, version=5, base=60, plan=PLAN)

    assert (r.worker.phase, r.worker.version, r.worker.global_step) == (WorkerPhase.TRAINING, 5, 60)


def test_a_newcomer_of_an_unrealized_call_says_so() -> None:
    """M-25: it stands on no consensus, and the next SyncNow takes it along."""
    r = rank(WorkerPhase.JOINING)
    r.session(2, state_from=0)
    r.sync(3)
    (ack,) = reports(r.done(3, total=0), m.SyncAck)
    assert ack.outcome == m.Outcome.UNREALIZED

    assert of(r.sync(4), fx.RunCollective)


# --- waiting for a session (R-15) ---------------------------------------------------------------------------------


def test_a_rank_without_a_session_goes() -> None:
    """R-15, R-18, W-24: after session_wait_s, without Exiting, and it says why."""
    r = rank(session_wait_s=20.0, heartbeat_s=50.0)
    r.sync(1)
    r.broke(1)
    assert r.worker.poll_timeout() == 20.0
    r.now = 20.0
    orders = r.feed(ev.Tick())

    assert [(f.retryable, f.cycle) for f in reports(orders, m.RoundFailed)] == [(False, 1)]
    assert [stop.status for stop in of(orders, fx.Stop)] == ["failed"] and not reports(orders, m.Exiting)


def test_with_too_few_ranks_it_waits_for_what_the_coordinator_decides() -> None:
    """R-15, M-21: nobody makes a session below min_ranks, and the run may wait for others to come."""
    r = rank(session_wait_s=20.0, min_ranks=3)
    r.sync(1)
    r.control(m.DeclareDead, dead_rank=2, dead_incarnation=1)
    r.broke(1)
    r.now = 25.0
    r.control(m.Beacon, run_phase=1, cycle_phase=1, cycle=1)
    assert not of(r.feed(ev.Tick()), fx.Stop) and r.worker.session_deadline is None
    orders = r.control(m.ShutdownWithSave, decision_id=1, reason=m.SaveReason.SINGLE_SURVIVOR, saver=1, stem="x")

    assert [save.version for save in of(orders, fx.Save)] == [0]


def test_what_does_not_count_yet_is_saved_under_the_version_that_does() -> None:
    """K-10, K-12, W-19: the file holds more than its coverage says, never less, and belongs to the record."""
    r = rank()
    r.step(3)
    r.sync(1)
    r.done(1)
    assert r.worker.version == 1
    orders = r.control(m.ShutdownWithSave, decision_id=1, reason=m.SaveReason.SINGLE_SURVIVOR, saver=1, stem="x")

    assert [save.version for save in of(orders, fx.Save)] == [0]


# --- callbacks of a consensus (W-14, K-3) -------------------------------------------------------------------------


def armed(**settings: Any) -> Rank:
    """A rank that evaluates and saves the consensus of cycle 1, in the call of cycle 1."""
    r = rank(callbacks=("evaluate", "checkpoint"), **settings)
    r.control(m.Checkpoint, decision_id=5, version=1, target_rank=1, cycle=1)
    r.control(m.ExecuteEvalCallback, schedule_id=6, epoch=0, target_rank=1, version=1, on_consensus=True, cycle=1)
    r.sync(1)
    return r


def found(r: Rank, kind: str, decision: int) -> list[Any]:
    """A callback has returned."""
    return r.feed(ev.ActionDone(kind, decision, 1, 1.0, metric=2.0, count=1))


def test_armed_callbacks_begin_after_the_ack() -> None:
    """W-14, K-3: in this order, and before the Update; an evaluation holds nobody's cycle."""
    orders = armed().done(1)

    assert [type(o) for o in orders] == [fx.Reporting, fx.FireCallback, fx.Evaluate]
    assert orders[1].version == orders[2].version == 1


def test_their_results_are_told_when_the_consensus_counts() -> None:
    """W-14, K-16: not before the Update, since it may never count; after it as always."""
    r = armed()
    r.done(1)
    assert not reports(found(r, "checkpoint", 5))
    told = reports(r.update(1, merged=0, version=1, base=9))
    assert [type(report) for report in told] == [m.CheckpointResult]

    assert [report.metric for report in reports(found(r, "evaluate", 6), m.EvalResult)] == [2.0]


def test_callbacks_run_again_for_the_attempt_that_counts() -> None:
    """W-14: and what they said of the other consensus is dropped, whether it came before or after the retry."""
    r = armed()
    r.done(1)
    found(r, "checkpoint", 5)
    r.session(2, cycle=1, attempt=1)
    assert not reports(found(r, "evaluate", 6))
    orders = r.done(1, attempt=1)
    assert [type(o) for o in orders] == [fx.Reporting, fx.FireCallback, fx.Evaluate]
    r.update(1, attempt=1, merged=0, version=1, base=9)
    told = reports(found(r, "checkpoint", 5)) + reports(found(r, "evaluate", 6))

    assert [type(report) for report in told] == [m.CheckpointResult, m.EvalResult] and not r.worker.void


def test_an_unrealized_call_leaves_them_armed() -> None:
    """K-3, C-17: for the next one that makes a consensus."""
    r = armed()
    assert not of(r.done(1, total=0), fx.FireCallback)
    r.update(1, outcome=m.Outcome.UNREALIZED)
    r.control(m.SyncNow, cycle=2, attempt=0, session_id=1, version=1, global_step=0)

    assert of(r.done(2), fx.FireCallback)


# --- leaving (W-28, W-24) -----------------------------------------------------------------------------------------


def test_who_wishes_to_leave_inside_a_call_leaves_after_it() -> None:
    """W-28: its contribution and its ack come first."""
    r = rank()
    r.step(3)
    r.sync(1)
    assert not r.feed(ev.LeaveRequested())
    told = reports(r.done(1))

    assert [type(report) for report in told] == [m.SyncAck, m.Exiting] and r.worker.phase == WorkerPhase.DRAINING


def test_a_stop_overtakes_what_waits_for_the_end_of_a_call() -> None:
    """Section 5, X: abort, then stop; what was queued behind the call is nothing any more."""
    r = rank()
    r.sync(1)
    r.control(m.StartEpoch, cycle=0, plan=NEXT)
    orders = r.control(m.Shutdown, reason=m.SaveReason.GRACEFUL)

    assert isinstance(orders[0], fx.AbortCollective) and of(orders, fx.Stop) and not of(orders, fx.Train)


def test_a_rank_is_asked_for_an_id_wherever_it_is() -> None:
    """W-20, M-31: inside a call too; the bytes are passed on as they are."""
    r = rank(WorkerPhase.IN_COLLECTIVE)
    (make,) = of(r.control(m.RequestSessionId, serve=False, session_id=9), fx.MakeSessionId)
    (told,) = reports(r.feed(ev.SessionIdMade(make.session_id, b"abc")))

    assert (told.session_id, told.uid) == (9, b"abc") and r.worker.phase == WorkerPhase.IN_COLLECTIVE
    assert "collective" in r.worker.explain()[0]


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_rank_fenced_inside_a_call_is_freed_and_begins_anew(succeeds: bool) -> None:
    """W-20, W-21, M-31: nothing of the old life's session, call, callbacks or count is left; how the aborted call ends
    is told to nobody. In its new life the rank is an observer of a session that it was not in."""
    r = rank(callbacks=("checkpoint",))
    r.control(m.Checkpoint, decision_id=4, version=1, target_rank=1, cycle=1)
    r.step(3)
    r.sync(1)
    orders = r.feed(ev.Received(m.Fenced(generation=1, incarnation=2, cycle=1, why="stale")))
    assert [type(o) for o in orders] == [fx.AbortCollective, fx.AbandonPlan, fx.Unpark, fx.Publish, fx.Dial]
    w = r.worker
    assert (w.phase, w.session, w.call, w.steps_booked, w.armed) == (WorkerPhase.JOINING, None, None, 0, {})

    assert not (r.done(1) if succeeds else r.broke(1))
    r.feed(ev.Received(m.Welcome(rank=1, incarnation=2, generation=1, status=m.WelcomeStatus.JOINING, control_seq=0,
                                 report_seq=0, config={})))  # fmt: skip
    r.number, life = 0, {"incarnation": 2}
    r.control(m.NewSession, serve=False, session_id=2, uid=b"u", new_rank=1, members=((0, 1), (1, 2), (2, 1)),
              new_world_size=3, state_from=0, cycle=2, attempt=1, **life)  # fmt: skip
    assert w.in_mid_step
    (ack,) = reports(r.done(2, attempt=1), m.SyncAck)

    assert [build.session_id for build in of(r.orders, fx.BuildSession)][-1] == 2
    assert [share.adopts for share in of(r.orders, fx.ShareState)][-1]
    assert (ack.incarnation, ack.report_seq, ack.outcome, ack.shipped_steps) == (2, 1, m.Outcome.OBSERVER, 0)
    assert not w.in_mid_step, "the step in which the old life ended is over"


def test_a_new_life_enters_a_session_with_a_number_that_had_died() -> None:
    """M-45, W-21: a coordinator that has lost its journal gives the number of a dead life again. The rank remembered
    that death, parked and never came into the call (`paceline simulate --ranks 4 --seed 3006764`)."""
    r = rank()
    r.control(m.DeclareDead, dead_rank=2, dead_incarnation=1)
    r.feed(ev.Received(m.Fenced(generation=1, incarnation=2, cycle=1, why="stale")))
    r.feed(ev.Received(m.Welcome(rank=1, incarnation=2, generation=2, status=m.WelcomeStatus.JOINING, control_seq=0,
                                 report_seq=0, config={})))  # fmt: skip
    r.number, life = 0, {"incarnation": 2, "generation": 2}
    r.control(m.NewSession, serve=False, session_id=2, uid=b"u", new_rank=1, members=((0, 1), (1, 2), (2, 1)),
              new_world_size=3, state_from=0, cycle=None, attempt=0, **life)  # fmt: skip
    r.control(m.SyncNow, cycle=2, attempt=0, session_id=2, version=2, global_step=9, **life)
    assert of(r.orders, fx.RunCollective)


def test_a_rank_fenced_while_it_wishes_to_leave_looks_for_no_seat() -> None:
    """W-28, W-23: what it waited for will not come, and it wanted to be gone."""
    r = rank(WorkerPhase.IN_COLLECTIVE)
    r.feed(ev.LeaveRequested())
    orders = r.feed(ev.Received(m.Fenced(generation=1, incarnation=2, cycle=1, why="stale")))

    assert isinstance(orders[0], fx.AbortCollective), "W-24: before anything touches the parameters"
    assert [stop.status for stop in of(orders, fx.Stop)] == ["leave"] and not of(orders, fx.Dial)
    assert r.worker.poll_timeout() is None


def test_without_a_window_a_lost_link_ends_a_rank_that_is_inside_a_call() -> None:
    """W-21, W-24: it is freed from the call before anything else."""
    r = rank(WorkerPhase.IN_COLLECTIVE)
    orders = r.feed(ev.LinkLost(cause="reset"))

    assert isinstance(orders[0], fx.AbortCollective) and not of(orders, fx.Dial)
    assert [stop.status for stop in of(orders, fx.Stop)] == ["coordinator_lost"]
