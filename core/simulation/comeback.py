"""The coordinator of a simulated run dies, and comes back from what its driver kept (M-40 to M-44).

A driver keeps each batch before it performs the effects of it. So what is kept is the machine as it was some time ago,
every event since, and the effects of the newest batch, which may be half done. A coordinator that comes back gets these
and nothing else: `revive` compares what that leads to with what the dead one knew (I37).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ..coordinator import Coordinator
from ..effects import Emit, Ready
from ..phases import RunPhase
from ..timeline import AGAIN
from .lost_tail import forgotten
from .violation import Violation, require

if TYPE_CHECKING:
    from .action import Action
    from .world import World

__all__ = ["Journal", "die", "revive"]

SNAPSHOT_EVERY = 60
"""Batches with an effect between two snapshots: few enough to meet both, a snapshot with much behind it and one with
little."""
GONE = "the coordinator is gone"


@attrs.define
class Journal:
    """What was kept: a snapshot, the events since, how many of them there were after each batch, and the effects of
    the newest batch."""

    head: Any
    undone: tuple[Any, ...]
    records: list[Any] = attrs.field(factory=list)
    ends: list[int] = attrs.field(factory=list)
    acted: int = 0
    """Batches since the snapshot that had an effect."""

    def keep(self, co: Coordinator, ready: Ready) -> None:
        """One batch, before its effects are performed."""
        self.records += ready.records
        self.undone = ready.effects
        self.ends.append(len(self.records))
        self.acted += bool(ready.effects)
        if self.acted == SNAPSHOT_EVERY:
            self.begin(co)

    def keep_quiet(self, records: tuple[Any, ...]) -> None:
        """Batches of one event each that had no effect."""
        known = len(self.records)
        self.records += records
        self.ends += range(known + 1, len(self.records) + 1)
        self.undone = ()

    def begin(self, co: Coordinator) -> None:
        """From here on a snapshot stands for all that was before."""
        self.head = co.snapshot()
        self.records.clear()
        self.ends.clear()
        self.acted = 0

    def without(self, batches: int) -> list[Any]:
        """The events that are left when the disk has lost the newest batches, as far back as the snapshot."""
        return self.records[: self.ends[-batches - 1] if batches < len(self.ends) else 0]

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
        world.touch(process)  # also who was not connected any more
    world.failed.clear()
    world.averager.forget()


def revive(world: World, action: Action) -> None:
    """A new coordinator goes on with the run; nothing happens if the old one is there, or the run is over. `amount` is
    how many batches at the end of the journal were lost (M-45), which a run survives that was in training, also if that
    is back to where it was forming."""
    if world.alive or world.finish is not None:
        return
    dead, co = world.co, _restarted(world, action.amount)
    trains = dead.run.phase == RunPhase.TRAINING and not dead.save_issued
    if action.amount and not trains:
        co = _restarted(world, 0)
    elif action.amount:
        world.reached("the end of a journal was lost")
        forgotten(world.ghost, co)
        world.watch.forget(co)
    if co.generation != dead.generation + 1:
        raise Violation("I8", f"generation {co.generation} follows {dead.generation}")
    if not (action.amount and trains) and _known(co) != _known(dead):
        raise Violation("I37", f"version, global_step, cycle and coverage were {_known(dead)}, they are {_known(co)}")
    if not (action.amount and trains):
        _says_again(world, co)
    world.come_back(co)


def _says_again(world: World, co: Coordinator) -> None:
    """M-44: what people and hooks may not have been told of the newest batch, they are told with a mark."""
    wanted = [effect.name for effect in world.journal.undone if isinstance(effect, Emit)]
    told = [effect.name for effect in co.outbox if isinstance(effect, Emit) and effect.facts.get(AGAIN)]
    require(told[len(told) - len(wanted) :] == wanted, "M-44", f"{wanted} was to be told again, told was {told}")


def _restarted(world: World, lost: int) -> Coordinator:
    kept = world.journal
    try:
        return Coordinator.restart(
            world.config, kept.head, kept.without(lost) if lost else kept.records, world.now + world.skew,
            undone=() if lost else kept.undone, engine=world.setup.engine, policies=world.policies,
        )  # fmt: skip
    except Exception as error:
        raise Violation("I22", f"a restart raised {error!r}") from error


def _known(co: Coordinator) -> tuple[Any, ...]:
    pools = {epoch: (pool.covered, pool.total) for epoch, pool in co.book.pools.items()}
    return co.cycle.version, co.cycle.global_step, co.cycle.number, co.book.last_closed_epoch, pools
