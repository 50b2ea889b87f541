"""What comes out of the machines (protocol 3.4): orders to a driver, an averager, a training process.

A driver performs them in list order, after the journal records of the same batch (`Ready`). None of them carries a
tensor: they name ranks, rounds and buffers.
"""

from __future__ import annotations

from typing import Any

import attrs

from .messages import Control, Fenced, Outcome, Plan, Reject, Report, RoundKey, Welcome
from .values import value


@value
class Ready:
    """One batch: append `records` first, then perform `effects` in order (architecture section 3)."""

    records: tuple[Any, ...]
    effects: tuple[Any, ...]


# --- coordinator -----------------------------------------------------------------------------------------------


@value
class Admit:
    """Give the connection `link` the seat (rank, incarnation) and send it the welcome, then `resend`: what a rank that
    resumes lacks, in order (M-42). A connection that had the seat before is closed without a word about it."""

    link: int
    rank: int
    incarnation: int
    welcome: Welcome
    resend: tuple[Control, ...] = ()


@value
class Refuse:
    """Send the reject to the connection `link`, then close it."""

    link: int
    reject: Reject


@value
class Send:
    """Send a message to the incarnation in its stamp; on failure feed back `SendFailed(token)` (N-10)."""

    message: Control

    @property
    def rank(self) -> int:
        """Where it goes."""
        return self.message.rank

    @property
    def incarnation(self) -> int:
        """Which life of that rank."""
        return self.message.incarnation

    @property
    def token(self) -> tuple[int, int, int]:
        """Names this message in the whole run (N-10)."""
        message = self.message
        return message.rank, message.incarnation, message.control_seq


@value
class SendFenced:
    """Tell a stale session what is current (N-6); never retained, never retried."""

    rank: int
    incarnation: int
    fenced: Fenced


@value
class CloseLink:
    """Close both lanes of an incarnation; nothing more is sent to it."""

    rank: int
    incarnation: int
    why: str


@value
class OpenRound:
    """Open the data round of an attempt. `members` are (rank, incarnation, step limit), ascending (R-4); `observers`
    are (rank, incarnation) that only receive. For kind STATE the only member is the source (M-6)."""

    key: RoundKey
    attempt: int
    members: tuple[tuple[int, int, int], ...]
    observers: tuple[tuple[int, int], ...]


@value
class AdmitContribution:
    """The contribution of `rank` may count: its report lane says the same steps (C-7, R-11)."""

    key: RoundKey
    attempt: int
    rank: int
    steps: int


@value
class RemoveFromRound:
    """`rank` is gone: wait for it no longer, drop what it has only begun (R-2)."""

    key: RoundKey
    rank: int


@value
class AbortRound:
    """The round will not be finished."""

    key: RoundKey


@value
class CloseRound:
    """The cycle is over; buffers of the round may be reused."""

    key: RoundKey


@value
class SaveConsensus:
    """Write the averager's last consensus (K-7, M-52)."""

    decision_id: int
    version: int
    stem: str


@value
class WriteMeta:
    """Write the meta record of a bundle (K-6)."""

    record: dict[str, Any] = attrs.field(hash=False)


@value
class Emit:
    """A timeline event (O-1): stable name, facts of this event only."""

    name: str
    facts: dict[str, Any] = attrs.field(factory=dict, hash=False)


@value
class Alert:
    """Something a person should know (O-2). `critical` as the table there says. `again`: a coordinator that was started
    anew says it once more, since nobody knows whether the dead one came to say it (M-44)."""

    kind: str
    path: str
    text: str
    critical: bool = False
    again: bool = False


@value
class Invoke:
    """Call a hook of the embedder."""

    callback: str
    arguments: tuple[Any, ...]


@value
class Finish:
    """The run is over; nothing follows. `status` is ok, saved, failed or stalled; `text` says why."""

    status: str
    text: str


# --- worker: orders to the training process --------------------------------------------------------------------


@value
class TakeSnapshot:
    """Copy parameters and floating buffers now, deep (W-26), then say `SnapshotTaken`. `header_only` sends no tensor
    (an observer, or nothing stepped); `state` ships everything (cycle 0, source). `fresh` is false for the same copy
    under a new attempt (W-10). A source that is to `put_back` stands on a consensus already, in a run that forms once
    more: it first makes that its parameters again, and loads no initial state (M-45, R-10). With `check` nothing is
    sent: the copy of the whole state is what this rank stages itself, `ConsensusStaged` with its digest follows (M-6).
    """

    cycle: int
    attempt: int
    generation: int
    shipped: int
    header_only: bool
    state: bool
    fresh: bool
    put_back: bool = False
    check: bool = False


