"""One life of a rank: the production `Worker`, its lanes, and a training process whose parameters are one number.

The training process obeys the orders of the machine, in their order, and trains by gradient descent: each batch has a
target of its own, whoever trains it, and a step moves the parameter `RATE` of the way there. So the parameter after any
steps has a closed form, which the ghost computes anew.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

import attrs

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from ..phases import WorkerPhase
from ..values import state, value
from ..worker import Worker, WorkerSettings
from .frames import Frames
from .frozen import frozen, thaw
from .violation import require

__all__ = ["RATE", "End", "Process", "closed_form", "digest", "targets", "value_of"]

RATE = 0.125
"""Share of the way to the target that one step goes."""
TARGETS = tuple(float(11 * number % 17 - 8) for number in range(17))
SAMPLE_MS = 10.0
SLOW = (fx.TakeSnapshot, fx.Save, fx.FireCallback, fx.Evaluate, fx.SendState)
"""Orders that take time, each an action of its own. The others are carried out with the order before them."""
OUTSIDE = frozenset({"worker", "frames", "seen"})
TRAINING = WorkerPhase.TRAINING


@value
class End:
    """The end of a connection, behind the last report that went over it: its number, whose it was, and a cause."""

    link: int
    rank: int
    incarnation: int
    cause: str


def targets(picks: Iterable[tuple[int, int]]) -> list[float]:
    """Where each batch, given as its epoch and number, pulls the parameter."""
    return [TARGETS[(8 * epoch + batch) % 17] for epoch, batch in picks]


@functools.lru_cache(maxsize=64)
def closed_form(start: float, picks: tuple[tuple[int, int], ...]) -> float:
    """Where these batches lead from there. Asked twice of most ranks in a cycle: as they ship, and as they adopt."""
    kept = [(1.0 - RATE) ** steps for steps in range(len(picks) + 1)]
    return kept[-1] * start + RATE * math.fsum(map(operator.mul, kept, targets(reversed(picks))))


def digest(value: float) -> bytes:
    """16 bytes that name a consensus (C-18): here the number itself, twice."""
    return struct.pack("<dd", value, value)


def value_of(name: bytes) -> float:
    """What a digest of here names."""
    value: float = struct.unpack("<dd", name)[0]
    return value


@functools.cache
def _step_done(samples: int, part: int, last: bool) -> ev.StepDone:
    """Made once: all steps of these processes take the same time."""
    return ev.StepDone(samples=samples, part=part, batch_ms=SAMPLE_MS, data_ms=0.0, loss=1.0, lr=RATE, last=last)


@state
class Process:
    """See the module. Of the lanes, `up` and `down` hold messages, or frames in wire mode. At the end of `up` is an
    `End`; at that of `down` None if the run is over, or text. `bulk_up` and `bulk_down` hold parts of contributions and
    results (`averager.py`). `link` is the number of its newest connection, `linked`: what the coordinator sends gets
    into the lane. `dials_at` is the second at which it looks for the coordinator, `generation` the one that its worker
    knows. `tampered`: messages of a lane were lost, doubled or
    swapped with nobody told, which no link does, so its two ends count differently until one of them notices. `plans`
    is the plan in hand with its extensions, of which `part` and `batch` are next; `copy` is what was shipped last,
    `staged` the consensus beside the parameters, `consensus` the last one adopted.

    Of a collective (`together.py`): `session` and `shares` are what was entered last, `inside` is the call that it is
    in, `made` the average of it with its steps and version, `scratch` what there was before the one that succeeded
    last, `aborted` are sessions, `uids` the ids to be made; `failing` ends the next call, `withholds` the next id.
    """

    number: int
    rank: int
    incarnation: int
    worker: Worker
    theta: float
    up: deque[Any] = attrs.field(factory=deque)
    down: deque[Any] = attrs.field(factory=deque)
    bulk_up: deque[Any] = attrs.field(factory=deque)
    bulk_down: deque[Any] = attrs.field(factory=deque)
    alive: bool = True
    linked: bool = True
    link: int = 0
    dials_at: float | None = None
    generation: int = 1
    paused: bool = False
    hung: bool = False
    muted: bool = False
    deafened: bool = False
    poisoned: bool = False
    forges: bool = False
    broken: bool = False
    tampered: bool = False
    skew: float = 0.0
    ended: fx.Stop | None = None
    plans: list[m.Plan] = attrs.field(factory=list)
    part: int = 0
    batch: int = 0
    done: int = 0
    parked: bool = False
    orders: deque[Any] = attrs.field(factory=deque)
    copy: float | None = None
    consensus: float | None = None
    asked: tuple[int, int] = (-1, -1)
    lacks_static: bool = False
    held: tuple[Any, ...] | None = None
    staged: tuple[int, float | None] = (-1, None)
    adopted: int = -1
    fresh: bool = True
    said: tuple[int, int] = (-1, -1)
    session: fx.BuildSession | None = None
    shares: fx.ShareState | None = None
    inside: fx.RunCollective | None = None
    made: tuple[float | None, int, int, bool] | None = None
    scratch: tuple[float, float | None, bool] | None = None
    aborted: list[int] = attrs.field(factory=list)
    uids: deque[int] = attrs.field(factory=deque)
    failing: bool = False
    withholds: bool = False
    frames: Frames | None = None
    seen: tuple[Any, ...] | None = None

    # --- what it can do ------------------------------------------------------------------------------------------

    @property
    def runs(self) -> bool:
        """It is there and works."""
        return self.alive and not self.paused and self.ended is None

    @property
    def awaits_rest(self) -> bool:
        """An end of its link waits for the rest of a frame; of a damaged one that may never come."""
        return self.frames is not None and bool(self.frames.waiting)

    def due(self) -> float | None:
        """The next deadline of its worker, in virtual seconds."""
        due = self.worker.poll_timeout()
        return None if due is None else due - self.skew

    def may_dial(self, now: float) -> bool:
        """It looks for the coordinator, and the pause before that is over (M-40)."""
        return self.dials_at is not None and self.dials_at <= now and self.runs

    def possible(self, over: bool, failing: bool) -> list[str]:
        """The kinds of what can happen with it, dullest first; `over`: nobody listens at the other end any more,
        `failing`: a message to it could not be sent, and the coordinator has not heard of that."""
        found = []
        if not over:
            if failing:
                found.append("failure")
            if self.up and not self.muted:
                found.append("report")
        if self.alive and not self.paused and self.ended is None:
            if self.down and not self.deafened:
                found.append("control")
            if not self.hung:
                if self.worker.inbox and self.can_drain:
                    found.append("drain")
                if self.orders and self.inside is None:
                    found.append("order")
                elif self.plans and self.can_step:
                    found.append("step")
            if self.bulk_down and not self.deafened:
                found.append("result")
        if self.bulk_up and not self.muted and not over:
            found.append("upload")
        if self.paused and self.alive:
            found.append("resume")
        if self.hung and self.alive:
            found.append("recover")
        if (self.muted or self.deafened) and (self.alive or self.up):
            found.append("heal")
        return found

    @property
    def can_drain(self) -> bool:
        """Control messages wait for a drain point (W-3)."""
        return bool(self.worker.inbox) and self.worker.phase is TRAINING

    @property
    def can_step(self) -> bool:
        """It has a plan, and nothing says that it must wait."""
        if not self.plans or self.parked or self.orders or self.inside is not None:
            return False
        return self.worker.phase is TRAINING

    def steps_left(self, size: int) -> int:
        """Batches of `size` samples up to the end of the plan in hand."""
        return sum(-(-plan.size // size) for plan in self.plans[self.part :]) - self.batch

    def alike(self, size: int) -> int:
        """Steps of `size` samples up to the last one of the part in hand, which may be shorter and has more to tell."""
        return (self.plans[self.part].size - self.batch * size - 1) // size

    def step_done(self, size: int) -> ev.StepDone:
        """What the machine is told of each of those steps."""
        return _step_done(size, self.part, False)

    def train(self, size: int, steps: int) -> tuple[tuple[int, int], ...]:
        """Train the next batches of the part in hand: the epoch and the number of each."""
        plan = self.plans[self.part]
        epoch, first, theta = plan.epoch, plan.offset // size + self.batch, self.theta
        picks = tuple(zip(itertools.repeat(epoch), range(first, first + steps)))
        for pulls in targets(picks):
            theta += RATE * (pulls - theta)
        self.theta, self.fresh = theta, False
        self.batch, self.done = self.batch + steps, self.done + steps
        return picks

    def last_step(self, size: int) -> tuple[tuple[tuple[int, int], ...], list[Any]]:
        """Train the last batch of the part in hand: its epoch and number, and what the machine is to be told."""
        part = self.part
        left = self.plans[part].size - self.batch * size
        picks = self.train(size, 1)
        self.part, self.batch = part + 1, 0
        last = self.part == len(self.plans)
        told: list[Any] = [_step_done(left, part, last)]
        if last:
            told.append(ev.ChunkDone(
                plan_ids=tuple(p.plan_id for p in self.plans), epoch=self.plans[part].epoch, batches=self.done,
                samples=sum(p.size for p in self.plans), epoch_ms=1.0, share_complete_ms=1.0, compute_only_ms=1.0,
                data_starve_ms=0.0,
            ))  # fmt: skip
            self.plans = []
        return picks, told

    # --- orders of the machine ------------------------------------------------------------------------------------

    @property
    def at_once(self) -> bool:
        """The oldest order takes no time: it is carried out with the one before it."""
        return bool(self.orders) and not isinstance(self.orders[0], SLOW) and self.inside is None

    def obey(self, effect: Any) -> None:
        """Carry out an order that takes no time, but for an adoption."""
        if isinstance(effect, fx.Train):
            require(not self.plans, "W-4", f"process {self.number} was given a plan on top of another")
            self.plans, self.part, self.batch, self.done = [effect.plan], 0, 0, 0
        elif isinstance(effect, fx.Extend):
            require(bool(self.plans), "W-16", f"process {self.number} has no plan to extend")
            self.plans.append(effect.plan)
        elif isinstance(effect, fx.Park):
            self.parked = True
        elif isinstance(effect, fx.Unpark):
            self.parked = False
        elif isinstance(effect, fx.AbandonPlan):
            self.plans = []
        elif isinstance(effect, fx.Publish):
            require(effect.name != "plan_overwritten", "I12", f"the mailbox of process {self.number} was overwritten")

    def adopt(self, effect: fx.Adopt, alpha: float | None) -> None:
        """R-17: take over what was staged, or keep what there is."""
        require(effect.cycle > self.adopted, "W-12", f"process {self.number} adopts cycle {effect.cycle} twice")
        self.adopted, self.fresh = effect.cycle, True
        cycle, value = self.staged
        if effect.how == "keep" or cycle != effect.cycle or value is None:
            return
        self.consensus = value
        if effect.how == "blend" and alpha is not None:
            self.theta += alpha * (value - self.theta)
        else:
            self.theta = value

    def carry_out(self) -> tuple[Any, Any]:
        """The oldest order, which takes time: it, and what the machine is to be told when it is done."""
        order = self.orders.popleft()
        if isinstance(order, fx.TakeSnapshot):
            self._ship(order)
            return order, ev.SnapshotTaken(order.cycle, order.attempt, 1.0)
        if isinstance(order, fx.SendState):
            value = self.consensus if order.joiner_rank == m.NO_RANK else None
            joiner = order.joiner_rank, order.joiner_incarnation
            self._give(("state", order.transfer_id, *joiner, order.generation, value))
            return order, None
        error = "it raised" if self.broken else None
        if isinstance(order, fx.Save):
            kind = "save" if order.optimizer else "consensus"
            return order, ev.ActionDone(kind, order.decision_id, order.version, 1.0)
        if isinstance(order, fx.Evaluate):
            metric = None if error else self.theta
            return order, ev.ActionDone("evaluate", order.schedule_id, order.version, 5.0, error, metric, 1)
        return order, ev.ActionDone(order.name, order.decision_id, order.version, 5.0, error)

    def _ship(self, order: fx.TakeSnapshot) -> None:
        """W-10: a fresh copy, or the retained one again. An observer and who has not stepped ship a header (R-9)."""
        if order.fresh or self.copy is None:
            if order.put_back and self.consensus is not None:
                self.theta = self.consensus
            self.copy = self.theta
        self.asked = (order.cycle, order.attempt)
        self.held = None
        self.lacks_static = self.lacks_static and order.cycle > 0  # cycle 0 brings all of it (M-6, R-20)
        if order.check:
            return
        finite = not (self.poisoned and order.shipped)
        value = self.copy if order.state or (finite and not order.header_only) else None
        claimed = order.shipped + (1 if self.forges and order.shipped else 0)
        self._give(("header", order.cycle, order.attempt, claimed, finite, value))
        if order.shipped:
            self.poisoned = self.forges = False

    def _give(self, part: tuple[Any, ...]) -> None:
        """On the bulk lane. Without a control link there is none, whether the rank knows that or not (N-26)."""
        if self.linked:
            self.bulk_up.append(part)

    def stage_own(self, order: fx.TakeSnapshot) -> ev.ConsensusStaged:
        """M-6: nobody is sent a state, each rank stages what it has brought."""
        own = self.copy or 0.0
        self.staged = (order.cycle, own)
        return ev.ConsensusStaged(
            cycle=order.cycle, attempt=order.attempt, outcome=m.Outcome.OBSERVER, total_steps=0, pre_norm=abs(own),
            post_norm=abs(own), digest=digest(own),
        )  # fmt: skip

    def stage(self, result: tuple[Any, ...]) -> ev.ConsensusStaged | None:
        """A result of the averager came. It is staged if it answers the copy shipped last and this rank has the static
        part of the state (M-24); else None."""
        _, cycle, attempt, outcome, total, refusal, value = result
        if (cycle, attempt) != self.asked:
            return None
        if self.lacks_static:
            self.held = result
            return None
        own = value if value is not None else self.copy if cycle == 0 else None
        self.staged = (cycle, own)
        distance = abs((self.copy or 0.0) - value) if value is not None and outcome == m.Outcome.MERGED else None
        return ev.ConsensusStaged(
            cycle=cycle, attempt=attempt, outcome=outcome, total_steps=total, refusal=refusal,
            divergence=distance, pre_norm=abs(self.copy or 0.0), post_norm=None if own is None else abs(own),
            digest=None if own is None else digest(own),
        )  # fmt: skip

    # --- as a value -----------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, ...]:
        """Plain and hashable; the same object again while nothing has changed."""
        if self.seen is None:
            self.seen = (frozen(self, OUTSIDE), self.worker.snapshot())
        return self.seen

    def load(self, snapshot: tuple[Any, ...], settings: WorkerSettings, engine: str) -> None:
        """Become what the snapshot was made of."""
        if self.seen is not snapshot:
            thaw(self, snapshot[0], OUTSIDE)
            own = attrs.evolve(settings, generation=self.generation)
            self.worker = Worker.restore(own, snapshot[1], engine=engine)
            self.seen = snapshot
