"""The star averager: R-1, R-2, R-4 to R-11, R-20, R-22, C-18, N-25, N-26; invariants I56, I57, I58, I60."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.backends import layout as layout_module
from paceline.backends.layout import FlatLayout
from paceline.backends.star import WAITING_BLOCKS, StarAverager
from paceline.core.effects import AbortRound, CloseRound, RemoveFromRound
from paceline.core.errors import LocalProtocolError, RemoteProtocolError
from paceline.core.events import RoundAborted, RoundProgress, RoundReduced
from paceline.core.messages import BulkBlock, Outcome, Refusal, RoundResult
from paceline.core.schema import EntryClass, Schema

from support.averaging import (
    KEY,
    RIDING,
    SCHEMA,
    STATE,
    TINY_BLOCK,
    Cohort,
    Ship,
    average,
    blocks_of,
    entry,
    flat_of,
    header,
    opened,
    random_flat,
    received,
    values_of,
)  # fmt: skip

tiny_blocks = blocks_of(TINY_BLOCK)


def consensus(averager: StarAverager) -> np.ndarray:
    assert averager.consensus is not None
    return values_of(SCHEMA, averager.consensus)


def no_underflow(values: list[float]) -> np.ndarray:
    """The relative bounds of R-22 are for products that are normal numbers: what is tinier becomes 0."""
    array = np.array(values)
    return np.where(np.abs(array) < 1e-30, 0.0, array)


finite_flats = st.lists(st.floats(-1e4, 1e4, width=32), min_size=40, max_size=40).map(
    lambda values: flat_of(SCHEMA, no_underflow(values))
)


# --- the sum ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1.0, 0.0, -1.0, 0.5])
def test_consensus_is_the_mean_by_mass_and_the_plain_mean_for_buffers(gamma: float) -> None:
    """R-5 to R-7, against float64."""
    steps = {0: 3, 1: 0, 2: 10, 5: 1}
    flats = {rank: random_flat(rank) for rank in (0, 2, 5)}
    averager, reduced = average(SCHEMA, {r: Ship(n, flats.get(r)) for r, n in steps.items()}, gamma=gamma)
    weights = {rank: float(steps[rank]) ** gamma for rank in flats}
    expected = sum(weights[r] * values_of(SCHEMA, flats[r]) for r in flats) / sum(weights.values())
    plain = sum(values_of(SCHEMA, flats[r]) for r in flats) / len(flats)
    buffers = slice(len(expected) - 3, None)
    expected[buffers] = plain[buffers]
    assert (reduced.accepted, reduced.refused, reduced.realized) == ((0, 1, 2, 5), (), True)
    result = consensus(averager)
    coarse = slice(15, 22)
    np.testing.assert_allclose(result[coarse], expected[coarse], atol=2**-8 * np.abs(expected).max())
    np.testing.assert_allclose(np.delete(result, coarse), np.delete(expected, coarse), atol=2e-3, rtol=1e-3)
    np.testing.assert_allclose(result[:15], expected[:15], atol=1e-6)
    np.testing.assert_allclose(result[22:26], expected[22:26], atol=1e-7)


def test_two_ranks_give_the_numbers_on_paper() -> None:
    """R-6: (10 * 1 + 30 * 5) / 40 = 4."""
    schema = Schema(entries=(entry("w", EntryClass.PARAM, (3,)), entry("b", EntryClass.BUFFER, (1,))))
    ships = {0: Ship(10, np.array([1, 1, 1, 1], "<f4").tobytes()), 1: Ship(30, np.array([5, 5, 5, 5], "<f4").tobytes())}
    averager, reduced = average(schema, ships)
    assert averager.consensus is not None
    assert np.frombuffer(averager.consensus, "<f4").tolist() == [4, 4, 4, 3]
    assert averager.scatter(0)[0] == RoundResult(outcome=Outcome.MERGED, total_steps=40, bytes=16)
    assert reduced.digest == hashlib.sha256(averager.consensus).digest()[:16]


@settings(max_examples=40)
@given(st.dictionaries(st.integers(0, 6), st.tuples(st.integers(1, 1000), finite_flats), min_size=1, max_size=5),
       st.floats(-2, 2))  # fmt: skip
def test_consensus_stays_within_the_accepted_contributions(
    ranks: dict[int, tuple[int, bytes]], gamma: float
) -> None:
    """I56, R-22; for a coarse dtype the bounds are rounded as its values are."""
    averager, _ = average(SCHEMA, {r: Ship(n, flat) for r, (n, flat) in ranks.items()}, gamma=gamma)
    stack = np.stack([values_of(SCHEMA, flat) for _, flat in ranks.values()])
    slack = (len(ranks) + 2) * 2**-23 * np.abs(stack).max(axis=0)
    low, high = stack.min(axis=0) - slack, stack.max(axis=0) + slack
    # Coarse values: the cast may move a bound by half a step of the dtype, of float16 by half a subnormal step too.
    result, grain = consensus(averager), np.zeros(stack.shape[1])
    grain[15:22] = 2**-8 * slack[15:22]
    grain[26] = 2**-10 * slack[26] + 2**-25
    assert np.all(result >= low - grain) and np.all(result <= high + grain)


@settings(max_examples=30)
@given(finite_flats, st.lists(st.integers(1, 1000), min_size=1, max_size=5), st.sampled_from([1.0, 0.0, -1.0, 0.3]))
def test_equal_contributions_are_reproduced(flat: bytes, steps: list[int], gamma: float) -> None:
    """I56, R-22."""
    averager, _ = average(SCHEMA, {r: Ship(n, flat) for r, n in enumerate(steps)}, gamma=gamma)
    same = values_of(SCHEMA, flat)
    bound = (len(steps) + 2) * 2**-23 * np.abs(same)
    assert np.all(np.abs(consensus(averager) - same) <= bound)


@settings(max_examples=60)
@given(
    st.dictionaries(st.integers(0, 5), st.integers(0, 3), min_size=1, max_size=4),
    st.lists(st.integers(0, 7), max_size=60),
)
def test_order_of_arrival_changes_no_bit(steps: dict[int, int], order: list[int]) -> None:
    """I60: any interleaving of headers, blocks and admissions, against the lanes one after the other."""
    ships = {rank: Ship(n, random_flat(rank, 1e3) if n else None) for rank, n in steps.items()}
    mixed, first = average(SCHEMA, ships, order=order)
    plain, second = average(SCHEMA, ships, order=[lane for lane in range(2 * len(ships)) for _ in range(20)])
    assert first == second
    assert (mixed.consensus is None) == (not any(steps.values()))
    if mixed.consensus is not None:
        assert bytes(mixed.consensus) == bytes(plain.consensus or b"")


@settings(max_examples=40)
@given(st.binary(min_size=RIDING.nbytes, max_size=RIDING.nbytes), st.sampled_from(["refused", "observer", "stranger"]),
       st.lists(st.integers(0, 9), max_size=40))  # fmt: skip
def test_bytes_of_who_does_not_count_change_no_bit(junk: bytes, who: str, order: list[int]) -> None:
    """I57, R-4: neither of the consensus nor of its divisor."""
    good = {0: Ship(4, random_flat(0)), 3: Ship(2, random_flat(3))}
    expected, _ = average(SCHEMA, good)
    averager = StarAverager(SCHEMA)
    members = [0, 1, 3] if who == "refused" else [0, 3]
    averager.open(opened(members, observers=[1] if who == "observer" else []))
    bad = Ship(7, junk, claim={"schema_hash": b"?" * 32} if who == "refused" else {})
    reduced = Cohort(SCHEMA, averager, {0: good[0], 1: bad, 3: good[3]}).reduce(order)
    assert isinstance(reduced, RoundReduced) and reduced.accepted == (0, 3)
    assert bytes(averager.consensus or b"") == bytes(expected.consensus or b"")
    assert averager.scatter(0)[0].total_steps == 6


# --- refusals and aborts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ship", "why"),
    [
        (Ship(3, random_flat(1), claim={"schema_hash": b"?" * 32}), Refusal.SCHEMA),
        (Ship(1001, random_flat(1)), Refusal.STEPS),
        (Ship(3, random_flat(1), admitted=4), Refusal.STEPS),
        (Ship(3, random_flat(1), claim={"finite": False}), Refusal.NONFINITE),
        (Ship(3, random_flat(1), claim={"bytes": RIDING.nbytes + 4}), Refusal.SHAPE),
        (Ship(0, random_flat(1)), Refusal.SHAPE),
    ],
)
def test_a_refused_contribution_is_out_of_sum_and_divisor_and_its_rank_gets_the_consensus(
    ship: Ship, why: Refusal
) -> None:
    """F77, R-4: however many steps it claims, it weighs nothing."""
    expected, _ = average(SCHEMA, {0: Ship(5, random_flat(0))})
    averager, reduced = average(SCHEMA, {0: Ship(5, random_flat(0)), 1: ship})
    assert (reduced.accepted, reduced.refused) == ((0,), ((1, why),))
    assert averager.refusals == {(1, why): 1}
    assert averager.scatter(1)[0] == RoundResult(
        outcome=Outcome.REFUSED, total_steps=5, bytes=RIDING.nbytes, refusal=why
    )
    assert received(averager, 1) == bytes(expected.consensus or b"")


def poisoned(at: int) -> bytes:
    """A flat model whose float32 value number `at` is NaN."""
    flat = bytearray(random_flat(1))
    flat[4 * at : 4 * at + 4] = np.array([np.nan], "<f4").tobytes()
    return bytes(flat)


def test_a_non_finite_first_block_refuses_its_rank_without_an_abort() -> None:
    """R-4: the averager checks the values it reads."""
    _, reduced = average(SCHEMA, {0: Ship(5, random_flat(0)), 1: Ship(5, poisoned(0))})
    assert (reduced.accepted, reduced.refused) == ((0,), ((1, Refusal.NONFINITE),))


def test_a_non_finite_later_block_aborts_and_the_rank_stays_refused_in_the_next_attempt() -> None:
    """R-4, R-18: a sum cannot be undone; attempt 1 runs from the retained copies."""
    ships = {0: Ship(5, random_flat(0)), 1: Ship(5, poisoned(14))}
    averager = StarAverager(SCHEMA)
    averager.open(opened(ships))
    first = Cohort(SCHEMA, averager, ships)
    first.finish()
    assert first.events[-1] == RoundAborted(KEY, 0, averager.round.cause if averager.round else "")
    assert "rank 1" in first.events[-1].cause
    assert not averager.collected and averager.consensus is None
    averager.open(opened(ships, attempt=1))
    reduced = Cohort(SCHEMA, averager, ships, attempt=1).reduce()
    assert isinstance(reduced, RoundReduced)
    assert (reduced.attempt, reduced.accepted, reduced.refused) == (1, (0,), ((1, Refusal.NONFINITE),))
    averager.close(CloseRound(KEY))
    averager.open(opened(ships, key=attrs.evolve(KEY, cycle=4)))
    assert averager.round is not None and averager.round.expected() == (0, 1)


def test_a_rank_lost_with_blocks_in_the_sum_aborts_and_the_sources_keep_their_bits() -> None:
    """17.2 #7, R-4, R-18, R-10: what ranks retain is never written."""
    memory = [bytearray(random_flat(rank)) for rank in (0, 1)]
    before = [bytes(flat) for flat in memory]
    ships = {rank: Ship(5, flat) for rank, flat in enumerate(memory)}
    averager = StarAverager(SCHEMA)
    averager.open(opened(ships))
    cohort = Cohort(SCHEMA, averager, ships)
    for lane in (0, 1, 0, 0):
        assert cohort.act(lane)
    (event,) = averager.remove(RemoveFromRound(KEY, 0))
    assert isinstance(event, RoundAborted) and "rank 0" in event.cause and "2 of" in event.cause
    averager.open(opened([1], attempt=1))
    Cohort(SCHEMA, averager, {1: ships[1]}, attempt=1).reduce()
    assert [bytes(flat) for flat in memory] == before
    np.testing.assert_allclose(consensus(averager), values_of(SCHEMA, before[1]), rtol=2**-7)


