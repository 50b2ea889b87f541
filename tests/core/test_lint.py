"""The lint finds what it says it finds, no more and no less; `differences` notices what it claims to compare."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest
from hypothesis import given

from paceline.core import lint as lint_module
from paceline.core.engine import ANY, SAME, Kind, Row, Table, cells, compile_table
from paceline.core.errors import InvariantError, LocalProtocolError
from paceline.core.lint import MAXIMUM_GUARDS_PER_CELL, differences, lint

from support.turnstile import GUARDS, TABLE, Gate, Puppet, Turnstile, changed, tables


def test_lint_has_nothing_to_say_about_a_sound_table() -> None:
    assert lint(TABLE, Turnstile) == []


@pytest.mark.parametrize(
    "rows, complaint",
    [
        ((*TABLE.rows[:4], *TABLE.rows[5:]), "no row decides SCRAPPED x Coin"),
        (TABLE.rows[:6], "no row decides LOCKED x Kick when broken"),
        ((*TABLE.rows[:5], TABLE.rows[6]), "no row decides OPEN x Kick when !broken"),
        ((*TABLE.rows, Row(ANY, "Coin", SAME, kind=Kind.IGNORE, rule="C-1")), "row 7 (Coin) is dead in LOCKED x Coin"),
        ((*TABLE.rows, Row(Gate.OPEN, "Kick", SAME, ("enough",), rule="C-1")), "row 7 (Kick) is dead in OPEN x Kick"),
        ((TABLE.rows[5], *TABLE.rows), "row 6 (Kick) repeats a row of LOCKED x Kick"),
        ((Row(ANY, "Shove", SAME, rule="C-1"),), "row 0 (Shove): unknown event"),
        ((Row(Kind.IGNORE, "Coin", SAME),), "row 0 (Coin): <Kind.IGNORE: 1> is no phase of Gate"),
        ((Row(ANY, "Coin", Kind.IGNORE),), "row 0 (Coin): <Kind.IGNORE: 1> is no phase of Gate"),
        ((Row((), "Coin", SAME),), "row 0 (Coin) has no source"),
        ((Row(ANY, "Coin", SAME, ("missing",)),), "Turnstile has no method missing"),
        ((Row(ANY, "Coin", SAME, (), ("missing",)),), "Turnstile has no method missing"),
        ((Row(ANY, "Coin", SAME, ("odd",)),), "guard Turnstile.odd is not annotated to return bool"),
        ((Row(ANY, "Coin", SAME, (), ("needs_two",)),), "method Turnstile.needs_two does not take an event alone"),
        (TABLE.rows[:2], "phase SCRAPPED cannot be reached from LOCKED"),
        ((Row(Gate.SCRAPPED, "Coin", Gate.OPEN),), "row 0 (Coin) leads out of a final phase"),
        ((Row(ANY, "Coin", SAME, rule=""),), "row 0 (Coin): '' is not a list of rule ids such as C-13"),
        ((Row(ANY, "Coin", SAME, rule="C-13,C-14"),), "row 0 (Coin): 'C-13,C-14' is not a list of rule ids such as"),
        ((Row(ANY, "Coin", SAME, rule="C-13"),), "row 0 (Coin) accepts without an effect and has no note"),
        ((Row(ANY, "Coin", Gate.OPEN, kind=Kind.FENCED),), "row 0 (Coin) is FENCED and changes the phase"),
        ((Row(ANY, "Coin", SAME, (), ("ring",), Kind.IGNORE),), "row 0 (Coin) is IGNORE and does ring"),
    ],
)
def test_lint_complains(rows: tuple[Row, ...], complaint: str) -> None:
    """Totality, dead and repeated rows, names, reachability, and what a row owes its reader."""
    assert any(line.startswith(f"turnstile: {complaint}") for line in lint(changed(*rows), Turnstile))


def test_lint_takes_bool_from_evaluated_annotations_too() -> None:
    """A machine of a module without postponed annotations carries the class, not its name."""

    def odd(self: Turnstile, event: object) -> bool:
        return False

    odd.__annotations__["return"] = bool
    other = type("Other", (Turnstile,), {"__slots__": (), "odd": odd})
    assert "annotated" not in str(lint(changed(Row(ANY, "Coin", SAME, ("odd",))), other))


def test_lint_says_each_thing_once() -> None:
    """A row that stands for three phases is one complaint."""
    lines = lint(changed(*TABLE.rows[:5], Row(ANY, "Kick", SAME, rule="13"), TABLE.rows[6]), Turnstile)
    assert len([line for line in lines if "rule ids" in line]) == 1 and len(lines) == len(set(lines))


def test_lint_checks_the_frame_of_a_table() -> None:
    assert "event Coin is listed twice" in str(lint(changed(events=("Coin", "Coin")), Turnstile))
    assert "Kind.ACCEPT: 0> is no phase of Gate" in str(lint(changed(initial=Kind.ACCEPT), Turnstile))
    assert "Kind.ACCEPT: 0> is no phase of Gate" in str(lint(changed(final=(Kind.ACCEPT,)), Turnstile))


def test_lint_bounds_the_guards_of_a_cell() -> None:
    """The proof of a cell doubles with each guard, so a cell with too many is itself a complaint."""
    many = [f"guard_{number}" for number in range(MAXIMUM_GUARDS_PER_CELL + 1)]
    rows = (*(Row(Gate.OPEN, "Coin", SAME, (name,)) for name in many), Row(Gate.OPEN, "Coin", SAME))
    assert f"OPEN x Coin asks {len(many)} guards" in str(lint(changed(*rows), Turnstile))
    assert "OPEN x Coin asks" not in str(lint(changed(*rows[1:]), Turnstile))


@given(table=tables())
def test_lint_finds_holes_and_dead_rows_exactly(table: Table) -> None:
    """Against brute force: all answers of all guards in every cell, tried on the compiled engine."""
    engine = compile_table(table, Puppet, "phase")
    complaints = lint(table, Puppet)
    for phase, event in itertools.product(table.phases, table.events):
        engine.taken, holes = {}, False
        for answers in itertools.product((True, False), repeat=len(GUARDS)):
            try:
                engine.fire(Puppet(phase, dict(zip(GUARDS, answers, strict=True))), event, None)
            except InvariantError:
                holes = True
        where = f"{phase.name} x {event}"
        assert any(f"no row decides {where}" in line for line in complaints) is holes
        alive = {index for _, index in engine.taken}
        origins = {row.origin for row in cells(table).get((phase, event), ())}
        dead = {index for index in origins if f"random: row {index} ({event}) is dead in {where}" in str(complaints)}
        assert dead == origins - alive


# --- differences -----------------------------------------------------------------------------------------------

EVENTS = {"Coin": (0, 2), "Push": (None,), "Kick": (None, 1, 9)}


def test_differences_of_equal_engines_are_none() -> None:
    """Every phase, event and value, with failing effects and raising guards (C-13)."""
    for machine in (Turnstile, lambda: Turnstile(failing=True)):
        assert differences(TABLE, machine, EVENTS, observe=lambda machine: (machine.credit, machine.log)) == []


def test_differences_reports_guards_that_return_no_bool() -> None:
    """`transitions` compares with True: a guard that returns 2 holds for one engine and not for the other."""
    found = differences(changed(Row(ANY, "Coin", SAME, ("odd",)), *TABLE.rows), Turnstile, EVENTS)
    assert "turnstile: guard odd returned 2, not a bool" in found
    for phase in ("LOCKED", "OPEN"):
        assert any(f"{phase} x Coin with 0: row is [0] compiled, [2] by transitions" in line for line in found)


@pytest.mark.parametrize(
    "other, what",
    [
        ({"target": SAME}, "phase"),
        ({"effects": ("ring", "turn")}, "calls"),
        ({"effects": ("turn",)}, "observed"),
        ({"guards": ("enough",)}, "exception"),
    ],
)
def test_differences_sees_every_difference(monkeypatch: pytest.MonkeyPatch, other: Any, what: str) -> None:
    """The comparison itself is tested: give one engine another row and it must be noticed."""
    rows = (*TABLE.rows[:2], attrs.evolve(TABLE.rows[2], **other), *TABLE.rows[3:])
    monkeypatch.setattr(lint_module, "compile_table", lambda _, *rest: compile_table(changed(*rows), *rest))
    found = differences(TABLE, Turnstile, EVENTS, observe=lambda machine: machine.log)
    assert any(line.startswith(f"turnstile: OPEN x Push with None: {what} is") for line in found)


def test_differences_wants_values_for_every_event() -> None:
    """An event that is never fired would be a difference that is never seen."""
    with pytest.raises(LocalProtocolError, match="no values to fire for Push, Kick"):
        differences(TABLE, Turnstile, {"Coin": (1,), "Push": ()})
