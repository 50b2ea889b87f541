"""Every message in every state of the worker, as the matrix of protocol section 5 has it, and every row of its table.

The collective flavour, with its column X, is in `test_worker_matrix_collective.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.engine import untaken
from paceline.core.errors import LocalProtocolError
from paceline.core.phases import WorkerPhase
from paceline.core.table_worker_collective import COLLECTIVE_ROWS
from paceline.core.tables import WORKER, engine_for

from support.matrix import Case, comes_to_rest, each, names, overflow, run, say, seq, tell
from support.rank import NEXT, PLAN, Rank
from support.taken import counted

J, W, T, P, D, S = (
    WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.TRAINING, WorkerPhase.THROTTLED, WorkerPhase.DRAINING,
    WorkerPhase.STOPPED,
)  # fmt: skip
LIVE = (J, W, T, P)
UP = (*LIVE, D)
VIOLATED = ("Stop",)
BYE = ("Exiting",)


def shipped(cycle: int = 1) -> Callable[[Rank], object]:
    """The rank has the consensus of a cycle staged."""
    return seq(lambda r: r.request(cycle), lambda r: r.copied(cycle), lambda r: r.staged(cycle))


REQUEST = say(m.RequestParams, cycle=1, attempt=0, observer=False)
AGAIN = say(m.RequestParams, cycle=1, attempt=1, observer=False)
THROTTLE = say(m.Throttle, cycle=1, reason=m.ThrottleReason.BARRIER)
START = say(m.StartEpoch, cycle=0, plan=NEXT)
EXTEND = say(m.ExtendPartition, cycle=0, extends=7, plan=NEXT)
SAVE = say(m.ShutdownWithSave, decision_id=3, reason=m.SaveReason.GRACEFUL, saver=1, stem="x")
SAVE_OTHERS = say(m.ShutdownWithSave, decision_id=3, reason=m.SaveReason.GRACEFUL, saver=0, stem="x")
SAVE_NOWHERE = say(m.ShutdownWithSave, decision_id=3, reason=m.SaveReason.GRACEFUL, saver=1)
SHUTDOWN = say(m.Shutdown, reason=m.SaveReason.GRACEFUL)
SAVE_UNREAD = say(m.ShutdownWithSave, serve=False, decision_id=3, reason=m.SaveReason.GRACEFUL, saver=1, stem="x")
SHUTDOWN_UNREAD = say(m.Shutdown, serve=False, reason=m.SaveReason.GRACEFUL)
SAVED = tell(ev.ActionDone("save", 3, 0, 1.0))
FENCED = tell(ev.Received(m.Fenced(generation=1, incarnation=2, cycle=3, why="stale")))
FENCED_OWN = tell(ev.Received(m.Fenced(generation=1, incarnation=1, cycle=3, why="stale")))
STEP = tell(ev.StepDone(samples=2, batch_ms=1.0, data_ms=0.0))
BROKEN = tell(ev.RoundBroken(1, 0, "torn", True))
SYNC_NOW = say(m.SyncNow, cycle=1, attempt=0, session_id=1, version=1, global_step=0)
EVALUATE = say(m.ExecuteEvalCallback, schedule_id=1, epoch=0, target_rank=1, version=0, on_consensus=True)
CHECKPOINT = say(m.Checkpoint, decision_id=1, version=0, target_rank=1)
CHECKPOINT_OTHER = say(m.Checkpoint, decision_id=1, version=0, target_rank=0)
BUNDLE = say(m.SaveConsensusModel, decision_id=1, version=0, target_rank=1, cycle=1, stem="x")
BUNDLE_OTHER = say(m.SaveConsensusModel, decision_id=1, version=0, target_rank=0, cycle=1)
BUNDLE_NOWHERE = say(m.SaveConsensusModel, decision_id=1, version=0, target_rank=1, cycle=1)
WISH = tell(ev.Wish(m.IntentKind.CHECKPOINT_NOW))
ALL: dict[str, Any] = {"callbacks": ("epoch", "evaluate", "checkpoint")}


def armed(kind: type, name: str = "decision_id", **fields: Any) -> Callable[[Rank], list[Any]]:
    """A targeted message for the consensus of the next cycle."""
    return say(kind, **{name: 1}, version=1, target_rank=1, cycle=1, **fields)


NEW_SESSION = say(m.NewSession, session_id=1, uid=b"u", new_rank=0, new_world_size=1, members=((1, 1),), state_from=0,
                  attempt=0)  # fmt: skip
NOTICES: list[tuple[str, Callable[[Rank], list[Any]], tuple[str, ...]]] = [
    ("SetGlobalStep", say(m.SetGlobalStep, version=0, global_step=4), ()),
    ("SetGlobalStep of another version", say(m.SetGlobalStep, version=9, global_step=4), ()),
    ("SetEpochCallbackRole", say(m.SetEpochCallbackRole, holder=1), ()),
    ("EpochAggregated", say(m.EpochAggregated, epoch=0, metrics={}), ("Publish",)),
    ("EvalBroadcast", say(m.EvalBroadcast, schedule_id=1, epoch=0, version=0), ("Publish",)),
    ("StageAdvisory", say(m.StageAdvisory, counts=(1,), segments=()), ("Stage",)),
    ("DeclareDead", say(m.DeclareDead, dead_rank=0, dead_incarnation=1), ()),
    ("Beacon", say(m.Beacon, run_phase=1, cycle_phase=0, cycle=0), ()),
    ("RequestSessionId", say(m.RequestSessionId, session_id=1), ("Publish",)),
    ("NewSession", NEW_SESSION, ("Publish",)),
    ("ExecuteEvalCallback", EVALUATE, ()),
    ("Fenced naming the own life", FENCED_OWN, ()),
    ("LinkUp", tell(ev.LinkUp()), ()),
]

LOST = tell(ev.LinkLost(cause="reset"))
BACK: dict[str, Any] = {"reconnect_window_s": 60.0}
LONG: dict[str, Any] = {"reconnect_window_s": 5.0, "leave_grace_s": 500.0}
RESUMED, JOINED_ANEW = m.WelcomeStatus.RESUMED, m.WelcomeStatus.JOINING
REJECT = tell(ev.Received(m.Reject(code=11, text="frozen")))
REJECT_NOW = tell(ev.Received(m.Reject(code=14, text="busy", retry=True, after_s=3.0)))
GIVE_BACK = say(m.RequestState, transfer_id=1, joiner_rank=m.NO_RANK, joiner_incarnation=0)


def welcome(status: m.WelcomeStatus, incarnation: int = 1, behind: int = 0) -> Callable[[Rank], list[Any]]:
    """The coordinator, in its second life, answers a Hello; it lacks the last `behind` reports."""
    return lambda rank: rank.feed(ev.Received(m.Welcome(
        rank=1, incarnation=incarnation, generation=2, status=status, control_seq=0,
        report_seq=max(0, rank.worker.report_seq - behind), config={},
    )))  # fmt: skip


def later(seconds: float) -> Callable[[Rank], list[Any]]:
    """Time passes."""

    def come(rank: Rank) -> list[Any]:
        rank.now += seconds
        return rank.feed(ev.Tick())

    return come


def unlinked(rank: Rank) -> None:
    """As if its link had been lost before the save."""
    rank.worker.linked, rank.worker.look_until = False, rank.now + 5.0


ENDS_A_LEAVER = (("Welcome(joining)", welcome(JOINED_ANEW, 2)), ("Reject for ever", REJECT),
                 ("the window is over", later(5.0)))  # fmt: skip
ENDS_A_STEP = (("TrainingFailed", tell(ev.TrainingFailed("oom"))), ("lane closed", tell(ev.LaneClosed())),
               ("link lost", LOST))  # fmt: skip
"""What ends the training in the middle of a step; the first is no clean end."""
ENDS_A_SEARCH = (("Reject for ever", REJECT), ("the window is over", later(60.0)))
DONATE = say(m.RequestState, transfer_id=1, joiner_rank=2, joiner_incarnation=1)
RETURNED = seq(lambda r: r.request(1, observer=True), lambda r: r.copied(1), lambda r: r.staged(1))

CASES: list[Case] = [
    *(case for what, come, orders in NOTICES for case in each(UP, what, come, orders)),
    # RequestParams (W-10, W-11)
    *each((J, D), "RequestParams", REQUEST, ("TakeSnapshot",)),
    *each((W, T), "RequestParams holds the rank", REQUEST, ("Park", "TakeSnapshot")[::-1], P),
    *each((P,), "RequestParams", REQUEST, ("TakeSnapshot",)),
    *each((W, T), "RequestParams under async", REQUEST, ("TakeSnapshot",), policy="async"),
    *each((W,), "RequestParams of a finished cycle", say(m.RequestParams, cycle=0, attempt=0, observer=False)),
    *each((W,), "the nudge before the copy", REQUEST, (), P, before=REQUEST),
    *each((P,), "the nudge after the copy", REQUEST, ("SnapshotReady",),
          before=seq(REQUEST, lambda r: r.copied(1))),
    *each((P,), "the nudge after the ack", REQUEST, ("SnapshotReady", "SyncAck"), before=shipped()),
    *each((P,), "a later attempt", say(m.RequestParams, cycle=1, attempt=1, observer=False), ("TakeSnapshot",),
          before=shipped()),
    *each((P,), "an earlier attempt", REQUEST, (),
          before=say(m.RequestParams, cycle=1, attempt=1, observer=False)),
    *each((J, D), "the nudge", REQUEST, ("SnapshotReady",), before=seq(REQUEST, lambda r: r.copied(1))),
    *each((W, T), "the nudge under async", REQUEST, ("SnapshotReady",), policy="async",
          before=seq(REQUEST, lambda r: r.copied(1))),
    *each((J, D), "a later attempt", AGAIN, ("TakeSnapshot",), before=REQUEST),
    *each((W, T), "a later attempt under async", AGAIN, ("TakeSnapshot",), policy="async", before=REQUEST),
    *each((W,), "a consensus after its Update", lambda r: r.staged(1), before=seq(shipped(), lambda r: r.update(1))),
    # Update (W-12)
    *each((J, W, T, P), "Update with a plan and without a consensus", lambda r: r.update(3, plan=NEXT), VIOLATED, S),
    *each((J,), "Update without a consensus", lambda r: r.update(0, outcome=m.Outcome.OBSERVER), VIOLATED, S),
    *each((J,), "Update", lambda r: r.update(0, outcome=m.Outcome.OBSERVER), ("Adopt",), W,
          before=seq(lambda r: r.request(0, observer=True), lambda r: r.copied(0), lambda r: r.staged(0))),
    *each((J,), "Update with a plan", lambda r: r.update(0, outcome=m.Outcome.OBSERVER, plan=PLAN),
          ("Adopt", "Train"), T,
          before=seq(lambda r: r.request(0, observer=True), lambda r: r.copied(0), lambda r: r.staged(0))),
    *each((W,), "Update after a hold", lambda r: r.update(1), ("Adopt", "Unpark"), W, before=shipped()),
    *each((W,), "Update under async", lambda r: r.update(1), ("Adopt",), before=shipped(), policy="async"),
    *each((P,), "Update with a plan to go on with", lambda r: r.update(1), ("Adopt", "Unpark"), T, before=shipped()),
    *each((T,), "Update under async", lambda r: r.update(1), ("Adopt",), before=shipped(), policy="async"),
    *each((P,), "Update of an older cycle than the throttle", lambda r: r.update(1), ("Adopt",), before=seq(
        lambda r: r.request(1), lambda r: r.copied(1), lambda r: r.request(2), lambda r: r.copied(2),
        lambda r: r.staged(2), lambda r: setattr(r.worker, "staged", attrs.evolve(r.worker.staged, cycle=1)))),
    *each((W,), "Update of a finished cycle", lambda r: r.update(0, outcome=m.Outcome.UNREALIZED)),
    *each((P,), "Update of other steps", lambda r: r.update(1, merged=5), VIOLATED, S, before=shipped()),
    *each((D,), "Update without a consensus", lambda r: r.update(1)),
    *each((D,), "Update", lambda r: r.update(1), ("Adopt",), before=shipped()),
    *each((T,), "Update to a returned rank", lambda r: r.update(1, outcome=m.Outcome.OBSERVER),
          ("Adopt", "AbandonPlan"), W, before=RETURNED, policy="async"),
    *each((T,), "Update with a plan to a returned rank", lambda r: r.update(1, outcome=m.Outcome.OBSERVER, plan=NEXT),
          ("Adopt", "AbandonPlan", "Train"), T, before=RETURNED, policy="async"),
    *each((P,), "Update to a returned rank", lambda r: r.update(1, outcome=m.Outcome.OBSERVER),
          ("Adopt", "AbandonPlan", "Unpark"), W, before=RETURNED),
    *each((W, T, P), "RequestState", DONATE, ("SendState",)),
    *each((J, D), "RequestState", DONATE),
    # plans (W-15, W-16)
    *each((J,), "StartEpoch", START, VIOLATED, S),
    *each((W,), "StartEpoch", START, ("Train",), T),
    *each((T, P), "StartEpoch goes to the mailbox", START),
    *each((T, P), "StartEpoch overwrites the mailbox", START, ("Publish",), before=START),
    *each((D,), "StartEpoch", START),
    *each((W, T, P), "StartEpoch from the future", say(m.StartEpoch, cycle=1, plan=NEXT), VIOLATED, S),
    *each((J,), "ExtendPartition", EXTEND, VIOLATED, S),
    *each((W,), "ExtendPartition starts as a plan", EXTEND, ("Train",), T),
    *each((T,), "ExtendPartition is appended", EXTEND, ("Extend",)),
    *each((P,), "ExtendPartition is appended", EXTEND, ("Extend",)),
    *each((T, P), "ExtendPartition of an ended plan", say(m.ExtendPartition, cycle=0, extends=3, plan=NEXT)),
    *each((T, P), "ExtendPartition of the mailbox", say(m.ExtendPartition, cycle=0, extends=8, plan=attrs.evolve(
        NEXT, plan_id=9)), before=START),
    *each((W, T, P), "ExtendPartition from the future", say(m.ExtendPartition, cycle=1, extends=7, plan=NEXT),
          VIOLATED, S),
    *each((D,), "ExtendPartition", EXTEND),
    # throttle (W-17)
    *each((J, D, P), "Throttle", THROTTLE),
    *each((W, T), "Throttle", THROTTLE, ("Park",), P),
    *each((W, T, P), "Throttle of a finished cycle", say(m.Throttle, cycle=0, reason=m.ThrottleReason.LEAD)),
    # targeted (W-18, I24)
    *each((J,), "Checkpoint", CHECKPOINT),
    *each((W, T, P, D), "Checkpoint", CHECKPOINT, ("CheckpointResult",)),
    *each((W, T, P, D), "Checkpoint of another", CHECKPOINT_OTHER),
    *each((W, T, P, D), "SaveConsensusModel without a path", BUNDLE_NOWHERE, ("Publish",)),
    *each((J,), "SaveConsensusModel", BUNDLE),
    *each((W, T, P, D), "SaveConsensusModel", BUNDLE, ("Save",)),
    *each((W, T, P, D), "SaveConsensusModel again", BUNDLE, before=BUNDLE),
    *each((W,), "SaveConsensusModel again for later", armed(m.SaveConsensusModel, stem="x"), before=BUNDLE),
    *each((W,), "SaveConsensusModel again without a place", BUNDLE_NOWHERE, ("Publish",), before=BUNDLE),
    *each((W, T, P, D), "SaveConsensusModel for a consensus to come", armed(m.SaveConsensusModel, stem="x"),
          settings=ALL),
    *each((W, T, P, D), "Checkpoint with a callback", CHECKPOINT, ("FireCallback",), settings=ALL),
    *each((W, T, P, D), "Checkpoint again", CHECKPOINT, before=CHECKPOINT, settings=ALL),
    *each((W,), "Checkpoint again for later", armed(m.Checkpoint), before=CHECKPOINT, settings=ALL),
    *each((W, T, P, D), "Checkpoint for a consensus to come", armed(m.Checkpoint), settings=ALL),
    *each((W, T, P, D), "ExecuteEvalCallback with a function", EVALUATE, ("Evaluate",), settings=ALL),
    *each((W, T, P, D), "ExecuteEvalCallback again", EVALUATE, before=EVALUATE, settings=ALL),
    *each((W,), "ExecuteEvalCallback again for later",
          armed(m.ExecuteEvalCallback, "schedule_id", epoch=0, on_consensus=True), before=EVALUATE, settings=ALL),
    *each((W, T, P, D), "ExecuteEvalCallback for a consensus to come", armed(
        m.ExecuteEvalCallback, name="schedule_id", epoch=0, on_consensus=True), settings=ALL),
    *each(UP, "ExecuteEvalCallback of another", say(m.ExecuteEvalCallback, schedule_id=1, epoch=0, target_rank=0,
                                                    version=0, on_consensus=True), settings=ALL),
    *each((W, T, P, D), "the evaluation is done", tell(ev.ActionDone("evaluate", 1, 0, 1.0, metric=2.0)),
          ("EvalResult",), before=EVALUATE, settings=ALL),
    *each((W, T, P, D), "the checkpoint callback is done", tell(ev.ActionDone("checkpoint", 1, 0, 1.0)),
          ("CheckpointResult",), before=CHECKPOINT, settings=ALL),
    *each((W, T, P, D), "the epoch callback is done", tell(ev.ActionDone("epoch", 0, 0, 1.0)), ("EpochFnElapsed",)),
    *each((W,), "StartEpoch at the rank with the epoch callback", START, ("FireCallback", "Train"), T, settings=ALL,
          before=say(m.SetEpochCallbackRole, holder=1)),
    *each(LIVE, "a wish", WISH, ("Intent",)),
    *each((D, S), "a wish", WISH),
    *each(UP, "SaveConsensusModel of another", BUNDLE_OTHER),
    *each(LIVE, "SyncNow without a collective averager", SYNC_NOW, ("RoundFailed",)),
    *each((D,), "SyncNow", SYNC_NOW),
    # the training process
    *each((T,), "StepDone", STEP, ("Batch",)),
    *each((D, S), "StepDone that a stop overtook", STEP),
    *each((T,), "ChunkDone", lambda r: r.end(7), ("Metrics",), W),
    *each((T,), "ChunkDone with a full mailbox", lambda r: r.end(7), ("Metrics", "Train"), before=START),
    *each((T,), "ChunkDone before an extension was read", lambda r: r.end(7), ("Metrics", "Train"), before=EXTEND),
    *each((D, S), "ChunkDone that a stop overtook", lambda r: r.end(7)),
    *each(UP, "DrainPoint", tell(ev.DrainPoint())),
    *each(UP, "SnapshotTaken of nothing asked for", lambda r: r.copied(5)),
    *each((P,), "SnapshotTaken", lambda r: r.copied(1), ("SnapshotReady",), before=REQUEST),
    *each(UP, "ConsensusStaged of nothing asked for", lambda r: r.staged(5)),
    *each((P,), "ConsensusStaged", lambda r: r.staged(1), ("SyncAck",), before=seq(REQUEST, lambda r: r.copied(1))),
    *each((P,), "ConsensusStaged before the copy is reported", lambda r: r.staged(1), (), before=REQUEST),
    *each(UP, "RoundBroken", BROKEN, ("RoundFailed",)),
    *each((W, T, P, D), "RoundBroken of a finished cycle", tell(ev.RoundBroken(0, 0, "torn", True))),
    *each((S,), "RoundBroken", BROKEN),
    # ends (W-19 to W-24, W-28)
    *each((J,), "ShutdownWithSave", SAVE, ("Exiting", "Stop"), S),
    *each((W, D), "ShutdownWithSave", SAVE, ("Save",), D),
    *each((T,), "ShutdownWithSave", SAVE, ("AbandonPlan", "Save"), D),
    *each((P,), "ShutdownWithSave", SAVE, ("AbandonPlan", "Unpark", "Save"), D),
    *each((W, D), "ShutdownWithSave without a path", SAVE_NOWHERE, ("Exiting", "Stop"), S),
    *each((T,), "ShutdownWithSave without a path", SAVE_NOWHERE, ("Exiting", "AbandonPlan", "Stop"), S),
    *each((D,), "ShutdownWithSave again", SAVE, (), before=SAVE),
    *each((D,), "ShutdownWithSave that names this rank now", SAVE, ("Save",), before=SAVE_OTHERS),
    *each((J, W), "Shutdown", SHUTDOWN, ("Exiting", "Stop"), S),
    *each((T,), "Shutdown", SHUTDOWN, ("Exiting", "AbandonPlan", "Stop"), S),
    *each((P,), "Shutdown", SHUTDOWN, ("Exiting", "AbandonPlan", "Unpark", "Stop"), S),
    *each((D,), "Shutdown", SHUTDOWN, ("Stop",), S),
    *each((D,), "Shutdown while saving", SHUTDOWN, (), before=SAVE),
    *each((D,), "the save is done", SAVED, ("CheckpointResult", "Exiting", "Stop"), S, before=SAVE),
    *each((D,), "the first of two saves is done", SAVED, (), before=seq(SAVE_OTHERS, SAVE)),
    *each(UP, "ActionDone that nobody waits for", SAVED),
    *each((J, W), "Fenced", FENCED, ("Publish", "Dial"), J),
    *each((T,), "Fenced", FENCED, ("AbandonPlan", "Publish", "Dial"), J),
    *each((P,), "Fenced", FENCED, ("AbandonPlan", "Unpark", "Publish", "Dial"), J),
    *each((D,), "Fenced", FENCED, ("Stop",), S),
    *each((D,), "Fenced while saving", FENCED, (), before=SAVE),
    *each((J, W), "Overflow", overflow, ("Publish", "Dial"), J),
    *each((T,), "Overflow", overflow, ("AbandonPlan", "Publish", "Dial"), J),
    *each((P,), "Overflow", overflow, ("AbandonPlan", "Unpark", "Publish", "Dial"), J),
    *each((T,), "Overflow without a link", overflow, ("AbandonPlan",), J, before=LOST, settings=BACK),
    *each((D,), "Overflow", overflow, ("Stop",), S),
    *each((D,), "Overflow while saving", overflow, (), before=SAVE),
    *each((S,), "Overflow", overflow),
    *each((T,), "StepDone of a life that is over", STEP, (), J, before=FENCED),
    *each((T,), "ChunkDone of a life that is over", lambda r: r.end(7), (), J, before=FENCED),
    # links that come back (M-40 to M-43)
    *each(LIVE, "link lost, with time to come back", LOST, ("Publish", "Dial"), settings=BACK),
    *each(LIVE, "a try that failed", LOST, ("Dial",), before=LOST, settings=BACK),
    *each(UP, "Welcome out of the blue", welcome(RESUMED), ("Stop",), S),
    *each(UP, "Reject out of the blue", REJECT, ("Stop",), S),
    *each(LIVE, "Welcome(resumed)", welcome(RESUMED), ("Publish",), before=LOST, settings=BACK),
    *each((T,), "Welcome(resumed) with a report lost", welcome(RESUMED, behind=1), ("Batch", "Publish"),
          before=seq(STEP, LOST), settings=BACK),
    *each((W, T, P), "Welcome(resumed) with a report forgotten", welcome(RESUMED, behind=1), ("Dial",),
          before=seq(LOST, lambda r: r.worker.reports.clear()), settings=BACK),
    *each((J, W), "Welcome(joining)", welcome(JOINED_ANEW, 2), ("Publish",), J, before=LOST, settings=BACK),
    *each((T,), "Welcome(joining)", welcome(JOINED_ANEW, 2), ("AbandonPlan", "Publish"), J, before=LOST, settings=BACK),
    *each((P,), "Welcome(joining)", welcome(JOINED_ANEW, 2), ("AbandonPlan", "Unpark", "Publish"), J, before=LOST,
          settings=BACK),
    *each(LIVE, "Reject for now", REJECT_NOW, ("Dial",), before=LOST, settings=BACK),
    *each((J, W), "Reject for ever", REJECT, ("Stop",), S, before=LOST, settings=BACK),
    *each((T,), "Reject for ever", REJECT, ("AbandonPlan", "Stop"), S, before=LOST, settings=BACK),
    *each((J, W), "the window is over", later(60.0), ("Stop",), S, before=LOST, settings=BACK),
    *each((T,), "the window is over", later(60.0), ("AbandonPlan", "Stop"), S, before=LOST, settings=BACK),
    *each((T,), "a leaver that is taken up again", welcome(RESUMED, behind=1), ("Exiting", "Publish"), D,
          before=seq(LOST, tell(ev.LeaveRequested())), settings=BACK),
    *each((T,), "a leaver that finds nobody", LOST, ("Dial",), D, before=seq(LOST, tell(ev.LeaveRequested())),
          settings=BACK),
    *(case for what, come in ENDS_A_LEAVER for case in each(
        (T,), f"a leaver: {what}", come, ("Stop",), S, before=seq(LOST, tell(ev.LeaveRequested())), settings=LONG)),
    *(case for what, come in ENDS_A_LEAVER for case in each(
        (D,), f"a saver: {what}", come, (), before=seq(SAVE, unlinked), settings=LONG)),
    *each(LIVE, "RequestParams of a former coordinator", say(m.RequestParams, cycle=1, attempt=0, observer=False), (),
          before=seq(LOST, welcome(RESUMED)), settings=BACK),
    *each(LIVE, "RequestState of a former coordinator", DONATE, (), before=seq(LOST, welcome(RESUMED)), settings=BACK),
    *each((J, W, T, P), "RequestState for the averager", GIVE_BACK, ("SendState",)),
    *each((J, W), "link lost", tell(ev.LinkLost(cause="reset")), ("Stop",), S),
    *each((T,), "link lost", tell(ev.LinkLost(cause="reset")), ("AbandonPlan", "Stop"), S),
    *each((P,), "link lost", tell(ev.LinkLost(cause="reset")), ("AbandonPlan", "Unpark", "Stop"), S),
    *each((T,), "link lost with a path", tell(ev.LinkLost(cause="reset")), ("AbandonPlan", "Save", "Stop"), S,
          settings={"save_path": "runs"}),
    *each((D,), "link lost", tell(ev.LinkLost(cause="reset")), ("Stop",), S),
    *each((D,), "link lost while saving", tell(ev.LinkLost(cause="reset")), (), before=SAVE),
    *each((J, W), "lane closed", tell(ev.LaneClosed()), ("Stop",), S),
    *each((T,), "lane closed", tell(ev.LaneClosed()), ("AbandonPlan", "Stop"), S),
    *each((P,), "lane closed", tell(ev.LaneClosed()), ("AbandonPlan", "Unpark", "Stop"), S),
    *each((D,), "silence while saving", tell(ev.Tick()), ("Heartbeat",),
          before=seq(SAVE, lambda r: setattr(r, "now", 31.0))),
    *each((D,), "lane closed", tell(ev.LaneClosed()), ("Stop",), S),
    *each((D,), "lane closed while saving", tell(ev.LaneClosed()), (), before=SAVE),
    *each((J, W), "LeaveRequested", tell(ev.LeaveRequested()), BYE, D),
    *each((T,), "LeaveRequested", tell(ev.LeaveRequested()), ("AbandonPlan", "Exiting"), D),
    *each((P,), "LeaveRequested", tell(ev.LeaveRequested()), ("AbandonPlan", "Unpark", "Exiting"), D),
    *each((D, S), "LeaveRequested", tell(ev.LeaveRequested())),
    *each((J, W, D), "TrainingFailed", tell(ev.TrainingFailed("oom")), ("Stop",), S),
    *each((T,), "TrainingFailed", tell(ev.TrainingFailed("oom")), ("AbandonPlan", "Stop"), S),
    *each((S,), "TrainingFailed", tell(ev.TrainingFailed("oom"))),
    *(case for what, come in ENDS_A_STEP for case in each(
        (T,), f"{what}, a save waits", come, ("AbandonPlan", "Save"), D, before=SAVE_UNREAD)),
    *(case for what, come in ENDS_A_STEP[1:] for case in each(
        (T,), f"{what}, a shutdown waits", come, ("Exiting", "AbandonPlan", "Stop"), S, before=SHUTDOWN_UNREAD)),
    *(case for what, come in ENDS_A_SEARCH for case in each(
        (T,), f"{what}, a save waits", come, ("AbandonPlan", "Save"), D, before=seq(SAVE_UNREAD, LOST), settings=BACK)),
    *(case for what, come in ENDS_A_SEARCH for case in each((T,), f"{what}, a shutdown waits", come,
        ("AbandonPlan", "Stop"), S, before=seq(SHUTDOWN_UNREAD, LOST), settings=BACK)),
    *each((T,), "the save of a failed rank", SAVED, ("CheckpointResult", "Stop"), S,
          before=seq(SAVE_UNREAD, tell(ev.TrainingFailed("oom")))),
    *each((D,), "the grace is over", tell(ev.Tick()), ("Heartbeat", "Stop"), S, settings={"leave_grace_s": 5.0},
          before=lambda r: setattr(r, "now", 5.0)),
    *each((T,), "the save of a failed rank hangs", tell(ev.Tick()), ("Heartbeat", "Stop"), S,
          before=seq(SAVE_UNREAD, tell(ev.TrainingFailed("oom")), lambda r: setattr(r, "now", r.worker.drain_until))),
    *each((S,), "anything of the coordinator", START),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_message_by_state(case: Case) -> None:
    """Section 5, the matrix: the state afterwards and the orders, in order."""
    rank, orders = run(case)

    assert (rank.worker.phase, names(orders)) == (case.after, case.orders)


STALE = {
    "RequestParams of a finished cycle", "an earlier attempt", "Update of a finished cycle",
    "Throttle of a finished cycle", "SaveConsensusModel again", "SaveConsensusModel again for later",
    "Checkpoint again", "Checkpoint again for later", "ExecuteEvalCallback again",
    "ExecuteEvalCallback again for later", "RequestParams of a former coordinator",
    "RequestState of a former coordinator",
}  # fmt: skip
"""What is counted as stale evidence; everything else is not."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_only_what_is_stale_is_counted_as_stale(case: Case) -> None:
    """N-6, N-7: what cannot matter is ignored without a count, and only what no correct peer sends is a violation."""
    rank = Rank(case.phase, case.policy, **case.settings)
    case.before(rank)
    before = rank.worker.fenced
    orders = case.come(rank)
    broken = [order for order in orders if isinstance(order, fx.Stop) and "broke the protocol" in order.text]

    assert rank.worker.fenced - before == (case.what in STALE)
    assert (rank.worker.refused, rank.worker.violations) == (0, len(broken))


