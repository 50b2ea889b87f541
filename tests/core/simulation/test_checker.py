"""The model checker: its shortcuts are none that matter, what is broken is found, and what it says is so."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from paceline.backends import command_check
from paceline.backends.cli import cli
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigError, InvariantError, LocalProtocolError
from paceline.core.simulation import World
from paceline.core.simulation import checker as checker_module
from paceline.core.simulation import explore as explore_module
from paceline.core.simulation.check_report import CheckReport, counterexample
from paceline.core.simulation.checker import HEAD, PATIENCE, Bounds, Cohort, check
from paceline.core.simulation.explore import Budget, Failure, Model, Progress, explore
from paceline.core.simulation.fingerprint import fingerprint, of_bytes
from paceline.core.simulation.forget import no_returns
from paceline.core.simulation.machines import Machines
from paceline.core.simulation.schedule import Schedule, judge, play
from paceline.core.simulation.spelling import of_coordinator as coordinator_spelling
from paceline.core.simulation.spelling import of_worker as worker_spelling
from paceline.core.simulation.twin import twin
from paceline.core.simulation.violation import Violation

from support.mutants import change_rows

ALONE = Bounds(ranks=1, drops=1, duplicates=1)
CALM = Bounds(ranks=2)


class Watched(Cohort):
    """Notes how runs end, and compares every `sample`-th step with the same step on an entire world."""

    def __init__(self, bounds: Bounds, sample: int = 0, **options: bool) -> None:
        super().__init__(bounds, **options)
        self.ends: set[tuple[Any, ...]] = set()
        self.sample, self.steps = sample, 0

    def final(self, state: tuple[int, ...]) -> bool:
        finish = self.parts.run(self._row(state))[1]
        if finish is not None:
            version = dict(self.parts.ghost(self._row(state))).get("version")
            self.ends.add((finish.status, version, self._struck(state)))
        return super().final(state)

    def step(self, state: tuple[int, ...], action: Any) -> tuple[int, ...]:
        after = super().step(state, action)
        self.steps += 1
        if self.sample and self.steps % self.sample == 0:
            whole = self.parts.whole(self._row(state), action)
            assert self.parts.fingerprint(whole) == self.parts.fingerprint(self._row(after)), action
        return after

    def actions(self, state: tuple[int, ...], *, every: bool = False) -> Any:
        found = super().actions(state, every=every)
        if not found:
            self.final(state)
        return found


class Forgetting(Cohort):
    """Keeps all notes, and compares: every `sample`-th step, then to forget, is to forget, and then the step."""

    def __init__(self, bounds: Bounds, sample: int) -> None:
        super().__init__(bounds, forget=False)
        self.short = Cohort(bounds)
        self.sample, self.steps, self.compared = sample, 0, 0

    def step(self, state: tuple[int, ...], action: Any) -> tuple[int, ...]:
        after = super().step(state, action)
        self.steps += 1
        if self.steps % self.sample == 0:
            there = self.short.step(self.forgotten(state), action)
            assert self.short.fingerprint(there) == self.short.fingerprint(self.forgotten(after)), action
            self.compared += 1
        return after

    def forgotten(self, state: tuple[int, ...]) -> tuple[int, ...]:
        """The same world in the drawers of the other model, which keep no notes."""
        world, parts = self.parts.build(self._row(state)), self.short.parts
        world._co_seen = None
        parts.world.load(world.snapshot())
        parts.loaded = -1
        return (*state[:HEAD], *parts.row())


def explored(bounds: Bounds, sample: int = 0, states: float = math.inf, **options: bool) -> tuple[Watched, Any]:
    model = Watched(bounds, sample, **options)
    as_model: Model[Any, Any] = model
    return model, explore(as_model, budget=Budget(states=states))


# --- shortcuts -------------------------------------------------------------------------------------------------------


def test_an_action_reads_no_more_than_is_remembered_of_it() -> None:
    """Each step by parts is the same step on the entire world."""
    model, seen = explored(CALM, sample=5)
    assert seen.ok and seen.complete and model.steps > 500
    model, seen = explored(attrs.evolve(ALONE, deaths=1, restarts=1), sample=25)
    assert seen.complete and model.steps > 500
    model, seen = explored(Bounds(ranks=2, drops=1, deaths=1), sample=40, states=1500)
    assert seen.ok and model.steps > 1500


@pytest.mark.parametrize(("bounds", "shortcut"), [(ALONE, "forget"), (ALONE, "reduce"), (CALM, "reduce")], ids=str)
def test_neither_orders_nor_notes_that_are_left_out_change_how_runs_end(bounds: Bounds, shortcut: str) -> None:
    """The same ends, and the same answers, with all of them in it; only the number of states differs."""
    short, seen = explored(bounds)
    whole, everything = explored(bounds, **{shortcut: False})
    assert short.ends == whole.ends and ("ok", bounds.cycles, 0) in short.ends
    assert (seen.ok, seen.unreached) == (everything.ok, everything.unreached)
    assert seen.states < everything.states or (bounds.ranks == 1 and shortcut == "reduce")


@pytest.mark.parametrize(("bounds", "sample"), [
    (ALONE, 20), (Bounds(ranks=1, deaths=1, restarts=1), 5),
    (Bounds(ranks=2, knobs=(("averager", "collective"),)), 25),
], ids=str)  # fmt: skip
def test_what_is_forgotten_decides_nothing(bounds: Bounds, sample: int) -> None:
    """M-11, K-20, N-9, N-10: copies, confirmations and counts change neither what can happen nor what it leads to. In a
    collective it is asked what a rank has confirmed (M-6, M-32)."""
    model = Forgetting(bounds, sample)
    as_model: Model[Any, Any] = model
    assert explore(as_model).ok and model.compared > 50


def test_what_was_worked_out_once_is_not_worked_out_again() -> None:
    """Most steps are known by the parts that they read, most events of the coordinator by its state."""
    model, seen = explored(ALONE)
    assert seen.complete and 4 * model.parts.recalled.asked < 2 * model.parts.worked < model.steps


@pytest.mark.parametrize("bounds", [CALM, Bounds(ranks=1, deaths=1, restarts=1)], ids=str)
def test_a_machine_that_takes_an_event_is_not_the_one_that_is_kept(bounds: Bounds) -> None:
    """N-13: a twin is what a snapshot gives, shares nothing that an event writes, and two machines are spelled alike if
    their snapshots are. Those that were kept have been followed by all that can happen, and are what they were."""
    model, _ = explored(bounds)
    parts = model.parts
    world, coordinators = parts.world, [parts.machines.of(number) for number in range(len(parts.coordinators))]
    workers = [worker for _, worker in parts.bodies.things]
    for machines, of in ((coordinators, coordinator_spelling), (workers, worker_spelling)):
        snapshots = [machine.snapshot() for machine in machines]
        assert [twin(machine).snapshot() for machine in machines] == snapshots
        assert len({fingerprint(of(machine)) for machine in machines}) == len(set(snapshots))
    for machine, print_ in zip(coordinators, parts.coordinators.fingerprints, strict=True):
        restored = Coordinator.restore(world.config, machine.snapshot(), engine=world.setup.engine)
        assert of_bytes(coordinator_spelling(machine)) == of_bytes(coordinator_spelling(restored)) == print_
        assert all(peer.co is twice for twice in [twin(machine)] for peer in twice.peers.values())
    for (fields, worker), print_ in zip(parts.bodies.things, parts.bodies.fingerprints, strict=True):
        assert fingerprint((fields, worker_spelling(worker))) == print_
    assert len(coordinators) > 25 and len(workers) > 15


def test_machines_that_were_not_asked_for_lately_come_back_from_their_snapshots() -> None:
    """Their number is bounded, and what is given for a number is the same each time."""
    model, _ = explored(ALONE)
    kept, few = model.parts.machines, Machines(model.parts.world, awake=3)
    snapshots = [kept.of(number).snapshot() for number in range(9)]
    for number in range(9):
        few.keep(number, kept.of(number))
    for _ in range(2):
        assert [few.of(number).snapshot() for number in range(9)] == snapshots
    assert few.of(8) is few.of(8) is not kept.of(8) and few.of(0) is not kept.of(0)


def test_what_no_snapshot_could_hold_is_refused() -> None:
    """A policy of somebody else is not copied by guessing."""
    co: Any = Coordinator(CALM.setup().config())
    co.lost = {1, 2}
    with pytest.raises(LocalProtocolError, match="a set is no part of a machine"):
        twin(co)


def test_a_step_that_breaks_something_breaks_it_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of such a step is what it broke, and the parts of the world are back in their places."""
    cohort = Cohort(CALM)
    state, before = cohort.initial(), cohort.parts.world.averager
    while (action := cohort.actions(state)[0]).kind != "report":
        state = cohort.step(state, action)

    def raises(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Coordinator, "handle", raises)
    for _ in range(2):
        with pytest.raises(Violation, match="I22"):
            cohort.step(state, action)
    assert cohort.parts.world.averager is before and isinstance(cohort.parts.world.co, Coordinator)


