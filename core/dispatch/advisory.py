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

from collections.abc import Iterable, Mapping
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
    windows = {rank: counts[rank] for rank in co.voters}
    segments: list[tuple[tuple[int, Segments], ...]] = [()] * len(windows)
    first = co.book.first_uncovered
    for epoch in range(first, min(first + 2, co.book.num_epochs)):
        hints = _of_spans(co, epoch, windows) if co.config.is_progressive else _of_shares(co, epoch)
        segments = [(*said, (epoch, hint)) if hint else said for said, hint in zip(segments, hints, strict=True)]
    co.tell(co.voters, StageAdvisory, {"segments": segments}, counts=tuple(windows.values()))


def _of_spans(co: Coordinator, epoch: int, windows: Mapping[int, int]) -> list[Segments]:
    """For each voter, with a window of so many batches: the rest of its own span, then the tails of the largest others.
    The tails are the same for most of them, and made once."""
    spans = {rank: span for rank, span in _spans(co, epoch).items() if span[1]}
    own = dict(zip(spans, _picks(co, epoch, spans.values()), strict=True))
    # As a take does: from the largest residue, the last among equals.
    largest = sorted([(count, rank, first) for rank, (first, count) in spans.items()], reverse=True)[: MOST_OTHERS + 1]
    tails = {
        window: _picks(co, epoch, [(first + max(count - window, 0), min(window, count)) for count, _, first in largest])
        for window in dict.fromkeys(windows.values())
    }
    nearest = {window: tail[:MOST_OTHERS] for window, tail in tails.items()}
    others = {rank: nearest[window] for rank, window in windows.items()}
    for place, (_, rank, _) in enumerate(largest):
        if rank in others:  # nobody helps itself out
            tail = tails[windows[rank]]
            others[rank] = (*tail[:place], *tail[place + 1 :])
    return [(own[rank], *tail) if rank in own else tail for rank, tail in others.items()]


def _spans(co: Coordinator, epoch: int) -> Mapping[int, Range]:
    """What is left of each rank's span, in an epoch that is open or would open now."""
    pool = co.book.pools.get(epoch)
    if pool is not None:
        return pool.residues()
    spans = initial_spans(co.book.total(epoch), co.voters, co.balancer.counts if co.desk.measured else None)
    return {rank: (first, end - first) for rank, (first, end) in spans.items()}


def _of_shares(co: Coordinator, epoch: int) -> list[Segments]:
    """For each voter: what is left of its share, or the share it would get (D-17)."""
    if epoch not in co.book.pools:
        shares = {rank: [(first, count)] for rank, first, count in co.desk.shares(co.book.total(epoch))}
    else:
        shares = {
            rank: [(plan.slice.first + plan.done, plan.slice.count - plan.done)
                   for plan in co.book.holdings(rank).plans if plan.slice.epoch == epoch]
            for rank in co.voters
        }  # fmt: skip
    return [_picks(co, epoch, [left for left in shares.get(rank, ()) if left[1]]) for rank in co.voters]


def _picks(co: Coordinator, epoch: int, ranges: Iterable[Range]) -> Segments:
    """Batches as offsets and sizes in picks; the last batch of an epoch may be short (D-3)."""
    size, length = co.book.batch_size, co.book.length(epoch)
    return tuple([
        (first * size, count * size if (first + count) * size <= length else length - first * size)
        for first, count in ranges
    ])  # fmt: skip
