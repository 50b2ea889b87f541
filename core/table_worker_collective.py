"""Rows of the worker machine that belong to the collective flavour (protocol section 5, column X and row SyncNow).

A rank enters the call from wherever it is, and comes back to where it takes no step: to Throttled, which the Update of
this cycle ends, or to Joining, if it has no vote yet. While it is inside, the training process reads no lane, so
messages queue, but for what W-20 names and what means stop. Whatever ends the stay from outside first aborts the call,
because device memory must not be touched under one that runs (W-24).

A call that failed leaves a rank in the same place as one that succeeded, and differs in what was said: an ack, or that
the round failed. Both may be followed by a NewSession that repeats the cycle. A call that succeeded is then put back.

A link that is lost ends no call, because that is among the ranks (W-21). What came of it is told when the link is back.
"""

from __future__ import annotations

from .engine import SAME, Kind, Row
from .phases import WorkerPhase

__all__ = ["COLLECTIVE_EVENTS", "COLLECTIVE_ROWS"]

_J, _W, _T = WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.TRAINING
_P, _X = WorkerPhase.THROTTLED, WorkerPhase.IN_COLLECTIVE
_D, _S = WorkerPhase.DRAINING, WorkerPhase.STOPPED
_OUTSIDE = (_J, _W, _T, _P)
_UP = (*_OUTSIDE, _X, _D)

_QUEUED = (
    "RequestParams", "Update", "SyncNow", "StartEpoch", "ExtendPartition", "Throttle", "SetGlobalStep",
    "StageAdvisory", "Checkpoint", "SaveConsensusModel", "ExecuteEvalCallback", "SetEpochCallbackRole",
    "EpochAggregated", "EvalBroadcast", "RequestState",
)  # fmt: skip

_ENTER = (
    Row(_OUTSIDE, "SyncNow", SAME, ("!in_place",), ("lacks_collective",), rule="R-18"),
    Row(_OUTSIDE, "SyncNow", SAME, ("call_over",), kind=Kind.FENCED, rule="W-14 N-6"),
    Row(_OUTSIDE, "SyncNow", SAME, ("call_ended",), ("acknowledge_call",), rule="W-14 M-13"),
    Row(_OUTSIDE, "SyncNow", SAME, ("call_known",), kind=Kind.IGNORE, rule="M-13 R-15",
        note="what it asks for was tried; a new session is on its way"),
    Row(_OUTSIDE, "SyncNow", SAME, ("session_unknown",), kind=Kind.VIOLATION, rule="N-2 M-31",
        note="in a session that this rank was never told of"),
    Row(_J, "SyncNow", SAME, ("session_torn",), ("join_call", "await_session"), rule="R-15 W-20",
        note="a member is gone: nobody would come out of it"),
    Row((_W, _T, _P), "SyncNow", _P, ("session_torn",), ("join_call", "await_session"), rule="R-15 W-20"),
    Row(_OUTSIDE, "SyncNow", _X, (), ("join_call", "run_call"), rule="W-14 M-23"),
    Row(_D, "SyncNow", SAME, kind=Kind.IGNORE, rule="W-23", note="peers may be gone; it would never return"),
)

_SESSIONS = (
    Row(_UP, "RequestSessionId", SAME, ("!in_place",), ("lacks_session",), rule="W-20"),
    Row((*_OUTSIDE, _X), "RequestSessionId", SAME, (), ("make_session_id",), rule="W-20 M-30"),
    Row(_D, "RequestSessionId", SAME, kind=Kind.IGNORE, rule="W-23 M-32", note="the next one is asked"),
    Row((*_OUTSIDE, _X), "SessionIdMade", SAME, (), ("tell_session_id",), rule="M-31"),
    Row((_D, _S), "SessionIdMade", SAME, kind=Kind.IGNORE, rule="W-23"),
    Row(_UP, "NewSession", SAME, ("!in_place",), ("lacks_session",), rule="W-20"),
    Row((*_OUTSIDE, _X), "NewSession", SAME, ("session_old",), kind=Kind.FENCED, rule="M-31 N-6"),
    Row(_X, "NewSession", SAME, (), ("stage_session", "abort_call"), rule="W-20 R-15"),
    Row((_J, _P), "NewSession", _X, ("retries_call",), ("stage_session", "rejoin_call"), rule="R-15 W-14 C-38"),
    Row(_J, "NewSession", _X, ("retries_cycle",), ("stage_session", "join_retry"), rule="M-31 M-23",
        note="a newcomer observes the cycle that is repeated"),
    Row(_OUTSIDE, "NewSession", SAME, (), ("stage_session",), rule="W-20 M-31"),
    Row(_D, "NewSession", SAME, kind=Kind.IGNORE, rule="W-23"),
    Row((_J, _P), "SessionOverdue", _S, (), ("give_up_session",), rule="R-15 R-18"),
    Row((_W, _T, _X, _D, _S), "SessionOverdue", SAME, kind=Kind.IGNORE, rule="R-15"),
)

