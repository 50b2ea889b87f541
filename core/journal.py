"""The journal: what went into a machine and what came out, so that it can be gone through again (M-40, O-8).

A machine is a function of its config, its state and its events (N-13), so the events are all that has to be kept. Each
`Ready` carries those behind its effects as `records`, pairs of a time and an event. A driver appends them before it
performs any of the effects; what it has said to the outside is then always explained by what it has kept.

    {"journal": 1, "machine": "coordinator", "config": ..., "snapshot": ...}    the head: what the machine was
    {"in": [[12.5, event], ...], "out": [effect, ...]}                          one line per Ready, as JSON

`replay` feeds the events to a fresh machine and gives its effects; `first_difference` says where they part from those
that were kept. Both sides are compared as plain data, so what they differ in is what somebody outside could notice. A
difference means that something other than the events decided: a fault, or another version of this package.

This module reads and writes no file; `transports/journal_file.py` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from .config import Config
from .coordinator import Coordinator
from .effects import Ready
from .errors import CheckpointError, InvariantError, LocalProtocolError
from .events import CoordinatorEvent, WorkerEvent
from .guard import Guard
from .instants import shown
from .plain import decode, encode
from .policies import Policies
from .snapshots import freeze
from .values import value
from .worker import Worker, WorkerSettings

__all__ = [
    "FORMAT",
    "Difference",
    "Head",
    "Record",
    "batch",
    "batch_of",
    "decode_record",
    "encode_record",
    "first_difference",
    "head",
    "head_of",
    "in_order",
    "replay",
]

FORMAT = 1
"""Version of a journal; a newer one is refused."""

Record = tuple[float, CoordinatorEvent | WorkerEvent]
"""The monotonic second of an event, and the event."""


@value
class Head:
    """The first line of a journal: `settings` is the `Config` of a coordinator or the `WorkerSettings` of a worker,
    `snapshot` the machine at the moment at which the journal began."""

    settings: Config | WorkerSettings
    snapshot: tuple[Any, ...]


@value
class Difference:
    """The first effect, by its number from 0, in which two runs of the same events differ; None is an effect that the
    other run had in addition."""

    index: int
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        """One line for a person."""
        return f"effect {self.index} differs: recorded {self.recorded!r}, replayed {self.replayed!r}"


# --- plain data ------------------------------------------------------------------------------------------------------


def encode_record(record: Record) -> list[Any]:
    """A record as JSON knows it: the second, then the event."""
    return [record[0], encode(record[1])]


def decode_record(plain: Any) -> Record:
    """What `encode_record` was given. Raises `CheckpointError`, also for what is no event."""
    timed = isinstance(plain, list) and len(plain) == 2 and type(plain[0]) in (int, float)
    if not timed or not -math.inf < plain[0] < math.inf:
        raise CheckpointError(f"this is no record of a journal: {plain!r}")
    event = decode(plain[1])
    if not isinstance(event, CoordinatorEvent | WorkerEvent):
        raise CheckpointError(f"a {type(event).__name__} is no event of a machine")
    return plain[0], event


def head(machine: Coordinator | Worker) -> dict[str, Any]:
    """The first line of the journal of a machine. Raises `LocalProtocolError` if its config holds a guard of the
    embedder's own, which no file can hold."""
    of_worker = isinstance(machine, Worker)
    return {
        "journal": FORMAT, "machine": "worker" if of_worker else "coordinator",
        "config": encode(machine.settings if of_worker else machine.config),  # type: ignore[union-attr]
        "snapshot": machine.snapshot(),
    }  # fmt: skip


