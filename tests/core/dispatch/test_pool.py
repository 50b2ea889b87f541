"""The pool of an epoch (D-3, D-14, D-19, I41, I49), against a model that knows where every single batch is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.core.dispatch.pool import (
    Pool,
    PoolSnapshot,
    Range,
    Slice,
    Source,
    Taken,
    batches_in,
    initial_spans,
    merge_ranges,
)
from paceline.core.errors import InvariantError

JOINER = 9
"""A rank that no pool here has laid out a span for."""


def sliced(taken: Taken | None) -> Range | None:
    return None if taken is None else (taken.first, taken.count)


def batches(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


# --- counting in batches ---


@pytest.mark.parametrize(
    ("length", "batch_size", "drop_last", "expected"),
    [
        (100, 10, True, 10),
        (109, 10, True, 10),
        (109, 10, False, 11),
        (9, 10, True, 0),
        (9, 10, False, 1),
        (0, 4, False, 0),
    ],
)
def test_whole_batches_of_an_epoch(length: int, batch_size: int, drop_last: bool, expected: int) -> None:
    """D-3: len // batch_size, or the ceiling where the last batch may be short."""
    assert batches_in(length, batch_size, drop_last) == expected


@given(length=st.integers(0, 500), batch_size=st.integers(1, 40), drop_last=st.booleans(), data=st.data())
def test_slices_cover_the_picks_of_their_batches(
    length: int, batch_size: int, drop_last: bool, data: st.DataObject
) -> None:
    """D-3: two slices that meet have picks that meet, full batches but for the last of an undropped epoch."""
    total = batches_in(length, batch_size, drop_last)
    cut = data.draw(st.integers(0, total))

    offset, size = Slice(3, 0, cut).picks(batch_size, length)
    next_offset, next_size = Slice(3, cut, total - cut).picks(batch_size, length)

    assert offset == 0
    if 0 < cut < total:
        assert size == next_offset == cut * batch_size
    if cut < total:
        assert next_offset + next_size == (total * batch_size if drop_last else length)


# --- laying out ---


def test_spans_of_unknown_speeds_are_equal() -> None:
    """D-3: the remainder goes to the first."""
    assert initial_spans(11, [1, 4, 6]) == {1: (0, 5), 4: (5, 8), 6: (8, 11)}
    assert initial_spans(1, [1, 4, 6]) == {1: (0, 1), 4: (1, 1), 6: (1, 1)}


def test_spans_of_known_speeds_follow_the_counts() -> None:
    """D-3: floor(total * counts / S), leftovers one each from the lowest voter on (73 + 18 + 15, and two)."""
    assert initial_spans(108, [0, 1, 2], {0: 71, 1: 18, 2: 15}) == {0: (0, 74), 1: (74, 93), 2: (93, 108)}
    assert initial_spans(2, [0, 1, 2], {0: 1, 1: 1, 2: 1, 7: 50}) == {0: (0, 1), 1: (1, 2), 2: (2, 2)}


def test_laying_out_needs_a_voter() -> None:
    """I41: with nobody to lay them out for, batches would be neither free nor anywhere else."""
    with pytest.raises(InvariantError, match="I41"):
        initial_spans(5, [])


@given(
    total=st.integers(0, 10**6),
    counts=st.dictionaries(st.integers(0, 60), st.integers(1, 100), min_size=1, max_size=12),
    known=st.booleans(),
)
def test_spans_tile_the_epoch(total: int, counts: dict[int, int], known: bool) -> None:
    """D-3: every batch lies in exactly one span, and a fresh pool has all of them free."""
    voters = sorted(counts)

    spans = initial_spans(total, voters, counts if known else None)
    pool = Pool(0, total, spans)

    assert list(spans) == voters
    assert [first for first, _ in spans.values()] == [0, *[end for _, end in spans.values()][:-1]]
    assert pool.free == total
    assert pool.outstanding == 0
    assert pool.free_ranges() == ([(0, total)] if total else [])


@pytest.mark.parametrize("spans", [{0: (0, 6), 1: (5, 10)}, {0: (0, 11)}, {0: (-1, 3)}, {0: (4, 3)}])
def test_spans_that_cannot_be_are_a_bug(spans: dict[int, tuple[int, int]]) -> None:
    """I41: no batch in two spans, none outside the epoch."""
    with pytest.raises(InvariantError, match="I41"):
        Pool(0, 10, spans)


# --- the order of a take ---


