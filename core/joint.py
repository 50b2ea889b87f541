"""Joint rules: what the state of one machine means for another, as data, and the two engines that run them.

The machines of a coordinator are flat: `RUN`, `CYCLE` and a `PEER` for each incarnation, none of which holds another.
What couples them is a `JointTable` of `Coupling`s (table_joint.py). A coupling says: at this step of the pass, or when
this has happened, in these phases of the machines, if these guards hold, fire that event at that machine and do this,
because of that rule. h11 has such a table too, for the joint states of client and server, and applies it until nothing
changes; here it is applied so after each event that may concern others (C-3, C-4).

The vocabulary
    `when` is a number from 4 to 12, the step of C-3 in which a row of the *round* has its turn; `AGAIN`, for a row that
    asks for another round; 13, for what is done once at the end; or the name of an *occurrence*: something that one
    machine has come to and others must hear of at once, in the middle of whatever it is that brought it about. A row
    that names no phase of a machine holds in all of them.

    Guards and effects are names, so the table imports no machine: `judge_x` of the coordinator, `desk.advise` of one of
    its parts, `gates.count_gate` of a module beside it, which is given the coordinator and, of an occurrence, as much
    of the peer and the event as it takes. A guard may be a plain attribute; "!x" holds where `x` does not.

One pass, exactly
    1. The rows of the round have their turn in the order of the table, each once. Phases and guards are asked when the
       turn comes, not before: an earlier row may have changed them. A row that holds fires, then does what it does, in
       the order written. With `changed`, a row holds only if a value is another one than when that step began.
    2. Then the rows of `AGAIN` are asked. The first one that holds begins the next round; if none does, the machines
       are at their fixed point. `PASS_LIMIT` rounds are a bug.
    3. The rows of step 13.

An occurrence has the rows of its name, in their order, each asked when its turn comes; what fired last is the answer.

Two engines, one meaning, as in engine.py: `compile_joint` writes one straight function for a round and one for each
occurrence, so a pass costs what it would cost written by hand; `walk_joint` reads the rows one by one.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from types import FunctionType, ModuleType
from typing import Any, Final

from .engine import Row, Taken, Wildcard, literal
from .errors import InvariantError
from .values import state, value

__all__ = [
    "AGAIN", "FIRST_STEP", "LAST_STEP", "PASS_LIMIT", "Coupling", "JointEngine", "JointTable", "compile_joint",
    "expression", "walk_joint",
]  # fmt: skip

FIRST_STEP, LAST_STEP = 4, 13
"""Steps of C-3 that the table has: those before take in the event itself, the last one follows the last round."""
AGAIN: Final = "again"
"""In place of a step: this row asks for another round."""
PASS_LIMIT = 16384
"""Rounds of one pass. Each but the last buries an incarnation, finishes or arms a cycle, or ends the run: more rounds
than that are a bug of ours."""
MACHINES = ("run", "cycle", "peer")

Phases = tuple[IntEnum, ...] | Wildcard
Parts = Mapping[str, type | ModuleType]
"""By the first half of a name what it is of: the class of a part of the coordinator, or a module; "" is the
coordinator's own class."""


@value(kw_only=False)
class Coupling:
    """One line of the joint table, as described at the top. `source` is whose doing it is, for people: a machine, or
    "pass". `fires` is a machine and an event, such as "cycle.Judge"; what is fired at a peer is fired at the one the
    occurrence is about. `changed` is a step and the name of a value."""

    when: int | str
    source: str = "pass"
    run: Phases = Wildcard.ANY
    cycle: Phases = Wildcard.ANY
    peer: Phases = Wildcard.ANY
    guards: tuple[str, ...] = ()
    changed: tuple[int, str] | None = None
    fires: str = ""
    does: tuple[str, ...] = ()
    rule: str = ""
    note: str = ""

    @property
    def phases(self) -> Iterator[tuple[str, tuple[IntEnum, ...]]]:
        """The machines whose phase it asks for, each with the phases that it holds in."""
        for machine in MACHINES:
            asked: Phases = getattr(self, machine)
            if not isinstance(asked, Wildcard):
                yield machine, asked


