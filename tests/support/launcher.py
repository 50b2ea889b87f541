"""`paceline ...` as a child process, for tests that read its output, send it signals and count what is left of it.

The command and all that it starts are Pythons of the nursery, which have imported torch already. In a `fresh` command
every process is an interpreter of its own: for tests of what a process needs to start, and of what becomes of processes
that are killed by the command or with it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from .forked import start
from .patience import PATIENCE_S

HERE = Path(__file__).parent
UNRULY = str(HERE / "unruly_script.py")


class Command:
    """One run of the command. Both outputs are read in threads; `said` is everything that `until` has seen."""

    def __init__(self, words: tuple[str, ...], cwd: Path, environment: dict[str, str], *, fresh: bool) -> None:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
        environment = {**plain, "NO_COLOR": "1", "COLUMNS": "100", **environment}
        arguments = ["-P", "-m", "paceline.backends.cli", *words]
        self.process = start(arguments, environment, cwd, fresh=fresh)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.out: list[str] = []
        self.err: list[str] = []
        self.said: list[str] = []
        self._arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        pipes = ((self.process.stdout, self.out), (self.process.stderr, self.err))
        self._readers = [threading.Thread(target=self._read, args=pipe, daemon=True) for pipe in pipes]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Iterable[str], lines: list[str]) -> None:
        for line in pipe:
            lines.append(line.rstrip("\n"))
            self._arrived.put(lines[-1])
        self._arrived.put(None)

    def until(self, pattern: str) -> re.Match[str]:
        """The first line, from here on, in which the pattern is found."""
        ends = 0
        while ends < len(self._readers):
            line = self._arrived.get(timeout=PATIENCE_S)
            ends += line is None
            if line is not None:
                self.said.append(line)
                if (match := re.search(pattern, line)) is not None:
                    return match
        raise AssertionError(f"it never said {pattern!r}, but: " + "\n".join(self.said))

    def end(self) -> int:
        """Wait for its end, then every line is in `out` and `err`."""
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code

    def children(self, ranks: int) -> dict[str, int]:
        """The process ids that `--debug` tells, in their order: the coordinator's, then the ranks'."""
        found = {}
        while len(found) < ranks + 1:
            match = self.until(r"^(the coordinator|rank \d+) is process (\d+)$")
            found[match[1]] = int(match[2])
        return found

    def close(self) -> None:
        """Kill it if it still lives; what it started ends with it, as the tests show."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@contextlib.contextmanager
def paceline(*arguments: str, cwd: Path, **environment: str) -> Iterator[Command]:
    """The command, started; ended with the block whatever happens."""
    with contextlib.closing(Command(arguments, cwd, environment, fresh=False)) as command:
        yield command


@contextlib.contextmanager
def fresh(*arguments: str, cwd: Path, **environment: str) -> Iterator[Command]:
    """The same, every process an interpreter of its own."""
    with contextlib.closing(Command(arguments, cwd, environment, fresh=True)) as command:
        yield command


def alive(process: int) -> bool:
    """Whether there is such a process. Who is dead and not collected by a parent that does not care is not alive."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def left_over(processes: Iterator[int] | list[int]) -> list[int]:
    """Those that the kernel does not take away."""
    left, until = list(processes), time.monotonic() + PATIENCE_S
    while left and time.monotonic() < until:
        left = [process for process in left if alive(process)]
        time.sleep(0.02)
    return left
