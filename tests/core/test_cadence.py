"""The cadence balancer: section 8 of the protocol, G-9, and invariants I61 to I63."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import cadence, cadence_inputs
from paceline.core.cadence import Balancer, CadencePhase, NudgeDown, Stable, SuppressGrowth, WindowReport
from paceline.core.cadence_inputs import Device, callback_cost_ms, hardware_anchor, select_feed, window_cap


def window(costs, *, batches=10, reduce_ms=0.0, fill_ms=None, delivered=None, capable=False):
    """A report in which rank r ran `batches` (a number or per rank) steps of `costs[r]` ms each; `delivered` gives
    costs on the delivered scale, one batch less per rank."""
    ran = batches if isinstance(batches, dict) else dict.fromkeys(costs, batches)
    later = {r: ran[r] - 1 for r in delivered or {}}
    return WindowReport(
        wall_ms={r: costs[r] * ran[r] for r in costs},
        wall_batches=ran,
        delivered_ms={r: delivered[r] * later[r] for r in later},
        delivered_batches=later,
        fill_ms=fill_ms or {},
        reduce_ms=reduce_ms,
        capable=capable,
    )


def feed(balancer, costs, times=1, **more):
    """Report the same window several times; the voters are the ranks of `costs`."""
    for _ in range(times):
        balancer.report(window(costs, **more), tuple(costs))
    return balancer


def staged(anchor=10, **knobs):
    """A balancer in phase Stable with a proposal of twice the anchor."""
    balancer = feed(Balancer(ranks=(0, 1), anchor=anchor, **knobs), {0: 100.0, 1: 50.0}, times=5)
    return feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=1e6)


# --- B-1, B-2 ----------------------------------------------------------------------------------------------------


def test_constants():
    """B-1: the numbers of the table."""
    assert (cadence.TRUST_WINDOW, cadence.SHARE_WINDOW, cadence.MISS_LIMIT) == (5, 10, 5)
    assert (cadence.COHORT_BAND, cadence.DOMINANCE_MARGIN, cadence.DEAD_ZONE) == (0.15, 0.10, 0.05)
    assert (cadence.MAX_SPEED_RATIO, cadence.GROWTH_STEP_CAP, cadence.EARLY_GROWTH_FACTOR) == (64, 2.0, 2.0)
    assert (cadence.INITIAL_ANCHOR, cadence.INITIAL_ANCHOR_SYNC, cadence.MAX_ANCHOR) == (10, 1, 1000)
    assert (cadence.OVERHEAD_TARGET, cadence.GROWTH_REARM_STABLE) == (0.05, 5)
    assert cadence_inputs.CALLBACK_COST_WEIGHT == 0.3
    default = Balancer(ranks=(0, 1))
    assert (default.anchor, default.min_anchor, default.max_anchor, default.overhead_target) == (10, 10, 1000, 0.05)
    assert Balancer(ranks=(0, 1), anchor=7).min_anchor == 7


def test_phases_begin_with_the_1st_5th_and_20th_calibrating_report():
    """B-2."""
    balancer = Balancer(ranks=(0, 1))
    seen = []
    for _ in range(21):
        seen.append(balancer.phase)
        feed(balancer, {0: 2.0, 1: 1.0})
    expected = [CadencePhase.PROBE] + [CadencePhase.WARMUP] * 4 + [CadencePhase.STABLE] * 15 + [CadencePhase.MATURE]

    assert seen == expected
    assert balancer.calibrated


def test_a_run_of_one_rank_never_balances():
    """B-2."""
    balancer = feed(Balancer(ranks=(0,)), {0: 10.0}, times=30, reduce_ms=1e6)

    assert (balancer.phase, balancer.calibrated, balancer.counts) == (CadencePhase.PROBE, False, {0: 10})


# --- B-3 ---------------------------------------------------------------------------------------------------------


def test_delivered_scale_needs_a_capable_mode_and_a_sample_of_every_mover():
    """B-3: all or none; a rank without batches is no mover and does not spoil coherence."""
    wall, delivered = {0: 10.0, 1: 20.0, 2: 30.0}, {0: 15.0, 1: 25.0}
    all_move = window(wall, delivered=delivered, capable=True)
    two_move = window(wall, batches={0: 10, 1: 10, 2: 0}, delivered=delivered, capable=True)
    not_capable = window(wall, delivered={**delivered, 2: 35.0})

    assert select_feed(all_move, (0, 1, 2)) == {0: (100.0, 10), 1: (200.0, 10), 2: (300.0, 10)}
    assert select_feed(two_move, (0, 1, 2)) == {0: (135.0, 9), 1: (225.0, 9), 2: (0.0, 0)}
    assert select_feed(not_capable, (0, 1, 2)) == {0: (100.0, 10), 1: (200.0, 10), 2: (300.0, 10)}


def test_a_rank_that_no_longer_votes_does_not_spoil_coherence():
    """B-3: voters are judged, nobody else."""
    report = window({0: 10.0, 1: 20.0, 2: 30.0}, delivered={0: 15.0, 1: 25.0}, capable=True)

    assert select_feed(report, (0, 1)) == {0: (135.0, 9), 1: (225.0, 9)}


@given(
    movers=st.dictionaries(st.integers(0, 5), st.booleans(), min_size=2),
    idle=st.sets(st.integers(6, 8)),
    capable=st.booleans(),
)
def test_i63_all_movers_of_a_report_are_on_one_scale(movers, idle, capable):
    """I63: compute costs are below 100 ms here and delivered ones above; readings never mix."""
    ranks = [*movers, *sorted(idle)]
    balancer = Balancer(ranks=ranks)
    costs = {rank: 10.0 + rank for rank in ranks}
    batches = {rank: 5 if rank in movers else 0 for rank in ranks}
    delivered = {rank: 1000.0 + rank for rank, has_sample in movers.items() if has_sample}
    balancer.report(window(costs, batches=batches, delivered=delivered, capable=capable), ranks)
    scales = {balancer.ms(rank) > 100 for rank in movers}

    assert scales == {capable and all(movers.values())}
    assert all(balancer.ms(rank) == 0 for rank in idle)


def test_mixed_scales_do_not_invert_shares():
    """Row 29 of section 17, B-3: equal cards stay equal when one of them has no delivered sample."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 10.0, 1: 10.0}, delivered={0: 100.0}, capable=True)

    assert balancer.counts == {0: 10, 1: 10}


