"""The links of a simulated run: each has a latency and a bandwidth of its own, and bulk keeps nobody else waiting."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import messages as m
from paceline.core.simulation import Setup, World
from paceline.core.simulation.action import COORDINATOR, Action
from paceline.core.simulation.clockwork import JITTER, Clockwork, Pace
from paceline.core.simulation.dice import Dice
from paceline.core.simulation.draws import draw_pace, draw_setup
from paceline.core.simulation.faults import PROFILES
from paceline.core.simulation.step import Step

LATENCY_S = 0.05
KNOBS = {"policy": "cadence", "suspect_initial_s": 1e5, "suspect_floor_s": 1e5, "reduce_ceiling_s": 1e5,
         "window_ceiling_s": 2e5, "stall_dump_s": 1e5, "formation_s": 1e4}  # fmt: skip


def first_cycle(blocks: int, part_s: float | tuple[float, ...]) -> list[Step]:
    """A run of two ranks up to the end of its first cycle after it has formed."""
    world = World(Setup(ranks=2, samples=24, blocks=blocks, knobs=KNOBS))
    heard: list[Step] = []
    pace = Pace(step_s=(1.0,), latency_s=LATENCY_S, part_s=part_s)
    clockwork = Clockwork(world, pace, Dice(1), lambda step: heard.append(step) if world.co.cycle.number == 1 else None)
    while world.co.cycle.finished < 1 and clockwork.advance():
        pass
    return heard


def arrivals(heard: list[Step], kind: str, who: int) -> list[float]:
    return [step.at for step in heard if step.action.kind == kind and step.action.who == who]


@pytest.mark.parametrize("lane", ["upload", "result"])
def test_a_transfer_takes_as_long_as_it_is_large(lane: str) -> None:
    """N-5 from the other side: a part leaves when the one before it has left, so 32 blocks need sixteen times what 2
    need over the same link, up as well as down."""

    def seconds(blocks: int) -> float:
        heard = first_cycle(blocks, 1.0)
        begins = arrivals(heard, "upload", 0)[0] if lane == "upload" else arrivals(heard, "reduce", -2)[-1]
        return arrivals(heard, lane, 0)[-1] - begins

    assert seconds(32) / seconds(2) == pytest.approx(16.0, rel=2 * JITTER)
    assert seconds(2) == pytest.approx(2.0, rel=2 * JITTER)


def call_s(blocks: int, part_s: tuple[float, ...]) -> float:
    """How long the first call in place takes after the one that forms the run, from its last member's entry on; a rank
    for each link."""
    world = World(Setup(ranks=len(part_s), samples=8 * len(part_s), blocks=blocks,
                        knobs={**KNOBS, "averager": "collective"}))  # fmt: skip
    entered, made = [], []

    def hear(step: Step) -> None:
        if world.co.cycle.number == 1 and not made:
            entered.append((step.at, sum(process.inside is not None for process in world.processes)))
            made.extend([step.at] if step.action.kind == "unite" else [])

    pace = Pace(step_s=(1.0,), latency_s=LATENCY_S, part_s=part_s, reduce_s=0.5)
    clockwork = Clockwork(world, pace, Dice(1), hear)
    while not made and clockwork.advance():
        pass
    return made[0] - next(at for at, inside in entered if inside == len(part_s))


def test_a_call_in_place_takes_as_long_as_the_slowest_link_needs_for_the_model() -> None:
    """R-13, R-15: around a ring each link carries all blocks but one share, twice: of two ranks as many as the model
    has, of four half as many again, of one none. The time of the sum itself comes on top."""
    assert call_s(16, (1.0, 1.0)) == pytest.approx(0.5 + 16.0, rel=2 * JITTER)
    assert call_s(2, (1.0, 1.0)) == pytest.approx(0.5 + 2.0, rel=2 * JITTER)
    assert call_s(16, (1.0, 5.0)) == pytest.approx(0.5 + 80.0, rel=2 * JITTER)
    assert call_s(16, (1.0, 1.0, 5.0, 1.0)) == pytest.approx(0.5 + 120.0, rel=2 * JITTER)
    assert call_s(16, (1.0,)) == pytest.approx(0.5, rel=2 * JITTER)


def test_a_slow_link_keeps_no_control_waiting() -> None:
    """N-5: neither that of the other rank, nor its own. While rank 1 sends its contribution for some minutes, what both
    say and hear takes the latency of a message."""
    heard = first_cycle(8, (0.1, 20.0))
    begin, end = (arrivals(heard, "upload", 1)[place] for place in (0, -1))
    lanes: dict[tuple[str, int], list[float]] = {(kind, who): [] for kind in ("report", "control") for who in (0, 1)}
    waited: dict[tuple[str, int], list[float]] = {lane: [] for lane in lanes}
    for step in heard:
        lane = (step.action.kind, step.action.who)
        if lanes.get(lane):  # else it was written before the cycle
            waited[lane].append(step.at - lanes[lane].pop(0))
        for turn in step.turns:
            for effect in turn.effects:
                if (written := _written(turn.who, effect)) is not None and begin <= step.at <= end:
                    lanes[written].append(step.at)

    assert end - begin > 130.0 and arrivals(heard, "upload", 0)[-1] < begin + 10.0
    assert all(len(seconds) >= 4 for seconds in waited.values()), waited
    assert all(second <= LATENCY_S * (1.0 + JITTER) + 1e-9 for seconds in waited.values() for second in seconds), waited


def _written(who: int, effect: Any) -> tuple[str, int] | None:
    """The lane that an effect writes a message on."""
    if isinstance(getattr(effect, "report", None), m.Report):
        return "report", who
    return ("control", effect.rank) if isinstance(getattr(effect, "message", None), m.Control) else None


def test_links_of_all_speeds_are_drawn() -> None:
    """Of some runs one link is several times slower than another, and models have one block or many."""
    paces = [draw_pace(8, 4, PROFILES["storm"], Dice(seed)) for seed in range(40)]
    calm = draw_pace(8, 4, PROFILES["calm"], Dice(0))

    assert all(len(pace.part_s) == len(pace.latency_s) == 8 for pace in paces)
    assert sum(max(pace.part_s) > 3 * min(pace.part_s) for pace in paces) > 20
    assert sum(max(pace.latency_s) > 3 * min(pace.latency_s) for pace in paces) > 20
    assert max(calm.part_s) < 1.5 * min(calm.part_s)
    assert {1, 2, 5, 16} == {draw_setup(2, None, {}, Dice(seed), wire=False).blocks for seed in range(60)}


def test_what_a_dead_rank_had_sent_goes_with_the_coordinator() -> None:
    """M-40: nothing of it arrives any more, and the clock knows. Found by a storm of 8 ranks, seed 149."""
    world = World(Setup(ranks=2, samples=24, blocks=8, knobs={**KNOBS, "reconnect_window_s": 30.0}))
    clockwork = Clockwork(world, Pace(step_s=(1.0,), part_s=5.0), Dice(1), lambda step: None)
    while world.co.cycle.number < 1 or not world.processes[1].bulk_up:
        assert clockwork.advance()
    clockwork.do(Action("crash", 1))
    while world.processes[1].up:
        assert clockwork.advance()
    assert world.processes[1].bulk_up
    clockwork.do(Action("die", COORDINATOR))
    clockwork.do(Action("revive", COORDINATOR))

    while not world.over:
        assert clockwork.advance()
    assert world.finished
