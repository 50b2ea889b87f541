"""The cadence balancer: growth, verdicts, slack, outputs, membership (B-10 to B-17) and the overshoot of G-9."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from paceline.core.cadence import Balancer, CadencePhase, NudgeDown, Stable, SuppressGrowth
from paceline.core.cadence_inputs import callback_cost_ms

from support.cadence_reports import feed, staged, window

# --- B-10, B-11 --------------------------------------------------------------------------------------------------


def test_proposal_vector() -> None:
    """B-10: anchor 10, marginal 100, fill 20, reduce 180, target 0.05: overhead 1/6, new anchor 20."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0}, times=5)
    feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=180.0, fill_ms={0: 20.0, 1: 9e9})

    assert (balancer.anchor, balancer.proposal) == (10, 20)
    balancer.apply(Stable())
    assert (balancer.anchor, balancer.proposal, balancer.counts) == (20, None, {0: 20, 1: 40})


def test_a_small_excess_grows_by_no_more_than_it_needs() -> None:
    """B-10: fixed 70 in 1070: overhead 0.0654, times 10 over 0.05 gives 14, rounded up."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0}, times=5)
    feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=50.0, fill_ms={0: 20.0})

    assert balancer.proposal == 14


def test_no_proposal_at_the_target_itself() -> None:
    """B-10: the overhead must exceed the target."""
    balancer = Balancer(ranks=(0, 1), anchor=1, overhead_target=0.5)
    feed(balancer, {0: 100.0, 1: 50.0}, times=6, reduce_ms=100.0)

    assert balancer.proposal is None


def test_growth_before_stable_needs_twice_the_target() -> None:
    """B-10: never with the first report; in Warmup above 2 x target only."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0}, reduce_ms=1e6)
    assert balancer.proposal is None
    feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=100.0)
    assert balancer.proposal is None
    feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=120.0)

    assert (balancer.phase, balancer.proposal) == (CadencePhase.WARMUP, 20)


def test_twice_the_target_itself_is_not_above_it() -> None:
    """B-10: anchor 9 at 100 ms and a reduce of 100 ms are an overhead of exactly 0.1."""
    balancer = feed(Balancer(ranks=(0, 1), anchor=9), {0: 100.0, 1: 50.0}, times=2, reduce_ms=100.0)

    assert balancer.proposal is None


def test_no_proposal_under_sync_nor_with_a_binding_cap_nor_at_the_maximum() -> None:
    """B-10."""
    assert staged().proposal == 20
    assert staged(growth_applies=False).proposal is None
    assert staged(cap=12).proposal is None
    assert staged(max_anchor=10).proposal is None
    assert staged(max_anchor=13).proposal == 13


def test_growth_returns_to_the_lower_bound_at_once() -> None:
    """B-10: the proposal is clamped to min_anchor, which a nudge may have left."""
    balancer = staged()
    balancer.apply(NudgeDown(0.1))
    for _ in range(5):
        balancer.apply(Stable())
    feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=1e6)

    assert (balancer.anchor, balancer.proposal) == (1, 10)


