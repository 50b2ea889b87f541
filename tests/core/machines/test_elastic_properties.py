"""Coordinator and workers joined, while ranks come back, come anew, and hang (M-10 to M-14, M-22 to M-28).

The checks are those of `World`, named by invariant, after every action.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paceline.core.simulation.action import COORDINATOR, Action, act
from paceline.core.simulation.step import Step

from support.cohort import Cohort, Fault
from support.runs import CLIMB, OF_ACTIONS, action_knobs, run_faults, schedules, whole_passes

SCHEDULES = schedules(400)
COMINGS = ("crash", "join", "join", "cut", "leave")
ALL = (*COMINGS, "hang", "poison", "abort", "pause")


@st.composite
def knobs(draw: st.DrawFn) -> dict[str, Any]:
    """Runs of every policy, long enough to join."""
    policy = draw(st.sampled_from(["cadence", "sync", "async", "unprogressive"]))
    made: dict[str, Any] = {
        "policy": "cadence" if policy == "unprogressive" else policy,
        "ranks": draw(st.integers(2, 4)), "num_epochs": draw(st.integers(1, 3)), "batch_size": draw(st.integers(1, 3)),
        "max_ranks": 6, "min_ranks": draw(st.sampled_from([1, 1, 2])), "join_patience": draw(st.integers(1, 3)),
        "laggards": draw(st.sampled_from(["wait", "exclude"])), "stateful": draw(st.booleans()),
        "elastic": draw(st.sampled_from([True, True, True, False])),
        "max_batch_diff": draw(st.sampled_from([None, None, 1])), "samples": draw(st.integers(20, 90)),
    }  # fmt: skip
    if policy == "unprogressive":
        made["progressive"] = False
    if policy != "sync":
        made["anchor"] = draw(st.integers(1, 4))
    return made


def faults(kinds: tuple[str, ...], most: int = 5) -> st.SearchStrategy[list[Fault]]:
    """Comings and goings."""
    return run_faults(kinds, most, until=250, last_rank=5)


@settings(max_examples=130, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(knobs(), SCHEDULES, faults(ALL))
def test_every_elastic_run_ends_with_nothing_lost_and_nothing_merged_twice(
    made: dict[str, Any], schedule: bytes, struck: list[Fault]
) -> None:
    """I38, I42, I44, and after every event I18 to I21, I36 and those of a cohort that only shrinks."""
    Cohort(**CLIMB, **made).run(schedule, struck)


@settings(max_examples=70, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(knobs(), action_knobs(), SCHEDULES, faults((*ALL, *OF_ACTIONS)))
def test_callbacks_go_on_while_ranks_come_and_go(
    made: dict[str, Any], more: dict[str, Any], schedule: bytes, struck: list[Fault]
) -> None:
    """I16, I17, I24, I38: holders that die, hang, are excluded or come back; every run ends."""
    Cohort(**CLIMB, **made, **more).run(schedule, struck)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(knobs(), SCHEDULES, st.integers(0, 250), st.integers(0, 250))
def test_a_run_to_which_ranks_only_come_covers_everything(
    made: dict[str, Any], schedule: bytes, first: int, second: int
) -> None:
    """I28, I30, M-25: newcomers disturb nobody, whenever they come."""
    cohort = Cohort(**CLIMB, **made)
    cohort.run(schedule, [Fault(first, "join", rank=9), Fault(second, "join", rank=9)])

    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert not cohort.co.violations and not cohort.co.refused


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(knobs(), SCHEDULES, run_faults(("hang",), most_amount=2))
def test_a_hang_below_the_ceiling_ends_nobody(
    made: dict[str, Any], schedule: bytes, struck: list[Fault]
) -> None:
    """I31: time alone suspects, asks again, excludes; who is excluded comes back, and everything is covered."""
    made["policy"] = "cadence" if made["policy"] == "sync" else made["policy"]
    made.update(anchor=2, join_patience=3, formation_s=900.0, reduce_ceiling_s=300.0, window_ceiling_s=600.0)
    cohort = Cohort(**{**CLIMB, **made})
    cohort.run(schedule, struck)

    assert cohort.finish is not None and cohort.finish.status == "ok", cohort.finish
    assert not cohort.events("Died") and not cohort.co.violations
    if made["laggards"] == "wait":
        assert not cohort.events("Excluded")


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(knobs(), schedules(120), faults(ALL, most=3))
def test_both_engines_give_the_same_effects(made: dict[str, Any], schedule: bytes, struck: list[Fault]) -> None:
    """I25: the tables mean the same on `transitions` as compiled."""
    made.update(samples=min(made["samples"], 30), num_epochs=1)
    runs = [Cohort(engine=engine, **CLIMB, **made) for engine in ("compiled", "transitions")]
    for cohort in runs:
        cohort.run(schedule, struck)

    assert runs[0].effects == runs[1].effects
    assert runs[0].co.snapshot() == runs[1].co.snapshot()


PATIENCE_BEGINS = {
    "policy": "cadence", "ranks": 2, "num_epochs": 1, "batch_size": 1, "samples": 20, "anchor": 2, "join_patience": 1,
    "laggards": "wait", "max_batch_diff": None, "stateful": True,
}  # fmt: skip
"""Found by this property: the others began to wait for a rank with a step that took no pass: no deadline was set."""


@settings(max_examples=35, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(knobs(), SCHEDULES, faults(ALL))
@example(PATIENCE_BEGINS, b"", [Fault(23, "pause", 0, 0)])
def test_the_short_pass_changes_nothing(made: dict[str, Any], schedule: bytes, struck: list[Fault]) -> None:
    """C-4: the whole pass after every event gives the same effects."""
    made["beacon_s"] = 1e6  # as in the cohort that only shrinks
    quick, thorough = (_Paced(**{**CLIMB, **made}) for _ in range(2))
    for cohort in (quick, whole_passes(thorough)):
        cohort.run(schedule, struck)

    assert quick.effects == thorough.effects


class _Paced(Cohort):
    """Time passes second by second, whatever the machine's deadline is, so that two of them see the same time."""

    def do(self, action: Action, at: float | None = None, *, sure: bool = False) -> Step:
        if action != act("tick"):
            return super().do(action, at, sure=sure)
        at = self.now + 1.0
        for process in self.processes:
            super().do(act("tick", process.number), at)
        return super().do(act("tick", COORDINATOR), at)
