"""Stop a run and go on with it, with real processes: nothing is trained twice, nothing is left out (I52, K-12)."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.backends.bundle import read_bundle
from paceline.backends.checkpoint import load_model
from paceline.backends.report import account, read_timeline

from support.launcher import UNRULY, paceline

RUN = "paceline-run"
SEED = "--seed=3"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run of two ranks was interrupted while it trained. Every test goes on from a copy of its own."""
    where = tmp_path_factory.mktemp("stopped")
    with paceline("run", "--ranks=2", SEED, UNRULY, "epochs=100000", cwd=where) as command:
        command.until("trains")
        command.process.send_signal(signal.SIGINT)
        assert command.end() == 130, command.err
    return where


@pytest.fixture
def record(stopped: Path, tmp_path: Path) -> dict[str, Any]:
    """The meta record of the stopped run, whose files are in `tmp_path` now."""
    shutil.copytree(stopped / RUN, tmp_path / RUN)
    found: dict[str, Any] = json.loads((tmp_path / RUN / "consensus.meta.json").read_text())
    return found


def test_every_batch_is_merged_exactly_once_over_both_runs(tmp_path: Path, record: dict[str, Any]) -> None:
    """I52: SIGINT, then --resume with another number of ranks; the one timeline tells of both runs."""
    epochs = record["last_closed_epoch"] + 4
    assert record["version"] > 0 and record["global_step"] > 0
    command = ("run", "--ranks=3", SEED, "--resume", RUN, UNRULY, f"epochs={epochs}")
    with paceline(*command, cwd=tmp_path) as second:
        assert second.end() == 0, second.err
    together = sum(f"done, {epochs * 40} steps together" in line for line in second.out)
    assert together == 3, "the schedule position went on"
    found = account(read_timeline(tmp_path / RUN / "timeline.jsonl"), epochs)
    assert (found.merged, found.lost, found.twice) == (epochs * 40, 0, 0)
    after = json.loads((tmp_path / RUN / "consensus.meta.json").read_text())
    assert after["version"] > record["version"] and after["global_step"] == epochs * 40


def test_a_resumed_run_starts_from_the_model_that_was_saved(tmp_path: Path, record: dict[str, Any]) -> None:
    """M-6, K-12: with nothing left to train, what the second run saves is what it was given, bit for bit."""
    done = record["last_closed_epoch"] + 1
    before, _ = load_model(tmp_path / RUN / "consensus.safetensors")
    command = ("run", "--ranks=2", SEED, "--resume", RUN, "--run-dir=again", UNRULY, f"epochs={done}")
    with paceline(*command, cwd=tmp_path) as second:
        assert second.end() == 0, second.err
    after, _ = load_model(tmp_path / "again" / "consensus.safetensors")
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    assert read_bundle(tmp_path / "again").resume.global_step == record["global_step"]


@pytest.mark.usefixtures("record")
def test_what_cannot_be_resumed_is_one_line(tmp_path: Path) -> None:
    """K-12: exit code 7, both values, and no process is started."""
    refusals = {
        "--seed=4": "seed: the run that is resumed had 3, this one has 4",
        "--batch-size=5": "batch_size: the run that is resumed had 8, this one has 5",
        "--set=epoch_splits=2": "epoch_splits: the run that is resumed had 1, this one has 2",
    }
    for option, said in refusals.items():
        with paceline("run", "--ranks=2", "--resume", RUN, option, UNRULY, cwd=tmp_path) as command:
            assert command.end() == 7
        assert len(command.err) == 1 and said in command.err[0]
    weights = tmp_path / RUN / "consensus.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with paceline("run", "--ranks=2", "--resume", RUN, UNRULY, cwd=tmp_path) as command:
        assert command.end() == 7
    assert "SHA-256" in command.err[0] and len(command.err) == 1
    with paceline("coordinate", "--ranks=2", "--resume=nowhere", "--bind=tcp://127.0.0.1:0", cwd=tmp_path) as command:
        assert command.end() == 7
    assert "cannot be read" in command.err[-1]
