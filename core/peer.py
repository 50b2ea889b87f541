"""One incarnation of a rank, as the coordinator knows it (protocol 4.1): identity, lanes, window ledger, cycle slots.

The guards and effects of `tables.PEER` are its methods. `count_batch` is the hot path: it touches this record, the
book's entry of this rank and three counters of the coordinator, and never looks at another rank (C-4).
"""

from __future__ import annotations

from itertools import islice
from math import isfinite
from typing import Any

import attrs

from . import gates
from . import messages as m
from .attachment import Attachment
from .effects import Alert, Emit
from .ladder import STEP, Climb, Stage
from .phases import IDLE, PENDING, PeerPhase
from .policies import forget
from .roles import CHECKPOINT, EVALUATE
from .values import state, value

__all__ = ["Lost", "Peer"]

LAGGING = PeerPhase.LAGGING
"""Asked for with every word that is confirmed; see `phases.py`."""


@value
class Lost:
    """Evidence that an incarnation has ended (M-17): link, process, staleness, digest, unhealthy, overflow."""

    cause: str


@state
class Window:
    """What a rank did since the last average (C-20). Milliseconds; losses finite only. `excused_ms` is callback time
    that a batch to come carries, since the end of a callback is told before the next step (K-18)."""

    wall_ms: float = 0.0
    wall_batches: int = 0
    delivered_ms: float = 0.0
    delivered_batches: int = 0
    first_batch_ms: float | None = None
    loss_sum: float = 0.0
    loss_count: int = 0
    excused_ms: float = 0.0

    def count(self, batch_ms: float, data_ms: float, loss: float | None) -> None:
        """One step (C-20): the first of a window is kept apart, its excess cost is the fill."""
        if self.excused_ms:
            excused = min(self.excused_ms, batch_ms)
            self.excused_ms -= excused
            batch_ms -= excused
        self.wall_ms += batch_ms
        self.wall_batches += 1
        if self.first_batch_ms is None:
            self.first_batch_ms = batch_ms + data_ms
        else:
            self.delivered_ms += batch_ms + data_ms
            self.delivered_batches += 1
        if loss is not None and isfinite(loss):
            self.loss_sum += loss
            self.loss_count += 1

    @property
    def fill_ms(self) -> float:
        """Excess of the first batch over the later ones; 0 without a delivered sample (C-20)."""
        if self.first_batch_ms is None or not self.delivered_batches or self.delivered_ms <= 0:
            return 0.0
        excess = self.first_batch_ms - self.delivered_ms / self.delivered_batches
        return excess if excess > 0 else 0.0

    def exclude(self, elapsed_ms: float) -> None:
        """Time of a callback is duty, not slowness (K-18). What exceeds the ledger is still to come."""
        self.excused_ms += max(0.0, elapsed_ms - self.wall_ms)
        self.wall_ms = max(0.0, self.wall_ms - elapsed_ms)
        if self.delivered_batches:
            self.delivered_ms = max(0.0, self.delivered_ms - elapsed_ms)
        elif self.first_batch_ms is not None:
            self.first_batch_ms = max(0.0, self.first_batch_ms - elapsed_ms)

    def reset(self) -> None:
        """Start a new window (C-15.10)."""
        self.wall_ms = self.delivered_ms = self.loss_sum = 0.0
        self.wall_batches = self.delivered_batches = self.loss_count = 0
        self.first_batch_ms = None


