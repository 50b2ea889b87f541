"""The tests' side of the nursery: `fork` gives a process that looks like one of `subprocess.Popen`."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TextIO

from .nursery import REQUEST_BYTES

NURSERY = Path(__file__).with_name("nursery.py")
ANSWER_BYTES = 16
END_S = 30.0


class Forked:
    """What a test needs of `Popen`, with the same meaning, for a process that a nursery forked."""

    def __init__(self, nursery: socket.socket, arguments: list[str], environment: dict[str, str]) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._status, answer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        request = {"arguments": arguments, "environment": environment, "directory": os.getcwd()}
        text = json.dumps(request).encode()
        assert len(text) < REQUEST_BYTES
        with answer:
            socket.send_fds(nursery, [text], [*theirs, answer.fileno()])
        for pipe in theirs:
            os.close(pipe)
        self.stdin: TextIO = os.fdopen(pipes[0][1], "w")
        self.stdout: TextIO = os.fdopen(pipes[1][0])
        self.stderr: TextIO = os.fdopen(pipes[2][0])
        self.pid = int(self._receive())

    def _receive(self) -> str:
        text = self._status.recv(ANSWER_BYTES).decode()
        if not text:
            raise RuntimeError("the nursery has ended; what it said is in the standard error of the tests")
        return text

    def poll(self) -> int | None:
        """The exit status, minus the signal that ended it, or None while it lives."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(self._receive())
            self._status.close()
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit status. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            select.select([self._status], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing for one that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


@cache
def nursery(*modules: str) -> socket.socket:
    """Where to ask for processes that have these modules; it ends with the tests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, str(NURSERY), str(theirs.fileno()), *modules], pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # its pool would start when numpy is imported
        )  # fmt: skip

    def end() -> None:
        ours.close()
        process.wait(END_S)

    atexit.register(end)
    return ours