# --- B-4 ---------------------------------------------------------------------------------------------------------


def test_the_divisor_is_the_number_of_batches_run():
    """B-4 step 1: a rank that ran more than its count does not look slower."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 30.0, 1: 10.0}, batches={0: 10, 1: 55})

    assert (balancer.ms(0), balancer.ms(1), balancer.counts) == (30.0, 10.0, {0: 10, 1: 30})


def test_the_trust_window_is_a_plain_mean_of_five_readings():
    """B-1, B-4 step 1."""
    balancer = Balancer(ranks=(0, 1))
    for cost in (1000.0, 10.0, 20.0, 30.0, 40.0, 50.0):
        feed(balancer, {0: cost, 1: 1.0})

    assert balancer.ms(0) == 30.0


def test_five_reports_without_data_in_a_row_clear_a_window():
    """B-4 step 1: four do not, and one reading starts the row again."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 10.0, 1: 30.0})
    silent = {"batches": {0: 10, 1: 0}}
    feed(balancer, {0: 10.0, 1: 30.0}, times=4, **silent)
    assert balancer.ms(1) == 30.0
    feed(balancer, {0: 10.0, 1: 30.0})
    feed(balancer, {0: 10.0, 1: 30.0}, times=4, **silent)
    assert balancer.ms(1) == 30.0
    feed(balancer, {0: 10.0, 1: 30.0}, **silent)

    assert balancer.ms(1) == 0.0


@pytest.mark.parametrize("cost", [0.0, -5.0, math.nan])
def test_an_all_zero_window_reports_nothing(cost):
    """B-3: no miss, no calibration; and no proposal of an earlier cycle stays behind."""
    balancer = staged()
    before = balancer.saved()
    feed(balancer, {0: cost, 1: cost}, times=10)

    assert balancer.saved() == before
    assert balancer.proposal is None


def test_a_pinned_anchor_that_never_reports_is_replaced_after_five_misses():
    """Row 33 of section 17, B-4 step 3: phases do not freeze."""
    balancer = Balancer(ranks=(0, 1, 2), anchor_ratios={0: 1.0, 1: 2.0, 2: 2.0})
    costs, ran = {0: 1.0, 1: 20.0, 2: 10.0}, {0: 0, 1: 10, 2: 10}
    feed(balancer, costs, times=4, batches=ran)
    assert (balancer.anchor_rank, balancer.phase) == (0, CadencePhase.PROBE)
    feed(balancer, costs, batches=ran)

    assert (balancer.anchor_rank, balancer.phase) == (1, CadencePhase.WARMUP)
    assert balancer.counts == {0: 10, 1: 10, 2: 20}


def test_a_pinned_anchor_that_is_excluded_does_not_freeze_the_phases():
    """B-4 step 3, B-8: a rank that does not vote counts no misses, so its pin goes with its vote."""
    balancer = Balancer(ranks=(0, 1, 2), anchor_ratios={0: 1.0, 1: 2.0, 2: 2.0})
    balancer.report(window({1: 20.0, 2: 10.0}), (1, 2))

    assert (balancer.anchor_rank, balancer.phase) == (1, CadencePhase.WARMUP)


