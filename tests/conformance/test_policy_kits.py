"""The kits for policies: what ships keeps them, and each broken policy of the folder is caught by the check named here.
B-2 to B-17, B-30 to B-34, G-9, M-11, C-13; I35, I61, I62, I64."""

from __future__ import annotations

import functools
import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.backends.cli import cli
from paceline.core.cadence import Balancer
from paceline.core.cadence_inputs import WindowReport
from paceline.core.config import Config
from paceline.core.conformance import Status
from paceline.core.conformance.policies import KITS, check_policy
from paceline.core.coordinator import Coordinator
from paceline.core.detector import FixedDetector, Learned, LearnedDetector, Limits, judged
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.guard import GrowthGuard, LevelGuard, NoGuard
from paceline.core.policies import Policies
from paceline.core.simulation import Setup, World

from conformance.broken_policies import cadences, detectors, guards

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_policies.py"
SHIPPED: tuple[tuple[str, Any], ...] = (
    ("guard", LevelGuard), ("guard", GrowthGuard), ("guard", NoGuard), ("cadence", Balancer),
    ("detector", LearnedDetector), ("detector", functools.partial(FixedDetector, 20.0)),
)  # fmt: skip
CAUGHT_BY: dict[str, dict[type, str]] = {
    "guard": {
        guards.TelemetryByName: "P101",
        guards.DividesByTheNorm: "P111",
        guards.NudgesByTheSignal: "P111",
        guards.AnswersInWords: "P111",
        guards.CountsItsCalls: "P112",
        guards.ForgetsAtRestart: "P113",
        guards.SavesObjects: "P113",
        guards.TakesAnyRecord: "P114",
        guards.RemembersEverything: "P115",
        guards.NeverSatisfied: "P121",
        guards.ClaimsToNudge: "P122",
        guards.NudgesInSecret: "P122",
        guards.CountsRanks: "P123",
    },
    "cadence": {
        cadences.WantsFewArguments: "P201",
        cadences.DividesByCost: "P211",
        cadences.CountsInFractions: "P211",
        cadences.StarvesTheSlow: "P211",
        cadences.LongerThanAnEpoch: "P211",
        cadences.DriftsByItself: "P212",
        cadences.GrowsUnasked: "P213",
        cadences.GrowsWhenSuppressed: "P213",
        cadences.TakesTheNudgeBack: "P214",
        cadences.ForgetsItsCounts: "P215",
        cadences.TakesOtherRanks: "P216",
        cadences.KnowsNoNewcomers: "P217",
        cadences.RunsAway: "P218",
        cadences.Equalizes: "P221",
        cadences.BalancesInSecret: "P221",
        cadences.NeverGrows: "P222",
        cadences.GrowsInSecret: "P222",
        cadences.StopsInARun: "P231",
    },
    "detector": {
        detectors.AnswersInSeconds: "P301",
        detectors.MeanOfNothing: "P311",
        detectors.KnowsNoLimits: "P311",
        detectors.RemembersOthers: "P312",
        detectors.SuspectsHabits: "P313",
        detectors.LearnsBackwards: "P321",
        detectors.LearnsInSecret: "P321",
        detectors.OneForAll: "P321",
    },
}
"""Which check catches which policy."""
BROKEN = [(kind, broken, check) for kind, found in CAUGHT_BY.items() for broken, check in found.items()]


@pytest.mark.parametrize(("kind", "make"), SHIPPED, ids=lambda each: getattr(each, "__name__", str(each)[:12]))
def test_what_ships_keeps_its_contract(kind: str, make: Any) -> None:
    """Every policy of ours, up to the simulated runs."""
    report = check_policy(kind, make)
    assert [f"{o.id} {o.message}" for o in report.outcomes if not o.ok] == []


@pytest.mark.parametrize(("kind", "broken", "check"), BROKEN, ids=[broken.__name__ for _, broken, _ in BROKEN])
def test_a_broken_policy_is_caught_by_its_check(kind: str, broken: type, check: str) -> None:
    """A net with holes is none."""
    (outcome,) = check_policy(kind, broken, only=[check]).outcomes
    assert outcome.status is Status.FAILED, f"{outcome.status}: {outcome.message}"


@pytest.mark.parametrize(("module", "kind"), [(guards, "guard"), (cadences, "cadence"), (detectors, "detector")])
def test_every_broken_policy_of_the_folder_is_here(module: Any, kind: str) -> None:
    """One that nobody looks for proves nothing."""
    defined = {each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__}
    assert defined == set(CAUGHT_BY[kind])


@pytest.mark.parametrize(("kind", "name"), [("guard", "PatientGuard"), ("cadence", "EqualSteps"),
                                            ("detector", "TwiceTheSlowest")])  # fmt: skip
def test_the_policies_of_the_guide_keep_their_contract(kind: str, name: str) -> None:
    """docs/examples/own_policies.py, which docs/guides/write-a-policy.md explains."""
    report = check_policy(kind, runpy.run_path(str(EXAMPLE))[name])
    assert [f"{o.id} {o.message}" for o in report.outcomes if not o.ok] == []


