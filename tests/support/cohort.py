"""A cohort in one process: the production Coordinator and Workers, joined by lanes that a test steps by hand.

Nothing here decides anything about the protocol. `Cohort.enabled()` lists what could happen next, in a stable order
whose first entries are the dullest; `Cohort.do(action)` makes it happen. The averager and the training processes are
stand-ins that obey effects; an *independent* record of what was trained and merged (`Ghost`) is kept from the effects
alone, so that the machines' own books are checked against something that is not their own.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase, WorkerPhase
from paceline.core.schema import EntryClass, Schema, SchemaEntry, dataset_signature
from paceline.core.worker import Worker, WorkerSettings

SCHEMA = Schema(entries=(SchemaEntry(name="w", cls=EntryClass.PARAM, shape=(2,), dtype="float32"),))
STEP_S = 0.01


def hello(samples: int, wishes: dict[str, Any] | None = None, **changes: Any) -> m.Hello:
    """A Hello of a healthy rank over a data set of `samples` samples."""
    fields: dict[str, Any] = dict(
        protocol=1, package="paceline", host="here", devices=("cpu",), runtime="test", byte_order=0, schema=SCHEMA,
        schema_hash=SCHEMA.hash(), dataset_signature=dataset_signature(samples, b"x"), config_digest=b"\0" * 32,
        averagers=("star",), wishes=wishes or {},
    )
    fields.update(changes)
    return m.Hello(**fields)


@attrs.define
class Ghost:
    """What was trained and merged, told by effects and reports only."""

    trained: dict[tuple[int, int], int] = attrs.field(factory=dict)
    merged: dict[tuple[int, int], int] = attrs.field(factory=dict)
    updates: list[tuple[int, int]] = attrs.field(factory=list)
    versions: list[int] = attrs.field(factory=list)


@attrs.define
class Trainer:
    """The training process of one rank: obeys orders, steps when it may."""

    plan: list[m.Plan] = attrs.field(factory=list)
    part: int = 0
    batch: int = 0
    done: int = 0
    parked: bool = False
    copies: deque[fx.TakeSnapshot] = attrs.field(factory=deque)
    stopped: fx.Stop | None = None
    in_copy: int = 0
    adopted: list[int] = attrs.field(factory=list)
    since: dict[int, list[tuple[int, int]]] = attrs.field(factory=dict)
    unmerged: list[tuple[int, int]] = attrs.field(factory=list)


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
    speed: int = 1
    poisoned: bool = False


class Cohort:
    """See the module."""

    def __init__(self, *, ranks: int = 2, samples: int = 60, engine: str = "compiled", **knobs: Any) -> None:
        defaults: dict[str, Any] = dict(batch_size=2, num_epochs=2, target_ranks=ranks, min_ranks=1, anchor=3)
        defaults.update(knobs)
        self.config = Config(**defaults)
        self.engine = engine
        self.now = 100.0
        self.co = Coordinator(self.config, now=self.now, engine=engine)
        self.nodes: dict[int, Node] = {}
        self.rounds: dict[str, Any] = {}
        self.ghost = Ghost()
        self.timeline: list[fx.Emit] = []
        self.alerts: list[fx.Alert] = []
        self.rejects: list[m.Reject] = []
        self.finish: fx.Finish | None = None
        self.fail_sends: set[int] = set()
        self.events = 0
        self.log: list[str] = []
        self.samples = samples
        self.round: fx.OpenRound | None = None
        self.admitted: dict[int, int] = {}
        self.uploaded: dict[int, int] = {}
        self.removed: set[int] = set()
        self.reduced = False
        self.scattered: set[int] = set()
        for link in range(ranks):
            self.feed(ev.HelloReceived(link, hello(samples)))

    # --- coordinator side ----------------------------------------------------------------------------------------

    def feed(self, event: Any) -> None:
        """One event into the coordinator, its effects carried out."""
        self.events += 1
        self.co.handle(event, self.now)
        for effect in self.co.take_ready().effects:
            self._perform(effect)
        self.check()

    def _perform(self, effect: Any) -> None:
        if isinstance(effect, fx.Admit):
            settings = WorkerSettings.from_welcome(effect.welcome, self.config.run_id)
            worker = Worker.create(settings, self.now, self.engine)
            self.nodes[effect.rank] = Node(effect.rank, effect.incarnation, worker)
        elif isinstance(effect, fx.Refuse):
            self.rejects.append(effect.reject)
        elif isinstance(effect, fx.Send):
            self._send(effect)
        elif isinstance(effect, fx.OpenRound):
            self.round, self.admitted, self.uploaded = effect, {}, {}
            self.removed, self.reduced, self.scattered = set(), False, set()
        elif isinstance(effect, fx.AdmitContribution):
            self.admitted[effect.rank] = effect.steps
        elif isinstance(effect, fx.RemoveFromRound):
            self.removed.add(effect.rank)
        elif isinstance(effect, fx.Emit):
            self.timeline.append(effect)
            if effect.name == "Covered":
                for rank, epoch, first, count in effect.facts["slices"]:
                    for batch in range(first, first + count):
                        key = (epoch, batch)
                        self.ghost.merged[key] = self.ghost.merged.get(key, 0) + 1
            elif effect.name == "Cycle":
                self.ghost.versions.append(effect.facts["version"])
        elif isinstance(effect, fx.Alert):
            self.alerts.append(effect)
        elif isinstance(effect, fx.CloseLink):
            node = self.nodes.get(effect.rank)
            if node is not None and node.incarnation == effect.incarnation:
                node.down.append(None)
        elif isinstance(effect, fx.Finish):
            self.finish = effect

    def _send(self, effect: fx.Send) -> None:
        node = self.nodes[effect.rank]
        if not node.alive or effect.rank in self.fail_sends:
            self.events += 1
            self.pending_failures = [*getattr(self, "pending_failures", []), effect.token]
            return
        node.down.append(effect.message)

    # --- rank side -----------------------------------------------------------------------------------------------

    def tell(self, node: Node, event: Any) -> None:
        """One event into a worker, its orders carried out."""
        self.events += 1
        node.worker.handle(event, self.now)
        for effect in node.worker.take_ready().effects:
            self._obey(node, effect)

    def _obey(self, node: Node, effect: Any) -> None:
        trainer = node.trainer
        if isinstance(effect, fx.Reporting):
            node.up.append(effect.report)
        elif isinstance(effect, fx.Train):
            trainer.plan, trainer.part, trainer.batch, trainer.done = [effect.plan], 0, 0, 0
        elif isinstance(effect, fx.Extend):
            trainer.plan.append(effect.plan)
        elif isinstance(effect, fx.Park):
            trainer.parked = True
        elif isinstance(effect, fx.Unpark):
            trainer.parked = False
        elif isinstance(effect, fx.AbandonPlan):
            trainer.plan = []
        elif isinstance(effect, fx.TakeSnapshot):
            trainer.copies.append(effect)
        elif isinstance(effect, fx.Adopt):
            trainer.adopted.append(effect.cycle)
        elif isinstance(effect, fx.Save):
            node.trainer.copies.append(effect)  # type: ignore[arg-type]
        elif isinstance(effect, fx.Publish):
            assert effect.name != "plan_overwritten", "I12: the mailbox was overwritten"
        elif isinstance(effect, fx.Stop):
            trainer.stopped = effect
            node.up.append(None)

    def batches(self, plan: m.Plan) -> int:
        """Batches of a plan."""
        return -(-plan.size // (self.co.config.batch_size or 1))

    # --- the schedule --------------------------------------------------------------------------------------------

    def enabled(self) -> list[tuple[str, int]]:
        """What could happen next. Lanes first, then averager and training processes, time last."""
        actions: list[tuple[str, int]] = []
        for rank, node in sorted(self.nodes.items()):
            if node.up:
                actions.append(("report", rank))
            if node.alive and node.down:
                actions.append(("control", rank))
            if node.alive and node.trainer.copies:
                actions.append(("copy", rank))
        if getattr(self, "pending_failures", []):
            actions.append(("failure", 0))
        if self._can_reduce():
            actions.append(("reduce", 0))
        for rank in self._can_scatter():
            actions.append(("stage", rank))
        for rank, node in sorted(self.nodes.items()):
            if self._can_step(node):
                actions.append(("step", rank))
        if not actions and self.co.poll_timeout() is not None:
            actions.append(("tick", 0))
        return actions

    def _can_step(self, node: Node) -> bool:
        trainer = node.trainer
        free = node.alive and trainer.stopped is None and not trainer.copies and not trainer.parked
        return free and bool(trainer.plan) and (
            node.worker.phase == WorkerPhase.TRAINING
        )

    def _waited_for(self) -> list[int]:
        assert self.round is not None
        return [r for r, inc, _ in self.round.members if r not in self.removed]

    def _can_reduce(self) -> bool:
        if self.round is None or self.reduced:
            return False
        return all(r in self.admitted and r in self.uploaded for r in self._waited_for())

    def _can_scatter(self) -> list[int]:
        if self.round is None or not self.reduced:
            return []
        receivers = [r for r, _, _ in self.round.members] + [r for r, _ in self.round.observers]
        out = []
        for rank in sorted(receivers):
            node = self.nodes[rank]
            if rank in self.scattered or rank in self.removed or not node.alive:
                continue
            if node.worker.copied and node.worker.snapshot_cycle == self.round.key.cycle:
                if node.worker.snapshot_attempt == self.round.attempt:
                    out.append(rank)
        return out

    def do(self, action: tuple[str, int]) -> None:
        """Make one thing happen."""
        kind, rank = action
        self.log.append(f"{kind} {rank}")
        getattr(self, f"_do_{kind}")(rank)

    def _do_report(self, rank: int) -> None:
        node = self.nodes[rank]
        report = node.up.popleft()
        if report is None:
            node.alive = False
            self.feed(ev.LinkLost(rank, node.incarnation, "closed by the rank"))
        else:
            self.feed(ev.Received(report))

    def _do_control(self, rank: int) -> None:
        node = self.nodes[rank]
        message = node.down.popleft()
        self.tell(node, ev.LaneClosed() if message is None else ev.Received(message))

    def _do_copy(self, rank: int) -> None:
        node = self.nodes[rank]
        order = node.trainer.copies.popleft()
        if isinstance(order, fx.Save):
            self.tell(node, ev.ActionDone("save", order.decision_id, order.version, 1.0))
            return
        assert order.shipped <= node.worker.local_step
        self.tell(node, ev.SnapshotTaken(order.cycle, order.attempt, 1.0))
        if self.round is not None and (self.round.key.cycle, self.round.attempt) == (order.cycle, order.attempt):
            self.uploaded[rank] = order.shipped

    def _do_failure(self, rank: int) -> None:
        token, *self.pending_failures = self.pending_failures
        self.feed(ev.SendFailed(token))

    def _do_reduce(self, rank: int) -> None:
        assert self.round is not None
        self.reduced = True
        members = self._waited_for()
        sick = tuple((r, m.Refusal.NONFINITE) for r in members if self.nodes[r].poisoned and self.admitted[r])
        accepted = tuple(r for r in members if r not in dict(sick))
        realized = sum(self.admitted[r] for r in accepted) > 0 or self.round.key.kind == m.RoundKind.STATE
        self.verdict = (accepted, dict(sick), realized)
        self.feed(ev.RoundReduced(self.round.key, self.round.attempt, accepted, sick, realized, b"d" * 16))

    def _do_stage(self, rank: int) -> None:
        assert self.round is not None
        self.scattered.add(rank)
        accepted, sick, realized = self.verdict
        if rank in sick:
            outcome = m.Outcome.REFUSED
        elif self.round.key.kind == m.RoundKind.STATE or rank not in dict.fromkeys(accepted):
            outcome = m.Outcome.OBSERVER
        else:
            outcome = m.Outcome.MERGED if realized else m.Outcome.UNREALIZED
        self.tell(self.nodes[rank], ev.ConsensusStaged(
            cycle=self.round.key.cycle, attempt=self.round.attempt, outcome=outcome,
            total_steps=sum(self.admitted[r] for r in accepted), divergence=0.01, pre_norm=1.0, post_norm=1.0,
            digest=b"d" * 16, refusal=sick.get(rank),
        ))

    def _do_step(self, rank: int) -> None:
        node = self.nodes[rank]
        trainer = node.trainer
        plan = trainer.plan[trainer.part]
        size = self.co.config.batch_size or 1
        samples = min(size, plan.size - trainer.batch * size)
        key = (plan.epoch, plan.offset // size + trainer.batch)
        self.ghost.trained[key] = self.ghost.trained.get(key, 0) + 1
        trainer.batch += 1
        trainer.done += 1
        part = trainer.part
        if trainer.batch == self.batches(plan):
            trainer.part, trainer.batch = trainer.part + 1, 0
        last = trainer.part == len(trainer.plan)
        self.now += STEP_S
        self.tell(node, ev.StepDone(samples=samples, part=part, batch_ms=10.0 / node.speed, data_ms=0.1, loss=1.0,
                                    lr=0.1, last=last))
        if last:
            ids = tuple(p.plan_id for p in trainer.plan)
            epoch, done = plan.epoch, trainer.done
            trainer.plan = []
            self.tell(node, ev.ChunkDone(plan_ids=ids, epoch=epoch, batches=done, samples=done * size, epoch_ms=1.0,
                                         share_complete_ms=1.0, compute_only_ms=1.0, data_starve_ms=0.0))

    def _do_tick(self, rank: int) -> None:
        due = self.co.poll_timeout()
        assert due is not None
        self.now = max(self.now, due) + 1e-6
        for node in self.nodes.values():
            if node.alive and node.worker.phase != WorkerPhase.STOPPED:
                self.tell(node, ev.Tick())
        self.feed(ev.Tick())

    def kill(self, rank: int, *, lose: int = 0) -> None:
        """SIGKILL: what the rank has written still arrives, but for its last `lose` reports, then end of stream."""
        node = self.nodes[rank]
        if not node.alive:
            return
        self.log.append(f"kill {rank} {lose}")
        node.alive = False
        node.down.clear()
        node.trainer.copies.clear()
        for _ in range(min(lose, len(node.up))):
            node.up.pop()
        if not node.up or node.up[-1] is not None:
            node.up.append(None)

    # --- checks, after every event of the coordinator ------------------------------------------------------------

    def check(self) -> None:
        """Invariants that hold after every event, by id."""
        co = self.co
        alive = [r for r, p in co.peers.items() if p.phase in (PeerPhase.JOINING, PeerPhase.VOTER)]
        assert co.alive == sorted(alive), "I19: the number of the alive"
        assert co.voters == sorted(r for r, p in co.peers.items() if p.phase == PeerPhase.VOTER), "I19"
        for epoch, pool in co.book.pools.items():
            assert pool.free + pool.covered + pool.outstanding == pool.total, "I41"
            held = sum(h.in_flight_batches + h.trained_batches for h in co.book.ranks.values()) if len(
                co.book.pools) == 1 else None
            limbo = sum(run.count for runs in co.book.limbo.values() for run in runs)
            if held is not None:
                assert pool.outstanding == held + limbo, f"I41: {pool.outstanding} out, {held} held, {limbo} in limbo"
            assert epoch > co.book.last_closed_epoch, "I13"
        for rank, peer in co.peers.items():
            plans = len(co.book.holdings(rank).plans) if rank in co.book.ranks else 0
            limit = 1 if co.config.barrier_paced else 2
            if co.config.is_progressive:
                assert plans <= limit, f"I11: rank {rank} has {plans} plans in flight"
            assert peer.steps >= 0, "steps never fall below zero"
        assert all(count == 1 for count in self.ghost.merged.values()), "I42: a batch was merged twice"
        versions = self.ghost.versions
        assert all(b - a in (0, 1) for a, b in zip(versions, versions[1:], strict=False)), "I7"

    def check_end(self) -> None:
        """What must hold when a run ended well: everything covered once, books and ghost agree (I42, I44)."""
        co = self.co
        assert self.finish is not None, "I38: the run ends"
        assert co.run.phase == RunPhase.STOPPED
        assert co.cycle.phase != CyclePhase.PENDING or co.save_issued
        if self.finish.status == "ok":
            wanted = {(e, b) for e in range(co.book.num_epochs) for b in range(co.book.total(e))}
            assert set(self.ghost.merged) == wanted, "I42: every pick of a closed epoch was covered"
            assert co.cycle.global_step == len(wanted), "I44: global_step is the number of covered batches"
            extra = sum(self.ghost.trained.values()) - len(wanted)
            assert extra >= 0

    def run(self, choose: Any = None, limit: int = 200_000) -> None:
        """Until the end, `choose(n)` picking one of n enabled actions (default: the first, so no faults, in order)."""
        for _ in range(limit):
            actions = self.enabled()
            if not actions:
                break
            self.do(actions[0 if choose is None else choose(len(actions))])
        assert self.finish is not None, f"the run did not end in {limit} actions: {self.co.explain()} {self.log[-12:]}"
