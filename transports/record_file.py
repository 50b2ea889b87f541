"""The record of a whole run in one file: what went into each of its machines, and what came out (O-8).

The coordinator and every rank append to the same file, each from its own process. A line is that of a journal
(core/journal.py) and says first whose it is:

    {"by": "coordinator 1", "journal": 1, "machine": "coordinator", ...}      the head of a machine
    {"by": "rank 0.1", "in": [[12.5, event], ...], "out": [effect, ...]}      one batch of it

A machine is named by what is unique in a run: a coordinator by its generation, a worker by rank and incarnation. Lines
of several processes interleave as whole lines: each is one `write` to a file opened for appending. Recording is for
looking on: it is not flushed to the disk, and when it fails the run goes on without it. A journal (M-40) is what a
restart needs, and is kept of the coordinator alone.
"""

from __future__ import annotations

import functools
import json
import math
import os
from pathlib import Path
from typing import Any

import attrs

from ..core.coordinator import Coordinator
from ..core.effects import Ready
from ..core.errors import CheckpointError, LocalProtocolError
from ..core.journal import Head, batch, batch_of, first_difference, head, head_of, in_order, replay
from ..core.worker import Worker
from .journal_file import lines_of, parsed

__all__ = ["Replayed", "RunRecord", "is_record", "read_record", "replay_batches", "replay_record"]

MARK = b'{"by":'
"""How a record begins."""


class RunRecord:
    """Appends what one machine does to the record of its run, from the moment at which this is made.

    `failure` is None, or why nothing is recorded any more: a disk that is full ends the record, not the run. Raises
    `CheckpointError` if the file cannot be opened.
    """

    def __init__(self, path: Path, machine: Coordinator | Worker) -> None:
        self.failure: OSError | None = None
        self.by = name_of(machine)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise CheckpointError(f"the run cannot be recorded: {error}; give another path") from error
        self._write(head(machine))

    def append(self, ready: Ready) -> None:
        """Keep one batch; one without events and effects is not worth a line."""
        if (ready.records or ready.effects) and self.failure is None:
            self._write(batch(ready))

    def close(self) -> None:
        """Nothing is kept any more. Closing twice is nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps({"by": self.by, **line}, separators=(",", ":"), allow_nan=False) + "\n"
        rest = memoryview(text.encode())
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            self.failure = error


def name_of(machine: Coordinator | Worker) -> str:
    """What a machine is called in a record: unique in a run."""
    if isinstance(machine, Worker):
        return f"rank {machine.settings.rank}.{machine.settings.incarnation}"
    return f"coordinator {machine.generation}"


def is_record(data: bytes) -> bool:
    """Whether what is in a file begins as a record does."""
    return data.startswith(MARK)


def read_record(path: Path, data: bytes | None = None) -> dict[str, tuple[Head, list[Ready]]]:
    """Each machine of a recorded run, in the order in which they began: its head, and its batches. `data` is what is in
    the file, if that was read already.

    What follows the last end of a line was never finished and is left out, as in a journal. Raises `CheckpointError`
    that names file and line for damage anywhere else: lines that are no record, that are doubled or not in their order.
    """
    reading = _Reading()
    for number, line in enumerate(lines_of(path, data), 1):
        parsed(path, number, line, functools.partial(reading.take, number))
    return reading.found


class _Reading:
    """What was found so far: of each machine its parts, the line of its head, and the second of its last event."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[Head, list[Ready]]] = {}
        self.begun: dict[str, int] = {}
        self.clock: dict[str, float] = {}

    def take(self, number: int, line: Any) -> None:
        by = line.get("by") if isinstance(line, dict) else None
        if not isinstance(by, str):
            raise CheckpointError("this line does not say whose it is")
        if "journal" in line:
            if by in self.found:
                raise CheckpointError(f"{by} begins again, as it did in line {self.begun[by]}: this file holds more "
                                      "than one run, or the same one twice; split it")  # fmt: skip
            self.found[by] = (head_of(line), [])
            self.begun[by], self.clock[by] = number, -math.inf
        elif by in self.found:
            kept = batch_of(line)
            self.clock[by] = in_order(self.clock[by], kept)
            self.found[by][1].append(kept)
        else:
            raise CheckpointError(f"{by} has no head")


@attrs.frozen
class Replayed:
    """One machine gone through again: how much, and the first difference in words, or None."""

    by: str
    events: int
    effects: int
    difference: str | None


def replay_record(path: Path) -> list[Replayed]:
    """Feed every machine of a record what it was fed, and compare what comes out byte for byte (I25, O-8).
    Raises `CheckpointError` for a file that is no record."""
    return [replay_batches(by, first, batches) for by, (first, batches) in read_record(path).items()]


def replay_batches(by: str, first: Head, batches: list[Ready]) -> Replayed:
    """One machine, from its head and its batches: of a record, or of a journal."""
    records = [record for ready in batches for record in ready.records]
    recorded = [effect for ready in batches for effect in ready.effects]
    try:
        found = first_difference(recorded, replay(first.settings, records, snapshot=first.snapshot))
    except LocalProtocolError as error:
        raise CheckpointError(f"{by or 'the coordinator'}: one of these events cannot happen here: {error}; lines are "
                              "missing or not in their order, or another version of paceline wrote them") from error
    return Replayed(by, len(records), len(recorded), None if found is None else str(found))
