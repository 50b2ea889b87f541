"""The worker: the machine inside a rank, which gives orders to its training process (protocol section 5).

It decides nothing about the cohort: it obeys, reports and keeps its books. Two callers feed it. The training process
says `StepDone`, `ChunkDone`, `SnapshotTaken` and, wherever it can take orders, `DrainPoint`; the driver says
`Received`, `LinkLost` and `Tick`. Control messages wait in an inbox until a drain point while the training process is
inside a step or a collective (W-3), and are served on arrival in every other state; the few kinds of W-20 are always
served on arrival.

What a message does in a state is the `WORKER` table in `table_worker.py`; the guards and effects its rows name are the
methods below. Effects run before the phase flips.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self

import attrs

from . import messages as m
from .effects import Ready, Stop
from .engine import Kind, Row
from .errors import LocalProtocolError, PacelineError
from .events import ChunkDone, DrainPoint, Received, StepDone, Tick, WorkerEvent
from .given import OF_WORKER, need
from .instants import LATEST, late_after, need_time, wrong_time
from .phases import WorkerPhase
from .snapshots import of_worker, restore_worker
from .tables import engine_for
from .values import maker, state
from .worker_link import WorkerLink, checks_state

__all__ = ["Worker", "WorkerSettings"]

INBOX_LIMIT = 4096
"""Control messages that may wait for a drain point (N-9): more means that the training process is gone for good."""

AT_ONCE = frozenset({m.DeclareDead, m.RequestSessionId, m.NewSession, m.Beacon, m.Fenced, m.Welcome, m.Reject})
"""Served on arrival, whatever the training process does (W-20), and the answers to a Hello (W-21)."""
ACCEPT, TURNED_DOWN = Kind.ACCEPT, (Kind.REFUSED, Kind.VIOLATION)
IN_COLLECTIVE, STOPPED, TRAINING = WorkerPhase.IN_COLLECTIVE, WorkerPhase.STOPPED, WorkerPhase.TRAINING
DEAF = (STOPPED, IN_COLLECTIVE)
"""Asked for with every event; see `phases.py`."""
new_ready: Callable[..., Ready] = maker(Ready)
NAMES = {phase: phase.name.lower() for phase in WorkerPhase}


@attrs.frozen(kw_only=True)
class WorkerSettings:
    """What a worker takes from `Welcome` (V-6): who it is, and the durations and flags it needs, seconds throughout and
    scaled; `time_scale` is for those without a knob (M-3); and the names of the callbacks that its script brought.
    `checks`: the run begins from what each rank brings, which must be the same (M-6)."""

    run_id: bytes
    generation: int
    rank: int
    incarnation: int
    policy: str
    batch_size: int
    heartbeat_s: float = 1.0
    staleness_s: float = 30.0
    time_scale: float = 1.0
    reconnect_window_s: float = 0.0
    leave_grace_s: float = 30.0
    drain_s: float = 60.0
    session_wait_s: float = 60.0
    min_ranks: int = 1
    collective: bool = False
    on_lost: str = "save"
    save_path: str | None = None
    callbacks: tuple[str, ...] = ()
    checks: bool = False

    @classmethod
    def from_welcome(cls, welcome: m.Welcome, run_id: bytes, callbacks: tuple[str, ...] = ()) -> WorkerSettings:
        """Read the settings out of the coordinator's welcome; `callbacks` are those that the Hello announced."""
        c: dict[str, Any] = dict(welcome.config)
        return cls(
            run_id=run_id, generation=welcome.generation, rank=welcome.rank, incarnation=welcome.incarnation,
            policy=c["policy"], batch_size=c["batch_size"], heartbeat_s=c["heartbeat_s"],
            staleness_s=c["staleness_s"], time_scale=c["time_scale"], reconnect_window_s=c["reconnect_window_s"],
            leave_grace_s=c["leave_grace_s"], drain_s=c["save_limit_s"] + c["exit_grace_s"],
            session_wait_s=c["session_wait_s"], min_ranks=c["min_ranks"],
            collective=c["averager"] == "collective", on_lost=c["on_lost"], save_path=c["save_path"],
            callbacks=callbacks, checks=checks_state(welcome),
        )  # fmt: skip


