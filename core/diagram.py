"""Tables as people read them: a Mermaid diagram, a page for the docs, a dump for the terminal.

All three are made from the rows alone and depend on nothing else, so that a committed page can be compared with a
fresh one. The diagram shows where a machine can go; what it turns down or ignores without moving is in the table
below it, because arrows from every phase to itself would hide the others. An arrow on which many events go says only
how many, with a number under which they are listed below the diagram. `transitions` can draw as well, but puts a style
sheet around the graph and every ignored event into it.
"""

from __future__ import annotations

from collections.abc import Callable

from .engine import SAME, Kind, Row, Table, Wildcard, cells, destination

__all__ = ["MOST_LABELS", "in_words", "markdown", "mermaid", "text"]

MOST_LABELS = 5
"""Rows that are written at an arrow; more of them nobody can read there."""

Arrows = dict[tuple[str, str], list[str]]
"""Per source and target what is done on the way, one text a row."""


def _arrows(table: Table) -> Arrows:
    arrows: Arrows = {}
    for phase in table.phases:
        for (source, _), rows in cells(table).items():
            for row in rows if source is phase else ():
                if destination(row) is not phase or row.kind is Kind.ACCEPT:
                    arrows.setdefault((phase.name, destination(row).name), []).append(_label(row))
    return arrows


def _crowded(arrows: Arrows) -> dict[tuple[str, str], int]:
    """The arrows whose rows do not fit on them, with their numbers, from 1."""
    crowded = [arrow for arrow, labels in arrows.items() if len(labels) > MOST_LABELS]
    return {arrow: number for number, arrow in enumerate(crowded, 1)}


def mermaid(table: Table) -> str:
    """The table as a Mermaid stateDiagram-v2.

    Phases and arrows are in the order of their definition; all rows between the same two phases share one arrow, with
    one line each: event, guards in brackets, "(violation)" where the row ends a session. If these are more than
    `MOST_LABELS`, the arrow says how many instead, and the number of its entry in the list of `markdown`.
    """
    arrows = _arrows(table)
    crowded = _crowded(arrows)
    lines = ["stateDiagram-v2", *(f"    {phase.name}" for phase in table.phases), f"    [*] --> {table.initial.name}"]
    for arrow, labels in arrows.items():
        label = f"({crowded[arrow]}) {len(labels)} rows" if arrow in crowded else "<br/>".join(labels)
        lines.append(f"    {arrow[0]} --> {arrow[1]}: {label}")
    lines += [f"    {phase.name} --> [*]" for phase in table.final]
    return "\n".join(lines) + "\n"


def _crowded_lines(table: Table) -> list[str]:
    """The list below the diagram: what goes on each crowded arrow."""
    arrows = _arrows(table)
    crowded = _crowded(arrows)
    if not crowded:
        return []
    lines = ["Arrows with a number:", "", _table_line(("number", "from", "to", "on")), _table_line(("---",) * 4)]
    for (source, target), number in crowded.items():
        lines.append(_table_line((f"({number})", source, target, "; ".join(arrows[source, target]))))
    return [*lines, ""]


def _label(row: Row) -> str:
    label = row.event
    if row.guards:
        label += f" [{' & '.join(row.guards)}]"
    return f"{label} (violation)" if row.kind is Kind.VIOLATION else label


def markdown(table: Table, cite: Callable[[str], str] = str) -> str:
    """A page about the table: its diagram with what does not fit in there, then every row as it was written, in its
    order. `cite` makes of the rule ids of a row what is to stand in their place, such as links."""
    header = ("#", "in phase", "on", "if", "do", "then in phase", "kind", "rule", "note")
    lines = [f"# {table.name}", "", "```mermaid", mermaid(table).rstrip("\n"), "```", "", *_crowded_lines(table)]
    lines += [_table_line(header), _table_line(("---",) * len(header))]
    for index, row in enumerate(table.rows):
        columns = (
            str(index),
            _source(row),
            row.event,
            " and ".join(row.guards),
            ", ".join(row.effects),
            _target(row),
            row.kind.name.lower(),
            cite(row.rule),
            row.note,
        )
        lines.append(_table_line(columns))
    return "\n".join(lines) + "\n"


def _table_line(columns: tuple[str, ...]) -> str:
    return f"| {' | '.join(' '.join(column.split()).replace('|', chr(92) + '|') for column in columns)} |"


def _source(row: Row) -> str:
    if isinstance(row.source, Wildcard):
        return "any"
    sources = row.source if isinstance(row.source, tuple) else (row.source,)
    return ", ".join(phase.name for phase in sources)


def _target(row: Row) -> str:
    return "same" if isinstance(row.target, Wildcard) else row.target.name


def in_words(row: Row) -> str:
    """A row in one line and without its number, which changes with every row above it: where, on what, under which
    conditions, where to, and what is done."""
    guards = f" if {' and '.join(row.guards)}" if row.guards else ""
    target = "" if isinstance(row.target, Wildcard) else f" → {row.target.name.lower()}"
    does = ", ".join(row.effects) if row.kind is Kind.ACCEPT else row.kind.name.lower()
    return f"{_source(row).lower()}: {row.event}{guards}{target}{f' ({does})' if does else ''}"


LEGEND = (
    "each line: number of the row, condition, what is done -> the next phase (kind of the row, rules)",
    '"-> =": the phase stays as it is; "otherwise": no line above it applies',
)
"""How to read a table in the terminal."""


def text(table: Table) -> str:
    """Every cell of the table with its expanded rows in the order they are tried, for a terminal.

    A line starts with the index of the row in `Table.rows`; `LEGEND`, which stands above them, says what follows.
    """
    found = cells(table)
    lines = [f"{table.name}: starts in {table.initial.name}", *LEGEND]
    for phase in table.phases:
        lines += ["", f"{phase.name} (final)" if phase in table.final else phase.name]
        for event in table.events:
            lines.append(f"  {event}")
            for row in found.get((phase, event), ()):
                condition = f"if {' and '.join(row.guards)}" if row.guards else "otherwise"
                target = "=" if row.target is SAME else destination(row).name
                what = ", ".join(row.effects) or "nothing"
                lines.append(f"{row.origin:>5} {condition}: {what} -> {target} ({row.kind.name.lower()}, {row.rule})")
    return "\n".join(lines) + "\n"