def test_confirmations_are_forgotten_only_where_nobody_asks_for_them() -> None:
    """M-42, M-14: a run with a grace for lost links, or one that excludes, decides by them."""
    assert no_returns(CALM.setup().config())
    for knobs in ({"link_grace_s": 5.0}, {"reconnect_window_s": 5.0}, {"laggards": "exclude"}):
        assert not no_returns(attrs.evolve(CALM, knobs=tuple(knobs.items())).setup().config())


def test_fingerprints_are_those_of_the_content() -> None:
    """A state has the same one in another search, where its parts have other numbers."""
    one, other = Cohort(CALM), Cohort(attrs.evolve(CALM, drops=0))
    state = one.initial()
    for _ in range(12):
        state = one.step(state, one.actions(state)[0])
    there = other.initial()
    for last in (True, False):  # another order first, then the same
        there = other.initial()
        for _ in range(12):
            there = other.step(there, other.actions(there)[-1 if last else 0])
    assert one.fingerprint(state) == other.fingerprint(there) and state != there


# --- what it finds ---------------------------------------------------------------------------------------------------


def test_a_gate_that_opens_too_early_is_found_in_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """C-12: a cycle that finishes without its acknowledgements."""
    change_rows(monkeypatch, "cycle", lambda row: row.event == "Judge" and row.guards == ("gate_complete",), guards=())
    report = check(CALM)
    found = report.counterexample
    assert not report.ok and found is not None and report.exploration.failure is not None
    assert len(report.exploration.failure.actions) < 15 and report.exploration.failure.faults == 0
    assert report.headline.startswith("broken within 2 ranks / 1 cycle")
    _shows(report)


