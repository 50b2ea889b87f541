"""The table engine: both engines mean the same, and C-13 holds in both.

A turnstile is the toy of the single cases; random tables on a puppet, whose guards answer and whose effects raise as
the test says, show that nothing depends on the toy.
"""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.engine import (
    ANY,
    SAME,
    Engine,
    Kind,
    Row,
    Table,
    build_reference,
    cells,
    compile_table,
    expand,
    untaken,
)
from paceline.core.errors import InvariantError

from support.turnstile import EFFECTS, GUARDS, TABLE, Deliberate, Gate, Puppet, Turnstile, changed, tables

Build = Callable[[Table, type, str], Engine]
both = pytest.mark.parametrize("build", [compile_table, build_reference])


# --- expansion and what fire does ------------------------------------------------------------------------------


def test_expansion_keeps_the_order_and_names_the_origin() -> None:
    """Several sources and ANY become one row per phase, in place; `origin` does not take part in comparison."""
    expanded = expand(TABLE)
    assert [(row.source, row.origin) for row in expanded[:4]] == [
        (Gate.LOCKED, 0),
        (Gate.LOCKED, 1),
        (Gate.OPEN, 1),
        (Gate.OPEN, 2),
    ]
    assert [row.source for row in expanded if row.origin == 5] == list(Gate)
    assert expanded[0] == TABLE.rows[0] and TABLE.rows[0].origin is None
    assert [row.origin for row in cells(TABLE)[Gate.LOCKED, "Coin"]] == [0, 1]


@both
def test_first_row_whose_guards_hold_is_taken_and_returned_as_written(build: Build) -> None:
    engine, machine = build(TABLE, Turnstile, "phase"), Turnstile()
    assert engine.fire(machine, "Coin", 1) is TABLE.rows[1]
    assert (machine.phase, machine.credit) == (Gate.LOCKED, 1)
    assert engine.fire(machine, "Coin", 1) is TABLE.rows[0]
    assert (machine.phase, machine.credit) == (Gate.OPEN, 2)
    assert engine.fire(machine, "Kick", 1) is TABLE.rows[5]
    assert engine.fire(machine, "Kick", 9) is TABLE.rows[6]
    assert machine.phase is Gate.SCRAPPED


@both
def test_c13_effects_run_in_order_before_the_phase_flips(build: Build) -> None:
    machine = Turnstile(Gate.OPEN)
    build(TABLE, Turnstile, "phase").fire(machine, "Push", None)
    assert (machine.log, machine.phase) == (["turn in OPEN", "ring"], Gate.LOCKED)


@both
def test_c13_phase_flips_even_if_an_effect_raises(build: Build) -> None:
    """The exception passes through, effects after it are not called, and the row is not counted."""
    engine, machine = build(TABLE, Turnstile, "phase"), Turnstile(Gate.OPEN, failing=True)
    engine.taken = {}
    with pytest.raises(RuntimeError, match="stuck"):
        engine.fire(machine, "Push", None)
    assert (machine.log, machine.phase, engine.taken) == (["turn in OPEN"], Gate.LOCKED, {})


@both
def test_raising_effect_of_a_same_row_leaves_the_phase(build: Build) -> None:
    engine, machine = build(changed(Row(ANY, "Push", SAME, (), ("turn",))), Turnstile, "phase"), Turnstile(failing=True)
    with pytest.raises(RuntimeError, match="stuck"):
        engine.fire(machine, "Push", None)
    assert machine.phase is Gate.LOCKED


@both
def test_c13_raising_guard_takes_no_row_and_flips_nothing(build: Build) -> None:
    machine = Turnstile(Gate.OPEN)
    with pytest.raises(ValueError, match="strength"):
        build(TABLE, Turnstile, "phase").fire(machine, "Kick", None)
    assert (machine.phase, machine.log) == (Gate.OPEN, [])


