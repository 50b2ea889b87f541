"""The table of the worker machine (protocol section 5): what a rank does on each message and event.

A rank is parked in one state, whatever parked it: the barrier throttle, the lead limit, or its own promise to take
no step between the snapshot and the Update (W-11). Only the Update of that cycle or a later one, or a stop, ends
it; every other message is served and does not release, above all RequestParams, since the snapshot that completes
the releasing cycle is taken while parked (W-17, I15).

What a rank does in a collective, and about communicator sessions, is in `table_worker_collective.py`.

A link is not a life. While it is down every state goes on as it is, up to the point where it needs an order (W-21).
What answers a Hello is served on arrival: the same life goes on, or a new one begins in Joining, or there is none.
What an earlier life of the coordinator said about a round is fenced, since no such round exists any more (M-43).

StepDone and ChunkDone come from the training process, which is inside a step while the phase is Training and takes
orders only where it says so. They are legal nowhere else, except after a stop, or the end of a life, that overtook
the step.
"""

from __future__ import annotations

from .engine import ANY, SAME, Kind, Row, Table
from .phases import WorkerPhase
from .table_worker_collective import COLLECTIVE_EVENTS, COLLECTIVE_ROWS

__all__ = ["WORKER"]

_J, _W, _T = WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.TRAINING
_P, _D, _S = WorkerPhase.THROTTLED, WorkerPhase.DRAINING, WorkerPhase.STOPPED
_LIVE = (_J, _W, _T, _P)
_UP = (*_LIVE, _D)
_JOINED = (_W, _T, _P, _D)

_REQUEST = (
    Row(_UP, "RequestParams", SAME, ("comes_from_before",), kind=Kind.FENCED, rule="N-6 M-43"),
    Row(_UP, "RequestParams", SAME, ("cycle_over",), kind=Kind.FENCED, rule="W-10"),
    Row(_UP, "RequestParams", SAME, ("request_repeated",), ("repeat_evidence",), rule="W-10 M-13"),
    Row(_UP, "RequestParams", SAME, ("request_stale",), kind=Kind.FENCED, rule="W-10"),
    Row(_UP, "RequestParams", SAME, ("request_again",), ("ship_again",), rule="W-10 C-39"),
    Row((_W, _T), "RequestParams", _P, ("holds_still",), ("take_copy", "hold"), rule="W-11"),
    Row(_P, "RequestParams", SAME, ("holds_still",), ("take_copy", "hold"), rule="W-11 W-17"),
    Row(_UP, "RequestParams", SAME, (), ("take_copy",), rule="W-10"),
)

_UPDATE = (
    Row(_UP, "Update", SAME, ("update_old",), kind=Kind.FENCED, rule="W-12"),
    Row(_D, "Update", SAME, ("update_unfounded",), kind=Kind.IGNORE, rule="W-23"),
    Row(_LIVE, "Update", SAME, ("update_unfounded",), kind=Kind.VIOLATION,
        rule="W-12", note="no such consensus is staged"),
    Row((_J, _W), "Update", _T, ("has_plan_after",), ("commit", "resume"), rule="W-12"),
    Row((_J, _W), "Update", _W, (), ("commit",), rule="W-12"),
    Row(_T, "Update", SAME, ("observed", "has_plan_after"), ("commit", "resume"), rule="W-12 M-14"),
    Row(_T, "Update", _W, ("observed",), ("commit",), rule="W-12 M-14",
        note="async: its plan is void"),
    Row(_T, "Update", SAME, (), ("commit",), rule="W-12", note="async: keeps training, a plan goes to the mailbox"),
    Row(_P, "Update", SAME, ("outlasts",), ("commit",), rule="W-12"),
    Row(_P, "Update", _T, ("has_plan_after",), ("commit", "release", "resume"), rule="W-12 W-17"),
    Row(_P, "Update", _W, (), ("commit", "release"), rule="W-12 W-17"),
    Row(_D, "Update", SAME, (), ("commit",), rule="W-23"),
)

