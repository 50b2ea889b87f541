"""Stop a run and go on with it, with real processes: nothing is trained twice, nothing is left out (I52, K-12)."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import torch

from paceline.backends.bundle import read_bundle
from paceline.backends.checkpoint import load_model
from paceline.backends.report import account, read_timeline

from support.launcher import UNRULY, paceline

RUN = "paceline-run"


def stop_in_the_middle(where: Path, *options: str) -> dict[str, Any]:
    """A run of two ranks that is interrupted while it trains; gives its meta record."""
    with paceline("run", "--ranks=2", *options, UNRULY, "epochs=100000", cwd=where) as command:
        command.until("trains")
        command.process.send_signal(signal.SIGINT)
        assert command.end() == 130, command.err
    record: dict[str, Any] = json.loads((where / RUN / "consensus.meta.json").read_text())
    return record


def test_every_batch_is_merged_exactly_once_over_both_runs(tmp_path: Path) -> None:
    """I52: SIGINT, then --resume with another number of ranks; the one timeline tells of both runs."""
    record = stop_in_the_middle(tmp_path)
    epochs = record["last_closed_epoch"] + 4
    assert record["version"] > 0 and record["global_step"] > 0
    command = ("run", "--ranks=3", "--resume", RUN, UNRULY, f"epochs={epochs}")
    with paceline(*command, cwd=tmp_path) as second:
        assert second.end() == 0, second.err
    together = sum(f"done, {epochs * 40} steps together" in line for line in second.out)
    assert together == 3, "the schedule position went on"
    found = account(read_timeline(tmp_path / RUN / "timeline.jsonl"), epochs)
    assert (found.merged, found.lost, found.twice) == (epochs * 40, 0, 0)
    after = json.loads((tmp_path / RUN / "consensus.meta.json").read_text())
    assert after["version"] > record["version"] and after["global_step"] == epochs * 40


def test_a_resumed_run_starts_from_the_model_that_was_saved(tmp_path: Path) -> None:
    """M-6, K-12: with nothing left to train, what the second run saves is what it was given, bit for bit."""
    record = stop_in_the_middle(tmp_path)
    done = record["last_closed_epoch"] + 1
    before, _ = load_model(tmp_path / RUN / "consensus.safetensors")
    command = ("run", "--ranks=2", "--resume", RUN, "--run-dir=again", UNRULY, f"epochs={done}")
    with paceline(*command, cwd=tmp_path) as second:
        assert second.end() == 0, second.err
    after, _ = load_model(tmp_path / "again" / "consensus.safetensors")
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    assert read_bundle(tmp_path / "again").resume.global_step == record["global_step"]


def test_what_cannot_be_resumed_is_one_line(tmp_path: Path) -> None:
    """K-12: exit code 7, both values, and no process is started."""
    stop_in_the_middle(tmp_path, "--seed=3")
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
