"""What can be said about a table before any run: is it complete, and do both engines read it the same way?

Neither question is asked at run time. h11 answers the first with a KeyError on the cell that somebody forgot; here
every phase must have decided every event, if only by a row that ignores it, and the proof is made from the rows alone:

- Guards are treated as independent of each other, so a cell is a decision tree over the guards it names. A path on
  which no row is taken is a hole, a row on no path is dead: both are reported, the hole with the answers that lead
  there. Two guards which in truth exclude each other are not known to do so; write the second as "!first", or let the
  last row of the cell have no guard.
- `transitions` accepts dead rows and targets that do not exist, and reads a guard that returns 1 as true but one that
  returns 2 as false. So guards must be annotated to return bool, and `differences` looks at what they really return.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

from .engine import Engine, Kind, Row, Table, build_reference, by_cell, compile_table, destination, expand, literal
from .errors import LocalProtocolError

__all__ = ["MAXIMUM_GUARDS_PER_CELL", "differences", "lint"]

MAXIMUM_GUARDS_PER_CELL = 12
"""The decision tree of a cell has at most two to this power paths. A cell that asks more questions is two phases."""

RULE = re.compile(r"[A-Z]{1,2}-\d+")
"""The id of a rule in protocol.md."""


def lint(table: Table, machine_class: type) -> list[str]:
    """Everything that is wrong with the table, one line each, in a stable order; empty if nothing is.

    Checked are: the names of phases, events, guards and effects; that every phase decides every event; that no row is
    dead or written twice; that every phase can be reached and none leads out of a final one; and what a row owes its
    reader: the ids of its rules, a note if it accepts without an effect, neither an effect nor a change of phase unless
    it accepts or ends the session (N-7). While a phase is misnamed, cells and reachability are left alone.
    """
    rows = expand(table)
    complaints = [*_phases(table, rows)]
    phases_known = not complaints
    complaints += [*_events(table, rows), *_methods(table, machine_class), *_manners(table, rows)]
    if phases_known:
        complaints += [*_cells(table, rows), *_ways(table, rows)]
    # A row that stands for several phases is one complaint, not several.
    return [f"{table.name}: {complaint}" for complaint in dict.fromkeys(complaints)]


def _phases(table: Table, rows: Sequence[Row]) -> Iterator[str]:
    for phase in (table.initial, *table.final):
        if not isinstance(phase, table.phases):
            yield f"initial or final phase {phase!r} is no phase of {table.phases.__name__}"
    for row in rows:
        for end in (row.source, destination(row)):
            if not isinstance(end, table.phases):
                yield f"{_place(row)}: {end!r} is no phase of {table.phases.__name__}"


def _events(table: Table, rows: Sequence[Row]) -> Iterator[str]:
    for event in table.events:
        if table.events.count(event) > 1:
            yield f"event {event} is listed twice"
    for row in rows:
        if row.event not in table.events:
            yield f"{_place(row)}: unknown event"


def _methods(table: Table, machine_class: type) -> Iterator[str]:
    owner = machine_class.__name__
    for row in table.rows:
        guards = [literal(guard)[0] for guard in row.guards]
        for name in (*guards, *row.effects):
            method = getattr(machine_class, name, None)
            if not callable(method):
                yield f"{owner} has no method {name}"
                continue
            takes_event, returns = _signature(method)
            if not takes_event:
                yield f"method {owner}.{name} does not take an event alone"
            if name in guards and returns not in (bool, "bool"):
                yield f"guard {owner}.{name} is not annotated to return bool"


@functools.cache
def _signature(method: Callable[..., Any]) -> tuple[bool, object]:
    """Whether a method takes an event alone, and what it is annotated to return."""
    signature = inspect.signature(method)
    try:
        signature.bind("machine", "event")
    except TypeError:
        return False, signature.return_annotation
    return True, signature.return_annotation


def _manners(table: Table, rows: Sequence[Row]) -> Iterator[str]:
    for index, row in enumerate(table.rows):
        if row.source == ():
            yield f"row {index} ({row.event}) has no source"
    for row in rows:
        if not all(RULE.fullmatch(rule) for rule in row.rule.split(" ")):
            yield f"{_place(row)}: {row.rule!r} is not a list of rule ids such as C-13"
        if row.kind is Kind.ACCEPT and not row.effects and not row.note:
            yield f"{_place(row)} accepts without an effect and has no note that says why"
        if row.kind not in (Kind.ACCEPT, Kind.VIOLATION) and destination(row) != row.source:
            yield f"{_place(row)} is {row.kind.name} and changes the phase"
        if row.kind not in (Kind.ACCEPT, Kind.VIOLATION) and row.effects:
            yield f"{_place(row)} is {row.kind.name} and does {', '.join(row.effects)}"


def _cells(table: Table, rows: Sequence[Row]) -> Iterator[str]:
    """Totality, dead rows and rows written twice."""
    found = by_cell(rows)
    for phase in table.phases:
        for event in dict.fromkeys(table.events):
            where = f"{phase.name} x {event}"
            cell = found.get((phase, event), ())
            questions = [frozenset(row.guards) for row in cell]
            for index, row in enumerate(cell):
                if questions[index] in questions[:index]:
                    yield f"{_place(row)} repeats a row of {where}"
            asked = len({literal(guard)[0] for row in cell for guard in row.guards})
            if asked > MAXIMUM_GUARDS_PER_CELL:
                yield f"{where} asks {asked} guards, more than {MAXIMUM_GUARDS_PER_CELL}"
                continue
            yield from _tree(where, cell)


def _tree(where: str, cell: tuple[Row, ...]) -> Iterator[str]:
    alive, hole = _decided(tuple(row.guards for row in cell))
    for index, row in enumerate(cell):
        if index not in alive:
            yield f"{_place(row)} is dead in {where}: the rows above it take every case"
    if hole is not None:
        case = ", ".join(name if answer else f"!{name}" for name, answer in hole)
        yield f"no row decides {where}" + (f" when {case}" if case else "")


Asked = tuple[tuple[str, ...], ...]
"""The guards of each row of a cell."""


@functools.cache
def _decided(asked: Asked) -> tuple[frozenset[int], tuple[tuple[str, bool], ...] | None]:
    """Which rows of a cell can be taken, by their place in it, and the first case in which none is; from what the rows
    ask alone, so that a table in which one row was changed is not asked about all its cells again."""
    alive: set[int] = set()
    hole: tuple[tuple[str, bool], ...] | None = None
    for place, answers in _paths(asked, {}):
        if place is not None:
            alive.add(place)
        elif hole is None:
            hole = tuple(answers.items())
    return frozenset(alive), hole


def _paths(asked: Asked, answers: dict[str, bool]) -> Iterator[tuple[int | None, dict[str, bool]]]:
    """Every way the guards of a cell can answer, with the place of the row that is taken then, or None."""
    for place, guards in enumerate(asked):
        for name, wanted in map(literal, guards):
            if name not in answers:
                for answer in (True, False):
                    yield from _paths(asked, {**answers, name: answer})
                return
            if answers[name] is not wanted:
                break
        else:
            yield place, answers
            return
    yield None, answers


def _ways(table: Table, rows: Sequence[Row]) -> Iterator[str]:
    """Phases that cannot be reached, and ways out of final ones."""
    reached = [table.initial]
    for phase in reached:  # grows while it is read, by each phase once
        for row in rows:
            if row.source == phase and destination(row) not in reached:
                reached.append(destination(row))
    for phase in table.phases:
        if phase not in reached:
            yield f"phase {phase.name} cannot be reached from {table.initial.name}"
    for row in rows:
        if row.source in table.final and destination(row) != row.source:
            yield f"{_place(row)} leads out of a final phase"


def _place(row: Row) -> str:
    return f"row {row.origin} ({row.event})"


# --- are they the same? ----------------------------------------------------------------------------------------


def differences(
    table: Table,
    machine_factory: Callable[[], Any],
    events: Mapping[str, Sequence[object]],
    *,
    phase_attribute: str = "phase",
    observe: Callable[[Any], object] | None = None,
) -> list[str]:
    """Fire every event in every phase at both engines and say where they can be told apart; empty if nowhere.

    `machine_factory` makes equal machines; each is put into the phase and gets one event. `events` gives, for every
    event name of the table, the values to fire, at least one. Compared are the row, the phase, the exception (class
    and text), all calls of guards and effects in order, and `observe(machine)`, such as its snapshot. A guard that
    does not return a bool is reported too. Raises LocalProtocolError if `events` leaves out an event of the table.
    """
    missing = [name for name in table.events if not events.get(name)]
    if missing:
        raise LocalProtocolError(f"table {table.name}: no values to fire for {', '.join(missing)}")
    calls: list[str] = []
    recording, complaints = _recording_class(table, type(machine_factory()), calls)
    compiled = compile_table(table, recording, phase_attribute)
    reference = build_reference(table, recording, phase_attribute)

    def outcome(engine: Engine, phase: IntEnum, name: str, event: object) -> dict[str, object]:
        machine = machine_factory()
        machine.__class__ = recording
        setattr(machine, phase_attribute, phase)
        calls.clear()
        engine.taken = {}
        exception = None
        try:
            engine.fire(machine, name, event)
        except Exception as error:
            exception = f"{type(error).__name__}: {error}"
        seen: dict[str, object] = {"row": [index for _, index in engine.taken], "exception": exception}
        seen |= {"phase": getattr(machine, phase_attribute), "calls": tuple(calls)}
        seen["observed"] = None if observe is None else observe(machine)
        return seen

    found = []
    for phase in table.phases:
        for name in table.events:
            for event in events[name]:
                ours, theirs = (outcome(engine, phase, name, event) for engine in (compiled, reference))
                where = f"{table.name}: {phase.name} x {name} with {event!r}"
                found += [
                    f"{where}: {what} is {ours[what]} compiled, {theirs[what]} by transitions"
                    for what in ours
                    if ours[what] != theirs[what]
                ]
    return found + list(complaints)


def _recording_class(table: Table, machine_class: type, calls: list[str]) -> tuple[type, dict[str, None]]:
    """A subclass whose guards and effects note their calls in `calls`, and its complaints about guards, in order.

    It adds no slots, so an existing machine can be turned into one.
    """
    complaints: dict[str, None] = {}
    guards = {literal(guard)[0] for row in table.rows for guard in row.guards}

    def recorder(name: str) -> Callable[[Any, object], object]:
        def record(self: Any, event: object) -> object:
            calls.append(name)
            result: object = getattr(super(recording, self), name)(event)
            if name in guards and not isinstance(result, bool):
                complaints[f"{table.name}: guard {name} returned {result!r}, not a bool"] = None
            return result

        return record

    named = [name for row in table.rows for name in (*(literal(guard)[0] for guard in row.guards), *row.effects)]
    methods = {name: recorder(name) for name in named if callable(getattr(machine_class, name, None))}
    recording = type(f"Recording{machine_class.__name__}", (machine_class,), {"__slots__": (), **methods})
    return recording, complaints
