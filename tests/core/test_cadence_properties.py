"""The cadence balancer under arbitrary, also absurd, input: invariants I61 and I62, and convergence."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.cadence import Balancer, NudgeDown, Stable, SuppressGrowth, WindowReport

from support.cadence_reports import feed, window

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
