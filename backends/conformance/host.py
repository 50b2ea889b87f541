"""The program of a rank in a process of its own, for the checks of averagers that average in place; see `hosts`.

    python -m paceline.backends.conformance.host TARGET DESCRIPTOR

Calls come as (number, name, arguments) over the pipe with this descriptor, each is answered in a thread of its own, so
that an abort gets through while a call blocks. The end of the pipe is the end of the process, whatever is under way.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

import attrs

from ...core.schema import Schema
from ..kit_process import portable
from . import averager_named
from .hosts import CALLS

__all__: list[str] = []


@attrs.define
class _Rank:
    """The one that lives here, and the way to whoever calls it."""

    make: Any
    pipe: Connection
    averager: Any = None
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def make_rank(self, path: str, margin: int, schema: Schema, gamma: float) -> None:
        """A new rank over the memory of the kit."""
        with open(path, "r+b") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0))
        self.averager = self.make(schema, memory[margin : len(memory) - margin], gamma=gamma)

    def answer(self, number: int, name: str, *words: Any) -> None:
        """Carry one call out and tell what came of it."""
        found, raised = None, None
        try:
            found = getattr(self.averager if name in CALLS else self, name)(*words)
            pickle.dumps(found)  # what cannot travel is the mistake of who gave it, and is told as one
        except BaseException as failure:  # an end of this thread would leave whoever called waiting
            found, raised = None, portable(failure)
        with self.lock:
            self.pipe.send((number, found, raised))


def main(target: str, descriptor: str) -> None:
    """Serve until the pipe ends."""
    rank = _Rank(averager_named(target), Connection(int(descriptor)))
    try:
        while True:
            words = rank.pipe.recv()
            threading.Thread(target=rank.answer, args=words, daemon=True).start()
    except EOFError:
        os._exit(0)  # without waiting for a thread that may be blocked for ever


if __name__ == "__main__":
    main(*sys.argv[1:])
