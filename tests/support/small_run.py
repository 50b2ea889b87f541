"""A whole run in one process, for tests of the session: the coordinator in a thread of its own, a thread per rank."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
import trio
from torch import nn
from torch.utils.data import TensorDataset

import paceline
from paceline.backends.connection import Environment
from paceline.backends.serve import serve
from paceline.core.config import Config

from .patience import PATIENCE_S
from .transports import CREDENTIALS

BATCH = 4
SAMPLES = 48
SEEDED = threading.Lock()
"""The ranks of a test are threads, and the generator that makes their models belongs to all of them."""


def dataset(samples: int = SAMPLES) -> TensorDataset:
    inputs = torch.arange(samples * 3, dtype=torch.float32).reshape(samples, 3).sin()
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


@attrs.define
class Seen:
    """What one rank saw: the samples of each epoch, the learning rates, and its model in the end."""

    session: paceline.Session
    samples: dict[int, list[int]] = attrs.field(factory=dict)
    rates: list[float] = attrs.field(factory=list)

    @property
    def parameters(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.session.model.parameters()])


class Thread:
    """A thread whose outcome a test can have: its value, or its exception."""

    def __init__(self, body: Callable[[], Any]) -> None:
        self._outcome: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()
        self._body = body
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._outcome.put((self._body(), None))
        except BaseException as error:
            self._outcome.put((None, error))

    def result(self) -> Any:
        value, error = self._outcome.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        return value


class SmallRun:
    """A coordinator on a free port of loopback; `knobs` go into its config."""

    def __init__(self, run_dir: Path | None = None, on_record: Callable[[dict[str, Any]], None] | None = None,
                 **knobs: Any) -> None:  # fmt: skip
        config = Config(**{"target_ranks": 2, "min_ranks": 1, **knobs})
        address: queue.Queue[str] = queue.Queue()
        self.records: list[dict[str, Any]] = []
        self._news = threading.Condition()

        async def main() -> Any:
            return await serve(config, "tcp://127.0.0.1:0", CREDENTIALS, run_dir=run_dir,
                               on_record=on_record or self._note, ready=address.put)  # fmt: skip

        self.coordinator = Thread(lambda: trio.run(main))
        self.url = address.get(timeout=PATIENCE_S)

    def environment(self, rank: int | None = None, **changes: Any) -> Environment:
        known = dict(url=self.url, token=CREDENTIALS.token, run_id=CREDENTIALS.run_id, rank=rank)
        return Environment(**{**known, **changes})

    def session(self, rank: int | None = None, data: Any = None, size: int = 5, **options: Any) -> paceline.Session:
        """One rank with a tiny model of its own. `environment` may be a map of changes to the usual one."""
        with SEEDED:
            torch.manual_seed(0 if rank is None else rank)
            model = nn.Sequential(nn.Linear(3, size), nn.ReLU(), nn.Linear(size, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        environment = self.environment(rank, **options.pop("environment", {}))
        known = dict(batch_size=BATCH, epochs=2, environment=environment)
        return paceline.Session(model, optimizer, data or dataset(), **{**known, **options})

    def train(self, rank: int | None = None, before: Callable[[Seen], None] | None = None, **options: Any) -> Seen:
        """A rank from its session to its end; `before` is called before each step."""
        seen = Seen(self.session(rank, **options))
        for batch in seen.session:
            if before is not None:
                before(seen)
            seen.samples.setdefault(batch.epoch, []).extend(batch.samples)
            seen.rates.append(seen.session.optimizer.param_groups[0]["lr"])
            train_one(seen.session, batch)
        return seen

    def start(self, rank: int | None = None, **options: Any) -> Thread:
        return Thread(lambda: self.train(rank, **options))

    def _note(self, record: dict[str, Any]) -> None:
        with self._news:
            self.records.append(record)
            self._news.notify_all()

    def until(self, event: str, count: int = 1) -> None:
        """Wait for so many records of this name."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.named(event)) >= count, PATIENCE_S), f"no {event}"

    def named(self, event: str) -> list[dict[str, Any]]:
        """All records of a name."""
        return [record for record in self.records if record["event"] == event]


def train_one(session: paceline.Session, batch: Any) -> None:
    loss = nn.functional.cross_entropy(session.model(batch.inputs), batch.targets)
    loss.backward()
    session.step(loss)
