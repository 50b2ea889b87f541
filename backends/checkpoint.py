"""Files of a checkpoint, with torch: safetensors, never pickle (K-7, K-11, K-12).

Tied names are written once. The metadata maps each alias to the name that holds its values, as
`safetensors.torch.load_model` reads it, so a user needs nothing of paceline to load a model.

The reader is the library's. The writer is in `tensor_file`, which a coordinator uses without torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..core.errors import CheckpointError
from ..core.plain import DAMAGE
from ..core.schema import Schema
from .layout import FlatLayout, allocate
from .schema import view_of
from .tensor_file import FORMAT_NAMES, SEAL, TensorItem, check_seal, write_tensors

__all__ = [
    "load_flat",
    "load_model",
    "load_optimizer",
    "restore_optimizer",
    "save_model",
    "save_optimizer",
]

OPTIMIZER_KEY = "paceline.optimizer"
STATE_DEPTH = 16
"""Deepest nesting of an optimizer's state."""


# --- models ----------------------------------------------------------------------------------------------------


def save_model(path: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write named tensors, such as a `state_dict`, in their exact dtypes. Names that are the same view of one storage
    are written once. The file is sealed (K-6). Raises `CheckpointError`."""
    target, aliases = Path(path), dict(metadata)
    first: dict[tuple[object, ...], str] = {}
    items = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError(f"{target}: {name} is a {type(tensor).__name__}, which only pickle could write (K-7)")
        key = view_of(tensor)
        if key in first:
            aliases[name] = first[key]
            continue
        first[key] = name
        items.append(_tensor_item(target, name, tensor))
    write_tensors(target, items, aliases, sealed=True)


def load_model(path: str | os.PathLike[str]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors by name, tied names included (they share one tensor), and the metadata without the alias entries.
    Raises `CheckpointError` for a missing or damaged file."""
    tensors, metadata = _read(Path(path))
    for alias, name in list(metadata.items()):
        if alias not in tensors and name in tensors:
            tensors[alias] = tensors[name]
            del metadata[alias]
    return tensors, metadata


def load_flat(path: str | os.PathLike[str], schema: Schema) -> tuple[memoryview, dict[str, str]]:
    """A consensus back in the riding layout, and the metadata. Raises `CheckpointError` that names the first entry
    that the file lacks or has in another shape or dtype."""
    target, layout = Path(path), FlatLayout.riding(schema)
    tensors, metadata = load_model(target)
    flat = allocate(layout.nbytes)
    for field in layout.fields:
        tensor, entry = tensors.get(field.entry.name), field.entry
        if tensor is None:
            raise CheckpointError(f"{target} lacks {entry.describe()}; it is of another model (K-12)")
        if tuple(tensor.shape) != entry.shape or str(tensor.dtype) != f"torch.{entry.dtype}":
            found = f"{tensor.dtype}{list(tensor.shape)}"
            raise CheckpointError(f"{target} has {entry.name} as {found}, this run has {entry.describe()} (K-12)")
        flat[field.offset : field.offset + field.nbytes] = _bytes_of(tensor)
    return flat, metadata


# --- optimizers ------------------------------------------------------------------------------------------------


def save_optimizer(
    path: str | os.PathLike[str], optimizer: torch.optim.Optimizer, metadata: Mapping[str, str] | None = None
) -> None:
    """Write an optimizer's state: its tensors as tensors, the rest as JSON in the metadata (K-11). The file is
    sealed (K-6). Raises `CheckpointError` naming the place of a value that is neither a tensor nor plain data."""
    target = Path(path)
    items: list[TensorItem] = []
    plain = _pack(target, optimizer.state_dict(), "optimizer", items, STATE_DEPTH)
    told = {**(metadata or {}), OPTIMIZER_KEY: json.dumps(plain, separators=(",", ":"))}
    write_tensors(target, items, told, sealed=True)


def load_optimizer(path: str | os.PathLike[str], rank: int | None = None) -> dict[str, Any]:
    """The state dict that `save_optimizer` wrote, for `optimizer.load_state_dict`. With `rank` the file must be that
    rank's own: its momentum is of the path that this rank took, and of no other (K-12). Raises `CheckpointError`."""
    target = Path(path)
    tensors, metadata = _read(target)
    if rank is not None and metadata.get("rank") != str(rank):
        raise CheckpointError(f"{target} is of rank {metadata.get('rank')}, this is rank {rank}: momentum belongs to "
                              "the rank that gathered it (K-12)")  # fmt: skip
    try:
        unpacked = _unpack(json.loads(metadata[OPTIMIZER_KEY]), tensors)
        if not isinstance(unpacked, dict):
            raise TypeError(f"it is {unpacked!r}")
    except DAMAGE as failure:
        raise CheckpointError(f"{target} holds no optimizer state: {failure!r}; give another file (K-12)") from failure
    return unpacked


def restore_optimizer(path: str | os.PathLike[str], optimizer: torch.optim.Optimizer, rank: int) -> None:
    """Give a rank its own optimizer state back; in `path`, `{rank}` stands for its number. Raises `CheckpointError`,
    the optimizer unchanged, also for the state of another optimizer or model."""
    target = Path(str(path).replace("{rank}", str(rank)))
    state = load_optimizer(target, rank)
    try:
        _check_complete(target, state, optimizer)
        optimizer.load_state_dict(state)
    except DAMAGE as failure:
        raise CheckpointError(f"{target} does not fit this {type(optimizer).__name__}: {failure} (K-12)") from failure


def _check_complete(target: Path, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Raise `CheckpointError` for a parameter without state: the library would read it as nothing to do."""
    known = state.get("state", {})
    for number, (group, ours) in enumerate(zip(state.get("param_groups", ()), optimizer.param_groups, strict=False)):
        for place, (parameter, own) in enumerate(zip(group.get("params", ()), ours["params"], strict=False)):
            if known and own.requires_grad and parameter not in known:
                raise CheckpointError(f"{target} has no state for parameter {place} of group {number} (K-12)")


def _pack(target: Path, thing: Any, place: str, items: list[TensorItem], depth: int) -> Any:
    """JSON for `thing`. Every container is tagged, since JSON knows neither tuples nor integer keys."""
    if depth == 0:
        raise CheckpointError(f"{target}: {place} is nested more than {STATE_DEPTH} deep (K-11)")
    if thing is None or type(thing) in (bool, int, float, str):
        return thing
    if isinstance(thing, torch.Tensor):
        items.append(_tensor_item(target, place, thing))
        return {"tensor": place}
    if isinstance(thing, dict):
        return {
            "dict": [
                [_pack(target, key, f"{place} key", items, 1), _pack(target, held, f"{place}.{key}", items, depth - 1)]
                for key, held in thing.items()
            ]
        }
    if isinstance(thing, list | tuple):
        packed = [_pack(target, held, f"{place}.{index}", items, depth - 1) for index, held in enumerate(thing)]
        return {"tuple" if isinstance(thing, tuple) else "list": packed}
    raise CheckpointError(f"{target}: {place} is a {type(thing).__name__}, which only pickle could write (K-11)")


def _unpack(packed: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(packed, dict):
        return packed
    ((tag, held),) = packed.items()
    if tag == "tensor":
        return tensors[held]
    if tag == "dict":
        return {_unpack(key, tensors): _unpack(thing, tensors) for key, thing in held}
    unpacked = [_unpack(thing, tensors) for thing in held]
    return tuple(unpacked) if tag == "tuple" else unpacked


# --- files -----------------------------------------------------------------------------------------------------


def _tensor_item(target: Path, name: str, tensor: torch.Tensor) -> TensorItem:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in FORMAT_NAMES:
        raise CheckpointError(f"{target}: {name} has dtype {dtype}; known are {', '.join(FORMAT_NAMES)} (K-7)")
    return TensorItem(name, dtype, tuple(tensor.shape), lambda: _bytes_of(tensor))


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    row = tensor.detach().cpu().contiguous().reshape(-1)
    return row.view(torch.uint8).numpy().data


def _read(target: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    check_seal(target)
    try:
        with safe_open(target, framework="pt") as file:
            told = {name: text for name, text in (file.metadata() or {}).items() if name != SEAL}
            return {name: file.get_tensor(name) for name in file.keys()}, told  # noqa: SIM118
    except (OSError, SafetensorError) as failure:
        raise CheckpointError(f"{target} cannot be read: {failure}; give another file (K-12)") from failure
