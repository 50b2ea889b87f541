"""Names for states: 64 bits that are the same in every process, under every hash seed, on every platform.

Python's own `hash` is none of that. It salts text and bytes with the hash seed, and it takes 1, 1.0 and True for one
another, so that two states which differ in nothing else would count as one, and the second would never be explored. A
fingerprint is BLAKE2b over a canonical spelling (`spelling.py`), which tells all of these apart.

Two different states with the same fingerprint are taken for one. Among n states that happens with odds of about
n**2 / 2**65: 1 in 370,000 at ten million of them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from operator import mul
from typing import Any

from .spelling import spelled

__all__ = ["Interned", "combine", "fingerprint", "of_bytes", "spread"]

FINGERPRINT_BYTES = 8
MASK = (1 << 8 * FINGERPRINT_BYTES) - 1


def fingerprint(thing: Any) -> int:
    """The fingerprint of anything that has a spelling."""
    return of_bytes(spelled(thing))


def of_bytes(spelling: bytes) -> int:
    """The fingerprint of what is spelled so."""
    return int.from_bytes(hashlib.blake2b(spelling, digest_size=FINGERPRINT_BYTES).digest(), "little")


PLACES: list[int] = []
"""An odd number for each place of a sequence, as many as were needed so far."""


def combine(fingerprints: Iterable[int]) -> int:
    """The fingerprint of a sequence whose parts have these fingerprints, in this order."""
    return of_bytes(array("Q", fingerprints).tobytes())


def spread(fingerprints: Sequence[int]) -> int:
    """The same much faster: their sum, each times the odd number of its place (`PLACES`). As fingerprints are as good
    as random, two sequences that differ have one sum with odds of about 2**-64 too."""
    if len(fingerprints) > len(PLACES):
        PLACES.extend(fingerprint(place) | 1 for place in range(len(PLACES), len(fingerprints)))
    total: int = sum(map(mul, fingerprints, PLACES))
    return total & MASK


class Interned:
    """A drawer of things: each gets a small number at its first coming, and the same one ever after.

    States are made of such numbers instead of the things themselves. There are far fewer components than there are
    states that they combine to. Numbers follow the order of coming and so depend on the search; `fingerprints` do not.
    """

    def __init__(self) -> None:
        self.things: list[Any] = []
        self.fingerprints: list[int] = []
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.things)

    def known(self, print_: int) -> int | None:
        """The number of a thing with this fingerprint, if it has one."""
        return self._numbers.get(print_)

    def number(self, thing: Any) -> int:
        """The number of a thing (see `fingerprint`)."""
        return self.number_as(fingerprint(thing), thing)

    def number_as(self, print_: int, thing: Any) -> int:
        """The number of a thing whose fingerprint is known."""
        number = self._numbers.get(print_)
        if number is None:
            number = self._numbers[print_] = len(self.things)
            self.things.append(thing)
            self.fingerprints.append(print_)
        return number
