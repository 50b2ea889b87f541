"""Mutants of the joint table: what a tired person might do to a row of it (see mutation.py, whose they are part of).

A guard dropped or negated, the phases that it holds in forgotten or turned round, another event of the same machine, an
effect dropped, two effects or two neighbouring turns exchanged, the row dropped. Turns are exchanged under their steps:
what is done changes place and the steps stay, or the lint would see what only tests should have to see.

    joint/8/run:TRAINING/cycle.Ceiling/negate-guard:gates.overdue
    joint/RankGone/any/membership.give_back/drop-row

What provably cannot matter is not made: of two neighbours that do no more than something in phases which exclude each
other, either may be first; and rows that ask for another round may stand in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from .engine import Table, Wildcard
from .joint import AGAIN, MACHINES, Coupling, JointTable

__all__ = ["Damage", "joint_damages", "joint_row_name"]


@attrs.frozen
class Damage:
    """One damaged table: its name, the kind of damage, the `kin` and the names of the rows of which a test has to take
    one to have any chance of noticing (see `Mutant`)."""

    name: str
    operator: str
    kin: str
    near: tuple[str, ...]
    table: JointTable


def joint_row_name(table: JointTable, row: Coupling) -> str:
    """Where a row has its turn and what it does: no two rows of a sound table have the same."""
    phases = ",".join(f"{machine}:{'+'.join(phase.name for phase in phases)}" for machine, phases in row.phases)
    does = "+".join((row.fires,) if row.fires else row.does or row.guards)
    return f"{table.name}/{row.when}/{phases or 'any'}/{does}"


def joint_damages(table: JointTable, machines: Mapping[str, Table]) -> Iterator[Damage]:
    """Every mutant of the table, row by row. `machines` are the tables whose events its rows fire."""
    for index, row in enumerate(table.rows):
        name, kin = joint_row_name(table, row), f"{table.name}/{row.when}"
        for operator, detail, changed in _of_row(row, machines):
            # A row that holds in more cases is noticed where its turn comes and it was not taken.
            near = _turns(table, row) if operator in ("drop-guard", "drop-phases") else (name,)
            text = f"{name}/{operator}{f':{detail}' if detail else ''}"
            yield Damage(text, operator, kin, near, _with(table, {index: changed}))
        if index + 1 < len(table.rows) and not _commute(row, second := table.rows[index + 1]):
            swapped = {index: attrs.evolve(second, when=row.when), index + 1: attrs.evolve(row, when=second.when)}
            other = joint_row_name(table, second)
            yield Damage(f"{name}/swap-rows:{other.removeprefix(table.name)}", "swap-rows", kin, (name, other),
                         _with(table, swapped))  # fmt: skip


def _with(table: JointTable, changes: Mapping[int, Coupling]) -> JointTable:
    return attrs.evolve(table, rows=tuple(changes.get(index, row) for index, row in enumerate(table.rows)))


def _turns(table: JointTable, row: Coupling) -> tuple[str, ...]:
    """The rows that are taken whenever this one has its turn, as far as that can be said: the first one of the round
    stands for all of a pass."""
    same = [each for each in table.rows if each.when == row.when]
    return tuple(dict.fromkeys(joint_row_name(table, each) for each in (table.rows[0], *same)))


def _of_row(row: Coupling, machines: Mapping[str, Table]) -> Iterator[tuple[str, str, Coupling]]:
    """Operator, detail and the damaged row. A row that is dropped stays as one that holds in no phase, so that the
    others keep their numbers, which the counts of taken rows go by."""
    for index, guard in enumerate(row.guards):
        rest = row.guards[:index], row.guards[index + 1 :]
        opposite = guard[1:] if guard.startswith("!") else f"!{guard}"
        if row.when != AGAIN or len(row.guards) > 1:  # without any it would be asked for for ever
            yield "drop-guard", guard, attrs.evolve(row, guards=(*rest[0], *rest[1]))
        yield "negate-guard", guard, attrs.evolve(row, guards=(*rest[0], opposite, *rest[1]))
    if row.changed is not None:
        yield "drop-guard", row.changed[1], attrs.evolve(row, changed=None)
    for machine, phases in row.phases:
        others = tuple(phase for phase in machines[machine].phases if phase not in phases)
        for operator, held in (("drop-phases", Wildcard.ANY), ("negate-phases", others)):
            changes: dict[str, Any] = {machine: held}
            yield operator, machine, attrs.evolve(row, **changes)
    if row.fires:
        machine, _, event = row.fires.partition(".")
        events = machines[machine].events
        for other in dict.fromkeys(events[(events.index(event) + step) % len(events)] for step in (-1, 1)):
            yield "event", other, attrs.evolve(row, fires=f"{machine}.{other}")
    for index, effect in enumerate(row.does):
        if row.fires or len(row.does) > 1:
            yield "drop-effect", effect, attrs.evolve(row, does=row.does[:index] + row.does[index + 1 :])
    for index, (first, second) in enumerate(zip(row.does, row.does[1:], strict=False)):
        swapped = (*row.does[:index], second, first, *row.does[index + 2 :])
        yield "swap-effects", f"{first}+{second}", attrs.evolve(row, does=swapped)
    yield "drop-row", "", attrs.evolve(row, run=())


def _commute(first: Coupling, second: Coupling) -> bool:
    together = first.when == second.when or (isinstance(first.when, int) and isinstance(second.when, int))
    if not together or first.when == AGAIN:
        return True
    apart = [set(getattr(first, machine)).isdisjoint(getattr(second, machine)) for machine in MACHINES
             if Wildcard.ANY not in (getattr(first, machine), getattr(second, machine))]  # fmt: skip
    return any(apart) and not (first.fires or second.fires)
