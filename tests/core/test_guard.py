"""Convergence guards: B-30 to B-34 and invariant I64."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import guard
from paceline.core.cadence import NudgeDown, Stable, SuppressGrowth
from paceline.core.config import Config
from paceline.core.guard import (
    GrowthGuard,
    GuardInput,
    LevelGuard,
    NoGuard,
    chosen,
    cosine,
    default_threshold,
    telemetry,
)


def cycle(*divergences, k_max=10, k_used=None, **norms):
    return GuardInput(
        divergences=dict(enumerate(divergences)),
        k_used=k_max * len(divergences) if k_used is None else k_used,
        k_max=k_max,
        **norms,
    )


def verdicts(watcher, signals, k_max=10):
    return [watcher.observe(cycle(signal, k_max=k_max)) for signal in signals]


ABSURD = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e308, 5e-324])
SIGNALS = st.floats(0, 10) | st.floats() | ABSURD
CYCLES = st.lists(st.tuples(st.lists(SIGNALS, max_size=3), st.integers(-1, 500)), max_size=25)


def test_constants():
    """B-31, B-33, B-34."""
    assert (guard.LEVEL_WINDOW, guard.LEVEL_RISE, guard.LEVEL_THRESHOLD) == (5, 3, 0.01)
    assert (guard.DIVERGENCE_FLOOR, guard.SOFT_GROWTH, guard.HARD_GROWTH, guard.GROWTH_EVENTS) == (1e-8, 1e-3, 1e-2, 3)
    assert (guard.GROWTH_KEEP, guard.GROWTH_NEW, guard.GROWTH_NUDGE, guard.NORM_FLOOR) == (0.9, 0.1, 0.5, 1e-10)


def test_the_signal_is_the_largest_divergence():
    """B-30: missing ones read as 0, and so does what is no finite positive number."""
    assert cycle(0.1, 0.3, 0.2).signal == 0.3
    assert cycle(0.1, math.nan, math.inf, -7.0).signal == 0.1
    assert (cycle().signal, cycle(math.nan).signal) == (0.0, 0.0)


# --- B-33 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signals", "last"),
    [
        ([0.1, 0.2], Stable()),
        ([0.1, 0.2, 0.3], SuppressGrowth()),
        ([0.1, 0.2, 0.2], Stable()),
        ([0.2, 0.2, 0.3], Stable()),
        ([0.3, 0.2, 0.4], Stable()),
        ([0.01, 0.02, 0.05], Stable()),  # at the threshold is not above it
        ([0.01, 0.02, 0.051], SuppressGrowth()),
        ([9.0, 8.0, 0.01, 0.02, 0.06], SuppressGrowth()),  # only the last three must rise
    ],
)
def test_level_guard(signals, last):
    """B-33: at least three cycles, the last three strictly rising, and above the threshold."""
    assert verdicts(LevelGuard(0.05), signals)[-1] == last


def test_level_guard_keeps_five():
    """B-33."""
    watcher = LevelGuard()
    verdicts(watcher, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])

    assert watcher.recent == [0.2, 0.3, 0.4, 0.5, 0.6]


def test_thresholds_by_adoption():
    """B-33: overwriting 0.05, blending 0.3, the constructor 0.01."""
    assert (default_threshold(blends=False), default_threshold(blends=True)) == (0.05, 0.3)
    assert LevelGuard().threshold == 0.01


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ({}, LevelGuard(0.05)), ({"policy": "sync"}, LevelGuard(0.05)), ({"policy": "async"}, LevelGuard(0.3)),
        ({"policy": "async", "easgd_alpha": 0.9}, LevelGuard(0.3)),
        ({"policy": "async", "easgd_alpha": 1.0}, LevelGuard(0.05)),  # that is overwriting
        ({"policy": "async", "guard_threshold": 0.2}, LevelGuard(0.2)),
        ({"guard": "growth"}, GrowthGuard()), ({"guard": "none"}, NoGuard()),
    ],
)  # fmt: skip
def test_the_guard_that_a_config_names(knobs, expected):
    """B-33, B-34: by name, with the threshold that suits how a consensus is adopted."""
    made = chosen(Config(**knobs))

    assert type(made) is type(expected) and made.saved() == expected.saved()
    assert getattr(made, "threshold", None) == getattr(expected, "threshold", None)


@given(cycles=CYCLES, threshold=st.floats(0, 1))
def test_i64_level_guard_never_nudges(cycles, threshold):
    """I64: nor does anything raise."""
    watcher = LevelGuard(threshold)
    for signals, k_max in cycles:
        assert watcher.observe(cycle(*signals, k_max=k_max)) in (Stable(), SuppressGrowth())


def test_no_guard_is_always_stable_and_silent():
    """B-33."""
    watcher = NoGuard()

    assert verdicts(watcher, [0.1, 1.0, 10.0, 100.0]) == [Stable()] * 4
    assert (watcher.reports_telemetry, LevelGuard().reports_telemetry, GrowthGuard().reports_telemetry) == (
        False,
        True,
        True,
    )
    assert watcher.restore(watcher.saved())


# --- B-34 --------------------------------------------------------------------------------------------------------


def growing(rate, events, k_max=10, start=0.01):
    """Signals whose logarithm rises by `rate` per step."""
    return [start * math.exp(rate * k_max * event) for event in range(events)]


def test_soft_growth_suppresses_at_the_third_rate():
    """B-34: the first cycle has no rate; the one that fires starts its row again."""
    seen = verdicts(GrowthGuard(), growing(0.005, 10))
    calm, soft = Stable(), SuppressGrowth()

    assert seen == [calm, calm, calm, soft, calm, calm, soft, calm, calm, soft]


def test_hard_growth_nudges_and_beats_soft():
    """B-34: both rows are full at the fourth cycle; the nudge resets its own row only, so the soft one speaks next."""
    seen = verdicts(GrowthGuard(), growing(0.05, 8))
    nudge, soft = NudgeDown(0.5), SuppressGrowth()

    assert seen == [Stable(), Stable(), Stable(), nudge, soft, Stable(), nudge, soft]


def test_a_rate_is_per_step_of_one_rank():
    """B-34: the same rise over ten times the steps is a tenth of the rate."""
    signals = growing(0.05, 8)

    assert NudgeDown(0.5) not in verdicts(GrowthGuard(), signals, k_max=100)
    assert SuppressGrowth() in verdicts(GrowthGuard(), signals, k_max=100)


def test_the_average_is_free_of_its_start():
    """B-34: a constant rate is estimated exactly from the first sample on."""
    watcher = GrowthGuard()
    for event, signal in enumerate(growing(0.02, 6)):
        estimate = watcher._smoothed_rate(cycle(signal))
        assert estimate == (-math.inf if event == 0 else pytest.approx(0.02))


def test_a_signal_at_the_floor_forgets_the_previous_one_and_keeps_the_average():
    """B-34: two cycles without a rate follow, and both rows start again."""
    watcher = GrowthGuard()
    verdicts(watcher, growing(0.05, 3))
    average, rates = watcher.average, watcher.rates
    seen = verdicts(watcher, [1e-8, 1.0])

    assert seen == [Stable(), Stable()]
    assert (watcher.average, watcher.rates, watcher.previous) == (average, rates, 1.0)
    assert (watcher.soft_streak, watcher.hard_streak) == (0, 0)


def test_a_cycle_without_steps_has_no_rate():
    """B-34: k_max must be above 0."""
    watcher = GrowthGuard()
    verdicts(watcher, [0.1, 0.2, 0.4], k_max=0)

    assert watcher.rates == 0


def test_a_rate_at_its_threshold_does_not_count():
    """B-34: the smoothed rate must exceed it; a constant divergence has the rate 0."""
    assert verdicts(GrowthGuard(soft=0.0, hard=0.0), [0.5] * 9) == [Stable()] * 9


def test_an_infinite_threshold_disables_the_nudge():
    """B-34."""
    seen = verdicts(GrowthGuard(hard=math.inf), growing(5.0, 12))

    assert NudgeDown(0.5) not in seen
    assert SuppressGrowth() in seen


@given(
    cycles=st.lists(st.tuples(st.lists(st.floats(0, 5), min_size=1, max_size=3), st.integers(0, 200)), max_size=20),
    copies=st.integers(2, 5),
)
def test_i64_growth_guard_does_not_depend_on_the_world_size(cycles, copies):
    """I64: the same per-rank steps on more ranks, the same verdicts."""
    few, many = GrowthGuard(), GrowthGuard()
    for signals, k_max in cycles:
        assert few.observe(cycle(*signals, k_max=k_max)) == many.observe(cycle(*signals * copies, k_max=k_max))


@given(cycles=CYCLES)
def test_growth_guard_is_never_poisoned(cycles):
    """B-30, B-34: whatever was observed, the average is a number and a calm cohort is found Stable again."""
    watcher = GrowthGuard()
    for signals, k_max in cycles:
        watcher.observe(cycle(*signals, k_max=k_max))
        assert math.isfinite(watcher.average)
    calm = verdicts(watcher, [0.1 * 0.5**event for event in range(20)] * 40, k_max=1)

    assert calm[-1] == Stable()


# --- B-31 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pre", "post", "divergence", "expected"),
    [
        (1.0, 1.0, 0.0, 1.0),
        (1.0, 1.0, math.sqrt(2), 0.0),
        (1.0, 1.0, 2.0, -1.0),
        (1.0, 1.0, 9.0, -1.0),
        (3.0, 4.0, 0.25, 1.0),
        (3.0, 4.0, 1.25, 0.0),
        (3.0, 4.0, 0.75, 2 / 3),
        (1e-10, 1e-10, 0.0, 1.0),
        (1.0, 9e-11, 0.1, None),
        (9e-11, 1.0, 0.1, 0.0),
        (9e-11, 9e-11, 0.1, None),
    ],
)
def test_cosine(pre, post, divergence, expected):
    """B-31: the law of cosines; no direction without length."""
    assert cosine(pre, post, divergence) == (None if expected is None else pytest.approx(expected, abs=1e-12))


@given(pre=SIGNALS, post=SIGNALS, divergence=SIGNALS)
def test_a_cosine_is_one_or_none(pre, post, divergence):
    """B-31: absurd norms give no number outside -1 and 1."""
    result = cosine(pre, post, divergence)

    assert result is None or -1 <= result <= 1


def test_telemetry():
    """B-31: cosines and magnitude shifts per rank; none without norms."""
    seen = telemetry(cycle(0.25, 1.25, pre_norms={1: 3.0, 0: 3.0}, post_norm=4.0))
    bare = telemetry(cycle(0.25, 1.25, pre_norms={0: 3.0}))

    assert (seen.divergence, list(seen.cosines)) == (1.25, [0, 1])
    assert list(seen.cosines.values()) == pytest.approx([1.0, 0.0])
    assert seen.shifts == {0: -1.0, 1: -1.0}
    assert (bare.divergence, bare.cosines, bare.shifts) == (1.25, {}, {})


# --- B-16 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [LevelGuard, GrowthGuard, NoGuard])
@given(before=st.lists(st.floats(0, 5), max_size=12), after=st.lists(st.floats(0, 5), max_size=12))
def test_a_restored_guard_goes_on_as_if_nothing_had_happened(make, before, after):
    """B-16: guard history is saved, through JSON."""
    watcher, copy = make(), make()
    verdicts(watcher, before)

    assert copy.restore(json.loads(json.dumps(watcher.saved())))
    assert verdicts(copy, after) == verdicts(watcher, after)
    assert copy.saved() == watcher.saved()


@pytest.mark.parametrize("make", [LevelGuard, GrowthGuard, NoGuard])
@pytest.mark.parametrize(
    "record",
    [
        {},
        {"guard": "another"},
        {"guard": "level", "recent": None},
        {"guard": "level", "recent": [math.nan]},
        {"guard": "level", "recent": [math.inf]},
        {"guard": "level", "recent": ["0.1"]},
        {"guard": "growth", "previous": 1e-8, "average": 0.0, "rates": 0, "soft_streak": 0, "hard_streak": 0},
        {"guard": "growth", "previous": -1.0, "average": 0.0, "rates": 0, "soft_streak": 0, "hard_streak": 0},
        {"guard": "growth", "previous": None, "average": math.inf, "rates": 0, "soft_streak": 0, "hard_streak": 0},
        {"guard": "growth", "previous": None, "average": 0.0, "rates": -1, "soft_streak": 0, "hard_streak": 0},
        {"guard": "growth", "previous": None, "average": 0.0, "rates": 0, "soft_streak": 0},
    ],
)
def test_a_history_that_does_not_fit_is_not_taken_over(make, record):
    """B-16: the guard starts afresh."""
    watcher = make()
    verdicts(watcher, [0.1, 0.2])
    before = watcher.saved()

    assert not watcher.restore(record)
    assert watcher.saved() == before
