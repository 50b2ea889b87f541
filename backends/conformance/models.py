"""From live models to live models, for the check A212. Needs torch."""

from __future__ import annotations

import torch
from torch import nn

from ...core.conformance import ensure
from ...core.schema import Schema
from ..flat import FlatModel
from ..schema import schema_of
from .drive import Ship
from .kit import Subject, ensure_consensus

__all__ = ["adopted_in_place"]


class _Model(nn.Module):
    """A strided parameter, a tied one, a frozen one, a scalar, an empty one, and buffers of both kinds."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.strided = nn.Parameter(torch.randn(4, 6, generator=draw).t()[::2])
        self.first = nn.Linear(3, 3, bias=False)
        self.first.weight = nn.Parameter(torch.randn(3, 3, generator=draw))
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.full((2,), float(seed)), requires_grad=False)
        self.scalar = nn.Parameter(torch.randn((), generator=draw, dtype=torch.float64))
        self.empty = nn.Parameter(torch.empty(0, 2))
        self.register_buffer("mean", torch.randn(5, generator=draw))
        self.register_buffer("count", torch.tensor((1 << 24) + 1 + seed))


def _look(model: _Model) -> tuple[object, ...]:
    """What adoption must not change."""
    tensors = [*model.parameters(), *model.buffers()]
    places = [(tensor.data_ptr(), tensor.stride(), tensor.dtype, tensor.shape, id(tensor)) for tensor in tensors]
    count = model.get_buffer("count")
    return places, model.frozen.tolist(), int(count), model.second.weight is model.first.weight


def adopted_in_place(subject: Subject) -> None:
    """See `a_model_is_adopted_in_place`."""
    models = [_Model(seed) for seed in (0, 1)]
    schema: Schema = schema_of(models[0])
    flats = [FlatModel(model, schema) for model in models]
    before = [_look(model) for model in models]
    copies = [bytes(flat.snapshot().memory) for flat in flats]
    ships = {rank: Ship(3 * rank + 1, copy) for rank, copy in enumerate(copies)}
    averager, _ = subject.cycle(ships, schema=schema)
    ensure_consensus(averager, ships, "two models", schema=schema)
    for rank, flat in enumerate(flats):
        flat.adopt(memoryview(bytearray(averager.consensus or b"")))
        ensure(_look(models[rank]) == before[rank], f"adoption at rank {rank} moved or changed what it must not")
        ensure(bytes(flat.snapshot().memory) == bytes(averager.consensus or b""), f"rank {rank} holds other bits")
