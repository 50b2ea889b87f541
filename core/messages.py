"""Every message of protocol section 3, as attrs classes.

Three families. `Control` goes from the coordinator to one rank, `Report` from one rank to the coordinator, and the
session messages (`Hello`, `Welcome`, `Reject`, `Fenced`) open a session or tell a stale one what is current. Controls
and reports carry the stamp of N-6 (run id, generation, rank, incarnation) and both lane numbers (N-2, N-3). Offsets
and sizes are in picks, `_ms` fields in milliseconds, `None` is absent and never stands for zero.

`KINDS` maps the kind byte of a frame (N-24) to its class, `KIND_OF` the other way.
"""

from __future__ import annotations

import builtins
from enum import IntEnum

import attrs

from .schema import Schema
from .values import value

NO_RANK = 2**32 - 1
"""The rank number that names nobody."""


class Outcome(IntEnum):
    """What became of a rank's contribution in a cycle."""

    MERGED = 0
    REFUSED = 1
    UNREALIZED = 2
    OBSERVER = 3


class Refusal(IntEnum):
    """Why a contribution was refused (R-4)."""

    SCHEMA = 0
    SHAPE = 1
    DTYPE = 2
    STEPS = 3
    NONFINITE = 4
    DUPLICATE = 5


class ThrottleReason(IntEnum):
    """Why a rank is parked: the averaging barrier (C-11) or the lead limit (G-8)."""

    BARRIER = 0
    LEAD = 1


class RoundKind(IntEnum):
    """What a data round carries (R-1). 8 to 15 are reserved for streaming fragments (R-20)."""

    COUNTS = 0
    PARAMS = 1
    BUFFERS = 2
    STATE = 3


class IntentKind(IntEnum):
    """What a rank may wish for (K-1)."""

    EVAL_NOW = 0
    CHECKPOINT_NOW = 1
    STOP_NOW = 2


class SaveReason(IntEnum):
    """Why a model is saved; an unknown number is read as GRACEFUL."""

    GRACEFUL = 0
    MAX_FAILURE = 1
    SINGLE_SURVIVOR = 2
    ALL_RANKS_LOST = 3
    REDUCE_STALL = 4
    CHECKPOINT = 5
    DIVERGED = 6
    CONSENSUS_MISMATCH = 7

    @classmethod
    def _missing_(cls, number: object) -> SaveReason | None:
        return cls.GRACEFUL if isinstance(number, int) else None


class WelcomeStatus(IntEnum):
    """Where a welcomed rank stands."""

    FORMING = 0
    JOINING = 1
    RESUMED = 2


class RejectCode(IntEnum):
    """Refusals at the door (N-29). Only CLOSING, FULL and BUSY may succeed when tried again."""

    PROTOCOL = 1
    OTHER_RUN = 2
    SCHEMA = 3
    DATASET = 4
    CONFIG = 5
    AVERAGER = 6
    VENDOR = 7
    SEAT = 8
    BYTE_ORDER = 9
    SIZE = 10
    FROZEN = 11
    CLOSING = 12
    FULL = 13
    BUSY = 14


@value(kw_only=True)
class Plan:
    """One contiguous slice of an epoch's order given to one rank; `plan_id` is unique in the run, sizes in picks."""

    plan_id: int
    epoch: int
    offset: int
    size: int


@value(kw_only=True)
class RoundKey:
    """Names a data round: never a position (R-1)."""

    generation: int
    cycle: int
    kind: RoundKind


@value(kw_only=True)
class Message:
    """The stamp every message carries (N-6)."""

    run_id: bytes = b""
    generation: int = 0
    rank: int = 0
    incarnation: int = 0


@value(kw_only=True)
class Control(Message):
    """Coordinator to rank. `report_seq` is the number of the last report received, an acknowledgement (N-9)."""

    control_seq: int = 0
    report_seq: int = 0


@value(kw_only=True)
class Report(Message):
    """Rank to coordinator. `control_seq`: all control messages up to it are handled (section 3)."""

    report_seq: int = 0
    control_seq: int = 0


# --- 3.1 coordinator to rank -----------------------------------------------------------------------------------


@value(kw_only=True)
class RequestParams(Control):
    """Ship a copy of parameters and buffers now; an observer ships a header with 0 steps (C-11, W-10)."""

    cycle: int
    attempt: int
    observer: bool


@value(kw_only=True)
class Update(Control):
    """End of the cycle: adopt, subtract the shipped steps, take version and schedule base, take the plan (C-15, W-12)."""

    cycle: int
    attempt: int
    version: int
    global_step: int
    outcome: Outcome
    merged_steps: int
    next_plan: Plan | None = None


@value(kw_only=True)
class SyncNow(Control):
    """Collective flavour: run the weighted collective now (C-19, W-14)."""

    cycle: int
    attempt: int
    session_id: int
    version: int
    global_step: int


@value(kw_only=True)
class StartEpoch(Control):
    """Train this slice. `cycle` is the last finished cycle when it was made (D-8, W-15)."""

    cycle: int
    plan: Plan


