"""Names for states: 64 bits that are the same in every process, under every hash seed, on every platform.

Python's own `hash` is none of that. It salts text and bytes with the hash seed, and it takes 1, 1.0 and True for one
another, so that two states which differ in nothing else would count as one, and the second would never be explored. A
fingerprint is BLAKE2b over a canonical spelling: `repr` of nested tuples of None, truth values, numbers, text and bytes
tells all of these apart, floats to the last bit. Nothing else may be in it: a mapping or a set has no canonical order,
an object no canonical spelling.

Two different states with the same fingerprint are taken for one. Among n states that happens with odds of about
n**2 / 2**65: 1 in 370,000 at ten million of them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from typing import Any

__all__ = ["Interned", "combine", "fingerprint"]

FINGERPRINT_BYTES = 8


def fingerprint(thing: Any) -> int:
    """The fingerprint of nested tuples of None, truth values, numbers, text and bytes."""
    return int.from_bytes(hashlib.blake2b(repr(thing).encode(), digest_size=FINGERPRINT_BYTES).digest(), "little")


def combine(fingerprints: Iterable[int]) -> int:
    """The fingerprint of a sequence whose parts have these fingerprints, in this order."""
    parts = array("Q", fingerprints)
    return int.from_bytes(hashlib.blake2b(parts.tobytes(), digest_size=FINGERPRINT_BYTES).digest(), "little")


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

    def number(self, thing: Any) -> int:
        """The number of a thing of nested tuples (see `fingerprint`)."""
        return self.number_as(fingerprint(thing), thing)

    def number_as(self, print_: int, thing: Any) -> int:
        """The number of a thing whose fingerprint is known."""
        number = self._numbers.get(print_)
        if number is None:
            number = self._numbers[print_] = len(self.things)
            self.things.append(thing)
            self.fingerprints.append(print_)
        return number