def _shows(report: CheckReport) -> None:
    """Every form of the counterexample shows the same."""
    found = report.counterexample
    assert found is not None
    schedule = Schedule.parse(str(found.schedule))
    with pytest.raises(Violation) as raised:
        for _ in play(World(schedule.setup), schedule.actions):
            pass
    assert raised.value.name == schedule.breaks
    names: dict[str, Any] = {}
    exec(compile(found.test(), "test_counterexample.py", "exec"), names)
    with pytest.raises(Violation, match=schedule.breaks or ""):
        names["test_what_the_model_checker_found"]()
    assert "   1. " in report.text() and found.text in report.text()
    assert found.diagram().startswith("sequenceDiagram\n    participant C as coordinator")
    assert json.loads(json.dumps(report.facts()))["counterexample"]["schedule"] == str(found.schedule)


def test_a_wait_without_end_is_found_although_nothing_is_ever_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-12.5: a rank that no Update releases. No invariant breaks; beacons and heartbeats go on for ever."""
    change_rows(monkeypatch, "worker", lambda row: row.event == "Update" and "release" in row.effects,
                effects=("commit",))  # fmt: skip
    report = check(attrs.evolve(CALM, ranks=1, cycles=2))
    failure = report.exploration.failure
    assert failure is not None and failure.property == "no deadlock" and failure.faults == 0
    assert [action.kind for action in failure.actions].count("tick") == PATIENCE
    found = report.counterexample
    assert found is not None and found.schedule.never == "ends well" and "; the run never ends well" in found.text
    world = World(found.schedule.setup)
    for _ in play(world, found.schedule.actions):
        pass
    assert judge(found.schedule, world, None)[0]  # the ceiling of a window ends it, not well


def test_what_a_note_says_in_a_violation_is_no_other_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """N-3: a coordinator that takes reports twice. The text of what breaks holds a number that nobody decides by, so
    the search may have it from another run that it takes for the same; which invariant breaks is the same in both."""
    handle = Coordinator.handle

    def takes_any_number(self: Coordinator, event: Any, now: float) -> Any:
        message = getattr(event, "message", None)
        if isinstance(message, m.Report) and message.rank in self.peers:
            due = attrs.evolve(message, report_seq=self.peers[message.rank].report_seq + 1)
            event = attrs.evolve(event, message=due)
        return handle(self, event, now)

    monkeypatch.setattr(Coordinator, "handle", takes_any_number)
    report = check(attrs.evolve(CALM, duplicates=1))
    failure = report.exploration.failure
    assert failure is not None and failure.faults == 1
    _shows(report)


def test_a_counterexample_that_shows_nothing_is_a_fault_of_the_checker() -> None:
    with pytest.raises(InvariantError, match="please report"):
        counterexample(CALM, Failure("Violation", "I1: nonsense", (), 0))


# --- what it says ----------------------------------------------------------------------------------------------------


def test_what_was_exhausted_and_what_was_cut_is_said() -> None:
    """Nothing is claimed beyond the axes."""
    whole = check(ALONE)
    assert whole.headline.startswith("exhaustive to 1 rank / 1 cycle / 1 drop / 1 duplicate: ")
    assert whole.headline.endswith(", complete") and "with 2 faults: " in whole.text()
    assert "every invariant holds" in whole.text() and "rows of the tables were taken; never taken:" in whole.text()
    assert "orders: left out where they cannot matter" in whole.text() and "notes of the machines: left" in whole.text()
    cut = check(ALONE, states=100, forget=False)
    assert "notes of the machines: all of them" in cut.text() and not cut.facts()["forgetful"]
    assert cut.headline.startswith("bounded: 1 rank") and "was cut at 10" in cut.headline
    assert "of the states not explored" in cut.text() and cut.ok and not cut.exploration.complete


@pytest.mark.parametrize(("wrong", "said"), [({"ranks": 0}, "--ranks 0"), ({"drops": -1}, "--drops -1")])
def test_bounds_that_mean_nothing_are_refused(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Bounds(**wrong)


@pytest.mark.parametrize("knobs", [{"epoch_splits": 3}, {"epoch_splits": 5}, {"batch_size": 3}, {"max_model_bytes": 1}])
def test_a_run_that_nobody_may_join_is_refused(knobs: dict[str, object]) -> None:
    """M-5, D-2: it was called broken once, as it never ended with everything covered."""
    with pytest.raises(ConfigError, match="every rank of this run of 2 ranks and 2 samples would be refused"):
        Bounds(knobs=tuple(knobs.items()))


@pytest.mark.parametrize("knobs", [{"initial_state": "/a/file"}, {"journal": "/a/file"}])
def test_what_a_simulated_run_has_not_is_refused_by_name(knobs: dict[str, object]) -> None:
    """M-6, M-40: no file of this machine is read or written by a run that is simulated."""
    with pytest.raises(ConfigError, match=f"{next(iter(knobs))} = '/a/file' cannot be simulated"):
        Bounds(knobs=tuple(knobs.items()))


# --- the command -----------------------------------------------------------------------------------------------------


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["check", *arguments], standalone_mode=False)


def test_the_guide_shows_what_the_command_prints() -> None:
    """A change of a machine changes the numbers, and then those in the guide are of no program any more."""
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "model-check.md").read_text(encoding="utf-8")
    told = invoke("--ranks", "2", "--drops", "1", "--no-rows").output.splitlines()[:3]
    alone, noted = (explore(Cohort(ALONE, **options)).states for options in ({}, {"forget": False}))

    assert "\n".join(told) in guide
    assert f"has {noted:,} states with all notes and {alone} without" in guide
    in_place = explore(Cohort(Bounds(ranks=2, knobs=(("averager", "collective"),))))
    assert f"| without a fault | {in_place.states} | {in_place.transitions} |" in guide


def test_the_command_prints_the_report_and_ends_with_0() -> None:
    result = invoke("--ranks", "1", "--budget", "2m")
    assert result.return_value == 0, result.output
    assert "exhaustive to 1 rank / 1 cycle: " in result.output and "  worker: " in result.output
    facts = json.loads(invoke("--ranks", "1", "--json").stdout)
    assert facts[0]["complete"] and facts[0]["ok"] and facts[0]["states"] == facts[0]["levels"][0]["states"]


def test_the_command_writes_a_counterexample_and_ends_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    change_rows(monkeypatch, "cycle", lambda row: row.event == "Judge" and row.guards == ("gate_complete",), guards=())
    result = invoke("--no-rows", "--out", str(tmp_path / "deep"))
    assert result.return_value == 1 and "written: " in result.output
    names = sorted(path.name for path in (tmp_path / "deep").iterdir())
    assert names == ["counterexample.mmd", "counterexample.schedule", "test_counterexample.py"]
    (tmp_path / "file").write_text("")
    assert isinstance(invoke("--out", str(tmp_path / "file" / "x")).exception, ConfigError)


@pytest.mark.parametrize(
    "words", [("--prove", "--ranks", "3"), ("--prove", "--set", "anchor=2"), ("--prove", "--policy", "sync"),
              ("--prove", "--symmetry", "0,1"), ("--processes", "2")],
)  # fmt: skip
def test_no_option_is_passed_over_in_silence(words: tuple[str, ...]) -> None:
    """Whoever asks for three ranks is not to wait for the end of another search."""
    refused = invoke(*words).exception
    assert isinstance(refused, ConfigError) and words[-2] in str(refused)


def test_to_prove_is_to_explore_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof that was cut is none; rows are told once for all of them."""
    monkeypatch.setattr(checker_module, "PROOFS", (Bounds(ranks=1), ALONE))
    done = invoke("--prove", "--processes", "1")
    assert done.return_value == 0 and done.output.count("exhaustive") == 2 and done.output.count("never taken") == 1
    moments = iter(range(0, 10_000, 100))
    monkeypatch.setattr(command_check.time, "monotonic", lambda: float(next(moments)))
    monkeypatch.setattr(checker_module, "PROOFS", (Bounds(ranks=1, drops=2, duplicates=2),))
    cut = invoke("--prove", "--processes", "1", "--budget", "50s")
    assert cut.return_value == 1 and "bounded: " in cut.output


