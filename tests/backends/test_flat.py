"""Flat copies of a live model: R-10, R-17, R-20, R-21, W-26; invariants I65, I66."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paceline.backends import layout as layout_module
from paceline.backends.flat import FlatLayout, FlatModel, Snapshot
from paceline.backends.layout import allocate, narrow, widen
from paceline.backends.schema import schema_of
from paceline.core.errors import ConfigError, LocalProtocolError
from paceline.core.schema import EntryClass, Schema, SchemaEntry


class Odd(nn.Module):
    """Every shape of memory an adoption has to respect: odd offsets, gaps, transposed strides, aliases, scalars."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.brief = nn.Parameter(torch.randn(3, dtype=torch.bfloat16))
        self.column = nn.Parameter(torch.randn(4, 6)[:, 1:3])
        self.turned = nn.Parameter(torch.randn(2, 5).t())
        self.fine = nn.Parameter(torch.randn((), dtype=torch.float64))
        self.empty = nn.Parameter(torch.randn(0, 2))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.tied = self.column
        self.register_buffer("mean", torch.randn(2))
        self.register_buffer("flag", torch.tensor([True]))
        self.register_buffer("count", torch.tensor(2**53 + 1 + seed))


def flat_of(model: nn.Module) -> tuple[FlatModel, Snapshot]:
    view = FlatModel(model, schema_of(model))
    return view, view.snapshot()


