"""Targets for what was kept: plain data, journal files, snapshots. Damage is `CheckpointError`, and nothing else.

These come from a disk and not from a peer, so the promise is smaller than on the wire: nothing but that error, and what
is read is read again from what is written of it. Whether a snapshot that was edited by hand makes sense as a whole is
beyond what its reader can know.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core.coordinator import Coordinator
from paceline.core.effects import Ready
from paceline.core.errors import CheckpointError
from paceline.core.journal import batch, head
from paceline.core.ledger import Resume
from paceline.core.plain import decode, encode
from paceline.core.simulation.action import COORDINATOR
from paceline.core.snapshots import freeze
from paceline.core.worker import Worker
from paceline.transports.journal_file import read_journal

from .coverage import unwatched
from .engine import Target
from .mutate import Tree
from support.cohort import Cohort

__all__ = ["TARGETS", "base"]

WORDS = (b'{"is":', b'"of":', b'"list"', b'"map"', b'"bytes"', b'"float"', b'"nan"', b'"events:Tick"', b"null",
         b"1e999", b"NaN", b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b"\n", b'"core.events:Tick"', b'"engine:Kind"',
         b"\xff", b'"events:CoordinatorEvent"', b'"message_types:Outcome"')  # fmt: skip


@functools.cache
def base() -> Cohort:
    """A run of two ranks, some way into its second epoch."""
    cohort = Cohort(ranks=2, samples=24, num_epochs=2)
    cohort.run_until(lambda: cohort.co.cycle.finished >= 2)
    return cohort


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("too deep for the JSON of this Python") from None


def plain(data: bytes) -> None:
    """One value of a snapshot or journal."""
    try:
        given = _json(data)
    except ValueError:
        return
    try:
        thing = decode(given)
    except CheckpointError:
        return
    assert freeze(decode(encode(thing))) == freeze(thing)


def journal(data: bytes) -> None:
    """A journal file: head and lines. What is read is written the same way again."""
    handle, name = tempfile.mkstemp(prefix="paceline-fuzz-")
    try:
        os.write(handle, data)
        os.close(handle)
        parts = read_journal(Path(name))
    except CheckpointError:
        return
    finally:
        os.unlink(name)
    for first, batches in parts:
        freeze(first.settings)
        for ready in batches:
            json.dumps(batch(ready), allow_nan=False)


def snapshot(data: bytes) -> None:
    """A snapshot as JSON, of a coordinator or a worker by the first byte, restored."""
    if not data:
        return
    try:
        given = _json(data[1:])
    except ValueError:
        return
    with unwatched():
        cohort, restored = base(), None
    try:
        if data[0] & 1:
            restored = Worker.restore(cohort.seats[0].worker.settings, given)
        else:
            restored = Coordinator.restore(cohort.config, given)
    except CheckpointError:
        return
    assert isinstance(restored, Coordinator | Worker)


def resume(data: bytes) -> None:
    """A meta record, read, held against a config, and made into pools."""
    try:
        given = _json(data)
    except ValueError:
        return
    with unwatched():
        config = attrs.evolve(base().config, seed=None)
    try:
        found = Resume.read(given)
        found.settle(config)
    except CheckpointError:
        return
    json.dumps(attrs.asdict(found, recurse=False), default=repr)
    found.pools(found.book(2))


@functools.cache
def _resume_seeds() -> list[bytes]:
    cohort = Cohort(ranks=2, samples=24, num_epochs=2, save_path="model", checkpoint_every=1)
    cohort.run()
    return [json.dumps(effect.record).encode() for effect in cohort.effects if isinstance(effect, fx.WriteMeta)]


@functools.cache
def _plain_seeds() -> list[bytes]:
    cohort = base()
    co = cohort.co
    things: list[Any] = [ev.Tick(), *cohort.records[0][:3], co.cycle.members, co.fenced, co.peers[0].climb,
                         co.book.holdings(0), float("nan"), b"\0\xff"]  # fmt: skip
    return [json.dumps(encode(thing)).encode() for thing in things]


@functools.cache
def _journal_seeds() -> list[bytes]:
    cohort = base()
    records = cohort.records[COORDINATOR]
    batches = [Ready(tuple(records[at : at + 3]), tuple(cohort.effects[at : at + 6])) for at in range(0, 60, 12)]
    orders = [Ready(tuple(cohort.records[1][:8]), ())]
    machines = ((cohort.co, batches), (cohort.seats[1].worker, orders))
    return [_lines([head(machine), *map(batch, ready)]) for machine, ready in machines]


def _lines(lines: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


@functools.cache
def _snapshot_seeds() -> list[bytes]:
    cohort = base()
    return [
        b"\0" + json.dumps(cohort.co.snapshot()).encode(),
        b"\1" + json.dumps(cohort.seats[0].worker.snapshot()).encode(),
    ]


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


VALUE = Tree(_json, _dumped)
LINES = Tree(
    lambda data: [_json(line) for line in data.split(b"\n")[:-1]],
    lambda value: b"".join(_dumped(line) + b"\n" for line in (value if isinstance(value, list) else [value])),
)
PREFIXED = Tree(lambda data: _json(data[1:]), lambda value: b"\0" + _dumped(value))

TARGETS: Sequence[Target] = (
    Target("plain", plain, _plain_seeds, (3000, 60), WORDS, VALUE),
    Target("journal", journal, _journal_seeds, (6000, 60), WORDS, LINES),
    Target("resume", resume, _resume_seeds, (20000, 60), WORDS, VALUE),
    Target("snapshot", snapshot, _snapshot_seeds, (20000, 60), WORDS, PREFIXED),
)
