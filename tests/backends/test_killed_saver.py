"""Bundles whose writer is killed, by the system, at any of its calls to it (F53, K-8)."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.backends import tensor_file
from paceline.backends.bundle import read_bundle, replacing_weights, write_record
from paceline.backends.checkpoint import load_model, save_model
from paceline.backends.tensor_file import HOST, MOST_SWEPT, PARTIAL, replacing
from paceline.core.errors import CheckpointError
from paceline.transports import file_lock

from support.processes import Child
from support.save_process import record

WHOLE = ["consensus.meta.json", "consensus.safetensors"]
CALLS = 17
"""Calls to the system of a saver: one more kill than that finds none to come before."""


class Savers:
    """Processes that save a bundle, one after the other."""

    def __init__(self) -> None:
        self._forks = Child("save_process.py", [], {})

    def __call__(self, run_dir: Path, version: int, call: int = -1) -> bool:
        """Whether one saved it, and was not killed before its call with that number."""
        stdin = self._forks.process.stdin
        assert stdin is not None
        stdin.write(json.dumps([str(run_dir / "consensus"), version, call]) + "\n")
        stdin.flush()
        code = self._forks.until(lambda line: "code" in line)["code"]
        assert code in (0, -signal.SIGKILL), self._forks.stderr
        return bool(code == 0)

    def close(self) -> None:
        """No more of them."""
        self._forks.close()


@pytest.fixture
def save() -> Iterator[Savers]:
    """They end with the test."""
    with closing(Savers()) as savers:
        yield savers


def whole_version(run_dir: Path) -> int:
    """That of the bundle which a resume finds: the weights are those of the record."""
    bundle = read_bundle(run_dir)
    weights = load_model(bundle.file)[0]["weight"]
    assert weights.unique().tolist() == [bundle.resume.version]
    return bundle.resume.version


def test_a_resume_finds_a_whole_bundle_whenever_its_savers_were_killed(tmp_path: Path, save: Savers) -> None:
    """F53, K-8: while version 6 takes the place of 5, and then 7 that of what there is. No file is half of one and half
    of the other, a killed writer leaves one temporary file at most, and the next bundle leaves nothing of all that."""
    before = tmp_path / "before"
    before.mkdir()
    save(before, 5)
    found: set[tuple[int, int]] = set()
    done, call = False, 0
    while not done:
        shutil.copytree(before, run_dir := tmp_path / str(call))
        done = save(run_dir, 6, call)
        first = whole_version(run_dir)
        assert first == 6 if done else first in (5, 6)
        again = save(run_dir, 7, call * 7 % CALLS)
        second = whole_version(run_dir)
        assert second == 7 if again else second in (first, 7)
        found.add((first, second))
        left = [path.name for path in run_dir.iterdir() if PARTIAL.fullmatch(path.name)]
        assert len(left) <= 1, left
        assert save(run_dir, 8) and whole_version(run_dir) == 8
        assert sorted(path.name for path in run_dir.iterdir()) == WHOLE
        call += 1
    assert call > CALLS and found >= {(5, 5), (5, 7), (6, 6)}


def _bundle(run_dir: Path, version: int) -> None:
    file = run_dir / "consensus.safetensors"
    with replacing_weights(file):
        save_model(file, {"weight": torch.full((4,), float(version))}, {})
    write_record(file, record(version))


def test_on_a_disk_without_second_names_a_bundle_stays_whole_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-8: the older file has only its second name until there is a newer one with its record."""

    def link(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "no second names here")

    monkeypatch.setattr(os, "link", link)
    for version in (5, 6):
        _bundle(tmp_path, version)
    assert whole_version(tmp_path) == 6 and sorted(path.name for path in tmp_path.iterdir()) == WHOLE
    with replacing_weights(file := tmp_path / "consensus.safetensors"):
        save_model(file, {"weight": torch.full((4,), 7.0)}, {})
        assert whole_version(tmp_path) == 6


