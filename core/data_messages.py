"""The headers of the data plane (N-26, R-4): what stands before the bytes of a tensor.
"""

from __future__ import annotations

import builtins

from .message_types import Message, Outcome, Refusal, RoundKey
from .values import value

__all__ = [
    "BulkBlock",
    "Contribution",
    "RoundResult",
]


@value(kw_only=True)
class BulkBlock:
    """Header of a bulk frame; `bytes` of raw little-endian data follow it in the same frame (N-26).

    `entry` is the index of the first schema entry the data belongs to, `offset` the byte offset in the flat layout
    of the round. A block of kind COUNTS carries an encoded `Contribution` (upward) or `RoundResult` (downward)."""

    key: RoundKey
    attempt: int
    rank: int
    incarnation: int
    entry: int
    offset: int
    bytes: int


@value(kw_only=True)
class Contribution(Message):
    """Header of a contribution (R-4); `bytes` is the length of the body that follows, 0 with 0 steps (R-9)."""

    cycle: int
    attempt: int
    schema_hash: builtins.bytes
    steps: int
    finite: bool
    bytes: int


@value(kw_only=True)
class RoundResult:
    """What the averager tells a receiver before the consensus: its outcome and the steps merged in total."""

    outcome: Outcome
    total_steps: int
    bytes: int
    refusal: Refusal | None = None