_PLANS = (
    Row(_J, "StartEpoch", SAME, kind=Kind.VIOLATION, rule="W-15", note="a rank without a consensus got a plan"),
    Row((_W, _T, _P), "StartEpoch", SAME, ("plan_from_future",), kind=Kind.VIOLATION, rule="W-15",
        note="made after a cycle not adopted"),
    Row(_W, "StartEpoch", _T, (), ("hold_plan", "begin"), rule="W-15"),
    Row((_T, _P), "StartEpoch", SAME, (), ("hold_plan",), rule="W-15"),
    Row(_D, "StartEpoch", SAME, kind=Kind.IGNORE, rule="W-23"),
    Row(_J, "ExtendPartition", SAME, kind=Kind.VIOLATION, rule="W-16", note="a rank without a consensus got a plan"),
    Row((_W, _T, _P), "ExtendPartition", SAME, ("plan_from_future",), kind=Kind.VIOLATION, rule="W-15",
        note="made after a cycle not adopted"),
    Row(_W, "ExtendPartition", _T, (), ("hold_plan", "begin"), rule="W-16"),
    Row((_T, _P), "ExtendPartition", SAME, ("extends_hand",), ("append_hand",), rule="W-16"),
    Row((_T, _P), "ExtendPartition", SAME, ("extends_mailbox",), ("append_mailbox",), rule="W-16"),
    Row((_T, _P), "ExtendPartition", SAME, (), ("hold_plan",), rule="W-16"),
    Row(_D, "ExtendPartition", SAME, kind=Kind.IGNORE, rule="W-23"),
    Row(_J, "Throttle", SAME, kind=Kind.IGNORE, rule="W-17"),
    Row((_W, _T, _P), "Throttle", SAME, ("throttle_over",), kind=Kind.FENCED, rule="W-17"),
    Row((_W, _T), "Throttle", _P, (), ("park",), rule="W-17"),
    Row(_P, "Throttle", SAME, kind=Kind.IGNORE, rule="W-17"),
    Row(_D, "Throttle", SAME, kind=Kind.IGNORE, rule="W-23"),
)

_NOTICES = (
    Row(_UP, "SetGlobalStep", SAME, ("base_current",), ("raise_base",), rule="W-13"),
    Row(_UP, "SetGlobalStep", SAME, kind=Kind.IGNORE, rule="W-13"),
    Row(_UP, "SetEpochCallbackRole", SAME, (), ("note_holder",), rule="M-33"),
    Row(_UP, "EpochAggregated", SAME, (), ("publish_epoch",), rule="W-25"),
    Row(_UP, "EvalBroadcast", SAME, (), ("publish_evaluation",), rule="W-25"),
    Row(_UP, "StageAdvisory", SAME, (), ("prefetch",), rule="W-25"),
    Row(_UP, "DeclareDead", SAME, (), ("bury",), rule="W-20"),
    Row(_UP, "Beacon", SAME, (), (), rule="W-22", note="liveness only: any valid frame counts"),
    Row(_UP, "RequestState", SAME, ("comes_from_before",), kind=Kind.FENCED, rule="N-6 M-43"),
    Row((_W, _T, _P), "RequestState", SAME, (), ("give_state",), rule="M-24 M-44"),
    Row(_J, "RequestState", SAME, ("for_averager",), ("give_state",), rule="M-45", note="it holds one all the same"),
    Row(_J, "RequestState", SAME, kind=Kind.IGNORE, rule="M-27", note="it stands on no consensus"),
    Row(_D, "RequestState", SAME, kind=Kind.IGNORE, rule="W-23"),
)