def test_with_nobody_measured_nothing_is_calibrated():
    """B-4 step 3: costs that are no measurement leave the balancer as configured."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: math.inf, 1: math.inf}, times=9)

    assert (balancer.anchor_rank, balancer.calibrated, balancer.counts) == (None, False, {0: 10, 1: 10})


# --- B-5, B-6 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "elected"),
    [
        ({0: 10.0, 1: 100.0, 2: 20.0}, 1),  # a cohort of one
        ({0: 85.0, 1: 100.0, 2: 84.9}, 0),  # nobody yet: the lowest rank of the cohort, the band inclusive
        ({0: 84.9, 1: 100.0, 2: 85.0}, 1),
    ],
)
def test_first_election(costs, elected):
    """B-5."""
    assert feed(Balancer(ranks=(0, 1, 2)), costs).anchor_rank == elected


@pytest.mark.parametrize(
    ("costs", "elected"),
    [
        ({0: 100.0, 1: 110.0, 2: 50.0}, 0),  # 1.10 times is not above 1.10 times
        ({0: 100.0, 1: 111.0, 2: 50.0}, 1),
        ({0: 100.0, 1: 112.0, 2: 112.0}, 2),  # the last among equals
        ({0: 10.0, 1: 100.0, 2: 99.0}, 1),  # the holder fell out of the cohort: its lowest rank
    ],
)
def test_re_election_once_stable(costs, elected):
    """B-5: the holder is rank 0; five equal windows replace the trust window, the last of them elects."""
    balancer = feed(Balancer(ranks=(0, 1, 2)), {0: 100.0, 1: 90.0, 2: 90.0}, times=5)
    assert (balancer.anchor_rank, balancer.phase) == (0, CadencePhase.STABLE)
    for rank, cost in costs.items():
        balancer._windows[rank] = [cost] * 5
    feed(balancer, costs)

    assert balancer.anchor_rank == elected


def test_a_pin_holds_through_warmup():
    """B-6: measurements that disagree move the pin only from phase Stable on."""
    balancer = Balancer(ranks=(0, 1), anchor_ratios={0: 3.0, 1: 1.0})
    feed(balancer, {0: 50.0, 1: 10.0}, times=5)
    assert balancer.anchor_rank == 1
    feed(balancer, {0: 50.0, 1: 10.0})

    assert balancer.anchor_rank == 0


def test_hints_by_strength():
    """B-6: speed ratios set counts too and win over anchor ratios, which win over the hardware prior."""
    devices = {
        0: Device(vendor="nvidia", arch_generation=9, memory_gb=80),
        1: Device(vendor="nvidia", arch_generation=8, memory_gb=24),
        2: Device(vendor="nvidia", arch_generation=8, memory_gb=16),
    }
    speeds, ratios = {0: 1.0, 1: 3.0, 2: 2.5}, {0: 2.0, 1: 1.0, 2: 1.0}
    strongest = Balancer(ranks=(0, 1, 2), speed_ratios=speeds, anchor_ratios=ratios, hardware=devices)
    second = Balancer(ranks=(0, 1, 2), anchor_ratios=ratios, hardware=devices)
    third = Balancer(ranks=(0, 1, 2), hardware=devices)

    assert (strongest.anchor_rank, strongest.counts, strongest.hinted) == (0, {0: 10, 1: 30, 2: 25}, True)
    assert (second.anchor_rank, second.counts, second.hinted) == (1, {0: 10, 1: 10, 2: 10}, False)
    assert (third.anchor_rank, third.hinted) == (2, False)
    assert Balancer(ranks=(0, 1, 2)).anchor_rank is None


def test_hints_that_are_no_numbers_are_no_hints():
    """B-6: a ratio that is not positive and finite is left out; a huge one is capped at 64."""
    balancer = Balancer(ranks=(0, 1, 2, 3), speed_ratios={0: math.nan, 1: -1.0, 2: 1.0, 3: 1e9})

    assert (balancer.anchor_rank, balancer.counts) == (2, {0: 10, 1: 10, 2: 10, 3: 640})


def test_hardware_prior():
    """B-6: generation counts tenfold, ties take the lowest rank, two vendors do not compare."""
    young = Device(vendor="nvidia", arch_generation=12, memory_gb=16)
    old = Device(vendor="nvidia", arch_generation=6, memory_gb=16)
    other = Device(vendor="amd", arch_generation=1, memory_gb=8)

    assert hardware_anchor({0: young, 1: old}) == 1
    assert hardware_anchor({0: young, 2: old, 1: old}) == 1
    assert hardware_anchor({0: young, 1: other}) is None
    assert hardware_anchor({}) is None


# --- B-7, B-8 ----------------------------------------------------------------------------------------------------


def test_counts_vector():
    """B-7, B-10: anchor 10 and costs (100, 40, 6) give counts (10, 25, 167)."""
    assert feed(Balancer(ranks=(0, 1, 2)), {0: 100.0, 1: 40.0, 2: 6.0}).counts == {0: 10, 1: 25, 2: 167}


def test_a_speed_ratio_is_capped_and_a_count_is_at_least_one():
    """B-7: 64 times the anchor at most; a voter slower than the anchor rank keeps one step."""
    capped = feed(Balancer(ranks=(0, 1)), {0: 1000.0, 1: 0.5})
    pinned = feed(Balancer(ranks=(0, 1), anchor_ratios={0: 1.0, 1: 2.0}), {0: 1.0, 1: 1000.0})

    assert capped.counts == {0: 10, 1: 640}
    assert pinned.counts == {0: 10, 1: 1}


def test_the_dead_zone_is_exceeded_strictly():
    """B-7: with a count of 20 a target of 21 changes nothing, a target of 22 does."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 20.0, 1: 10.0}, times=5)
    feed(balancer, {0: 21.0, 1: 10.0}, times=5)
    assert balancer.counts == {0: 10, 1: 20}
    feed(balancer, {0: 22.0, 1: 10.0}, times=5)

    assert balancer.counts == {0: 10, 1: 22}


