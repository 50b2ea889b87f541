"""What becomes of a pending cycle after a lost link, and after a restart of the coordinator (protocol M-42 to M-44).

Guards and effects of `table_cycle.py`, and the state they change; `Cycle` explains it. A snapshot that was under way
over a lane that is gone cannot be finished, so the attempt is torn; a collective runs over no such lane. After a
restart either flavour begins again as attempt 0 of the new generation: where ranks ship copies once the averager can
take them, where they average in place with a session of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ladder import Stage
from .values import state

if TYPE_CHECKING:
    from .attachment import Back
    from .coordinator import Coordinator
    from .events import RoundReduced

__all__ = ["Again"]


@state
class Again:
    """What of a `Cycle` begins anew."""

    co: Coordinator
    number: int = 0
    attempt: int = 0
    members: tuple[int, ...] = ()
    awaited: tuple[int, ...] = ()
    participants: tuple[int, ...] = ()
    doubtful: tuple[int, ...] = ()
    owing: int = 0
    unopened: bool = False
    split_repeated: bool = False
    pending_since: float = 0.0
    last_evidence_at: float = 0.0
    post_norms: tuple[float, float] | None = None
    total_steps: int | None = None
    reduced: RoundReduced | None = None

    if TYPE_CHECKING:

        @property
        def forming(self) -> bool: ...
        def takes_part(self, rank: int) -> bool: ...
        def _clear(self, owed: Stage | None) -> None: ...
        def _open(self) -> None: ...
        def ask(self, ranks: tuple[int, ...]) -> None: ...

    def torn(self, event: Back) -> bool:
        """Whether a rank that is back had begun this attempt and not staged its result: what it sent and what it got
        of it went over a lane that is gone, so the attempt cannot end any more (M-42)."""
        claim = event.claim
        if self.unopened or not self.takes_part(event.rank) or self.co.peers[event.rank].acked:
            return False
        began = (claim.generation, claim.snapshot_cycle, claim.attempt)
        return began == (self.co.generation, self.number, self.attempt) and not claim.staged

    def put_off(self, event: object) -> None:
        """M-43: same number, attempt 0 of a new generation, as soon as the averager can open it."""
        self.attempt, self.split_repeated, self.unopened = 0, False, True
        self.reduced = self.post_norms = self.total_steps = None
        self.doubtful = ()
        self._clear(None)
        gated = self.participants if self.forming else (*self.members, *self.awaited)
        self.owing = len(gated)

    def leave_call(self, event: object) -> None:
        """M-43: put off, and out of the session: a call of the former generation may still run, and may have ended well
        at some. Nobody is asked what came of it: all put it back, and meet in a session of this generation (W-14,
        R-15)."""
        self.put_off(event)
        self.co.sessions.call_failed()

    def awaits_session(self, event: object) -> bool:
        """The cycle was put off, and its ranks have to come back for a new session (M-43, M-31). If all of them are
        dead there is nothing to wait for."""
        return self.unopened and self.owing > 0

    def can_open(self, event: object) -> bool:
        """The round was put off, and the averager has its memory back (M-44)."""
        return self.unopened and not self.co.joins.consensus_lost

    def open_again(self, event: object) -> None:
        """M-43: everyone is asked again, who has no link as soon as it is back."""
        self.unopened = False
        self.pending_since = self.last_evidence_at = self.co.now
        self._clear(Stage.SNAPSHOT)  # somebody may have left meanwhile
        self._open()
        self.ask(self.participants)
