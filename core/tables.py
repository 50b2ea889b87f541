"""The transition tables: what each machine does on each event, in each phase (protocol sections 4.3, 5, 11.1).

Four flat machines, coupled by the pass of the coordinator (C-3) instead of by nesting.

- PEER, one per incarnation at the coordinator: is a report of this rank evidence at all? Its answer for `SyncAck` and
  `SnapshotReady` is only half of the answer: an accepted one goes on to CYCLE, which knows the cycle.
- CYCLE, one per coordinator: Idle, Pending, Stalled. `Judge` is the step of the pass in which a gate is judged; the
  guards `gate_complete` (C-12) and `fires` (G-1) read counts only, never time (G-2).
- RUN, one per coordinator: Forming, Training, ShuttingDown, Stopped.
- WORKER, one per rank: the message x state matrix of section 5, plus the events of the training process.

Rules of the house. Everything stale is FENCED before anything else is asked. REFUSED and VIOLATION differ in what
they cost: the first is counted, the second ends that one session. An event that cannot matter is IGNOREd in writing:
no cell is empty, and the lint proves it. Guards and effects are names of methods of `worker_orders.py`,
`peer.py`, `cycle.py` and `run.py`. Effects run before the phase flips (C-13).
"""

from __future__ import annotations

import functools
from typing import Any

from .engine import ANY, SAME, Engine, Kind, Row, Table, build_reference, compile_table
from .errors import ConfigError
from .phases import CyclePhase, PeerPhase, RunPhase, WorkerPhase

__all__ = ["CYCLE", "PEER", "RUN", "TABLES", "WORKER", "engine_for", "machine_class"]

IGNORE, FENCED, REFUSED, VIOLATION = Kind.IGNORE, Kind.FENCED, Kind.REFUSED, Kind.VIOLATION

# --- worker ----------------------------------------------------------------------------------------------------
#
# A rank is parked in one state, whatever parked it: the barrier throttle, the lead limit, or its own promise to take
# no step between the snapshot and the Update (W-11). Only the Update of that cycle or a later one, or a stop, ends
# it; every other message is served and does not release, above all RequestParams, since the snapshot that completes
# the releasing cycle is taken while parked (W-17, I15).
#
# StepDone and ChunkDone come from the training process, which is inside a step while the phase is Training and takes
# orders only where it says so. They are legal nowhere else, except after a stop that overtook the step.

_J, _W, _T = WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.TRAINING
_P, _D, _S = WorkerPhase.THROTTLED, WorkerPhase.DRAINING, WorkerPhase.STOPPED
_LIVE = (_J, _W, _T, _P)
_UP = (*_LIVE, _D)

_REQUEST = (
    Row(_UP, "RequestParams", SAME, ("cycle_over",), kind=FENCED, rule="W-10"),
    Row(_UP, "RequestParams", SAME, ("request_repeated",), ("repeat_evidence",), rule="W-10 M-13"),
    Row(_UP, "RequestParams", SAME, ("request_stale",), kind=FENCED, rule="W-10"),
    Row(_UP, "RequestParams", SAME, ("request_again",), ("ship_again",), rule="W-10 C-39"),
    Row((_W, _T), "RequestParams", _P, ("holds_still",), ("take_copy", "hold"), rule="W-11"),
    Row(_P, "RequestParams", SAME, ("holds_still",), ("take_copy", "hold"), rule="W-11 W-17"),
    Row(_UP, "RequestParams", SAME, (), ("take_copy",), rule="W-10"),
)

