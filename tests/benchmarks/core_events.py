"""Events per second of the coordinator: `Batch` reports through `handle`, for 2 to 1024 ranks.

A `Batch` must cost the same whatever the number of ranks (C-4): it looks at its own rank and at two counters. So the
figures should be flat within a factor of two; the last line says how flat they are. Counts are so large that no gate
opens, and the reports are made before the clock starts: what is timed is the machine alone.

    python tests/benchmarks/core_events.py
"""

from __future__ import annotations

import gc
import sys
import time

from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.effects import OpenRound, Send
from paceline.core.events import HelloReceived, Received, RoundReduced
from paceline.core.schema import EntryClass, Schema, SchemaEntry, dataset_signature

RANKS = (2, 8, 64, 256, 1024)
EVENTS = 200_000
REPEATS = 3
STEPS = 1_000_000
"""Steps per window: far more than are taken, so that no gate opens."""
SCHEMA = Schema(entries=(SchemaEntry(name="w", cls=EntryClass.PARAM, shape=(2,), dtype="float32"),))


def main() -> None:
    """Print one line per number of ranks, then the ratio of the fastest to the slowest."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS
    rates = []
    for ranks in RANKS:
        rate = max(measure(ranks, events) for _ in range(REPEATS))
        rates.append(rate)
        print(f"{ranks:5d} ranks: {rate:12,.0f} Batch events/s")
    print(f"fastest / slowest: {max(rates) / min(rates):.2f}")


def measure(ranks: int, events: int) -> float:
    """`Batch` events per second of a coordinator with so many ranks."""
    coordinator, plans, sequences = formed(ranks)
    reports = []
    for step in range(1, events // ranks + 1):
        for rank in range(ranks):
            sequences[rank] += 1
            reports.append(Received(m.Batch(
                run_id=coordinator.config.run_id, generation=1, rank=rank, incarnation=1,
                report_seq=sequences[rank], control_seq=1, cycle=0, plan_id=plans[rank].plan_id, step_count=step,
                samples=1, batch_ms=10.0, data_ms=0.1, batch_loss=1.0,
            )))  # fmt: skip
    handle, now = coordinator.handle, coordinator.now
    gc.collect()
    gc.disable()
    begin = time.perf_counter()
    for event in reports:
        handle(event, now)
    elapsed = time.perf_counter() - begin
    gc.enable()
    if coordinator.cycle.number != 0 or coordinator.violations or coordinator.movers != ranks:
        raise SystemExit("a gate opened or a report was turned down: this is not the hot path")
    return len(reports) / elapsed


def formed(ranks: int) -> tuple[Coordinator, dict[int, m.Plan], dict[int, int]]:
    """A cohort at its first step: the coordinator, each rank's first plan, and its last report number."""
    config = Config(
        batch_size=1, num_epochs=1, min_ranks=ranks, target_ranks=ranks, anchor=STEPS, max_anchor=STEPS, digest=False
    )
    coordinator = Coordinator(config)
    samples = 2 * STEPS * ranks
    hello = m.Hello(
        protocol=1, package="paceline", host="here", devices=(), runtime="", byte_order=0, schema=SCHEMA,
        schema_hash=SCHEMA.hash(), dataset_signature=dataset_signature(samples, b""), config_digest=b"",
        averagers=("star",),
    )  # fmt: skip
    for rank in range(ranks):
        coordinator.handle(HelloReceived(rank, hello), 0.0)
    opened = next(e for e in coordinator.take_ready().effects if isinstance(e, OpenRound))
    stamp = {"run_id": config.run_id, "generation": 1, "incarnation": 1, "control_seq": 1}
    for rank in range(ranks):
        said = m.SnapshotReady(rank=rank, report_seq=1, cycle=0, attempt=0, shipped_steps=0, **stamp)
        coordinator.handle(Received(said), 0.0)
    coordinator.handle(RoundReduced(opened.key, 0, (0,), (), True), 0.0)
    for rank in range(ranks):
        acked = m.SyncAck(
            rank=rank, report_seq=2, cycle=0, attempt=0, step_count=0, shipped_steps=0, total_steps=0,
            outcome=m.Outcome.OBSERVER, state_complete=True, **stamp,
        )  # fmt: skip
        coordinator.handle(Received(acked), 0.0)
    effects = coordinator.take_ready().effects
    plans = {e.rank: e.message.plan for e in effects if isinstance(e, Send) and isinstance(e.message, m.StartEpoch)}
    return coordinator, plans, dict.fromkeys(range(ranks), 2)


if __name__ == "__main__":
    main()
