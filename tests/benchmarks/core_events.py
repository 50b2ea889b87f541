"""What the coordinator costs: events per second for 2 to 1024 ranks, and the time of a whole decision.

A `Batch` must cost the same whatever the number of ranks (C-4): it looks at its own rank and at two counters. So the
figures should be flat within a factor of two; the last line says how flat they are. Counts are so large that no gate
opens, and the reports are made before the clock starts: what is timed is the machine alone. The end of a plan costs its
own rank alone as well: `Metrics` free it and the next plan goes out.

A decision is what a cohort waits for: from the step that opens the gate to the requests of the cycle, and from the last
acknowledgement to the plans of the next window. It looks at every rank; at 128 it may take three milliseconds. The last
line says what a rank costs in it among 128, in units of what it costs among 16: a pass that looks at all ranks for each
rank would show there.

Time is that of this process alone, and the collector of garbage is off while it is taken, so that neither other
processes nor the size of the heap are measured.

    python tests/benchmarks/core_events.py
"""

from __future__ import annotations

import gc
import math
import sys
import time
from typing import Any

from paceline.core import messages as m
from paceline.core.config import Config, config_digest
from paceline.core.coordinator import Coordinator
from paceline.core.effects import OpenRound, Send
from paceline.core.events import HelloReceived, Received, RoundReduced
from paceline.core.schema import EntryClass, Schema, SchemaEntry, dataset_signature

RANKS = (2, 8, 64, 256, 1024)
EVENTS = 200_000
REPEATS = 3
FEW, MANY = 16, 128
DECISIONS = (2, FEW, MANY)
CYCLES = 20
WINDOW = 4
STEPS = 1_000_000
"""Steps per window: far more than are taken, so that no gate opens."""
SCHEMA = Schema(entries=(SchemaEntry(name="w", cls=EntryClass.PARAM, shape=(2,), dtype="float32"),))


