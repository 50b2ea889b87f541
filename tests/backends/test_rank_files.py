"""What a rank writes, and that its training does not wait for the disk (K-7, K-8, K-11, W-18)."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model as library_load_model
from torch import nn

from paceline.backends import rank_files
from paceline.backends.backlog import DetachedWriter
from paceline.backends.checkpoint import load_model, load_optimizer, save_model
from paceline.backends.flat import FlatModel
from paceline.backends.rank_files import RankFiles
from paceline.backends.schema import schema_of
from paceline.backends.tensor_file import SEAL, check_seal
from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core.errors import CheckpointError

from support.patience import PATIENCE_S
from support.small_run import Seen, SmallRun

RUN_ID = bytes(range(16))


class Rank:
    """A model with tied weights, its files, and what was told of them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = self.another()
        self.flat = FlatModel(self.model, schema_of(self.model))
        self.told: list[ev.ActionDone] = []
        self.files = RankFiles(self.flat, torch.optim.SGD(self.model.parameters(), lr=0.1), self.told.append, RUN_ID)

    @staticmethod
    def another() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
        model[2].weight = model[0].weight
        return model

    def bundle(self, stem: Path, version: int = 1, consensus: memoryview | None = None) -> None:
        self.files.write(0, fx.Save(version, version, str(stem), True, optimizer=False), consensus)

    def step(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1.0)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is written before this is set."""
    free = threading.Event()

    def slow(*arguments: Any) -> None:
        assert free.wait(PATIENCE_S)
        save_model(*arguments)

    monkeypatch.setattr(rank_files, "save_model", slow)
    return free


def test_every_rank_writes_its_optimizer_and_the_saver_its_model_too(tmp_path: Path) -> None:
    """K-11; a bundle of the consensus has no optimizer (K-7). The directory may be missing on the host of a rank."""
    rank = Rank()
    for stem, model, optimizer in (("other", False, True), ("saver", True, True), ("bundle", True, False)):
        rank.files.write(3, fx.Save(1, 7, str(tmp_path / "new" / stem), model, optimizer), None)
    rank.files.settle()
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == [
        "bundle.safetensors", "other.rank3.optim.safetensors", "saver.model.safetensors",
        "saver.rank3.optim.safetensors",
    ]  # fmt: skip
    assert [(done.kind, done.version, done.error) for done in rank.told] == [
        ("save", 7, None), ("save", 7, None), ("consensus", 7, None),
    ]  # fmt: skip


def test_each_file_says_which_run_and_version_it_is_of_and_whether_it_is_whole(tmp_path: Path) -> None:
    """K-6, W-18: no report does. A byte that is another one anywhere, or a missing end, is noticed by whoever reads."""
    rank = Rank()
    for stem, model, optimizer in (("saver", True, True), ("bundle", True, False)):
        rank.files.write(3, fx.Save(1, 7, str(tmp_path / stem), model, optimizer), None)
    rank.files.settle()
    names = ("bundle.safetensors", "saver.model.safetensors", "saver.rank3.optim.safetensors")
    for path in [tmp_path / name for name in names]:
        told = check_seal(path)
        assert (told["run_id"], told["version"], len(told[SEAL])) == (RUN_ID.hex(), "7", 64)
        whole = path.read_bytes()
        places = {0, 9, len(whole) // 2, len(whole) - 1, whole.index(told[SEAL].encode()), whole.index(b"run_id") + 9}
        for bad in [*(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in sorted(places)), whole[:-1]]:
            path.write_bytes(bad)
            with pytest.raises(CheckpointError, match=r"damaged|cannot be read"):
                check_seal(path)
            with pytest.raises(CheckpointError):
                load_optimizer(path) if "optim" in path.name else load_model(path)
        path.write_bytes(whole)
    assert SEAL not in load_model(tmp_path / names[0])[1]


def _head(path: Path, text: bytes) -> None:
    path.write_bytes(len(text).to_bytes(8, "little") + text)


@pytest.mark.parametrize("text", [
    b'{"__metadata__":{"sha256":null}}', b'{"__metadata__":{"sha256":5}}', b'{"__metadata__":{"sha256":[""]}}',
    b'{"__metadata__":null}', b"[]", b"[" * 100_000, b"\xff",
], ids=["no seal", "a number", "a list", "no metadata", "no map", "too deep", "no text"])  # fmt: skip
def test_a_head_that_nobody_wrote_is_a_file_that_cannot_be_read(tmp_path: Path, text: bytes) -> None:
    """K-6, K-12: one line that names the file, whatever stands in it; and a seal that is none vouches for nothing."""
    path = tmp_path / "f.safetensors"
    _head(path, text)
    with pytest.raises(CheckpointError, match=r"f\.safetensors cannot be read.*give another file"):
        check_seal(path)


def test_one_pass_checks_a_file_and_gives_its_hash(tmp_path: Path) -> None:
    """K-6, K-12: what was checked is what has that hash, although another process may write while this one reads."""
    path = tmp_path / "f.safetensors"
    save_model(path, torch.nn.Linear(3, 2).state_dict(), {"version": "7"})
    known = hashlib.sha256(path.read_bytes()).hexdigest()
    whole = hashlib.sha256()
    assert check_seal(path, whole)["version"] == "7"
    assert whole.hexdigest() == known


@pytest.mark.parametrize("apart", [False, True], ids=["in the model", "retained"])
def test_training_goes_on_while_a_bundle_waits_for_the_disk(
    tmp_path: Path, disk: threading.Event, apart: bool
) -> None:
    """K-7, K-3, F56: the order returns before anything is written; the file holds the consensus of that instant,
    whatever is trained meanwhile, and a model that held something else holds it again."""
    rank = Rank()
    consensus = rank.flat.snapshot().memory if apart else None
    wanted = {name: tensor.clone() for name, tensor in rank.model.state_dict().items()}
    if apart:
        rank.step()
    held = rank.model[0].bias.detach().clone()
    rank.bundle(tmp_path / "c", 5, consensus)
    assert torch.equal(rank.model[0].bias, held) and rank.told == [] and list(tmp_path.iterdir()) == []
    rank.step()
    disk.set()
    rank.files.settle()
    written, metadata = load_model(tmp_path / "c.safetensors")
    assert metadata["version"] == "5" and [done.decision_id for done in rank.told] == [5]
    assert written.keys() == wanted.keys()
    assert all(torch.equal(written[name], wanted[name]) for name in wanted)


def test_tied_names_are_written_once(tmp_path: Path) -> None:
    """K-7, F28: as in any other file; a user needs nothing of paceline to read it."""
    rank = Rank()
    rank.bundle(tmp_path / "c")
    rank.files.settle()
    written, _ = load_model(tmp_path / "c.safetensors")
    assert written["2.weight"] is written["0.weight"]
    library_load_model(other := Rank.another(), tmp_path / "c.safetensors")
    assert torch.equal(other[2].weight, rank.model[0].weight)


def test_a_full_disk_is_said_and_leaves_the_older_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """K-8: path and size, no temporary file, and the next bundle is written."""
    rank = Rank()
    rank.bundle(tmp_path / "c", 1)
    rank.files.settle()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        rank.bundle(tmp_path / "c", 2)
        rank.files.settle()
    assert [file.name for file in tmp_path.iterdir()] == ["c.safetensors"]
    assert load_model(tmp_path / "c.safetensors")[1]["version"] == "1"
    error = rank.told[-1].error
    assert error is not None and "c.safetensors (" in error and "No space left" in error
    assert capsys.readouterr().err == f"paceline: rank 0: {error}; the training goes on\n"
    rank.bundle(tmp_path / "c", 3)
    rank.files.settle()
    assert load_model(tmp_path / "c.safetensors")[1]["version"] == "3" and rank.told[-1].error is None


def test_state_that_is_no_tensor_is_an_error_by_name(tmp_path: Path) -> None:
    """K-7, K-8: only pickle could write it; the training goes on."""

    class Odd(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"steps": 3}

    model, told = Odd(2, 2), list[ev.ActionDone]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    files = RankFiles(FlatModel(model, schema_of(model)), optimizer, told.append, RUN_ID)
    files.write(0, fx.Save(1, 1, str(tmp_path / "c"), True, optimizer=False), None)
    files.settle()
    assert told[0].error is not None and "_extra_state is a dict" in told[0].error
    with pytest.raises(CheckpointError, match="_extra_state is a dict"):
        save_model(tmp_path / "c", model.state_dict(), {})


def test_what_waits_for_a_disk_is_bounded() -> None:
    """K-7: each holds a copy of the model. A newer file of a name takes the place of one that is not begun, without a
    word; the oldest that is left out is told."""
    writer, free, begun = DetachedWriter(), threading.Event(), threading.Event()
    written: list[str] = []
    told: dict[str, str | None] = {}

    def order(name: str, stem: str) -> None:
        def write() -> None:
            begun.set()
            assert free.wait(PATIENCE_S)
            written.append(name)

        writer.order(stem, write, lambda error: told.update({name: error}))

    order("first", "0")
    assert begun.wait(PATIENCE_S)
    for number in range(1, 7):
        order(f"v{number}", f"{number}")
        order(f"c{number}", "consensus")
    assert list(told) == ["v1", "v2", "v3"] and all("slower than the bundles" in str(why) for why in told.values())
    free.set()
    writer.settle()
    assert written == ["first", "v4", "v5", "v6", "c6"]
    assert [name for name, error in told.items() if error is None] == written


def test_a_writer_that_fails_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """K-7: a bug of ours there must not hold back the end of the process."""
    failures: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: failures.append(told.exc_value))
    writer, ends = DetachedWriter(), list[str | None]()

    def broken(error: str | None) -> None:
        raise KeyError("bug")

    writer.order("c", lambda: None, broken)
    writer.settle()
    writer.order("c", lambda: None, ends.append)
    writer.settle()
    assert ends == [None]


def test_a_rank_ends_when_its_bundles_are_written(
    tmp_path: Path, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-7, K-4: the bundle of the end is ordered when the run is almost over, and the process must not end before it is
    there; until then nothing waits for it."""
    settle = RankFiles.settle

    def settling(self: RankFiles) -> None:
        disk.set()
        settle(self)

    monkeypatch.setattr(RankFiles, "settle", settling)
    run = SmallRun(target_ranks=1)
    orders: list[fx.Save] = []

    def before(seen: Seen) -> None:
        if not orders:
            orders.append(fx.Save(1, seen.session.version, str(tmp_path / "c"), True, optimizer=False))
            seen.session._save(orders[0])

    seen = run.train(0, before, epochs=1)
    run.coordinator.result()
    assert seen.session.local_step > 1 and (tmp_path / "c.safetensors").exists()
