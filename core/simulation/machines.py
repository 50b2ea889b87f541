"""The coordinators that the model checker has met, by the number of their state; they are read and never moved.

Those asked for last are machines, the others are snapshots as bytes, which need less memory.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING

from ..coordinator import Coordinator

if TYPE_CHECKING:
    from .world import World

__all__ = ["Machines"]

AWAKE = 4096
"""Machines that are kept as such: one occupies some tens of kilobytes."""


class Machines:
    """See the module. They are coordinators of this world."""

    def __init__(self, world: World, awake: int = AWAKE) -> None:
        self._world, self._most = world, awake
        self._awake: OrderedDict[int, Coordinator] = OrderedDict()
        self._asleep: dict[int, bytes] = {}

    def keep(self, number: int, machine: Coordinator) -> None:
        """This one is in the state of that number; it is nobody else's."""
        self._awake[number] = machine
        if len(self._awake) > self._most:
            oldest, machine = self._awake.popitem(last=False)
            if oldest not in self._asleep:
                self._asleep[oldest] = json.dumps(machine.snapshot(), separators=(",", ":")).encode()

    def of(self, number: int) -> Coordinator:
        """One in that state, to be read."""
        found = self._awake.get(number)
        if found is None:
            world, kept = self._world, json.loads(self._asleep[number])
            found = Coordinator.restore(world.config, kept, engine=world.setup.engine)
            self.keep(number, found)
        else:
            self._awake.move_to_end(number)
        return found
