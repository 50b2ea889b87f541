"""How fast the model checker is: states and transitions per second, bytes per state, and what its shortcuts save.

    python tests/benchmarks/checker.py

Seconds are those of the processor, the best of `ROUNDS` runs. The ratios compare with the same exploration without a
shortcut, and with the same steps on a whole world, so they hold on any machine. It takes about half a minute.
"""

from __future__ import annotations

import time
import tracemalloc

from paceline.core.simulation.checker import HEAD, Bounds, Cohort
from paceline.core.simulation.explore import Exploration, explore

BOUNDS = Bounds(ranks=2, cycles=1)
FAULTY = Bounds(ranks=1, drops=1, duplicates=1)
ROUNDS = 2
STEPS = 100
"""Steps that are taken on a whole world too."""


def best(bounds: Bounds, **options: bool) -> tuple[Exploration, Cohort]:
    """The fastest exploration, and its model."""
    found = []
    for _ in range(ROUNDS):
        cohort = Cohort(bounds, **options)
        found.append((explore(cohort, clock=time.process_time), cohort))
    return min(found, key=lambda run: run[0].seconds)


def peak(bounds: Bounds) -> float:
    """Bytes that an exploration holds at its peak, parts and frontier included, per state."""
    tracemalloc.start()
    seen = explore(Cohort(bounds))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / seen.states


def whole(bounds: Bounds) -> float:
    """Seconds of one step without any memory: the world is put together, moved, and taken apart."""
    cohort = Cohort(bounds)
    state = cohort.initial()
    began = time.process_time()
    for number in range(STEPS):
        actions = cohort.actions(state) or cohort.actions(state := cohort.initial())
        action = actions[number % len(actions)]
        cohort.parts.whole(state[HEAD:], action)
        state = cohort.step(state, action)
    return (time.process_time() - began) / STEPS


def main() -> None:
    """Print it."""
    without = ((BOUNDS, "every order", {"reduce": False}), (FAULTY, "every note", {"forget": False}))
    for bounds, name, options in without:
        seen, cohort = best(bounds)
        worked, asked = cohort.parts.worked, cohort.parts.recalled.asked
        print(f"{bounds}: {seen.states:,} states, {seen.transitions:,} transitions in {seen.seconds:.2f} s")
        print(f"  {seen.states / seen.seconds:,.0f} states/s, {seen.transitions / seen.seconds:,.0f} transitions/s")
        print(f"  worked out: one transition in {seen.transitions / worked:.1f}, on a coordinator one in "
              f"{seen.transitions / asked:.1f}; on a whole world one takes "
              f"{whole(bounds) * seen.transitions / seen.seconds:.1f} times the time")  # fmt: skip
        print(f"  {seen.bytes_per_state:.0f} bytes a state in the graph, {peak(bounds):,.0f} with all parts and memory")
        other, _ = best(bounds, **options)
        print(f"  with {name}: {other.states / seen.states:.1f} times the states, "
              f"{other.seconds / seen.seconds:.1f} times the time")  # fmt: skip


if __name__ == "__main__":
    main()
