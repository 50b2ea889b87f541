"""The worker alone: what it counts, ships, acknowledges and when it lets go (section 5)."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.errors import LocalProtocolError
from paceline.core.phases import WorkerPhase
from paceline.core.worker import INBOX_LIMIT, stop_error

from support.rank import NEXT, PLAN, Rank, of, reports

J, W, T, P, D, S = (
    WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.TRAINING, WorkerPhase.THROTTLED, WorkerPhase.DRAINING,
    WorkerPhase.STOPPED,
)  # fmt: skip


# --- steps and schedule (W-2, W-8, W-9) ------------------------------------------------------------------------------


def test_a_step_reports_its_batch_and_a_changed_rate_at_the_position_it_was_taken_with() -> None:
    """W-2, W-8: position = global_step + steps_since_avg of the step itself."""
    rank = Rank(T)
    first, second = reports(rank.step()), reports(rank.step())

    assert [type(report) for report in first] == [m.Batch, m.LrUpdate]
    assert (first[0].step_count, first[0].plan_id, first[0].cycle, first[1].position) == (1, 7, 0, 0)
    assert [type(report) for report in second] == [m.Batch], "the rate has not changed"
    numbers = [report.report_seq for report in first + second]
    assert numbers == list(range(numbers[0], numbers[0] + 3)), "N-3: one lane, no hole"


def test_an_update_subtracts_what_was_shipped_and_keeps_the_overshoot() -> None:
    """W-12, 17.1 #6: steps taken since the snapshot keep their mass, and the position does not fall (I43, I46)."""
    rank = Rank(T, "async")
    rank.step(2)
    rank.request(1)
    rank.step(1)
    rank.copied(1)
    rank.staged(1)
    before = rank.worker.position
    rank.update(1, base=5, version=1)

    assert (rank.worker.steps_since_avg, rank.worker.shipped, rank.worker.local_step) == (1, 0, 3)
    assert rank.worker.position == 6 >= before
    assert (rank.worker.version, rank.worker.cycle) == (1, 1)


def test_a_second_update_of_a_cycle_subtracts_nothing() -> None:
    """W-12, I46: fenced, and it would subtract 0 anyway."""
    rank = Rank(T, "async")
    rank.step(2)
    rank.cycle(1, base=2, version=1)
    rank.step(1)
    fenced = rank.worker.fenced
    rank.update(1, base=2, version=1)

    assert (rank.worker.steps_since_avg, rank.worker.fenced) == (1, fenced + 1)


def test_a_second_update_is_counted_as_stale_by_a_rank_that_leaves_too() -> None:
    """W-12 before W-23: its consensus is staged no more, but it is old all the same."""
    rank = Rank(T)
    rank.cycle(1, version=1)
    rank.feed(ev.LeaveRequested())
    rank.update(1, version=1)

    assert rank.worker.phase == WorkerPhase.DRAINING and rank.worker.fenced == 1


@pytest.mark.parametrize(
    ("outcome", "left", "how"),
    [(m.Outcome.MERGED, 0, "overwrite"), (m.Outcome.REFUSED, 0, "overwrite"), (m.Outcome.UNREALIZED, 2, "keep")],
)
def test_what_each_outcome_does_to_steps_and_parameters(outcome: m.Outcome, left: int, how: str) -> None:
    """W-12.2, R-17: refused drops the steps and overwrites, unrealized keeps both."""
    rank = Rank(T)
    rank.step(2)
    orders = rank.cycle(1, outcome=outcome, version=1, refusal=m.Refusal.NONFINITE)

    assert rank.worker.steps_since_avg == left
    adopt = of(orders, fx.Adopt)[0]
    assert (adopt.how, adopt.reset_optimizer) == (how, outcome == m.Outcome.REFUSED)


