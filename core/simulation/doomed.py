"""What a run had lost when all faults stopped, and so what it may still end of.

A run that no fault strikes any more must average anew and finish its epochs. It may end of nothing but what had
happened before: an end that was decided by then, or the loss of ranks that were dead or unsound. A rank is *unsound*
while its process is dead, stopped, hung, cut off or away, or bears a fault that is yet to show, such as a message lost
with nobody told: it may die of that later, and that is no fault of the run. A sound one may not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from ..phases import RunPhase
from .process import Process

if TYPE_CHECKING:
    from .world import World

__all__ = ["Losses"]

BEARS = ("paused", "hung", "muted", "deafened", "tampered", "poisoned", "forges", "failing", "withholds")
"""Faults of a process that strike later, or whose trace does."""


@attrs.frozen(kw_only=True)
class Losses:
    """See the module. `decided`: the run was being saved, was told to stop or had nobody. `forming`: it had not formed,
    and the time of each rank for that ran while faults struck (M-6). `over`: all was trained and merged. `unsound` of
    its `seats`, of which `voters` are sound; `spoilt`: some steps were not finite or not averaged yet, so the row of
    cycles without a finite one (C-17) may have begun."""

    decided: bool
    forming: bool
    over: bool
    unsound: int
    seats: int
    voters: int
    spoilt: bool

    @classmethod
    def of(cls, world: World) -> Losses:
        """What is lost in a world that faults still strike, right before they stop."""
        co = world.co
        sound = {rank for rank, process in world.seats.items() if _is_sound(world, process)}
        return cls(
            decided=co.save_issued or co.stopping or not any(process.alive for process in world.processes),
            forming=co.run.phase == RunPhase.FORMING, over=co.run.phase > RunPhase.TRAINING,
            unsound=len(world.seats) - len(sound), seats=len(world.seats), voters=len(sound & set(co.voters)),
            spoilt=co.cycle.pending or any(process.poisoned for process in world.processes),
        )  # fmt: skip

    def explain(self, world: World, text: str) -> bool:
        """Whether a run may end with that text for what was lost by then."""
        config, sound = world.config, self.seats - self.unsound
        limit = config.max_failure
        most = math.ceil(limit * self.seats) if isinstance(limit, float) else limit
        return (
            self.decided
            or (self.forming and ("that a run needs" in text or "ranks came within" in text))
            or ("max_failure" in text and most is not None and self.unsound >= most)
            or ("no rank is left" in text and not self.voters)
            or ("one rank is left" in text and sound < 2)
            or ("min_ranks" in text and sound < config.min_ranks)
            or ("no rank had finite parameters" in text and self.spoilt)
        )


def _is_sound(world: World, process: Process) -> bool:
    peer = world.co.peers.get(process.rank)
    known = peer is not None and peer.alive and peer.incarnation == process.incarnation
    return known and process.runs and process.linked and not any(getattr(process, fault) for fault in BEARS)
