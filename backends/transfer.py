"""The static part of the state on its way to a joiner: from a donor, through the coordinator's process (R-20, M-24).

A consensus holds what rides in rounds. A rank that joins late gets that like everyone; its frozen and local entries
come from one donor, as a transfer: blocks of the static layout, in order, under a key of their own. `Assembly` puts
them together, at the coordinator and at the joiner alike. `Relay` is the coordinator's half: it takes blocks only of
the donor that was asked, and gives the whole to the joiner that was named, and to nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ..core.effects import CloseRound, OpenRound
from ..core.errors import RemoteProtocolError
from ..core.messages import BulkBlock, RoundKey
from .layout import BLOCK_BYTES, FlatLayout, allocate

__all__ = ["Assembly", "Passage", "Relay", "discarded"]


@attrs.define(eq=False)
class Assembly:
    """One transfer being put together."""

    layout: FlatLayout
    key: RoundKey
    memory: memoryview
    arrived: int = 0

    @classmethod
    def begin(cls, layout: FlatLayout, key: RoundKey) -> Assembly:
        """Nothing is here yet."""
        return cls(layout, key, allocate(layout.nbytes))

    @property
    def complete(self) -> bool:
        """All blocks are here."""
        return self.arrived == len(self.layout.blocks)

    def place(self, block: BulkBlock) -> memoryview:
        """Memory for the next block. Raises `RemoteProtocolError` for one that does not continue the rest (N-26)."""
        if self.complete:
            raise RemoteProtocolError("a block behind the end of a transfer (N-26)", rank=block.rank)
        fault = self.layout.fault(self.layout.blocks[self.arrived], block)
        if fault is not None:
            raise RemoteProtocolError(fault, rank=block.rank)
        return self.memory[block.offset : block.offset + block.bytes]


def discarded(block: BulkBlock) -> memoryview:
    """Memory for a block that nobody wants any more; it must leave the lane all the same (R-1)."""
    if block.bytes > BLOCK_BYTES:
        raise RemoteProtocolError(f"a block of {block.bytes} bytes, the limit is {BLOCK_BYTES} (N-25)", rank=block.rank)
    return memoryview(bytearray(block.bytes))


@attrs.define(eq=False)
class Passage:
    """A transfer that was ordered: who gives, who gets, each as (rank, incarnation); nobody gets what the averager
    itself asked for (M-44)."""

    assembly: Assembly
    donor: tuple[int, int]
    joiner: tuple[int, int] | None
    handed: bool = False

    def blocks(self) -> Iterator[tuple[BulkBlock, memoryview]]:
        """What the joiner is sent."""
        assembly = self.assembly
        assert self.joiner is not None, "what the averager asked for goes to no rank"
        return assembly.layout.cut(assembly.memory, assembly.key, 0, *self.joiner)


class Relay:
    """Open transfers at the coordinator, by key. The machine opens and closes them, so there are never more than
    joiners."""

    def __init__(self) -> None:
        self._open: dict[RoundKey, Passage] = {}

    def perform(self, effect: OpenRound | CloseRound, layout: FlatLayout) -> None:
        """The machine orders a transfer, or needs it no more."""
        if isinstance(effect, OpenRound):
            donor, joiner = effect.members[0][:2], next(iter(effect.observers), None)
            self._open[effect.key] = Passage(Assembly.begin(layout, effect.key), donor, joiner)
        else:
            self._open.pop(effect.key, None)

    def wanted(self, passage: Passage) -> bool:
        """Whether the joiner still waits for it."""
        return self._open.get(passage.assembly.key) is passage

    def place(self, block: BulkBlock) -> memoryview:
        """Memory for a block that came on the lane of `block.rank`."""
        passage = self._of(block)
        return discarded(block) if passage is None else passage.assembly.place(block)

    def on_block(self, block: BulkBlock) -> None:
        """The data of the block is there."""
        passage = self._of(block)
        if passage is not None:
            passage.assembly.arrived += 1

    def take_complete(self) -> list[Passage]:
        """Transfers that can go to their joiner now, each once."""
        ready = [p for p in self._open.values() if p.assembly.complete and not p.handed]
        for passage in ready:
            passage.handed = True
        return ready

    def _of(self, block: BulkBlock) -> Passage | None:
        """A donor that was replaced, or somebody who was never asked, has no passage."""
        passage = self._open.get(block.key)
        if passage is None or passage.donor != (block.rank, block.incarnation) or passage.assembly.complete:
            return None
        return passage
