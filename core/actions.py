"""Checkpoints and evaluations: when they happen, at which rank, and what becomes of them (protocol section 12).

Such an action is decided when an average is armed, and nowhere else (K-2). Its message leaves before the requests of
that cycle, so the elected rank knows of it before it ships its copy, and carries it out right after it has adopted the
consensus of that cycle: what it sees is exactly that version (K-3). A wish, of a rank or an operator, is a flag that
waits for the next arm (K-1). If the cycle brings no consensus, what was armed stays armed (C-17).

    wish, trigger --arm--> armed --finish, realized--> under way --result--> done
                             ^                              |
                             '--- the next cycle, another rank <-- error, death, or role limit

A *duty* is what one rank was asked for and has not answered. A checkpoint that fails goes on to the next rank that has
not been tried, a failed evaluation is told and forgotten (K-9, K-16). A *bundle*, the averager's consensus with its
record, needs no rank at all: star writes it after the finish that made it (K-6, K-7).

Time in a callback is duty, not slowness: it is taken out of the window in which it fell (K-18), and its average cost is
given back to the holder as slack before the next one is due (B-14).

The final evaluation is armed with the last cycle of a run that was asked to stop: that one ends it, whoever dies in it.
That a cycle covers the last of the last epoch is known only afterwards, because a death or a refusal may return picks
to it; and a decision id acts once at a rank (I24), so one that came too early could not be repeated. There it is sent
when the run has nothing left to do, and sees the retained consensus, by then the last (K-17).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from . import messages as m
from .cadence_inputs import callback_cost_ms
from .effects import Alert, Emit, Invoke
from .errors import InvariantError
from .events import ConsensusSaved, MetaWritten
from .phases import RunPhase
from .policies import slacken
from .roles import CHECKPOINT, EPOCH, EVALUATE
from .run import FINAL_STEM, RANKS_WRITE
from .values import state, value

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .peer import Peer

__all__ = ["Actions", "Duty"]

RESULT_EVENTS = {CHECKPOINT: "checkpoint callback", EVALUATE: "evaluation"}


@state
class Duty:
    """What a rank was asked for, or calls by itself at an epoch. `since` is when it could begin, None while its cycle
    is not finished. The decision id of an epoch callback is its epoch, `steps` what the rank had trained before it."""

    role: str
    decision_id: int
    rank: int
    version: int
    epoch: int
    since: float | None = None
    steps: int = 0


@value
class Bundle:
    """Files to write when the armed cycle has its consensus."""

    decision_id: int
    stem: str


@value
class Ordered:
    """Files that the averager was told to write, and has not said that it did."""

    decision_id: int
    version: int
    reason: m.SaveReason
    stem: str


@state
class Actions:
    """State of section 12. `reached` is the highest epoch of a voter that an arm has seen, so the triggers up to it are
    served, `evaluated` the highest one that an arm found trained; both go on in a run that is resumed (K-12). `kept` is
    the bundle that lies under the final name, `ordered` what is being written."""

    co: Coordinator
    duties: list[Duty] = attrs.field(factory=list)
    bundle: Bundle | None = None
    wished: dict[str, bool] = attrs.field(factory=lambda: {CHECKPOINT: False, EVALUATE: False})
    again: dict[str, bool] = attrs.field(factory=lambda: {CHECKPOINT: False, EVALUATE: False})
    tried: tuple[int, ...] = ()
    reached: int = 0
    evaluated: int = -1
    kept: Bundle | None = None
    kept_version: int = -1
    cost_ms: dict[str, float] = attrs.field(factory=dict)
    ordered: list[Ordered] = attrs.field(factory=list)

    # --- wishes (K-1) ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Training begins. That nobody can serve a knob is known only now, when all ranks have said what they brought
        (section 15)."""
        config = self.co.config
        if config.checkpoint_every is not None or config.checkpoint_at_epoch is not None:
            self._possible(CHECKPOINT, "checkpoint_every, checkpoint_at_epoch")
        if config.eval_every is not None:
            self._possible(EVALUATE, "eval_every")

    def wish(self, role: str, who: str) -> None:
        """A rank or an operator asks; the next arm serves it. What nobody can serve is dropped loudly."""
        if self.co.run.phase != RunPhase.TRAINING:
            self.co.emit(Alert("unserved_role", who, f"the run is not training, so nobody serves a {role}"))
        elif self._possible(role, who):
            self.wished[role] = True

    def _possible(self, role: str, who: str) -> bool:
        if self.co.roles.exists(role) or (role == CHECKPOINT and self.co.config.save_path is not None):
            return True
        lacks = "callback nor path" if role == CHECKPOINT else "function"
        self.co.emit(Alert("unserved_role", who, f"nobody can serve a {role}: there is no {lacks} for it"))
        return False

    # --- arm (C-11.2) ----------------------------------------------------------------------------------------------

    def arm(self, cycle: int) -> None:
        """Decide what belongs to the consensus of this cycle, and tell it to whom it concerns (K-2, K-3)."""
        tail = self._in_tail()
        due = self._checkpoint_due() or tail
        # After a stop this is the last average; where the averager keeps nothing, only a rank can write it (K-4, K-7).
        last = self.co.stopping and self.co.config.averager in RANKS_WRITE
        if due or last:
            self._arm_bundle(cycle, tail or last)
        if due or self.again[CHECKPOINT]:
            self._arm_callback(cycle)
        self._arm_evaluation(cycle)

    def _checkpoint_due(self) -> bool:
        """A pending wish, the cadence, the one-shot (K-2)."""
        every, at, before = self.co.config.checkpoint_every, self.co.config.checkpoint_at_epoch, self.reached
        held = self.co.book.ranks
        self.reached = max([before, *[held[rank].epoch for rank in self.co.voters if rank in held]])
        due, self.wished[CHECKPOINT] = self.wished[CHECKPOINT], False
        if every is not None and self.reached // every > before // every:
            due = True
        return due or (at is not None and before < at <= self.reached)

    def _in_tail(self) -> bool:
        """K-4: so little is left that this may be the last average. The closed epoch is asked for first: closing has
        removed its pool."""
        co = self.co
        last = co.book.num_epochs - 1
        if co.book.last_closed_epoch >= last:
            return True
        if last not in co.book.pools:
            return False
        whole = sum([co.balancer.counts[rank] for rank in co.voters])
        return self._fewer_left(last, whole + len(co.voters))

    def _trained(self, epoch: int) -> bool:
        """Whether nothing of an epoch is free or in flight (K-2). Under async its last batches may have been merged by
        the cycle before, so that it is closed already: then it is due late rather than never."""
        return epoch < self.co.book.first_live or (epoch in self.co.book.pools and self._fewer_left(epoch, 1))

    def _fewer_left(self, epoch: int, limit: int) -> bool:
        """Whether fewer batches of an open epoch than that are free or in flight: nobody has trained those yet. Most
        of the time the free ones, which are counted, answer it alone."""
        free = self.co.book.pools[epoch].free
        return free < limit and free + self.co.book.in_flight(epoch) < limit

    def _arm_bundle(self, cycle: int, tail: bool) -> None:
        co = self.co
        if co.config.save_path is None:
            return
        version = co.cycle.version + 1
        name = FINAL_STEM if tail else f"checkpoint.v{version}"
        self.bundle = Bundle(self._decide(), f"{co.config.save_path}/{name}")
        co.emit(Emit("CheckpointArmed", {"cycle": cycle, "version": version, "stem": self.bundle.stem}))
        if co.config.averager in RANKS_WRITE:
            self.order_model(self.bundle.decision_id, self.bundle.stem, version, cycle)

    def order_model(self, decision_id: int, stem: str, version: int, cycle: int) -> None:
        """K-7: the holder of the checkpoint role writes the consensus; one that it has adopted already at once."""
        co = self.co
        writer = co.roles.holder(CHECKPOINT) if co.roles.served(CHECKPOINT) else co.voters[0]
        co.tell((writer,), m.SaveConsensusModel, decision_id=decision_id, version=version, target_rank=writer,
                cycle=cycle, stem=stem)  # fmt: skip

    def _arm_callback(self, cycle: int) -> None:
        """The user's checkpoint callback, if there is one. One that is armed and waits for a consensus is enough."""
        co = self.co
        if not co.roles.exists(CHECKPOINT) or self._armed(CHECKPOINT):
            return
        if not self.again[CHECKPOINT]:
            self.tried = ()
        self.again[CHECKPOINT] = False
        if not co.roles.served(CHECKPOINT):
            co.roles.pass_on(CHECKPOINT, self.tried)
        if not co.roles.served(CHECKPOINT):
            co.emit(Alert("unserved_role", CHECKPOINT, "no rank is left to call the checkpoint callback"))
            return
        duty = self._take_on(CHECKPOINT, self._decide(), co.cycle.version + 1)
        stem = None if self.bundle is None else self.bundle.stem
        co.tell((duty.rank,), m.Checkpoint, decision_id=duty.decision_id, version=duty.version,
                target_rank=duty.rank, cycle=cycle, stem=stem)  # fmt: skip

    def _arm_evaluation(self, cycle: int) -> None:
        """K-2: after the cycle that covers the last of an epoch that is due, or on a wish. The last epoch's is the
        final evaluation."""
        co = self.co
        if co.stopping:
            self._arm_final(cycle)
            return
        due, every = self.wished[EVALUATE] or self.again[EVALUATE], co.config.eval_every
        self.wished[EVALUATE] = self.again[EVALUATE] = False
        epoch = self.epoch_label()
        for candidate in range(self.evaluated + 1, co.book.num_epochs - 1):
            if not self._trained(candidate):
                break
            self.evaluated = candidate
            if _divides(every, candidate + 1):
                epoch, due = candidate, True
        if due and co.roles.exists(EVALUATE) and not self._armed(EVALUATE):
            self._order_evaluation(self._decide(), epoch, co.cycle.version + 1, cycle)

    def _arm_final(self, cycle: int) -> None:
        """K-17: this cycle ends the run. A rank keeps one armed evaluation, the newest (K-3), so what was armed and has
        had no consensus yet is answered by this one, as every wish is."""
        self.wished[EVALUATE] = self.again[EVALUATE] = False
        if self.co.roles.served(EVALUATE):
            self._drop_armed(EVALUATE)
            self._order_evaluation(m.FINAL_EVALUATION, self.epoch_label(), self.co.cycle.version + 1, cycle)

    def _drop_armed(self, role: str) -> None:
        self.duties = [duty for duty in self.duties if duty.role != role or duty.since is not None]

    def _order_evaluation(self, schedule_id: int, epoch: int, version: int, cycle: int | None) -> None:
        co = self.co
        if not co.roles.served(EVALUATE):
            co.emit(Alert("unserved_role", EVALUATE, f"the evaluation of epoch {epoch} is left out: nobody serves it"))
            return
        duty = self._take_on(EVALUATE, schedule_id, version, epoch, None if cycle is not None else co.now)
        co.tell((duty.rank,), m.ExecuteEvalCallback, schedule_id=schedule_id, epoch=epoch,
                target_rank=duty.rank, version=version, on_consensus=True, cycle=cycle)  # fmt: skip

    def _take_on(self, role: str, decision_id: int, version: int, epoch: int = 0, since: float | None = None) -> Duty:
        duty = Duty(role, decision_id, self.co.roles.holder(role), version, epoch, since)
        self.duties.append(duty)
        return duty

    def _armed(self, role: str) -> bool:
        return any(duty.role == role and duty.since is None for duty in self.duties)

    def _decide(self) -> int:
        """A new decision id (K-1)."""
        self.co.run.decisions += 1
        return self.co.run.decisions

    def epoch_label(self) -> int:
        """The epoch of running work (K-20)."""
        return max(0, min(self.co.book.first_live, self.co.book.num_epochs - 1))

    # --- finish ----------------------------------------------------------------------------------------------------

    def stage_slack(self) -> None:
        """B-14: before the window that is the last of its epoch, give the holders time for what fires at its end."""
        co = self.co
        pool = co.book.pools.get(co.book.first_live)
        whole = sum([co.balancer.counts[rank] for rank in co.voters])
        if pool is None or not co.balancer.calibrated or not 1 <= pool.free <= whole:
            return
        config, after = co.config, co.book.first_live + 1
        fires = {EPOCH: True, CHECKPOINT: _divides(config.checkpoint_every, after),
                 EVALUATE: _divides(config.eval_every, after)}  # fmt: skip
        for rank in co.voters:
            mine = [role for role, will in fires.items() if will and co.roles.holder(role) == rank]
            slacken(co, rank, sum(self.cost_ms.get(role, 0.0) for role in mine))

    def finished(self, realized: bool) -> None:
        """C-15.12: the targets may begin, the averager may write. After an unrealized cycle everything waits for the
        next one, at the targets too (C-17, K-3)."""
        if not realized:
            return
        for duty in self.duties:
            if duty.since is None:
                duty.since = self.co.now
        bundle, self.bundle = self.bundle, None
        if bundle is None:
            return
        self.co.run.write_bundle(m.SaveReason.CHECKPOINT, bundle.decision_id, bundle.stem)
        if bundle.stem == f"{self.co.config.save_path}/{FINAL_STEM}":
            self.kept, self.kept_version = bundle, self.co.cycle.version

    def is_kept(self) -> bool:
        """Whether the newest consensus lies under the final name already, or is on its way there (K-4)."""
        return self.kept is not None and self.kept_version == self.co.cycle.version

    def file_failed(self, decision_id: int) -> None:
        """A bundle could not be written: under the final name it is tried once more at the end (K-8)."""
        if self.kept is not None and self.kept.decision_id == decision_id:
            self.kept = None

    # --- across a crash (M-44) -------------------------------------------------------------------------------------

    def note_ordered(self, decision_id: int, reason: m.SaveReason, stem: str) -> None:
        """The order is out."""
        self.ordered.append(Ordered(decision_id, self.co.cycle.version, reason, stem))

    def file_settled(self, event: ConsensusSaved | MetaWritten) -> None:
        """The data plane has done with a bundle: its record is in place, or something of it failed."""
        if event.error is not None or isinstance(event, MetaWritten):
            self.ordered = [order for order in self.ordered if order.decision_id != event.decision_id]

    def restarted(self) -> None:
        """Files that were being written may be there or not. Those of an older consensus are lost with the averager's
        memory, and so are all of them when no rank comes back any more that could give it back."""
        current = self.co.cycle.version if self.co.run.phase in (RunPhase.TRAINING, RunPhase.FINAL_EVAL) else -1
        for order in [order for order in self.ordered if order.version != current]:
            self.ordered.remove(order)
            self.file_failed(order.decision_id)
            text = f"{order.stem}: the coordinator died while it was written; it may be missing"
            self.co.emit(Alert("checkpoint_failed", "averager", text))

    def write_again(self) -> None:
        """The averager has its consensus back: the same name and content, under the same decision (M-44)."""
        ordered, self.ordered = self.ordered, []
        for order in ordered:
            self.co.run.write_bundle(order.reason, order.decision_id, order.stem)

    # --- results (K-9, K-16) ---------------------------------------------------------------------------------------

    def awaits(self, role: str, decision_id: int, rank: int) -> bool:
        """Whether this rank owes the result of this decision (K-16)."""
        return self._duty(role, decision_id, rank) is not None

    def checkpointed(self, peer: Peer, event: m.CheckpointResult) -> None:
        """K-9: success pins the role, an error passes it on."""
        self.account(peer, CHECKPOINT, event.elapsed_ms)
        duty = self._discharge(CHECKPOINT, event.decision_id, peer.rank)
        if event.error is None:
            self.co.roles.proven, self.tried = True, ()
            self.co.emit(Emit("CheckpointWritten", {"rank": peer.rank, "version": event.version}))
            return
        self.co.emit(Alert("checkpoint_failed", f"rank {peer.rank}", event.error))
        self._pass_on(duty)

    def evaluated_by(self, peer: Peer, event: m.EvalResult) -> None:
        """K-16: a result is for all, an error is told and never fatal; what is no number is none (K-14)."""
        co = self.co
        self.account(peer, EVALUATE, event.elapsed_ms)
        duty = self._discharge(EVALUATE, event.schedule_id, peer.rank)
        metric = event.metric
        if event.error is not None:
            co.emit(Alert("callback_failed", f"evaluation at rank {peer.rank}", event.error))
        if metric is None or not math.isfinite(metric) or event.count == 0 or event.error is not None:
            metric = None
        facts = {"epoch": duty.epoch, "version": event.version, "metric": metric, "count": event.count}
        co.emit(Emit("Evaluated", {"rank": peer.rank, "final": duty.decision_id == m.FINAL_EVALUATION, **facts}))
        if metric is not None:
            co.tell(co.alive, m.EvalBroadcast, schedule_id=duty.decision_id, epoch=duty.epoch,
                    version=event.version, metric=metric)  # fmt: skip
            co.emit(Invoke("eval_result", (duty.decision_id, duty.epoch, event.version, metric, event.count)))

    def account(self, peer: Peer, role: str, elapsed_ms: float) -> None:
        """K-18, B-14: out of the window, into the average cost."""
        if math.isfinite(elapsed_ms) and elapsed_ms >= 0:
            peer.window.exclude(elapsed_ms)
            self.cost_ms[role] = callback_cost_ms(self.cost_ms.get(role), elapsed_ms)

    # --- the epoch callback (M-11) ---------------------------------------------------------------------------------

    def entered(self, peer: Peer) -> None:
        """Another plan may be the first in this rank's hands. If it begins an epoch and the rank holds the role, it is
        in the callback before it trains (W-6): the coordinator orders nothing there, so it sees it from the plan. An
        epoch that a rank began while another one held the role is fired."""
        head = self.co.book.head(peer.rank)
        if head is None or head.done or head.plan.epoch <= peer.entered_epoch:
            return
        peer.entered_epoch = epoch = head.plan.epoch
        if self.co.roles.holder(EPOCH) == peer.rank and EPOCH in peer.callbacks:
            version, steps = self.co.cycle.version, peer.total_steps
            self.duties.append(Duty(EPOCH, epoch, peer.rank, version, epoch, self.co.now, steps))
            self.co.urgent = True  # its limit has to be counted in the next deadline

    def epoch_called(self, peer: Peer, event: m.EpochFnElapsed) -> None:
        """It is over (K-18)."""
        self.account(peer, EPOCH, event.elapsed_ms)
        duty = self._duty(EPOCH, event.epoch, peer.rank)
        if duty is not None:
            self._end(duty)

    def _stepped(self, duty: Duty) -> bool:
        """Whether a rank has trained since, so that it is not in its epoch callback: it had none to call."""
        return duty.role == EPOCH and self.co.peers[duty.rank].total_steps > duty.steps

    # --- results, in general ---------------------------------------------------------------------------------------

    def _duty(self, role: str, decision_id: int, rank: int) -> Duty | None:
        return next((d for d in self.duties if (d.role, d.decision_id, d.rank) == (role, decision_id, rank)), None)

    def _discharge(self, role: str, decision_id: int, rank: int) -> Duty:
        duty = self._duty(role, decision_id, rank)
        if duty is None:
            raise InvariantError(f"K-16: rank {rank} answers decision {decision_id}, which it was not asked for")
        self._end(duty)
        return duty

    def _end(self, duty: Duty) -> None:
        """It is not awaited any more. The time it took is none of the stage in which the rank is (M-11)."""
        self.duties.remove(duty)
        if duty.since is not None and not self._stepped(duty):
            self.co.peers[duty.rank].climb.excuse(duty.since, self.co.now)

    # --- failover --------------------------------------------------------------------------------------------------

    def gone(self, rank: int) -> None:
        """A rank has ended with duties open; its roles have been given anew (M-34)."""
        for duty in [d for d in self.duties if d.rank == rank]:
            self.duties.remove(duty)
            self._pass_on(duty)

    def expire(self) -> None:
        """Who lets the role limit pass, strictly, loses the role; what it says later is refused (K-17)."""
        limit = self._limit()
        for duty in [d for d in self.duties if d.since is not None and self.co.now > d.since + limit]:
            self._end(duty)
            if duty.role == EPOCH:  # the callback may take its time; only the ladder stands still no longer (M-11)
                continue
            text = f"no answer within {limit:g} s; the role is taken from rank {duty.rank}"
            self.co.emit(Alert("unserved_role", RESULT_EVENTS[duty.role], text))
            self.co.roles.take_away(duty.role)
            self._pass_on(duty)

    def _pass_on(self, duty: Duty) -> None:
        """To another rank: the final evaluation at once, everything else with the next cycle (K-9)."""
        roles = self.co.roles
        if duty.role == EPOCH:
            return
        if duty.role == EVALUATE:
            if duty.decision_id != m.FINAL_EVALUATION:
                self.again[EVALUATE] = True
            elif roles.served(EVALUATE) and self.co.run.phase == RunPhase.FINAL_EVAL:
                self._order_evaluation(m.FINAL_EVALUATION, duty.epoch, self.co.cycle.version, None)
            return
        self.tried = (*self.tried, duty.rank)
        if roles.holder(CHECKPOINT) in self.tried:
            roles.pass_on(CHECKPOINT, self.tried)
        self.again[CHECKPOINT] = roles.served(CHECKPOINT)
        if not self.again[CHECKPOINT]:
            self.co.emit(Alert("checkpoint_failed", "cohort", "no rank is left to try; the training goes on"))

    # --- the end (K-17) --------------------------------------------------------------------------------------------

    def begin_final(self) -> None:
        """The final evaluation, on the last consensus, at once; unless it was armed with the cycle that made that. If
        that cycle made none, its target still keeps the order, and must not wait for another one."""
        self._drop_armed(EVALUATE)
        if not self.final_open():
            self._order_evaluation(m.FINAL_EVALUATION, self.epoch_label(), self.co.cycle.version, None)

    def final_open(self) -> bool:
        """Whether its result is awaited."""
        return any(duty.decision_id == m.FINAL_EVALUATION for duty in self.duties)

    # --- time ------------------------------------------------------------------------------------------------------

    def _limit(self) -> float:
        return self.co.config.scaled(self.co.config.role_limit_s)

    def until(self, duty: Duty) -> float | None:
        """When the role limit of a duty passes."""
        return None if duty.since is None else duty.since + self._limit()

    def deadlines(self) -> list[float]:
        """When a Tick is due; limits are exceeded strictly."""
        return [math.nextafter(d.since + self._limit(), math.inf) for d in self.duties if d.since is not None]

    def busy(self) -> tuple[int, ...]:
        """Ranks with a duty under way: nobody, as a rule."""
        return tuple([duty.rank for duty in self.duties if duty.since is not None and not self._stepped(duty)])

    def under_way(self, rank: int) -> Duty | None:
        """What this rank is busy with, the oldest first."""
        for duty in self.duties:
            if duty.rank == rank and duty.since is not None and not self._stepped(duty):
                return duty
        return None

    def refresh(self) -> None:
        """The coordinator itself was away: every wait starts anew (M-9)."""
        for duty in self.duties:
            duty.since = None if duty.since is None else self.co.now


def _divides(every: int | None, epochs: int) -> bool:
    return every is not None and epochs % every == 0
