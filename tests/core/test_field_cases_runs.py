"""Faults that users of comparable systems have met: data, clocks and ends; ids are in the docstrings.

See `test_field_cases.py`.
"""

from __future__ import annotations

import hashlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.dispatch.permutation import partition
from paceline.core.phases import RunPhase, WorkerPhase

from support.cohort import Cohort, Fault
from support.field import work
from support.hand import Hand, messages, named
from support.patience import PATIENCE_S
from support.rank import PLAN, Rank, reports
from support.resuming import resumed

TESTS = Path(__file__).parents[1]


# --- schedule and state (C5) ------------------------------------------------------------------------------------------


def test_the_schedule_counts_the_batches_of_the_cohort() -> None:
    """F37, C-15, W-8: 10 and 30 batches a cycle are 40, 80, 120 for both, not 10 or 30, and not twice as much. A rate
    that falls from 0.1 over 400 batches is 0.09, 0.08, 0.07 at the first batch after each, on both ranks; within a
    cycle each adds its own steps."""
    hand = Hand(samples=800, anchor=10, speed_ratios=(1.0, 3.0)).form()
    ranks = [Rank(WorkerPhase.TRAINING) for _ in range(2)]
    rates: list[list[float]] = []
    for cycle in (1, 2, 3):
        for number, steps in ((0, 10), (1, 30)):
            hand.step(number, steps, batch_ms=30.0 if number == 0 else 10.0)
            hand.complete(number)
            begun = ranks[number].worker.position
            positions = [(ranks[number].worker.position, ranks[number].step())[0] for _ in range(steps)]
            assert positions == list(range(begun, begun + steps))
        effects = hand.average()
        for number, rank in enumerate(ranks):
            [position] = messages(effects, m.SetGlobalStep, number)
            [update] = messages(effects, m.Update, number)
            assert position.global_step == update.global_step == 40 * cycle
            rank.cycle(cycle, base=update.global_step, version=update.version, plan=PLAN)
            rank.control(m.SetGlobalStep, version=position.version, global_step=position.global_step)
        rates.append([0.1 * (1.0 - rank.worker.position / 400.0) for rank in ranks])

    assert rates == [pytest.approx([rate, rate]) for rate in (0.09, 0.08, 0.07)]


def test_nobody_trains_before_everyone_holds_the_same_state() -> None:
    """F43, M-6: the first plan leaves after all have acknowledged the state of the lowest rank, bit for bit."""
    hand = Hand(2)
    effects = list(hand.effects)
    (opened,) = [effect for effect in effects if isinstance(effect, fx.OpenRound)]
    assert [rank for rank, _, _ in opened.members] == [0] and opened.key.kind == m.RoundKind.STATE
    for rank in (0, 1):
        effects += hand.ready(rank)
    effects += hand.reduce()
    effects += hand.ack(0, outcome=m.Outcome.OBSERVER)
    assert not messages(effects, m.StartEpoch)

    assert messages(hand.ack(1, outcome=m.Outcome.OBSERVER), m.StartEpoch)


# --- partition, epochs, resize (C6) -----------------------------------------------------------------------------------


@settings(max_examples=25)
@given(leaving=st.lists(st.integers(0, 300), min_size=2, max_size=2), samples=st.integers(20, 80))
def test_a_smaller_cohort_trains_each_epoch_exactly(leaving: list[int], samples: int) -> None:
    """F45, D-2, I42: two of four leave in the middle; no padding, no repeat, and the next epoch is whole."""
    cohort = Cohort(ranks=4, samples=samples, batch_size=1, num_epochs=2)
    cohort.run(faults=[Fault(when, "leave", rank) for rank, when in enumerate(leaving)])

    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert cohort.co.cycle.global_step == 2 * samples