_UPDATE = (
    Row(_UP, "Update", SAME, ("update_old",), kind=FENCED, rule="W-12"),
    Row(_D, "Update", SAME, ("update_unfounded",), kind=IGNORE, rule="W-23"),
    Row(_LIVE, "Update", SAME, ("update_unfounded",), kind=VIOLATION, rule="W-12", note="no such consensus is staged"),
    Row((_J, _W), "Update", _T, ("has_plan_after",), ("commit", "release", "resume"), rule="W-12"),
    Row((_J, _W), "Update", _W, (), ("commit", "release"), rule="W-12"),
    Row(_T, "Update", SAME, (), ("commit",), rule="W-12", note="async: keeps training, a plan goes to the mailbox"),
    Row(_P, "Update", SAME, ("outlasts",), ("commit",), rule="W-12"),
    Row(_P, "Update", _T, ("has_plan_after",), ("commit", "release", "resume"), rule="W-12 W-17"),
    Row(_P, "Update", _W, (), ("commit", "release"), rule="W-12 W-17"),
    Row(_D, "Update", SAME, (), ("commit",), rule="W-23"),
)

_PLANS = (
    Row(_J, "StartEpoch", SAME, kind=VIOLATION, rule="W-15", note="a rank without a consensus got a plan"),
    Row((_W, _T, _P), "StartEpoch", SAME, ("plan_from_future",), kind=VIOLATION, rule="W-15",
        note="made after a cycle not adopted"),
    Row(_W, "StartEpoch", _T, (), ("hold_plan", "begin"), rule="W-15"),
    Row((_T, _P), "StartEpoch", SAME, (), ("hold_plan",), rule="W-15"),
    Row(_D, "StartEpoch", SAME, kind=IGNORE, rule="W-23"),
    Row(_J, "ExtendPartition", SAME, kind=VIOLATION, rule="W-16", note="a rank without a consensus got a plan"),
    Row((_W, _T, _P), "ExtendPartition", SAME, ("plan_from_future",), kind=VIOLATION, rule="W-15",
        note="made after a cycle not adopted"),
    Row(_W, "ExtendPartition", _T, (), ("hold_plan", "begin"), rule="W-16"),
    Row((_T, _P), "ExtendPartition", SAME, ("extends_hand",), ("append_hand",), rule="W-16"),
    Row((_T, _P), "ExtendPartition", SAME, ("extends_mailbox",), ("append_mailbox",), rule="W-16"),
    Row((_T, _P), "ExtendPartition", SAME, (), ("hold_plan",), rule="W-16"),
    Row(_D, "ExtendPartition", SAME, kind=IGNORE, rule="W-23"),
    Row(_J, "Throttle", SAME, kind=IGNORE, rule="W-17"),
    Row((_W, _T, _P), "Throttle", SAME, ("throttle_over",), kind=FENCED, rule="W-17"),
    Row((_W, _T), "Throttle", _P, (), ("park",), rule="W-17"),
    Row(_P, "Throttle", SAME, kind=IGNORE, rule="W-17"),
    Row(_D, "Throttle", SAME, kind=IGNORE, rule="W-23"),
)

_NOTICES = (
    Row(_UP, "SetGlobalStep", SAME, ("base_current",), ("raise_base",), rule="W-13"),
    Row(_UP, "SetGlobalStep", SAME, kind=IGNORE, rule="W-13"),
    Row(_J, "Checkpoint", SAME, kind=IGNORE, rule="W-18"),
    Row((_W, _T, _P, _D), "Checkpoint", SAME, ("for_me",), ("lacks_checkpoint",), rule="W-18"),
    Row((_W, _T, _P, _D), "Checkpoint", SAME, kind=IGNORE, rule="W-18"),
    Row((_W, _T, _P, _D), "SaveConsensusModel", SAME, ("for_me",), ("lacks_consensus_path",), rule="W-18"),
    Row(_UP, "SaveConsensusModel", SAME, kind=IGNORE, rule="W-18"),
    Row(_UP, "ExecuteEvalCallback", SAME, kind=IGNORE, rule="W-18", note="without a function a silent no-op"),
    Row(_UP, "SetEpochCallbackRole", SAME, (), ("note_holder",), rule="M-33"),
    Row(_UP, "EpochAggregated", SAME, (), ("publish_epoch",), rule="W-25"),
    Row(_UP, "EvalBroadcast", SAME, (), ("publish_evaluation",), rule="W-25"),
    Row(_UP, "StageAdvisory", SAME, (), ("prefetch",), rule="W-25"),
    Row(_UP, "DeclareDead", SAME, (), ("bury",), rule="W-20"),
    Row(_UP, "Beacon", SAME, (), (), rule="W-22", note="liveness only: any valid frame counts"),
    Row((_J, _W, _T, _P), "SyncNow", SAME, (), ("lacks_collective",), rule="R-18", note="no collective averager yet"),
    Row(_D, "SyncNow", SAME, kind=IGNORE, rule="W-23"),
    Row(_UP, "RequestSessionId", SAME, (), ("lacks_session",), rule="W-20"),
    Row(_UP, "NewSession", SAME, (), ("lacks_session",), rule="W-20"),
    Row(_UP, "RequestState", SAME, (), ("lacks_donation",), rule="M-24"),
)

