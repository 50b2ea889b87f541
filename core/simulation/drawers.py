"""The parts of a `World`, each in a drawer: a state of the model checker is a row of their numbers.

There are few different workers, messages, lanes and coordinators, and very many worlds that they make up. So each part
is kept once, under a number (`Interned`), and `Drawers` takes a world apart into such numbers and puts it together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Any

import attrs

from ..coordinator import Coordinator
from ..worker import Worker, WorkerSettings
from .fingerprint import Interned, combine, fingerprint, of_bytes, spread
from .forget import no_questions, no_returns, of_coordinator, of_item, of_worker
from .frozen import frozen, thaw
from .ghost import Ghost
from .machines import Machines
from .outcomes import MARKER
from .process import Process
from .setup import Setup
from .spelling import of_coordinator as spelled_coordinator
from .spelling import of_worker as worker_to_spell
from .twin import twin
from .world import World

__all__ = ["LANES", "Drawers", "Lanes", "Person", "Row"]

Row = tuple[int, ...]
"""A state: the numbers of the parts of the world (`CLOCK` to `TRAINED`), then one number for each process."""
CLOCK, RUN, COORDINATOR, AVERAGER, SHARED, HISTORY, TRAINED = range(7)
WORLD = 7
"""Parts of the world in a row; the processes follow."""
Lanes = tuple[int, int, int, int, int]
Person = tuple[int, int, int, int, int, int, int, int]
"""The parts of a process (`SHELL` to `FAILED`): what its number in a row stands for."""
SHELL, BODY, MINE, UP, DOWN, BULK_UP, BULK_DOWN, FAILED = range(8)
LANES = {"up": UP, "down": DOWN, "bulk_up": BULK_UP, "bulk_down": BULK_DOWN, "failed": FAILED}
"""The last one is of messages that could not be sent to it, of which the coordinator has yet to hear (N-10)."""


def _without(cls: Any, *names: str) -> frozenset[str]:
    return frozenset(field.name for field in attrs.fields(cls) if field.name not in names)


IN_SHELL = ("rank", "incarnation", "alive", "linked", "link", "paused", "hung", "muted", "deafened", "tampered", "skew")
IN_MINE = ("base", "since", "unmerged", "copies", "held", "scratch")
IN_HISTORY = ("means", "realized")
NOT_SHELL = _without(Process, *IN_SHELL)
NOT_BODY = frozenset({"worker", "frames", "seen", *LANES, *IN_SHELL})
NOT_HISTORY = _without(Ghost, *IN_HISTORY)
NOT_SHARED = frozenset({"last", "seen", "acted", "trained", *IN_MINE, *IN_HISTORY})
SHELL_NAMES = tuple(field.name for field in attrs.fields(Process) if field.name in IN_SHELL)
IN_CALL = [field.name for field in attrs.fields(Process) if field.name not in NOT_BODY].index("inside")
"""Where the fields in a body say in which call of a collective a process is."""


class Drawers:
    """All parts that were met, and a world to put them together in. With `forget` off, nothing is left out of a state
    (see `forget.py`)."""

    def __init__(self, setup: Setup, *, forget: bool = True) -> None:
        self.world = World(setup)
        self.world.watch.asleep = True
        self.forget, self.in_place, config = forget, self.world.in_place, self.world.config
        self.no_returns, self.no_questions = no_returns(config), no_questions(config)
        self.manual = config.start != "auto"
        self.clocks, self.runs, self.coordinators, self.averagers = Interned(), Interned(), Interned(), Interned()
        self.shared, self.histories, self.trained = Interned(), Interned(), Interned()
        self.shells, self.bodies, self.mine = Interned(), Interned(), Interned()
        self.items, self.lanes = Interned(), Interned()
        self.of_world = (self.clocks, self.runs, self.coordinators, self.averagers, self.shared, self.histories,
                         self.trained)  # fmt: skip
        self.of_process = (self.shells, self.bodies, self.mine, *(self.lanes for _ in LANES))
        self.people = Interned()
        self.seen_by: list[Any] = []
        self.machines = Machines(self.world)
        self._settings: dict[tuple[int, int], WorkerSettings] = {}
        self.first = self.row()

    # --- names -------------------------------------------------------------------------------------------------------

    def fingerprint(self, row: Row, beside: Row = ()) -> int:
        """By the content of all parts, and the numbers beside them, so the same in every process and search."""
        prints = [drawer.fingerprints[part] for drawer, part in zip(self.of_world, row, strict=False)]
        of_people = self.people.fingerprints
        prints += [of_people[person] for person in row[WORLD:]]
        return spread((*beside, *prints))

    def count(self, row: Row) -> int:
        """Processes of a state, those that are gone included."""
        return len(row) - WORLD

    def person(self, row: Row, number: int) -> Person:
        """The parts of a process."""
        found: Person = self.people.things[row[WORLD + number]]
        return found

    def person_as(self, parts: Person) -> int:
        """The number of a process with these parts."""
        prints = [drawer.fingerprints[part] for drawer, part in zip(self.of_process, parts, strict=True)]
        return self.people.number_as(combine(prints), parts)

    def thing(self, row: Row, number: int, place: int) -> Any:
        """One part of a process, as what it stands for."""
        return self.of_process[place].things[self.people.things[row[WORLD + number]][place]]

    def run(self, row: Row) -> Any:
        """(alive, finish, knocks, seats) of the world."""
        return self.runs.things[row[RUN]]

    def ghost(self, row: Row) -> list[tuple[str, Any]]:
        """What the ghost knows of the whole run, by name."""
        names = [field.name for field in attrs.fields(Ghost) if field.name not in NOT_SHARED]
        return list(zip(names, self.shared.things[row[SHARED]], strict=True))

    def over(self, row: Row) -> bool:
        """The run has ended, well or not."""
        alive, finish, *_ = self.run(row)
        return finish is not None or not alive

    # --- taking apart ------------------------------------------------------------------------------------------------

    def row(self) -> Row:
        """The state of the world as it is."""
        world, ghost = self.world, self.world.ghost
        return (
            self.clocks.number((world.now, world.skew)),
            self._run(),
            self.coordinator_as(world.co, self.unsent()),
            self.averagers.number(world.averager.snapshot()),
            self._shared(),
            self.histories.number(frozen(ghost, NOT_HISTORY)),
            self._trained_as(ghost.trained),
            *map(self._of_process, world.processes),
        )

    def _run(self) -> int:
        world = self.world
        seats = tuple((rank, process.number) for rank, process in sorted(world.seats.items()))
        return self.runs.number((world.alive, world.finish, world.knocks, seats))

    def _shared(self) -> int:
        if self.forget:
            self.world.ghost.calm = True  # of one batch of effects, and said anew before each
        return self.shared.number(frozen(self.world.ghost, NOT_SHARED))

    def _trained_as(self, trained: dict[Any, int]) -> int:
        counts = sorted(trained.items())
        return self.trained.number(tuple((pick, 1 if self.forget else count) for pick, count in counts))

    def unsent(self) -> frozenset[tuple[int, int, int]]:
        """The tokens of messages of whose failure the coordinator has yet to hear, as far as the lanes are there."""
        return frozenset(item[0] for lane in self.world.failed.values() for item in lane if item is not MARKER)

    def coordinator_as(self, co: Coordinator, unsent: Collection[tuple[int, int, int]]) -> int:
        """The number of the state of a coordinator, in which nothing is left that need not be; `unsent` are the tokens
        of messages of whose failure it has yet to hear."""
        if self.forget:
            of_coordinator(co, unsent)
        number = self.coordinators.number_as(of_bytes(spelled_coordinator(co)), None)
        if number == len(self.seen_by):
            self.machines.keep(number, twin(co))
            self.seen_by.append(SimpleNamespace(peers={
                rank: SimpleNamespace(alive=p.alive, phase=p.phase, attached=p.attached, incarnation=p.incarnation,
                                      steps=p.steps)
                for rank, p in co.peers.items()
            }))  # fmt: skip
        return number

    def _of_process(self, process: Process) -> int:
        up, down, bulk_up, bulk_down, failed = (self._lane(map(self._item, self._entries(process, n))) for n in LANES)
        return self.person_as((*self._inside(process), up, down, bulk_up, bulk_down, failed))

    def _inside(self, process: Process) -> tuple[int, int, int]:
        if self.forget and not process.alive:
            return self._of_the_gone(process)
        body = self._body(process)
        return self.shells.number(frozen(process, NOT_SHELL)), body, self._of_ghost(process.number)

    def _body(self, process: Process) -> int:
        worker = process.worker
        if self.forget:
            of_worker(worker, self.no_returns, self.no_questions)
        fields = frozen(process, NOT_BODY)
        print_ = fingerprint((fields, worker_to_spell(worker)))
        found = self.bodies.known(print_)
        return self.bodies.number_as(print_, (fields, twin(worker))) if found is None else found

    def _of_the_gone(self, process: Process) -> tuple[int, int, int]:
        """Nothing is asked of it any more but the copy that it gave."""
        copies = self.world.ghost.copies
        known = (("copies", copies[process.number]),) if process.number in copies else ()
        settings = self._settings_of(process.rank, process.incarnation)
        fresh = Process(process.number, process.rank, process.incarnation, Worker.create(settings, 0.0), 0.0)
        body = self._body(fresh)
        return self.shells.number(frozen(process, NOT_SHELL)), body, self.mine.number((*known, ("unmerged", ()), ()))

    def _of_ghost(self, number: int) -> int:
        ghost = self.world.ghost
        known = [(name, getattr(ghost, name)[number]) for name in IN_MINE if number in getattr(ghost, name)]
        return self.mine.number((*known, tuple(sorted(act[1:] for act in ghost.acted if act[0] == number))))

    def _item(self, item: Any) -> int:
        return self.items.number(of_item(item, self.no_returns, self.no_questions) if self.forget else item)

    def _entries(self, process: Process, lane: str) -> Iterable[Any]:
        """What is in a lane."""
        found: Iterable[Any] = (self.world.failed.get(process.number, ()) if lane == "failed"
                                else getattr(process, lane))  # fmt: skip
        return found

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
            self._put_mine(number, self.person(row, number)[MINE])
            self._put_lanes(process, row)
        return self.world

    def _put_surface(self, row: Row) -> None:
        """All that says what can happen, but for the machines and the ghost."""
        self._put_frame(row)
        self.world.averager.load(self.averagers.things[row[AVERAGER]])

    def _put_frame(self, row: Row) -> None:
        """Time, and who is there."""
        world = self.world
        world.now, world.skew = self.clocks.things[row[CLOCK]]
        world.alive, world.finish, world.knocks, seats = self.run(row)
        self._fit(row)
        world.seats = {rank: world.processes[number] for rank, number in seats}

    def _put_world(self, row: Row) -> None:
        ghost = self.world.ghost
        self._put_surface(row)
        self.world.co = self.restored(row[COORDINATOR])
        thaw(ghost, self.shared.things[row[SHARED]], NOT_SHARED)
        ghost.trained = dict(self.trained.things[row[TRAINED]])
        self._put_history(row[HISTORY])

    def restored(self, coordinator: int) -> Coordinator:
        """A coordinator in that state."""
        return twin(self.machines.of(coordinator))

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
        world.failed = {}
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
        process.worker, process.seen = twin(worker), None

    def _put_lanes(self, process: Process, row: Row) -> None:
        for name, place in LANES.items():
            self._fill(process, name, (self.items.things[item] for item in self.thing(row, process.number, place)))

    def _fill(self, process: Process, lane: str, entries: Iterable[Any]) -> None:
        if lane == "failed":
            self.world.failed[process.number] = deque(entries)
        else:
            setattr(process, lane, deque(entries))

    def _put_mine(self, number: int, mine: int) -> None:
        *known, acted = self.mine.things[mine]
        for name, noted in known:
            getattr(self.world.ghost, name)[number] = noted
        self.world.ghost.acted.update((number, *act) for act in acted)

    def _settings_of(self, rank: int, incarnation: int) -> WorkerSettings:
        if (rank, incarnation) not in self._settings:
            self._settings[rank, incarnation] = self.world.settings_of(rank, incarnation, 1)
        return self._settings[rank, incarnation]
