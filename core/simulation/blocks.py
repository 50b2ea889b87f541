"""The bulk lanes of a run in wire mode: each part is a frame of the production `BulkFramer` (N-26).

A part of a lane (`averager.py`) becomes bytes when its turn has come, which is in the order of the lane, so the numbers
of the frames are those of a writer that had sealed them as they were written. Its reader judges head, map and tag as a
channel does; what it has against one ends the link (N-4, N-23). A frame that was cut in two, or never ended, is nothing
to the reader until its tag is there, so where it was cut shows in no more than its time.

The data of a frame are the eight bytes of the number that a part brings: the records of a contribution and of a result
(R-4) have a codec of the averagers, which is not simulated.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ..messages import BulkBlock, RoundKey, RoundKind
from .averager import BLOCK_BYTES

if TYPE_CHECKING:
    from ..wire import Role
    from .process import Process

__all__ = ["carried", "frame_bytes"]

OF_STATE = frozenset({"state", "static"})


def carried(process: Process, part: tuple[Any, ...], role: Role) -> str:
    """The part that `role` has written is read by the other end: what that has against it, "" if nothing."""
    return "" if process.frames is None else process.frames.carry(role, *_block(process, part))


def frame_bytes(process: Process, lane: str) -> int:
    """How many bytes the oldest frame of a lane has; 0 where there is none."""
    parts = getattr(process, lane)
    if process.frames is None or not parts:
        return 0
    if lane.startswith("bulk"):
        return process.frames.size(*_block(process, parts[0]))
    return len(parts[0]) if isinstance(parts[0], bytes) else 0


def _block(process: Process, part: tuple[Any, ...]) -> tuple[BulkBlock, bytes]:
    """The map of a part, and its data."""
    kind, cycle = part[0], part[1]
    number = part[3] if kind == "block" else 0
    value = None if kind == "block" else part[-1]
    key = RoundKey(generation=process.generation, cycle=cycle,
                   kind=RoundKind.STATE if kind in OF_STATE else RoundKind.PARAMS)  # fmt: skip
    block = BulkBlock(
        key=key, attempt=0 if kind in OF_STATE else part[2], rank=process.rank, incarnation=process.incarnation,
        entry=number, offset=BLOCK_BYTES * number, bytes=BLOCK_BYTES,
    )  # fmt: skip
    return block, struct.pack("<d", 0.0 if value is None else value)
