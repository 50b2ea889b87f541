"""The count of taken rows: recorded by the suite, printed by `paceline coverage-tables`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.backends.cli import cli
from paceline.backends.table_coverage import read, report
from paceline.core.diagram import in_words
from paceline.core.engine import untaken
from paceline.core.errors import CheckpointError
from paceline.core.phases import WorkerPhase
from paceline.core.tables import RUN, TABLES, rows_in_words

from support.hand import Hand
from support.patience import PATIENCE_S
from support.rank import Rank
from support.taken import counted

ROOT = Path(__file__).parents[1]
TWO_TESTS = [
    "tests/core/machines/test_run.py::test_target_ranks_close_the_window_at_once",
    "tests/core/machines/test_run.py::test_too_few_ranks_fail_the_run_at_the_hard_limit_naming_who_came",
]


def record(path: Path, **tests: list[str]) -> Path:
    """A record in which every row of a table has the given tests; of a table that is not named, one each."""
    tables = {
        name: [{"row": told, "tests": tests.get(name, ["a.py::test_it"])} for told, _ in rows]
        for name, rows in rows_in_words().items()
    }
    path.write_text(json.dumps({"format": 1, "tables": tables}), encoding="utf-8")
    return path


def test_rows_in_words_are_all_different() -> None:
    """Otherwise a test of one row would pass for a test of another."""
    for rows in rows_in_words().values():
        assert len({told for told, _ in rows}) == len(rows)


def test_counting_inside_is_counted_outside_too() -> None:
    with counted(("run",)) as outer:
        with counted(("run", "cycle")) as inner:
            Hand(2).form()
        Hand(0, target_ranks=1)

    assert inner and {key for key in inner if key[0] == "run"} == set(outer)
    assert untaken(RUN, outer) and all(outer[key] >= inner[key] for key in outer)


def test_what_is_counted_is_nothing_that_a_machine_says_of_itself() -> None:
    """Errors quote machines, and two machines that are the same are told by the errors that they raise."""
    with counted():
        worker = Rank(WorkerPhase.TRAINING).worker
        before = repr(worker)
        Rank(WorkerPhase.TRAINING)
        assert repr(worker) == before


@pytest.mark.parametrize("processes", [0, 2])
def test_the_suite_records_which_test_takes_which_row(tmp_path: Path, processes: int) -> None:
    """Each of two processes takes one of the tests, and one file tells of both."""
    file = tmp_path / "deep" / "rows.json"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TWO_TESTS, "--table-coverage", str(file),
         "--numprocesses", str(processes), "--dist", "worksteal"],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

    taken = list(read(file)["run"].values())
    assert TWO_TESTS in taken and TWO_TESTS[1:] in taken and [] in taken
    assert all(set(names) <= set(TWO_TESTS) for names in taken)


def test_every_row_is_printed_with_kind_rule_and_tests(tmp_path: Path) -> None:
    many = [f"a.py::test_{number}" for number in range(5)]
    result = CliRunner().invoke(cli, ["coverage-tables", "--report", str(record(tmp_path / "r", cycle=many))],
                                standalone_mode=False)  # fmt: skip

    assert result.return_value == 0
    lines = result.output.splitlines()
    for table in TABLES.values():
        for row in table.rows:
            assert f"  {in_words(row)} [{row.kind.name.lower()}, {row.rule}]" in lines
    assert "      and 2 more" in lines and "      a.py::test_4" not in lines

    result = CliRunner().invoke(cli, ["coverage-tables", "--all", "--report", str(tmp_path / "r")],
                                standalone_mode=False)  # fmt: skip
    assert "      a.py::test_4" in result.output.splitlines()


def test_a_row_without_a_test_is_named_and_the_end_is_1(tmp_path: Path) -> None:
    """Also a row that was added after the record was made."""
    result = CliRunner().invoke(cli, ["coverage-tables", "--report", str(record(tmp_path / "r", run=[]))],
                                standalone_mode=False)  # fmt: skip
    assert result.return_value == 1 and f"no test: run: {in_words(RUN.rows[0])}" in result.output

    lines, missing = report({"run": {}}, {"run": RUN}, None)
    assert len(missing) == len(RUN.rows) and f"0 of {len(RUN.rows)} rows are taken by a test" in lines


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"format": 1, "tables": {"run": [{}]}}', '{"format": 2}'])
def test_what_is_no_record_is_told_with_the_remedy(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "r"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match="pytest tests/core --table-coverage"):
        read(file)
