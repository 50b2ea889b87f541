"""A StarServer and its StarLinks over channels, without machines: a test opens rounds and offers copies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import torch
import trio
from torch import nn

from paceline.backends.flat import FlatModel, Snapshot
from paceline.backends.layout import header_block
from paceline.backends.schema import schema_of
from paceline.backends.star import StarAverager
from paceline.backends.star_client import contribute_blocks
from paceline.backends.star_link import StarLink
from paceline.backends.star_server import StarServer
from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.worker import WorkerSettings
from paceline.transports.api import Channel
from paceline.transports.codec import encode_record
from paceline.transports.rank_driver import RankDriver

from .transports import MEMORY, Kind, meeting

RUN = b"r" * 16
PARAMS = m.RoundKey(generation=1, cycle=1, kind=m.RoundKind.PARAMS)
STATE = m.RoundKey(generation=1, cycle=0, kind=m.RoundKind.STATE)
LIMIT = 100


class Told:
    """Events of either side, and the wait for one."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.news = trio.Event()

    def post(self, event: Any) -> None:
        self.events.append(event)
        self.news.set()
        self.news = trio.Event()

    feed = post

    async def settle(self, event: Any) -> None:
        self.post(event)

    async def until(self, kind: type, count: int = 1) -> Any:
        """Wait for so many events of a kind; gives the last of them."""
        while len(self.of(kind)) < count:
            await self.news.wait()
        return self.of(kind)[-1]

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Trainer(Told):
    """A rank: its model, its end of the channel, and what its link tells the worker."""

    def __init__(self, rank: int, model: nn.Module, channel: Channel, far: Channel) -> None:
        super().__init__()
        self.rank = rank
        self.flat = FlatModel(model, schema_of(model))
        self.channel, self.far = channel, far
        self.worker = self
        self.settings = WorkerSettings(run_id=RUN, generation=1, rank=rank, incarnation=1, policy="sync", batch_size=1)
        driver: RankDriver = self  # type: ignore[assignment]
        self.link = StarLink(driver, self.flat, with_digest=True)
        self.snapshot: Snapshot | None = None

    def offer(self, steps: int, *, cycle: int = 1, attempt: int = 0, observer: bool = False) -> None:
        """What the training thread does on RequestParams."""
        state = cycle == 0 and not observer
        if attempt == 0:
            self.snapshot = None if observer else self.flat.snapshot_state() if state else self.flat.snapshot()
        header_only = self.snapshot is None
        self.link.offer(fx.TakeSnapshot(cycle, attempt, 1, steps, header_only, state, attempt == 0), self.snapshot)

    async def ship_by_hand(self, steps: int, blocks: int | None = None) -> None:
        """A contribution of cycle 1 to the channel itself, so many blocks of it; nothing is read."""
        snapshot = self.flat.snapshot()
        header = m.Contribution(
            run_id=RUN, generation=1, rank=self.rank, incarnation=1, cycle=1, attempt=0,
            schema_hash=snapshot.schema_hash, steps=steps, finite=True, bytes=len(snapshot.memory),
        )  # fmt: skip
        data = memoryview(encode_record(header))
        await self.channel.send_bulk(header_block(PARAMS, 0, self.rank, 1, len(data)), data)
        for block, body in list(contribute_blocks(snapshot, PARAMS, 0, self.rank, 1))[:blocks]:
            await self.channel.send_bulk(block, body)
        self.flat.release(snapshot)


@attrs.define
class Way:
    """A server and its ranks. Links run unless a test starts them itself."""

    nursery: trio.Nursery
    server: StarServer
    told: Told
    ranks: list[Trainer]

    def open(self, *members: int, observers: tuple[int, ...] = (), key: m.RoundKey = PARAMS, attempt: int = 0) -> None:
        self.server.perform(
            fx.OpenRound(key, attempt, tuple((r, 1, LIMIT) for r in members), tuple((r, 1) for r in observers))
        )

    def admit(self, rank: int, steps: int, key: m.RoundKey = PARAMS, attempt: int = 0) -> None:
        self.server.perform(fx.AdmitContribution(key, attempt, rank, steps))

    def start(self, rank: int) -> None:
        self.nursery.start_soon(self.ranks[rank].link.run, self.ranks[rank].channel)