def test_an_overflowing_consensus_is_not_realized_and_refuses_all() -> None:
    """R-6; I58: the last consensus stays, bit for bit, and is scattered again (R-8)."""
    averager, _ = average(SCHEMA, {0: Ship(5, random_flat(0))})
    last = bytes(averager.consensus or b"")
    averager.close(CloseRound(KEY))
    key = attrs.evolve(KEY, cycle=4)
    averager.open(opened([0, 1], key=key))
    huge = flat_of(SCHEMA, np.where(np.arange(40) < 15, 3e38, 1.0))
    reduced = Cohort(SCHEMA, averager, {0: Ship(900, huge), 1: Ship(900, huge)}, key=key).reduce()
    assert isinstance(reduced, RoundReduced)
    assert (reduced.realized, reduced.accepted, reduced.digest) == (False, (), None)
    assert reduced.refused == ((0, Refusal.NONFINITE), (1, Refusal.NONFINITE))
    assert bytes(averager.consensus or b"") == last == received(averager, 1)


def test_nobody_moved_is_not_realized_and_nobody_gets_bytes_but_observers() -> None:
    """R-8, I58, M-25: an observer still has to stand on the current version."""
    averager, _ = average(SCHEMA, {0: Ship(5, random_flat(0))})
    last = bytes(averager.consensus or b"")
    averager.close(CloseRound(KEY))
    key = attrs.evolve(KEY, cycle=4)
    averager.open(opened([0, 1], key=key, observers=[2]))
    reduced = Cohort(SCHEMA, averager, {0: Ship(0), 1: Ship(0)}, key=key).reduce()
    assert isinstance(reduced, RoundReduced) and not reduced.realized and reduced.accepted == (0, 1)
    assert averager.scatter(0) == (RoundResult(outcome=Outcome.UNREALIZED, total_steps=0, bytes=0), [])
    assert received(averager, 2) == last == bytes(averager.consensus or b"")


