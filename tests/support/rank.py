"""A worker machine fed by hand: control messages with the right stamps and numbers, and the orders it gave."""

from __future__ import annotations

from typing import Any

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import WorkerPhase
from paceline.core.worker import Worker, WorkerSettings

from .hand import STUCK

RUN = b"r" * 16
MEMBERS = ((0, 1), (1, 1), (2, 1))
PLAN = m.Plan(plan_id=7, epoch=0, offset=0, size=8)
NEXT = m.Plan(plan_id=8, epoch=0, offset=8, size=8)


class Rank:
    """Rank 1 of a run, in the phase asked for. `orders` are all orders so far."""

    def __init__(self, phase: WorkerPhase = WorkerPhase.JOINING, policy: str = "cadence", **settings: Any) -> None:
        known: dict[str, Any] = dict(run_id=RUN, generation=1, rank=1, incarnation=1, policy=policy, batch_size=2)
        known.update(settings)
        self.now = 0.0
        self.worker = Worker.create(WorkerSettings(**known), self.now)
        self.number = 0
        self.orders: list[Any] = []
        self._bring_to(phase)
        self.orders.clear()
        assert self.worker.phase == phase

    def _bring_to(self, phase: WorkerPhase) -> None:
        if phase == WorkerPhase.JOINING:
            return
        self.cycle(0, observer=True, outcome=m.Outcome.OBSERVER)
        if phase in (WorkerPhase.TRAINING, WorkerPhase.THROTTLED, WorkerPhase.IN_COLLECTIVE):
            self.control(m.StartEpoch, cycle=0, plan=PLAN)
        if phase == WorkerPhase.IN_COLLECTIVE:
            self.sync(1)
        if phase == WorkerPhase.THROTTLED:
            self.control(m.Throttle, cycle=1, reason=m.ThrottleReason.BARRIER)
        elif phase == WorkerPhase.DRAINING:
            self.feed(ev.LeaveRequested())
        elif phase == WorkerPhase.STOPPED:
            self.control(m.Shutdown, reason=m.SaveReason.GRACEFUL)

    def feed(self, event: Any) -> list[Any]:
        """One event; gives the orders it led to."""
        self.worker.handle(event, self.now)
        orders = list(self.worker.take_ready().effects)
        self.orders += orders
        return orders

    def pass_time(self, seconds: float) -> list[Any]:
        """Let time pass as a healthy driver does: with a tick at every deadline until then; gives what came of it."""
        orders: list[Any] = []
        end, stuck = self.now + seconds, 0
        while (due := self.worker.poll_timeout()) is not None and due <= end:
            stuck = stuck + 1 if due <= self.now else 0
            assert stuck < STUCK, f"{stuck} ticks at {self.now:g} s did nothing about what is due"
            self.now = max(due, self.now)
            orders += self.feed(ev.Tick())
        self.now = end
        return orders

    def control(self, kind: type, /, *, gap: int = 0, serve: bool = True, **fields: Any) -> list[Any]:
        """One message of the coordinator, with its next number; `serve` lets the rank come to a drain point."""
        stamp: dict[str, Any] = {"run_id": RUN, "generation": 1, "rank": 1, "incarnation": 1}
        self.number += 1 + gap
        stamp["control_seq"] = self.number
        stamp.update(fields)
        orders = self.feed(ev.Received(kind(**stamp)))
        return orders + self.feed(ev.DrainPoint()) if serve else orders

    def step(self, steps: int = 1, *, last: bool = False, part: int = 0) -> list[Any]:
        """So many steps of the plan in hand."""
        orders: list[Any] = []
        for index in range(steps):
            ends = last and index == steps - 1
            orders += self.feed(ev.StepDone(samples=2, part=part, batch_ms=1.0, data_ms=0.1, lr=0.5, last=ends))
        return orders

    def end(self, *plan_ids: int) -> list[Any]:
        """The plans are trained to their end."""
        return self.feed(ev.ChunkDone(plan_ids=plan_ids, epoch=0, batches=4, samples=8, epoch_ms=1.0,
                                      share_complete_ms=1.0, compute_only_ms=1.0, data_starve_ms=0.0))  # fmt: skip

    def request(self, cycle: int, attempt: int = 0, observer: bool = False) -> list[Any]:
        """RequestParams."""
        return self.control(m.RequestParams, cycle=cycle, attempt=attempt, observer=observer)

    def copied(self, cycle: int, attempt: int = 0) -> list[Any]:
        """The copy exists."""
        return self.feed(ev.SnapshotTaken(cycle, attempt, 1.0))

    def staged(self, cycle: int, attempt: int = 0, outcome: m.Outcome = m.Outcome.MERGED,
               refusal: m.Refusal | None = None) -> list[Any]:  # fmt: skip
        """The consensus is here."""
        return self.feed(ev.ConsensusStaged(cycle=cycle, attempt=attempt, outcome=outcome, total_steps=9,
                                            refusal=refusal))  # fmt: skip

    def update(self, cycle: int, attempt: int = 0, outcome: m.Outcome = m.Outcome.MERGED, merged: int | None = None,
               base: int = 0, version: int = 0, plan: m.Plan | None = None) -> list[Any]:  # fmt: skip
        """Update; `merged` is what was shipped unless said otherwise."""
        steps = self.worker.shipped if merged is None else merged
        return self.control(m.Update, cycle=cycle, attempt=attempt, version=version, global_step=base, outcome=outcome,
                            merged_steps=steps if outcome == m.Outcome.MERGED else 0, next_plan=plan)  # fmt: skip

    # --- the collective flavour --------------------------------------------------------------------------------------

    def session(self, number: int = 1, cycle: int | None = None, attempt: int = 0,
                members: tuple[tuple[int, int], ...] = MEMBERS, state_from: int = m.NO_RANK) -> list[Any]:  # fmt: skip
        """NewSession; it is served without a drain point (W-20)."""
        return self.control(
            m.NewSession, serve=False, session_id=number, uid=b"u", new_rank=1, members=members,
            new_world_size=len(members), state_from=state_from, cycle=cycle, attempt=attempt,
        )  # fmt: skip

    def sync(self, cycle: int, attempt: int = 0, session: int | None = None, base: int = 0) -> list[Any]:
        """SyncNow, in the newest session."""
        number = session if session is not None else self.worker.session and self.worker.session.session_id
        return self.control(m.SyncNow, cycle=cycle, attempt=attempt, session_id=number or 0, version=cycle,
                            global_step=base)  # fmt: skip

    def done(self, cycle: int, total: int = 9, attempt: int = 0, refusal: m.Refusal | None = None) -> list[Any]:
        """The call succeeded."""
        return self.feed(ev.CollectiveDone(cycle=cycle, attempt=attempt, total_steps=total, refusal=refusal))

    def broke(self, cycle: int, attempt: int = 0, retryable: bool = True) -> list[Any]:
        """The call failed."""
        return self.feed(ev.CollectiveFailed(cycle, attempt, "reset by peer", retryable))

    def cycle(self, cycle: int, *, observer: bool = False, outcome: m.Outcome = m.Outcome.MERGED,
              refusal: m.Refusal | None = None, **update: Any) -> list[Any]:  # fmt: skip
        """A whole cycle from request to Update."""
        if self.worker.settings.collective:
            if self.worker.session is None:
                self.session()
            self.sync(cycle)
            self.done(cycle, 0 if observer else 9)
            return self.update(cycle, outcome=outcome, merged=self.worker.call and self.worker.call.merged, **update)
        self.request(cycle, observer=observer)
        self.copied(cycle)
        self.staged(cycle, outcome=outcome, refusal=refusal)
        return self.update(cycle, outcome=outcome, **update)


def reports(orders: list[Any], kind: type | None = None) -> list[Any]:
    """The reports among orders, of one kind or of any."""
    found = [order.report for order in orders if isinstance(order, fx.Reporting)]
    return found if kind is None else [report for report in found if isinstance(report, kind)]


def of(orders: list[Any], kind: type) -> list[Any]:
    """The orders of one kind."""
    return [order for order in orders if isinstance(order, kind)]