def test_holes_come_before_the_own_span_and_that_before_the_others() -> None:
    """D-3: reclaimed front, own front, tail of the largest other residue; each take cut short at its place's end."""
    pool = Pool(5, 20, {0: (0, 4), 1: (4, 10), 2: (10, 20)})
    assert sliced(pool.take(1, 3)) == (4, 3)
    pool.reclaim([(5, 2)])

    taken = [pool.take(0, 3) for _ in range(6)]

    assert [sliced(one) for one in taken] == [(5, 2), (0, 3), (3, 1), (17, 3), (14, 3), (11, 3)]
    assert [one.source for one in taken if one] == [Source.HOLE, *[Source.OWN_SPAN] * 2, *[Source.OTHER_SPAN] * 3]
    assert [sliced(pool.take(0, 3)) for _ in range(3)] == [(7, 3), (10, 1), None]
    assert pool.take(0, 1) is None
    assert pool.free == 0


def test_the_last_of_equally_large_spans_gives() -> None:
    """D-3: among equals the highest rank gives its tail."""
    pool = Pool(0, 9, {0: (0, 3), 1: (3, 6), 2: (6, 9)})

    assert [sliced(pool.take(JOINER, 1)) for _ in range(4)] == [(8, 1), (5, 1), (2, 1), (7, 1)]


def test_the_order_in_which_spans_are_named_decides_nothing() -> None:
    """D-3: ties go by rank."""
    pool = Pool(0, 4, {1: (2, 4), 0: (0, 2)})

    assert sliced(pool.take(JOINER, 1)) == (3, 1)
    assert list(pool.residues()) == [0, 1]


def test_a_long_hole_keeps_its_place() -> None:
    """D-3: the rest of a hole is put back in front, holes close one after the other."""
    pool = Pool(0, 20, {0: (0, 20)})
    pool.take(0, 20)
    pool.reclaim([(10, 5)])
    pool.reclaim([(0, 2)])

    assert [sliced(pool.take(1, 3)) for _ in range(3)] == [(10, 3), (13, 2), (0, 2)]


def test_returned_batches_queue_in_ascending_order() -> None:
    """D-19: one return is sorted, and neighbours in it become one hole."""
    pool = Pool(0, 20, {0: (0, 20)})
    pool.take(0, 20)
    pool.reclaim([(12, 1), (3, 2), (5, 1), (13, 2)])

    assert pool.holes() == ((3, 3), (12, 3))


@pytest.mark.parametrize("most", [0, -1])
def test_taking_nothing_changes_nothing(most: int) -> None:
    """D-3: m = 0 changes nothing."""
    pool = Pool(0, 5, {0: (0, 5)})
    before = pool.snapshot()

    assert pool.take(0, most) is None
    assert pool.snapshot() == before


# --- undoing ---


def test_undo_puts_a_slice_back_to_the_end_it_came_from() -> None:
    """D-14: own front and other's tail, although another take has happened at the other end in between."""
    pool = Pool(0, 10, {0: (0, 10)})
    own, other = pool.take(0, 4), pool.take(1, 3)
    assert own is not None and other is not None

    pool.undo(own)
    assert pool.residues() == {0: (0, 7)}
    pool.undo(other)
    assert pool.residues() == {0: (0, 10)}


def test_undo_of_a_slice_whose_end_has_moved_makes_the_next_hole() -> None:
    """D-14: else the slice is put at the reclaimed front."""
    pool = Pool(0, 20, {0: (0, 20)})
    own, other = pool.take(0, 4), pool.take(1, 3)
    assert own is not None and other is not None
    pool.take(0, 4), pool.take(1, 3)
    pool.reclaim([(16, 1)])

    pool.undo(own)
    pool.undo(other)

    assert pool.holes() == ((17, 3), (0, 4), (16, 1))
    assert pool.residues() == {0: (8, 6)}


def test_undo_joins_a_cut_hole_but_never_two_holes() -> None:
    """I49: two holes that happen to touch stay two, as they were before the take."""
    pool = Pool(0, 10, {0: (0, 10)})
    pool.take(0, 10)
    pool.reclaim([(0, 3)])
    pool.reclaim([(3, 4)])

    for most, expected in ((2, (0, 2)), (3, (0, 3)), (9, (0, 3))):
        before = pool.snapshot()
        taken = pool.take(0, most)
        assert taken is not None
        assert sliced(taken) == expected
        pool.undo(taken)
        assert pool.snapshot() == before


def test_undo_of_a_cut_hole_whose_rest_was_taken_makes_a_hole_of_its_own() -> None:
    """D-14: it does not join a hole that has come to the front since."""
    pool = Pool(0, 10, {0: (0, 10)})
    pool.take(0, 10)
    pool.reclaim([(0, 4)])
    pool.reclaim([(7, 2)])
    cut, rest = pool.take(0, 3), pool.take(0, 3)
    assert cut is not None
    assert sliced(rest) == (3, 1)

    pool.undo(cut)

    assert pool.holes() == ((0, 3), (7, 2))


