"""Links that break at any moment, and a coordinator that dies between any two effects (M-40 to M-45, N-9, N-10).

The checks are those of `support/ghost.py` and `support/mended.py`, named by invariant, after every event.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cohort import Fault
from support.mended import Mended

SCHEDULES = st.lists(st.integers(0, 11), max_size=300)


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


def faults(kinds: tuple[str, ...], most: int = 4) -> st.SearchStrategy[list[Fault]]:
    """What breaks, and when; `lose` is how many effects of a batch are performed before the coordinator dies."""
    return st.lists(
        st.builds(Fault, when=st.integers(0, 250), kind=st.sampled_from(kinds), rank=st.integers(0, 5),
                  lose=st.integers(0, 6)),
        max_size=most,
    )  # fmt: skip


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(knobs(), SCHEDULES, faults(("sever",), 6))
def test_a_link_that_breaks_costs_nothing(made: dict[str, Any], schedule: list[int], struck: list[Fault]) -> None:
    """M-17, M-42, I53: with a grace every rank is back, no life ends, no step is trained again."""
    cohort = Mended(link_grace_s=30.0, **made)
    cohort.run(schedule, struck)

    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert not cohort.events("Died") and not cohort.co.violations and cohort.co.book.replayed == 0


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(knobs(), SCHEDULES, faults(("crash",), 3))
def test_a_coordinator_that_dies_anywhere_loses_nothing(
    made: dict[str, Any], schedule: list[int], struck: list[Fault]
) -> None:
    """I37, I53, M-40, M-42, M-43, M-44: coverage and global_step are those of the run without the crash."""
    cohort = Mended(**made)
    cohort.run(schedule, struck)

    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert not cohort.co.violations and cohort.co.book.replayed == 0
    calm = Mended(**made)
    calm.run(schedule)
    assert set(cohort.ghost.merged) == set(calm.ghost.merged)
    assert cohort.co.cycle.global_step == calm.co.cycle.global_step
