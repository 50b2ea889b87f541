"""Files of a checkpoint: safetensors, never pickle, whole or not there at all (K-7, K-8, K-11).

A file is written under a temporary name in its own directory, flushed to the disk, renamed, and the directory flushed:
a reader finds the old file or the new one, after a power cut too. A failed write takes its temporary file away and
raises `CheckpointError` with path and size, so that the older file stays and training can go on.

Tied names are written once. The metadata maps each alias to the name that holds its values, as
`safetensors.torch.load_model` reads it, so a user needs nothing of paceline to load a model.

The writer is our own because the consensus already lies in memory in file order: it is streamed from there, while the
library would want a copy of every tensor first. The reader is the library's.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import torch
from safetensors import SafetensorError, safe_open

from ..core.errors import CheckpointError
from ..core.schema import DTYPE_SIZES, Schema
from .layout import FlatLayout, allocate

__all__ = [
    "load_flat",
    "load_model",
    "load_optimizer",
    "restore_optimizer",
    "save_flat",
    "save_model",
    "save_optimizer",
]

WRITE_BYTES = 16 << 20
"""Most bytes handed to the kernel at once."""
FORMAT_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""Schema dtype to the name safetensors has for it."""
OPTIMIZER_KEY = "paceline.optimizer"
STATE_DEPTH = 16
"""Deepest nesting of an optimizer's state."""


@attrs.frozen
class _Item:
    """A tensor to write; `data` yields its bytes, row-major and little-endian, when its turn comes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], memoryview]

    @property
    def nbytes(self) -> int:
        count = DTYPE_SIZES[self.dtype]
        for extent in self.shape:
            count *= extent
        return count


# --- models ----------------------------------------------------------------------------------------------------


def save_model(path: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write named tensors, such as a `state_dict`, in their exact dtypes. Names that are the same view of one storage
    are written once. Raises `CheckpointError`."""
    target, aliases = Path(path), dict(metadata)
    first: dict[tuple[object, ...], str] = {}
    items = []
    for name, tensor in tensors.items():
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and key in first:
            aliases[name] = first[key]
            continue
        first[key] = name
        items.append(_tensor_item(target, name, tensor))
    _write(target, items, aliases)


