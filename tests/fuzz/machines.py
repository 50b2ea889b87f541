"""Targets for the machines: any message in any state (N-7, I3, I22).

The bytes spell messages field by field, so that almost every input is a sequence of well-formed messages with values
that no correct peer would choose. Nothing raises out of `handle`; what is sent in answer fits a frame, or the link that
has to take it would end the run (N-25); what `explain` says can be asked at any time; a snapshot can be taken; and a
report whose stamp is not the current one changes nothing but counters (I3). What breaks one is kept as what the machine
was told, too: a record for `paceline replay` (`recorded`).
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from paceline.core import messages as m
from paceline.core.config import WISHABLE, config_digest
from paceline.core.coordinator import Coordinator
from paceline.core.events import DrainPoint, HelloReceived, LinkLost, Received, Tick
from paceline.core.schema import Schema
from paceline.core.simulation.setup import greeting
from paceline.core.wire import MAX_HELLO
from paceline.core.worker import Worker
from paceline.transports.codec import MsgpackCodec
from paceline.transports.record_file import RunRecord

from .coverage import unwatched
from .engine import Target
from support.cohort import Cohort

__all__ = ["MACHINES", "TARGETS", "Cursor", "recorded"]

NUMBERS = (0, 1, 2, 3, 4, 6, 24, 255, 4096, (1 << 32) - 1, (1 << 53) + 1, (1 << 63) - 1, (1 << 64) - 1)
FLOATS = (0.0, 1.0, 0.5, -1.0, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"))
TEXTS = ("", "a", "Training", "done", "ä" * 40)
LIKELY = (*(True,) * 15, False)
"""How often a field has the value that a correct peer would choose: a message with ten of them is then often whole."""
CODEC = MsgpackCodec()
MOST = 12
"""Messages of one input."""


class Cursor:
    """Reads choices from bytes; behind their end every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def choose(self, among: Sequence[Any]) -> Any:
        """One of them."""
        self.at += 1
        return among[self.data[self.at - 1] % len(among)] if self.at <= len(self.data) else among[0]

    @property
    def spent(self) -> bool:
        """Nothing is left to read."""
        return self.at >= len(self.data)

    def draw(self, hint: Any) -> Any:
        """A value of an annotation."""
        if hint is type(None):
            return None
        if attrs.has(hint):
            return self.build(hint, {})
        if isinstance(hint, type) and issubclass(hint, IntEnum):
            return self.choose(list(hint))
        plain = {int: NUMBERS, float: FLOATS, bool: (False, True), str: TEXTS, bytes: (b"", b"d" * 16, b"x" * 1024)}
        if hint in plain:
            return self.choose(plain[hint])
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is tuple and arguments[-1] is Ellipsis:
            return tuple(self.draw(arguments[0]) for _ in range(self.choose((0, 1, 3))))
        if origin is tuple:
            return tuple(self.draw(part) for part in arguments)
        if origin is dict:
            return {self.choose(TEXTS): self.draw(arguments[1]) for _ in range(self.choose((0, 1, 2)))}
        assert origin in (types.UnionType, typing.Union), hint
        return self.draw(self.choose([part for part in arguments if part is not type(None)] + [type(None)]))

    def build(self, cls: type, known: dict[str, Any]) -> Any:
        """An instance of a message class; `known` are fields with a likely value, taken most of the time."""
        values = {}
        for name, hint in _hints(cls).items():
            likely = name in known and self.choose(LIKELY)
            values[name] = known[name] if likely else self.draw(hint)
        return cls(**values)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in attrs.fields(cls)}


@functools.cache
def _states() -> tuple[Cohort, tuple[Any, ...], tuple[Any, ...]]:
    """A cohort, and snapshots of its coordinator and of its first worker at the interesting moments of a run."""
    cohort = Cohort(ranks=2, samples=24, num_epochs=2)
    co, coordinator, worker = cohort.co, [], []
    moments = (
        lambda: co.cycle.pending, lambda: bool(co.voters), lambda: co.peers[0].steps > 0,
        lambda: co.cycle.number >= 1 and co.cycle.pending, lambda: bool(cohort.averager.values),
        lambda: co.cycle.finished >= 2, lambda: co.run.phase.name == "FINAL_EVAL" or cohort.finish is not None,
    )  # fmt: skip
    for moment in moments:
        cohort.run_until(moment)
        coordinator.append(co.snapshot())
        worker.append((cohort.seats[0].worker.settings, cohort.seats[0].worker.snapshot()))
    return cohort, tuple(coordinator), tuple(worker)