@value
class JointTable:
    """All joint rules of a coordinator, in their order."""

    name: str
    rows: tuple[Coupling, ...]

    def at(self, *when: int | str) -> tuple[tuple[int, Coupling], ...]:
        """The rows that have their turn then, with their places in the table."""
        return tuple((index, row) for index, row in enumerate(self.rows) if row.when in when)

    @property
    def round(self) -> tuple[tuple[int, Coupling], ...]:
        """The rows of a round."""
        return self.at(*range(FIRST_STEP, LAST_STEP))

    @property
    def occurrences(self) -> tuple[str, ...]:
        """What may happen in between, in the order of the table."""
        return tuple(dict.fromkeys(row.when for row in self.rows if isinstance(row.when, str) and row.when != AGAIN))


@value
class Functions:
    """What runs a table: one round, which says whether there is another; step 13; and for each occurrence what decides
    it, given the coordinator, the peer it is about or None, and the event. That returns the row by which the last event
    that was fired was taken, None if none was fired."""

    another_round: Callable[[Any], bool]
    at_rest: Callable[[Any], None]
    on: Mapping[str, Callable[[Any, Any, object], Row | None]]


class JointEngine:
    """What runs a joint table; shared by all coordinators, it holds none of their state.

    `taken` is as in `Engine`: a row is counted when all it asks for held and what it does is done.
    """

    def __init__(self, table: JointTable, plain: Functions, counting: Functions) -> None:
        self.table = table
        self._run = self._plain = plain
        self._counting = counting
        self._taken: Taken | None = None

    @property
    def taken(self) -> Taken | None:
        """The record that rows are counted in; nothing counts while there is none."""
        return self._taken

    @taken.setter
    def taken(self, taken: Taken | None) -> None:
        self._taken, self._run = taken, self._plain if taken is None else self._counting

    def settle(self, co: Any) -> None:
        """One pass: rounds until the fixed point, then step 13 (C-3)."""
        another_round = self._run.another_round
        for _ in range(PASS_LIMIT):
            co.urgent = False
            if not another_round(co):
                break
        else:
            raise InvariantError(f"a pass did not come to rest in {PASS_LIMIT} rounds")
        self._run.at_rest(co)

    def fire(self, co: Any, occurrence: str, peer: Any, event: object) -> Row | None:
        """Something has happened: see `Functions`. Raises InvariantError if the table has no row for it."""
        decide = self._run.on.get(occurrence)
        if decide is None:
            known = ", ".join(self.table.occurrences)
            raise InvariantError(f"table {self.table.name} has no row for {occurrence!r}; it has {known}")
        return decide(co, peer, event)

    def count(self, index: int) -> None:
        """A row was taken."""
        if self._taken is not None:
            key = (self.table.name, index)
            self._taken[key] = self._taken.get(key, 0) + 1


# --- names -----------------------------------------------------------------------------------------------------------


def expression(name: str, parts: Parts, event: str = "None", peer: str = "None") -> str:
    """How a name of the table is written in Python, where `co` is the coordinator: a call, or an attribute that is
    read. It is looked up when it is its turn, so a test may replace it. Raises InvariantError if it means nothing."""
    head, _, last = name.rpartition(".")
    owner = parts.get(head)
    if owner is None or not all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split(".")):
        raise InvariantError(f"{name!r} names nothing of a coordinator")
    if isinstance(owner, ModuleType):
        function = getattr(owner, last, None)
        if not isinstance(function, FunctionType):
            raise InvariantError(f"{owner.__name__} has no function {last!r}")
        given = ("co", peer, event)[: len(inspect.signature(function).parameters)]
        return f"{name}({', '.join(given)})"
    found = inspect.getattr_static(owner, last, None)
    if found is None:
        raise InvariantError(f"{owner.__name__} has no {last!r}")
    place = head if head == "peer" else f"co.{head}" if head else "co"
    if not isinstance(found, FunctionType):
        return f"{place}.{last}"
    takes_event = len(inspect.signature(found).parameters) > 1
    return f"{place}.{last}({event if takes_event else ''})"


