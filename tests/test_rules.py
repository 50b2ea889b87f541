"""Every rule of the protocol is known by its id, cited by what obeys it and checked by a test (docs/rules.toml)."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from support.by_path import loaded

ROOT = Path(__file__).parents[1]
ADD_A_LINE = "add a line to docs/rules.toml"
FAMILIES = set("CWGBDMRKNOVI") | {"17.1", "17.2"}
OF_THE_WHOLE = {"Invariants", "Faults of earlier systems"}
"""Groups of docs/rules.toml."""
WAITING = ["I65"]
"""Invariants of features that do not exist yet."""
OLD_WAYS = [f"support.{path.stem}" for path in sorted((ROOT / "tests" / "support").glob("old_ways_*.py"))]
"""Modules of mutants written by hand."""


@pytest.fixture(scope="module")
def rules() -> ModuleType:
    return loaded(ROOT / "docs" / "rules.py")


def test_every_rule_in_force_has_a_test_that_cites_it(rules: ModuleType) -> None:
    """A rule without a test is an intention. One whose feature does not exist says so with `later`."""
    tested = rules.test_citations()
    missing = [rule.id for rule in rules.rules().values() if not rule.later and rule.id not in tested]

    assert missing == [], "cite the id in the test that checks it, or write the test"


def test_every_rule_in_force_has_a_row_or_code_that_cites_it(rules: ModuleType) -> None:
    """Issue 3: from a rule one comes to what obeys it. Invariants and faults of earlier systems are kept by the whole,
    and have tests."""
    kept = rules.rows().keys() | rules.code_citations().keys()
    of_one_place = [rule for rule in rules.rules().values() if rule.group not in OF_THE_WHOLE]
    missing = [rule.id for rule in of_one_place if not rule.later and rule.id not in kept]

    assert {rule.group for rule in rules.rules().values()} >= OF_THE_WHOLE
    assert missing == [], "cite the id where it is kept: in the rule of a row, a docstring or a comment"


def test_every_invariant_of_section_16_has_a_property_test_that_names_it(rules: ModuleType) -> None:
    """Issue 3: inputs are drawn, not chosen. I65 waits for outer optimizers, as docs/rules.toml says with `later`."""
    invariants = [rule for rule in rules.rules().values() if re.fullmatch(r"I\d+", rule.id)]
    missing = [rule.id for rule in invariants if not rule.later and rule.id not in rules.property_citations()]

    assert [rule.id for rule in invariants if rule.later] == WAITING
    assert len(invariants) == 66 and missing == [], "cite it in the docstring of a test with @given, or write one"


def test_every_old_way_of_section_17_is_put_back_by_a_mutant(rules: ModuleType) -> None:
    """Issue 4: a fault that somebody had is the likeliest to come back; `paceline mutants --table section` shows that
    each is noticed."""
    found = {row for module in OLD_WAYS for row in importlib.import_module(module).OLD_WAYS.rows.values()}

    assert [name for name in rules.rules() if name.startswith("17.") and name not in found] == []


@pytest.mark.parametrize("where", ["code_citations", "test_citations", "rows"])
def test_every_id_that_is_cited_is_a_rule(rules: ModuleType, where: str) -> None:
    """A mistyped id leads nowhere."""
    unknown = {name: sorted(places) for name, places in getattr(rules, where)().items()
               if name not in rules.rules()}  # fmt: skip

    assert unknown == {}, ADD_A_LINE


def test_every_row_of_every_table_comes_from_a_rule(rules: ModuleType) -> None:
    from paceline.core.tables import TABLES

    without = [(name, row) for name, table in TABLES.items() for row in table.rows if not rules.cited(row.rule)]

    assert without == []


def test_every_rule_has_a_title_of_one_line_and_belongs_to_a_family(rules: ModuleType) -> None:
    for rule in rules.rules().values():
        family = rule.id.partition(" ")[0] if "#" in rule.id else rule.id.rstrip("0123456789").rstrip("-")
        assert family in FAMILIES, rule.id
        assert rules.cited(rule.id) == {rule.id}, f"{rule.id} cannot be cited as it is written"
        assert rule.title.strip() == rule.title != "" and "\n" not in rule.title
        assert rule.title.endswith("."), rule.id


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("C-15.7, then I44 (D-14)", {"C-15", "I44", "D-14"}),
        ("17.1 #1 and #3, and 17.2 #4", {"17.1 #1", "17.1 #3", "17.2 #4"}),
        ("17.1 #9, G-4", {"17.1 #9", "G-4"}),
        ("ISO-8601, UTF-8, N-th, I, 0..N-1x, pre-C-15, _i45_steps, I4x", set()),
    ],
)
def test_what_counts_as_a_citation(rules: ModuleType, text: str, ids: set[str]) -> None:
    assert rules.cited(text) == ids


SOURCE = '''
"""About C-1."""
X = 1
"""What X is for (C-2)."""

class A:
    field = 2  # C-3

    def go(self):
        """C-4."""
        return Row(1, "x", rule="C-9", note="C-5")
'''


def test_a_citation_is_placed_by_its_symbol_and_not_by_its_line(rules: ModuleType) -> None:
    """A page with line numbers would change with every line above them, and no two branches could both change it."""
    places = {name: symbol for symbol, text in rules._pieces(SOURCE) for name in rules.cited(text)}

    assert places == {"C-1": "", "C-2": "X", "C-3": "A.field", "C-4": "A.go", "C-5": "A.go"}
    moved = SOURCE.replace("\nclass", "\n\n\nclass")
    assert sorted(rules._pieces(moved)) == sorted(rules._pieces(SOURCE))


def test_the_page_names_rows_code_and_tests_of_a_rule(rules: ModuleType) -> None:
    page = rules.page()
    entry = page[page.index("### C-12\n") : page.index("### C-13\n")]

    assert "- row of [cycle](../machines/cycle.md): `pending: Judge if gate_complete → idle (finish)`" in entry
    assert "- code: `core/cycle.py`: `Cycle.gate_complete`" in entry
    assert "`test_only_acks_of_this_attempt_finish_a_cycle`" in entry
    assert [rule.id for rule in rules.rules().values() if f"### {rule.id}\n" not in page] == []


def test_a_rule_that_waits_says_for_what(rules: ModuleType) -> None:
    page = rules.page()
    waiting = [rule for rule in rules.rules().values() if rule.later]

    for rule in waiting:
        assert f"### {rule.id}\n\n{rule.title}\n\n- waits for: {rule.later}" in page


def test_a_rule_of_which_a_part_waits_says_which_and_for_what(rules: ModuleType) -> None:
    """K-7, K-11: a rule in force that is not built as a whole must not read as if it were."""
    page = rules.page()
    known = rules.rules().values()
    parts = [(rule, part, feature) for rule in known for part, feature in rule.lacks]

    assert {"K-7", "K-11"} <= {rule.id for rule, _, _ in parts}
    assert {feature for _, _, feature in parts} <= {rule.later for rule in known}, "a feature that is still to come"
    for rule, part, feature in parts:
        assert not rule.later
        assert f"### {rule.id}\n\n{rule.title}\n\n- without {part}: that waits for {feature}" in page
        assert re.search(rf"^- {feature}: .*; a part of .*\[{rule.id}\]", page, re.M)
