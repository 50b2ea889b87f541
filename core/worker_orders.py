"""What the worker's table rows do: the guards and effects of `tables.WORKER`, with the variables of W-1.

Guards read the event and at most a few variables; effects change variables and append orders to the outbox. None of
them changes the phase: that is the row's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import messages as m
from .effects import (
    AbandonPlan,
    Adopt,
    Extend,
    Park,
    Publish,
    Save,
    Stage,
    Stop,
    TakeSnapshot,
    Train,
    Unpark,
)
from .events import ActionDone, ChunkDone, ConsensusStaged, LinkLost, RoundBroken, SnapshotTaken, StepDone
from .phases import WorkerPhase
from .values import state

if TYPE_CHECKING:
    from .worker import WorkerSettings

__all__ = ["WorkerOrders"]

NO_CYCLE = -1
"""Below every cycle number: nothing adopted, nothing shipped yet (cycle 0 is formation)."""


@state
class WorkerOrders:
    """Variables of W-1. `hand` is the plan in hand with its extensions, `mailbox` the one waiting (W-15)."""

    settings: WorkerSettings
    phase: WorkerPhase = WorkerPhase.JOINING
    local_step: int = 0
    steps_since_avg: int = 0
    shipped: int = 0
    snapshot_cycle: int = NO_CYCLE
    snapshot_attempt: int = 0
    observing: bool = False
    copied: bool = False
    staged: ConsensusStaged | None = None
    acked: bool = False
    global_step: int = 0
    version: int = 0
    cycle: int = 0
    committed: int = NO_CYCLE
    hand: tuple[m.Plan, ...] = ()
    started: bool = False
    mailbox: tuple[m.Plan, ...] = ()
    throttle: int = NO_CYCLE
    parked: bool = False
    last_lr: float | None = None
    callback_holder: int | None = None
    dead_peers: tuple[tuple[int, int], ...] = ()
    saving: m.ShutdownWithSave | None = None
    saves_open: int = 0
    report_seq: int = 0
    control_seen: int = 0
    control_handled: int = 0
    last_heard: float = 0.0
    last_beat: float = 0.0
    drain_until: float | None = None

    if TYPE_CHECKING:
        outbox: list[Any]
        last_now: float

        def report(self, kind: type[m.Report], **fields: Any) -> None: ...

    @property
    def position(self) -> int:
        """The schedule position of the next step (W-8): merged steps of the cohort plus own steps since."""
        return self.global_step + self.steps_since_avg

    # --- training ------------------------------------------------------------------------------------------------

    def count_step(self, event: StepDone) -> None:
        """W-2: both counters, the Batch report, and the learning rate if it changed."""
        self.local_step += 1
        self.steps_since_avg += 1
        self.report(
            m.Batch, cycle=self.cycle, plan_id=self.hand_plan(event), step_count=self.local_step,
            samples=event.samples, batch_ms=event.batch_ms, data_ms=event.data_ms, batch_loss=event.loss,
            param_norm=event.param_norm,
        )  # fmt: skip
        if event.lr is not None and event.lr != self.last_lr:
            self.last_lr = event.lr
            self.report(m.LrUpdate, lr=event.lr, position=self.position - 1)

    def hand_plan(self, event: StepDone) -> int:
        """The plan id the step belongs to: the training process trains parts in order and names the part it is in."""
        return self.hand[min(event.part, len(self.hand) - 1)].plan_id

    def end_plan(self, event: ChunkDone) -> None:
        """W-4: Metrics for all plan ids served; the plan leaves the hand."""
        self.report(
            m.Metrics, cycle=self.cycle, plan_ids=event.plan_ids, epoch=event.epoch, batches=event.batches,
            samples=event.samples, epoch_ms=event.epoch_ms, share_complete_ms=event.share_complete_ms,
            compute_only_ms=event.compute_only_ms, data_starve_ms=event.data_starve_ms, avg_loss=event.avg_loss,
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
        """Order the plan in hand trained, with what was appended while it waited."""
        self.started = True
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
        return (event.cycle, event.attempt) < (self.snapshot_cycle, self.snapshot_attempt)

    def request_repeated(self, event: m.RequestParams) -> bool:
        """The nudge: the very request that was served (W-10, M-13)."""
        return (event.cycle, event.attempt) == (self.snapshot_cycle, self.snapshot_attempt)

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
        self.snapshot_attempt = event.attempt
        self.staged, self.acked, self.copied = None, False, False
        source = event.cycle == 0 and not event.observer
        self.outbox.append(TakeSnapshot(
            cycle=event.cycle, attempt=event.attempt, generation=self.settings.generation, shipped=self.shipped,
            header_only=not source and self.shipped == 0, state=source, fresh=fresh,
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
        return (event.cycle, event.attempt) == (self.snapshot_cycle, self.snapshot_attempt)

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
        same = (event.cycle, event.attempt) == (self.snapshot_cycle, self.snapshot_attempt)
        return same and event.cycle > self.committed and self.copied and not self.acked

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

    def round_broken(self, event: RoundBroken) -> None:
        """Tell the coordinator, which alone decides about a retry (N-1, R-18)."""
        self.report(m.RoundFailed, cycle=event.cycle, attempt=event.attempt, round=m.RoundKind.PARAMS,
                    cause=event.cause, retryable=event.retryable)  # fmt: skip

    # --- update --------------------------------------------------------------------------------------------------

    def update_old(self, event: m.Update) -> bool:
        """An Update of a cycle that is committed already (W-12)."""
        return event.cycle <= self.committed

    def update_unfounded(self, event: m.Update) -> bool:
        """No staged consensus of this cycle and attempt, or another count of merged steps (W-12)."""
        if event.outcome == m.Outcome.UNREALIZED:
            return False
        staged = self.staged
        if staged is None or (staged.cycle, staged.attempt) != (event.cycle, event.attempt):
            return True
        return event.outcome == m.Outcome.MERGED and event.merged_steps != self.shipped

    def has_plan_after(self, event: m.Update) -> bool:
        """Whether a plan is in hand, or comes with the Update."""
        return bool(self.hand) or event.next_plan is not None

    def outlasts(self, event: m.Update) -> bool:
        """A throttle of a later cycle stays (W-12.5)."""
        return self.throttle > event.cycle

    def commit(self, event: m.Update) -> None:
        """W-12, one act: adopt, lower the steps, take version and base, release the throttle, store the plan."""
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
        self.shipped, self.staged, self.acked = 0, None, False
        self.version, self.global_step = event.version, event.global_step
        self.cycle = self.committed = event.cycle
        if event.next_plan is not None:
            self._store(event.next_plan)

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

    # --- the rest of the control messages ------------------------------------------------------------------------

    def for_me(self, event: Any) -> bool:
        """A targeted message names this rank (W-18)."""
        return bool(event.target_rank == self.settings.rank)

    def lacks_checkpoint(self, event: m.Checkpoint) -> None:
        """A rank asked for a callback it does not have reports an error, so that the coordinator can fail over."""
        self.report(m.CheckpointResult, decision_id=event.decision_id, version=self.version, elapsed_ms=0.0,
                    error=f"rank {self.settings.rank} has no checkpoint callback")  # fmt: skip

    def lacks_consensus_path(self, event: m.SaveConsensusModel) -> None:
        """Loud and harmless (W-18)."""
        self.outbox.append(Publish("save_refused", {"decision": event.decision_id, "why": "no path for a bundle"}))

    def lacks_collective(self, event: m.SyncNow) -> None:
        """A rank that cannot average must go, not park (R-18): say so, not retryable."""
        self.report(m.RoundFailed, cycle=event.cycle, attempt=event.attempt, round=m.RoundKind.PARAMS,
                    cause="this rank has no collective averager", retryable=False)  # fmt: skip

    def lacks_session(self, event: Any) -> None:
        """Loud and harmless: without a collective averager there is no communicator to renew."""
        self.outbox.append(Publish("session_refused", {"session": event.session_id, "why": "no collective averager"}))

    def lacks_donation(self, event: m.RequestState) -> None:
        """Loud and harmless: the coordinator asks the next donor when this one stays silent (M-24)."""
        self.outbox.append(Publish("state_refused", {"transfer": event.transfer_id, "why": "cannot act as a donor"}))

    def note_holder(self, event: m.SetEpochCallbackRole) -> None:
        """Who fires the epoch callback (M-33)."""
        self.callback_holder = event.holder

    def prefetch(self, event: m.StageAdvisory) -> None:
        """A hint to the prefetcher, latest wins (W-25)."""
        self.outbox.append(Stage(event.segments))

    def publish_epoch(self, event: m.EpochAggregated) -> None:
        """Forward to whoever listens (W-25)."""
        self.outbox.append(Publish("epoch_aggregated", {"epoch": event.epoch, "metrics": event.metrics}))

    def publish_evaluation(self, event: m.EvalBroadcast) -> None:
        """Forward to whoever listens (W-25)."""
        self.outbox.append(Publish("evaluated", {"epoch": event.epoch, "metric": event.metric}))

    def bury(self, event: m.DeclareDead) -> None:
        """Keep the ledger of dead peers (W-20)."""
        self.dead_peers += ((event.dead_rank, event.dead_incarnation),)

    # --- ends ----------------------------------------------------------------------------------------------------

    def save_named(self, event: m.ShutdownWithSave) -> bool:
        """A stem is configured, so there is something to write (W-19)."""
        return event.stem is not None

    def already_saving(self, event: object) -> bool:
        """The save is in the training process's hands; its end ends the worker (W-19)."""
        return self.saving is not None

    def renamed_saver(self, event: m.ShutdownWithSave) -> bool:
        """The same decision names another saver, which is this rank (M-52)."""
        mine = event.saver == self.settings.rank
        return mine and self.saving is not None and self.saving.saver != self.settings.rank

    def save(self, event: m.ShutdownWithSave) -> None:
        """K-11: every rank writes its optimizer file, the saver the model too."""
        self.saving = event
        self.saves_open += 1
        self.drain_until = self.last_now + self.settings.drain_s
        self._let_go()
        self.outbox.append(Save(event.decision_id, self.version, event.stem, event.saver == self.settings.rank))

    def saved(self, event: ActionDone) -> None:
        """Report what became of the save; an error never blocks the exit (W-19)."""
        self.report(m.CheckpointResult, decision_id=event.decision_id, version=event.version,
                    elapsed_ms=event.elapsed_ms, error=event.error)  # fmt: skip

    def is_save(self, event: ActionDone) -> bool:
        """The training process finished the save of a shutdown."""
        return event.kind == "save" and self.saving is not None

    def saves_again(self, event: ActionDone) -> bool:
        """This rank became the saver while it wrote its own file: the model is still to come (M-52)."""
        return self.is_save(event) and self.saves_open > 1

    def one_save_less(self, event: ActionDone) -> None:
        """Nothing is reported before the last file is written, or the save would count as settled."""
        self.saves_open -= 1

    def _let_go(self) -> None:
        if self.hand or self.mailbox:
            self.hand, self.mailbox, self.started = (), (), False
            self.outbox.append(AbandonPlan())
        if self.parked:
            self.parked = False
            self.outbox.append(Unpark())

    def say_goodbye(self, event: object) -> None:
        """Only on a clean end: it switches off both death detectors (W-24)."""
        self.report(m.Exiting, reason="leave" if self.drain_until is not None and self.saving is None else "done")

    def stop_clean(self, event: object) -> None:
        """Nothing is left to do."""
        self._let_go()
        self.outbox.append(Stop("ok", "the run is over"))

    def stop_saved(self, event: object) -> None:
        """The run ended by ShutdownWithSave."""
        self._let_go()
        reason = event.reason if isinstance(event, m.ShutdownWithSave) else (self.saving and self.saving.reason)
        name = m.SaveReason(reason or 0).name.lower()
        self.outbox.append(Stop("saved", f"the run ended early ({name}); what it had is saved"))

    def stop_left(self, event: object) -> None:
        """The lane ended while leaving (W-23, W-28)."""
        self._let_go()
        self.outbox.append(Stop("leave", "left the run"))

    def leave(self, event: object) -> None:
        """W-28: report Exiting, then serve at most `leave_grace_s` until the coordinator closes the link."""
        self.drain_until = self.last_now + self.settings.leave_grace_s
        self._let_go()
        self.report(m.Exiting, reason="leave")

    def lose_coordinator(self, event: LinkLost | None) -> None:
        """W-21 without reattachment: what this rank has is saved under its own name, never over the shared file."""
        cause = event.cause if event is not None else f"silent for more than {self.settings.staleness_s:g} s"
        self._let_go()
        if self.settings.on_lost == "save" and self.settings.save_path is not None:
            stem = f"{self.settings.save_path}/lost.rank{self.settings.rank}.v{self.version}"
            self.outbox.append(Save(0, self.version, stem, True))
        self.outbox.append(Stop("coordinator_lost", f"the coordinator is gone ({cause})"))

    def is_foreign(self, event: m.Fenced) -> bool:
        """It names another life than the own one; else it is ignored (W-21)."""
        own = self.settings
        return (event.generation, event.incarnation) != (own.generation, own.incarnation)

    def cast_out(self, event: m.Fenced) -> None:
        """This incarnation is over; without rejoining, the process is too."""
        self._let_go()
        self.outbox.append(Stop("rejected", (
            f"the coordinator has moved on to generation {event.generation}, incarnation {event.incarnation}: "
            f"{event.why}; start this rank anew"
        )))  # fmt: skip

    def fail_training(self, event: Any) -> None:
        """No Exiting: the link that closes is the death report (W-24)."""
        self._let_go()
        self.outbox.append(Stop("failed", event.text))
