"""What a training step costs more through `paceline.Session`: microseconds, and the ratio to a loop without it.

One tiny model is trained three ways, a few hundred steps of each in turn, so that a machine that is busy for a moment
slows all three alike: `plain` is a PyTorch loop over a shuffled index; `bare` does the index-and-collate work that a
rank does as well, the order being a function (D-1); `paceline` is the session, whose coordinator is a process of its
own over TCP. The first average is further away than the end of the run, so none is in the figures. A real model takes
milliseconds a step, and the difference in microseconds is what is added to them.

Time is taken by the clock on the wall and by the processor time of the whole process, threads included. The latter
leaves out what other programs took meanwhile; it does not know that a second core may do a part of the work unseen.

    python tests/benchmarks/session_step.py [STEPS-PER-PASS]
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
import trio
from torch import nn
from torch.utils.data import TensorDataset

import paceline
from paceline.backends.connection import Environment
from paceline.backends.data import Collator
from paceline.backends.serve import serve
from paceline.core.config import Config
from paceline.core.dispatch.permutation import decode, partition
from paceline.transports.api import Credentials

PASSES = 40
STEPS = 100
WARM_UP = 2
"""Passes of each kind that are not counted."""
FAR_AWAY = 1_000_000
"""Steps per window: more than are taken, so that no average is due."""
BATCH, SAMPLES, FEATURES, CLASSES, SEED = 32, 8192, 64, 10, 7
REPEATS = BATCH * FAR_AWAY // SAMPLES
"""One epoch is longer than the run."""
PATIENCE_S = 60.0
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def coordinating(knobs: dict[str, Any]) -> Iterator[tuple[Environment, Connection]]:
    """A coordinator in a process of its own: how to reach it, and the records of its cycles as they come."""
    secrets = {"run_id": os.urandom(16), "token": os.urandom(32)}
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_coordinate, args=(knobs, secrets, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(PATIENCE_S):
            raise SystemExit("the coordinator does not listen")
        yield Environment(url=ours.recv(), **secrets), ours
    finally:
        process.terminate()
        process.join()


def _coordinate(knobs: dict[str, Any], secrets: dict[str, bytes], pipe: Connection) -> None:
    config = Config.from_knobs(knobs)
    credentials = Credentials(**secrets)

    def look(record: dict[str, Any]) -> None:
        if record["event"] == "Cycle":
            pipe.send(record)

    async def body() -> None:
        await serve(config, "tcp://127.0.0.1:0", credentials, on_record=look, ready=pipe.send)

    trio.run(body)


class Training:
    """The model, its data, and one step of each of the three loops."""

    def __init__(self) -> None:
        torch.manual_seed(SEED)
        self.dataset = TensorDataset(torch.randn(SAMPLES, FEATURES), torch.randint(0, CLASSES, (SAMPLES,)))
        self.model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.loss_fn = nn.CrossEntropyLoss()
        self._collate = Collator(self.dataset, None)
        self._order = torch.randperm(SAMPLES)
        self._taken = 0

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Forward and backward: the same in every loop."""
        loss: torch.Tensor = self.loss_fn(self.model(inputs), targets)
        loss.backward()
        return loss

    def plain(self) -> None:
        """A step as most people write it."""
        first = self._taken * BATCH % SAMPLES
        index = self._order[first : first + BATCH]
        inputs, targets = (tensor[index] for tensor in self.dataset.tensors)
        self._optimize(inputs, targets)

    def bare(self) -> None:
        """A step on the samples that a rank would get, fetched as it fetches them."""
        picks = partition(SAMPLES * REPEATS, 1, SEED, 0, self._taken * BATCH, BATCH)
        samples = tuple(decode(pick, REPEATS)[0] for pick in picks)
        inputs, targets = self._collate(samples)
        self._optimize(inputs, targets)

    def _optimize(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        loss = self.backward(inputs, targets)
        loss.item()  # a session reads the loss as well, and so does whoever prints it
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._taken += 1


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    torch.set_num_threads(1)
    training = Training()
    knobs = {
        "target_ranks": 1, "min_ranks": 1, "anchor": FAR_AWAY, "max_anchor": FAR_AWAY, "repeats": REPEATS,
        "drop_last": True,
    }  # fmt: skip
    with coordinating(knobs) as (environment, records):
        taken = _measure(training, environment, steps)
        if records.poll():
            raise SystemExit("an average was made: this is not the cost of a step")
    _report(taken)


def _measure(training: Training, environment: Environment, steps: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds per step: of each clock, each loop, each pass."""
    session = paceline.Session(
        training.model, training.optimizer, training.dataset, batch_size=BATCH, epochs=1, seed=SEED,
        environment=environment,
    )  # fmt: skip
    batches = iter(session)
    batch = next(batches)

    def through_paceline() -> None:
        nonlocal batch
        session.step(training.backward(batch.inputs, batch.targets))
        batch = next(batches)

    loops: dict[str, Callable[[], None]] = {
        "plain": training.plain, "bare": training.bare, "paceline": through_paceline,
    }  # fmt: skip
    taken: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in loops} for clock in CLOCKS}
    for number in range(WARM_UP + PASSES):
        for name, step in loops.items():
            begin = {clock: read() for clock, read in CLOCKS.items()}
            for _ in range(steps):
                step()
            for clock, read in CLOCKS.items():
                if number >= WARM_UP:
                    taken[clock][name].append((read() - begin[clock]) / steps * 1e6)
    session.close()
    return taken


def _report(taken: dict[str, dict[str, list[float]]]) -> None:
    print(f"{'us per step':<22}{'minimum':>9}{'median':>9}{'more than bare':>16}{'ratio':>8}")
    for clock, loops in taken.items():
        for name, times in loops.items():
            pairs = list(zip(times, loops["bare"], strict=True))
            more = statistics.median(mine - bare for mine, bare in pairs)
            ratio = statistics.median(mine / bare for mine, bare in pairs)
            median = statistics.median(times)
            print(f"{clock + ', ' + name:<22}{min(times):>9.0f}{median:>9.0f}{more:>16.0f}{ratio:>8.2f}")


if __name__ == "__main__":
    main()
