"""The worker's variables (W-1), and what it does on everything that is neither a plan nor an average.

Notices, wishes of the script (K-1), and every way a worker ends. `worker_orders.py` builds on it.
Guards read the event and at most a few variables; effects change variables and append orders to the outbox. None of
them changes the phase: that is the row's (`table_worker.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import messages as m
from .effects import AbandonPlan, Publish, Save, SendState, Stage, Stop, Unpark
from .events import ActionDone, ConsensusStaged
from .phases import WorkerPhase
from .sayable import sayable_error
from .values import state

if TYPE_CHECKING:
    from .worker import WorkerSettings

__all__ = ["NO_CYCLE", "WorkerNotices"]

NO_CYCLE = -1
"""Below every cycle number: nothing adopted, nothing shipped yet (cycle 0 is formation)."""


@state
class WorkerNotices:
    """Variables of W-1. Instants are monotonic seconds, cycles and versions are numbers of the coordinator, and
    `NO_CYCLE` is none of them.

    Steps, in optimizer steps: `local_step` of this life, `steps_since_avg` since the consensus it stands on, of which
    `shipped` are in the copy it gave last; `global_step` is the schedule's, `last_lr` the learning rate of the last
    step.

    The average: `snapshot_cycle`, `snapshot_attempt` and `snapshot_generation` are those of the newest copy that was
    asked for, `observing` says that it gives nothing to it, `copied` that the copy is taken, `staged` is the result
    that has arrived, `acked` says that it was acknowledged; `cycle` and `version` are those of the consensus it has
    adopted, `committed` is the last cycle whose Update it has handled.

    Work: `hand` is the plan in hand with its extensions, `started` says that it was begun, `mailbox` is the one waiting
    (W-15), `in_mid_step` says that the life before ended inside a step that goes on, `throttle` is the cycle whose end
    releases a parked rank and `parked` says that the training process was told (W-17).

    Others: `callback_holder` is who calls the epoch callback, `dead_peers` are ranks and incarnations that are gone.

    The end: `saving` is the order to save, `saves_open` counts saves that are under way, `failure` is what ended the
    training while such an order was still to be obeyed (W-24), `drain_until` is when a leaving rank waits no longer.

    The lanes: `report_seq` is the number of the last report, `control_seen` and `control_handled` of the last control
    message that came and that was served; `last_heard` and `last_beat` are when a frame came and a heartbeat left,
    `linked` says whether there is a link (W-21).

    The start: `checks` says that this life was welcomed to a formation in which each rank keeps the state it brings, if
    they are all the same (M-6)."""

    settings: WorkerSettings
    phase: WorkerPhase = WorkerPhase.JOINING
    local_step: int = 0
    steps_since_avg: int = 0
    shipped: int = 0
    snapshot_cycle: int = NO_CYCLE
    snapshot_attempt: int = 0
    snapshot_generation: int = 0
    observing: bool = False
    copied: bool = False
    checks: bool = False
    staged: ConsensusStaged | None = None
    acked: bool = False
    global_step: int = 0
    version: int = 0
    cycle: int = 0
    committed: int = NO_CYCLE
    hand: tuple[m.Plan, ...] = ()
    started: bool = False
    mailbox: tuple[m.Plan, ...] = ()
    in_mid_step: bool = False
    throttle: int = NO_CYCLE
    parked: bool = False
    last_lr: float | None = None
    callback_holder: int | None = None
    dead_peers: tuple[tuple[int, int], ...] = ()
    saving: m.ShutdownWithSave | None = None
    saves_open: int = 0
    failure: str | None = None
    report_seq: int = 0
    control_seen: int = 0
    control_handled: int = 0
    last_heard: float = 0.0
    last_beat: float = 0.0
    drain_until: float | None = None
    linked: bool = True

    if TYPE_CHECKING:
        inbox: deque[m.Control]
        outbox: list[Any]
        last_now: float

        def report(self, kind: type[m.Report], /, **fields: Any) -> None: ...
        def put(self, number: int, report: m.Report, weigh: Callable[[Any], int]) -> None: ...

    @property
    def version_to_save(self) -> int:
        """The version under which what this rank holds is saved."""
        return self.version

    @property
    def position(self) -> int:
        """The schedule position of the next step (W-8): merged steps of the cohort plus own steps since."""
        return self.global_step + self.steps_since_avg

    # --- the rest of the control messages ------------------------------------------------------------------------

    def for_averager(self, event: m.RequestState) -> bool:
        """What is asked for is the consensus that was adopted last (M-44)."""
        return event.joiner_rank == m.NO_RANK

    def give_state(self, event: m.RequestState) -> None:
        """M-24: this rank stands on the consensus; a joiner lacks what no consensus holds."""
        self.outbox.append(SendState(
            event.transfer_id, event.generation, event.joiner_rank, event.joiner_incarnation
        ))  # fmt: skip

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
        self.outbox.append(Publish("evaluated", {
            "epoch": event.epoch, "version": event.version, "metric": event.metric,
            "final": event.schedule_id == m.FINAL_EVALUATION,
        }))

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
        mine = event.saver == self.settings.rank
        self.outbox.append(Save(event.decision_id, self.version_to_save, event.stem, mine))

    def saved(self, event: ActionDone) -> None:
        """Report what became of the save; an error never blocks the exit (W-19)."""
        self.report(m.CheckpointResult, decision_id=event.decision_id, version=event.version,
                    elapsed_ms=event.elapsed_ms, error=sayable_error(event.error))  # fmt: skip

    def is_save(self, event: ActionDone) -> bool:
        """The training process finished the save of a shutdown."""
        return event.kind == "save" and self.saving is not None

    def saves_again(self, event: ActionDone) -> bool:
        """This rank became the saver while it wrote its own file: the model is still to come (M-52)."""
        return self.is_save(event) and self.saves_open > 1

    def one_save_less(self, event: ActionDone) -> None:
        """Nothing is reported before the last file is written, or the save would count as settled."""
        self.saves_open -= 1

    def save_waits(self, event: object) -> bool:
        """An order to save has come and is not read yet: it waits for the end of a step (W-24)."""
        stop = self._stop_that_waits
        return isinstance(stop, m.ShutdownWithSave) and self.save_named(stop)

    def stop_waits(self, event: object) -> bool:
        """So has the word that the run is over (W-24)."""
        return self._stop_that_waits is not None

    @property
    def _stop_that_waits(self) -> m.ShutdownWithSave | m.Shutdown | None:
        return next((each for each in self.inbox if isinstance(each, (m.ShutdownWithSave, m.Shutdown))), None)

    def obey_save(self, event: object) -> None:
        """W-24: the loop is left, and what waits before the order means nothing any more."""
        stop = self._stop_that_waits
        assert isinstance(stop, m.ShutdownWithSave), "the guard lets only a save that waits pass"
        self.inbox.clear()
        self.save(stop)

    def obey_stop(self, event: object) -> None:
        """W-24: a clean end, whatever became of the link meanwhile (W-22)."""
        stop = self._stop_that_waits
        self.inbox.clear()
        self.say_goodbye(stop)
        if isinstance(stop, m.ShutdownWithSave):
            self.stop_saved(stop)
        else:
            self.stop_clean(stop)

    def has_failed(self, event: ActionDone) -> bool:
        """The save that ends was the last thing a failed training process had to do (W-24)."""
        return self.is_save(event) and self.failure is not None

    def failed_before(self, event: object) -> bool:
        """The training process failed, and all that was left for it to do has taken too long (W-24)."""
        return self.failure is not None

    def save_and_fail(self, event: Any) -> None:
        """W-24: the save comes first; the failure is told when it is made."""
        self.failure = event.text
        self.obey_save(event)

    def stop_failed(self, event: object) -> None:
        """No Exiting, as without a save: the link that closes is the death report (W-24)."""
        self.outbox.append(Stop("failed", self.failure or ""))

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
        """Nothing is left to do. A reason to shut down other than the end of the work is one why there is no run: that
        is no good end of a training, and nobody may take it for one (C-25, M-6). Neither may one that came too late for
        a consensus: it would save its own model as the one that was trained (M-23)."""
        self._let_go()
        reason = event.reason if isinstance(event, m.Shutdown) else m.SaveReason.GRACEFUL
        if reason != m.SaveReason.GRACEFUL:
            told = f"the run did not form ({reason.name.lower()}), so nothing was trained; the coordinator says why"
            self.outbox.append(Stop("unformed", told))
        elif self.committed == NO_CYCLE:
            late = "this rank came too late: the run was over before it was given the consensus, and the model here is"
            self.outbox.append(Stop("late", f"{late} not the one that was trained; any other rank has that"))
        else:
            self.outbox.append(Stop("ok", "the run is over"))

    def stop_saved(self, event: object) -> None:
        """The run ended by ShutdownWithSave."""
        self._let_go()
        reason = event.reason if isinstance(event, m.ShutdownWithSave) else (self.saving and self.saving.reason)
        name = m.SaveReason(reason or 0).name.lower()
        # W-19: without a path, or before its first consensus, a rank has written nothing, and says so.
        what = "what it had is saved" if self.saving is not None else "this rank had nothing to save, or no path for it"
        self.outbox.append(Stop("saved", f"the run ended early ({name}); {what}"))

    def stop_left(self, event: object) -> None:
        """The lane ended while leaving (W-23, W-28)."""
        self._let_go()
        self.outbox.append(Stop("leave", "left the run"))

    def leave(self, event: object) -> None:
        """W-28: report Exiting, then serve at most `leave_grace_s` until the coordinator closes the link."""
        self.drain_until = self.last_now + self.settings.leave_grace_s
        self._let_go()
        self.report(m.Exiting, reason="leave")

    def _save_own(self) -> None:
        """W-21: under the rank's own name, never over the shared file."""
        self._let_go()
        if self.settings.on_lost == "save" and self.settings.save_path is not None:
            stem = f"{self.settings.save_path}/lost.rank{self.settings.rank}.v{self.version_to_save}"
            self.outbox.append(Save(0, self.version_to_save, stem, True))

    def is_foreign(self, event: m.Fenced) -> bool:
        """It names another life than the own one; else it is ignored (W-21)."""
        own = self.settings
        return (event.generation, event.incarnation) != (own.generation, own.incarnation)

    def fail_training(self, event: Any) -> None:
        """No Exiting: the link that closes is the death report (W-24)."""
        self._let_go()
        self.outbox.append(Stop("failed", event.text))
