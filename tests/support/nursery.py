"""Processes that have imported torch before they are born: `python nursery.py DESCRIPTOR EXECUTABLE MODULE...`.

Most of the time of a rank in a test is torch: two seconds of processor time to import it, two more when the first
optimizer is made, since torch imports its compiler then. Nobody tests that. So one process imports the modules once,
keeps to one thread, and forks a process whenever a test wants one. The child is a process like any other: its own id,
session, environment, pipes and exit status; it can be killed, stopped and sent signals; and it runs its script or
module as `__main__` from the first line. Its `sys.executable` is EXECUTABLE, so that a child which starts more Pythons,
as `paceline run` does, has them from here as well (`stand_in.py`).

What differs from a fresh interpreter: all children share the hash seed, so what must not depend on it is tested
elsewhere (`test_snapshots.py`, `test_field_cases_runs.py`), what is imported is there already, and a process that a
rank of `paceline run` leaves behind is in a group that the launcher does not know. Fork is safe since there is one
thread and nothing has computed a tensor; `main` refuses if that is not so, and says `ready` if it is. Linux only: it
counts threads in /proc and waits with pidfd.

DESCRIPTOR is a socket that listens; each connection is one process. It is asked for with one datagram, the arguments of
Python and the environment, and three descriptors: standard input, output and error. Back come the process id, and when
it has ended the exit status as `Popen.returncode` has it. When the other side closes the connection, the process group
is killed; when standard input ends, everything is: no process outlives who wanted it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys

REQUEST_BYTES = 1 << 17
DESCRIPTORS = 3
TESTS = 0
"""The standard input, which ends with the tests."""


class Nursery:
    """The children, each known by its connection and by its pidfd."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._connections: dict[int, socket.socket] = {}
        self._children: dict[int, tuple[int, int]] = {}
        """By the descriptor of a connection: the process id and the pidfd."""
        self._poll = select.poll()
        for descriptor in (TESTS, listener.fileno()):
            self._poll.register(descriptor, select.POLLIN)

    def serve(self) -> list[str]:
        """Fork on request. Returns in a child only: the arguments of the Python that it is now."""
        while True:
            descriptor, _ = self._poll.poll()[0]  # one at a time: it may end what the others are about
            if descriptor == TESTS:
                for connection in list(self._children):
                    self._kill(connection)
                raise SystemExit(0)
            if descriptor == self._listener.fileno():
                asked, _ = self._listener.accept()
                self._connections[asked.fileno()] = asked
                self._poll.register(asked, select.POLLIN)
            elif descriptor in self._children:
                self._kill(descriptor)
            elif descriptor not in self._connections:
                self._report(descriptor)
            elif (arguments := self._fork(descriptor)) is not None:
                return arguments

    def _fork(self, descriptor: int) -> list[str] | None:
        """Serve a request; None in the parent."""
        connection = self._connections[descriptor]
        text, pipes, _, _ = socket.recv_fds(connection, REQUEST_BYTES, DESCRIPTORS)
        if not text:  # who connected has ended before it could ask
            self._poll.unregister(descriptor)
            self._connections.pop(descriptor).close()
            return None
        if (process := os.fork()) == 0:
            for inherited in (self._listener, *self._connections.values()):
                inherited.close()
            for _, handle in self._children.values():
                os.close(handle)
            return _become(json.loads(text), pipes)
        for pipe in pipes:
            os.close(pipe)
        handle = os.pidfd_open(process)
        self._children[descriptor] = process, handle
        self._poll.register(handle, select.POLLIN)
        with contextlib.suppress(BrokenPipeError):  # who asked has ended; its end of the connection says so next
            connection.send(str(process).encode())
        return None

    def _kill(self, descriptor: int) -> None:
        """Nobody wants this child any more; its end is reported as any other."""
        with contextlib.suppress(KeyError):  # its own connection ended just before that of the tests
            self._poll.unregister(descriptor)
        process, _ = self._children[descriptor]
        for end in (os.killpg, os.kill):  # it may have died before it had a group
            with contextlib.suppress(ProcessLookupError):
                end(process, signal.SIGKILL)

    def _report(self, handle: int) -> None:
        """A child has ended. Its id is given back last, after the status is on its way."""
        self._poll.unregister(handle)
        descriptor = next(key for key, child in self._children.items() if child[1] == handle)
        process, _ = self._children.pop(descriptor)
        ended = os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with contextlib.suppress(KeyError):  # `_kill` has done so
            self._poll.unregister(descriptor)
        with self._connections.pop(descriptor) as connection, contextlib.suppress(BrokenPipeError):
            connection.send(str(status).encode())
        os.close(handle)
        os.waitpid(process, 0)


def _become(request: dict[str, object], pipes: list[int]) -> list[str]:
    """Turn this process, just forked, into the one that was asked for; gives the arguments of its Python."""
    os.setsid()
    for target, pipe in enumerate(pipes):
        os.dup2(pipe, target)
        os.close(pipe)
    arguments, environment, directory = request["arguments"], request["environment"], request["directory"]
    assert isinstance(arguments, list) and isinstance(environment, dict) and isinstance(directory, str)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    return arguments


def _run(arguments: list[str]) -> None:
    """What Python does with these arguments: `[-u] [-P] SCRIPT|-m MODULE ARGUMENT...`."""
    safe_path = False
    while arguments[0] in ("-u", "-P"):
        option = arguments.pop(0)
        if option == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        safe_path |= option == "-P"
    is_module = arguments[0] == "-m"
    sys.path[:1] = [] if safe_path else [os.getcwd() if is_module else os.path.dirname(os.path.abspath(arguments[0]))]
    sys.argv = arguments[is_module:]
    if is_module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


class Ending:
    """How a child ends. After what Python does at the end of a program it leaves at once: to take the modules apart
    would write to all the memory that it shares, and so copy it, which takes longer than most tests."""

    def __init__(self) -> None:
        self._status: int | None = None
        atexit.register(self._leave)  # the first to be registered is the last to be called

    def _leave(self) -> None:
        if self._status is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._status)

    def run(self, arguments: list[str]) -> None:
        """Run the program, and note its exit status. What it raises is Python's to deal with, in the usual way."""
        try:
            _run(arguments)
            self._status = 0
        except SystemExit as end:
            self._status = end.code & 0xFF if isinstance(end.code, int) else int(end.code is not None)
            raise


def main() -> None:
    """Import, then fork; each child comes out of `serve` and runs what was asked for."""
    ending = Ending()
    listener, executable, *modules = sys.argv[1:]
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that the collector of a child does not write to, and so copy, what all of them share
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        raise SystemExit(f"{' '.join(modules)} started {threads - 1} threads at import: fork is not safe")
    os.write(sys.stdout.fileno(), b"ready\n")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
    arguments = Nursery(socket.socket(fileno=int(listener))).serve()
    sys.executable = executable
    ending.run(arguments)


if __name__ == "__main__":
    main()
