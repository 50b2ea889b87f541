"""Tables of transitions, and the two engines that run them.

What a machine does on an event is data: a `Table` of `Row`s. A row says: in this phase, on this event, if these guards
hold, perform these effects and go to that phase, because of that rule. Guards and effects are the *names* of methods
of the machine, so that a table imports no machine, can be read from top to bottom, drawn (diagram.py), proven
complete (lint.py), counted by the tests, and altered by a mutant runner.

The vocabulary
    A *cell* is all rows of one phase and one event, in the order of the table. An event name is the class name of an
    event or message ("SyncAck"), or the name of an internal step ("Judge"). A row with several sources, or with
    `ANY`, stands for one row per phase (`expand`); it keeps its place in the order, so a specific row goes above it.

One `fire`, exactly
    1. The rows of the cell are tried in order. The guards of a row are called from left to right, the first one that
       does not hold ends the row; "!late" holds where `late` does not. Guards must be pure and return real bools:
       the reference compares with True, the compiled engine asks for truth, and `lint` and `differences` (lint.py) see
       to it that these are the same question.
    2. The first row whose guards all hold is taken. Its effects are called in order.
    3. Then the phase becomes the target, even if an effect raised; the exception goes on to the caller and the effects
       after it are not called (C-13). So effects see the old phase, and nobody can observe a machine that claims to
       be elsewhere while its effects are half done.
    4. If a guard raises, no row was taken and the phase stays.
    5. A row with target `SAME` never writes the phase. Only from such a row may an effect fire at the same machine
       again: anywhere else the target of the outer row overwrites what the inner one decided.

Two engines, one meaning
    `build_reference` hands the rows to `transitions.Machine`, whose semantics are documented by others and whose
    callbacks can be extended while it runs; it needs microseconds per event. `compile_table` writes one straight
    function per cell and needs a fraction of one. `differences` (lint.py) enumerates phases and events and shows that
    nobody can tell them apart; it is run over the real tables and may be run over anybody's.
"""

from __future__ import annotations

import functools
import keyword
import linecache
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

import attrs

from .errors import InvariantError
from .values import state, value

if TYPE_CHECKING:
    from transitions import EventData, Machine

__all__ = [
    "ANY",
    "SAME",
    "CompiledEngine",
    "Engine",
    "Kind",
    "ReferenceEngine",
    "Row",
    "Table",
    "Wildcard",
    "build_reference",
    "by_cell", "cells",
    "compile_table",
    "destination",
    "expand",
    "literal",
    "untaken",
]


class Kind(IntEnum):
    """What a row means for the sender of the event."""

    ACCEPT = 0
    """The event is what the machine waited for."""
    IGNORE = 1
    """Correct but without consequence here: a duplicate, a spurious tick."""
    FENCED = 2
    """Evidence of another run, incarnation, cycle or attempt (N-6): counted, changes no gate."""
    REFUSED = 3
    """Understood and turned down; the session stays (N-7)."""
    VIOLATION = 4
    """What no correct peer sends: that one session ends, with a notice (N-7)."""


class Wildcard(Enum):
    """What a row may say in place of a phase."""

    ANY = "any phase"
    SAME = "same phase"


ANY: Final = Wildcard.ANY
"""As a source: every phase of the table, in the order of their definition."""
SAME: Final = Wildcard.SAME
"""As a target: the phase is not touched."""


@value(kw_only=False)
class Row:
    """One line of a table: in `source`, on `event`, if all `guards` hold, perform `effects`, then be in `target`.

    `rule` names the rules of protocol.md that the row comes from, separated by spaces; `note` says in words what the
    rule ids do not. `origin` is the index in `Table.rows` of the row that an expanded row stems from; None in a row
    that was written by hand. It takes no part in comparison.
    """

    source: IntEnum | tuple[IntEnum, ...] | Literal[Wildcard.ANY]
    event: str
    target: IntEnum | Literal[Wildcard.SAME]
    guards: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    kind: Kind = Kind.ACCEPT
    rule: str = ""
    note: str = ""
    origin: int | None = attrs.field(default=None, eq=False, repr=False)


@value
class Table:
    """All rows of one machine. `events` are all the names it must decide in every phase; from a phase in `final` no
    row leads away."""

    name: str
    phases: type[IntEnum]
    initial: IntEnum
    events: tuple[str, ...]
    rows: tuple[Row, ...]
    final: tuple[IntEnum, ...] = ()


