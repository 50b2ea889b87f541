"""A cohort whose links break and are taken up again, and whose coordinator dies between any two effects.

Adds to `Elastic`: links with numbers, workers that dial, two faults (`sever` breaks a link, `crash` kills the
coordinator `lose` effects into a batch), and the journal that a driver keeps: a snapshot now and then, the records
since then, the effects of the newest batch. A coordinator that is started anew gets nothing else, and all of it as
JSON.

What was on the wire when a link broke is lost on the way up; on the way down what was written before still arrives.
"""

from __future__ import annotations

import json
import math
from collections import deque
from typing import Any

import attrs

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.journal import batch, batch_of, head, head_of
from paceline.core.phases import RunPhase, WorkerPhase

from .cohort import Fault, Node
from .elastic import HANGS_S, Elastic
from .ghost import Ghost

SNAPSHOT_EVERY = 29
"""Batches between two snapshots."""
DOWNTIME_S = 5.0


@attrs.define
class Broken:
    """The end of a connection, in a lane; `link` is its number."""

    link: int


@attrs.define
class Knock:
    """A rank that dials, and has said Hello at that link."""

    rank: int
    claim: m.ResumeClaim | None


class Watchful(Ghost):
    """Also sees that each message and each report is applied once, in order (I53), and what is said twice."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: dict[tuple[int, int], int] = {}
        self.controls: dict[tuple[int, int], int] = {}
        self.retold = False

    def see(self, co: Coordinator, effect: Any) -> None:
        if isinstance(effect, fx.Emit) and effect.facts.get("again"):
            assert effect in self.known or self.retold, "M-44: only what may have been said is said again"
            return
        super().see(co, effect)

    known: tuple[Any, ...] = ()


class Mended(Elastic):
    """See the module."""

    def __init__(self, **knobs: Any) -> None:
        self.generation = 1
        self.up: dict[int, int] = {}
        self.knocking: dict[int, Knock] = {}
        self.dialling: dict[int, float] = {}
        self.lines: list[str] = []
        self.turns = 0
        self.crash_in: int | None = None
        self.crashes = 0
        self.averager_knows = True
        self.restoring: m.RoundKey | None = None
        self.donated: set[m.RoundKey] = set()
        super().__init__(**knobs)

    # --- the coordinator's process -------------------------------------------------------------------------------

    def feed(self, event: Any) -> None:
        """As a driver does it: the batch is kept, then performed, effect by effect."""
        if not self.lines:
            self.lines = [json.dumps(head(self.co))]
            self.ghost = Watchful()
        self.co.handle(event, self.now)
        self._perform_batch()

    def _perform_batch(self) -> None:
        ready = self.co.take_ready()
        self.lines.append(json.dumps(batch(ready)))
        self.turns += 1
        self.records += ready.records
        self.ghost.begin(list(ready.effects))
        for index, effect in enumerate(ready.effects):
            if self.crash_in is not None and index >= self.crash_in:
                # What is for people only is told here, so that the ghost's record has no hole: a restart repeats it.
                for missed in ready.effects[index:]:
                    self.effects.append(missed)
                    self.ghost.see(self.co, missed)
                self.crash()
                return
            self.effects.append(effect)
            self.ghost.see(self.co, effect)
            self._perform(effect)
        if self.turns % SNAPSHOT_EVERY == 0:
            self.lines = [json.dumps(head(self.co)), self.lines[-1]]
            self.lines = [self.lines[1], self.lines[0]]

    def crash(self) -> None:
        """kill -9, and a new process from what was kept."""
        self.crash_in, self.crashes = None, self.crashes + 1
        at = max(i for i, line in enumerate(self.lines) if line.startswith('{"journal"'))
        begun = head_of(json.loads(self.lines[at]))
        kept = [batch_of(json.loads(line)) for line in self.lines[at + 1 :]]
        before = [batch_of(json.loads(self.lines[at - 1]))] if at and not kept else []
        undone = [effect for ready in (kept or before)[-1:] for effect in ready.effects]
        was = (self.co.cycle.version, self.co.cycle.number, self.co.cycle.global_step, self.co.book.covered)
        for node in self.nodes.values():
            if node.alive:
                node.up.clear()
                if node.down and isinstance(node.down[-1], Broken):
                    continue
                node.down.append(Broken(self.up.pop(node.rank, 0)))
            node.up = deque(x for x in node.up if x is not None)
        self.up.clear(), self.knocking.clear(), self.failed.clear()
        self.round, self.verdict, self.restoring, self.averager_knows = None, None, None, False
        records = [record for ready in kept for record in ready.records]
        self.now += DOWNTIME_S
        assert not isinstance(begun.settings, type(None))
        self.co = Coordinator.restart(begun.settings, begun.snapshot, records, self.now, undone=undone,  # type: ignore[arg-type]
                                      engine=self.engine)  # fmt: skip
        now = (self.co.cycle.version, self.co.cycle.number, self.co.cycle.global_step, self.co.book.covered)
        assert now == was, f"I37: {now} after the restart, {was} before"
        assert self.co.generation == self.generation + 1, "M-40"
        self.generation = self.co.generation
        self.lines = [json.dumps(head(self.co))]
        assert isinstance(self.ghost, Watchful)
        self.ghost.known = tuple(self.effects)
        self.ghost.retold = True
        self.ghost.over = False  # what the dead process said last is said again
        self._perform_batch()

    # --- links ---------------------------------------------------------------------------------------------------

    def _perform(self, effect: Any) -> None:
        if isinstance(effect, fx.Admit):
            self._admit(effect)
        elif isinstance(effect, fx.Refuse):
            self.rejects.append(effect.reject)
            knock = self.knocking.pop(effect.link, None)
            if knock is not None:
                self._answer(self.nodes[knock.rank], effect.reject)
        elif isinstance(effect, fx.Send):
            node = self.nodes.get(effect.rank)
            if node is None or not node.alive or effect.rank not in self.up or effect.rank in self.cut:
                self.failed.append(effect.token)
            elif node.incarnation == effect.incarnation:
                node.down.append(effect.message)
        elif isinstance(effect, fx.SendFenced):
            node = self.nodes.get(effect.rank)
            if node is not None and node.alive and effect.rank in self.up and node.incarnation == effect.incarnation:
                node.down.append(effect.fenced)
        elif isinstance(effect, fx.CloseLink):
            self._close(effect.rank, effect.incarnation)
        elif isinstance(effect, fx.OpenRound) and effect.key.is_transfer:
            if not effect.observers:
                self.restoring = effect.key
        elif isinstance(effect, fx.CloseRound) and effect.key.is_transfer:
            self.restoring = None if effect.key == self.restoring else self.restoring
        else:
            super()._perform(effect)

    def _admit(self, effect: fx.Admit) -> None:
        knock = self.knocking.pop(effect.link, None)
        self.cut.discard(effect.rank)
        node = None if knock is None else self.nodes[knock.rank]
        if node is None:
            if effect.link in self.gone:
                return
            super()._perform(effect)
            self.up[effect.rank] = effect.link
            return
        if not node.alive:
            return
        if node.rank != effect.rank:
            self.nodes[effect.rank] = node
            if self.nodes.get(node.rank) is node:
                del self.nodes[node.rank]
            node.rank = effect.rank
        if node.incarnation != effect.incarnation:
            node.said.clear()
        node.incarnation = effect.incarnation
        self.up[node.rank] = effect.link
        self._answer(node, effect.welcome)
        node.down.extend(effect.resend)

    gone: tuple[int, ...] = ()

    def _answer(self, node: Node, message: Any) -> None:
        node.down = deque([message])

    def _close(self, rank: int, incarnation: int) -> None:
        node = self.nodes.get(rank)
        if node is not None and node.alive and node.incarnation == incarnation and rank in self.up:
            self.sever(rank)

    def sever(self, rank: int) -> None:
        """The connection breaks: both ends learn of it, what was on its way up is lost."""
        link = self.up.pop(rank, None)
        node = self.nodes[rank]
        if link is None or not node.alive:
            return
        node.up.clear()
        node.up.append(Broken(link))
        node.down.append(Broken(link))

    def _obey(self, node: Node, effect: Any) -> None:
        if isinstance(effect, fx.Dial):
            self.dialling[node.rank] = self.now + effect.after_s
        elif isinstance(effect, fx.Reporting) and node.rank not in self.up:
            if isinstance(effect.report, m.SnapshotReady):
                node.said.add((effect.report.cycle, effect.report.attempt))
        elif isinstance(effect, fx.Stop):
            super()._obey(node, effect)
            if node.rank not in self.up:
                node.up.clear()
                node.alive = False
        else:
            super()._obey(node, effect)

    def _lane(self, node: Node, report: m.Report) -> None:
        if report.generation == node.worker.settings.generation and report.report_seq == node.worker.report_seq:
            super()._lane(node, report)
        else:
            node.up.append(report)  # sent again

    # --- what could happen next ----------------------------------------------------------------------------------

    def enabled(self) -> list[tuple[str, int]]:
        """Who dials may do so at once; a rank that is away shows nothing on its lane."""
        actions = [a for a in super().enabled() if a[0] != "tick"]
        for rank, node in sorted(self.nodes.items()):
            worker = node.worker
            waits = self.dialling.get(rank, math.inf) <= self.now and not node.down and node.alive and not node.frozen
            knocks = any(k.rank == rank for k in self.knocking.values())
            if waits and not knocks and not worker.linked and self.finish is None:
                actions.append(("dial", rank))
        if self.restoring is not None and self.restoring in self.donated:
            actions.append(("restored", 0))
        if not actions and self.co.poll_timeout() is not None:
            actions.append(("tick", 0))
        return actions

    def _can_reduce(self) -> bool:
        return super()._can_reduce() and self._averager_ready()

    def _averager_ready(self) -> bool:
        assert self.round is not None
        return self.averager_knows or self.round.key.kind == m.RoundKind.STATE

    def _can_receive(self, rank: int) -> bool:
        node = self.nodes.get(rank)
        if node is None or self.round is None or rank not in self.up or not node.worker.linked:
            return False
        worker = node.worker
        return super()._can_receive(rank) and worker.snapshot_generation == self.round.key.generation

    def _contributed(self, rank: int) -> bool:
        return super()._contributed(rank)

    # --- making it happen ----------------------------------------------------------------------------------------

    def _do_dial(self, rank: int) -> None:
        del self.dialling[rank]
        node = self.nodes[rank]
        self.links += 1
        claim = node.worker.claim()
        self.knocking[self.links] = Knock(rank, claim)
        greeting = attrs.evolve(self.greeting(node.worker.settings.rank), resume=claim)
        self.feed(ev.HelloReceived(self.links, greeting))

    def _do_tick(self, rank: int) -> None:
        """Time passes up to the next deadline, or to the next try of a rank."""
        due = self.co.poll_timeout()
        assert due is not None
        tries = [at for rank, at in self.dialling.items() if self.nodes[rank].alive and not self.nodes[rank].frozen]
        self.now = max(self.now, min([due, *(at for at in tries if at > self.now)]))
        for node in list(self.nodes.values()):
            if node.alive and not node.frozen:
                self.tell(node, ev.Tick())
        self.feed(ev.Tick())

    def _do_reduce(self, rank: int) -> None:
        self.averager_knows = True  # it divides before it tells
        super()._do_reduce(rank)

    def _do_restored(self, rank: int) -> None:
        assert self.restoring is not None
        key, self.restoring, self.averager_knows = self.restoring, None, True
        self.feed(ev.RoundProgress(key, 0, 1, True))

    def _do_report(self, rank: int) -> None:
        node = self.nodes[rank]
        if isinstance(node.up[0], Broken):
            lost = node.up.popleft()
            self.feed(ev.LinkLost(rank, node.incarnation, "cut", lost.link))
            return
        if isinstance(node.up[0], m.Report):
            self._i53_report(node, node.up[0])
        if node.up[0] is None:
            link = self.up.pop(rank, None)
            node.up.popleft()
            node.alive = False
            self.feed(ev.LinkLost(rank, node.incarnation, "closed by the rank", link))
            return
        super()._do_report(rank)

    def _i53_report(self, node: Node, report: m.Report) -> None:
        peer = self.co.peers[node.rank]
        if peer.alive and peer.incarnation == report.incarnation:
            assert report.report_seq == peer.report_seq + 1, f"I53: {report} after {peer.report_seq}"

    def _do_control(self, rank: int) -> None:
        node = self.nodes[rank]
        if isinstance(node.down[0], Broken):
            node.down.popleft()
            self.tell(node, ev.LinkLost(cause="cut"))
            return
        message = node.down[0]
        if isinstance(message, m.Control) and node.worker.phase != WorkerPhase.STOPPED:
            expected = node.worker.control_seen + 1
            assert message.control_seq == expected, f"I53: {message} at rank {rank}, which expects {expected}"
        super()._do_control(rank)

    def _do_order(self, rank: int) -> None:
        order = self.nodes[rank].trainer.orders[0]
        if isinstance(order, fx.SendState) and order.joiner_rank == m.NO_RANK:
            self.nodes[rank].trainer.orders.popleft()
            if rank in self.up:
                self.donated.add(m.transfer_key(order.generation, order.transfer_id))
            return
        if isinstance(order, fx.TakeSnapshot):
            node = self.nodes[rank]
            node.trainer.orders.popleft()
            current = self.round is not None and (order.generation, order.cycle, order.attempt) == (
                self.round.key.generation, self.round.key.cycle, self.round.attempt
            )  # fmt: skip
            if current and rank in self.up:
                self.uploaded.add(rank)
            self.tell(node, ev.SnapshotTaken(order.cycle, order.attempt, 1.0, order.generation))
            return
        super()._do_order(rank)

    def _do_failure(self, rank: int) -> None:
        token = self.failed.popleft()
        self.feed(ev.SendFailed(token, self.up.get(token[0])))
        node = self.nodes.get(token[0])
        if node is not None and node.incarnation == token[1]:
            self.sever(token[0])

    def _i45_step_counts_meet(self, node: Node) -> None:
        if node.worker.linked and node.rank in self.up and node.rank in self.co.peers:
            super()._i45_step_counts_meet(node)

    def kill(self, rank: int, lose: int = 0) -> None:
        super().kill(rank, lose)
        node = self.nodes[rank]
        if not node.alive:
            node.up = deque(x for x in node.up if not isinstance(x, Broken)) if rank in self.up else deque()
            if rank not in self.up:
                return
            if None not in node.up:
                node.up.append(None)

    def strike(self, fault: Fault) -> None:
        rank = sorted(self.nodes)[fault.rank % len(self.nodes)] if self.nodes else 0
        if fault.kind == "crash":
            self.log.append(f"crash in {fault.lose}")
            if self.finish is None:
                self.crash_in = fault.lose
        elif fault.kind == "sever":
            self.log.append(f"sever {rank}")
            self.sever(rank)
        elif self.nodes:
            super().strike(attrs.evolve(fault, rank=rank, lose=fault.lose % len(HANGS_S)))

    def check_end(self) -> None:
        if self.co.run.phase == RunPhase.STOPPED:
            super().check_end()