_INSIDE = (
    *(Row(_X, name, SAME, (), ("keep",), rule="W-3 W-14", note="queued") for name in _QUEUED),
    Row(_X, "CollectiveDone", SAME, ("!call_current",), kind=Kind.IGNORE, rule="W-14", note="of a call that is over"),
    Row(_X, "CollectiveDone", _D, ("departs",), ("end_call", "acknowledge_call", "leave"), rule="W-14 W-28"),
    Row(_X, "CollectiveDone", SAME, ("retry_staged",), ("end_call", "rejoin_call"), rule="W-14 R-15",
        note="it succeeded here, and the cycle is repeated already"),
    Row(_X, "CollectiveDone", _J, ("observes",), ("end_call", "acknowledge_call"), rule="W-14 M-23"),
    Row(_X, "CollectiveDone", _P, (), ("end_call", "acknowledge_call", "serve_call"), rule="W-14 K-3"),
    Row(_X, "CollectiveFailed", SAME, ("!call_current",), kind=Kind.IGNORE, rule="R-15", note="of a call that is over"),
    Row(_X, "CollectiveFailed", _D, ("departs",), ("leave",), rule="W-28"),
    Row(_X, "CollectiveFailed", _S, ("hopeless",), ("fail_call", "stop_unable"), rule="R-18 W-24"),
    Row(_X, "CollectiveFailed", SAME, ("retry_staged",), ("rejoin_call",), rule="R-15"),
    Row(_X, "CollectiveFailed", _J, ("observes",), ("fail_call", "await_session"), rule="R-15 R-18"),
    Row(_X, "CollectiveFailed", _P, (), ("fail_call", "await_session"), rule="R-15 R-18"),
    Row((*_OUTSIDE, _D, _S), "CollectiveDone", SAME, kind=Kind.IGNORE, rule="W-14", note="the stop overtook it"),
    Row((*_OUTSIDE, _D, _S), "CollectiveFailed", SAME, kind=Kind.IGNORE, rule="R-15", note="the stop overtook it"),
    Row(_X, "DeclareDead", SAME, ("peer_of_call",), ("bury", "abort_call"), rule="W-20 R-15"),
    Row(_X, "DeclareDead", SAME, (), ("bury",), rule="W-20"),
    Row(_X, "Beacon", SAME, (), (), rule="W-20 W-22", note="liveness only: any valid frame counts"),
    Row(_X, "StepDone", SAME, kind=Kind.REFUSED, rule="W-14", note="nothing can step inside a collective"),
    Row(_X, "ChunkDone", SAME, kind=Kind.REFUSED, rule="W-14", note="nothing can step inside a collective"),
    Row(_X, "RoundBroken", SAME, kind=Kind.IGNORE, rule="R-18", note="of the other flavour"),
    Row(_X, "LinkUp", SAME, kind=Kind.IGNORE, rule="W-21"),
    Row(_X, "Wish", SAME, (), ("express",), rule="K-1"),
    Row(_UP, "ActionDone", SAME, ("result_void",), ("drop_result",), rule="W-14 K-3",
        note="it saw a consensus that was taken back"),
    Row(_P, "ActionDone", SAME, ("result_early",), ("hold_result",), rule="W-14 K-3"),
    Row(_X, "ActionDone", SAME, ("ends_checkpoint",), ("report_checkpoint",), rule="K-9"),
    Row(_X, "ActionDone", SAME, ("ends_evaluation",), ("report_evaluation",), rule="K-16"),
    Row(_X, "ActionDone", SAME, ("ends_epoch_callback",), ("report_epoch_callback",), rule="W-6 K-18"),
)  # fmt: skip

