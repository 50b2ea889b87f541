"""The rank's half of the star averager: R-1, R-8, W-11, N-25, N-26."""

from __future__ import annotations

import hashlib

import attrs
import pytest

from paceline.backends import layout as layout_module
from paceline.backends.star_client import ConsensusReceiver
from paceline.core.errors import LocalProtocolError, RemoteProtocolError
from paceline.core.messages import BulkBlock, Outcome, RoundResult

from support.averaging import KEY, RIDING, SCHEMA, TINY_BLOCK, Ship, average, blocks_of, random_flat

tiny_blocks = blocks_of(TINY_BLOCK)


def test_a_receiver_puts_the_consensus_together_and_ignores_other_rounds() -> None:
    """W-11, N-26, R-1."""
    averager, reduced = average(SCHEMA, {0: Ship(5, random_flat(0)), 1: Ship(2, random_flat(1))})
    receiver = ConsensusReceiver(averager.riding, layout_module.allocate(RIDING.nbytes), KEY, 0, 1, 1)
    result, blocks = averager.scatter(1)
    announce = layout_module.header_block(KEY, 0, 1, 1, 30)
    with pytest.raises(RemoteProtocolError, match="announced"):
        receiver.place(blocks[0][0])
    assert not receiver.on_result(attrs.evolve(announce, attempt=1), result)
    assert receiver.on_result(announce, result) and not receiver.complete
    with pytest.raises(RemoteProtocolError, match="second result"):
        receiver.on_result(announce, result)
    with pytest.raises(RemoteProtocolError, match="must be entry"):
        receiver.place(blocks[1][0])
    for block, data in blocks:
        with pytest.raises(LocalProtocolError, match="blocks are here"):
            receiver.staged()
        stale = attrs.evolve(block, attempt=7)
        receiver.place(stale)[:] = bytes(len(data))
        receiver.on_block(stale)
        receiver.place(block)[:] = data
        receiver.on_block(block)
    staged = receiver.staged()
    assert (staged.outcome, staged.total_steps, staged.refusal) == (Outcome.MERGED, 7, None)
    assert staged.flat is not None and hashlib.sha256(staged.flat).digest()[:16] == reduced.digest
    for rank in (0, 1):
        averager.on_scattered(rank)
    with pytest.raises(LocalProtocolError, match="nothing to receive"):
        averager.scatter(0)


@pytest.mark.parametrize("of", [{}, {"attempt": 7}, {"incarnation": 2}], ids=["this round", "attempt", "life"])
def test_a_block_above_the_cap_gets_no_memory_whatever_it_belongs_to(of: dict[str, int]) -> None:
    """N-25, R-1: what belongs to another round is read and thrown away, but not in any size."""
    receiver = ConsensusReceiver(RIDING, layout_module.allocate(RIDING.nbytes), KEY, 0, 0, 1)
    header = BulkBlock(**{"key": KEY, "attempt": 0, "rank": 0, "incarnation": 1, "entry": 0, "offset": 0,
                          "bytes": (4 << 20) + 1, **of})  # fmt: skip
    with pytest.raises(RemoteProtocolError, match="4194305 bytes, the limit is"):
        receiver.place(header)


def test_a_receiver_without_bytes_is_complete_at_once_and_a_wrong_size_ends_the_link() -> None:
    """R-8, N-25."""
    announce = layout_module.header_block(KEY, 0, 0, 1, 30)
    receiver = ConsensusReceiver(RIDING, layout_module.allocate(RIDING.nbytes), KEY, 0, 0, 1)
    with pytest.raises(RemoteProtocolError, match="schema says"):
        receiver.on_result(announce, RoundResult(outcome=Outcome.MERGED, total_steps=1, bytes=4))
    receiver.on_result(announce, RoundResult(outcome=Outcome.UNREALIZED, total_steps=0, bytes=0))
    assert receiver.complete and receiver.staged().flat is None
