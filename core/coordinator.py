"""The coordinator: decides when to average and who trains which samples (protocol section 4).

One object composes the machines of a run: a `Peer` for each incarnation, one `Cycle`, one `Run`, over a `Book` and a
`Desk` (dispatch), a `Balancer`, a guard and a meta-controller. `handle` takes one event, then goes through the pass of
C-3 in its normative order; `take_ready` gives the effects, in order; `poll_timeout` says when the next `Tick` is due.

    coordinator = Coordinator(Config(batch_size=32, num_epochs=3, target_ranks=2))
    coordinator.handle(HelloReceived(link, hello), now)
    for effect in coordinator.take_ready().effects: ...

The common event is a `Batch`. It updates counters and ends there unless one of them says that a gate may have opened
(C-4); every other event takes the whole pass, which may look at every rank.
"""

from __future__ import annotations

import heapq
from typing import Any


from . import messages as m
from .cadence import Balancer
from .cadence_inputs import window_cap
from .config import Config
from .dispatch.book import Book
from .dispatch.desk import Desk
from .cycle import Cycle
from .door import refusal
from .effects import Admit, Alert, CloseLink, Emit, Ready, Refuse, RemoveFromRound, Send, SendFenced
from .engine import Kind
from .errors import LocalProtocolError
from .events import (
    CallbackFailed,
    ConsensusSaved,
    CoordinatorEvent,
    HelloReceived,
    LinkLost,
    MetaWritten,
    Operator,
    OperatorRequest,
    ProcessExited,
    Received,
    RoundAborted,
    RoundProgress,
    RoundReduced,
    SendFailed,
    Tick,
)
from .guard import GrowthGuard, Guard, LevelGuard, NoGuard, default_threshold
from .meta import MetaController
from .peer import Lost, Peer
from .phases import CyclePhase, PeerPhase, RunPhase
from .run import Run
from .schema import Schema, dataset_length
from .snapshots import freeze
from .tables import engine_for
from .values import value

__all__ = ["Coordinator"]

LATE_TICK_S = 2.0
"""A tick this late, or half the staleness, says that the coordinator itself was away (M-9)."""
FENCED_REPLY_S = 1.0
"""At most one Fenced reply per second and session (N-6)."""
PASS_LIMIT = 4096
"""Rounds of one pass: each buries at least one incarnation, so more than seats exist is a bug of ours."""
CYCLE_REPORTS = frozenset({"SyncAck", "SnapshotReady", "RoundFailed"})
HOT = frozenset({"Batch", "Heartbeat", "LrUpdate", "ResourceSample"})
"""Reports that open no gate unless they say so (`urgent`)."""


@value
class Verdict:
    """Why a run cannot go on (M-21, C-18, D-12)."""

    reason: m.SaveReason
    text: str


