"""What the worker does for the whole cohort: epoch callback, checkpoint, evaluation (protocol W-6, W-18, K-3).

A targeted message that names a cycle is *armed*: it waits until the consensus of the version it names has been
adopted, and is ordered then, before any further step, so that it sees exactly that version. One slot per kind is
enough: an average that brought no consensus leaves its version number to the next one, and what is armed for that
replaces what was armed before. A message without a cycle is ordered at once.

The coordinator numbers its decisions upwards, so the highest number served per kind tells a repetition from a new one
(I24). Orders are given to the training process in the sequence of K-3; its answers become the reports of K-9 and K-16.
"""

from __future__ import annotations

import math
from typing import Any

import attrs

from . import messages as m
from .effects import Evaluate, FireCallback, Publish, Save
from .events import ActionDone, Wish
from .roles import CHECKPOINT, EPOCH, EVALUATE
from .sayable import sayable_error
from .values import state
from .worker_notices import WorkerNotices

__all__ = ["CONSENSUS", "WorkerActions"]

CONSENSUS = "consensus"
"""The kind under which the training process ends a `Save` without the optimizer."""
Targeted = m.SaveConsensusModel | m.Checkpoint | m.ExecuteEvalCallback
SEQUENCE: tuple[type, ...] = (m.SaveConsensusModel, m.Checkpoint, m.ExecuteEvalCallback)
"""What is armed for one consensus is ordered in this sequence (K-3)."""


@state
class WorkerActions(WorkerNotices):
    """Duties of a rank, over the variables of `WorkerNotices`. `armed` holds at most one message of each kind, `served`
    the highest decision of each kind, `asked` the evaluations whose end is awaited."""

    armed: dict[str, Any] = attrs.field(factory=dict)
    served: dict[str, int] = attrs.field(factory=dict)
    asked: tuple[m.ExecuteEvalCallback, ...] = ()
    fired_epoch: int = -1
    intents: int = 0

    # --- guards --------------------------------------------------------------------------------------------------

    def for_me(self, event: Targeted) -> bool:
        """A targeted message names this rank (W-18)."""
        return event.target_rank == self.settings.rank

    def has_checkpoint(self, event: m.Checkpoint) -> bool:
        """The script brought a checkpoint callback."""
        return CHECKPOINT in self.settings.callbacks

    def has_evaluation(self, event: m.ExecuteEvalCallback) -> bool:
        """The script brought an evaluation function."""
        return EVALUATE in self.settings.callbacks

    def has_path(self, event: m.SaveConsensusModel) -> bool:
        """There is a place for the bundle."""
        return event.stem is not None

    def served_before(self, event: Targeted) -> bool:
        """The decision has been carried out already (K-1, I24)."""
        return _decision(event) <= self.served.get(type(event).__name__, -1)

    def for_later(self, event: Targeted) -> bool:
        """It is armed for a consensus that this rank does not hold yet (K-3)."""
        return event.cycle is not None and event.version > self.version

    # --- arm and serve -------------------------------------------------------------------------------------------

    def arm(self, event: Targeted) -> None:
        """Keep it for its consensus; a newer one of the same kind takes the place of an older (K-3)."""
        self.armed[type(event).__name__] = event

    def serve(self, event: Targeted) -> None:
        """Order it now."""
        self.served[type(event).__name__] = _decision(event)
        if isinstance(event, m.SaveConsensusModel):
            self.outbox.append(Save(event.decision_id, self.version, event.stem, True, optimizer=False))
        elif isinstance(event, m.Checkpoint):
            self.outbox.append(FireCallback(CHECKPOINT, event.decision_id, self.version, self._epoch(), event.stem))
        else:
            self.asked += (event,)
            self.outbox.append(Evaluate(event.schedule_id, event.epoch, self.version, event.on_consensus))

    def serve_armed(self) -> None:
        """W-12.4: what was armed for the consensus that has just been adopted, before any further step."""
        for kind in SEQUENCE:
            event = self.armed.get(kind.__name__)
            if event is not None and event.version <= self.version:
                del self.armed[kind.__name__]
                self.serve(event)

    def lacks_checkpoint(self, event: m.Checkpoint) -> None:
        """K-9: an error, so that the coordinator asks somebody else."""
        own = self.settings.rank
        self.report(m.CheckpointResult, decision_id=event.decision_id, version=self.version, elapsed_ms=0.0, error=(
            f"rank {own} has no checkpoint callback: the script of that rank brings none, or the role is stale"
        ))  # fmt: skip

    def lacks_path(self, event: m.SaveConsensusModel) -> None:
        """Loud and harmless (W-18)."""
        self.outbox.append(Publish("save_refused", {"decision": event.decision_id, "why": "no path for a bundle"}))

    # --- the epoch callback (W-6) --------------------------------------------------------------------------------

    def enter_epoch(self, epoch: int) -> None:
        """Before a plan of a higher epoch than the last one fired. An epoch that began while another rank held the role
        counts as fired: that rank has fired it, and a role that moves must not call it twice."""
        if epoch <= self.fired_epoch or self.callback_holder in (None, m.NO_RANK):
            return
        self.fired_epoch = epoch
        if self.callback_holder == self.settings.rank and EPOCH in self.settings.callbacks:
            self.outbox.append(FireCallback(EPOCH, epoch, self.version, epoch))

    def _epoch(self) -> int:
        """The epoch this rank is in."""
        return self.hand[0].epoch if self.hand else max(0, self.fired_epoch)

    # --- results -------------------------------------------------------------------------------------------------

    def ends_checkpoint(self, event: ActionDone) -> bool:
        """The checkpoint callback returned or raised."""
        return event.kind == CHECKPOINT

    def report_checkpoint(self, event: ActionDone) -> None:
        """K-9."""
        self.saved(event)

    def ends_evaluation(self, event: ActionDone) -> bool:
        """An evaluation that was asked for is over."""
        return event.kind == EVALUATE and any(asked.schedule_id == event.decision_id for asked in self.asked)

    def report_evaluation(self, event: ActionDone) -> None:
        """K-16. What is no number, or was counted over nothing, is absent (K-14)."""
        asked = next(a for a in self.asked if a.schedule_id == event.decision_id)
        self.asked = tuple(a for a in self.asked if a is not asked)
        metric = event.metric
        if metric is not None and (not math.isfinite(metric) or event.count == 0):
            metric = None
        self.report(m.EvalResult, schedule_id=event.decision_id, epoch=asked.epoch, version=event.version,
                    elapsed_ms=event.elapsed_ms, metric=metric, count=event.count,
                    error=sayable_error(event.error))  # fmt: skip

    def ends_epoch_callback(self, event: ActionDone) -> bool:
        """The epoch callback is over."""
        return event.kind == EPOCH

    def report_epoch_callback(self, event: ActionDone) -> None:
        """W-6."""
        self.report(m.EpochFnElapsed, epoch=event.decision_id, elapsed_ms=event.elapsed_ms)

    def express(self, event: Wish) -> None:
        """A wish of the script; the coordinator decides (K-1)."""
        self.intents += 1
        self.report(m.Intent, intent_id=self.intents, kind=event.kind)


def _decision(event: Targeted) -> int:
    return event.schedule_id if isinstance(event, m.ExecuteEvalCallback) else event.decision_id