@value(kw_only=True)
class ExtendPartition(Control):
    """Append the plan to the running plan `extends`; a waiting rank starts it instead (D-22, W-16)."""

    cycle: int
    extends: int
    plan: Plan


@value(kw_only=True)
class Throttle(Control):
    """Stop stepping until cycle `cycle` ends (C-11, G-8, W-17)."""

    cycle: int
    reason: ThrottleReason


@value(kw_only=True)
class SetGlobalStep(Control):
    """Schedule base; repeats what Update said; idempotent and monotone (C-15, W-13)."""

    version: int
    global_step: int


@value(kw_only=True)
class StageAdvisory(Control):
    """Prefetch hint: `segments` are (epoch, ((offset, size), ...)) in picks; gates nothing (D-24)."""

    counts: tuple[int, ...]
    segments: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


@value(kw_only=True)
class Checkpoint(Control):
    """The target runs the user's checkpoint callback, right after adopting `cycle` or now if absent (K-3)."""

    decision_id: int
    version: int
    target_rank: int
    cycle: int | None = None
    stem: str | None = None


@value(kw_only=True)
class SaveConsensusModel(Control):
    """The target writes the consensus right after adopting `cycle` (K-3, K-7)."""

    decision_id: int
    version: int
    target_rank: int
    cycle: int
    stem: str | None = None


@value(kw_only=True)
class ExecuteEvalCallback(Control):
    """The target evaluates; `schedule_id` 2**64-1 is the final evaluation (K-14)."""

    schedule_id: int
    epoch: int
    target_rank: int
    version: int
    on_consensus: bool
    cycle: int | None = None


@value(kw_only=True)
class SetEpochCallbackRole(Control):
    """Who fires the per-epoch user callback (M-33)."""

    holder: int


@value(kw_only=True)
class EpochAggregated(Control):
    """Cohort view of a closed epoch (K-20)."""

    epoch: int
    metrics: dict[str, float | None] = attrs.field(hash=False)


@value(kw_only=True)
class EvalBroadcast(Control):
    """Cohort-wide copy of an evaluation result (K-16)."""

    schedule_id: int
    epoch: int
    version: int
    metric: float | None = None


@value(kw_only=True)
class DeclareDead(Control):
    """A peer's incarnation ended (M-18)."""

    dead_rank: int
    dead_incarnation: int


@value(kw_only=True)
class RequestSessionId(Control):
    """Make a communicator id and report it (M-30)."""

    session_id: int


@value(kw_only=True)
class NewSession(Control):
    """Rebuild the communicator, then take the state, then retry the cycle (M-31)."""

    session_id: int
    uid: bytes
    new_rank: int
    new_world_size: int
    members: tuple[tuple[int, int], ...]
    state_from: int
    attempt: int
    cycle: int | None = None


@value(kw_only=True)
class RequestState(Control):
    """Donor: send the static part of the state to the joiner (M-24)."""

    transfer_id: int
    joiner_rank: int
    joiner_incarnation: int


@value(kw_only=True)
class ShutdownWithSave(Control):
    """Persist and stop; `saver` writes the model, every rank its optimizer file (M-51, K-11)."""

    decision_id: int
    reason: SaveReason
    saver: int
    stem: str | None = None


@value(kw_only=True)
class Shutdown(Control):
    """Stop (M-53)."""

    reason: SaveReason


@value(kw_only=True)
class Beacon(Control):
    """Liveness and acknowledgement; carries no decision (M-2)."""

    run_phase: int
    cycle_phase: int
    cycle: int


# --- 3.2 rank to coordinator -----------------------------------------------------------------------------------


@value(kw_only=True)
class Batch(Report):
    """One optimizer step; `cycle` is the last adopted one. Never gate evidence of a cycle (C-8, C-20)."""

    cycle: int
    plan_id: int
    step_count: int
    samples: int
    batch_ms: float
    data_ms: float
    batch_loss: float | None = None
    param_norm: float | None = None


@value(kw_only=True)
class SyncAck(Report):
    """The rank holds the consensus of this cycle. The only evidence that finishes a cycle (C-6, C-12)."""

    cycle: int
    attempt: int
    step_count: int
    shipped_steps: int
    total_steps: int
    outcome: Outcome
    state_complete: bool
    refusal: Refusal | None = None
    divergence: float | None = None
    pre_norm: float | None = None
    post_norm: float | None = None
    digest: bytes | None = None


@value(kw_only=True)
class SnapshotReady(Report):
    """The copy is taken: which steps are shipped (C-7)."""

    cycle: int
    attempt: int
    shipped_steps: int
    copy_ms: float | None = None