def test_the_lead_limit_bounds_each_change_once_calibrated():
    """B-7: the first count is free, later ones move by at most D."""
    balancer = feed(Balancer(ranks=(0, 1), max_batch_diff=3), {0: 40.0, 1: 10.0})
    assert balancer.counts == {0: 10, 1: 40}
    balancer._windows[1] = [40.0] * 5
    feed(balancer, {0: 40.0, 1: 40.0})
    assert balancer.counts == {0: 10, 1: 37}
    balancer._windows[1] = [1.0] * 5
    feed(balancer, {0: 40.0, 1: 1.0})

    assert balancer.counts == {0: 10, 1: 40}


def test_a_lead_limit_of_zero_freezes_the_counts_but_never_below_one():
    """B-7: lockstep."""
    balancer = feed(Balancer(ranks=(0, 1), max_batch_diff=0), {0: 10.0, 1: 10.0})
    balancer.apply(NudgeDown(0.1))
    feed(balancer, {0: 90.0, 1: 10.0}, times=5)

    assert (balancer.anchor, balancer.counts) == (1, {0: 10, 1: 10})


def test_the_cap_scales_and_gives_the_rest_to_the_largest_count():
    """B-8: 202 steps in a cap of 100: floors 4, 12, 82 leave 2 for the largest."""
    balancer = feed(Balancer(ranks=(0, 1, 2), cap=100), {0: 100.0, 1: 40.0, 2: 6.0})

    assert (balancer.counts, balancer.cap_binding) == ({0: 4, 1: 12, 2: 84}, True)


def test_the_cap_rest_goes_to_the_last_among_equals():
    """B-8."""
    assert Balancer(ranks=(0, 1, 2), cap=20).counts == {0: 6, 1: 6, 2: 8}


def test_the_floor_of_one_wins_over_the_cap():
    """B-8: what the floor adds is taken from the largest; with more ranks than batches every rank keeps one."""
    lifted = feed(Balancer(ranks=(0, 1, 2, 3), cap=10), {0: 100.0, 1: 100.0, 2: 100.0, 3: 2.0})

    assert lifted.counts == {0: 1, 1: 1, 2: 1, 3: 7}
    assert Balancer(ranks=(0, 1, 2), cap=2).counts == {0: 1, 1: 1, 2: 1}


def test_only_voters_enter_the_sum():
    """B-8: the count of a rank that left neither shrinks nor makes the cap bind."""
    balancer = feed(Balancer(ranks=(0, 1, 2), cap=100), {0: 10.0, 1: 10.0, 2: 10.0})
    balancer.forget(2)
    balancer.cap = 20
    balancer.report(window({0: 10.0, 1: 10.0}), (0, 1))

    assert (balancer.counts, balancer.cap_binding) == ({0: 10, 1: 10, 2: 10}, False)


def test_window_cap():
    """B-8: batches of one epoch; unset below one batch."""
    assert (window_cap(50_000, 1, 64), window_cap(50_000, 7, 64), window_cap(10, 1, 32)) == (781, 111, None)


# --- B-10, B-11 --------------------------------------------------------------------------------------------------


def test_proposal_vector():
    """B-10: anchor 10, marginal 100, fill 20, reduce 180, target 0.05: overhead 1/6, new anchor 20."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0}, times=5)
    feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=180.0, fill_ms={0: 20.0, 1: 9e9})

    assert (balancer.anchor, balancer.proposal) == (10, 20)
    balancer.apply(Stable())
    assert (balancer.anchor, balancer.proposal, balancer.counts) == (20, None, {0: 20, 1: 40})


def test_a_small_excess_grows_by_no_more_than_it_needs():
    """B-10: fixed 70 in 1070: overhead 0.0654, times 10 over 0.05 gives 14, rounded up."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0}, times=5)
    feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=70.0)

    assert balancer.proposal == 14


def test_no_proposal_at_the_target_itself():
    """B-10: the overhead must exceed the target."""
    balancer = Balancer(ranks=(0, 1), anchor=1, overhead_target=0.5)
    feed(balancer, {0: 100.0, 1: 50.0}, times=6, reduce_ms=100.0)

    assert balancer.proposal is None


def test_growth_before_stable_needs_twice_the_target():
    """B-10: never with the first report; in Warmup above 2 x target only."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0}, reduce_ms=1e6)
    assert balancer.proposal is None
    feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=100.0)
    assert balancer.proposal is None
    feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=120.0)

    assert (balancer.phase, balancer.proposal) == (CadencePhase.WARMUP, 20)


def test_no_proposal_under_sync_nor_with_a_binding_cap_nor_at_the_maximum():
    """B-10."""
    assert staged().proposal == 20
    assert staged(growth_applies=False).proposal is None
    assert staged(cap=12).proposal is None
    assert staged(max_anchor=10).proposal is None
    assert staged(max_anchor=13).proposal == 13


def test_growth_returns_to_the_lower_bound_at_once():
    """B-10: the proposal is clamped to min_anchor, which a nudge may have left."""
    balancer = staged()
    balancer.apply(NudgeDown(0.1))
    for _ in range(5):
        balancer.apply(Stable())
    feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=1e6)

    assert (balancer.anchor, balancer.proposal) == (1, 10)


@pytest.mark.parametrize("absurd", [math.inf, -math.inf, math.nan, -1e300, 0.0])
def test_an_absurd_reduce_or_fill_time_does_not_grow_the_window(absurd):
    """B-10: what cannot be a measurement is no cost."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0}, times=6)
    feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=absurd, fill_ms={0: absurd})

    assert balancer.proposal is None


