"""Joining a cohort that trains already (protocol M-22 to M-28).

A newcomer is an observer first: it takes part in the next cycle with nothing to give, receives the consensus that
everybody receives, and becomes a voter in the finish of a cycle whose consensus it acknowledged. So whoever trains
stands on the current consensus and schedule position, and no consensus is ever made for one rank.

Only what no consensus holds must come from one rank: frozen and local entries, the static part of the state (R-20).
The lowest attached voter without a role gives it, once per joiner; another one takes over when that one is gone. The
transfer is a data round of kind `state` of its own, with the donor as its only member and the joiner as its only
observer, whose key carries the number of the transfer. It gates nothing: an acknowledgement without the static part is
no evidence yet, and the joiner is waited for only by the patience of M-26.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from . import messages as m
from .effects import Alert, CloseRound, Emit, OpenRound
from .events import RoundAborted, RoundProgress, RoundReduced
from .phases import JOINING, LAGGING, VOTER, RunPhase
from .policies import consulted, overshoot
from .run import RANKS_WRITE
from .values import state, value

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .peer import Peer

__all__ = ["Joins", "Transfer", "may_observe"]


@value
class Transfer:
    """The static part on its way from a donor to a joiner, each as (rank, incarnation)."""

    number: int
    donor: tuple[int, int]
    joiner: tuple[int, int]


def may_observe(peer: Peer) -> bool:
    """Whether the next cycle asks this rank to observe (M-23): a joiner, or an excluded rank that is back (M-14)."""
    phase = peer.phase
    if phase == VOTER:  # most of them
        return False
    willing = phase == JOINING or (phase == LAGGING and peer.back)
    member = peer.co.config.is_collective and peer.detached  # of the session, so nobody averages without it (M-31)
    return willing and (peer.attached or member)


@state
class Joins:
    """Open transfers by joiner. `transfers` counts all of them: a number is never used twice (R-1). `consensus_lost`
    says that the averager lacks the consensus of the version, because its process was started anew (M-44), or because
    the ranks began from what they had brought (M-6): no round can be reduced before a rank has given it, or an observer
    could be promoted on nothing (R-8); `lost_at` is since when, for people (O-4). `seeding` is the version
    that the journal had lost, so that everyone begins as an observer. `seeds` are the lives that came back with version
    `seeded`, this one or the one of the books: without a voter they alone stand on it until somebody is promoted
    (M-45). `excused` are the ranks whose lives ended because of that version and that have not come yet: until
    `excused_until` they may, also to a cohort that is frozen, and no seat of theirs counts as lost."""

    co: Coordinator
    transfers: int = 0
    open: dict[int, Transfer] = attrs.field(factory=dict)
    consensus_lost: bool = False
    lost_at: float = 0.0
    seeds: tuple[tuple[int, int], ...] = ()
    seeded: int = 0
    seeding: int | None = None
    excused: tuple[int, ...] = ()
    excused_until: float = 0.0

    @property
    def giver(self) -> int | None:
        """Of the living ranks that alone stand on the version one that can be reached, the lowest of them (M-45). Not
        who is inside a call with a voter: the average with which it comes out counts only if that one's does."""
        peers, cycle = self.co.peers, self.co.cycle
        if self.seeded != cycle.version:
            return None
        living = [r for r, life in self.seeds if peers[r].alive and peers[r].incarnation == life]
        if self.co.config.is_collective and cycle.pending and cycle.members:
            living = [rank for rank in living if not cycle.takes_part(rank)]
        return min(living, key=lambda rank: (not peers[rank].attached, rank), default=None)

    @property
    def founded(self) -> bool:
        """Whether cycle 0 has a source (M-6): somebody who can be asked now, or it would be over as it begins and a run
        without a rank would train; in a run that forms once more one that stands on the version and will take part, or
        a stranger's weights would become that version (M-45, M-27)."""
        peers = self.co.peers
        if self.seeding is None:
            return any(may_observe(peers[rank]) for rank in self.co.alive)
        giver = self.giver
        return giver is not None and may_observe(peers[giver])

    @property
    def reseating(self) -> bool:
        """There is no voter, but a rank that holds the consensus all others can be given (M-45)."""
        return self.giver is not None or (not self.seeds and self.seeding is not None)

    @property
    def bereft(self) -> bool:
        """The pending cycle has no member that could end it, and who holds the version has no part in it (M-45)."""
        return not self.co.voters and bool(self.co.cycle.members) and self.giver is not None

    def take_over(self) -> None:
        """M-45: the cycle ends with its last member. What the dead had given to it is in no average, so it is trained
        again. The run goes on with a cycle of observers, as where the version itself was lost."""
        co, cycle = self.co, self.co.cycle
        cycle.overtaken(cycle.number)
        co.book.resolve_limbo({})
        text = f"no voter is left; rank {self.giver} still holds version {cycle.version}, and gives it to all"
        co.emit(Alert("accounting", "voters", text, critical=True))

    def overtaken(self, version: int) -> None:
        """M-45: the version is ahead of the books; who has it is about to come as a new life, and so is everybody."""
        self.excused = tuple(sorted({*self.excused, *self.co.alive}))
        self.restarted()
        self.seeds, self.seeding = (), version

    def came(self, peer: Peer, claim: m.ResumeClaim | None, *, stands: bool) -> None:
        """A new life. One that held the version gives it to the averager, and so to everyone; if it is in the books
        that it `stands` on theirs, only once no voter is left."""
        self.excused = tuple(rank for rank in self.excused if rank != peer.rank)
        if stands or (claim is not None and self.seeding is not None and claim.version == self.seeding):
            known = self.seeds if self.seeded == self.co.cycle.version else ()
            self.seeds, self.seeded = (*known, (peer.rank, peer.incarnation)), self.co.cycle.version

    def restarted(self) -> None:
        """M-44: the lanes of all transfers are gone, and so is what the averager held, if it held anything."""
        self.open.clear()
        self.consensus_lost = self.co.config.averager not in RANKS_WRITE and self.co.cycle.finished >= 0
        self.lost_at = self.co.now
        self.excused_until = self.co.now + self.co.config.scaled(self.co.config.reconnect_window_s)

    def excuses(self, rank: int | None) -> bool:
        """Whether this rank may still come back as a new life (M-45)."""
        return rank in self.excused and self.co.now < self.excused_until

    @property
    def absent(self) -> int:
        """How many of them have not come yet, which is no loss (M-21)."""
        return len(self.excused) if self.co.now < self.excused_until else 0

    def unsent(self) -> None:
        """M-6: the ranks have begun from what they brought, and the averager has seen none of it. It lacks the version
        as after a restart, and asks for it while the first window is trained."""
        self.consensus_lost = self.co.config.averager not in RANKS_WRITE
        self.lost_at = self.co.now

    def arrived(self, event: RoundProgress | RoundReduced | RoundAborted) -> None:
        """The data plane speaks of a transfer: the averager has its consensus back (M-44)."""
        transfer = self.open.get(m.NO_RANK)
        if transfer is None or event.key != self._key(transfer):
            self.co.fence(m.NO_RANK, type(event).__name__)
        elif isinstance(event, RoundProgress) and event.complete:
            self.consensus_lost = False
            self._close(m.NO_RANK)
            self.co.actions.write_again()
            self.co.urgent = True

    def ask_donors(self) -> None:
        """M-44: the averager has a donor while it needs one. M-24: so has each joiner, if its model has entries that no
        consensus holds."""
        if self.consensus_lost and not self._served(m.NO_RANK):
            self._ask(m.NO_RANK, 0)
        co = self.co
        if co.run.phase != RunPhase.TRAINING or co.save_issued or co.schema is None or not co.schema.static():
            return
        if co.config.is_collective:
            return  # the whole state moves in the session of the newcomer (M-31)
        for rank in co.alive:
            peer = co.peers[rank]
            holds_all = (rank, peer.incarnation) in self.seeds  # others are given what it has, and nobody else has any
            if peer.phase == JOINING and peer.attached and not holds_all and not self._served(rank):
                self._ask(rank, peer.incarnation)

    def promoted(self, peer: Peer) -> None:
        """It has everything, a count of its own (M-25), and from now on readings (B-17)."""
        self._close(peer.rank)
        co = self.co
        self.seeds, self.seeding = (), None
        if co.run.phase == RunPhase.TRAINING:  # in formation the balancer does not exist yet
            text = "its window is that of the slowest rank"
            consulted(co, "cadence.admit", lambda: co.balancer.admit(peer.rank), None, text)
            co.balancer.counts.setdefault(peer.rank, co.balancer.anchor)  # B-17, also where nobody said so
            if co.config.policy == "async":
                overshoot(co, peer.rank)

    def ended(self, peer: Peer) -> None:
        """A life is over: its transfer needs nobody any more."""
        self._close(peer.rank)

    def torn(self, rank: int) -> None:
        """A link is gone, and with it what a donor had sent or a joiner got over it: both begin anew (M-42)."""
        for joiner, transfer in list(self.open.items()):
            if rank in (joiner, transfer.donor[0]):
                self._close(joiner)

    def _served(self, joiner: int) -> bool:
        transfer = self.open.get(joiner)
        if transfer is None:
            return False
        rank, incarnation = transfer.donor
        donor = self.co.peers[rank]
        able = rank in self.co.voters or transfer.donor in self.seeds
        return donor.incarnation == incarnation and able and donor.attached

    def _ask(self, joiner: int, incarnation: int) -> None:
        """The lowest voter that can be reached and calls no callbacks, else the lowest one (M-24): a rank inside a
        callback answers when that is over. M-27: only a voter stands on the current consensus. The averager is no rank:
        what goes to it goes to `NO_RANK` (M-44)."""
        co = self.co
        self._close(joiner)
        donors = co.voters or [rank for rank in (self.giver,) if rank is not None]
        attached = [rank for rank in donors if co.peers[rank].attached]
        if not attached:
            return
        busy = co.roles.holders.values()
        donor = co.peers[next((rank for rank in attached if rank not in busy), attached[0])]
        self.transfers += 1
        transfer = Transfer(self.transfers, (donor.rank, donor.incarnation), (joiner, incarnation))
        self.open[joiner] = transfer
        receivers = () if joiner == m.NO_RANK else (transfer.joiner,)
        if receivers:
            co.peers[joiner].since.donor = co.now
        co.emit(OpenRound(self._key(transfer), 0, ((donor.rank, donor.incarnation, 0),), receivers))
        co.tell((donor.rank,), m.RequestState, transfer_id=transfer.number, joiner_rank=joiner,
                joiner_incarnation=incarnation)  # fmt: skip
        to = "averager" if joiner == m.NO_RANK else joiner
        co.emit(Emit("Custom", {"what": "state_transfer", "donor": donor.rank, "rank": to}))

    def _close(self, rank: int) -> None:
        transfer = self.open.pop(rank, None)
        if transfer is not None:
            self.co.emit(CloseRound(self._key(transfer)))

    def _key(self, transfer: Transfer) -> m.RoundKey:
        return m.transfer_key(self.co.generation, transfer.number)
