"""Every message of protocol section 3, as attrs classes.

Three families. `Control` goes from the coordinator to one rank, `Report` from one rank to the coordinator, and the
session messages (`Hello`, `Welcome`, `Reject`, `Fenced`) open a session or tell a stale one what is current. Controls
and reports carry the stamp of N-6 (run id, generation, rank, incarnation) and both lane numbers (N-2, N-3). Offsets
and sizes are in picks, `_ms` fields in milliseconds, `None` is absent and never stands for zero.

`KINDS` maps the kind byte of a frame (N-24) to its class, `KIND_OF` the other way.
"""

from __future__ import annotations

from typing import Any

from .control_messages import (
    Beacon,
    Checkpoint,
    Control,
    DeclareDead,
    EpochAggregated,
    EvalBroadcast,
    ExecuteEvalCallback,
    ExtendPartition,
    NewSession,
    RequestParams,
    RequestSessionId,
    RequestState,
    SaveConsensusModel,
    SetEpochCallbackRole,
    SetGlobalStep,
    Shutdown,
    ShutdownWithSave,
    StageAdvisory,
    StartEpoch,
    SyncNow,
    Throttle,
    Update,
)
from .data_messages import (
    BulkBlock,
    Contribution,
    RoundResult,
)
from .message_types import (
    FINAL_EVALUATION,
    NO_RANK,
    IntentKind,
    Message,
    Outcome,
    Plan,
    Refusal,
    RejectCode,
    RoundKey,
    RoundKind,
    SaveReason,
    ThrottleReason,
    WelcomeStatus,
    transfer_key,
)
from .report_messages import (
    Batch,
    CheckpointResult,
    EpochFnElapsed,
    EvalResult,
    Exiting,
    Heartbeat,
    Intent,
    LrUpdate,
    Metrics,
    Report,
    ResourceSample,
    RoundFailed,
    SessionIdGenerated,
    SnapshotReady,
    SyncAck,
)
from .session_messages import (
    Fenced,
    Hello,
    Reject,
    ResumeClaim,
    Welcome,
)

__all__ = [
    "BULK_KIND",
    "CONTROLS",
    "FINAL_EVALUATION",
    "KINDS",
    "KIND_OF",
    "NO_RANK",
    "REPORTS",
    "REPORT_CLASSES",
    "SESSION",
    "Batch",
    "Beacon",
    "BulkBlock",
    "Checkpoint",
    "CheckpointResult",
    "Contribution",
    "Control",
    "DeclareDead",
    "EpochAggregated",
    "EpochFnElapsed",
    "EvalBroadcast",
    "EvalResult",
    "ExecuteEvalCallback",
    "Exiting",
    "ExtendPartition",
    "Fenced",
    "Heartbeat",
    "Hello",
    "Intent",
    "IntentKind",
    "LrUpdate",
    "Message",
    "Metrics",
    "NewSession",
    "Outcome",
    "Plan",
    "Refusal",
    "Reject",
    "RejectCode",
    "Report",
    "RequestParams",
    "RequestSessionId",
    "RequestState",
    "ResourceSample",
    "ResumeClaim",
    "RoundFailed",
    "RoundKey",
    "RoundKind",
    "RoundResult",
    "SaveConsensusModel",
    "SaveReason",
    "SessionIdGenerated",
    "SessionMessage",
    "SetEpochCallbackRole",
    "SetGlobalStep",
    "Shutdown",
    "ShutdownWithSave",
    "SnapshotReady",
    "StageAdvisory",
    "StartEpoch",
    "SyncAck",
    "SyncNow",
    "Throttle",
    "ThrottleReason",
    "Update",
    "Welcome",
    "WelcomeStatus",
    "transfer_key",
]

SessionMessage = Hello | Welcome | Reject | Fenced

KINDS: dict[int, type] = {
    0x10: Hello, 0x11: Welcome, 0x12: Reject, 0x13: Fenced,
    0x20: RequestParams, 0x21: Update, 0x22: SyncNow, 0x23: StartEpoch, 0x24: ExtendPartition, 0x25: Throttle,
    0x26: SetGlobalStep, 0x27: StageAdvisory, 0x28: Checkpoint, 0x29: SaveConsensusModel, 0x2A: ExecuteEvalCallback,
    0x2B: SetEpochCallbackRole, 0x2C: EpochAggregated, 0x2D: EvalBroadcast, 0x2E: DeclareDead, 0x2F: RequestSessionId,
    0x30: NewSession, 0x31: RequestState, 0x32: ShutdownWithSave, 0x33: Shutdown, 0x34: Beacon,
    0x40: Batch, 0x41: SyncAck, 0x42: SnapshotReady, 0x43: Metrics, 0x44: LrUpdate, 0x45: Heartbeat, 0x46: Exiting,
    0x47: Intent, 0x48: CheckpointResult, 0x49: EvalResult, 0x4A: EpochFnElapsed, 0x4B: SessionIdGenerated,
    0x4C: ResourceSample, 0x4D: RoundFailed,
}  # fmt: skip
"""Kind byte of a frame to message class (section 3); 0x70 is a bulk block and never decoded as a control message."""

KIND_OF: dict[type, int] = {message: kind for kind, message in KINDS.items()}
BULK_KIND = 0x70

CONTROLS: tuple[type, ...] = tuple(m for k, m in KINDS.items() if 0x20 <= k < 0x40)
REPORTS: tuple[type, ...] = tuple(m for k, m in KINDS.items() if 0x40 <= k < 0x70)
REPORT_CLASSES: frozenset[Any] = frozenset(REPORTS)
"""The same, to ask often whether something is one; of `Any`, or a checker would take what it finds for an object."""
SESSION: tuple[type, ...] = (Hello, Welcome, Reject, Fenced)