_TRAINING = (
    Row(_T, "StepDone", SAME, (), ("count_step",), rule="W-2"),
    Row((_D, _S), "StepDone", SAME, kind=IGNORE, rule="W-19", note="the stop overtook a step"),
    Row((_J, _W, _P), "StepDone", SAME, kind=REFUSED, rule="W-2", note="no plan is being trained"),
    Row(_T, "ChunkDone", SAME, ("!covers_hand",), kind=REFUSED, rule="W-16", note="these plans are not in hand"),
    Row(_T, "ChunkDone", SAME, ("more_to_train",), ("end_plan", "begin"), rule="W-4"),
    Row(_T, "ChunkDone", _W, (), ("end_plan",), rule="W-4"),
    Row((_D, _S), "ChunkDone", SAME, kind=IGNORE, rule="W-19", note="the stop overtook a step"),
    Row((_J, _W, _P), "ChunkDone", SAME, kind=REFUSED, rule="W-4", note="no plan is being trained"),
    Row(ANY, "DrainPoint", SAME, (), (), rule="W-3", note="the inbox is served after the event"),
    Row(_UP, "SnapshotTaken", SAME, ("copy_current",), ("copy_taken",), rule="W-10"),
    Row(ANY, "SnapshotTaken", SAME, kind=IGNORE, rule="W-10", note="of an attempt that is over"),
    Row(_UP, "ConsensusStaged", SAME, ("consensus_current",), ("stage",), rule="W-11"),
    Row(ANY, "ConsensusStaged", SAME, kind=IGNORE, rule="W-11", note="of an attempt that is over"),
    Row(_UP, "RoundBroken", SAME, ("cycle_over",), kind=IGNORE, rule="R-18"),
    Row(_UP, "RoundBroken", SAME, (), ("round_broken",), rule="R-18"),
    Row(_S, "RoundBroken", SAME, kind=IGNORE, rule="R-18"),
)