def coordinator(data: bytes) -> Iterator[Coordinator]:
    """Reports, in a state that the first byte chooses: the machine before the first and after each of them."""
    cursor = Cursor(data)
    with unwatched():
        cohort, states, _ = _states()
    with unwatched():
        co = Coordinator.restore(cohort.config, cursor.choose(states))
    now = co.now
    yield co
    for _ in range(MOST):
        if cursor.spent:
            break
        now += cursor.choose((0.0, 0.5, 40.0))
        peer = co.peers[cursor.choose((0, 1))]
        cycle = co.cycle
        stamp = dict(
            run_id=co.config.run_id, generation=co.generation, rank=peer.rank, incarnation=peer.incarnation,
            report_seq=peer.report_seq + 1, control_seq=peer.handled_seq, cycle=cycle.number, attempt=cycle.attempt,
            step_count=peer.last_step_count + 1, shipped_steps=peer.steps,
        )  # fmt: skip
        message = cursor.build(cursor.choose((*m.REPORTS, m.Beacon, m.Fenced)), stamp)
        _tell_coordinator(co, message, now)
        yield co
    co.explain()
    co.handle(Tick(), now + 1)
    co.snapshot()


def _tell_coordinator(co: Coordinator, message: Any, now: float) -> None:
    stamp = (message.run_id, message.generation) if isinstance(message, m.Report) else None
    peer = co.peers.get(message.rank) if stamp else None
    stale = stamp is not None and (
        stamp != (co.config.run_id, co.generation) or peer is None or message.incarnation != peer.incarnation
    )
    quiet = now < min(co.deadline, co.late_after)
    with unwatched():
        before = _books(co) if stale and quiet else None
    co.handle(Received(message), now)
    with unwatched():
        same = before is None or _books(co) == before
    assert same, "a stale report changed something (I3)"


COUNTERS = frozenset({"fenced", "outbox", "records", "now"})


def _books(co: Coordinator) -> Any:
    """The snapshot without counters, and without when a stale session was told so last (N-6)."""
    told = {rank: peer.fenced_told_at for rank, peer in co.peers.items()}
    for peer in co.peers.values():
        peer.fenced_told_at = 0.0
    parts = co.snapshot()
    for rank, peer in co.peers.items():
        peer.fenced_told_at = told[rank]
    found = [_without_counters(part) for part in parts]
    assert found != list(parts), "the state of the coordinator, in which the counters are, is one of the parts"
    return found


def _without_counters(part: Any) -> Any:
    """If it is the state, by the names in it; wherever that stands in a snapshot."""
    names = {each[0] for each in part if isinstance(each, tuple) and each} if isinstance(part, tuple) else set()
    return [(name, value) for name, value in part if name not in COUNTERS] if names >= COUNTERS else part


def door(data: bytes) -> Iterator[Coordinator]:
    """Hellos, in a run that forms or in a state as above, in one flavour or the other; links are lost in between."""
    cursor = Cursor(data)
    with unwatched():
        cohort, states, _ = _states()
        flavour = cursor.choose(("star", "collective"))
        state = cursor.choose((None, *states)) if flavour == "star" else None
        config = attrs.evolve(cohort.config, averager=flavour, digest=flavour == "star")
        co = Coordinator(config, now=1.0) if state is None else Coordinator.restore(cohort.config, state)
    now = co.now
    yield co
    for link in range(MOST):
        if cursor.spent:
            break
        now += cursor.choose((0.0, 0.5, 40.0))
        for rank in co.peers:
            if cursor.choose(LIKELY[::-1]) and co.peers[rank].alive:
                co.handle(LinkLost(rank, co.peers[rank].incarnation, "lost"), now)
                yield co
        co.handle(HelloReceived(1000 + link, _hello(cursor, cohort)), now)
        co.handle(Tick(), now)
        yield co
    co.explain()
    co.snapshot()


