"""What one rank says to the coordinator (protocol 3.2): one lane, in order, for steps, evidence and results (N-3).
"""

from __future__ import annotations

import attrs

from .message_types import IntentKind, Message, Outcome, Refusal, RoundKind
from .values import value

__all__ = [
    "Batch",
    "CheckpointResult",
    "EpochFnElapsed",
    "EvalResult",
    "Exiting",
    "Heartbeat",
    "Intent",
    "LrUpdate",
    "Metrics",
    "Report",
    "ResourceSample",
    "RoundFailed",
    "SessionIdGenerated",
    "SnapshotReady",
    "SyncAck",
]


@value(kw_only=True)
class Report(Message):
    """Rank to coordinator. `control_seq`: all control messages up to it are handled (section 3)."""

    report_seq: int = 0
    control_seq: int = 0


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