def test_async_blends_what_was_merged() -> None:
    """R-17: the elastic blend is for merged ranks of async only."""
    rank = Rank(T, "async")
    rank.step(1)
    assert of(rank.cycle(1), fx.Adopt)[0].how == "blend"


def test_an_observer_abandons_its_plans_at_the_update() -> None:
    """W-12.2: running plan and mailbox are those of another life."""
    rank = Rank(T, "async")
    rank.control(m.StartEpoch, cycle=0, plan=NEXT)
    orders = rank.cycle(1, observer=True, outcome=m.Outcome.OBSERVER)

    assert of(orders, fx.AbandonPlan) and not rank.worker.hand and not rank.worker.mailbox


def test_the_base_rises_only_for_the_version_in_hand() -> None:
    """W-13: monotone, and not for a rank without that consensus."""
    rank = Rank(W)
    rank.control(m.SetGlobalStep, version=0, global_step=7)
    rank.control(m.SetGlobalStep, version=0, global_step=3)
    rank.control(m.SetGlobalStep, version=1, global_step=99)

    assert rank.worker.global_step == 7


@pytest.mark.parametrize("source", ["StartEpoch", "Update"])
def test_an_overwritten_plan_is_told_loudly_and_the_newer_one_stays(source: str) -> None:
    """W-15: with the rank and both plans, because the book of the coordinator follows the newest dispatch."""
    rank, newer = Rank(T, policy="async"), m.Plan(plan_id=9, epoch=1, offset=0, size=4)
    assert not of(rank.control(m.StartEpoch, cycle=0, plan=NEXT), fx.Publish)
    if source == "Update":
        rank.request(1), rank.copied(1), rank.staged(1)
    orders = rank.update(1, plan=newer) if source == "Update" else rank.control(m.StartEpoch, cycle=0, plan=newer)
    facts = {"rank": 1, "dropped": (0, 8, 8), "kept": (1, 0, 4)}
    assert of(orders, fx.Publish) == [fx.Publish("plan_overwritten", facts)]
    rank.step(4, last=True)

    assert of(rank.end(7), fx.Train) == [fx.Train(newer)] and rank.worker.phase == T


# --- snapshots (W-10, W-11) ------------------------------------------------------------------------------------------


@given(repeats=st.integers(1, 6), when=st.integers(0, 2))
def test_repeated_requests_take_one_copy(repeats: int, when: int) -> None:
    """I34: any number of nudges: one copy, one shipped count, one final state."""
    rank = Rank(T)
    rank.step(3)
    stages = [lambda: rank.request(1), lambda: rank.copied(1), lambda: rank.staged(1)]
    for index, stage in enumerate(stages):
        stage()
        if index == when:
            for _ in range(repeats):
                rank.request(1)
    rank.update(1, base=3, version=1)

    assert len(of(rank.orders, fx.TakeSnapshot)) == 1
    assert {report.shipped_steps for report in reports(rank.orders, m.SnapshotReady)} == {3}
    assert rank.worker.steps_since_avg == 0 and rank.worker.phase == T


def test_a_later_attempt_ships_the_retained_copy() -> None:
    """W-10, C-39: shipped unchanged although the rank went on, not a fresh copy, the staged consensus is dropped."""
    rank = Rank(T, "async")
    rank.step(2)
    rank.request(1)
    rank.copied(1)
    rank.staged(1)
    rank.step(1)
    again = of(rank.request(1, attempt=1), fx.TakeSnapshot)[0]

    assert (again.shipped, again.fresh, again.attempt) == (2, False, 1)
    assert rank.worker.staged is None
    rank.copied(1, 1)
    rank.staged(1, 1)
    rank.update(1, attempt=1)
    assert rank.worker.steps_since_avg == 1


def test_a_rank_that_holds_still_ships_the_retained_copy_again_too() -> None:
    """W-10, W-11, C-39: it stands where it was copied; even so a later attempt copies nothing a second time."""
    rank = Rank(T)
    rank.step(2)
    rank.request(1)
    rank.copied(1)
    assert rank.worker.phase == P
    again = of(rank.request(1, attempt=1), fx.TakeSnapshot)[0]

    assert (again.shipped, again.fresh, again.attempt) == (2, False, 1)


