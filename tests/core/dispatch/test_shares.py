"""Epochs handed out whole, and what comes back in the middle of one (D-17, D-22, I54)."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.core.dispatch.shares import Share, shares, split_returned
from paceline.core.errors import InvariantError

voters_strategy = st.lists(st.integers(0, 60), unique=True, max_size=12).map(sorted)
weight = st.floats(1e-6, 1e9)


def sizes(dealt: list[Share]) -> dict[int, int]:
    return {rank: count for rank, _, count in dealt}


def test_equal_shares_leave_the_remainder_to_the_first() -> None:
    """D-17: Sync, and any run that knows nothing of its speeds."""
    assert shares(11, [0, 2, 5]) == [(0, 0, 5), (2, 5, 3), (5, 8, 3)]


def test_shares_by_speed_leave_the_remainder_to_the_fastest() -> None:
    """D-17: in proportion to 1 / ms; 10, 20 and 40 ms are 4 : 2 : 1, and the lowest of equals is the fastest."""
    assert shares(10, [0, 1, 2], ms={0: 40.0, 1: 10.0, 2: 20.0}) == [(0, 0, 1), (1, 1, 7), (2, 8, 2)]
    assert shares(3, [4, 7], ms={4: 5.0, 7: 5.0}) == [(4, 0, 2), (7, 2, 1)]


def test_speeds_below_a_microsecond_are_all_the_same() -> None:
    """D-17: max(ms, 0.001), so a measured zero divides nothing by zero."""
    assert shares(8, [0, 1], ms={0: 0.0, 1: 0.001}) == [(0, 0, 4), (1, 4, 4)]


def test_wished_ratios_come_before_speeds() -> None:
    """D-17: ratios over everything; the remainder one each to the largest ratios, lowest rank among equals."""
    assert shares(10, [0, 1, 2], ratios={0: 1.0, 1: 1.0, 2: 2.0}, ms={0: 1.0, 1: 50.0, 2: 50.0}) == [
        (0, 0, 2),
        (1, 2, 2),
        (2, 4, 6),
    ]
    assert sizes(shares(11, [0, 1, 2], ratios={0: 1.0, 1: 1.0, 2: 2.0})) == {0: 3, 1: 2, 2: 6}


def test_ratios_of_ranks_that_left_count_no_more() -> None:
    """D-17: ratios are normalised over the voters."""
    assert shares(9, [0, 2], ratios={0: 1.0, 1: 100.0, 2: 2.0}) == [(0, 0, 3), (2, 3, 6)]


@pytest.mark.parametrize("ranks", [3, 7, 49, 98, 107])
@pytest.mark.parametrize("each", [1, 3, 11])
@pytest.mark.parametrize("ms", [0.1, 1.0, 3.7])
def test_equally_fast_ranks_get_equal_shares(ranks: int, each: int, ms: float) -> None:
    """D-17: no float rounds an exact part down, which would give the fastest a second share of everyone."""
    voters = list(range(ranks))

    assert sizes(shares(ranks * each, voters, ms=dict.fromkeys(voters, ms))) == dict.fromkeys(voters, each)


def test_more_ranks_than_batches() -> None:
    """I54: three batches for seven ranks: whoever gets none is not in the list, and nothing is divided by zero."""
    voters = list(range(7))

    assert shares(3, voters) == [(0, 0, 3)]
    assert shares(3, voters, ms=dict.fromkeys(voters, 4.0)) == [(0, 0, 3)]
    assert shares(3, voters, ratios=dict.fromkeys(voters, 1.0)) == [(0, 0, 1), (1, 1, 1), (2, 2, 1)]


@pytest.mark.parametrize("total", [0, 5])
def test_no_batches_or_no_voters(total: int) -> None:
    """I54: empty data, or a run in which nobody is left, divides into nothing."""
    assert shares(total, []) == []
    assert shares(0, [0, 1]) == []
    assert shares(0, [0, 1], ms={0: 1.0, 1: 2.0}) == []
    assert split_returned([(0, total)], []) == []
    assert split_returned([], [0, 1]) == []
    assert split_returned([(4, 0)], [0, 1]) == []


@pytest.mark.parametrize("weights", [(1.0, math.inf), (1.0, math.nan), (1.0, -1.0), (0.0, 0.0)])
def test_impossible_weights_are_a_bug(weights: tuple[float, float]) -> None:
    """I54: such weights are refused by configuration and balancer; if some come through, they are not used."""
    with pytest.raises(InvariantError, match="I54"):
        shares(5, [0, 1], ratios=dict(enumerate(weights)))


@given(total=st.integers(0, 10**12), voters=voters_strategy, data=st.data())
def test_shares_lie_end_to_end(total: int, voters: list[int], data: st.DataObject) -> None:
    """D-17, I54: consecutive from 0, none empty, ascending ranks, every batch once, whatever the weights."""
    weights = data.draw(st.one_of(st.none(), st.fixed_dictionaries({rank: weight for rank in voters})))
    kind = data.draw(st.sampled_from(["ratios", "ms"]))

    dealt = shares(total, voters, **{kind: weights})

    reached = 0
    for _, first, count in dealt:
        assert first == reached
        assert count > 0
        reached += count
    ranks = [rank for rank, _, _ in dealt]
    assert reached == (total if voters else 0)
    assert ranks == sorted(set(ranks))
    assert set(ranks) <= set(voters)


@given(total=st.integers(1, 10**6), voters=voters_strategy.filter(bool), data=st.data())
def test_larger_ratios_get_no_smaller_shares(total: int, voters: list[int], data: st.DataObject) -> None:
    """D-17: shares follow the ratios, and none is more than one batch off its part."""
    ratios = data.draw(st.fixed_dictionaries({rank: st.integers(1, 1000) for rank in voters}))
    got = sizes(shares(total, voters, ratios={rank: float(ratio) for rank, ratio in ratios.items()}))

    whole = sum(ratios.values())
    for one in voters:
        assert abs(got.get(one, 0) * whole - total * ratios[one]) <= whole
        for other in voters:
            assert ratios[one] <= ratios[other] or got.get(one, 0) >= got.get(other, 0)


def test_returned_batches_are_split_equally() -> None:
    """D-22: ascending, contiguous pieces, extra batches one each to the lowest voters, gaps make more pieces."""
    assert split_returned([(10, 4), (0, 3)], [1, 4, 6]) == [(1, 0, 3), (4, 10, 2), (6, 12, 2)]
    assert split_returned([(0, 5), (8, 2), (10, 1)], [0, 1, 2]) == [(0, 0, 3), (1, 3, 2), (1, 8, 1), (2, 9, 2)]
    assert split_returned([(7, 2)], [0, 1, 2]) == [(0, 7, 1), (1, 8, 1)]


def test_returned_twice_is_a_bug() -> None:
    """D-22, I41: a batch that returns twice would be trained twice."""
    with pytest.raises(InvariantError, match="I41"):
        split_returned([(0, 3), (2, 2)], [0])


@given(
    returned=st.sets(st.integers(0, 120)),
    voters=voters_strategy.filter(bool),
)
@example(returned={0, 2, 4, 6}, voters=[0])
def test_returned_batches_are_each_given_once(returned: set[int], voters: list[int]) -> None:
    """D-22: exactly the returned batches, in ascending order over ascending voters, equal but for one."""
    dealt = split_returned([(batch, 1) for batch in sorted(returned)], voters)

    given_out = [batch for _, first, count in dealt for batch in range(first, first + count)]
    per_voter = [sum(count for rank, _, count in dealt if rank == voter) for voter in voters]
    assert given_out == sorted(returned)
    assert [rank for rank, _, _ in dealt] == sorted(rank for rank, _, _ in dealt)
    assert per_voter == sorted(per_voter, reverse=True)
    assert per_voter[0] - per_voter[-1] <= 1
    pieces = [(rank, first) for rank, first, _ in dealt]
    assert len(pieces) <= len(voters) + sum(1 for batch in returned if batch - 1 not in returned)


def test_shares_of_holes_are_as_large_and_keep_to_the_holes() -> None:
    """D-17, D-23: ten batches left in two holes, in the ratio 3 to 2; the first rank reaches into both."""
    assert shares(10, [0, 1], ratios={0: 3.0, 1: 2.0}, holes=[(4, 5), (20, 5)]) == [(0, 4, 5), (0, 20, 1), (1, 21, 4)]
    assert shares(2, [0, 1, 2], holes=[(7, 1), (9, 1)]) == [(0, 7, 1), (0, 9, 1)]