@pytest.mark.parametrize("verdict", [SuppressGrowth(), NudgeDown(1.0)])
def test_growth_is_latched_off_until_five_stable_in_a_row(verdict):
    """B-11."""
    balancer = staged()
    balancer.apply(verdict)
    for _ in range(4):
        balancer.apply(Stable())
        assert not balancer.growth_enabled
        feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=1e6)
        assert balancer.proposal is None
    balancer.apply(Stable())

    assert balancer.growth_enabled


# --- B-12, B-13 --------------------------------------------------------------------------------------------------


def test_suppress_growth_drops_the_proposal_and_keeps_the_anchor():
    """B-12."""
    balancer = staged()
    balancer.apply(SuppressGrowth())
    balancer.apply(Stable())

    assert (balancer.anchor, balancer.proposal, balancer.stable_streak) == (10, None, 1)


@pytest.mark.parametrize(
    ("factor", "anchor"), [(0.5, 5), (0.55, 6), (0.0, 1), (-3.0, 1), (0.01, 1), (1.0, 10), (7.0, 10)]
)
def test_nudge_down(factor, anchor):
    """B-12: ceil of anchor times the factor, kept within 0.1 and 1; min_anchor does not hold it; counts follow."""
    balancer = staged()
    balancer.apply(NudgeDown(factor))

    assert (balancer.anchor, balancer.proposal) == (anchor, None)
    assert balancer.counts == {0: anchor, 1: 2 * anchor}


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
def test_a_nudge_without_a_number_still_stops_growth(factor):
    """B-12: the factor is ignored, the rest of the verdict is not."""
    balancer = staged()
    balancer.apply(NudgeDown(factor))

    assert (balancer.anchor, balancer.counts) == (10, {0: 10, 1: 20})
    assert (balancer.proposal, balancer.growth_enabled, balancer.overshoot_suppressed) == (None, False, True)


def test_a_nudge_of_the_meta_controller_survives_the_guard_of_the_same_cycle():
    """Row 28 of section 17, B-12, I62: neither commit, relax nor suppression is undone; the next cycle is free."""
    balancer = staged(relax_allowed=True)
    balancer.apply(NudgeDown(0.5))
    balancer.apply(Stable(relax_up=True))
    assert (balancer.anchor, balancer.counts, balancer.overshoot_suppressed) == (5, {0: 5, 1: 10}, True)
    feed(balancer, {0: 100.0, 1: 50.0})
    balancer.apply(Stable(relax_up=True))

    assert (balancer.anchor, balancer.overshoot_suppressed) == (6, False)


def test_relax_is_an_option_and_stops_at_the_maximum():
    """B-13."""
    allowed, refused, full = staged(relax_allowed=True), staged(), staged(relax_allowed=True, max_anchor=10)
    for balancer in (allowed, refused, full):
        balancer.proposal = None
        balancer.apply(Stable(relax_up=True))

    assert (allowed.anchor, refused.anchor, full.anchor) == (11, 10, 10)
    assert allowed.counts == {0: 11, 1: 22}


@pytest.mark.parametrize(("limit", "anchor"), [(10, 10), (11, 11), (None, 11)])
def test_relax_keeps_the_lead_limit(limit, anchor):
    """B-13: with a speed ratio of 2 an anchor of 11 leads by 11."""
    balancer = staged(relax_allowed=True, max_batch_diff=limit)
    balancer.proposal = None
    balancer.apply(Stable(relax_up=True))

    assert balancer.anchor == anchor


def test_a_commit_and_a_relax_may_meet_in_one_verdict():
    """B-12: commit first, then one step more."""
    balancer = staged(relax_allowed=True)
    balancer.apply(Stable(relax_up=True))

    assert balancer.anchor == 21


# --- B-14 --------------------------------------------------------------------------------------------------------


def test_slack_takes_batches_from_the_firing_rank_once():
    """B-14, B-7: 120 ms at 50 ms a step free three of its twenty batches, and the next report gives them back."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0})
    balancer.stage_slack(1, 120.0)
    feed(balancer, {0: 100.0, 1: 50.0})
    assert balancer.counts == {0: 10, 1: 17}
    feed(balancer, {0: 100.0, 1: 50.0})

    assert balancer.counts == {0: 10, 1: 20}


def test_slack_leaves_one_batch_and_passes_the_dead_zone():
    """B-7: slack is obeyed however small or large it is."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 400.0, 1: 200.0})
    balancer.stage_slack(0, 1e12)
    balancer.stage_slack(1, 200.0)
    feed(balancer, {0: 400.0, 1: 200.0})

    assert balancer.counts == {0: 1, 1: 19}


