"""A disk that is full while a coordinator saves: its files may have no more than so many bytes, as the system sees to
(F55, K-8)."""

from __future__ import annotations

import re
import resource
import signal
import sys
from pathlib import Path

import pytest

from paceline.backends.bundle import newest_whole, read_bundle
from paceline.backends.checkpoint import load_model
from paceline.backends.tensor_file import PARTIAL

from support.processes import Child, accounting, stage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets the limits of another process")

ENDLESS = ("--hidden", "20000", "--epochs", "5000")
"""A model of some 900 kB, trained until somebody stops the run."""
ROOM = 1 << 18
"""More than any other file of the run takes."""


def fill(coordinator: Child, size: int = ROOM) -> None:
    """From here on none of its files can have more bytes."""
    resource.prlimit(coordinator.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def bundle(coordinator: Child) -> Path:
    """Wait until the first one is whole; gives its stem."""
    stem = Path(coordinator.until(lambda line: line.get("event") == "CheckpointArmed")["stem"])
    coordinator.until(lambda line: stem.with_name(f"{stem.name}.meta.json").exists())
    return stem


def failed(line: dict[str, object]) -> bool:
    """A bundle could not be written."""
    return line.get("event") == "Alert" and line.get("kind") == "checkpoint_failed"


def test_a_bundle_that_does_not_fit_costs_that_bundle_alone(tmp_path: Path) -> None:
    """F55: the alert names path and size, nothing half written is left, the older bundle is whole, training goes on,
    and with space again a bundle is written."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=1, checkpoint_every=1)
        rank = s.rank(*ENDLESS)
        first = bundle(coordinator)
        fill(coordinator)
        text = coordinator.until(failed)["text"]
        told = re.search(r"(\S+)\.safetensors \((\d+) bytes\) could not be written: .*File too large", text)
        assert told is not None and int(told[2]) > ROOM, text
        assert not Path(f"{told[1]}.safetensors").exists()
        assert read_bundle(Path(f"{first}.safetensors")).resume.version > 0
        fill(coordinator, resource.RLIM_INFINITY)
        coordinator.until(lambda line: line.get("event") == "Cycle")
        coordinator.process.send_signal(signal.SIGINT)
        assert (coordinator.end(), rank.end()) == (0, 0), coordinator.stderr
        assert accounting(coordinator.lines)[1] == 0
        assert read_bundle(tmp_path).resume.version == rank.lines[-1]["version"]
        assert load_model(tmp_path / "consensus.safetensors")[0]
        assert [path.name for path in tmp_path.iterdir() if PARTIAL.fullmatch(path.name)] == []


@pytest.mark.parametrize("older", [True, False])
def test_a_run_whose_end_does_not_fit_says_that_it_is_not_saved(tmp_path: Path, older: bool) -> None:
    """F55: exit code 7, and one line that names what there is instead. It ends all the same, and nothing is tried for
    ever."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=1, **({"checkpoint_every": 1} if older else {}))
        rank = s.rank(*ENDLESS)
        if older:
            bundle(coordinator)
        fill(coordinator)
        coordinator.until(lambda line: line.get("event") == "Cycle" and line["version"] > 0)
        coordinator.process.send_signal(signal.SIGINT)
        assert (coordinator.end(), rank.end()) == (7, 0)
        (line,) = coordinator.stderr.splitlines()
        assert "but its model is not saved: " in line and "consensus.safetensors (" in line
        newest = newest_whole(tmp_path)
        assert (newest is not None) is older
        there = "there is no older bundle to go on from"
        if newest is not None:
            there = f"the newest bundle that is whole is {newest.file}, version {newest.resume.version}"
        assert line.endswith(there)
        assert not (tmp_path / "consensus.safetensors").exists()
        assert [path.name for path in tmp_path.iterdir() if PARTIAL.fullmatch(path.name)] == []
