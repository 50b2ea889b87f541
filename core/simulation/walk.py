"""Runs from plain numbers: what property tests, fuzzers and shrinkers steer a world with.

Each number chooses one action. 0 is the dullest that can happen, so that whoever makes numbers smaller makes the run
duller, and a list that ends early goes on dully. One number in `FAULT_EVERY` is a fault or a wish, as long as the
caller allows any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .action import Action
from .schedule import Schedule, Timed
from .setup import Setup
from .world import Step, World

__all__ = ["FAULT_EVERY", "choose", "numbers_of", "schedule_of", "walk"]

FAULT_EVERY = 16


def choose(world: World, number: int, *, faults: bool) -> Action | None:
    """The action that the number stands for in this world; None when nothing can happen any more."""
    if faults and number % FAULT_EVERY == FAULT_EVERY - 1 and (struck := world.faults()):
        return struck[number // FAULT_EVERY % len(struck)]
    enabled = world.enabled()
    return enabled[number // FAULT_EVERY % len(enabled)] if enabled else None


def walk(world: World, numbers: Iterable[int], *, most_faults: int = 0) -> Iterator[Step]:
    """One step for each number, while the run goes on."""
    for number in numbers:
        action = None if world.over else choose(world, number, faults=most_faults > 0)
        if action is None:
            return
        if number % FAULT_EVERY == FAULT_EVERY - 1:
            most_faults -= 1
        yield world.do(action)


def numbers_of(data: bytes) -> list[int]:
    """Two bytes a number, for fuzzers; an odd byte at the end is left out."""
    return [low | high << 8 for low, high in zip(data[::2], data[1::2], strict=False)]


def schedule_of(setup: Setup, numbers: Iterable[int], *, most_faults: int = 0) -> Schedule:
    """The schedule that these numbers lead to, with its dull end."""
    actions: list[Timed] = [(step.at, step.action) for step in walk(World(setup), numbers, most_faults=most_faults)]
    return Schedule(setup=setup, actions=tuple(actions), dullest=True)
