"""Schedules: text and value are the same thing, a wrong line is named, and what is played is what was recorded."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core.simulation import Action, Setup, Violation, World
from paceline.core.simulation.marks import MARKS, Marks
from paceline.core.simulation.schedule import Schedule, ScheduleError, judge, play
from paceline.core.simulation.sequence import of_steps
from paceline.core.simulation.setup import greeting
from paceline.core.simulation.strategies import schedules
from paceline.core.simulation.transcript import describe, lines
from paceline.core.simulation.violation import CHECKED
from paceline.core.simulation.walk import numbers_of, schedule_of
from paceline.transports.codec import MsgpackCodec

KEPT = sorted((Path(__file__).parents[2] / "schedules").glob("*.schedule"))
HEAD = "paceline schedule 1\nsetup ranks 2\n"


def played(schedule: Schedule) -> list[str]:
    world = World(schedule.setup)
    return [line for step in play(world, schedule.actions, dullest=schedule.dullest) for line in lines(step)]


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(schedules(most=80))
def test_any_run_ends_well_and_its_file_is_the_same_run(schedule: Schedule) -> None:
    """I25, I38: whatever the order and the faults; from the text of the schedule on, the same transcript."""
    again = Schedule.parse(str(schedule))

    assert again == schedule
    assert played(again) == played(schedule)


def test_nothing_chosen_is_the_dullest_run() -> None:
    schedule = schedule_of(Setup(ranks=2, samples=4), [0] * 30)

    assert [str(action) for _, action in schedule.actions[:4]] == ["control 0", "order 0", "report 0", "upload 0"]
    assert numbers_of(b"\x01\x00\x02\x01\xff") == [1, 258]


def test_a_file_says_everything() -> None:
    text = (
        'paceline schedule 1\n# one\n# two\nsetup ranks 2\nsetup callbacks ["epoch"]\nknob policy "async"\nends ok\n'
        "0.0 control 0\n0.25 crash 1 2\nthen dullest\n"
    )
    schedule = Schedule.parse(text)

    assert str(schedule) == text
    assert schedule.actions == ((0.0, Action("control", 0)), (0.25, Action("crash", 1, 2)))
    assert schedule.comment == "one\ntwo" and schedule.ends == "ok" and schedule.dullest


@pytest.mark.parametrize(("text", "says"), [
    ("", "line 1: '' begins no schedule"),
    ("paceline schedule 9\n", "line 1: this schedule has format 9"),
    (HEAD + "setup speed 3\n", "line 3: a setup has ranks"),
    (HEAD + "setup ranks 3\n", "line 3: ranks is given twice"),
    (HEAD + "knob policy async\n", "line 3: 'async' is no value in JSON"),
    (HEAD + "knob speed 3\n", "no knob 'speed'"),
    (HEAD + "0.0 fly 1\n", "line 3: there is no action 'fly'"),
    (HEAD + "soon report 1\n", "line 3: 'soon' is neither"),
    (HEAD + "1.0\n", "line 3: an action is missing"),
    (HEAD + "1.0 report 1\n0.5 report 1\n", "line 4: 0.5 lies before"),
    (HEAD + "1.0 report 1\nsetup samples 3\n", "line 4: the head comes before"),
    (HEAD + "ends ok\nbreaks I2\n", "line 4: one expectation"),
    (HEAD + "ends foo\n", "line 3: nothing ends 'foo'; write 'ends' and one of ok, saved"),
    (HEAD + "breaks I999\n", "line 3: nothing breaks 'I999'"),
    (HEAD + 'knob policy "async" "sync"\n', "line 3: '\"sync\"' follows the value"),
    ("paceline schedule 1\nsetup ranks 99999999\n", "ranks = 99999999 is not allowed: a simulated run has 1 to 256"),
    (HEAD + "setup samples 99999999999\n", "samples = 99999999999 is not allowed"),
    (HEAD + "setup blocks true\n", "blocks = True is not allowed"),
    (HEAD + "then dullest\n1.0 report 1\n", "line 4: nothing follows"),
])  # fmt: skip
def test_a_wrong_line_is_named(text: str, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        Schedule.parse(text)


def test_an_action_that_cannot_happen_is_an_error_or_left_out() -> None:
    setup = Setup(ranks=2)
    actions = ((0.0, Action("reduce")), (0.0, Action("control", 0)))

    with pytest.raises(ScheduleError, match="action 1 of the schedule: reduce cannot happen now"):
        list(play(World(setup), actions))
    assert len(list(play(World(setup), actions, strict=False))) == 1


def test_the_end_is_compared_with_what_the_file_expects() -> None:
    schedule = Schedule(setup=Setup(ranks=1, samples=2), actions=(), ends="ok", dullest=True)
    world = World(schedule.setup)
    list(play(world, (), dullest=True))
    expects_harm = Schedule(setup=schedule.setup, actions=(), breaks="I2")

    assert judge(schedule, world, None) == (True, f"every invariant holds; the run ended ok: {world.finish.text}")
    assert judge(expects_harm, world, None)[0] is False
    assert judge(expects_harm, world, Violation("I2", "seen"))[0] is True
    assert judge(schedule, World(schedule.setup), None) == (
        False, "the run was expected to end ok; the run goes on"
    )  # fmt: skip


@given(st.text(), st.text(), st.booleans())
def test_a_value_may_hold_any_text(path: str, callback: str, remarked: bool) -> None:
    """A sign of a comment in it too: only behind the value does a comment begin."""
    schedule = Schedule(setup=Setup(knobs={"save_path": path}, callbacks=(callback,)), actions=())
    text = str(schedule)
    if remarked:
        text = text.replace("\n", '  # as it was "then"\n')
        text = text.replace("schedule 1  # as it was \"then\"", "schedule 1")

    assert Schedule.parse(text) == schedule


def test_every_rule_that_a_check_names_can_be_expected_to_break() -> None:
    """A check that is new, and names another rule, adds it to `CHECKED`."""
    named = set()
    for file in (Path(__file__).parents[3] / "core" / "simulation").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Violation", "require"):
                named |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    rules = {name for name in named if isinstance(name, str) and re.fullmatch(r"[A-Z]-\d+|I\d+", name)}

    assert rules == set(CHECKED)


def test_a_transcript_says_whom_each_line_is_about() -> None:
    """Also rank 0, which is what a field would be by default."""
    assert describe(ev.LinkLost(0, 1, "EOF")) == "LinkLost rank=0 incarnation=1 cause=EOF"
    assert describe(ev.LinkLost()) == "LinkLost", "at a worker, which knows whose it is"
    assert describe(ev.SendFailed((0, 2, 7))) == "SendFailed to 0.2"
    assert describe(ev.HelloReceived(3, attrs.evolve(greeting(Setup()), wanted_rank=0))).startswith(
        "HelloReceived wanted_rank=0 link=3"
    )
    assert describe(fx.Emit("Died", {"rank": 0, "incarnation": 1, "cause": "EOF"})) == "Died rank=0 incarnation=1"


def test_a_transcript_and_a_diagram_of_a_small_run() -> None:
    """Golden: these lines are what people compare, so they change only on purpose."""
    setup = Setup(ranks=1, samples=2)
    world = World(setup)
    steps = list(play(world, (), dullest=True))
    told = [line for step in steps for line in lines(step)]
    drawn = of_steps([(0, 1)], steps)

    assert told[0] == (
        "      0.000000  control 0         process 0    RequestParams cycle=0 attempt=0 observer=False -> "
        "TakeSnapshot cycle=0 attempt=0 generation=1 shipped=0 header_only=False state=True fresh=True"
    )
    assert told[3] == (
        "      0.000000  upload 0          coordinator  RoundProgress key=(RoundKey generation=1 cycle=0 kind=state) "
        "rank=0 bytes=8 complete=True"
    )
    assert "    R0->>C: SyncAck cycle 1 shipped 2\n" in drawn
    assert "    A-->>R0: consensus 1.0 merged\n" in drawn
    assert drawn.endswith("    Note over R0: Stop ok\n") or "Note over C: Finish ok" in drawn


@pytest.mark.parametrize("file", KEPT, ids=[file.stem for file in KEPT])
def test_a_kept_schedule_goes_as_it_expects(file: Path) -> None:
    """tests/schedules: what was found once, and what is rare. A file whose name is that of a mark must reach it."""
    schedule = Schedule.parse(file.read_text())
    world = World(schedule.setup, codec=MsgpackCodec() if schedule.setup.wire else None)
    marks, broken = Marks(), None
    world.reached = marks.reach
    try:
        for step in play(world, schedule.actions, dullest=schedule.dullest):
            marks.watch(world, step)
    except Violation as violation:
        broken = violation
    well, verdict = judge(schedule, world, broken)
    named = file.stem.replace("-", " ")

    assert well, verdict
    assert named not in MARKS or marks.reached[named]
