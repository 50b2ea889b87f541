"""From a torch module to a schema: R-3; field case F28 (tied weights)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from paceline.backends.schema import schema_of
from paceline.core.errors import ConfigError
from paceline.core.schema import EntryClass


class Zoo(nn.Module):
    """One entry of every class."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.head.bias.requires_grad_(False)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
        self.register_buffer("cache", torch.ones(2), persistent=False)
        self.register_buffer("absent", None)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.bfloat16))
        self.empty = nn.Parameter(torch.ones(0, 4))
        self.void = nn.Parameter(torch.ones(4, 0))


def rows(model: nn.Module) -> list[tuple[str, EntryClass, tuple[int, ...], str]]:
    return [(e.name, e.cls, e.shape, e.dtype) for e in schema_of(model).entries]


def test_entries_are_classed_and_keep_the_order_of_the_models_own_state() -> None:
    """R-3."""
    assert rows(Zoo()) == [
        ("scale", EntryClass.PARAM, (), "bfloat16"),
        ("empty", EntryClass.PARAM, (0, 4), "float32"),
        ("void", EntryClass.PARAM, (4, 0), "float32"),
        ("mask", EntryClass.LOCAL, (2,), "bool"),
        ("cache", EntryClass.LOCAL, (2,), "float32"),
        ("head.weight", EntryClass.PARAM, (2, 3), "float32"),
        ("head.bias", EntryClass.FROZEN, (2,), "float32"),
        ("norm.weight", EntryClass.PARAM, (2,), "float32"),
        ("norm.bias", EntryClass.PARAM, (2,), "float32"),
        ("norm.running_mean", EntryClass.BUFFER, (2,), "float32"),
        ("norm.running_var", EntryClass.BUFFER, (2,), "float32"),
        ("norm.num_batches_tracked", EntryClass.LOCAL, (), "int64"),
    ]
    names = [e.name for e in schema_of(Zoo()).entries if e.name != "cache"]
    assert names == list(Zoo().state_dict())


def test_membership_does_not_depend_on_gradients() -> None:
    """R-3."""
    model = nn.Linear(2, 2)
    before = schema_of(model).hash()
    model(torch.ones(1, 2)).sum().backward()
    model.bias.grad = None
    assert schema_of(model).hash() == before
    model.bias.requires_grad_(False)
    assert schema_of(model).hash() != before


def tied_parameter() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def tied_storage() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight.data = model[0].weight.data
    return model


@pytest.mark.parametrize("make", [tied_parameter, tied_storage])
def test_tied_storage_is_one_entry_with_aliases(make: Callable[[], nn.Module]) -> None:
    """R-3, F28."""
    schema = schema_of(make())
    assert [(e.name, e.aliases) for e in schema.entries] == [
        ("0.weight", ("1.weight",)), ("0.bias", ()), ("1.bias", ()),
    ]  # fmt: skip


def test_a_module_used_twice_is_one_set_of_entries() -> None:
    """R-3."""
    layer = nn.Linear(2, 2)
    assert [e.aliases for e in schema_of(nn.Sequential(layer, nn.ReLU(), layer)).entries] == [
        ("2.weight",), ("2.bias",),
    ]  # fmt: skip


def test_the_strongest_class_among_tied_names_wins() -> None:
    """R-3: what is trained under one name rides, though another name calls it frozen."""
    model = tied_storage()
    model[0].weight.requires_grad_(False)
    assert schema_of(model).entries[0].cls == EntryClass.PARAM


def test_a_model_that_is_not_tied_differs_in_its_first_tied_entry() -> None:
    """M-5, F28."""
    untied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    difference = schema_of(tied_parameter()).first_difference(schema_of(untied))
    assert difference is not None and "0.weight" in difference


def with_parameter(tensor: torch.Tensor, *more: torch.Tensor) -> nn.Module:
    model = nn.Module()
    for index, data in enumerate((tensor, *more)):
        model.register_buffer(f"odd{index}", data)
    return model


def two_columns() -> nn.Module:
    whole = torch.zeros(4, 6)
    return with_parameter(whole[:, :3], whole[:, 3:])


def test_interleaved_views_that_share_no_element_are_two_entries() -> None:
    """R-3, I66: gaps between strides are legal."""
    assert [e.shape for e in schema_of(two_columns()).entries] == [(4, 3), (4, 3)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.LazyLinear(3), "weight is lazy.*one batch"),
        (lambda: nn.Linear(2, 2, device="meta"), "weight is on the meta device"),
        (lambda: with_parameter(torch.zeros(2, dtype=torch.complex64)), "odd0 has dtype complex64.*float32"),
        (lambda: with_parameter(torch.zeros(2, dtype=torch.float8_e4m3fn)), "odd0 has dtype float8_e4m3fn"),
        (lambda: with_parameter(torch.zeros([1] * 65)), "odd0 has 65 dimensions, 64 are possible"),
        (lambda: with_parameter(torch.eye(3).to_sparse()), "odd0 has layout torch.sparse_coo"),
        (lambda: with_parameter(torch.zeros(1).expand(3)), "odd0 is expanded"),
        (lambda: with_parameter(*(lambda t: (t[:3], t[2:]))(torch.zeros(5))), "odd1 overlaps odd0"),
        (lambda: with_parameter(*(lambda t: (t, t.view(torch.int32)))(torch.zeros(5))), "two dtypes"),
    ],
)
def test_what_cannot_be_averaged_is_refused_by_name(make: Callable[[], nn.Module], words: str) -> None:
    """R-3: a clear error when the session is made, not torn values later."""
    with pytest.raises(ConfigError, match=words):
        schema_of(make())


def test_tensor_subclasses_are_refused_by_name() -> None:
    """R-3: a sharded tensor is not the whole one."""

    class Shard(torch.Tensor):
        pass

    with pytest.raises(ConfigError, match="odd0 is a Shard"):
        schema_of(with_parameter(torch.zeros(2).as_subclass(Shard)))