def test_slack_below_its_floor_is_dropped():
    """B-14: below 100 ms, or below 5 % of a window, or before calibration."""
    early, short, long = (Balancer(ranks=(0, 1)) for _ in range(3))
    early.stage_slack(0, 1000.0)
    feed(early, {0: 100.0, 1: 50.0}, times=2)
    feed(short, {0: 100.0, 1: 50.0}).stage_slack(0, 99.9)
    feed(short, {0: 100.0, 1: 50.0})
    feed(long, {0: 400.0, 1: 50.0}).stage_slack(1, 199.9)
    feed(long, {0: 400.0, 1: 50.0})

    assert (early.counts, short.counts, long.counts) == ({0: 10, 1: 20}, {0: 10, 1: 20}, {0: 10, 1: 80})


def test_slack_waits_for_a_report_that_counts():
    """B-7: an empty window does not consume it."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0})
    balancer.stage_slack(0, 100.0)
    feed(balancer, {0: 0.0, 1: 0.0})
    feed(balancer, {0: 100.0, 1: 50.0})

    assert balancer.counts == {0: 9, 1: 20}


def test_the_cost_of_a_callback_is_a_moving_average():
    """B-1, B-14: the first as it is, then 0.3 new and 0.7 old; what is no measurement changes nothing."""
    assert callback_cost_ms(None, 100.0) == 100.0
    assert callback_cost_ms(100.0, 200.0) == pytest.approx(130.0)
    assert [callback_cost_ms(100.0, absurd) for absurd in (math.nan, math.inf, -1.0)] == [100.0] * 3
    assert callback_cost_ms(None, math.nan) == 0.0


# --- B-15, B-16, B-17 --------------------------------------------------------------------------------------------


def test_anchor_wall():
    """B-15: 0 before calibration, then anchor times the anchor rank's cost."""
    balancer = Balancer(ranks=(0, 1))
    assert balancer.anchor_wall_ms == 0.0

    assert feed(balancer, {0: 100.0, 1: 50.0}).anchor_wall_ms == 1000.0


def test_recent_share_is_the_mean_of_the_last_ten_windows():
    """B-15: before any window the current counts; only ten windows count; who left has no share."""
    balancer = Balancer(ranks=(0, 1), speed_ratios={0: 1.0, 1: 3.0})
    assert balancer.recent_share() == {0: 0.25, 1: 0.75}
    feed(balancer, {0: 100.0, 1: 10.0}, times=3)
    balancer._windows[1] = [100.0] * 5
    feed(balancer, {0: 100.0, 1: 100.0}, times=5)
    assert balancer.recent_share() == {0: 80 / (80 + 300 + 50), 1: 350 / 430}
    feed(balancer, {0: 100.0, 1: 100.0}, times=5)
    assert balancer.recent_share() == {0: 0.5, 1: 0.5}
    balancer.forget(1)
    assert balancer.recent_share() == {0: 1.0}
    balancer.forget(0)

    assert balancer.recent_share() == {}


def test_saved_and_restored():
    """B-16: through JSON; each window holds one reading, its mean, and counts are as they were."""
    balancer = feed(Balancer(ranks=(0, 1, 2)), {0: 100.0, 1: 40.0, 2: 6.0}, times=4)
    feed(balancer, {0: 110.0, 1: 42.0, 2: 7.0})
    fresh = Balancer(ranks=(0, 1, 2))

    assert fresh.restore(json.loads(json.dumps(balancer.saved())))
    assert fresh.saved() == balancer.saved()
    assert (fresh.phase, fresh.calibrated, fresh.anchor_rank) == (CadencePhase.STABLE, True, 0)
    assert fresh._windows == {rank: [balancer.ms(rank)] for rank in (0, 1, 2)}


def test_restore_keeps_the_configured_limits():
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
def test_a_record_of_another_cohort_or_without_sense_is_not_restored(change):
    """B-16: the balancer starts afresh from its configured state."""
    record = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0}).saved()
    fresh = Balancer(ranks=(0, 1))
    before = fresh.saved()

    assert not fresh.restore({**record, **change})
    assert not fresh.restore({})
    assert fresh.saved() == before


def test_a_death_clears_the_window_and_the_role():
    """B-17: until the next report elects, the largest cost of the voters stands in."""
    balancer = feed(Balancer(ranks=(0, 1, 2)), {0: 100.0, 1: 40.0, 2: 6.0})
    balancer.forget(0)
    assert (balancer.anchor_rank, balancer.ms(0), balancer.counts[0]) == (None, 0.0, 10)
    assert balancer.anchor_wall_ms == 400.0
    balancer.apply(NudgeDown(0.5))
    assert balancer.counts == {0: 10, 1: 5, 2: 33}
    balancer.report(window({1: 40.0, 2: 6.0}), (1, 2))

    assert balancer.anchor_rank == 1


def test_a_new_incarnation_starts_without_readings():
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


def test_the_cap_holds_when_a_rank_is_admitted():
    """I61."""
    balancer = Balancer(ranks=(0, 1), cap=20)
    balancer.admit(2)

    assert sum(balancer.counts.values()) == 20


def test_a_cohort_may_be_admitted_seat_by_seat():
    """B-17: a balancer that starts with nobody balances from the second seat on."""
    balancer = Balancer(ranks=())
    balancer.report(window({}), ())
    balancer.apply(Stable())
    balancer.admit(1)
    balancer.admit(0)

    assert feed(balancer, {0: 20.0, 1: 10.0}).counts == {0: 10, 1: 20}


