"""`paceline mutants`: which tests a mutant is put to, what is reported, and a few mutants that really are tried."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from paceline.backends import mutant_runs as runs
from paceline.backends.cli import cli
from paceline.backends.mutant_report import Equivalent, Report, matches, read_equivalents
from paceline.backends.mutant_runs import Found, Record, joined, later_steps, steps
from paceline.core.errors import CheckpointError, ConfigError, InvariantError, PacelineError
from paceline.core.mutation import mutants

from support.mutation import Child, first

ROOT = Path(__file__).parents[2]
EQUIVALENTS = ROOT / "tests" / "mutants.toml"
RUN_TESTS, HAND_TESTS = "tests/core/machines/test_run.py", "tests/core/test_section17_actions.py"


def call(*arguments: str) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(cli, ["mutants", "--jobs", "1", *arguments], standalone_mode=False)


# --- a few are tried -------------------------------------------------------------------------------------------------


def test_a_sample_of_mutants_is_noticed_by_the_tests(tmp_path: Path) -> None:
    """Each is noticed, or tests/mutants.toml says why it cannot be; the same sample each time. One of them is written
    by hand (section 17) and put to the test that stands against it."""
    out = tmp_path / "out.json"
    only = ("run/FORMING/Formed/*", "run.Run.everyone_gone/*", "run/*/kind:*", "section/17.2 #15/*")
    options = [option for pattern in only for option in ("--only", pattern)]
    options += [option for path in (RUN_TESTS, HAND_TESTS) for option in ("--tests", path)]
    again = "again=paceline.core.mutation:noticed_by_lint"
    result = call(*options, "--sample", "12", "--seed", "10", "--json", str(out), "--layer", again,
                  "--record", str(tmp_path / "deep" / "record.json"))  # fmt: skip
    assert result.exception is None, result.exception
    assert result.return_value == 0, result.output

    report = json.loads(out.read_text(encoding="utf-8"))
    by_name = {line["mutant"]: line for line in report["mutants"]}
    assert len(by_name) == 12 and report["survivors"] == [] and report["killed"] == 1.0
    assert {line["outcome"] for line in by_name.values()} == {"killed", "equivalent"}
    assert {line["layer"] for line in by_name.values()} == {"lint", "row tests", "own tests", ""}
    old_way = by_name["section/17.2 #15/no_wait_for_the_last_result"]
    assert (old_way["place"], old_way["by"]) == ("section", "test_no_shutdown_overtakes_the_last_evaluation")


def test_a_dash_is_standard_output_and_the_report_is_alone_there(tmp_path: Path) -> None:
    """`--json - | jq`: the tables are on standard error then."""
    result = call("--only", "run/FORMING/Formed/*", "--tests", RUN_TESTS, "--sample", "1", "--quick", "--json", "-",
                  "--record", str(tmp_path / "record.json"))  # fmt: skip
    assert result.exception is None, result.exception
    assert len(json.loads(result.stdout)["mutants"]) == 1
    assert "1 mutant in" in result.stderr


def test_tests_that_cannot_start_are_told_in_one_line() -> None:
    with pytest.raises(PacelineError, match="the tests ended with status 4"):
        runs.Worker(ROOT, ["tests/core/there_is_no_such_test.py"])


def test_an_interrupt_while_tests_are_collected_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the command has started ends with it."""
    begun: list[subprocess.Popen[str]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *words: Any, **more: Any) -> None:
            super().__init__(*words, **more)
            begun.append(self)

    def presses(self: runs.Worker, job: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Noted)
    monkeypatch.setattr(runs.Worker, "ask", presses)
    with pytest.raises(KeyboardInterrupt):
        runs.Worker(ROOT, ["tests/test_layers.py"])
    (worker,) = begun
    assert worker.returncode == -signal.SIGTERM



# --- a child ---------------------------------------------------------------------------------------------------------


def forever() -> Iterator[Any]:
    """Says a word and never comes back."""
    yield {"word": 1}
    time.sleep(1000)


def dying() -> Iterator[Any]:
    """Ends without a goodbye."""
    yield {"word": 1}
    os._exit(3)


def broken() -> Iterator[Any]:
    """A fault of the runner."""
    yield {"word": 1}
    raise ZeroDivisionError


@pytest.mark.parametrize(("body", "error"), [(forever, TimeoutError), (dying, EOFError), (broken, RuntimeError)])
def test_a_child_that_does_not_end_well(body: Any, error: type[Exception]) -> None:
    """A mutant that never ends or kills its process is noticed; a fault of the runner is none of its merits."""
    words = []
    with Child(body) as child, pytest.raises(error):
        for word in child.lines(60.0):
            words.append(word)
            child.limit = 0.2 if body is forever else 60.0
    assert words == [{"word": 1}]


