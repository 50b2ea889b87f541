"""A torch model as flat bytes: deep copies out, adoption in place (R-17, R-21, W-26).

`FlatModel` is the only place where live tensors are read or written by the library. It resolves names at every call
and keeps no tensor, because a training script may move or replace its parameters between two averages. Both
directions wait for the accelerators before and after: without that, a copy can read a parameter that the optimizer is
still writing (W-26).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import nn

from ..core.errors import ConfigError, LocalProtocolError
from ..core.schema import EntryClass, Schema
from .layout import BUFFERS_ALIVE, Field, FlatLayout, allocate
from .schema import named_tensors, schema_of, view_of

__all__ = ["FlatLayout", "FlatModel", "Snapshot"]

HOW = ("overwrite", "blend")


@attrs.frozen(eq=False)
class Snapshot:
    """A deep copy of a model's entries in one wire layout (R-21). `memory` is one-dimensional, format 'B', and exactly
    `layout.nbytes` long. `schema_hash` is that of the model at the instant of the copy: it differs from the run's if
    the trainable set was changed in between (R-3)."""

    layout: FlatLayout
    memory: memoryview
    schema_hash: bytes


class FlatModel:
    """The live model, seen through the schema of the run.

    `riding` is the layout of contributions and consensuses, `whole` that of a full transfer, `static` that of a
    transfer to a joiner (R-20); `schema_hash` is that of the run.
    """

    def __init__(self, model: nn.Module, schema: Schema) -> None:
        self.model = model
        self.schema = schema
        self.check()
        self.schema_hash = schema.hash()
        self.riding = FlatLayout.riding(schema)
        self.whole = FlatLayout.whole(schema)
        self.static = FlatLayout.static(schema)
        self._free: list[memoryview] = []
        self._alive: list[Snapshot] = []

    def check(self) -> None:
        """Raise `ConfigError` with the first entry in which the model, as it is now, differs from the run's (R-3)."""
        difference = self.schema.first_difference(schema_of(self.model))
        if difference is not None:
            raise ConfigError(f"the model does not fit the schema of the run: {difference} (R-3)")

    def snapshot(self, into: memoryview | None = None) -> Snapshot:
        """Copy all riding entries, deep (W-26). Without `into` the memory comes from two buffers that are reused;
        give them back with `release`. Raises `LocalProtocolError` if both are in use or `into` has another length,
        `ConfigError` if an entry is gone or has another shape or dtype."""
        tensors = self._tensors(self.riding.fields)
        hash_now = schema_of(self.model).hash()
        if into is not None:
            _check_length(into, self.riding)
            memory = into
        elif len(self._alive) >= BUFFERS_ALIVE:
            raise LocalProtocolError(f"{BUFFERS_ALIVE} snapshots are alive already; release one first (R-10)")
        else:
            memory = self._free.pop() if self._free else allocate(self.riding.nbytes)
        taken = Snapshot(self.riding, memory, hash_now)
        _copy_out(self.riding, tensors, memory)
        if into is None:
            self._alive.append(taken)
        return taken

    def snapshot_state(self) -> Snapshot:
        """Copy every entry, frozen and local ones too, into fresh memory (R-20): formation happens once."""
        tensors = self._tensors(self.whole.fields)
        memory = allocate(self.whole.nbytes)
        _copy_out(self.whole, tensors, memory)
        return Snapshot(self.whole, memory, schema_of(self.model).hash())

    def snapshot_static(self) -> Snapshot:
        """Copy the frozen and local entries into fresh memory, for a joiner (M-24)."""
        memory = allocate(self.static.nbytes)
        _copy_out(self.static, self._tensors(self.static.fields), memory)
        return Snapshot(self.static, memory, schema_of(self.model).hash())

    def copies(self) -> dict[str, torch.Tensor]:
        """The model's `state_dict` in the processor's memory, deep (W-26), for who writes it while the training goes on
        (K-7). Names of one tensor share one copy; what is no tensor is passed as it is."""
        live: dict[str, torch.Tensor] = self.model.state_dict()
        tensors = [tensor for tensor in live.values() if isinstance(tensor, torch.Tensor)]
        _fence(tensors)
        views = {view_of(tensor): tensor for tensor in tensors}
        made = {view: tensor.detach().to("cpu", copy=True) for view, tensor in views.items()}
        _fence(tensors)
        return {name: made[view_of(x)] if isinstance(x, torch.Tensor) else x for name, x in live.items()}

    def adopt_static(self, flat: memoryview) -> None:
        """Overwrite the frozen and local entries with those of a donor (M-24), in place."""
        _check_length(flat, self.static)
        _copy_in(self.static, flat, self._tensors(self.static.fields), None)

    def release(self, snapshot: Snapshot) -> None:
        """The memory of a snapshot that `snapshot()` made may be reused. Others are left alone."""
        for index, alive in enumerate(self._alive):
            if alive is snapshot:
                self._free.append(self._alive.pop(index).memory)
                return

    def finite(self, snapshot: Snapshot) -> bool:
        """Whether every riding value of the copy is finite (R-4)."""
        return snapshot.layout.finite(snapshot.memory)

    def adopt(self, flat: memoryview, how: str = "overwrite", alpha: float = 1.0) -> None:
        """Take over a consensus in the riding layout, in place (R-17).

        `overwrite` is x = c. `blend` is elastic averaging, x += alpha * (c - x), computed in float32 (float64 for
        float64 entries), with `alpha` in (0, 1]; floating buffers are overwritten all the same. Storage, identity and
        strides stay; frozen and local entries are not touched; gradients are not tracked and not touched.
        """
        if how not in HOW:
            raise LocalProtocolError(f"adopt knows {', '.join(HOW)}, not {how!r} (R-17)")
        if not 0.0 < alpha <= 1.0:
            raise LocalProtocolError(f"alpha = {alpha} is not in (0, 1] (R-17)")
        _check_length(flat, self.riding)
        tensors = self._tensors(self.riding.fields)
        _copy_in(self.riding, flat, tensors, alpha if how == "blend" else None)

    def adopt_state(self, flat: memoryview) -> None:
        """Overwrite every entry with a full transfer (R-20), in place."""
        _check_length(flat, self.whole)
        _copy_in(self.whole, flat, self._tensors(self.whole.fields), None)

    def _tensors(self, fields: Sequence[Field]) -> list[torch.Tensor]:
        """The live tensor of each field, detached: writing to it writes to the model and leaves no trace in a graph."""
        live = {name: tensor for name, tensor, _ in named_tensors(self.model)}
        found = []
        for field in fields:
            entry = field.entry
            tensor = live.get(entry.name)
            if tensor is None:
                raise ConfigError(f"{entry.name} is gone from the model; the schema of a run is fixed (R-3)")
            if tuple(tensor.shape) != entry.shape or str(tensor.dtype) != f"torch.{entry.dtype}":
                raise ConfigError(
                    f"{entry.name} is {tensor.dtype}{list(tensor.shape)} now; the schema of the run says "
                    f"{entry.dtype}{list(entry.shape)} (R-3)"
                )
            found.append(tensor.detach())
        return found


