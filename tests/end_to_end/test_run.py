"""`paceline run`, with real processes: what it shows, how it ends, and that nothing outlives it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest

from paceline.backends.checkpoint import load_model
from paceline.backends.report import account, read_timeline
from paceline.core.policy_choice import KNOBS

from support.launcher import UNRULY, Command, fresh, left_over, paceline

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "digits.py"
EPOCHS = 4
FOREVER = "epochs=100000"


def run(*words: str, cwd: Path, script: str = UNRULY) -> tuple[int, Command]:
    """Run to the end, two ranks, then: exit code, and what it said."""
    options, arguments = [w for w in words if w.startswith("-")], [w for w in words if not w.startswith("-")]
    with paceline("run", "--ranks=2", *options, script, *arguments, cwd=cwd) as command:
        return command.end(), command


def training(*words: str) -> tuple[str, ...]:
    """Arguments of a run that goes on until somebody ends it, and tells its processes."""
    return ("run", "--ranks=2", "--debug", UNRULY, FOREVER, *words)


def test_the_example_is_a_whole_training_in_under_forty_lines(tmp_path: Path) -> None:
    """Unequal ranks, real data, one averaged model that each rank ends with, and every batch merged once (I42)."""
    with fresh("run", "--ranks=2", "--slow=1:3", str(EXAMPLE), cwd=tmp_path) as command:
        assert command.end() == 0, command.err
    assert command.err == []
    assert len(EXAMPLE.read_text().splitlines()) < 40
    results = sorted(line for line in command.out if line.startswith("[rank "))
    assert [line[:16] for line in results] == ["[rank 0] rank 0 ", "[rank 1] rank 1 "]
    scores = {float(line.split(": ")[1].split()[0]) for line in results}
    assert len(scores) == 1 and scores.pop() > 85.0
    assert any("440 of 440 batches" in line for line in command.out)
    records = read_timeline(tmp_path / "paceline-run" / "timeline.jsonl")
    found = account(records, 10)
    assert (found.lost, found.twice) == (0, 0)
    tensors, _ = load_model(tmp_path / "paceline-run" / "consensus.safetensors")
    assert sorted(tensors) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert json.loads((tmp_path / "paceline-run" / "rank-1.jsonl").read_text().splitlines()[-1])["state"] == "stopped"


def test_a_recorded_run_of_real_processes_replays_to_the_same_effects(tmp_path: Path) -> None:
    """I25, O-8: coordinator and ranks, each from its own process into one file; each decides the same again."""
    code, command = run("--record=run.jsonl", cwd=tmp_path, script=UNRULY)
    assert (code, command.err) == (0, [])
    with paceline("replay", "run.jsonl", cwd=tmp_path) as replay:
        assert replay.end() == 0
    assert sorted(line.split(":")[0] for line in replay.out) == ["coordinator 1", "rank 0.1", "rank 1.1"]
    assert all(line.endswith("the replay is the same") for line in replay.out)


def test_policies_of_ones_own_in_a_run_as_the_guide_says(tmp_path: Path) -> None:
    """B-30, B-40, O-1, O-8: the command of docs/guides/write-a-policy.md. The timeline and the record name what
    decided, and the replay loads it again; where it cannot be found the replay says what is missing."""
    page = (EXAMPLE.parents[1] / "guides" / "write-a-policy.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"paceline run --ranks 2 (--set .*) digits[.]py", page)
    policies = dict(word.split("=", 1) for word in said.split() if word != "--set")
    assert sorted(policies) == ["cadence", "detector", "guard", "meta_controller"]
    shutil.copy(EXAMPLE.parent / "own_policies.py", tmp_path)
    knobs = [f"--set={knob}={name}" for knob, name in policies.items()]
    code, command = run("--record=run.jsonl", *knobs, cwd=tmp_path)
    assert (code, command.err) == (0, [])
    records = read_timeline(tmp_path / "paceline-run" / "timeline.jsonl")
    (told,) = [record for record in records if record["event"] == "Policies"]
    assert {KNOBS[kind]: told[kind] for kind in KNOBS} == policies
    with paceline("replay", "run.jsonl", cwd=tmp_path) as replay:
        assert replay.end() == 0
    assert all(line.endswith("the replay is the same") for line in replay.out)
    (tmp_path / "own_policies.py").unlink()
    with paceline("replay", "run.jsonl", cwd=tmp_path) as replay:
        assert replay.end() == 2
    assert "there is no module 'own_policies' here; run from the directory that holds it" in replay.err[-1]


# --- a rank ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("misdeed", "said"), [
    ("kill=1", "rank 1 was ended by SIGKILL; the run goes on without it"),
    ("raise=1", "rank 1 ended with exit code 1: ValueError: boom [not markup]; the run goes on without it"),
])  # fmt: skip
def test_a_rank_that_ends_does_not_end_the_run(tmp_path: Path, misdeed: str, said: str) -> None:
    """M-17: the others train what it had not merged, and the exit code is that of the run."""
    os.mkfifo(tmp_path / "gate")
    words = ("run", "--ranks=2", UNRULY, misdeed, "gate=0", f"epochs={EPOCHS * 10}")
    with open(tmp_path / "gate", "r+b", buffering=0) as gate, paceline(*words, cwd=tmp_path) as command:
        command.until(f"^{re.escape(said)}$")
        gate.write(b"\n")
        assert command.end() == 0
    assert "[rank 0] done, 1600 steps together" in command.out
    found = account(read_timeline(tmp_path / "paceline-run" / "timeline.jsonl"), EPOCHS * 10)
    assert (found.merged, found.lost, found.twice) == (1600, 0, 0)


def test_the_traceback_of_a_script_is_shown_with_its_rank(tmp_path: Path) -> None:
    """On standard error, as it was, and the command's own line in the end says what it was."""
    code, command = run("raise=all", cwd=tmp_path)
    assert code == 1
    assert "[rank 0] Traceback (most recent call last):" in command.err
    assert "[rank 1] ValueError: boom [not markup]" in command.err
    assert command.err[-1].startswith("paceline: rank ")
    assert command.err[-1].endswith("ended with exit code 1: ValueError: boom [not markup]")