Taken = dict[tuple[str, int], int]
"""How often each row was taken: (table name, index in `Table.rows`) to count. Rows themselves would be no good as keys,
because phases of two tables are equal where their numbers are."""


class Engine(Protocol):
    """What runs a table; an engine is shared by all machines of a class and holds none of their state.

    `taken` is None, or a record that every `fire` which returns counts in (a row whose effect raised is not counted).
    """

    taken: Taken | None

    def fire(self, machine: Any, event_name: str, event: object, /) -> Row:
        """Decide the event and carry the decision out, as described at the top of this module.

        Returns the row of the table that was taken, as it was written, not its expansion. Raises InvariantError if
        the cell has no row, or none whose guards hold (lint rules both out); whatever guards and effects raise
        passes through.
        """


def literal(guard: str) -> tuple[str, bool]:
    """The method a guard calls and the answer it wants: `"!late"` is `("late", False)`."""
    return (guard[1:], False) if guard.startswith("!") else (guard, True)


def expand(table: Table) -> tuple[Row, ...]:
    """The rows of the table in their order, each with a single phase as its source and with `origin` set.

    Checks nothing: lint reports what is wrong with a table, in words.
    """
    expanded: list[Row] = []
    for index, row in enumerate(table.rows):
        if isinstance(row.source, Wildcard):
            sources = tuple(table.phases)
        else:
            sources = row.source if isinstance(row.source, tuple) else (row.source,)
        expanded.extend(attrs.evolve(row, source=source, origin=index) for source in sources)
    return tuple(expanded)


def cells(table: Table) -> dict[tuple[IntEnum, str], tuple[Row, ...]]:
    """The expanded rows of the table by (phase, event); cells in the order in which their first row appears."""
    return by_cell(expand(table))


def by_cell(rows: Iterable[Row]) -> dict[tuple[IntEnum, str], tuple[Row, ...]]:
    """Rows that are expanded already, as `cells` has them."""
    found: dict[tuple[Any, str], tuple[Row, ...]] = {}
    for row in rows:
        key = (row.source, row.event)
        found[key] = (*found.get(key, ()), row)
    return found


def destination(row: Row) -> IntEnum:
    """The phase after an expanded row was taken."""
    return cast(IntEnum, row.source) if row.target is SAME else row.target


def untaken(table: Table, taken: Taken) -> tuple[Row, ...]:
    """The rows of the table that no `fire` counted in `taken` has taken yet, in the order of the table."""
    return tuple(row for index, row in enumerate(table.rows) if not taken.get((table.name, index)))


# --- what both engines share -----------------------------------------------------------------------------------


def undecided(table: Table, phase: object, event_name: str) -> InvariantError:
    """The error of a cell without a row, or without one whose guards hold."""
    name = phase.name if isinstance(phase, table.phases) else repr(phase)
    return InvariantError(f"table {table.name}: no row decides event {event_name} in phase {name}")


def _count(table: Table, taken: Taken, index: int) -> None:
    key = (table.name, index)
    taken[key] = taken.get(key, 0) + 1


def _resolve(table: Table, rows: Sequence[Row], machine_class: type, phase_attribute: str) -> None:
    """Check that every name in the table means something; raise InvariantError with the row and the name if not."""

    def check(condition: bool, where: str, what: str) -> None:
        if not condition:
            raise InvariantError(f"table {table.name}{where}: {what}")

    owner = machine_class.__name__
    check(_is_name(phase_attribute), "", f"{phase_attribute!r} is no name of an attribute")
    check(hasattr(machine_class, phase_attribute), "", f"{owner} has no attribute {phase_attribute}")
    for phase in table.phases:
        check(phase.name.isidentifier(), "", f"phase {phase.name!r} is no identifier")
    for row in rows:
        where = f", row {row.origin} ({row.event})"
        check(row.event in table.events and _is_name(row.event), where, f"unknown event {row.event!r}")
        for end in (row.source, destination(row)):
            check(isinstance(end, table.phases), where, f"{end!r} is no phase of {table.phases.__name__}")
        for method in (*(literal(guard)[0] for guard in row.guards), *row.effects):
            known = _is_name(method) and callable(getattr(machine_class, method, None))
            check(known, where, f"{owner} has no method {method!r}")


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


