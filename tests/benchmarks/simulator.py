"""How fast simulated cohorts run: events, cycles and rank-hours per second of this machine.

Two figures, because they answer different questions. *Storms* are the runs of `paceline simulate`: short steps, many
faults, averages every few steps; what counts there is events. A *big model* is a cohort whose step takes a minute and
which averages about every 100 steps, as large models are trained over slow links, with heartbeats to match; what counts
there is how much of its life fits into a second. It is simulated step by step, and with strides of ten steps as one
action. Every invariant is checked in all of them. The last lines are ratios, which a slower machine changes little: an
event of a storm against one of the coordinator alone, and 32 ranks against 8.

    python tests/benchmarks/simulator.py
"""

from __future__ import annotations

import time
from typing import Any

from core_events import measure

from paceline.core.simulation import Setup, World
from paceline.core.simulation.clockwork import Clockwork, Pace
from paceline.core.simulation.dice import Dice
from paceline.core.simulation.marks import Marks
from paceline.core.simulation.simulator import Case, simulate

RANKS = 8
SEEDS = 30
STEP_S = 60.0
STEPS_A_CYCLE = 100
CYCLES = 20
STRIDE = 10
WANTED = 1_000.0
"""Rank-hours per second that are asked for."""
BATCH_EVENTS = 40_000
BIG: dict[str, Any] = {
    "anchor": STEPS_A_CYCLE, "max_anchor": STEPS_A_CYCLE,
    "heartbeat_s": 600.0, "beacon_s": 600.0, "heartbeat_timeout_s": 18_000.0, "suspect_floor_s": 3_000.0,
    "suspect_initial_s": 36_000.0, "stall_dump_s": 72_000.0, "first_step_s": 36_000.0, "formation_s": 36_000.0,
}  # fmt: skip
"""A heartbeat every ten steps, and time limits that are as many heartbeats as they are of a second by default."""


def main() -> None:
    """Print the figures of both kinds of runs, then the ratios."""
    storm_rate = _storms()
    eight, many = _big_model(RANKS), _big_model(4 * RANKS)
    _big_model(RANKS, stride=STRIDE)
    alone = measure(RANKS, BATCH_EVENTS)
    print(f"an event of a storm costs {alone / storm_rate:.1f} Batch events of the coordinator alone")
    print(f"an event with {4 * RANKS} ranks costs {eight / many:.2f} times one with {RANKS}")


def _storms() -> float:
    begin = time.process_time()
    outcomes = [simulate(Case(seed=seed, ranks=RANKS)) for seed in range(SEEDS)]
    elapsed = time.process_time() - begin
    broken = [outcome for outcome in outcomes if outcome.violation is not None]
    if broken:
        raise SystemExit(f"an invariant broke: {broken[0].violation}")
    events = sum(outcome.steps for outcome in outcomes)
    cycles = sum(outcome.cycles for outcome in outcomes)
    hours = sum(outcome.rank_hours for outcome in outcomes)
    print(f"{SEEDS} storms of {RANKS} ranks: {events / elapsed:,.0f} events/s, {cycles / elapsed:,.1f} cycles/s, "
          f"{hours / elapsed:,.1f} rank-hours/s, {elapsed / SEEDS:.2f} s a run")  # fmt: skip
    return events / elapsed


def _big_model(ranks: int, stride: int = 1) -> float:
    setup = Setup(ranks=ranks, samples=ranks * STEPS_A_CYCLE * CYCLES, knobs=BIG, thorough=False)
    world, marks = World(setup), Marks()
    world.reached = marks.reach
    pace = Pace(step_s=(STEP_S,), copy_s=5.0, part_s=60.0, reduce_s=20.0, stride=stride)
    clockwork = Clockwork(world, pace, Dice(1), lambda step: marks.watch(world, step))
    begin = time.process_time()
    while not world.over and clockwork.advance():
        pass
    elapsed = time.process_time() - begin
    if not world.finished:
        raise SystemExit(f"the run did not end well: {world.finish}")
    hours = clockwork.now * ranks / 3600.0
    cycles = world.co.cycle.sync_rounds
    print(f"{ranks} ranks, a step of {STEP_S:g} s, {len(world.ghost.merged) / cycles / ranks:.0f} steps a cycle, "
          f"{stride} as one action: "
          f"{clockwork.steps / elapsed:,.0f} events/s, {cycles / elapsed:,.1f} cycles/s, "
          f"{hours / elapsed:,.0f} rank-hours/s (1,000 from a step of {STEP_S * WANTED / (hours / elapsed):,.0f} s on)")
    return clockwork.steps / elapsed


if __name__ == "__main__":
    main()
