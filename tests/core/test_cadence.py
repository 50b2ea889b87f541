"""The cadence balancer: readings, election, counts (B-1 to B-8) and invariant I63."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import cadence, cadence_inputs, trust
from paceline.core.cadence import Balancer, CadencePhase, NudgeDown
from paceline.core.cadence_inputs import Device, device_text, hardware_anchor, hardware_of, select_feed, window_cap

from support.cadence_reports import feed, staged, window

# --- B-1, B-2 ----------------------------------------------------------------------------------------------------


def test_constants():
    """B-1: the numbers of the table."""
    assert (trust.TRUST_WINDOW, cadence.SHARE_WINDOW, trust.MISS_LIMIT) == (5, 10, 5)
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


@pytest.mark.parametrize("sample", [(0.0, 9), (20.0, 0), (-1.0, 9), (math.nan, 9)])
def test_a_delivered_sample_has_time_and_batches(sample):
    """C-20, B-3: one field alone is no sample, and the whole cohort is measured on the compute scale."""
    report = attrs.evolve(
        window({0: 10.0, 1: 20.0}, delivered={0: 15.0}, capable=True),
        delivered_ms={0: 135.0, 1: sample[0]}, delivered_batches={0: 9, 1: sample[1]},
    )  # fmt: skip

    assert select_feed(report, (0, 1)) == {0: (100.0, 10), 1: (200.0, 10)}


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
        ({0: 10.0, 1: 11.0, 2: 5.0}, 0),  # 1.10 times is not above 1.10 times
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
        balancer._trust.put(rank, [cost] * 5)
    feed(balancer, costs)

    assert balancer.anchor_rank == elected


@pytest.mark.parametrize("hint", [
    {"speed_ratios": {0: 3.0, 1: 1.0}}, {"anchor_ratios": {0: 3.0, 1: 1.0}},
    {"hardware": {rank: Device(vendor="a", arch_generation=9 - rank, memory_gb=80) for rank in (0, 1)}},
], ids=lambda hint: next(iter(hint)))  # fmt: skip
def test_a_pin_holds_through_warmup(hint):
    """B-6: measurements that disagree move the pin only from phase Stable on."""
    balancer = Balancer(ranks=(0, 1), **hint)
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


def test_what_ranks_tell_of_their_devices_is_the_prior():
    """B-6: each rank's weakest device; a rank that tells nothing to go by, or of two vendors, leaves no prior."""
    large = device_text("NVIDIA H100 80GB HBM3", "9.0", 85_017_755_648)
    small, other = device_text("NVIDIA A10", "8.6", 23_609_475_072), device_text("AMD Instinct MI250X", "9.0", 68 << 30)
    assert (large, small) == ("NVIDIA H100 80GB HBM3, generation 9.0, 79 GB", "NVIDIA A10, generation 8.6, 22 GB")
    weak = Device(vendor="NVIDIA", arch_generation=8.6, memory_gb=22.0)
    strong = Device(vendor="NVIDIA", arch_generation=9.0, memory_gb=79.0)
    assert hardware_of({0: [large], 1: [small], 2: [large, small]}) == {0: strong, 1: weak, 2: weak}
    for odd in ([], ["cpu"], [large, "cpu"], [large, other], ["NVIDIA, generation 9.0.1, 3 GB"], [small + " more"]):
        assert hardware_of({0: [large], 1: odd}) is None, odd
    assert hardware_anchor(hardware_of({0: [large], 1: [other]}) or {}) is None




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


def test_two_readings_are_one_speed_strictly_within_a_millionth():
    """B-7."""
    assert feed(Balancer(ranks=(0, 1)), {0: 2e-6, 1: 1e-6}).counts == {0: 10, 1: 20}
    assert feed(Balancer(ranks=(0, 1)), {0: 1.9e-6, 1: 1e-6}).counts == {0: 10, 1: 10}


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
    balancer._trust.put(1, [40.0] * 5)
    feed(balancer, {0: 40.0, 1: 40.0})
    assert balancer.counts == {0: 10, 1: 37}
    balancer._trust.put(1, [1.0] * 5)
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
