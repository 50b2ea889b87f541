"""Many steps as one action of the clock: what that leaves out, and what it must not change."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import messages as m
from paceline.core.simulation import Setup, World
from paceline.core.simulation.action import Action
from paceline.core.simulation.clockwork import Clockwork, Pace
from paceline.core.simulation.dice import Dice
from paceline.core.simulation.strides import Stride, Strides
from paceline.core.simulation.world import Step

STEP_S = 10.0
BEAT_S = 100.0


class Watched:
    """A run of two ranks whose step takes ten seconds, with what was heard of it."""

    def __init__(self, stride: int, **knobs: Any) -> None:
        knobs = {"anchor": 40, "max_anchor": 40, "heartbeat_s": BEAT_S, "beacon_s": BEAT_S,
                 "heartbeat_timeout_s": 3000.0, "stall_dump_s": 3000.0, **knobs}  # fmt: skip
        self.world = World(Setup(ranks=2, samples=240, knobs=knobs))
        self.heard: list[Step] = []
        pace = Pace(step_s=(STEP_S, 1.2 * STEP_S), stride=stride)
        self.clockwork = Clockwork(self.world, pace, Dice(7), self.heard.append)

    def run(self, until: float | None = None) -> None:
        """To the end, or to that second and no further."""
        reached: list[bool] = []
        if until is not None:
            self.clockwork.at(until, lambda: reached.append(True))
        while not reached and not self.world.over:
            assert self.clockwork.advance()

    def begin(self) -> dict[int, tuple[float, float]]:
        """Up to where both ranks train: the beginning of each stride, and how long a step of it takes."""
        while len(self.clockwork._strides) < 2:
            assert self.clockwork.advance()
        return {who: (stride.begin, stride.each) for who, stride in self.clockwork._strides.items()}

    def trained(self, who: int) -> int:
        """Batches that a process has taken."""
        return self.world.processes[who].worker.local_step

    def said(self, kind: type[m.Report]) -> list[tuple[float, Any]]:
        """Reports of a kind that the workers gave, each with its second."""
        return [(step.at, effect.report) for step in self.heard for _, effect in step.effects
                if hasattr(effect, "report") and isinstance(effect.report, kind)]  # fmt: skip


def test_strides_train_what_single_steps_train() -> None:
    """D-3, I42: the same batches, each once, and the same number of averages, in a fraction of the actions. An average
    may come later by up to a heartbeat, with which the steps are told that a stride has not ended for."""
    single, many = Watched(1), Watched(100)
    single.run()
    many.run()

    assert single.world.finished and many.world.finished
    assert many.world.ghost.trained == single.world.ghost.trained
    assert many.world.co.cycle.sync_rounds == single.world.co.cycle.sync_rounds
    assert many.clockwork.steps < single.clockwork.steps / 2
    assert abs(many.clockwork.now - single.clockwork.now) < BEAT_S * many.world.co.cycle.sync_rounds


def test_who_dies_in_a_stride_has_trained_what_was_over() -> None:
    """W-2: a rank that is killed after 205 seconds of steps has taken those that were over by then, and no other."""
    run = Watched(100, heartbeat_s=1000.0, beacon_s=1000.0)
    begin, each = run.begin()[0]
    run.run(until=begin + 150.0)
    assert run.trained(0) == 0  # nobody was told yet

    run.run(until=begin + 205.0)
    run.clockwork.do(Action("crash", 0))

    assert run.trained(0) == int(205.0 / each) > 15
    assert 0 not in run.clockwork._strides


def test_a_heartbeat_counts_the_steps_that_are_over() -> None:
    """N-8, W-2: what a rank says in the middle of a stride is what it would have said without one."""
    run = Watched(100)
    begins = run.begin()
    run.run(until=3.5 * BEAT_S)

    beats = run.said(m.Heartbeat)
    assert len(beats) >= 6
    for at, beat in beats:
        begin, each = begins[beat.rank]
        assert beat.step_count == int((at - begin) / each + 1e-9)


def test_a_message_is_read_at_the_end_of_the_step_in_which_it_came() -> None:
    """W-3: a rank in the middle of a plan serves what has come after the step that it is in, not after its stride."""
    run = Watched(100, heartbeat_s=1000.0, beacon_s=1000.0, policy="async")
    begin, each = run.begin()[0]
    process = run.world.processes[0]
    message = m.SetGlobalStep(
        run_id=process.worker.settings.run_id, generation=1, rank=0, incarnation=1,
        control_seq=process.worker.control_seen + 1 + len(process.down), report_seq=0, version=process.worker.version,
        global_step=12,
    )  # fmt: skip
    run.clockwork.at(begin + 3.5 * each, lambda: _arrives(run, message))
    run.run(until=begin + 3.9 * each)
    assert (run.trained(0), process.worker.global_step) == (3, 0)

    run.run(until=begin + 4.05 * each)

    assert (run.trained(0), process.worker.global_step) == (4, 12)


def _arrives(run: Watched, message: m.Control) -> None:
    run.world.processes[0].down.append(message)
    run.clockwork.do(Action("control", 0))


@pytest.mark.parametrize(("now", "over", "left"), [(0.0, 0, 5), (9.9, 0, 5), (25.0, 2, 3), (50.0, 5, 0), (99.0, 5, 0)])
def test_steps_that_are_over(now: float, over: int, left: int) -> None:
    stride = Stride(begin=0.0, each=10.0, left=5)

    assert (stride.over_by(now), stride.left, stride.begin) == (over, left, 10.0 * over)
    assert stride.end == 50.0


def test_a_stride_that_was_shortened_ends_elsewhere() -> None:
    strides = Strides()
    end = strides.begin(3, 100.0, 2.0, 8)
    assert strides.ends_at(3, end)
    assert not strides.ends_at(4, end)

    strides[3].left = 1

    assert not strides.ends_at(3, end)
    assert (strides.finish(3), 3 in strides) == (1, False)


def test_who_has_lost_the_coordinator_still_steps() -> None:
    """W-21: the plan in hand is trained, whether anybody listens or not; one step for each time that it happens."""
    run = Watched(100)
    run.begin()
    run.clockwork.do(Action("die", -1))
    before = run.trained(0)

    run.world.do(Action("step", 0, 5))

    assert run.world.over
    assert run.trained(0) == before + 1
