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
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.dispatch.permutation import partition
from paceline.core.errors import LocalProtocolError
from paceline.core.phases import PeerPhase, RunPhase, WorkerPhase

from support.cohort import Cohort, Fault
from support.field import QUICK, pass_time, work
from support.hand import Hand, alerts, messages, named, pending
from support.rank import Rank, of, reports
from support.words import hello

TESTS = Path(__file__).parents[1]


# --- schedule and state (C5) ------------------------------------------------------------------------------------------


def test_the_schedule_counts_the_batches_of_the_cohort() -> None:
    """F37, C-15, W-8: 10 and 30 batches a cycle are 40, 80, 120 for both, not 10 or 30, and not twice as much."""
    hand = Hand(samples=800, anchor=10, speed_ratios=(1.0, 3.0)).form()
    bases = []
    for _ in range(3):
        for rank, steps in ((0, 10), (1, 30)):
            hand.step(rank, steps, batch_ms=30.0 if rank == 0 else 10.0)
            hand.complete(rank)
        bases.append({message.global_step for message in messages(hand.average(), m.SetGlobalStep)})

    assert bases == [{40}, {80}, {120}]


def test_a_step_is_one_batch_however_many_optimizers_it_has() -> None:
    """F40, W-2: the machine is told once a batch, and both sides count that."""
    rank = Rank(WorkerPhase.TRAINING)
    seen = [(batch.step_count, rank.worker.steps_since_avg) for _ in range(4)
            for batch in reports(rank.step(), m.Batch)]  # fmt: skip
    rank.cycle(1, base=4, version=1)

    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4)] and rank.worker.steps_since_avg == 0


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


def test_the_order_of_an_epoch_depends_on_nothing_but_seed_and_epoch() -> None:
    """F47, D-1, D-2: whatever else was drawn; what is left after 20 of 64 is the rest of the same order."""
    random.seed(99)
    whole = [list(partition(64, 1, 7, epoch, 0, 64)) for epoch in (3, 4)]
    random.seed(1)
    random.random()

    assert list(partition(64, 1, 7, 3, 0, 20)) + list(partition(64, 1, 7, 3, 20, 44)) == whole[0]
    assert sorted(whole[0]) == list(range(64)) and whole[0] != whole[1]


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


@pytest.mark.parametrize("pending_cycle", [True, False])
def test_a_whole_host_that_slept_blames_nobody(pending_cycle: bool) -> None:
    """F85 (a) and (c), M-9: 519 s later nobody has died or stalled, and the run goes on."""
    hand = pending(**QUICK) if pending_cycle else Hand(samples=400, **QUICK).form()
    hand.now += 519.0
    effects = hand.feed(ev.Tick())
    assert not named(effects, "Died") and not named(effects, "Stalled")
    if pending_cycle:
        hand.average()

    assert hand.co.alive == [0, 1] and hand.co.cycle.version == (1 if pending_cycle else 0)


def test_a_rank_whose_host_slept_is_dead_and_fenced() -> None:
    """F85 (b), M-17: the coordinator was awake."""
    hand = Hand(samples=400, **QUICK).form()
    pass_time(hand, 519.0 / 10, silent=(1,))
    hand.say(1, m.Heartbeat, step_count=0, state="x")

    assert hand.co.peers[1].phase == PeerPhase.DEAD and hand.co.fenced[1, "Heartbeat"] == 1


# --- shutdown races (C13) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [10.0, 31.0])
def test_the_coordinator_is_the_last_to_leave(late: float) -> None:
    """F87, M-53: it listens until the last goodbye or the end of the grace, and names who did not go."""
    hand = Hand(num_epochs=0).form()
    hand.say(0, m.Exiting, reason="done")
    effects = pass_time(hand, late)
    assert hand.co.finished is (late > 30.0)
    if not hand.co.finished:
        effects += hand.say(1, m.Exiting, reason="done")

    assert hand.co.finished and [e.status for e in effects if isinstance(e, fx.Finish)] == ["ok"]
    assert [alert.path for alert in alerts(effects, "unserved_role")] == (["rank 1"] if late > 30.0 else [])


