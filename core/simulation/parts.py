"""A `World` in parts: what each action reads and writes, so that what was worked out once is never worked out again.

A breadth-first search meets the same worker in the same state with the same message millions of times, each time beside
another coordinator. So a state of the search is a row of numbers, one for each part of the world and one for each
process, and the outcome of an action is remembered by the parts that it reads:

    LOCAL    a process serves a message, carries out an order, takes a step: it reads the process, the oldest entry of
             the lane it serves, and what the ghost knows of this process and of past consensuses
    CENTRAL  the coordinator or the averager gets something: it reads the ghost, and of the processes only who is there
             and linked; the coordinator, the averager and what was trained (`LATER`) it reads perhaps, and then all of
             them or some: a report may concern the coordinator alone, a part of a contribution the averager alone
    the rest, such as time that passes, or an average in place, which reads all members: nothing is remembered

What is read perhaps is put into the world when it is asked for, never before, and that is noted. Which of these parts
an action reads first depends on nothing but what it reads always, which it reads next on nothing but these and the
first, and so on. So the memory is a tree: at each knot it says which part is to be looked at next, and at each leaf it
has an outcome (`_recall`).

Lanes are queues, so all that an outcome does to one is: take the oldest off, add behind. A marker behind the oldest
entry tells whether the rest was kept or cleared. That an action reads no more than this is a claim about `World`; the
tests compare it with the entire world over all states of small configurations (`Parts.whole`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Any

from .action import Action, act
from .drawers import (
    AVERAGER,
    BODY,
    BULK_DOWN,
    BULK_UP,
    CLOCK,
    COORDINATOR,
    DOWN,
    HISTORY,
    IN_CALL,
    LANES,
    MINE,
    NOT_HISTORY,
    NOT_SHARED,
    NOT_SHELL,
    RUN,
    SHARED,
    SHELL,
    SHELL_NAMES,
    TRAINED,
    UP,
    WORLD,
    Drawers,
    Lanes,
    Person,
    Row,
)
from .frozen import frozen, thaw
from .invariants import steps_meet
from .outcomes import MARKER, SAME, CentralOutcome, Change, LaneChange, Later, LocalOutcome, Offer, Trained, Wide
from .process import Process
from .recall import Recalled
from .setup import Setup
from .violation import Violation

__all__ = ["CENTRAL", "LOCAL", "Offer", "Parts", "Row"]

LOCAL: dict[str, tuple[str | None, bool]] = {
    "control": ("down", True), "drain": (None, True), "order": (None, True), "step": (None, True),
    "result": ("bulk_down", True), "repeat": ("down", False), "lose": ("down", True), "drop": ("up", True),
    "crash": (None, True), "session": (None, True), "emerge": (None, True), "collapse": (None, True),
    "fail": (None, True), "withhold": (None, True),
}  # fmt: skip
"""Actions of one process: the lane whose oldest entry each reads, and whether it is taken off."""
CENTRAL: dict[str, tuple[str | None, bool]] = {
    "report": ("up", True), "upload": ("bulk_up", True), "failure": ("failed", True), "duplicate": ("up", False),
    "reduce": (None, True), "write": (None, True), "join": (None, True),
}  # fmt: skip
"""Actions at the coordinator and the averager, likewise."""
NO_VERSION = -1


class Parts(Drawers):
    """What can happen, and what it leads to. `strikes` are the kinds of faults that are offered. `worked` counts the
    outcomes that were worked out."""

    def __init__(self, setup: Setup, strikes: Collection[str], *, forget: bool = True) -> None:
        super().__init__(setup, forget=forget)
        self.strikes = strikes
        self.worked = 0
        self.recalled = Recalled(self)
        self._moved: dict[Any, tuple[int, tuple[Any, ...]] | Violation | Wide] = {}
        self._local: dict[Any, LocalOutcome | Violation | Wide] = {}
        self._central: dict[Any, CentralOutcome | Violation | int] = {}
        self._changes: list[Change] = []
        self._change_numbers: dict[Change, int] = {}
        self._changed: dict[tuple[int, int], int] = {}
        self._added: dict[tuple[int, tuple[Any, ...]], int] = {}
        self._lane_changed: dict[Any, int] = {}
        self._offers: dict[tuple[int, ...], Offer] = {}
        self._of_averager: dict[tuple[int, int], tuple[Action, ...]] = {}
        self._vacant: dict[int, list[int]] = {}
        self._standings: dict[int, tuple[bool, bool, bool, int, int]] = {}
        self._awaited: dict[tuple[int, int, int], bool] = {}
        self._met: set[tuple[int, int]] = set()

    # --- what can happen ---------------------------------------------------------------------------------------------

    def offer(self, row: Row, number: int) -> Offer:
        """What can happen with a process."""
        key: tuple[int, ...] = (row[WORLD + number], self.over(row))
        if self.in_place:  # what can happen in a call depends on all who are in it
            key = (number, *key, *row[WORLD:])
        elif not self.no_returns:  # and when to knock, on the second
            key = (*key, row[CLOCK])
        found = self._offers.get(key)
        if found is None:
            found = self._offers[key] = self._offer(row, number)
        return found

    def _offer(self, row: Row, number: int) -> Offer:
        self._put_surface(row)
        for process in self.world.processes if self.in_place else [self.world.processes[number]]:
            self._put_person(process, row)
            self._put_lanes(process, row)
        process = self.world.processes[number]
        kinds = self.world.possible(process)
        faults = [action for action in self.world.faults() if action.who == number and action.kind in self.strikes]
        return Offer(
            own=tuple(act(kind, number) for kind in kinds if kind in LOCAL),
            central=tuple(act(kind, number) for kind in kinds if kind not in LOCAL and not self._stays_away(kind)),
            faults=tuple(a for a in faults if a.kind != "join" and not self._changes_nothing(process, a.kind)),
        )

    def _stays_away(self, kind: str) -> bool:
        """Where a lost link is a death, who was shut out comes back by the budget of those who do (`join`), or not."""
        return kind == "dial" and self.no_returns

    def _changes_nothing(self, process: Process, kind: str) -> bool:
        """A fault that is said beforehand strikes as well later, when there is a call to fail or an id to keep back."""
        if kind == "fail":
            return process.inside is None or process.failing
        return kind == "withhold" and (process.withholds or not process.down)

    def of_averager(self, row: Row) -> tuple[Action, ...]:
        """What can happen at the averager."""
        key = (row[RUN], row[AVERAGER])
        found = self._of_averager.get(key)
        if found is None:
            self._put_surface(row)
            found = self._of_averager[key] = tuple(act(kind) for kind in self.world.of_averager())
        return found

    def is_due(self, row: Row) -> bool:
        """Whether any machine waits for time to pass: the coordinator always does, for as long as it runs."""
        waits = not self.over(row) and self.machines.of(row[COORDINATOR]).poll_timeout() is not None
        return waits or self.build(row).due() is not None

    def may_start(self, row: Row) -> bool:
        """Whether the run waits for an operator who says that it begins (M-4)."""
        return self.manual and not self.over(row) and self.machines.of(row[COORDINATOR]).run.can_start()

    def vacant(self, row: Row) -> list[int]:
        """The seats whose rank is gone, as the coordinator knows it."""
        found = self._vacant.get(row[COORDINATOR])
        if found is None:
            peers = self.seen_by[row[COORDINATOR]].peers
            found = self._vacant[row[COORDINATOR]] = [rank for rank, peer in sorted(peers.items()) if not peer.alive]
        return found

    def has_spoken(self, row: Row, number: int) -> bool:
        """Reports of a process are under way."""
        return bool(self.thing(row, number, UP))

    def is_in_a_call(self, row: Row, number: int) -> bool:
        """Whether a process is inside a call of a collective, which ends by what the others do too."""
        return self.in_place and self.thing(row, number, BODY)[0][IN_CALL] is not None

    def is_cut_off(self, row: Row, number: int) -> bool:
        """Whether nothing will ever be sent to a process again: nobody is there any more to send it, or its link is
        closed and none comes back. What it says goes behind what it has said, or nowhere."""
        return self.over(row) or (self.no_returns and not self._standing(row, number)[0])

    def unlinked(self, row: Row) -> list[int]:
        """The ranks of the processes that have no link."""
        standings = [self._standing(row, number) for number in range(self.count(row))]
        return [rank for linked, _, _, rank, _ in standings if not linked]

    def is_left_alone(self, row: Row, number: int) -> bool:
        """Whether a process is healthy, has a message to serve, and is sent no result before it has done something: so
        that whatever it can be given next is in its lanes already."""
        _, served, answered, rank, incarnation = self._standing(row, number)
        return served and (answered or not self._is_awaited(row, rank, incarnation))

    def _standing(self, row: Row, number: int) -> tuple[bool, bool, bool, int, int]:
        """Whether a process is linked; is healthy, has a message to serve, and either has a result, which is the other
        answer, or has asked for none; its rank and incarnation."""
        found = self._standings.get(row[WORLD + number])
        if found is None:
            shell = self._shell(row, number)
            healthy = shell["alive"] and shell["linked"] and not (shell["tampered"] or shell["deafened"])
            answered = bool(self.thing(row, number, BULK_DOWN))
            asks = bool(self.thing(row, number, BULK_UP))
            served = healthy and bool(self.thing(row, number, DOWN)) and (answered or not asks)
            found = (shell["linked"], served, answered, shell["rank"], shell["incarnation"])
            self._standings[row[WORLD + number]] = found
        return found

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
        self.world.do(action)
        return self.row()

    def _do_local(self, row: Row, action: Action) -> Row:
        place = WORLD + action.who
        key = (action.kind, row[place], row[CLOCK], row[HISTORY])
        outcome = self._moved.get(key)
        if outcome is None:
            outcome = self._moved[key] = self._move(row, action)
        if isinstance(outcome, Violation):
            raise outcome
        if isinstance(outcome, Wide):
            return self.whole(row, action)
        person, picks = outcome
        after = list(row)
        after[place] = person
        if picks:
            after[TRAINED] = self._add(row[TRAINED], picks)
        return tuple(after)

    def _move(self, row: Row, action: Action) -> tuple[int, tuple[Any, ...]] | Violation | Wide:
        """What an action makes of its process, and what that has trained: found without regard to what lies behind the
        oldest entry of its lanes."""
        person, head = self.person(row, action.who), self._head(row, action, LOCAL)
        key = (action, row[CLOCK], row[HISTORY], head, *person[:UP])
        outcome = self._local.get(key)
        if outcome is None:
            outcome = self._local[key] = self._work_out_locally(row, action, head)
        if isinstance(outcome, (Violation, Wide)):
            return outcome
        lanes = self._change_lanes(person, outcome.lanes, LOCAL[action.kind][0])
        return self.person_as((*outcome.parts, *lanes)), outcome.trained

    def _work_out_locally(self, row: Row, action: Action, head: int) -> LocalOutcome | Violation | Wide:
        self.worked += 1
        world = self.world
        world.now, world.skew = self.clocks.things[row[CLOCK]]
        world.alive, world.finish = True, None
        self._fit(row)
        process = world.processes[action.who]
        self._put_person(process, row)
        self._put_history(row[HISTORY])
        self._put_mine(action.who, self.person(row, action.who)[MINE])
        world.ghost.trained = {}
        self._mark_lanes([process], action, LOCAL, head)
        if self.in_place:
            self._isolate(process)
        try:
            world.do(action, sure=True)
        except Violation as violation:
            return violation
        if self.in_place and frozen(world.ghost, NOT_HISTORY) != self.histories.things[row[HISTORY]]:
            return Wide()
        picks = tuple(world.ghost.trained)
        return LocalOutcome(self._inside(process), picks, self._read_lanes(process))

    def _isolate(self, process: Process) -> None:
        """Before a process of a collective acts by itself: what is in the others is not theirs now, so they are not to
        be looked at. A process that gives its state to all says what the consensus is (M-45), of a version that is not
        at hand; by this one it is found out, since there is no such version."""
        for other in self.world.processes:
            if other is not process:
                other.inside = None
        self.world.ghost.version = NO_VERSION

    def _do_central(self, row: Row, action: Action) -> Row:
        root = self._root(row, action)
        outcome = self._recall(row, root)
        if outcome is None:
            outcome = self._work_out_centrally(row, action, root)
        if isinstance(outcome, Violation):
            raise outcome
        after = list(row)
        for place, part in outcome.parts:
            after[place] = part
        for place, change in outcome.processes:
            person = self._changed.get((row[place], change))
            if person is None:
                person = self._changed[row[place], change] = self._change(row[place], self._changes[change])
            after[place] = person
        return (*after, *outcome.newcomers)

    def _root(self, row: Row, action: Action) -> Any:
        """What an action at the coordinator or the averager reads in any case."""
        people, head = self.people.things, self._head(row, action, CENTRAL)
        shells = tuple([people[person][SHELL] for person in row[WORLD:]])
        copies = tuple([people[person][MINE] for person in row[WORLD:]]) if action.kind == "reduce" else ()
        return (action.kind, action.who, head, row[CLOCK], row[RUN], row[SHARED], row[HISTORY], shells, copies)

    def _recall(self, row: Row, knot: Any) -> CentralOutcome | Violation | None:
        """The outcome, if it is known for the parts of this row that it depends on."""
        found = self._central.get(knot)
        while found.__class__ is int:
            knot = (knot, row[found])
            found = self._central.get(knot)
        return found  # type: ignore[return-value]

    def _work_out_centrally(self, row: Row, action: Action, knot: Any) -> CentralOutcome | Violation:
        self.worked += 1
        read: dict[int, None] = {}
        try:
            outcome: CentralOutcome | Violation = self._perform_centrally(row, action, read)
        except Violation as violation:
            outcome = violation
        for place in read:
            self._central[knot] = place
            knot = (knot, row[place])
        self._central[knot] = outcome
        return outcome

    def _perform_centrally(self, row: Row, action: Action, read: dict[int, None]) -> CentralOutcome:
        """Do it in a world in which the parts that it may not ask for are put in later; `read` notes them."""
        world, count, head = self.world, self.count(row), self._head(row, action, CENTRAL)
        self._put_frame(row)
        thaw(world.ghost, self.shared.things[row[SHARED]], NOT_SHARED)
        self._put_history(row[HISTORY])
        if action.kind == "reduce":
            for number in range(count):
                self._put_mine(number, self.person(row, number)[MINE])
        self._mark_lanes(world.processes, action, CENTRAL, head)
        for process in world.processes:  # an order in hand: what is in it is not known here (I46)
            process.orders = deque([MARKER])
            world.ghost.unmerged.setdefault(process.number, ())
        known = world.co, world.averager
        self._put_later(row, read)
        try:
            world.do(action, sure=True)
            return self._central_outcome(row, action, read)
        finally:
            world.co, world.averager, world.ghost.trained = *known, {}

    def _put_later(self, row: Row, read: dict[int, None]) -> None:
        """The coordinator, the averager and what was trained: each of them when it is asked for."""
        world, averager = self.world, self.world.averager

        def put_averager() -> Any:
            if AVERAGER not in read:
                read[AVERAGER] = None
                averager.load(self.averagers.things[row[AVERAGER]])
                world.averager = averager
            return averager

        later: Any = Later(put_averager)
        recalled: Any = self.recalled
        recalled.begin(row[COORDINATOR], lambda: read.setdefault(COORDINATOR))
        world.co, world.averager = recalled, later
        world.ghost.trained = Trained(self.trained.things[row[TRAINED]])
        world.ghost.trained.asked = lambda: read.setdefault(TRAINED)

    def _central_outcome(self, row: Row, action: Action, read: dict[int, None]) -> CentralOutcome:
        world, count = self.world, self.count(row)
        parts = {RUN: self._run(), SHARED: self._shared(),
                 HISTORY: self.histories.number(frozen(world.ghost, NOT_HISTORY))}  # fmt: skip
        if COORDINATOR in read:
            parts[COORDINATOR] = self.recalled.end()
        if AVERAGER in read:
            parts[AVERAGER] = self.averagers.number(world.averager.snapshot())
        changes = []
        for number, process in enumerate(world.processes[:count]):
            reads = CENTRAL[action.kind][0] if number == action.who and action.kind != "join" else None
            change = Change(self.shells.number(frozen(process, NOT_SHELL)), self._read_lanes(process), reads)
            same = change.lanes == (SAME,) * len(LANES) and reads is None
            if not same or change.shell != self.person(row, number)[SHELL]:
                changes.append((WORLD + number, self._change_number(change)))
        return CentralOutcome(
            tuple((place, part) for place, part in parts.items() if part != row[place]), tuple(changes),
            tuple(map(self._of_process, world.processes[count:])),
        )  # fmt: skip

    def _change_number(self, change: Change) -> int:
        if change not in self._change_numbers:
            self._change_numbers[change] = len(self._changes)
            self._changes.append(change)
        return self._change_numbers[change]

    def _change(self, person: int, change: Change) -> int:
        """The process after a change."""
        parts: Person = self.people.things[person]
        lanes = self._change_lanes(parts, change.lanes, change.read)
        return self.person_as((change.shell, parts[BODY], parts[MINE], *lanes))

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
                self._fill(process, name, [self.items.things[head], MARKER] if reads else [MARKER])

    def _read_lanes(self, process: Process) -> tuple[LaneChange, ...]:
        return tuple(self._read_lane(list(self._entries(process, name))) for name in LANES)

    def _read_lane(self, lane: list[Any]) -> LaneChange:
        if len(lane) == 1 and lane[0] is MARKER:
            return SAME
        place = next((index for index, item in enumerate(lane) if item is MARKER), -1)
        before, after = (lane[:place], lane[place + 1 :]) if place >= 0 else ([], lane)
        return LaneChange(place >= 0, tuple(map(self._item, before)), tuple(map(self._item, after)))

    def _change_lanes(self, person: Person, changes: tuple[LaneChange, ...],
                      read: str | None) -> Lanes:  # fmt: skip
        """The lanes of a process after an outcome that has read the oldest entry of one of them."""
        lanes = []
        for (name, place), change in zip(LANES.items(), changes, strict=True):
            lane, heads = person[place], 1 if name == read else 0
            if heads or change != SAME:
                key = (lane, heads, change)
                changed = self._lane_changed.get(key)
                if changed is None:
                    rest = self.lanes.things[lane][heads:] if change.kept else ()
                    changed = self._lane_changed[key] = self._lane((*change.before, *rest, *change.after))
                lane = changed
            lanes.append(lane)
        up, down, bulk_up, bulk_down, failed = lanes
        return up, down, bulk_up, bulk_down, failed

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
        for number, person in enumerate(row[WORLD:]):
            key = (row[COORDINATOR], person)
            if key not in self._met:
                _, body, _, up, down, _, _, failed = self.person(row, number)
                if not (self.lanes.things[up] or self.lanes.things[down]):
                    ghost: Any = SimpleNamespace(unmerged={number: ()})
                    process: Any = SimpleNamespace(**self._shell(row, number), number=number, up=(), down=(),
                                                   orders=(MARKER,), worker=self.bodies.things[body][1])  # fmt: skip
                    steps_meet(self.seen_by[row[COORDINATOR]], ghost, process, bool(self.lanes.things[failed]))
                self._met.add(key)
