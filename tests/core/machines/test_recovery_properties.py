"""Links that break at any moment, and a coordinator that dies between any two effects (M-40 to M-45, N-9, N-10).

Every property is asked of both kinds of averaging: of ranks that ship copies, and of ranks that average in place, where
a call goes on while links or the coordinator are gone. The checks are those of `World`, named by invariant, after
every action.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cohort import Fault
from support.runs import IN_PLACE, LASTING, Filed, schedules
from support.runs import recovery_faults as faults

SCHEDULES = schedules(300)
SLOW = [HealthCheck.too_slow]


@attrs.frozen
class Averaging:
    """A kind of averaging: its knobs, the policies it has (G-11), what can go wrong with it, and how many sessions a
    run without a death makes."""

    fixed: dict[str, Any]
    policies: tuple[str, ...]
    faults: tuple[str, ...]
    sessions: int

    def cohort(self, **made: Any) -> Filed:
        return Filed(**{**self.fixed, **made})

    def knobs(self) -> st.SearchStrategy[dict[str, Any]]:
        """Small runs of every policy."""
        return _knobs(self)


@st.composite
def _knobs(draw: st.DrawFn, kind: Averaging) -> dict[str, Any]:
    policy = draw(st.sampled_from(kind.policies))
    made: dict[str, Any] = {
        "policy": "cadence" if policy == "unprogressive" else policy,
        "ranks": draw(st.integers(1, 3)), "num_epochs": draw(st.integers(1, 2)), "batch_size": draw(st.integers(1, 3)),
        "max_ranks": 6, "samples": draw(st.integers(12, 60)), "min_ranks": 1,
    }  # fmt: skip
    if kind is COPIES:
        made["stateful"] = draw(st.booleans())
    if policy == "unprogressive":
        made["progressive"] = False
    if policy != "sync":
        made["anchor"] = draw(st.integers(1, 4))
    return made


COPIES = Averaging(
    LASTING, ("cadence", "sync", "async", "unprogressive"),
    ("die", "die", "cut", "crash", "join", "leave", "hang", "poison", "abort", "stop"), sessions=0,
)  # fmt: skip
CALLS = Averaging(
    {**IN_PLACE, **LASTING}, ("cadence", "cadence", "sync"),
    ("die", "die", "cut", "cut", "crash", "doom", "fail", "withhold", "join", "leave", "hang", "poison", "stop"),
    sessions=1,
)  # fmt: skip
both = pytest.mark.parametrize("kind", [COPIES, CALLS], ids=["copies", "in_place"])


@both
@settings(max_examples=25, suppress_health_check=SLOW)
@given(st.data(), SCHEDULES, faults(("cut",), 6))
def test_a_link_that_breaks_costs_nothing(
    kind: Averaging, data: st.DataObject, schedule: bytes, struck: list[Fault]
) -> None:
    """M-17, M-42, W-21, I53: with a grace every rank is back, no life ends, no step is trained again; a call runs over
    no link of the coordinator, so none is repeated."""
    cohort = kind.cohort(link_grace_s=30.0, **data.draw(kind.knobs()))
    cohort.run(schedule, struck)

    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert not cohort.events("Died") and not cohort.co.violations and cohort.co.book.replayed == 0
    assert len(cohort.events("SessionNew")) == kind.sessions


@both
@settings(max_examples=40, suppress_health_check=SLOW)
@given(st.data(), SCHEDULES, faults(("die", "die", "die", "cut"), 4))
def test_a_coordinator_that_dies_anywhere_loses_nothing(
    kind: Averaging, data: st.DataObject, schedule: bytes, struck: list[Fault]
) -> None:
    """I37, I53, M-40, M-42 to M-44: every pick is covered once, none is trained again, global_step is their number."""
    cohort = kind.cohort(link_grace_s=30.0, **data.draw(kind.knobs()))
    cohort.run(schedule, struck)

    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert not cohort.events("Died") and not cohort.co.violations and cohort.co.book.replayed == 0


@both
@settings(max_examples=10, suppress_health_check=SLOW)
@given(st.integers(1, 3), st.integers(12, 40), faults(("die", "cut"), 4))
def test_with_windows_of_fixed_length_the_versions_are_those_of_the_run_without_the_crash(
    kind: Averaging, ranks: int, samples: int, struck: list[Fault]
) -> None:
    """I37: where no measured time decides how long a window is, the averages are the same ones (I8)."""
    made: dict[str, Any] = dict(policy="cadence", anchor=2, max_anchor=2, ranks=ranks, samples=samples, batch_size=1)
    calm, cohort = kind.cohort(**made), kind.cohort(link_grace_s=30.0, **made)
    calm.run()
    cohort.run([], struck)

    assert cohort.co.cycle.version == calm.co.cycle.version
    assert cohort.co.cycle.global_step == calm.co.cycle.global_step
    assert set(cohort.ghost.merged) == set(calm.ghost.merged)


@both
@settings(max_examples=35, suppress_health_check=SLOW)
@given(st.data(), SCHEDULES, st.sampled_from([0.0, 30.0]))
def test_deaths_joins_failures_and_crashes_together_still_end(
    kind: Averaging, data: st.DataObject, schedule: bytes, grace: float
) -> None:
    """I38, I42, I44, I59: whatever comes together, the run ends, and nothing is merged twice."""
    struck = data.draw(faults(kind.faults, 5))
    kind.cohort(link_grace_s=grace, **data.draw(kind.knobs())).run(schedule, struck)


@both
@settings(max_examples=4, suppress_health_check=SLOW)
@given(st.data(), SCHEDULES, faults(("die", "cut"), 3))
def test_both_engines_recover_alike(
    kind: Averaging, data: st.DataObject, schedule: bytes, struck: list[Fault]
) -> None:
    """I25: the tables mean the same on `transitions` as compiled."""
    made = data.draw(kind.knobs())
    made.update(samples=min(made["samples"], 20), num_epochs=1, link_grace_s=30.0)
    runs = [kind.cohort(engine=engine, **made) for engine in ("compiled", "transitions")]
    for cohort in runs:
        cohort.run(schedule, struck)

    assert runs[0].effects == runs[1].effects
    assert runs[0].co.snapshot() == runs[1].co.snapshot()
