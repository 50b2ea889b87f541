"""One averaging round of real processes over TCP loopback, against what it cannot do without.

A round lasts from the instant the coordinator asks for copies to the last rank's word that it has the consensus: the
`reduce_ms` of its timeline. It moves every model up and every consensus down, and sums. So it is compared, in the same
run and turn by turn, with

    tcp     the same bytes, both directions, through one bare connection to another process
    sum     the weighted sum and the division, in numpy, in blocks, of arrays that are already here

under both settings of `bulk_auth`: with "full" every byte is hashed at both ends, with "header" it is not. All times
include whatever else the machine did; the ratios are medians of ratios of neighbours in time.

    python tests/benchmarks/star_round.py [MEGABYTES ...]
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import attrs
import numpy as np
import torch
from session_step import PATIENCE_S, coordinating
from torch import nn
from torch.utils.data import TensorDataset

import paceline
from paceline.backends.connection import Environment
from paceline.core.errors import PacelineError

RANKS = (2, 4)
MEGABYTES = (1, 10, 100)
ROUNDS = {1: 12, 10: 6, 100: 2}
"""Rounds that count, by size; other sizes take the fewest."""
WARM_UP = 1
BEGIN_BY_S = 30.0
"""A run that would begin later is left out, and one that is under way makes no more rounds than one that counts: on a
busy machine the benchmark shows less, but does not last much longer."""
CHUNK = 4 << 20
"""Bytes that the bare connection takes at a time."""
BLOCK = 1 << 18
"""Elements that are summed at a time: a megabyte, which stays near the processor."""
SPAWN = multiprocessing.get_context("spawn")


@attrs.frozen
class Times:
    """Seconds of one round, and of what it cannot do without."""

    round: float
    tcp: float
    sum: float


# --- ranks ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class Task:
    """A run for a rank to take part in: it goes on to the next round, or leaves, when it is told to."""

    environment: Environment
    megabytes: int


def rank(orders: Connection) -> None:
    """A process that is one rank of run after run, so that torch is loaded once."""
    torch.set_num_threads(1)
    while (task := orders.recv()) is not None:
        _take_part(task, orders)


def _take_part(task: Task, orders: Connection) -> None:
    torch.manual_seed(0)
    model = nn.Linear(task.megabytes * (1 << 18) - 1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = TensorDataset(torch.zeros(1 << 16, 1))
    session = paceline.Session(model, optimizer, dataset, batch_size=1, epochs=1, environment=task.environment)
    version = -1
    with contextlib.suppress(PacelineError):  # whoever leaves last finds the run over
        for _ in session:
            if session.version != version:
                version = session.version
                orders.send("ready")
                if orders.recv() == "stop":
                    session.close()
                    break
            session.step()  # no gradients, so nothing but a round is left of a step
    orders.send("done")


# --- the yardsticks ------------------------------------------------------------------------------------------------


def sink(address: tuple[str, int]) -> None:
    """The far end of the bare connection: swallow what comes, give back as much, again and again."""
    with socket.create_connection(address) as far:
        memory = bytearray(CHUNK)
        while (size := int.from_bytes(far.recv(8, socket.MSG_WAITALL), "little")) > 0:
            _read(far, memory, size)
            _write(far, memory, size)


def _read(end: socket.socket, memory: bytearray, size: int) -> None:
    while size:
        size -= end.recv_into(memory, min(size, CHUNK))


def _write(end: socket.socket, memory: bytearray, size: int) -> None:
    while size:
        sent = end.send(memoryview(memory)[: min(size, CHUNK)])
        size -= sent


class Bare:
    """One bare connection, and arrays to sum."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._process = SPAWN.Process(target=sink, args=(listener.getsockname(),), daemon=True)
            self._process.start()
            listener.settimeout(PATIENCE_S)
            self._near, _ = listener.accept()
        self._near.settimeout(PATIENCE_S)
        self._memory = bytearray(CHUNK)

    def tcp(self, size: int) -> float:
        """Seconds for `size` bytes there and as many back."""
        begin = time.perf_counter()
        self._near.sendall(size.to_bytes(8, "little"))
        _write(self._near, self._memory, size)
        _read(self._near, self._memory, size)
        return time.perf_counter() - begin

    @staticmethod
    def sum(arrays: list[np.ndarray], total: np.ndarray) -> float:
        """Seconds for the weighted mean of the arrays."""
        begin = time.perf_counter()
        product = np.empty(BLOCK, np.float32)
        for first in range(0, total.size, BLOCK):
            part = total[first : first + BLOCK]
            part.fill(0)
            for array in arrays:
                np.multiply(array[first : first + BLOCK], np.float32(3), out=product[: part.size])
                np.add(part, product[: part.size], out=part)
            np.divide(part, np.float32(3 * len(arrays)), out=part)
        return time.perf_counter() - begin

    def close(self) -> None:
        """End the process at the far end."""
        self._near.sendall(bytes(8))
        self._near.close()
        self._process.join()