@pytest.mark.parametrize("absurd", [math.inf, -math.inf, math.nan, -1e300, 0.0])
def test_an_absurd_reduce_or_fill_time_does_not_grow_the_window(absurd: float) -> None:
    """B-10: what cannot be a measurement is no cost."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0}, times=6)
    feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=absurd, fill_ms={0: absurd})

    assert balancer.proposal is None


@pytest.mark.parametrize("verdict", [SuppressGrowth(), NudgeDown(1.0)])
def test_growth_is_latched_off_until_five_stable_in_a_row(verdict: Any) -> None:
    """B-11."""
    balancer = staged()
    for _ in range(4):
        balancer.apply(Stable())
    balancer.apply(verdict)
    for _ in range(4):
        balancer.apply(Stable())
        assert not balancer.growth_enabled
        feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=1e6)
        assert balancer.proposal is None
    balancer.apply(Stable())

    assert balancer.growth_enabled


# --- B-12, B-13 --------------------------------------------------------------------------------------------------


def test_suppress_growth_drops_the_proposal_and_keeps_the_anchor() -> None:
    """B-12."""
    balancer = staged()
    balancer.apply(SuppressGrowth())
    balancer.apply(Stable())

    assert (balancer.anchor, balancer.proposal, balancer.stable_streak) == (10, None, 1)


@pytest.mark.parametrize(
    ("factor", "anchor"), [(0.5, 5), (0.55, 6), (0.0, 1), (-3.0, 1), (0.01, 1), (1.0, 10), (7.0, 10)]
)
def test_nudge_down(factor: float, anchor: int) -> None:
    """B-12: ceil of anchor times the factor, kept within 0.1 and 1; min_anchor does not hold it; counts follow."""
    balancer = staged()
    balancer.apply(NudgeDown(factor))

    assert (balancer.anchor, balancer.proposal) == (anchor, None)
    assert balancer.counts == {0: anchor, 1: 2 * anchor}


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
def test_a_nudge_without_a_number_still_stops_growth(factor: Any) -> None:
    """B-12: the factor is ignored, the rest of the verdict is not."""
    balancer = staged()
    balancer.apply(NudgeDown(factor))

    assert (balancer.anchor, balancer.counts) == (10, {0: 10, 1: 20})
    assert (balancer.proposal, balancer.growth_enabled, balancer.overshoot_suppressed) == (None, False, True)


def test_a_nudge_of_the_meta_controller_survives_the_guard_of_the_same_cycle() -> None:
    """Row 28 of section 17, B-12, I62: neither commit, relax nor suppression is undone; the next cycle is free."""
    balancer = staged(relax_allowed=True)
    balancer.apply(NudgeDown(0.5))
    balancer.apply(Stable(relax_up=True))
    assert (balancer.anchor, balancer.counts, balancer.overshoot_suppressed) == (5, {0: 5, 1: 10}, True)
    feed(balancer, {0: 100.0, 1: 50.0})
    balancer.apply(Stable(relax_up=True))

    assert (balancer.anchor, balancer.overshoot_suppressed) == (6, False)


def test_relax_is_an_option_and_stops_at_the_maximum() -> None:
    """B-13."""
    still = {"growth_applies": False}  # so that no growth is proposed beside it
    allowed, refused = staged(relax_allowed=True, **still), staged(**still)
    full = staged(relax_allowed=True, max_anchor=10, **still)
    for balancer in (allowed, refused, full):
        balancer.apply(Stable(relax_up=True))

    assert (allowed.anchor, refused.anchor, full.anchor) == (11, 10, 10)
    assert allowed.counts == {0: 11, 1: 22}


@pytest.mark.parametrize(("limit", "anchor"), [(10, 10), (11, 11), (None, 11)])
def test_relax_keeps_the_lead_limit(limit: int | None, anchor: int) -> None:
    """B-13: with a speed ratio of 2 an anchor of 11 leads by 11."""
    balancer = staged(relax_allowed=True, max_batch_diff=limit, growth_applies=False)
    balancer.apply(Stable(relax_up=True))

    assert balancer.anchor == anchor


def test_relax_looks_at_measured_voters_only() -> None:
    """B-13: a rank without a reading has no speed to compare."""
    balancer = staged(relax_allowed=True, max_batch_diff=11, growth_applies=False)
    balancer.admit(2)
    balancer.apply(Stable(relax_up=True))

    assert balancer.anchor == 11


def test_a_commit_and_a_relax_may_meet_in_one_verdict() -> None:
    """B-12: commit first, then one step more."""
    balancer = staged(relax_allowed=True)
    balancer.apply(Stable(relax_up=True))

    assert balancer.anchor == 21


# --- B-14 --------------------------------------------------------------------------------------------------------


def test_slack_takes_batches_from_the_firing_rank_once() -> None:
    """B-14, B-7: 120 ms at 50 ms a step free three of its twenty batches, and the next report gives them back."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0})
    balancer.stage_slack(1, 120.0)
    feed(balancer, {0: 100.0, 1: 50.0})
    assert balancer.counts == {0: 10, 1: 17}
    feed(balancer, {0: 100.0, 1: 50.0})

    assert balancer.counts == {0: 10, 1: 20}


