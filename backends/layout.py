"""Where each entry of a schema lies in flat memory, and how flat memory is read as numbers. No torch here.

The wire layout (R-21) is plain: entries one after the other in the order given, each row-major and little-endian,
nothing between them. Two views cut it up for other needs:

- a `Segment` is a run of neighbours with one dtype and one class. A model of ten thousand small tensors is then a
  handful of long vectors, and a sum over it a handful of numpy calls.
- a `Block` is what travels in one bulk frame: at most `BLOCK_BYTES`, cut between two elements, never inside one. Both
  ends compute the same blocks from the schema, so "the blocks tile the layout exactly once" (N-26) is the same
  as "block after block, each equal to the one computed here".

Nothing pads the layout, so a float32 entry behind an odd number of bfloat16 values is not aligned. numpy copes with
that; code that does not must copy first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from ..core.errors import LocalProtocolError
from ..core.messages import BulkBlock, RoundKey, RoundKind
from ..core.schema import DTYPE_SIZES, FLOATING, EntryClass, Schema, SchemaEntry

__all__ = [
    "BLOCK_BYTES",
    "BUFFERS_ALIVE",
    "Block",
    "DoubleBuffer",
    "Field",
    "FlatLayout",
    "Piece",
    "Segment",
    "Values",
    "all_finite",
    "allocate",
    "block_finite",
    "floating",
    "header_block",
    "narrow",
    "widen",
]  # fmt: skip

BLOCK_BYTES = 4 << 20
"""Most bytes of a block: big enough for TCP to run at speed, small enough to stay near the cache while it is added."""
BUFFERS_ALIVE = 2
"""Flat copies that may exist per direction (R-10)."""
ALIGNMENT = 64

Values = npt.NDArray[Any]


def allocate(nbytes: int) -> memoryview:
    """Writable host memory of `nbytes` bytes, format 'B', aligned to a cache line. Its pages are touched here, once,
    so that no copy later waits for the kernel to find them."""
    raw = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    raw.fill(0)
    return raw.data[start : start + nbytes]


def floating(dtype: str) -> bool:
    """Whether a schema dtype has a fraction: only such entries can be averaged."""
    return dtype in FLOATING


def widen(data: memoryview, dtype: str) -> Values:
    """Flat bytes of a floating dtype as an array to compute with: float64 stays, the rest becomes float32 (R-6). No
    copy for float32 and float64. Widening changes no value."""
    if dtype == "bfloat16":
        upper = np.frombuffer(data, dtype="<u2").astype(np.uint32)
        return np.left_shift(upper, 16, out=upper).view(np.float32)
    if dtype == "float16":
        return np.frombuffer(data, dtype="<f2").astype(np.float32)
    return np.frombuffer(data, dtype="<f8" if dtype == "float64" else "<f4")


def narrow(values: Values, dtype: str, into: memoryview) -> None:
    """The one cast back to the entry's dtype (R-6): to nearest, ties to even; what is too large becomes infinite."""
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        odd = (bits >> 16) & 1
        rounded = (bits + (odd + 0x7FFF)) >> 16
        # Rounding could carry a NaN's payload over into its exponent and make an infinity of it.
        rounded[np.isnan(values)] = 0x7FC0
        np.copyto(np.frombuffer(into, dtype="<u2"), rounded, casting="unsafe")
        return
    target = {"float64": "<f8", "float32": "<f4", "float16": "<f2"}[dtype]
    with np.errstate(over="ignore"):
        np.copyto(np.frombuffer(into, dtype=target), values, casting="same_kind")


def all_finite(data: memoryview, dtype: str) -> bool:
    """Whether no value is NaN or infinite. `dtype` must be a floating one."""
    if dtype == "bfloat16":
        bits = np.frombuffer(data, dtype="<u2")
        return not bool(np.any((bits & 0x7F80) == 0x7F80))
    numbers = np.frombuffer(data, dtype={"float64": "<f8", "float32": "<f4", "float16": "<f2"}[dtype])
    return bool(np.isfinite(numbers).all())


@attrs.frozen
class Field:
    """Where one entry lies: `offset` and `nbytes` in bytes of the layout."""

    entry: SchemaEntry
    offset: int

    @property
    def nbytes(self) -> int:
        return self.entry.nbytes


