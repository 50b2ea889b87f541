"""The kits for policies: what ships keeps them, and each broken policy of the folder is caught by the check named here.
B-2 to B-17, B-30 to B-34, G-9, M-11, C-13; I35, I61, I62, I64."""

from __future__ import annotations

import json
import re
import runpy
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.backends.cli import cli
from paceline.core.cadence import Balancer
from paceline.core.cadence_inputs import WindowReport
from paceline.core.config import DETECTOR_NAMES, GUARD_NAMES, POLICIES, Config
from paceline.core.conformance import Status
from paceline.core.conformance.policies import SHIPPED, check_policy, liveness, policy_named
from paceline.core.coordinator import Coordinator
from paceline.core.detector import Learned, Limits, judged
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.guard import GrowthGuard, LevelGuard, NoGuard
from paceline.core.policies import Policies
from paceline.core.simulation import Setup, World
from paceline.core.simulation.simulator import simulate
from paceline.transports.limit import ended

from conformance.broken_policies import detectors, guards
from conformance.broken_policies.table import FOLDERS
from conformance.caught import ensure_caught
from conformance.hanging import hangs
from support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("nobody_waits_for_what_hangs")

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_policies.py"
NAMES = [(kind, name) for kind, named in SHIPPED.items() for name in named]
BROKEN = [(kind, *case) for kind, folder in FOLDERS.items() for case in folder.cases()["argvalues"]]


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_what_ships_keeps_its_contract(kind: str, name: str) -> None:
    """B-33: every policy of ours by the name that a user gives it, up to the simulated runs."""
    report = check_policy(kind, policy_named(kind, name), target=name)
    assert [f"{o.id} {o.message}" for o in report.outcomes if not o.ok] == []


def test_every_name_of_the_configuration_is_one_of_the_kits() -> None:
    """What a knob can say can be judged, and a name that is none is told those that are."""
    assert tuple(SHIPPED["guard"]) == GUARD_NAMES and tuple(SHIPPED["cadence"]) == POLICIES
    assert tuple(SHIPPED["detector"]) == DETECTOR_NAMES
    assert [type(make()) for make in SHIPPED["meta"].values()] == [type(Coordinator(Config(meta_controller=True)).meta)]
    assert [type(SHIPPED["guard"][name]()) for name in GUARD_NAMES] == [LevelGuard, GrowthGuard, NoGuard]
    with pytest.raises(ConfigError, match="no detector 'levle'; those that ship are learned, fixed"):
        policy_named("detector", "levle")


@pytest.mark.parametrize(("kind", "check", "broken"), BROKEN,
                         ids=[f"{check}-{each.__name__}" for _, check, each in BROKEN])  # fmt: skip
def test_a_broken_policy_is_caught_by_its_check(kind: str, check: str, broken: type) -> None:
    """A net with holes is none."""
    (outcome,) = check_policy(kind, broken, only=[check], limit=ended, patience_s=PATIENCE_S).outcomes
    ensure_caught(outcome)
    assert ("did not end within" in outcome.message) == hangs(broken), outcome.message


def test_a_policy_that_hangs_is_told_by_its_call_and_judged_no_further() -> None:
    """However many checks would wait for it, one does; the claims are not asked twice."""
    report = check_policy("guard", guards.LoopsInObserve, limit=ended, patience_s=PATIENCE_S)
    (failed,) = (each for each in report.outcomes if not each.ok)
    assert failed.id == "P111" and re.fullmatch(
        r"the check did not end within 300 s: LoopsInObserve.observe did not come back, and was in "
        r"_with_norms \(guards.py:\d+\)", failed.message
    ), failed.message  # fmt: skip
    left = [each.message for each in report.outcomes if each.status is Status.NOT_CHECKED]
    assert left == ["P111 failed: repair that first"] * 8


def test_a_kit_ends_on_any_thread_and_leaves_none() -> None:
    """What loops is ended, not left to burn beside the tests that follow."""
    before = set(threading.enumerate())
    found: list[Any] = []

    def judge() -> None:
        found.append(check_policy("detector", detectors.LoopsOverNothing, only=["P311"], limit=ended,
                                  patience_s=PATIENCE_S))  # fmt: skip

    caller = threading.Thread(target=judge)
    caller.start()
    caller.join()
    assert not found[0].ok
    for left in set(threading.enumerate()) - before:
        left.join(PATIENCE_S)
    assert set(threading.enumerate()) <= before


def test_the_runs_of_the_kits_are_what_they_say() -> None:
    """I35, I38: without a fault nobody stands still; in the others faults strike, or they would show nothing."""
    struck = [simulate(case).struck for case in liveness.CASES]
    assert struck[:3] == [0, 0, 0] and min(struck[3:]) > 0, struck


@pytest.mark.parametrize(("kind", "name"), [("guard", "PatientGuard"), ("cadence", "EqualSteps"),
                                            ("detector", "TwiceTheSlowest"), ("meta", "HalfAtACliff")])  # fmt: skip
def test_the_policies_of_the_guide_keep_their_contract(kind: str, name: str) -> None:
    """docs/examples/own_policies.py, which docs/guides/write-a-policy.md explains."""
    report = check_policy(kind, runpy.run_path(str(EXAMPLE))[name])
    assert [f"{o.id} {o.message}" for o in report.outcomes if not o.ok] == []


def test_the_command_judges_a_factory(tmp_path: Path) -> None:
    """`paceline conform policy NAME --kind KIND`."""
    path = tmp_path / "out.json"
    done = CliRunner().invoke(cli, ["conform", "policy", "paceline.core.guard:LevelGuard", "--kind", "guard",
                                    "--level", "L1", "--json", str(path)], standalone_mode=False)  # fmt: skip
    assert done.return_value == 0, done.output
    assert json.loads(path.read_text())["claims"] == {"free_of_world": True, "nudges": False}
    (outcome,) = check_policy("guard", guards.AnswersInWords, target="mine:AnswersInWords", only=["P111"]).outcomes
    assert outcome.rerun == "paceline conform policy mine:AnswersInWords --kind guard --check P111"
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


def test_a_snapshot_holds_what_a_balancer_saves_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """B-16, N-13: restored with the same policies it goes on alike, with others it is refused."""
    policies = Policies(cadence=Own)
    world = World(Setup(ranks=2, samples=24), policies=policies)
    while world.co.cycle.finished < 2:
        world.do(world.enabled()[0])
    kept = json.loads(json.dumps(world.co.snapshot()))
    twin = Coordinator.restore(world.config, kept, policies=policies)
    assert isinstance(twin.balancer, Own) and twin.snapshot() == world.co.snapshot()
    with pytest.raises(CheckpointError, match=r"cadence: this run has .*:Own, not paceline.core.cadence:Balancer"):
        Coordinator.restore(world.config, kept)
    monkeypatch.setattr(Own, "restore", lambda self, saved: False)
    with pytest.raises(CheckpointError, match="the state of another balancer than Own"):
        Coordinator.restore(world.config, kept, policies=policies)


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