def test_slack_leaves_one_batch_and_passes_the_dead_zone() -> None:
    """B-7: slack is obeyed however small or large it is."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 400.0, 1: 200.0})
    balancer.stage_slack(0, 1e12)
    balancer.stage_slack(1, 200.0)
    feed(balancer, {0: 400.0, 1: 200.0})

    assert balancer.counts == {0: 1, 1: 19}


def test_slack_below_its_floor_is_dropped() -> None:
    """B-14: below 100 ms, or below 5 % of a window, or before calibration."""
    early, short, long = (Balancer(ranks=(0, 1)) for _ in range(3))
    early.stage_slack(0, 1000.0)
    feed(early, {0: 100.0, 1: 50.0}, times=2)
    feed(short, {0: 100.0, 1: 50.0}).stage_slack(0, 99.9)
    feed(short, {0: 100.0, 1: 50.0})
    feed(long, {0: 400.0, 1: 50.0}).stage_slack(1, 199.9)
    feed(long, {0: 400.0, 1: 50.0})

    assert (early.counts, short.counts, long.counts) == ({0: 10, 1: 20}, {0: 10, 1: 20}, {0: 10, 1: 80})


def test_slack_waits_for_a_report_that_counts() -> None:
    """B-7: an empty window does not consume it."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0})
    balancer.stage_slack(0, 100.0)
    feed(balancer, {0: 0.0, 1: 0.0})
    feed(balancer, {0: 100.0, 1: 50.0})

    assert balancer.counts == {0: 9, 1: 20}


def test_the_cost_of_a_callback_is_a_moving_average() -> None:
    """B-1, B-14: the first as it is, then 0.3 new and 0.7 old; what is no measurement changes nothing."""
    assert callback_cost_ms(None, 100.0) == 100.0
    assert callback_cost_ms(100.0, 200.0) == pytest.approx(130.0)
    assert callback_cost_ms(100.0, 0.0) == pytest.approx(70.0)
    assert [callback_cost_ms(100.0, absurd) for absurd in (math.nan, math.inf, -1.0)] == [100.0] * 3
    assert callback_cost_ms(None, math.nan) == 0.0


# --- B-15, B-16, B-17 --------------------------------------------------------------------------------------------


def test_anchor_wall() -> None:
    """B-15: 0 before calibration, then anchor times the anchor rank's cost."""
    balancer = Balancer(ranks=(0, 1))
    assert balancer.anchor_wall_ms == 0.0

    assert feed(balancer, {0: 100.0, 1: 50.0}).anchor_wall_ms == 1000.0
    pinned = feed(Balancer(ranks=(0, 1), anchor_ratios={1: 1.0}), {0: 100.0, 1: 50.0})
    assert pinned.anchor_wall_ms == 500.0


def test_recent_share_is_the_mean_of_the_last_ten_windows() -> None:
    """B-15: before any window the current counts; only ten windows count; who left has no share."""
    balancer = Balancer(ranks=(0, 1), speed_ratios={0: 1.0, 1: 3.0})
    assert balancer.recent_share() == {0: 0.25, 1: 0.75}
    feed(balancer, {0: 100.0, 1: 10.0}, times=3)
    balancer._trust.put(1, [100.0] * 5)
    feed(balancer, {0: 100.0, 1: 100.0}, times=5)
    assert balancer.recent_share() == {0: 80 / (80 + 300 + 50), 1: 350 / 430}
    feed(balancer, {0: 100.0, 1: 100.0}, times=5)
    assert balancer.recent_share() == {0: 0.5, 1: 0.5}
    balancer.forget(1)
    assert balancer.recent_share() == {0: 1.0}
    balancer.forget(0)

    assert balancer.recent_share() == {}


