"""The averaging cycle: arm, collect evidence, finish or try again (protocol sections 4.2, 4.3, 7; snapshot flavour).

Cycle 0 is formation: it runs on the same machine and moves the initial state from one rank to all (M-6). What a
cycle leaves behind is decided in `finish.py`; this module decides when a cycle begins and when it may end. It keeps no
cadence, composes no plan and waits for nothing inside: counts come from the balancer, plans from dispatch (C-5).

The two gates read counts and nothing else. `fires` (G-1) asks whether every voter has its quota, is quiesced or
parked by the lead limit; `gate_complete` (C-12) asks whether every member that is still a voter has acknowledged this
attempt. No measured time can open either (G-2).
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from . import digests, in_place, joining
from . import messages as m
from .cycle_again import Again
from .effects import AbortRound, AdmitContribution, Alert, Emit, OpenRound
from .events import RoundAborted, RoundProgress, RoundReduced
from .ladder import Stage
from .participation import idled
from .phases import PENDING, CyclePhase, RunPhase
from .values import among, state

__all__ = ["Cycle"]

MAX_ATTEMPTS = 32
"""Attempts of one cycle before the run is given up (R-18)."""


@state
class Cycle(Again):
    """State of the cycle (4.1): `number` counts arms, `finished` is the last cycle that finished (-1: none),
    `participants` are members and observers, `awaited` the observers that the gate waits for (M-26), all ascending;
    `gone` who has left the cycle since its arm: whoever has its seat now is not meant. `post_norms` are the lowest and
    highest norm of this attempt, `total_steps` what the acks of a collective say is in its consensus, `doubtful` who
    left it without saying what of its own is (M-19), `waiting_since` when the first voter of this window had done its
    part (M-16). `armed_in` is the generation of the arm; `unopened` says that the round waits for the averager, which
    has lost its memory (M-44). Of a run that forms once more (M-45) `known` is the highest cycle a rank has claimed,
    and `next_attempt` the one with which cycle 0 begins: nothing is numbered twice (I8)."""

    phase: CyclePhase = CyclePhase.IDLE
    finished: int = -1
    armed_at: float = 0.0
    last_ack_at: float = 0.0
    idle_since: float = 0.0
    waiting_since: float | None = None
    observers: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    version: int = 0
    sync_rounds: int = 0
    global_step: int = 0
    last_reduce_ms: float | None = None
    sick_cycles: int = 0
    armed_in: int = 1
    known: int = 0
    next_attempt: int = 0

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Armed and not finished; meanwhile nothing is armed (C-1)."""
        return self.phase == PENDING

    @property
    def forming(self) -> bool:
        """This is cycle 0: everyone must acknowledge, nobody has stepped (M-6)."""
        return self.co.run.phase == RunPhase.FORMING

    @property
    def checking(self) -> bool:
        """Cycle 0 sends nothing: each rank keeps the state it brings, if all bring the same (M-6)."""
        return self.co.config.initial_state == "check" and self.forming and self.co.lost_tail.version is None

    @property
    def key(self) -> m.RoundKey:
        """The data round of this cycle (R-1)."""
        kind = m.RoundKind.STATE if self.forming else m.RoundKind.PARAMS
        return m.RoundKey(generation=self.co.generation, cycle=self.number, kind=kind)

    def owes(self, rank: int) -> bool:
        """Whether the finalize gate waits for this rank (C-12, M-26)."""
        gated = among(rank, self.members) or among(rank, self.awaited) or self.forming
        return self.pending and gated and rank not in self.gone and not self.co.peers[rank].acked

    def debtors(self) -> list[int]:
        """All whom the finalize gate waits for (`owes`), ascending."""
        if not self.pending:
            return []
        asked = {*(self.participants if self.forming else (*self.members, *self.awaited))}.difference(self.gone)
        return [rank for rank in self.participants if rank in asked and not self.co.peers[rank].acked]

    def takes_part(self, rank: int) -> bool:
        """Whether this life of the rank was asked in this cycle and has not left it (C-6, M-14)."""
        return among(rank, self.participants) and rank not in self.gone

    # --- guards --------------------------------------------------------------------------------------------------

    def fires(self, event: object) -> bool:
        """The firing gate (G-1), with the forced reduce of a stop (G-10), and the start of formation (M-6)."""
        co = self.co
        if co.run.phase == RunPhase.FORMING:
            return co.run.window_closed and co.joins.founded and co.sessions.current()
        if co.run.phase != RunPhase.TRAINING or co.save_issued:
            return False
        if co.alive_count < co.config.min_ranks or co.joins.consensus_lost:
            return False
        if not co.voters:  # nobody has anything to give; what one of them holds makes voters of observers (M-45)
            came = any(joining.may_observe(co.peers[rank]) for rank in co.alive)
            return co.lost_tail.reseating and came and co.sessions.current()
        if co.movers == 0:
            return False
        return (co.stopping or co.short == 0) and co.sessions.current()

    def gate_complete(self, event: object) -> bool:
        """The finalize gate (C-12): counts acknowledgements, never steps or time."""
        return self.owing == 0

    def round_current(self, event: Any) -> bool:
        """Evidence of this cycle and attempt (N-6, C-35)."""
        cycle = event.key.cycle if isinstance(event, (RoundReduced, RoundAborted)) else event.cycle
        return bool(cycle == self.number and event.attempt == self.attempt)

    def key_current(self, event: RoundProgress) -> bool:
        """Progress of this cycle's round."""
        return event.key == self.key

    def owes_ack(self, event: m.SyncAck) -> bool:
        """A participant that has not acknowledged this attempt (C-6)."""
        return self.takes_part(event.rank) and not self.co.peers[event.rank].acked

    def lacks_state(self, event: m.SyncAck) -> bool:
        """An observer that has the consensus without the static part does not hold all of it yet (M-25)."""
        return among(event.rank, self.observers) and not event.state_complete

    def only_joiners_owe(self, event: object) -> bool:
        """Only joiners that were given their time hold the cycle (M-26): every member has acknowledged, or waits inside
        the call for who has not begun with it."""
        owing = in_place.outside(self) if self.co.config.is_collective else self.debtors()
        waited = self.observers if self.co.config.is_collective else self.awaited
        return bool(owing) and not self.forming and all(among(rank, waited) for rank in owing)

    def founded(self, event: m.SyncAck) -> bool:
        """The rank has said what it ships, and the averager that it has the consensus: a scatter comes after both
        (N-3, R-2). What a rank brings itself needs no averager (M-6)."""
        return (self.reduced is not None or self.checking) and self.co.peers[event.rank].shipped is not None

    def in_place(self, event: object) -> bool:
        """All ranks average inside one call (C-19)."""
        return self.co.config.is_collective

    def came_out(self, event: m.SyncAck) -> bool:
        """C-6: a call counts as a local step, so its ack exceeds the count of the arm also where no batch follows."""
        return event.step_count > self.co.peers[event.rank].snapshot_steps

    def books_agree(self, event: m.SyncAck) -> bool:
        """C-6, W-14: what it says is in the consensus is what the book has of it, and of all what the others say: no
        more than there is to train in the open epochs."""
        member = among(event.rank, self.members) and event.outcome == m.Outcome.MERGED
        steps, total = self.co.peers[event.rank].steps if member else 0, event.total_steps
        if event.shipped_steps != steps or self.total_steps not in (None, total):
            return False
        return steps <= total <= sum([pool.total for pool in self.co.book.pools.values()])

    def already_shipped(self, event: m.SnapshotReady) -> bool:
        """Counts once per attempt (C-7)."""
        return self.co.peers[event.rank].shipped is not None

    def shipped_plausible(self, event: m.SnapshotReady) -> bool:
        """C-7: in attempt 0 exactly the steps of the book, later at most those; 0 for an observer. After a restart the
        copy may be older than the steps in the book (M-43)."""
        if not among(event.rank, self.members):
            return among(event.rank, self.observers) and event.shipped_steps == 0
        steps = self.co.peers[event.rank].steps
        first = self.attempt == 0 and self.armed_in == self.co.generation
        return event.shipped_steps == steps if first else event.shipped_steps <= steps

    def asked(self, event: m.SnapshotReady) -> bool:
        """Only who was asked can have a copy of this cycle (C-7)."""
        return self.takes_part(event.rank)

    def books_differ(self, event: m.SnapshotReady | m.SyncAck) -> None:
        """C-7: the books of this incarnation are broken."""
        steps = self.co.peers[event.rank].steps
        text = f"ships {event.shipped_steps} steps, {steps} are in the book"
        self.co.emit(Alert("accounting", f"rank {event.rank}", text))

    def attempts_used_up(self, event: object) -> bool:
        """R-18."""
        return self.attempt >= MAX_ATTEMPTS

    def retryable(self, event: m.RoundFailed) -> bool:
        """Whether the rank that failed can average at all (R-18)."""
        return event.retryable

    def lacks_digest(self, event: m.SyncAck) -> bool:
        """C-18: what it holds has a name, which it does not say."""
        return event.digest is None and digests.owed(self)

    def states_differ(self, event: object) -> bool:
        """M-6: the ranks do not bring the same state."""
        return self.checking and len(digests.by_digest(self)) > 1

    def digest_split(self, event: object) -> bool:
        """C-18: a rank was delivered other bytes than the majority, or there is no majority."""
        return digests.minority(self) != ()

    # --- arm -----------------------------------------------------------------------------------------------------

    def arm(self, event: object) -> None:
        """C-11, exact order; cycle 0 without the increment (M-6)."""
        co = self.co
        co.emit(Emit("SyncStart", {"cycle": self.number if self.forming else self.number + 1}))
        if not self.forming:
            if co.voters:  # of a cycle without a member nobody takes over a consensus (M-45, K-3)
                co.actions.arm(self.number + 1)
            self.number += 1
        self.attempt, self.next_attempt = self.next_attempt, 0
        self.split_repeated, self.unopened, self.armed_in = False, False, co.generation
        self.armed_at = self.last_evidence_at = self.last_ack_at = co.now
        self.members = tuple(co.voters)
        others = co.alive if len(co.alive) > len(co.voters) else ()  # voters are alive, and observe nothing
        self.observers = tuple(rank for rank in others if joining.may_observe(co.peers[rank]))
        # Without a member (M-45) it is for the observers alone.
        patience = co.config.join_patience if self.members else 0
        self.awaited = tuple(rank for rank in self.observers if co.peers[rank].missed >= patience)
        self.gone = ()
        self.participants = tuple(sorted((*self.members, *self.observers)))
        first = self.first_stage
        for rank in self.participants:
            co.peers[rank].open_slots(first)
        self._open()
        self.ask(self.participants)
        if co.config.is_collective:
            in_place.requested(self, self.participants)
        if not co.config.is_progressive and not self.forming and not co.config.is_collective:
            for rank in self.members:
                peer = co.peers[rank]
                peer.throttled = m.ThrottleReason.BARRIER
                co.tell((rank,), m.Throttle, cycle=self.number, reason=m.ThrottleReason.BARRIER)
                co.emit(Emit("Throttle", {"rank": rank, "reason": "barrier"}))
        self.pending_since = co.now
        co.emit(Emit("AverageStart", {"cycle": self.number, "members": list(self.participants)}))
        if not self.forming:
            co.emit(Emit("Idle", {"cycle": self.number, "ms": idled(self), "held": co.desk.told_holds()}))

    @property
    def first_stage(self) -> Stage:
        """What a rank owes first after a request (M-10)."""
        return Stage.COLLECTIVE if self.co.config.is_collective else Stage.SNAPSHOT

    def _open(self) -> None:
        co = self.co
        self.reduced = self.post_norms = self.total_steps = None
        self.doubtful = ()
        gated = self.participants if self.forming else (*self.members, *self.awaited)
        self.owing = len(gated)  # nobody's acknowledgement of an earlier attempt is left
        if self.checking:
            return  # there is no round
        if self.forming:
            source = self.source
            members = tuple((r, co.peers[r].incarnation, 0) for r in self.observers if r == source)
            watchers = tuple((r, co.peers[r].incarnation) for r in self.observers if r != source)
        else:
            members = tuple([(r, co.peers[r].incarnation, self._limit(r)) for r in self.members])
            watchers = tuple((r, co.peers[r].incarnation) for r in self.observers)
        co.emit(OpenRound(self.key, self.attempt, members, watchers))

    @property
    def source(self) -> int | None:
        """Cycle 0: the lowest rank gives the initial state, or nobody where each keeps its own (M-6); in a run that
        forms once more one that holds the version (M-45)."""
        tail, peers, here = self.co.lost_tail, self.co.peers, () if self.checking else self.observers
        if tail.version is not None:
            here = tuple(r for r, life in tail.holders if self.takes_part(r) and peers[r].incarnation == life)
        return min(here, default=None)

    def overtaken(self, known: int) -> None:
        """M-45: an average of before is in no books. While the run forms its cycle 0 goes on as another attempt."""
        if self.forming:
            self.known = max(self.known, known)
            if self.pending:
                self.next_attempt = max(self.next_attempt, self.attempt + 1)
        else:
            self.number = max(self.number, known)
        self.co.couple("RankAhead")
        self.members = self.observers = self.awaited = self.participants = ()
        self.reduced = None

    def unformed(self) -> list[int]:
        """Who holds formation up (M-6): without the initial state its source alone; others can have another one."""
        if self.co.config.is_collective:
            return in_place.unformed(self)
        source = self.source if self.pending else self.co.lost_tail.giver  # M-45: nothing is armed without it
        if source is not None and self.reduced is None:
            return [source]
        return [rank for rank in self.co.alive if not self.co.peers[rank].acked]

    def _limit(self, rank: int) -> int:
        """R-4: steps dispatched to the incarnation and not merged."""
        held = self.co.book.ranks.get(rank)
        return 0 if held is None else held.trained_batches + held.in_flight_batches

    def ask(self, ranks: tuple[int, ...]) -> None:
        """The request of this cycle and attempt, for the first time or as a nudge (M-13)."""
        co = self.co
        if co.config.is_collective:
            co.tell(ranks, m.SyncNow, cycle=self.number, attempt=self.attempt, session_id=co.sessions.number,
                    version=self.version + (0 if self.forming else 1), global_step=self.global_step)  # fmt: skip
            return
        givers = {self.source} if self.forming else set(self.members)
        for gives, alike in groupby(ranks, givers.__contains__):
            co.tell(tuple(alike), m.RequestParams, cycle=self.number, attempt=self.attempt, observer=not gives)

    # --- evidence ------------------------------------------------------------------------------------------------

    def record_ack(self, event: m.SyncAck) -> None:
        """C-6: the only evidence that can finish a cycle. It adds no step."""
        peer = self.co.peers[event.rank]
        if self.owes(event.rank):
            self.owing -= 1
            if self.owing == 0:
                self.co.urgent = True
        peer.acked, peer.outcome = True, event.outcome
        peer.divergence, peer.pre_norm, peer.post_norm = event.divergence, event.pre_norm, event.post_norm
        peer.digest = event.digest
        peer.sync_lag_ms = (self.co.now - self.armed_at) * 1000
        peer.refusal = event.refusal
        if self.co.config.is_collective:
            peer.shipped, self.total_steps = event.shipped_steps, event.total_steps
            peer.last_step_count = max(peer.last_step_count, event.step_count)
        self._evidence(peer, "SyncAck")
        peer.climb.complete(Stage.COLLECTIVE if self.co.config.is_collective else Stage.ACK, None, self.co.now)
        self.last_ack_at = self.co.now
        if event.post_norm is not None:
            digests.compare_norms(self, event.post_norm)

    def admit_contribution(self, event: m.SnapshotReady) -> None:
        """C-7, then R-11: what the report lane says may count in the sum."""
        peer = self.co.peers[event.rank]
        peer.shipped, peer.copy_ms = event.shipped_steps, event.copy_ms
        peer.upload_ms = (self.co.now - self.armed_at) * 1000
        self._evidence(peer, "SnapshotReady")
        uploads = among(event.rank, self.members) or (self.forming and not self.checking)
        then = Stage.UPLOAD if uploads else Stage.ACK if self.reduced is not None or self.checking else None
        peer.climb.complete(Stage.SNAPSHOT, then, self.co.now)
        if uploads:
            self.co.emit(AdmitContribution(self.key, self.attempt, event.rank, event.shipped_steps))

    def record_progress(self, event: RoundProgress) -> None:
        """Moving bytes push the ceiling out (M-15) and are progress of their rank (M-2)."""
        peer = self.co.peers.get(event.rank)
        if peer is None or not self.takes_part(event.rank):
            return
        if event.bytes > peer.bytes_in:
            peer.bytes_in = event.bytes
            self._evidence(peer, "RoundProgress")
            peer.climb.evidence_at = self.co.now
        if event.complete:
            peer.climb.complete(Stage.UPLOAD, None, self.co.now)

    def record_reduced(self, event: RoundReduced) -> None:
        """R-2: from here on the accepted set is known."""
        self.reduced = event
        self.last_evidence_at = self.co.now
        for rank in self.participants:
            if self.takes_part(rank) and self.co.peers[rank].shipped is not None:
                self.co.peers[rank].climb.enter(Stage.ACK, self.co.now)
        for rank, why in event.refused:
            self.co.count_refused(rank, why.name.lower())

    def _evidence(self, peer: Any, kind: str) -> None:
        self.last_evidence_at = self.co.now
        peer.progressed(kind)

    # --- again, or never -----------------------------------------------------------------------------------------

    def try_again(self, event: Any) -> None:
        """C-39: a new attempt of the same cycle with who is left; ranks ship the retained copy (W-10)."""
        self._retry(getattr(event, "cause", "the round failed"))

    def renew(self, event: Any) -> None:
        """C-38: the communicator is done for; the next attempt begins with the next session (M-30)."""
        cause = getattr(event, "cause", "the round failed")
        self.co.emit(Alert("refused", f"cycle {self.number}", f"attempt {self.attempt} of the collective: {cause}"))
        self.co.sessions.call_failed()

    def go_on(self) -> list[int]:
        """C-38: the next attempt, with the survivors and with whoever has come meanwhile; NewSession is the request.
        After a restart it is attempt 0 of this generation (M-43). Gives who has come."""
        self._prune()
        come = [r for r in self.co.alive if r not in self.participants and joining.may_observe(self.co.peers[r])]
        for rank in come:
            self.co.peers[rank].open_slots(self.first_stage)
        self.gone = ()
        self.observers = tuple(sorted((*self.observers, *come)))
        self.participants = tuple(sorted((*self.participants, *come)))
        self._begin_attempt()
        return come

    def _retry(self, cause: str) -> None:
        text = f"attempt {self.attempt + 1} of the data round: {cause}"
        self.co.emit(Alert("refused", f"cycle {self.number}", text))
        self._begin_attempt()
        self.ask(self.participants)

    def _begin_attempt(self) -> None:
        if self.unopened:
            self.unopened, self.pending_since, self.last_evidence_at = False, self.co.now, self.co.now
        else:
            self.attempt += 1
        self._clear(self.first_stage)
        self._open()

    def _clear(self, owed: Stage | None) -> None:
        """Nothing of an earlier attempt counts: who has left it is out, what others had shipped returns to them."""
        co = self.co
        self._prune()
        co.book.resolve_limbo({})
        co.returned = True
        for rank in self.participants:
            co.peers[rank].clear_evidence()
            co.peers[rank].climb.enter(owed, co.now)

    def _prune(self) -> None:
        """Who has left takes no part in the next attempt."""
        self.members = tuple(r for r in self.members if r not in self.gone)
        self.observers = tuple(r for r in self.observers if r not in self.gone)
        self.awaited = tuple(r for r in self.awaited if r not in self.gone)
        self.participants = tuple(r for r in self.participants if r not in self.gone)

    def expel(self, event: m.RoundFailed) -> None:
        """R-18: a rank that cannot average must go, not park."""
        self.co.lose(event.rank, f"cannot average: {event.cause}")

    def refuse_states(self, event: object) -> None:
        """M-6: whose state the run is to begin from is for people to say; who has which is shown to them."""
        digests.refuse(self)

    def settle_digests(self, event: object) -> None:
        """C-18: the minority goes; without a majority the cycle is repeated once, then the run ends."""
        wrong = digests.minority(self)
        if wrong is not None:
            for rank in wrong:
                self.co.emit(Alert("digest_mismatch", f"rank {rank}", "was delivered other bytes", critical=True))
                self.co.lose(rank, "digest")
        elif not self.split_repeated:
            self.split_repeated = True
            self._retry("the digests of the consensus differ and no majority agrees")
        else:
            self.co.condemn(m.SaveReason.CONSENSUS_MISMATCH, "the digests of the consensus differ again")

    def member_gone(self, rank: int) -> None:
        """C-21: a member that left is waited for no longer. While forming, the next rank takes the place of a source
        that is gone (M-6): what it had shipped may be torn. If it was the last in the cycle that holds the version, one
        that came later gives it in an arm of its own; without one the run is over (M-45)."""
        source = self.source
        if self.owes(rank):
            self.owing -= 1
        self.gone = (*self.gone, rank)
        if self.forming and rank == source and self.co.alive and not self.co.config.is_collective:
            self.co.run.form_anew()
            if self.source is not None:
                return self._retry(f"rank {rank}, which gave the initial state, is gone")
            self.overtaken(self.known)

    def end_joiners(self, event: object) -> None:
        """M-26: who had its cycles and a ceiling on top goes; the run does not end for it."""
        held = in_place.outside(self) if self.co.config.is_collective else [r for r in self.awaited if self.owes(r)]
        for rank in held:
            self.co.lose(rank, "join_timeout: it did not take over the consensus in time")
        self.last_evidence_at = self.co.now  # the others have their time for the cycle without it

    def abort(self, event: object) -> None:
        """The round will not be finished."""
        self.co.emit(AbortRound(self.key))

    def stall(self, event: object) -> None:
        """C-16, once: dump, then save and stop."""
        co = self.co
        waited = co.now - (max(self.pending_since, self.last_evidence_at) if self.pending else self.idle_since)
        co.emit(Emit("Stalled", {"cycle": self.number, "waited_s": waited, "dump": co.dump()}))
        co.emit(Alert("stalled", f"cycle {self.number}", f"no evidence for {waited:.0f} s", critical=True))
        co.run.begin_save(m.SaveReason.REDUCE_STALL, f"cycle {self.number} made no progress for {waited:.0f} s")

    def give_up(self, event: Any) -> None:
        """M-21, D-12, C-18: save what there is and stop."""
        self.co.run.begin_save(event.reason, event.text)

    def finish(self, event: object) -> None:
        """C-15, see finish.py. The phase flips after it, whatever fails inside (C-13)."""
        from .finish import finish_cycle, finish_formation

        if self.forming:
            finish_formation(self)
        else:
            finish_cycle(self)