# --- the compiled engine ---------------------------------------------------------------------------------------


@state
class CompiledEngine:
    """Runs a table through one generated function per cell, found by phase and event name in two dictionary
    look-ups. Made by `compile_table`, which generates `fire` too (see `Engine.fire`)."""

    table: Table
    _sources: dict[IntEnum, dict[str, str]]
    taken: Taken | None = None

    if TYPE_CHECKING:

        def fire(self, machine: Any, event_name: str, event: object, /) -> Row: ...

    def source(self, phase: IntEnum, event_name: str) -> str:
        """The Python text of the function that decides a cell; InvariantError if the table does not have the cell."""
        try:
            return self._sources[phase][event_name]
        except KeyError:
            raise undecided(self.table, phase, event_name) from None


FIRE = """\
class Engine(CompiledEngine):
    __slots__ = ()

    def fire(self, machine, event_name, event, /):
        phase = machine.{phase_attribute}
        try:
            cell = cells[phase][event_name]
        except KeyError:
            raise undecided(phase, event_name) from None
        index = cell(machine, event)
        if self.taken is not None:
            count(self.taken, index)
        return rows[index]
"""
"""Written down with the name of the attribute in it: every event of every machine asks for the phase."""


def compile_table(table: Table, machine_class: type, phase_attribute: str) -> CompiledEngine:
    """Generate the functions of every cell of the table.

    `machine_class` has the guards, `guard(event) -> bool`, the effects, `effect(event) -> None`, and, visible on the
    class as slots are, the attribute that holds the phase. Methods are looked up on the machine when they are called,
    so a subclass may override them. Raises InvariantError with row and name for a phase, event or method that does
    not exist.
    """
    expanded = expand(table)
    _resolve(table, expanded, machine_class, phase_attribute)
    sources: dict[IntEnum, dict[str, str]] = {}
    functions: dict[IntEnum, dict[str, str]] = {}
    lines: list[str] = []
    for number, ((phase, event), rows) in enumerate(by_cell(expanded).items()):
        # The number keeps apart what names alone may not: phase A_B on event C, and phase A on event B_C.
        name = f"cell_{number}_{phase.name}_{event}"
        cell = [f"{line}\n" for line in _cell_lines(name, rows, phase_attribute)]
        functions.setdefault(phase, {})[event] = name
        sources.setdefault(phase, {})[event] = "".join(cell)
        lines += [*cell, "\n", "\n"]
    lines += [f"{line}\n" for line in FIRE.format(phase_attribute=phase_attribute).splitlines()]
    names: dict[str, Any] = {f"phase_{phase.name}": phase for phase in table.phases}
    names |= {"CompiledEngine": CompiledEngine, "rows": table.rows}
    names |= {"undecided": functools.partial(undecided, table), "count": functools.partial(_count, table)}
    # exec sees only names that _resolve found to be identifiers. Known to linecache, the text shows in tracebacks and
    # debuggers; an entry without a modification time is never looked for on disk.
    filename = f"<paceline table {table.name} of {machine_class.__module__}.{machine_class.__qualname__}>"
    exec(compile("".join(lines), filename, "exec"), names)
    linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)
    names["cells"] = {phase: {event: names[name] for event, name in row.items()} for phase, row in functions.items()}
    engine: CompiledEngine = names["Engine"](table, sources)
    return engine


def _cell_lines(name: str, rows: tuple[Row, ...], phase_attribute: str) -> Iterator[str]:
    """The function of one cell. It returns the index of the row, which is the same for all rows that one row of the
    table was expanded to."""
    yield f"def {name}(machine, event):"
    for row in rows:
        indent = "    "
        if row.guards:
            answers = [f"{'' if yes else 'not '}machine.{guard}(event)" for guard, yes in map(literal, row.guards)]
            yield f"    if {' and '.join(answers)}:"
            indent = "        "
        effects = [f"machine.{effect}(event)" for effect in row.effects]
        flip = [] if row.target is SAME else [f"machine.{phase_attribute} = phase_{destination(row).name}"]
        if effects and flip:
            yield f"{indent}try:"
            yield from (f"{indent}    {line}" for line in effects)
            yield f"{indent}finally:"
            yield f"{indent}    {flip[0]}"
        else:
            yield from (f"{indent}{line}" for line in effects + flip)
        yield f"{indent}return {row.origin}  # {row.rule!r}"
        if not row.guards:
            return
    yield f"    raise undecided(phase_{cast(IntEnum, rows[0].source).name}, {rows[0].event!r})"


