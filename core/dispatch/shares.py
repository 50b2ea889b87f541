"""Dividing an epoch that is handed out whole: the shares at its start, and what comes back later (D-17, D-22).

A run that is not progressive gives each rank one slice per epoch and no more chunks after it. So speed has to be
judged beforehand, and batches that come back in the middle (a rank died, a contribution was refused) have to be given
to somebody at once: nobody will ask for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from ..errors import InvariantError
from .pool import Range, merge_ranges

__all__ = ["FASTEST_MS", "Share", "shares", "split_returned"]

FASTEST_MS = 0.001
"""No step counts as faster than this many milliseconds, so that a measured zero is not infinitely fast."""


Share = tuple[int, int, int]
"""A rank, the first of consecutive batches that it gets, and how many; never none."""


def shares(
    total: int,
    voters: Sequence[int],
    *,
    ratios: Mapping[int, float] | None = None,
    ms: Mapping[int, float] | None = None,
    holes: Sequence[Range] | None = None,
) -> list[Share]:
    """One slice of the epoch's batches `0..total-1` per voter, consecutive in the order of `voters` (D-17). Of an epoch
    that a run before has begun only the `holes` are left, `total` batches in all, ascending: then a voter may get
    several slices, one for each hole that it reaches into (D-23).

    Wished `ratios` come first, one weight above 0 per rank: in proportion to them, floored, what remains one each to
    the largest. Then `ms`, milliseconds per step of each rank: in proportion to speed, floored, what remains to the
    fastest. With neither (also Sync, which passes no `ms`) equal, what remains to the first. Voters ascending; the
    lowest of equals wins.

    A voter whose share is 0 is not in the list: it gets no plan and holds up nobody (I54). Without voters or batches
    the list is empty.
    """
    if not voters:
        return []
    if ratios is not None:
        weights = [ratios[rank] for rank in voters]
        sizes = _floors(total, weights)
        by_weight = sorted(range(len(voters)), key=lambda index: -weights[index])
        for index in by_weight[: total - sum(sizes)]:  # each floor lost less than one
            sizes[index] += 1
    elif ms is not None:
        weights = [1 / max(ms[rank], FASTEST_MS) for rank in voters]
        sizes = _floors(total, weights)
        sizes[weights.index(max(weights))] += total - sum(sizes)
    else:
        sizes = [total // len(voters)] * len(voters)
        sizes[0] += total - sum(sizes)
    return _deal([(0, total)] if holes is None else holes, voters, sizes)


def split_returned(ranges: Iterable[Range], voters: Sequence[int]) -> list[Share]:
    """Divide returned batches equally over the voters, as contiguous pieces in ascending order (D-22).

    Batches that do not divide go one each to the lowest voters. A voter may get several pieces, since what came back
    may have gaps, or none. Empty without voters: then the batches stay where they are.
    """
    returned = merge_ranges(ranges)
    if not voters:
        return []
    base, extra = divmod(sum(count for _, count in returned), len(voters))
    return _deal(returned, voters, [base + (1 if index < extra else 0) for index in range(len(voters))])


def _floors(total: int, weights: Sequence[float]) -> list[int]:
    """`total` in proportion to the weights, every part rounded down.

    Divided in fractions, not floats: 49 * (1 / 49) is below 1 in floats, so of 49 equally fast ranks with 49 batches
    each would be rounded down to none, and the one that takes the remainder would train all of them.
    """
    if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        raise InvariantError(f"I54: cannot divide {total} batches in the proportion of {weights}")
    exact = [Fraction(weight) for weight in weights]
    whole = sum(exact)
    return [total * weight // whole for weight in exact]


def _deal(ranges: Iterable[Range], voters: Sequence[int], sizes: Sequence[int]) -> list[Share]:
    """Cut ascending ranges into pieces, so that each voter in turn gets as many batches as its size says."""
    dealt: list[Share] = []
    seat, wanted = 0, sizes[0]
    for first, count in ranges:
        while count:
            while not wanted:
                seat += 1
                wanted = sizes[seat]
            piece = min(wanted, count)
            dealt.append((voters[seat], first, piece))
            first, count, wanted = first + piece, count - piece, wanted - piece
    return dealt
