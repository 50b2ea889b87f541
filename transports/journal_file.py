"""A journal on disk: one JSON line per batch, appended before its effects are performed (M-40).

How much an append promises is the knob `journal_sync`. `process`: the line has left this process, and is there after
its crash. `disk`: it is there after a power cut too, at the price of one flush of the disk per batch.

A file that breaks off in the middle of its last line is a journal whose last batch was never performed, since the line
comes first; the reader leaves that line out. A broken line anywhere else is damage and refused.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TextIO

from ..core.coordinator import Coordinator
from ..core.effects import Ready
from ..core.errors import CheckpointError
from ..core.journal import Head, batch, batch_of, head, head_of
from ..core.worker import Worker

__all__ = ["JournalFile", "read_journal"]


class JournalFile:
    """Writes the journal of one machine, from the moment at which this is made. `path` is replaced if it exists.

    Raises `CheckpointError` if it cannot be written; `append` raises `OSError` if the disk is full.
    """

    def __init__(self, path: Path, machine: Coordinator | Worker, *, sync: str = "process") -> None:
        self._disk = sync == "disk"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = open(path, "w", encoding="utf-8")  # noqa: SIM115 - lives as long as the run
        except OSError as error:
            raise CheckpointError(f"the journal cannot be written: {error}; give another path") from error
        self._write(head(machine))

    def append(self, ready: Ready) -> None:
        """Keep one batch, before any of its effects is performed. One without events is not worth a line."""
        if ready.records or ready.effects:
            self._write(batch(ready))

    def close(self) -> None:
        """Nothing is kept any more."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        self._file.flush()
        if self._disk:
            os.fsync(self._file.fileno())


def read_journal(path: Path) -> tuple[Head, list[Ready]]:
    """The head of a journal and its batches. Raises `CheckpointError` that names the file and the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the journal {path} cannot be read: {error}") from error
    lines = text.split("\n")[:-1]  # what follows the last end of a line was never finished
    number = 1
    try:
        if not lines:
            raise CheckpointError("it has no head")
        first = head_of(json.loads(lines[0]))
        batches: list[Ready] = []
        while number < len(lines):
            number += 1
            batches.append(batch_of(json.loads(lines[number - 1])))
    except (ValueError, RecursionError, CheckpointError) as error:
        raise CheckpointError(f"{path}, line {number}: {error}") from error
    return first, batches