def test_a_refused_rank_before_any_consensus_keeps_what_it_has() -> None:
    """R-8: there is nothing to scatter again."""
    averager, _ = average(SCHEMA, {0: Ship(0), 1: Ship(3, random_flat(1), claim={"finite": False})})
    result, blocks = averager.scatter(1)
    assert (result.outcome, result.bytes, blocks) == (Outcome.REFUSED, 0, [])


# --- lanes and memory ------------------------------------------------------------------------------------------


def cut(averager: StarAverager, rank: int) -> Iterator[tuple[BulkBlock, memoryview]]:
    return averager.riding.cut(memoryview(random_flat(rank)), KEY, 0, rank, 1)


def test_progress_names_the_bytes_so_far_and_the_end() -> None:
    """R-11."""
    averager = StarAverager(SCHEMA)
    averager.open(opened([0, 1]))
    cohort = Cohort(SCHEMA, averager, {0: Ship(1, random_flat(0)), 1: Ship(0)})
    cohort.finish()
    marks = [e for e in cohort.events if isinstance(e, RoundProgress)]
    ends = [block.offset + block.nbytes for block in averager.riding.blocks]
    mine = [RoundProgress(KEY, 0, end, end == ends[-1]) for end in ends]
    assert [e for e in marks if e.rank == 0] == mine
    assert [e for e in marks if e.rank == 1] == [RoundProgress(KEY, 1, 0, True)]


