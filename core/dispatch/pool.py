"""The pool of an epoch: which batches are free, and who takes which next (D-3, D-14, D-19).

Everything is counted in whole batches. A pool keeps its free batches in two places. *Spans*: when the epoch opens, its
batches are laid out in one stretch per voter, in proportion to speed. *Holes*: batches that were given out once and
came back, because a rank died or a contribution was refused, wait in a queue, the oldest in front.

    span of rank 0            span of rank 1                 holes
    |####......|              |##......##|                   [12..14) [3..5)
         ^ front       tail ^    ^ front ^ tail                 ^ taken first

A rank takes from the first hole, so that holes close first; then from the front of its own span; and when that is
empty from the tail of the span that has most left, so that a fast rank helps the one that is furthest behind. The
owner goes front to back, the thief back to front: they meet and cannot cross. A take is always one contiguous slice,
and cut short rather than pieced together from two places.

A take can be undone, since the message that carries it may be lost. The slice goes back to the end it was taken from,
if that end is still where the take left it; otherwise it becomes a hole, and the very next one.

The pool knows free batches only. What becomes of a slice while a rank has it (in flight, trained) is kept by the book;
for the pool those are `outstanding`, until they come back or are covered. So total = free + outstanding + covered,
always (I41), and every count here is kept up to date instead of being summed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum

import attrs

from ..errors import InvariantError
from ..messages import NO_RANK
from ..values import maker, state, value

__all__ = [
    "Pool", "PoolSnapshot", "Range", "Slice", "Source", "Taken", "batches_in", "initial_spans", "merge_ranges",
    "picks_of",
]  # fmt: skip

Range = tuple[int, int]
"""A run of batches of one epoch: the first of them, and how many."""

PoolSnapshot = tuple[int, int, int, tuple[tuple[int, int, int], ...], tuple[Range, ...]]
"""Epoch, total, covered; per span rank, front and tail; the holes in the order of their queue."""


class Source(IntEnum):
    """Where a slice was taken from, in the order in which a take looks."""

    HOLE = 0
    OWN_SPAN = 1
    OTHER_SPAN = 2


OWN_SPAN = Source.OWN_SPAN
"""Asked for with nearly every take; see `phases.py`."""


@value
class Slice:
    """`count` consecutive batches of an epoch, from batch number `first` on."""

    epoch: int
    first: int
    count: int

    @property
    def end(self) -> int:
        """The number of the first batch behind the slice."""
        return self.first + self.count

    def picks(self, batch_size: int, length: int) -> tuple[int, int]:
        """Offset and size of the slice in picks, in an epoch of `length` picks.

        The very last batch of an epoch is short if the epoch does not drop it (D-3).
        """
        return picks_of(self.first, self.count, batch_size, length)


@value
class Taken(Slice):
    """A slice that left the pool, and how to put it back (D-14).

    `owner` is the rank whose span it came from, for a hole NO_RANK; `cut` says that a rest of the hole stayed in front.
    """

    source: Source
    owner: int = NO_RANK
    cut: bool = False


new_taken: Callable[..., Taken] = maker(Taken)
"""A finish makes one per rank."""


@state
class _Span:
    """Free batches `front` to `tail - 1` of what was laid out for one rank."""

    front: int
    tail: int

    @property
    def residue(self) -> int:
        return self.tail - self.front


def _as_spans(spans: Mapping[int, tuple[int, int]]) -> dict[int, _Span]:
    """Ascending by rank, because ties between spans are decided in the order of iteration."""
    return {rank: _Span(*spans[rank]) for rank in sorted(spans)}


@state
class Pool:
    """The free batches of one epoch, `0..total-1`.

    `spans` maps a rank to the first batch of its span and the first one behind it. A batch in no span counts as
    outstanding: a pool built to resume a run has no spans, its holes are put in by `reclaim` and the rest is covered
    by `cover` (D-23). Raises InvariantError where a batch would be in two places.
    """

    epoch: int
    total: int
    _spans: dict[int, _Span] = attrs.field(converter=_as_spans)
    free: int = attrs.field(init=False)
    covered: int = attrs.field(init=False, default=0)
    _holes: deque[Range] = attrs.field(init=False, factory=deque)  # disjoint and not empty, so at most `total` of them

    def __attrs_post_init__(self) -> None:
        stretches = [(span.front, span.residue) for span in self._spans.values()]
        self._check_inside(merge_ranges(stretches))
        self.free = sum(residue for _, residue in stretches)

    # --- counting ---

    @property
    def outstanding(self) -> int:
        """Batches in flight or trained: neither free nor covered."""
        return self.total - self.free - self.covered

    @property
    def complete(self) -> bool:
        """Whether every batch is covered, so that the epoch can close (D-20)."""
        return self.covered == self.total

    def free_ranges(self) -> list[Range]:
        """All free batches, ascending, with neighbours merged."""
        return merge_ranges([*self.holes(), *((span.front, span.residue) for span in self._spans.values())])

    def residues(self) -> dict[int, Range]:
        """What is left of each span, ascending by rank; counts may be 0."""
        return {rank: (span.front, span.tail - span.front) for rank, span in self._spans.items()}

    def holes(self) -> tuple[Range, ...]:
        """The reclaimed batches, in the order in which they will be taken."""
        return tuple(self._holes)

    # --- giving out and taking back ---

    def take(self, rank: int, most: int) -> Taken | None:
        """Give `rank` one slice of 1 to `most` batches; None, and nothing changed, if there is none or `most` is 0."""
        if most <= 0:
            return None
        taken = (self._holes and self._take_hole(most)) or self._take_own(rank, most) or self._take_other(most)
        if taken is not None:
            self.free -= taken.count
        return taken

    def undo(self, taken: Taken, trained: int = 0) -> None:
        """Put back what `take` gave, but for its `trained` first batches, which stay with the rank (D-14).

        Directly after the take, with nothing trained, the pool is then exactly as it was (I49). Each `Taken` may be
        undone once; whether it still may be is for the book to know.
        """
        first, end = taken.first + trained, taken.end
        self._leave_outstanding(end - first)
        self.free += end - first
        if first < end and not self._put_back(taken, first, end):
            self._holes.appendleft((first, end - first))

    def reclaim(self, ranges: Iterable[Range]) -> None:
        """Queue returned batches behind the holes there are, ascending, neighbours of one call merged (D-19)."""
        returned = merge_ranges(ranges)
        self._check_inside(returned)
        count = sum(size for _, size in returned)
        self._leave_outstanding(count)
        self.free += count
        self._holes.extend(returned)

    def drain(self) -> list[Range]:
        """Give out everything that is free at once, ascending, for runs that divide it up anew (D-22)."""
        ranges = self.free_ranges()
        self._holes.clear()
        for span in self._spans.values():
            span.front = span.tail
        self.free = 0
        return ranges

    def cover(self, count: int) -> None:
        """Count outstanding batches as covered by the consensus (D-12)."""
        self._leave_outstanding(count)
        self.covered += count

    # --- keeping ---

    def snapshot(self) -> PoolSnapshot:
        """The whole pool as a plain tuple that can be hashed."""
        spans = tuple((rank, span.front, span.tail) for rank, span in self._spans.items())
        return self.epoch, self.total, self.covered, spans, self.holes()

    @classmethod
    def restore(cls, snapshot: PoolSnapshot) -> Pool:
        """The pool a snapshot was made of; InvariantError if no pool has such a snapshot."""
        epoch, total, covered, spans, holes = snapshot
        pool = cls(epoch, total, {rank: (front, tail) for rank, front, tail in spans})
        for hole in holes:  # one by one: their queue is in the order of return, and neighbours in it stay apart
            pool.reclaim([hole])
        pool.cover(covered)
        pool.free_ranges()  # raises if a hole lies inside a span
        return pool

    # --- helpers ---

    def _take_hole(self, most: int) -> Taken:
        first, size = self._holes.popleft()
        count = min(most, size)
        if count < size:
            self._holes.appendleft((first + count, size - count))
        return Taken(self.epoch, first, count, Source.HOLE, cut=count < size)

    def _take_own(self, rank: int, most: int) -> Taken | None:
        span = self._spans.get(rank)
        if span is None or span.front == span.tail:
            return None
        first, count = span.front, span.tail - span.front
        if most < count:
            count = most
        span.front = first + count
        return new_taken(self.epoch, first, count, OWN_SPAN, rank)

    def _take_other(self, most: int) -> Taken | None:
        """From the largest span; the taker's own is empty when its turn comes."""
        owner, largest = None, 1
        for rank, span in self._spans.items():
            if span.residue >= largest:  # the last among equals gives
                owner, largest = rank, span.residue
        if owner is None:
            return None
        span = self._spans[owner]
        count = min(most, span.residue)
        span.tail -= count
        return Taken(self.epoch, span.tail, count, Source.OTHER_SPAN, owner)

    def _put_back(self, taken: Taken, first: int, end: int) -> bool:
        """Return batches `first` to `end - 1` of a slice to the end they came from, if it has not moved."""
        if taken.source is Source.HOLE:
            if not taken.cut or not self._holes or self._holes[0][0] != end:
                return False
            self._holes[0] = (first, end - first + self._holes[0][1])
            return True
        span = self._spans[taken.owner]
        if taken.source is Source.OWN_SPAN and span.front == end:
            span.front = first
            return True
        if taken.source is Source.OTHER_SPAN and span.tail == first:
            span.tail = end
            return True
        return False

    def _leave_outstanding(self, count: int) -> None:
        if not 0 <= count <= self.total - self.free - self.covered:  # `outstanding`: asked for with each merge
            raise InvariantError(
                f"I41: {count} batches of epoch {self.epoch} return or are covered, but {self.outstanding} are out"
            )

    def _check_inside(self, ranges: Sequence[Range]) -> None:
        if ranges and (ranges[0][0] < 0 or sum(ranges[-1]) > self.total):
            raise InvariantError(f"I41: epoch {self.epoch} has batches 0..{self.total - 1}, not all of {ranges}")


