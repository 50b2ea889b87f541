"""The bulk lanes of a run in wire mode: each part is one frame or more of the production `BulkFramer` (N-26).

A part of a lane (`averager.py`) becomes bytes when its turn has come, which is in the order of the lane, so the numbers
of the frames are those of a writer that had sealed them as they were written. Its reader judges head, map and tag as a
channel does; what it has against one ends the link (N-4, N-23). A frame that was cut in two, or never ended, is nothing
to the reader until its tag is there, so where it was cut shows in no more than its time.

What announces a contribution or a result is a record in a frame of its own (R-4), by the codec of the averagers; the
values follow in frames of theirs. A part that stands for a whole model (`blocks_in`) has one for each block of it. The
data of a block of values are the eight bytes of the number that its part brings.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import messages as m
from .averager import BLOCK_BYTES, blocks_in

if TYPE_CHECKING:
    from ..wire import Role
    from .frames import Frames, Record
    from .process import Process
    from .setup import Setup

__all__ = ["carried", "frame_bytes"]

OF_STATE = frozenset({"state", "static"})
RECORDED = frozenset({"header", "result"})
"""Parts that begin with a record."""
Written = tuple[m.BulkBlock, bytes, "Record | None"]
"""The map of a frame, its data, and the record that they are."""


def carried(setup: Setup, process: Process, part: tuple[Any, ...], role: Role) -> str:
    """The part that `role` has written is read by the other end: what that has against it, "" if nothing."""
    if process.frames is None:
        return ""
    faults = (process.frames.carry(role, *written) for written in _frames(setup, process, process.frames, part))
    return next(filter(None, faults), "")


def frame_bytes(setup: Setup, process: Process, lane: str) -> int:
    """How many bytes the oldest frame of a lane has; 0 where there is none."""
    parts = getattr(process, lane)
    if process.frames is None or not parts:
        return 0
    if lane.startswith("bulk"):
        block, data, _ = next(_frames(setup, process, process.frames, parts[0]))
        return process.frames.size(block, data)
    return len(parts[0]) if isinstance(parts[0], bytes) else 0


def _frames(setup: Setup, process: Process, frames: Frames, part: tuple[Any, ...]) -> Iterator[Written]:
    """The frames of a part, in their order."""
    kind, cycle = part[0], part[1]
    values = m.RoundKind.STATE if kind in OF_STATE or cycle == 0 else m.RoundKind.PARAMS
    attempt = 0 if kind in OF_STATE else part[2]

    def block(held: m.RoundKind, number: int, nbytes: int) -> m.BulkBlock:
        return m.BulkBlock(
            key=m.RoundKey(generation=process.generation, cycle=cycle, kind=held), attempt=attempt, rank=process.rank,
            incarnation=process.incarnation, entry=number, offset=number * BLOCK_BYTES, bytes=nbytes,
        )  # fmt: skip

    if kind in RECORDED:
        record = _record(setup, process, part)
        data = frames.data_of(record)
        yield block(m.RoundKind.COUNTS, 0, len(data)), data, record
    value = struct.pack("<d", part[-1] if isinstance(part[-1], float) else 0.0)
    first = part[3] if kind == "block" else 0
    for number in range(first, first + (1 if kind in OF_STATE else blocks_in(part, setup.blocks))):
        yield block(values, number, BLOCK_BYTES), value, None


def _record(setup: Setup, process: Process, part: tuple[Any, ...]) -> Record:
    """What announces a contribution, or a result: with all that the averager and the rank go by."""
    kind, cycle, attempt, *said, value = part
    nbytes = 0 if value is None else BLOCK_BYTES * setup.blocks
    if kind == "result":
        outcome, total, refusal = said
        return m.RoundResult(outcome=outcome, total_steps=total, bytes=nbytes, refusal=refusal)
    steps, finite = said
    return m.Contribution(
        run_id=process.worker.settings.run_id, generation=process.generation, rank=process.rank,
        incarnation=process.incarnation, cycle=cycle, attempt=attempt, schema_hash=setup.schema.hash(), steps=steps,
        finite=finite, bytes=nbytes,
    )  # fmt: skip