@state
class Worker(WorkerLink):
    """One incarnation's worker machine. `handle` is the only mutation entry, `take_ready` moves the effects out."""

    inbox: deque[m.Control] = attrs.field(factory=deque)
    outbox: list[Any] = attrs.field(factory=list)
    records: list[tuple[float, WorkerEvent]] = attrs.field(factory=list)
    engine: Any = attrs.field(default=None, repr=False)  # all machines share it: what it counts is not this one's
    last_now: float = float("-inf")
    fenced: int = 0
    refused: int = 0
    violations: int = 0

    @classmethod
    def create(cls, settings: WorkerSettings, now: float, engine: str = "compiled") -> Worker:
        """A worker that has just been welcomed; `engine` "transitions" runs the reference machine (slow, same rows)."""
        need("settings", settings, WorkerSettings)
        need_time(now)
        worker = cls(settings=settings, engine=engine_for("worker", engine))
        worker.last_heard = worker.last_beat = worker.last_now = now
        worker.born, worker.checks = settings.generation, settings.checks
        return worker

    # --- the four calls of every machine -----------------------------------------------------------------------

    def handle(self, event: WorkerEvent, now: float) -> None:
        """Take one event at monotonic second `now`. Raises `LocalProtocolError`, state unchanged, on local misuse."""
        try:
            if now.__class__ is bool or not self.last_now <= now <= LATEST:
                raise wrong_time(self.last_now, now)
        except TypeError:
            raise wrong_time(self.last_now, now) from None
        kind = event.__class__
        if kind is not Received and not OF_WORKER[kind](event):
            OF_WORKER.check(event)
        before, self.last_now = self.last_now, now
        self.records.append((now, event))
        try:
            if kind is Received:
                self._receive(event.message, now)  # type: ignore[union-attr]
            elif kind is Tick:
                self._tick(now)
            else:
                row = self.engine.fire(self, kind.__name__, event)
                if row.kind is not ACCEPT and row.kind in TURNED_DOWN:
                    raise self._turned_down(event, row)
                if self.inbox and (self.phase != TRAINING or self._may_drain(event)):
                    self._drain()
        except LocalProtocolError:  # the event did not happen
            self.last_now = before
            self.records.pop()
            raise
        if self.reports.overfull:
            self._fire("Overflow", None)

    def take_ready(self) -> Ready:
        """The events since the last call, for the journal (M-40), and their effects, in order."""
        ready = new_ready(tuple(self.records), tuple(self.outbox))
        self.records.clear()
        self.outbox.clear()
        return ready

    def poll_timeout(self) -> float | None:
        """The monotonic second at which a `Tick` is due, or None when nothing is timed."""
        if self.phase is STOPPED:
            return None
        due = self.link_due()
        if self.drain_until is not None and self.drain_until < due:
            due = self.drain_until
        if self.session_until is not None and (session := self.session_deadline) is not None and session < due:
            due = session
        return due

    def snapshot(self) -> tuple[Any, ...]:
        """The whole state as one plain, versioned, hashable value: equal iff the states are; see `snapshots.py`."""
        return of_worker(self)

    @classmethod
    def restore(cls, settings: WorkerSettings, snapshot: Iterable[Any], *, engine: str = "compiled") -> Self:
        """The machine that a snapshot was made of: the same events have the same orders from here on (I25, N-13).
        Raises `CheckpointError` for the snapshot of another incarnation, another format or a damaged one."""
        need("settings", settings, WorkerSettings)
        made = cls(settings=settings, engine=engine_for("worker", engine))
        restore_worker(made, snapshot)
        return made

    def explain(self, rank: int | None = None) -> tuple[str, ...]:
        """Why this rank is not training, in words; empty when it is."""
        if rank not in (None, self.settings.rank):
            return ()
        told = {
            WorkerPhase.JOINING: "joining: waits for the consensus of its first cycle (M-23)",
            WorkerPhase.WAITING: "waits for a plan: the coordinator holds it (D-5) or the epoch is over (D-4)",
            WorkerPhase.THROTTLED: f"parked until cycle {self.throttle} ends (W-17)",
            WorkerPhase.IN_COLLECTIVE: "in the collective of a cycle, or entering its session (R-13)",
            WorkerPhase.DRAINING: "leaving: serves until shutdown or end of lane (W-23)",
        }
        link = () if self.linked else (f"has no link: tried {self.tries} times to find the coordinator (W-21)",)
        return (*link, told[self.phase]) if self.phase in told else link

    # --- entries -------------------------------------------------------------------------------------------------

    def _receive(self, message: Any, now: float) -> None:
        self.last_heard = now
        if isinstance(message, m.Control):
            if not self._admissible(message):
                return
            self.control_seen = message.control_seq
            self.reports.release(message.report_seq)
        if self.phase == STOPPED:
            return
        if message.__class__ in AT_ONCE:
            self._fire(message.__class__.__name__, message)
            if not self.inbox and isinstance(message, m.Control):  # else it would pass what still waits (section 3)
                self.control_handled = self.control_seen
            return
        if not isinstance(message, m.Control):
            self._fail(f"a {type(message).__name__} is nothing a welcomed rank can be sent")
            return
        if self.phase == IN_COLLECTIVE:
            self._fire(type(message).__name__, message)  # only what means stop gets through, the rest joins the inbox
        else:
            self.inbox.append(message)
        if len(self.inbox) > INBOX_LIMIT:
            self._fail(f"{INBOX_LIMIT} control messages wait for a drain point")
        elif self.phase != TRAINING:
            self._drain()

    def keep(self, event: m.Control) -> None:
        """A rank inside a collective reads no lane (section 5, X)."""
        self.inbox.append(event)

    def _admissible(self, message: m.Control) -> bool:
        """The stamp and the lane number (N-6, N-2): another run or a hole ends the session, a stale one is fenced. What
        this life was sent in an earlier generation and did not get is sent again under its old stamp (M-42)."""
        own = self.settings
        if message.run_id != own.run_id:
            self._fail("a message of another run arrived on this link")
            return False
        mine = (message.rank, message.incarnation) == (own.rank, own.incarnation)
        if not mine or not self.born <= message.generation <= own.generation:
            self.fenced += 1
            return False
        if message.control_seq <= self.control_seen:
            self.fenced += 1
            return False
        if message.control_seq != self.control_seen + 1:
            self._fail(f"control message {self.control_seen + 1} is missing, {message.control_seq} came")
            return False
        return True

    def _turned_down(self, event: Any, row: Row) -> LocalProtocolError:
        phase = self.phase.name.lower()
        return LocalProtocolError(f"{type(event).__name__} cannot happen while the worker is {phase}: {row.note}")

    @staticmethod
    def _may_drain(event: Any) -> bool:
        """After a step, but for the last of a plan, whose end follows at once (W-3)."""
        return isinstance(event, (ChunkDone, DrainPoint)) or (isinstance(event, StepDone) and not event.last)

    def _drain(self) -> None:
        """Serve what waits, in order (W-3); the first message that means stop ends it, or leads into a collective."""
        while self.inbox and self.phase not in DEAF:
            message = self.inbox.popleft()
            self._fire(type(message).__name__, message)
            self.control_handled = message.control_seq

    def _fire(self, name: str, message: Any) -> None:
        row = self.engine.fire(self, name, message)
        if row.kind is ACCEPT:
            return
        if row.kind == Kind.FENCED:
            self.fenced += 1
        elif row.kind == Kind.REFUSED:
            self.refused += 1
        elif row.kind == Kind.VIOLATION:
            self._fail(f"{name} is impossible while {self.phase.name.lower()} ({row.rule}): {row.note}")

    def _fail(self, text: str) -> None:
        """The coordinator broke the protocol: this session ends, without Exiting, which is its report (N-7, W-24)."""
        self.violations += 1
        self.phase = WorkerPhase.STOPPED
        self.outbox.append(Stop("failed", f"the coordinator broke the protocol: {text}"))

    def _tick(self, now: float) -> None:
        if self.phase is STOPPED:
            return
        beat_due = self.last_beat + self.settings.heartbeat_s
        if self.linked and now >= beat_due:
            if now > late_after(beat_due, self.settings.staleness_s):
                self.last_heard = now  # W-22, M-9: this rank was away itself, and the coordinator may have been with it
            self.last_beat = now
            self.report(m.Heartbeat, step_count=self.local_step, state=NAMES[self.phase])
        due = self.judge_link(now)
        if due is not None:
            self._fire(due, None)
        elif self.drain_until is not None and now >= self.drain_until:
            self._fire("GraceOver", None)
        elif self.session_deadline is not None and now >= self.session_deadline:
            self._fire("SessionOverdue", None)


def stop_error(stop: Stop) -> PacelineError | None:
    """The exception a session raises for a stop, or None when the end is clean (ok, saved, leave)."""
    from .errors import RefusedError, StallError, TransportError

    kinds: dict[str, type[PacelineError]] = {
        "coordinator_lost": TransportError, "rejected": RefusedError, "failed": PacelineError, "saved": StallError,
        "unformed": StallError, "late": StallError,
    }  # fmt: skip
    return kinds[stop.status](stop.text) if stop.status in kinds else None
