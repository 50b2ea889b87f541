"""How far a rank's parameters are from the consensus, and the digest by which ranks compare bits.

One definition for every averager (R-16): over parameters only, with sums of squares in float64,

    pre_norm = ‖pre‖    post_norm = ‖post‖    divergence = ‖pre - post‖ / ‖post‖

where pre is the copy the rank shipped and post what it will adopt.
"""

from __future__ import annotations

import hashlib
import math

import attrs
import numpy as np

from ..core.errors import LocalProtocolError
from ..core.schema import DTYPE_SIZES, EntryClass
from .layout import FlatLayout, Values, widen

__all__ = ["DIGEST_BYTES", "Triple", "digest", "divergence"]

CHUNK = 1 << 16
"""Elements that exist as float64 at a time: half a megabyte, and no copy of the model."""
TINY_NORM = 1e-10
DIGEST_BYTES = 16


@attrs.frozen
class Triple:
    """Relative distance and both norms; the norms are None for a model without parameters (R-16)."""

    divergence: float
    pre_norm: float | None
    post_norm: float | None


def divergence(layout: FlatLayout, pre: memoryview, post: memoryview) -> Triple:
    """The triple of R-16 for two flat copies of one layout. The divergence is 0 where ‖post‖ <= 1e-10. Raises
    `LocalProtocolError` if a length is not the layout's."""
    if len(pre) != layout.nbytes or len(post) != layout.nbytes:
        raise LocalProtocolError(
            f"the copy shipped has {len(pre)} bytes and the consensus {len(post)}, the layout {layout.nbytes} (R-16)"
        )
    before = after = apart = 0.0
    for segment in layout.segments:
        if segment.cls != EntryClass.PARAM:
            continue
        step = CHUNK * DTYPE_SIZES[segment.dtype]
        end = segment.offset + segment.nbytes
        for start in range(segment.offset, end, step):
            part = slice(start, min(start + step, end))
            mine = widen(pre[part], segment.dtype).astype(np.float64)
            theirs = widen(post[part], segment.dtype).astype(np.float64)
            before += _squares(mine)
            after += _squares(theirs)
            apart += _squares(mine - theirs)
    if not layout.params_nbytes:
        return Triple(0.0, None, None)
    post_norm = math.sqrt(after)
    return Triple(math.sqrt(apart) / post_norm if post_norm > TINY_NORM else 0.0, math.sqrt(before), post_norm)


def digest(flat: memoryview) -> bytes:
    """16 bytes that name the bits of a consensus as delivered: the first half of its SHA-256 (C-18)."""
    return hashlib.sha256(flat).digest()[:DIGEST_BYTES]


def _squares(values: Values) -> float:
    # Pairwise and on one thread: the same value on every call, whatever a linear algebra library would do.
    return float(np.sum(values * values))