# --- G-9 ---------------------------------------------------------------------------------------------------------


def test_overshoot_is_three_before_an_average_was_timed():
    """G-9; an integer knob bounds it, 0 switches it off."""
    balancer = Balancer(ranks=(0, 1))

    assert [balancer.overshoot(0, None, knob) for knob in ("auto", 2, 0)] == [3, 2, 0]


@pytest.mark.parametrize(
    ("reduce_ms", "knob", "steps"),
    [(1.0, "auto", 1), (401.0, "auto", 9), (1e9, "auto", 20), (401.0, 4, 4), (401.0, 15, 9), (401.0, 0, 0)]
    + [(absurd, "auto", 1) for absurd in (math.nan, math.inf, -5.0, 0.0)],
)
def test_overshoot_is_what_a_rank_can_run_during_one_reduce(reduce_ms, knob, steps):
    """G-9: 50 ms a step, a window of 20 steps."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0})

    assert balancer.overshoot(1, reduce_ms, knob) == steps
    assert balancer.overshoots == {1: steps}


def test_overshoot_suppressed_never_rises():
    """G-9, B-12: it may fall; Stable of a later cycle frees it."""
    balancer = feed(Balancer(ranks=(0, 1)), {0: 100.0, 1: 50.0})
    balancer.overshoot(1, 400.0, "auto")
    balancer.apply(SuppressGrowth())
    assert [balancer.overshoot(1, ms, "auto") for ms in (900.0, 200.0, 900.0)] == [8, 4, 4]
    balancer.apply(Stable())

    assert balancer.overshoot(1, 900.0, "auto") == 18


def test_overshoot_of_a_rank_without_a_reading_is_the_first_value_within_its_window():
    """G-9, B-17."""
    balancer = Balancer(ranks=(0, 1), anchor=2)
    assert balancer.overshoot(1, 900.0, "auto") == 2
    balancer.forget(1)

    assert balancer.overshoots == {}


# --- properties --------------------------------------------------------------------------------------------------

ABSURD = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e308, 5e-324, 1.7e308])
COSTS = st.floats(0.01, 1e5) | ABSURD | st.floats()
RANKS = 4
COST_ROWS = st.lists(COSTS, min_size=RANKS, max_size=RANKS)
BATCH_ROWS = st.lists(st.integers(-2, 2000), min_size=RANKS, max_size=RANKS)
VERDICTS = st.one_of(
    st.builds(Stable, st.booleans()), st.just(SuppressGrowth()), st.builds(NudgeDown, st.floats(0, 1.2) | ABSURD)
)
REPORTS = st.builds(
    lambda wall, wall_n, delivered, delivered_n, fill, reduce_ms, capable: WindowReport(
        wall_ms=dict(enumerate(wall)),
        wall_batches=dict(enumerate(wall_n)),
        delivered_ms=dict(enumerate(delivered)),
        delivered_batches=dict(enumerate(delivered_n)),
        fill_ms=dict(enumerate(fill)),
        reduce_ms=reduce_ms,
        capable=capable,
    ),
    COST_ROWS,
    BATCH_ROWS,
    COST_ROWS,
    BATCH_ROWS,
    COST_ROWS,
    COSTS,
    st.booleans(),
)
MOVES = st.one_of(
    st.tuples(st.just("report"), REPORTS, st.sets(st.integers(0, RANKS - 1))),
    st.tuples(st.just("apply"), VERDICTS),
    st.tuples(st.just("stage_slack"), st.integers(0, RANKS - 1), COSTS),
    st.tuples(st.just("forget"), st.integers(0, RANKS - 1)),
    st.tuples(st.just("admit"), st.integers(0, RANKS - 1)),
    st.tuples(st.just("overshoot"), st.integers(0, RANKS - 1), st.none() | COSTS, st.sampled_from(["auto", 0, 5])),
)
KNOBS = st.fixed_dictionaries(
    {
        "anchor": st.integers(1, 60),
        "max_anchor": st.integers(60, 200),
        "max_batch_diff": st.none() | st.integers(0, 20),
        "cap": st.none() | st.integers(1, 300),
        "relax_allowed": st.booleans(),
        "growth_applies": st.booleans(),
        "speed_ratios": st.none() | st.dictionaries(st.integers(0, RANKS), COSTS),
    }
)


def check(balancer):
    """I61 and the absence of poison: whatever went in, everything readable is a sane number."""
    assert all(isinstance(count, int) and count >= 1 for count in balancer.counts.values())
    assert 1 <= balancer.anchor <= balancer.max_anchor
    assert all(0 <= balancer.ms(rank) < math.inf for rank in balancer.ranks)
    assert balancer.anchor_wall_ms >= 0
    if balancer.cap is not None and balancer.cap >= len(balancer.voters):
        assert sum(balancer.counts[rank] for rank in balancer.voters) <= balancer.cap
    if balancer.voters:
        assert sum(balancer.recent_share().values()) == pytest.approx(1.0)
    assert all(steps >= 0 for steps in balancer.overshoots.values())


@given(knobs=KNOBS, moves=st.lists(MOVES, max_size=12))
def test_i61_counts_and_anchor_stay_sane_whatever_is_reported(knobs, moves):
    """I61: and the anchor rises only by a committed proposal or by one step of a relax."""
    balancer = Balancer(ranks=range(RANKS), **knobs)
    check(balancer)
    for name, *arguments in moves:
        before, proposal, phase = balancer.anchor, balancer.proposal, balancer.phase
        if name == "report":
            # The cap binds the voters of the last report or admission: a changed vote is announced by either.
            for rank in arguments[1] - set(balancer.voters):
                balancer.admit(rank)
        getattr(balancer, name)(*arguments)
        check(balancer)
        assert phase <= balancer.phase <= phase + 1
        if balancer.anchor > before:
            assert name == "apply"
            relaxed = arguments[0] == Stable(relax_up=True) and balancer.relax_allowed
            assert balancer.anchor - (proposal or before) == (1 if relaxed and balancer.anchor != proposal else 0)
        if balancer.proposal is not None:
            assert balancer.anchor < balancer.proposal <= max(math.ceil(2 * balancer.anchor), balancer.min_anchor)


@given(
    knobs=KNOBS,
    reports=st.lists(REPORTS, min_size=1, max_size=6),
    factor=st.floats(0.1, 1.0),
    slack=COST_ROWS,
)
def test_i61_a_recount_depends_on_the_saved_state_and_the_slack_alone(knobs, reports, factor, slack):
    """I61, B-7: history beyond anchor, costs and counts has no say, and slack is consumed once."""
    balancer, copy = (Balancer(ranks=range(RANKS), **knobs) for _ in range(2))
    for report in reports:
        balancer.report(report, range(RANKS))
    assert copy.restore(balancer.saved())
    for one in (balancer, copy):
        for rank, ms in enumerate(slack):
            one.stage_slack(rank, ms)
        one.apply(NudgeDown(factor))
    assert copy.counts == balancer.counts
    for one in (balancer, copy):
        one.apply(NudgeDown(1.0))

    assert copy.counts == balancer.counts
    assert balancer._slack_ms == {}


@given(
    knobs=KNOBS,
    reports=st.lists(REPORTS, min_size=1, max_size=8),
    factor=st.floats(0, 1),
    later=st.lists(VERDICTS, max_size=3),
)
def test_i62_a_nudge_is_never_undone_in_its_cycle(knobs, reports, factor, later):
    """I62: no verdict after a nudge raises the anchor before the next report."""
    balancer = Balancer(ranks=range(RANKS), **knobs)
    for report in reports:
        balancer.report(report, range(RANKS))
    before = balancer.anchor
    balancer.apply(NudgeDown(factor))
    nudged = balancer.anchor
    assert nudged == max(1, min(math.ceil(before * max(0.1, factor)), before))
    for verdict in later:
        balancer.apply(verdict)
        assert balancer.anchor <= nudged
        assert balancer.overshoot_suppressed


@pytest.mark.parametrize("reverse", [False, True])
def test_the_order_of_a_mapping_has_no_say(reverse):
    """B-8, I25: loops ascend by rank, in whatever order the voters and readings are given."""
    costs = {0: 40.0, 1: 40.0, 2: 13.0, 3: 13.0}
    given_costs = dict(sorted(costs.items(), reverse=reverse))
    balancer = feed(Balancer(ranks=tuple(given_costs), cap=50), given_costs, times=6, reduce_ms=500.0)

    assert list(balancer.counts) == [0, 1, 2, 3]
    assert (balancer.counts, balancer.anchor_rank) == ({0: 6, 1: 6, 2: 18, 3: 20}, 0)


@pytest.mark.parametrize("slow", [0, 1])
def test_counts_converge_to_the_speeds_and_the_anchor_to_the_target(slow):
    """B-7, B-10: speeds 1:3 and a fixed reduce cost: counts within 5 % of 1:3, overhead at or below its target."""
    costs = {slow: 90.0, 1 - slow: 30.0}
    balancer = Balancer(ranks=(0, 1))
    anchors = [balancer.anchor]
    for _ in range(40):
        balancer.report(window(costs, batches=dict(balancer.counts), reduce_ms=2000.0), (0, 1))
        balancer.apply(Stable())
        anchors.append(balancer.anchor)
    overhead = 2000.0 / (balancer.anchor * 90.0 + 2000.0)

    assert balancer.anchor_rank == slow
    assert balancer.counts[1 - slow] / balancer.counts[slow] == pytest.approx(3.0, rel=0.05)
    assert anchors == sorted(anchors)
    assert overhead <= balancer.overhead_target
    assert balancer.counts[slow] == pytest.approx(balancer.anchor, rel=0.05)


def test_a_window_never_outgrows_an_epoch():
    """Row 32 of section 17, B-8: however dear an average is, a window fits the 781 batches of its epoch."""
    balancer = Balancer(ranks=(0, 1, 2), cap=781)
    for _ in range(30):
        feed(balancer, {0: 10.0, 1: 8.0, 2: 3.0}, reduce_ms=1e6)
        balancer.apply(Stable())

    assert sum(balancer.counts.values()) == 781
