"""The escalation ladder: what is done about a rank that owes something and shows no progress (protocol M-10 to M-16).

    Suspect (t > L) -> Nudge (t > 2L, 3L, 4L) -> Excluded (t > 3L, only if switched on) -> the ceiling (gates.py)

Each stage of a cycle has a clock of its own, and each rank is judged by its own past: `L` is learned from the last
durations of that very stage. A rank that is merely slow within its habits is never suspected (I35), and a heartbeat
moves no clock, because a process whose training hangs still sends it (I33). Below the ceiling, time alone says
something, asks again, or takes a rank out of the gates; it ends nobody (I31). A pending cycle has no deadline: leaving
out who is merely slow would let the ranks drift apart (C-9).

- `snapshot`: from the request to SnapshotReady. The one batch a rank still finishes is evidence, once.
- `upload`: until its contribution is complete. Moving bytes are evidence. What comes then is the averager's debt.
- `ack`: from RoundReduced to SyncAck.
- `collective`: from SyncNow to SyncAck, where ranks average in place; all of them owe as long as one is missing.
- `step`: between two steps, from the moment on in which another voter waits for this rank.

The clocks of a rank stand still while it evaluates or is in the checkpoint or epoch callback, for the role limit at
most: that is time spent for all (M-11).

An excluded rank lives on as Lagging: without a vote, without work, its unmerged steps given back. Once its training
thread shows itself, it observes the next cycle like a joiner, and is a voter again (M-14, M-25).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import attrs

from .detector import Learned, judged
from .effects import Emit
from .phases import IDLE, PENDING, UNDER_WAY, PeerPhase
from .values import state

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .peer import Peer

__all__ = [
    "EXCLUDE_AT", "FIRST_NUDGE", "Climb", "Stage", "judge", "learned", "next_due", "refresh", "rungs", "step_clock",
    "waiting_steps",
]  # fmt: skip

FIRST_NUDGE, EXCLUDE_AT = 2, 3
"""Multiples of the deadline after which a rank is asked again, and excluded (M-13, M-14)."""


class Stage(IntEnum):
    """What a rank owes (M-10)."""

    SNAPSHOT = 0
    UPLOAD = 1
    ACK = 2
    STEP = 3
    COLLECTIVE = 4


STEP = Stage.STEP
"""Asked for about every rank; see `phases.py`."""


@state
class Climb:
    """Where one rank stands: the stage it owes in the pending cycle, since when, and what was said about it.

    `began_at` is the stage's start, for people (O-4); of its clock, which stands still during a duty, `entered_at` is
    the start and `evidence_at` the later of that and the last evidence. `durations` are the last ones of each stage in
    seconds, `suspected` the stages of this cycle that were reported, `nudges` those of the current stage. `uploaded`:
    its contribution was complete before it said that its copy is taken.
    """

    history: int
    stage: Stage | None = None
    began_at: float = 0.0
    entered_at: float = 0.0
    evidence_at: float = 0.0
    last_batch_counted: bool = False
    suspected: tuple[Stage, ...] = ()
    nudges: int = 0
    uploaded: bool = False
    durations: tuple[deque[float], ...] = attrs.field(factory=lambda: tuple(deque() for _ in Stage))

    def enter(self, stage: Stage | None, now: float) -> None:
        """The next stage begins; None when the rank owes nothing."""
        self.stage, self.nudges, self.last_batch_counted, self.uploaded = stage, 0, False, False
        self.began_at = self.entered_at = self.evidence_at = now

    def complete(self, stage: Stage, then: Stage | None, now: float) -> None:
        """A stage is over: what it took is remembered. One that was left already is not. The last block of an upload
        may overtake the report of its copy, which goes over another connection: both stages end with that one then."""
        if self.stage == stage:
            self.remember(stage, now - self.entered_at)
            self.enter(None if then == Stage.UPLOAD and self.uploaded else then, now)
        elif (self.stage, stage) == (Stage.SNAPSHOT, Stage.UPLOAD):
            self.uploaded = True

    def remember(self, stage: Stage, seconds: float) -> None:
        """What a stage took; the oldest is forgotten. Kept by hand: a bound inside the queue is lost in a snapshot."""
        known = self.durations[stage]
        known.append(seconds)
        if len(known) > self.history:
            known.popleft()

    def excuse(self, since: float, now: float) -> None:
        """M-11: between these instants the rank had a duty; its clocks go on from where they stood."""
        self.entered_at += now - max(since, self.entered_at)
        self.evidence_at += now - max(since, self.evidence_at)

    def stepped(self, now: float) -> None:
        """A batch while the copy is owed: the one it was in at the request counts, more of them do not (M-10)."""
        if self.stage == Stage.SNAPSHOT and not self.last_batch_counted:
            self.last_batch_counted, self.evidence_at = True, now


def learned(co: Coordinator, peer: Peer, stage: Stage) -> Learned:
    """M-11: what the failure detector says from the last durations; a first step has a deadline of its own."""
    config = co.config
    if stage is STEP and peer.total_steps == 0:
        return Learned(config.scaled(config.first_step_s), 0)
    limits = config.step_limits if stage is STEP else config.cycle_limits
    return judged(co.policies.detector, tuple(peer.climb.durations[stage]), limits)


def _least(co: Coordinator) -> float:
    """No deadline is shorter than this, so nothing has to be computed before it has passed."""
    config = co.config
    return min(config.scaled(config.suspect_floor_s), config.scaled(config.suspect_initial_s),
               config.scaled(config.first_step_s), config.reduce_ceiling / 2, config.window_ceiling / 2)  # fmt: skip


# --- who is waited for -----------------------------------------------------------------------------------------------


def waiting_steps(co: Coordinator) -> list[Peer]:
    """Voters below quota while another voter waits for them (M-16); nobody while all of them train."""
    owing = [peer for peer in map(co.peers.__getitem__, co.voters) if not peer.satisfied]
    return owing if len(owing) < len(co.voters) else []


def _owing(co: Coordinator) -> list[tuple[Peer, Stage, float]]:
    """Who owes what, and since when it shows nothing."""
    cycle = co.cycle
    if co.run.phase is not UNDER_WAY:
        return []
    if cycle.phase is PENDING:
        debtors = _judged(co, map(co.peers.__getitem__, cycle.debtors()))
        return [(p, stage, p.climb.evidence_at) for p in debtors if (stage := p.climb.stage) is not None]
    if cycle.phase is IDLE:
        return [(peer, STEP, step_clock(co, peer)) for peer in _judged(co, waiting_steps(co))]
    return []


def step_clock(co: Coordinator, peer: Peer) -> float:
    """From when on a rank is waited for to take its next step (M-10): not before somebody else has done its part."""
    begun = co.cycle.idle_since if co.cycle.waiting_since is None else max(co.cycle.idle_since, co.cycle.waiting_since)
    return max(begun, peer.last_progress, peer.climb.evidence_at)


def rungs(co: Coordinator, peer: Peer, stage: Stage) -> list[int]:
    """What is still to be done about a stage, in multiples of its deadline (M-12 to M-14)."""
    steps = [1] if stage not in peer.climb.suspected else []
    if stage != STEP and peer.climb.nudges < co.config.max_nudges:
        steps.append(FIRST_NUDGE + peer.climb.nudges)
    if co.config.laggards == "exclude":
        steps.append(EXCLUDE_AT)
    return steps


def _judged(co: Coordinator, peers: Iterable[Peer]) -> list[Peer]:
    """Those that are neither busy with a duty (M-11) nor without a link, for which they have a window (M-42)."""
    busy = co.actions.busy()
    return [peer for peer in peers if peer.detached_at is None and peer.rank not in busy]


# --- the steps -------------------------------------------------------------------------------------------------------


def judge(co: Coordinator) -> None:
    """Step 8 of the pass, below the ceilings (C-3)."""
    least = _least(co)
    for peer, stage, since in _owing(co):
        if co.now > since + least:
            deadline = learned(co, peer, stage)
            _suspect(co, peer, stage, since, deadline)
            if stage != STEP:
                _nudge(co, peer, stage, since, deadline)
            if co.now > since + EXCLUDE_AT * deadline.seconds and _may_exclude(co, peer):
                _exclude(co, peer, stage, since, deadline)


def next_due(co: Coordinator) -> float:
    """When the next step may fall due; each is exceeded strictly."""
    least, owing = _least(co), _owing(co)
    earliest = min([since for _, _, since in owing], default=math.inf) + least
    if co.now <= earliest:  # as a rule nobody is late
        return math.nextafter(earliest, math.inf)
    dues = [math.inf, *[since + least for _, _, since in owing if co.now <= since + least]]
    for peer, stage, since in [one for one in owing if co.now > one[2] + least]:
        length = learned(co, peer, stage).seconds
        dues += [due for step in rungs(co, peer, stage) if (due := since + step * length) >= co.now]
    return math.nextafter(min(dues), math.inf)


def refresh(co: Coordinator) -> None:
    """M-9: the coordinator itself was away; every clock starts anew."""
    for rank in co.alive:
        climb = co.peers[rank].climb
        climb.entered_at = climb.evidence_at = co.now  # or what it learns would count the absence as the rank's habit


def _facts(co: Coordinator, peer: Peer, stage: Stage, since: float, deadline: Learned) -> dict[str, Any]:
    return {
        "rank": peer.rank, "cycle": co.cycle.number, "stage": stage.name.lower(), "waited": co.now - since,
        "deadline": deadline.seconds, "median": deadline.median, "deviation": deadline.deviation,
        "count": deadline.count,
    }  # fmt: skip


def _suspect(co: Coordinator, peer: Peer, stage: Stage, since: float, deadline: Learned) -> None:
    """M-12: said once per rank, cycle and stage; it changes nothing else."""
    if co.now > since + deadline.seconds and stage not in peer.climb.suspected:
        peer.climb.suspected = (*peer.climb.suspected, stage)
        co.emit(Emit("Suspect", _facts(co, peer, stage, since, deadline)))


def _nudge(co: Coordinator, peer: Peer, stage: Stage, since: float, deadline: Learned) -> None:
    """M-13: the very request again, which a rank answers with what it said before (W-10)."""
    climb = peer.climb
    if climb.nudges < co.config.max_nudges and co.now > since + (FIRST_NUDGE + climb.nudges) * deadline.seconds:
        climb.nudges += 1
        co.emit(Emit("Nudge", {**_facts(co, peer, stage, since, deadline), "nudge": climb.nudges}))
        co.cycle.ask((peer.rank,))


def _may_exclude(co: Coordinator, peer: Peer) -> bool:
    """M-14: a voter whose contribution is not in the consensus, while another one has moved."""
    if co.config.laggards != "exclude" or peer.phase != PeerPhase.VOTER:
        return False
    reduced = co.cycle.reduced if co.cycle.pending else None
    accepted = () if reduced is None else reduced.accepted
    if peer.rank in accepted:
        return False
    others = [rank for rank in co.voters if rank != peer.rank]
    # Who has gone since its contribution was accepted is in the consensus all the same; but somebody has to go on.
    return bool(others) and any([co.peers[r].steps for r in others] + [co.shipped_by(r) for r in accepted])


def _exclude(co: Coordinator, peer: Peer, stage: Stage, since: float, deadline: Learned) -> None:
    co.emit(Emit("Excluded", _facts(co, peer, stage, since, deadline)))
    co.couple("LadderExhausted", peer)
    co.urgent = True  # it may have been the last that was waited for (C-21)
