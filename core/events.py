"""What goes into the machines (protocol 3.4). Frozen values; time is never part of one: it is an argument of `handle`.

`Tick` carries nothing: the machine compares `now` with its own deadlines, so a spurious tick is a no-op.
"""

from __future__ import annotations

from enum import IntEnum

import attrs

from .messages import Control, Fenced, Hello, IntentKind, Outcome, Refusal, Reject, Report, RoundKey, Welcome
from .values import value


@value
class Tick:
    """Time has passed; look at the deadlines."""


@value
class Received:
    """A message arrived on a lane, whole and authenticated."""

    message: Report | Control | Welcome | Reject | Fenced


# --- coordinator -----------------------------------------------------------------------------------------------


@value
class HelloReceived:
    """A connection that has no rank yet knocks; `link` is the driver's number of that connection."""

    link: int
    hello: Hello


@value
class LinkLost:
    """The control link of an incarnation ended; `cause` is for people (M-17). At a worker rank and incarnation are
    its own. `link` is the driver's number of the connection: one that has been replaced since says nothing (M-42)."""

    rank: int = 0
    incarnation: int = 0
    cause: str = ""
    link: int | None = None


@value
class SendFailed:
    """A `Send` did not happen (N-10); `token` is (rank, incarnation, control_seq), `link` as in `LinkLost`."""

    token: tuple[int, int, int]
    link: int | None = None


@value
class ProcessExited:
    """A launcher saw the process of an incarnation end (M-17)."""

    rank: int
    incarnation: int
    exit_code: int


@value
class RoundProgress:
    """Bytes of a rank's contribution arrived; `complete` when it is all there (R-11)."""

    key: RoundKey
    rank: int
    bytes: int
    complete: bool


@value
class RoundReduced:
    """The averager has the consensus; no byte of it has left yet (R-2)."""

    key: RoundKey
    attempt: int
    accepted: tuple[int, ...]
    refused: tuple[tuple[int, Refusal], ...]
    realized: bool
    digest: bytes | None = None


@value
class RoundAborted:
    """The data round of this attempt failed and can be repeated (R-18)."""

    key: RoundKey
    attempt: int
    cause: str


@value
class ConsensusSaved:
    """The averager has written the consensus, or failed to (K-7)."""

    decision_id: int
    version: int
    error: str | None = None


@value
class MetaWritten:
    """The meta record of a bundle is in place, or could not be written (K-6)."""

    decision_id: int
    version: int
    error: str | None = None


class Operator(IntEnum):
    """What an operator may ask for."""

    START = 0
    STOP = 1
    CHECKPOINT = 2
    EVAL = 3


@value
class OperatorRequest:
    """A person, or the command line for them, asks for something (M-54, M-4)."""

    kind: Operator


@value
class CallbackFailed:
    """A hook of the embedder raised; reported once, changes nothing else (N-12)."""

    name: str
    text: str


# --- worker ----------------------------------------------------------------------------------------------------


@value
class LinkUp:
    """The control link is up again. Worker and coordinator events share the class; a worker's own numbers are 0."""

    rank: int = 0
    incarnation: int = 0


@value
class LaneClosed:
    """The driver closed the control lane on purpose: it means stop, in every state (W-3)."""


@value(kw_only=True)
class StepDone:
    """The training process finished one optimizer step of `samples` picks (W-2). `last` says that a `ChunkDone`
    follows at once, so that the plan is ended before the control lane is drained. `part` is the index of the plan
    part the step belongs to: 0 for the plan itself, 1 for its first extension (W-16)."""

    samples: int
    part: int = 0
    batch_ms: float
    data_ms: float
    loss: float | None = None
    lr: float | None = None
    param_norm: float | None = None
    last: bool = False


@value(kw_only=True)
class ChunkDone:
    """The plan in hand is trained to its end (W-4, W-16). `scalars` are what the script counts, as (sum, count) by
    name, `resources` what the machine was busy with; both are optional (K-20)."""

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


