"""What the consensus must be, to the bit: R-5 to R-7 written down once more, entry by entry, not for speed.

Nothing of this is shared with the averagers but the reading and writing of dtypes. A zero has no sign here: whether a
sum begins with 0 or with the first product is nobody's business.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...core.round import mass
from ...core.schema import EntryClass, Schema
from ..layout import FlatLayout, Values, narrow, widen

__all__ = ["consensus_of", "same"]


def consensus_of(schema: Schema, contributions: Mapping[int, tuple[int, bytes]], gamma: float = 1.0) -> bytes:
    """The consensus of accepted contributions, (steps ≥ 1, riding bytes) by rank; there is at least one."""
    layout = FlatLayout.riding(schema)
    made = bytearray(layout.nbytes)
    for field in layout.fields:
        where = slice(field.offset, field.offset + field.nbytes)
        weigh = field.entry.cls == EntryClass.PARAM
        total: Values | None = None
        masses = 0.0
        for rank in sorted(contributions):
            steps, flat = contributions[rank]
            weight = mass(steps, gamma) if weigh else 1.0
            values = widen(memoryview(flat)[where], field.entry.dtype)
            wide = values.dtype.type
            product = values * wide(weight)
            total = product if total is None else total + product
            masses += weight
        if total is not None and field.nbytes:
            narrow(total / total.dtype.type(masses), field.entry.dtype, memoryview(made)[where])
    return bytes(made)


def same(schema: Schema, one: bytes | memoryview, other: bytes | memoryview) -> str:
    """Empty if both hold the same bits but for the sign of zeros; else where they first differ, in words."""
    if len(one) != len(other):
        return f"{len(one)} bytes where {len(other)} are due"
    for field in FlatLayout.riding(schema).fields:
        where = slice(field.offset, field.offset + field.nbytes)
        mine, due = (widen(memoryview(flat)[where], field.entry.dtype) + 0.0 for flat in (one, other))
        differs = np.flatnonzero(mine.view(np.uint8).reshape(mine.size, -1) != due.view(np.uint8).reshape(due.size, -1)
                                 ) if mine.size else np.empty(0, int)  # fmt: skip
        if differs.size:
            at = int(differs[0]) // mine.dtype.itemsize
            return f"{field.entry.name}[{at}] is {mine[at]!r} where {due[at]!r} is due"
    return ""