def _check_length(flat: memoryview, layout: FlatLayout) -> None:
    if flat.nbytes != layout.nbytes or flat.format != "B" or flat.ndim != 1:
        raise LocalProtocolError(
            f"flat memory must be one row of {layout.nbytes} bytes, format 'B'; this is {flat.nbytes} bytes, "
            f"format {flat.format!r}, {flat.ndim} dimensions (R-21)"
        )


def _fence(tensors: Sequence[torch.Tensor]) -> None:
    """Wait until every accelerator that holds one of the tensors is idle (W-26)."""
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        if device.type != "cpu":
            torch.accelerator.synchronize(device)


def _copy_out(layout: FlatLayout, tensors: Sequence[torch.Tensor], memory: memoryview) -> None:
    _fence(tensors)
    for field, tensor in zip(layout.fields, tensors, strict=True):
        if not field.nbytes:
            continue
        if _aligned(field):
            _view(memory, field).copy_(tensor)
        else:
            packed = torch.empty(tensor.shape, dtype=tensor.dtype)
            packed.copy_(tensor)
            _bytes(memory, field).copy_(packed.reshape(-1).view(torch.uint8))
    _fence(tensors)


@torch.no_grad()
def _copy_in(layout: FlatLayout, flat: memoryview, tensors: Sequence[torch.Tensor], alpha: float | None) -> None:
    _fence(tensors)
    for field, tensor in zip(layout.fields, tensors, strict=True):
        if not field.nbytes:
            continue
        source = _view(flat, field) if _aligned(field) and not flat.readonly else _unpacked(flat, field)
        if alpha is None or field.entry.cls != EntryClass.PARAM:
            tensor.copy_(source)
        else:
            wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
            consensus = source.to(tensor.device, wide)
            # lerp(x, c, alpha) = x + alpha * (c - x), and exactly c at alpha = 1.
            tensor.copy_(torch.lerp(tensor.to(wide), consensus, alpha))
    _fence(tensors)


def _aligned(field: Field) -> bool:
    """Whether torch may read the entry where it lies: nothing pads the layout (R-21)."""
    return field.offset % (field.nbytes // field.entry.elements) == 0


def _bytes(memory: memoryview, field: Field) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8, count=field.nbytes, offset=field.offset)


def _view(memory: memoryview, field: Field) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, field.entry.dtype)
    view = torch.frombuffer(memory, dtype=dtype, count=field.entry.elements, offset=field.offset)
    return view.reshape(field.entry.shape)


def _unpacked(memory: memoryview, field: Field) -> torch.Tensor:
    """The entry in memory of its own, where it is aligned and writable; torch wants both."""
    dtype: torch.dtype = getattr(torch, field.entry.dtype)
    own = bytearray(memory[field.offset : field.offset + field.nbytes])
    return torch.frombuffer(own, dtype=dtype).reshape(field.entry.shape)
