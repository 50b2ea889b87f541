"""The final window of an epoch (D-7, I50)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.dispatch.window import final_window

cohorts = st.dictionaries(st.integers(0, 40), st.integers(1, 60), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("counts", "remaining", "expected"),
    [
        ((71, 18, 15), 72, (49, 13, 10)),
        ((71, 18, 15), 106, (71, 19, 16)),
        ((71, 18, 15), 3, (3, 0, 0)),
        ((71, 18, 15), 1, (1, 0, 0)),
        ((10, 10, 10), 5, (3, 2, 0)),
        # The borders of the regime, and the order of the crumbs among equals.
        ((71, 18, 15), 104, (71, 18, 15)),
        ((71, 18, 15), 105, (71, 18, 16)),
        ((1, 5), 6, (1, 5)),
        ((10, 10, 10), 31, (10, 11, 10)),
        ((10, 10, 10), 32, (10, 11, 11)),
        ((5,), 5, (5,)),
        ((5,), 2, (2,)),
        # Two single steps: the first goes onto the second, the lowest rank moves first.
        ((4, 4), 2, (0, 2)),
        ((1, 1, 1), 2, (0, 2, 0)),
    ],
)
def test_vectors(counts: tuple[int, ...], remaining: int, expected: tuple[int, ...]) -> None:
    """D-7: the vectors of the protocol, and one for each tie that it decides."""
    assert final_window(remaining, dict(enumerate(counts))) == dict(enumerate(expected))


@pytest.mark.parametrize("remaining", [-1, 0, 107, 10**6])
def test_outside_the_regime_nothing_is_planned(remaining: int) -> None:
    """D-7: only 0 < rem < S + A is a final window."""
    assert final_window(remaining, {0: 71, 1: 18, 2: 15}) is None


def test_without_voters_nothing_is_planned() -> None:
    """D-7: nobody to plan for."""
    assert final_window(3, {}) is None


@given(counts=cohorts, data=st.data())
def test_slots_empty_the_pool_exactly(counts: dict[int, int], data: st.DataObject) -> None:
    """I50: the slots sum to rem, name exactly the voters, and below a full window none is 1 unless rem is 1."""
    window = sum(counts.values())
    remaining = data.draw(st.integers(1, window + len(counts) - 1))

    slots = final_window(remaining, counts)

    assert slots is not None
    assert sum(slots.values()) == remaining
    assert list(slots) == sorted(counts)
    assert min(slots.values()) >= 0
    if remaining < window and remaining > 1:
        assert 1 not in slots.values()


@given(counts=cohorts, data=st.data())
def test_fold_band_adds_single_batches_to_the_slow(counts: dict[int, int], data: st.DataObject) -> None:
    """D-7: with rem >= S everybody does its count, some one more: never the fastest, the smallest counts first."""
    window = sum(counts.values())
    crumb = data.draw(st.integers(0, len(counts) - 1))

    slots = final_window(window + crumb, counts)

    assert slots is not None
    more = [rank for rank in sorted(counts) if slots[rank] == counts[rank] + 1]
    fastest = max(sorted(counts), key=lambda rank: counts[rank])
    assert len(more) == crumb
    assert all(slots[rank] == counts[rank] for rank in counts if rank not in more)
    assert fastest not in more
    passed_over = [rank for rank in counts if rank not in more and rank != fastest]
    assert all((counts[one], one) < (counts[other], other) for one in more for other in passed_over)


@given(counts=cohorts, data=st.data())
def test_shrinking_window_stays_in_proportion(counts: dict[int, int], data: st.DataObject) -> None:
    """D-7: below a full window no slot is more than a batch off its part, save for single steps that moved."""
    window = sum(counts.values())
    remaining = data.draw(st.integers(1, window))

    slots = final_window(remaining, counts)

    assert slots is not None
    moved = sum(1 for rank in counts if slots[rank] == 0)
    for rank, count in counts.items():
        part = remaining * count / window
        assert slots[rank] == 0 or part - 1 < slots[rank] < part + 1 + moved
        assert slots[rank] > 0 or part < 2


@given(counts=cohorts, data=st.data())
def test_pinning_is_a_function_of_its_arguments(counts: dict[int, int], data: st.DataObject) -> None:
    """D-7: the order in which voters were noted down does not matter, and the arguments are left alone."""
    remaining = data.draw(st.integers(1, sum(counts.values()) + len(counts) - 1))
    shuffled = {rank: counts[rank] for rank in data.draw(st.permutations(sorted(counts)))}
    before = dict(shuffled)

    assert final_window(remaining, shuffled) == final_window(remaining, counts)
    assert shuffled == before