@value
class DrainPoint:
    """The training process is between two steps and can take orders (W-3): while it waits for data, a plan or an
    average."""


@value
class SnapshotTaken:
    """The copy asked for by `TakeSnapshot` exists (W-10); `copy_ms` is the time the copy took, `generation` that of the
    order, None for the current one."""

    cycle: int
    attempt: int
    copy_ms: float
    generation: int | None = None


@value(kw_only=True)
class ConsensusStaged:
    """The consensus of a cycle lies beside the live parameters, whole (W-11). `divergence`, `pre_norm` and
    `post_norm` are the triple of R-16, `generation` is as in `SnapshotTaken`."""

    cycle: int
    attempt: int
    outcome: Outcome
    total_steps: int
    refusal: Refusal | None = None
    divergence: float | None = None
    pre_norm: float | None = None
    post_norm: float | None = None
    digest: bytes | None = None
    state_complete: bool = True
    generation: int | None = None


@value
class SessionIdMade:
    """The id that `MakeSessionId` asked for exists (M-30)."""

    session_id: int
    uid: bytes


@value(kw_only=True)
class CollectiveDone:
    """The call of this cycle and attempt succeeded here: the average is in the live parameters (R-13).

    `total_steps` is the third total of the call, the steps of all whose values were finite; 0 says that all skipped it
    and nothing has changed. `refusal` says that the own values were not, so that the own steps are not in it.
    `divergence`, `pre_norm` and `post_norm` are the triple of R-16. `state_complete`: who observed holds the parts of
    the state too that no average carries (M-25). `session_id` is that of the order, or None where no rank ever loses
    the coordinator: attempts count from 0 again after a restart (M-43). `digest` names the whole state of this rank,
    where the order asked to check it (M-6)."""

    cycle: int
    attempt: int
    total_steps: int
    refusal: Refusal | None = None
    divergence: float | None = None
    pre_norm: float | None = None
    post_norm: float | None = None
    state_complete: bool = True
    session_id: int | None = None
    digest: bytes | None = None


@value
class CollectiveFailed:
    """The call of this cycle and attempt ended without an average, or was aborted; parameters and buffers are what they
    were before it (R-15). Not `retryable`: this rank cannot average at all (R-18). `session_id` as above."""

    cycle: int
    attempt: int
    cause: str
    retryable: bool = True
    session_id: int | None = None


@value
class RoundBroken:
    """The averager client of this rank could not finish a round (R-18)."""

    cycle: int
    attempt: int
    cause: str
    retryable: bool


@value
class ActionDone:
    """Something the training process was ordered to do is done: `kind` names the order, `decision_id` its id."""

    kind: str
    decision_id: int
    version: int
    elapsed_ms: float
    error: str | None = None
    metric: float | None = None
    count: int | None = None


@value
class TrainingFailed:
    """The training process raised; the worker ends without `Exiting`, which is the death report (W-24)."""

    text: str


@value
class LeaveRequested:
    """SIGTERM or a preemption notice: leave politely (W-28)."""


@value
class Wish:
    """The script asks for an evaluation, a checkpoint or a stop; it travels as an `Intent` (K-1)."""

    kind: IntentKind


CoordinatorEvent = (
    Tick | Received | HelloReceived | LinkUp | LinkLost | SendFailed | ProcessExited | RoundProgress | RoundReduced
    | RoundAborted | ConsensusSaved | MetaWritten | OperatorRequest | CallbackFailed
)  # fmt: skip
WorkerEvent = (
    Tick | Received | LinkUp | LinkLost | LaneClosed | StepDone | ChunkDone | DrainPoint | SnapshotTaken
    | ConsensusStaged | RoundBroken | SessionIdMade | CollectiveDone | CollectiveFailed | ActionDone | TrainingFailed
    | LeaveRequested | Wish
)  # fmt: skip