def test_undo_leaves_trained_batches_with_their_rank() -> None:
    """D-14: batches of the slice that were trained stay in the trained FIFO; they are the first ones (D-12)."""
    pool = Pool(0, 20, {0: (0, 10), 1: (10, 20)})
    own, other = pool.take(0, 10), pool.take(0, 4)
    assert own is not None and other is not None

    pool.undo(own, trained=3)
    pool.undo(other, trained=1)

    assert pool.residues() == {0: (3, 7), 1: (10, 6)}
    assert pool.holes() == ((17, 3),)
    assert pool.outstanding == 4


def test_undo_of_a_slice_trained_to_the_end_returns_nothing() -> None:
    """D-14: nothing is left to return, and no empty hole appears."""
    pool = Pool(0, 4, {0: (0, 4)})
    taken = pool.take(0, 2)
    assert taken is not None
    before = pool.snapshot()

    pool.undo(taken, trained=2)

    assert pool.snapshot() == before


# --- what may not happen ---


def test_more_cannot_return_than_is_out() -> None:
    """I41: a batch returned twice, or covered twice, would be trained twice or never."""
    pool = Pool(0, 10, {0: (0, 10)})
    taken = pool.take(0, 2)
    assert taken is not None
    pool.cover(1)
    before = pool.snapshot()

    with pytest.raises(InvariantError, match="I41"):
        pool.reclaim([(0, 2)])
    with pytest.raises(InvariantError, match="I41"):
        pool.cover(2)
    with pytest.raises(InvariantError, match="I41"):
        pool.undo(taken)
    with pytest.raises(InvariantError, match="I41"):
        pool.undo(taken, trained=3)
    with pytest.raises(InvariantError, match="I41"):
        pool.reclaim([(1, 1), (1, 1)])
    with pytest.raises(InvariantError, match="I41"):
        pool.reclaim([(10, 1)])
    assert pool.snapshot() == before


@pytest.mark.parametrize(
    "snapshot",
    [
        (0, 10, 0, ((0, 0, 10),), ((3, 1),)),
        (0, 10, 5, ((0, 0, 4),), ((3, 1),)),
        (0, 10, 6, ((0, 0, 4),), ((4, 1),)),
        (0, 10, 0, (), ((3, 2), (4, 2))),
    ],
)
def test_snapshots_of_impossible_pools_are_a_bug(snapshot: PoolSnapshot) -> None:
    """I41: a hole inside a span, too much covered, overlapping holes."""
    with pytest.raises(InvariantError, match="I41"):
        Pool.restore(snapshot)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), max_size=8))
def test_merging_ranges_keeps_their_batches(ranges: list[Range]) -> None:
    """K-10: ascending, merged, not empty; refused exactly if a batch occurs twice."""
    all_batches = [batch for first, count in ranges for batch in batches(first, count)]
    if len(set(all_batches)) < len(all_batches):
        with pytest.raises(InvariantError, match="I41"):
            merge_ranges(ranges)
        return

    merged = merge_ranges(ranges)

    assert [batch for first, count in merged for batch in batches(first, count)] == sorted(all_batches)
    assert all(one[0] + one[1] < other[0] for one, other in itertools.pairwise(merged))
    assert all(count > 0 for _, count in merged)


@given(holes=st.sets(st.integers(0, 30)), ranks=st.integers(1, 5), most=st.integers(1, 7))
def test_a_resumed_pool_trains_exactly_the_holes(holes: set[int], ranks: int, most: int) -> None:
    """D-23, I52: no spans, the recorded holes in the queue, everything else covered; for any number of ranks."""
    pool = Pool(4, 31, {})
    pool.reclaim([(batch, 1) for batch in sorted(holes)])
    pool.cover(pool.outstanding)

    trained: list[int] = []
    for turn in range(31):
        taken = pool.take(turn % ranks, most)
        if taken is not None:
            trained += batches(taken.first, taken.count)

    assert trained == sorted(holes)
    pool.cover(pool.outstanding)
    assert pool.complete


# --- everything together ---