def load_model(path: str | os.PathLike[str]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors by name, tied names included (they share one tensor), and the metadata without the alias entries.
    Raises `CheckpointError` for a missing or damaged file."""
    tensors, metadata = _read(Path(path))
    for alias, name in list(metadata.items()):
        if alias not in tensors and name in tensors:
            tensors[alias] = tensors[name]
            del metadata[alias]
    return tensors, metadata


def save_flat(path: str | os.PathLike[str], schema: Schema, flat: memoryview, metadata: Mapping[str, str]) -> None:
    """Write a consensus in the riding layout, keyed by schema names, straight from its memory (K-7). Raises
    `CheckpointError`."""
    target, layout = Path(path), FlatLayout.riding(schema)
    _check_size(target, layout, len(flat))
    items = [
        _Item(
            field.entry.name, field.entry.dtype, field.entry.shape,
            lambda start=field.offset, end=field.offset + field.nbytes: flat[start:end],  # type: ignore[misc]
        )
        for field in layout.fields
    ]  # fmt: skip
    aliases = {alias: field.entry.name for field in layout.fields for alias in field.entry.aliases}
    _write(target, items, {**metadata, **aliases})


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
    """Write an optimizer's state: its tensors as tensors, the rest as JSON in the metadata (K-11). Raises
    `CheckpointError` naming the place of a value that is neither a tensor nor plain data."""
    target = Path(path)
    items: list[_Item] = []
    plain = _pack(target, optimizer.state_dict(), "optimizer", items, STATE_DEPTH)
    _write(target, items, {**(metadata or {}), OPTIMIZER_KEY: json.dumps(plain, separators=(",", ":"))})


def load_optimizer(path: str | os.PathLike[str], rank: int | None = None) -> dict[str, Any]:
    """The state dict that `save_optimizer` wrote, for `optimizer.load_state_dict`. With `rank` the file must be that
    rank's own: its momentum is of the path that this rank took, and of no other (K-12). Raises `CheckpointError`."""
    target = Path(path)
    tensors, metadata = _read(target)
    if rank is not None and metadata.get("rank") != str(rank):
        raise CheckpointError(f"{target} is of rank {metadata.get('rank')}, this is rank {rank}: momentum belongs to "
                              "the rank that gathered it (K-12)")  # fmt: skip
    try:
        plain = json.loads(metadata[OPTIMIZER_KEY])
        unpacked: dict[str, Any] = _unpack(plain, tensors)
    except (KeyError, ValueError, TypeError) as failure:
        raise CheckpointError(f"{target} holds no optimizer state: {failure!r}; give another file (K-12)") from failure
    return unpacked


def restore_optimizer(path: str | os.PathLike[str], optimizer: torch.optim.Optimizer, rank: int) -> None:
    """Give a rank its own optimizer state back; in `path`, `{rank}` stands for its number. Raises `CheckpointError`,
    the optimizer unchanged, also for the state of another optimizer or model."""
    target = Path(str(path).replace("{rank}", str(rank)))
    state = load_optimizer(target, rank)
    known = state.get("state", {})
    for number, (group, ours) in enumerate(zip(state.get("param_groups", ()), optimizer.param_groups, strict=False)):
        for place, (parameter, own) in enumerate(zip(group.get("params", ()), ours["params"], strict=False)):
            if known and own.requires_grad and parameter not in known:  # the library would read it as nothing to do
                raise CheckpointError(f"{target} has no state for parameter {place} of group {number} (K-12)")
    try:
        optimizer.load_state_dict(state)
    except (KeyError, ValueError, TypeError) as failure:
        raise CheckpointError(f"{target} does not fit this {type(optimizer).__name__}: {failure} (K-12)") from failure


def _pack(target: Path, thing: Any, place: str, items: list[_Item], depth: int) -> Any:
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


def _tensor_item(target: Path, name: str, tensor: torch.Tensor) -> _Item:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in FORMAT_NAMES:
        raise CheckpointError(f"{target}: {name} has dtype {dtype}; known are {', '.join(FORMAT_NAMES)} (K-7)")
    return _Item(name, dtype, tuple(tensor.shape), lambda: _bytes_of(tensor))


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    row = tensor.detach().cpu().contiguous().reshape(-1)
    return row.view(torch.uint8).numpy().data


def _check_size(target: Path, layout: FlatLayout, nbytes: int) -> None:
    if nbytes != layout.nbytes:
        raise CheckpointError(f"{target}: the consensus has {nbytes} bytes, the schema {layout.nbytes} (K-7)")


def _read(target: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    try:
        with safe_open(target, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (OSError, SafetensorError) as failure:
        raise CheckpointError(f"{target} cannot be read: {failure}; give another file (K-12)") from failure


def _write(target: Path, items: Sequence[_Item], metadata: Mapping[str, str]) -> None:
    # Widest dtype first, as the library does it: then every tensor is aligned in the file.
    ordered = sorted(items, key=lambda item: -DTYPE_SIZES[item.dtype])
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for item in ordered:
        start, end = end, end + item.nbytes
        header[item.name] = {
            "dtype": FORMAT_NAMES[item.dtype], "shape": list(item.shape), "data_offsets": [start, end],
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    total = 8 + len(text) + end
    with _replacing(target, total) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for item in ordered:
            data = item.data()
            for first in range(0, len(data), WRITE_BYTES):
                file.write(data[first : first + WRITE_BYTES])


@contextlib.contextmanager
def _replacing(target: Path, size: int) -> Iterator[BinaryIO]:
    """A file that takes the place of `target` when the block ends well, and leaves no trace otherwise (K-8)."""
    # A name of its own for every writer: two savers of one decision must not write into one file.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.partial")
    try:
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
            _sync_directory(target.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    except OSError as failure:
        raise CheckpointError(
            f"{target} ({size} bytes) could not be written: {failure}; an older file, if any, is still there (K-8)"
        ) from failure


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
