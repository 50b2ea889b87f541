"""How fast the model checker is: states and transitions per second, bytes per state, and what its shortcuts save.

    python tests/benchmarks/checker.py

Seconds are those of the processor, the best of `ROUNDS` runs. The ratios compare with the same exploration without a
shortcut, so they hold on any machine.
"""

from __future__ import annotations

import time
import tracemalloc

from paceline.core.simulation.checker import Bounds, Cohort
from paceline.core.simulation.explore import Exploration, explore

BOUNDS = Bounds(ranks=2, cycles=1)
FAULTY = Bounds(ranks=1, cycles=2, drops=1, duplicates=1)
ROUNDS = 3


def best(bounds: Bounds, **options: bool) -> tuple[Exploration, int]:
    """The fastest exploration, and how many outcomes it worked out on the machines."""
    found = []
    for _ in range(ROUNDS):
        cohort = Cohort(bounds, **options)
        seen = explore(cohort, clock=time.process_time)
        found.append((seen.seconds, seen, cohort.parts.worked))
    _, seen, worked = min(found, key=lambda run: run[0])
    return seen, worked


def peak(bounds: Bounds) -> float:
    """Bytes that an exploration holds at its peak, parts and frontier included, per state."""
    tracemalloc.start()
    seen = explore(Cohort(bounds))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / seen.states


def main() -> None:
    """Print it."""
    for bounds in (BOUNDS, FAULTY):
        seen, worked = best(bounds)
        print(f"{bounds}: {seen.states:,} states, {seen.transitions:,} transitions in {seen.seconds:.2f} s")
        print(f"  {seen.states / seen.seconds:,.0f} states/s, {seen.transitions / seen.seconds:,.0f} transitions/s, "
              f"{worked:,} outcomes worked out")  # fmt: skip
        print(f"  {seen.bytes_per_state:.0f} bytes a state in the graph, {peak(bounds):,.0f} with all parts and memory")
        for name, options in (("every order", {"reduce": False}), ("every note", {"forget": False})):
            other, _ = best(bounds, **options)
            print(f"  with {name}: {other.states / seen.states:.1f} times the states, "
                  f"{other.seconds / seen.seconds:.1f} times the time")  # fmt: skip


if __name__ == "__main__":
    main()
