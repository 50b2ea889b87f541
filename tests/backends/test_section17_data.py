"""Faults that earlier systems had in moving and averaging data: a test of each rule and the proof that it is one.

As in `core/test_section17_cycle.py`: the tests pass as they are, and fail with the old way put back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import pytest
import torch
import trio

from paceline.backends.flat import FlatModel
from paceline.backends.schema import schema_of
from paceline.core.schema import EntryClass, Schema
from paceline.core.wire import Link, LinkKeys, Role
from paceline.transports.codec import MsgpackCodec
from paceline.transports.framed import FramedChannel

from support.averaging import Ship, average, entry
from support.old_ways_data import OLD_WAYS
from support.transports import heartbeat, run

KEYS = LinkKeys(up=bytes([1]) * 32, down=bytes([2]) * 32)
PIECE = 16
"""Bytes that the lane below takes at a time: less than a frame."""


@attrs.define(eq=False)
class SlowLane:
    """Takes a few bytes at a time, and others run in between."""

    written: bytearray = attrs.field(factory=bytearray)

    async def send(self, views: Sequence[memoryview]) -> None:
        for view in views:
            for start in range(0, len(view), PIECE):
                await trio.lowlevel.checkpoint()
                self.written += view[start : start + PIECE]

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.sleep_forever()
        return 0

    def close(self) -> None:
        return None


@OLD_WAYS.against("everybody_writes")
def test_a_frame_is_written_whole_whoever_else_sends() -> None:
    """17.1 #24, N-4: the reader finds every message, in some order, and nothing in between."""
    lane = SlowLane()

    async def main() -> None:
        channel = FramedChannel(
            peer="script", role=Role.RANK, control=lane, bulk=SlowLane(), control_keys=KEYS, bulk_keys=KEYS
        )
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(channel.send, heartbeat(number))

    run(main)
    one = Link(codec=MsgpackCodec(), keys=KEYS, role=Role.RANK)
    size = len(one.send(heartbeat(0)))
    heads = [bytes(lane.written[start : start + 4]) for start in range(0, len(lane.written), size)]

    assert len(lane.written) == 4 * size and set(heads) == {b"PCLF"}


@OLD_WAYS.against("a_snapshot_is_a_view")
def test_a_snapshot_keeps_what_the_model_was() -> None:
    """17.1 #34, W-26: steps that follow do not change it."""
    model = torch.nn.Linear(3, 2, bias=False)
    snapshot = FlatModel(model, schema_of(model)).snapshot()
    before = bytes(snapshot.memory)
    with torch.no_grad():
        model.weight.add_(1.0)

    assert bytes(snapshot.memory) == before


@OLD_WAYS.against("no_steps_weigh_like_one")
def test_a_rank_without_steps_is_not_in_the_divisor() -> None:
    """17.1 #37, R-5, I55, I56: the consensus of one mover is what it shipped."""
    schema = Schema(entries=(entry("w", EntryClass.PARAM, (2,)),))
    averager, _ = average(schema, {0: Ship(1, np.array([4, 8], "<f4").tobytes()), 1: Ship(0)})
    assert averager.consensus is not None

    assert np.frombuffer(averager.consensus, "<f4").tolist() == [4, 8]


@pytest.mark.parametrize(("name", "test"), OLD_WAYS.cases, ids=[name for name, _ in OLD_WAYS.cases])
def test_the_old_way_is_caught(name: str, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 17: with the old way put back the test of the rule fails."""
    OLD_WAYS.caught(name, test, monkeypatch)


def test_every_old_way_has_a_test_that_names_its_row() -> None:
    """Section 17: a mutant that nothing is run against proves nothing."""
    OLD_WAYS.complete()
