"""Drives a star averager the way a driver does, without lanes: each rank has a bulk lane (header, then blocks) and a
report lane (the admission), ordered within and unordered between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import attrs
import numpy as np

from paceline.backends.averager import RoundEvent
from paceline.backends.layout import FlatLayout, Values, narrow, widen
from paceline.backends.star import StarAverager
from paceline.core.effects import AdmitContribution, OpenRound
from paceline.core.events import RoundAborted, RoundReduced
from paceline.core.messages import BulkBlock, Contribution, RoundKey, RoundKind
from paceline.core.schema import EntryClass, Schema, SchemaEntry

KEY = RoundKey(generation=1, cycle=3, kind=RoundKind.PARAMS)
STATE = RoundKey(generation=1, cycle=0, kind=RoundKind.STATE)
LIMIT = 1000


def entry(name: str, cls: EntryClass, shape: tuple[int, ...], dtype: str = "float32") -> SchemaEntry:
    return SchemaEntry(name=name, cls=cls, shape=shape, dtype=dtype)


SCHEMA = Schema(
    entries=(
        entry("weight", EntryClass.PARAM, (3, 5)),
        entry("mean", EntryClass.BUFFER, (3,)),
        entry("half", EntryClass.PARAM, (7,), "bfloat16"),
        entry("fine", EntryClass.PARAM, (4,), "float64"),
        entry("small", EntryClass.PARAM, (), "float16"),
        entry("nothing", EntryClass.PARAM, (0, 3)),
        entry("frozen", EntryClass.FROZEN, (2,)),
        entry("count", EntryClass.LOCAL, (), "int64"),
    )
)
RIDING = FlatLayout.riding(SCHEMA)


def flat_of(schema: Schema, values: Values) -> bytes:
    """Riding bytes whose values, in order, are `values` rounded to each entry's dtype."""
    layout = FlatLayout.riding(schema)
    memory, taken = bytearray(layout.nbytes), 0
    for segment in layout.segments:
        size = {"float64": 8, "float32": 4}.get(segment.dtype, 2)
        count = segment.nbytes // size
        wide = values[taken : taken + count].astype(np.float64 if size == 8 else np.float32)
        narrow(wide, segment.dtype, memoryview(memory)[segment.offset : segment.offset + segment.nbytes])
        taken += count
    return bytes(memory)


def values_of(schema: Schema, flat: bytes | memoryview) -> Values:
    """All riding values as float64, in wire order."""
    parts = [
        widen(memoryview(flat)[segment.offset : segment.offset + segment.nbytes], segment.dtype).astype(np.float64)
        for segment in FlatLayout.riding(schema).segments
    ]
    return np.concatenate(parts)


def random_flat(seed: int, scale: float = 1.0) -> bytes:
    return flat_of(SCHEMA, np.random.default_rng(seed).normal(0, scale, 40))


def opened(
    members: Iterable[int], *, observers: Iterable[int] = (), key: RoundKey = KEY, attempt: int = 0, limit: int = LIMIT
) -> OpenRound:
    return OpenRound(key, attempt, tuple((r, 1, limit) for r in members), tuple((r, 1) for r in observers))


def header(
    schema: Schema, rank: int, steps: int, nbytes: int, *, key: RoundKey = KEY, attempt: int = 0, finite: bool = True
) -> Contribution:
    return Contribution(
        rank=rank, incarnation=1, generation=key.generation, cycle=key.cycle, attempt=attempt,
        schema_hash=schema.hash(), steps=steps, finite=finite, bytes=nbytes,
    )  # fmt: skip


@attrs.frozen
class Ship:
    """What a rank ships: `steps`, and flat bytes or None. `claim` replaces fields of its header."""

    steps: int
    flat: bytes | None = None
    admitted: int | None = None
    claim: Mapping[str, Any] = attrs.field(factory=dict)


class Cohort:
    """A round in progress: one deque of actions per lane."""

    def __init__(
        self, schema: Schema, averager: StarAverager, ships: Mapping[int, Ship], key: RoundKey = KEY, attempt: int = 0
    ) -> None:
        self.schema, self.averager, self.key, self.attempt = schema, averager, key, attempt
        self.events: list[RoundEvent] = []
        self.lanes: list[tuple[int, deque[Callable[[], None]]]] = []
        self.layout = averager.whole if key.kind == RoundKind.STATE else averager.riding
        for rank, ship in ships.items():
            self.lanes.append((rank, deque(self._bulk(rank, ship))))
            self.lanes.append((rank, deque([self._admission(rank, ship)])))

    def _admission(self, rank: int, ship: Ship) -> Callable[[], None]:
        steps = ship.steps if ship.admitted is None else ship.admitted
        order = AdmitContribution(self.key, self.attempt, rank, steps)
        return lambda: self.events.extend(self.averager.admit(order))

    def _bulk(self, rank: int, ship: Ship) -> Iterable[Callable[[], None]]:
        nbytes = 0 if ship.flat is None else len(ship.flat)
        head = header(self.schema, rank, ship.steps, nbytes, key=self.key, attempt=self.attempt)
        head = attrs.evolve(head, **ship.claim)
        yield lambda: self.events.extend(self.averager.on_header(rank, 1, self.attempt, head))
        if ship.flat is not None:
            for block, data in self.layout.cut(memoryview(ship.flat), self.key, self.attempt, rank, 1):
                yield partial(self.deliver, block, data)

    def deliver(self, block: BulkBlock, data: memoryview) -> None:
        self.averager.place(block)[:] = data
        self.events.extend(self.averager.on_block(block))

    def act(self, lane: int) -> bool:
        """One action of lane number `lane`; False if it has none, or has to wait for memory."""
        rank, actions = self.lanes[lane]
        is_bulk = lane % 2 == 0
        if not actions or (is_bulk and not self.averager.ready_for(rank)):
            return False
        actions.popleft()()
        return True

    def finish(self, order: Iterable[int] = ()) -> None:
        """Act in `order`, then round and round until nothing moves."""
        for lane in order:
            self.act(lane % len(self.lanes))
        while any([self.act(lane) for lane in range(len(self.lanes))]):
            pass

    def reduce(self, order: Iterable[int] = ()) -> RoundReduced | RoundAborted:
        self.finish(order)
        assert self.averager.collected
        return self.averager.reduce()


def average(
    schema: Schema, ships: Mapping[int, Ship], *, gamma: float = 1.0, order: Iterable[int] = ()
) -> tuple[StarAverager, RoundReduced]:
    """One whole cycle on a fresh averager."""
    averager = StarAverager(schema, gamma=gamma)
    averager.open(opened(ships))
    reduced = Cohort(schema, averager, ships).reduce(order)
    assert isinstance(reduced, RoundReduced)
    return averager, reduced


def received(averager: StarAverager, rank: int) -> bytes:
    """The bytes that a receiver of the open round is sent, put together."""
    return b"".join(bytes(data) for _, data in averager.scatter(rank)[1])
