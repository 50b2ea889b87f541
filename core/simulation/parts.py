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

import attrs

from ..coordinator import Coordinator
from ..values import value
from ..worker import Worker, WorkerSettings
from .action import Action
from .fingerprint import Interned, combine
from .frozen import frozen, thaw
from .ghost import Ghost
from .invariants import steps_meet
from .process import Process
from .setup import Setup
from .violation import Violation
from .world import World

__all__ = ["CENTRAL", "LOCAL", "Parts", "Row"]

Row = tuple[int, ...]
"""A state: the numbers of its parts, those of the world (`CLOCK` to `TRAINED`), then seven for each process."""
CLOCK, RUN, COORDINATOR, AVERAGER, SHARED, HISTORY, TRAINED = range(7)
SHELL, BODY, MINE, UP, DOWN, BULK_UP, BULK_DOWN = range(7)
WIDTH = 7

LANES = {"up": UP, "down": DOWN, "bulk_up": BULK_UP, "bulk_down": BULK_DOWN}
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


def _without(cls: Any, *names: str) -> frozenset[str]:
    return frozenset(field.name for field in attrs.fields(cls) if field.name not in names)


IN_SHELL = ("rank", "incarnation", "alive", "linked", "paused", "hung", "muted", "deafened", "tampered", "skew")
IN_MINE = ("base", "since", "unmerged", "copies", "held")
IN_HISTORY = ("means", "realized")
NOT_SHELL = _without(Process, *IN_SHELL)
NOT_BODY = frozenset({"worker", "frames", "seen", *LANES, *IN_SHELL})
NOT_HISTORY = _without(Ghost, *IN_HISTORY)
NOT_SHARED = frozenset({"last", "seen", "acted", "trained", *IN_MINE, *IN_HISTORY})
SHELL_NAMES = tuple(field.name for field in attrs.fields(Process) if field.name in IN_SHELL)
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


