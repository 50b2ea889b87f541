"""A command that has a pool, for a test that interrupts it: each process says which it is, and waits for ever."""

from __future__ import annotations

import os
import signal
import sys

from paceline.backends.endings import end, leave
from paceline.backends.pool import spawned


def work(_: int) -> None:
    """What each process of the pool does."""
    os.write(1, b"%d\n" % os.getpid())  # whole, whoever else writes
    signal.pause()


def main() -> None:
    """Ends as a command does."""
    workers = int(sys.argv[1])
    try:
        with spawned(workers) as pool:
            pool.map(work, range(workers), chunksize=1)
    except BaseException as error:
        leave(end(error))


if __name__ == "__main__":
    main()
