"""Mutants: the tables and guards with one thing damaged, to see whether any test notices it.

A mutant that no test notices is either a hole in the tests or a change that changes nothing. The damage is the obvious
one, whatever a tired person might do to a row: a guard dropped or negated, an effect dropped, two neighbouring effects
swapped, another target, a kind mistaken for the one beside it, the row dropped, two rows of one cell in the wrong
order; in the joint table the like, and phases forgotten or an event mistaken (joint_mutation.py); and, in the functions
that decide (comparisons.py), a comparison made strict or not.

Each mutant has a name that says where it is and what was done, without the number of any row, so that it stays the
same while rows come and go around it:

    cycle/PENDING/Judge/gate_complete+digest_split/drop-guard:digest_split
    worker/ANY/ActionDone/otherwise/kind:ignore→accept

What provably cannot matter is not made: two neighbouring rows that do the same, or of which one asks for what the
other excludes, may stand in either order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Literal, cast

import attrs

from .comparisons import Comparison, comparisons
from .engine import SAME, Kind, Row, Table, Wildcard, cells
from .errors import InvariantError
from .joint import Coupling, JointTable
from .joint_mutation import joint_damages, joint_row_name
from .lint import lint
from .tables import JOINT, TABLES, in_force, lint_of_joint, machine_class
from .values import value

__all__ = ["OPERATORS", "Mutant", "in_place", "mutants", "name_of_row", "noticed_by_lint", "of_table", "row_name"]

OPERATORS = (
    "drop-guard", "negate-guard", "drop-effect", "swap-effects", "target", "kind", "drop-row", "swap-rows",
    "drop-phases", "negate-phases", "event", "compare",
)  # fmt: skip
"""Every kind of damage, in the order of a report."""

MISTAKEN = {
    Kind.ACCEPT: (Kind.IGNORE, Kind.REFUSED),
    Kind.IGNORE: (Kind.ACCEPT, Kind.FENCED),
    Kind.FENCED: (Kind.ACCEPT, Kind.IGNORE),
    Kind.REFUSED: (Kind.ACCEPT, Kind.VIOLATION),
    Kind.VIOLATION: (Kind.REFUSED,),
}
"""What each kind may be mistaken for."""


@value
class Mutant:
    """One damage. `place` is the table or the module it is in; `near` names the rows and functions that a test has to
    take or call to have any chance of noticing; what notices one mutant probably notices others of the same `kin`,
    which is the event of the rows or the module; `change` is the damaged table, or the comparison."""

    name: str
    place: str
    operator: str
    kin: str
    near: tuple[str, ...]
    change: Table | JointTable | Comparison


@functools.cache
def mutants() -> Mapping[str, Mutant]:
    """Every mutant by its name, in a stable order: the tables row by row, the joint one last, then the comparisons."""
    found: dict[str, Mutant] = {}
    for table in TABLES.values():
        for mutant in of_table(table):
            if mutant.name in found:
                raise InvariantError(f"two mutants are called {mutant.name}: one would hide the other")
            found[mutant.name] = mutant
    for each in joint_damages(JOINT, TABLES):
        if each.name in found:
            raise InvariantError(f"two mutants are called {each.name}: one would hide the other")
        found[each.name] = Mutant(
            name=each.name, place=JOINT.name, operator=each.operator, kin=each.kin, near=each.near, change=each.table,
        )  # fmt: skip
    for damage in comparisons():
        found[damage.name] = Mutant(
            name=damage.name, place=damage.place, operator="compare", kin=damage.place,
            near=(damage.function,), change=damage,
        )
    return found


def in_place(mutant: Mutant) -> AbstractContextManager[None]:
    """Inside, the damage is done: a table to every machine that is made, a comparison to everybody at once."""
    return mutant.change.in_place() if isinstance(mutant.change, Comparison) else in_force(mutant.change)


def noticed_by_lint(mutant: Mutant) -> str | None:
    """What the lint says about a damaged table, if anything; a comparison is none of its business."""
    if isinstance(mutant.change, Comparison):
        return None
    table = mutant.change
    if isinstance(table, JointTable):
        written = attrs.evolve(table, rows=tuple(row for row in table.rows if row.run != ()))
        return next(iter(lint_of_joint(written)), None)
    as_written = attrs.evolve(table, rows=tuple(row for row in table.rows if row.source != ()))
    return next(iter(lint(as_written, machine_class(table.name))), None)


def name_of_row(table: Table | JointTable, index: int) -> str:
    """The name of a row of any table, by its place."""
    row = table.rows[index]
    if isinstance(table, JointTable) and isinstance(row, Coupling):
        return joint_row_name(table, row)
    return row_name(cast(Table, table), cast(Row, row))


def row_name(table: Table, row: Row) -> str:
    """Where a row stands and what it asks: no two rows of a sound table have the same."""
    return f"{table.name}/{_where(row)}/{row.event}/{'+'.join(row.guards) or 'otherwise'}"


def _where(row: Row) -> str:
    sources = row.source if isinstance(row.source, tuple) else (row.source,)
    return "+".join(source.name for source in sources)


# --- the tables --------------------------------------------------------------------------------------------------


def of_table(table: Table) -> Iterator[Mutant]:
    """Every mutant of the rows of a table, row by row."""
    below, directly_below = _orders(table)
    for index, row in enumerate(table.rows):
        name, kin = row_name(table, row), f"{table.name}/{row.event}"
        own = (name,)
        after = (name, *(row_name(table, table.rows[other]) for other in below[index]))
        for operator, detail, changed in _damages(table, row):
            # A row that asks something else takes from those below it, or leaves to them.
            asks = changed.guards != row.guards or changed.source != row.source
            yield Mutant(
                name=f"{name}/{operator}{f':{detail}' if detail else ''}", place=table.name, operator=operator,
                kin=kin, near=after if asks else own, change=_with(table, {index: changed}),
            )  # fmt: skip
        for other in directly_below[index]:
            second = table.rows[other]
            if _commute(row, second):
                continue
            # Rows of different phases may ask the same: then both follow this one, each in cells of its own.
            where = "" if second.source == row.source else f"@{_where(second)}"
            yield Mutant(
                name=f"{name}/swap-rows:{'+'.join(second.guards) or 'otherwise'}{where}", place=table.name,
                operator="swap-rows", kin=kin, near=(name, row_name(table, second)),
                change=_with(table, {index: second, other: row}),
            )  # fmt: skip


def _with(table: Table, changes: dict[int, Row]) -> Table:
    return attrs.evolve(table, rows=tuple(changes.get(index, row) for index, row in enumerate(table.rows)))


def _damages(table: Table, row: Row) -> Iterator[tuple[str, str, Row]]:
    """Operator, detail and the damaged row. A row that is dropped stays as one that stands in no phase, so that the
    others keep their numbers, which the counts of taken rows go by."""
    for index, guard in enumerate(row.guards):
        rest = row.guards[:index], row.guards[index + 1 :]
        yield "drop-guard", guard, attrs.evolve(row, guards=(*rest[0], *rest[1]))
        opposite = guard[1:] if guard.startswith("!") else f"!{guard}"
        yield "negate-guard", guard, attrs.evolve(row, guards=(*rest[0], opposite, *rest[1]))
    for index, effect in enumerate(row.effects):
        yield "drop-effect", effect, attrs.evolve(row, effects=row.effects[:index] + row.effects[index + 1 :])
    for index, (first, second) in enumerate(zip(row.effects, row.effects[1:], strict=False)):
        swapped = (*row.effects[:index], second, first, *row.effects[index + 2 :])
        yield "swap-effects", f"{first}+{second}", attrs.evolve(row, effects=swapped)
    for target in _targets(table, row):
        yield "target", target.name.lower(), attrs.evolve(row, target=target)
    for kind in MISTAKEN[row.kind]:
        yield "kind", f"{row.kind.name.lower()}→{kind.name.lower()}", attrs.evolve(row, kind=kind)
    yield "drop-row", "", attrs.evolve(row, source=())


def _targets(table: Table, row: Row) -> Iterator[IntEnum | Literal[Wildcard.SAME]]:
    """Other phases that a row might lead to. A row that only turns something down leads nowhere, and the lint keeps it
    so: moving it would be the same mutant a hundred times over."""
    if row.kind not in (Kind.ACCEPT, Kind.VIOLATION):
        return
    sources = row.source if isinstance(row.source, tuple) else (row.source,)
    if row.target is not SAME and sources != (row.target,):
        yield SAME
    for phase in table.phases:
        if phase != row.target and not (row.target is SAME and sources == (phase,)):
            yield phase


def _orders(table: Table) -> tuple[list[list[int]], list[list[int]]]:
    """For each row the later ones that share a cell with it, and those of them that follow it directly in one."""
    below: list[set[int]] = [set() for _ in table.rows]
    directly: list[set[int]] = [set() for _ in table.rows]
    for rows in cells(table).values():
        order = [row.origin for row in rows if row.origin is not None]
        for place, index in enumerate(order):
            below[index].update(order[place + 1 :])
            directly[index].update(order[place + 1 : place + 2])
    return [sorted(others) for others in below], [sorted(others) for others in directly]


def _commute(first: Row, second: Row) -> bool:
    alike = (first.target, first.effects, first.kind) == (second.target, second.effects, second.kind)
    told = first.kind in (Kind.REFUSED, Kind.VIOLATION) and (first.note, first.rule) != (second.note, second.rule)
    opposite = {guard[1:] if guard.startswith("!") else f"!{guard}" for guard in first.guards}
    return (alike and not told) or bool(opposite & set(second.guards))
