"""The coordinator of a simulated run dies, and comes back from what its driver kept (M-40 to M-44).

A driver keeps each batch before it performs the effects of it. So what is kept is the machine as it was some time ago,
every event since, and the effects of the newest batch, which may be half done. A coordinator that comes back gets these
and nothing else: `revive` compares what that leads to with what the dead one knew (I37).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ..coordinator import Coordinator
from ..effects import Ready
from .violation import Violation

if TYPE_CHECKING:
    from .action import Action
    from .world import World

__all__ = ["Journal", "die", "revive"]

SNAPSHOT_EVERY = 400
"""Batches between two snapshots: few enough to meet both, a snapshot with much behind it and one with little."""
GONE = "the coordinator is gone"


@attrs.define
class Journal:
    """What was kept: a snapshot, the events since, the effects of the newest batch."""

    head: Any
    undone: tuple[Any, ...]
    records: list[Any] = attrs.field(factory=list)
    batches: int = 0

    def keep(self, co: Coordinator, ready: Ready) -> None:
        """One batch, before its effects are performed."""
        self.records += ready.records
        self.undone = ready.effects
        self.batches += 1
        if self.batches == SNAPSHOT_EVERY:
            self.begin(co)

    def begin(self, co: Coordinator) -> None:
        """From here on a snapshot stands for all that was before."""
        self.head, self.batches = co.snapshot(), 0
        self.records.clear()

    def undone_if(self, *, dead: bool) -> tuple[Any, ...]:
        """For the snapshot of a world: while the coordinator lives, its own state says all but this, and this matters
        only to one that comes back."""
        return self.undone if dead else ()


def die(world: World) -> None:
    """The coordinator is gone, with its averager: every rank finds its link lost, and what was under way too."""
    world.alive, world.lasts = False, None
    for process in world.processes:
        if process.linked:
            world.close(process, GONE)
        process.up.clear()
        process.bulk_up.clear()
    world.failed.clear()
    world.averager.forget()


def revive(world: World, action: Action) -> None:
    """A new coordinator goes on with the run; nothing happens if the old one is there, or the run is over."""
    if world.alive or world.finish is not None:
        return
    dead, kept = world.co, world.journal
    try:
        co = Coordinator.restart(
            world.config, kept.head, kept.records, world.now + world.skew, undone=kept.undone,
            engine=world.setup.engine, policies=world.policies,
        )  # fmt: skip
    except Exception as error:
        raise Violation("I22", f"a restart raised {error!r}") from error
    if co.generation != dead.generation + 1:
        raise Violation("I8", f"generation {co.generation} follows {dead.generation}")
    if _known(co) != _known(dead):
        raise Violation("I37", f"version, global_step, cycle and coverage were {_known(dead)}, they are {_known(co)}")
    world.come_back(co)


def _known(co: Coordinator) -> tuple[Any, ...]:
    pools = {epoch: (pool.covered, pool.total) for epoch, pool in co.book.pools.items()}
    return co.cycle.version, co.cycle.global_step, co.cycle.number, co.book.last_closed_epoch, pools
