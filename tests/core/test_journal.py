"""Events in, effects out, again and the same (M-40, O-8)."""

from __future__ import annotations

import json
import typing
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import journal
from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.errors import CheckpointError, InvariantError, LocalProtocolError
from paceline.core.simulation.action import COORDINATOR
from paceline.core.worker import Worker

from support.cohort import Cohort, Fault
from support.hand import pending
from support.messages import MESSAGES, any_of
from support.runs import run_faults, run_knobs, schedules
from support.words import hello

LOCAL = [cls for cls in (*typing.get_args(ev.CoordinatorEvent), *typing.get_args(ev.WorkerEvent))
         if cls is not ev.Received]  # fmt: skip
EVENTS = any_of(LOCAL) | MESSAGES.map(ev.Received)


def again(plain: Any) -> Any:
    """Through JSON, as a file would have it."""
    return json.loads(json.dumps(plain, allow_nan=False))


# --- events ----------------------------------------------------------------------------------------------------------


@given(EVENTS)
def test_every_event_comes_back_as_it_was(event: Any) -> None:
    """With the types of its fields and the order of its maps."""
    second, back = journal.decode_record(again(journal.encode_record((12.5, event))))
    assert second == 12.5 and type(back) is type(event)
    assert back == event and repr(back) == repr(event)


def test_a_loss_that_is_no_number_comes_back() -> None:
    """JSON has no NaN, and a diverging run has nothing else."""
    event = ev.StepDone(samples=3, batch_ms=0.1, data_ms=1e-9, loss=float("nan"), lr=float("inf"))
    assert repr(journal.decode_record(again(journal.encode_record((1.0, event))))[1]) == repr(event)


@pytest.mark.parametrize(("plain", "said"), [
    ({}, "no record"), ([1.0], "no record"), (["now", {"is": "events:Tick"}], "no record"),
    ([1.0, {"is": "effects:Finish", "status": "ok", "text": ""}], "a Finish is no event"),
    ([1.0, {"is": "events:Nonsense"}], "no class"), ([1.0, {}], "damaged"),
])  # fmt: skip
def test_what_is_no_record_is_refused(plain: Any, said: str) -> None:
    """A journal is a file, and files are damaged."""
    with pytest.raises(CheckpointError, match=said):
        journal.decode_record(plain)


# --- replay ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(run_knobs(), schedules(), run_faults(), st.integers(0, 300))
def test_a_replay_of_a_run_has_the_same_effects(
    made: dict[str, Any], schedule: bytes, struck: list[Fault], cut: int
) -> None:
    """O-8: byte for byte, from the start, from a snapshot in the middle, and of each worker."""
    cohort = Cohort(**made)
    first = journal.head_of(again(journal.head(Coordinator(cohort.config, now=100.0))))
    cohort.run(schedule, struck)
    records = [journal.decode_record(again(journal.encode_record(record))) for record in cohort.records[COORDINATOR]]

    assert journal.first_difference(cohort.effects, journal.replay(cohort.config, records, now=100.0)) is None
    effects = journal.replay(first.settings, records, snapshot=first.snapshot)
    assert journal.first_difference(cohort.effects, effects) is None

    middle = Coordinator(cohort.config, now=100.0)
    for second, event in records[:cut]:
        middle.handle(event, second)
    before = middle.take_ready().effects
    rest = journal.replay(cohort.config, records[cut:], snapshot=again(middle.snapshot()))
    assert journal.first_difference(cohort.effects, [*before, *rest]) is None
    for process in cohort.processes:
        orders = journal.replay(process.worker.settings, cohort.records[process.number], now=100.0)
        assert journal.first_difference(cohort.said[process.number], orders) is None


def test_each_ready_has_the_events_behind_its_effects() -> None:
    """M-40: what is appended before the effects leave is what they follow from, and nothing of it twice."""
    co = Coordinator(Config(batch_size=2, num_epochs=1, target_ranks=1), now=1.0)
    event = ev.HelloReceived(7, hello(60))
    co.handle(ev.Tick(), 1.5)
    co.handle(event, 2.0)
    ready = co.take_ready()
    assert ready.records == ((1.5, ev.Tick()), (2.0, event))
    assert any(isinstance(effect, fx.Admit) for effect in ready.effects)
    assert co.take_ready() == fx.Ready((), ())


def test_an_event_that_broke_the_machine_is_in_its_records() -> None:
    """The last line of a journal is the one that explains the end."""
    co = pending().co
    co.book.ranks.clear()
    with pytest.raises(InvariantError, match="I46"):
        for event in (ev.RoundReduced(co.cycle.key, 0, (0, 1), (), True, None), *_acks(co)):
            co.handle(event, co.now)
    assert isinstance(co.take_ready().records[-1][1], ev.Received)