@pytest.mark.parametrize("then", [lambda rank: None, tell(ev.LeaveRequested()), SAVE], ids=["alone", "leaves", "saves"])
def test_no_deadline_stays_behind(then: Any) -> None:
    """W-23, W-28, I40: whatever a rank was in, also when the coordinator is silent from then on."""
    assert [str(case) for case in CASES if not comes_to_rest(case, then)] == []


@pytest.mark.parametrize("event", ["StepDone", "ChunkDone"])
@pytest.mark.parametrize("phase", [J, W, P], ids=lambda p: p.name)
def test_a_training_process_that_trains_without_a_plan_is_told(phase: WorkerPhase, event: str) -> None:
    """W-2, W-4: local misuse raises, and the state is as it was."""
    rank = Rank(phase)
    before = rank.worker.snapshot()

    with pytest.raises(LocalProtocolError):
        rank.step() if event == "StepDone" else rank.end(7)
    assert rank.worker.snapshot() == before


def test_the_end_of_a_plan_that_is_not_in_hand_is_told() -> None:
    """W-16: the machine judges which plans ended, also when another one waits."""
    rank = Rank(T)
    for mailbox in ((), (NEXT,)):
        rank.worker.mailbox = mailbox
        with pytest.raises(LocalProtocolError):
            rank.end(3)


def _rare() -> None:
    for phase in (J, W, P):
        for event in (lambda r: r.step(), lambda r: r.end(7)):
            with pytest.raises(LocalProtocolError):
                event(Rank(phase))
    with pytest.raises(LocalProtocolError):
        Rank(T).end(3)
    for phase in UP:
        rank = Rank(phase)
        rank.now = 40.0
        rank.feed(ev.Tick())
    engine_for("worker").fire(Rank(W).worker, "GraceOver", None)
    for name in WORKER.events:
        engine_for("worker").fire(Rank(S).worker, name, None)


def test_every_row_of_the_worker_table_is_taken() -> None:
    """Architecture 8.1: no row without a test that takes it."""
    with counted(("worker",)) as taken:
        for case in CASES:
            run(case)
        _rare()

    rows = [row for row in untaken(WORKER, taken) if row not in COLLECTIVE_ROWS]
    assert [(row.source, row.event, row.guards) for row in rows] == []