_TARGETED = (
    Row(_J, "Checkpoint", SAME, kind=Kind.IGNORE, rule="W-18"),
    Row(_JOINED, "Checkpoint", SAME, ("!for_me",), kind=Kind.IGNORE, rule="W-18"),
    Row(_JOINED, "Checkpoint", SAME, ("!has_checkpoint",), ("lacks_checkpoint",), rule="W-18 K-9"),
    Row(_JOINED, "Checkpoint", SAME, ("served_before",), kind=Kind.FENCED, rule="N-6 K-1"),
    Row(_JOINED, "Checkpoint", SAME, ("for_later",), ("arm",), rule="W-18 K-3"),
    Row(_JOINED, "Checkpoint", SAME, (), ("serve",), rule="W-18 K-3"),
    Row(_J, "SaveConsensusModel", SAME, kind=Kind.IGNORE, rule="W-18"),
    Row(_JOINED, "SaveConsensusModel", SAME, ("!for_me",), kind=Kind.IGNORE, rule="W-18"),
    Row(_JOINED, "SaveConsensusModel", SAME, ("!has_path",), ("lacks_path",), rule="W-18"),
    Row(_JOINED, "SaveConsensusModel", SAME, ("served_before",), kind=Kind.FENCED, rule="N-6 K-1"),
    Row(_JOINED, "SaveConsensusModel", SAME, ("for_later",), ("arm",), rule="W-18 K-3"),
    Row(_JOINED, "SaveConsensusModel", SAME, (), ("serve",), rule="W-18 K-3"),
    Row(_J, "ExecuteEvalCallback", SAME, kind=Kind.IGNORE, rule="W-18"),
    Row(_JOINED, "ExecuteEvalCallback", SAME, ("!for_me",), kind=Kind.IGNORE, rule="W-18"),
    Row(_JOINED, "ExecuteEvalCallback", SAME, ("!has_evaluation",), kind=Kind.IGNORE, rule="W-18",
        note="without a function a silent no-op"),
    Row(_JOINED, "ExecuteEvalCallback", SAME, ("served_before",), kind=Kind.FENCED, rule="N-6 K-1"),
    Row(_JOINED, "ExecuteEvalCallback", SAME, ("for_later",), ("arm",), rule="W-18 K-3"),
    Row(_JOINED, "ExecuteEvalCallback", SAME, (), ("serve",), rule="W-18 K-3 K-14"),
    Row(_LIVE, "Wish", SAME, (), ("express",), rule="K-1"),
    Row((_D, _S), "Wish", SAME, kind=Kind.IGNORE, rule="K-1", note="it is leaving"),
    Row(_UP, "ActionDone", SAME, ("ends_checkpoint",), ("report_checkpoint",), rule="K-9"),
    Row(_UP, "ActionDone", SAME, ("ends_evaluation",), ("report_evaluation",), rule="K-16"),
    Row(_UP, "ActionDone", SAME, ("ends_epoch_callback",), ("report_epoch_callback",), rule="W-6 K-18"),
)

_TRAINING = (
    Row(_T, "StepDone", SAME, (), ("count_step",), rule="W-2"),
    Row((_D, _S), "StepDone", SAME, kind=Kind.IGNORE, rule="W-19", note="the stop overtook a step"),
    Row(_J, "StepDone", SAME, ("cut_short",), kind=Kind.IGNORE, rule="W-21", note="a life ended in mid-step"),
    Row((_J, _W, _P), "StepDone", SAME, kind=Kind.REFUSED, rule="W-2", note="no plan is being trained"),
    Row(_T, "ChunkDone", SAME, ("!covers_hand",), kind=Kind.REFUSED, rule="W-16", note="these plans are not in hand"),
    Row(_T, "ChunkDone", SAME, ("more_to_train",), ("end_plan", "begin"), rule="W-4"),
    Row(_T, "ChunkDone", _W, (), ("end_plan",), rule="W-4"),
    Row((_D, _S), "ChunkDone", SAME, kind=Kind.IGNORE, rule="W-19", note="the stop overtook a step"),
    Row(_J, "ChunkDone", SAME, ("cut_short",), kind=Kind.IGNORE, rule="W-21", note="a life ended in mid-step"),
    Row((_J, _W, _P), "ChunkDone", SAME, kind=Kind.REFUSED, rule="W-4", note="no plan is being trained"),
    Row(ANY, "DrainPoint", SAME, (), (), rule="W-3", note="the inbox is served after the event"),
    Row(_UP, "SnapshotTaken", SAME, ("copy_current",), ("copy_taken",), rule="W-10"),
    Row(ANY, "SnapshotTaken", SAME, kind=Kind.IGNORE, rule="W-10", note="of an attempt that is over"),
    Row(_UP, "ConsensusStaged", SAME, ("consensus_current",), ("stage",), rule="W-11"),
    Row(ANY, "ConsensusStaged", SAME, kind=Kind.IGNORE, rule="W-11", note="of an attempt that is over"),
    Row(_UP, "RoundBroken", SAME, ("cycle_over",), kind=Kind.IGNORE, rule="R-18"),
    Row(_UP, "RoundBroken", SAME, (), ("round_broken",), rule="R-18"),
    Row(_S, "RoundBroken", SAME, kind=Kind.IGNORE, rule="R-18"),
)