@state
class Peer(Attachment):
    """See the module. `satisfied` and `quota` are the gate's view of this rank (G-1), kept by the desk. For people only
    (O-5): `merges` of the `cycles` that were finished in its life, the last `merged_in` cycle and `merged_at`
    instant, how long it idled in its windows, what its last copy took."""

    host: str = ""
    devices: tuple[str, ...] = ()
    package: str = ""
    runtime: str = ""
    last_progress: float = 0.0
    progress_kind: str = "hello"
    last_step_count: int = 0
    lr: float | None = None
    void_before: int = 0
    refusals_in_row: int = 0
    steps: int = 0
    total_steps: int = 0
    quota: int = 1
    satisfied: bool = False
    throttled: m.ThrottleReason | None = None
    window: Window = attrs.field(factory=Window)
    snapshot_steps: int = 0
    acked: bool = True
    shipped: int | None = None
    outcome: m.Outcome | None = None
    refusal: m.Refusal | None = None
    divergence: float | None = None
    pre_norm: float | None = None
    post_norm: float | None = None
    digest: bytes | None = None
    upload_ms: float | None = None
    sync_lag_ms: float | None = None
    bytes_in: int = 0
    merges: int = 0
    cycles: int = 0
    merged_at: float | None = None
    merged_in: int = -1
    idle_ms: float = 0.0
    window_ms: float = 0.0
    copy_ms: float | None = None
    fenced_told_at: float = float("-inf")
    loss: float | None = None
    stopped: bool = False
    callbacks: tuple[str, ...] = ()
    last_intent: int = -1
    missed: int = 0
    entered_epoch: int = -1
    back: bool = False
    climb: Climb = attrs.field(
        default=attrs.Factory(lambda self: Climb(self.co.config.suspect_history), takes_self=True)
    )

    # --- steps -----------------------------------------------------------------------------------------------------

    def step_rises(self, event: m.Batch) -> bool:
        """Step counts of an incarnation rise strictly (C-8)."""
        return event.step_count > self.last_step_count

    def plan_at_head(self, event: m.Batch) -> bool:
        """Plans are trained in the order of dispatch (D-12)."""
        head = self.co.book.head(self.rank)
        return head is not None and head.plan.plan_id == event.plan_id

    def samples_fit(self, event: m.Batch) -> bool:
        """The step had exactly the picks the plan gives it (D-11)."""
        book = self.co.book
        head = book.head(self.rank)
        return head is not None and event.samples == book.samples_due(head)

    def void(self, event: m.Batch) -> bool:
        """A step on a basis that was refused since (C-8)."""
        return event.cycle < self.void_before

    def void_batch(self, event: m.Batch) -> None:
        """Its picks return to the pool and it changes nothing else (C-8). The training thread lives (M-2)."""
        self.co.book.void_step(self.rank)
        self.last_step_count = event.step_count
        self._progress("Batch")
        self.co.returned = self.co.urgent = True

    def drop_batch(self, event: m.Batch) -> None:
        """A step whose picks are somebody else's by now: nothing but a sign of life of the training thread (C-8)."""
        self.last_step_count = event.step_count
        self._progress("Batch")
        self._note_back()

    def count_batch(self, event: m.Batch) -> None:
        """C-8, C-20, D-11, and the counters of C-4."""
        co, loss = self.co, event.batch_loss
        now, cycle = co.now, co.cycle.phase
        self.last_step_count = event.step_count
        if self.progress_kind == "Batch":  # anything else in between was a wait for others
            self.climb.remember(STEP, now - self.last_progress)
        else:
            self.progress_kind = "Batch"
        self.last_progress = now
        self.steps = steps = self.steps + 1
        self.total_steps += 1
        if steps == 1:
            co.movers += 1
        self.window.count(event.batch_ms, event.data_ms, loss)
        self.loss = loss
        co.book.count_step(self.rank, event.cycle)
        if not self.satisfied and steps >= self.quota:
            gates.note_satisfied(co, self)
        if cycle is PENDING:
            self.climb.stepped(now)
        if steps > co.park_above or (co.short == 0 and cycle is IDLE):
            co.urgent = True

    def holds_plans(self, event: m.Metrics) -> bool:
        """Whether the rank holds these plans, oldest first (D-9)."""
        return self.co.book.holds(self.rank, event.plan_ids)

    def complete_plans(self, event: m.Metrics) -> None:
        """Free the plans; what was not trained of them returns, loudly (D-9)."""
        co = self.co
        self._progress("Metrics")
        ended = list(islice(co.book.ranks[self.rank].plans, len(event.plan_ids)))
        parts = [(entry.slice.first, entry.done) for entry in ended]  # the rest may be trained in another chunk
        short = co.book.complete(self.rank, event.plan_ids)
        co.desk.completed(self.rank, ended[0].slice.epoch, event, parts)
        co.actions.entered(self)
        if short:
            co.returned = True
            co.emit(Alert("short_plan", f"rank {self.rank}", f"{short} batches of a plan were not trained"))
        if not co.book.holdings(self.rank).plans:
            self.since.idle = co.now
        gates.plan_ended(co, self)

    def note_rate(self, event: m.LrUpdate) -> None:
        """Input of the meta-controller (B-43)."""
        self.lr = event.lr

    def exclude_callback(self, event: m.EpochFnElapsed) -> None:
        """K-18."""
        self._progress("EpochFnElapsed")
        self.co.actions.epoch_called(self, event)

    def makes_session(self, event: m.SessionIdGenerated) -> bool:
        """It is the generator of the pending session, and this is the first answer (M-31)."""
        return self.co.sessions.awaits(event)

    def note_session(self, event: m.SessionIdGenerated) -> None:
        """M-31: NewSession follows in step 5 of this pass. It is no progress: a helper answers, whatever the training
        thread does (M-2)."""
        self.co.sessions.answered(event)

    def forward_sample(self, event: m.ResourceSample) -> None:
        """Decides nothing (O-5)."""
        self.co.emit(Emit("Custom", {"rank": self.rank, "sample": event.sample}))

    # --- wishes and ends -------------------------------------------------------------------------------------------

    def intent_repeated(self, event: m.Intent) -> bool:
        """Once per id (K-1). The wishes of an incarnation are numbered upwards, so the last number is enough."""
        return event.intent_id <= self.last_intent

    def note_intent(self, event: m.Intent) -> None:
        """K-1: a stop is a decision for all ranks (M-54), everything else waits for the next arm."""
        self.last_intent = event.intent_id
        if event.kind == m.IntentKind.STOP_NOW:
            self.co.run.request_stop(f"rank {self.rank} asked to stop")
        else:
            role = CHECKPOINT if event.kind == m.IntentKind.CHECKPOINT_NOW else EVALUATE
            self.co.actions.wish(role, f"rank {self.rank}")

    def owes_checkpoint(self, event: m.CheckpointResult) -> bool:
        """This rank was asked for the checkpoint callback under this decision (K-9)."""
        return self.co.actions.awaits(CHECKPOINT, event.decision_id, self.rank)

    def note_checkpoint(self, event: m.CheckpointResult) -> None:
        """K-9."""
        self._progress("CheckpointResult")
        self.co.actions.checkpointed(self, event)

    def owes_evaluation(self, event: m.EvalResult) -> bool:
        """This rank was asked for this evaluation, and its time is not over (K-16)."""
        return self.co.actions.awaits(EVALUATE, event.schedule_id, self.rank)

    def note_evaluation(self, event: m.EvalResult) -> None:
        """K-16."""
        self._progress("EvalResult")
        self.co.actions.evaluated_by(self, event)

    def saves(self, event: m.CheckpointResult) -> bool:
        """The result of the save that ends the run (M-52)."""
        save = self.co.run.save
        return save is not None and event.decision_id == save.decision_id

    def note_saved(self, event: m.CheckpointResult) -> None:
        """M-52: the saver's error names the next one."""
        self._progress("CheckpointResult")
        self.co.run.note_saved(self, event)

    def depart(self, event: m.Exiting) -> None:
        """M-8: a departure, no death: no alert, but all others are told, and the link is closed."""
        self.co.departed(self, event.reason)

    def die(self, event: Lost) -> None:
        """M-18.1 to 9 for this rank."""
        self.co.buried(self, event.cause)

    def promote(self, event: object) -> None:
        """From here on it votes and is given work (M-25)."""
        self.missed, self.back = 0, False
        self.throttled = None
        self.since.idle = self.co.now
        self.window.reset()
        self.co.emit(Emit("Promoted", {"rank": self.rank}))

    def fall_behind(self, event: object) -> None:
        """M-14: out of the gates, its picks go to others; steps on the basis it has now stay void for ever."""
        self.missed, self.back = 0, False
        self.since.seat = self.co.now
        self.co.withdraw(self)
        self.void_before = self.co.cycle.number + 1
        forget(self.co, self.rank)

    def _note_back(self) -> None:
        """M-14: the training thread of an excluded rank is back; it observes the next cycle."""
        if self.phase is LAGGING and not self.back:
            self.back = True
            self.since.seat = self.co.now
            self.co.emit(Emit("Returned", {"rank": self.rank, "from": "exclusion"}))

    # --- cycle slots -----------------------------------------------------------------------------------------------

    def open_slots(self, owed: Stage) -> None:
        """C-11.3: nothing of the last cycle is left, and this stage is owed first."""
        self.snapshot_steps = self.last_step_count
        self.climb.suspected = ()
        self.climb.enter(owed, self.co.now)
        self.clear_evidence()

    def clear_evidence(self) -> None:
        """A new attempt starts from nothing (C-39)."""
        self.acked = False
        self.shipped = self.outcome = self.refusal = self.divergence = self.pre_norm = self.post_norm = None
        self.digest = self.upload_ms = self.sync_lag_ms = None
        self.bytes_in = 0

    def _progress(self, kind: str) -> None:
        self.last_progress, self.progress_kind = self.co.now, kind

    progressed = _progress

    def acknowledge(self, handled: int) -> bool:
        """All control messages up to `handled` are handled: their reservations are final (N-10) and nobody needs them
        again (N-9). False, and nothing changed, if that number was never sent."""
        if handled > self.control_seq:
            return False
        self.handled_seq = handled
        self.retained.release(handled)
        self._note_back()
        for number in [n for n in self.tokens if n <= handled]:
            del self.tokens[number]
        return True

    def waits(self) -> dict[str, Any]:
        """Facts for a dump or a display (O-8)."""
        return {
            "rank": self.rank, "incarnation": self.incarnation, "status": self.phase.name.lower(),
            "attached": self.attached, "epoch": self.co.book.holdings(self.rank).epoch,
            "count": self.co.balancer.counts.get(self.rank), "steps": self.steps, "quota": self.quota,
            "last_step": self.last_step_count, "satisfied": self.satisfied,
            "throttled": None if self.throttled is None else self.throttled.name.lower(), "acked": self.acked,
            "shipped": self.shipped, "progress": self.progress_kind, "last_progress": self.last_progress,
        }  # fmt: skip