def test_saved_and_restored() -> None:
    """B-16: through JSON; each window holds one reading, its mean, and counts are as they were."""
    balancer = feed(Balancer(ranks=(0, 1, 2)), {0: 100.0, 1: 40.0, 2: 6.0}, times=4)
    feed(balancer, {0: 110.0, 1: 42.0, 2: 7.0})
    fresh = Balancer(ranks=(0, 1, 2))

    assert fresh.restore(json.loads(json.dumps(balancer.saved())))
    assert fresh.saved() == balancer.saved()
    assert (fresh.phase, fresh.calibrated, fresh.anchor_rank) == (CadencePhase.STABLE, True, 0)
    kept = {rank: balancer.ms(rank) for rank in (0, 1, 2)}
    costs = {0: 200.0, 1: 80.0, 2: 12.0}
    feed(fresh, costs)
    means = {rank: (kept[rank] + costs[rank]) / 2 for rank in kept}
    assert {rank: fresh.ms(rank) for rank in kept} == means, "each window had one reading"


def test_a_rank_without_a_reading_is_restored_without_one() -> None:
    """B-16: an unknown cost is not a cost of 0; an anchor of one step is a valid one."""
    balancer = feed(Balancer(ranks=(0, 1), anchor=1), {0: 100.0, 1: 50.0}, batches={0: 10, 1: 0})
    fresh = Balancer(ranks=(0, 1))
    assert fresh.restore(balancer.saved())
    feed(fresh, {0: 100.0, 1: 50.0})

    assert (fresh.anchor, fresh.ms(1)) == (1, 50.0)


def test_restore_keeps_the_configured_limits() -> None:
    """B-16, I61: knobs are not saved; the new ones hold."""
    balancer = feed(Balancer(ranks=(0, 1), anchor=50), {0: 100.0, 1: 50.0})
    fresh = Balancer(ranks=(0, 1), anchor=5, max_anchor=20, cap=40)

    assert fresh.restore(balancer.saved())
    assert (fresh.anchor, sum(fresh.counts.values())) == (20, 40)


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": [0, 1, 2]},
        {"counts": [10]},
        {"counts": [0, 10]},
        {"counts": None},
        {"ms": [1.0]},
        {"ms": [math.nan, 1.0]},
        {"ms": [-1.0, 1.0]},
        {"ms": [math.inf, 1.0]},
        {"ms": None},
        {"anchor": 0},
        {"anchor": 2.5},
        {"anchor": None},
        {"phase": 9},
        {"phase": 3},
        {"calibrations": -1},
        {"anchor_rank": 7},
    ],
)
def test_a_record_of_another_cohort_or_without_sense_is_not_restored(change: Any) -> None:
    """B-16: the balancer starts afresh from its configured state."""
    record = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0}).saved()
    fresh = Balancer(ranks=(0, 1))
    before = fresh.saved()

    assert not fresh.restore({**record, **change})
    assert not fresh.restore({})
    for name in record:
        assert not fresh.restore({each: kept for each, kept in record.items() if each != name}), name
    assert fresh.saved() == before


def test_a_death_clears_the_window_and_the_role() -> None:
    """B-17: until the next report elects, the largest cost of the voters stands in."""
    balancer = feed(Balancer(ranks=(0, 1, 2)), {0: 100.0, 1: 40.0, 2: 6.0})
    balancer.forget(0)
    assert (balancer.anchor_rank, balancer.ms(0), balancer.counts[0]) == (None, 0.0, 10)
    assert balancer.anchor_wall_ms == 400.0
    balancer.apply(NudgeDown(0.5))
    assert balancer.counts == {0: 10, 1: 5, 2: 33}
    balancer.report(window({1: 40.0, 2: 6.0}), (1, 2))

    assert balancer.anchor_rank == 1


