"""The joint table as people read it, and what is wrong with it: as diagram.py and lint.py do for the machines.

The diagram has the machines and the pass as its boxes, and an arrow wherever the one fires an event at the other. What
fires nothing but does something is in the table below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from .engine import Table, literal
from .errors import InvariantError
from .joint import AGAIN, FIRST_STEP, LAST_STEP, MACHINES, Coupling, JointTable, Parts, expression
from .lint import RULE

__all__ = ["joint_in_words", "joint_markdown", "joint_mermaid", "joint_text", "lint_joint"]

OCCURRENCE = re.compile(r"[A-Z][A-Za-z]+")
SOURCES = ("pass", *MACHINES)


# --- words -----------------------------------------------------------------------------------------------------------


def _when(row: Coupling) -> str:
    return f"step {row.when}" if isinstance(row.when, int) else row.when


def _phases(row: Coupling) -> str:
    return ", ".join(f"{machine} {' or '.join(phase.name for phase in phases)}" for machine, phases in row.phases)


def _guards(row: Coupling) -> str:
    changed = () if row.changed is None else (f"{row.changed[1]} changed since step {row.changed[0]}",)
    return " and ".join((*row.guards, *changed))


def _does(row: Coupling) -> str:
    fired = (row.fires,) if row.fires else ()
    return ", ".join((*fired, *row.does)) or "another round"


def joint_in_words(row: Coupling) -> str:
    """A row in one line and without its number, as `in_words` of diagram.py."""
    phases, guards = _phases(row), _guards(row)
    return f"{_when(row)}{f', {phases}' if phases else ''}{f', if {guards}' if guards else ''}: {_does(row)}"


LEGEND = (
    "each line: number of the row, phases it holds in, condition, event it fires and what is done (rules)",
    "one round: the steps in their order; then another one, as long as a row of 'again' holds; then step 13",
    "what has a name has happened in between, and is decided at once",
)
"""How to read the table in the terminal."""


def joint_text(table: JointTable) -> str:
    """Every row of the table under its step or what has happened, for a terminal."""
    lines, heading = [f"{table.name}: what the machines of a coordinator mean for each other", *LEGEND], ""
    for index, row in enumerate(table.rows):
        if _when(row) != heading:
            heading = _when(row)
            lines += ["", heading]
        asked = ", ".join(part for part in (_phases(row), f"if {_guards(row)}" if _guards(row) else "") if part)
        lines.append(f"{index:>5} {asked or 'always'}: {_does(row)} ({row.rule})")
    return "\n".join(lines) + "\n"


# --- the page --------------------------------------------------------------------------------------------------------


def joint_mermaid(table: JointTable) -> str:
    """Arrows from whose doing it is to the machine that the event is fired at, one for each such pair."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in table.rows:
        if row.fires:
            machine, _, event = row.fires.partition(".")
            arrows.setdefault((row.source, machine), []).append(f"{event} [{_when(row)}]")
    lines = ["flowchart LR", *(f'    {name}_(["{name}"])' for name in SOURCES)]
    for (source, machine), labels in arrows.items():
        lines.append(f'    {source}_ -->|"{"<br/>".join(labels)}"| {machine}_')
    return "\n".join(lines) + "\n"


def joint_markdown(table: JointTable, cite: Callable[[str], str] = str) -> str:
    """A page about the table: its diagram, then every row as it was written. `cite` is as in `markdown`."""
    header = ("#", "when", "whose doing", "in phases", "if", "fire", "do", "rule", "note")
    lines = [f"# {table.name}", "", "```mermaid", joint_mermaid(table).rstrip("\n"), "```", ""]
    lines += [f"| {' | '.join(header)} |", f"| {' | '.join(('---',) * len(header))} |"]
    for index, row in enumerate(table.rows):
        columns = (str(index), _when(row), row.source, _phases(row), _guards(row), row.fires, ", ".join(row.does),
                   cite(row.rule), row.note)  # fmt: skip
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


# --- lint ------------------------------------------------------------------------------------------------------------


def lint_joint(table: JointTable, parts: Parts, tables: Mapping[str, Table]) -> list[str]:
    """Everything that is wrong with the table, one line each; empty if nothing is. `tables` are those of the machines.

    Checked are: that the order is that of C-3, rows of one occurrence together; that phases are of the machine that
    they are asked of, events of the machine that they are fired at, and names exist; that each row does something,
    cites its rules, and is not written twice. Each event that a machine knows and no peer, no driver and no averager
    sends has a row that fires it; that is a matter of the code too, and looked at by a test.
    """
    complaints = [*_order(table)]
    for index, row in enumerate(table.rows):
        complaints += [f"row {index} ({_when(row)}) {complaint}" for complaint in _row(row, parts, tables)]
        if row in table.rows[:index]:
            complaints.append(f"row {index} ({_when(row)}) is written twice")
    return [f"{table.name}: {complaint}" for complaint in complaints]


def _order(table: JointTable) -> Iterator[str]:
    places = [_place(row.when, table) for row in table.rows]
    for index, (row, before, place) in enumerate(zip(table.rows[1:], places, places[1:], strict=False), 1):
        if place < before:
            yield f"row {index} ({_when(row)}) stands too late: the order is that of C-3"


def _place(when: int | str, table: JointTable) -> tuple[int, int]:
    if isinstance(when, int):
        return (2 if when == LAST_STEP else 0), when
    return (1, 0) if when == AGAIN else (3, table.occurrences.index(when))


def _row(row: Coupling, parts: Parts, tables: Mapping[str, Table]) -> Iterator[str]:
    if isinstance(row.when, int) and not FIRST_STEP <= row.when <= LAST_STEP:
        yield f"is of no step from {FIRST_STEP} to {LAST_STEP}"
    if isinstance(row.when, str) and row.when != AGAIN and not OCCURRENCE.fullmatch(row.when):
        yield "does not name what has happened as an event is named"
    if row.source not in SOURCES:
        yield f"is the doing of {row.source!r}, which is none of {', '.join(SOURCES)}"
    for machine, phases in row.phases:
        if not phases:
            yield f"holds in no phase of {machine}"
        for phase in phases:
            if not isinstance(phase, tables[machine].phases):
                yield f"asks for {phase!r}, which is no phase of {machine}"
    if row.fires:
        machine, _, event = row.fires.partition(".")
        if machine not in MACHINES or event not in tables[machine].events:
            yield f"fires {row.fires!r}, which no machine decides"
    for name in (*(literal(guard)[0] for guard in row.guards), *row.does, *(row.changed or ())[1:]):
        try:
            expression(str(name), parts)
        except InvariantError as error:
            yield str(error)
    about = {row.fires.partition(".")[0], *(machine for machine, _ in row.phases)}
    if "peer" in about and (isinstance(row.when, int) or row.when == AGAIN):
        yield "is about a peer, and in the pass there is none"
    if row.when == AGAIN and (row.fires or row.does or not row.guards):
        yield "has to ask, and to do nothing"
    if row.when != AGAIN and not (row.fires or row.does):
        yield "does nothing"
    if row.changed is not None and not (isinstance(row.when, int) and row.changed[0] <= row.when < LAST_STEP):
        yield "looks back at a step that does not come before it"
    if not all(RULE.fullmatch(rule) for rule in row.rule.split(" ")):
        yield f"has {row.rule!r}, which is not a list of rule ids such as C-13"
