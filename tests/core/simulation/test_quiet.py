"""Runs of quiet events (`quiet.py`): they are judged together where they cannot differ, and each by itself where they
can.

A world that is `thorough` has no runs of reports, and single steps make no runs at all: what is found must be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.events import Received
from paceline.core.simulation import Setup, Violation, World
from paceline.core.simulation.action import COORDINATOR, Action
from paceline.core.simulation.step import Run, Step
from paceline.core.simulation.transcript import lines
from paceline.core.worker import Worker

STEPS = 12


def before_a_window(*, thorough: bool = False) -> World:
    """Both ranks have a plan of `STEPS` batches, and their lanes are empty."""
    world = World(Setup(ranks=2, samples=4 * STEPS, knobs={"anchor": STEPS}, thorough=thorough))
    while not all(process.plans for process in world.processes) or any(p.up or p.down for p in world.processes):
        world.do(world.enabled()[0])
    return world


def trained(world: World, steps: int) -> Step:
    return world.do(Action("step", 0, steps))


def reported(world: World, reports: int) -> Step:
    return world.do(Action("report", 0, reports))


def test_many_steps_as_a_run_are_those_steps() -> None:
    """W-2: the same events, the same reports, and the same machine after them."""
    many, single = before_a_window(), before_a_window()

    run = trained(many, 7)
    singles = [trained(single, 0) for _ in range(7)]

    assert [type(part) for part in run.parts][-1] is Run and len(run.turns) == 7
    assert run.turns == tuple(turn for step in singles for turn in step.turns)
    assert many.snapshot()[4] == single.snapshot()[4]


def test_a_run_of_reports_is_heard_as_one_by_one() -> None:
    """C-8, M-40: the same books, the same journal, to the last batch that a disk could lose."""
    quiet, each = before_a_window(), before_a_window(thorough=True)
    for world in (quiet, each):
        trained(world, 9)

    heard, turns = reported(quiet, 9), reported(each, 9).parts

    assert len(turns) == 9 > len(heard.parts)
    assert heard.turns == turns
    assert quiet.snapshot() == each.snapshot()
    for kept in ("records", "ends", "undone", "acted"):
        assert getattr(quiet.journal, kept) == getattr(each.journal, kept)
    for noted in ("heard", "words", "still", "before", "due"):
        assert getattr(quiet.watch, noted) == getattr(each.watch, noted)


def test_signs_of_life_and_confirmations_are_part_of_a_run() -> None:
    """C-8, M-2, N-9: steps, a word that was handled between them, a heartbeat, and steps after it."""
    quiet, each = before_a_window(), before_a_window(thorough=True)
    for world in (quiet, each):
        trained(world, 1)
        reported(world, 2)  # the first step has its learning rate to tell
        world.do(Action("tick", COORDINATOR), world.co.poll_timeout())  # a beacon to each rank
        trained(world, 2)
        world.do(Action("control", 0))
        trained(world, 2)
        world.do(Action("tick", 0), world.processes[0].due())
        trained(world, 1)
    confirmed = [report.control_seq for report in quiet.processes[0].up]
    kinds = [type(report) for report in quiet.processes[0].up]
    assert kinds.index(m.Heartbeat) == 4 and kinds.count(m.Batch) == 5 and len(set(confirmed)) > 1

    heard, turns = reported(quiet, 6), reported(each, 6).parts

    assert [type(part) for part in heard.parts] == [Run] and len(turns) == 6
    assert heard.turns == turns
    assert quiet.snapshot() == each.snapshot()
    for noted in ("heard", "words", "still", "before", "due"):
        assert getattr(quiet.watch, noted) == getattr(each.watch, noted)


def test_a_run_of_nothing_but_signs_of_life_is_no_work() -> None:
    """I32: who only beats is heard, and nothing has moved."""
    world = before_a_window()
    for _ in range(2):
        world.do(Action("tick", 0), world.processes[0].due())
    world.do(Action("tick", COORDINATOR))  # else the first report would tell it the time, too (C-4)
    still = world.watch.still

    heard = reported(world, 2)

    assert [type(part) for part in heard.parts] == [Run] and world.watch.still == still < world.now
    assert world.watch.heard[0, 1] == world.now


def test_a_run_ends_with_what_is_not_quiet() -> None:
    """W-4, C-11: the end of a plan, and the report that opens a cycle, go the way of all events."""
    quiet, each = before_a_window(), before_a_window(thorough=True)
    found = []
    for world in (quiet, each):
        said = []
        for who in (1, 0):
            said += lines(world.do(Action("step", who, 2 * STEPS)))
            said += lines(world.do(Action("report", who, 2 * STEPS)))
        found.append(said)

    assert found[0] == found[1]
    assert sum("ChunkDone" in line for line in found[0]) == 2
    assert any("SyncStart" in line for line in found[0])
    assert quiet.snapshot() == each.snapshot()


def _counts_twice(co: Coordinator) -> None:
    co.peers[0].steps += 1


def _takes_back(co: Coordinator) -> None:
    co.peers[0].report_seq -= 1


def _leaps(co: Coordinator) -> None:
    co.peers[0].report_seq += 1


def _raises(co: Coordinator) -> None:
    raise RuntimeError("a fault of ours")


@pytest.mark.parametrize(("fault", "name"), [
    (_counts_twice, "D-11"), (_takes_back, "I53"), (_leaps, "I53"), (_raises, "I22"),
])  # fmt: skip
def test_a_fault_inside_a_run_is_found_where_it_is(
    fault: Callable[[Coordinator], None], name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fifth of nine reports goes wrong: in a run or one by one, the same is found at the same event."""
    heard = 0

    def damaged(self: Coordinator, event: Any, now: float, handle: Any = Coordinator.handle) -> None:
        nonlocal heard
        handle(self, event, now)
        if isinstance(event, Received) and isinstance(event.message, m.Batch):
            heard += 1
            if heard == 5:
                fault(self)

    found = []
    for thorough in (False, True):
        world, heard = before_a_window(thorough=thorough), 0
        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "handle", damaged)
            trained(world, 9)
            try:
                reported(world, 9)
                found.append((None, heard, world.co.violations))
            except Violation as violation:
                found.append((violation.name, heard, 0))

    assert found[0] == found[1]
    assert found[0][0] == name
    assert name is None or found[0][1] == 5


def test_a_step_that_raises_inside_a_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I22: the worker as well."""
    world, count = before_a_window(), 0

    def damaged(self: Worker, event: Any, now: float, handle: Any = Worker.handle) -> None:
        nonlocal count
        count += 1
        if count == 4:
            raise RuntimeError("a fault of ours")
        handle(self, event, now)

    monkeypatch.setattr(Worker, "handle", damaged)
    with pytest.raises(Violation, match=r"^I22: StepDone made process 0"):
        trained(world, 9)
    assert count == 4
