"""Ranks that average in place, with links that break at any moment and a coordinator that dies between any two effects.

The checks are those of `World`, named by invariant, after every action; what the parameters of each rank must be by
what is covered is among them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cohort import Fault
from support.runs import IN_PLACE, LASTING, Filed, schedules
from support.runs import recovery_faults as faults

SCHEDULES = schedules(300)
ALL = ("die", "die", "cut", "cut", "crash", "doom", "fail", "withhold", "join", "leave", "hang", "poison", "stop")
SLOW = [HealthCheck.too_slow]


@st.composite
def knobs(draw: st.DrawFn, least: int = 1) -> dict[str, Any]:
    """Small runs of both policies of G-11."""
    policy = draw(st.sampled_from(["cadence", "cadence", "sync"]))
    ranks = draw(st.integers(least, 3))
    made: dict[str, Any] = {
        "policy": policy, "ranks": ranks, "num_epochs": draw(st.integers(1, 2)), "batch_size": draw(st.integers(1, 3)),
        "max_ranks": 6, "min_ranks": 1, "samples": draw(st.integers(12, 60)),
    }  # fmt: skip
    if policy == "cadence":
        made["anchor"] = draw(st.integers(1, 4))
    return made


@settings(max_examples=15, suppress_health_check=SLOW, deadline=None)
@given(knobs(), SCHEDULES, faults(("cut",), 6))
def test_a_link_that_breaks_ends_no_call_and_costs_nothing(
    made: dict[str, Any], schedule: bytes, struck: list[Fault]
) -> None:
    """M-42, W-21, I53: with a grace every rank is back, no life ends, no call is repeated, no step is trained again."""
    cohort = Filed(link_grace_s=30.0, **{**IN_PLACE, **LASTING, **made})
    cohort.run(schedule, struck)

    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert not cohort.events("Died") and not cohort.co.violations and cohort.co.book.replayed == 0
    assert len(cohort.events("SessionNew")) == 1, "a call runs over no link of the coordinator"


@settings(max_examples=35, suppress_health_check=SLOW, deadline=None)
@given(knobs(), SCHEDULES, faults(("die", "die", "die", "cut"), 4))
def test_a_coordinator_that_dies_anywhere_loses_nothing(
    made: dict[str, Any], schedule: bytes, struck: list[Fault]
) -> None:
    """I37, I53, M-40, M-42, M-43: every pick is covered once, none is trained again, global_step is their number."""
    cohort = Filed(link_grace_s=30.0, **{**IN_PLACE, **LASTING, **made})
    cohort.run(schedule, struck)

    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert not cohort.events("Died") and not cohort.co.violations and cohort.co.book.replayed == 0


@settings(max_examples=6, suppress_health_check=SLOW, deadline=None)
@given(st.integers(1, 3), st.integers(12, 40), faults(("die", "cut"), 4))
def test_with_windows_of_fixed_length_the_versions_are_those_of_the_run_without_the_crash(
    ranks: int, samples: int, struck: list[Fault]
) -> None:
    """I37: where no measured time decides how long a window is, the averages are the same ones (I8)."""
    made: dict[str, Any] = dict(policy="cadence", anchor=2, max_anchor=2, ranks=ranks, samples=samples, batch_size=1)
    calm, cohort = Filed(**{**IN_PLACE, **LASTING, **made}), Filed(link_grace_s=30.0, **{**IN_PLACE, **LASTING, **made})
    calm.run()
    cohort.run([], struck)

    assert cohort.co.cycle.version == calm.co.cycle.version
    assert cohort.co.cycle.global_step == calm.co.cycle.global_step
    assert set(cohort.ghost.merged) == set(calm.ghost.merged)


@settings(max_examples=40, suppress_health_check=SLOW, deadline=None)
@given(knobs(), SCHEDULES, faults(ALL, 5), st.sampled_from([0.0, 30.0]))
def test_deaths_joins_failures_and_crashes_together_still_end(
    made: dict[str, Any], schedule: bytes, struck: list[Fault], grace: float
) -> None:
    """I38, I42, I44, I59: whatever comes together, the run ends, and nothing is merged twice."""
    Filed(link_grace_s=grace, **{**IN_PLACE, **LASTING, **made}).run(schedule, struck)


@settings(max_examples=4, suppress_health_check=SLOW, deadline=None)
@given(knobs(), SCHEDULES, faults(("die", "cut"), 3))
def test_both_engines_recover_alike(made: dict[str, Any], schedule: bytes, struck: list[Fault]) -> None:
    """I25: the tables mean the same on `transitions` as compiled."""
    made.update(samples=min(made["samples"], 20), num_epochs=1, link_grace_s=30.0)
    runs = [Filed(engine=engine, **{**IN_PLACE, **LASTING, **made}) for engine in ("compiled", "transitions")]
    for cohort in runs:
        cohort.run(schedule, struck)

    assert runs[0].effects == runs[1].effects
    assert runs[0].co.snapshot() == runs[1].co.snapshot()