def test_a_rank_that_fails_before_the_training_ends_the_run(tmp_path: Path) -> None:
    """M-4: the others would wait for it until the join timeout."""
    code, command = run("import=1", cwd=tmp_path)
    assert code == 1
    expected = "paceline: rank 1 ended with exit code 1: ValueError: nothing works today, before the training began"
    assert command.err[-1] == expected


def test_a_script_without_a_session_is_told_what_it_lacks(tmp_path: Path) -> None:
    """It ended well, and yet nothing was trained."""
    script = tmp_path / "no_session.py"
    script.write_text("print('nothing to do')\n")
    code, command = run(cwd=tmp_path, script=str(script))
    assert code == 1
    assert command.err[-1].endswith("before the training began; does the script train with a paceline.Session?")


def test_a_script_that_fails_after_the_training_fails_the_command(tmp_path: Path) -> None:
    """The model is saved all the same, and the command says where."""
    code, command = run("late=0", cwd=tmp_path)
    assert code == 1
    assert command.err[-1] == "paceline: rank 0 ended with exit code 1: ValueError: too late"
    assert command.out[-1].endswith("the model is paceline-run/consensus.safetensors")


# --- Ctrl-C and worse ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_ends_the_run_with_its_model(tmp_path: Path, number: signal.Signals) -> None:
    """M-54: one last average, the consensus written, exit code 130, no process left."""
    with paceline(*training(), cwd=tmp_path) as command:
        children = command.children(2)
        command.until("trains")
        command.process.send_signal(number)
        assert command.end() == 130
        assert left_over([*children.values()]) == []
    assert "Traceback" not in "\n".join(command.err)
    assert sum("done, " in line for line in command.out) == 2
    assert read_timeline(tmp_path / "paceline-run" / "timeline.jsonl")[-1]["status"] == "stopped"
    load_model(tmp_path / "paceline-run" / "consensus.safetensors")


def test_the_second_interrupt_ends_every_process_at_once(tmp_path: Path) -> None:
    """Also when a rank hangs in its own code and would never come to an average."""
    with fresh(*training("hang=0"), cwd=tmp_path) as command:
        children = command.children(2)
        command.until("trains")
        command.process.send_signal(signal.SIGINT)
        command.until("stopping: ")
        command.process.send_signal(signal.SIGINT)
        assert command.end() == 130
        assert left_over([*children.values()]) == []
    assert command.err[-1] == "paceline: interrupted, every process was ended at once"


def test_an_interrupt_before_the_training_ends_at_once(tmp_path: Path) -> None:
    """There is nothing to save yet."""
    with fresh(*training(), cwd=tmp_path) as command:
        coordinator = int(command.until(r"the coordinator is process (\d+)")[1])
        command.process.send_signal(signal.SIGINT)
        assert command.end() == 130
        assert left_over([coordinator]) == []


def test_a_coordinator_that_is_killed_takes_the_run_with_it(tmp_path: Path) -> None:
    """W-21: the ranks save what they have; the exit code is that of a lost link."""
    with paceline(*training(), cwd=tmp_path) as command:
        children = command.children(2)
        command.until("trains")
        os.kill(children["the coordinator"], signal.SIGKILL)
        assert command.end() == 3
        assert left_over([*children.values()]) == []
    assert command.err[-1].startswith("paceline: the coordinator was ended by SIGKILL, the run cannot go on")


def test_nothing_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL leaves the launcher no time; a hanging rank would not notice anything by itself."""
    with fresh(*training("hang=0"), cwd=tmp_path) as command:
        children = command.children(2)
        command.until("trains")
        command.process.kill()
        command.end()
        assert left_over([*children.values()]) == []


# --- coordinate and join ---------------------------------------------------------------------------------------


def test_coordinate_and_join_are_the_same_run_by_hand(tmp_path: Path) -> None:
    """Token and run id are printed for who starts the ranks, and are all that they need."""
    with paceline("coordinate", "--ranks=1", "--bind=tcp://127.0.0.1:0", cwd=tmp_path) as coordinator:
        line = coordinator.until(r"PACELINE_TOKEN=(\w{64}) PACELINE_RUN_ID=(\w{32}) paceline join (\S+) train.py")
        known = {"PACELINE_TOKEN": line[1], "PACELINE_RUN_ID": line[2]}
        with paceline("join", "--rank=0", line[3], UNRULY, "epochs=2", cwd=tmp_path, **known) as rank:
            assert rank.end() == 0
        assert coordinator.end() == 0
    assert rank.out == ["trains", "done, 80 steps together"]
    assert coordinator.out[-1].startswith("80 of 80 batches in ")
    load_model(tmp_path / "paceline-run" / "consensus.safetensors")


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    """Exit code 3, and the line names the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with paceline("coordinate", "--ranks=1", f"--bind={url}", cwd=tmp_path) as command:
            assert command.end() == 3
    assert len(command.err) == 1 and url.removeprefix("tcp://") in command.err[0]
