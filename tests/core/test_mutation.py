"""Mutants are made of every row and comparison that decides, keep their names, and leave nothing behind."""

from __future__ import annotations

import attrs
import pytest

from paceline.core import gates
from paceline.core.comparisons import Comparison, called, comparisons, deciding
from paceline.core.engine import ANY, SAME, Kind, Row, Table
from paceline.core.errors import InvariantError
from paceline.core.lint import lint
from paceline.core.mutation import OPERATORS, in_place, mutants, noticed_by_lint, of_table, row_name
from paceline.core.phases import RunPhase
from paceline.core.tables import CYCLE, RUN, TABLES, engine_for, in_force, machine_class

from support.hand import Hand
from support.turnstile import TABLE, Gate

ARM = "cycle/IDLE/Judge/fires/drop-effect:arm"


def names(table: Table, row: Row) -> list[str]:
    """What is made of a row, without its place."""
    place = f"{row_name(table, row)}/"
    return [mutant.name.removeprefix(place) for mutant in of_table(table) if mutant.name.startswith(place)]


def test_of_a_row_every_obvious_damage_is_made() -> None:
    row = Row(Gate.LOCKED, "Coin", Gate.OPEN, ("!broken", "enough"), ("take", "ring", "unlock"), rule="C-1")
    table = attrs.evolve(TABLE, rows=(row, Row(ANY, "Coin", SAME, ("broken",), kind=Kind.IGNORE, rule="C-1")))

    assert names(table, row) == [
        "drop-guard:!broken", "negate-guard:!broken", "drop-guard:enough", "negate-guard:enough",
        "drop-effect:take", "drop-effect:ring", "drop-effect:unlock", "swap-effects:take+ring",
        "swap-effects:ring+unlock", "target:same", "target:locked", "target:scrapped", "kind:accept→ignore",
        "kind:accept→refused", "drop-row",
    ]  # fmt: skip


def test_rows_whose_order_cannot_matter_are_not_swapped() -> None:
    """What excludes each other, or does the same, may stand in either order."""
    cell = [
        Row(Gate.LOCKED, "Coin", SAME, ("broken",), kind=Kind.IGNORE, rule="C-1"),
        Row(Gate.LOCKED, "Coin", SAME, ("enough",), kind=Kind.IGNORE, rule="C-2"),
        Row(Gate.LOCKED, "Coin", Gate.OPEN, ("!enough",), ("take",), rule="C-3"),
        Row(Gate.LOCKED, "Coin", SAME, (), ("ring",), rule="C-4"),
    ]
    made = [mutant.name for mutant in of_table(attrs.evolve(TABLE, rows=tuple(cell)))]

    assert [name for name in made if "/swap-rows:" in name] == ["turnstile/LOCKED/Coin/!enough/swap-rows:otherwise"]


def test_rows_that_ask_the_same_in_different_phases_are_told_apart() -> None:
    """Both follow the first, each in a cell of its own: under one name the second mutant would hide the first."""
    rows = (
        Row((Gate.LOCKED, Gate.OPEN), "Coin", SAME, ("broken",), ("ring",), rule="C-1"),
        Row(Gate.LOCKED, "Coin", Gate.OPEN, (), ("take",), rule="C-2"),
        Row(Gate.OPEN, "Coin", SAME, (), ("ring", "take"), rule="C-3"),
    )
    made = [mutant.name for mutant in of_table(attrs.evolve(TABLE, rows=rows))]

    place = "turnstile/LOCKED+OPEN/Coin/broken/swap-rows:otherwise"
    assert [name for name in made if "/swap-rows:" in name] == [f"{place}@LOCKED", f"{place}@OPEN"]
    assert len(set(made)) == len(made)


def test_names_are_those_of_a_table_to_which_a_row_was_added() -> None:
    """What is recorded about a mutant outlives the rows around it."""
    extra = Row(RunPhase.TRAINING, "Saving", SAME, ("anyone_alive",), kind=Kind.IGNORE, rule="M-50")
    before = {mutant.name for mutant in of_table(RUN) if "/swap-rows:" not in mutant.name}
    after = {mutant.name for mutant in of_table(attrs.evolve(RUN, rows=(extra, *RUN.rows)))}

    assert before <= after