@pytest.mark.parametrize("phase", [WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.THROTTLED])
def test_a_rank_does_not_wait_for_ever_for_its_coordinator(phase: WorkerPhase) -> None:
    """F88, W-22: silence ends in a bounded time, as a lost coordinator and never as a clean end."""
    rank = Rank(phase)
    for _ in range(2000):
        due = rank.worker.poll_timeout()
        if due is None:
            break
        rank.now = due
        rank.feed(ev.Tick())

    assert [stop.status for stop in of(rank.orders, fx.Stop)] == ["coordinator_lost"]
    assert not reports(rank.orders, m.Exiting)


@pytest.mark.parametrize("stage", ["forming", "idle", "pending", "over"])
def test_messages_of_another_run_change_nothing(stage: str) -> None:
    """F90, N-6: in any phase, and none of its plans is ever given to them."""
    hand = Hand(2) if stage == "forming" else pending() if stage == "pending" else Hand(2).form()
    if stage == "over":
        hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    before = hand.co.snapshot()
    effects = hand.say(0, m.Exiting, reason="done", run_id=b"z" * 16)
    hand.co.fenced.clear()

    assert not effects and hand.co.snapshot() == before


def test_nothing_that_comes_after_the_end_does_anything() -> None:
    """F91, M-53: but a Hello, which is refused as closing."""
    hand = Hand(num_epochs=0).form()
    hand.say(0, m.Exiting, reason="done"), hand.say(1, m.Exiting, reason="done")
    assert hand.co.finished and hand.co.poll_timeout() is None
    stamp = {"run_id": hand.co.config.run_id, "generation": 1, "rank": 0, "incarnation": 1}
    ack = m.SyncAck(**stamp, cycle=1, attempt=0, step_count=1, shipped_steps=0, total_steps=0, report_seq=9,
                    outcome=m.Outcome.MERGED, state_complete=True)  # fmt: skip
    late: list[Any] = [
        ev.Received(m.Batch(**stamp, cycle=0, plan_id=1, step_count=1, samples=2, batch_ms=1.0, data_ms=0.0)),
        ev.Received(m.Heartbeat(**stamp, step_count=0, state="x")), ev.Received(ack), ev.LinkLost(0, 1, "reset"),
        ev.ProcessExited(1, 1, 0), ev.Tick(), ev.SendFailed((0, 1, 1)), ev.OperatorRequest(ev.Operator.STOP),
    ]  # fmt: skip
    for event in late:
        effects = hand.feed(event)
        assert not [e for e in effects if isinstance(e, (fx.Send, fx.Finish, fx.OpenRound, fx.Admit))], event
    refused = [e for e in hand.feed(ev.HelloReceived(7, hello(60))) if isinstance(e, fx.Refuse)]

    assert [each.reject.code for each in refused] == [m.RejectCode.CLOSING] and hand.co.poll_timeout() is None


@pytest.mark.parametrize("phase", ["idle", "armed", "reduced"])
def test_a_polite_leave_closes_nothing_for_the_others(phase: str) -> None:
    """F92, M-8, M-22: no death, no alert, no lost step of anybody else."""
    hand = Hand(3, samples=400).form() if phase == "idle" else pending(3, samples=400)
    if phase == "reduced":
        for rank in range(3):
            hand.ready(rank)
        hand.reduce()
    effects = hand.say(2, m.Exiting, reason="leave")
    assert not [e for e in effects if isinstance(e, fx.Alert)] and not messages(effects, m.Shutdown)
    if phase == "armed":
        hand.average()
    elif phase == "reduced":
        hand.ack(0), hand.ack(1)

    assert hand.co.run.phase == RunPhase.TRAINING and hand.co.voters == [0, 1] and hand.co.deaths == 0
    assert hand.co.cycle.version == (0 if phase == "idle" else 1)


# --- seeing what is wrong (C14; F93 is in test_waiting.py) -----------------------------------------------------------


def test_an_event_from_inside_an_event_is_refused() -> None:
    """F96, N-12, N-7: recursion is 1 deep; the driver queues. A hook that raised is told once and changes nothing."""
    hand = pending()
    hand.co.handling = True
    with pytest.raises(LocalProtocolError, match="N-12"):
        hand.co.handle(ev.Tick(), hand.now)
    hand.co.handling = False
    before = hand.co.snapshot()
    effects = hand.feed(ev.CallbackFailed("rank dead", "ValueError: no"))

    assert len(alerts(effects, "callback_failed")) == 1 and hand.co.snapshot() == before


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
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.add(done.stdout.strip())

    assert len(found) == 1