_ENDS = (
    Row(_J, "ShutdownWithSave", _S, (), ("say_goodbye", "stop_saved"), rule="W-19", note="nothing to save"),
    Row(_D, "ShutdownWithSave", SAME, ("renamed_saver",), ("save",), rule="M-52"),
    Row(_D, "ShutdownWithSave", SAME, ("already_saving",), kind=IGNORE, rule="W-19 M-52"),
    Row((_W, _T, _P, _D), "ShutdownWithSave", _D, ("save_named",), ("save",), rule="W-19 K-11"),
    Row((_W, _T, _P, _D), "ShutdownWithSave", _S, (), ("say_goodbye", "stop_saved"), rule="W-19"),
    Row(_LIVE, "Shutdown", _S, (), ("say_goodbye", "stop_clean"), rule="W-19 W-24"),
    Row(_D, "Shutdown", SAME, ("already_saving",), kind=IGNORE, rule="W-19", note="the end of the save stops it"),
    Row(_D, "Shutdown", _S, (), ("stop_left",), rule="W-23"),
    Row(_D, "ActionDone", SAME, ("saves_again",), ("one_save_less",), rule="M-52"),
    Row(_D, "ActionDone", _S, ("is_save",), ("saved", "say_goodbye", "stop_saved"), rule="W-19 W-24"),
    Row(ANY, "ActionDone", SAME, kind=IGNORE, rule="W-19", note="nobody waits for it"),
    Row(_UP, "Fenced", SAME, ("!is_foreign",), kind=IGNORE, rule="W-21"),
    Row(_UP, "Fenced", _S, (), ("cast_out",), rule="W-21"),
    Row(_LIVE, "LinkLost", _S, (), ("lose_coordinator",), rule="W-21 W-22"),
    Row(_D, "LinkLost", SAME, ("already_saving",), kind=IGNORE, rule="W-23", note="the end of the save stops it"),
    Row(_D, "LinkLost", _S, (), ("stop_left",), rule="W-23"),
    Row(_UP, "LinkUp", SAME, kind=IGNORE, rule="W-21"),
    Row(_LIVE, "LaneClosed", _S, (), ("stop_clean",), rule="W-3"),
    Row(_D, "LaneClosed", SAME, ("already_saving",), kind=IGNORE, rule="W-23", note="the end of the save stops it"),
    Row(_D, "LaneClosed", _S, (), ("stop_left",), rule="W-23"),
    Row(_D, "GraceOver", _S, (), ("stop_left",), rule="W-23 W-28"),
    Row((*_LIVE, _S), "GraceOver", SAME, kind=IGNORE, rule="W-23"),
    Row(_LIVE, "LeaveRequested", _D, (), ("leave",), rule="W-28"),
    Row((_D, _S), "LeaveRequested", SAME, kind=IGNORE, rule="W-28"),
    Row(_UP, "TrainingFailed", _S, (), ("fail_training",), rule="W-24"),
    Row(_S, "TrainingFailed", SAME, kind=IGNORE, rule="W-24"),
)

_CONTROL_NAMES = (
    "RequestParams", "Update", "SyncNow", "StartEpoch", "ExtendPartition", "Throttle", "SetGlobalStep",
    "StageAdvisory", "Checkpoint", "SaveConsensusModel", "ExecuteEvalCallback", "SetEpochCallbackRole",
    "EpochAggregated", "EvalBroadcast", "DeclareDead", "RequestSessionId", "NewSession", "RequestState",
    "ShutdownWithSave", "Shutdown", "Beacon", "Fenced", "LinkLost", "LinkUp", "LaneClosed",
)  # fmt: skip

_AFTER = tuple(
    Row(_S, name, SAME, kind=IGNORE, rule="W-24", note="the worker is over") for name in _CONTROL_NAMES
)

WORKER = Table(
    name="worker",
    phases=WorkerPhase,
    initial=_J,
    events=(
        *_CONTROL_NAMES, "StepDone", "ChunkDone", "DrainPoint", "SnapshotTaken", "ConsensusStaged", "RoundBroken",
        "ActionDone", "TrainingFailed", "LeaveRequested", "GraceOver",
    ),
    rows=(*_REQUEST, *_UPDATE, *_PLANS, *_NOTICES, *_TRAINING, *_ENDS, *_AFTER),
    final=(_S,),
)  # fmt: skip

# --- peer ------------------------------------------------------------------------------------------------------
#
# One incarnation at the coordinator. An incarnation ends once: an exited one is never declared dead, a late Exiting
# of a dead one is fenced (M-1, I19). What a joining rank can send is only what a cycle asks of it. A rank that has
# left or died is heard no more: whatever it still says is fenced.

_JO, _VO, _EX, _DE = PeerPhase.JOINING, PeerPhase.VOTER, PeerPhase.EXITED, PeerPhase.DEAD
_ALIVE, _GONE = (_JO, _VO), (_EX, _DE)

_PEER_REPORTS = (
    "Batch", "SyncAck", "SnapshotReady", "Metrics", "LrUpdate", "Heartbeat", "Exiting", "Intent", "CheckpointResult",
    "EvalResult", "EpochFnElapsed", "SessionIdGenerated", "ResourceSample", "RoundFailed",
)  # fmt: skip