def _shot(fires: str, event: str) -> str:
    """The call that fires an event of a row."""
    machine, _, name = fires.partition(".")
    if machine not in MACHINES or not name:
        raise InvariantError(f"{fires!r} is no machine and event")
    return f"co.{machine}_engine.fire({'peer' if machine == 'peer' else f'co.{machine}'}, {name!r}, {event})"


# --- the compiled engine ---------------------------------------------------------------------------------------------


class _Writer:
    """Writes the functions of a table; with `counting` such as tell which rows they take. `names` is what they need."""

    def __init__(self, table: JointTable, parts: Parts, counting: bool) -> None:
        self.table, self.parts, self.counting = table, parts, counting
        self.names: dict[str, Any] = {name: part for name, part in parts.items() if isinstance(part, ModuleType)}

    def lines(self) -> Iterator[str]:
        """The text of all functions."""
        yield "def another_round(co):"
        marks = sorted({row.changed for row in self.table.rows if row.changed is not None})
        for index, row in self.table.round:
            for mark in [mark for mark in marks if isinstance(row.when, int) and row.when >= mark[0]]:
                marks.remove(mark)
                yield f"    seen_{mark[0]} = {expression(mark[1], self.parts)}"
            yield from self._row(index, row, "None")
        for index, row in self.table.at(AGAIN):
            yield from self._row(index, row, "None", "return True")
        yield "    return False"
        yield "def at_rest(co):"
        for index, row in self.table.at(LAST_STEP):
            yield from self._row(index, row, "None")
        yield "    return None"
        for number, occurrence in enumerate(self.table.occurrences):
            yield f"def occurrence_{number}(co, peer, event):  # {occurrence}"
            yield "    row = None"
            for index, row in self.table.at(occurrence):
                yield from self._row(index, row, "event")
            yield "    return row"

    def _row(self, index: int, row: Coupling, event: str, then: str = "") -> Iterator[str]:
        peer = "None" if event == "None" else "peer"
        asked = [self._phase(machine, phases) for machine, phases in row.phases]
        for name, yes in map(literal, row.guards):
            asked.append(f"{'' if yes else 'not '}{expression(name, self.parts, event, peer)}")
        if row.changed is not None:
            asked.append(f"seen_{row.changed[0]} != {expression(row.changed[1], self.parts)}")
        indent = "    "
        if asked:
            yield f"    if {' and '.join(asked)}:"
            indent = "        "
        does = [expression(name, self.parts, event, peer) for name in row.does]
        if row.fires:
            does.insert(0, f"{'row = ' if event == 'event' else ''}{_shot(row.fires, event)}")
        does += [f"count({index})"] if self.counting else []
        does += [then] if then else []
        yield from (f"{indent}{line}" for line in does)

    def _phase(self, machine: str, phases: Sequence[IntEnum]) -> str:
        place = "peer" if machine == "peer" else f"co.{machine}"
        for phase in phases:
            self.names[f"{machine}_{phase.name}"] = phase
        asked = [f"{place}.phase is {machine}_{phase.name}" for phase in phases] or ["False"]
        return f"({' or '.join(asked)})" if len(asked) > 1 else asked[0]


class CompiledJoint(JointEngine):
    """Runs a joint table through generated functions. Made by `compile_joint`."""

    def __init__(self, table: JointTable, parts: Parts) -> None:
        plain, counting = (self._functions(_Writer(table, parts, counting)) for counting in (False, True))
        super().__init__(table, plain, counting)

    def _functions(self, writer: _Writer) -> Functions:
        lines = [f"{line}\n" for line in writer.lines()]
        names: dict[str, Any] = {**writer.names, "count": self.count}
        filename = f"<paceline table {writer.table.name}{', counted' if writer.counting else ''}>"
        exec(compile("".join(lines), filename, "exec"), names)
        linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)
        on = {name: names[f"occurrence_{number}"] for number, name in enumerate(writer.table.occurrences)}
        return Functions(another_round=names["another_round"], at_rest=names["at_rest"], on=on)


