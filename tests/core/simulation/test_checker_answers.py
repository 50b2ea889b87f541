"""What the model checker answers: right for any cohort, shown by the files it writes, in time, and no false alarm."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from paceline.backends.cli import cli
from paceline.core import membership
from paceline.core.errors import ConfigError
from paceline.core.run import Run
from paceline.core.simulation import World
from paceline.core.simulation import checker as checker_module
from paceline.core.simulation.action import Action
from paceline.core.simulation.check_report import CheckReport, Counterexample
from paceline.core.simulation.checker import Bounds, Cohort, State, check
from paceline.core.simulation.explore import Budget, Failure, Model, explore
from paceline.core.simulation.fingerprint import PLACES, fingerprint, spread
from paceline.core.simulation.mirror import Asymmetry, Images, Mirrored
from paceline.core.simulation.schedule import Schedule, ScheduleError, judge, play
from paceline.core.simulation.setup import Setup
from paceline.core.simulation.space import Space
from paceline.core.simulation.violation import Violation

from support.mutants import change_rows

CALM = Bounds(ranks=2)
IN_PLACE = Bounds(ranks=2, knobs=(("averager", "collective"),))


def knobs(bounds: Bounds, **given: object) -> Bounds:
    return attrs.evolve(bounds, knobs=(*bounds.knobs, *given.items()))


# --- any number of parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300])
def test_a_state_of_any_size_has_a_name_of_all_its_parts(count: int) -> None:
    """Whatever differs in the last part, or in how many there are, is another state."""
    rest = [fingerprint(place) for place in range(count)]
    names = {spread((*rest, last)) for last in (fingerprint("one"), fingerprint("other"))}
    assert len(names | {spread(rest)}) == 3 and len(set(PLACES)) == len(PLACES) > count


def test_sixty_ranks_are_told_apart() -> None:
    """More than 64 parts: each of them moves, and each time it is another state."""
    cohort = Cohort(Bounds(ranks=60))
    state = cohort.initial()
    moves = [action for action in cohort.actions(state, every=True) if action.kind == "control"]
    after = [cohort.step(state, action) for action in moves]
    assert len(moves) > 1 and len({cohort.fingerprint(each) for each in (state, *after)}) == len(moves) + 1


def test_a_place_holds_any_depth_and_any_number_of_faults() -> None:
    """The nearer way is the one with fewer faults, however deep it is; a state may have any number of successors."""
    space = Space()
    number = space.add(1, 0, 0, 3_000_000)
    assert not space.comes_before(number, 1, 0) and space.faults_to(number) == 0
    far = space.add(2, 0, 5000, 7)
    assert space.faults_to(far) == 5000 and space.comes_before(far, 4999, 2_000_000) and space.is_at(far, 5000, 7)
    for other in range(3, 70_000):
        space.add(other, 0, 0, 1)
    for each in range(len(space)):
        space.explored(each, range(len(space) - 1) if each == 0 else ())
    assert space.traps([number]) == [*range(1, len(space))] and not space.traps(range(len(space)))


# --- what the configuration calls for --------------------------------------------------------------------------------


@pytest.mark.parametrize(("bounds", "survivable"), [
    (CALM, 1), (knobs(CALM, min_ranks=2), 0), (knobs(CALM, max_failure=1), 0), (knobs(CALM, max_failure=0.6), 1),
    (knobs(CALM, min_ranks=3, target_ranks=3), -1), (IN_PLACE, 1), (knobs(IN_PLACE, elastic=False), 0),
])  # fmt: skip
def test_how_many_faults_a_configuration_is_to_survive(bounds: Bounds, survivable: int) -> None:
    """M-21: `min_ranks`, `max_failure`, and what is left of a frozen collective."""
    assert bounds.survivable == survivable


@pytest.mark.parametrize("bounds", [
    knobs(CALM, min_ranks=2), knobs(CALM, max_failure=1), knobs(attrs.evolve(CALM, ranks=1), start="manual"),
    knobs(CALM, start="manual"),
], ids=str)  # fmt: skip
def test_an_end_that_the_configuration_calls_for_is_no_alarm(bounds: Bounds) -> None:
    """M-4, M-21: saved with too few left, or begun by an operator."""
    waits = dict(bounds.knobs).get("start") == "manual"
    report = check(attrs.evolve(bounds, deaths=0 if waits and bounds.ranks > 1 else 1), states=900)
    assert report.ok, report.text()


def test_a_run_that_nothing_can_begin_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator is waited for and has nothing to say; or more ranks are needed than there are."""
    monkeypatch.setattr(Run, "can_start", lambda self: False)
    report = check(knobs(CALM, start="manual"))
    assert not report.ok and report.counterexample is not None
    assert report.counterexample.schedule.never == "ends well"
    monkeypatch.undo()
    small = check(knobs(CALM, min_ranks=3, target_ranks=3))
    assert not small.ok and small.exploration.unreached


