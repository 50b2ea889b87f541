"""The book: every batch is in exactly one place, whatever is done with it (D-9 to D-15, D-19, D-20)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.core.dispatch.book import Book
from paceline.core.errors import InvariantError
from paceline.core.snapshots import freeze

RANKS = (0, 1, 2)


def made(batches: int = 12, epochs: int = 1, splits: int = 1) -> Book:
    """A book whose first epoch is open: batches of two picks."""
    book = Book(picks=2 * batches, batch_size=2, epoch_splits=splits, num_epochs=epochs, drop_last=True)
    book.open_pool(0, RANKS, None)
    return book


def places(book: Book, epoch: int) -> list[int]:
    """Every batch of an epoch that is somewhere but covered."""
    found: list[int] = []
    for first, count in book.pools[epoch].free_ranges():
        found += range(first, first + count)
    for held in book.ranks.values():
        for entry in held.plans:
            if entry.slice.epoch == epoch:
                found += range(entry.slice.first + entry.done, entry.slice.end)
        for run in held.trained:
            if run.epoch == epoch:
                found += range(run.first, run.first + run.count)
    for runs in book.limbo.values():
        for run in runs:
            if run.epoch == epoch:
                found += range(run.first, run.first + run.count)
    return found


def state(book: Book) -> Any:
    """The book without the number of the next plan, which is never reused."""
    pools = {epoch: pool.snapshot() for epoch, pool in book.pools.items()}
    ranks = {rank: freeze(held) for rank, held in book.ranks.items() if held.plans or held.trained}
    return pools, ranks, freeze(book.limbo), book.last_closed_epoch, book.replayed, book.covered


class Bookkeeping(RuleBasedStateMachine):
    """Takes, steps and every way back, in any order: I41 and I49 after each."""

    @initialize(batches=st.integers(3, 20), splits=st.integers(1, 2))
    def open(self, batches: int, splits: int) -> None:
        self.book = made(batches, splits, splits)
        self.cycle = 1

    def _head(self, rank: int) -> Any:
        return self.book.head(rank)

    @rule(rank=st.sampled_from(RANKS), most=st.integers(1, 5))
    def take(self, rank: int, most: int) -> None:
        epoch = self.book.first_live
        if epoch < self.book.num_epochs:
            self.book.open_pool(epoch, RANKS, None)
            self.book.take(rank, epoch, most)

    @rule(rank=st.sampled_from(RANKS), most=st.integers(1, 5))
    def take_and_lose_the_message(self, rank: int, most: int) -> None:
        """I49: rollback right after take is the identity on pool, cursor and epoch."""
        epoch = self.book.first_live
        if epoch < self.book.num_epochs and epoch in self.book.pools:
            before, was = state(self.book), self.book.holdings(rank).epoch
            plan = self.book.take(rank, epoch, most)
            if plan is not None:
                assert self.book.rollback(rank, plan.plan_id)
                assert state(self.book) == before and self.book.holdings(rank).epoch == was
                assert not self.book.rollback(rank, plan.plan_id), "D-14: a second one is nothing"

    @rule(rank=st.sampled_from(RANKS))
    def step(self, rank: int) -> None:
        head = self._head(rank)
        if head is not None:
            assert self.book.samples_due(head) == 2
            self.book.count_step(rank, self.cycle - 1)

    @rule(rank=st.sampled_from(RANKS))
    def step_on_a_refused_basis(self, rank: int) -> None:
        head = self._head(rank)
        if head is not None:
            replayed = self.book.replayed
            self.book.void_step(rank)
            assert self.book.replayed == replayed + 1

    @rule(rank=st.sampled_from(RANKS), which=st.integers(0, 3))
    def lose_an_old_message(self, rank: int, which: int) -> None:
        """D-14: what was trained of it stays trained."""
        plans = list(self.book.holdings(rank).plans)
        if plans:
            trained = self.book.holdings(rank).trained_batches
            assert self.book.rollback(rank, plans[which % len(plans)].plan.plan_id)
            assert self.book.holdings(rank).trained_batches == trained

    @rule(rank=st.sampled_from(RANKS), count=st.integers(1, 2))
    def complete(self, rank: int, count: int) -> None:
        ids = [entry.plan.plan_id for entry in self.book.holdings(rank).plans][:count]
        assert self.book.holds(rank, ids) is bool(ids)
        if ids:
            missing = sum(e.slice.count - e.done for e in list(self.book.holdings(rank).plans)[: len(ids)])
            assert self.book.complete(rank, ids) == missing
            assert not self.book.holds(rank, ids)

    @rule(rank=st.sampled_from(RANKS), part=st.integers(0, 3))
    def merge(self, rank: int, part: int) -> None:
        steps = self.book.holdings(rank).trained_batches
        covered = self.book.covered
        slices = self.book.merge({rank: max(0, steps - part)})
        assert sum(count for *_, count in slices) == self.book.covered - covered == max(0, steps - part)
        self.cycle += 1

    @rule(rank=st.sampled_from(RANKS))
    def refuse(self, rank: int) -> None:
        count = self.book.refuse(rank, self.cycle)
        assert count >= 0 and not self.book.holdings(rank).trained
        self.cycle += 1

    @precondition(lambda self: not self.book.limbo)
    @rule(rank=st.sampled_from(RANKS), part=st.integers(0, 3), merged=st.booleans())
    def die(self, rank: int, part: int, merged: bool) -> None:
        """M-19, D-19, I49: limbo first, forfeit twice is forfeit once."""
        shipped = max(0, self.book.holdings(rank).trained_batches - part)
        self.book.into_limbo(rank, shipped)
        assert self.book.forfeit(rank) >= 0
        before = state(self.book)
        assert self.book.forfeit(rank) == 0 and state(self.book) == before
        assert not self.book.holds(rank, (1,)), "a completion after the forfeit changes nothing"
        covered = self.book.resolve_limbo({rank: shipped} if merged else {})
        assert sum(count for *_, count in covered) == (shipped if merged else 0)

    @rule()
    def close(self) -> None:
        for epoch in self.book.close_complete():
            with pytest.raises(InvariantError, match="I13"):
                self.book.open_pool(epoch, RANKS, None)

    @invariant()
    def i41_every_batch_in_one_place(self) -> None:
        for epoch, pool in self.book.pools.items():
            found = places(self.book, epoch)
            assert len(found) == len(set(found)) and len(found) + pool.covered == pool.total
            uncovered = [b for first, count in self.book.uncovered(epoch) for b in range(first, first + count)]
            assert uncovered == sorted(found), "K-10"


Bookkeeping.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestBook = Bookkeeping.TestCase


def test_steps_move_batches_in_the_order_of_dispatch() -> None:
    """D-11, D-12: across plans, and the oldest are covered first."""
    book = made()
    for _ in range(2):
        book.take(0, 0, 2)
    for cycle in (0, 0, 1):
        head = book.head(0)
        assert head is not None
        book.count_step(0, cycle)
    covered = book.merge({0: 2})
    assert covered == [(0, 0, 0, 2)]
    assert book.refuse(0, 1) == 0 and book.refuse(0, 2) == 1


def test_more_merged_than_trained_is_a_bug_of_ours() -> None:
    """I46."""
    with pytest.raises(InvariantError, match="I46"):
        made().merge({0: 1})


def test_reading_what_a_rank_holds_changes_nothing() -> None:
    """I3: a question must not leave a trace in the snapshot."""
    book = made()
    before = freeze(book)
    assert book.holdings(9).in_flight_batches == 0 and book.head(9) is None and not book.holds(9, (1,))
    assert freeze(book) == before


@given(st.integers(1, 9), st.integers(1, 4))
def test_the_last_batch_of_an_epoch_may_be_short(picks: int, size: int) -> None:
    """D-3, D-11: without drop_last every pick is due exactly once."""
    book = Book(picks=picks, batch_size=size, epoch_splits=1, num_epochs=1, drop_last=False)
    book.open_pool(0, (0,), None)
    book.take(0, 0, picks)
    due = 0
    while (head := book.head(0)) is not None:
        due += book.samples_due(head)
        book.count_step(0, 0)
    assert due == picks


def test_an_epoch_that_nobody_opened_is_uncovered_as_a_whole() -> None:
    """K-10."""
    book = made(4, epochs=2, splits=2)
    assert book.uncovered(1) == [(0, 2)]
    book.last_closed_epoch = 0
    assert book.uncovered(0) == []


@settings(max_examples=60)
@given(takes=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 4)), min_size=1, max_size=5), order=st.randoms())
def test_plans_that_were_never_sent_leave_nothing_in_whatever_order_that_is_told(
    takes: list[tuple[int, int]], order: Any
) -> None:
    """D-14, I5, I49: epoch of the rank, free batches and what it holds are as before, also if the older plan fails
    first."""
    book = made(24, 2, 2)
    book.open_pool(1, RANKS, None)
    book.take(0, 0, 1)
    before = book.holdings(0).epoch, book.holdings(0).in_flight_batches, [places(book, epoch) for epoch in (0, 1)]
    free = [pool.free_ranges() for pool in book.pools.values()]
    plans = [plan for epoch, most in takes if (plan := book.take(0, epoch, most)) is not None]
    order.shuffle(plans)
    for plan in plans:
        assert book.rollback(0, plan.plan_id) and not book.rollback(0, plan.plan_id)
    assert (book.holdings(0).epoch, book.holdings(0).in_flight_batches) == before[:2]
    assert [sorted(places(book, epoch)) for epoch in (0, 1)] == [sorted(found) for found in before[2]]
    assert [pool.free_ranges() for pool in book.pools.values()] == free