_PEER_ROWS = (
    Row(_GONE, "Batch", SAME, kind=FENCED, rule="N-6 M-1"),
    Row(_JO, "Batch", SAME, kind=VIOLATION, rule="C-8", note="a step before the first consensus"),
    Row(_VO, "Batch", SAME, ("!step_rises",), kind=REFUSED, rule="C-8"),
    Row(_VO, "Batch", SAME, ("!plan_at_head",), kind=VIOLATION, rule="D-12", note="not the plan at the head"),
    Row(_VO, "Batch", SAME, ("!samples_fit",), kind=REFUSED, rule="D-11"),
    Row(_VO, "Batch", SAME, ("void",), ("void_batch",), rule="C-8"),
    Row(_VO, "Batch", SAME, (), ("count_batch",), rule="C-8 C-20 C-36"),
    Row(_VO, "Metrics", SAME, ("!holds_plans",), kind=FENCED, rule="D-9", note="plans this rank does not hold"),
    Row(_VO, "Metrics", SAME, (), ("complete_plans",), rule="D-9"),
    Row(_JO, "Metrics", SAME, kind=FENCED, rule="D-9"),
    Row(_ALIVE, "SyncAck", SAME, (), (), rule="C-6", note="goes on to the cycle"),
    Row(_ALIVE, "SnapshotReady", SAME, (), (), rule="C-7", note="goes on to the cycle"),
    Row(_ALIVE, "RoundFailed", SAME, (), (), rule="R-18", note="goes on to the cycle"),
    Row(_ALIVE, "LrUpdate", SAME, (), ("note_rate",), rule="B-43"),
    Row(_ALIVE, "Heartbeat", SAME, (), (), rule="M-2", note="liveness was stamped before the table is asked"),
    Row(_ALIVE, "Exiting", _EX, (), ("depart",), rule="M-8"),
    Row(_ALIVE, "Intent", SAME, (), ("note_intent",), rule="K-1 M-54"),
    Row(_ALIVE, "CheckpointResult", SAME, (), ("note_saved",), rule="M-52"),
    Row(_ALIVE, "EvalResult", SAME, kind=REFUSED, rule="K-16", note="no evaluation was asked for"),
    Row(_ALIVE, "EpochFnElapsed", SAME, (), ("exclude_callback",), rule="K-18"),
    Row(_ALIVE, "SessionIdGenerated", SAME, kind=REFUSED, rule="M-31", note="no session is being renewed"),
    Row(_ALIVE, "ResourceSample", SAME, (), ("forward_sample",), rule="O-5"),
    Row(_ALIVE, "Lost", _DE, (), ("die",), rule="M-17 M-18"),
    Row(_JO, "Promoted", _VO, (), ("promote",), rule="M-25"),
    Row(_VO, "Promoted", SAME, kind=IGNORE, rule="M-25"),
    *(Row(_GONE, name, SAME, kind=FENCED, rule="N-6 M-1") for name in _PEER_REPORTS if name != "Batch"),
    Row(_GONE, "Lost", SAME, kind=IGNORE, rule="M-1 M-17"),
    Row(_GONE, "Promoted", SAME, kind=IGNORE, rule="M-25"),
)

PEER = Table(
    name="peer", phases=PeerPhase, initial=_JO, events=(*_PEER_REPORTS, "Lost", "Promoted"), rows=_PEER_ROWS,
    final=(_EX, _DE),
)  # fmt: skip

# --- cycle -----------------------------------------------------------------------------------------------------
#
# A cycle is armed once and finished once (I1). Evidence counts when it is of this cycle and attempt and of a rank
# that was asked; nothing else does, least of all steps or time (I2). Stalled is terminal (M-50).

_ID, _PE, _SL = CyclePhase.IDLE, CyclePhase.PENDING, CyclePhase.STALLED

