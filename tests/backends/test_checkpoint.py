"""Files of a checkpoint: K-7, K-8, K-11, K-12; field cases F28 (tied weights), disk full."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from safetensors.torch import load_model as library_load_model
from torch import nn

from paceline.backends import checkpoint
from paceline.backends.checkpoint import (
    OPTIMIZER_KEY,
    load_flat,
    load_model,
    load_optimizer,
    restore_optimizer,
    save_model,
    save_optimizer,
)
from paceline.backends.flat import FlatModel
from paceline.backends.schema import schema_of
from paceline.backends.tensor_file import save_flat, write_tensors
from paceline.core.errors import CheckpointError

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=5),
    st.integers(0, 2**31 - 1),
)
def test_a_model_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[torch.dtype, list[int]]], seed: int
) -> None:
    """K-7: exact dtypes, every shape, by the library's reader too."""
    torch.manual_seed(seed)
    path = tmp_path_factory.mktemp("files") / "model.safetensors"
    tensors = {}
    for index, (dtype, shape) in enumerate(rows):
        values = torch.randint(0, 2 if dtype == torch.bool else 256, (*shape, dtype.itemsize), dtype=torch.uint8)
        tensors[f"entry {index} é"] = values.view(dtype).reshape(shape)
    save_model(path, tensors, {"version": "7"})
    loaded, metadata = load_model(path)
    assert metadata == {"version": "7"}
    for found in (loaded, load_file(path)):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert (found[name].shape, found[name].dtype) == (tensor.shape, tensor.dtype)
            assert raw(found[name]) == raw(tensor)


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def test_tied_names_are_written_once_and_load_with_the_library(tmp_path: Path) -> None:
    """F28: a user needs nothing of paceline to read a model."""
    model, other = tied(), tied()
    save_model(tmp_path / "m", model.state_dict(), {})
    assert "2.weight" not in load_file(tmp_path / "m")
    loaded, metadata = load_model(tmp_path / "m")
    assert loaded["2.weight"] is loaded["0.weight"] and metadata == {}
    library_load_model(other, tmp_path / "m")
    assert torch.equal(other[2].weight, model[0].weight) and other[2].weight is other[0].weight


def test_a_consensus_comes_back_bit_for_bit_under_its_schema_names(tmp_path: Path) -> None:
    """K-7."""
    model = tied()
    schema = schema_of(model)
    flat = FlatModel(model, schema).snapshot().memory
    save_flat(tmp_path / "c", schema, flat, {"version": "3"})
    back, metadata = load_flat(tmp_path / "c", schema)
    assert bytes(back) == bytes(flat) and metadata == {"version": "3"}
    assert torch.equal(load_model(tmp_path / "c")[0]["2.weight"], model[0].weight)


def test_a_consensus_of_another_model_is_refused_by_entry(tmp_path: Path) -> None:
    """K-12."""
    model = nn.Linear(2, 2)
    schema = schema_of(model)
    save_flat(tmp_path / "c", schema, FlatModel(model, schema).snapshot().memory, {})
    with pytest.raises(CheckpointError, match=r"weight as torch.float32\[2, 2\].*\[2, 3\]"):
        load_flat(tmp_path / "c", schema_of(nn.Linear(3, 2)))
    with pytest.raises(CheckpointError, match=r"lacks 0\.weight"):
        load_flat(tmp_path / "c", schema_of(nn.Sequential(model)))
    with pytest.raises(CheckpointError, match="the schema 24"):
        save_flat(tmp_path / "c", schema, memoryview(bytes(20)), {})


OPTIMIZERS: list[Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.SGD(p, lr=0.1),
    lambda p: torch.optim.AdamW([{"params": p[:1], "lr": 0.3}, {"params": p[1:]}], betas=(0.8, 0.99), amsgrad=True),
    lambda p: torch.optim.LBFGS(p, history_size=3),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_an_optimizer_comes_back_and_steps_on_the_same_way(
    tmp_path: Path, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> None:
    """K-11: tensors, hyperparameters, tuples and integer keys."""
    torch.manual_seed(0)
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    first, second = (make(list(model.parameters())) for model in models)

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(torch.ones(4, 3)).square().sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    steps(models[0], first)
    save_optimizer(tmp_path / "o", first, {"rank": "1"})
    models[1].load_state_dict(models[0].state_dict())
    second.load_state_dict(load_optimizer(tmp_path / "o"))
    steps(models[0], first)
    steps(models[1], second)
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))
    assert second.state_dict()["param_groups"] == first.state_dict()["param_groups"]


