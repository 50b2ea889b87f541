"""A journal on disk: one JSON line per batch, appended before its effects are performed (M-40).

How much an append promises is the knob `journal_sync`. `process`: the line has left this process, and is there after
its crash. `disk`: it is there after a power cut too, at the price of one flush of the disk per batch.

    head, batch, batch, ...                     the machine as it was when the journal began, and what happened since
    head, batch, ...                            again and again: a snapshot, so that a restart goes through little
    head, batch, ...                            or the next generation, which a restart begins in the same file

A restart needs the last head and what follows it. A replay of everything (O-8) goes through the parts one by one,
since each of them stands for itself. The head of a later generation is always flushed to the disk: were it lost, the
next restart would begin the same generation once more (I8).

A file that breaks off in the middle of its last line is a journal whose last batch was never performed, since the line
comes first; the reader leaves that line out. A broken line anywhere else is damage and refused.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO, Self

import attrs

from ..core.coordinator import Coordinator
from ..core.effects import Ready
from ..core.errors import CheckpointError
from ..core.journal import Head, batch, batch_of, head, head_of, in_order
from ..core.worker import Worker
from .file_lock import lock

__all__ = ["JournalEnd", "JournalFile", "is_torn", "lines_of", "parsed", "read_end", "read_journal"]

HEAD_MARK = b'{"journal":'
"""How a head begins, and no other line."""
LEAST_BETWEEN = 1 << 20
TIMES_HEAD = 16
"""Bytes of batches after which a snapshot is written: so many, and this multiple of the last one."""


class JournalFile:
    """Writes the journal of one machine, from the moment at which this is made. `path` is replaced if it exists; with
    `behind` it is gone on with behind that many bytes, as `read_end` found them.

    Raises `CheckpointError` if it cannot be written; `append` raises `OSError` if the disk is full.
    """

    def __init__(self, path: Path, machine: Coordinator | Worker, *, sync: str = "process",
                 behind: int | None = None) -> None:  # fmt: skip
        self._machine = machine
        self._disk = sync == "disk"
        self._since_head = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as unless_begun:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                self._file: BinaryIO = unless_begun.enter_context(os.fdopen(handle, "r+b"))
                if not lock(self._file):  # two that go on with one journal would be two runs with one name
                    raise CheckpointError(f"the journal {path} is in use: its coordinator is still running")
                self._file.truncate(behind or 0)  # a torn last line would swallow the head
                self._file.seek(behind or 0)
                self._write_head(flush=self._disk or behind is not None)
                unless_begun.pop_all()
        except OSError as error:
            raise CheckpointError(f"the journal cannot be written: {error}; give another path") from error

    def append(self, ready: Ready) -> None:
        """Keep one batch, before any of its effects is performed. One without events is not worth a line."""
        if ready.records or ready.effects:
            self._since_head += self._write(batch(ready), flush=self._disk)
            if self._since_head > max(LEAST_BETWEEN, TIMES_HEAD * self._head_bytes):
                self._write_head(flush=self._disk)

    def close(self) -> None:
        """Nothing is kept any more."""
        self._file.close()

    def _write_head(self, *, flush: bool) -> None:
        self._head_bytes, self._since_head = self._write(head(self._machine), flush=flush), 0

    def _write(self, line: dict[str, Any], *, flush: bool) -> int:
        data = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        self._file.write(data)
        self._file.flush()
        if flush:
            os.fsync(self._file.fileno())
        return len(data)


# --- reading ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class JournalEnd:
    """What a restart needs: the last head, the records since, the effects of the newest batch, which may not all have
    been performed, and where the whole lines end, in bytes."""

    head: Head
    records: tuple[tuple[float, Any], ...]
    undone: tuple[Any, ...]
    size: int

    @classmethod
    def of(cls, begun: Head, batches: list[Ready], before: Ready | None, size: int) -> Self:
        """From the last part of a journal and the batch in front of it."""
        newest = batches[-1] if batches else before
        records = tuple(record for kept in batches for record in kept.records)
        return cls(begun, records, () if newest is None else newest.effects, size)


def read_journal(path: Path, data: bytes | None = None) -> list[tuple[Head, list[Ready]]]:
    """All parts of a journal, each a head and its batches; `data` is what is in the file, if that was read already.
    Raises `CheckpointError` that names file and line."""
    parts: list[tuple[Head, list[Ready]]] = []
    clock = -math.inf
    for number, line in enumerate(lines_of(path, data), 1):
        if line.startswith(HEAD_MARK) or not parts:
            parts.append((parsed(path, number, line, head_of), []))
            clock = -math.inf
        else:
            kept = parsed(path, number, line, batch_of)
            clock = _told(path, number, in_order, clock, kept)
            parts[-1][1].append(kept)
    return parts


def read_end(path: Path) -> JournalEnd:
    """The end of a journal, without a look at what is older than its last head. Raises `CheckpointError` that names the
    file and the line."""
    lines = lines_of(path)
    last = max((n for n, line in enumerate(lines) if line.startswith(HEAD_MARK)), default=0)
    begun: Head = parsed(path, last + 1, lines[last], head_of)
    batches = [parsed(path, n, line, batch_of) for n, line in enumerate(lines[last + 1 :], last + 2)]
    has_before = not batches and last > 0 and not lines[last - 1].startswith(HEAD_MARK)
    before = parsed(path, last, lines[last - 1], batch_of) if has_before else None
    return JournalEnd.of(begun, batches, before, sum(len(line) + 1 for line in lines))


def is_torn(data: bytes) -> bool:
    """Whether the last line of a journal or a record was never finished, so that whoever reads it leaves it out."""
    return not data.endswith(b"\n")


def lines_of(path: Path, data: bytes | None = None) -> list[bytes]:
    """The whole lines of a journal or a record, at least one; `data` is what is in the file, if that was read already.
    Raises `CheckpointError`."""
    try:
        data = path.read_bytes() if data is None else data
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    lines = data.split(b"\n")[:-1]  # what follows the last end of a line was never finished
    if not lines:
        raise CheckpointError(f"{path}, line 1: {'it breaks off inside its head' if data else 'it has no head'}")
    return lines


def parsed(path: Path, number: int, line: bytes, meaning: Any) -> Any:
    """What `meaning` makes of the JSON in a line of a journal or a record. Raises `CheckpointError` that names file and
    line."""
    return _told(path, number, lambda: meaning(json.loads(line)))


def _told(path: Path, number: int, meaning: Any, *given: Any) -> Any:
    """What a line means; what is wrong with it is told with its file and number."""
    try:
        return meaning(*given)
    except CheckpointError as error:
        raise CheckpointError(f"{path}, line {number}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}, line {number}: damaged, or not written by paceline: {error}") from error
