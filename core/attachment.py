"""Whether an incarnation has a link, and what becomes of it while it has none (protocol N-9, N-10, M-17, M-42).

    attached --LinkLost, SendFailed--> detached --Claim--> attached
       |                                  '--- its window is over --> dead (not_reattached)
       '--- without link_grace_s: LinkLost --> dead; SendFailed --> broken, then LinkLost --> dead

A detached rank keeps its seat, its vote and its work. What is sent to it is kept under its number; what it reports it
keeps itself. When it is back each end sends again what the other lacks (`retention.py`), so nothing is lost, nothing is
applied twice, and nobody else notices more than a wait (I53).

A rank whose send failed *without* such a grace is broken: what the message had reserved is undone at once, so the lane
has a hole, and a lane with a hole is never taken up again, not even by a coordinator that was started anew (N-10).

The guards and effects of `table_peer.py` that concern links are methods of `Attachment`, the base of `Peer`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from . import messages as m
from .effects import Admit, Alert, Emit
from .events import HelloReceived, LinkLost, SendFailed
from .ledger import initial_file
from .phases import ALIVE, PeerPhase
from .retention import Retained
from .schema import dataset_length
from .since import Since
from .values import state, value

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .peer import Peer

__all__ = ["Attachment", "Back", "detached", "expire", "fenced", "next_due", "welcome"]


@value
class Back:
    """A rank is attached again, and what it claims to have done of the pending cycle (M-42)."""

    rank: int
    claim: m.ResumeClaim

    @property
    def cause(self) -> str:
        """For the alert of a new attempt."""
        return f"rank {self.rank} lost its link in the middle of it"


@state
class Attachment:
    """See the module. `link` is the driver's number of the connection, `detached_at` the second since which there is
    none and a return is awaited for `window_s`, `last_seen` when any frame of it came (M-2), `born` the generation that
    gave this incarnation its seat, `former` the life in this seat that its process had before, `former_seq` the last
    number that was given to a control message before this generation of the coordinator began. `handled_seq` is the
    last control message it has confirmed, `request_seq` the one that asked it into the collective of this cycle;
    `since` is when it waits (O-4)."""

    co: Coordinator
    rank: int
    incarnation: int
    phase: PeerPhase = PeerPhase.JOINING
    attached: bool = True
    broken: bool = False
    link: int | None = None
    born: int = 1
    former: int | None = None
    detached_at: float | None = None
    window_s: float = 0.0
    last_seen: float = 0.0
    control_seq: int = 0
    former_seq: int = 0
    handled_seq: int = 0
    request_seq: int = 0
    report_seq: int = 0
    retained: Retained = attrs.field(factory=Retained)
    tokens: dict[int, int] = attrs.field(factory=dict)
    since: Since = attrs.field(factory=Since)

    @property
    def alive(self) -> bool:
        """Joining, voter or lagging (M-1)."""
        return self.phase in ALIVE

    @property
    def detached(self) -> bool:
        """Without a link, and awaited."""
        return self.detached_at is not None

    @property
    def reachable(self) -> bool:
        """What is sent now arrives, at once or when the rank is back (N-10)."""
        return self.attached or self.detached

    @property
    def return_until(self) -> float:
        """When a detached rank is not awaited any more."""
        return math.inf if self.detached_at is None else self.detached_at + self.window_s

    def leave_link(self, window_s: float, cause: str) -> None:
        """From now on what is sent to this rank is kept, and its return is awaited (M-42)."""
        self.attached, self.detached_at, self.window_s = False, self.co.now, window_s
        self.co.emit(Emit("Detached", {
            "rank": self.rank, "incarnation": self.incarnation, "cause": cause, "until": self.return_until,
        }))  # fmt: skip

    # --- guards --------------------------------------------------------------------------------------------------

    def other_link(self, event: LinkLost | SendFailed) -> bool:
        """It is about a connection that has been replaced since."""
        return event.link is not None and event.link != self.link

    def is_detached(self, event: object) -> bool:
        """Its link is known to be lost already."""
        return self.detached

    def keeps_seat(self, event: object) -> bool:
        """M-17: the run gives a lost link a grace."""
        return self.co.config.link_grace_s > 0

    def claim_fits(self, event: HelloReceived) -> bool:
        """M-42: this very life, not over at its own end, on the current consensus or one Update behind it, and both
        lanes without a hole. A rank without a vote stands on no consensus, so no version is asked of it. One that
        averages in place may be ahead by the cycle that is armed and has not finished."""
        claim, cycle = event.hello.resume, self.co.cycle
        if claim is None or claim.incarnation != self.incarnation or claim.over:
            return False
        if not self.born <= claim.generation <= self.co.generation:  # a life that the journal lost had the same number
            return False
        if self.broken or not (self.detached or self.keeps_seat(event)):
            return False
        early = self.co.config.is_collective and claim.cycle == cycle.number > cycle.finished
        versions = (cycle.version, cycle.version - 1, cycle.version + (1 if early else 0))
        if self.phase == PeerPhase.VOTER and claim.version not in versions:
            return False
        if claim.report_seq < self.report_seq or self.has_seen_lost(claim):
            return False
        return self.retained.covers(claim.control_seq, self.control_seq)

    def has_seen_lost(self, claim: m.ResumeClaim) -> bool:
        """M-45: the rank has handled a message that the journal has lost. To one that was in no link of this generation
        its number tells, even when it has been given anew meanwhile, to a message that waits for the rank."""
        known = self.control_seq if claim.generation == self.co.generation else self.former_seq
        return claim.control_seq > known

    # --- effects -------------------------------------------------------------------------------------------------

    def detach(self, event: LinkLost | SendFailed) -> None:
        """M-17, N-10: nothing is undone; what could not be sent is kept."""
        cause = event.cause if isinstance(event, LinkLost) else "a message could not be sent"
        self.leave_link(self.co.config.scaled(self.co.config.link_grace_s), cause or "its link was lost")

    def lose_link(self, event: LinkLost) -> None:
        """M-17: without a grace this is its death."""
        self.attached = False
        self.co.lose(self.rank, event.cause or "its link was lost")

    def undo_send(self, event: SendFailed) -> None:
        """N-10, C-14: undo what the message had reserved; nothing is sent on this link again."""
        co, number = self.co, event.token[2]
        self.attached, self.broken = False, True
        self.since.link = co.now
        co.lost_sends += 1
        plan_id = self.tokens.pop(number, None)
        if plan_id is not None:
            co.desk.rollback(self.rank, plan_id)
        co.emit(Emit("SendFailed", {"rank": self.rank, "message": number}))
        message = self.retained.get(number)
        # C-22: the order to save is no clean end itself; what else fails once it is out, or a shutdown, is of no use.
        expected = co.save_issued and not isinstance(message, m.ShutdownWithSave)
        if not (co.run.shutdown_issued or expected):
            name = "a message" if message is None else type(message).__name__
            co.emit(Alert("send_failed", f"rank {self.rank}", f"{name} could not be sent", critical=True))

    def reattach(self, event: HelloReceived) -> None:
        """M-42: what it lacks goes out behind its welcome; then it is woken like an idle rank (D-16)."""
        co, claim = self.co, event.hello.resume
        self.last_seen = co.now  # M-2: what it was silent for without a link is not held against it
        if claim is None:
            return
        waited = 0.0 if self.detached_at is None else co.now - self.detached_at
        self.attached, self.detached_at, self.link = True, None, event.link
        resent = self.retained.after(claim.control_seq)
        co.emit(Admit(event.link, self.rank, self.incarnation, welcome(co, self, m.WelcomeStatus.RESUMED), resent))
        co.emit(Emit("Reattached", {
            "rank": self.rank, "incarnation": self.incarnation, "waited_s": waited, "resent": len(resent),
            "reports_missing": claim.report_seq - self.report_seq,
        }))  # fmt: skip
        co.returned = True
        co.joins.torn(self.rank)
        co.sessions.returned()
        co.couple("RankAttached", self, Back(self.rank, claim))


def welcome(co: Coordinator, peer: Attachment, status: m.WelcomeStatus) -> m.Welcome:
    """What a rank is told when it is let in, with the lane numbers that are known of it (V-6, M-42)."""
    world = co.config.target_ranks or max(len(co.seats), co.config.min_ranks)
    return m.Welcome(
        rank=peer.rank, incarnation=peer.incarnation, generation=co.generation, status=status,
        control_seq=peer.control_seq, report_seq=peer.report_seq,
        config={**co.config.welcome(dataset_length(co.dataset or b""), world), **initial_file(co)},
    )  # fmt: skip


def fenced(co: Coordinator, peer: Attachment, why: str, *, ends: bool = False) -> m.Fenced:
    """What is current, for a session that is not (N-6). The seat of a life that is over, or `ends` just now, waits for
    its next one."""
    current = peer.incarnation if peer.alive and not ends else peer.incarnation + 1
    return m.Fenced(generation=co.generation, incarnation=current, cycle=co.cycle.number, why=why)


def detached(co: Coordinator) -> list[Peer]:
    """Who is without a link, and awaited: nobody, as a rule."""
    return [peer for peer in map(co.peers.__getitem__, co.alive) if peer.detached_at is not None]


def expire(co: Coordinator) -> None:
    """Who is not back in time is dead (M-42); exceeded strictly, like every silence."""
    for peer in detached(co):
        if co.now > peer.return_until:
            co.lose(peer.rank, "not_reattached")


def next_due(co: Coordinator) -> float:
    """When the next window is over."""
    until = min([peer.return_until for peer in detached(co)], default=math.inf)
    return math.nextafter(until, math.inf)
