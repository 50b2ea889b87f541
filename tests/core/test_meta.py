"""The learning-rate meta-controller: B-40 to B-43."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import meta
from paceline.core.cadence import Balancer, CadencePhase, NudgeDown, Stable, SuppressGrowth, WindowReport
from paceline.core.meta import MetaController

PROBE, WARMUP, STABLE, MATURE = CadencePhase
SUPPRESS, CALM = SuppressGrowth(), Stable()


def observe(controller, rates, *, anchors=None, verdict=CALM, phase=STABLE):
    """One cycle per rate; returns the answers."""
    anchors = anchors or [10] * len(rates)
    return [controller.observe(lr, anchor, verdict, phase) for lr, anchor in zip(rates, anchors, strict=True)]


def test_constants():
    """B-40 to B-43."""
    assert (meta.RATE_WINDOW, meta.ANCHOR_WINDOW, meta.VERDICT_WINDOW) == (3, 5, 5)
    assert (meta.CLIFF_DROP, meta.CLIFF_BASE, meta.SETTLED_TREND) == (0.3, 0.5, 0.10)
    assert (meta.FACTOR_MIN, meta.FACTOR_MAX) == (0.1, 0.95)
    assert meta.SUSTAINED == {WARMUP: (5, 0.3), STABLE: (3, 0.5), MATURE: (2, 0.7)}
    assert max(length for length, _ in meta.SUSTAINED.values()) <= meta.VERDICT_WINDOW


@pytest.mark.parametrize(
    ("before", "now", "fires"),
    [(10.0, 7.0, False), (10.0, 6.9, True), (1.0, 0.0, True), (0.1, 0.01, True), (0.0, 0.0, False), (0.1, 1.0, False)],
)
def test_cliff(before, now, fires):
    """B-41: a fall by more than three tenths, strictly; a rising rate never."""
    assert observe(MetaController(), [before, now]) == [None, NudgeDown(0.5) if fires else None]


def test_a_cliff_fires_once():
    """B-41: it is the step between two cycles, not the level after it."""
    assert observe(MetaController(), [1.0, 0.1, 0.1, 0.1, 0.1]) == [None, NudgeDown(0.5), None, None, None]


@pytest.mark.parametrize(("phase", "length", "base"), [(WARMUP, 5, 0.3), (STABLE, 3, 0.5), (MATURE, 2, 0.7)])
@pytest.mark.parametrize("verdict", [SUPPRESS, NudgeDown(0.5)])
def test_sustained(phase, length, base, verdict):
    """B-42: K complaints in a row, K and the base by phase."""
    answers = observe(MetaController(), [0.1] * (length + 1), verdict=verdict, phase=phase)

    assert answers == [None] * (length - 1) + [NudgeDown(base)] * 2


def test_one_stable_verdict_breaks_the_row():
    """B-42."""
    controller = MetaController()
    observe(controller, [0.1] * 2, verdict=SUPPRESS)
    observe(controller, [0.1])

    assert observe(controller, [0.1] * 3, verdict=SUPPRESS) == [None, None, NudgeDown(0.5)]


def test_both_multiply():
    """B-43: the product, clamped again."""
    controller = MetaController()
    observe(controller, [1.0] * 2, verdict=SUPPRESS)
    assert observe(controller, [0.1], verdict=SUPPRESS) == [NudgeDown(0.25)]
    grown = MetaController()
    observe(grown, [1.0] * 2, anchors=[10, 10], verdict=SUPPRESS)

    assert observe(grown, [0.1], anchors=[100], verdict=SUPPRESS) == [NudgeDown(0.1)]


@pytest.mark.parametrize(
    ("anchors", "factor"),
    [
        ([10, 10], 0.5),
        ([10, 20], 0.5 - 0.5 / 3),  # mean 15, trend 1/3: grown, so pushed harder
        ([20, 10], 0.5 + 0.5 / 3),
        ([1, 1000], 0.1),  # kept above
        ([1000, 1], 0.95),  # and below
    ],
)
def test_factor_follows_the_trend_of_the_anchor(anchors, factor):
    """B-43."""
    answer = observe(MetaController(), [1.0, 0.1], anchors=anchors)[-1]

    assert answer is not None
    assert answer.factor == pytest.approx(factor, abs=1e-3)


def test_the_trend_looks_back_over_five_anchors():
    """B-43: 0 with fewer than two; settled below a tenth."""
    controller = MetaController()
    assert (controller.trend, controller.settled) == (0.0, True)
    observe(controller, [0.1], anchors=[10])
    assert controller.trend == 0.0
    observe(controller, [0.1] * 5, anchors=[20, 20, 20, 20, 30])

    assert controller.anchors == [20, 20, 20, 20, 30]
    assert controller.trend == pytest.approx(8 / 22)
    assert not controller.settled
    edge = MetaController()
    observe(edge, [0.1] * 2, anchors=[9, 11])
    assert (edge.trend, edge.settled) == (0.1, False)


def test_nothing_in_probe():
    """B-40: what was seen there counts later."""
    controller = MetaController()
    assert observe(controller, [1.0, 0.1, 0.1], verdict=SUPPRESS, phase=PROBE) == [None] * 3

    assert observe(controller, [0.1], verdict=SUPPRESS, phase=MATURE) == [NudgeDown(0.7)]


@pytest.mark.parametrize("rate", [None, math.nan, math.inf, -0.1])
def test_nothing_without_a_rate(rate):
    """B-40: what is no rate is none, and leaves no trace in the window of rates."""
    controller = MetaController()

    assert observe(controller, [rate] * 6, verdict=SUPPRESS, phase=MATURE) == [None] * 6
    assert controller.rates == []


@given(
    st.lists(
        st.tuples(
            st.none() | st.floats() | st.floats(0, 1),
            st.integers(1, 1000),
            st.sampled_from([CALM, SUPPRESS, NudgeDown(0.5)]),
            st.sampled_from(CadencePhase),
        ),
        max_size=20,
    )
)
def test_a_factor_is_always_between_its_bounds(cycles):
    """B-43: and nothing raises."""
    controller = MetaController()
    for cycle in cycles:
        answer = controller.observe(*cycle)
        assert answer is None or 0.1 <= answer.factor <= 0.95


def test_a_nudge_goes_through_the_seam_before_the_guard_and_survives_it():
    """Row 28 of section 17, B-12, B-40, I62: in the order of a finish."""
    balancer, controller = Balancer(ranks=(0, 1)), MetaController()
    for lr in [0.1] * 6 + [0.01]:
        balancer.report(
            WindowReport(
                wall_ms={0: 1000.0, 1: 500.0},
                wall_batches={0: 10, 1: 10},
                delivered_ms={},
                delivered_batches={},
                fill_ms={},
                reduce_ms=1e6,
                capable=False,
            ),
            (0, 1),
        )
        before, proposed = balancer.anchor, balancer.proposal
        answer = controller.observe(lr, balancer.anchor, CALM, balancer.phase)
        if answer is not None:
            balancer.apply(answer)
        nudged = balancer.anchor
        balancer.apply(CALM)

    assert answer is not None
    assert proposed is not None
    assert balancer.anchor == nudged < before < proposed


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50), st.booleans()), max_size=12), st.integers(0, 12),
    st.sampled_from(list(CadencePhase)),
)  # fmt: skip
@settings(max_examples=40)
def test_a_restored_controller_goes_on_alike(cycles, cut, phase):
    """B-16, N-13: through JSON, at any cycle; the same answers from there on."""
    first, second = MetaController(), MetaController()
    for number, (lr, anchor, calm) in enumerate(cycles):
        if number == cut:
            assert second.restore(json.loads(json.dumps(first.saved())))
        verdict = CALM if calm else SUPPRESS
        answer = first.observe(lr, anchor, verdict, phase)
        if number >= cut:
            assert second.observe(lr, anchor, verdict, phase) == answer
    assert cut >= len(cycles) or second.saved() == first.saved()


@pytest.mark.parametrize(
    "wrong",
    [{"meta": "another"}, {"rates": None}, {"rates": [math.nan]}, {"rates": ["0.1"]}, {"rates": [-1.0]},
     {"anchors": [0]}, {"anchors": [1.5]}, {"complaints": [1]}, {"complaints": "no"}],
)  # fmt: skip
def test_the_history_of_another_one_is_refused(wrong):
    """B-16: and nothing is changed."""
    controller = MetaController()
    observe(controller, [0.1, 0.2])
    before = controller.saved()
    assert not controller.restore({**MetaController().saved(), **wrong})
    assert controller.saved() == before
