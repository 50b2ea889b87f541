"""Saves bundles as a coordinator does, each in a process of its own, which may be killed on the way.

For each line `[stem, version, call]` of its input it forks one, which kills itself before the call to the system with
that number, and says how it ended: 0, or minus the number of the signal.
"""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any

import trio

from paceline.backends import tensor_file
from paceline.backends.star import StarAverager
from paceline.backends.star_server import StarServer
from paceline.core import effects as fx
from paceline.core import messages as m
from paceline.core.ledger import META_FORMAT
from paceline.core.schema import EntryClass, Schema, SchemaEntry

ELEMENTS = 512
SCHEMA = Schema(entries=(SchemaEntry(name="weight", cls=EntryClass.PARAM, shape=(ELEMENTS,), dtype="float32"),))
PIECE = 1000
"""Bytes of a write: the weights take several."""


class Calls:
    """Counts what goes to the system, and ends the process before the one with that number."""

    def __init__(self, last: int | None) -> None:
        self.last, self.count = last, 0

    def note(self) -> None:
        """One is about to be made."""
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def __call__(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.note()
            return call(*arguments, **named)

        return counted


def main() -> None:
    """See the module."""
    for line in sys.stdin:
        stem, version, call = json.loads(line)
        if not (child := os.fork()):
            counted(Calls(call))
            trio.run(save, stem, version)
            os._exit(0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}), flush=True)


def counted(calls: Calls) -> None:
    """From here on whatever the writer of files asks of the system is counted."""

    class Written(io.FileIO):
        """A file each of whose writes is a call."""

        def write(self, data: Any, /) -> int:
            calls.note()
            return super().write(data)

    def opened(path: Any, mode: str) -> Any:
        return calls(Written)(path, mode) if "x" in mode else open(path, mode)

    vars(tensor_file).update(open=opened, WRITE_BYTES=PIECE)
    for name in ("fsync", "replace", "link", "unlink"):
        setattr(os, name, calls(getattr(os, name)))


class Driver:
    """Nobody listens: whether it went well is asked of the server."""

    def post(self, event: object) -> None:
        """Of each file."""


async def save(stem: str, version: int) -> None:
    """Weights that are all the version, and their record."""
    averager = StarAverager(SCHEMA)
    averager.restore(memoryview(bytearray(ELEMENTS * bytes_of(version))))
    server = StarServer(lambda: SCHEMA, lambda schema: averager)
    # There was a round once, so there is an averager.
    server.perform(fx.CloseRound(m.RoundKey(generation=1, cycle=1, kind=m.RoundKind.PARAMS)))
    server.perform(fx.WriteMeta(record(version)))
    server.perform(fx.SaveConsensus(version, version, stem))
    driver: Any = Driver()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, driver)
        await server.settle()
        nursery.cancel_scope.cancel()
    assert server.failure is None, server.failure


def bytes_of(version: int) -> bytes:
    """One element of the weights."""
    return struct.pack("<f", version)


def record(version: int) -> dict[str, Any]:
    """What the coordinator says of it, as far as a resume reads that."""
    return {
        "format": META_FORMAT, "run_id": "1d" * 16, "version": version, "sync_rounds": version, "global_step": version,
        "last_closed_epoch": -1, "reached": 0, "evaluated": -1, "replayed": 0, "batch_size": 1, "seed": 0,
        "repeats": 1, "epoch_splits": 1, "drop_last": False, "schema_hash": SCHEMA.hash().hex(), "dataset": "00" * 32,
        "balancer": {}, "guard": {},
    }  # fmt: skip


if __name__ == "__main__":
    main()