def test_a_new_incarnation_starts_without_readings() -> None:
    """B-17: its count is the anchor, whatever the old one had; a new seat likewise."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0}, times=2)
    balancer.admit(1)
    balancer.admit(3)
    assert (balancer.counts, balancer.ms(1), balancer.voters, balancer.ranks) == (
        {0: 10, 1: 10, 3: 10},
        0.0,
        [0, 1, 3],
        [0, 1, 3],
    )
    balancer.report(window({0: 100.0, 1: 50.0, 3: 25.0}), (0, 1, 3))

    assert balancer.counts == {0: 10, 1: 20, 3: 40}


def test_a_new_seat_without_a_step_is_a_miss_and_keeps_the_anchor() -> None:
    """B-4 step 1, B-17."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0})
    balancer.admit(2)
    feed(balancer, {0: 100.0, 1: 50.0, 2: 0.0}, times=6, batches={0: 10, 1: 20, 2: 0})

    assert (balancer.counts, balancer.ms(2)) == ({0: 10, 1: 20, 2: 10}, 0.0)


def test_the_cap_holds_when_a_rank_is_admitted() -> None:
    """I61."""
    balancer = Balancer(ranks=(0, 1), cap=20)
    balancer.admit(2)

    assert sum(balancer.counts.values()) == 20


def test_slack_dies_with_its_incarnation() -> None:
    """B-14, B-17: what was staged for callbacks of the old one does not shorten a window of the new one."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0})
    balancer.stage_slack(1, 500.0)
    balancer.admit(1)

    assert feed(balancer, {0: 100.0, 1: 50.0}).counts == {0: 10, 1: 20}


def test_a_cohort_may_be_admitted_seat_by_seat() -> None:
    """B-17: a balancer that starts with nobody balances from the second seat on."""
    balancer = Balancer(ranks=())
    balancer.report(window({}), ())
    balancer.apply(Stable())
    balancer.admit(1)
    balancer.admit(0)

    assert feed(balancer, {0: 20.0, 1: 10.0}).counts == {0: 10, 1: 20}


# --- G-9 ---------------------------------------------------------------------------------------------------------


def test_overshoot_is_three_before_an_average_was_timed() -> None:
    """G-9; an integer knob bounds it, 0 switches it off."""
    balancer = Balancer(ranks=(0, 1))

    assert [balancer.overshoot(0, None, knob) for knob in ("auto", 2, 0)] == [3, 2, 0]


@pytest.mark.parametrize(
    ("reduce_ms", "knob", "steps"),
    [(1.0, "auto", 1), (401.0, "auto", 9), (1e9, "auto", 20), (401.0, 4, 4), (401.0, 15, 9), (401.0, 0, 0)]
    + [(absurd, "auto", 1) for absurd in (math.nan, math.inf, -5.0, 0.0)],
)
def test_overshoot_is_what_a_rank_can_run_during_one_reduce(reduce_ms: Any, knob: Any, steps: int) -> None:
    """G-9: 50 ms a step, a window of 20 steps."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0})

    assert balancer.overshoot(1, reduce_ms, knob) == steps
    assert balancer.overshoots == {1: steps}


def test_overshoot_suppressed_never_rises() -> None:
    """G-9, B-12: it may fall; Stable of a later cycle frees it."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0})
    balancer.overshoot(1, 400.0, "auto")
    balancer.apply(SuppressGrowth())
    assert [balancer.overshoot(1, ms, "auto") for ms in (900.0, 200.0, 900.0)] == [8, 4, 4]
    balancer.apply(Stable())

    assert balancer.overshoot(1, 900.0, "auto") == 18


def test_overshoot_of_a_rank_without_a_reading_is_the_first_value_within_its_window() -> None:
    """G-9, B-17."""
    balancer = Balancer(ranks=(0, 1), anchor=2)
    assert balancer.overshoot(1, 900.0, "auto") == 2
    balancer.forget(1)

    assert balancer.overshoots == {}