def test_every_row_and_every_guard_is_damaged() -> None:
    made = mutants()
    assert {mutant.operator for mutant in made.values()} == set(OPERATORS)
    for table in TABLES.values():
        for row in table.rows:
            assert f"{row_name(table, row)}/drop-row" in made
    assert "gates.overdue/compare:co.now > due → co.now >= due" in made
    assert made["cycle.Cycle.gate_complete/compare:self.owing == 0 → self.owing != 0"].place == "cycle"


def test_a_damaged_table_is_that_of_machines_made_inside() -> None:
    """Both engines run it; machines made before, and afterwards, run the real one."""
    before, compiled, reference = Hand(2), engine_for("cycle"), engine_for("cycle", "transitions")

    with in_place(mutants()[ARM]):
        assert engine_for("cycle").table != CYCLE and engine_for("cycle", "transitions").table != CYCLE
        assert Hand(2).co.cycle_engine is engine_for("cycle")
        assert before.co.cycle_engine is compiled
    assert engine_for("cycle") is compiled and engine_for("cycle", "transitions") is reference
    assert TABLES["cycle"] is CYCLE


def test_what_was_in_force_comes_back_after_an_error() -> None:
    engine = engine_for("run")
    with pytest.raises(ZeroDivisionError), in_place(mutants()["run/FORMING/Formed/otherwise/drop-row"]):
        _ = 1 // 0
    assert engine_for("run") is engine

    nameless = attrs.evolve(RUN, rows=(attrs.evolve(RUN.rows[0], effects=("nothing_of_this_name",)), *RUN.rows[1:]))
    with pytest.raises(InvariantError, match="nothing_of_this_name"), in_force(nameless):
        pass
    assert engine_for("run") is engine


def test_a_dropped_row_leaves_the_others_their_numbers() -> None:
    """What is counted as taken goes by them."""
    change = mutants()["cycle/IDLE/Judge/fires/drop-row"].change
    assert isinstance(change, Table)
    assert len(change.rows) == len(CYCLE.rows)
    assert [row for row in change.rows if row not in CYCLE.rows] == [attrs.evolve(CYCLE.rows[0], source=())]


def test_the_lint_is_asked_about_the_table_as_it_would_be_written() -> None:
    """That a dropped row leaves a hole is noticed; that it stands in no phase is only how it was dropped."""
    found = mutants()
    assert noticed_by_lint(found["cycle/IDLE/Judge/fires/drop-row"]) is not None
    quiet = found["cycle/PENDING/Judge/gate_complete+digest_split/drop-row"]
    assert noticed_by_lint(quiet) is None and isinstance(quiet.change, Table)
    assert lint(quiet.change, machine_class("cycle")) != []
    assert noticed_by_lint(found["gates.overdue/compare:co.now > due → co.now >= due"]) is None


def test_every_comparison_is_damaged_in_place_and_made_good() -> None:
    """The function stays the same object, so whoever holds it calls the damaged one."""
    before = {name: function.__code__ for name, (_, function) in deciding().items()}
    for damage in comparisons():
        function = deciding()[damage.function][1]
        with damage.in_place():
            assert function.__code__ != before[damage.function], damage.name
            assert function.__code__.co_firstlineno == before[damage.function].co_firstlineno
    assert {name: function.__code__ for name, (_, function) in deciding().items()} == before


def test_a_limit_becomes_strict() -> None:
    """M-15: exceeded strictly; the mutant stalls at the very instant."""
    name = "cycle.Cycle.attempts_used_up/compare:self.attempt >= MAX_ATTEMPTS → self.attempt > MAX_ATTEMPTS"
    damage = mutants()[name].change
    assert isinstance(damage, Comparison)
    hand = Hand(1)
    hand.co.cycle.attempt = 32

    assert hand.co.cycle.attempts_used_up(None)
    with damage.in_place():
        assert not hand.co.cycle.attempts_used_up(None)


def test_functions_that_decide_say_that_they_were_called() -> None:
    code, hand = gates.count_gate.__code__, Hand(1)
    with called() as found:
        assert found == set()
        gates.count_gate(hand.co)
        assert found == {"gates.count_gate"}
    assert gates.count_gate.__code__ is code and "_paceline_called" not in vars(gates)
