"""Random choices that mean the same everywhere and for ever: SplitMix64, with the mixing of `dispatch/permutation.py`.

A seed stands in reports and regression files, so what it leads to must not depend on a library that may change its
generator, nor on a platform whose logarithm rounds another way: only integers and exact operations on floats are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..dispatch.permutation import GOLDEN, mix

__all__ = ["Dice"]

WORD = 2**64 - 1
UNIT = 2.0**-53
T = TypeVar("T")


class Dice:
    """One stream of choices. `fork` gives another that does not depend on how much of this one was used."""

    __slots__ = ("_seed", "_state")

    def __init__(self, seed: int) -> None:
        self._seed = self._state = mix((seed + GOLDEN) & WORD)

    def fork(self, number: int) -> Dice:
        """The stream of that number."""
        made = Dice(0)
        made._seed = made._state = mix((self._seed ^ mix((number + GOLDEN) & WORD)) & WORD)
        return made

    def word(self) -> int:
        """The next 64 bits."""
        self._state = state = (self._state + GOLDEN) & WORD
        return mix(state)

    def below(self, limit: int) -> int:
        """A whole number from 0 to `limit` - 1."""
        return self.word() * limit >> 64

    def unit(self) -> float:
        """A number from 0 up to, not including, 1."""
        return (self.word() >> 11) * UNIT

    def chance(self, probability: float) -> bool:
        """Whether something of this probability happens."""
        return self.unit() < probability

    def between(self, low: float, high: float) -> float:
        """A number between the two."""
        return low + (high - low) * self.unit()

    def long_tail(self, typical: float, most: float) -> float:
        """Mostly about `typical`, now and then much more: half of all are below it, one in a hundred above 99 times
        as much; `most` at most."""
        share = self.unit()
        return min(most, typical * share / (1.0 - share))

    def pick(self, things: Sequence[T]) -> T:
        """One of them."""
        return things[self.below(len(things))]

    def weighted(self, weights: Sequence[float]) -> int:
        """The index of one of them, by weight; at least one must be above 0."""
        left = self.unit() * sum(weights)
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return index
        return max(index for index, weight in enumerate(weights) if weight > 0)