def test_a_chunk_of_a_dead_rank_is_trained_once_by_another() -> None:
    """F46, D-19, N-6, I42: freed once; the late end of it changes nothing; what was trained in vain is counted."""
    hand = Hand(samples=40, num_epochs=1).form()
    (plan,) = [entry.plan for entry in hand.co.book.holdings(1).plans]
    hand.step(1, 2)
    hand.feed(ev.LinkLost(1, 1, "reset"))
    assert hand.co.book.replayed == 2
    hand.complete(1, (plan.plan_id,))
    assert hand.co.fenced[1, "Metrics"] == 1
    while hand.co.run.phase == RunPhase.TRAINING:
        work(hand, 0)
        hand.average()

    assert hand.co.cycle.global_step == hand.co.book.covered == 20 and hand.co.book.last_closed_epoch == 0


def test_a_resume_in_an_epoch_trains_the_rest_of_that_same_epoch() -> None:
    """F47, D-1, D-2, D-23, K-10, K-12, I52: 64 samples, seed 7; saved when 20 samples of epoch 3 are merged, resumed
    from the bytes of its record by another number of ranks, which do not know the seed, when chance has been used for
    other things. By sample: epoch 3 is in the consensus once over both runs, and in each run what is trained is not
    merged yet. Epoch 4 comes in the order that a run without a break has, which is another one than that of epoch 3."""
    made: dict[str, Any] = dict(samples=64, batch_size=2, num_epochs=5, anchor=5, max_anchor=5)
    first = Cohort(ranks=2, seed=7, save_path="runs", **made)
    first.run_until(lambda: len(of_epoch(first, 3, first.ghost.merged)) >= 20)
    first.strike("stop")
    first.run()
    saved = of_epoch(first, 3, first.ghost.merged)
    assert 20 <= len(saved) < 64 and first.co.book.last_closed_epoch == 2

    random.seed(99)
    random.random()
    second = resumed(first, ranks=3, seed=None, **made)
    before = Counter(second.ghost.trained)
    second.run()
    rest = [pick for pick in second.ghost.merged if pick not in first.ghost.merged]
    assert sorted(saved + of_epoch(second, 3, rest)) == list(range(64))
    stepped = list((Counter(second.ghost.trained) - before).elements())
    assert sorted(of_epoch(second, 3, stepped)) == sorted(of_epoch(second, 3, rest)), "nothing is stepped twice"
    whole = Cohort(ranks=2, seed=7, **made)
    whole.run()
    orders = {epoch: [of_epoch(run, epoch, [(epoch, batch) for batch in range(32)]) for run in (second, whole)]
              for epoch in (3, 4)}  # fmt: skip
    assert sorted(of_epoch(second, 4, rest)) == sorted(orders[4][0]) == list(range(64))
    assert orders[3][0] == orders[3][1] and orders[4][0] == orders[4][1] and orders[3][0] != orders[4][0]


def of_epoch(run: Cohort, epoch: int, picks: Iterable[tuple[int, int]]) -> list[int]:
    """The samples of an epoch's batches among these, as a rank finds them by what its welcome says (D-1)."""
    told = run.co.config.welcome(run.setup.samples, run.setup.ranks)
    whole, size = (told["dataset_len"], told["epoch_splits"], told["seed"], epoch), told["batch_size"]
    return [sample for of, batch in picks if of == epoch for sample in partition(*whole, batch * size, size)]


