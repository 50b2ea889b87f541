"""A machine and its restored self cannot be told apart, whenever one takes the other's place (I25, N-13)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.errors import CheckpointError, LocalProtocolError
from paceline.core.events import HelloReceived, Received, SnapshotTaken, StepDone
from paceline.core.guard import NoGuard
from paceline.core.phases import RunPhase
from paceline.core.plain import decode, encode
from paceline.core.snapshots import freeze, thawed
from paceline.core.worker import Worker

from support.cohort import Cohort, Fault
from support.hand import Hand, pending
from support.runs import FAULTS, OF_ACTIONS, Swapping, action_knobs, run_faults, run_knobs, schedules
from support.words import hello

TESTS = Path(__file__).parents[1]


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(run_knobs(), schedules(), run_faults(), st.sets(st.integers(1, 250), max_size=4), st.booleans())
def test_a_restored_machine_goes_on_as_the_one_it_replaces(
    made: dict[str, Any], schedule: bytes, struck: list[Fault], swaps: set[int], grows: bool
) -> None:
    """I25: at random points of a random run, with whatever is in flight; effects, orders and end are the same."""
    _no_difference(made, schedule, struck, swaps, grows=grows)


def _no_difference(
    made: dict[str, Any], schedule: bytes, struck: list[Fault], swaps: set[int], *, grows: bool
) -> None:
    runs = [Swapping(swaps, really=really, grows=grows, **made) for really in (False, True)]
    for cohort in runs:
        cohort.run(schedule, struck)

    plain, swapped = runs
    assert json.dumps(encode(plain.effects)) == json.dumps(encode(swapped.effects))
    assert plain.said == swapped.said
    assert plain.kept == swapped.kept
    assert plain.co.snapshot() == swapped.co.snapshot()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(run_knobs(3), action_knobs(), schedules(), run_faults((*FAULTS, *OF_ACTIONS)),
       st.sets(st.integers(1, 250), max_size=4))  # fmt: skip
def test_what_is_armed_asked_and_owed_is_in_a_snapshot(
    made: dict[str, Any], more: dict[str, Any], schedule: bytes, struck: list[Fault], swaps: set[int]
) -> None:
    """I25: the same of runs with callbacks: roles, duties, bundles and wishes here, armed messages at the ranks."""
    _no_difference({**made, **more}, schedule, struck, swaps, grows=False)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(run_knobs(), schedules(120))
def test_a_snapshot_is_hashable_and_survives_json(made: dict[str, Any], schedule: bytes) -> None:
    """Plain data only: nested tuples of None, truth values, numbers and text."""
    cohort = Cohort(**made)
    for choice in schedule:
        actions = cohort.choices()
        if actions:
            cohort.do(actions[choice % len(actions)])

    for snapshot in (cohort.co.snapshot(), *(process.worker.snapshot() for process in cohort.processes)):
        waiting: deque[Any] = deque([snapshot])
        while waiting:
            part = waiting.popleft()
            assert type(part) in (tuple, type(None), bool, int, float, str)
            waiting.extend(part if isinstance(part, tuple) else ())
        assert hash(snapshot) == hash(snapshot)
        assert _tuples(json.loads(json.dumps(snapshot, allow_nan=False))) == snapshot


def _tuples(thing: Any) -> Any:
    return tuple(_tuples(item) for item in thing) if isinstance(thing, list) else thing


def test_what_was_not_taken_yet_is_in_the_snapshot() -> None:
    """Complete: effects and records that wait for take_ready are handed out by the restored machine."""
    hand = Hand(2)
    hand.co.handle(Received(m.Heartbeat(run_id=bytes(16), generation=1, rank=0, incarnation=1, report_seq=1,
                                        step_count=0, state="x")), hand.now)  # fmt: skip
    hand.co.condemn(m.SaveReason.DIVERGED, "a test")
    twin = Coordinator.restore(hand.co.config, hand.co.snapshot())
    assert twin.condemned == hand.co.condemned
    assert twin.take_ready() == hand.co.take_ready()


def test_what_ranks_wished_is_restored_with_the_config_as_it_was_given() -> None:
    """V-6: the config of a restored run is the resolved one."""
    config = Config(target_ranks=2)
    first = Coordinator(config, now=1.0)
    first.handle(HelloReceived(1, hello(60, {"batch_size": 3, "num_epochs": 7})), 2.0)
    twin = Coordinator.restore(config, first.snapshot())
    assert (twin.config.batch_size, twin.config.num_epochs, twin.config.seed) == (3, 7, 42)
    assert twin.snapshot() == first.snapshot()


def test_two_processes_with_two_hash_seeds_say_the_same() -> None:
    """I25, N-13: effects, orders and snapshots byte for byte."""
    said = set()
    for seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        done = subprocess.run(
            [sys.executable, str(TESTS / "support" / "determinism_process.py"), "1", "2", "3", "4", "5", "6"],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        said.add(done.stdout.strip())
    assert len(said) == 1 and len(said.pop()) == 64


# --- refusals --------------------------------------------------------------------------------------------------------


def _changed(snapshot: tuple[Any, ...], index: int, part: Any) -> tuple[Any, ...]:
    return (*snapshot[:index], part, *snapshot[index + 1 :])


@pytest.mark.parametrize(("index", "part", "said"), [
    (0, "worker", "no snapshot of a coordinator"),
    (1, 99, "format 99"),
    (2, "11" * 16, "run_id"),
    (3, (("batch_size", 5),), "batch_size: the snapshot has 5, this machine 2"),
    (4, freeze({"guard": "growth"}), "another guard than LevelGuard"),
    (5, (), "another version"),
    (5, (("alive", ("?", 1)),), "damaged"),
    (5, (("alive", ("{", ("is", "os:PathLike"))),), "no class 'os:PathLike'"),
    (5, (("alive", ("{", ("is", "events:LinkLost"))),), "has the fields"),
    (5, (("alive", ("{", ("is", "phases:RunPhase"), ("of", 77))),), "damaged"),
])  # fmt: skip
def test_a_snapshot_of_something_else_is_refused(index: int, part: Any, said: str) -> None:
    """Both values are named where there are two; nothing is restored in part by guessing."""
    co = pending().co
    with pytest.raises(CheckpointError, match=said):
        Coordinator.restore(co.config, _changed(co.snapshot(), index, part))


def test_a_worker_refuses_the_snapshot_of_another_incarnation() -> None:
    """N-6: its numbers would continue somebody else's lanes."""
    cohort = Cohort()
    ours, theirs = (cohort.seats[rank].worker for rank in (0, 1))
    with pytest.raises(CheckpointError, match="incarnation"):
        Worker.restore(ours.settings, theirs.snapshot())
    with pytest.raises(CheckpointError, match="no snapshot of a worker"):
        Worker.restore(ours.settings, ())