class Parts:
    """The drawers of all parts, a world to work things out in, and what was worked out. `worked` counts that."""

    def __init__(self, setup: Setup) -> None:
        self.world = World(setup)
        self.clocks, self.runs, self.coordinators, self.averagers = Interned(), Interned(), Interned(), Interned()
        self.shared, self.histories, self.trained = Interned(), Interned(), Interned()
        self.shells, self.bodies, self.mine = Interned(), Interned(), Interned()
        self.items, self.lanes = Interned(), Interned()
        self.drawers = (self.clocks, self.runs, self.coordinators, self.averagers, self.shared, self.histories,
                        self.trained)  # fmt: skip
        self.of_process = (self.shells, self.bodies, self.mine, self.lanes, self.lanes, self.lanes, self.lanes)
        self.worked = 0
        self._loaded = -1
        self._seen_by: list[Any] = []
        self._known_to: list[Any] = []
        self._settings: dict[tuple[int, int], WorkerSettings] = {}
        self._local: dict[Any, LocalOutcome | Violation] = {}
        self._central: dict[Any, CentralOutcome | Violation] = {}
        self._added: dict[tuple[int, tuple[Any, ...]], int] = {}
        self._changed: dict[Any, int] = {}
        self._possible: dict[Any, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._of_averager: dict[tuple[int, int], tuple[str, ...]] = {}
        self._awaited: dict[tuple[int, int, int], bool] = {}
        self._met: set[tuple[int, int, int, bool]] = set()
        self.first = self.row()

    # --- names -------------------------------------------------------------------------------------------------------

    def fingerprint(self, row: Row, beside: Row = ()) -> int:
        """By the content of all parts, and the numbers beside them, so the same in every process and search."""
        of_world = [drawer.fingerprints[part] for drawer, part in zip(self.drawers, row, strict=False)]
        rest = row[WIDTH:]
        of_processes = [self.of_process[place % WIDTH].fingerprints[part] for place, part in enumerate(rest)]
        return combine([*beside, *of_world, *of_processes])

    def count(self, row: Row) -> int:
        """Processes of a state, those that are gone included."""
        return len(row) // WIDTH - 1

    def part(self, row: Row, number: int, place: int) -> int:
        """One part of a process."""
        return row[(number + 1) * WIDTH + place]

    def thing(self, row: Row, number: int, place: int) -> Any:
        """The same, as what it stands for."""
        return self.of_process[place].things[self.part(row, number, place)]

    def run(self, row: Row) -> Any:
        """(alive, finish, knocks, failed, seats) of the world."""
        return self.runs.things[row[RUN]]

    def over(self, row: Row) -> bool:
        """The run has ended, well or not."""
        alive, finish, *_ = self.run(row)
        return finish is not None or not alive

    # --- taking apart ------------------------------------------------------------------------------------------------

    def row(self) -> Row:
        """The state of the world as it is."""
        processes: list[int] = []
        for process in self.world.processes:
            processes += self._of_process(process)
        return (*self._of_world(), *processes)

    def _of_world(self) -> Row:
        world, ghost = self.world, self.world.ghost
        failed = tuple((number, tuple(tokens)) for number, tokens in sorted(world.failed.items()) if tokens)
        seats = tuple((rank, process.number) for rank, process in sorted(world.seats.items()))
        return (
            self.clocks.number((world.now, world.skew)),
            self.runs.number((world.alive, world.finish, world._knocks, failed, seats)),
            self._coordinator(),
            self.averagers.number(world.averager.snapshot()),
            self.shared.number(frozen(ghost, NOT_SHARED)),
            self.histories.number(frozen(ghost, NOT_HISTORY)),
            self.trained.number(tuple(sorted(ghost.trained.items()))),
        )

    def _coordinator(self) -> int:
        co = self.world.co
        self._loaded = self.coordinators.number(co.snapshot())
        if self._loaded == len(self._seen_by):
            self._seen_by.append(SimpleNamespace(peers={
                rank: SimpleNamespace(phase=p.phase, attached=p.attached, incarnation=p.incarnation, steps=p.steps)
                for rank, p in co.peers.items()
            }))  # fmt: skip
        return self._loaded

    def _of_process(self, process: Process) -> Row:
        lanes = [self._lane(self.items.number(item) for item in getattr(process, name)) for name in LANES]
        return (*self._person(process), *lanes)

    def _person(self, process: Process) -> tuple[int, int, int]:
        worker = process.worker
        body = self.bodies.number((frozen(process, NOT_BODY), worker.snapshot()))
        if body == len(self._known_to):
            self._known_to.append(SimpleNamespace(inbox=bool(worker.inbox), phase=worker.phase,
                                                  steps_since_avg=worker.steps_since_avg))  # fmt: skip
        return self.shells.number(frozen(process, NOT_SHELL)), body, self._of_ghost(process.number)

    def _of_ghost(self, number: int) -> int:
        ghost = self.world.ghost
        known = [(name, getattr(ghost, name)[number]) for name in IN_MINE if number in getattr(ghost, name)]
        return self.mine.number((*known, tuple(sorted(act[1:] for act in ghost.acted if act[0] == number))))

    def _lane(self, items: Iterable[int]) -> int:
        lane = tuple(items)
        return self.lanes.number_as(combine(self.items.fingerprints[item] for item in lane), lane)

    # --- putting together --------------------------------------------------------------------------------------------

    def build(self, row: Row) -> World:
        """The whole world of a state."""
        self._put_world(row)
        for process in self.world.processes:
            number = process.number
            self._put_person(process, row)
            self._put_mine(number, self.part(row, number, MINE))
            for name, place in LANES.items():
                lane = self.thing(row, number, place)
                setattr(process, name, deque(self.items.things[item] for item in lane))
        return self.world

    def _put_surface(self, row: Row) -> None:
        """All that says what can happen, but for the machines and the ghost."""
        world = self.world
        world.now, world.skew = self.clocks.things[row[CLOCK]]
        world.alive, world.finish, world._knocks, failed, seats = self.run(row)
        world.failed = {number: deque(tokens) for number, tokens in failed}
        world.averager.load(self.averagers.things[row[AVERAGER]])
        self._fit(row)
        world.seats = {rank: world.processes[number] for rank, number in seats}

    def _put_world(self, row: Row) -> None:
        world, ghost = self.world, self.world.ghost
        self._put_surface(row)
        if self._loaded != row[COORDINATOR]:
            kept = self.coordinators.things[row[COORDINATOR]]
            world.co = Coordinator.restore(world.config, kept, engine=world.setup.engine)
            self._loaded = row[COORDINATOR]
        thaw(ghost, self.shared.things[row[SHARED]], NOT_SHARED)
        ghost.trained = dict(self.trained.things[row[TRAINED]])
        self._put_history(row[HISTORY])

    def _put_history(self, history: int) -> None:
        ghost = self.world.ghost
        thaw(ghost, self.histories.things[history], NOT_HISTORY)
        ghost.seen = None
        ghost.acted.clear()
        for name in IN_MINE:
            getattr(ghost, name).clear()

    def _fit(self, row: Row) -> None:
        """As many processes as the state has, with their shells; what is in them is left as it is."""
        world = self.world
        del world.processes[self.count(row) :]
        for number in range(self.count(row)):
            if number == len(world.processes):
                settings = self._settings_of(*self.thing(row, number, SHELL)[:2])
                world.processes.append(Process(number, settings.rank, settings.incarnation,
                                               Worker.create(settings, 0.0), 0.0))  # fmt: skip
            thaw(world.processes[number], self.thing(row, number, SHELL), NOT_SHELL)

    def _put_person(self, process: Process, row: Row) -> None:
        fields, worker = self.thing(row, process.number, BODY)
        thaw(process, self.thing(row, process.number, SHELL), NOT_SHELL)
        thaw(process, fields, NOT_BODY)
        settings = self._settings_of(process.rank, process.incarnation)
        process.worker = Worker.restore(settings, worker, engine=self.world.setup.engine)
        process.seen = None

    def _put_mine(self, number: int, mine: int) -> None:
        *known, acted = self.mine.things[mine]
        for name, noted in known:
            getattr(self.world.ghost, name)[number] = noted
        self.world.ghost.acted.update((number, *act) for act in acted)

    def _settings_of(self, rank: int, incarnation: int) -> WorkerSettings:
        if (rank, incarnation) not in self._settings:
            self._settings[rank, incarnation] = self.world._settings(rank, incarnation)
        return self._settings[rank, incarnation]

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
            faults = [action.kind for action in self.world.faults() if action.who == number]
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
        """The seats whose process is gone."""
        return [rank for rank, number in self.run(row)[4] if not self._shell(row, number)["alive"]]

    def has_spoken(self, row: Row, number: int) -> bool:
        """Reports of a process are under way."""
        return bool(self.thing(row, number, UP))

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
        self._loaded = -1
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
        self._loaded = -1
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
        return LaneChange(place >= 0, tuple(map(self.items.number, before)), tuple(map(self.items.number, after)))

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
            found = self._added[trained, picks] = self.trained.number(tuple(sorted(counts.items())))
        return found

    # --- what no single part can tell -----------------------------------------------------------------------------------

    def _check_steps(self, row: Row) -> None:
        """I45 of every process whose lanes are empty; the numbers it compares are of two parts."""
        failing = {number for number, _ in self.run(row)[3]}
        for number in range(self.count(row)):
            if self.thing(row, number, UP) or self.thing(row, number, DOWN):
                continue
            shell, body = self.part(row, number, SHELL), self.part(row, number, BODY)
            key = (row[COORDINATOR], shell, body, number in failing)
            if key not in self._met:
                process: Any = SimpleNamespace(**self._shell(row, number), number=number, up=(), down=(), worker=self._known_to[body])
                steps_meet(self._seen_by[row[COORDINATOR]], process, number in failing)
                self._met.add(key)