def _obeyed(event: str) -> tuple[Row, Row]:
    """What ends the loop while the lane holds an order to stop: that is obeyed first (W-24). Outside a step nothing
    waits, and in a collective what means stop is served at once."""
    return (
        Row(_T, event, _D, ("save_waits",), ("obey_save",), rule="W-24 W-19", note="a save waits in the lane"),
        Row(_T, event, _S, ("stop_waits",), ("obey_stop",), rule="W-24 W-22", note="the run is over"),
    )


_ENDS = (
    Row(_J, "ShutdownWithSave", _S, (), ("say_goodbye", "stop_saved"), rule="W-19", note="nothing to save"),
    Row(_D, "ShutdownWithSave", SAME, ("renamed_saver",), ("save",), rule="M-52"),
    Row(_D, "ShutdownWithSave", SAME, ("already_saving",), kind=Kind.IGNORE, rule="W-19 M-52"),
    Row((_W, _T, _P, _D), "ShutdownWithSave", _D, ("save_named",), ("save",), rule="W-19 K-11"),
    Row((_W, _T, _P, _D), "ShutdownWithSave", _S, (), ("say_goodbye", "stop_saved"), rule="W-19"),
    Row(_LIVE, "Shutdown", _S, (), ("say_goodbye", "stop_clean"), rule="W-19 W-24"),
    Row(_D, "Shutdown", SAME, ("already_saving",), kind=Kind.IGNORE, rule="W-19", note="the end of the save stops it"),
    Row(_D, "Shutdown", _S, (), ("stop_left",), rule="W-23"),
    Row(_D, "ActionDone", SAME, ("saves_again",), ("one_save_less",), rule="M-52"),
    Row(_D, "ActionDone", _S, ("has_failed",), ("saved", "stop_failed"), rule="W-24", note="no clean end"),
    Row(_D, "ActionDone", _S, ("is_save",), ("saved", "say_goodbye", "stop_saved"), rule="W-19 W-24"),
    Row(ANY, "ActionDone", SAME, kind=Kind.IGNORE, rule="W-19", note="nobody waits for it"),
    Row(_UP, "Fenced", SAME, ("!is_foreign",), kind=Kind.IGNORE, rule="W-21"),
    Row(_LIVE, "Fenced", _J, (), ("start_over", "look_for_seat"), rule="W-20 W-21"),
    Row(_D, "Fenced", SAME, ("already_saving",), kind=Kind.IGNORE, rule="W-23", note="the end of the save stops it"),
    Row(_D, "Fenced", _S, (), ("stop_left",), rule="W-23"),
    Row(_LIVE, "Overflow", _J, (), ("start_over", "break_lane"), rule="N-9 W-21"),
    Row(_D, "Overflow", SAME, ("already_saving",), kind=Kind.IGNORE, rule="N-9", note="the end of the save stops it"),
    Row(_D, "Overflow", _S, (), ("stop_left",), rule="N-9 W-23"),
    Row(_UP, "LinkLost", SAME, ("looking",), ("dial_again",), rule="M-40 W-21", note="a try that failed"),
    Row(_LIVE, "LinkLost", SAME, ("may_return",), ("lose_link",), rule="W-21 W-22"),
    *_obeyed("LinkLost"),
    Row(_LIVE, "LinkLost", _S, (), ("lose_coordinator",), rule="W-21 W-22"),
    Row(_D, "LinkLost", SAME, ("already_saving",), kind=Kind.IGNORE, rule="W-23", note="the end of the save stops it"),
    Row(_D, "LinkLost", _S, (), ("stop_left",), rule="W-23"),
    Row(_UP, "LinkUp", SAME, kind=Kind.IGNORE, rule="W-21", note="a link is up when a Welcome says so"),
    Row(_UP, "Welcome", SAME, ("unsought",), kind=Kind.VIOLATION, rule="N-7", note="this rank has not knocked"),
    Row(_UP, "Welcome", SAME, ("resumes", "has_reports"), ("take_up",), rule="M-42 W-21"),
    Row(_UP, "Welcome", SAME, ("resumes",), ("give_up_life",), rule="N-9 M-42"),
    Row(_LIVE, "Welcome", _J, (), ("start_over", "settle_in"), rule="W-21 M-42"),
    Row(_UP, "Reject", SAME, ("unsought",), kind=Kind.VIOLATION, rule="N-7", note="this rank has not knocked"),
    Row(_UP, "Reject", SAME, ("worth_retry",), ("dial_again",), rule="N-29 M-40"),
    *_obeyed("Reject"),
    Row(_LIVE, "Reject", _S, (), ("turned_away",), rule="W-21"),
    *_obeyed("WindowOver"),
    Row(_LIVE, "WindowOver", _S, (), ("lose_coordinator",), rule="W-21"),
    *(
        Row(_D, name, SAME, ("already_saving",), kind=Kind.IGNORE, rule="W-23", note="the end of the save stops it")
        for name in ("Welcome", "Reject")
    ),
    Row(_D, "WindowOver", SAME, ("already_saving",), ("stop_looking",), rule="W-23 W-21",
        note="the end of the save stops it"),
    *(Row(_D, name, _S, (), ("stop_left",), rule="W-23 W-21") for name in ("Welcome", "Reject", "WindowOver")),
    *_obeyed("LaneClosed"),
    Row(_LIVE, "LaneClosed", _S, (), ("stop_clean",), rule="W-3"),
    Row(_D, "LaneClosed", SAME, ("already_saving",), kind=Kind.IGNORE,
        rule="W-23", note="the end of the save stops it"),
    Row(_D, "LaneClosed", _S, (), ("stop_left",), rule="W-23"),
    Row(_D, "GraceOver", _S, ("failed_before",), ("stop_failed",), rule="W-24 W-23", note="no clean end"),
    Row(_D, "GraceOver", _S, (), ("stop_left",), rule="W-23 W-28"),
    Row((*_LIVE, _S), "GraceOver", SAME, kind=Kind.IGNORE, rule="W-23"),
    Row(_LIVE, "LeaveRequested", _D, (), ("leave",), rule="W-28"),
    Row((_D, _S), "LeaveRequested", SAME, kind=Kind.IGNORE, rule="W-28"),
    Row(_T, "TrainingFailed", _D, ("save_waits",), ("save_and_fail",), rule="W-24 W-19",
        note="a save waits in the lane"),
    Row(_UP, "TrainingFailed", _S, (), ("fail_training",), rule="W-24"),
    Row(_S, "TrainingFailed", SAME, kind=Kind.IGNORE, rule="W-24"),
)