@both
def test_effect_of_a_same_row_may_fire_again(build: Build) -> None:
    """SAME never writes the phase, so the inner decision stays; a row with a target overwrites it."""
    again = Row(Gate.LOCKED, "Push", SAME, (), ("kick_myself",))
    for target, after in ((SAME, Gate.SCRAPPED), (Gate.OPEN, Gate.OPEN)):
        engine = build(changed(attrs.evolve(again, target=target), *TABLE.rows[5:]), Turnstile, "phase")
        machine = Turnstile(engine=engine)
        assert engine.fire(machine, "Push", None).target is target
        assert machine.phase is after


@both
@pytest.mark.parametrize("phase, event", [(Gate.LOCKED, "Nonsense"), (Gate.OPEN, "Coin"), (7, "Coin")])
def test_undecided_event_is_a_broken_invariant(build: Build, phase: Any, event: str) -> None:
    """No cell, no row whose guards hold, or no phase of the table: the error names table, phase and event."""
    engine, machine = build(changed(Row(Gate.OPEN, "Coin", SAME, ("enough",))), Turnstile, "phase"), Turnstile(phase)
    where = phase.name if isinstance(phase, Gate) else "7"
    with pytest.raises(InvariantError, match=f"turnstile.*{event} in phase {where}"):
        engine.fire(machine, event, 0)
    assert machine.phase == phase


@both
@pytest.mark.parametrize(
    "row, what",
    [
        (Row(Gate.OPEN, "Coin", SAME, ("missing",)), "row 0.*Turnstile has no method 'missing'"),
        (Row(Gate.OPEN, "Coin", SAME, ("!missing",)), "row 0.*no method 'missing'"),
        (Row(Gate.OPEN, "Coin", SAME, (), ("credit",)), "row 0.*no method 'credit'"),
        (Row(Gate.OPEN, "Coin", SAME, (), ("take(event) or machine.ring",)), "row 0.*no method"),
        (Row(Gate.OPEN, "Shove", SAME), "row 0.*unknown event 'Shove'"),
        (Row(Kind.ACCEPT, "Coin", SAME), "row 0.*ACCEPT.*no phase of Gate"),
        (Row(Gate.OPEN, "Coin", Kind.ACCEPT), "row 0.*ACCEPT.*no phase of Gate"),
    ],
)
def test_names_are_resolved_when_the_engine_is_built(build: Build, row: Row, what: str) -> None:
    with pytest.raises(InvariantError, match=what):
        build(changed(row), Turnstile, "phase")


@both
def test_phase_attribute_must_exist_and_names_must_be_identifiers(build: Build) -> None:
    with pytest.raises(InvariantError, match="no attribute state"):
        build(TABLE, Turnstile, "state")
    with pytest.raises(InvariantError, match="no name"):
        build(TABLE, Turnstile, "phase ")
    phases = IntEnum("phases", [("a b", 0)])
    with pytest.raises(InvariantError, match="'a b' is no identifier"):
        build(changed(phases=phases), Turnstile, "phase")


@both
def test_names_that_run_together_stay_apart(build: Build) -> None:
    """Phase A_B on event C and phase A on event B_C are two cells, whatever the generated functions are called."""
    phases = IntEnum("phases", [("A_B", 0), ("A", 1)])
    rows = (Row(phases["A_B"], "C", SAME), Row(phases["A"], "B_C", SAME))
    engine = build(Table("t", phases, phases["A"], ("C", "B_C"), rows), Turnstile, "phase")
    assert engine.fire(Turnstile(phases["A_B"]), "C", None) is rows[0]
    assert engine.fire(Turnstile(phases["A"]), "B_C", None) is rows[1]