class Coordinator:
    """See the module. `engine` "transitions" runs every machine on the reference implementation of the same tables."""

    def __init__(self, config: Config, *, now: float = 0.0, engine: str = "compiled", guard: Guard | None = None) -> None:
        self.config = config
        self.generation = 1
        self.now = now
        self.outbox: list[Any] = []
        self.peers: dict[int, Peer] = {}
        self.seats: list[int] = []
        self.alive: list[int] = []
        self.voters: list[int] = []
        self.run = Run(self, opened_at=now)
        self.cycle = Cycle(self)
        self.desk = Desk(self)
        self.book = Book(0, 1, 1, 0, True)
        self.balancer = Balancer(ranks=[])
        self.guard: Guard = guard if guard is not None else _guard(config)
        self.meta = MetaController() if config.meta_controller else None
        self.schema: Schema | None = None
        self.schema_hash = b""
        self.dataset: bytes | None = None
        self.short = 0
        self.movers = 0
        self.urgent = False
        self.returned = False
        self.stopping = False
        self.save_issued = False
        self.starting = False
        self.deaths = 0
        self.lost_sends = 0
        self.fenced: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self.violations = 0
        self.lost: list[tuple[int, int, str]] = []
        self.condemned: Verdict | None = None
        self.deadline: float | None = now
        self.next_beacon = now + config.beacon_s
        self.liveness: list[tuple[float, int, int]] = []
        self.handling = False
        self.peer_engine = engine_for("peer", engine)
        self.cycle_engine = engine_for("cycle", engine)
        self.run_engine = engine_for("run", engine)

    # --- the calls of every machine ------------------------------------------------------------------------------

    def handle(self, event: CoordinatorEvent, now: float) -> None:
        """Take one event at monotonic second `now`. Raises `LocalProtocolError`, state unchanged, on local misuse;
        nothing a peer sends makes it raise (I22)."""
        if self.handling:
            raise LocalProtocolError("handle was called from inside handle; queue the event (N-12)")
        if now < self.now:
            raise LocalProtocolError(f"time went back from {self.now} to {now}; pass a monotonic clock")
        self.handling, self.now = True, now
        try:
            if event.__class__ is Received:
                self._receive(event.message)  # type: ignore[union-attr]
            else:
                self._other(event)
            if self.urgent and self.run.phase != RunPhase.STOPPED:
                self._pass()
        finally:
            self.handling = False

    def take_ready(self) -> Ready:
        """The effects since the last call, to be performed in order."""
        effects = tuple(self.outbox)
        self.outbox.clear()
        return Ready((), effects)

    def poll_timeout(self) -> float | None:
        """The monotonic second at which a `Tick` is due; None after the end."""
        return None if self.run.phase == RunPhase.STOPPED else self.deadline

    def explain(self, rank: int | None = None) -> list[Any]:
        """Why what does not move does not move (O-4); see `explain.py`."""
        from .explain import explain

        return explain(self, rank)

    def snapshot(self) -> tuple[Any, ...]:
        """Everything decided so far as nested tuples of plain values: equal iff the states are."""
        skip = ("co", "config")
        parts = (
            self.generation, self.peers, self.seats, self.alive, self.voters, self.run, self.cycle, self.desk,
            self.book, self.balancer, self.short, self.movers, self.stopping, self.save_issued, self.deaths,
            self.lost_sends, self.fenced, self.refused, self.violations,
        )  # fmt: skip
        return tuple(freeze(part, skip) for part in parts)

    @property
    def alive_count(self) -> int:
        """Joining ranks and voters (M-1)."""
        return len(self.alive)

    @property
    def finished(self) -> bool:
        """The run is over; nothing follows."""
        return self.run.phase == RunPhase.STOPPED

    # --- input: reports ------------------------------------------------------------------------------------------

    def _receive(self, message: Any) -> None:
        """Steps 1 to 3 of the pass for a report: fence, stamp, evidence."""
        peer = self.peers.get(message.rank)
        if message.run_id != self.config.run_id:
            self.fence("other_run")
            return
        if peer is None or message.generation != self.generation or message.incarnation != peer.incarnation:
            self._tell_stale(message, peer)
            return
        name = message.__class__.__name__
        if peer.alive:
            if message.report_seq != peer.report_seq + 1:
                self._violation(peer, f"report {peer.report_seq + 1} is missing, {message.report_seq} came")
                return
            peer.report_seq = message.report_seq
            peer.last_seen = self.now
            peer.acknowledge(message.control_seq)
        row = self.peer_engine.fire(peer, name, message)
        if row.kind == Kind.ACCEPT and name in CYCLE_REPORTS:
            row = self.cycle_engine.fire(self.cycle, name, message)
        if row.kind == Kind.FENCED:
            self.fence(name)
        elif row.kind == Kind.REFUSED:
            self.count_refused(peer.rank, f"{name}: {row.note or row.rule}")
        elif row.kind == Kind.VIOLATION:
            if row.rule.startswith("C-7"):
                self.emit(Alert("accounting", f"rank {peer.rank}", "shipped steps differ from the book"))
            self._violation(peer, f"{name}: {row.note} ({row.rule})")
        elif name not in HOT:
            self.urgent = True

    def fence(self, why: str) -> None:
        """Count stale evidence; it changes nothing else (I3)."""
        self.fenced[why] = self.fenced.get(why, 0) + 1

    def count_refused(self, rank: int, why: str) -> None:
        """Count what was understood and turned down (N-7)."""
        key = f"rank {rank}: {why}"
        self.refused[key] = self.refused.get(key, 0) + 1

    def _tell_stale(self, message: Any, peer: Peer | None) -> None:
        self.fence("stale")
        if peer is not None and self.now >= peer.fenced_told_at + FENCED_REPLY_S:
            peer.fenced_told_at = self.now
            self.emit(SendFenced(message.rank, message.incarnation, self.cycle.number, "stale"))

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
            self._tick()
            return
        self.urgent = True
        if isinstance(event, HelloReceived):
            self._knock(event)
        elif isinstance(event, (LinkLost, ProcessExited)):
            self._gone(event)
        elif isinstance(event, SendFailed):
            self._send_failed(event)
        elif isinstance(event, (RoundReduced, RoundAborted, RoundProgress)):
            row = self.cycle_engine.fire(self.cycle, type(event).__name__, event)
            if row.kind == Kind.FENCED:
                self.fence(type(event).__name__)
        elif isinstance(event, OperatorRequest):
            self._operate(event)
        elif isinstance(event, (ConsensusSaved, MetaWritten)):
            if event.error is not None:
                self.emit(Alert("checkpoint_failed", "averager", event.error))
            else:
                self.emit(Emit("CheckpointWritten", {"what": type(event).__name__, "version": event.version}))
        elif isinstance(event, CallbackFailed):
            self.emit(Alert("callback_failed", event.name, event.text))
        else:
            raise LocalProtocolError(f"{type(event).__name__} is not an event of the coordinator")

    def _tick(self) -> None:
        due = self.deadline
        if due is None or self.now < due:
            return
        self.urgent = True
        if self.now > due + max(LATE_TICK_S, self.config.staleness_s / 2):
            self._was_away()

    def _was_away(self) -> None:
        """M-9: judge nobody by the silence that was our own."""
        for rank in self.alive:
            self.peers[rank].last_seen = self.peers[rank].last_progress = self.now
        self.cycle.pending_since = self.cycle.last_evidence_at = self.cycle.idle_since = self.now

    def _knock(self, event: HelloReceived) -> None:
        reject = refusal(self, event.hello)
        if reject is not None:
            self.emit(Refuse(event.link, reject))
            self.emit(Emit("Refused", {"who": event.hello.host, "why": reject.text}))
            return
        hello = event.hello
        self.config = self.config.resolved(hello.wishes)
        self.schema, self.schema_hash, self.dataset = hello.schema, hello.schema_hash, hello.dataset_signature
        rank = hello.wanted_rank
        if rank is None:
            rank = next(r for r in range(len(self.peers) + 1) if r not in self.peers or not self.peers[r].alive)
        old = self.peers.get(rank)
        peer = Peer(self, rank, 1 if old is None else old.incarnation + 1, host=hello.host)
        peer.last_seen = peer.last_progress = self.now
        self.peers[rank] = peer
        self.seats = sorted({*self.seats, rank})
        self.alive = sorted([*self.alive, rank])
        heapq.heappush(self.liveness, (self.now + self.config.staleness_s, rank, peer.incarnation))
        world = self.config.target_ranks or max(len(self.seats), self.config.min_ranks)
        welcome = m.Welcome(
            rank=rank, incarnation=peer.incarnation, generation=self.generation, status=m.WelcomeStatus.FORMING,
            control_seq=0, report_seq=0, config=self.config.welcome(dataset_length(self.dataset), world),
        )  # fmt: skip
        self.emit(Admit(event.link, rank, peer.incarnation, welcome))
        self.emit(Emit("Joined", {"rank": rank, "incarnation": peer.incarnation, "host": hello.host}))

    def _gone(self, event: LinkLost | ProcessExited) -> None:
        """M-17: link or process ended without Exiting. Of who has left or died already it is nothing."""
        peer = self.peers.get(event.rank)
        if peer is None or peer.incarnation != event.incarnation or not peer.alive:
            return
        peer.attached = False
        if isinstance(event, ProcessExited):
            self.lose(event.rank, f"its process ended with status {event.exit_code}")
        else:
            self.lose(event.rank, event.cause or "its link was lost")

    def _send_failed(self, event: SendFailed) -> None:
        """N-10, C-14: undo what the message had reserved; nothing is sent on this link again."""
        rank, incarnation, number = event.token
        peer = self.peers.get(rank)
        if peer is None or peer.incarnation != incarnation or not peer.alive:
            return
        peer.attached = False
        self.lost_sends += 1
        plan_id = peer.tokens.pop(number, None)
        if plan_id is not None:
            self.desk.rollback(rank, plan_id)
        self.emit(Emit("SendFailed", {"rank": rank, "message": number}))
        if not (self.run.shutdown_issued or self.save_issued):
            self.emit(Alert("send_failed", f"rank {rank}", "a message could not be sent", critical=True))

    def _operate(self, event: OperatorRequest) -> None:
        if event.kind == Operator.STOP:
            self.run.request_stop("an operator asked")
        elif event.kind == Operator.START and self.run.phase == RunPhase.FORMING:
            if self.alive_count >= self.config.min_ranks:
                self.run.close_window()
        else:
            self.emit(Alert("unserved_role", "operator", f"{event.kind.name.lower()} cannot be served now"))

    # --- the pass (C-3) ------------------------------------------------------------------------------------------

    def _pass(self) -> None:
        for _ in range(PASS_LIMIT):
            self.urgent = False
            self._bury()
            self._check_recoverable()
            if self.run.phase == RunPhase.FORMING:
                self.run.form()
            if self.returned:
                self.returned = False
                self.desk.redistribute()
            self._judge()
            self.desk.serve_completions()
            self.run_engine.fire(self.run, "Judge", None)
            if not (self.lost or self.condemned or self.urgent):
                break
        self._beacon()
        self._set_deadline()

    def _bury(self) -> None:
        """Step 4: reported deaths first, then staleness (M-18); each in its own step."""
        while self.liveness and self.liveness[0][0] < self.now:
            _, rank, incarnation = heapq.heappop(self.liveness)
            peer = self.peers[rank]
            if peer.incarnation != incarnation or not peer.alive:
                continue
            due = peer.last_seen + self.config.staleness_s
            if due < self.now:
                self.lose(rank, f"silent for {self.now - peer.last_seen:.1f} s")
            else:
                heapq.heappush(self.liveness, (due, rank, incarnation))
        lost, self.lost = self.lost, []
        for rank, incarnation, cause in lost:
            if self.peers[rank].incarnation == incarnation:
                self.peer_engine.fire(self.peers[rank], "Lost", Lost(cause))

    def _check_recoverable(self) -> None:
        """M-21, in this order, from Training on until a shutdown is issued."""
        verdict, self.condemned = self.condemned, None
        if self.run.phase != RunPhase.TRAINING or self.save_issued or self.run.shutdown_issued:
            return
        limit = self.config.max_failure
        if isinstance(limit, float):
            limit = -int(-limit * len(self.seats) // 1)
        if verdict is None and limit is not None and self.deaths >= limit:
            verdict = Verdict(m.SaveReason.MAX_FAILURE, f"{self.deaths} ranks died, max_failure is {limit}")
        if verdict is None and not self.voters:
            verdict = Verdict(m.SaveReason.ALL_RANKS_LOST, "no rank is left to go on with")
        if verdict is None and self.alive_count < self.config.min_ranks:
            verdict = Verdict(
                m.SaveReason.SINGLE_SURVIVOR,
                f"{self.alive_count} ranks are left, min_ranks is {self.config.min_ranks}",
            )
        if verdict is not None:
            self.cycle_engine.fire(self.cycle, "Unrecoverable", verdict)

    def _judge(self) -> None:
        """Steps 6 to 9: lead limit, finish, ceilings, arm."""
        if self.run.phase not in (RunPhase.FORMING, RunPhase.TRAINING):
            return
        self._count_gate()
        if self.config.max_batch_diff is not None and self.run.phase == RunPhase.TRAINING:
            self.desk.limit_lead()
            self._count_gate()
        if self.cycle.phase == CyclePhase.PENDING:
            self.cycle_engine.fire(self.cycle, "Judge", None)
            if self.starting:
                self._start()
            self._count_gate()
        ceiling = self._ceiling()
        if ceiling is not None and self.now > ceiling:
            self.cycle_engine.fire(self.cycle, "Ceiling", None)
        if self.cycle.phase == CyclePhase.IDLE:
            self.cycle_engine.fire(self.cycle, "Judge", None)

    def _start(self) -> None:
        """Training begins (C-25): the book, the balancer, the first epoch."""
        self.starting = False
        config = self.config
        assert config.batch_size is not None and config.num_epochs is not None and self.dataset is not None
        picks = dataset_length(self.dataset) * config.repeats
        self.book = Book(picks, config.batch_size, config.epoch_splits, config.num_epochs, config.drop_last)
        given = config.speed_ratios
        self.balancer = Balancer(
            ranks=self.voters, anchor=config.first_anchor, min_anchor=config.first_min_anchor,
            max_anchor=config.max_anchor, overhead_target=config.overhead_target,
            growth_applies=config.policy != "sync", max_batch_diff=config.max_batch_diff,
            cap=window_cap(picks, config.epoch_splits, config.batch_size), relax_allowed=config.relax_up,
            speed_ratios=None if given is None else dict(enumerate(given)),
        )  # fmt: skip
        if config.policy == "async":
            for rank in self.voters:
                self.balancer.overshoot(rank, None, config.max_overshoot)
        if config.num_epochs > 0:
            self.desk.dispatch_epoch(0)

    def _count_gate(self) -> None:
        """The counters of C-4 anew, after something other than a step has changed."""
        short = movers = 0
        for rank in self.voters:
            peer = self.peers[rank]
            peer.quota = self.desk.quota(rank)
            lead = peer.throttled == m.ThrottleReason.LEAD
            peer.satisfied = peer.steps >= peer.quota or lead or self.desk.quiesced(rank)
            short += not peer.satisfied
            movers += peer.steps > 0
        self.short, self.movers = short, movers

    def _ceiling(self) -> float | None:
        """When no evidence becomes a stall (M-15, M-16), exceeded strictly; None when nothing is waited for."""
        if self.run.phase == RunPhase.FORMING:
            return None
        if self.cycle.phase == CyclePhase.PENDING:
            return max(self.cycle.pending_since, self.cycle.last_evidence_at) + self.config.reduce_ceiling
        if self.cycle.phase != CyclePhase.IDLE or self.run.phase != RunPhase.TRAINING:
            return None
        owing = [self.peers[r] for r in self.voters if not self.peers[r].satisfied]
        if not owing:
            return None
        limit = self.config.window_ceiling
        if any(peer.total_steps == 0 for peer in owing):
            limit = max(limit, self.config.scaled(self.config.first_step_s))
        return max(self.cycle.idle_since, max(peer.last_progress for peer in owing)) + limit

    def _beacon(self) -> None:
        """N-8: beacons leave every `beacon_s`, whatever the coordinator waits for."""
        if self.now < self.next_beacon:
            return
        self.next_beacon = self.now + self.config.beacon_s
        for rank in self.alive:
            self.send(self.peers[rank], m.Beacon, run_phase=int(self.run.phase), cycle_phase=int(self.cycle.phase),
                      cycle=self.cycle.number)  # fmt: skip

    def _set_deadline(self) -> None:
        due = [self.next_beacon, *self.run.deadlines()]
        ceiling = self._ceiling()
        if ceiling is not None:
            due.append(ceiling)
        if self.liveness:
            due.append(self.liveness[0][0])
        self.deadline = min(due)

    # --- what the machines call ----------------------------------------------------------------------------------

    def emit(self, effect: Any) -> None:
        """Append one effect."""
        self.outbox.append(effect)

    def send(self, peer: Peer, kind: type[m.Control], **fields: Any) -> None:
        """One message to one incarnation, stamped and numbered; a plan in it is reserved under its number (N-10)."""
        if not peer.alive or not peer.attached:
            return
        peer.control_seq += 1
        plan = fields.get("plan") or fields.get("next_plan")
        if plan is not None:
            peer.tokens[peer.control_seq] = plan.plan_id
        message = kind(
            run_id=self.config.run_id, generation=self.generation, rank=peer.rank, incarnation=peer.incarnation,
            control_seq=peer.control_seq, report_seq=peer.report_seq, **fields,
        )  # fmt: skip
        self.emit(Send(peer.rank, peer.incarnation, message, (peer.rank, peer.incarnation, peer.control_seq)))

    def broadcast_epoch(self, epoch: int, metrics: dict[str, float | None]) -> None:
        """K-20: the cohort's view of a closed epoch to everyone alive."""
        for rank in self.alive:
            self.send(self.peers[rank], m.EpochAggregated, epoch=epoch, metrics=metrics)

    def fire_run(self, name: str) -> None:
        """An internal event of the run machine."""
        self.run_engine.fire(self.run, name, None)

    def lose(self, rank: int, cause: str) -> None:
        """Note that an incarnation has ended; it is buried in step 4 of this pass or of its next round."""
        self.lost.append((rank, self.peers[rank].incarnation, cause))
        self.urgent = True

    def condemn(self, reason: m.SaveReason, text: str) -> None:
        """The run cannot go on; acted on in the next round of the pass."""
        self.condemned = Verdict(reason, text)
        self.urgent = True

    def promote(self, peer: Peer) -> None:
        """An observer becomes a voter (M-25)."""
        self.peer_engine.fire(peer, "Promoted", None)
        self.voters = sorted([*self.voters, peer.rank])

    def shipped_by(self, rank: int) -> int:
        """Steps of a member's contribution; 0 if it never said (C-7)."""
        return self.peers[rank].shipped or 0

    def left(self, peer: Peer) -> None:
        """M-8 and M-18.3 to 5: no longer alive, nothing is waited for, what it holds returns."""
        self.run.text += "" if not peer.steps else f"; rank {peer.rank} left with {peer.steps} steps unmerged"
        self._remove(peer)

    def buried(self, peer: Peer, cause: str) -> None:
        """M-18: the chain of a death, for one rank."""
        quiet = self.run.shutdown_issued or self.save_issued
        self.deaths += 1
        self.emit(Emit("Died", {"rank": peer.rank, "incarnation": peer.incarnation, "cause": cause}))
        if not quiet:
            self.emit(Alert("rank_lost", f"rank {peer.rank}", cause, critical=True))
        self._remove(peer)
        for rank in self.alive:
            self.send(self.peers[rank], m.DeclareDead, dead_rank=peer.rank, dead_incarnation=peer.incarnation)
        self.balancer.forget(peer.rank)
        self.emit(CloseLink(peer.rank, peer.incarnation, cause))
        self.run.dead(peer)

    def _remove(self, peer: Peer) -> None:
        rank = peer.rank
        owing = self.cycle.owes(rank)
        self.alive = [r for r in self.alive if r != rank]
        self.voters = [r for r in self.voters if r != rank]
        if self.cycle.pending and rank in self.cycle.participants:
            self.emit(RemoveFromRound(self.cycle.key, rank))
            self.cycle.member_gone(rank, owing)
            reduced = self.cycle.reduced
            known_out = reduced is not None and rank not in reduced.accepted
            if peer.shipped and not known_out:
                self.book.into_limbo(rank, peer.shipped)
        returned = self.book.forfeit(rank)
        peer.tokens.clear()
        peer.steps = 0
        peer.attached = False
        self.returned = True
        if returned:
            self.emit(Emit("Returned", {"rank": rank, "batches": returned, "replayed": self.book.replayed}))
        self.desk.refresh_window()

    def dump(self) -> dict[str, Any]:
        """The state of everything at a stall (O-8), with the real answers of the gates."""
        return {
            "run": self.run.phase.name, "cycle": self.cycle.number, "attempt": self.cycle.attempt,
            "phase": self.cycle.phase.name, "owing": self.cycle.owing, "version": self.cycle.version,
            "global_step": self.cycle.global_step, "sync_rounds": self.cycle.sync_rounds, "short": self.short,
            "movers": self.movers, "lost_sends": self.lost_sends,
            "last_closed_epoch": self.book.last_closed_epoch, "ranks": [p.waits() for p in self.peers.values()],
            **self.desk.facts(), "reasons": [str(reason) for reason in self.explain()],
        }  # fmt: skip


def _guard(config: Config) -> Guard:
    """The guard a config names (B-33)."""
    if not isinstance(config.guard, str):
        given: Guard = config.guard
        return given
    if config.guard == "growth":
        return GrowthGuard()
    if config.guard == "none":
        return NoGuard()
    threshold = config.guard_threshold
    return LevelGuard(default_threshold(blends=config.alpha is not None) if threshold is None else threshold)


