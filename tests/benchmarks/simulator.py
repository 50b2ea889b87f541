"""How fast simulated cohorts run: events, cycles and rank-hours for each second of one core of this machine.

Two kinds of runs, because they answer different questions. *Storms* are the runs of `paceline simulate`: short steps,
many faults, averages every few steps; what counts there is events. A *big model* is a cohort whose step takes a minute
and which averages about every 100 steps, as large models are trained over slow links, with heartbeats to match; what
counts there is how much of its life fits into a second. It is simulated step by step, and with strides
(`core/simulation/strides.py`). Every invariant is checked in all of them, as in a campaign.

The big model is also run under churn: 60 ranks an hour die or come, in turn. With steps of a minute nobody would live
through a window of 100 minutes, so there a step takes `CHURN_STEP_S`, and of eight ranks about every other one is
replaced in each window.

Figures are of processor time, the best of `REPEATS`. Runs do not need each other, so a campaign has them once for each
core: the line that says so is measured with one process for each, begun as a campaign begins them. The last lines are
ratios, which a slower machine changes little: an event of a storm, and a step of the big model, against one Batch event
of the coordinator alone, which is the least that a step can cost; and 32 ranks against 8.

    python tests/benchmarks/simulator.py
"""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import attrs
from core_events import measure

from paceline.backends.command_simulate import begin_process
from paceline.core.simulation import Setup, World
from paceline.core.simulation.action import Action
from paceline.core.simulation.clockwork import Clockwork, Pace
from paceline.core.simulation.dice import Dice
from paceline.core.simulation.marks import Marks
from paceline.core.simulation.simulator import Case, simulate

RANKS = 8
SEEDS = 30
STEP_S = 60.0
STEPS_A_CYCLE = 100
CYCLES = 10
CHURN_STEP_S = 5.0
CHURN_AN_HOUR = 60
WANTED = 1_000.0
"""Rank-hours per second that are asked for."""
REPEATS = 3
BATCH_EVENTS = 40_000
BEATS = 10
"""Steps for each heartbeat."""


@attrs.frozen
class Speed:
    """What one second of a core held: events, cycles, steps, rank-hours."""

    events: float
    cycles: float
    steps: float
    rank_hours: float


def main() -> None:
    """Print the figures of all kinds of runs, then the ratios."""
    alone = max(measure(RANKS, BATCH_EVENTS) for _ in range(REPEATS))
    storm_rate = _storms()
    eight, many = _best(RANKS), _best(4 * RANKS)
    strides = _best(RANKS, stride=STEPS_A_CYCLE)
    _best(RANKS, stride=STEPS_A_CYCLE, step_s=CHURN_STEP_S, churn=CHURN_AN_HOUR)
    _on_all_cores()
    print(f"an event of a storm costs {alone / storm_rate:.1f} Batch events of the coordinator alone, "
          f"a step of the big model {alone / eight.steps:.1f}, with strides {alone / strides.steps:.1f}")  # fmt: skip
    print(f"an event with {4 * RANKS} ranks costs {eight.events / many.events:.2f} times one with {RANKS}")


def _storms() -> float:
    best = 0.0
    for _ in range(REPEATS):
        begin = time.process_time()
        outcomes = [simulate(Case(seed=seed, ranks=RANKS)) for seed in range(SEEDS)]
        elapsed = time.process_time() - begin
        broken = [outcome for outcome in outcomes if outcome.violation is not None]
        if broken:
            raise SystemExit(f"an invariant broke: {broken[0].violation}")
        best = max(best, sum(outcome.steps for outcome in outcomes) / elapsed)
    events = sum(outcome.steps for outcome in outcomes)
    share = best / events
    print(f"{SEEDS} storms of {RANKS} ranks: {best:,.0f} events/s, "
          f"{sum(outcome.cycles for outcome in outcomes) * share:,.1f} cycles/s, "
          f"{sum(outcome.rank_hours for outcome in outcomes) * share:,.1f} rank-hours/s, "
          f"{1 / share / SEEDS:.3f} s a run")  # fmt: skip
    return best


