"""What the coordinator says to one rank (protocol 3.1): ordered, numbered, stamped.
"""

from __future__ import annotations

import attrs

from .message_types import Message, Outcome, Plan, SaveReason, ThrottleReason
from .values import value

__all__ = [
    "Beacon",
    "Checkpoint",
    "Control",
    "DeclareDead",
    "EpochAggregated",
    "EvalBroadcast",
    "ExecuteEvalCallback",
    "ExtendPartition",
    "NewSession",
    "RequestParams",
    "RequestSessionId",
    "RequestState",
    "SaveConsensusModel",
    "SetEpochCallbackRole",
    "SetGlobalStep",
    "Shutdown",
    "ShutdownWithSave",
    "StageAdvisory",
    "StartEpoch",
    "SyncNow",
    "Throttle",
    "Update",
]


@value(kw_only=True)
class Control(Message):
    """Coordinator to rank. `report_seq` is the number of the last report received, an acknowledgement (N-9)."""

    control_seq: int = 0
    report_seq: int = 0


@value(kw_only=True)
class RequestParams(Control):
    """Ship a copy of parameters and buffers now; an observer ships a header with 0 steps (C-11, W-10)."""

    cycle: int
    attempt: int
    observer: bool


@value(kw_only=True)
class Update(Control):
    """End of the cycle: adopt, subtract the shipped steps, take version, schedule base and plan (C-15, W-12)."""

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