@value
class SendState:
    """Copy the frozen and local entries now and send them to a joiner (M-24): a transfer, nothing of a cycle. If the
    joiner is no rank at all, the averager asks: send it the consensus that was adopted last (M-44)."""

    transfer_id: int
    generation: int
    joiner_rank: int
    joiner_incarnation: int


@value
class Adopt:
    """Take over the staged consensus (R-17): `how` is overwrite, blend, or keep (unrealized)."""

    cycle: int
    how: str
    reset_optimizer: bool
    outcome: Outcome


@value
class MakeSessionId:
    """Make the id of a communicator, then say `SessionIdMade` (M-30): opaque bytes that let the members find each
    other, such as the address of a store. Served whatever the training process does (W-20)."""

    session_id: int


@value
class BuildSession:
    """Leave the communicator of before, if there is one, and enter this one (M-31): its id, the own place in it, its
    size, and its members as (rank, incarnation), ascending. It is the first order of a collective, because all members
    have to take part; what fails here is said with `CollectiveFailed`."""

    session_id: int
    uid: bytes
    new_rank: int
    new_world_size: int
    members: tuple[tuple[int, int], ...]


@value
class ShareState:
    """All members of the session take part: `source` gives its full state (R-20), who `adopts` takes it over, for the
    others it passes by. It follows `BuildSession` (M-6, M-31). A source that is to `put_back` first makes the consensus
    that it adopted last its parameters again, if it ever did: the steps since then count nowhere (M-45, R-10)."""

    session_id: int
    source: int
    adopts: bool
    put_back: bool = False


@value
class RunCollective:
    """Average in place with all members of the session, as R-13 says, then say `CollectiveDone` or `CollectiveFailed`.

    `steps` is the own contribution, 0 of who only observes. Parameters and buffers are copied to scratch first; a call
    that fails puts them back before it says so, so that it can be repeated (R-15). `restore` says that an earlier call
    of this cycle succeeded here and not everywhere: what it changed, outer state included, is put back from its scratch
    before this one begins (W-14). Scratch is kept until the next cycle's call. With `check`, whoever carries this out
    says the digest of the whole state of this rank with `CollectiveDone`: nobody was sent any (M-6)."""

    cycle: int
    attempt: int
    session_id: int
    steps: int
    observer: bool
    restore: bool
    check: bool = False


@value
class AbortCollective:
    """Free whoever is inside, or about to enter, a call of this session; it ends with `CollectiveFailed` (R-15). It is
    carried out at once, beside the training process, and before device memory is touched (W-20, W-24)."""

    session_id: int


@value
class Train:
    """Train this plan from its start."""

    plan: Plan


@value
class Extend:
    """Append this plan to the one in hand (W-16)."""

    plan: Plan


@value
class Park:
    """Take no step until `Unpark` (W-17)."""

    cycle: int


@value
class Unpark:
    """Steps may be taken again."""


@value
class AbandonPlan:
    """Drop the plan in hand and the retained copies (W-21, W-19)."""


@value
class Stage:
    """What may be trained next, soonest first, as epoch and (offset, size) in picks: for a prefetcher, which may ignore
    it; a newer hint takes the place of an older one (D-24, W-25)."""

    segments: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


@value
class Evaluate:
    """Run the evaluation function, on the retained consensus if `on_consensus`, then say `ActionDone("evaluate", ...)`
    with the schedule id as its decision id (K-14)."""

    schedule_id: int
    epoch: int
    version: int
    on_consensus: bool


@value
class Save:
    """Write files (K-11): the optimizer file if `optimizer`, the model if `model`; then say `ActionDone("save")`. A
    bundle of the consensus has no optimizer, no step waits for it, and its end is `ActionDone("consensus")` (K-7)."""

    decision_id: int
    version: int
    stem: str | None
    model: bool
    optimizer: bool = True


@value
class FireCallback:
    """Call a callback of the user: `name` is epoch or checkpoint; then say `ActionDone(name, ...)`. The decision id of
    an epoch callback is its epoch. `stem` is where the bundle of a checkpoint goes, if there is one."""

    name: str
    decision_id: int
    version: int
    epoch: int
    stem: str | None = None


@value
class Publish:
    """Something the user may want to see: an aggregated epoch, an evaluation, an alert."""

    name: str
    facts: dict[str, Any] = attrs.field(factory=dict, hash=False)


@value
class Reporting:
    """Send this report on the report lane (called Report in protocol 3.4; renamed: `Report` is the message base)."""

    report: Report


@value
class Dial:
    """Look for the coordinator after `after_s` seconds: a Hello with the rank's seat and its claim (M-42), which is
    made up at that moment, by `Worker.claim`. The answer comes back as `Received`, a try that failed as
    `LinkLost`."""

    after_s: float


@value
class Stop:
    """The worker is over: leave the loop. `status` is ok, late, saved, unformed, leave, failed,
    rejected or coordinator_lost."""

    status: str
    text: str
