"""The round machine of protocol section 6: R-1, R-2, R-4, R-5, R-6, R-9, R-11; invariant I55."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.core.effects import OpenRound
from paceline.core.errors import LocalProtocolError
from paceline.core.messages import Contribution, Outcome, Refusal, RoundKey, RoundKind
from paceline.core.round import Round, RoundPhase, Verdict, float32, mass

KEY = RoundKey(generation=1, cycle=4, kind=RoundKind.PARAMS)
HASH = b"h" * 32
BLOCKS, NBYTES = 3, 300


def start(*ranks: int, observers: tuple[int, ...] = (), barred: dict[int, int] | None = None) -> Round:
    order = OpenRound(KEY, 0, tuple((r, 1, 50) for r in ranks), tuple((r, 1) for r in observers))
    return Round.open(order, HASH, BLOCKS, NBYTES, barred)


def head(rank: int, steps: int, **claims: object) -> Contribution:
    made = Contribution(
        rank=rank, incarnation=1, cycle=4, attempt=0, schema_hash=HASH, steps=steps, finite=True,
        bytes=NBYTES if steps else 0,
    )  # fmt: skip
    return attrs.evolve(made, **claims)


def ship(round_: Round, rank: int, steps: int, blocks: int = BLOCKS) -> None:
    round_.header(rank, 1, 0, head(rank, steps))
    round_.admit(rank, steps)
    for number in range(blocks if steps else 0):
        assert round_.block(rank, 1, 0, number) == Verdict.ACCEPTED


@given(st.integers(0, 2**64 - 1), st.floats(-2, 2))
@example(2**64 - 1, 2.0)
@example(2**64 - 1, -2.0)
@example(0, -2.0)
def test_mass_is_zero_for_no_step_and_finite_and_positive_else(steps: int, gamma: float) -> None:
    """I55, R-5."""
    weight = mass(steps, gamma)
    assert weight == 0.0 if steps == 0 else 0.0 < weight < math.inf


@pytest.mark.parametrize(("gamma", "expected"), [(1.0, 7.0), (0.0, 1.0), (-1.0, float32(1 / 7)), (2.0, 49.0)])
def test_mass_is_the_power_of_the_step_count_rounded_once(gamma: float, expected: float) -> None:
    """R-5, R-6."""
    assert mass(7, gamma) == expected


def test_float32_rounds_to_nearest_and_overflows_to_infinity() -> None:
    """R-6: the conversion is the hardware's."""
    assert (float32(1 + 2**-25), float32(1e39), float32(-1e39)) == (1.0, math.inf, -math.inf)


def test_collecting_ends_when_every_member_contributed_was_refused_or_was_removed() -> None:
    """R-2."""
    current = start(0, 1, 2, 3)
    ship(current, 0, 5)
    current.header(1, 1, 0, head(1, 51))
    current.remove(2)
    assert (current.phase, current.expected()) == (RoundPhase.COLLECTING, (3,))
    ship(current, 3, 0)
    assert current.phase == RoundPhase.REDUCING
    assert (current.accepted(), current.refused()) == ((0, 3), ((1, Refusal.STEPS),))


def test_done_when_every_remaining_receiver_has_staged() -> None:
    """R-2: a removal ends that wait too."""
    current = start(0, 1, observers=(2, 3))
    ship(current, 0, 5)
    ship(current, 1, 5)
    list(current.additions())
    current.reduced(True)
    for event in (lambda: current.staged(0), lambda: current.remove(1), lambda: current.staged(2)):
        event()
        assert current.phase == RoundPhase.SCATTERING
    current.remove(3)
    assert current.phase == RoundPhase.DONE
    assert current.abort("too late") == Verdict.DROPPED


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"schema_hash": b"x" * 32}, Refusal.SCHEMA),
        ({"steps": 51}, Refusal.STEPS),
        ({"steps": -1}, Refusal.STEPS),
        ({"finite": False}, Refusal.NONFINITE),
        ({"bytes": NBYTES - 1}, Refusal.SHAPE),
        ({"bytes": 0}, Refusal.SHAPE),
        ({"steps": 0}, Refusal.SHAPE),
    ],
)
def test_a_header_is_refused_for_each_fault(claims: dict[str, object], why: Refusal) -> None:
    """F77, R-4; R-9: with 0 steps there are 0 bytes."""
    current = start(0, 1)
    assert current.header(0, 1, 0, attrs.evolve(head(0, 50), **claims)) == Verdict.REFUSED
    assert current.refused() == ((0, why),)
    assert current.expected_block(0, 1, 0)[0] == Verdict.DROPPED


def test_the_limit_itself_is_accepted() -> None:
    """R-4: 0 <= steps <= limit."""
    assert start(0).header(0, 1, 0, head(0, 50)) == Verdict.ACCEPTED