@settings(max_examples=60)
@given(st.integers(0, 20), st.integers(1, 8), st.integers(1, 8), st.booleans(), st.sampled_from(["cadence", "sync"]))
def test_data_smaller_than_the_cohort_end_well(
    samples: int, ranks: int, batch: int, drop_last: bool, policy: str
) -> None:
    """F49, I54: everything once, nobody gets an empty plan, and what cannot be trained ends or is refused."""
    made: dict[str, Any] = dict(ranks=ranks, samples=samples, batch_size=batch, drop_last=drop_last, policy=policy)
    refused = any(isinstance(effect, fx.Refuse) for effect in Hand(**made).effects)
    assert refused is (samples < batch)
    if refused:
        return
    cohort = Cohort(**made)
    cohort.run()
    plans = [message.plan for message in cohort.sent(m.StartEpoch)]

    assert all(plan.size > 0 for plan in plans)
    assert cohort.finish is not None and cohort.finish.status == "ok"
    assert cohort.co.cycle.global_step == 2 * (samples // batch if drop_last else -(-samples // batch))


def test_a_death_together_with_the_last_completion_closes_the_epoch_once() -> None:
    """F51, D-20, D-21: as far as nobody joins; in either order."""
    for first in ("death", "completion"):
        hand = Hand(3, samples=18, num_epochs=2, anchor=3).form()
        for rank in range(3):
            hand.step(rank, 3)
        for rank in (0, 1):
            hand.complete(rank)
        if first == "completion":
            hand.complete(2)
            hand.feed(ev.LinkLost(2, 1, "reset"))
        else:
            hand.feed(ev.LinkLost(2, 1, "reset"))
        effects = hand.average()
        while not named(effects, "EpochEnd"):
            effects = hand.window()

        assert [end["epoch"] for end in named(effects, "EpochEnd")] == [0] and hand.co.book.first_live == 1


def test_a_rank_without_a_batch_answers_at_once() -> None:
    """F52, W-10, R-9, G-4: from idle, with what it has stepped; a short last batch is a step like any."""
    rank = Rank(WorkerPhase.TRAINING)
    rank.step(4, last=True)
    rank.end(7)
    assert rank.worker.phase == WorkerPhase.WAITING
    orders = rank.request(1) + rank.copied(1)

    assert [ready.shipped_steps for ready in reports(orders, m.SnapshotReady)] == [4]
    cohort = Cohort(ranks=2, samples=2 * 8 + 3, batch_size=8, drop_last=False, num_epochs=1)
    cohort.run()
    assert cohort.co.cycle.global_step == 3 and cohort.finish is not None and cohort.finish.status == "ok"


# --- clocks and pauses (C12) ------------------------------------------------------------------------------------------


def forbid(patch: pytest.MonkeyPatch) -> None:
    """Whatever reads a clock, chance or the world raises."""

    def refuse(*arguments: Any, **named_arguments: Any) -> Any:
        raise AssertionError("the core reached out")

    for owner, name in ((time, "time"), (time, "monotonic"), (time, "perf_counter"), (random, "random"),
                        (os, "urandom"), (socket, "socket"), (threading, "Thread")):  # fmt: skip
        patch.setattr(owner, name, refuse)


def trace(seed: int = 5) -> str:
    """A run of five ranks with faults, as one number."""
    chance = random.Random(seed)
    schedule = [chance.randrange(12) for _ in range(3000)]
    faults = [Fault(60, "crash", 1), Fault(90, "abort"), Fault(150, "poison", 2), Fault(200, "cut", 3)]
    cohort = Cohort(ranks=5, samples=300, num_epochs=2)
    cohort.run(schedule, faults)
    return hashlib.sha256(repr(cohort.effects).encode()).hexdigest()


def test_no_decision_reads_a_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """F84, N-13: jumps of an hour either way cannot change what does not look."""
    expected = trace()
    with monkeypatch.context() as patch:
        forbid(patch)
        found = trace()

    assert found == expected


# --- seeing what is wrong (C14; F93 is in test_waiting.py) ------------------------------------------------------------


def test_the_same_schedule_gives_the_same_trace_everywhere() -> None:
    """F97, I25, N-13: twice here, and in processes whose hashes are seeded otherwise."""
    call = (
        "import importlib.util as u; s = u.spec_from_file_location('cases', 'core/test_field_cases_runs.py');"
        " cases = u.module_from_spec(s); s.loader.exec_module(cases); print(cases.trace())"
    )
    found = {trace(), trace()}
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", call], cwd=TESTS, env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.add(done.stdout.strip())

    assert len(found) == 1