def contents(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


RIDING = ("brief", "column", "turned", "fine", "empty", "mean", "tied")


def test_a_layout_is_packed_parameters_first_then_buffers() -> None:
    """R-21: row-major, little-endian, nothing in between, scalars and empty entries legal."""
    model = Odd()
    layout = FlatLayout.riding(schema_of(model))
    assert [(f.entry.name, f.offset, f.nbytes) for f in layout.fields] == [
        ("brief", 0, 6), ("column", 6, 32), ("turned", 38, 40), ("fine", 78, 8), ("empty", 86, 0), ("mean", 86, 8),
    ]  # fmt: skip
    assert (layout.nbytes, layout.params_nbytes, layout.field("fine").offset) == (94, 86, 78)
    _, snapshot = flat_of(model)
    turned = np.frombuffer(snapshot.memory, "<f4", 10, 38).reshape(5, 2)
    assert turned.tolist() == model.turned.tolist()
    assert (snapshot.memory.format, snapshot.memory.nbytes, snapshot.memory.readonly) == ("B", 94, False)


@given(st.lists(st.tuples(st.sampled_from(["float64", "float32", "bfloat16"]), st.integers(0, 40),
                          st.sampled_from([EntryClass.PARAM, EntryClass.BUFFER])), max_size=8),
       st.integers(8, 64))  # fmt: skip
def test_blocks_tile_a_layout_exactly_once_and_cut_no_element(
    rows: list[tuple[str, int, EntryClass]], limit: int
) -> None:
    """N-26, N-25."""
    entries = [SchemaEntry(name=str(i), cls=c, shape=(n,), dtype=d) for i, (d, n, c) in enumerate(rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_module, "BLOCK_BYTES", limit)
        layout = FlatLayout.riding(Schema(entries=tuple(entries)))
    end = 0
    for number, block in enumerate(layout.blocks):
        field = layout.fields[block.entry]
        assert (block.number, block.offset) == (number, end) and 0 < block.nbytes <= limit
        assert field.offset <= block.offset < field.offset + field.nbytes
        assert (block.offset - field.offset) % {"float64": 8, "float32": 4, "bfloat16": 2}[field.entry.dtype] == 0
        assert [p.start for p in block.pieces] == [0, *(p.stop for p in block.pieces[:-1])]
        end += block.nbytes
    assert end == layout.nbytes


def test_a_snapshot_is_deep() -> None:
    """17.1 #34, W-26: no CPU tensor is aliased."""
    model = Odd()
    _, snapshot = flat_of(model)
    before = bytes(snapshot.memory)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert bytes(snapshot.memory) == before


def test_at_most_two_snapshots_are_alive_and_released_memory_is_reused() -> None:
    """R-10."""
    view, first = flat_of(Odd())
    view.snapshot()
    with pytest.raises(LocalProtocolError, match="release"):
        view.snapshot()
    view.release(first)
    view.release(first)
    assert view.snapshot().memory.obj is first.memory.obj
    with pytest.raises(LocalProtocolError, match="alive already"):
        view.snapshot()


def test_a_snapshot_into_memory_of_the_caller() -> None:
    """R-12: a slot of a segment; its length must be the layout's."""
    view, own = flat_of(Odd())
    memory = memoryview(bytearray(view.riding.nbytes))
    assert bytes(view.snapshot(memory).memory) == bytes(own.memory) == bytes(memory)
    with pytest.raises(LocalProtocolError, match="94 bytes"):
        view.snapshot(memoryview(bytearray(95)))


def test_overwriting_gives_the_consensus_bits_and_leaves_all_else_alone() -> None:
    """R-17, I66: storage, identity, strides, aliases, gradients, frozen and local entries, integers past 2**24."""
    source, target = Odd(1), Odd(2)
    _, snapshot = flat_of(source)
    places = {n: (id(t), t.data_ptr(), t.stride()) for n, t in target.named_parameters(remove_duplicate=False)}
    target.turned.grad = torch.ones_like(target.turned)
    kept = contents(target)
    FlatModel(target, schema_of(target)).adopt(snapshot.memory)
    now, wanted = contents(target), contents(source)
    for name in now:
        assert torch.equal(now[name], wanted[name] if name in RIDING else kept[name]), name
    assert places == {n: (id(t), t.data_ptr(), t.stride()) for n, t in target.named_parameters(remove_duplicate=False)}
    assert target.tied is target.column
    assert target.count.item() == 2**53 + 3
    assert torch.equal(target.turned.grad, torch.ones(5, 2))
    assert target.turned.requires_grad and target.turned.is_leaf and target.turned.grad_fn is None


def test_memory_between_strides_is_not_written() -> None:
    """I66."""
    storage = torch.arange(24.0).reshape(4, 6)
    model = nn.Module()
    model.register_buffer("part", storage[:, 1:3])
    view = FlatModel(model, schema_of(model))
    view.adopt(memoryview(bytes(view.riding.nbytes)))
    expected = torch.arange(24.0).reshape(4, 6)
    expected[:, 1:3] = 0
    assert torch.equal(storage, expected)


@settings(max_examples=30)
@given(st.floats(0.01, 1.0), st.integers(0, 9))
def test_blending_moves_parameters_by_alpha_and_overwrites_buffers(alpha: float, seed: int) -> None:
    """R-17: x += alpha * (c - x)."""
    source, target = Odd(seed), Odd(seed + 100)
    _, snapshot = flat_of(source)
    kept, wanted = contents(target), contents(source)
    FlatModel(target, schema_of(target)).adopt(snapshot.memory, "blend", alpha)
    for name, tensor in target.state_dict().items():
        if name not in RIDING:
            assert torch.equal(tensor, kept[name])
        elif name == "mean":
            assert torch.equal(tensor, wanted[name])
        else:
            exact = kept[name].double() + alpha * (wanted[name].double() - kept[name].double())
            bound = 2**-7 if tensor.dtype == torch.bfloat16 else 2**-21
            torch.testing.assert_close(tensor.double(), exact, atol=4 * bound, rtol=0)


def test_blending_with_alpha_one_equals_overwriting() -> None:
    """I65, and exactly so."""
    _, snapshot = flat_of(Odd(1))
    blended, overwritten = Odd(2), Odd(2)
    FlatModel(blended, schema_of(blended)).adopt(snapshot.memory, "blend", 1.0)
    FlatModel(overwritten, schema_of(overwritten)).adopt(snapshot.memory)
    assert all(map(torch.equal, contents(blended).values(), contents(overwritten).values()))


@pytest.mark.parametrize(("how", "alpha"), [("keep", 1.0), ("blend", 0.0), ("blend", 1.5), ("blend", float("nan"))])
def test_adoption_refuses_other_ways_and_factors(how: str, alpha: float) -> None:
    """R-17: alpha in (0, 1]; nothing is written."""
    model = Odd()
    view, snapshot = flat_of(model)
    before = contents(model)
    with pytest.raises(LocalProtocolError, match="R-17"):
        view.adopt(memoryview(bytes(len(snapshot.memory))), how, alpha)
    assert all(map(torch.equal, contents(model).values(), before.values()))


@pytest.mark.parametrize("flat", [bytes(93), np.zeros(94, np.int8).data, np.zeros((2, 47), np.uint8).data])
def test_adoption_refuses_memory_of_another_shape(flat: bytes) -> None:
    """R-21."""
    view, _ = flat_of(Odd())
    with pytest.raises(LocalProtocolError, match="R-21"):
        view.adopt(memoryview(flat))


def test_a_full_transfer_moves_every_entry_bit_for_bit() -> None:
    """R-20, I66; read-only memory will do. It begins with the riding layout."""
    source, target = Odd(1), Odd(2)
    view = FlatModel(source, schema_of(source))
    state = view.snapshot_state()
    assert bytes(state.memory[: view.riding.nbytes]) == bytes(view.snapshot().memory)
    FlatModel(target, schema_of(target)).adopt_state(memoryview(bytes(state.memory)))
    assert all(map(torch.equal, contents(target).values(), contents(source).values()))
    assert target.count.item() == 2**53 + 2 and target.tied is target.column


@pytest.mark.parametrize("name", ["brief", "column", "fine", "mean"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_finite_sees_every_riding_entry(name: str, value: float) -> None:
    """R-4."""
    model = Odd()
    view, snapshot = flat_of(model)
    assert view.finite(snapshot)
    with torch.no_grad():
        tensor = getattr(model, name)
        tensor[(-1,) * tensor.ndim] = value
    assert not view.finite(view.snapshot())


def test_finite_ignores_frozen_and_local_entries() -> None:
    """R-4, R-7: they are never summed, and a mask may hold minus infinities."""
    model = Odd()
    model.frozen.fill_(float("-inf"))
    view = FlatModel(model, schema_of(model))
    assert view.finite(view.snapshot_state())


def test_the_hash_of_a_snapshot_is_that_of_the_model_now() -> None:
    """R-3: a trainable set changed in mid-run is refused by the averager."""
    model = Odd()
    view, first = flat_of(model)
    assert first.schema_hash == view.schema_hash == view.schema.hash()
    model.turned.requires_grad_(False)
    assert view.snapshot().schema_hash != view.schema_hash == view.schema.hash()


def test_replaced_tensors_are_found_and_misfits_are_named() -> None:
    """R-3."""
    model = Odd()
    view, _ = flat_of(model)
    model.mean = torch.full((2,), 7.0)
    assert np.frombuffer(view.snapshot().memory, "<f4", 2, 86).tolist() == [7.0, 7.0]
    model.mean = torch.zeros(3)
    with pytest.raises(ConfigError, match="mean is"):
        view.adopt(memoryview(bytes(94)))
    del model.mean
    with pytest.raises(ConfigError, match="mean is gone"):
        view.adopt(memoryview(bytes(94)))
    with pytest.raises(ConfigError, match="does not fit"):
        FlatModel(nn.Linear(2, 2), view.schema)


@pytest.fixture(scope="module")
def every_bfloat16() -> Iterator[torch.Tensor]:
    yield torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)


def test_widening_bfloat16_is_torchs(every_bfloat16: torch.Tensor) -> None:
    """R-6: all 65536 values."""
    flat = every_bfloat16.view(torch.uint8).numpy().data
    np.testing.assert_array_equal(widen(flat, "bfloat16"), every_bfloat16.float().numpy())


@settings(max_examples=200)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64))
def test_narrowing_to_bfloat16_is_torchs(bits: list[int]) -> None:
    """R-6, R-14: to nearest, ties to even; NaN stays NaN."""
    values = np.array(bits, np.uint32).view(np.float32)
    into = allocate(2 * len(bits))
    narrow(values, "bfloat16", into)
    ours = torch.frombuffer(into, dtype=torch.bfloat16).float()
    torch.testing.assert_close(ours, torch.from_numpy(values).bfloat16().float(), rtol=0, atol=0, equal_nan=True)


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_a_copy_is_the_same_on_every_device(device: str) -> None:
    """W-26, R-17: out and in, overwritten and blended, against the CPU; the fences cover work still in flight."""
    source, target, other = Odd(1), Odd(2), Odd(2)
    _, expected = flat_of(source)
    FlatModel(other, schema_of(other)).adopt(expected.memory, "blend", 0.5)
    source.to(device)
    with torch.no_grad():
        for _ in range(100):
            source.turned.mul_(2.0)
            source.turned.mul_(0.5)
    _, snapshot = flat_of(source)
    assert bytes(snapshot.memory) == bytes(expected.memory)
    target.to(device)
    FlatModel(target, schema_of(target)).adopt(snapshot.memory, "blend", 0.5)
    assert all(map(torch.equal, contents(target.cpu()).values(), contents(other).values()))
    FlatModel(target.to(device), schema_of(target)).adopt(snapshot.memory)
    assert bytes(flat_of(target)[1].memory) == bytes(expected.memory)
