"""The checks of all four kits that simulate: a run with the policy plugged in finishes its epochs (I28, I38)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ...cadence import CadencePhase
from ...cadence_inputs import NudgeDown, Verdict
from ...detector import Detector
from ...guard import Guard
from ...meta import Meta
from ...policies import CadenceFactory, Policies
from ...simulation.simulator import Case, simulate
from .. import Level, accepting, ensure
from .cadences import CADENCES
from .detectors import DETECTORS
from .guards import GUARDS
from .metas import METAS
from .subjects import GUIDE

__all__: list[str] = []

RUNS = (
    (1, "calm", "cadence"), (2, "slow", "async"), (3, "slow", "sync"),
    (10, "slow", "async"), (60, "flaky", "cadence"), (3, "storm", "cadence"),
)  # fmt: skip
CASES = tuple(
    Case(seed=seed, ranks=3, faults=faults, policy=policy, knobs={"num_epochs": 1})
    for seed, faults, policy in RUNS
)
"""Seeded runs. In the first three no fault strikes, and ranks are up to many times slower than others; in the others
a rank dies and comes back, a link is lost, and all of it at once."""
SUSPECTED = "a rank was suspected"


def _finishes(policies: Callable[[], Policies], what: str, *, suspects: bool = True) -> None:
    for case in CASES:
        with accepting(f"{what}: a simulated run"):
            outcome = simulate(case, policies=policies())
        ensure(outcome.violation is None, f"{what}: with the seed {case.seed}, faults {case.faults}, policy "
               f"{case.policy}: {outcome.violation}")  # fmt: skip
        ensure(not outcome.raised, f"{what}: a run went on without its answer, for it raised {outcome.raised}")
        calm = case.faults == "calm"
        ensure(not calm or outcome.status == "ok", f"{what}: a run in which nothing failed ended {outcome.status}")
        hasty = not suspects and outcome.struck == 0 and outcome.marks.get(SUSPECTED, 0)
        ensure(not hasty, f"{what}: with the seed {case.seed}, faults {case.faults}, policy {case.policy}: ranks were "
               f"suspected {hasty} times, and each of them was only as slow as ever")  # fmt: skip


@GUARDS.check("P131", Level.L3, doc=f"{GUIDE}#in-a-run")
def a_run_with_the_guard_ends(make: Callable[[], Guard]) -> None:
    """Simulated runs with the guard finish their epochs, and no invariant breaks."""
    _finishes(lambda: Policies(guard=make()), "the guard")


@CADENCES.check("P231", Level.L3, doc=f"{GUIDE}#in-a-run")
def a_run_with_the_balancer_ends(make: CadenceFactory) -> None:
    """Simulated runs with the balancer finish their epochs, and no invariant breaks."""
    _finishes(lambda: Policies(cadence=make), "the balancer")


def _a_run_ends(make: Callable[[], Detector]) -> None:
    _finishes(lambda: Policies(detector=make()), "the failure detector")


@DETECTORS.check("P331", Level.L3, doc=f"{GUIDE}#in-a-run", needs="learns", unclaimed=_a_run_ends)
def a_run_with_the_detector_ends(make: Callable[[], Detector]) -> None:
    """Simulated runs with the failure detector finish their epochs, and no invariant breaks; one that learns suspects
    nobody who is only slow (I35)."""
    _finishes(lambda: Policies(detector=make()), "the failure detector", suspects=False)


@attrs.define
class _Rated:
    """A meta-controller in a simulated run, whose ranks tell one rate for ever: it is told one that falls to a tenth in
    every third cycle, so that there is something to answer."""

    meta: Meta
    cycles: int = 0

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        self.cycles += 1
        return self.meta.observe(10.0 ** -(self.cycles // 3), anchor, verdict, phase)

    def saved(self) -> dict[str, Any]:
        return {"cycles": self.cycles, "meta": self.meta.saved()}

    def restore(self, saved: Mapping[str, Any]) -> bool:
        if not self.meta.restore(saved["meta"]):
            return False
        self.cycles = saved["cycles"]
        return True


@METAS.check("P431", Level.L3, doc=f"{GUIDE}#in-a-run")
def a_run_with_the_meta_controller_ends(make: Callable[[], Meta]) -> None:
    """Simulated runs with the meta-controller, and a rate that falls again and again, finish their epochs, and no
    invariant breaks (C-13, I62)."""
    _finishes(lambda: Policies(meta=lambda: _Rated(make())), "the meta-controller")
