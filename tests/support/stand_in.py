"""What stands in for Python where a child of the nursery starts one: `stand_in.py SOCKET INTERPRETER ARGUMENT...`.

It asks the nursery for a process with these arguments and its own environment and pipes, passes on the signals it gets,
and ends as that process ends: with the same status, or by the same signal. If it is killed, so is the process. Started
with options that the nursery does not know, it becomes the real interpreter.

It runs with `-I -S` and imports next to nothing, since it is started for each rank of each test.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from types import FrameType

ANSWER_BYTES = 16
KNOWN = ("-u", "-P", "-m")
PASSED_ON = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """See the module."""
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    address, interpreter, *arguments = sys.argv[1:]
    first = next(word for word in arguments if word not in ("-u", "-P"))
    if first.startswith("-") and first not in KNOWN:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        os.execv(interpreter, [interpreter, *arguments])
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    request = {"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd()}
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    nothing = os.open(os.devnull, os.O_RDWR)
    for pipe in (0, 1, 2):  # who reads them sees their end when the process ends, whatever becomes of this one
        os.dup2(nothing, pipe)
    process = int(connection.recv(ANSWER_BYTES))

    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    status = int(connection.recv(ANSWER_BYTES))
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
