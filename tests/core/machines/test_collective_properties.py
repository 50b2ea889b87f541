"""Coordinator and workers that average in place, joined: whatever breaks in a call, no step is lost or counted twice.

The checks are those of `World`, after every action: what the parameters of a rank must be by what is covered is among
them, and the machines are compared with a record that is not their own.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import messages as m

from support.cohort import Cohort, Fault
from support.runs import IN_PLACE, Swapping, action_knobs, run_faults, schedules, whole_passes

SCHEDULES = schedules(300)
DEATHS = ("crash", "doom", "doom", "fail", "cut")
ALL = (*DEATHS, "join", "join", "leave", "withhold", "poison", "pause", "hang", "stop", "checkpoint", "evaluate")
SLOW = [HealthCheck.too_slow]


@st.composite
def knobs(draw: st.DrawFn, least: int = 1) -> dict[str, Any]:
    """Runs of both policies of G-11, small enough to be many."""
    policy = draw(st.sampled_from(["cadence", "cadence", "sync"]))
    ranks = draw(st.integers(least, 4))
    made: dict[str, Any] = {
        "policy": policy, "ranks": ranks, "num_epochs": draw(st.integers(1, 2)), "batch_size": draw(st.integers(1, 3)),
        "max_ranks": 6, "min_ranks": min(ranks, draw(st.sampled_from([1, 1, 2]))), "samples": draw(st.integers(6, 60)),
        "elastic": draw(st.sampled_from([True, True, False])), "join_patience": draw(st.integers(1, 3)),
    }  # fmt: skip
    if policy == "cadence":
        made["anchor"] = draw(st.integers(1, 4))
    return made


def faults(kinds: tuple[str, ...] = ALL, most: int = 4) -> st.SearchStrategy[list[Fault]]:
    """A few faults, early enough to hit a run of some hundred actions."""
    return run_faults(kinds, most, last_rank=5)


@settings(max_examples=80, suppress_health_check=SLOW)
@given(knobs(), SCHEDULES, faults())
def test_every_run_ends_and_each_consensus_holds_what_is_covered(
    made: dict[str, Any], schedule: bytes, struck: list[Fault]
) -> None:
    """R-13, R-15, M-19: I38, I42, I43, I44, I46, I48, I52, I59, and after every event I1, I2, I4, I6 to I14, I19 to
    I21, I41, I45."""
    Cohort(**{**IN_PLACE, **made}).run(schedule, struck)


@settings(max_examples=40, suppress_health_check=SLOW)
@given(knobs(), action_knobs(), SCHEDULES, faults())
def test_callbacks_see_a_consensus_that_counts(
    made: dict[str, Any], more: dict[str, Any], schedule: bytes, struck: list[Fault]
) -> None:
    """I16, I17, I24, W-14: what acts on a consensus that is taken back acts again."""
    Cohort(**{**IN_PLACE, **made, **more}).run(schedule, struck)


@settings(max_examples=40, suppress_health_check=SLOW)
@given(knobs(3), SCHEDULES, st.integers(0, 2), st.integers(0, 3), st.integers(0, 150))
def test_one_death_inside_a_call_costs_nothing(
    made: dict[str, Any], schedule: bytes, rank: int, how: int, when: int
) -> None:
    """I30, I44, M-19: with three ranks every batch is covered once, and nobody but the dead one is lost. Those who are
    left may hear that their call failed before anybody hears of the death; once that is known one renewal is enough,
    and the end of the run may overtake its id (M-31)."""
    made["min_ranks"] = 1
    cohort = Cohort(**{**IN_PLACE, **made})
    cohort.run(schedule, [Fault(when, "doom", rank, how)])

    assert cohort.finish is not None and cohort.finish.status == "ok" and not cohort.ghost.ambiguous
    assert cohort.co.deaths <= 1 and not cohort.co.violations
    # M-31: the run may be over before the generator answers; what it says then is too late, and nobody's fault.
    late = "SessionIdGenerated: it was not asked, or is too late"
    assert not [why for _, why in cohort.co.refused if why != late]
    names = [effect.name for effect in cohort.effects if isinstance(effect, fx.Emit)]
    known = names.index("Died") if "Died" in names else 0
    assert names[known:].count("SessionNew") <= 1


@settings(max_examples=30, suppress_health_check=SLOW)
@given(knobs(2), SCHEDULES, st.lists(st.tuples(st.integers(0, 150), st.integers(0, 3)), max_size=3))
def test_calls_that_fail_are_repeated_until_they_count(
    made: dict[str, Any], schedule: bytes, failures: list[tuple[int, int]]
) -> None:
    """R-15, R-18, I28: nobody dies of it, and all of it is covered without one batch trained again."""
    cohort = Cohort(**{**IN_PLACE, **made})
    cohort.run(schedule, [Fault(when, "fail", rank) for when, rank in failures])

    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert not cohort.events("Died") and cohort.co.book.replayed == 0


@settings(max_examples=30, suppress_health_check=SLOW)
@given(knobs(2), SCHEDULES, st.integers(0, 150), st.integers(0, 150))
def test_newcomers_disturb_nobody(made: dict[str, Any], schedule: bytes, first: int, second: int) -> None:
    """I28, I30, M-25: whenever they come; what they are given is never counted."""
    made["elastic"] = True
    cohort = Cohort(**{**IN_PLACE, **made})
    cohort.run(schedule, [Fault(first, "join", 9), Fault(second, "join", 9)])

    assert cohort.finish is not None and cohort.finish.status == "ok" and cohort.co.book.replayed == 0
    assert not cohort.co.violations and not cohort.co.refused and not cohort.sent(m.RequestState)


@settings(max_examples=20, suppress_health_check=SLOW)
@given(knobs(), schedules(100), faults(most=3))
def test_both_engines_give_the_same_effects(made: dict[str, Any], schedule: bytes, struck: list[Fault]) -> None:
    """I25: the tables mean the same on `transitions` as compiled."""
    made.update(samples=min(made["samples"], 20), num_epochs=1)
    runs = [Cohort(engine=engine, **{**IN_PLACE, **made}) for engine in ("compiled", "transitions")]
    for cohort in runs:
        cohort.run(schedule, struck)

    assert runs[0].effects == runs[1].effects
    assert runs[0].co.snapshot() == runs[1].co.snapshot()
    assert runs[0].said == runs[1].said


@settings(max_examples=25, suppress_health_check=SLOW)
@given(knobs(), action_knobs(), SCHEDULES, faults(), st.sets(st.integers(1, 250), max_size=3))
def test_a_restored_machine_goes_on_as_the_one_it_replaces(
    made: dict[str, Any], more: dict[str, Any], schedule: bytes, struck: list[Fault], swaps: set[int]
) -> None:
    """I25: in the middle of a call, of a renewal, of what may be taken back."""
    runs = [Swapping(swaps, really=really, **{**IN_PLACE, **made, **more}) for really in (False, True)]
    for cohort in runs:
        cohort.run(schedule, struck)

    assert runs[0].effects == runs[1].effects
    assert runs[0].co.snapshot() == runs[1].co.snapshot()
    assert runs[0].said == runs[1].said


@settings(max_examples=25, suppress_health_check=SLOW)
@given(knobs(), SCHEDULES, faults(("crash", "doom", "fail", "leave", "join")))
def test_the_short_pass_changes_nothing(made: dict[str, Any], schedule: bytes, struck: list[Fault]) -> None:
    """C-4: the whole pass after every event gives the same effects."""
    made["beacon_s"] = 1e6  # one that falls due between two ticks leaves with the next pass, whichever that is
    quick, thorough = (Cohort(**{**IN_PLACE, **made}) for _ in range(2))
    for cohort in (quick, whole_passes(thorough)):
        cohort.run(schedule, struck)

    assert quick.effects == thorough.effects
