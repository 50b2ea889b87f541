"""A cohort in one process: the production Coordinator and Workers, joined by lanes that a test steps by hand.

Nothing here decides anything about the protocol. `Cohort.enabled()` lists what could happen next, in a stable order
whose first entries are the dullest; `Cohort.do(action)` makes it happen; `run` takes a schedule, a list of whole
numbers that choose among what is enabled, and `Fault`s to happen on the way. The averager and the training processes
are stand-ins that obey effects. What they did is told to a `Ghost`, which checks the machines against a record that is
not their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.config import Config, config_digest
from paceline.core.coordinator import Coordinator
from paceline.core.phases import PeerPhase, RunPhase, WorkerPhase
from paceline.core.schema import EntryClass, Schema, SchemaEntry, dataset_signature
from paceline.core.worker import Worker, WorkerSettings

from .ghost import Ghost, check_books

SCHEMA = Schema(entries=(SchemaEntry(name="w", cls=EntryClass.PARAM, shape=(2,), dtype="float32"),))
DIGEST = b"d" * 16
COUNTING = (WorkerPhase.WAITING, WorkerPhase.TRAINING, WorkerPhase.THROTTLED)
MOST_ACTIONS = 60_000
"""Actions of a run; one that needs more does not end."""


def hello(samples: int, wishes: dict[str, Any] | None = None, **changes: Any) -> m.Hello:
    """A Hello of a healthy rank over a data set of `samples` samples."""
    fields: dict[str, Any] = dict(
        protocol=1, package="paceline", host="here", devices=("cpu",), runtime="test", byte_order=0, schema=SCHEMA,
        schema_hash=SCHEMA.hash(), dataset_signature=dataset_signature(samples, b"x"),
        config_digest=config_digest(wishes or {}), averagers=("star", "collective"), wishes=wishes or {},
    )
    fields.update(changes)
    return m.Hello(**fields)


@attrs.frozen
class Fault:
    """Something that happens before action number `when`: kind is kill, cut, freeze, poison, abort, leave, stop, break
    (callbacks of the rank raise from here on, or work again), or checkpoint and evaluate (the rank asks for one);
    `support.elastic` has more."""

    when: int
    kind: str
    rank: int = 0
    lose: int = 0


@attrs.define
class Trainer:
    """The training process of one rank: obeys orders, steps when it may. `acted` are the callbacks it has called, as
    (kind, decision, version), `fresh` says that it has not stepped since its last adoption."""

    plan: list[m.Plan] = attrs.field(factory=list)
    part: int = 0
    batch: int = 0
    done: int = 0
    parked: bool = False
    orders: deque[Any] = attrs.field(factory=deque)
    stopped: fx.Stop | None = None
    adopted: list[int] = attrs.field(factory=list)
    acted: list[tuple[str, int, int]] = attrs.field(factory=list)
    broken: bool = False
    fresh: bool = True


@attrs.define
class Node:
    """One rank: worker machine, training process, lanes to and from the coordinator."""

    rank: int
    incarnation: int
    worker: Worker
    trainer: Trainer = attrs.field(factory=Trainer)
    up: deque[Any] = attrs.field(factory=deque)
    down: deque[Any] = attrs.field(factory=deque)
    alive: bool = True
    frozen: bool = False
    poisoned: bool = False
    said: set[tuple[int, int]] = attrs.field(factory=set)
    orders: list[Any] = attrs.field(factory=list)
    records: list[Any] = attrs.field(factory=list)


class Cohort:
    """See the module. `guard` replaces the guard, `callbacks` is what every script brings, `resume` the record of a
    run before; everything else in `knobs` goes into the config. `ambiguous`: whose steps a consensus has is unknown."""

    ambiguous = False
    step_s = 0.01  # seconds of a step

    def __init__(self, *, ranks: int = 2, samples: int = 60, engine: str = "compiled", guard: Any = None,
                 callbacks: tuple[str, ...] = (), resume: Any = None, **knobs: Any) -> None:  # fmt: skip
        defaults: dict[str, Any] = dict(batch_size=2, num_epochs=2, target_ranks=ranks, min_ranks=1, anchor=3)
        if knobs.get("policy") == "sync":
            defaults["anchor"] = 1
        defaults.update(knobs)
        self.config = Config(**defaults)
        self.engine = engine
        self.callbacks = callbacks
        self.samples = samples
        self.now = 100.0
        self.co = Coordinator(self.config, now=self.now, engine=engine, guard=guard, resume=resume)
        self.nodes: dict[int, Node] = {}
        self.ghost = Ghost()
        self.effects: list[Any] = []
        self.records: list[Any] = []
        self.rejects: list[m.Reject] = []
        self.finish: fx.Finish | None = None
        self.cut: set[int] = set()
        self.failed: deque[tuple[int, int, int]] = deque()
        self.log: list[str] = []
        self.round: fx.OpenRound | None = None
        self.admitted: dict[int, int] = {}
        self.uploaded: set[int] = set()
        self.removed: set[int] = set()
        self.scattered: set[int] = set()
        self.verdict: tuple[tuple[int, ...], dict[int, m.Refusal], bool] | None = None
        for link in range(ranks):
            self.feed(ev.HelloReceived(link, self.greeting()))

    def greeting(self) -> m.Hello:
        """What a rank of this cohort says at the door."""
        return hello(self.samples, callbacks=self.callbacks)

    # --- what happened -------------------------------------------------------------------------------------------

    def events(self, name: str) -> list[dict[str, Any]]:
        """The facts of all timeline events of this name."""
        return [e.facts for e in self.effects if isinstance(e, fx.Emit) and e.name == name]

    def alerts(self, kind: str) -> list[fx.Alert]:
        """All alerts of this kind."""
        return [e for e in self.effects if isinstance(e, fx.Alert) and e.kind == kind]

    def sent(self, kind: type, rank: int | None = None) -> list[Any]:
        """All messages of this kind that were sent, to one rank or to any."""
        sends = [e for e in self.effects if isinstance(e, fx.Send) and rank in (None, e.rank)]
        return [e.message for e in sends if isinstance(e.message, kind)]

    # --- coordinator side ----------------------------------------------------------------------------------------

    def feed(self, event: Any) -> None:
        """One event into the coordinator, its effects carried out and checked."""
        self.co.handle(event, self.now)
        ready = self.co.take_ready()
        self.records += ready.records
        effects = list(ready.effects)
        self.ghost.begin(effects)
        for effect in effects:
            self.effects.append(effect)
            self.ghost.see(self.co, effect)
            self._perform(effect)
        check_books(self.co)

    def _perform(self, effect: Any) -> None:
        if isinstance(effect, fx.Admit):
            settings = WorkerSettings.from_welcome(effect.welcome, self.config.run_id, self.callbacks)
            worker = Worker.create(settings, self.now, self.engine)
            self.nodes[effect.rank] = Node(effect.rank, effect.incarnation, worker)
        elif isinstance(effect, fx.Refuse):
            self.rejects.append(effect.reject)
        elif isinstance(effect, fx.Send):
            node = self.nodes[effect.rank]
            if not node.alive or effect.rank in self.cut:
                self.failed.append(effect.token)
            else:
                node.down.append(effect.message)
        elif isinstance(effect, fx.OpenRound):
            self.round, self.admitted, self.verdict = effect, {}, None
            self.uploaded, self.removed, self.scattered = set(), set(), set()
        elif isinstance(effect, (fx.CloseRound, fx.AbortRound)):
            self.round = None
        elif isinstance(effect, fx.AdmitContribution):
            self.admitted[effect.rank] = effect.steps
        elif isinstance(effect, fx.RemoveFromRound):
            self.removed.add(effect.rank)
        elif isinstance(effect, fx.CloseLink):
            node = self.nodes[effect.rank]
            if node.incarnation == effect.incarnation:
                node.down.append(None)
        elif isinstance(effect, fx.Finish):
            self.finish = effect

    # --- rank side -----------------------------------------------------------------------------------------------

    def tell(self, node: Node, event: Any) -> None:
        """One event into a worker, its orders carried out."""
        node.worker.handle(event, self.now)
        ready = node.worker.take_ready()
        node.records += ready.records
        for effect in ready.effects:
            node.orders.append(effect)
            self._obey(node, effect)

    def _obey(self, node: Node, effect: Any) -> None:
        trainer = node.trainer
        if isinstance(effect, fx.Reporting):
            self._lane(node, effect.report)
        elif isinstance(effect, fx.Train):
            assert not trainer.plan, "W-4: a plan was ordered on top of another"
            trainer.plan, trainer.part, trainer.batch, trainer.done = [effect.plan], 0, 0, 0
        elif isinstance(effect, fx.Extend):
            assert trainer.plan, "W-16: there is no plan to extend"
            trainer.plan.append(effect.plan)
        elif isinstance(effect, fx.Park):
            trainer.parked = True
        elif isinstance(effect, fx.Unpark):
            trainer.parked = False
        elif isinstance(effect, fx.AbandonPlan):
            trainer.plan = []
        elif isinstance(effect, (fx.TakeSnapshot, fx.Save, fx.FireCallback, fx.Evaluate)):
            self.ghost.order(node.rank, node.incarnation, effect, trainer.fresh)
            trainer.orders.append(effect)
        elif isinstance(effect, fx.Adopt):
            assert not trainer.adopted or effect.cycle > trainer.adopted[-1], "W-12: a cycle was adopted twice"
            trainer.adopted.append(effect.cycle)
            trainer.fresh = True
            if effect.how != "keep":
                self.ghost.adopt(node.rank, effect.cycle)
        elif isinstance(effect, fx.Publish):
            assert effect.name != "plan_overwritten", "I12: the mailbox was overwritten"
        elif isinstance(effect, fx.Stop):
            trainer.stopped = effect
            node.up.append(None)

    def _lane(self, node: Node, report: m.Report) -> None:
        if isinstance(report, m.SnapshotReady):
            node.said.add((report.cycle, report.attempt))
        elif isinstance(report, m.SyncAck):
            assert (report.cycle, report.attempt) in node.said, "I16: SnapshotReady precedes SyncAck"
        node.up.append(report)

    def batches(self, plan: m.Plan) -> int:
        """Batches of a plan."""
        return -(-plan.size // (self.co.config.batch_size or 1))

    # --- what could happen next ------------------------------------------------------------------------------------

    def enabled(self) -> list[tuple[str, int]]:
        """Lanes first, then averager and training processes; time passes only when nothing else can happen."""
        actions, steps = list[tuple[str, int]](), list[tuple[str, int]]()
        for rank, node in sorted(self.nodes.items()):
            if node.frozen:
                continue
            if node.up:
                actions.append(("report", rank))
            if not node.alive:
                continue
            trainer, training = node.trainer, node.worker.phase == WorkerPhase.TRAINING
            if node.down:
                actions.append(("control", rank))
            if training and node.worker.inbox:
                actions.append(("drain", rank))
            if trainer.stopped is None and trainer.orders:
                actions.append(("order", rank))
            elif trainer.stopped is None and training and trainer.plan and not trainer.parked:
                steps.append(("step", rank))
        if self.failed:
            actions.append(("failure", 0))
        if self._can_reduce():
            actions.append(("reduce", 0))
        actions += [("stage", rank) for rank in self._can_stage()]
        actions += steps
        if not actions and self.co.poll_timeout() is not None:
            actions.append(("tick", 0))
        return actions

    def _contributed(self, rank: int) -> bool:
        return rank in self.admitted and rank in self.uploaded

    def _can_reduce(self) -> bool:
        if self.round is None or self.verdict is not None:
            return False
        return all(self._contributed(r) for r, _, _ in self.round.members if r not in self.removed)

    def _can_stage(self) -> list[int]:
        if self.round is None or self.verdict is None:
            return []
        receivers = sorted([r for r, _, _ in self.round.members] + [r for r, _ in self.round.observers])
        return [rank for rank in receivers if rank not in self.scattered | self.removed and self._can_receive(rank)]

    def _can_receive(self, rank: int) -> bool:
        assert self.round is not None
        node, worker = self.nodes[rank], self.nodes[rank].worker
        here = (worker.snapshot_cycle, worker.snapshot_attempt) == (self.round.key.cycle, self.round.attempt)
        return node.alive and not node.frozen and worker.copied and here

    # --- making it happen ------------------------------------------------------------------------------------------

    def do(self, action: tuple[str, int]) -> None:
        """Make one thing happen."""
        kind, rank = action
        self.log.append(f"{kind} {rank}")
        getattr(self, f"_do_{kind}")(rank)
        for node in self.nodes.values():
            self._i45_step_counts_meet(node)

    def _i45_step_counts_meet(self, node: Node) -> None:
        """I45: with empty lanes the worker's steps are the coordinator's."""
        if node.up or node.down or node.worker.inbox or not node.alive or self.failed:
            return
        peer = self.co.peers[node.rank]
        joined = node.worker.linked and peer.attached  # else what it reports is kept, and its lane only looks empty
        counted = peer.phase == PeerPhase.VOTER and node.worker.phase in COUNTING
        if joined and counted and peer.incarnation == node.incarnation:
            assert node.worker.steps_booked == peer.steps, f"I45: rank {node.rank}"

    def _do_report(self, rank: int) -> None:
        node = self.nodes[rank]
        report = node.up.popleft()
        if report is None:
            node.alive = False
            self.feed(ev.LinkLost(rank, node.incarnation, "closed by the rank"))
            return
        if isinstance(report, m.SyncAck):
            self.ghost.acks.add((report.cycle, report.attempt, rank, report.incarnation))
        self.feed(ev.Received(report))

    def _do_control(self, rank: int) -> None:
        node = self.nodes[rank]
        message = node.down.popleft()
        worker, before = node.worker, node.worker.position
        merged = isinstance(message, m.Update) and message.outcome == m.Outcome.MERGED
        self.tell(node, ev.LaneClosed() if message is None else ev.Received(message))
        if merged and worker.committed == message.cycle and not worker.inbox:
            assert worker.position >= before or self.ambiguous, "I43: the schedule position fell at a merged Update"

    def _do_drain(self, rank: int) -> None:
        self.tell(self.nodes[rank], ev.DrainPoint())

    def _do_order(self, rank: int) -> None:
        node = self.nodes[rank]
        order = node.trainer.orders.popleft()
        if isinstance(order, (fx.FireCallback, fx.Evaluate)):
            self._act(node, order)
            return
        if isinstance(order, fx.Save):
            self.tell(node, ev.ActionDone("save", order.decision_id, order.version, 1.0))
            return
        if self.round is not None and (self.round.key.cycle, self.round.attempt) == (order.cycle, order.attempt):
            self.uploaded.add(rank)
        self.tell(node, ev.SnapshotTaken(order.cycle, order.attempt, 1.0))

    def _act(self, node: Node, order: Any) -> None:
        """A callback of the user: returns what it found, or raises."""
        error = "boom" if node.trainer.broken else None
        if isinstance(order, fx.Evaluate):
            node.trainer.acted.append(("evaluate", order.schedule_id, order.version))
            metric = None if error else float(order.version)
            self.tell(node, ev.ActionDone("evaluate", order.schedule_id, order.version, 5.0, error, metric, 1))
        else:
            node.trainer.acted.append((order.name, order.decision_id, order.version))
            self.tell(node, ev.ActionDone(order.name, order.decision_id, order.version, 5.0, error))

    def _do_failure(self, rank: int) -> None:
        """N-10: after `SendFailed` the driver closes the link; what the rank has written before still arrives."""
        token = self.failed.popleft()
        self.feed(ev.SendFailed(token))
        if self.nodes[token[0]].incarnation == token[1]:
            self.kill(token[0])

    def _do_reduce(self, rank: int) -> None:
        assert self.round is not None
        members = [r for r, _, _ in self.round.members if self._contributed(r)]
        sick = {r: m.Refusal.NONFINITE for r in members if self.nodes[r].poisoned and self.admitted[r]}
        accepted = tuple(r for r in members if r not in sick)
        realized = sum(self.admitted[r] for r in accepted) > 0 or self.round.key.kind == m.RoundKind.STATE
        self.verdict = (accepted, sick, realized)
        self.feed(ev.RoundReduced(self.round.key, self.round.attempt, accepted, tuple(sick.items()), realized, DIGEST))

    def _do_stage(self, rank: int) -> None:
        assert self.round is not None and self.verdict is not None
        self.scattered.add(rank)
        accepted, sick, realized = self.verdict
        if rank in sick:
            outcome = m.Outcome.REFUSED
        elif self.round.key.kind == m.RoundKind.STATE or rank not in accepted:
            outcome = m.Outcome.OBSERVER
        else:
            outcome = m.Outcome.MERGED if realized else m.Outcome.UNREALIZED
        self.tell(self.nodes[rank], ev.ConsensusStaged(
            cycle=self.round.key.cycle, attempt=self.round.attempt, outcome=outcome,
            total_steps=sum(self.admitted[r] for r in accepted), divergence=0.01, pre_norm=1.0, post_norm=1.0,
            digest=DIGEST, refusal=sick.get(rank),
        ))  # fmt: skip

    def _do_step(self, rank: int) -> None:
        node, trainer = self.nodes[rank], self.nodes[rank].trainer
        plan, size, part = trainer.plan[trainer.part], self.co.config.batch_size or 1, trainer.part
        samples = min(size, plan.size - trainer.batch * size)
        self.ghost.step(plan.epoch, plan.offset // size + trainer.batch)
        trainer.batch, trainer.done = trainer.batch + 1, trainer.done + 1
        trainer.fresh = False
        if trainer.batch == self.batches(plan):
            trainer.part, trainer.batch = trainer.part + 1, 0
        last = trainer.part == len(trainer.plan)
        self.now += self.step_s
        self.tell(node, ev.StepDone(samples=samples, part=part, batch_ms=10.0, data_ms=0.1, loss=1.0, lr=0.1,
                                    last=last))  # fmt: skip
        if last:
            ids, done = tuple(p.plan_id for p in trainer.plan), trainer.done
            trainer.plan = []
            self.tell(node, ev.ChunkDone(
                plan_ids=ids, epoch=plan.epoch, batches=done, samples=done * size, epoch_ms=1.0, share_complete_ms=1.0,
                compute_only_ms=1.0, data_starve_ms=0.0,
            ))  # fmt: skip

    def _do_tick(self, rank: int) -> None:
        due = self.co.poll_timeout()
        assert due is not None
        self.now = max(self.now, due)
        for node in self.nodes.values():
            if node.alive and not node.frozen:
                self.tell(node, ev.Tick())
        self.feed(ev.Tick())

    # --- faults ----------------------------------------------------------------------------------------------------

    def kill(self, rank: int, lose: int = 0) -> None:
        """SIGKILL: what the rank has written still arrives, but for its last `lose` reports, then end of stream."""
        node = self.nodes[rank]
        if not node.alive or node.trainer.stopped is not None:
            return
        node.alive = False
        node.down.clear()
        node.trainer.orders.clear()
        for _ in range(min(lose, len(node.up))):
            node.up.pop()
        node.up.append(None)

    def strike(self, fault: Fault) -> None:
        """Let the fault happen; one that cannot any more is nothing."""
        rank = fault.rank % max(1, len(self.nodes))
        self.log.append(f"{fault.kind} {rank} {fault.lose}")
        node = self.nodes[rank]
        if fault.kind == "kill":
            self.kill(rank, fault.lose)
        elif fault.kind == "cut":
            self.cut.add(rank)
        elif fault.kind == "freeze":
            node.frozen = True
        elif fault.kind == "poison":
            node.poisoned = not node.poisoned
        elif fault.kind == "stop":
            self.feed(ev.OperatorRequest(ev.Operator.STOP))
        elif fault.kind == "leave" and node.alive and node.trainer.stopped is None:
            self.tell(node, ev.LeaveRequested())
        elif fault.kind == "break":
            node.trainer.broken = not node.trainer.broken
        elif fault.kind in ("checkpoint", "evaluate") and node.alive and node.trainer.stopped is None:
            kind = m.IntentKind.EVAL_NOW if fault.kind == "evaluate" else m.IntentKind.CHECKPOINT_NOW
            self.tell(node, ev.Wish(kind))
        elif fault.kind == "abort" and self.round is not None:
            self.feed(ev.RoundAborted(self.round.key, self.round.attempt, "a test aborted it"))

    # --- whole runs --------------------------------------------------------------------------------------------------

    def run(self, schedule: Sequence[int] = (), faults: Iterable[Fault] = ()) -> None:
        """To the end: the numbers of the schedule choose among what is enabled, after them the dullest happens."""
        waiting = deque(sorted(faults, key=lambda fault: fault.when))
        for index in range(MOST_ACTIONS):
            while waiting and waiting[0].when <= index and self.finish is None:
                self.strike(waiting.popleft())
            actions = self.enabled()
            if not actions:
                break
            self.do(actions[schedule[index] % len(actions) if index < len(schedule) else 0])
        assert self.finish is not None, f"I38: the run did not end: {self.co.explain()} {self.log[-12:]}"
        self.check_end()

    def run_until(self, done: Any, schedule: Sequence[int] = ()) -> None:
        """Until `done()` holds; a run that ends before is an error."""
        for index in range(MOST_ACTIONS):
            if done():
                return
            actions = self.enabled()
            assert actions, f"the run ended before: {self.log[-12:]}"
            self.do(actions[schedule[index] % len(actions) if index < len(schedule) else 0])
        raise AssertionError(f"it never came to that: {self.co.explain()} {self.log[-12:]}")

    def check_end(self) -> None:
        """What must hold at the end: nothing lost, nothing twice, books and ghost agree (I42, I44)."""
        co, merged = self.co, self.ghost.merged
        assert self.finish is not None and co.run.phase == RunPhase.STOPPED
        assert co.cycle.global_step == len(merged), "I44: global_step is the number of covered batches"
        if self.finish.status == "ok":
            wanted = {(e, b) for e in range(co.book.num_epochs) for b in range(co.book.total(e))}
            assert set(merged) == wanted, "I42: every pick of a closed epoch was covered"
            assert self.ghost.closed == list(range(co.book.num_epochs)), "D-20: every epoch closed"