def test_a_long_search_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole lines of their own now and then, beside what machines read; on a terminal one that is written over."""
    moments = (moment / 20 for moment in range(100_000))
    monkeypatch.setattr(command_check.time, "monotonic", lambda: float(next(moments)))
    monkeypatch.setattr(explore_module, "PROGRESS_STATES", 100)
    result = invoke("--ranks", "1", "--drops", "1", "--duplicates", "1", "--budget", "1h", "--json")
    lines = result.stderr.splitlines()
    assert json.loads(result.stdout)[0]["complete"] and 2 <= len(lines) <= 3
    whole = re.compile(r"1 rank / 1 cycle / 1 drop / 1 duplicate: \d+ states \(\d+ to be explored\), \d+ transitions, "
                       r"faults: \d, depth: \d+, \d+ s, \d+ states/s, [\d,]+ MiB$")  # fmt: skip
    assert all(whole.match(line) for line in lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    tell = command_check._teller(ALONE, over=True)
    for seconds in (0.1, 0.3):
        tell(Progress(1000, 2000, 1, 20, 300, seconds))
    said = capsys.readouterr().err
    assert said.startswith("\r\x1b[2K1,000 states (300 to be explored), 2,000 ") and said.count("\r") == 2


@pytest.mark.parametrize("text", ["", "soon", "0s", "-1s", "1d"])
def test_a_budget_is_a_time(text: str) -> None:
    assert isinstance(invoke("--budget", text).exception, ConfigError)
