"""The coordinator: decides when to average and who trains which samples (protocol section 4).

One object composes the machines of a run: a `Peer` for each incarnation, one `Cycle`, one `Run`, over a `Book` and a
`Desk` (dispatch), a `Balancer`, a guard and a meta-controller. `handle` takes one event, then goes through the pass of
C-3, which is a table of its own, as is all that these machines mean for each other (`table_joint.py`); `take_ready`
gives the effects, in order; `poll_timeout` says when the next `Tick` is due.

    coordinator = Coordinator(Config(batch_size=32, num_epochs=3, target_ranks=2))
    coordinator.handle(HelloReceived(link, hello), now)
    for effect in coordinator.take_ready().effects: ...

The common event is a `Batch`. It updates counters and ends there unless one of them says that a gate may have opened
(C-4); an event that may matter to others takes the whole pass, which may look at every rank. Who comes and goes is in
`membership.py`, what is counted before a gate opens in `gates.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from . import attachment, gates, ladder, membership, seldom
from . import messages as m
from .actions import Actions
from .attachment import Attachment
from .cadence import Balancer
from .config import Config
from .cycle import Cycle
from .dispatch.book import Book
from .dispatch.desk import Desk
from .dump import state_dump
from .effects import Alert, CloseLink, Ready, SendFenced
from .engine import Engine, Kind, Row
from .errors import LocalProtocolError
from .events import (
    ConsensusSaved,
    CoordinatorEvent,
    MetaWritten,
    Received,
    RoundAborted,
    RoundProgress,
    RoundReduced,
    Tick,
)
from .given import OF_COORDINATOR, check_parts
from .guard import Guard
from .instants import LATEST, late_after, wrong_time
from .joining import Joins
from .joint import JointEngine
from .ledger import Resume, take_over
from .lost_tail import LostTail
from .peer import Peer
from .phases import ALIVE, CyclePhase, RunPhase
from .policies import Cadence, Policies
from .policy_choice import choose
from .retention import CONFIRM_EVERY
from .roles import Roles
from .run import Run
from .schema import Schema
from .sessions import Sessions
from .snapshots import of_coordinator, restore_coordinator, unkept
from .table_joint import JOINT
from .tables import engine_for, joint_for
from .telling import tell_many, tell_one
from .values import maker

__all__ = ["Coordinator"]

FENCED_REPLY_S = 1.0
"""At most one Fenced reply per second and session (N-6)."""

REPORT_NAMES: dict[type, str] = {report: report.__name__ for report in m.REPORTS}
CYCLE_REPORTS = frozenset(REPORT_NAMES.values()).intersection(JOINT.occurrences)
"""Reports whose second half is decided by the cycle."""
QUIET = frozenset({"Batch", "Heartbeat", "LrUpdate", "Metrics", "ResourceSample", "SnapshotReady", "SyncAck"})
"""Reports that open no gate unless their row says so (`urgent`, C-4)."""
OF_REPORTS = {kind: (name, name in CYCLE_REPORTS, name in QUIET) for kind, name in REPORT_NAMES.items()}
"""All of this about each, looked up once."""
NO_PART_OF_A_SAVE = frozenset({
    "Batch", "EpochFnElapsed", "EvalResult", "Intent", "LrUpdate", "Metrics", "SessionIdGenerated",
})  # fmt: skip
"""Reports that change nothing once the run has stalled (C-44). Those of `CYCLE_REPORTS` the cycle itself ignores."""
ROUND_EVENTS = (RoundReduced, RoundAborted, RoundProgress)
FILE_EVENTS = (ConsensusSaved, MetaWritten)
ACCEPT, STALLED, STOPPED = Kind.ACCEPT, CyclePhase.STALLED, RunPhase.STOPPED
"""Asked for with every event; see `phases.py`."""
new_ready: Callable[..., Ready] = maker(Ready)


class Coordinator:
    """See the module. `engine` "transitions" runs every machine on the reference implementation of the same tables,
    `guard` takes the place of the one that the config names, `policies` may replace whatever decides; `ConfigError` if
    one that the config names cannot be loaded. `resume` is the record of the run to go on with (K-12);
    `CheckpointError` if the two do not go together. `host` is the name of this machine, as ranks on it say it (M-30).
    """

    __slots__ = (
        "actions", "alive", "balancer", "book", "condemned", "config", "cycle", "cycle_engine", "dataset", "deadline",
        "deaths", "desk", "dump_due", "fenced", "fenced_told", "generation", "guard", "handling", "host", "joins",
        "joint", "late_after", "liveness", "lost", "lost_sends", "lost_tail", "low", "meta", "movers", "next_beacon",
        "now", "outbox", "park_above", "peer_engine", "peers", "policies", "records", "refused", "resume", "returned",
        "roles", "run", "run_engine", "save_issued", "schema", "schema_hash", "seats", "sessions", "short", "starting",
        "stopping", "urgent", "violations", "voters",
    )  # fmt: skip

    def __init__(self, config: Config, *, now: float = 0.0, engine: str = "compiled",
                 guard: Guard | None = None, resume: Resume | None = None,
                 policies: Policies | None = None, host: str = "") -> None:  # fmt: skip
        given = Policies() if policies is None else policies
        check_parts(config, now, guard, resume, given)
        self.config = config
        self.host = host
        self.generation = 1
        self.now = now
        self.outbox: list[Any] = []
        self.records: list[tuple[float, CoordinatorEvent]] = []
        self.peers: dict[int, Peer] = {}
        self.seats: list[int] = []
        self.alive: list[int] = []
        self.voters: list[int] = []
        self.run = Run(self, opened_at=now)
        self.cycle = Cycle(self)
        self.desk = Desk(self)
        self.roles = Roles(self)
        self.actions = Actions(self)
        self.joins = Joins(self)
        self.lost_tail = LostTail(self)
        self.sessions = Sessions(self)
        self.book = Book(0, 1, 1, 0, True)
        self.balancer: Cadence = Balancer(ranks=[])
        self.guard, self.meta, self.policies = choose(config, given, guard)
        self.schema: Schema | None = None
        self.schema_hash = b""
        self.dataset: bytes | None = None
        self.short = 0
        self.movers = 0
        self.low = math.inf
        self.park_above = math.inf
        self.urgent = False
        self.returned = False
        self.stopping = False
        self.save_issued = False
        self.starting = False
        self.deaths = 0
        self.lost_sends = 0
        self.fenced: dict[tuple[int, str], int] = {}
        self.fenced_told: dict[tuple[int, str], int] = {}
        self.refused: dict[tuple[int, str], int] = {}
        self.violations = 0
        self.lost: list[tuple[int, int, str]] = []
        self.condemned: membership.Sentence | None = None
        self.deadline = now
        self.late_after = math.inf
        self.next_beacon = now + config.beacon_s
        self.dump_due = now + config.scaled(config.stall_dump_s)
        self.liveness: list[tuple[float, int, int]] = []
        self.handling = False
        self.resume = resume
        self.peer_engine: Engine = engine_for("peer", engine)
        self.cycle_engine: Engine = engine_for("cycle", engine)
        self.run_engine: Engine = engine_for("run", engine)
        self.joint: JointEngine = joint_for(engine)
        take_over(self)

    # --- the calls of every machine ------------------------------------------------------------------------------

    def handle(self, event: CoordinatorEvent, now: float) -> None:
        """Take one event at monotonic second `now`. Raises `LocalProtocolError`, state unchanged, on local misuse;
        nothing a peer sends makes it raise (I22)."""
        if self.handling:
            raise LocalProtocolError("handle was called from inside handle; queue the event (N-12)")
        try:
            if now.__class__ is bool or not self.now <= now <= LATEST:
                raise wrong_time(self.now, now)
        except TypeError:
            raise wrong_time(self.now, now) from None
        received = event.__class__ is Received
        if not received and not OF_COORDINATOR[event.__class__](event):
            OF_COORDINATOR.check(event)
        self.handling, self.now = True, now
        self.records.append((now, event))
        try:
            if self.run.phase is STOPPED:
                seldom.after_the_end(self, event)
                return
            if now > self.late_after:
                seldom.was_away(self)
            if received:
                self._receive(event.message)  # type: ignore[union-attr]
            else:
                self._other(event)
            # Whatever the event was, the pass is due when a deadline has passed (C-4): not only a Tick sees the time.
            if self.urgent or now >= self.deadline:
                self._pass()
        finally:
            self.handling = False

    def take_ready(self) -> Ready:
        """The events since the last call, for the journal (M-40), and their effects, to be performed in order."""
        ready = new_ready(tuple(self.records), tuple(self.outbox))
        self.records.clear()
        self.outbox.clear()
        return ready

    def poll_timeout(self) -> float | None:
        """The monotonic second at which a `Tick` is due; None after the end."""
        return None if self.run.phase is STOPPED else self.deadline

    def explain(self, rank: int | None = None) -> list[Any]:
        """Why what does not move does not move (O-4); see `explain.py`."""
        from .explain import explain

        return explain(self, rank)

    def snapshot(self) -> tuple[Any, ...]:
        """The whole state as one plain, versioned, hashable value: equal iff the states are; see `snapshots.py`."""
        return of_coordinator(self)

    @classmethod
    def restore(cls, config: Config, snapshot: Iterable[Any], *, engine: str = "compiled",
                guard: Guard | None = None, policies: Policies | None = None) -> Self:  # fmt: skip
        """The machine that a snapshot was made of: the same events have the same effects from here on (I25, N-13).
        `config`, `guard` and `policies` are those it was made with. Raises `CheckpointError`, naming both values, for
        the snapshot of another run, another format or a damaged one."""
        made = cls(config, engine=engine, guard=guard, policies=policies)
        restore_coordinator(made, snapshot)
        return made

    @classmethod
    def restart(cls, config: Config, snapshot: Iterable[Any], records: Iterable[tuple[float, CoordinatorEvent]],
                now: float, *, undone: Iterable[Any] = (), engine: str = "compiled", guard: Guard | None = None,
                policies: Policies | None = None) -> Self:  # fmt: skip
        """A run whose coordinator has died, in its next generation (M-40): `snapshot` is the last one that was kept,
        `records` every event since, `undone` the effects of the newest batch. See `recovery.py`."""
        from .recovery import restart

        snapshot = tuple(snapshot)
        made = cls.restore(config, snapshot, engine=engine, guard=guard, policies=policies)
        return restart(made, records, now, undone, unkept(snapshot))

    @property
    def alive_count(self) -> int:
        """Joining ranks, voters and lagging ones (M-1)."""
        return len(self.alive)

    @property
    def finished(self) -> bool:
        """The run is over; nothing follows."""
        return self.run.phase == RunPhase.STOPPED

    # --- input: reports ------------------------------------------------------------------------------------------

    def _receive(self, message: Any) -> None:
        """Steps 1 to 3 of the pass for a report: fence, stamp, evidence."""
        known = OF_REPORTS.get(message.__class__)
        if known is None:
            self._not_a_report(message)
            return
        name, of_cycle, quiet = known
        peer = self.peers.get(message.rank)
        if message.run_id != self.config.run_id:
            self.fence(message.rank, "other_run")
            return
        if peer is None or message.incarnation != peer.incarnation or (
            message.generation != self.generation and not self._sent_again(message, peer)
        ):  # fmt: skip
            self._tell_stale(message, peer)
            return
        if peer.phase in ALIVE:
            peer.last_seen = self.now  # M-2: one that is said again is a frame of it, too
            number, due = message.report_seq, peer.report_seq + 1
            if number < due:
                self.fence(message.rank, "repeated")  # M-42: sent again, or overtaken by what was sent again
                return
            if number != due:
                self._violation(peer, f"report {due} is missing, {number} came")
                return
            peer.report_seq = due
            if not due % CONFIRM_EVERY and peer.attached:
                self._say_alive((peer.rank,))  # N-9
            if message.control_seq > peer.handled_seq and not peer.acknowledge(message.control_seq):
                self._violation(peer, f"control message {message.control_seq} is confirmed and was never sent")
                return
            if of_cycle and message.generation != self.generation:
                self.fence(message.rank, name)  # M-43: of a round that ended with the life of a coordinator
                return
            if self.cycle.phase is STALLED and name in NO_PART_OF_A_SAVE:
                return  # C-44: that it came is all there is to it
        row = self.peer_engine.fire(peer, name, message)
        if of_cycle and row.kind is ACCEPT:
            row = self.couple(name, peer, message) or row
        if row.kind is ACCEPT:
            if not quiet:
                self.urgent = True
        elif row.kind is Kind.FENCED:
            self.fence(message.rank, name)
        elif row.kind is Kind.REFUSED:
            self.count_refused(message.rank, f"{name}: {row.note or row.rule}")
        elif row.kind is Kind.VIOLATION:
            self._violation(peer, f"{name}: {row.note} ({row.rule})")

    def _sent_again(self, message: m.Report, peer: Peer) -> bool:
        """M-42: made in an earlier generation, by a life that has resumed in this one."""
        return peer.attached and peer.born <= message.generation < self.generation

    def fence(self, rank: int, why: str) -> None:
        """Count stale evidence; it changes nothing else (I3)."""
        self.fenced[rank, why] = self.fenced.get((rank, why), 0) + 1

    def count_refused(self, rank: int, why: str) -> None:
        """Count what was understood and turned down (N-7)."""
        self.refused[rank, why] = self.refused.get((rank, why), 0) + 1

    def _tell_stale(self, message: m.Report, peer: Peer | None) -> None:
        self.fence(message.rank, "stale")
        if peer is not None and self.now >= peer.fenced_told_at + FENCED_REPLY_S:
            peer.fenced_told_at = self.now
            self.emit(SendFenced(message.rank, message.incarnation, attachment.fenced(self, peer, "stale")))

    def _not_a_report(self, message: Any) -> None:
        """A kind that only flows the other way, or one that opens a session: impossible here in any order (N-7)."""
        peer = self.peers.get(getattr(message, "rank", m.NO_RANK))
        if peer is not None and getattr(message, "incarnation", None) == peer.incarnation:
            self._violation(peer, f"a {type(message).__name__} is nothing a rank can send")
        else:
            self.violations += 1

    def _violation(self, peer: Peer, text: str) -> None:
        """What no correct peer sends ends its session, nobody else's (N-7, I22)."""
        self.violations += 1
        if peer.alive:
            self.emit(Alert("refused", f"rank {peer.rank}", f"broke the protocol: {text}"))
            self.emit(CloseLink(peer.rank, peer.incarnation, text))
            self.lose(peer.rank, f"broke the protocol: {text}")

    # --- input: everything else ----------------------------------------------------------------------------------

    def _other(self, event: Any) -> None:
        if isinstance(event, Tick):
            self.urgent = self.urgent or self.now >= self.deadline
        elif isinstance(event, ROUND_EVENTS) and event.key.is_transfer:
            self.joins.arrived(event)
        elif isinstance(event, ROUND_EVENTS):
            row = self.cycle_engine.fire(self.cycle, type(event).__name__, event)
            if row.kind == Kind.FENCED:
                self.fence(m.NO_RANK, type(event).__name__)
            self.urgent = self.urgent or not isinstance(event, RoundProgress)
        else:
            self.urgent = True
            seldom.take(self, event)

    # --- the pass (C-3) ------------------------------------------------------------------------------------------

    def _pass(self) -> None:
        self.joint.settle(self)

    def beacon(self) -> None:
        """N-8: beacons leave every `beacon_s`, whatever the coordinator waits for."""
        if self.now < self.next_beacon:  # to a rank without a link it would say nothing when it arrives
            return
        self.next_beacon = self.now + self.config.beacon_s
        linked = [rank for rank in self.alive if self.peers[rank].attached]
        self._say_alive(linked)

    def _say_alive(self, ranks: Sequence[int]) -> None:
        """A beacon: as any message, it confirms the reports that are here (N-9)."""
        self.tell(ranks, m.Beacon, run_phase=int(self.run.phase), cycle_phase=int(self.cycle.phase),
                  cycle=self.cycle.number)  # fmt: skip

    def set_deadline(self) -> None:
        """What is exceeded strictly is due just after its instant, or a Tick at the instant would change nothing."""
        dump = math.nextafter(self.dump_due, math.inf)
        due = [self.next_beacon, ladder.next_due(self), attachment.next_due(self), dump]
        due += [*self.run.deadlines(), *self.actions.deadlines()]
        ceiling = gates.ceiling(self)
        if ceiling is not None:
            due.append(math.nextafter(ceiling, math.inf))
        if self.sessions.deadline is not None:
            due.append(self.sessions.deadline)
        if self.liveness:
            due.append(math.nextafter(self.liveness[0][0], math.inf))
        self.deadline = min(due)
        self.late_after = late_after(self.deadline, self.config.staleness_s)

    # --- what the machines call ----------------------------------------------------------------------------------

    def emit(self, effect: Any) -> None:
        """Append one effect."""
        self.outbox.append(effect)

    def tell(self, ranks: Sequence[int], kind: type[m.Control], own: Mapping[str, Sequence[Any]] | None = None,
             **fields: Any) -> None:  # fmt: skip
        """The one way out for a message: the same to each of these ranks, in this order, stamped, numbered and kept
        (N-9, N-11, M-42), but for what is each rank's own: for each field in `own` a value per rank. A plan in it is
        reserved (N-10). What is said alike is made and weighed once."""
        if own or len(ranks) != 1:
            tell_many(self, ranks, kind, own or {}, fields)
        else:
            tell_one(self, self.peers[ranks[0]], kind, fields)

    def broadcast_epoch(self, epoch: int, metrics: dict[str, float | None]) -> None:
        """K-20: the cohort's view of a closed epoch to everyone alive."""
        self.tell(self.alive, m.EpochAggregated, epoch=epoch, metrics=metrics)

    def couple(self, occurrence: str, peer: Attachment | None = None, event: object = None) -> Row | None:
        """Something has happened that another machine has to hear of at once: `table_joint.py` says which, and what it
        does. Returns the row by which the last event that was fired was taken."""
        return self.joint.fire(self, occurrence, peer, event)

    def lose(self, rank: int, cause: str) -> None:
        """Note that an incarnation has ended; it is buried in step 4 of this pass or of its next round."""
        self.lost.append((rank, self.peers[rank].incarnation, cause))
        self.urgent = True

    def condemn(self, reason: m.SaveReason, text: str) -> None:
        """The run cannot go on; acted on in the next round of the pass."""
        self.condemned = membership.Sentence(reason, text)
        self.urgent = True

    def promote(self, peer: Peer) -> None:
        """An observer becomes a voter (M-25)."""
        self.couple("ConsensusHeld", peer)

    def withdraw(self, peer: Peer) -> None:
        """A rank is excluded (M-14)."""
        membership.withdraw(self, peer)

    def departed(self, peer: Peer, reason: str) -> None:
        """An incarnation has left politely (M-8)."""
        membership.departed(self, peer, reason)

    def buried(self, peer: Peer, cause: str) -> None:
        """An incarnation has died (M-18)."""
        membership.buried(self, peer, cause)

    def shipped_by(self, rank: int) -> int:
        """Steps of a member's contribution; 0 if it never said (C-7). Of one that has left, what waits in limbo."""
        if rank in self.cycle.gone:
            return self.book.limbo_batches(rank)
        return self.peers[rank].shipped or 0

    def dump(self) -> dict[str, Any]:
        """The state of everything (O-8); see `dump.py`."""
        return state_dump(self)
