"""A journal that has lost its tail, and a run that goes on from what its ranks still hold (protocol M-45).

The file of a journal may end before what the coordinator had done when it died. Ranks then come with a claim that its
books cannot have: a version above theirs, or a message that they never sent (`recovery.py` judges that). Such a rank
begins a new life, as an observer, and all it was given is trained again; what it still has is its version. If no voter
is left, or none can be since the books lack the version, that rank makes voters of all others: it gives the consensus
to a cycle that has observers and no member (M-27).

Who has been turned away comes back within the window of a lost link (M-42), and until that is over no seat that was
emptied so counts as lost (M-21).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import messages as m
from .effects import Alert
from .values import state

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .peer import Peer

__all__ = ["LostTail"]


@state
class LostTail:
    """Who holds what the books lack.

    Fields:
        version: that which the journal had lost, until somebody is promoted on it; so everyone begins as an observer.
            None when the books lack no version.
        holders: the lives, each as (rank, incarnation), that came back with version `held`. Without a voter they alone
            stand on it until somebody is promoted.
        held: that version, the lost one or the one of the books.
        excused: the ranks whose lives ended because of it and that have not come yet, ascending.
        excused_until: the second up to which they may, also to a cohort that is frozen.
    """

    co: Coordinator
    version: int | None = None
    holders: tuple[tuple[int, int], ...] = ()
    held: int = 0
    excused: tuple[int, ...] = ()
    excused_until: float = 0.0

    # --- who holds the version ---------------------------------------------------------------------------------------

    @property
    def giver(self) -> int | None:
        """Of the living ranks that alone stand on the version one that can be reached, the lowest of them. Not who is
        inside a call with a voter: the average with which it comes out counts only if that one's does."""
        peers, cycle = self.co.peers, self.co.cycle
        if self.held != cycle.version:
            return None
        living = [rank for rank, life in self.holders if peers[rank].alive and peers[rank].incarnation == life]
        if self.co.config.is_collective and cycle.pending and cycle.members:
            living = [rank for rank in living if not cycle.takes_part(rank)]
        return min(living, key=lambda rank: (not peers[rank].attached, rank), default=None)

    @property
    def reseating(self) -> bool:
        """There is no voter, but a rank that holds the consensus all others can be given, or is about to come."""
        return self.giver is not None or (not self.holders and self.version is not None)

    @property
    def bereft(self) -> bool:
        """The pending cycle has no member that could end it, and who holds the version has no part in it."""
        return not self.co.voters and bool(self.co.cycle.members) and self.giver is not None

    def take_over(self) -> None:
        """The cycle ends with its last member. What the dead had given to it is in no average, so it is trained again.
        The run goes on with a cycle of observers, as where the version itself was lost."""
        co, cycle = self.co, self.co.cycle
        cycle.overtaken(cycle.number)
        co.book.resolve_limbo({})
        text = f"no voter is left; rank {self.giver} still holds version {cycle.version}, and gives it to all"
        co.emit(Alert("accounting", "voters", text, critical=True))

    def promoted(self) -> None:
        """A voter stands on the version, and gives it as any other (M-24)."""
        self.holders, self.version = (), None

    # --- who comes back ----------------------------------------------------------------------------------------------

    def overtaken(self, version: int) -> None:
        """A version is ahead of the books; who has it is about to come as a new life, and so is everybody."""
        self.excused = tuple(sorted({*self.excused, *self.co.alive}))
        self.holders, self.version = (), version
        self.restarted()

    def restarted(self) -> None:
        """The window in which who is excused may come begins."""
        self.excused_until = self.co.now + self.co.config.scaled(self.co.config.reconnect_window_s)

    def came(self, peer: Peer, claim: m.ResumeClaim | None, *, stands: bool) -> None:
        """A new life. One that held the version gives it to the averager, and so to everyone; if it is in the books
        that it `stands` on theirs, only once no voter is left."""
        self.excused = tuple(rank for rank in self.excused if rank != peer.rank)
        if stands or (claim is not None and self.version is not None and claim.version == self.version):
            known = self.holders if self.held == self.co.cycle.version else ()
            self.holders, self.held = (*known, (peer.rank, peer.incarnation)), self.co.cycle.version

    def excuses(self, rank: int | None) -> bool:
        """Whether this rank may still come back as a new life."""
        return rank in self.excused and self.co.now < self.excused_until

    @property
    def absent(self) -> int:
        """How many of them have not come yet, which is no loss (M-21)."""
        return len(self.excused) if self.co.now < self.excused_until else 0