# --- what never ends well --------------------------------------------------------------------------------------------


def gives_up_too_early(patch: pytest.MonkeyPatch) -> None:
    """M-21 with two ranks for `min_ranks`: a run that could go on is saved."""
    patch.setattr(membership, "_has_waited_below_min", lambda co: co.alive_count < 2)


@pytest.mark.parametrize("bounds", [CALM, IN_PLACE])
def test_a_run_that_never_ends_well_is_shown_by_its_files(bounds: Bounds, tmp_path: Any) -> None:
    """Its schedule replays as what it says, and its test fails, for as long as the fault is there."""
    with pytest.MonkeyPatch.context() as patch:
        gives_up_too_early(patch)
        report = check(attrs.evolve(bounds, deaths=1))
        found = report.counterexample
        assert found is not None and report.exploration.failure is not None
        assert report.exploration.failure.property.endswith("the run ends with everything covered")
        text = str(found.schedule)
        assert "never ends well\n" in text and Schedule.parse(text) == found.schedule
        file = tmp_path / "counterexample.schedule"
        file.write_text(text)
        assert replayed(file) == 0 and _judged(text)[0]
        with pytest.raises(AssertionError, match="the run never ends well: in all"):
            _run_the_test(report)
    well, verdict = _judged(text)
    assert not well and "it does after " in verdict
    assert replayed(file) == 1
    _run_the_test(report)


def _judged(text: str) -> tuple[bool, str]:
    schedule = Schedule.parse(text)
    world = World(schedule.setup)
    for _ in play(world, schedule.actions, dullest=schedule.dullest):
        pass
    return judge(schedule, world, None)


def replayed(file: Any) -> int:
    result = CliRunner().invoke(cli, ["replay", str(file)], standalone_mode=False)
    code: int = result.return_value
    return code


def _run_the_test(report: CheckReport) -> None:
    assert report.counterexample is not None
    names: dict[str, Any] = {}
    exec(compile(report.counterexample.test(), "test_counterexample.py", "exec"), names)
    names["test_what_the_model_checker_found"]()


def test_never_is_judged_by_all_orders_and_nothing_less() -> None:
    """A run that can end does not never end; actions that the checker lacks are refused; a wrong word is named."""
    head = "paceline schedule 1\nsetup ranks 1\nsetup samples 1\n"
    assert not _judged(f"{head}never ends\n0.0 control 0\n")[0]
    assert _judged(f"{head}never ends well\n0.0 crash 0\n")[0] and not _judged(f"{head}never ends\n0.0 crash 0\n")[0]
    with pytest.raises(ScheduleError, match="has not the action pause"):
        _judged(f"{head}never ends\n0.0 pause 0\n")
    with pytest.raises(ScheduleError, match="line 4: write one of never ends, never ends well"):
        Schedule.parse(f"{head}never begins\n")