_CYCLE_ROWS = (
    Row(_ID, "Judge", _PE, ("fires",), ("arm",), rule="C-30 G-1 G-10"),
    Row(_ID, "Judge", SAME, kind=IGNORE, rule="G-1"),
    Row(_PE, "Judge", SAME, ("gate_complete", "digest_split"), ("settle_digests",), rule="C-18"),
    Row(_PE, "Judge", _ID, ("gate_complete",), ("finish",), rule="C-33 C-12"),
    Row(_PE, "Judge", SAME, kind=IGNORE, rule="C-12"),
    Row(_PE, "SyncAck", SAME, ("!round_current",), kind=FENCED, rule="C-35"),
    Row(_PE, "SyncAck", SAME, ("!owes_ack",), kind=FENCED, rule="C-6", note="counts once, of a participant"),
    Row(_PE, "SyncAck", SAME, ("!founded",), kind=VIOLATION, rule="N-3 R-2", note="before there is a consensus"),
    Row(_PE, "SyncAck", SAME, (), ("record_ack",), rule="C-32 C-6"),
    Row(_ID, "SyncAck", SAME, kind=FENCED, rule="C-43"),
    Row(_PE, "SnapshotReady", SAME, ("!round_current",), kind=FENCED, rule="C-35"),
    Row(_PE, "SnapshotReady", SAME, ("!asked",), kind=FENCED, rule="C-7", note="it was not asked"),
    Row(_PE, "SnapshotReady", SAME, ("already_shipped",), kind=IGNORE, rule="C-7", note="a repeat is no evidence"),
    Row(_PE, "SnapshotReady", SAME, ("!shipped_plausible",), ("books_differ",), kind=VIOLATION, rule="C-7",
        note="books differ"),
    Row(_PE, "SnapshotReady", SAME, (), ("admit_contribution",), rule="C-34 C-7"),
    Row(_ID, "SnapshotReady", SAME, kind=FENCED, rule="C-43"),
    Row(_PE, "RoundReduced", SAME, ("round_current",), ("record_reduced",), rule="R-2"),
    Row((_ID, _PE), "RoundReduced", SAME, kind=FENCED, rule="R-1"),
    Row(_PE, "RoundProgress", SAME, ("key_current",), ("record_progress",), rule="R-11 M-15"),
    Row((_ID, _PE), "RoundProgress", SAME, kind=FENCED, rule="R-1"),
    Row(_PE, "RoundAborted", SAME, ("!round_current",), kind=FENCED, rule="R-1"),
    Row(_PE, "RoundAborted", _SL, ("attempts_used_up",), ("abort", "stall"), rule="R-18"),
    Row(_PE, "RoundAborted", SAME, (), ("try_again",), rule="C-39 R-18"),
    Row(_ID, "RoundAborted", SAME, kind=FENCED, rule="R-1"),
    Row((_ID, _PE), "RoundFailed", SAME, ("!retryable",), ("expel",), rule="R-18"),
    Row(_PE, "RoundFailed", SAME, ("!round_current",), kind=FENCED, rule="R-1"),
    Row(_PE, "RoundFailed", _SL, ("attempts_used_up",), ("abort", "stall"), rule="R-18"),
    Row(_PE, "RoundFailed", SAME, (), ("try_again",), rule="C-39 R-18"),
    Row(_ID, "RoundFailed", SAME, kind=FENCED, rule="R-1"),
    Row(_PE, "Ceiling", _SL, (), ("abort", "stall"), rule="C-41 M-15"),
    Row(_ID, "Ceiling", _SL, (), ("stall",), rule="C-45 M-16"),
    Row(_PE, "Abandoned", _SL, (), ("abort",), rule="C-25 M-6", note="the run did not form"),
    Row(_ID, "Abandoned", SAME, kind=IGNORE, rule="C-25 M-6"),
    Row(_PE, "Unrecoverable", _SL, (), ("abort", "give_up"), rule="C-42 M-21"),
    Row(_ID, "Unrecoverable", SAME, (), ("give_up",), rule="C-46 M-21"),
    *(
        Row(_SL, name, SAME, kind=IGNORE, rule="C-44", note="terminal")
        for name in ("Judge", "SyncAck", "SnapshotReady", "RoundReduced", "RoundProgress", "RoundAborted",
                     "RoundFailed", "Ceiling", "Unrecoverable", "Abandoned")
    ),
)  # fmt: skip

