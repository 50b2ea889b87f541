"""The order of samples (D-1, D-2, I51): the vectors of the protocol, and a slow model that spells its formulas out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.dispatch.permutation import MAX_PICKS, Permutation, decode, epoch_bounds, partition
from paceline.core.errors import LocalProtocolError

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15

integers = st.integers(-WORD, 2 * WORD)


def mix(z: int) -> int:
    """SplitMix64's finalizer, line by line as D-1 writes it."""
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 % WORD
    z ^= z >> 27
    z = z * 0x94D049BB133111EB % WORD
    z ^= z >> 31
    return z


def round_keys(seed: int, pass_number: int) -> list[int]:
    a = mix((seed + GOLDEN) % WORD)
    d = mix(((a ^ pass_number % WORD) + GOLDEN) % WORD)
    return [mix((d + (i + 1) * GOLDEN) % WORD) for i in range(8)]


def model(picks: int, seed: int, pass_number: int, position: int) -> int:
    """perm(x) of D-1, one number at a time."""
    if picks == 1:
        return 0
    bits = max(2, (picks - 1).bit_length())
    bits += bits % 2
    half = bits // 2
    mask = (1 << half) - 1
    number = position
    while True:
        left, right = number >> half, number & mask
        for key in round_keys(seed, pass_number):
            left, right = right, left ^ (mix((right + key) % WORD) & mask)
        number = (left << half) | right
        if number < picks:
            return number


def test_model_has_the_constants_of_the_protocol() -> None:
    """D-1 gives mix(G) and k[0] for (42, 0): the model that judges the rest is itself right."""
    assert mix(GOLDEN) == 0xE220A8397B1DCDAF
    assert round_keys(42, 0)[0] == 0x6310BF04D8207F46


@pytest.mark.parametrize(
    ("picks", "seed", "pass_number", "start", "expected"),
    [
        (10, 42, 0, 0, [7, 1, 2, 8, 6, 9, 4, 0, 5, 3]),
        (10, 42, 1, 0, [1, 0, 8, 4, 2, 5, 6, 9, 7, 3]),
        (10**9, 42, 0, 0, [983448860, 821508285, 851880134, 401823234, 220561337, 87552065]),
        (10**9, 42, 0, 999_999_997, [793638912, 500953569, 430376614]),
        (1000, WORD - 1, 3, 996, [347, 494, 337, 273]),
        (1, 42, 0, 0, [0]),
    ],
)
def test_vectors(picks: int, seed: int, pass_number: int, start: int, expected: list[int]) -> None:
    """D-1: the table of vectors, as a slice and position by position."""
    permutation = Permutation(picks, seed, pass_number)

    assert permutation.slice(start, len(expected)) == expected
    assert [permutation.at(start + index) for index in range(len(expected))] == expected
    assert [model(picks, seed, pass_number, start + index) for index in range(len(expected))] == expected


@given(picks=st.integers(1, MAX_PICKS), seed=integers, pass_number=integers, data=st.data())
def test_agrees_with_the_model(picks: int, seed: int, pass_number: int, data: st.DataObject) -> None:
    """D-1: for every number of picks, also where a pass is just past a power of four and most numbers walk."""
    position = data.draw(st.integers(0, picks - 1))

    assert Permutation(picks, seed, pass_number).at(position) == model(picks, seed, pass_number, position)


