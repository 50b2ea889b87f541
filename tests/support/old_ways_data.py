"""Old ways of moving and averaging data, put back (see `mutants.py`)."""

from __future__ import annotations

from typing import Any

import trio

from paceline.backends import flat, star, star_link
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


@OLD_WAYS.old_way("17.1 #25")
def the_timeout_was_cleared(patch: Patch) -> None:
    """Whoever waits has a timeout that is a property of what it reads from, and a copy of that has none."""
    patch.setattr(trio, "move_on_after", lambda seconds: trio.CancelScope())


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


@OLD_WAYS.old_way("17.1 #35")
def nobody_waits_for_the_device(patch: Patch) -> None:
    """A copy is made whether or not what was computed is there yet."""
    patch.setattr(flat, "_fence", lambda tensors: None)


@OLD_WAYS.old_way("17.2 #16")
def a_divergence_of_its_own(patch: Patch) -> None:
    """One averager relates the distance to what will be adopted, another to what was shipped."""

    def change(divergence: Any, layout: Any, pre: memoryview, post: memoryview) -> Any:
        return divergence(layout, post, pre)

    around(patch, star_link, "divergence", change)