CYCLE = Table(
    name="cycle", phases=CyclePhase, initial=_ID,
    events=("Judge", "SyncAck", "SnapshotReady", "RoundReduced", "RoundProgress", "RoundAborted", "RoundFailed",
            "Ceiling", "Unrecoverable", "Abandoned"),
    rows=_CYCLE_ROWS, final=(_SL,),
)  # fmt: skip

# --- run -------------------------------------------------------------------------------------------------------
#
# A run forms once, trains, shuts down once and is over. `Judge` is the last step of the pass: it asks whether the work
# is done, so it never sees a cycle half finished. Saving and shutting down are decisions taken once per run: whatever
# asks for one a second time is ignored in writing (M-50, I9). From ShuttingDown nothing leads back; who does not go in
# time is cut off, because a run must end even if a rank never will (I38).

_FO, _TR, _SD, _ST = RunPhase.FORMING, RunPhase.TRAINING, RunPhase.SHUTTING_DOWN, RunPhase.STOPPED

_RUN_ROWS = (
    Row(_FO, "Formed", _TR, (), ("start_training",), rule="C-25 M-6"),
    Row(_FO, "FormationFailed", _SD, ("anyone_alive",), ("dismiss",), rule="C-25 M-4 M-6"),
    Row(_FO, "FormationFailed", _ST, (), ("finish_run",), rule="C-25 M-4"),
    Row(_FO, "Saving", SAME, kind=IGNORE, rule="M-21", note="before training formation decides"),
    Row(_FO, "Judge", SAME, kind=IGNORE, rule="M-4"),
    Row(_TR, "Judge", _SD, ("work_done",), ("shut_down",), rule="C-25 D-21 M-53"),
    Row(_TR, "Judge", SAME, (), ("advance",), rule="D-21"),
    Row(_TR, "Saving", _SD, (), ("shut_down_saving",), rule="C-25 M-51"),
    Row((_TR, _SD, _ST), "Formed", SAME, kind=IGNORE, rule="C-25"),
    Row((_TR, _SD, _ST), "FormationFailed", SAME, kind=IGNORE, rule="C-25"),
    Row(_SD, "Judge", _ST, ("everyone_gone",), ("finish_run",), rule="M-53"),
    Row(_SD, "Judge", _ST, ("grace_over",), ("cut_off", "finish_run"), rule="M-53"),
    Row(_SD, "Judge", SAME, ("save_settled",), ("send_shutdown",), rule="M-52"),
    Row(_SD, "Judge", SAME, kind=IGNORE, rule="M-53"),
    Row((_SD, _ST), "Saving", SAME, kind=IGNORE, rule="M-50", note="one decision per run"),
    Row(_ST, "Judge", SAME, kind=IGNORE, rule="M-53"),
)

RUN = Table(
    name="run", phases=RunPhase, initial=_FO, events=("Formed", "FormationFailed", "Judge", "Saving"),
    rows=_RUN_ROWS, final=(_ST,),
)  # fmt: skip

TABLES: dict[str, Table] = {table.name: table for table in (WORKER, PEER, CYCLE, RUN)}


def machine_class(name: str) -> type:
    """The class whose methods the rows of a table name. Imported late: the machines import this module."""
    if name == "worker":
        from .worker import Worker

        return Worker
    if name == "peer":
        from .peer import Peer

        return Peer
    if name == "cycle":
        from .cycle import Cycle

        return Cycle
    from .run import Run

    return Run


def engine_for(name: str, engine: str = "compiled") -> Engine:
    """The engine that runs a table: "compiled" (one function per cell) or "transitions" (the reference semantics).
    There is one of each for all machines, so what it counts in `taken` is of all of them."""
    if engine not in ("compiled", "transitions"):
        raise ConfigError(f"engine = {engine!r} is not allowed: 'compiled' or 'transitions'")
    return _built(name, engine)


@functools.cache
def _built(name: str, engine: str) -> Engine:
    build: Any = compile_table if engine == "compiled" else build_reference
    made: Engine = build(TABLES[name], machine_class(name), "phase")
    return made
