"""Communicator sessions: who can average with whom in one call (protocol section 11.5, M-30 to M-32, C-38).

A communicator is made of the ranks that were there when it was made. When one of them is gone nobody can average in it,
and a rank that came later is not in it at all; both mean a new one. Making it takes an id, some bytes by which its
members find each other, and one of them has to make that: the generator.

    needed --RequestSessionId--> generator --SessionIdGenerated--> NewSession to all who are alive then
                  ^                  |
                  '-- the next one --'-- it dies, or does not answer for 5 s; nobody left: save and stop

    current() says whether exactly the alive are in the session; while they are not, nothing is armed (G-1)

A death, or a call that failed, cannot wait: a pending cycle goes on as its next attempt in the new session. A newcomer
waits until no cycle is pending. Whoever else dies meanwhile joins the same renewal, because members are counted when
the id is there, not when it is asked for.

A generator that has not confirmed its request may never have had it: its link may be lost, and nobody knows yet. The
next one is asked, but the run is not given up for that silence; it is asked again in its turn, until it confirms, its
life ends (M-17), or the renewal as a whole, in whatever phase of the run, comes to the ceiling of an average (M-15).

A call that fails again and again while all its members seem to live has a member that is dead, and nobody knows yet.
Attempts are not used up on that (R-18): from the third one on each waits, longer and longer, up to a quarter of the
silence after which the dead are known (M-17); a death ends the wait.

A member whose link is lost is a member still: a call runs over no link of the coordinator, so it goes on (M-42). No
session is made over its head, though: it may be dead, and then every call would fail at once, and the attempts of the
cycle be used up before anybody knows. So a renewal waits until it is back or dead. A coordinator that was started anew
leaves the session as it is, unless a cycle is pending: that goes on as attempt 0 of the new generation, in a session of
its own, where everyone can tell its call from the one of before (M-43).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from . import in_place
from . import messages as m
from .effects import Emit
from .phases import CyclePhase, PeerPhase, RunPhase
from .values import state, value

if TYPE_CHECKING:
    from .coordinator import Coordinator

__all__ = ["Renewal", "Sessions"]

PAUSE_S = 0.5
"""Pause before the third attempt of a cycle, twice as long before each further one (R-18)."""
WITHOUT_PAUSE = 1
"""Attempts of a cycle that are followed at once by the next one."""
GENERATOR_S = 5.0
"""How long one generator has for its answer (M-3)."""
UID_BYTES = 1024
"""The longest id of a communicator (section 3.1)."""

Life = tuple[int, int]
"""A rank and its incarnation."""


@value
class Renewal:
    """A session on its way: since when it is wanted, or all are back whose links were lost meanwhile, who was asked for
    its id, when and by which control message, who was asked before and had the request, and the id once it is there."""

    session_id: int
    since: float
    generator: Life
    asked_at: float
    number: int
    tried: tuple[int, ...] = ()
    uid: bytes | None = None


@state
class Sessions:
    """`number` is that of the newest session or renewal, `members` are those of the newest session, ascending, and
    `broken` says that a call failed in it although all of them live (R-18), first at `broken_at`. The snapshot flavour
    has none of this."""

    co: Coordinator
    number: int = 0
    members: tuple[Life, ...] = ()
    broken: bool = False
    broken_at: float = 0.0
    renewal: Renewal | None = None

    # --- reading ---------------------------------------------------------------------------------------------------

    def current(self) -> bool:
        """Whether everyone alive, and nobody else, can average in one call (G-1, M-30)."""
        if not self.co.config.is_collective:
            return True
        return self.renewal is None and not self.broken and self.members == self._alive()

    @property
    def deadline(self) -> float | None:
        """When the generator (M-32), or the renewal as a whole (M-15), has had its time, or a pause ends. None while an
        id is there, or somebody is away (M-42)."""
        if self.renewal is None:
            return self.paused_until
        if self.renewal.uid is not None or self.away:
            return None
        asked = self.renewal.asked_at + self.co.config.scaled(GENERATOR_S)
        return min(asked, math.nextafter(self.renewal.since + self.co.config.reduce_ceiling, math.inf))

    @property
    def paused_until(self) -> float | None:
        """Until when no session is begun after a call that failed without a death, or None (R-18)."""
        cycle = self.co.cycle
        if not (self.broken and cycle.pending):
            return None
        alive = self._alive()
        if any(member not in alive for member in self.members):
            return None
        doubled = cycle.attempt - WITHOUT_PAUSE
        pause = 0.0 if doubled < 0 else min(PAUSE_S * 2.0**doubled, self.co.config.staleness_s / 4)
        return self.broken_at + pause if self.co.now < self.broken_at + pause else None

    def awaits(self, event: m.SessionIdGenerated) -> bool:
        """It is the answer of the pending generator for the pending session (M-31)."""
        renewal = self.renewal
        if renewal is None or renewal.uid is not None:
            return False
        asked = (renewal.session_id, *renewal.generator) == (event.session_id, event.rank, event.incarnation)
        return asked and 1 <= len(event.uid) <= UID_BYTES

    def _alive(self) -> tuple[Life, ...]:
        return tuple((rank, self.co.peers[rank].incarnation) for rank in self.co.alive)

    def _lives(self, life: Life) -> bool:
        peer = self.co.peers[life[0]]
        return peer.incarnation == life[1] and peer.alive

    def due(self) -> bool:
        """Whether a renewal has to begin: a finish may have cleared the way for a newcomer within the pass. Who is away
        comes back first, or dies."""
        wanted = self.co.config.is_collective and self.renewal is None and self._may_renew() and self._needed()
        return wanted and not self.away and self.paused_until is None

    # --- what happens ----------------------------------------------------------------------------------------------

    def call_failed(self) -> None:
        """The communicator is done for, whoever is to blame (R-18)."""
        if not self.broken:
            self.broken, self.broken_at = True, self.co.now

    def answered(self, event: m.SessionIdGenerated) -> None:
        """The id is there; who is in the session is decided after the deaths of this pass (C-3)."""
        renewal = self.renewal
        assert renewal is not None, "the guard lets only an awaited id pass"
        self.renewal = attrs.evolve(renewal, uid=event.uid)

    def came(self, claim: m.ResumeClaim | None) -> None:
        """A number is never given twice, not even that of a session which the journal has lost (M-45)."""
        if claim is not None:
            self.number = max(self.number, claim.session_id)

    def returned(self) -> None:
        """Somebody is back, perhaps the generator: its answer may be among what it says now (M-42, M-40). A pause ends
        with it, and the wait as a whole begins anew."""
        self.broken_at = min(self.broken_at, self.co.now - self.co.config.staleness_s)
        if self.renewal is not None:
            self.renewal = attrs.evolve(self.renewal, since=self.co.now, asked_at=self.co.now)

    def refresh(self) -> None:
        """The coordinator itself was away: the generator has its time anew (M-9)."""
        if self.renewal is not None:
            self._ask(self.renewal.session_id, self.renewal.since, self.renewal.generator, self.renewal.tried)

    def judge(self) -> None:
        """Step 5 of the pass: begin a renewal, go on with it, or end it."""
        if not self.co.config.is_collective:
            return
        if not self._may_renew():
            self.renewal = None
        elif self.due():
            self.number += 1
            self._ask_one_of((), self.co.now)
        elif self.renewal is None:
            return
        elif not self._lives(self.renewal.generator):
            self._next()
        elif self.away:
            return
        elif self.renewal.uid is not None:
            self._establish(self.renewal.uid)
        elif self.co.now - self.renewal.since > self.co.config.reduce_ceiling:
            self._give_up(self.renewal)
        elif self.deadline is not None and self.co.now >= self.deadline:
            self._next()

    # --- the renewal -----------------------------------------------------------------------------------------------

    def _may_renew(self) -> bool:
        """M-30, M-50: enough ranks, and a run that still averages."""
        co = self.co
        forming = co.run.phase == RunPhase.FORMING and co.run.window_closed
        going = co.run.phase == RunPhase.TRAINING and not co.save_issued and co.cycle.phase != CyclePhase.STALLED
        going = going and (bool(co.voters) or co.lost_tail.giver is not None)
        return (forming or going) and co.alive_count >= max(1, co.config.min_ranks)

    def _needed(self) -> bool:
        """A member that is gone, or a call that failed, at once; a newcomer at phase Idle (M-30)."""
        alive = self._alive()
        if self.broken or any(member not in alive for member in self.members):
            return True
        return self.members != alive and not self.co.cycle.pending

    def _next(self) -> None:
        """M-32: the generator is marked as tried, the next one is asked; with it again in its turn, if it may not even
        have had the request."""
        renewal = self.renewal
        assert renewal is not None, "only a renewal has a generator"
        rank, lives = renewal.generator[0], self._lives(renewal.generator)
        if not lives:  # nor is the next life of its seat the one that was asked
            self._ask_one_of(renewal.tried, renewal.since)
        elif self.co.peers[rank].handled_seq < renewal.number:
            self._ask_one_of(renewal.tried, renewal.since, after=rank)
        else:
            self._ask_one_of((*renewal.tried, rank), renewal.since)

    def _give_up(self, renewal: Renewal) -> None:
        """M-15: all seem to live, and yet nobody confirms that it was asked."""
        self.renewal = None
        self.co.condemn(m.SaveReason.REDUCE_STALL, f"no rank made the id of session {renewal.session_id} within "
                        f"{self.co.config.reduce_ceiling:g} s")  # fmt: skip

    def _ask_one_of(self, tried: tuple[int, ...], since: float, after: int | None = None) -> None:
        """The first candidate that was not tried; the first behind `after`, round and round, if that is one of them."""
        able = [rank for rank in self._candidates() if rank not in tried]
        if able:
            rank = able[(able.index(after) + 1) % len(able)] if after in able else able[0]
            self._ask(self.number, since, (rank, self.co.peers[rank].incarnation), tried)
            return
        self.renewal = None
        if self.away:  # the generator has died; the next renewal begins when they are back
            return
        self.co.condemn(m.SaveReason.REDUCE_STALL, f"no rank made the id of session {self.number}; asked were "
                        f"{', '.join(map(str, tried)) or 'none, since none can be reached'}")  # fmt: skip

    def _ask(self, session_id: int, since: float, generator: Life, tried: tuple[int, ...]) -> None:
        self.co.tell(generator[:1], m.RequestSessionId, session_id=session_id)
        number = self.co.peers[generator[0]].control_seq
        self.renewal = Renewal(session_id, since, generator, self.co.now, number, tried)

    @property
    def away(self) -> list[int]:
        """Who has no link, so that it will be back or dead: its return is awaited, or a send has failed and the loss of
        the link is still to be heard of (N-10)."""
        return [rank for rank in self.co.alive if not self.co.peers[rank].attached]

    def _candidates(self) -> list[int]:
        """M-30: voters on the coordinator's host, then by the wall time of a batch, who has none last; ties lowest.
        Whoever has no vote yet comes after the voters."""

        def place(rank: int) -> tuple[bool, float, int]:
            peer = self.co.peers[rank]
            window = peer.window
            wall = window.wall_ms / window.wall_batches if window.wall_batches else float("inf")
            near = self.co.host == peer.host != ""
            return (peer.phase != PeerPhase.VOTER, -1.0 if near else wall, rank)

        return sorted((rank for rank in self.co.alive if self.co.peers[rank].attached), key=place)

    def _establish(self, uid: bytes) -> None:
        """M-31: the session of who is alive now; a pending cycle goes on in it as its next attempt (C-38)."""
        co = self.co
        cycle, alive = co.cycle, self._alive()
        again = cycle.pending
        if again and cycle.attempts_used_up(None):
            co.condemn(m.SaveReason.REDUCE_STALL, f"cycle {cycle.number} failed in {cycle.attempt + 1} attempts")
            self.renewal = None
            return
        generator = None if self.renewal is None else self.renewal.generator[0]
        self.members, self.broken, self.renewal = alive, False, None
        if co.run.phase == RunPhase.FORMING:
            co.run.form_anew()
        come = cycle.go_on() if again else []
        source = self._source()
        ranks = [rank for rank, _ in alive]
        co.tell(ranks, m.NewSession, {"new_rank": range(len(alive))}, session_id=self.number, uid=uid,
                new_world_size=len(alive), members=alive, state_from=source,
                cycle=cycle.number if again else None, attempt=cycle.attempt if again else 0)  # fmt: skip
        in_place.requested(cycle, come)
        co.emit(Emit("SessionNew", {
            "session": self.number, "ranks": ranks, "generator": generator,
            "state_from": None if source == m.NO_RANK else source,
            "cycle": cycle.number if again else None, "attempt": cycle.attempt if again else 0,
        }))  # fmt: skip

    def _source(self) -> int:
        """Who gives the state: in formation the lowest rank, or nobody where all keep their own (M-6), later the lowest
        voter, if someone joins (M-27); without a voter who alone stands on the version (M-45). Rather one that has its
        link: it is there at once."""
        co = self.co
        forming = co.run.phase == RunPhase.FORMING
        if co.cycle.checking or (not forming and all(co.peers[rank].phase == PeerPhase.VOTER for rank in co.alive)):
            return m.NO_RANK
        given = [] if co.lost_tail.giver is None else [co.lost_tail.giver]
        able = given or co.alive if forming else co.voters or given
        return next((rank for rank in able if co.peers[rank].attached), able[0] if able else m.NO_RANK)
