"""Models that a test writes down entry by entry, and one average of them over TCP."""

from __future__ import annotations

import torch
from torch import nn

from paceline.core import events as ev

from .star_path import path_of, whole_cycle
from .transports import TCP, run

__all__ = ["averaged", "bits", "holding"]


def holding(**entries: torch.Tensor) -> nn.Module:
    """A model of these entries; what is no parameter is a persistent buffer."""
    model = nn.Module()
    for name, tensor in entries.items():
        if isinstance(tensor, nn.Parameter):
            model.register_parameter(name, tensor)
        else:
            model.register_buffer(name, tensor)
    return model


def averaged(*models: nn.Module, steps: tuple[int, ...]) -> list[ev.ConsensusStaged]:
    """One average of these models over TCP, adopted; gives what was staged."""
    told: list[ev.ConsensusStaged] = []

    async def main() -> None:
        async with path_of(*models, kind=TCP) as p:
            told.extend(await whole_cycle(p, dict(enumerate(steps))))

    run(main)
    return told


def bits(model: nn.Module) -> dict[str, bytes]:
    """Every entry of a model, to the bit."""
    return {name: tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            for name, tensor in model.state_dict().items()}  # fmt: skip
