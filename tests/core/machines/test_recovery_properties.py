"""Links that break at any moment, and a coordinator that dies between any two effects (M-40 to M-45, N-9, N-10).

The checks are those of `World`, named by invariant, after every action.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cohort import Fault
from support.runs import LASTING, Filed, schedules
from support.runs import recovery_faults as faults

ALL = ("die", "die", "cut", "crash", "join", "leave", "hang", "poison", "abort", "stop")
SCHEDULES = schedules(300)


@st.composite
def knobs(draw: st.DrawFn) -> dict[str, Any]:
    """Small runs of every policy."""
    policy = draw(st.sampled_from(["cadence", "sync", "async", "unprogressive"]))
    made: dict[str, Any] = {
        "policy": "cadence" if policy == "unprogressive" else policy,
        "ranks": draw(st.integers(1, 3)), "num_epochs": draw(st.integers(1, 2)), "batch_size": draw(st.integers(1, 3)),
        "max_ranks": 6, "samples": draw(st.integers(12, 60)), "stateful": draw(st.booleans()),
    }  # fmt: skip
    if policy == "unprogressive":
        made["progressive"] = False
    if policy != "sync":
        made["anchor"] = draw(st.integers(1, 4))
    return made


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(knobs(), SCHEDULES, faults(("cut",), 6))
def test_a_link_that_breaks_costs_nothing(made: dict[str, Any], schedule: bytes, struck: list[Fault]) -> None:
    """M-17, M-42, I53: with a grace every rank is back, no life ends, no step is trained again."""
    cohort = Filed(link_grace_s=30.0, **{**LASTING, **made})
    cohort.run(schedule, struck)

    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert not cohort.events("Died") and not cohort.co.violations and cohort.co.book.replayed == 0


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(knobs(), SCHEDULES, faults(("die", "die", "die", "cut"), 4))
def test_a_coordinator_that_dies_anywhere_loses_nothing(
    made: dict[str, Any], schedule: bytes, struck: list[Fault]
) -> None:
    """I37, I53, M-40, M-42 to M-44: every pick is covered once, none is trained again, global_step is their number."""
    cohort = Filed(link_grace_s=30.0, **{**LASTING, **made})
    cohort.run(schedule, struck)

    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert not cohort.events("Died") and not cohort.co.violations and cohort.co.book.replayed == 0


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(1, 3), st.integers(12, 40), faults(("die", "cut"), 4))
def test_with_windows_of_fixed_length_the_versions_are_those_of_the_run_without_the_crash(
    ranks: int, samples: int, struck: list[Fault]
) -> None:
    """I37: where no measured time decides how long a window is, the averages are the same ones (I8)."""
    made: dict[str, Any] = dict(policy="cadence", anchor=2, max_anchor=2, ranks=ranks, samples=samples, batch_size=1)
    calm, cohort = Filed(**{**LASTING, **made}), Filed(link_grace_s=30.0, **{**LASTING, **made})
    calm.run()
    cohort.run([], struck)

    assert cohort.co.cycle.version == calm.co.cycle.version
    assert cohort.co.cycle.global_step == calm.co.cycle.global_step
    assert set(cohort.ghost.merged) == set(calm.ghost.merged)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(knobs(), SCHEDULES, faults(ALL, 5),
       st.sampled_from([0.0, 30.0]))  # fmt: skip
def test_deaths_joins_and_crashes_together_still_end(
    made: dict[str, Any], schedule: bytes, struck: list[Fault], grace: float
) -> None:
    """I38, I42, I44: whatever comes together, the run ends, and nothing is merged twice."""
    Filed(link_grace_s=grace, **{**LASTING, **made}).run(schedule, struck)


@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(knobs(), SCHEDULES, faults(("die", "cut"), 3))
def test_both_engines_recover_alike(made: dict[str, Any], schedule: bytes, struck: list[Fault]) -> None:
    """I25: the tables mean the same on `transitions` as compiled."""
    made.update(samples=min(made["samples"], 20), num_epochs=1, link_grace_s=30.0)
    runs = [Filed(engine=engine, **{**LASTING, **made}) for engine in ("compiled", "transitions")]
    for cohort in runs:
        cohort.run(schedule, struck)

    assert runs[0].effects == runs[1].effects
    assert runs[0].co.snapshot() == runs[1].co.snapshot()