def head_of(plain: Any) -> Head:
    """What `head` gave, after its way through JSON. Raises `CheckpointError`."""
    if not isinstance(plain, Mapping) or not isinstance(plain.get("journal"), int):
        raise CheckpointError("this is no journal: its first line is no head")
    if plain["journal"] != FORMAT:
        raise CheckpointError(f"this journal has format {plain['journal']}, this version of paceline reads {FORMAT}")
    settings = decode(plain.get("config"))
    if not isinstance(settings, Config | WorkerSettings) or not isinstance(plain.get("snapshot"), list | tuple):
        raise CheckpointError("this journal is damaged: its head holds no config or no snapshot")
    machine = "worker" if isinstance(settings, WorkerSettings) else "coordinator"
    if plain.get("machine") != machine:
        raise CheckpointError(f"this journal is damaged: it says {plain.get('machine')!r}, its config is a {machine}'s")
    return Head(settings, tuple(plain["snapshot"]))


def batch(ready: Ready) -> dict[str, Any]:
    """One line: the events of a `Ready` and the effects they had."""
    return {"in": [encode_record(record) for record in ready.records], "out": [encode(e) for e in ready.effects]}


def batch_of(plain: Any) -> Ready:
    """What `batch` was given. Raises `CheckpointError`."""
    if not isinstance(plain, Mapping) or not all(isinstance(plain.get(key), list) for key in ("in", "out")):
        raise CheckpointError("this line of a journal holds no events and effects")
    return Ready(tuple(decode_record(record) for record in plain["in"]), tuple(decode(e) for e in plain["out"]))


def in_order(clock: float, ready: Ready) -> float:
    """The second of the last event of a batch whose first one comes at second `clock` or later. Raises
    `CheckpointError`: a machine takes events in the order of time, so lines in another one are damage."""
    for second, _ in ready.records:
        if second < clock:
            raise CheckpointError(f"time goes back from {shown(clock, 6)} to {shown(second, 6)}: lines of this file "
                                  "are doubled, or are not in their order")  # fmt: skip
        clock = second
    return clock


# --- again -----------------------------------------------------------------------------------------------------------


def replay(
    settings: Config | WorkerSettings,
    records: Iterable[Record],
    *,
    snapshot: Iterable[Any] | None = None,
    now: float = 0.0,
    engine: str = "compiled",
    guard: Guard | None = None,
    policies: Policies | None = None,
) -> tuple[Any, ...]:
    """The effects of these events, on a machine as it was at `snapshot`, or on a new one that is made at second `now`.

    `settings` is a `Config` for a coordinator, a `WorkerSettings` for a worker; `guard` and `policies` are the
    embedder's own, if it had any. Raises `CheckpointError` if the snapshot does not belong to the settings,
    `LocalProtocolError` if the records are no events of this machine in the order of time, `InvariantError` if the
    machine raises at one of them, which none may bring about (I22).
    """
    machine: Any
    if isinstance(settings, WorkerSettings):
        machine = (
            Worker.create(settings, now, engine) if snapshot is None
            else Worker.restore(settings, snapshot, engine=engine)
        )  # fmt: skip
    elif snapshot is None:
        machine = Coordinator(settings, now=now, engine=engine, guard=guard, policies=policies)
    else:
        machine = Coordinator.restore(settings, snapshot, engine=engine, guard=guard, policies=policies)
    effects: list[Any] = []
    for number, (second, event) in enumerate(records, start=1):
        try:
            machine.handle(event, second)
        except LocalProtocolError:
            raise
        except Exception as error:
            kind = type(getattr(event, "message", event)).__name__
            raise InvariantError(f"event {number}, {kind}, raises {type(error).__name__}: {error} (I22)") from error
        effects += machine.take_ready().effects
    return tuple(effects)


def first_difference(recorded: Iterable[Any], replayed: Iterable[Any]) -> Difference | None:
    """The first effect that differs, or None: then the two are the same byte for byte (O-8)."""
    ours, theirs = list(recorded), list(replayed)
    for index in range(max(len(ours), len(theirs))):
        one = ours[index] if index < len(ours) else None
        other = theirs[index] if index < len(theirs) else None
        if freeze(one) != freeze(other):
            return Difference(index, one, other)
    return None