def test_on_a_disk_without_locks_all_is_saved_and_nothing_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-8: nobody can tell there what is still being written."""

    def flock(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(file_lock.fcntl, "flock", flock)
    (tmp_path / (left := f".c.{HOST}0123456789ab.partial")).touch()
    _bundle(tmp_path, 5)
    assert whole_version(tmp_path) == 5 and {path.name for path in tmp_path.iterdir()} == {left, *WHOLE}


@pytest.mark.parametrize("linked", [True, False])
def test_a_record_in_place_that_may_not_outlive_a_power_cut_is_that_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """K-8: it has its name when the disk fails to keep that. With the older weights beside it neither bundle would be
    whole; they have their second name still, in case that the older record comes back."""
    if not linked:
        monkeypatch.setattr(os, "link", os.rename)
    _bundle(tmp_path, 5)
    file = tmp_path / "consensus.safetensors"
    with replacing_weights(file):
        save_model(file, {"weight": torch.full((4,), 6.0)}, {})

    def failing(directory: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    older = (tmp_path / "consensus.meta.json").read_bytes()
    with monkeypatch.context() as cut, pytest.raises(CheckpointError, match="Input/output"):
        cut.setattr(tensor_file, "sync_directory", failing)
        write_record(file, record(6))
    assert whole_version(tmp_path) == 6
    newer = (tmp_path / "consensus.meta.json").read_bytes()
    (tmp_path / "consensus.meta.json").write_bytes(older)
    assert whole_version(tmp_path) == 5
    (tmp_path / "consensus.meta.json").write_bytes(newer)
    _bundle(tmp_path, 7)
    assert whole_version(tmp_path) == 7 and sorted(path.name for path in tmp_path.iterdir()) == WHOLE


@pytest.mark.parametrize("linked", [True, False])
def test_weights_that_cannot_be_written_leave_the_older_bundle_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """K-8: and so does a record, beside weights that are there already."""
    if not linked:
        monkeypatch.setattr(os, "link", os.rename)
    _bundle(tmp_path, 5)
    with pytest.raises(RuntimeError, match="device lost"), replacing_weights(tmp_path / "consensus.safetensors"):
        raise RuntimeError("device lost")
    assert whole_version(tmp_path) == 5 and sorted(path.name for path in tmp_path.iterdir()) == WHOLE
    sync = os.fsync

    def full(handle: int) -> None:
        if "meta" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space"):
        _bundle(tmp_path, 6)
    assert whole_version(tmp_path) == 5 and sorted(path.name for path in tmp_path.iterdir()) == WHOLE


def test_what_another_writer_is_about_to_write_is_not_swept_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-8: two savers in one directory, up to the instant at which a file gets its name; and one of another host, whose
    lock this one may not see. The file of one that was killed here goes."""
    rename = os.replace

    def late(source: Path, target: Path) -> None:
        if target.name == "a":
            with replacing(tmp_path / "c", 1) as third:
                third.write(b"c")
        rename(source, target)

    monkeypatch.setattr(os, "replace", late)
    elsewhere = f".c.{int(HOST, 16) ^ 1:08x}0123456789ab.partial"
    (tmp_path / elsewhere).write_bytes(b"half of it")
    (tmp_path / f".c.{HOST}0123456789ab.partial").write_bytes(b"half of")
    (tmp_path / ".c.partial").write_bytes(b"of somebody else")
    with replacing(tmp_path / "a", 1) as first:
        with replacing(tmp_path / "b", 1) as second:
            second.write(b"b")
        first.write(b"a")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a": b"a", "b": b"b", "c": b"c", ".c.partial": b"of somebody else", elsewhere: b"half of it",
    }  # fmt: skip


def test_a_writer_whose_file_was_swept_before_it_was_locked_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-8: whoever sweeps may come between the making of a file and its lock."""
    honest, swept = file_lock.lock, list[str]()

    def late(file: Any, *, wait: bool = False) -> bool:
        if wait and not swept:
            swept.append(file.name)
            os.unlink(file.name)
        return honest(file, wait=wait)

    monkeypatch.setattr(file_lock, "lock", late)
    with replacing(tmp_path / "a", 1) as file:
        file.write(b"a")
    assert swept and [path.read_bytes() for path in tmp_path.iterdir()] == [b"a"]


def test_a_writer_whose_files_are_swept_again_and_again_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-8: one save is lost, and told; it does not go on for ever."""
    swept: list[str] = []

    def late(file: Any, *, wait: bool = False) -> bool:
        swept.append(file.name)
        os.unlink(file.name)
        return True

    monkeypatch.setattr(file_lock, "lock", late)
    with pytest.raises(CheckpointError, match=rf"{MOST_SWEPT} files were taken away"), replacing(tmp_path / "a", 1):
        pass
    assert len(swept) == MOST_SWEPT and not list(tmp_path.iterdir())
