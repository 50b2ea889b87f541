"""A rank's own account of what it was doing, one JSON line per change (for reports; decides nothing, O-3)."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any, TextIO

__all__ = ["Tracer"]


class Tracer:
    """Appends to `path`, or does nothing if it is None. A file that cannot be written is given up in silence, because
    a full disk must not touch training."""

    def __init__(self, path: str | None, rank: int) -> None:
        self._rank = rank
        self._state = ""
        self._file: TextIO | None = None
        if path is not None:
            with contextlib.suppress(OSError):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def state(self, state: str, step: int) -> None:
        """training, waiting, averaging or stopped; the same one twice is no line."""
        if state != self._state:
            self._state = state
            self._write({"state": state, "step": step})

    def note(self, name: str, facts: dict[str, Any]) -> None:
        """Something worth knowing that is no state."""
        self._write({"note": name, **facts})

    def close(self, step: int) -> None:
        """The last line."""
        self.state("stopped", step)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _write(self, facts: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps({"t": time.monotonic(), "rank": self._rank, **facts}, default=str) + "\n")
        except OSError:
            self._file = None