def test_a_run_that_is_only_slow_is_no_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends well after more deadlines than there is patience for: that is said, and nothing of it is written."""
    monkeypatch.setattr(checker_module, "PATIENCE", 2)
    with pytest.raises(ConfigError, match="waits for longer than the checker has patience, and ends well after that"):
        check(attrs.evolve(CALM, drops=1))


# --- a collective ----------------------------------------------------------------------------------------------------


class Compared(Cohort):
    """Holds every `sample`-th step against the same step on the entire world, and what can happen against the world's
    own list."""

    def __init__(self, bounds: Bounds, sample: int) -> None:
        super().__init__(bounds)
        self.sample, self.steps = sample, 0
        self.kinds: set[str] = set()

    def step(self, state: State, action: Action) -> State:
        after = super().step(state, action)
        self.kinds.add(action.kind)
        self.steps += 1
        if self.steps % self.sample == 0:
            whole = self.parts.whole(self._row(state), action)
            assert self.parts.fingerprint(whole) == self.parts.fingerprint(self._row(after)), action
            enabled = set(self.parts.build(self._row(state)).enabled())
            offered = {a for a in self.actions(state, every=True) if not self.is_fault(a)}
            assert {a for a in enabled ^ offered if a.kind not in ("tick", "dial")} == set()
        return after


@pytest.mark.parametrize(("bounds", "sample"), [
    (IN_PLACE, 2), (attrs.evolve(IN_PLACE, failures=1), 60), (CALM, 20),
    (knobs(Bounds(ranks=1, drops=1), reconnect_window_s=5.0, link_grace_s=5.0), 10),
], ids=str)  # fmt: skip
def test_the_checker_offers_all_that_the_world_does(bounds: Bounds, sample: int) -> None:
    """Also the moves of a call: an id, the average, who comes out of it and who fails; and each of them, done by the
    parts that it reads, is what it is on the entire world."""
    model = Compared(bounds, sample)
    as_model: Model[Any, Any] = model
    seen = explore(as_model, budget=Budget(states=3000))
    assert seen.ok and model.steps > 250
    if bounds.setup().config().is_collective:
        assert {"session", "unite", "emerge"} <= model.kinds and ("collapse" in model.kinds) == bool(bounds.failures)


def test_a_collective_is_explored_to_its_ends() -> None:
    """2 ranks, without a fault: every order leads to the same end as those that were not left out."""
    short, long = check(IN_PLACE), check(IN_PLACE, reduce=False)
    assert short.ok and long.ok and short.exploration.states < long.exploration.states
    with pytest.raises(ConfigError, match="--failures 1 is not allowed: only a call of a collective"):
        attrs.evolve(CALM, failures=1)


def test_the_test_of_a_counterexample_holds_its_schedule_to_the_letter() -> None:
    """What a machine raised, or a path in a knob, may have quotes and backslashes in it."""
    setup = Setup(knobs={"save_path": 'C:\\new """x"""'})
    schedule = Schedule(setup=setup, actions=(), comment="it raised 'one\\ntwo'")
    told: dict[str, Any] = {}
    exec(Counterexample(schedule, (), (), "").test(), told)
    assert Schedule.parse("\n".join(line.strip() for line in told["FOUND"].strip().splitlines())) == schedule


def test_a_call_that_is_acknowledged_before_it_has_ended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-14, K-3: a damaged row of the collective's table."""
    change_rows(monkeypatch, "worker", lambda row: row.event == "CollectiveDone" and "serve_call" in row.effects,
                effects=("acknowledge_call", "serve_call"))  # fmt: skip
    report = check(IN_PLACE)
    assert report.counterexample is not None and report.counterexample.schedule.breaks == "I22"
    with pytest.raises(Violation, match="I22"):
        _run_the_test(report)


# --- ranks that change places ----------------------------------------------------------------------------------------


class Seen(Mirrored):
    """Notes the fingerprints of all states of the images that were explored."""

    def __init__(self, bounds: Bounds, ranks: tuple[int, ...]) -> None:
        super().__init__(Cohort(bounds, reduce=False), ranks)
        self.names: set[int] = set()

    def actions(self, images: Images) -> Any:
        self.names |= {self.cohort.fingerprint(state) for state in images[0]}
        return super().actions(images)


