"""The final window: the last average of an epoch takes in all that is left (D-7).

A paced run hands each voter its count of batches per window. Near the end of an epoch less than a full window is left,
or a full window and a few batches over. Handed out by the usual rule those leftovers become windows of one step or
none: a step that brings no timing for the balancer, and a rank that has nothing to do while the others wait for it. So
the remainder is planned as a whole, once, before anything of it is taken.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["final_window"]


def final_window(remaining: int, counts: Mapping[int, int]) -> dict[int, int] | None:
    """How many batches each voter does in the window that empties a pool, or None if this is not that window (D-7).

    `remaining` is the number of free batches, `counts` the steps per window of each voter, all at least 1. It is the
    final window while batches are left but fewer than one full window plus one batch per voter. The slots, ascending
    by rank, sum to `remaining`; 0 is a legal slot and means that the rank has no work in this window (I50).
    """
    counts = {rank: counts[rank] for rank in sorted(counts)}
    window = sum(counts.values())
    if not 0 < remaining < window + len(counts):
        return None
    if remaining >= window:
        return _fold(remaining - window, counts)
    return _without_single_steps(_largest_remainder(remaining, counts))


def _largest_remainder(total: int, weights: Mapping[int, int]) -> dict[int, int]:
    """Split `total` in proportion to whole positive weights: floors first, then one each to the largest fractions.

    In whole numbers throughout, so no rounding of floats decides between two fractions. The first of equals wins, in
    the order of `weights`.
    """
    whole = sum(weights.values())
    split = {rank: total * weight // whole for rank, weight in weights.items()}
    by_fraction = sorted(weights, key=lambda rank: -(total * weights[rank] % whole))
    for rank in by_fraction[: total - sum(split.values())]:
        split[rank] += 1
    return split


def _fold(crumb: int, counts: Mapping[int, int]) -> dict[int, int]:
    """A full window and a crumb: one more batch each for those who do the fewest, never for the fastest.

    The crumb is smaller than the number of voters, so without the fastest there are still enough of them.
    """
    fastest = max(counts, key=lambda rank: counts[rank])
    others = sorted((rank for rank in counts if rank != fastest), key=lambda rank: counts[rank])
    favoured = others[:crumb]
    return {rank: count + (1 if rank in favoured else 0) for rank, count in counts.items()}


def _without_single_steps(slots: dict[int, int]) -> dict[int, int]:
    """Move each slot of one batch onto the smallest other slot in use.

    The only batch of a window is one whose delivered cost cannot be measured, and with one such voter the balancer
    falls back to compute time for all. One pass is enough: a slot only grows or falls to 0, none becomes 1.
    """
    for rank in slots:
        if slots[rank] != 1:
            continue
        others = [other for other in slots if other != rank and slots[other] > 0]
        if others:
            slots[min(others, key=lambda other: slots[other])] += 1
            slots[rank] = 0
    return slots