@pytest.mark.parametrize("header_first", [True, False])
def test_header_and_admission_must_name_the_same_steps(header_first: bool) -> None:
    """R-11, in both orders."""
    current = start(0, 1)
    events = [lambda: current.header(0, 1, 0, head(0, 5)), lambda: current.admit(0, 6)]
    first, second = events if header_first else reversed(events)
    assert (first(), second()) == (Verdict.ACCEPTED, Verdict.REFUSED)
    assert current.refused() == ((0, Refusal.STEPS),)


def test_nothing_enters_the_sum_before_the_admission() -> None:
    """R-11: else picks could be merged and trained again."""
    current = start(0)
    current.header(0, 1, 0, head(0, 5))
    for number in range(BLOCKS):
        current.block(0, 1, 0, number)
    assert (list(current.additions()), current.phase) == ([], RoundPhase.COLLECTING)
    current.admit(0, 5)
    assert (list(current.additions()), current.phase) == ([(0, 0), (0, 1), (0, 2)], RoundPhase.REDUCING)


def test_block_k_of_a_rank_waits_for_block_k_of_all_lower_ranks_that_may_count() -> None:
    """R-6, R-11."""
    current = start(0, 1, 2, 3)
    ship(current, 2, 5)
    ship(current, 3, 5, blocks=1)
    ship(current, 1, 5, blocks=2)
    assert list(current.additions()) == []
    current.remove(0)
    assert list(current.additions()) == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    current.block(1, 1, 0, 2)
    assert list(current.additions()) == [(1, 2), (2, 2)]


def test_an_idle_rank_joins_with_a_header_and_holds_nobody_back() -> None:
    """R-9: 0 steps, no bytes, and it is accepted."""
    current = start(0, 1)
    ship(current, 0, 0)
    ship(current, 1, 9)
    assert list(current.additions()) == [(1, 0), (1, 1), (1, 2)]
    current.reduced(True)
    assert (current.accepted(), current.movers(), current.divisor(1.0), current.total_steps()) == ((0, 1), 1, 9.0, 9)


def test_the_divisor_holds_exactly_the_accepted_masses() -> None:
    """R-6: neither the world size nor the count of steps in some ledger."""
    current = start(0, 1, 2)
    ship(current, 0, 4)
    ship(current, 1, 5)
    current.header(2, 1, 0, head(2, 50, finite=False))
    list(current.additions())
    assert (current.divisor(-1.0), current.divisor(0.0), current.movers()) == (0.25 + float32(0.2), 2.0, 2)


def test_a_second_header_behind_a_complete_contribution_is_refused_alone() -> None:
    """R-1: a deposit never overwrites an unread one."""
    current = start(0, 1)
    ship(current, 0, 5)
    assert current.header(0, 1, 0, head(0, 7)) == Verdict.REFUSED
    assert (current.accepted(), current.steps(0), current.refused()) == ((0,), 5, ())
    assert current.expected_block(0, 1, 0)[0] == Verdict.VIOLATION


def test_a_second_header_in_mid_contribution_refuses_the_rank() -> None:
    """R-1: a lane is ordered, so the rest of the first one cannot come."""
    current = start(0, 1)
    ship(current, 0, 5, blocks=1)
    assert current.header(0, 1, 0, head(0, 5)) == Verdict.REFUSED
    assert current.refused() == ((0, Refusal.DUPLICATE),)


@pytest.mark.parametrize("event", ["remove", "nonfinite", "duplicate"])
def test_dropping_out_with_blocks_in_the_sum_ends_the_attempt(event: str) -> None:
    """R-4: accepted whole or not at all, and a sum cannot be undone."""
    current = start(0, 1)
    ship(current, 0, 5, blocks=1)
    list(current.additions())
    verdict = {
        "remove": lambda: current.remove(0),
        "nonfinite": lambda: current.nonfinite(0),
        "duplicate": lambda: current.header(0, 1, 0, head(0, 5)),
    }[event]()
    assert (verdict, current.phase) == (Verdict.ABORTED, RoundPhase.ABORTED)
    assert "rank 0" in current.cause
    assert "1 of 3 blocks" in current.cause


def test_removal_keeps_what_is_complete_and_admitted_and_drops_the_rest() -> None:
    """R-2, C-15.1."""
    current = start(0, 1, 2)
    ship(current, 0, 5)
    current.header(1, 1, 0, head(1, 5))
    for number in range(BLOCKS):
        current.block(1, 1, 0, number)
    assert (current.remove(0), current.remove(1)) == (Verdict.ACCEPTED, Verdict.ACCEPTED)
    ship(current, 2, 7)
    assert len(list(current.additions())) == 2 * BLOCKS
    current.reduced(True)
    assert (current.accepted(), current.total_steps(), current.receivers()) == ((0, 2), 12, (2,))


