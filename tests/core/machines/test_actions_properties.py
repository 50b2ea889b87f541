"""Checkpoints and evaluations in joined runs, whatever the order of things and whatever breaks (protocol section 12).

Beside the checks that the ghost makes in every run (I16, I17, I24 among them), what a whole run owes is asked here.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import messages as m
from paceline.core.roles import ROLES

from support.cohort import Cohort, Fault
from support.runs import action_knobs, run_faults, schedules

FAULTS = ("crash", "cut", "poison", "abort", "leave", "stop", "break", "checkpoint", "evaluate")
SCHEDULES = schedules(300)


@st.composite
def knobs(draw: st.DrawFn) -> dict[str, Any]:
    """Runs of every policy with every trigger."""
    policy = draw(st.sampled_from(["cadence", "sync", "async"]))
    made: dict[str, Any] = {
        "policy": policy, "ranks": draw(st.integers(1, 3)), "num_epochs": draw(st.integers(0, 4)),
        "samples": draw(st.integers(4, 40)), **draw(action_knobs()),
    }  # fmt: skip
    if policy != "sync":
        made["anchor"] = draw(st.integers(1, 4))
    return made


def faults(kinds: tuple[str, ...] = FAULTS, most: int = 3) -> st.SearchStrategy[list[Fault]]:
    """Early enough to hit a run of a few hundred actions."""
    return run_faults(kinds, most, until=150, last_rank=2, most_amount=2)


def acted(cohort: Cohort, kind: str) -> list[tuple[int, int, int]]:
    """Everything of a kind that any rank was ordered to do: (rank, decision, version)."""
    found = []
    for process in cohort.processes:
        for order in cohort.said[process.number]:
            if isinstance(order, fx.FireCallback) and order.name == kind:
                found.append((process.rank, order.decision_id, order.version))
            elif isinstance(order, fx.Evaluate) and kind == "evaluate":
                found.append((process.rank, order.schedule_id, order.version))
    return found


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(knobs(), SCHEDULES, faults())
def test_every_run_ends_whatever_its_callbacks_do(
    made: dict[str, Any], schedule: bytes, struck: list[Fault]
) -> None:
    """I38, I42, and at every order I16, I17, I24: targets that die before or after they acted, errors, failover."""
    cohort = Cohort(**made)
    cohort.run(schedule, struck)

    assert not cohort.co.violations
    assert not any(duty.decision_id == m.FINAL_EVALUATION for duty in cohort.co.actions.duties) or cohort.co.save_issued


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(knobs(), SCHEDULES)
def test_a_quiet_run_does_everything_once_and_ends_with_its_bundle(made: dict[str, Any], schedule: bytes) -> None:
    """K-4, K-16, K-17, W-6: the last consensus is written under the final name and evaluated; every evaluation reaches
    every rank; each epoch's callback is called once in the cohort."""
    made["role_policy"] = "fastest"
    cohort = Cohort(**made)
    cohort.run(schedule)
    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert not cohort.co.refused and not cohort.alerts("checkpoint_failed")

    last = cohort.co.cycle.version
    saves = [e for e in cohort.effects if isinstance(e, fx.SaveConsensus)]
    assert not made["save_path"] or (saves[-1].version, saves[-1].stem) == (last, "runs/consensus")
    finals = [version for _, decision, version in acted(cohort, "evaluate") if decision == m.FINAL_EVALUATION]
    assert finals == ([last] if "evaluate" in made["callbacks"] else [])
    results = cohort.events("Evaluated")
    for result in results if made["policy"] != "async" else ():  # there a rank holds a blend of it
        mean = cohort.ghost.means[result["version"]]
        assert result["metric"] == pytest.approx(mean), "I17: the result is that of its version"
    told = cohort.sent(m.EvalBroadcast)
    assert len(told) == len(results) * made["ranks"]
    fired = sorted(decision for _, decision, _ in acted(cohort, "epoch"))
    if made["callbacks"] == ROLES and made["policy"] != "async":
        assert fired == sorted(set(fired))


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(knobs(), schedules(100), faults())
def test_both_engines_act_alike(made: dict[str, Any], schedule: bytes, struck: list[Fault]) -> None:
    """I25: equal effects on `transitions` as compiled, callbacks included."""
    made["num_epochs"] = min(made["num_epochs"], 2)
    runs = [Cohort(engine=engine, **made) for engine in ("compiled", "transitions")]
    for cohort in runs:
        cohort.run(schedule, struck)

    assert runs[0].effects == runs[1].effects
    assert runs[0].co.snapshot() == runs[1].co.snapshot()
