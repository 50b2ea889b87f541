"""Ranks that average in place in processes of their own, so that one of them can be killed.

A host is a process that holds one rank: its averager, and its state in memory that the kit sees too. The kit calls the
averager through `Remote`, as if it were here. Hosts are used again by the next check, if the rank before has left in
good order; a host in which something still runs is killed.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import attrs

from ...core.conformance import CheckFailed
from ...core.errors import TransportError
from ...core.schema import Schema

__all__ = ["CALLS", "Hosts", "Remote", "hosting"]

CALLS = ("make_id", "build", "share", "run", "abort", "close")
"""What is called from afar, each in a thread of its own at the other end."""
GONE = "the process of this rank is gone"


@attrs.define(eq=False)
class _Answer:
    there: threading.Event = attrs.field(factory=threading.Event)
    found: Any = None
    raised: Exception | None = None


class _Host:
    """One process, and the calls that are under way in it."""

    def __init__(self, target: str, limit_s: float) -> None:
        self._limit_s = limit_s
        self._pipe, far = Pipe()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with far:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.host", target, str(far.fileno())], pass_fds=[far.fileno()],
                start_new_session=True,  # Ctrl-C is for who started it
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        self._numbers = itertools.count()
        self._answers: dict[int, _Answer] = {}
        self._lock = threading.Lock()
        self._gone = False
        threading.Thread(target=self._listen, args=(self._pipe,), daemon=True, name="answers of a rank").start()

    def _listen(self, pipe: Connection) -> None:
        try:
            with pipe, suppress(EOFError, OSError):
                while True:
                    number, found, raised = pipe.recv()
                    answer = self._answers.pop(number)
                    answer.found, answer.raised = found, raised
                    answer.there.set()
        finally:
            with self._lock:
                self._gone = True
                for answer in self._answers.values():
                    answer.raised = TransportError(GONE)
                    answer.there.set()

    @property
    def idle(self) -> bool:
        """It lives, and nothing is under way in it."""
        return not self._gone and not self._answers

    def call(self, name: str, *words: Any) -> Any:
        """What the call gives, or raises there; `TransportError` if the process ends before, `CheckFailed` if it does
        not come back."""
        answer = _Answer()
        with self._lock:
            if self._gone:
                raise TransportError(GONE)
            number = next(self._numbers)
            self._answers[number] = answer
            with suppress(OSError):  # then it is gone, and whoever listens will say so
                self._pipe.send((number, name, *words))
        if not answer.there.wait(self._limit_s):
            raise CheckFailed(f"{name} of a rank in a process of its own did not come back within {self._limit_s:g} s")
        if answer.raised is not None:
            raise answer.raised
        return answer.found

    def kill(self) -> None:
        """As `kill -9` does; returns when the process is gone."""
        self.process.kill()
        self.process.wait()


class Remote:
    """An averager in another process, with the calls of `InPlaceAverager`."""

    def __init__(self, host: _Host) -> None:
        self.host = host

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise AttributeError(name)
        return functools.partial(self.host.call, name)


class Hosts:
    """Processes for the averager `target`, an installed name or `module:class`. A call that takes `limit_s` is taken to
    hang there."""

    def __init__(self, target: str, limit_s: float) -> None:
        self._target = target
        self._limit_s = limit_s
        self._free: list[_Host] = []
        self._all: list[_Host] = []

    def rank(self, schema: Schema, state: bytes, margin: int, gamma: float) -> tuple[Any, memoryview]:
        """A rank that begins with this state, and the memory that holds it, with a margin of zeros on either side."""
        size = len(state) + 2 * margin
        host = self._free.pop() if self._free else _Host(self._target, self._limit_s)
        if host not in self._all:
            self._all.append(host)
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(size)
            memory = memoryview(mmap.mmap(file.fileno(), size))
            memory[margin : size - margin] = state
            host.call("make_rank", file.name, margin, schema, gamma)
        return Remote(host), memory

    def take_back(self, rank: Remote) -> None:
        """The rank has left; its process may hold another one, or ends if something is still under way in it."""
        if rank.host.idle:
            self._free.append(rank.host)
        else:
            rank.host.kill()

    def close(self) -> None:
        """End all of them."""
        for host in self._all:
            host.kill()


@contextmanager
def hosting(target: str, limit_s: float) -> Iterator[Hosts]:
    """Hosts that end with the block."""
    hosts = Hosts(target, limit_s)
    try:
        yield hosts
    finally:
        hosts.close()
