"""A cohort without lanes: drives an averager the way a driver does, in any order that real lanes could bring.

Each rank has a bulk lane (header, then blocks) and a report lane (the admission), ordered within and unordered between
them. A lane whose rank has no room (`ready_for`) waits, as the flow control of a transport makes it wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs
import numpy as np

from ...core.conformance import ensure
from ...core.effects import AdmitContribution, OpenRound
from ...core.events import RoundAborted, RoundReduced
from ...core.messages import BulkBlock, Contribution, RoundKey, RoundKind
from ...core.schema import DTYPE_SIZES, EntryClass, Schema, SchemaEntry
from .. import layout
from ..averager import Averager, RoundEvent
from ..layout import FlatLayout, Values, narrow, widen

__all__ = ["KEY", "LIMIT", "SCHEMA", "STATE", "Cohort", "Ship", "entry", "flat_of", "header", "opened", "put",
           "random_flat", "received", "several_blocks", "values_of"]  # fmt: skip

KEY = RoundKey(generation=1, cycle=3, kind=RoundKind.PARAMS)
"""The round that most checks are about."""
STATE = RoundKey(generation=1, cycle=0, kind=RoundKind.STATE)
LIMIT = 1000
"""Most steps that a rank may claim in it (R-4)."""


def entry(
    name: str, cls: EntryClass, shape: tuple[int, ...], dtype: str = "float32", aliases: tuple[str, ...] = ()
) -> SchemaEntry:
    """An entry of a schema."""
    return SchemaEntry(name=name, cls=cls, shape=shape, dtype=dtype, aliases=aliases)


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
"""A model with an entry of each class and floating dtype, a scalar, an empty one, and entries that are not aligned
because an odd number of two-byte values lies in front of them."""


def several_blocks() -> Schema:
    """A model of three blocks, the last one short: what is in the sum and what is on its way can differ."""
    return Schema(entries=(entry("w", EntryClass.PARAM, (layout.BLOCK_BYTES // 2 + 1,)),
                           entry("m", EntryClass.BUFFER, (3,))))  # fmt: skip


def flat_of(schema: Schema, values: Values) -> bytes:
    """Riding bytes whose values, in order, are `values` rounded to each entry's dtype."""
    riding = FlatLayout.riding(schema)
    memory, taken = bytearray(riding.nbytes), 0
    for segment in riding.segments:
        size = DTYPE_SIZES[segment.dtype]
        count = segment.nbytes // size
        wide = values[taken : taken + count].astype(np.float64 if size == 8 else np.float32)
        narrow(wide, segment.dtype, memoryview(memory)[segment.offset : segment.offset + segment.nbytes])
        taken += count
    return bytes(memory)


def put(number: float, dtype: str, at: memoryview) -> None:
    """One value of that dtype where the memory begins, whatever is behind it."""
    narrow(np.array([number], "<f8" if dtype == "float64" else "<f4"), dtype, at[: DTYPE_SIZES[dtype]])


def values_of(schema: Schema, flat: bytes | bytearray | memoryview) -> Values:
    """All riding values as float64, in wire order."""
    parts = [
        widen(memoryview(flat)[segment.offset : segment.offset + segment.nbytes], segment.dtype).astype(np.float64)
        for segment in FlatLayout.riding(schema).segments
    ]
    return np.concatenate(parts)