def test_a_rank_ahead_of_the_others_is_held_by_its_two_buffers() -> None:
    """R-11: memory is bounded however unequal the ranks are."""
    averager = StarAverager(SCHEMA)
    averager.open(opened([0, 1]))
    cohort = Cohort(SCHEMA, averager, {0: Ship(1, random_flat(0)), 1: Ship(1, random_flat(1))})
    for lane in (2, 3, 2, 2):
        assert cohort.act(lane)
    assert WAITING_BLOCKS == 2 and not averager.ready_for(1) and averager.ready_for(0)
    block, data = list(cut(averager, 1))[2]
    with pytest.raises(LocalProtocolError, match="ready_for"):
        cohort.deliver(block, data)
    for lane in (0, 1, 0):
        assert cohort.act(lane)
    assert averager.ready_for(1)
    cohort.finish()
    assert averager.collected


@pytest.mark.parametrize(
    "change", [{"offset": 4}, {"bytes": 28}, {"entry": 1}, {"offset": TINY_BLOCK}, {"bytes": 5 << 20}]
)
def test_a_block_that_does_not_continue_the_tiling_ends_the_link(change: Mapping[str, int]) -> None:
    """N-25, N-26."""
    averager = StarAverager(SCHEMA)
    averager.open(opened([0]))
    averager.on_header(0, 1, 0, header(SCHEMA, 0, 5, RIDING.nbytes))
    block, _ = next(cut(averager, 0))
    with pytest.raises(RemoteProtocolError) as caught:
        averager.place(attrs.evolve(block, **change))
    assert caught.value.rank == 0


def test_a_block_before_its_header_ends_the_link() -> None:
    """N-26."""
    averager = StarAverager(SCHEMA)
    averager.open(opened([0]))
    with pytest.raises(RemoteProtocolError, match="without a contribution"):
        averager.place(next(cut(averager, 0))[0])