_CONTROL_NAMES = (
    "RequestParams", "Update", "SyncNow", "StartEpoch", "ExtendPartition", "Throttle", "SetGlobalStep",
    "StageAdvisory", "Checkpoint", "SaveConsensusModel", "ExecuteEvalCallback", "SetEpochCallbackRole",
    "EpochAggregated", "EvalBroadcast", "DeclareDead", "RequestSessionId", "NewSession", "RequestState",
    "ShutdownWithSave", "Shutdown", "Beacon", "Fenced", "Welcome", "Reject", "LinkLost", "LinkUp", "WindowOver",
    "Overflow", "LaneClosed",
)

_AFTER = tuple(
    Row(_S, name, SAME, kind=Kind.IGNORE, rule="W-24", note="the worker is over") for name in _CONTROL_NAMES
)

WORKER = Table(
    name="worker",
    phases=WorkerPhase,
    initial=_J,
    events=(
        *_CONTROL_NAMES, "StepDone", "ChunkDone", "DrainPoint", "SnapshotTaken", "ConsensusStaged", "RoundBroken",
        "ActionDone", "TrainingFailed", "LeaveRequested", "GraceOver", "Wish", *COLLECTIVE_EVENTS,
    ),
    rows=(*_REQUEST, *_UPDATE, *_PLANS, *_NOTICES, *COLLECTIVE_ROWS, *_TARGETED, *_TRAINING, *_ENDS, *_AFTER),
    final=(_S,),
)