def busy() -> Iterator[Any]:
    """Uses the processor until an alarm ends it."""
    yield {"word": 1}
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.01)
    while True:
        pass


def test_a_test_that_is_no_quick_one_is_cut_short() -> None:
    """How its process ended tells it from a process that died of the mutant."""
    with Child(busy) as child, pytest.raises(EOFError):
        list(child.lines(None))
    assert child.status == signal.SIGVTALRM


# --- which tests -----------------------------------------------------------------------------------------------------


MUTANT = mutants()["run/FORMING/Formed/otherwise/target:same"]
(ROW,) = MUTANT.near
CUT_SHORT = Record(None, True, frozenset())
RECORDS = {
    "wide": Record(0.1, True, frozenset({ROW, "other", "third"})), "slow": Record(3.0, True, frozenset({ROW})),
    "narrow": Record(0.2, True, frozenset({ROW})), "far": Record(0.01, True, frozenset({"other"})),
    "red": Record(0.01, False, frozenset({ROW})), "long": Record(0.25, True, frozenset({ROW, "other"})),
}  # fmt: skip
TESTS = list(RECORDS)


def names(step: Any) -> list[str]:
    return [TESTS[number] for number, _ in step]


def test_quick_tests_that_come_to_the_row_are_asked_narrow_ones_first() -> None:
    """A test that never comes to the row cannot notice; one that fails without a mutant says nothing; of one that was
    cut short nothing is known. An equivalent is put to a moment of tests."""
    found = dict(steps(MUTANT, TESTS, {**RECORDS, "slow": CUT_SHORT}, known=False))
    assert list(found) == ["lint", "row tests"] and names(found["row tests"]) == ["narrow", "wide", "long"]
    assert all(limit > 5 + 10 * (RECORDS[TESTS[number]].seconds or 0.0) for number, limit in found["row tests"])
    assert names(dict(steps(MUTANT, TESTS, RECORDS, known=True))["row tests"]) == ["narrow", "wide"]
    assert steps(None, TESTS, RECORDS, known=False) == []


def test_who_is_not_noticed_then_is_put_to_whole_runs() -> None:
    """`thorough` asks every test; all of them have to be recorded to their end by then."""
    calls = {"more": "module:function"}
    found = dict(later_steps(MUTANT, TESTS, RECORDS, calls=calls))
    assert list(found) == ["whole runs", "more"] and names(found["whole runs"]) == ["slow"]
    assert found["more"] == "module:function"
    every = dict(later_steps(MUTANT, TESTS, RECORDS, calls=calls, thorough=True))
    assert list(every) == ["row tests", "whole runs", "more", "other tests"]
    assert names(every["row tests"]) == ["narrow", "wide", "long"] and names(every["other tests"]) == ["far"]
    assert later_steps(None, TESTS, RECORDS, calls=calls) == []
    with pytest.raises(InvariantError, match="slow was cut short"):
        later_steps(MUTANT, TESTS, {**RECORDS, "slow": CUT_SHORT}, calls={})


def test_what_became_of_a_mutant_in_the_end_is_what_whole_runs_said() -> None:
    found = [Found("a", "lint", "a hole", 0.1), Found("b", "", "", 1.0, 30), Found("c", "", "", 1.0, 20)]
    later = [Found("b", "whole runs", "a test", 2.0, 3), Found("c", "", "", 2.0, 4)]
    assert joined(found, later) == [found[0], Found("b", "whole runs", "a test", 3.0, 33), Found("c", "", "", 3.0, 24)]


def test_mutants_of_one_event_are_kin_and_those_of_one_module() -> None:
    found = mutants()
    kin = {mutant.kin for mutant in found.values() if mutant.name.startswith("cycle/") and "/Judge/" in mutant.name}
    assert kin == {"cycle/Judge"}
    assert found["gates.overdue/compare:co.now > due → co.now >= due"].kin == "gates"


def test_a_test_that_noticed_kin_is_asked_first() -> None:
    """The last that noticed before the others, then the tests of their files, likewise; the rest in their order, and
    functions as they are."""
    files = ["x", "a", "b", "x", "a", "b", "x", "x", "x", "b"]
    step = [(3, 5.0), (1, 5.0), (4, 5.0), (2, 5.0), (5, 5.0)]
    assert [number for number, _ in first(step, [2, 9, 1], files)] == [2, 1, 5, 4, 3]
    assert first("module:function", [2], files) == "module:function"


