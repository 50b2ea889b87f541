"""What a rank is likely to be given next: a hint for its prefetcher, and nothing that anything depends on (D-24).

    span of the rank          the largest other spans, each:
    |....####################|     |....................##|
         what is left of it, first                      ^^ one window at the tail

A rank takes from its own span first, and then from the tail of the largest other one (D-3), so this is the order of the
hint, for the epoch that is trained and for the one that comes after it. The pool of that one does not exist yet; its
spans are those it would have if it opened now. A run of whole shares has no spans and helps nobody else: what is left
of a rank's own share, then its next one.

The hint is cut off at `MOST_OTHERS` spans of others. A rank reaches the next smaller span only after all larger ones
have shrunk to its size, so what is left out is far away, and without a bound the hints of one finish would grow with
the square of the cohort.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..messages import StageAdvisory
from ..phases import RunPhase
from .pool import Range, initial_spans

if TYPE_CHECKING:
    from ..coordinator import Coordinator

__all__ = ["MOST_OTHERS", "advise"]

MOST_OTHERS = 8
"""Spans of other ranks in one hint, per epoch."""

Segments = tuple[tuple[int, int], ...]
"""Offsets and sizes in picks, soonest first."""


def advise(co: Coordinator) -> None:
    """Tell each voter what may come, at the start of an epoch and at each finish; a hint that is lost is lost. Nothing
    comes any more once the run stops."""
    if co.run.phase != RunPhase.TRAINING or co.stopping or co.save_issued or not co.voters:
        return
    counts = co.balancer.counts
    first = co.book.first_uncovered
    hints = [_Epoch(co, epoch) for epoch in (first, first + 1) if epoch < co.book.num_epochs]
    told = tuple([counts[rank] for rank in co.voters])
    segments = [
        tuple([(hint.epoch, parts) for hint in hints if (parts := hint.of(rank, counts[rank]))]) for rank in co.voters
    ]
    co.tell_each(co.voters, StageAdvisory, {"segments": segments}, counts=told)


class _Epoch:
    """Hints for one epoch. What several ranks are told alike is made once."""

    __slots__ = ("_batch_size", "_largest", "_length", "_others", "_own", "_places", "epoch")

    def __init__(self, co: Coordinator, epoch: int) -> None:
        self.epoch = epoch
        self._batch_size, self._length = co.book.batch_size, co.book.length(epoch)
        progressive = co.config.is_progressive
        self._own = _spans(co, epoch) if progressive else _whole_shares(co, epoch)
        self._largest: list[tuple[int, int, int]] = []
        if progressive:
            # As a take does: from the largest residue, the last among equals.
            spans = [(count, rank, first) for rank, ((first, count),) in self._own.items() if count]
            self._largest = sorted(spans, reverse=True)[: MOST_OTHERS + 1]
        self._places = {rank: place for place, (_, rank, _) in enumerate(self._largest)}
        self._others: dict[tuple[int, int], Segments] = {}

    def of(self, rank: int, window: int) -> Segments:
        """What this rank is told, for a window of so many batches."""
        place = self._places.get(rank, MOST_OTHERS)
        others = self._others.get((window, place))
        if others is None:
            others = self._others[window, place] = tuple([
                self._picks(first + count - min(window, count), min(window, count))
                for count, _, first in (*self._largest[:place], *self._largest[place + 1 :])
            ])  # fmt: skip
        return (*[self._picks(first, count) for first, count in self._own.get(rank, ()) if count], *others)

    def _picks(self, first: int, count: int) -> tuple[int, int]:
        """Batches as offset and size in picks; the last batch of an epoch may be short (D-3)."""
        offset = first * self._batch_size
        return offset, min((first + count) * self._batch_size, self._length) - offset


def _spans(co: Coordinator, epoch: int) -> Mapping[int, tuple[Range, ...]]:
    """What is left of each rank's span, in an epoch that is open or would open now."""
    pool = co.book.pools.get(epoch)
    if pool is not None:
        return {rank: (residue,) for rank, residue in pool.residues().items()}
    spans = initial_spans(co.book.total(epoch), co.voters, co.balancer.counts if co.desk.measured else None)
    return {rank: ((first, end - first),) for rank, (first, end) in spans.items()}


def _whole_shares(co: Coordinator, epoch: int) -> Mapping[int, tuple[Range, ...]]:
    """What is left of each rank's share, or the share it would get (D-17)."""
    if epoch not in co.book.pools:
        return {rank: ((first, count),) for rank, first, count in co.desk.shares(co.book.total(epoch))}
    return {
        rank: tuple((plan.slice.first + plan.done, plan.slice.count - plan.done)
                    for plan in co.book.holdings(rank).plans if plan.slice.epoch == epoch)
        for rank in co.voters
    }  # fmt: skip