def test_an_empty_snapshot_is_none_of_a_coordinator() -> None:
    """Not even a head."""
    with pytest.raises(CheckpointError, match="no snapshot"):
        Coordinator.restore(Config(), ())


# --- plain data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [
    None, True, 3, "x", b"\x00\xff", (1, (2, ())), [1, [2]], deque([1]), {"b": (2,), 1: "a", 0: 3}, RunPhase.TRAINING,
    float("inf"), float("-inf"), StepDone(samples=1, batch_ms=0.1, data_ms=0.2),
    Config(batch_size=2, partition_ratios=(1.0, 2.0), policy="sync"),
])  # fmt: skip
def test_everything_plain_comes_back(thing: Any) -> None:
    """With its type, and the order of its entries."""
    for back in (decode(json.loads(json.dumps(encode(thing)))), thawed(freeze(thing))):
        assert back == thing and type(back) is type(thing) and repr(back) == repr(thing)


def test_no_number_is_a_number_too() -> None:
    """A loss may be NaN; JSON has no word for it."""
    assert str(decode(json.loads(json.dumps(encode(float("nan")), allow_nan=False)))) == "nan"


@pytest.mark.parametrize("thing", [{1, 2}, NoGuard, object(), 1j, pytest.raises])
def test_what_is_not_plain_is_refused(thing: Any) -> None:
    """Sets have no order (N-13); the rest is not ours to keep."""
    with pytest.raises(LocalProtocolError, match="cannot be kept"):
        encode(thing)


def test_an_event_that_did_not_happen_leaves_no_record() -> None:
    """Local misuse changes nothing: neither time nor journal."""
    worker = Cohort().seats[0].worker
    worker.take_ready()
    before = worker.snapshot()
    with pytest.raises(LocalProtocolError):
        worker.handle(StepDone(samples=1, batch_ms=0.1, data_ms=0.2), 500.0)
    assert worker.snapshot() == before
    worker.handle(SnapshotTaken(7, 0, 1.0), 500.0)
    assert worker.take_ready().records == ((500.0, SnapshotTaken(7, 0, 1.0)),)
