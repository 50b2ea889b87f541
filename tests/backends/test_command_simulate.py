"""`paceline simulate` and `paceline replay` of a schedule: what they print, write and end with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.backends import command_simulate
from paceline.backends.cli import cli
from paceline.backends.endings import INTERRUPTED, end
from paceline.core.cycle import Cycle
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.simulation.schedule import Schedule, ScheduleError
from paceline.core.simulation.simulator import Case, Outcome

SMALL = ("--ranks", "3", "--processes", "1")


def call(*words: str) -> tuple[int, str]:
    """Exit code and output; an error of ours is raised."""
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value or 0, done.output


def test_a_run_that_breaks_off_is_no_end_of_the_campaign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a run raises may be what ends a loop; the runs behind it were never made, and all seemed well."""

    def stops(case: object, codec: object, watch: object) -> None:
        raise StopIteration

    monkeypatch.setattr("paceline.core.simulation.simulator.simulate", stops)
    with pytest.raises(RuntimeError, match="seed 0"):
        call("simulate", *SMALL, "--seeds", "3", "--out", str(tmp_path))


def test_a_campaign_says_what_it_came_upon(tmp_path: Path) -> None:
    code, out = call("simulate", *SMALL, "--seeds", "3", "--out", str(tmp_path / "none"))

    assert code == 0
    assert out.startswith("3 runs of 3 ranks, faults storm: ")
    assert "\na rank died" in out and "\nnever reached: " in out
    assert out.endswith("every invariant holds\n")
    assert not (tmp_path / "none").exists()


def test_processes_change_nothing_of_the_result() -> None:
    words = ("simulate", "--ranks", "2", "--seeds", "4", "--faults", "flaky", "--policy", "sync", "--json")
    alone, together = call(*words, "--processes", "1"), call(*words, "--processes", "2")

    assert alone == together
    facts = json.loads(alone[1])
    assert facts["seeds"] == 4 and facts["failures"] == []


def test_a_failure_leaves_a_short_schedule_that_replays_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Cycle, "gate_complete", lambda self, event: self.owing == 0 if self.forming else True)
    code, out = call("simulate", "--ranks", "2", "--seed", "1", "--faults", "calm", "--out", str(tmp_path))
    file = tmp_path / "seed-1.schedule"
    schedule = Schedule.parse(file.read_text())

    assert code == 1
    assert f"schedule of seed 1: {file}, for `paceline replay`" in out and f"{file} is being shortened\n" in out
    assert schedule.breaks is not None and f"seed 1: {schedule.breaks}" in out
    code, told = call("replay", str(file))
    assert code == 0, "it breaks what the file says that it breaks"
    assert told.splitlines()[-1].startswith(f"{schedule.breaks} is broken")
    monkeypatch.undo()
    code, told = call("replay", str(file))
    assert code == 1 and "was expected to break and holds" in told


def test_a_failure_is_kept_before_the_campaign_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody sees that a run has failed and presses Ctrl-C: what was found is there, whole."""
    monkeypatch.setattr(Cycle, "gate_complete", lambda self, event: self.owing == 0 if self.forming else True)
    run = command_simulate._run

    def interrupted(case: Case, watch: object = None) -> Outcome:
        if case.seed == 1:
            raise KeyboardInterrupt
        return run(case)

    monkeypatch.setattr(command_simulate, "_run", interrupted)
    words = ["simulate", "--ranks", "2", "--seeds", "2", "--processes", "1", "--faults", "calm", "--out", str(tmp_path)]
    with pytest.raises(BaseExceptionGroup) as raised:
        cli.main(words, standalone_mode=False)
    schedule = Schedule.parse((tmp_path / "seed-0.schedule").read_text())
    assert schedule.breaks is not None and f"seed 0: {schedule.breaks}" in capsys.readouterr().err
    assert end(raised.value) == INTERRUPTED


def test_a_run_can_be_kept_replayed_and_drawn(tmp_path: Path) -> None:
    call("simulate", *SMALL, "--seed", "2", "--keep", "--set", "anchor=3", "--out", str(tmp_path))
    file = str(tmp_path / "seed-2.schedule")
    code, whole = call("replay", file)
    _, part = call("replay", file, "--until", "5", "--explain")
    _, drawn = call("replay", file, "--diagram")

    assert code == 0 and "\nknob anchor 3\n" in Path(file).read_text()
    assert whole.splitlines()[:5] == part.splitlines()[:5]
    assert "E" in part.splitlines()[-2] and part.splitlines()[-1].startswith("stopped at ")
    assert drawn.startswith("sequenceDiagram\n    participant C as coordinator\n")
    assert drawn.splitlines()[-1].startswith("%% every invariant holds")


def test_a_long_run_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command_simulate, "SINGLE_S", 0.0)
    done = CliRunner().invoke(cli, ["simulate", "--seed", "3", "--ranks", "1", "--out", str(tmp_path)])
    assert "\nsimulating seed 3: 10 events, " in done.stderr and " s of virtual time, " in done.stderr
    quiet = CliRunner().invoke(cli, ["simulate", "--seed", "3", "--ranks", "1", "--json", "--out", str(tmp_path)])
    assert "simulating" not in quiet.stderr


def test_what_is_not_allowed_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.schedule"
    bad.write_text("paceline schedule 1\n0.0 fly 1\n")

    with pytest.raises(ConfigError, match="choose one of calm"):
        call("simulate", "--faults", "rain")
    with pytest.raises(ConfigError, match="no knob 'speed'"):
        call("simulate", "--set", "speed=1")
    with pytest.raises(ConfigError, match="gamma = 'x' is not allowed: a number is wanted"):
        call("simulate", "--set", "gamma=x")
    with pytest.raises(ConfigError, match="'pigeon' cannot be simulated: choose one of star, collective"):
        call("simulate", "--set", "averager=pigeon")
    with pytest.raises(ScheduleError, match="line 2: there is no action 'fly'"):
        call("replay", str(bad))
    with pytest.raises(CheckpointError, match="cannot be read"):
        call("replay", str(tmp_path / "nothing"))
    bad.write_text("model: resnet\n")
    with pytest.raises(CheckpointError, match="begins with 'model: resnet', and is neither a schedule, nor"):
        call("replay", str(bad))
