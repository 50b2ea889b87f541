"""Events that come a few times in a run, and the coordinator that was itself away (protocol 3.4, M-9, M-54).

They may matter to anybody, so the whole pass follows each of them (C-4). What comes with every step is decided in
`coordinator.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ladder, membership
from .door import closing
from .effects import Alert, Emit
from .events import (
    CallbackFailed,
    ConsensusSaved,
    HelloReceived,
    LinkLost,
    LinkUp,
    MetaWritten,
    Operator,
    OperatorRequest,
    ProcessExited,
    SendFailed,
)
from .roles import CHECKPOINT, EVALUATE

if TYPE_CHECKING:
    from .coordinator import Coordinator

__all__ = ["after_the_end", "take", "was_away"]

FILE_EVENTS = (ConsensusSaved, MetaWritten)


def take(co: Coordinator, event: Any) -> None:
    """Decide one event that is neither a report, nor of a round, nor a Tick."""
    if isinstance(event, HelloReceived):
        membership.knock(co, event)
    elif isinstance(event, (LinkLost, ProcessExited)):
        membership.link_ended(co, event)
    elif isinstance(event, SendFailed):
        membership.send_failed(co, event)
    elif isinstance(event, OperatorRequest):
        _operate(co, event)
    elif isinstance(event, FILE_EVENTS):
        co.actions.file_settled(event)
        if event.error is not None:
            co.actions.file_failed(event.decision_id)
            co.emit(Alert("checkpoint_failed", "averager", event.error))
        else:
            co.emit(Emit("CheckpointWritten", {"what": type(event).__name__, "version": event.version}))
    elif isinstance(event, CallbackFailed):
        co.emit(Alert("callback_failed", event.name, event.text))
    elif isinstance(event, LinkUp):
        co.fence(event.rank, "LinkUp")  # a coordinator knows a link by its Hello, never by less (M-42)


def after_the_end(co: Coordinator, event: Any) -> None:
    """M-53: whatever comes changes nothing. The door answers still, with `closing`, also to a rank that had lost its
    link and wants to go on with its life: there is nothing to go on with. What became of the last files and hooks is
    told."""
    if isinstance(event, HelloReceived):
        membership.turn_away(co, event, closing())
    elif isinstance(event, (CallbackFailed, *FILE_EVENTS)):
        take(co, event)


def was_away(co: Coordinator) -> None:
    """M-9: judge nobody by the silence that was our own."""
    for rank in co.alive:
        peer = co.peers[rank]
        peer.last_seen = peer.last_progress = co.now
        peer.detached_at = co.now if peer.detached else None
    ladder.refresh(co)
    co.cycle.pending_since = co.cycle.last_evidence_at = co.cycle.idle_since = co.now
    co.actions.refresh()
    co.sessions.refresh()


def _operate(co: Coordinator, event: OperatorRequest) -> None:
    if event.kind == Operator.STOP:
        co.run.request_stop("an operator asked")
    elif event.kind == Operator.START and co.run.can_start():
        co.run.close_window()
    elif event.kind in (Operator.CHECKPOINT, Operator.EVAL):
        co.actions.wish(CHECKPOINT if event.kind == Operator.CHECKPOINT else EVALUATE, "operator")
    else:
        co.emit(Alert("unserved_role", "operator", f"{event.kind.name.lower()} cannot be served now"))