def test_the_next_source_of_the_initial_state_takes_a_fresh_copy() -> None:
    """M-6: an observer that becomes the source ships everything."""
    rank = Rank(J)
    rank.request(0, observer=True)
    order = of(rank.request(0, attempt=1, observer=False), fx.TakeSnapshot)[0]

    assert order.state and order.fresh and not order.header_only


@pytest.mark.parametrize("steps", [0, 2])
def test_an_idle_rank_ships_a_header_only(steps: int) -> None:
    """R-9, W-10."""
    rank = Rank(T)
    if steps:
        rank.step(steps)
    assert of(rank.request(1), fx.TakeSnapshot)[0].header_only is (steps == 0)


@given(st.lists(st.sampled_from(["nudge", "again", "late", "ack"]), max_size=12))
def test_the_copy_is_reported_before_the_consensus(story: list[str]) -> None:
    """I16, N-3: SnapshotReady precedes SyncAck of the same attempt, whatever arrives when."""
    rank, attempt = Rank(T), 0
    rank.step(1)
    rank.request(1)
    for act in story:
        if act == "nudge":
            rank.request(1, attempt)
        elif act == "again":
            attempt += 1
            rank.request(1, attempt)
        elif act == "late":
            rank.copied(1, attempt)
        else:
            rank.staged(1, attempt)
    ready: set[int] = set()
    for report in reports(rank.orders):
        if isinstance(report, m.SnapshotReady):
            ready.add(report.attempt)
        elif isinstance(report, m.SyncAck):
            assert report.attempt in ready


# --- parking (W-11, W-17) --------------------------------------------------------------------------------------------

SERVED = st.sampled_from(["request", "start", "throttle", "base", "extend", "beacon", "advisory", "old update"])


@given(st.lists(SERVED, max_size=10))
def test_a_parked_rank_stays_parked_until_its_cycle_ends(story: list[str]) -> None:
    """W-17, I15: all but the Update of that cycle, a stop, Fenced or a closed lane is served without release."""
    rank = Rank(P)
    acts = {
        "request": lambda: rank.request(1),
        "start": lambda: rank.control(m.StartEpoch, cycle=0, plan=NEXT) if not rank.worker.mailbox else None,
        "throttle": lambda: rank.control(m.Throttle, cycle=1, reason=m.ThrottleReason.LEAD),
        "base": lambda: rank.control(m.SetGlobalStep, version=0, global_step=1),
        "extend": lambda: rank.control(m.ExtendPartition, cycle=0, extends=7, plan=attrs.evolve(NEXT, plan_id=9)),
        "beacon": lambda: rank.control(m.Beacon, run_phase=1, cycle_phase=1, cycle=1),
        "advisory": lambda: rank.control(m.StageAdvisory, counts=(), segments=()),
        "old update": lambda: rank.update(0, outcome=m.Outcome.UNREALIZED),
    }
    for act in story:
        acts[act]()
        assert rank.worker.phase == P and not of(rank.orders, fx.Unpark)
    rank.cycle(1)

    assert rank.worker.phase == T and len(of(rank.orders, fx.Unpark)) == 1


def test_a_plan_that_waited_while_parked_starts_at_the_release() -> None:
    """W-4, W-15: it is held, not started, and the consensus is adopted first (I16)."""
    rank = Rank(W)
    rank.request(1)
    assert rank.worker.phase == P
    rank.control(m.StartEpoch, cycle=0, plan=PLAN)
    rank.copied(1)
    rank.staged(1)
    orders = rank.update(1)

    kinds = [type(order) for order in orders]
    assert kinds.index(fx.Adopt) < kinds.index(fx.Unpark) < kinds.index(fx.Train)


