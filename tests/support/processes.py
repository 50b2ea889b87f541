"""Real processes for end-to-end tests: a coordinator, ranks, and what they said. Every wait is bounded."""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .forked import start
from .patience import PATIENCE_S

HERE = Path(__file__).parent
TOKEN = "5e" * 32
RUN_ID = "1d" * 16
FIRST_STEP = 1
"""The step of a new run before which there is no average: who is held there waits for nobody, and gets there also while
another rank is held. In a later one each could be waiting for the other."""
FIRST_WINDOW = 8
"""A step that every rank of a new run takes, however slow it is beside the others: before any speed is known each is
given ten. What a later window gives it depends on the machine."""


class Child:
    """One process whose standard output is JSON lines, read in a thread of its own."""

    def __init__(self, script: str, options: list[str], environment: dict[str, str]) -> None:
        arguments, environment = [str(HERE / script), *options], {**os.environ, **environment}
        self.process = start(arguments, environment)
        self.lines: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._arrived: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._readers = [threading.Thread(target=self._read, daemon=True), threading.Thread(
            target=self._read_errors, daemon=True)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self._arrived.put(json.loads(line))
            except json.JSONDecodeError:
                self.errors.append(line)
        self._arrived.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def go(self) -> None:
        """Let a rank that was started with `--wait` begin, or one that holds its step go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def held(self) -> Child:
        """Wait until a rank that was started with `--hold-at` is in that step. It stays there until `go`, and no run
        ends without it, however long the test takes to do what it does meanwhile; the rank says that it lives."""
        self.until(lambda line: "holding" in line)
        return self

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first line, from here on, that is wanted."""
        while True:
            line = self._arrived.get(timeout=PATIENCE_S)
            if line is None:
                raise AssertionError(f"ended before it said so: {self.lines[-3:]} {''.join(self.errors)[-2000:]}")
            self.lines.append(line)
            if wanted(line):
                return line

    def end(self) -> int:
        """Wait for the end; everything it said is in `lines` and `errors` then."""
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        while not self._arrived.empty():
            line = self._arrived.get()
            if line is not None:
                self.lines.append(line)
        return code

    @property
    def stderr(self) -> str:
        """All of its standard error so far."""
        return "".join(self.errors)

    def close(self) -> None:
        """Kill it if it still lives, and close its pipes."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


class Stage:
    """Starts the processes of one test and ends all of them."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.url = ""
        self.children: list[Child] = []

    def coordinator(self, url: str = "tcp://127.0.0.1:0", **knobs: Any) -> Child:
        """A coordinator that listens; its URL is used by the ranks started afterwards."""
        child = self._start("coordinator_process.py", [url, str(self.run_dir), json.dumps(knobs)], {})
        self.url = child.until(lambda line: "listening" in line)["listening"]
        return child

    def rank(self, *options: str, **environment: str) -> Child:
        """A rank of the run."""
        return self._start("rank_process.py", list(options), {"PACELINE_URL": self.url, **environment})

    def _start(self, script: str, options: list[str], environment: dict[str, str]) -> Child:
        common = {"PACELINE_TOKEN": TOKEN, "PACELINE_RUN_ID": RUN_ID, **environment}
        child = Child(script, options, common)
        self.children.append(child)
        return child

    def close(self) -> None:
        """End everything."""
        for child in self.children:
            child.close()


@contextmanager
def stage(run_dir: Path) -> Iterator[Stage]:
    """A stage that is empty again afterwards."""
    made = Stage(run_dir)
    try:
        yield made
    finally:
        made.close()


def accounting(records: list[dict[str, Any]]) -> tuple[int, int]:
    """(lost, merged twice) in batches, from what the coordinator said was covered and what the epochs held. What one
    that was started anew says `again` is the same act (M-44)."""
    said = {r["cycle"] for r in records if r.get("event") == "Covered" and "again" not in r}
    records = [r for r in records if "again" not in r or (r.get("event") == "Covered" and r["cycle"] not in said)]
    totals = {r["epoch"]: r["batches"] for r in records if r.get("event") == "EpochStart"}
    counts: dict[tuple[int, int], int] = {}
    for record in records:
        for _, epoch, first, count in record.get("slices", ()) if record.get("event") == "Covered" else ():
            for batch in range(first, first + count):
                counts[epoch, batch] = counts.get((epoch, batch), 0) + 1
    lost = sum(1 for epoch, total in totals.items() for batch in range(total) if (epoch, batch) not in counts)
    return lost, sum(1 for count in counts.values() if count > 1)