def _best(ranks: int, *, stride: int = 1, step_s: float = STEP_S, churn: int = 0) -> Speed:
    """The fastest of some runs of a big model, and its line."""
    runs = [_big_model(ranks, stride, step_s, churn) for _ in range(REPEATS)]
    best = max(runs, key=lambda speed: speed.rank_hours)
    how = f"up to {stride} as one action" if stride > 1 else "each an action"
    print(f"{ranks} ranks, a step of {step_s:g} s, {STEPS_A_CYCLE} steps a cycle, {how}"
          f"{f', {churn} ranks an hour die or come' if churn else ''}: {best.events:,.0f} events/s, "
          f"{best.steps:,.0f} steps/s, {best.cycles:,.1f} cycles/s, {best.rank_hours:,.0f} rank-hours/s"
          f"{'' if churn else _reached(best.rank_hours)}")  # fmt: skip
    return best


def _reached(hours: float) -> str:
    """From which step on what is asked for is reached: the cost of a step does not depend on how long it takes."""
    return f" ({WANTED:,.0f} from a step of {STEP_S * WANTED / hours:,.0f} s on)"


def _big_model(ranks: int, stride: int, step_s: float, churn: int) -> Speed:
    """One run, from formation to its end."""
    samples = ranks * STEPS_A_CYCLE * CYCLES
    world, marks = World(Setup(ranks=ranks, samples=samples, knobs=_knobs(step_s), thorough=False)), Marks()
    world.reached = marks.reach
    pace = Pace(step_s=(step_s,), copy_s=step_s / 12, part_s=step_s, reduce_s=step_s / 3, stride=stride)
    clockwork = Clockwork(world, pace, Dice(1), lambda step: marks.watch(world, step))
    if churn:
        Churn(clockwork, 3600.0 / churn)
    begin = time.process_time()
    while not world.over and clockwork.advance():
        pass
    elapsed = time.process_time() - begin
    if not world.finished:
        raise SystemExit(f"the run did not end well: {world.finish}")
    trained = sum(world.ghost.trained.values())
    hours = trained * step_s / 3600.0 if churn else clockwork.now * ranks / 3600.0  # who is away does not count
    return Speed(clockwork.steps / elapsed, world.co.cycle.sync_rounds / elapsed, trained / elapsed, hours / elapsed)


def _knobs(step_s: float) -> dict[str, Any]:
    """Time limits are as many heartbeats as they are of a second by default, or longer."""
    beat = BEATS * step_s
    return {
        "anchor": STEPS_A_CYCLE, "max_anchor": STEPS_A_CYCLE, "heartbeat_s": beat, "beacon_s": beat,
        "heartbeat_timeout_s": 30 * beat, "suspect_floor_s": 5 * beat, "suspect_initial_s": 60 * beat,
        "stall_dump_s": 120 * beat, "first_step_s": 60 * beat, "formation_s": 60 * beat,
    }  # fmt: skip


class Churn:
    """Every `pause` seconds a rank dies or one comes, in turn, until the run is over."""

    def __init__(self, clockwork: Clockwork, pause: float) -> None:
        self.clockwork, self.pause = clockwork, pause
        self._dice = Dice(2)
        clockwork.at(pause, self._dies)

    def _dies(self) -> None:
        alive = [process for process in self.clockwork.world.processes if process.alive]
        self._happens(Action("crash", self._dice.pick(alive).number), self._comes)

    def _comes(self) -> None:
        dead = [rank for rank, process in sorted(self.clockwork.world.seats.items()) if not process.alive]
        self._happens(Action("join", dead[0]) if dead else Action("join"), self._dies)

    def _happens(self, action: Action, then: Any) -> None:
        if not self.clockwork.world.over:
            self.clockwork.do(action)
            self.clockwork.at(self.clockwork.now + self.pause, then)


def _fastest(seconds: float) -> float:
    """Rank-hours per second of one process, while others do the same."""
    return max(_big_model(RANKS, STEPS_A_CYCLE, seconds, 0).rank_hours for _ in range(REPEATS))


def _on_all_cores() -> None:
    cores = os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(cores, begin_process) as pool:
        hours = sum(pool.map(_fastest, [STEP_S] * cores))
    print(f"{cores} quiet ones of {RANKS} ranks at once, with strides, a process each: {hours:,.0f} rank-hours/s"
          f"{_reached(hours)}")  # fmt: skip


if __name__ == "__main__":
    main()