def _hello(cursor: Cursor, cohort: Cohort) -> m.Hello:
    """Of a rank that fits the run, but for some fields. Hashes are mostly right: a wrong one ends it at once."""
    usual = greeting(cohort.setup)
    known = {field.name: getattr(usual, field.name) for field in attrs.fields(m.Hello)}
    first = usual.schema.entries[0]
    likely = {field.name: getattr(first, field.name) for field in attrs.fields(type(first))}
    entries = tuple(cursor.build(type(first), likely) for _ in range(cursor.choose((0, 0, 0, 1, 2, 3))))
    known["schema"] = Schema(entries=entries) if entries else usual.schema
    known["wishes"] = {name: cursor.draw(int) for name in sorted(WISHABLE) if not cursor.choose(LIKELY)}
    known["resume"] = None if cursor.choose((True, False)) else cursor.draw(m.ResumeClaim)
    hello = cursor.build(m.Hello, {**known, "schema_hash": None, "config_digest": None})
    right = {"schema_hash": hello.schema.hash(), "config_digest": config_digest(hello.wishes)}
    return attrs.evolve(hello, **{name: known for name, known in right.items() if getattr(hello, name) is None})


def worker(data: bytes) -> Iterator[Worker]:
    """Control messages, drain points and ticks, in a state that the first byte chooses: the machine before the first
    and after each of them."""
    cursor = Cursor(data)
    with unwatched():
        _, _, states = _states()
    settings, snapshot = cursor.choose(states)
    with unwatched():
        machine = Worker.restore(settings, snapshot)
    now = machine.last_now
    yield machine
    for _ in range(MOST):
        if cursor.spent:
            break
        now += cursor.choose((0.0, 0.5, 10.0))
        stamp = dict(
            run_id=settings.run_id, generation=settings.generation, rank=settings.rank,
            incarnation=settings.incarnation, control_seq=machine.control_seen + 1, report_seq=machine.report_seq,
            cycle=machine.cycle + 1, attempt=0, target_rank=settings.rank,
        )  # fmt: skip
        message = cursor.build(cursor.choose((*m.CONTROLS, m.Fenced, m.Batch)), stamp)
        machine.handle(Received(message), now)
        machine.handle(cursor.choose((Tick(), DrainPoint())), now)
        yield machine
    machine.snapshot()


MACHINES: dict[str, Callable[[bytes], Iterator[Any]]] = {"coordinator": coordinator, "door": door, "worker": worker}
"""How an input of these targets goes, by their names."""


def told(name: str, data: bytes) -> None:
    """An input. Its effects are looked at for what a link would have to take of them."""
    for machine in MACHINES[name](data):
        for effect in machine.take_ready().effects:
            for message in said(effect):
                assert len(CODEC.encode(message)) <= MAX_HELLO, f"{type(message).__name__} does not fit a frame (N-25)"


def said(effect: Any) -> Iterator[Any]:
    """The messages in an effect: what a link would have to take."""
    if type(effect) in m.KIND_OF:
        yield effect
    elif attrs.has(type(effect)):
        for field in attrs.fields(type(effect)):
            yield from said(getattr(effect, field.name))


def recorded(name: str, data: bytes, path: Path) -> Path | None:
    """What an input tells its machine, and what comes of it up to where it ends, as a record that `paceline replay`
    goes through; an event that raises is the last one in there. None where not even the machine can be made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    record = machine = None
    try:
        for machine in MACHINES[name](data):
            record = record or RunRecord(path, machine)
            record.append(machine.take_ready())
    except Exception:  # it is the finding, and the campaign has told it
        if record is not None and machine is not None:
            record.append(machine.take_ready())
    if record is None:
        return None
    record.close()
    return path


@functools.cache
def _seeds(choices: int) -> list[bytes]:
    """Each kind of message in each state, all fields as likely as can be."""
    return [bytes([state, 0, kind, kind, *([0] * 24)]) for state in range(7) for kind in range(choices)][::3]


TARGETS: Sequence[Target] = (
    Target("coordinator", partial(told, "coordinator"), lambda: _seeds(len(m.REPORTS) + 2), (20000, 2000)),
    Target("door", partial(told, "door"), lambda: [bytes(count) for count in (1, 40, 80, 160)], (20000, 2000)),
    Target("worker", partial(told, "worker"), lambda: _seeds(len(m.CONTROLS) + 2), (20000, 2000)),
)