def test_what_only_pickle_could_write_is_refused_by_place(tmp_path: Path) -> None:
    """K-11: no pickle, and nothing is left behind."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.param_groups[0]["hook"] = object()
    with pytest.raises(CheckpointError, match=r"optimizer\.param_groups\.0\.hook is a object"):
        save_optimizer(tmp_path / "o", optimizer)
    with pytest.raises(CheckpointError, match="complex64"):
        save_model(tmp_path / "o", {"w": torch.ones(1, dtype=torch.complex64)}, {})
    deep: list[object] = []
    for _ in range(20):
        deep = [deep]
    optimizer.param_groups[0]["hook"] = deep
    with pytest.raises(CheckpointError, match="deep"):
        save_optimizer(tmp_path / "o", optimizer)
    assert list(tmp_path.iterdir()) == []


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """A full disk, as far as a process can have one of its own: no file grows past `limit` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_keeps_the_older_file_removes_the_temporary_one_and_says_where_and_how_much(tmp_path: Path) -> None:
    """K-8; and the next write, when there is space again, works."""
    path = tmp_path / "model"
    save_model(path, {"w": torch.zeros(4)}, {"version": "5"})
    old = path.read_bytes()
    big = {"w": torch.ones(1 << 18)}
    with small_files(1 << 19), pytest.raises(CheckpointError, match=r"model \(10\d{5} bytes\)"):
        save_model(path, big, {"version": "6"})
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]
    save_model(path, big, {"version": "7"})
    assert load_model(path)[1] == {"version": "7"}


def test_a_directory_that_is_not_there_is_an_error_with_the_path(tmp_path: Path) -> None:
    """K-8."""
    with pytest.raises(CheckpointError, match=r"no/model \(\d+ bytes\)"):
        save_model(tmp_path / "no" / "model", {"w": torch.zeros(4)}, {})


def test_a_tensor_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K-8: whatever the cause."""

    def broken(_: torch.Tensor) -> memoryview:
        raise RuntimeError("device lost")

    monkeypatch.setattr(checkpoint, "_bytes_of", broken)
    with pytest.raises(RuntimeError, match="device lost"):
        save_model(tmp_path / "model", {"w": torch.zeros(4)}, {})
    assert list(tmp_path.iterdir()) == []


def test_file_then_rename_then_directory_reach_the_disk_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-8."""
    seen: list[str] = []
    sync, replace = os.fsync, os.replace

    def spy_sync(handle: int) -> None:
        seen.append("directory" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        sync(handle)

    def spy_replace(source: str, target: str) -> None:
        assert os.path.dirname(source) == os.path.dirname(target)
        seen.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spy_sync)
    monkeypatch.setattr(os, "replace", spy_replace)
    save_model(tmp_path / "model", {"w": torch.zeros(4)}, {})
    assert seen == ["file", "rename", "directory"]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"\xff" * 20, lambda b: b""])
@pytest.mark.parametrize("load", [load_model, load_optimizer])
def test_a_damaged_or_missing_file_is_refused_by_path(
    tmp_path: Path, damage: Callable[[bytes], bytes], load: Callable[[Path], object]
) -> None:
    """K-12."""
    path = tmp_path / "model"
    with pytest.raises(CheckpointError, match="model"):
        load(path)
    save_model(path, {"w": torch.zeros(4)}, {})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match="model"):
        load(path)


def test_a_model_is_no_optimizer(tmp_path: Path) -> None:
    """K-12."""
    save_model(tmp_path / "m", {"w": torch.zeros(4)}, {})
    with pytest.raises(CheckpointError, match="no optimizer state"):
        load_optimizer(tmp_path / "m")


STRANGE = {
    "a number": "5", "a list": '{"list":[1]}', "no text": "[" * 99_999,
    "too deep": '{"list":[' * 3000 + "1" + "]}" * 3000,
    "groups are a number": '{"dict":[["state",{"dict":[]}],["param_groups",5]]}',
    "a group is a number": '{"dict":[["state",{"dict":[]}],["param_groups",{"list":[5]}]]}',
    "a group is a list": '{"dict":[["state",5],["param_groups",{"list":[{"list":[]}]}]]}',
}  # fmt: skip


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
def test_an_optimizer_file_that_nobody_wrote_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    """K-12: whatever stands in it, also under a right seal, which anybody can make; the optimizer stays as it is."""
    path = tmp_path / "o.safetensors"
    write_tensors(path, [], {OPTIMIZER_KEY: text, "rank": "0"}, sealed=True)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    before = optimizer.state_dict()
    with pytest.raises(CheckpointError, match=r"o\.safetensors (holds no optimizer state|does not fit this SGD)"):
        restore_optimizer(path, optimizer, 0)
    assert optimizer.state_dict() == before
