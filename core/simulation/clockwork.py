"""What moves a world through virtual time: when each thing that can happen does happen.

One heap holds what is to come. After every step only the processes that it touched are looked at, so the cost of a step
does not grow with the cohort. What is on a lane arrives in order. A message takes the latency of the link of its rank.
Bulk takes it too, and before that its way through the bandwidth of that link, one part after the other in each
direction: a part leaves when the one before it has left, so a transfer takes as long as it is large. A call in place
takes as long as the slowest link of its members needs for the model. Control has lanes of its own and never waits for
bulk (N-5), nor for the link of another rank. Work takes the time that the pace of its process says; a machine gets its
tick when its deadline has come.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

import attrs

from .. import effects as fx
from ..values import state
from .action import COORDINATOR, Action, act
from .averager import blocks_in
from .dice import Dice
from .moves import AGAIN, OF_AVERAGER
from .process import Process
from .strides import ELSEWHERE, Strides
from .together import members
from .world import Step, World

__all__ = ["Clockwork", "Pace", "never"]

LANES = ("report", "control", "upload", "result")
"""What arrives over a lane; each of them takes the oldest of one."""
BULK = frozenset({"upload", "result"})
AT_COORDINATOR = frozenset({"report", "failure", "upload", "reduce", "write"})
"""What waits while the coordinator is away."""
AT_RANK = frozenset({"control", "drain", "order", "step", "result"})
"""What happens at a rank and changes nothing at the coordinator or the averager."""
SET_APART = frozenset({"resume", "recover", "heal", "dial"})
"""What has a time of its own: a fault says when it ends, a worker when it dials."""
LEAST_TICK_S = 1e-3
"""A tick that changed nothing is tried again after this: the sum of a clock and its jump may be rounded down."""
JITTER = 0.1
ID_S = 0.05
"""What the id of a session takes (M-32): it is made where the rank is, so no link matters."""


def _of_ranks(given: float | Iterable[float]) -> tuple[float, ...]:
    return (float(given),) if isinstance(given, int | float) else tuple(given)


@attrs.frozen(kw_only=True)
class Pace:
    """Seconds that things take. Of each rank, by its number modulo their count: a step, the latency of its link, and
    what one block of a contribution needs to leave over it, in either direction (1 / bandwidth; one number stands for
    all ranks). Of everybody: a copy, a division, a callback, a file. `stride`: most steps that a rank takes as one
    action (`strides.py`), which is coarser and faster where steps are many."""

    step_s: tuple[float, ...]
    latency_s: tuple[float, ...] = attrs.field(default=(0.05,), converter=_of_ranks)
    part_s: tuple[float, ...] = attrs.field(default=(0.5,), converter=_of_ranks)
    copy_s: float = 0.2
    reduce_s: float = 0.5
    callback_s: float = 10.0
    write_s: float = 2.0
    stride: int = 1


@state
class Coming:
    """What is to come at one process: when each part of its lanes arrives, the kinds that are possible, and those that
    have a time already; of its link, the latency and the seconds of a block. `arrived`: when a part of bulk came last,
    by its lane."""

    latency_s: float
    part_s: float
    report: deque[float] = attrs.field(factory=deque)
    control: deque[float] = attrs.field(factory=deque)
    upload: deque[float] = attrs.field(factory=deque)
    result: deque[float] = attrs.field(factory=deque)
    possible: Collection[str] = ()
    kinds: set[str] = attrs.field(factory=set)
    arrived: dict[str, float] = attrs.field(factory=dict)


class Clockwork:
    """See the module. `heard` is called with every step; `linger` multiplies a duration of a kind, as the sites of
    `faults.py` do. `away_until`: the coordinator does nothing before. `doing`: the action that is under way, or that an
    invariant broke in."""

    def __init__(self, world: World, pace: Pace, dice: Dice, heard: Callable[[Step], None]) -> None:
        self.world = world
        self.pace = pace
        self.now = world.now
        self.steps = 0
        self._strided = pace.stride > 1
        self.away_until = 0.0
        self.doing: Action | None = None
        self.linger: Callable[[str], float] = never
        self._dice = dice
        self._heard = heard
        self._heap: list[tuple[float, int, str, int, Callable[[], None] | None]] = []
        self._order = 0
        self._coming: dict[int, Coming] = {}
        self._averaging: set[str] = set()
        self._ticks: dict[int, float] = {}
        self._dials: set[tuple[int, float]] = set()
        self._strides = Strides()
        for process in world.processes:
            self._look(process, True)
        self._look_at_rest()

    @property
    def trip_s(self) -> float:
        """The longest that a message is on its way, if nothing lingers."""
        return max(self.pace.latency_s) * (1.0 + JITTER)

    @property
    def transfer_s(self) -> float:
        """The longest that a copy of a model takes until it is at the other end, likewise."""
        return self.pace.copy_s + self.trip_s + max(self.pace.part_s) * self.world.setup.blocks * (1.0 + JITTER)

    # --- what is to come -------------------------------------------------------------------------------------------

    def at(self, second: float, call: Callable[[], None]) -> None:
        """Call it then."""
        self._push(second, "call", 0, call)

    def do(self, action: Action, *, sure: bool = False) -> Step:
        """Make it happen now, and look at what it changed; `sure` as in `World.do`."""
        if self._strided:
            self._catch_up(action.kind, action.who)
        return self._happen(action, sure)

    def _happen(self, action: Action, sure: bool) -> Step:
        step = self._make(action, sure)
        kind, world = action.kind, self.world
        told = kind not in AT_COORDINATOR and (kind != "tick" or action.who != COORDINATOR)
        for number in world.touched:
            self._look(world.processes[number], told)
        if kind not in AT_RANK:
            self._look_at_rest()
        self._heard(step)
        return step

    def _make(self, action: Action, sure: bool) -> Step:
        self.steps += 1
        self.doing = action
        step = self.world.do(action, self.now, sure=sure)
        self.doing = None
        return step

    def advance(self) -> bool:
        """The next thing happens; False when nothing is to come."""
        if not self._heap:
            return False
        at, _, kind, who, call = heapq.heappop(self._heap)
        if at > self.now:
            self.now = at
        if call is not None:
            call()
        elif kind == "tick":
            self._tick(at, who)
        elif self.now < self.away_until and kind in AT_COORDINATOR:
            self._push(self.away_until, kind, who)
        elif kind in OF_AVERAGER:
            self._averaging.discard(kind)
            if kind in self.world.of_averager():
                self._happen(act(kind), True)
        elif kind == "step" and self._strided:
            if self._strides.ends_at(who, at):
                self._coming[who].kinds.discard(kind)
                self._happen(act(kind, who, self._strides.finish(who)), True)
        else:
            self._coming[who].kinds.discard(kind)
            if self._strided:
                self._catch_up(kind, who)
            if self._can(kind, who):  # a fault may have taken it away
                if kind in BULK:
                    self._arrivals(kind, who).popleft()
                    self._coming[who].arrived[kind] = self.now
                self._happen(act(kind, who, self._amount(kind, who)), True)
        return True

    def _can(self, kind: str, who: int) -> bool:
        """Whether it can still happen. What can was seen when something touched the process last; since then only the
        run may have ended, at the other end of its lanes."""
        return kind in self._coming[who].possible and not (kind in AT_COORDINATOR and self.world.over)

    def settle(self) -> None:
        """Nothing lingers any more and nobody is away: what is under way or in hand comes when it would if it began
        now, or sooner."""
        self.linger, self.away_until = never, 0.0
        for number, coming in self._coming.items():
            process = self.world.processes[number]
            self._hasten(coming, process)
            if process.dials_at is not None:
                self._will_dial(process, process.dials_at, self.now)
        entries, self._heap = self._heap, []
        for entry in sorted(entries):
            self._settle(*entry)
        self._look_at_rest()

    def _hasten(self, coming: Coming, process: Process) -> None:
        """What is on the lanes of a process arrives as if it had been written now."""
        latest = self.now + coming.latency_s * (1.0 + JITTER)
        for lane in ("report", "control"):
            setattr(coming, lane, deque(min(second, latest) for second in getattr(coming, lane)))
        for lane, parts in (("upload", process.bulk_up), ("result", process.bulk_down)):
            blocks = itertools.accumulate(blocks_in(part, self.world.setup.blocks) for part in parts)
            ends = [latest + coming.part_s * (1.0 + JITTER) * count for count in blocks]
            setattr(coming, lane, deque(map(min, getattr(coming, lane), ends)))

    def _settle(self, at: float, order: int, kind: str, who: int, call: Callable[[], None] | None) -> None:
        """Back into the heap with what may have been made to linger, but for what is to happen no more: in its place
        another of its kind would wait."""
        world = self.world
        if kind in OF_AVERAGER:
            at = min(at, self.now + self._of_averager(kind))
        elif call is None and kind != "tick" and not (kind == "step" and self._strided):
            process = world.processes[who]
            if kind not in world.possible(process):
                self._coming[who].kinds.discard(kind)
                return
            at = min(at, self._when(kind, process))
        heapq.heappush(self._heap, (at, order, kind, who, call))

    def _push(self, at: float, kind: str, who: int, call: Callable[[], None] | None = None) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, kind, who, call))

    # --- after a step ----------------------------------------------------------------------------------------------

    def _look(self, process: Process, told: bool) -> None:
        """What can happen at a process that an action has touched. `told`: its worker may have had an event, after
        which it may want its tick at another time; what happens at the coordinator moves no deadline of a rank."""
        number = process.number
        coming = self._coming.get(number)
        if coming is None:
            coming = self._coming[number] = self._begin(process)
        if len(coming.report) != (waiting := len(process.up)):
            self._arrive(coming.report, waiting, coming.latency_s)
        if len(coming.control) != (waiting := len(process.down)):
            self._arrive(coming.control, waiting, coming.latency_s)
        if process.bulk_up or coming.upload:  # as a rule both are empty
            self._flow("upload", coming, process.bulk_up)
        if process.bulk_down or coming.result:
            self._flow("result", coming, process.bulk_down)
        coming.possible = possible = self.world.possible(process)
        known = coming.kinds
        if number in self._strides:
            self._shorten(process, "step" in possible)
        for kind in possible:
            if kind not in known and kind not in SET_APART and (kind != "drain" or not process.can_step):
                known.add(kind)  # a process that steps is at a drain point after its step, not before
                self._push(self._when(kind, process), kind, number)
        if process.dials_at is not None and (number, process.dials_at) not in self._dials:
            self._will_dial(process, process.dials_at, self.now)
        if told and process.runs:
            self._look_at_clock(number, process.due())

    def _will_dial(self, process: Process, second: float, earliest: float) -> None:
        self._dials.add((process.number, second))
        self.at(max(second, earliest), functools.partial(self._dial, process, second))

    def _dial(self, process: Process, second: float) -> None:
        self._dials.discard((process.number, second))
        if process.dials_at != second or not process.runs:
            return
        if self.now < self.away_until:  # nobody opens
            self._will_dial(process, second, self.away_until)
        else:
            self.do(act("dial", process.number))

    def _begin(self, process: Process) -> Coming:
        """Nothing is under way yet; its link is that of its rank."""
        return Coming(_of(self.pace.latency_s, process), _of(self.pace.part_s, process))

    def _arrive(self, known: deque[float], length: int, latency_s: float) -> None:
        """As many arrivals as the lane has parts: what was taken is the oldest, what came is under way. With strides,
        what was written at one time arrives at one time."""
        if not length:
            known.clear()
            return
        while len(known) > length:
            known.popleft()
        while (missing := length - len(known)) > 0:
            arrives = self.now + self._spread(latency_s) * self.linger("message")
            if known and known[-1] > arrives:
                arrives = known[-1]
            known.extend([arrives] * (missing if self._strided else 1))

    def _flow(self, lane: str, coming: Coming, parts: deque[Any]) -> None:
        """When bulk arrives: each part leaves behind the one before it. The blocks of a contribution come into the lane
        as its header arrives (`Averager.take`); they had left right behind it."""
        known: deque[float] = getattr(coming, lane)
        while len(known) > len(parts):
            known.popleft()
        follows = not known and coming.arrived.get(lane) == self.now
        for part in itertools.islice(parts, len(known), None):
            lingers = self.linger("message")
            begins = self.now if follows else self.now + self._spread(coming.latency_s) * lingers
            takes = self._spread(coming.part_s * blocks_in(part, self.world.setup.blocks)) * lingers
            known.append(max(begins, known[-1] if known else begins) + takes)

    def _amount(self, kind: str, who: int) -> int:
        """With strides, all that has arrived on a control lane by now is one action."""
        if not self._strided or kind not in AGAIN:
            return 0
        known = self._arrivals(kind, who)
        return len(known) if known[-1] <= self.now else sum(second <= self.now for second in known)

    def _arrivals(self, lane: str, who: int) -> deque[float]:
        arrivals: deque[float] = getattr(self._coming[who], lane)
        return arrivals

    def _catch_up(self, kind: str, who: int) -> None:
        """Something happens to a rank in the middle of a stride: what it has trained by now comes first."""
        if kind in ELSEWHERE or who not in self._strides:
            return
        stride = self._strides[who]
        steps = stride.over_by(self.now)
        if not stride.left:
            self._call_off(who)
        if steps:
            self._heard(self._make(act("step", who, steps), True))

    def _shorten(self, process: Process, trains: bool) -> None:
        """A rank that cannot go on ends its stride; what waits for a drain point is served after this step (W-3)."""
        stride = self._strides[process.number]
        if not trains:
            self._call_off(process.number)
        elif stride.left > 1 and process.worker.inbox and process.can_drain:  # as a rule nothing waits
            stride.left = 1
            self._push(max(stride.end, self.now), "step", process.number)

    def _call_off(self, who: int) -> None:
        del self._strides[who]
        self._coming[who].kinds.discard("step")

    def _look_at_rest(self) -> None:
        for kind in self.world.of_averager():
            if kind not in self._averaging:
                self._averaging.add(kind)
                self._push(self.now + self._of_averager(kind), kind, 0)
        if not self.world.over:
            self._look_at_clock(COORDINATOR, self.world.due_of(COORDINATOR))

    def _look_at_clock(self, who: int, due: float | None) -> None:
        """When that machine, which runs, wants its next tick."""
        if due is not None and due < self._ticks.get(who, math.inf):
            self._ticks[who] = due
            self._push(due if due > self.now else self.now, "tick", who)

    def _tick(self, at: float, who: int) -> None:
        known = self._ticks.get(who)
        if known is None or known > at:
            return  # an earlier one has taken its place
        if who == COORDINATOR and self.now < self.away_until:
            self._ticks[who] = self.away_until
            self._push(self.away_until, "tick", who)
            return
        del self._ticks[who]
        runs = not self.world.over if who == COORDINATOR else self.world.processes[who].runs
        due = self.world.due_of(who) if runs else None
        if due is None:
            return
        if due <= self.now:
            self.do(act("tick", who), sure=True)
            after = self._ticks.get(who)  # what it wants next has just been looked at
            if after is not None and after <= self.now:
                self._ticks[who] = self.now + LEAST_TICK_S
                self._push(self.now + LEAST_TICK_S, "tick", who)
        else:
            self._look_at_clock(who, due)

    # --- how long things take ----------------------------------------------------------------------------------------

    def _when(self, kind: str, process: Process) -> float:
        if kind in LANES:
            arrives = self._arrivals(kind, process.number)[0]
            return arrives if arrives > self.now else self.now
        if kind == "step":
            each = self._spread(_of(self.pace.step_s, process)) * self.linger("step")
            if not self._strided:
                return self.now + each
            left = process.steps_left(self.world.co.config.batch_size or 1)
            return self._strides.begin(process.number, self.now, each, min(self.pace.stride, left))
        if kind == "order":
            return self.now + self._of_order(process.orders[0])
        if kind == "unite":
            return self.now + self._spread(self.pace.reduce_s + self._exchange(process)) * self.linger("reduce")
        if kind == "session":
            return self.now + self._spread(ID_S)
        if kind in ("emerge", "collapse"):
            return self.now + self._spread(self._coming[process.number].latency_s)
        # A send may fail at once, or be noticed later: the coordinator hears of it before or after the end of the link.
        late = kind == "failure" and self._dice.chance(0.5)
        return self.now + (self._coming[process.number].latency_s if late else 0.0)

    def _exchange(self, process: Process) -> float:
        """What the blocks of a model need around the ring of a call in place (R-13): each member sends, and is sent,
        all of them but its own share, to sum and to hand out the sum, so all wait for the slowest link."""
        parts = [_of(self.pace.part_s, member) for member in members(self.world, process)]
        return max(parts) * self.world.setup.blocks * 2.0 * (len(parts) - 1) / len(parts)

    def _of_averager(self, kind: str) -> float:
        return self._spread(self.pace.reduce_s if kind == "reduce" else self.pace.write_s) * self.linger(kind)

    def _of_order(self, order: Any) -> float:
        if isinstance(order, (fx.TakeSnapshot, fx.SendState)):
            return self._spread(self.pace.copy_s) * self.linger("copy")
        return self._spread(self.pace.write_s if isinstance(order, fx.Save) else self.pace.callback_s)

    def _spread(self, seconds: float) -> float:
        return seconds * (1.0 + JITTER * self._dice.unit())


def _of(seconds: tuple[float, ...], process: Process) -> float:
    """Those of the rank of a process."""
    return seconds[process.rank % len(seconds)]


def never(kind: str) -> float:
    """Nothing lingers."""
    return 1.0
