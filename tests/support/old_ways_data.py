"""Old ways of moving and averaging data, put back (see `mutants.py`)."""

from __future__ import annotations

from typing import Any

import trio

from paceline.backends import star
from paceline.backends.flat import FlatModel, Snapshot
from paceline.core import round as rounds

from .mutants import OldWays, Patch, around

OLD_WAYS = OldWays()


class NoLock:
    """A lock that keeps nobody out."""

    async def __aenter__(self) -> None:
        await trio.lowlevel.checkpoint()

    async def __aexit__(self, *error: object) -> None:
        await trio.lowlevel.checkpoint()


@OLD_WAYS.old_way("17.1 #24")
def everybody_writes(patch: Patch) -> None:
    """Whoever has something to send writes it, whether or not another is inside a frame."""
    patch.setattr(trio, "Lock", NoLock)


@OLD_WAYS.old_way("17.1 #34")
def a_snapshot_is_a_view(patch: Patch) -> None:
    """The copy of a tensor in CPU memory is the tensor."""

    def change(snapshot: Any, model: FlatModel, into: memoryview | None = None) -> Snapshot:
        copy = snapshot(model, into)
        (live,) = model.model.parameters()
        return Snapshot(copy.layout, memoryview(live.detach().numpy()).cast("B"), copy.schema_hash)

    around(patch, FlatModel, "snapshot", change)


@OLD_WAYS.old_way("17.1 #37")
def no_steps_weigh_like_one(patch: Patch) -> None:
    """A rank without steps is in the divisor with the mass of one."""

    def change(mass: Any, steps: int, gamma: float) -> float:
        return mass(max(1, steps), gamma)

    around(patch, rounds, "mass", change)
    patch.setattr(star, "mass", rounds.mass)