@both
def test_taken_counts_rows_by_table_and_index(build: Build) -> None:
    """The record of row coverage; phases of two tables may be equal numbers, their counts stay apart."""
    taken: dict[tuple[str, int], int] = {}
    for name in ("first", "second"):
        engine = build(attrs.evolve(TABLE, name=name), Turnstile, "phase")
        engine.taken = taken
        for _ in range(2):
            engine.fire(Turnstile(), "Push", None)
    assert taken == {("first", 3): 2, ("second", 3): 2}
    assert untaken(attrs.evolve(TABLE, name="first"), taken) == (*TABLE.rows[:3], *TABLE.rows[4:])


def test_transitions_is_not_imported_before_a_reference_is_built() -> None:
    code = "import sys, paceline.core.lint, paceline.core.diagram; sys.exit('transitions' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_reference_machine_takes_callbacks_at_run_time() -> None:
    """The reference is a real transitions.Machine; its callbacks see the machine through the subject."""
    engine, seen = build_reference(TABLE, Turnstile, "phase"), []
    engine.machine.after_state_change.append(lambda data: seen.append((data.model.machine, data.model.phase)))
    machine = Turnstile(credit=1)
    engine.fire(machine, "Coin", 1)
    assert seen == [(machine, Gate.OPEN)]
    assert [state.final for state in engine.machine.states.values()] == [False, False, True]


# --- the generated source --------------------------------------------------------------------------------------


def test_source_of_a_cell_is_readable_and_known_to_tracebacks() -> None:
    engine = compile_table(TABLE, Turnstile, "phase")
    assert engine.source(Gate.LOCKED, "Coin") == (
        "def cell_0_LOCKED_Coin(machine, event):\n"
        "    if machine.enough(event):\n"
        "        try:\n"
        "            machine.take(event)\n"
        "        finally:\n"
        "            machine.phase = phase_OPEN\n"
        "        return 0  # 'C-1'\n"
        "    machine.take(event)\n"
        "    return 1  # 'C-1 C-2'\n"
    )
    assert engine.source(Gate.OPEN, "Kick").endswith("    raise undecided(phase_OPEN, 'Kick')\n")
    with pytest.raises(RuntimeError) as caught:
        engine.fire(Turnstile(Gate.OPEN, failing=True), "Push", None)
    assert "    machine.turn(event)\n" in "".join(traceback.format_exception(caught.value))
    frames = [frame for frame, _ in traceback.walk_tb(caught.tb)]
    assert inspect.getsource(frames[-2].f_code) == engine.source(Gate.OPEN, "Push")
    with pytest.raises(InvariantError, match="Nonsense in phase OPEN"):
        engine.source(Gate.OPEN, "Nonsense")


def test_rule_text_cannot_become_code() -> None:
    """A rule id is data and stands in a comment; a line break in it must not end the comment."""
    engine = compile_table(changed(Row(ANY, "Coin", SAME, rule="C-1\n    return 99")), Turnstile, "phase")
    assert engine.fire(Turnstile(), "Coin", 1).event == "Coin"


# --- random tables ---------------------------------------------------------------------------------------------


@given(table=tables(), failing=st.sampled_from(EFFECTS))
def test_compiled_and_reference_engine_cannot_be_told_apart(table: Table, failing: str) -> None:
    """Row, phase, exception, calls and coverage are the same in every phase, on every event, for all answers of all
    guards, raising ones among them, with and without an effect that raises (C-13)."""
    engines = (compile_table(table, Puppet, "phase"), build_reference(table, Puppet, "phase"))
    for engine in engines:
        engine.taken = {}
    answers = itertools.product((True, False, None), repeat=len(GUARDS))
    for phase, event, answer, raising in itertools.product(table.phases, table.events, answers, ((), (failing,))):
        outcomes = []
        for engine in engines:
            puppet = Puppet(phase, dict(zip(GUARDS, answer, strict=True)), raising)
            result: object
            try:
                result = engine.fire(puppet, event, "payload")
            except (Deliberate, InvariantError) as error:
                result = (type(error), str(error))
            outcomes.append((result, puppet.phase, type(puppet.phase), puppet.log, dict(engine.taken or {})))
        assert outcomes[0] == outcomes[1]