class PoolMachine(RuleBasedStateMachine):
    """Random takes, undos, returns and coverage; the model has a set of batches for each place they can be in."""

    @initialize(
        total=st.integers(0, 40),
        counts=st.dictionaries(st.integers(0, 4), st.integers(1, 9), min_size=1),
        known=st.booleans(),
    )
    def lay_out(self, total: int, counts: dict[int, int], known: bool) -> None:
        self.laid_out = initial_spans(total, sorted(counts), counts if known else None)
        self.pool = Pool(7, total, self.laid_out)
        self.total = total
        self.free = set(range(total))
        self.covered: set[int] = set()
        self.plans: list[Taken] = []
        self.trained: list[int] = []

    @rule(rank=st.sampled_from([0, 1, 2, 3, 4, JOINER]), most=st.integers(0, 12), keep=st.booleans())
    def take(self, rank: int, most: int, keep: bool) -> None:
        before, expected = self.pool.snapshot(), self.expected_take(rank, most)

        taken = self.pool.take(rank, most)

        assert sliced(taken) == expected
        if taken is None:
            assert most == 0 or not self.free
            assert self.pool.snapshot() == before
            return
        assert taken.epoch == 7
        if not keep:
            self.pool.undo(taken)
            assert self.pool.snapshot() == before, "I49"
            return
        given_out = set(batches(*expected or (0, 0)))
        assert given_out <= self.free
        self.free -= given_out
        self.plans.append(taken)

    def expected_take(self, rank: int, most: int) -> Range | None:
        """D-3 in so many words, from the lists that the pool shows."""
        holes, residues = self.pool.holes(), self.pool.residues()
        if most == 0:
            return None
        if holes:
            return holes[0][0], min(most, holes[0][1])
        if rank in residues and residues[rank][1]:
            return residues[rank][0], min(most, residues[rank][1])
        ordered = sorted((count, other) for other, (_, count) in residues.items() if count)
        if not ordered:
            return None
        first, count = residues[ordered[-1][1]]
        return first + count - min(most, count), min(most, count)

    @precondition(lambda self: self.plans)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        taken = self.plans.pop(data.draw(st.integers(0, len(self.plans) - 1)))
        done = data.draw(st.integers(0, taken.count))
        given_out = batches(taken.first, taken.count)
        spans, holes = self.pool.residues(), self.pool.holes()

        self.pool.undo(taken, trained=done)

        self.trained += given_out[:done]
        self.free |= set(given_out[done:])
        if not given_out[done:]:
            assert (self.pool.residues(), self.pool.holes()) == (spans, holes)
        elif self.end_is_unmoved(taken, given_out[done], spans):
            assert self.pool.holes() == holes
        else:
            assert self.pool.residues() == spans
            assert self.pool.holes()[0][0] == given_out[done]

    def end_is_unmoved(self, taken: Taken, first: int, spans: dict[int, Range]) -> bool:
        if taken.source is Source.HOLE:
            return False
        front, count = spans[taken.owner]
        return front == taken.end if taken.source is Source.OWN_SPAN else front + count == first

    @precondition(lambda self: self.plans)
    @rule(data=st.data())
    def train(self, data: st.DataObject) -> None:
        taken = self.plans.pop(data.draw(st.integers(0, len(self.plans) - 1)))
        self.trained += batches(taken.first, taken.count)

    @precondition(lambda self: self.trained)
    @rule(data=st.data())
    def reclaim(self, data: st.DataObject) -> None:
        returned = data.draw(st.lists(st.sampled_from(self.trained), unique=True))
        holes = self.pool.holes()

        self.pool.reclaim([(batch, 1) for batch in returned])

        self.trained = [batch for batch in self.trained if batch not in returned]
        self.free |= set(returned)
        assert self.pool.holes()[: len(holes)] == holes
        assert self.pool.holes()[len(holes) :] == tuple(merge_ranges((batch, 1) for batch in returned))

    @precondition(lambda self: self.trained)
    @rule(count=st.integers(1, 6))
    def cover(self, count: int) -> None:
        merged, self.trained = self.trained[:count], self.trained[count:]
        self.pool.cover(len(merged))
        self.covered |= set(merged)

    @rule()
    def restore(self) -> None:
        snapshot = self.pool.snapshot()
        hash(snapshot)
        self.pool = Pool.restore(snapshot)
        assert self.pool.snapshot() == snapshot

    @invariant()
    def every_batch_is_in_one_place(self) -> None:
        """I41, and D-3: what the pool shows as free is free, each batch once."""
        stretches = [*self.pool.holes(), *self.pool.residues().values()]
        shown = [batch for first, count in stretches for batch in batches(first, count)]
        in_flight = sum(taken.count for taken in self.plans)
        assert len(shown) == len(set(shown)) == self.pool.free
        assert set(shown) == self.free
        assert [batch for stretch in self.pool.free_ranges() for batch in batches(*stretch)] == sorted(self.free)
        assert self.pool.outstanding == in_flight + len(self.trained)
        assert self.pool.covered == len(self.covered)
        assert self.pool.complete == (len(self.covered) == self.total)

    @invariant()
    def owner_and_thief_never_cross(self) -> None:
        """D-3: a span only ever shrinks within what was laid out, and its front stays at or before its tail."""
        for rank, (front, count) in self.pool.residues().items():
            low, high = self.laid_out[rank]
            assert low <= front <= front + count <= high


TestPoolMachine = PoolMachine.TestCase
