"""A `World` in parts: what each action reads and writes, so that what was worked out once is never worked out again.

A breadth-first search meets the same worker in the same state with the same message millions of times, each time beside
another coordinator. So a state of the search is a row of numbers, one for each part of the world, and the outcome of an
action is remembered by the parts that it reads:

    LOCAL    a process serves a message, carries out an order, takes a step: it reads the process, the oldest entry of
             the lane it serves, and what the ghost knows of this process and of past consensuses
    CENTRAL  the coordinator or the averager gets something: it reads both and the ghost, and of the processes only who
             is there and linked
    the rest, such as time that passes: nothing is remembered

Lanes are queues, so all that an outcome does to one is: take the oldest off, add behind. A marker behind the oldest
entry tells whether the rest was kept or cleared. That an action reads no more than this is a claim about `World`; the
tests compare it with the entire world over all states of small configurations (`Parts.whole`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from ..values import value
from .action import Action
from .drawers import (
    AVERAGER,
    BODY,
    BULK_DOWN,
    BULK_UP,
    CLOCK,
    COORDINATOR,
    DOWN,
    HISTORY,
    LANES,
    MINE,
    NOT_SHELL,
    RUN,
    SHELL,
    SHELL_NAMES,
    TRAINED,
    UP,
    WIDTH,
    Drawers,
    Row,
)
from .frozen import frozen
from .invariants import steps_meet
from .process import Process
from .setup import Setup
from .violation import Violation

__all__ = ["CENTRAL", "LOCAL", "Parts", "Row"]

LOCAL: dict[str, tuple[str | None, bool]] = {
    "control": ("down", True), "drain": (None, True), "order": (None, True), "step": (None, True),
    "result": ("bulk_down", True), "repeat": ("down", False), "lose": ("down", True), "drop": ("up", True),
    "crash": (None, True),
}  # fmt: skip
"""Actions of one process: the lane whose oldest entry each reads, and whether it is taken off."""
CENTRAL: dict[str, tuple[str | None, bool]] = {
    "report": ("up", True), "upload": ("bulk_up", True), "failure": (None, True), "duplicate": ("up", False),
    "reduce": (None, True), "write": (None, True), "join": (None, True),
}  # fmt: skip
"""Actions at the coordinator and the averager, likewise."""


MARKER = object()
"""Stands in a lane for whatever is behind the oldest entry."""


@value
class LaneChange:
    """What an outcome does to a lane: `kept` is the rest behind the entry that was read, `before` and `after` are what
    stands around it now."""

    kept: bool
    before: tuple[int, ...]
    after: tuple[int, ...]


SAME = LaneChange(True, (), ())


@value
class LocalOutcome:
    """New parts of one process, the batches it has trained, and its lanes, in the order of `LANES`."""

    parts: tuple[int, int, int]
    trained: tuple[Any, ...]
    lanes: tuple[LaneChange, ...]


@value
class CentralOutcome:
    """New parts of the world, shell and lanes of each process, and all parts of processes that came."""

    parts: Row
    processes: tuple[tuple[int, tuple[LaneChange, ...]], ...]
    newcomers: Row


class Parts(Drawers):
    """What can happen, and what it leads to. `worked` counts the outcomes that were worked out."""

    def __init__(self, setup: Setup, *, forget: bool = True) -> None:
        super().__init__(setup, forget=forget)
        self.worked = 0
        self._local: dict[Any, LocalOutcome | Violation] = {}
        self._central: dict[Any, CentralOutcome | Violation] = {}
        self._added: dict[tuple[int, tuple[Any, ...]], int] = {}
        self._changed: dict[Any, int] = {}
        self._possible: dict[Any, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._of_averager: dict[tuple[int, int], tuple[str, ...]] = {}
        self._awaited: dict[tuple[int, int, int], bool] = {}
        self._met: set[tuple[int, int, int, bool]] = set()

    # --- what can happen ---------------------------------------------------------------------------------------------

    def possible(self, row: Row, number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The kinds of what can happen with a process, and of the faults that can strike it."""
        failing = any(number == who for who, _ in self.run(row)[3])
        heads = [self.thing(row, number, place)[:1] for place in LANES.values()]
        key = (number, self.over(row), failing, self.part(row, number, SHELL), self.part(row, number, BODY), *heads)
        found = self._possible.get(key)
        if found is None:
            self._put_surface(row)
            process = self.world.processes[number]
            self._put_person(process, row)
            for name, head in zip(LANES, heads, strict=True):
                setattr(process, name, deque(self.items.things[item] for item in head))
            faults = [action.kind for action in self.world.faults() if action.who == number and action.kind != "join"]
            found = self._possible[key] = (tuple(self.world.possible(process)), tuple(faults))
        return found

    def of_averager(self, row: Row) -> tuple[str, ...]:
        """The kinds of what can happen at the averager."""
        key = (row[RUN], row[AVERAGER])
        found = self._of_averager.get(key)
        if found is None:
            self._put_surface(row)
            found = self._of_averager[key] = tuple(self.world.of_averager())
        return found

    def is_due(self, row: Row) -> bool:
        """Whether any machine waits for time to pass."""
        return self.build(row).due() is not None

    def vacant(self, row: Row) -> list[int]:
        """The seats whose rank is gone, as the coordinator knows it."""
        return [rank for rank, peer in sorted(self.seen_by[row[COORDINATOR]].peers.items()) if not peer.alive]

    def has_spoken(self, row: Row, number: int) -> bool:
        """Reports of a process are under way."""
        return bool(self.thing(row, number, UP))

    def is_cut_off(self, row: Row, number: int) -> bool:
        """Whether nothing will ever be sent to a process again: nobody is there any more to send it, or its link is
        closed and none comes back. What it says goes behind what it has said, or nowhere."""
        return self.over(row) or (self.no_returns and not self._shell(row, number)["linked"])

    def is_left_alone(self, row: Row, number: int) -> bool:
        """Whether a process is healthy, has a message to serve, and is sent no result before it has done something: so
        that whatever it can be given next is in its lanes already."""
        shell = self._shell(row, number)
        healthy = shell["alive"] and shell["linked"] and not (shell["tampered"] or shell["deafened"])
        if not healthy or not self.thing(row, number, DOWN):
            return False
        if self.thing(row, number, BULK_DOWN):
            return True
        return not self.thing(row, number, BULK_UP) and not self._is_awaited(row, shell["rank"], shell["incarnation"])

    def _is_awaited(self, row: Row, rank: int, incarnation: int) -> bool:
        """Whether the averager owes a rank a result of the round in hand."""
        key = (row[AVERAGER], rank, incarnation)
        if key not in self._awaited:
            self.world.averager.load(self.averagers.things[row[AVERAGER]])
            self._awaited[key] = self.world.averager.owes(rank, incarnation)
        return self._awaited[key]

    def _shell(self, row: Row, number: int) -> dict[str, Any]:
        return dict(zip(SHELL_NAMES, self.thing(row, number, SHELL), strict=True))

    # --- making it happen --------------------------------------------------------------------------------------------

    def do(self, row: Row, action: Action) -> Row:
        """The state after an action. Raises `Violation`."""
        if action.kind in LOCAL:
            after = self._do_local(row, action)
        elif action.kind in CENTRAL:
            after = self._do_central(row, action)
        else:
            after = self.whole(row, action)
        self._check_steps(after)
        return after

    def whole(self, row: Row, action: Action) -> Row:
        """The same without memory, on the whole world."""
        self.build(row)
        self.loaded = -1
        self.world.do(action)
        return self.row()

    def _do_local(self, row: Row, action: Action) -> Row:
        number, start = action.who, (action.who + 1) * WIDTH
        head = self._head(row, action, LOCAL)
        key = (action, row[CLOCK], row[HISTORY], head, row[start], row[start + 1], row[start + 2])
        outcome = self._local.get(key)
        if outcome is None:
            outcome = self._local[key] = self._work_out_locally(row, action, head)
        if isinstance(outcome, Violation):
            raise outcome
        after = list(row)
        after[start : start + 3] = outcome.parts
        if outcome.trained:
            after[TRAINED] = self._add(row[TRAINED], outcome.trained)
        self._change_lanes(after, number, outcome.lanes, LOCAL[action.kind])
        return tuple(after)

    def _work_out_locally(self, row: Row, action: Action, head: int) -> LocalOutcome | Violation:
        self.worked += 1
        world = self.world
        world.now, world.skew = self.clocks.things[row[CLOCK]]
        world.alive, world.finish, world.failed = True, None, {}
        self._fit(row)
        process = world.processes[action.who]
        self._put_person(process, row)
        self._put_history(row[HISTORY])
        self._put_mine(action.who, self.part(row, action.who, MINE))
        world.ghost.trained = {}
        self._mark_lanes([process], action, LOCAL, head)
        try:
            world.do(action)
        except Violation as violation:
            return violation
        picks = tuple(world.ghost.trained)
        return LocalOutcome(self._person(process), picks, self._read_lanes(process))

    def _do_central(self, row: Row, action: Action) -> Row:
        head = self._head(row, action, CENTRAL)
        shells = row[WIDTH::WIDTH]
        copies = row[WIDTH + MINE :: WIDTH] if action.kind == "reduce" else ()
        key = (action, head, row[:WIDTH], shells, copies)
        outcome = self._central.get(key)
        if outcome is None:
            outcome = self._central[key] = self._work_out_centrally(row, action, head)
        if isinstance(outcome, Violation):
            raise outcome
        after = [*outcome.parts, *row[WIDTH:]]
        for number, (shell, lanes) in enumerate(outcome.processes):
            after[(number + 1) * WIDTH + SHELL] = shell
            read = CENTRAL[action.kind] if number == action.who and action.kind != "join" else (None, True)
            self._change_lanes(after, number, lanes, read)
        return (*after, *outcome.newcomers)

    def _work_out_centrally(self, row: Row, action: Action, head: int) -> CentralOutcome | Violation:
        self.worked += 1
        self._put_world(row)
        world, count = self.world, self.count(row)
        if action.kind == "reduce":
            for number in range(count):
                self._put_mine(number, self.part(row, number, MINE))
        self._mark_lanes(world.processes, action, CENTRAL, head)
        for process in world.processes:  # an order in hand: what is in it is not known here (I46)
            process.orders = deque([MARKER])
            world.ghost.unmerged.setdefault(process.number, ())
        self.loaded = -1
        try:
            world.do(action)
        except Violation as violation:
            return violation
        parts = self._of_world()
        processes = tuple((self.shells.number(frozen(process, NOT_SHELL)), self._read_lanes(process))
                          for process in world.processes[:count])  # fmt: skip
        newcomers: list[int] = []
        for process in world.processes[count:]:
            newcomers += self._of_process(process)
        return CentralOutcome(parts, processes, tuple(newcomers))

    # --- lanes -------------------------------------------------------------------------------------------------------

    def _head(self, row: Row, action: Action, table: dict[str, tuple[str | None, bool]]) -> int:
        """The oldest entry of the lane that an action reads, or -1 if it reads none."""
        lane = table[action.kind][0]
        return -1 if lane is None else self.thing(row, action.who, LANES[lane])[0]

    def _mark_lanes(self, processes: Iterable[Process], action: Action, table: dict[str, tuple[str | None, bool]],
                    head: int) -> None:  # fmt: skip
        for process in processes:
            for name in LANES:
                reads = head >= 0 and process.number == action.who and name == table[action.kind][0]
                setattr(process, name, deque([self.items.things[head], MARKER] if reads else [MARKER]))

    def _read_lanes(self, process: Process) -> tuple[LaneChange, ...]:
        return tuple(self._read_lane(list(getattr(process, name))) for name in LANES)

    def _read_lane(self, lane: list[Any]) -> LaneChange:
        if lane == [MARKER]:
            return SAME
        place = next((index for index, item in enumerate(lane) if item is MARKER), -1)
        before, after = (lane[:place], lane[place + 1 :]) if place >= 0 else ([], lane)
        return LaneChange(place >= 0, tuple(map(self._item, before)), tuple(map(self._item, after)))

    def _change_lanes(self, after: list[int], number: int, changes: tuple[LaneChange, ...],
                      read: tuple[str | None, bool]) -> None:  # fmt: skip
        start = (number + 1) * WIDTH
        for (name, place), change in zip(LANES.items(), changes, strict=True):
            heads = 1 if name == read[0] else 0
            if heads or change is not SAME:
                key = (after[start + place], heads, change)
                changed = self._changed.get(key)
                if changed is None:
                    rest = self.lanes.things[after[start + place]][heads:] if change.kept else ()
                    changed = self._changed[key] = self._lane((*change.before, *rest, *change.after))
                after[start + place] = changed

    def _add(self, trained: int, picks: tuple[Any, ...]) -> int:
        found = self._added.get((trained, picks))
        if found is None:
            counts = dict(self.trained.things[trained])
            for pick in picks:
                counts[pick] = counts.get(pick, 0) + 1
            found = self._added[trained, picks] = self._trained_as(counts)
        return found

    # --- what no single part can tell --------------------------------------------------------------------------------

    def _check_steps(self, row: Row) -> None:
        """I45 of every process whose lanes are empty; the numbers it compares are of two parts. I46 is of one, and was
        asked when that was made."""
        failing = {number for number, _ in self.run(row)[3]}
        for number in range(self.count(row)):
            if self.thing(row, number, UP) or self.thing(row, number, DOWN):
                continue
            shell, body = self.part(row, number, SHELL), self.part(row, number, BODY)
            key = (row[COORDINATOR], shell, body, number in failing)
            if key not in self._met:
                ghost: Any = SimpleNamespace(unmerged={number: ()})
                process: Any = SimpleNamespace(**self._shell(row, number), number=number, up=(), down=(),
                                               orders=(MARKER,), worker=self.known_to[body])  # fmt: skip
                steps_meet(self.seen_by[row[COORDINATOR]], ghost, process, number in failing)
                self._met.add(key)