def _acks(co: Coordinator) -> list[Any]:
    stamps = [dict(run_id=co.config.run_id, generation=1, rank=rank, incarnation=1) for rank in (0, 1)]
    said: list[Any] = []
    for stamp in stamps:
        number = co.peers[int(str(stamp["rank"]))].report_seq
        fields: Any = {**stamp, "cycle": 1, "attempt": 0, "shipped_steps": 3}
        said.append(ev.Received(m.SnapshotReady(report_seq=number + 1, **fields)))
        said.append(ev.Received(m.SyncAck(report_seq=number + 2, step_count=3, total_steps=6, state_complete=True,
                                          outcome=m.Outcome.MERGED, **fields)))  # fmt: skip
    return said


# --- differences -----------------------------------------------------------------------------------------------------


def test_the_first_effect_that_differs_is_named() -> None:
    """O-8: by number, with both effects; a missing one is None."""
    one, two, three = fx.Finish("ok", "a"), fx.Emit("Died", {"rank": 1}), fx.Emit("Died", {"rank": 2})
    assert journal.first_difference([one, two], [one, two]) is None
    assert journal.first_difference([one, two], [one, three]) == journal.Difference(1, two, three)
    assert journal.first_difference([one], [one, two]) == journal.Difference(1, None, two)
    assert journal.first_difference([one, two], [one]) == journal.Difference(1, two, None)
    text = str(journal.first_difference([one, two], [one, three]))
    assert text.startswith("effect 1 differs") and "{'rank': 1}" in text and "{'rank': 2}" in text


def test_numbers_that_are_none_are_equal_to_themselves() -> None:
    """A loss that is NaN is no difference between two runs; a number that became text is one."""
    assert journal.first_difference([fx.Emit("x", {"a": float("nan")})], [fx.Emit("x", {"a": float("nan")})]) is None
    assert journal.first_difference([fx.Emit("x", {"a": 1})], [fx.Emit("x", {"a": "1"})]) is not None


def test_a_replay_under_another_config_differs_and_says_where() -> None:
    """The length of a window is a decision: the first plan gives it away."""
    cohort = Cohort(anchor=3)
    cohort.run()
    other = attrs.evolve(cohort.config, anchor=2)
    cut = journal.replay(other, cohort.records[COORDINATOR][:12], now=100.0)
    found = journal.first_difference(cohort.effects[: len(cut)], cut)
    assert found is not None and isinstance(found.recorded, fx.Send)


def test_records_of_another_machine_are_misuse() -> None:
    """Time that goes back, an event that a coordinator does not have."""
    with pytest.raises(LocalProtocolError, match="went back"):
        journal.replay(Config(), [(1.0, ev.Tick())], now=2.0)
    with pytest.raises(LocalProtocolError, match="not an event"):
        journal.replay(Config(), [(1.0, ev.DrainPoint())])


# --- lines -----------------------------------------------------------------------------------------------------------


def test_a_worker_has_a_journal_too() -> None:
    """Its head holds the settings it was welcomed with."""
    worker = Cohort().seats[1].worker
    first = journal.head_of(again(journal.head(worker)))
    assert first.settings == worker.settings
    assert isinstance(first.settings, type(worker.settings))
    assert Worker.restore(worker.settings, first.snapshot).snapshot() == worker.snapshot()


def test_a_guard_of_the_embedder_cannot_stand_in_a_file() -> None:
    """Said when the journal begins, not when it is needed."""

    class Own:
        reports_telemetry = False

        def observe(self, cycle: Any) -> Any:
            raise NotImplementedError

        def saved(self) -> dict[str, Any]:
            return {}

    with pytest.raises(LocalProtocolError, match="Own"):
        journal.head(Coordinator(Config(guard=Own())))


@pytest.mark.parametrize(("plain", "said"), [
    ([], "no head"), ({"journal": "1"}, "no head"), ({"journal": 2}, "format 2"), ({"journal": 1}, "no config"),
    ({"journal": 0}, "format 0"), ({"journal": -1}, "format -1"),
    ({"journal": 1, "config": {"is": "events:Tick"}, "snapshot": []}, "no config"),
])  # fmt: skip
def test_what_is_no_head_is_refused(plain: Any, said: str) -> None:
    """Also that of another version."""
    with pytest.raises(CheckpointError, match=said):
        journal.head_of(plain)


@pytest.mark.parametrize("machine", ["worker", None, 1])
def test_a_head_says_whose_config_it_holds(machine: object) -> None:
    """One that says otherwise was not written by us."""
    plain = journal.head(Coordinator(Config()))
    assert plain["machine"] == "coordinator" and journal.head_of(plain).settings == Config()
    with pytest.raises(CheckpointError, match=rf"says {machine!r}, its config is a coordinator's"):
        journal.head_of(plain | {"machine": machine})


@pytest.mark.parametrize("plain", [[], {}, {"in": []}, {"in": {}, "out": []}])
def test_what_is_no_batch_is_refused(plain: Any) -> None:
    """A line of another file."""
    with pytest.raises(CheckpointError, match="no events and effects"):
        journal.batch_of(plain)
