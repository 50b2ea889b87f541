"""How events, effects and messages are declared.

`value` makes a soft-frozen attrs class: type checkers see a frozen one, at run time it is a plain slotted class with
a hash, because constructing a really frozen slotted class costs two to three times as much and the hot path builds
two effects per event. `state` makes a mutable slotted class whose setattr runs no validator.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

__all__ = ["among", "rha", "state", "value"]

if TYPE_CHECKING:
    from attrs import define as state
    from attrs import frozen as value
else:
    value = functools.partial(attrs.define, unsafe_hash=True, on_setattr=attrs.setters.NO_OP)
    state = functools.partial(attrs.define, eq=False, on_setattr=attrs.setters.NO_OP)


def among(rank: int, ascending: Sequence[int]) -> bool:
    """Whether a rank is one of these, by halving: the whole cohort says what it has done in each cycle, and to look at
    all ranks for each of them would cost the square of their number (C-4)."""
    place = bisect_left(ascending, rank)
    return place < len(ascending) and ascending[place] == rank


def rha(x: float) -> int:
    """Round half away from zero, the only rounding the protocol knows (conventions at the top of protocol.md)."""
    if x < 0:
        return -rha(-x)
    whole = int(x)
    return whole + 1 if x - whole >= 0.5 else whole