def random_flat(seed: int, scale: float = 1.0, schema: Schema = SCHEMA) -> bytes:
    """Normally distributed riding values, the same for the same seed everywhere."""
    size = sum(segment.nbytes // DTYPE_SIZES[segment.dtype] for segment in FlatLayout.riding(schema).segments)
    return flat_of(schema, np.random.default_rng(seed).normal(0, scale, max(size, 40)))


def opened(members: Iterable[int], *, observers: Iterable[int] = (), key: RoundKey = KEY, attempt: int = 0,
           limit: int = LIMIT, life: int = 1) -> OpenRound:  # fmt: skip
    """The order that opens a round, for incarnation `life` of everybody in it."""
    return OpenRound(key, attempt, tuple((r, life, limit) for r in members), tuple((r, life) for r in observers))


def header(schema: Schema, rank: int, steps: int, nbytes: int, *, key: RoundKey = KEY, attempt: int = 0,
           finite: bool = True, life: int = 1) -> Contribution:  # fmt: skip
    """The header of a contribution."""
    return Contribution(
        rank=rank, incarnation=life, generation=key.generation, cycle=key.cycle, attempt=attempt,
        schema_hash=schema.hash(), steps=steps, finite=finite, bytes=nbytes,
    )  # fmt: skip


@attrs.frozen
class Ship:
    """What a rank ships: `steps`, and flat bytes or None. `claim` replaces fields of its header, `admitted` the steps
    that its report lane names."""

    steps: int
    flat: bytes | bytearray | None = None
    admitted: int | None = None
    claim: Mapping[str, Any] = attrs.field(factory=dict)


class Cohort:
    """A round in progress: lane 2 * i is the bulk lane of the i-th rank of `ships`, lane 2 * i + 1 its report lane.
    `life` is the incarnation of every rank."""

    def __init__(self, schema: Schema, averager: Averager, ships: Mapping[int, Ship], key: RoundKey = KEY,
                 attempt: int = 0, *, life: int = 1) -> None:  # fmt: skip
        self.schema, self.averager, self.key, self.attempt, self.life = schema, averager, key, attempt, life
        self.events: list[RoundEvent] = []
        self.lanes: list[tuple[int, deque[Callable[[], None]]]] = []
        self.layout = FlatLayout.whole(schema) if key.kind == RoundKind.STATE else FlatLayout.riding(schema)
        for rank, ship in ships.items():
            self.lanes.append((rank, deque(self._bulk(rank, ship))))
            self.lanes.append((rank, deque([self._admission(rank, ship)])))

    def _admission(self, rank: int, ship: Ship) -> Callable[[], None]:
        steps = ship.steps if ship.admitted is None else ship.admitted
        order = AdmitContribution(self.key, self.attempt, rank, steps)
        return lambda: self.events.extend(self.averager.admit(order))

    def _bulk(self, rank: int, ship: Ship) -> Iterator[Callable[[], None]]:
        nbytes = 0 if ship.flat is None else len(ship.flat)
        head = header(self.schema, rank, ship.steps, nbytes, key=self.key, attempt=self.attempt, life=self.life)
        head = attrs.evolve(head, **ship.claim)
        yield lambda: self.events.extend(self.averager.on_header(rank, self.life, self.attempt, head))
        if ship.flat is not None:
            for block, data in self.layout.cut(memoryview(ship.flat), self.key, self.attempt, rank, self.life):
                yield partial(self.deliver, block, data)

    def deliver(self, block: BulkBlock, data: memoryview) -> None:
        """The data of a block arrives in the memory that the averager names."""
        memory = self.averager.place(block)
        ensure(len(memory) == block.bytes, f"place gave {len(memory)} bytes for a block of {block.bytes}")
        plain = memory.format == "B" and memory.contiguous and not memory.readonly
        ensure(plain, f"place gave memory in which no transport can put bytes: format {memory.format!r}, contiguous "
               f"{memory.contiguous}, readonly {memory.readonly}")  # fmt: skip
        memory[:] = data
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

    def silence(self, rank: int) -> None:
        """The lanes of a rank end where they are."""
        for owner, actions in self.lanes:
            if owner == rank:
                actions.clear()

    @property
    def aborted(self) -> RoundAborted | None:
        """The abort that the averager announced, if it did."""
        return next((event for event in self.events if isinstance(event, RoundAborted)), None)

    def reduce(self, order: Iterable[int] = ()) -> RoundReduced | RoundAborted:
        """Everything arrives, then the consensus is made."""
        self.finish(order)
        stuck = [rank for rank, actions in self.lanes if actions]
        ensure(self.averager.collected, f"all lanes are through (but for those of {stuck}) and the round is not "
               "collected: the cohort would wait for ever")  # fmt: skip
        return self.averager.reduce()


def received(averager: Averager, rank: int) -> bytes:
    """The bytes that a receiver of the open round is sent, put together."""
    return b"".join(bytes(data) for _, data in averager.scatter(rank)[1])