def test_frames_of_other_rounds_are_let_through_dropped_and_counted() -> None:
    """R-1: another attempt, cycle, life, or nothing open at all."""
    averager = StarAverager(SCHEMA)
    block, data = next(cut(averager, 0))
    stale = [block]
    stale += [attrs.evolve(block, attempt=1), attrs.evolve(block, incarnation=2), attrs.evolve(block, key=STATE)]
    for index, frame in enumerate(stale):
        if index == 1:
            averager.open(opened([0], attempt=0))
        averager.place(frame)[:] = data
        assert averager.on_block(frame) == ()
    wrong = attrs.evolve(header(SCHEMA, 0, 5, RIDING.nbytes), cycle=2)
    assert averager.on_header(0, 1, 0, wrong) == ()
    assert averager.dropped[0] == 5
    assert averager.round is not None and averager.round.expected() == (0,)


def test_bytes_on_their_way_when_the_attempt_changes_never_reach_the_next_one() -> None:
    """R-1, R-10: the memory of a block in flight is not used again while it may still be written."""
    ships = {0: Ship(5, random_flat(0))}
    averager = StarAverager(SCHEMA)
    averager.open(opened(ships))
    first = Cohort(SCHEMA, averager, ships)
    assert first.act(0) and first.act(1)
    block, _ = next(cut(averager, 0))
    late = averager.place(block)
    averager.open(opened(ships, attempt=1))
    second = Cohort(SCHEMA, averager, ships, attempt=1)
    second.act(0)
    second.act(1)
    again, data = next(averager.riding.cut(memoryview(random_flat(0)), KEY, 1, 0, 1))
    averager.place(again)[:] = data
    late[:] = b"\xff" * len(late)
    assert averager.on_block(block) == () and averager.dropped[0] == 1


def test_a_second_contribution_is_refused_and_the_first_stands() -> None:
    """R-1."""
    averager = StarAverager(SCHEMA)
    averager.open(opened([0, 1]))
    Cohort(SCHEMA, averager, {0: Ship(5, random_flat(0))}).finish()
    assert averager.on_header(0, 1, 0, header(SCHEMA, 0, 6, RIDING.nbytes)) == ()
    assert averager.refusals == {(0, Refusal.DUPLICATE): 1}
    reduced = Cohort(SCHEMA, averager, {1: Ship(0)}).reduce()
    assert isinstance(reduced, RoundReduced) and (reduced.accepted, reduced.refused) == ((0, 1), ())


def test_abort_and_close_are_keyed_and_end_the_round() -> None:
    """R-1, R-2."""
    averager = StarAverager(SCHEMA)
    averager.open(opened([0]))
    averager.abort(AbortRound(STATE))
    averager.close(CloseRound(STATE))
    assert averager.round is not None and averager.round.expected() == (0,)
    averager.abort(AbortRound(KEY))
    Cohort(SCHEMA, averager, {0: Ship(5, random_flat(0))}).finish()
    assert not averager.collected
    with pytest.raises(LocalProtocolError, match="collected"):
        averager.reduce()
    averager.close(CloseRound(KEY))
    assert averager.round is None


def test_receivers_are_those_of_the_attempt_that_is_being_scattered() -> None:
    """R-2."""
    averager = StarAverager(SCHEMA)
    averager.open(opened([0, 1], observers=[2]))
    assert averager.receivers(KEY, 0) == ()
    Cohort(SCHEMA, averager, {0: Ship(5, random_flat(0)), 1: Ship(0)}).reduce()
    assert (averager.receivers(KEY, 0), averager.receivers(KEY, 1), averager.receivers(STATE, 0)) == ((0, 1, 2), (), ())
    averager.remove(RemoveFromRound(KEY, 1))
    assert averager.receivers(KEY, 0) == (0, 2)
    averager.on_scattered(0)
    averager.on_scattered(2)
    assert averager.receivers(KEY, 0) == ()


def test_a_consensus_is_kept_only_when_a_new_one_was_written_and_read_only_when_there_is_one() -> None:
    """R-10."""
    buffer = layout_module.DoubleBuffer(4)
    with pytest.raises(LocalProtocolError, match="no consensus yet"), buffer.reading():
        pass
    buffer.spare()
    buffer.keep()
    with pytest.raises(LocalProtocolError, match="no new consensus"):
        buffer.keep()


