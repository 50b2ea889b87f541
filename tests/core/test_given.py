"""What an embedder gives a machine is looked at first: whatever is wrong is an error of paceline that names it, and the
machine is as it was (C-1, N-12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from paceline.core import events as ev
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.errors import CheckpointError, ConfigError, LocalProtocolError, PacelineError
from paceline.core.given import OF_COORDINATOR, OF_WORKER
from paceline.core.messages import RoundKey, RoundKind
from paceline.core.worker import Worker, WorkerSettings

SETTINGS = WorkerSettings(run_id=bytes(16), generation=1, rank=0, incarnation=1, policy="cadence", batch_size=8)

COORDINATOR: Any = Coordinator
WORKER: Any = Worker
CONFIG: Any = Config
EVENTS: Any = ev
"""As an embedder has them whose types nobody checks."""


class Whole(int):
    """A number of another library."""


@pytest.mark.parametrize(("call", "said"), [
    (lambda: COORDINATOR(None), "config = None is not allowed: give a Config"),
    (lambda: COORDINATOR({}), "config = {} is not allowed"),
    (lambda: COORDINATOR(Config), "is not allowed: give a Config"),
    (lambda: COORDINATOR(Config(), policies=3), "policies = 3 is not allowed: give a Policies"),
    (lambda: COORDINATOR(Config(), guard=3), "guard = 3 is not allowed: give an object with observe"),
    (lambda: COORDINATOR(Config(), resume={}), "resume = {} is not allowed"),
    (lambda: Coordinator(Config(), now=True), "True is no time"),
    (lambda: COORDINATOR(Config(), now="soon"), "'soon' is no time"),
    (lambda: WORKER.create(None, 0.0), "settings = None is not allowed: give a WorkerSettings"),
    (lambda: Worker.create(SETTINGS, float("nan")), "nan is no time"),
    (lambda: WORKER.restore({}, ()), "settings = {} is not allowed"),
])  # fmt: skip
def test_what_a_machine_is_made_of_is_named(call: Callable[[], object], said: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        call()
    assert said in str(caught.value)


@pytest.mark.parametrize("snapshot", [None, 3, (), "coordinator", ("coordinator", 2, "00", (), (), (), ()), {"a": 1}])
def test_what_is_no_snapshot_is_said_in_one_sentence(snapshot: Any) -> None:
    for restore in (lambda: Coordinator.restore(Config(), snapshot), lambda: Worker.restore(SETTINGS, snapshot)):
        with pytest.raises(CheckpointError) as caught:
            restore()
        assert "snapshot" in str(caught.value) and "Error(" not in str(caught.value)


def test_a_damaged_snapshot_is_said_in_words() -> None:
    whole = Coordinator(Config()).snapshot()
    with pytest.raises(CheckpointError, match="this snapshot is damaged: a part of it is missing or is not what it"):
        Coordinator.restore(Config(), (*whole[:3], ((1, 2, 3),), *whole[4:]))


@pytest.mark.parametrize(("event", "said"), [
    (EVENTS.SendFailed(12345), "SendFailed.token = 12345 is not allowed: tuple[int, int, int] is wanted"),
    (EVENTS.SendFailed((0, 1)), "SendFailed.token"),
    (EVENTS.HelloReceived(0, None), "HelloReceived.hello = None"),
    (EVENTS.LinkLost(rank="0"), "LinkLost.rank = '0' is not allowed: int is wanted"),
    (EVENTS.OperatorRequest("stop"), "OperatorRequest.kind"),
    (EVENTS.RoundReduced(None, 0, (), (), True), "RoundReduced.key"),
    (ev.LaneClosed(), "LaneClosed is not an event of the coordinator"),
    (None, "NoneType is not an event"),
    (ev.Tick, "type is not an event"),
])  # fmt: skip
def test_an_event_of_the_wrong_shape_changes_nothing(event: Any, said: str) -> None:
    coordinator = Coordinator(Config())
    before = coordinator.snapshot()
    with pytest.raises(LocalProtocolError) as caught:
        coordinator.handle(event, 1.0)
    assert said in str(caught.value) and coordinator.snapshot() == before and not coordinator.take_ready().records


@pytest.mark.parametrize("event", [
    EVENTS.StepDone(samples="8", batch_ms=1.0, data_ms=0.0),
    ev.StepDone(samples=True, batch_ms=1.0, data_ms=0.0),
    EVENTS.ChunkDone(plan_ids=[1], epoch=0, batches=1, samples=1, epoch_ms=1, share_complete_ms=1,
                     compute_only_ms=1, data_starve_ms=0),
    EVENTS.TrainingFailed(3),
    EVENTS.HelloReceived(0, None),
])  # fmt: skip
def test_a_worker_refuses_it_too(event: Any) -> None:
    worker = Worker.create(SETTINGS, 0.0)
    before = worker.snapshot()
    with pytest.raises(LocalProtocolError, match=type(event).__name__):
        worker.handle(event, 1.0)
    assert worker.snapshot() == before


def test_true_is_no_time() -> None:
    for machine in (Coordinator(Config()), Worker.create(SETTINGS, 0.0)):
        with pytest.raises(LocalProtocolError, match="True is no time"):
            machine.handle(ev.Tick(), True)


def test_a_number_of_another_kind_is_a_number() -> None:
    """A whole number where milliseconds are wanted, a member of an enumeration, a subclass: all stay allowed."""
    OF_WORKER.check(ev.StepDone(samples=Whole(3), batch_ms=1, data_ms=0, loss=Whole(2)))
    key = RoundKey(generation=1, cycle=0, kind=RoundKind.PARAMS)
    OF_COORDINATOR.check(ev.RoundAborted(key, RoundKind.PARAMS, ""))


@pytest.mark.parametrize("kind", sorted(OF_COORDINATOR.members | OF_WORKER.members, key=str))
def test_every_field_of_every_event_is_looked_at(kind: Any) -> None:
    """An event whose fields are all of a class that nothing is declared with is refused by its first field."""
    fields = attrs.fields(kind)
    of = OF_COORDINATOR if kind in OF_COORDINATOR.members else OF_WORKER
    if fields:
        with pytest.raises(LocalProtocolError, match=f"{kind.__name__}.{fields[0].name} = "):
            of.check(kind(**{field.name: ... for field in fields}))


@pytest.mark.parametrize(("make", "said"), [
    (lambda: CONFIG(nope=1), "there is no knob 'nope'"),
    (lambda: CONFIG(tls=True), "tls belongs to TLS"),
    (lambda: CONFIG({"anchor": 3}), "give knobs by name"),
    (lambda: CONFIG.from_knobs({3: 1}), "there is no knob 3"),
])  # fmt: skip
def test_a_config_is_made_of_knobs_alone(make: Callable[[], object], said: str) -> None:
    """Section 15: an unknown knob is an error too, however it is given."""
    with pytest.raises(ConfigError) as caught:
        make()
    assert said in str(caught.value) and isinstance(caught.value, PacelineError)
