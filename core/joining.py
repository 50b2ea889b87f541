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
from .phases import PeerPhase, RunPhase
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
    willing = peer.phase == PeerPhase.JOINING or (peer.phase == PeerPhase.LAGGING and peer.back)
    return willing and peer.attached


@state
class Joins:
    """Open transfers by joiner. `transfers` counts all of them: a number is never used twice (R-1)."""

    co: Coordinator
    transfers: int = 0
    open: dict[int, Transfer] = attrs.field(factory=dict)

    def ask_donors(self) -> None:
        """M-24: each joiner has a living donor, if its model has entries that no consensus holds."""
        co = self.co
        if co.run.phase != RunPhase.TRAINING or co.save_issued or co.schema is None or not co.schema.static():
            return
        if co.config.is_collective:
            return  # the whole state moves in the session of the newcomer (M-31)
        for rank in co.alive:
            peer = co.peers[rank]
            if peer.phase == PeerPhase.JOINING and peer.attached and not self._served(peer):
                self._ask(peer)

    def promoted(self, peer: Peer) -> None:
        """It has everything, a count of its own (M-25), and from now on readings (B-17)."""
        self._close(peer.rank)
        co = self.co
        if co.run.phase == RunPhase.TRAINING:  # in formation the balancer does not exist yet
            co.balancer.admit(peer.rank)
            if co.config.policy == "async":
                co.balancer.overshoot(peer.rank, co.cycle.last_reduce_ms, co.config.max_overshoot)

    def ended(self, peer: Peer) -> None:
        """A life is over: its transfer needs nobody any more."""
        self._close(peer.rank)

    def _served(self, peer: Peer) -> bool:
        transfer = self.open.get(peer.rank)
        if transfer is None:
            return False
        rank, incarnation = transfer.donor
        donor = self.co.peers[rank]
        return donor.incarnation == incarnation and rank in self.co.voters and donor.attached

    def _ask(self, peer: Peer) -> None:
        """The lowest voter that can be reached and calls no callbacks, else the lowest one (M-24): a rank inside a
        callback answers when that is over. M-27: only a voter stands on the current consensus."""
        co = self.co
        self._close(peer.rank)
        attached = [rank for rank in co.voters if co.peers[rank].attached]
        if not attached:
            return
        busy = co.roles.holders.values()
        donor = co.peers[next((rank for rank in attached if rank not in busy), attached[0])]
        self.transfers += 1
        transfer = Transfer(self.transfers, (donor.rank, donor.incarnation), (peer.rank, peer.incarnation))
        self.open[peer.rank] = transfer
        co.emit(OpenRound(self._key(transfer), 0, ((donor.rank, donor.incarnation, 0),), (transfer.joiner,)))
        co.send(donor, m.RequestState, transfer_id=transfer.number, joiner_rank=peer.rank,
                joiner_incarnation=peer.incarnation)  # fmt: skip
        co.emit(Emit("Custom", {"what": "state_transfer", "donor": donor.rank, "rank": peer.rank}))

    def _close(self, rank: int) -> None:
        transfer = self.open.pop(rank, None)
        if transfer is not None:
            self.co.emit(CloseRound(self._key(transfer)))

    def _key(self, transfer: Transfer) -> m.RoundKey:
        return m.transfer_key(self.co.generation, transfer.number)