_OUT = (
    Row(_X, "ShutdownWithSave", _S, ("observes",), ("abort_call", "say_goodbye", "stop_saved"), rule="W-19 W-24",
        note="nothing to save"),
    Row(_X, "ShutdownWithSave", _D, ("save_named",), ("abort_call", "save"), rule="W-19 W-24 K-11"),
    Row(_X, "ShutdownWithSave", _S, (), ("abort_call", "say_goodbye", "stop_saved"), rule="W-19 W-24"),
    Row(_X, "Shutdown", _S, (), ("abort_call", "say_goodbye", "stop_clean"), rule="W-19 W-24"),
    Row(_X, "Fenced", SAME, ("!is_foreign",), kind=Kind.IGNORE, rule="W-21"),
    Row(_X, "Fenced", _S, ("departs",), ("abort_call", "stop_left"), rule="W-28 W-23 W-24",
        note="it looks for no new seat"),
    Row(_X, "Fenced", _J, (), ("abort_call", "start_over", "look_for_seat"), rule="W-20 W-21"),
    Row(_X, "Overflow", _S, ("departs",), ("abort_call", "stop_left"), rule="N-9 W-28",
        note="it looks for no new seat"),
    Row(_X, "Overflow", _J, (), ("abort_call", "start_over", "break_lane"), rule="N-9 W-21"),
    Row(_X, "Welcome", SAME, ("unsought",), kind=Kind.VIOLATION, rule="N-7", note="this rank has not knocked"),
    Row(_X, "Welcome", SAME, ("resumes", "has_reports"), ("take_up",), rule="M-42 W-21"),
    Row(_X, "Welcome", SAME, ("resumes",), ("give_up_life",), rule="N-9 M-42"),
    Row(_X, "Welcome", _D, ("departs",), ("abort_call", "start_over", "settle_in", "leave"), rule="W-28 W-21 W-24",
        note="the life that comes instead leaves as that one would have"),
    Row(_X, "Welcome", _J, (), ("abort_call", "start_over", "settle_in"), rule="W-21 M-42 W-24"),
    Row(_X, "Reject", SAME, ("unsought",), kind=Kind.VIOLATION, rule="N-7", note="this rank has not knocked"),
    Row(_X, "Reject", SAME, ("worth_retry",), ("dial_again",), rule="N-29 M-40"),
    Row(_X, "Reject", _S, (), ("abort_call", "turned_away"), rule="W-21 W-24"),
    Row(_X, "WindowOver", _S, (), ("abort_call", "lose_coordinator"), rule="W-21 W-24"),
    Row(_X, "LinkLost", SAME, ("looking",), ("dial_again",), rule="M-40 W-21", note="a try that failed"),
    Row(_X, "LinkLost", SAME, ("may_return",), ("lose_link",), rule="W-21 W-22",
        note="the call is among the ranks and goes on"),
    Row(_X, "LinkLost", _S, (), ("abort_call", "lose_coordinator"), rule="W-21 W-24"),
    Row(_X, "LaneClosed", _S, (), ("abort_call", "stop_clean"), rule="W-3 W-24"),
    Row(_X, "GraceOver", _S, (), ("abort_call", "say_goodbye", "stop_left"), rule="W-28 W-24",
        note="it wished to leave, and the call did not end"),
    Row(_X, "LeaveRequested", SAME, (), ("leave_later",), rule="W-28"),
    Row(_X, "TrainingFailed", _S, (), ("abort_call", "fail_training"), rule="W-24"),
)

COLLECTIVE_EVENTS = ("CollectiveDone", "CollectiveFailed", "SessionIdMade", "SessionOverdue")
COLLECTIVE_ROWS = (*_ENTER, *_SESSIONS, *_INSIDE, *_OUT)
