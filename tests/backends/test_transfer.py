"""The static part of the state on its way to a joiner, block by block (R-20, M-24)."""

from __future__ import annotations

import attrs
import pytest

from paceline.backends.layout import BLOCK_BYTES, FlatLayout
from paceline.backends.transfer import Assembly, Relay
from paceline.core.effects import OpenRound
from paceline.core.errors import RemoteProtocolError
from paceline.core.messages import transfer_key
from paceline.core.schema import EntryClass, Schema, SchemaEntry

LAYOUT = FlatLayout.static(Schema(entries=(SchemaEntry(name="f", cls=EntryClass.FROZEN, shape=(8,), dtype="float32"),)))
KEY = transfer_key(1, 5)
DATA = memoryview(bytes(range(LAYOUT.nbytes)))
[(BLOCK, _)] = LAYOUT.cut(DATA, KEY, 0, 1, 3)
"""The one block of the donor, rank 1 in its third life."""


def relay() -> Relay:
    """One transfer was ordered, from rank 1 to rank 2."""
    made = Relay()
    made.perform(OpenRound(KEY, 0, ((1, 3, 0),), ((2, 1),)), LAYOUT)
    return made


def test_what_the_donor_gives_is_handed_on_once() -> None:
    """R-20: whole, to the joiner that was named."""
    made = relay()
    made.place(BLOCK)[:] = DATA
    made.on_block(BLOCK)
    (passage,) = made.take_complete()
    assert (passage.joiner, bytes(passage.assembly.memory)) == ((2, 1), bytes(DATA))
    assert made.take_complete() == []


@pytest.mark.parametrize("other", [{"rank": 0}, {"incarnation": 2}, {"key": transfer_key(1, 6)}], ids=str)
def test_what_nobody_asked_for_is_thrown_away(other: dict[str, object]) -> None:
    """M-24, R-1: of another rank or life than the donor, or of a transfer that is not open."""
    made = relay()
    block = attrs.evolve(BLOCK, **other)
    made.place(block)[:] = DATA
    made.on_block(block)
    assert made.take_complete() == []


def test_a_block_above_the_cap_gets_no_memory_whatever_it_belongs_to() -> None:
    """N-25: what is thrown away is not read in any size."""
    for key in (KEY, transfer_key(1, 6)):
        with pytest.raises(RemoteProtocolError, match=r"must be entry|the limit is"):
            relay().place(attrs.evolve(BLOCK, key=key, bytes=BLOCK_BYTES + 1))


def test_blocks_tile_a_transfer_exactly_once() -> None:
    """N-26."""
    assembly = Assembly.begin(LAYOUT, KEY)
    with pytest.raises(RemoteProtocolError, match="must be entry"):
        assembly.place(attrs.evolve(BLOCK, offset=4))
    assembly.arrived = 1
    with pytest.raises(RemoteProtocolError, match="behind the end"):
        assembly.place(BLOCK)