@given(exponent=st.integers(0, 32), beyond=st.integers(-2, 2), seed=integers)
def test_agrees_with_the_model_around_powers_of_four(exponent: int, beyond: int, seed: int) -> None:
    """D-1: the number of bits changes exactly here."""
    picks = min(max(1, 4**exponent + beyond), MAX_PICKS)

    for position in (0, picks // 2, picks - 1):
        assert Permutation(picks, seed, 0).at(position) == model(picks, seed, 0, position)


def test_seed_and_pass_count_modulo_a_word() -> None:
    """D-1: seed and pass are taken modulo 2**64."""
    order = Permutation(100, 7, 3).slice(0, 100)

    assert Permutation(100, 7 - WORD, 3 + WORD).slice(0, 100) == order
    assert Permutation(100, 8, 3).slice(0, 100) != order
    assert Permutation(100, 7, 4).slice(0, 100) != order


def test_bijection_for_every_small_size() -> None:
    """I51: each pick exactly once, for all sizes up to past the next power of four."""
    for picks in range(1, 300):
        assert sorted(Permutation(picks, 42, picks).slice(0, picks)) == list(range(picks))


@given(picks=st.integers(1, 5000), seed=integers, pass_number=integers)
def test_bijection(picks: int, seed: int, pass_number: int) -> None:
    """I51: each pick exactly once, also where a slice fills many blocks of lanes."""
    assert sorted(Permutation(picks, seed, pass_number).slice(0, picks)) == list(range(picks))


@given(picks=st.integers(1, 2000), cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_any_tiling_of_a_pass_gives_its_order(picks: int, cuts: list[int]) -> None:
    """I51: slices cut anywhere, put together again, are the pass."""
    permutation = Permutation(picks, 42, 0)
    borders = [0, *sorted(min(cut, picks) for cut in cuts), picks]

    tiled = [pick for start, end in itertools.pairwise(borders) for pick in permutation.slice(start, end - start)]

    assert tiled == permutation.slice(0, picks)


@pytest.mark.parametrize("picks", [-1, 0, MAX_PICKS + 1])
def test_refuses_impossible_sizes(picks: int) -> None:
    """D-1: a pass has at least one pick, and no more than 64 bits can count."""
    with pytest.raises(LocalProtocolError, match="picks"):
        Permutation(picks, 42, 0)


@pytest.mark.parametrize(("start", "size"), [(-1, 1), (0, -1), (0, 11), (10, 1)])
def test_refuses_positions_outside_the_pass(start: int, size: int) -> None:
    """D-1: positions are 0..picks-1; beyond them the network would give picks that others have."""
    with pytest.raises(LocalProtocolError, match="positions"):
        Permutation(10, 42, 0).slice(start, size)


def test_epoch_bounds_vectors() -> None:
    """D-2: 1000 picks in 3, and 50 000 in 7, which is six of 7143 and then 7142."""
    assert [epoch_bounds(1000, 3, epoch) for epoch in range(3)] == [(0, 0, 334), (0, 334, 333), (0, 667, 333)]
    assert [epoch_bounds(50_000, 7, epoch).length for epoch in range(7)] == [7143] * 6 + [7142]
    assert epoch_bounds(1000, 3, 7) == (2, 334, 333)
    assert epoch_bounds(0, 1, 0) == (0, 0, 0)


@given(picks=st.integers(0, 10**6), splits=st.integers(1, 50), pass_number=st.integers(0, 5))
def test_epochs_tile_their_pass(picks: int, splits: int, pass_number: int) -> None:
    """D-2: the epochs of a pass lie end to end, cover it, and differ by at most one pick, longer ones first."""
    bounds = [epoch_bounds(picks, splits, pass_number * splits + piece) for piece in range(splits)]

    reached = 0
    for bound in bounds:
        assert (bound.pass_number, bound.start) == (pass_number, reached)
        reached += bound.length
    lengths = [bound.length for bound in bounds]
    assert reached == picks
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@given(
    picks=st.integers(1, 400),
    splits=st.integers(1, 5),
    seed=integers,
    pass_number=st.integers(0, 3),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
)
def test_plans_over_all_epochs_of_a_pass_give_each_pick_once(
    picks: int, splits: int, seed: int, pass_number: int, sizes: list[int]
) -> None:
    """I51: whatever the plans' sizes, the plans of a pass train every pick once, in the order of the pass."""
    trained: list[int] = []
    for epoch in range(pass_number * splits, (pass_number + 1) * splits):
        offset, turn = 0, 0
        while plan := partition(picks, splits, seed, epoch, offset, sizes[turn % len(sizes)]):
            trained += plan
            offset += len(plan)
            turn += 1

    assert trained == Permutation(picks, seed, pass_number).slice(0, picks)
    assert sorted(trained) == list(range(picks))


def test_partition_is_cut_off_at_the_end_of_its_epoch() -> None:
    """D-2: an epoch never reaches into the next one's picks."""
    order = Permutation(1000, 42, 0).slice(0, 1000)

    assert partition(1000, 3, 42, 0, 330, 50) == order[330:334]
    assert partition(1000, 3, 42, 1, 0, 5) == order[334:339]
    assert partition(1000, 3, 42, 2, 333, 1) == []
    assert partition(1000, 3, 42, 2, 10**9, 1) == []
    assert partition(0, 1, 42, 0, 0, 10) == []


@pytest.mark.parametrize(("offset", "size"), [(-1, 5), (5, -1)])
def test_partition_refuses_negative_slices(offset: int, size: int) -> None:
    """D-2: a slice before its epoch would be trained twice."""
    with pytest.raises(LocalProtocolError, match="plan"):
        partition(100, 1, 42, 0, offset, size)


def test_decode() -> None:
    """Section 1: sample = pick // repeats, repeat = pick % repeats, each pair once."""
    assert [decode(pick, 3) for pick in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert decode(12, 1) == (12, 0)
