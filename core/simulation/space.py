"""The graph that a search has found: fingerprints, ways back, and ways on, a few bytes each.

A state has a number, in the order in which it was found. Kept of it are its fingerprint, the number of the state before
it on the nearest way, and the numbers of its successors by steps that are no faults. The states themselves are kept
only while they wait to be explored: a way to a state is found again by walking the fingerprints on it (`explore.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

__all__ = ["Space"]

DEPTHS = 1 << 32
"""More than any depth, and than any number of faults: a nearest way meets no state twice, and numbers of states have 32
bits. So both fit into the 64 bits of a place."""
OPEN = 0xFFFFFFFF
"""Degree of a state that was found and not explored; no state has so many successors, since there are fewer states."""
FINGERPRINT_SIZE, NUMBER_SIZE = 48, 32
"""What the two numbers of an entry in the dictionary of fingerprints occupy in CPython, in bytes."""


class Space:
    """States by number, from 0. `number_of` maps fingerprints to them."""

    def __init__(self) -> None:
        self.number_of: dict[int, int] = {}
        self._parents = array("I")
        self._places = array("Q")
        self._starts = array("Q")
        self._degrees = array("I")
        self._successors = array("I")

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, fingerprint: int, parent: int, faults: int, depth: int) -> int:
        """A state that was not known before, reached from `parent` (the first one: from itself). Gives its number."""
        number = self.number_of[fingerprint] = len(self._parents)
        self._parents.append(parent)
        self._places.append(faults * DEPTHS + depth)
        self._starts.append(0)
        self._degrees.append(OPEN)
        return number

    def move(self, number: int, parent: int, faults: int, depth: int) -> None:
        """A nearer way to a state was found."""
        self._parents[number], self._places[number] = parent, faults * DEPTHS + depth

    def place(self, number: int) -> int:
        """Where a state stands in the order of the search."""
        return self._places[number]

    def faults_to(self, number: int) -> int:
        """The faults on the way to a state."""
        return self._places[number] // DEPTHS

    def is_at(self, number: int, faults: int, depth: int) -> bool:
        """Whether this is the way that counts."""
        return self._places[number] == faults * DEPTHS + depth

    def comes_before(self, number: int, faults: int, depth: int) -> bool:
        """Whether a way of so many faults and steps is nearer than the one known so far."""
        return faults * DEPTHS + depth < self._places[number]

    def explored(self, number: int, successors: Sequence[int]) -> None:
        """Where steps that are no faults lead from a state; duplicates are dropped."""
        once = dict.fromkeys(successors)
        self._starts[number] = len(self._successors)
        self._degrees[number] = len(once)
        self._successors.extend(once)

    def way_to(self, number: int) -> list[int]:
        """The states from the first one to this one, by their numbers."""
        way = [number]
        while self._parents[way[-1]] != way[-1]:
            way.append(self._parents[way[-1]])
        return way[::-1]

    def traps(self, goals: Iterable[int]) -> list[int]:
        """The states from which no goal can be reached by steps that are no faults, ascending. What lies behind an
        open state is unknown: it counts as a goal."""
        heads, sources = self._reversed()
        saved = bytearray(len(self))
        waiting = [*goals, *(number for number, degree in enumerate(self._degrees) if degree == OPEN)]
        for number in waiting:
            saved[number] = 1
        while waiting:
            number = waiting.pop()
            for source in sources[heads[number] : heads[number + 1]]:
                if not saved[source]:
                    saved[source] = 1
                    waiting.append(source)
        return [number for number in range(len(self)) if not saved[number]]

    def _reversed(self) -> tuple[array[int], array[int]]:
        """For each state where its predecessors begin, and all predecessors, in one array."""
        heads = array("Q", bytes(8 * (len(self) + 1)))
        for target in self._successors:
            heads[target + 1] += 1
        for number in range(len(self)):
            heads[number + 1] += heads[number]
        free, sources = heads[:], array("I", bytes(4 * len(self._successors)))
        for number, degree in enumerate(self._degrees):
            if degree != OPEN:
                start = self._starts[number]
                for target in self._successors[start : start + degree]:
                    sources[free[target]] = number
                    free[target] += 1
        return heads, sources

    @property
    def size(self) -> int:
        """Bytes that the graph occupies, without the states that wait to be explored."""
        arrays = (self._parents, self._places, self._starts, self._degrees, self._successors)
        numbers = len(self) * (FINGERPRINT_SIZE + NUMBER_SIZE)
        return self.number_of.__sizeof__() + numbers + sum(len(part) * part.itemsize for part in arrays)