def compile_joint(table: JointTable, parts: Parts) -> CompiledJoint:
    """Generate the functions of a joint table. Raises InvariantError, with the row and the name, for one that means
    nothing."""
    _resolve(table, parts)
    return CompiledJoint(table, parts)


def _resolve(table: JointTable, parts: Parts) -> None:
    for index, row in enumerate(table.rows):
        try:
            for name in (*(literal(guard)[0] for guard in row.guards), *row.does, *(row.changed or ())[1:]):
                expression(str(name), parts)
            if row.fires:
                _shot(row.fires, "event")
        except InvariantError as error:
            raise InvariantError(f"table {table.name}, row {index} ({row.when}): {error}") from None


# --- the reference engine --------------------------------------------------------------------------------------------


@state
class _Turn:
    """What a row is asked with: the coordinator, and of an occurrence the peer and the event."""

    co: Any
    peer: Any
    event: object


class WalkedJoint(JointEngine):
    """Reads the rows one by one, as described at the top. Made by `walk_joint`."""

    def __init__(self, table: JointTable, parts: Parts) -> None:
        on = {name: functools.partial(self._occurred, name) for name in table.occurrences}
        functions = Functions(another_round=self._round, at_rest=self._last, on=on)
        super().__init__(table, functions, functions)
        self._parts = parts

    def _round(self, co: Any) -> bool:
        turn, seen = _Turn(co, None, None), dict[tuple[int, str], object]()
        marks = sorted({row.changed for row in self.table.rows if row.changed is not None})
        for index, row in self.table.round:
            for mark in marks:
                if mark not in seen and isinstance(row.when, int) and row.when >= mark[0]:
                    seen[mark] = self._value(mark[1], turn)
            if row.changed is None or self._value(row.changed[1], turn) != seen[row.changed]:
                self._take(index, row, turn)
        return any(self._take(index, row, turn)[0] for index, row in self.table.at(AGAIN))

    def _last(self, co: Any) -> None:
        for index, row in self.table.at(LAST_STEP):
            self._take(index, row, _Turn(co, None, None))

    def _occurred(self, occurrence: str, co: Any, peer: Any, event: object) -> Row | None:
        turn, answer = _Turn(co, peer, event), None
        for index, row in self.table.at(occurrence):
            answer = self._take(index, row, turn)[1] or answer
        return answer

    def _take(self, index: int, row: Coupling, turn: _Turn) -> tuple[bool, Row | None]:
        """Whether the row holds, and what the event it fired was answered with."""
        if not all(self._machine(turn, machine).phase in phases for machine, phases in row.phases):
            return False, None
        if not all(bool(self._value(name, turn)) is yes for name, yes in map(literal, row.guards)):
            return False, None
        answer: Row | None = None
        if row.fires:
            machine, _, name = row.fires.partition(".")
            answer = getattr(turn.co, f"{machine}_engine").fire(self._machine(turn, machine), name, turn.event)
        for name in row.does:
            self._value(name, turn)
        self.count(index)
        return True, answer

    def _machine(self, turn: _Turn, machine: str) -> Any:
        return turn.peer if machine == "peer" else getattr(turn.co, machine)

    def _value(self, name: str, turn: _Turn) -> Any:
        """What a name stands for: what it returns if it is called, else itself."""
        head, _, last = name.rpartition(".")
        owner = self._parts[head]
        if isinstance(owner, ModuleType):
            function = getattr(owner, last)
            return function(*(turn.co, turn.peer, turn.event)[: len(inspect.signature(function).parameters)])
        place = turn.peer if head == "peer" else getattr(turn.co, head) if head else turn.co
        found = getattr(place, last)
        if not isinstance(inspect.getattr_static(owner, last), FunctionType):
            return found
        return found(turn.event) if inspect.signature(found).parameters else found()


def walk_joint(table: JointTable, parts: Parts) -> WalkedJoint:
    """The reference engine. Arguments and errors are those of `compile_joint`."""
    _resolve(table, parts)
    return WalkedJoint(table, parts)
