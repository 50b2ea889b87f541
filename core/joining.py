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
from .effects import CloseRound, Emit, OpenRound
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
    could be promoted on nothing (R-8); `lost_at` is since when, for people (O-4)."""

    co: Coordinator
    transfers: int = 0
    open: dict[int, Transfer] = attrs.field(factory=dict)
    consensus_lost: bool = False
    lost_at: float = 0.0

    @property
    def founded(self) -> bool:
        """Whether cycle 0 has a source (M-6): somebody who can be asked now, or it would be over as it begins and a run
        without a rank would train; in a run that forms once more one that stands on the version and will take part, or
        a stranger's weights would become that version (M-45, M-27)."""
        peers, tail = self.co.peers, self.co.lost_tail
        if tail.version is None:
            return any(may_observe(peers[rank]) for rank in self.co.alive)
        giver = tail.giver
        return giver is not None and may_observe(peers[giver])

    def restarted(self) -> None:
        """M-44: the lanes of all transfers are gone, and so is what the averager held, if it held anything."""
        self.open.clear()
        self.consensus_lost = self.co.config.averager not in RANKS_WRITE and self.co.cycle.finished >= 0
        self.lost_at = self.co.now

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
            # Others are given what a holder of the version has, and nobody else has any.
            holds_all = (rank, peer.incarnation) in co.lost_tail.holders
            if peer.phase == JOINING and peer.attached and not holds_all and not self._served(rank):
                self._ask(rank, peer.incarnation)

    def promoted(self, peer: Peer) -> None:
        """It has everything, a count of its own (M-25), and from now on readings (B-17)."""
        self._close(peer.rank)
        co = self.co
        co.lost_tail.promoted()
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
        able = rank in self.co.voters or transfer.donor in self.co.lost_tail.holders
        return donor.incarnation == incarnation and able and donor.attached

    def _ask(self, joiner: int, incarnation: int) -> None:
        """The lowest voter that can be reached and calls no callbacks, else the lowest one (M-24): a rank inside a
        callback answers when that is over. M-27: only a voter stands on the current consensus. The averager is no rank:
        what goes to it goes to `NO_RANK` (M-44)."""
        co = self.co
        self._close(joiner)
        donors = co.voters or [rank for rank in (co.lost_tail.giver,) if rank is not None]
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