# --- the lane (W-3, W-20, N-2, N-6) ----------------------------------------------------------------------------------


def test_messages_wait_for_a_drain_point_while_a_step_runs() -> None:
    """W-3: served in order between two steps, and confirmed only then."""
    rank = Rank(T)
    handled = rank.worker.control_handled
    rank.control(m.SetGlobalStep, serve=False, version=0, global_step=5)
    rank.control(m.StartEpoch, serve=False, cycle=0, plan=NEXT)
    rank.control(m.Beacon, serve=False, run_phase=1, cycle_phase=0, cycle=0)
    assert rank.worker.global_step == 0 and rank.worker.control_handled == handled, "a beacon passes no queued one"

    rank.step()
    assert rank.worker.global_step == 5 and rank.worker.control_handled == handled + 2


def test_an_idle_rank_confirms_a_beacon() -> None:
    """Section 3: all control messages up to the number are handled."""
    rank = Rank(W)
    rank.control(m.Beacon, serve=False, run_phase=1, cycle_phase=0, cycle=0)
    assert rank.worker.control_handled == rank.number


def test_the_end_of_a_plan_comes_before_the_lane_is_drained() -> None:
    """W-2: Metrics before the request that waits, or a covered plan stays in flight."""
    rank = Rank(T)
    rank.step(3)
    rank.control(m.RequestParams, serve=False, cycle=1, attempt=0, observer=False)
    rank.step(last=True)
    assert rank.worker.phase == T
    rank.end(7)

    assert [type(r) for r in reports(rank.orders)][-1] is m.Metrics and rank.worker.phase == P


def test_a_hole_or_another_run_ends_the_session_and_another_life_is_fenced() -> None:
    """N-2, N-6, N-7."""
    hole, other, stale = Rank(W), Rank(W), Rank(W)
    hole.control(m.SetGlobalStep, gap=1, version=0, global_step=1)
    other.control(m.SetGlobalStep, run_id=b"x" * 16, version=0, global_step=1)
    stale.control(m.SetGlobalStep, incarnation=9, version=0, global_step=1)

    assert (hole.worker.phase, other.worker.phase, stale.worker.phase) == (S, S, W)
    assert stale.worker.fenced == 1 and stale.worker.global_step == 0
    assert of(hole.orders, fx.Stop)[0].status == "failed" and not reports(hole.orders, m.Exiting)


def test_what_no_coordinator_sends_ends_the_session() -> None:
    """N-7: a session message, or a report, to a welcomed rank."""
    for message in (m.Reject(code=1, text="no"), m.Heartbeat(step_count=1, state="x")):
        rank = Rank(W)
        rank.feed(ev.Received(message))
        assert rank.worker.phase == S


def test_the_inbox_is_bounded() -> None:
    """N-9: a training process that never comes to a drain point is gone for good."""
    rank = Rank(T)
    for _ in range(INBOX_LIMIT):
        rank.control(m.SetGlobalStep, serve=False, version=0, global_step=1)
    assert rank.worker.phase == T
    rank.control(m.SetGlobalStep, serve=False, version=0, global_step=1)
    assert rank.worker.phase == S


# --- time and ends ---------------------------------------------------------------------------------------------------


def test_a_silent_coordinator_counts_as_lost_strictly_after_the_staleness() -> None:
    """W-22, M-3."""
    rank = Rank(W)
    rank.pass_time(30.0)
    assert rank.worker.phase == W
    due = rank.worker.poll_timeout()
    assert due is not None and 30.0 < due < 30.001
    rank.pass_time(0.001)
    assert of(rank.orders, fx.Stop)[0].status == "coordinator_lost" and rank.worker.poll_timeout() is None