# --- the reference engine --------------------------------------------------------------------------------------


class Subject:
    """The model that `transitions` drives: stands for one machine during one `fire`.

    Machines are slotted, and `transitions` attaches its triggers to the instance, which a slotted one does not allow.
    A subject per fire also makes nested fires safe, and a copied machine cannot stay tied to the original.
    """

    def __init__(self, machine: Any, phase_attribute: str) -> None:
        self.machine = machine
        self.taken: Row | None = None
        self._phase_attribute = phase_attribute

    @property
    def phase(self) -> Any:
        """The phase of the machine."""
        return getattr(self.machine, self._phase_attribute)

    @phase.setter
    def phase(self, phase: IntEnum) -> None:
        setattr(self.machine, self._phase_attribute, phase)


@state
class ReferenceEngine:
    """Runs a table through `transitions.Machine`, some thirty times slower. Made by `build_reference`.

    `machine` is open: callbacks added to it (`engine.machine.after_state_change.append(...)`) get an `EventData` whose
    `model` is a `Subject`. `table` and `taken` are as in `CompiledEngine`.
    """

    table: Table
    machine: Machine
    _cells: dict[tuple[IntEnum, str], tuple[Row, ...]]
    _phase_attribute: str
    taken: Taken | None = None

    def fire(self, machine: Any, event_name: str, event: object, /) -> Row:
        """See `Engine.fire`."""
        subject = Subject(machine, self._phase_attribute)
        phase = subject.phase
        if (phase, event_name) not in self._cells:
            raise undecided(self.table, phase, event_name)
        self.machine.events[event_name].trigger(subject, event)
        if subject.taken is None:
            raise undecided(self.table, phase, event_name)
        index = cast(int, subject.taken.origin)
        if self.taken is not None:
            _count(self.table, self.taken, index)
        return self.table.rows[index]


def build_reference(table: Table, machine_class: type, phase_attribute: str) -> ReferenceEngine:
    """Hand the rows of the table to `transitions.Machine`. Arguments and errors are those of `compile_table`.

    The effects of a row are `before` callbacks, the only ones that run between the guards and the change of state.
    `SAME` is an internal transition, which changes none.
    """
    # Importing transitions costs some 20 ms that a run on the compiled engine need not pay.
    from transitions import Machine

    expanded = expand(table)
    _resolve(table, expanded, machine_class, phase_attribute)
    machine = Machine(
        model=None,
        states=[{"name": phase, "final": phase in table.final} for phase in table.phases],
        initial=table.initial,
        auto_transitions=False,
        send_event=True,
        model_attribute="phase",
        on_exception=[_flip_and_raise],
    )
    for row in expanded:
        machine.add_transition(
            row.event,
            cast(IntEnum, row.source),
            None if row.target is SAME else row.target,
            # Not `unless` for the negated ones: transitions asks those last, and the order of guards is ours.
            conditions=[_condition(guard) for guard in row.guards],
            before=[_begin(row), *(_effect(name) for name in row.effects)],
        )
    return ReferenceEngine(table, machine, by_cell(expanded), phase_attribute)


def _begin(row: Row) -> Callable[[EventData], None]:
    def begin(data: EventData) -> None:
        _subject(data).taken = row

    return begin


def _condition(guard: str) -> Callable[[EventData], bool]:
    name, wanted = literal(guard)

    def condition(data: EventData) -> bool:
        answer: bool = getattr(_subject(data).machine, name)(*data.args)
        return answer if wanted else not answer

    condition.__name__ = guard  # what transitions writes into its log and its graphs
    return condition


def _effect(name: str) -> Callable[[EventData], None]:
    def effect(data: EventData) -> None:
        getattr(_subject(data).machine, name)(*data.args)

    effect.__name__ = name
    return effect


def _flip_and_raise(data: EventData) -> None:
    """C-13 for `transitions`, which keeps the old state when a `before` callback raises. A row has begun only when all
    its guards held, so what a guard raises flips nothing."""
    subject = _subject(data)
    if subject.taken is not None and subject.taken.target is not SAME:
        subject.phase = subject.taken.target
    raise cast(BaseException, data.error)


def _subject(data: EventData) -> Subject:
    return cast(Subject, data.model)