@attrs.frozen
class Segment:
    """A run of neighbouring entries with one dtype and one class; bytes of the layout."""

    dtype: str
    cls: EntryClass
    offset: int
    nbytes: int


@attrs.frozen
class Piece:
    """The part of a segment that lies in one block: bytes `start` to `stop` of the block, elements `first` to `last`
    of segment number `segment`."""

    segment: int
    dtype: str
    cls: EntryClass
    start: int
    stop: int
    first: int
    last: int


@attrs.frozen
class Block:
    """Block `number` of a layout: `nbytes` bytes from byte `offset`; `entry` is the index of the first entry in it."""

    number: int
    entry: int
    offset: int
    nbytes: int
    pieces: tuple[Piece, ...]


class FlatLayout:
    """The wire layout of a list of entries (R-21).

    Attributes: `entries` in wire order, `fields` (one per entry), `segments`, `blocks`, `nbytes` in total,
    `params_nbytes` the length of the parameters at its head (0 for a layout that does not begin with any).
    """

    def __init__(self, entries: Sequence[SchemaEntry]) -> None:
        self.entries = tuple(entries)
        fields: list[Field] = []
        offset = 0
        for entry in self.entries:
            fields.append(Field(entry, offset))
            offset += entry.nbytes
        self.fields = tuple(fields)
        self.nbytes = offset
        self.segments = _segments(self.fields)
        self.params_nbytes = sum(s.nbytes for s in self.segments if s.cls == EntryClass.PARAM)
        self._occupied = [(field.offset, index) for index, field in enumerate(self.fields) if field.nbytes]
        self.blocks = tuple(self._cut())

    @classmethod
    def riding(cls, schema: Schema) -> FlatLayout:
        """What a contribution and a consensus hold: parameters, then floating buffers (R-3)."""
        return cls(schema.riding())

    @classmethod
    def whole(cls, schema: Schema) -> FlatLayout:
        """What a full transfer of the state holds (R-20); it begins with the riding layout, byte for byte."""
        return cls(schema.whole())

    @classmethod
    def static(cls, schema: Schema) -> FlatLayout:
        """What a joiner gets from a donor: the frozen and local entries that no consensus holds (R-20, M-24)."""
        return cls(schema.static())

    def field(self, name: str) -> Field:
        """Where the entry `name` lies; KeyError if it has no place here."""
        for field in self.fields:
            if field.entry.name == name:
                return field
        raise KeyError(name)

    def cut(
        self, flat: memoryview, key: RoundKey, attempt: int, rank: int, incarnation: int
    ) -> Iterator[tuple[BulkBlock, memoryview]]:
        """Flat bytes as bulk frames: header and data of each block, in order, without a copy (N-26). `rank` and
        `incarnation` are those of the rank at the far or near end, never the coordinator's."""
        for block in self.blocks:
            header = BulkBlock(
                key=key, attempt=attempt, rank=rank, incarnation=incarnation,
                entry=block.entry, offset=block.offset, bytes=block.nbytes,
            )  # fmt: skip
            yield header, flat[block.offset : block.offset + block.nbytes]

    def fault(self, block: Block, header: BulkBlock) -> str | None:
        """Why a header is not the one of `block`, in words, or None if it is: together the blocks tile the layout
        exactly once (N-26)."""
        if (header.entry, header.offset, header.bytes) == (block.entry, block.offset, block.nbytes):
            return None
        return (
            f"block {block.number} must be entry {block.entry}, offset {block.offset}, {block.nbytes} bytes, "
            f"not entry {header.entry}, offset {header.offset}, {header.bytes} bytes (N-26)"
        )

    def finite(self, flat: memoryview) -> bool:
        """Whether every riding value in `flat` is finite (R-4). Frozen and local entries may hold anything: they are
        never summed, and a mask of minus infinities is a usual one."""
        for block in self.blocks:
            data = flat[block.offset : block.offset + block.nbytes]
            if not block_finite(block, data):
                return False
        return True

    def _cut(self) -> Iterator[Block]:
        pieces: list[Piece] = []
        number = start = filled = 0
        for index, segment in enumerate(self.segments):
            size = DTYPE_SIZES[segment.dtype]
            total, done = segment.nbytes // size, 0
            while done < total:
                take = min(total - done, (BLOCK_BYTES - filled) // size)
                if take == 0:
                    yield self._block(number, start, filled, pieces)
                    number, start, filled, pieces = number + 1, start + filled, 0, []
                    continue
                end = filled + take * size
                pieces.append(Piece(index, segment.dtype, segment.cls, filled, end, done, done + take))
                filled, done = end, done + take
        if filled:
            yield self._block(number, start, filled, pieces)

    def _block(self, number: int, offset: int, nbytes: int, pieces: list[Piece]) -> Block:
        entry = self._occupied[bisect_right(self._occupied, (offset, len(self.entries))) - 1][1]
        return Block(number, entry, offset, nbytes, tuple(pieces))


def _segments(fields: Sequence[Field]) -> tuple[Segment, ...]:
    merged: list[Segment] = []
    for field in fields:
        if not field.nbytes:
            continue
        last = merged[-1] if merged else None
        if last is not None and (last.dtype, last.cls) == (field.entry.dtype, field.entry.cls):
            merged[-1] = attrs.evolve(last, nbytes=last.nbytes + field.nbytes)
        else:
            merged.append(Segment(field.entry.dtype, field.entry.cls, field.offset, field.nbytes))
    return tuple(merged)


def block_finite(block: Block, data: memoryview) -> bool:
    """Whether every riding value of one block is finite; `data` is the block's bytes."""
    return all(
        all_finite(data[piece.start : piece.stop], piece.dtype)
        for piece in block.pieces
        if piece.cls in (EntryClass.PARAM, EntryClass.BUFFER)
    )


def header_block(key: RoundKey, attempt: int, rank: int, incarnation: int, nbytes: int) -> BulkBlock:
    """The bulk header of an encoded `Contribution` or `RoundResult` of `nbytes` bytes: kind COUNTS, no entry."""
    counts = attrs.evolve(key, kind=RoundKind.COUNTS)
    return BulkBlock(key=counts, attempt=attempt, rank=rank, incarnation=incarnation, entry=0, offset=0, bytes=nbytes)


class DoubleBuffer:
    """The last consensus and room for the next one (R-10).

    The kept one is never written: a new one grows beside it and replaces it whole. A reader that takes its time (a
    writer to disk, K-7) holds its memory by `reading()`; if the room for the next one is still being read, fresh
    memory takes its place, and the old one goes when its reader is done.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._kept: memoryview | None = None
        self._spare: memoryview | None = None
        self._fresh = False
        self._readers: list[memoryview] = []
        # A reader is in a thread of its own; it must not pick up memory that is being given away at that instant.
        self._lock = Lock()

    @property
    def kept(self) -> memoryview | None:
        """The last consensus, or None before the first one."""
        return self._kept

    def spare(self) -> memoryview:
        """Memory for the next one; what it held is void."""
        with self._lock:
            held = any(reader is self._spare for reader in self._readers)
            if self._spare is None or held:
                self._spare = allocate(self.nbytes)
            self._fresh = True
            return self._spare

    def keep(self) -> None:
        """What lies in the spare memory is the last consensus from now on."""
        with self._lock:
            if not self._fresh:
                raise LocalProtocolError("there is no new consensus to keep: nothing was written beside the last one")
            self._kept, self._spare, self._fresh = self._spare, self._kept, False

    def revert(self) -> None:
        """The consensus kept last never became one: the one before it, or none, is the last consensus again."""
        with self._lock:
            self._kept, self._spare, self._fresh = self._spare, self._kept, False

    @contextmanager
    def reading(self) -> Iterator[memoryview]:
        """The last consensus, kept from being overwritten for as long as the block lasts."""
        with self._lock:
            if self._kept is None:
                raise LocalProtocolError("there is no consensus yet")
            held = self._kept
            self._readers.append(held)
        try:
            yield held
        finally:
            with self._lock:
                # By identity: comparing memoryviews compares their bytes.
                self._readers.pop(next(i for i, reader in enumerate(self._readers) if reader is held))
