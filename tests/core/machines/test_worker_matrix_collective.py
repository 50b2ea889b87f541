"""Every message in column X of the matrix of section 5, and what a rank of a collective does in the other columns.

Helpers and the meaning of a case are in `support/matrix.py`; the rank is rank 1 of the members 0, 1 and 2.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.engine import Kind, untaken
from paceline.core.errors import LocalProtocolError
from paceline.core.phases import WorkerPhase
from paceline.core.table_worker_collective import COLLECTIVE_ROWS
from paceline.core.tables import WORKER

from support.matrix import Case, comes_to_rest, each, names, overflow, run, say, seq, tell
from support.rank import NEXT, Rank
from support.taken import counted

J, W, T, P, D, S = (
    WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.TRAINING, WorkerPhase.THROTTLED, WorkerPhase.DRAINING,
    WorkerPhase.STOPPED,
)  # fmt: skip
X = WorkerPhase.IN_COLLECTIVE
OUTSIDE = (J, W, T, P)
LIVE = (*OUTSIDE, X)
IN_PLACE: dict[str, Any] = {"collective": True}
ALL: dict[str, Any] = {**IN_PLACE, "callbacks": ("epoch", "evaluate", "checkpoint")}

SESSION = lambda r: r.session()  # noqa: E731
SYNC = lambda r: r.sync(1)  # noqa: E731
DONE = lambda r: r.done(1)  # noqa: E731
BROKE = lambda r: r.broke(1)  # noqa: E731
RETRY = lambda r: r.session(2, cycle=1, attempt=1)  # noqa: E731
PEER_DEAD = say(m.DeclareDead, dead_rank=0, dead_incarnation=1)
STRANGER_DEAD = say(m.DeclareDead, dead_rank=7, dead_incarnation=1)
LEAVE = tell(ev.LeaveRequested())
ASK = say(m.RequestSessionId, session_id=4)
SAVE = say(m.ShutdownWithSave, decision_id=3, reason=m.SaveReason.GRACEFUL, saver=1, stem="x")
SAVE_NOWHERE = say(m.ShutdownWithSave, decision_id=3, reason=m.SaveReason.GRACEFUL, saver=1)
FENCED = tell(ev.Received(m.Fenced(generation=1, incarnation=2, cycle=3, why="stale")))
WELCOME = m.Welcome(rank=1, incarnation=2, generation=1, status=m.WelcomeStatus.JOINING, control_seq=0, report_seq=0,
                    config={})  # fmt: skip
RESUMED = m.Welcome(rank=1, incarnation=1, generation=2, status=m.WelcomeStatus.RESUMED, control_seq=0, report_seq=0,
                    config={})  # fmt: skip
REJECT = m.Reject(code=11, text="frozen")
BUSY = m.Reject(code=14, text="busy", retry=True)
LOST = tell(ev.LinkLost(cause="reset"))
LOOKING: dict[str, Any] = {"settings": {**IN_PLACE, "reconnect_window_s": 60.0}, "before": LOST}
"""The link is lost, and the run gives it time to come back."""
FENCED_OWN = tell(ev.Received(m.Fenced(generation=1, incarnation=1, cycle=3, why="stale")))
CHECKPOINT_NEXT = say(m.Checkpoint, decision_id=1, version=1, target_rank=1, cycle=1)
CHECKPOINT_NOW = say(m.Checkpoint, decision_id=1, version=0, target_rank=1)
EVALUATE_NOW = say(m.ExecuteEvalCallback, schedule_id=1, epoch=0, target_rank=1, version=0, on_consensus=True)
CHECKED = tell(ev.ActionDone("checkpoint", 1, 1, 1.0))
OBSERVES = seq(SESSION, lambda r: r.sync(0))
"""A rank without a vote, inside the call of cycle 0."""

QUEUED = [
    say(m.RequestParams, cycle=1, attempt=0, observer=False), lambda r: r.update(1), lambda r: r.sync(1),
    say(m.StartEpoch, cycle=0, plan=NEXT), say(m.ExtendPartition, cycle=0, extends=7, plan=NEXT),
    say(m.Throttle, cycle=1, reason=m.ThrottleReason.LEAD), say(m.SetGlobalStep, version=0, global_step=3),
    say(m.StageAdvisory, counts=(), segments=()), CHECKPOINT_NOW, EVALUATE_NOW,
    say(m.SaveConsensusModel, decision_id=1, version=0, target_rank=1, cycle=1, stem="x"),
    say(m.SetEpochCallbackRole, holder=1), say(m.EpochAggregated, epoch=0, metrics={}),
    say(m.EvalBroadcast, schedule_id=1, epoch=0, version=0),
    say(m.RequestState, transfer_id=1, joiner_rank=2, joiner_incarnation=1),
]  # fmt: skip


def case(phase: WorkerPhase | tuple[WorkerPhase, ...], what: str, come: Any, orders: tuple[str, ...] = (),
         after: WorkerPhase | None = None, **more: Any) -> list[Case]:  # fmt: skip
    """A case of a rank that averages in place."""
    phases = phase if isinstance(phase, tuple) else (phase,)
    return each(phases, what, come, orders, after, **{"settings": IN_PLACE, **more})


GROUPS: list[list[Case]] = [
    *(each((X,), f"queued message {index}", come, settings=ALL) for index, come in enumerate(QUEUED)),
    # SyncNow (W-14)
    case(J, "SyncNow builds the session", SYNC, ("BuildSession", "RunCollective"), X, before=SESSION),
    case(J, "SyncNow with a source", SYNC, ("BuildSession", "ShareState", "RunCollective"), X,
         before=lambda r: r.session(state_from=0)),
    case((W, T), "SyncNow", SYNC, ("Park", "RunCollective"), X),
    case(P, "SyncNow", SYNC, ("RunCollective",), X),
    case((W, T), "SyncNow in a newer session", SYNC, ("Park", "BuildSession", "RunCollective"), X,
         before=lambda r: r.session(2)),
    case((W, T, P), "SyncNow of a finished cycle", lambda r: r.sync(0)),
    case((W, T), "SyncNow after the call", SYNC, ("SyncAck",), P, before=seq(SYNC, DONE)),
    case(J, "SyncNow after the call", lambda r: r.sync(0), ("SyncAck",),
         before=seq(OBSERVES, lambda r: r.done(0, 0))),
    case((W, T), "SyncNow after a failure", SYNC, (), P, before=seq(SYNC, BROKE)),
    case((W, T, P), "SyncNow in an unknown session", lambda r: r.sync(1, session=5), ("Stop",), S, settings=IN_PLACE,
         before=lambda r: setattr(r.worker, "hand", ())),
    case((W, T), "SyncNow in a torn session", SYNC, ("Park",), P, before=PEER_DEAD),
    case(P, "SyncNow in a torn session", SYNC, (), before=PEER_DEAD),
    case(J, "SyncNow in a torn session", lambda r: r.sync(0), before=seq(SESSION, PEER_DEAD)),
    case(D, "SyncNow", SYNC),
    each(OUTSIDE, "SyncNow without a collective averager", say(
        m.SyncNow, cycle=1, attempt=0, session_id=1, version=1, global_step=0), ("RoundFailed",)),
    # sessions (M-30, M-31, W-20)
    case(LIVE, "RequestSessionId", ASK, ("MakeSessionId",)),
    case(D, "RequestSessionId", ASK),
    case(LIVE, "the session id is made", tell(ev.SessionIdMade(4, b"u")), ("SessionIdGenerated",)),
    case((D, S), "the session id is made", tell(ev.SessionIdMade(4, b"u"))),
    case((W, T, P), "NewSession", lambda r: r.session(2)),
    case(J, "NewSession", SESSION),
    case((W, T, P, X), "NewSession that is not new", SESSION),
    case(X, "NewSession", RETRY, ("AbortCollective",)),
    case((W, T), "NewSession after a failure", RETRY, ("BuildSession", "RunCollective"), X, before=seq(SYNC, BROKE)),
    case((W, T), "NewSession after a success", RETRY, ("BuildSession", "RunCollective"), X, before=seq(SYNC, DONE)),
    case(J, "NewSession of a cycle that is repeated", RETRY, ("BuildSession", "RunCollective"), X),
    case(J, "NewSession repeats the cycle it observes", lambda r: r.session(2, cycle=0, attempt=1),
         ("BuildSession", "RunCollective"), X, before=seq(OBSERVES, lambda r: r.broke(0))),
    case(D, "NewSession", lambda r: r.session(2)),
    each((*OUTSIDE, D), "RequestSessionId without a collective averager", ASK, ("Publish",)),
    each((*OUTSIDE, D), "NewSession without a collective averager", SESSION, ("Publish",)),
    case((W, T), "no session comes", tell(ev.Tick()), ("RoundFailed", "Unpark", "Stop"), S,
         before=seq(SYNC, BROKE, lambda r: setattr(r, "now", 0.5)), settings={**IN_PLACE, "session_wait_s": 0.5})[:1],
    # inside
    case(X, "CollectiveDone", DONE, ("SyncAck",), P),
    case(X, "CollectiveDone with a checkpoint armed", DONE, ("SyncAck", "FireCallback"), P, settings=ALL,
         before=lambda r: r.worker.armed.update(Checkpoint=_message(CHECKPOINT_NEXT))),
    case(J, "CollectiveDone of who observes", lambda r: r.done(0, 0), ("SyncAck",), before=OBSERVES),
    case(X, "CollectiveDone of another call", lambda r: r.done(1, attempt=4)),
    case(X, "CollectiveDone when the cycle is repeated", DONE, ("BuildSession", "RunCollective"), before=RETRY),
    case(X, "CollectiveDone of who wants to leave", DONE, ("SyncAck", "AbandonPlan", "Unpark", "Exiting"), D,
         before=LEAVE),
    case((*OUTSIDE, D, S), "CollectiveDone", DONE),
    case(X, "CollectiveFailed", BROKE, ("RoundFailed",), P),
    case(J, "CollectiveFailed at who observes", lambda r: r.broke(0), ("RoundFailed",), before=OBSERVES),
    case(X, "CollectiveFailed for good", lambda r: r.broke(1, retryable=False),
         ("RoundFailed", "AbandonPlan", "Unpark", "Stop"), S),
    case(X, "CollectiveFailed of another call", lambda r: r.broke(1, attempt=4)),
    case(X, "CollectiveFailed when the cycle is repeated", BROKE, ("BuildSession", "RunCollective"), before=RETRY),
    case(X, "CollectiveFailed at who wants to leave", BROKE, ("AbandonPlan", "Unpark", "Exiting"), D, before=LEAVE),
    case((*OUTSIDE, D, S), "CollectiveFailed", BROKE),
    case(X, "DeclareDead of a member", PEER_DEAD, ("AbortCollective",)),
    case(X, "DeclareDead of a second member", say(m.DeclareDead, dead_rank=2, dead_incarnation=1), before=PEER_DEAD),
    case(X, "DeclareDead of nobody here", STRANGER_DEAD),
    case(X, "Beacon", say(m.Beacon, run_phase=1, cycle_phase=1, cycle=1)),
    case(X, "RoundBroken", tell(ev.RoundBroken(1, 0, "torn", True))),
    case(X, "LinkUp", tell(ev.LinkUp())),
    case(X, "DrainPoint", tell(ev.DrainPoint())),
    case(X, "a wish", tell(ev.Wish(m.IntentKind.EVAL_NOW)), ("Intent",)),
    # callbacks (W-14, K-3)
    case(X, "a result of before", CHECKED, ("CheckpointResult",), settings=ALL),
    case(X, "an evaluation of before", tell(ev.ActionDone("evaluate", 1, 0, 1.0)), ("EvalResult",), settings=ALL,
         before=lambda r: setattr(r.worker, "asked", (_message(EVALUATE_NOW),))),
    case(X, "an epoch callback of before", tell(ev.ActionDone("epoch", 0, 0, 1.0)), ("EpochFnElapsed",), settings=ALL),
    case((W, T), "a result before the Update", CHECKED, (), P, settings=ALL, before=seq(CHECKPOINT_NEXT, SYNC, DONE)),
    case((W, T), "a result of a consensus taken back", CHECKED, (), X, settings=ALL,
         before=seq(CHECKPOINT_NEXT, SYNC, DONE, RETRY)),
    # out (W-19 to W-28)
    case(X, "ShutdownWithSave", SAVE, ("AbortCollective", "AbandonPlan", "Unpark", "Save"), D),
    case(X, "ShutdownWithSave without a path", SAVE_NOWHERE,
         ("AbortCollective", "Exiting", "AbandonPlan", "Unpark", "Stop"), S),
    case(J, "ShutdownWithSave inside", SAVE, ("AbortCollective", "Exiting", "Stop"), S, before=OBSERVES),
    case(X, "Shutdown", say(m.Shutdown, reason=m.SaveReason.GRACEFUL),
         ("AbortCollective", "Exiting", "AbandonPlan", "Unpark", "Stop"), S),
    case(X, "Fenced naming the own life", FENCED_OWN),
    case(X, "Fenced", FENCED, ("AbortCollective", "AbandonPlan", "Unpark", "Publish", "Dial"), J),
    case(J, "Fenced inside", FENCED, ("AbortCollective", "Publish", "Dial"), before=OBSERVES),
    case(X, "Fenced after a wish to leave", FENCED, ("AbortCollective", "AbandonPlan", "Unpark", "Stop"), S,
         before=LEAVE),
    case(X, "Overflow", overflow, ("AbortCollective", "AbandonPlan", "Unpark", "Publish", "Dial"), J),
    case(X, "Overflow after a wish to leave", overflow, ("AbortCollective", "AbandonPlan", "Unpark", "Stop"), S,
         before=LEAVE),
    case(X, "Welcome out of the blue", tell(ev.Received(WELCOME)), ("Stop",), S),
    case(X, "Welcome(resumed) out of the blue", tell(ev.Received(RESUMED)), ("Stop",), S),
    case(X, "Reject out of the blue", tell(ev.Received(REJECT)), ("Stop",), S),
    case(X, "Reject for now, out of the blue", tell(ev.Received(BUSY)), ("Stop",), S),
    case(X, "link lost", LOST, ("AbortCollective", "AbandonPlan", "Unpark", "Stop"), S),
    case(X, "link lost, with time to return", LOST, ("Publish", "Dial"), settings=LOOKING["settings"]),
    case(X, "a try that failed", LOST, ("Dial",), **LOOKING),
    case(X, "taken back", tell(ev.Received(RESUMED)), ("SyncAck", "Publish"), **LOOKING),
    case(X, "taken back with a hole", tell(ev.Received(RESUMED)), ("Dial",), settings=LOOKING["settings"],
         before=seq(LOST, lambda r: r.worker.reports.clear())),
    case(X, "a new life", tell(ev.Received(WELCOME)), ("AbortCollective", "AbandonPlan", "Unpark", "Publish"), J,
         **LOOKING),
    case(X, "taken back with a hole, and wants to leave", tell(ev.Received(RESUMED)), ("Dial",),
         settings=LOOKING["settings"], before=seq(LEAVE, LOST, lambda r: r.worker.reports.clear())),
    case(X, "a new life of who wants to leave", tell(ev.Received(WELCOME)),
         ("AbortCollective", "AbandonPlan", "Unpark", "Publish", "Exiting"), D, settings=LOOKING["settings"],
         before=seq(LEAVE, LOST)),
    case(X, "turned away", tell(ev.Received(REJECT)), ("AbortCollective", "AbandonPlan", "Unpark", "Stop"), S,
         **LOOKING),
    case(X, "turned away for now", tell(ev.Received(BUSY)), ("Dial",), **LOOKING),
    case(X, "looked for too long", tell(ev.Tick()), ("AbortCollective", "AbandonPlan", "Unpark", "Stop"), S,
         settings=LOOKING["settings"], before=seq(LOST, lambda r: setattr(r, "now", 60.0))),
    case(X, "lane closed", tell(ev.LaneClosed()), ("AbortCollective", "AbandonPlan", "Unpark", "Stop"), S),
    case(X, "LeaveRequested", LEAVE),
    case(X, "the grace is over", tell(ev.Tick()), ("Heartbeat", "AbortCollective", "Exiting", "AbandonPlan", "Unpark",
                                                   "Stop"), S,
         before=seq(LEAVE, lambda r: setattr(r, "now", 5.0)), settings={**IN_PLACE, "leave_grace_s": 5.0}),
    case(X, "TrainingFailed", tell(ev.TrainingFailed("oom")), ("AbortCollective", "AbandonPlan", "Unpark", "Stop"), S),
]  # fmt: skip
CASES = [one for group in GROUPS for one in group]


def _message(come: Any) -> m.Control:
    """The message that a step of a case sends."""

    class Catch:
        def control(self, kind: type[m.Control], **fields: Any) -> m.Control:
            return kind(run_id=b"r" * 16, generation=1, rank=1, incarnation=1, **fields)

    message: m.Control = come(Catch())
    return message


@pytest.mark.parametrize("case", CASES, ids=str)
def test_message_by_state(case: Case) -> None:
    """Section 5, W-14, W-20, R-15: the state afterwards and the orders, in order."""
    rank, orders = run(case)

    assert (rank.worker.phase, names(orders)) == (case.after, case.orders)


@pytest.mark.parametrize("then", [lambda rank: None, LEAVE, SAVE], ids=["alone", "leaves", "saves"])
def test_no_deadline_stays_behind(then: Any) -> None:
    """W-23, W-28, R-15, I40: whatever a rank was in, also when the coordinator is silent from then on."""
    assert [str(case) for case in CASES if not comes_to_rest(case, then)] == []


@pytest.mark.parametrize("come", QUEUED, ids=range(len(QUEUED)))
def test_what_comes_during_a_call_is_served_after_it_in_order(come: Any) -> None:
    """W-3, N-9: it is not confirmed before, and nothing is lost."""
    rank = Rank(X, **ALL)
    come(rank)
    (beat,) = _beat(rank)
    assert len(rank.worker.inbox) == 1 and beat.control_seq == rank.number - 1
    rank.done(1)

    assert not rank.worker.inbox and rank.worker.control_handled == rank.number


def _beat(rank: Rank) -> list[Any]:
    rank.now += 1.0
    return [order.report for order in rank.feed(ev.Tick()) if isinstance(order.report, m.Heartbeat)]


@pytest.mark.parametrize("event", ["StepDone", "ChunkDone"])
def test_nothing_steps_inside_a_collective(event: str) -> None:
    """W-14: a training process that does is told, and the state is as it was."""
    rank = Rank(X, **IN_PLACE)
    before = rank.worker.snapshot()

    with pytest.raises(LocalProtocolError, match="inside a collective"):
        rank.step() if event == "StepDone" else rank.end(7)
    assert rank.worker.snapshot() == before


def _rare() -> None:
    for event in (lambda r: r.step(), lambda r: r.end(7)):
        with pytest.raises(LocalProtocolError):
            event(Rank(X, **IN_PLACE))
    for phase in (W, T, X, D, S):
        rank = Rank(phase, **IN_PLACE)
        row = rank.worker.engine.fire(rank.worker, "SessionOverdue", None)
        assert rank.worker.phase == phase and row.kind == Kind.IGNORE, "it is nothing (R-15)"


def test_every_row_of_the_collective_flavour_is_taken() -> None:
    """Architecture 8.1: no row without a test that takes it."""
    with counted(("worker",)) as taken:
        for one in CASES:
            run(one)
        _rare()

    rows = [row for row in untaken(WORKER, taken) if row in COLLECTIVE_ROWS]
    assert [(row.source, row.event, row.guards) for row in rows] == []
