"""The command line: one line and a documented exit code for whatever is wrong (docs/reference/exit-codes.md)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import paceline
from paceline.backends import cli, coordinate
from paceline.backends.console import Board, Display
from paceline.backends.launch import Kill
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigError, PacelineError, StallError
from paceline.core.events import HelloReceived
from paceline.core.tables import TABLES
from paceline.transports.journal_file import JournalFile

from support.words import hello

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script that is there, for commands that fail for another reason before they start it."""
    monkeypatch.chdir(tmp_path)
    for name in ("PACELINE_DEBUG", "PACELINE_TOKEN", "PACELINE_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text("raise SystemExit(99)\n")
    return "train.py"


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of `paceline WORDS`."""
    monkeypatch.setattr(sys, "argv", ["paceline", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


BAD = [
    (["run", "--ranks", "0", "train.py"], "--ranks 0 is not allowed: a run needs at least one rank"),
    (["run", "--ranks", "two", "train.py"], "'two' is not a whole number"),
    (["run", "train.py"], "missing option '--ranks'"),
    (["run", "--ranks", "2"], "missing argument 'SCRIPT'"),
    (["run", "--ranks", "2", "nowhere.py"], "there is no script 'nowhere.py'"),
    (["run", "--ranks", "2", "--policy", "bold", "train.py"], "policy = 'bold' is not allowed: choose one of sync"),
    (["run", "--ranks", "2", "--policy", "async", "--averager", "collective", "train.py"], "averager = 'collective'"),
    (["run", "--ranks", "2", "--slow", "1x3", "train.py"], "--slow '1x3' is not allowed: write RANK:FACTOR"),
    (["run", "--ranks", "2", "--slow", "2:3", "train.py"], "there is no rank 2, the ranks are 0 to 1"),
    (["run", "--ranks", "2", "--slow", "1:0.5", "train.py"], "--slow '1:0.5' is not allowed: a factor below 1"),
    (["run", "--ranks", "2", "--kill", "1-4s", "train.py"], "--kill '1-4s' is not allowed: write RANK@SECONDSs"),
    (["run", "--ranks", "2", "--set", "anchor", "train.py"], "--set 'anchor' is not allowed: write KNOB=VALUE"),
    (["run", "--ranks", "2", "--set", "ancor=3", "train.py"], "there is no knob 'ancor'"),
    (["run", "--ranks", "2", "--epochs", "-1", "train.py"], "num_epochs = -1 is not allowed"),
    (["demo", "--seeds", "0"], "--seeds 0 is not allowed: give 1 or more"),
    (["demo", "--epochs", "0"], "--epochs 0 is not allowed"),
    (["demo", "--kill", "2@4s"], "there is no rank 2"),
    (["join", "tcp://127.0.0.1:1", "train.py"], "PACELINE_TOKEN is not set"),
    (["join", "--slow", "0", "tcp://127.0.0.1:1", "train.py"], "--slow 0.0 is not allowed"),
    (["join", "--rank", "-1", "tcp://127.0.0.1:1", "train.py"], "--rank -1 is not allowed"),
    (["coordinate", "--ranks", "0"], "--ranks 0 is not allowed"),
    (["explain-table", "chair"], "there is no table 'chair'; the tables are worker, peer, cycle, run, joint"),
    (["run", "--ranks", "99999999", "train.py"], "--ranks 99999999 is not allowed: give 4,096 or less"),
    (["run", "--ranks", "2", "--kill", f"1@{'9' * 18}s", "train.py"], "no run lasts so long"),
    (["run", "--ranks", "2", "--kill", f"1@{'9' * 400}s", "train.py"], "write RANK@SECONDSs"),
    (["run", "--ranks", "2", "--set", f"seed={'[' * 9999}", "train.py"], "seed = "),
    (["coordinate", "--ranks", "99999999"], "--ranks 99999999 is not allowed"),
    (["coordinate", "--ranks", "1", "--run-dir", "train.py"], "--run-dir train.py cannot be written: file exists"),
    (["coordinate", "--ranks", "1", "--record", "."], "--record . is a directory"),
    (["coordinate", "--ranks", "1", "--journal", "train.py/j"], "--journal train.py cannot be written"),
    (["join", "--rank", "99999999", "tcp://127.0.0.1:1", "train.py"], "--rank 99999999 is not allowed"),
    (["demo", "--seeds", "99999999"], "--seeds 99999999 is not allowed: give 1,000,000 or less"),
    (["demo", "--out", "train.py"], "--out train.py cannot be written: file exists"),
    (["simulate", "--ranks", "1000000"], "ranks = 1000000 is not allowed: a simulated run has 1 to 256 of them"),
    (["simulate", "--seeds", "99999999"], "99999999 is not in the range"),
    (["simulate", "--processes", "99999999"], "99999999 is not in the range"),
    (["simulate", "--seed", "1", "--seeds", "2"], "--seed is one run and --seeds are many"),
    (["simulate", "--keep"], "--keep writes the schedule of one run: name it with --seed"),
    (["simulate", "--out", "train.py/x"], "--out train.py/x cannot be written: not a directory"),
    (["replay", "--until", "9" * 20, "train.py"], "is not in the range"),
    (["mutants", "--seed", "1"], "--seed is that of a --sample"),
    (["mutants", "--list", "--json", "x.json"], "--list tries no mutant"),
    (["mutants", "--quick", "--thorough"], "--quick asks little and --thorough all"),
    (["mutants", "--quick", "--layer", "a=b:c"], "--quick asks no --layer"),
    (["check", "--out", "train.py"], "--out train.py cannot be written: file exists"),
    (["run", "--ranks", "1", "--record", "-", "train.py"], "--record - is not allowed: what is written there is a"),
    (["run", "--ranks", "1", "--run-dir", "-", "train.py"], "--run-dir - is not allowed: what is written there"),
    (["coordinate", "--ranks", "1", "--record", "-"], "--record - is not allowed: what is written there is a file"),
    (["coordinate", "--ranks", "1", "--journal", "-"], "stream; name a file, such as ./- if it is called so"),
    (["coordinate", "--ranks", "1", "--run-dir", "-"], "--run-dir - is not allowed"),
    (["demo", "--out", "-"], "--out - is not allowed: what is written there is a folder and no stream; name a folder"),
    (["simulate", "--out", "-"], "--out - is not allowed"),
    (["check", "--out", "-"], "--out - is not allowed"),
    (["mutants", "--record", "-"], "--record - is not allowed"),
    (["race"], "no such command 'race'"),
    (["--fast"], "no such option"),
    (["simulate", "--seeds", "1e3"], "'1e3' is not a whole number; see paceline simulate --help"),
    (["simulate", "--bogus"], "no such option: --bogus; see"),
    (["simulate", "--seds", "3"], "no such option: --seds, but there is --seeds; see"),
]


@pytest.mark.parametrize(("words", "text"), BAD, ids=lambda value: value if isinstance(value, str) else None)
def test_what_is_not_allowed_is_one_line_and_exit_code_2(
    words: list[str], text: str, script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Section 15 and V-3: the line names the knob, the value and what to do; nothing is started."""
    assert call(monkeypatch, *words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("paceline: ") and err.count("\n") == 1
    assert text in err


@pytest.mark.parametrize(("words", "text"), [
    (("--json", "nowhere/x.json"), "--json nowhere/x.json: there is no directory nowhere; make it first"),
    (("--record", "README.md/x"), "--record README.md cannot be written: file exists"),
    (("--tests", "tests/nothing"), "--tests 'tests/nothing' is not allowed: there is no such file or folder in"),
])  # fmt: skip
def test_mutants_are_not_made_before_the_files_are_known_to_be_there(
    words: tuple[str, ...], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a checkout: an installed package is without its tests, and says so first."""
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.delenv("PACELINE_DEBUG", raising=False)
    assert call(monkeypatch, "mutants", *words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"paceline: {text}") and err.count("\n") == 1


@pytest.mark.parametrize("error", [StallError("nobody\nis left"), PacelineError("hm")])
def test_an_error_of_the_package_has_the_exit_code_of_its_class(
    error: PacelineError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However deep trio's groups have buried it, and on one line even if its text has two."""
    def fail(**_: object) -> None:
        raise ExceptionGroup("", [RuntimeError("other"), ExceptionGroup("", [error])])

    monkeypatch.setattr(cli.lint_tables, "callback", fail)
    monkeypatch.delenv("PACELINE_DEBUG", raising=False)
    assert call(monkeypatch, "lint-tables") == error.exit_code
    assert capsys.readouterr().err == f"paceline: {' '.join(str(error).split())}\n"


def test_what_nobody_expected_is_exit_code_1_and_a_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback appears with --debug only."""
    def fail(**_: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(cli.lint_tables, "callback", fail)
    monkeypatch.setenv("PACELINE_DEBUG", "0")
    assert call(monkeypatch, "lint-tables") == 1
    assert capsys.readouterr().err == "paceline: ZeroDivisionError: by nothing; this is a bug, please report it\n"
    assert call(monkeypatch, "--debug", "lint-tables") == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("debug", "knobs", "every_s"), [
    ("0", (), 120.0), ("1", (), 15.0), ("1", ("stall_dump_s=40",), 40.0),
])  # fmt: skip
def test_who_debugs_is_told_sooner_that_nothing_moves(
    monkeypatch: pytest.MonkeyPatch, debug: str, knobs: tuple[str, ...], every_s: float
) -> None:
    """M-3: every 120 s, and every 15 s where somebody debugs; a value that is set stays."""
    monkeypatch.setenv("PACELINE_DEBUG", debug)
    options: dict[str, Any] = dict.fromkeys(
        ("max_batch_diff", "epochs", "batch_size", "seed", "checkpoint_every", "eval_every", "resume")
    )
    with click.Context(cli.lint_tables):
        config = cli._config(2, policy="cadence", averager="star", knobs=knobs, **options)
    assert config.stall_dump_s == every_s


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As the package states it."""
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"paceline {paceline.__version__}\n"


def test_without_a_command_there_is_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody who only types the name wants to know what there is; a script that does so by mistake must notice."""
    assert call(monkeypatch) == 2
    assert "paceline demo" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(cli.cli.commands))
def test_every_command_has_a_help_page(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the name that a user types, and every option explained."""
    assert call(monkeypatch, name, "--help") == 0
    assert f"Usage: paceline {name}" in capsys.readouterr().out
    assert all(option.help for option in cli.cli.commands[name].params if isinstance(option, click.Option))


@pytest.mark.parametrize("group", [(), ("conform",)])
def test_each_command_has_one_line_that_is_not_cut(
    group: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a terminal of 80 columns: a list of commands whose lines end in dots says what none of them does."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    assert call(monkeypatch, *group, "--help") == 0
    lines = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    commands = cli.cli.commands["conform"] if group else cli.cli
    assert isinstance(commands, click.Group)
    assert [line.split()[0] for line in lines] == sorted(commands.commands)
    assert [line for line in lines if not line.endswith(".") or line.endswith("...")] == []


@pytest.mark.parametrize("name", list(TABLES))
def test_a_table_is_printed_cell_by_cell(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every phase has its paragraph."""
    assert call(monkeypatch, "explain-table", name) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.split(" ")[0] == phase.name for line in lines) for phase in TABLES[name].phases)


def test_the_tables_are_clean(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`make check` relies on this exit code."""
    assert call(monkeypatch, "lint-tables") == 0
    told = r"4 tables with \d+ rows: total, reachable, no dead row\nthe joint table with \d+ rows: in order, .*\n"
    assert re.fullmatch(told, capsys.readouterr().out)


def test_a_finding_in_a_table_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each."""
    monkeypatch.setattr("paceline.core.lint.lint", lambda table, _: [f"{table.name}: is odd"])
    assert call(monkeypatch, "lint-tables") == 1
    assert capsys.readouterr().out.splitlines() == [f"{name}: is odd" for name in TABLES]


def test_a_coordinator_listens_on_this_host_alone_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """N-28, section 15: loopback and port 1337."""
    bound: list[str] = []
    monkeypatch.setattr(coordinate, "coordinate", lambda config, bind, run_dir, **rest: bound.append(bind) or 0)
    for options in ([], ["--bind", "tcp://0.0.0.0:0"]):
        cli.cli.main(["coordinate", "--ranks", "1", *options], standalone_mode=False)
    assert bound == ["tcp://127.0.0.1:1337", "tcp://0.0.0.0:0"]


@pytest.mark.parametrize("command", [
    ["run", "--ranks", "2", "--set", "guard=nowhere_at_all:X", "train.py"],
    ["coordinate", "--ranks", "2", "--set", "cadence=nowhere_at_all:X"],
    ["simulate", "--seed", "1", "--set", "detector=nowhere_at_all:X"],
    ["check", "--set", "meta_controller=nowhere_at_all:X", "--set", "policy=cadence"],
])  # fmt: skip
def test_a_policy_that_cannot_be_loaded_is_said_before_anything_is_started(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line with the knob and the remedy; modules of this directory are found only meanwhile."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    before = list(sys.path)
    assert call(monkeypatch, *command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nowhere_at_all:X" in line and ("install it" in line or "leave it out" in line)
    assert sys.path == before and [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_slow_and_kill_are_read() -> None:
    """Whole and fractional, with and without the unit."""
    assert cli.parse_slow(["1:3", "0:1.5"], 2) == {1: 3.0, 0: 1.5}
    assert cli.parse_kill(["1@4s", "0@0.5"], 2) == [Kill(1, 4.0), Kill(0, 0.5)]
    with pytest.raises(ConfigError):
        cli.parse_slow(["1:inf"], 2)


def test_a_path_that_is_refused_is_blamed_on_the_option_that_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two options name a path, and the remedy is another value of the right one."""
    (tmp_path / "train.py").touch()
    (tmp_path / "taken").touch()
    monkeypatch.chdir(tmp_path)
    for option, path in (("--record", "."), ("--record", "/proc/none/r"), ("--run-dir", "taken")):
        assert call(monkeypatch, "run", "--ranks", "1", option, path, "train.py") == 2
        assert capsys.readouterr().err.startswith(f"paceline: {option} '{path}' cannot be used: ")


def test_the_help_loads_neither_torch_nor_trio() -> None:
    """It answers at once, and in an installation without the extras."""
    code = "import sys, paceline.backends.cli; sys.exit(bool({'torch', 'trio', 'rich'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False, env={**os.environ}).returncode == 0


# --- what is seen of a run -------------------------------------------------------------------------------------


STATUS = {
    "event": "Status", "t": 12.0, "cycle": 3, "run_phase": "training", "epoch": 1, "merged": 20, "total": 80,
    "ranks": [{"rank": 0, "steps": 30, "per_s": 12.5, "state": "training", "loss": 0.25}],
}  # fmt: skip


def test_the_board_is_one_line_where_there_is_no_terminal() -> None:
    """All that the live display shows: time, share, cycle, loss, and each rank."""
    board = Board("cadence")
    board.feed({"event": "PhaseChanged", "t": 10.0, "run_phase": "training"})
    board.feed({"event": "Cycle", "t": 11.0, "cycle": 3, "loss": {"0": 0.5, "1": None}})
    board.feed(STATUS)
    assert board.line() == "cadence:   2.0 s,  25 % merged, cycle 3; loss 0.500; rank 0 training, 30 steps, 12/s"


@pytest.mark.parametrize(("record", "told"), [
    ({"event": "Died", "rank": 1, "cause": "EOF"}, "rank 1 died (EOF); the others train what it had not merged"),
    ({"event": "Refused", "who": "host [a]", "why": "token"}, "refused host [a]: token"),
    ({"event": "Alert", "kind": "refused", "path": "rank 1", "text": "non-finite"}, "rank 1: non-finite"),
    ({"event": "Alert", "kind": "rank_lost", "path": "rank 1", "text": "EOF"}, None),
    ({"event": "EpochEnd", "epoch": 1}, None),
])  # fmt: skip
def test_a_person_is_told_once_what_matters(record: dict[str, object], told: str | None) -> None:
    """O-2: a death is an event and an alert, and one line."""
    assert Board().feed(record) == told


def test_output_of_ranks_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """With the rank in front, to the stream it was written to; brackets are no markup."""
    with Display() as display:
        display.line(0, "loss [bold]0.5[/bold] :smile:", error=False)
        display.line(1, "oh [red]no", error=True)
    out, err = capsys.readouterr()
    assert out == "[rank 0] loss [bold]0.5[/bold] :smile:\n"
    assert err == "[rank 1] oh [red]no\n"


@pytest.mark.parametrize(("words", "said"), [
    (("simulate", "--policy", "async", "--set", "policy=sync"), "given twice, by --policy and by --set policy"),
    (("check", "--policy", "async", "--set", "policy=sync"), "policy is given twice"),
    (("check", "--set", "anchor=1", "--set", "anchor=1"), "anchor is given twice, the second time by --set anchor=1"),
    (("coordinate", "--ranks", "2", "--epochs", "3", "--set", "num_epochs=4"), "by --epochs and by --set num_epochs=4"),
    (("coordinate", "--ranks", "2", "--journal", "a", "--set", "journal=b"), "by --journal and by --set"),
    (("coordinate", "--ranks", "2", "--resume", "a", "--set", "initial_state=b"), "by --resume and by --set"),
    (("coordinate", "--ranks", "2", "--set", "target_ranks=3"), "target_ranks is given twice, by --ranks and by --set"),
    (("run", "--ranks", "2", "--seed", "1", "--set", "seed=1", "x.py"), "seed is given twice, by --seed"),
])  # fmt: skip
def test_a_knob_that_is_given_twice_is_refused(words: tuple[str, ...], said: str) -> None:
    """As in a schedule: one of the two would be dropped without a word."""
    result = CliRunner().invoke(cli.cli, list(words), standalone_mode=False)
    assert isinstance(result.exception, ConfigError) and said in str(result.exception)


@pytest.mark.parametrize("harmed", [False, True])
def test_a_replay_says_whether_the_same_was_decided(
    harmed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """O-8: one line, and exit code 1 with the effect that differs."""
    coordinator = Coordinator(Config(batch_size=2, num_epochs=1, target_ranks=2))
    file = JournalFile(tmp_path / "j", coordinator)
    coordinator.handle(HelloReceived(4, hello(60, host="here")), 1.0)
    file.append(coordinator.take_ready())
    file.close()
    if harmed:
        (tmp_path / "j").write_text((tmp_path / "j").read_text().replace('["host","here"]', '["host","there"]'))
    assert call(monkeypatch, "replay", str(tmp_path / "j")) == (1 if harmed else 0)
    out = capsys.readouterr().out
    assert out.startswith("effect 1 differs" if harmed else "1 event, 3 effects: the replay is the same")