def test_frames_of_another_life_attempt_or_stranger_are_dropped() -> None:
    """R-1: the key, never the position, says where a frame belongs."""
    current = start(0, observers=(5,))
    verdicts = [
        current.header(0, 2, 0, head(0, 5)),
        current.header(0, 1, 1, head(0, 5)),
        current.header(9, 1, 0, head(9, 5)),
        current.header(5, 1, 0, head(5, 5)),
        current.block(0, 2, 0, 0),
        current.admit(9, 5),
    ]
    assert verdicts == [Verdict.DROPPED] * len(verdicts)
    assert (current.expected(), current.phase) == ((0,), RoundPhase.COLLECTING)


def test_blocks_come_in_order_after_their_header_and_end() -> None:
    """N-26: together they tile the layout exactly once."""
    current = start(0, 1)
    assert current.block(0, 1, 0, 0) == Verdict.VIOLATION
    current.header(0, 1, 0, head(0, 5))
    assert current.block(0, 1, 0, 1) == Verdict.VIOLATION
    ship(current, 1, 5)
    assert current.block(1, 1, 0, BLOCKS) == Verdict.VIOLATION


def test_a_second_admission_changes_nothing() -> None:
    """C-7: it counts once per attempt."""
    current = start(0, 1)
    current.admit(0, 5)
    assert current.admit(0, 6) == Verdict.DROPPED
    assert current.members[0].admitted == 5


def test_who_was_refused_for_non_finite_values_stays_refused_in_its_incarnation() -> None:
    """R-4: the retained copy is the same; another life has another copy."""
    assert start(0, 1, barred={0: 1}).refused() == ((0, Refusal.NONFINITE),)
    assert start(0, 1, barred={0: 2}).expected() == (0, 1)
    assert start(0, barred={0: 1}).phase == RoundPhase.REDUCING


def test_outcomes_say_what_became_of_each_receiver() -> None:
    """R-8, C-17."""
    current = start(0, 1, observers=(2,))
    ship(current, 0, 0)
    current.header(1, 1, 0, head(1, 5, finite=False))
    current.reduced(False)
    assert [current.outcome(rank) for rank in current.receivers()] == [
        Outcome.UNREALIZED, Outcome.REFUSED, Outcome.OBSERVER,
    ]  # fmt: skip


def test_an_overflowing_consensus_refuses_all_that_carried_values() -> None:
    """R-6."""
    current = start(0, 1, 2)
    ship(current, 0, 5)
    ship(current, 1, 0)
    ship(current, 2, 5)
    list(current.additions())
    assert current.overflowed() == (0, 2)
    current.reduced(False)
    assert (current.accepted(), current.movers(), current.total_steps()) == ((1,), 0, 0)


def test_misuse_raises_and_names_the_round() -> None:
    """Architecture 7: a local mistake is an error, not an event."""
    with pytest.raises(LocalProtocolError, match="twice"):
        start(0, 0)
    with pytest.raises(LocalProtocolError, match="twice"):
        start(0, observers=(0,))
    with pytest.raises(LocalProtocolError, match="COLLECTING"):
        start(0).reduced(True)
    with pytest.raises(LocalProtocolError, match="one source"):
        order = OpenRound(attrs.evolve(KEY, kind=RoundKind.STATE), 0, ((0, 1, 0), (1, 1, 0)), ())
        Round.open(order, HASH, BLOCKS, NBYTES)


@st.composite
def plays(draw: st.DrawFn) -> tuple[dict[int, int], list[int]]:
    steps = draw(st.dictionaries(st.integers(0, 4), st.integers(0, 3), min_size=1, max_size=4))
    return steps, draw(st.lists(st.integers(0, 7), max_size=40))


@given(plays())
def test_the_order_of_addition_does_not_depend_on_the_order_of_arrival(play: tuple[dict[int, int], list[int]]) -> None:
    """R-6, I60: per block the ranks are added ascending, whatever comes first."""
    steps, order = play
    current = start(*steps)
    lanes = []
    for rank, count in steps.items():
        bulk = [lambda r=rank, c=count: current.header(r, 1, 0, head(r, c))]
        bulk += [lambda r=rank, k=k: current.block(r, 1, 0, k) for k in range(BLOCKS if count else 0)]
        lanes += [bulk, [lambda r=rank, c=count: current.admit(r, c)]]
    added: list[tuple[int, int]] = []
    for pick in order + [lane for lane in range(len(lanes)) for _ in range(BLOCKS + 1)]:
        lane = lanes[pick % len(lanes)]
        if lane:
            assert lane.pop(0)() == Verdict.ACCEPTED
            added += current.additions()
    movers = sorted(rank for rank, count in steps.items() if count)
    assert current.phase == RoundPhase.REDUCING
    for number in range(BLOCKS):
        assert [rank for rank, block in added if block == number] == movers