def test_the_guide_explains_every_check() -> None:
    """A check that fails names a heading of the guide."""
    guide = (EXAMPLE.parents[1] / "guides" / "write-a-policy.md").read_text(encoding="utf-8")
    headings = {line[3:].lower().replace(" ", "-") for line in guide.splitlines() if line.startswith("## ")}
    assert {check.doc.partition("#")[2] for kit in KITS.values() for check in kit.checks} <= headings


def test_the_command_judges_a_factory(tmp_path: Path) -> None:
    """`paceline conform policy MODULE:FACTORY --kind KIND`."""
    path = tmp_path / "out.json"
    done = CliRunner().invoke(cli, ["conform", "policy", "paceline.core.guard:LevelGuard", "--kind", "guard",
                                    "--level", "L1", "--json", str(path)], standalone_mode=False)  # fmt: skip
    assert done.return_value == 0, done.output
    assert json.loads(path.read_text())["claims"] == {"free_of_world": True, "nudges": False}
    done = CliRunner().invoke(cli, ["conform", "policy", "conformance.broken_policies.guards:AnswersInWords", "--kind",
                                    "guard", "--check", "P111"], standalone_mode=False)  # fmt: skip
    assert done.return_value == 1 and "--kind guard --check P111" in done.output
    assert "P331" in CliRunner().invoke(cli, ["conform", "policy", "--kind", "detector", "--list"]).output
    done = CliRunner().invoke(cli, ["conform", "policy", "--kind", "guard"], standalone_mode=False)
    assert isinstance(done.exception, ConfigError) and "which policy" in str(done.exception)


# --- in the coordinator ----------------------------------------------------------------------------------------------


class Raising(Balancer):
    """Raises wherever a cycle ends."""

    def report(self, report: WindowReport, voters: Any) -> None:
        raise ZeroDivisionError("a policy of the embedder")


class Own(Balancer):
    """Of another module than the core: a snapshot holds what it saves."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        return saved.get("mine") is True and super().restore(saved)

    def saved(self) -> dict[str, Any]:
        return {**super().saved(), "mine": True}


def dullest(world: World) -> World:
    while world.enabled():
        world.do(world.enabled()[0])
    return world


def test_a_balancer_that_raises_leaves_the_counts_and_ends_no_run() -> None:
    """C-13: alerted, all later steps of the finish run, and the epochs are finished."""
    world = dullest(World(Setup(ranks=2, samples=12), policies=Policies(cadence=Raising)))
    assert world.finished and set(world.co.balancer.counts.values()) == {2}


def test_a_snapshot_holds_what_a_balancer_saves_of_itself() -> None:
    """B-16, N-13: restored with the same policies it goes on alike, with others it is refused."""
    policies = Policies(cadence=Own)
    world = World(Setup(ranks=2, samples=24), policies=policies)
    while world.co.cycle.finished < 2:
        world.do(world.enabled()[0])
    kept = json.loads(json.dumps(world.co.snapshot()))
    twin = Coordinator.restore(world.config, kept, policies=policies)
    assert isinstance(twin.balancer, Own) and twin.snapshot() == world.co.snapshot()
    with pytest.raises(CheckpointError, match="another balancer"):
        Coordinator.restore(world.config, kept, policies=Policies(cadence=lambda **knobs: Other(**knobs)))


class Other(Balancer):
    """Takes no record of `Own`."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        return "mine" not in saved and super().restore(saved)


def test_the_guard_of_the_policies_gives_way_to_the_argument() -> None:
    """`guard` is the older way to say it, and the stronger one; without either the config names the guard."""
    config = Config(batch_size=2, num_epochs=1)
    own, other = NoGuard(), GrowthGuard()
    assert Coordinator(config, policies=Policies(guard=own)).guard is own
    assert Coordinator(config, guard=other, policies=Policies(guard=own)).guard is other
    assert isinstance(Coordinator(config).guard, LevelGuard)


@pytest.mark.parametrize(
    ("says", "due"),
    [(Learned(2.0, 3), 5.0), (Learned(1e9, 3), 150.0), (Learned(float("nan"), 3), 60.0), (None, 60.0),
     (Learned(float("inf"), 3), 150.0), (Learned(42.0, 3), 42.0)],
)  # fmt: skip
def test_a_deadline_is_held_within_the_limits_of_the_run(says: Learned | None, due: float) -> None:
    """M-11: a detector can be hasty or patient, and no worse; one that raises or says nothing has said nothing."""

    class Saying:
        def deadline(self, durations: tuple[float, ...], limits: Limits) -> Any:
            return says

    limits = Limits(initial=60.0, floor=5.0, most=150.0, suspect_k=6.0)
    assert judged(Saying(), (1.0, 2.0, 3.0), limits).seconds == due