class Names(Cohort):
    """Notes the fingerprints of all states that were explored."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds, reduce=False)
        self.names: set[int] = set()

    def actions(self, state: State, *, every: bool = False) -> Any:
        self.names.add(self.fingerprint(state))
        return super().actions(state, every=every)


@pytest.mark.parametrize(("bounds", "ranks", "depth", "share"), [
    (attrs.evolve(IN_PLACE, ranks=3), (1, 2), 14, 0.7), (Bounds(ranks=4), (3, 1, 2), 5, 0.35),
    (Bounds(ranks=3, deaths=1), (1, 2), 4, 0.7),
], ids=str)  # fmt: skip
def test_the_orbits_of_ranks_are_the_states_of_the_whole_search(
    bounds: Bounds, ranks: tuple[int, ...], depth: int, share: float
) -> None:
    """A part of the states stands for all of them: each is among the images of one that was explored, and no other
    state is. These are as many steps away as the run itself, so that is to be seen of the first steps alone."""
    some, whole = Seen(bounds, ranks), Names(bounds)
    models: tuple[Model[Any, Any], Model[Any, Any]] = (some, whole)
    orbits, all_of_it = (explore(model, budget=Budget(depth=depth)) for model in models)
    assert orbits.ok and all_of_it.ok and some.names == whole.names
    assert orbits.states < share * all_of_it.states and len(whole.names) > 50


def test_ranks_that_the_protocol_tells_apart_are_refused_with_the_run_that_shows_it() -> None:
    """M-6: the lowest rank gives the initial state. What is said is said of the run whose actions are told, be it the
    one or the other: that is a matter of fingerprints."""
    either = (r"(upload 0: then reduce can happen, and in the mirror image reduce cannot"
              r"|upload 1: then reduce cannot happen, and in the mirror image reduce can); explore")  # fmt: skip
    with pytest.raises(ConfigError, match=rf"ranks 0 and 1 cannot change places within these bounds: .*, {either}"):
        check(CALM, symmetry=(0, 1))


def test_after_the_loss_of_the_lowest_rank_each_image_is_explored_by_itself() -> None:
    """The next one has its part (M-6). No image is left out, and the run that is told of one is a run that happens."""
    bounds = Bounds(ranks=3, deaths=1)
    orbits, way = Mirrored(Cohort(bounds, reduce=False), (1, 2)), [(Action("crash", 0), 0), (Action("report", 0), 0)]
    images = orbits.initial()
    for turned in way:
        images = orbits.step(images, turned)
    while len(images[0]) > 1:
        before, parted, turned = images, orbits.parted, orbits.actions(images)[-1]
        way.append(turned)
        images = orbits.step(images, turned)
    offered = [action for action, _ in orbits.actions(before)]
    ways = [chosen for action, chosen in orbits.actions(before) if action == turned[0]]
    assert sorted(ways) == [0, 1] and turned[1] == ways[-1]
    assert orbits.parted - parted == sum(offered.count(action) == 2 for action in set(offered)) >= 1
    assert len({orbits.fingerprint(orbits.step(before, (turned[0], chosen))) for chosen in ways}) == 2
    while not orbits.final(images):
        way.append(orbits.actions(images)[0])
        images = orbits.step(images, way[-1])
    world = World(bounds.setup())
    for action in orbits.told(Failure("", "", tuple(way), 1)).actions:
        world.do(action)
    assert world.finished


def test_a_fault_is_found_in_a_part_of_the_states_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that is shown is a run, not an image of one; what is broken in one of the images only is told."""
    change_rows(monkeypatch, "cycle", lambda row: row.event == "Judge" and row.guards == ("gate_complete",), guards=())
    report = check(Bounds(ranks=3), symmetry=(1, 2))
    assert report.counterexample is not None and report.counterexample.schedule.breaks is not None
    mirrored = Mirrored(Cohort(Bounds(ranks=3)), (1, 2))
    first = mirrored.initial()
    after = mirrored.step(first, mirrored.actions(first)[0])
    monkeypatch.setattr(mirrored, "_after", lambda state, action: Violation("I1", "seen") if action.who == 1 else state)
    mirrored._at = None
    with pytest.raises(Asymmetry, match=r"leads to I1: seen, and in the mirror image to no broken invariant"):
        mirrored.step(after, (Action("control", 1), 0))


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_budget_is_kept_to_within_a_step_and_counts_from_the_beginning() -> None:
    """Steps of large cohorts take long, and to make such a cohort too."""
    moments = iter(range(10_000))
    report = check(Bounds(ranks=5), seconds=50.0, clock=lambda: float(next(moments)))
    assert report.exploration.cut == "seconds" and 50 <= report.exploration.seconds <= 53
    late = iter([0.0, 9.0, 9.0])
    spent = check(Bounds(ranks=5), seconds=0.5, clock=lambda: next(late))
    assert spent.exploration.transitions == 0 and not spent.exploration.complete and spent.exploration.seconds == 9.0


@pytest.mark.parametrize("wrong", [
    ["--ranks", "65"], ["--ranks", "0"], ["--ranks", "100000"], ["--cycles", "1001"], ["--deaths", "-1"],
    ["--drops", "99999999999999999999"], ["--symmetry", "1"], ["--symmetry", "0,0"], ["--symmetry", "0,2"],
    ["--symmetry", "0,1,1"],
    ["--failures", "1"],
])  # fmt: skip
def test_numbers_beyond_sense_are_refused_by_name(wrong: list[str]) -> None:
    """Before anything is made of them."""
    result = CliRunner().invoke(cli, ["check", *wrong], standalone_mode=False)
    assert isinstance(result.exception, ConfigError)
    assert f"{wrong[0]} {wrong[1]} is not allowed" in str(result.exception).replace("'", "")
