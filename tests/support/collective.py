"""A cohort that averages in place: the data plane is a stand-in for a call of all ranks of a communicator.

A call goes in two steps, because that is where the faults are. Once all members of the session are inside it, the sum
exists (`unite`). Then each rank comes out by itself (`return`), or fails (`collapse`), which may happen to who was
aborted, has a dead peer, or met an error of its own. So a death can leave an average that succeeded at some ranks only.

What the tensors hold is known: every rank has the batches its parameters were made of, those of its last average and
its own since. After each `Update` they are compared with what the coordinator says is covered.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import WorkerPhase

from .cohort import Fault, Node
from .elastic import Elastic

Pick = tuple[int, int]
Content = Counter[Pick]


@attrs.define
class Sum:
    """What a call has made: the content of the consensus, and its total of steps."""

    content: Content
    total: int


@attrs.define
class Tensors:
    """What the parameters of one rank are made of, and where its communicator stands. `scratch` is what it held before
    the call that succeeded last, `uids` the ids it has to make, `muted` that it makes none any more, `doom` how it dies
    in its next call."""

    base: Content = attrs.field(factory=Counter)
    own: list[Pick] = attrs.field(factory=list)
    scratch: tuple[Content, list[Pick]] | None = None
    session: fx.BuildSession | None = None
    sessions: list[int] = attrs.field(factory=list)
    shares: fx.ShareState | None = None
    inside: fx.RunCollective | None = None
    made: Sum | None = None
    aborted: set[int] = attrs.field(factory=set)
    failing: bool = False
    doom: int | None = None
    uids: list[int] = attrs.field(factory=list)
    muted: bool = False
    acted: list[tuple[int, int, str, int]] = attrs.field(factory=list)
    held: int = 0


class Together(Elastic):
    """See the module. Faults beyond those of `Elastic`: `raise` lets the next call of a rank fail, `mute` lets it make
    no more session ids, `doom` kills it in its next call: when the sum exists, or after it came out, with or without
    its ack and the reports before that."""

    def __init__(self, **knobs: Any) -> None:
        self.tensors: dict[tuple[int, int], Tensors] = {}
        self.contents: dict[int, Content] = {}
        super().__init__(**{"averager": "collective", "min_ranks": 1, **knobs})

    def of(self, node: Node) -> Tensors:
        """The tensors of a life."""
        return self.tensors.setdefault((node.rank, node.incarnation), Tensors())

    @property
    def ambiguous(self) -> bool:  # type: ignore[override]
        """Several ranks died inside one call, so that batches are in a consensus and not covered (M-19); and the call
        said the schedule position of all it averaged, the Update what of it counts (I43)."""
        return bool(self.alerts("accounting"))

    # --- orders ------------------------------------------------------------------------------------------------------

    def _obey(self, node: Node, effect: Any) -> None:
        tensors = self.of(node)
        if isinstance(effect, fx.MakeSessionId):
            tensors.uids.append(effect.session_id)
        elif isinstance(effect, fx.AbortCollective):
            tensors.aborted.add(effect.session_id)
        elif isinstance(effect, (fx.BuildSession, fx.ShareState, fx.RunCollective)):
            node.trainer.orders.append(effect)
        else:
            if isinstance(effect, fx.Reporting) and isinstance(effect.report, m.SyncAck):
                node.said.add((effect.report.cycle, effect.report.attempt))  # of a copy, which this flavour has not
            if isinstance(effect, (fx.FireCallback, fx.Evaluate)):
                before = set(self.ghost.acted)
                super()._obey(node, effect)
                tensors.acted += sorted(self.ghost.acted - before)
            else:
                super()._obey(node, effect)

    def _do_order(self, rank: int) -> None:
        node = self.nodes[rank]
        tensors, order = self.of(node), node.trainer.orders[0]
        if not isinstance(order, (fx.BuildSession, fx.ShareState, fx.RunCollective)):
            super()._do_order(rank)
            return
        node.trainer.orders.popleft()
        if isinstance(order, fx.BuildSession):
            assert order.session_id not in tensors.sessions, "F06: a session is entered once"
            assert order.members[order.new_rank] == (rank, node.incarnation), "M-31: the place in the session"
            assert order.new_world_size == len(order.members)
            tensors.sessions.append(order.session_id)
            tensors.session, tensors.shares = order, None
        elif isinstance(order, fx.ShareState):
            tensors.shares = order
        else:
            if order.restore:
                self._restore(node)
            tensors.inside, tensors.made = order, None

    def _restore(self, node: Node) -> None:
        """W-14: parameters as they were before the call that succeeded here alone; its callbacks act again (I24)."""
        tensors = self.of(node)
        assert tensors.scratch is not None, "W-14: there is nothing to restore"
        tensors.base, tensors.own = tensors.scratch
        tensors.scratch = None
        self.ghost.acted -= set(tensors.acted)
        self.ghost.held[node.rank] = tensors.held
        node.trainer.fresh = False

    # --- what could happen next --------------------------------------------------------------------------------------

    def _can_reduce(self) -> bool:
        return False

    def _can_stage(self) -> list[int]:
        return []

    def enabled(self) -> list[tuple[str, int]]:
        actions = [a for a in super().enabled() if a[0] != "tick"]
        inside = {rank for rank, node in self.nodes.items() if node.alive and self.of(node).inside is not None}
        actions = [a for a in actions if a[0] not in ("order", "step") or a[1] not in inside]
        for rank, node in sorted(self.nodes.items()):
            tensors = self.of(node)
            if not node.alive or node.frozen or node.trainer.stopped is not None:
                continue
            if tensors.uids and not tensors.muted:
                actions.append(("uid", rank))
            if tensors.inside is None:
                continue
            if tensors.made is not None:
                actions.append(("return", rank))
            elif self._all_inside(tensors):
                actions.append(("unite", rank))
            if self._may_collapse(tensors):
                actions.append(("collapse", rank))
        if not actions and self.co.poll_timeout() is not None:
            actions.append(("tick", 0))
        return actions

    def _members(self, tensors: Tensors) -> list[Node | None]:
        """The lives of a session; None for one that is over."""
        assert tensors.session is not None
        lives = [(self.nodes[rank], incarnation) for rank, incarnation in tensors.session.members]
        return [node if node.incarnation == inc and node.alive else None for node, inc in lives]

    def _all_inside(self, tensors: Tensors) -> bool:
        """R-1: whoever meets in a session is in the same call, and no one has failed it."""
        members = self._members(tensors)
        if tensors.failing or any(node is None for node in members):
            return False
        calls = [self.of(node).inside for node in members if node is not None]
        mine = tensors.inside
        assert mine is not None
        if any(call is None or call.session_id != mine.session_id for call in calls):
            return False
        if any(self.of(node).made is not None for node in members if node is not None):
            return False  # it has yet to come out of the call before
        if any(self.of(node).failing or mine.session_id in self.of(node).aborted for node in members if node):
            return False
        assert all((call.cycle, call.attempt) == (mine.cycle, mine.attempt) for call in calls if call), "R-1"
        return True

    def _may_collapse(self, tensors: Tensors) -> bool:
        assert tensors.inside is not None
        torn = any(node is None for node in self._members(tensors))
        return tensors.failing or torn or tensors.inside.session_id in tensors.aborted

    # --- making it happen --------------------------------------------------------------------------------------------

    def _do_tick(self, rank: int) -> None:
        """I39: time passes only where somebody waits, and why is known."""
        assert self.co.explain(), "I39: nobody knows what is waited for"
        super()._do_tick(rank)

    def _do_uid(self, rank: int) -> None:
        node = self.nodes[rank]
        session = self.of(node).uids.pop(0)
        self.tell(node, ev.SessionIdMade(session, b"u%d" % session))

    def _do_unite(self, rank: int) -> None:
        """The sum exists; nobody has come out yet."""
        nodes = [node for node in self._members(self.of(self.nodes[rank])) if node is not None]
        for node in nodes:
            self._share(node)
        content: Content = Counter()
        total = 0
        for node in nodes:
            tensors = self.of(node)
            assert tensors.inside is not None
            if not node.poisoned and tensors.inside.steps:
                assert tensors.inside.steps == len(tensors.own), "W-14: the contribution is what was stepped"
                total += tensors.inside.steps
                content.update(tensors.own)
        voters = [node for node in nodes if (call := self.of(node).inside) is not None and not call.observer]
        bases = [self.of(node).base for node in voters or nodes]
        assert all(base == bases[0] for base in bases), "I59: voters began the window with the same consensus"
        content.update(bases[0])
        made = Sum(content, total)
        for node in nodes:
            self.of(node).made = made
        for node in nodes:
            if self.of(node).doom == 0:
                self.kill(node.rank)

    def _share(self, node: Node) -> None:
        shares, self.of(node).shares = self.of(node).shares, None
        if shares is not None and shares.adopts:
            source = self.of(self.nodes[shares.source])
            self.of(node).base, self.of(node).own = source.base + Counter(source.own), []
            self.complete.add((node.rank, node.incarnation))

    def _do_return(self, rank: int) -> None:
        node = self.nodes[rank]
        tensors = self.of(node)
        call, made = tensors.inside, tensors.made
        assert call is not None and made is not None
        tensors.inside, tensors.made, tensors.acted = None, None, []
        tensors.scratch = (tensors.base, tensors.own)
        tensors.held = self.ghost.held.get(rank, 0)
        refusal = m.Refusal.NONFINITE if node.poisoned and call.steps else None
        if made.total or refusal:
            tensors.own = []
        else:
            tensors.own = list(tensors.own)
        if made.total:
            tensors.base = made.content
            if not call.observer:
                self.ghost.held[rank] = node.worker.call.version if node.worker.call is not None else 0
        node.trainer.fresh = made.total > 0 or call.cycle == 0
        self.tell(node, ev.CollectiveDone(
            cycle=call.cycle, attempt=call.attempt, total_steps=made.total, refusal=refusal, divergence=0.01,
            pre_norm=1.0, post_norm=1.0, session_id=call.session_id,
        ))  # fmt: skip
        if tensors.doom:
            self.kill(rank, lose=(0, 1, 3)[tensors.doom - 1])

    def _do_collapse(self, rank: int) -> None:
        """R-15: the client puts back what it may have changed, then says so; here nothing was."""
        node = self.nodes[rank]
        tensors = self.of(node)
        call = tensors.inside
        assert call is not None
        tensors.inside, tensors.made, tensors.failing = None, None, False
        self.tell(node, ev.CollectiveFailed(call.cycle, call.attempt, "a test ended it", session_id=call.session_id))

    def _do_step(self, rank: int) -> None:
        trainer, tensors = self.nodes[rank].trainer, self.of(self.nodes[rank])
        plan = trainer.plan[trainer.part]
        tensors.own.append((plan.epoch, plan.offset // (self.co.config.batch_size or 1) + trainer.batch))
        super()._do_step(rank)

    def _do_control(self, rank: int) -> None:
        node = self.nodes[rank]
        message, committed = node.down[0], node.worker.committed
        if isinstance(message, m.Update) and message.cycle > committed:
            self.ghost.adopt(rank, message.cycle)
        super()._do_control(rank)
        if isinstance(message, m.Update) and node.worker.committed == message.cycle > committed:
            self._check_content(node, message)

    # --- checks ------------------------------------------------------------------------------------------------------

    def _check_content(self, node: Node, update: m.Update) -> None:
        """I52, I59: what is covered is in the consensus once, all voters hold the same, and nothing else is in it,
        unless nobody could say whose steps were lost (M-19)."""
        base = self.of(node).base
        known = self.contents.setdefault(update.cycle, base)
        assert base == known, f"I59: rank {node.rank} holds another consensus of cycle {update.cycle}"
        merged = set(self.ghost.merged)
        assert merged <= set(base), f"I52: {merged - set(base)} are covered and in no consensus"
        if not self.ambiguous:
            assert base == Counter(merged), f"I44: {base - Counter(merged)} are in the consensus and not covered"

    def strike(self, fault: Fault) -> None:
        """Three more kinds."""
        rank = fault.rank % max(1, len(self.nodes))
        if fault.kind == "raise":
            self.log.append(f"raise {rank}")
            self.of(self.nodes[rank]).failing = True
        elif fault.kind == "mute":
            self.log.append(f"mute {rank}")
            self.of(self.nodes[rank]).muted = True
        elif fault.kind == "doom":
            self.log.append(f"doom {rank} {fault.lose}")
            self.of(self.nodes[rank]).doom = fault.lose
        else:
            super().strike(fault)

    def phases(self) -> list[WorkerPhase]:
        """Where the workers stand, ascending."""
        return [node.worker.phase for _, node in sorted(self.nodes.items())]