def test_a_guard_is_put_to_tests_of_the_rows_below_it() -> None:
    """A row that asks for less takes from those that come after it in a cell."""
    found = mutants()
    row = "cycle/PENDING/Judge/gate_complete+digest_split"
    assert found[f"{row}/drop-guard:digest_split"].near == (
        row, "cycle/PENDING/Judge/gate_complete", "cycle/PENDING/Judge/otherwise",
    )  # fmt: skip
    assert found[f"{row}/drop-effect:settle_digests"].near == (row,)


# --- what is said ----------------------------------------------------------------------------------------------------


def report(*equivalents: Equivalent) -> Report:
    """Three mutants, of which the lint notices one."""
    found = [
        Found("t/a/kind", "lint", "a hole", 0.1), Found("t/b/kind", "", "", 2.0, 5), Found("t/c/drop", "", "", 2.0, 7),
    ]  # fmt: skip
    operators = {"t/a/kind": "kind", "t/b/kind": "kind", "t/c/drop": "drop-row"}
    return Report(found, dict.fromkeys(operators, "t"), operators, equivalents, 4.0, 7.0, 2)


def test_what_is_not_noticed_is_a_survivor_unless_it_is_explained() -> None:
    assert report().survivors == ["t/b/kind", "t/c/drop"]
    explained = report(Equivalent("t/*/kind", "nobody reads it"))
    assert explained.survivors == ["t/c/drop"] and explained.stale == []
    assert [line["outcome"] for line in json.loads(explained.json())["mutants"]] == ["killed", "equivalent", "survived"]
    assert json.loads(explained.json())["killed"] == 0.5


def test_a_line_that_explains_nothing_any_more_is_stale() -> None:
    """A line about mutants that were not tried is not, and neither is one of whose mutants a sample tried some."""
    lines = (Equivalent("t/a/*", "no"), Equivalent("other/*", "no"))
    assert report(*lines).stale == ["t/a/*"]
    assert attrs.evolve(report(*lines), places=dict.fromkeys(("t/a/kind", "t/a/drop"), "t")).stale == []


def test_the_report_is_printed_by_place_and_by_damage() -> None:
    console = Console(record=True, width=150, file=io.StringIO())
    report(Equivalent("t/b/*", "no"), Equivalent("t/a/*", "no")).show(console)
    text = console.export_text()

    assert "not noticed: t/c/drop" in text and "not noticed: t/b/kind" not in text
    assert "stale, it is noticed: t/a/*" in text and "drop-row" in text
    assert "3 mutants in 4 s, 2 at a time, 7 s of processor time, 12 tests asked: 50.0% of those that are not" in text
    assert "equivalent are noticed, 1 is not" in text


def test_only_the_star_means_something_in_a_pattern() -> None:
    assert matches("a[0]*c+d", "a[0] b c+d") and not matches("a[0]", "a0") and not matches("a", "ab")


# --- the file of equivalents -----------------------------------------------------------------------------------------


def test_every_line_of_the_file_names_a_mutant_that_is_made() -> None:
    """A line whose row is gone, or was renamed, explains nothing."""
    lines = read_equivalents(EQUIVALENTS)
    assert [line.mutant for line in lines if not any(matches(line.mutant, name) for name in mutants())] == []
    assert len({line.mutant for line in lines}) == len(lines)


@pytest.mark.parametrize("text", ["[[equivalent]]\nmutant = 'a'", "[[equivalent]]\nmutant = 'a'\nreason = ''", "[["])
def test_a_line_without_a_reason_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mutants.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match="reason"):
        read_equivalents(file)


# --- options ---------------------------------------------------------------------------------------------------------


def test_names_can_be_listed() -> None:
    result = call("--list", "--table", "gates")
    assert result.return_value == 0
    assert result.output.splitlines() == [name for name, mutant in mutants().items() if mutant.place == "gates"]


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    first, again, other = (call("--list", "--table", "run", "--sample", "5", "--seed", seed).output for seed in "112")
    assert first == again != other and len(first.splitlines()) == 5


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--table", "ru"], "--table 'ru' is not allowed"),
        (["--only", "nothing"], "--only nothing matches no mutant"),
        (["--layer", "function"], "write NAME=MODULE:FUNCTION"),
    ],
)
def test_a_wrong_option_is_told_with_what_is_right(arguments: list[str], told: str) -> None:
    result = call("--list", *arguments)
    assert isinstance(result.exception, ConfigError) and told in str(result.exception)


def test_outside_a_checkout_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is installed is without the tests."""
    monkeypatch.setattr(runs, "__file__", str(tmp_path / "paceline" / "backends" / "mutant_runs.py"))
    monkeypatch.chdir(tmp_path)
    result = call()
    assert isinstance(result.exception, ConfigError)
    assert "run it in the root of a checkout" in str(result.exception) and "\n" not in str(result.exception)
