"""Processes of a pool for commands that spread independent work, spawned, each with an interpreter of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.pool import Pool

__all__ = ["MOST_PROCESSES", "spawned"]

MOST_PROCESSES = 1024
"""More on one machine are a mistake in the number."""


@contextmanager
def spawned(processes: int, begin: Callable[[], None] | None = None) -> Iterator[Pool]:
    """A pool whose processes `begin` so, and which ends with the block.

    A terminal sends Ctrl-C to all of them; what follows from it is decided by the process that has the pool, so the
    others do not hear of it from their first moment on: they inherit that it is blocked.
    """
    import multiprocessing
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # the pool would start it, and it unblocks the signal for whoever does
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with multiprocessing.get_context("spawn").Pool(processes, begin) as pool:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield pool
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
