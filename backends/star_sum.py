"""Weigh, sum, divide once: the arithmetic of a consensus (R-5 to R-7), blind to ranks, attempts and transport.

    consensus = (Σ m_r * T_r) / (Σ m_r)

`m_r` is the mass of a contribution: steps ** gamma for parameters, 1 or 0 for floating buffers. Products and sums run
in float32, float64 for float64 entries. Masses are rounded to float32 once, their sum is taken in float64 and rounded
once. There is one division and one cast back. The caller adds contributions in ascending rank order; the order of the
blocks within a contribution changes no bit, since no two blocks share an element.
"""

from __future__ import annotations

import numpy as np

from ..core.round import float32
from ..core.schema import EntryClass
from .layout import BLOCK_BYTES, Block, FlatLayout, Values, all_finite, narrow, widen

__all__ = ["WeightedSum"]

CHUNK = BLOCK_BYTES // 4
"""Elements divided and cast at a time, so that no temporary is as large as the model."""


class WeightedSum:
    """The sums of one layout, one vector per segment. Allocated once and reused for the life of the averager."""

    def __init__(self, layout: FlatLayout) -> None:
        self._layout = layout
        self._sums: list[Values] = []
        # A block of two-byte values widens to float32, so it has the most products.
        self._scratch: dict[str, Values] = {
            "float32": np.empty(BLOCK_BYTES // 2, np.float32),
            "float64": np.empty(BLOCK_BYTES // 8, np.float64),
        }

    def clear(self) -> None:
        """Forget whatever was added."""
        if not self._sums:
            for segment in self._layout.segments:
                wide = np.float64 if segment.dtype == "float64" else np.float32
                size = 8 if segment.dtype == "float64" else 2 if segment.dtype in ("float16", "bfloat16") else 4
                self._sums.append(np.empty(segment.nbytes // size, wide))
        for vector in self._sums:
            vector.fill(0)

    def add(self, block: Block, data: memoryview, mass: float) -> None:
        """Add `mass` times the parameters and 1 times the buffers of a block; `data` is the block's bytes."""
        for piece in block.pieces:
            values = widen(data[piece.start : piece.stop], piece.dtype)
            target = self._sums[piece.segment][piece.first : piece.last]
            with np.errstate(over="ignore", invalid="ignore"):
                if piece.cls == EntryClass.PARAM and mass != 1.0:
                    product = self._scratch[target.dtype.name][: values.size]
                    np.multiply(values, target.dtype.type(mass), out=product)
                    values = product
                np.add(target, values, out=target)

    def divide(self, divisor: float, movers: int, into: memoryview) -> bool:
        """Write the consensus to `into` in the wire layout; False if a value of it is not finite (R-6).

        `divisor` is the float64 sum of the masses; it is rounded once, to the precision of the sum it divides.
        `movers` divides the buffers. Both must be positive.
        """
        finite = True
        for segment, vector in zip(self._layout.segments, self._sums, strict=True):
            amount = divisor if segment.cls == EntryClass.PARAM else float(movers)
            if vector.dtype == np.float32:
                amount = float32(amount)
            size = segment.nbytes // vector.size
            for first in range(0, vector.size, CHUNK):
                part = vector[first : first + CHUNK]
                start = segment.offset + first * size
                target = into[start : start + part.size * size]
                with np.errstate(over="ignore", invalid="ignore"):
                    np.divide(part, vector.dtype.type(amount), out=part)
                narrow(part, segment.dtype, target)
                finite = finite and all_finite(target, segment.dtype)
        return finite