def picks_of(first: int, count: int, batch_size: int, length: int) -> tuple[int, int]:
    """Offset and size in picks of `count` batches from number `first` on; see `Slice.picks`."""
    offset = first * batch_size
    end = offset + count * batch_size
    return offset, (end if end < length else length) - offset


def batches_in(length: int, batch_size: int, drop_last: bool) -> int:
    """How many batches an epoch of `length` picks has; without `drop_last` the last may be short (D-3)."""
    return length // batch_size if drop_last else -(-length // batch_size)


def initial_spans(
    total: int, voters: Sequence[int], counts: Mapping[int, int] | None = None
) -> dict[int, tuple[int, int]]:
    """Lay out the batches `0..total-1` as one span per voter: rank to (first, first behind) (D-3).

    With `counts`, the steps per window of calibrated or hinted voters, in proportion to them, leftovers one each from
    the lowest voter on; without, equal, and the first takes the remainder. Voters ascending. Raises InvariantError if
    there is no voter: the batches would be in no place at all.
    """
    if not voters:
        raise InvariantError(f"I41: {total} batches and no voter to lay them out for")
    if counts is None:
        sizes = [total // len(voters)] * len(voters)
        sizes[0] += total - sum(sizes)
    else:
        whole = sum(counts[rank] for rank in voters)
        sizes = [total * counts[rank] // whole for rank in voters]
        for index in range(total - sum(sizes)):  # each floor lost less than one, so fewer than there are voters
            sizes[index] += 1
    spans, first = {}, 0
    for rank, size in zip(voters, sizes, strict=True):
        spans[rank] = (first, first + size)
        first += size
    return spans


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """The same batches, ascending, with neighbours merged and empty ranges gone.

    Raises InvariantError if a batch occurs twice: it would be given out twice.
    """
    merged: list[Range] = []
    end = None
    for first, count in sorted(item for item in ranges if item[1] != 0):
        if count < 0 or (end is not None and first < end):
            raise InvariantError(f"I41: batch {first} is in two places, or a range is negative: {first, count}")
        if first == end:
            merged[-1] = (merged[-1][0], merged[-1][1] + count)
        else:
            merged.append((first, count))
        end = first + count
    return merged