@pytest.mark.parametrize(("away", "blames"), [(15.0, True), (15.001, False), (519.0, False)])
def test_a_rank_that_was_away_itself_calls_nobody_silent(away: float, blames: bool) -> None:
    """W-22, M-9: a tick that comes later than the larger of 2 s and half the staleness. Then the coordinator has the
    whole staleness once more; without a word it is lost all the same."""
    rank = Rank(W)
    rank.pass_time(16.0)
    due = rank.worker.poll_timeout()
    assert due == 16.0 + rank.worker.settings.heartbeat_s
    rank.now = due + away
    lost = of(rank.feed(ev.Tick()), fx.Stop)
    assert bool(lost) is blames
    if not blames:
        assert not of(rank.pass_time(30.0), fx.Stop)
        assert of(rank.pass_time(0.001), fx.Stop)


def test_time_does_not_go_back() -> None:
    """The machine's clock is an argument; misuse raises and changes nothing."""
    rank = Rank(W)
    rank.now = 5.0
    rank.feed(ev.Tick())
    before, rank.now = rank.worker.snapshot(), 4.0
    with pytest.raises(LocalProtocolError, match="went back"):
        rank.feed(ev.Tick())
    assert rank.worker.snapshot() == before


def test_nothing_is_reported_before_the_last_of_two_saves() -> None:
    """M-52: a rank that becomes the saver while it writes its own file still has the model to write."""
    rank = Rank(W)
    rank.control(m.ShutdownWithSave, decision_id=3, reason=m.SaveReason.GRACEFUL, saver=0, stem="x")
    rank.control(m.ShutdownWithSave, decision_id=3, reason=m.SaveReason.GRACEFUL, saver=1, stem="x")
    assert [save.model for save in of(rank.orders, fx.Save)] == [False, True]
    rank.feed(ev.ActionDone("save", 3, 0, 1.0))
    assert not reports(rank.orders, m.CheckpointResult)
    rank.feed(ev.ActionDone("save", 3, 0, 1.0, error="disk full"))

    assert reports(rank.orders, m.CheckpointResult)[0].error == "disk full"
    assert of(rank.orders, fx.Stop)[0].status == "saved"


@pytest.mark.parametrize("phase", [J, W, T, P])
def test_an_error_exit_is_not_announced_as_clean(phase: WorkerPhase) -> None:
    """W-24, 17.1 #22: Exiting would switch off both death detectors."""
    rank = Rank(phase)
    rank.feed(ev.TrainingFailed("out of memory"))

    assert not reports(rank.orders, m.Exiting)
    error = stop_error(of(rank.orders, fx.Stop)[0])
    assert error is not None and "out of memory" in str(error)


@pytest.mark.parametrize("phase", list(WorkerPhase))
def test_a_rank_that_does_not_train_says_why(phase: WorkerPhase) -> None:
    """I39."""
    rank = Rank(phase, collective=phase == WorkerPhase.IN_COLLECTIVE)
    assert bool(rank.worker.explain()) is (phase in (J, W, P, D, WorkerPhase.IN_COLLECTIVE))
    assert rank.worker.explain(rank=0) == ()


def test_a_draining_worker_runs_no_collective_and_never_parks() -> None:
    """I23, W-23: whatever it is still sent, it serves or ignores it, and its end is in sight."""
    rank = Rank(WorkerPhase.DRAINING)
    orders = rank.request(1) + rank.request(2, observer=True)
    orders += rank.control(m.SyncNow, cycle=3, attempt=0, session_id=1, version=1, global_step=0)
    orders += rank.control(m.Throttle, cycle=3, reason=m.ThrottleReason.BARRIER)
    orders += rank.control(m.StartEpoch, cycle=0, plan=PLAN)
    orders += rank.control(m.RequestState, transfer_id=1, joiner_rank=0, joiner_incarnation=2)

    assert not of(orders, fx.Park) and {type(order).__name__ for order in orders} == {"TakeSnapshot"}
    assert rank.worker.phase == WorkerPhase.DRAINING and rank.worker.drain_until is not None