def layer(seed: int, size: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(4))


@asynccontextmanager
async def path(*sizes: int, idle: tuple[int, ...] = (), kind: Kind = MEMORY) -> AsyncIterator[Way]:
    """One rank per size of model; the links of `idle` ranks do not run yet."""
    async with path_of(*(layer(rank, size) for rank, size in enumerate(sizes)), idle=idle, kind=kind) as made:
        yield made


@asynccontextmanager
async def path_of(*models: nn.Module, idle: tuple[int, ...] = (), kind: Kind = MEMORY) -> AsyncIterator[Way]:
    """One rank per model; the schema of the run is that of rank 0, and nobody asks the others at a door for theirs."""
    async with meeting(kind) as met:
        ranks = [Trainer(rank, model, *await met.join()) for rank, model in enumerate(models)]
        schema = ranks[0].flat.schema
        server = StarServer(lambda: schema, lambda known: StarAverager(known))
        told = Told()
        async with trio.open_nursery() as nursery:
            made = Way(nursery, server, told, ranks)
            driver: Any = told
            nursery.start_soon(server.run, driver)
            for trainer in ranks:
                nursery.start_soon(serve, server, trainer)
                if trainer.rank not in idle:
                    made.start(trainer.rank)
            yield made
            nursery.cancel_scope.cancel()


async def serve(server: StarServer, trainer: Trainer) -> None:
    """As the driver does: the end of a lane ends this task alone."""
    try:
        await server.serve(trainer.rank, 1, trainer.far)
    except OSError:
        return


def parameters(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in trainer.flat.model.parameters()])


async def staged(p: Way, count: int = 1, ranks: tuple[int, ...] | None = None) -> list[ev.ConsensusStaged]:
    chosen = p.ranks if ranks is None else [p.ranks[rank] for rank in ranks]
    return [await trainer.until(ev.ConsensusStaged, count) for trainer in chosen]


def adopt(trainer: Trainer, cycle: int = 1) -> None:
    """What the training thread does on Update."""
    flat, state = trainer.link.take(cycle)
    assert flat is not None
    trainer.flat.adopt_state(flat) if state else trainer.flat.adopt(flat)


async def one_cycle(p: Way, cycle: int = 1) -> None:
    """Rank 0 averages alone and adopts the result."""
    await whole_cycle(p, {0: 2}, cycle)


async def whole_cycle(
    p: Way, steps: Mapping[int, int], cycle: int = 1, *, observers: tuple[int, ...] = ()
) -> list[ev.ConsensusStaged]:
    """Ranks with so many steps average, and adopt what they are sent, if anything; gives what was staged, ascending,
    observers last."""
    key = attrs.evolve(PARAMS, cycle=cycle)
    p.open(*steps, observers=observers, key=key)
    there = [p.ranks[rank] for rank in (*steps, *observers)]
    before = [len(trainer.of(ev.ConsensusStaged)) for trainer in there]
    for trainer in there:
        if trainer.snapshot is not None:
            trainer.flat.release(trainer.snapshot)
        trainer.offer(steps.get(trainer.rank, 0), cycle=cycle, observer=not steps.get(trainer.rank))
        if trainer.rank in steps:
            p.admit(trainer.rank, steps[trainer.rank], key)
    told = [await trainer.until(ev.ConsensusStaged, known + 1) for trainer, known in zip(there, before, strict=True)]
    for trainer in there:
        if trainer.link.take(cycle)[0] is not None:
            adopt(trainer, cycle)
            trainer.link.adopted()
    p.server.perform(fx.CloseRound(key))
    return told
