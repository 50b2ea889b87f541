"""What the worker does with plans, snapshots, the consensus and throttles: guards and effects of `table_worker.py`.

See `worker_notices.py` for the variables and the rules of the house.
"""

from __future__ import annotations

from . import messages as m
from .effects import AbandonPlan, Adopt, Extend, Park, Publish, TakeSnapshot, Train, Unpark
from .events import ChunkDone, CollectiveFailed, ConsensusStaged, RoundBroken, SnapshotTaken, StepDone
from .phases import WorkerPhase
from .retention import weigher
from .sayable import sayable
from .values import maker, state
from .worker_actions import WorkerActions
from .worker_notices import NO_CYCLE

__all__ = ["WorkerOrders"]

new_batch, weigh_batch = maker(m.Batch), weigher(m.Batch)
"""Of the one report that each step sends."""


@state
class WorkerOrders(WorkerActions):
    """Plans and averages of a worker, over its duties and the variables of `WorkerNotices`."""

    # --- training ------------------------------------------------------------------------------------------------

    def count_step(self, event: StepDone) -> None:
        """W-2: both counters, the Batch report, and the learning rate if it changed."""
        self.local_step = step = self.local_step + 1
        self.steps_since_avg += 1
        own, number, hand, part = self.settings, self.report_seq + 1, self.hand, event.part
        self.report_seq = number
        plan = hand[part] if part < len(hand) else hand[-1]  # parts are trained in order, and the one at hand is named
        batch = new_batch(  # `report`, without a word by name
            own.run_id, own.generation, own.rank, own.incarnation, number, self.control_handled, self.cycle,
            plan.plan_id, step, event.samples, event.batch_ms, event.data_ms, event.loss, event.param_norm,
        )  # fmt: skip
        self.put(number, batch, weigh_batch)
        if event.lr is not None and event.lr != self.last_lr:
            self.last_lr = event.lr
            self.report(m.LrUpdate, lr=event.lr, position=self.position - 1)

    def end_plan(self, event: ChunkDone) -> None:
        """W-4: Metrics for all plan ids served; the plan leaves the hand."""
        self.report(
            m.Metrics, cycle=self.cycle, plan_ids=event.plan_ids, epoch=event.epoch, batches=event.batches,
            samples=event.samples, epoch_ms=event.epoch_ms, share_complete_ms=event.share_complete_ms,
            compute_only_ms=event.compute_only_ms, data_starve_ms=event.data_starve_ms, avg_loss=event.avg_loss,
            scalars=event.scalars, resources=event.resources,
        )  # fmt: skip
        self.hand = self.hand[len(event.plan_ids) :]
        self.started = False
        if not self.hand:
            self.hand, self.mailbox = self.mailbox, ()

    def covers_hand(self, event: ChunkDone) -> bool:
        """The end names the plan in hand, from its front (W-16)."""
        mine = tuple(plan.plan_id for plan in self.hand)
        return bool(event.plan_ids) and mine[: len(event.plan_ids)] == event.plan_ids

    def more_to_train(self, event: ChunkDone) -> bool:
        """Whether the mailbox, or a part that came too late to be appended, is next."""
        return bool(self.mailbox) or len(self.hand) > len(event.plan_ids)

    def begin(self, event: object) -> None:
        """Order the plan in hand trained, with what was appended while it waited; the epoch callback first (W-6)."""
        self.started = True
        self.enter_epoch(self.hand[0].epoch)
        self.outbox.append(Train(self.hand[0]))
        for part in self.hand[1:]:
            self.outbox.append(Extend(part))

    # --- plans ---------------------------------------------------------------------------------------------------

    def plan_from_future(self, event: m.StartEpoch) -> bool:
        """A plan made after a cycle that this rank has not adopted (W-15)."""
        return event.cycle > self.cycle

    def hold_plan(self, event: m.StartEpoch | m.ExtendPartition) -> None:
        """The hand if it is empty, else the mailbox, whose older plan is overwritten loudly (W-15)."""
        self._store(event.plan)

    def _store(self, plan: m.Plan) -> None:
        if not self.hand:
            self.hand, self.started = (plan,), False
            return
        if self.mailbox:
            old = self.mailbox[0]
            self.outbox.append(Publish("plan_overwritten", {
                "rank": self.settings.rank, "dropped": (old.epoch, old.offset, old.size),
                "kept": (plan.epoch, plan.offset, plan.size),
            }))  # fmt: skip
        self.mailbox = (plan,)

    def extends_hand(self, event: m.ExtendPartition) -> bool:
        """The extension names a part of the plan in hand (W-16)."""
        return any(part.plan_id == event.extends for part in self.hand)

    def extends_mailbox(self, event: m.ExtendPartition) -> bool:
        """The extension names a part of the plan in the mailbox (W-16)."""
        return any(part.plan_id == event.extends for part in self.mailbox)

    def append_hand(self, event: m.ExtendPartition) -> None:
        """Grow the plan in hand; a started one tells the training process (W-16)."""
        self.hand += (event.plan,)
        if self.started:
            self.outbox.append(Extend(event.plan))

    def append_mailbox(self, event: m.ExtendPartition) -> None:
        """Grow the plan that waits."""
        self.mailbox += (event.plan,)

    # --- snapshot and consensus ----------------------------------------------------------------------------------

    def cycle_over(self, event: m.RequestParams | RoundBroken) -> bool:
        """Of a cycle whose Update is handled (W-10)."""
        return event.cycle <= self.committed

    def request_stale(self, event: m.RequestParams) -> bool:
        """A request below the newest one served (W-10)."""
        return self._key_of(event) < self._served()

    def request_repeated(self, event: m.RequestParams) -> bool:
        """The nudge: the very request that was served (W-10, M-13)."""
        return self._key_of(event) == self._served()

    def _key_of(self, event: m.RequestParams) -> tuple[int, int, int]:
        return event.cycle, event.generation, event.attempt

    def _served(self) -> tuple[int, int, int]:
        """Cycle, generation and attempt of the newest request: after a restart attempts count from 0 (M-43)."""
        return self.snapshot_cycle, self.snapshot_generation, self.snapshot_attempt

    def request_again(self, event: m.RequestParams) -> bool:
        """A later attempt of the cycle whose copy is retained (W-10)."""
        return event.cycle == self.snapshot_cycle

    def holds_still(self, event: m.RequestParams) -> bool:
        """Whether no step may be taken from the snapshot to the Update (W-11): every policy but async."""
        return self.settings.policy != "async"

    def take_copy(self, event: m.RequestParams) -> None:
        """W-10: first fix what is shipped, then order the copy."""
        self.observing = event.observer
        self.shipped = 0 if event.observer or self.phase == WorkerPhase.JOINING else self.steps_since_avg
        self.snapshot_cycle = event.cycle
        self._ship(event, fresh=True)

    def ship_again(self, event: m.RequestParams) -> None:
        """W-10: the retained copy under a new attempt, shipped unchanged."""
        self._ship(event, fresh=self.observing != event.observer)
        self.observing = event.observer

    def _ship(self, event: m.RequestParams, *, fresh: bool) -> None:
        self.snapshot_attempt, self.snapshot_generation = event.attempt, event.generation
        self.staged, self.acked, self.copied = None, False, False
        check = event.cycle == 0 and self.checks
        source = event.cycle == 0 and not event.observer
        self.outbox.append(TakeSnapshot(
            cycle=event.cycle, attempt=event.attempt, generation=event.generation, shipped=self.shipped,
            header_only=not source and self.shipped == 0, state=source or check, fresh=fresh, check=check,
            # Nobody steps before a first consensus.
            put_back=(source or check) and (self.version > 0 or self.local_step > 0),
        ))  # fmt: skip

    def repeat_evidence(self, event: m.RequestParams) -> None:
        """W-10: say again what is so; never a second copy."""
        if self.copied:
            self._say_ready(None)
        if self.staged is not None and self.acked:
            self._acknowledge(self.staged)

    def hold(self, event: m.RequestParams) -> None:
        """W-11: from here to the Update of this cycle no step, as if throttled for it."""
        self.throttle = max(self.throttle, event.cycle)
        self._park()

    def copy_current(self, event: SnapshotTaken) -> bool:
        """The copy is the one asked for last."""
        return self._in_hand(event)

    def _in_hand(self, event: SnapshotTaken | ConsensusStaged) -> bool:
        known = event.generation in (None, self.snapshot_generation)
        return known and (event.cycle, event.attempt) == (self.snapshot_cycle, self.snapshot_attempt)

    def copy_taken(self, event: SnapshotTaken) -> None:
        """Report SnapshotReady (W-10)."""
        self.copied = True
        self._say_ready(event.copy_ms)

    def _say_ready(self, copy_ms: float | None) -> None:
        self.report(
            m.SnapshotReady, cycle=self.snapshot_cycle, attempt=self.snapshot_attempt, shipped_steps=self.shipped,
            copy_ms=copy_ms,
        )  # fmt: skip

    def consensus_current(self, event: ConsensusStaged) -> bool:
        """The consensus is of the round this rank is in, and the copy it answers was reported (N-3)."""
        return self._in_hand(event) and event.cycle > self.committed and self.copied and not self.acked

    def stage(self, event: ConsensusStaged) -> None:
        """W-11: it lies beside the live parameters; say so."""
        self.staged, self.acked = event, True
        self._acknowledge(event)

    def _acknowledge(self, staged: ConsensusStaged) -> None:
        self.report(
            m.SyncAck, cycle=staged.cycle, attempt=staged.attempt, step_count=self.local_step,
            shipped_steps=self.shipped, total_steps=staged.total_steps, outcome=staged.outcome,
            refusal=staged.refusal, divergence=staged.divergence, pre_norm=staged.pre_norm,
            post_norm=staged.post_norm, digest=staged.digest, state_complete=staged.state_complete,
        )  # fmt: skip

    def round_broken(self, event: RoundBroken | CollectiveFailed) -> None:
        """Tell the coordinator, which alone decides about a retry (N-1, R-18)."""
        self.report(m.RoundFailed, cycle=event.cycle, attempt=event.attempt, round=m.RoundKind.PARAMS,
                    cause=sayable(event.cause), retryable=event.retryable)  # fmt: skip

    # --- update --------------------------------------------------------------------------------------------------

    def update_old(self, event: m.Update) -> bool:
        """An Update of a cycle that is committed already (W-12)."""
        return event.cycle <= self.committed

    def update_unfounded(self, event: m.Update) -> bool:
        """No consensus of this cycle and attempt, or another count of merged steps (W-12)."""
        if event.outcome == m.Outcome.UNREALIZED:
            return False
        steps = self.adopted_steps(event)
        return steps is None or (event.outcome == m.Outcome.MERGED and event.merged_steps != steps)

    def adopted_steps(self, event: m.Update) -> int | None:
        """Steps of this rank in the consensus that the Update is about; None if the rank does not have it."""
        staged = self.staged
        if staged is None or (staged.cycle, staged.attempt) != (event.cycle, event.attempt):
            return None
        return self.shipped

    def has_plan_after(self, event: m.Update) -> bool:
        """Whether a plan is in hand and stays there, or comes with the Update."""
        return (bool(self.hand) and not self.observed(event)) or event.next_plan is not None

    def observed(self, event: m.Update) -> bool:
        """An observer drops what it had: its plan has gone to others (W-12, M-14)."""
        return event.outcome == m.Outcome.OBSERVER

    def outlasts(self, event: m.Update) -> bool:
        """A throttle of a later cycle stays (W-12.5)."""
        return self.throttle > event.cycle

    def commit(self, event: m.Update) -> None:
        """W-12, one act: adopt, lower the steps, take version and base, serve what is armed, store the plan."""
        self.take_over(event)
        self.version, self.global_step = event.version, event.global_step
        self.cycle = self.committed = event.cycle
        self.serve_adopted()
        if event.next_plan is not None:
            self._store(event.next_plan)

    def take_over(self, event: m.Update) -> None:
        """W-12.1 and 2: the staged consensus becomes the live parameters, and what was shipped is no longer owed."""
        how = "overwrite"
        if event.outcome == m.Outcome.UNREALIZED:
            how = "keep"
        elif event.outcome == m.Outcome.MERGED and self.settings.policy == "async":
            how = "blend"
        refusal = self.staged.refusal if self.staged is not None else None
        reset = event.outcome == m.Outcome.REFUSED and refusal == m.Refusal.NONFINITE
        self.outbox.append(Adopt(event.cycle, how, reset, event.outcome))
        if event.outcome == m.Outcome.MERGED:
            self.steps_since_avg = max(0, self.steps_since_avg - self.shipped)
        elif event.outcome in (m.Outcome.REFUSED, m.Outcome.OBSERVER):
            self.steps_since_avg = 0
        if event.outcome == m.Outcome.OBSERVER and (self.hand or self.mailbox):
            self.hand, self.mailbox, self.started = (), (), False
            self.outbox.append(AbandonPlan())
        self.shipped, self.staged, self.acked, self.in_mid_step = 0, None, False, False

    def serve_adopted(self) -> None:
        """W-12.4: what waited for this consensus."""
        self.serve_armed()

    def release(self, event: m.Update) -> None:
        """Steps may be taken again (W-17)."""
        self.throttle = NO_CYCLE
        if self.parked:
            self.parked = False
            self.outbox.append(Unpark())

    def resume(self, event: object) -> None:
        """Go on with the plan in hand; one that has not been started is started now (W-4)."""
        if not self.started:
            self.begin(event)

    def base_current(self, event: m.SetGlobalStep) -> bool:
        """The base belongs to the version this rank holds (W-13)."""
        return event.version == self.version

    def raise_base(self, event: m.SetGlobalStep) -> None:
        """Monotone (W-13)."""
        self.global_step = max(self.global_step, event.global_step)

    # --- throttle ------------------------------------------------------------------------------------------------

    def throttle_over(self, event: m.Throttle) -> bool:
        """The cycle that ends it has been adopted already (W-17)."""
        return event.cycle <= self.committed

    def park(self, event: m.Throttle) -> None:
        """Stop stepping until that cycle ends (W-17)."""
        self.throttle = event.cycle
        self._park()

    def _park(self) -> None:
        if not self.parked:
            self.parked = True
            self.outbox.append(Park(self.throttle))
