"""From a torch module to the schema of a run (R-3).

The walk follows the model's own state: module by module, parameters before buffers, as `state_dict` does, so the
order depends on how the model is written and never on which gradients happen to exist. Memory that several names
share is one entry with aliases: it is sent once, averaged once, written once. Memory that two entries share in part
has no such reading and is refused, as is everything whose values do not lie in plain local memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..core.errors import ConfigError
from ..core.schema import DTYPE_SIZES, EntryClass, Schema, SchemaEntry
from .layout import floating

__all__ = ["named_tensors", "schema_of", "view_of"]

Key = tuple[object, ...]


def schema_of(model: nn.Module) -> Schema:
    """The schema of a model.

    A parameter with `requires_grad` is `param`, one without is `frozen`; a persistent floating buffer is `buffer`;
    integer, bool and non-persistent buffers are `local`. Of tied names the first gives the entry its name, and the
    strongest class among them its class, in this order: param, buffer, frozen, local.

    Raises `ConfigError` naming the entry that is lazy, on the meta device, sharded, sparse, of a dtype or a number of
    dimensions that cannot travel, or overlaps another one in part.
    """
    found: dict[Key, SchemaEntry] = {}
    tensors: dict[Key, torch.Tensor] = {}
    for name, tensor, cls in named_tensors(model):
        _check(name, tensor)
        key = view_of(tensor)
        first = found.get(key)
        if first is None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            found[key] = SchemaEntry(name=name, cls=cls, shape=tuple(tensor.shape), dtype=dtype)
            tensors[key] = tensor
        else:
            aliases = (*first.aliases, name)
            found[key] = SchemaEntry(
                name=first.name, cls=min(first.cls, cls), shape=first.shape, dtype=first.dtype, aliases=aliases
            )
    _check_overlaps([(found[key].name, tensor) for key, tensor in tensors.items()])
    schema = Schema(entries=tuple(found.values()))
    fault = schema.fault()
    if fault is not None:
        raise ConfigError(f"the model cannot be averaged: {fault} (R-3)")
    return schema


def named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor, EntryClass]]:
    """Every name of every tensor of the model's state, aliases and non-persistent buffers included, in the model's
    own order, with the class that this name alone would give it (R-3)."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield dot + name, parameter, EntryClass.PARAM if parameter.requires_grad else EntryClass.FROZEN
        for name, buffer in module._buffers.items():
            if buffer is not None:
                persistent = name not in module._non_persistent_buffers_set
                rides = persistent and floating(str(buffer.dtype).removeprefix("torch."))
                yield dot + name, buffer, EntryClass.BUFFER if rides else EntryClass.LOCAL


def _check(name: str, tensor: torch.Tensor) -> None:
    if is_lazy(tensor):
        raise ConfigError(f"{name} is lazy and has no shape yet: run one batch through the model first (R-3)")
    if tensor.is_meta:
        raise ConfigError(f"{name} is on the meta device and has no values: materialise the model first (R-3)")
    plain = tensor.detach()
    if type(plain) is not torch.Tensor:
        raise ConfigError(f"{name} is a {type(plain).__name__}; only whole, plain tensors can be averaged (R-3)")
    if plain.layout != torch.strided:
        raise ConfigError(f"{name} has layout {plain.layout}; only dense tensors can be averaged (R-3)")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPE_SIZES:
        raise ConfigError(f"{name} has dtype {dtype}; a schema knows {', '.join(DTYPE_SIZES)} (R-3)")
    if any(extent > 1 and step == 0 for extent, step in zip(plain.shape, plain.stride(), strict=True)):
        raise ConfigError(f"{name} is expanded: several of its elements are one place in memory; clone it (R-3)")


def view_of(tensor: torch.Tensor) -> Key:
    """Equal for two tensors that are one and the same view of one storage. A tensor without elements has no memory,
    so it is only ever itself."""
    if tensor.numel() == 0:
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _check_overlaps(entries: list[tuple[str, torch.Tensor]]) -> None:
    """Refuse entries that share a part of their memory: blending would move the shared part twice."""
    by_storage: dict[tuple[object, int], list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in entries:
        if tensor.numel():
            place = (tensor.device, tensor.untyped_storage().data_ptr())
            by_storage.setdefault(place, []).append((name, tensor))
    for sharing in by_storage.values():
        if len(sharing) > 1:
            _check_disjoint(sharing)


def _check_disjoint(sharing: list[tuple[str, torch.Tensor]]) -> None:
    first_name, first = sharing[0]
    owner = torch.full((first.untyped_storage().nbytes() // first.element_size(),), -1, dtype=torch.int32)
    for index, (name, tensor) in enumerate(sharing):
        if tensor.dtype != first.dtype:
            raise ConfigError(f"{name} and {first_name} read one storage as two dtypes; clone one of them (R-3)")
        # Marking the very elements, because two interleaved column views of one matrix are legal.
        marks = owner.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        taken = int(marks.max())
        if taken >= 0:
            other = sharing[taken][0]
            raise ConfigError(f"{name} overlaps {other} but is not the same view of it; clone one of them (R-3)")
        marks.fill_(index)