def main() -> None:
    """Print one line per number of ranks, and after each kind of event how much depends on that number."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS
    rates = []
    for ranks in RANKS:
        rate = max(measure(ranks, events) for _ in range(REPEATS))
        rates.append(rate)
        print(f"{ranks:5d} ranks: {rate:12,.0f} Batch events/s")
    print(f"fastest / slowest: {max(rates) / min(rates):.2f}")
    rates = []
    for ranks in RANKS:
        rate = max(_ends_of_plans(ranks) for _ in range(REPEATS))
        rates.append(rate)
        print(f"{ranks:5d} ranks: {rate:12,.0f} Metrics/s, each with its next plan")
    rates = rates[1:]  # two ranks end four plans, too few to say anything
    print(f"fastest / slowest: {max(rates) / min(rates):.2f}")
    each = {}
    for ranks in DECISIONS:
        arm, finish = (min(times) for times in zip(*(_cycle(ranks) for _ in range(REPEATS)), strict=True))
        each[ranks] = (arm + finish) / ranks
        print(f"{ranks:5d} ranks: {arm:6.2f} ms to arm, {finish:6.2f} ms to finish, {arm + finish:6.2f} ms in all")
    print(f"per rank, {MANY} ranks / {FEW} ranks: {each[MANY] / each[FEW]:.2f}")


def _ends_of_plans(ranks: int) -> float:
    """Plans that end before the window does, as async streams them: each `Metrics` is followed by the next plan (D-9).
    A window of 50 steps holds four plans of 12, of which the first two of each rank end here."""
    coordinator, plans, sequences = formed(ranks, policy="async", anchor=50, samples=120)
    cohort = {rank: Rank(coordinator, rank, sequences[rank]) for rank in range(ranks)}
    elapsed, ended = 0.0, 0
    gc.collect()
    gc.disable()
    for rank, one in cohort.items():
        queue = list(plans[rank])
        for plan in queue[:2]:
            for _ in range(plan.size):
                coordinator.handle(one.batch(plan, 0), 0.0)
            event = one.metrics(plan)
            coordinator.take_ready()
            begin = time.process_time()
            coordinator.handle(event, 0.0)
            elapsed += time.process_time() - begin
            ended += 1
            if not any(isinstance(e, Send) for e in coordinator.take_ready().effects):
                raise SystemExit("a plan ended and no other one went out: this is not what is measured")
    gc.enable()
    return ended / elapsed


def measure(ranks: int, events: int) -> float:
    """`Batch` events per second of a coordinator with so many ranks."""
    coordinator, plans, sequences = formed(ranks)
    reports = []
    for step in range(1, events // ranks + 1):
        for rank in range(ranks):
            sequences[rank] += 1
            reports.append(Received(m.Batch(
                run_id=coordinator.config.run_id, generation=1, rank=rank, incarnation=1,
                report_seq=sequences[rank], control_seq=1, cycle=0, plan_id=plans[rank][0].plan_id, step_count=step,
                samples=1, batch_ms=10.0, data_ms=0.1, batch_loss=1.0,
            )))  # fmt: skip
    handle, now = coordinator.handle, coordinator.now
    gc.collect()
    gc.disable()
    begin = time.process_time()
    for event in reports:
        handle(event, now)
    elapsed = time.process_time() - begin
    gc.enable()
    if coordinator.cycle.number != 0 or coordinator.violations or coordinator.movers != ranks:
        raise SystemExit("a gate opened or a report was turned down: this is not the hot path")
    return len(reports) / elapsed


def _cycle(ranks: int) -> tuple[float, float]:
    """Milliseconds of one decision, the best of several: from the step that opens the gate to the requests of the
    cycle, and from the last acknowledgement to all effects of its finish."""
    coordinator, first, sequences = formed(ranks, anchor=WINDOW)
    plans = {rank: queue[0] for rank, queue in first.items()}
    reports = {rank: Rank(coordinator, rank, sequences[rank]) for rank in range(ranks)}
    best_arm = best_finish = math.inf
    for number in range(1, CYCLES + 1):
        last = None
        for rank, one in reports.items():
            for _ in range(WINDOW):
                last = one.batch(plans[rank], number - 1)
                if (rank, one.steps) != (ranks - 1, number * WINDOW):
                    coordinator.handle(last, 0.0)
        best_arm = min(best_arm, _timed(coordinator, last))
        for rank, one in reports.items():
            coordinator.handle(one.metrics(plans[rank]), 0.0)
            coordinator.handle(one.say(m.SnapshotReady, cycle=number, attempt=0, shipped_steps=WINDOW), 0.0)
        coordinator.handle(RoundReduced(coordinator.cycle.key, 0, tuple(range(ranks)), (), True), 0.0)
        for rank, one in reports.items():
            last = one.acked(number, number * WINDOW, m.Outcome.MERGED)
            if rank != ranks - 1:
                coordinator.handle(last, 0.0)
        coordinator.take_ready()
        best_finish = min(best_finish, _timed(coordinator, last))
        sent = [e for e in coordinator.take_ready().effects if isinstance(e, Send) and isinstance(e.message, m.Update)]
        plans = {e.rank: e.message.next_plan for e in sent if e.message.next_plan is not None}
        if coordinator.cycle.finished != number or len(plans) != ranks or coordinator.violations:
            raise SystemExit("a cycle did not finish with a plan for each rank: this is not a full decision")
    return best_arm, best_finish


def _timed(coordinator: Coordinator, event: Any) -> float:
    gc.collect()
    gc.disable()
    begin = time.process_time()
    coordinator.handle(event, 0.0)
    elapsed = time.process_time() - begin
    gc.enable()
    return elapsed * 1000


class Rank:
    """The reports of one rank, with its stamp and numbers."""

    def __init__(self, coordinator: Coordinator, rank: int, sequence: int) -> None:
        self.sequence, self.steps = sequence, 0
        self.stamp = {"run_id": coordinator.config.run_id, "generation": 1, "rank": rank, "incarnation": 1}

    def say(self, kind: Any, **fields: Any) -> Received:
        self.sequence += 1
        return Received(kind(report_seq=self.sequence, control_seq=1, **self.stamp, **fields))

    def batch(self, plan: m.Plan, cycle: int) -> Received:
        self.steps += 1
        return self.say(m.Batch, cycle=cycle, plan_id=plan.plan_id, step_count=self.steps, samples=1,
                        batch_ms=10.0, data_ms=0.1, batch_loss=1.0)  # fmt: skip

    def metrics(self, plan: m.Plan) -> Received:
        return self.say(
            m.Metrics, cycle=0, plan_ids=(plan.plan_id,), epoch=plan.epoch, batches=plan.size, samples=plan.size,
            epoch_ms=1.0, share_complete_ms=1.0, compute_only_ms=1.0, data_starve_ms=0.0, avg_loss=1.0,
        )  # fmt: skip

    def acked(self, cycle: int, steps: int, outcome: m.Outcome) -> Received:
        return self.say(
            m.SyncAck, cycle=cycle, attempt=0, step_count=steps, shipped_steps=steps, total_steps=0, outcome=outcome,
            state_complete=True, divergence=0.01, pre_norm=1.0, post_norm=1.0,
        )  # fmt: skip


def formed(
    ranks: int, anchor: int = STEPS, samples: int = 2 * STEPS, policy: str = "cadence"
) -> tuple[Coordinator, dict[int, list[m.Plan]], dict[int, int]]:
    """A cohort at its first step, with so many samples for each rank: the coordinator, each rank's first plans, and its
    last report number."""
    config = Config(
        batch_size=1, num_epochs=1, min_ranks=ranks, target_ranks=ranks, anchor=anchor, max_anchor=STEPS,
        digest=False, policy=policy,
    )  # fmt: skip
    coordinator = Coordinator(config)
    hello = m.Hello(
        protocol=1, package="paceline", host="here", devices=(), runtime="", byte_order=0, schema=SCHEMA,
        schema_hash=SCHEMA.hash(), dataset_signature=dataset_signature(samples * ranks, b""),
        config_digest=config_digest({}), averagers=("star",),
    )  # fmt: skip
    for rank in range(ranks):
        coordinator.handle(HelloReceived(rank, hello), 0.0)
    opened = next(e for e in coordinator.take_ready().effects if isinstance(e, OpenRound))
    cohort = [Rank(coordinator, rank, 0) for rank in range(ranks)]
    for one in cohort:
        coordinator.handle(one.say(m.SnapshotReady, cycle=0, attempt=0, shipped_steps=0), 0.0)
    coordinator.handle(RoundReduced(opened.key, 0, (0,), (), True), 0.0)
    for one in cohort:
        coordinator.handle(one.acked(0, 0, m.Outcome.OBSERVER), 0.0)
    effects = coordinator.take_ready().effects
    plans: dict[int, list[m.Plan]] = {rank: [] for rank in range(ranks)}
    for effect in effects:
        if isinstance(effect, Send) and isinstance(effect.message, m.StartEpoch):
            plans[effect.rank].append(effect.message.plan)
    return coordinator, plans, {rank: one.sequence for rank, one in enumerate(cohort)}


if __name__ == "__main__":
    main()
