"""Processes that have imported torch before they are born: `python nursery.py DESCRIPTOR MODULE...`.

Most of the time of a rank in a test is torch: two seconds of processor time to import it, two more when the first
optimizer is made. Nobody tests that. So one process imports the modules once, keeps to one thread, and forks a process
whenever a test wants one. The child is a process like any other: its own id, session, environment, pipes and exit
status; it can be killed, stopped and sent signals; and it runs its script as `__main__` from the first line.

What differs from a fresh interpreter: all children share the hash seed, so what must not depend on it is tested
elsewhere (`test_snapshots.py`, `test_field_cases_runs.py`). Fork is safe because there is one thread and nothing has
computed a tensor; `main` refuses if that is not so. Linux only: it counts threads in /proc and waits with pidfd.

A request is a datagram with the arguments and the environment, and four descriptors: standard input, output, error and
a socket on which the process id comes back, and the exit status (as `Popen.returncode` has it) when it has ended. When
the other end of the socket of requests closes, every child is killed: they do not outlive the tests.
"""

from __future__ import annotations

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
DESCRIPTORS = 4


def main() -> None:
    """Fork on request. Returns in a child only, which is set up to run the script in `sys.argv`."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that the collector of a child does not write to, and so copy, what all of them share
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        raise SystemExit(f"{' '.join(sys.argv[2:])} started {threads - 1} threads at import: fork is not safe")
    living: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != requests.fileno():
                poll.unregister(descriptor)
                _report(descriptor, *living.pop(descriptor))
                continue
            text, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, DESCRIPTORS)
            if not text:
                for process, _ in living.values():
                    os.kill(process, signal.SIGKILL)
                raise SystemExit(0)
            *pipes, answer = descriptors
            if (process := os.fork()) == 0:
                for inherited in (requests.detach(), answer, *living, *(link.detach() for _, link in living.values())):
                    os.close(inherited)
                _become(json.loads(text), pipes)
                return
            for pipe in pipes:
                os.close(pipe)
            handle = os.pidfd_open(process)
            living[handle] = process, socket.socket(fileno=answer)
            living[handle][1].send(str(process).encode())
            poll.register(handle, select.POLLIN)


def _report(handle: int, process: int, answer: socket.socket) -> None:
    """The child has ended. Its id is given back last, after the status is on its way."""
    ended = os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    with contextlib.suppress(BrokenPipeError):  # a test that has closed its end waits for nothing
        answer.send(str(status).encode())
    answer.close()
    os.close(handle)
    os.waitpid(process, 0)


def _become(request: dict[str, object], pipes: list[int]) -> None:
    """Turn this process, just forked, into the one that was asked for."""
    os.setsid()
    for target, pipe in enumerate(pipes):
        os.dup2(pipe, target)
        os.close(pipe)
    arguments, environment, directory = request["arguments"], request["environment"], request["directory"]
    assert isinstance(arguments, list) and isinstance(environment, dict) and isinstance(directory, str)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments


if __name__ == "__main__":
    main()
    runpy.run_path(sys.argv[0], run_name="__main__")
