"""Evaluations and checkpoints of a run with real processes: what they see, who hears of it, what lies on disk."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.backends.checkpoint import load_model
from paceline.backends.report import account, read_timeline

from support.launcher import HERE, paceline

SCRIPT = str(HERE / "callbacks_script.py")


def run(cwd: Path, *words: str, policy: str = "cadence") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Two ranks to the end: what their callbacks said, and the timeline."""
    options = ("--checkpoint-every=1", "--eval-every=1", f"--policy={policy}", "--set=anchor=4", "--set=max_anchor=4")
    with paceline("run", "--ranks=2", *options, SCRIPT, *words, cwd=cwd) as command:
        assert command.end() == 0, command.err
    lines = [line.partition("] ")[2] for line in command.out if line.startswith("[rank ")]
    return [json.loads(line) for line in lines if line.startswith("{")], read_timeline(
        cwd / "paceline-run" / "timeline.jsonl")  # fmt: skip


def of(said: list[dict[str, Any]], call: str) -> list[dict[str, Any]]:
    """The calls of one callback, in order."""
    return [line for line in said if line["call"] == call]


def model_name(path: Path) -> str:
    """The hash that the script gives its model, of a file."""
    tensors, _ = load_model(path)
    raw = b"".join(tensors[name].numpy().tobytes() for name in ("0.weight", "0.bias", "3.weight", "3.bias"))
    return hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize("policy", ["cadence", "async"])
def test_evaluations_are_broadcast_and_each_epoch_leaves_a_bundle_with_its_record(tmp_path: Path, policy: str) -> None:
    """K-2 to K-17, I17: two evaluations by the cadence and the final one, each on the consensus of its version; the
    bundles are the very models that the checkpoint callback saw, and the record names the file's hash (K-6)."""
    said, timeline = run(tmp_path, policy=policy)
    found = account(timeline, 3)
    assert (found.merged, found.lost, found.twice) == (480, 0, 0)

    results = [record for record in timeline if record["event"] == "Evaluated"]
    assert [(r["epoch"], r["final"]) for r in results] == [(0, False), (1, False), (2, True)]
    assert [r["metric"] for r in results] == pytest.approx([call["metric"] for call in of(said, "evaluate")])
    for rank in range(2):
        lines = (tmp_path / "paceline-run" / f"rank-{rank}.jsonl").read_text().splitlines()
        heard = [note for note in map(json.loads, lines) if note.get("note") == "evaluated"]
        assert [note["metric"] for note in heard] == [r["metric"] for r in results], "K-16: every rank hears of it"

    last = {line["model"] for line in of(said, "done")}
    assert len(last) == 1 and of(said, "evaluate")[-1]["model"] in last, "K-17: on the last consensus"
    seen = {line["version"]: line["model"] for line in of(said, "checkpoint")}
    directory = tmp_path / "paceline-run"
    metas = sorted(directory.glob("*.meta.json"))
    armed = {Path(record["stem"]).name for record in timeline if record["event"] == "CheckpointArmed"}
    assert {meta.name.removesuffix(".meta.json") for meta in metas} == armed
    assert len(armed) >= 3, "epochs 1 and 2 entered, and the end (K-4)"
    for meta in metas:
        record = json.loads(meta.read_text())
        (name, digest), = record["files"].items()
        assert hashlib.sha256((directory / name).read_bytes()).hexdigest() == digest
        assert model_name(directory / name) == seen[record["version"]], f"I17: {meta.name}"
    assert json.loads((directory / "consensus.meta.json").read_text())["version"] == of(said, "done")[0]["version"]
    assert sorted({line["epoch"] for line in of(said, "epoch")}) == [0, 1, 2], "W-6"


def test_a_wish_is_served_and_a_callback_that_raises_goes_to_the_other_rank(tmp_path: Path) -> None:
    """K-1, K-9: an Intent brings an evaluation and a checkpoint of its own; who raises loses the role, and the training
    goes on."""
    said, timeline = run(tmp_path, "wish", "broken")
    results = [record for record in timeline if record["event"] == "Evaluated"]
    assert len(results) == 4
    assert {line["rank"] for line in of(said, "checkpoint")} == {1}
    failed = [record for record in timeline if record["event"] == "Alert" and record["kind"] == "checkpoint_failed"]
    assert all("no space left" in alert["text"] for alert in failed)
    assert len(of(said, "done")) == 2 and account(timeline, 3).lost == 0