def test_the_last_consensus_is_not_written_while_it_is_read() -> None:
    """R-10, K-7: a writer to disk never delays a reduce, and never sees another version."""
    averager, _ = average(SCHEMA, {0: Ship(5, random_flat(0))})
    first = bytes(averager.consensus or b"")
    with averager.reading() as held:
        for cycle in (4, 5, 6):
            key = attrs.evolve(KEY, cycle=cycle)
            averager.open(opened([0], key=key))
            Cohort(SCHEMA, averager, {0: Ship(5, random_flat(cycle))}, key=key).reduce()
        assert bytes(held) == first != bytes(averager.consensus or b"")


@pytest.mark.parametrize("scattered", [False, True])
def test_a_consensus_whose_cycle_never_finished_is_none(scattered: bool) -> None:
    """K-10, I52: given up or tried again after the reduce, the one before it is the last consensus again; only
    `close` makes a new one final. Else a save would hold steps whose picks count as uncovered."""
    averager, _ = average(SCHEMA, {0: Ship(5, random_flat(0))})
    averager.close(CloseRound(KEY))
    first = bytes(averager.consensus or b"")
    for cycle, end in ((4, averager.abort), (5, None), (6, averager.close)):
        key = attrs.evolve(KEY, cycle=cycle)
        averager.open(opened([0], key=key))
        Cohort(SCHEMA, averager, {0: Ship(5, random_flat(cycle))}, key=key).reduce()
        assert received(averager, 0) != first
        if scattered:
            averager.on_scattered(0)
        if end == averager.abort:
            averager.abort(AbortRound(key))
            assert bytes(averager.consensus or b"") == first
        elif end is None:
            averager.open(opened([0], key=key, attempt=1))
            assert bytes(averager.consensus or b"") == first
            averager.abort(AbortRound(key))
        else:
            averager.close(CloseRound(key))
            assert bytes(averager.consensus or b"") != first


# --- state -------------------------------------------------------------------------------------


def state_bytes() -> bytes:
    rest = FlatLayout.whole(SCHEMA).nbytes - RIDING.nbytes
    return random_flat(9) + np.full(2, -np.inf, "<f4").tobytes() + bytes(range(rest - 8))


def test_a_state_transfer_hands_the_sources_bytes_to_the_observers() -> None:
    """M-6, R-20: every entry, bit for bit; the source stages its own; version 0 is the first last consensus."""
    averager = StarAverager(SCHEMA)
    averager.open(opened([0], observers=[1, 2], key=STATE, limit=0))
    reduced = Cohort(SCHEMA, averager, {0: Ship(0, state_bytes())}, key=STATE).reduce()
    assert reduced == RoundReduced(STATE, 0, (0,), (), True, hashlib.sha256(state_bytes()).digest()[:16])
    assert received(averager, 1) == received(averager, 2) == state_bytes()
    assert averager.scatter(0) == (RoundResult(outcome=Outcome.MERGED, total_steps=0, bytes=0), [])
    averager.close(CloseRound(STATE))
    assert bytes(averager.consensus or b"") == random_flat(9)


def test_the_loss_of_the_source_aborts_and_the_next_source_starts_afresh() -> None:
    """M-6."""
    averager = StarAverager(SCHEMA)
    averager.open(opened([0], observers=[1], key=STATE, limit=0))
    cohort = Cohort(SCHEMA, averager, {0: Ship(0, state_bytes())}, key=STATE)
    assert cohort.act(0) and cohort.act(1) and cohort.act(0)
    averager.remove(RemoveFromRound(STATE, 0))
    aborted = averager.reduce()
    assert isinstance(aborted, RoundAborted) and averager.consensus is None
    averager.open(opened([1], key=STATE, attempt=1, limit=0))
    second = Cohort(SCHEMA, averager, {1: Ship(0, state_bytes())}, key=STATE, attempt=1)
    assert isinstance(second.reduce(), RoundReduced)


def test_the_digest_can_be_off() -> None:
    """C-18."""
    averager = StarAverager(SCHEMA, digest=False)
    averager.open(opened([0]))
    reduced = Cohort(SCHEMA, averager, {0: Ship(5, random_flat(0))}).reduce()
    assert isinstance(reduced, RoundReduced) and reduced.realized and reduced.digest is None
