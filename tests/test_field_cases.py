"""Every fault of the list docs/field_cases.toml is shown by a test that cites it, or says what it waits for.

Which tests cite an id is found as for rules (test_rules.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from support.by_path import loaded

ROOT = Path(__file__).parents[1]
WORDS = ("*.py", "*.schedule", "*.toml")
"""Files of the tests in which an id may stand."""


@pytest.fixture(scope="module")
def cases() -> ModuleType:
    return loaded(ROOT / "docs" / "field_cases.py")


@pytest.fixture(scope="module")
def rules() -> ModuleType:
    return loaded(ROOT / "docs" / "rules.py")


def test_every_case_is_shown_by_a_test_or_says_what_it_waits_for(cases: ModuleType, rules: ModuleType) -> None:
    """And none waits that need not: `open` names a feature that rules wait for too, and no test cites the id."""
    tests = rules.test_citations(cases.cited)

    assert cases.faults(cases.cases().values(), tests, rules.features()) == []


@pytest.mark.parametrize("folder", ["tests", "core", "transports", "backends"])
def test_every_id_that_stands_anywhere_is_a_case(cases: ModuleType, folder: str) -> None:
    """In docstrings of modules, in helpers and in schedules too: a mistyped id leads nowhere."""
    files = sorted(path for pattern in WORDS for path in (ROOT / folder).rglob(pattern))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").replace('"""', " ") for path in files}
    unknown = {name: file for file, text in texts.items() for name in cases.cited(text) - cases.cases().keys()}

    assert files and unknown == {}, "add it to docs/field_cases.toml"


def test_every_case_has_its_lines_and_its_sources(cases: ModuleType) -> None:
    known = cases.cases().values()
    assert len({case.kind for case in known}) == len({case.title for case in known})
    for case in known:
        assert cases.cited(case.id) == {case.id} and re.fullmatch(r"C\d+", case.kind), case.id
        assert case.title and case.fault.endswith(".") and bool(case.here) is not bool(case.open), case.id
        assert not case.here or case.here.endswith("."), case.id
        assert case.sources and len(set(case.sources)) == len(case.sources), case.id
        assert all(cases.link(source).startswith("[") for source in case.sources)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Field case F13, N-4; F07 (b): and\nF93.", {"F13", "F07", "F93"}),
        ("F1, F123, F13x, UTF-F13, xF13, F13-2, BF16", set()),
        ("'F16', \"F32\" and `F64` are dtypes of a file", set()),
    ],
)
def test_what_counts_as_a_citation_of_a_case(cases: ModuleType, text: str, ids: set[str]) -> None:
    assert cases.cited(text) == ids


# --- what is noticed ------------------------------------------------------------------------------------------------

NAMED = ("tests/core/test_x.py", "test_that_shows_it")


def test_a_case_is_missed_when_no_test_cites_it_any_more(cases: ModuleType) -> None:
    known = cases.cases()
    closed = [name for name, case in known.items() if not case.open]
    features = {case.open for case in known.values()}
    for name in closed:
        tests = {other: [NAMED] for other in closed if other != name}
        (fault,) = cases.faults(known.values(), tests, features)
        assert fault.startswith(f"{name} is cited by no test")


def test_an_open_case_is_noticed_when_it_is_shown_and_when_its_feature_is_there(cases: ModuleType) -> None:
    known = cases.cases()
    closed = {name: [NAMED] for name, case in known.items() if not case.open}
    waiting = [case for case in known.values() if case.open]
    assert waiting
    for case in waiting:
        (shown,) = cases.faults(known.values(), {**closed, case.id: [NAMED]}, {each.open for each in waiting})
        assert shown.startswith(f"{case.id} is shown by a test")
    there = cases.faults(known.values(), closed, set())
    assert [fault.partition(" ")[0] for fault in there] == [case.id for case in waiting]
    assert all("no rule waits for that any more" in fault for fault in there)


def test_an_id_that_nobody_knows_is_noticed(cases: ModuleType) -> None:
    (fault,) = cases.faults([], {"F" + "00": [NAMED]}, set())

    assert fault.startswith("F" + "00 is cited by a test: add it")


MODULE = '''
"""Cases F13 and F16."""
import pytest

{test}
'''
SHOWN = '''
@pytest.mark.parametrize("case", ["F17"])
def test_that_shows_it(case):
    """F13 (a): in these words."""
    # F18: beside them
    assert case, "F19: what is wrong"
'''


@pytest.mark.parametrize(("test", "ids"), [(SHOWN, {"F13", "F18", "F19"}), ("", set())], ids=["there", "taken away"])
def test_a_case_goes_with_its_test(
    cases: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str, ids: set[str]
) -> None:
    """What the module says of itself would stay, and data are no words."""
    rules = loaded(ROOT / "docs" / "rules.py")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(MODULE.format(test=test), encoding="utf-8")
    monkeypatch.setattr(rules, "ROOT", tmp_path)

    found = rules.test_citations(cases.cited)
    assert found == {name: {("tests/test_x.py", "test_that_shows_it")} for name in ids}


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_has_a_row_for_each_case_with_what_is_known_of_it(cases: ModuleType) -> None:
    known = cases.cases()
    name, waiting = next(iter(known)), next(case for case in known.values() if case.open)
    shown = {name: [NAMED, ("tests/core/test_x.py", "test_too")]}
    page = cases.page(shown, lambda header, rows: repr(list(rows)), str)

    assert [each for each in known if page.count(f'<a id="{each.lower()}"></a>{each}') != 1] == []
    assert "[core/test_x.py](../../tests/core/test_x.py): `test_that_shows_it`, `test_too`" in page
    assert f"Open: waits for {waiting.open}." in page and f"[{waiting.id}](#{waiting.id.lower()})" in page
    assert all(cases.link(source) in page for case in known.values() for source in case.sources)


def test_a_source_is_a_thread_or_a_commit(cases: ModuleType) -> None:
    whole = "0123456789" * 4
    assert cases.link("a/b.c#7") == "[a/b.c#7](https://github.com/a/b.c/issues/7)"
    assert cases.link(f"a/b@{whole}") == f"[a/b@0123456](https://github.com/a/b/commit/{whole})"
    for odd in ("a/b", "a#7", f"a/b@{whole[1:]}", "https://github.com/a/b/issues/7"):
        with pytest.raises(SystemExit, match="neither"):
            cases.link(odd)