# --- rounds --------------------------------------------------------------------------------------------------------


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or MEGABYTES
    until = time.monotonic() + BEGIN_BY_S
    bare = Bare()
    print(f"{'ranks':>5}{'MB':>6}  {'bulk_auth':<10}{'round s':>9}{'/ tcp':>7}{'/ sum':>7}{'/ (tcp + sum)':>15}")
    with cohort(max(RANKS)) as orders:
        for megabytes, ranks, bulk_auth in itertools.product(sizes, RANKS, ("full", "header")):
            if time.monotonic() > until:
                print(f"{ranks:>5}{megabytes:>6}  {bulk_auth:<10}     left out: no time")
                continue
            _report(ranks, megabytes, bulk_auth, measure(orders[:ranks], megabytes, bulk_auth, bare, until))
    bare.close()


@contextmanager
def cohort(ranks: int) -> Iterator[list[Connection]]:
    """Processes that wait for tasks, one pipe each."""
    pipes = [SPAWN.Pipe() for _ in range(ranks)]
    processes = [SPAWN.Process(target=rank, args=(theirs,), daemon=True) for _, theirs in pipes]
    for process in processes:
        process.start()
    try:
        yield [ours for ours, _ in pipes]
        for ours, _ in pipes:
            ours.send(None)
        for process in processes:
            process.join(PATIENCE_S)
    finally:
        for process in processes:
            process.terminate()


def measure(orders: list[Connection], megabytes: int, bulk_auth: str, bare: Bare, until: float) -> list[Times]:
    """The rounds of one run, each followed by its yardsticks while the ranks hold still."""
    rounds = WARM_UP + ROUNDS.get(megabytes, min(ROUNDS.values()))
    knobs = {
        "target_ranks": len(orders), "min_ranks": len(orders), "anchor": 1, "max_anchor": 1, "min_chunk": 1,
        "bulk_auth": bulk_auth,
    }  # fmt: skip
    size = megabytes << 20
    arrays = [np.ones(size // 4, np.float32) for _ in orders]
    total = np.empty_like(arrays[0])
    found = []
    with coordinating(knobs) as (environment, records):
        for ours in orders:
            ours.send(Task(environment, megabytes))
        _told(orders, "ready")
        while len(found) < rounds and (len(found) <= WARM_UP or time.monotonic() < until):
            while records.poll():
                records.recv()
            for ours in orders:
                ours.send("go")
            round_s = _next(records)["reduce_ms"] / 1000
            _told(orders, "ready")
            found.append(Times(round_s, bare.tcp(len(orders) * size), Bare.sum(arrays, total)))
        for ours in orders:
            ours.send("stop")
        _told(orders, "done")
    return found[WARM_UP:]


def _told(orders: list[Connection], word: str) -> None:
    for ours in orders:
        if _next(ours) != word:
            raise SystemExit(f"a rank did not say {word!r}")


def _next(pipe: Connection):
    if not pipe.poll(PATIENCE_S):
        raise SystemExit("a process of this benchmark is silent")
    return pipe.recv()


def _report(ranks: int, megabytes: int, bulk_auth: str, times: list[Times]) -> None:
    seconds = statistics.median(t.round for t in times)
    to_tcp = statistics.median(t.round / t.tcp for t in times)
    to_sum = statistics.median(t.round / t.sum for t in times)
    to_both = statistics.median(t.round / (t.tcp + t.sum) for t in times)
    print(
        f"{ranks:>5}{megabytes:>6}  {bulk_auth:<10}{seconds:>9.3f}{to_tcp:>7.2f}{to_sum:>7.1f}{to_both:>15.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
