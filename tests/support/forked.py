"""How tests start a Python: `start`. It comes from the nursery where there can be one, and from nothing elsewhere."""

from __future__ import annotations

import atexit
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TextIO

from .nursery import REQUEST_BYTES
from .patience import PATIENCE_S

HERE = Path(__file__).parent
ANSWER_BYTES = 16
MODULES = (
    "paceline.backends.session", "paceline.backends.serve", "paceline.backends.star", "paceline.backends.coordinate",
    "paceline.backends.launch", "paceline.backends.console", "paceline.transports.tcp", "sklearn.datasets",
    "torch._dynamo",
)  # fmt: skip
"""What the processes of the tests import before they do anything. The last one is what torch imports with the first
optimizer."""


class Forked:
    """What a test needs of `Popen`, with the same meaning, for a Python that the nursery forked."""

    def __init__(self, address: str, arguments: list[str], environment: dict[str, str], cwd: Path | None) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(address)
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        request = {"arguments": arguments, "environment": environment, "directory": str(cwd or os.getcwd())}
        text = json.dumps(request).encode()
        assert len(text) < REQUEST_BYTES
        socket.send_fds(self._connection, [text], theirs)
        for pipe in theirs:
            os.close(pipe)
        self.stdin: TextIO = os.fdopen(pipes[0][1], "w")
        self.stdout: TextIO = os.fdopen(pipes[1][0])
        self.stderr: TextIO = os.fdopen(pipes[2][0])
        self.pid = int(self._receive())

    def _receive(self) -> str:
        text = self._connection.recv(ANSWER_BYTES).decode()
        if not text:
            raise RuntimeError("the nursery has ended; what it said is in the standard error of the tests")
        return text

    def poll(self) -> int | None:
        """The exit status, minus the signal that ended it, or None while it lives."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.returncode = int(self._receive())
            self._connection.close()
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit status. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            select.select([self._connection], [], [], timeout)
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


def start(
    arguments: list[str], environment: dict[str, str], cwd: Path | None = None, *, fresh: bool = False
) -> Forked | subprocess.Popen[str]:
    """A Python with these arguments, in a session of its own, with three pipes. `fresh`: it has imported nothing."""
    address = None if fresh or sys.platform != "linux" else nursery()
    if address is not None:
        return Forked(address, arguments, environment, cwd)
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=cwd, env=environment, start_new_session=True, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@cache
def nursery() -> str | None:
    """Where to ask for processes that have imported `MODULES`; None where a library starts a thread as it is imported,
    so that a fork is not safe. It is started once, and ends with the tests."""
    directory = Path(tempfile.mkdtemp(prefix="paceline-"))
    address, executable = str(directory / "nursery"), directory / "python"
    words = [sys.executable, "-I", "-S", str(HERE / "stand_in.py"), address, sys.executable]
    executable.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    executable.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py"), str(listener.fileno()), str(executable), *MODULES],
            pass_fds=[listener.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # its pool would start when numpy is imported
        )  # fmt: skip

    assert process.stdin is not None and process.stdout is not None
    with process.stdout:
        ready = process.stdout.readline() != b""

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(PATIENCE_S)
        shutil.rmtree(directory)

    if not ready:
        end()
        return None
    atexit.register(end)
    return address