@value(kw_only=True)
class Metrics(Report):
    """A chunk is finished, and its metrics; `scalars` are (sum, count) pairs (D-9, K-20)."""

    cycle: int
    plan_ids: tuple[int, ...]
    epoch: int
    batches: int
    samples: int
    epoch_ms: float
    share_complete_ms: float
    compute_only_ms: float
    data_starve_ms: float
    avg_loss: float | None = None
    scalars: dict[str, tuple[float, int]] = attrs.field(factory=dict, hash=False)
    resources: dict[str, float] | None = attrs.field(default=None, hash=False)


@value(kw_only=True)
class LrUpdate(Report):
    """The learning rate changed; `position` = global_step + steps_since_avg used (B-43)."""

    lr: float
    position: int


@value(kw_only=True)
class Heartbeat(Report):
    """Liveness only (M-2)."""

    step_count: int
    state: str


@value(kw_only=True)
class Exiting(Report):
    """Clean departure, sent only on a clean end (M-8, W-24)."""

    reason: str


@value(kw_only=True)
class Intent(Report):
    """A wish, folded into the next coherent decision, once per id (K-1)."""

    intent_id: int
    kind: IntentKind


@value(kw_only=True)
class CheckpointResult(Report):
    """Outcome of a checkpoint callback or of a save (K-9, M-52)."""

    decision_id: int
    version: int
    elapsed_ms: float
    error: str | None = None


@value(kw_only=True)
class EvalResult(Report):
    """Outcome of an evaluation (K-16)."""

    schedule_id: int
    epoch: int
    version: int
    elapsed_ms: float
    metric: float | None = None
    count: int | None = None
    error: str | None = None


@value(kw_only=True)
class EpochFnElapsed(Report):
    """Time spent in the epoch callback (K-18, B-14)."""

    epoch: int
    elapsed_ms: float


@value(kw_only=True)
class SessionIdGenerated(Report):
    """The communicator id asked for (M-31)."""

    session_id: int
    uid: bytes


@value(kw_only=True)
class ResourceSample(Report):
    """Forwarded; decides nothing (O-5)."""

    sample: dict[str, float] = attrs.field(hash=False)


@value(kw_only=True)
class RoundFailed(Report):
    """The data plane failed at this rank (R-18)."""

    cycle: int
    attempt: int
    round: RoundKind
    cause: str
    retryable: bool


# --- 3.3 session messages --------------------------------------------------------------------------------------


@value(kw_only=True)
class ResumeClaim:
    """What a rank that lost its link claims to hold (M-42)."""

    generation: int
    incarnation: int
    version: int
    cycle: int
    snapshot_cycle: int
    shipped: int
    step_count: int
    control_seq: int
    report_seq: int


@value(kw_only=True)
class Hello:
    """A rank knocks. `wishes` are the configuration values this rank's script states (V-6): the first rank of a
    forming run may set what the coordinator left open, a later one that differs is refused with both values."""

    protocol: int
    package: str
    host: str
    devices: tuple[str, ...]
    runtime: str
    byte_order: int
    schema: Schema
    schema_hash: bytes
    dataset_signature: bytes
    config_digest: bytes
    averagers: tuple[str, ...]
    wanted_rank: int | None = None
    resume: ResumeClaim | None = None
    wishes: dict[str, str | int | float | bool | None] = attrs.field(factory=dict, hash=False)


@value(kw_only=True)
class Welcome:
    """The coordinator admits; `config` holds every value the rank must use (V-6)."""

    rank: int
    incarnation: int
    generation: int
    status: WelcomeStatus
    control_seq: int
    report_seq: int
    config: dict[str, str | int | float | bool | None] = attrs.field(hash=False)


@value(kw_only=True)
class Reject:
    """The coordinator does not admit; `text` names both values (M-5, N-29)."""

    code: int
    text: str
    retry: bool = False
    after_s: float = 0.0


@value(kw_only=True)
class Fenced:
    """What you sent is stale; this is what is current (N-6)."""

    generation: int
    incarnation: int
    cycle: int
    why: str


# --- data plane (N-26, R-4) ------------------------------------------------------------------------------------


@value(kw_only=True)
class BulkBlock:
    """Header of a bulk frame; `bytes` of raw little-endian data follow it in the same frame (N-26).

    `entry` is the index of the first schema entry the data belongs to, `offset` the byte offset in the flat layout
    of the round. A block of kind COUNTS carries an encoded `Contribution` (upward) or `RoundResult` (downward)."""

    key: RoundKey
    attempt: int
    rank: int
    incarnation: int
    entry: int
    offset: int
    bytes: int


@value(kw_only=True)
class Contribution(Message):
    """Header of a contribution (R-4); `bytes` is the length of the body that follows, 0 with 0 steps (R-9)."""

    cycle: int
    attempt: int
    schema_hash: builtins.bytes
    steps: int
    finite: bool
    bytes: int


@value(kw_only=True)
class RoundResult:
    """What the averager tells a receiver before the consensus: its outcome and the steps merged in total."""

    outcome: Outcome
    total_steps: int
    bytes: int
    refusal: Refusal | None = None


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
SESSION: tuple[type, ...] = (Hello, Welcome, Reject, Fenced)
