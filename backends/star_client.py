"""The rank's half of the star averager, without its lanes: cut a copy into blocks, put a consensus together (W-11).

A driver sends the header and the blocks of `contribute_blocks`, then hands what comes back to a `ConsensusReceiver`.
The consensus grows in memory beside the live model and beside the consensus that was adopted last; it is staged only
when it is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from ..core.errors import LocalProtocolError, RemoteProtocolError
from ..core.messages import BulkBlock, Outcome, Refusal, RoundKey, RoundResult
from .layout import BLOCK_BYTES, FlatLayout

if TYPE_CHECKING:
    from .flat import Snapshot

__all__ = ["ConsensusReceiver", "Staged", "contribute_blocks"]


def contribute_blocks(
    snapshot: Snapshot, key: RoundKey, attempt: int, rank: int, incarnation: int
) -> Iterator[tuple[BulkBlock, memoryview]]:
    """Header and data of every block of a copy, in the only order the averager takes them in; no copy is made."""
    return snapshot.layout.cut(snapshot.memory, key, attempt, rank, incarnation)


@attrs.frozen(eq=False)
class Staged:
    """What a rank has received in a round: its outcome, the steps merged by all ranks together, and the consensus in
    the layout of the round, or None where the rank keeps what it has (R-8)."""

    outcome: Outcome
    total_steps: int
    refusal: Refusal | None
    flat: memoryview | None


class ConsensusReceiver:
    """Puts the result of one attempt together in `memory`, which is `layout.nbytes` long and belongs to the caller.

    Frames of another key, attempt or life are let through and forgotten (R-1). Raises `RemoteProtocolError` where the
    averager sends what does not tile the layout exactly once (N-26).
    """

    def __init__(
        self, layout: FlatLayout, memory: memoryview, key: RoundKey, attempt: int, rank: int, incarnation: int
    ) -> None:
        if len(memory) != layout.nbytes:
            raise LocalProtocolError(f"a consensus needs {layout.nbytes} bytes, the memory has {len(memory)}")
        self._layout = layout
        self._memory = memory
        self._stamp = (key.generation, key.cycle, attempt, rank, incarnation)
        self._key = key
        self._result: RoundResult | None = None
        self._arrived = 0

    def on_result(self, header: BulkBlock, result: RoundResult) -> bool:
        """The averager says what follows; `header` is the frame it came in. False if it is of another round."""
        if not self._mine(header):
            return False
        if self._result is not None:
            raise RemoteProtocolError("a second result for one attempt (R-1)")
        if result.bytes not in (0, self._layout.nbytes):
            raise RemoteProtocolError(f"a result of {result.bytes} bytes, the schema says {self._layout.nbytes} (N-25)")
        self._result = result
        return True

    def place(self, block: BulkBlock) -> memoryview:
        """Memory for the data of a block, `block.bytes` long."""
        if block.bytes > BLOCK_BYTES:
            raise RemoteProtocolError(f"a block of {block.bytes} bytes, the limit is {BLOCK_BYTES} (N-25)")
        if not self._mine(block) or block.key != self._key:
            return memoryview(bytearray(block.bytes))
        if self._result is None or self._result.bytes == 0 or self._arrived == len(self._layout.blocks):
            raise RemoteProtocolError("a block that no result has announced (N-26)")
        fault = self._layout.fault(self._layout.blocks[self._arrived], block)
        if fault is not None:
            raise RemoteProtocolError(fault)
        return self._memory[block.offset : block.offset + block.bytes]

    def on_block(self, block: BulkBlock) -> None:
        """The data of the block is in the memory that `place` named."""
        if self._mine(block) and block.key == self._key:
            self._arrived += 1

    @property
    def complete(self) -> bool:
        """Everything that was announced is here."""
        if self._result is None:
            return False
        return self._result.bytes == 0 or self._arrived == len(self._layout.blocks)

    def staged(self) -> Staged:
        """The whole result. Raises `LocalProtocolError` before `complete`: a part of a consensus is none (W-11)."""
        if self._result is None or not self.complete:
            raise LocalProtocolError(f"only {self._arrived} of {len(self._layout.blocks)} blocks are here; wait")
        result = self._result
        # Where nothing rides, a consensus has no bytes and is one all the same: a rank owes its name (C-18).
        empty = self._layout.nbytes == 0 and result.outcome != Outcome.UNREALIZED
        flat = self._memory if result.bytes or empty else None
        return Staged(result.outcome, result.total_steps, result.refusal, flat)

    def _mine(self, block: BulkBlock) -> bool:
        return self._stamp == (
            block.key.generation, block.key.cycle, block.attempt, block.rank, block.incarnation,
        )  # fmt: skip
