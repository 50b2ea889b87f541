"""Faults that earlier systems had in moving and averaging data: a test of each rule and the proof that it is one.

As in `core/test_section17_cycle.py`: the tests pass as they are, and fail with the old way put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch
import trio

from paceline.backends.divergence import Triple, divergence
from paceline.backends.flat import FlatModel
from paceline.backends.layout import allocate
from paceline.backends.schema import schema_of
from paceline.core import effects as fx
from paceline.core.schema import EntryClass, Schema
from paceline.core.wire import Link, LinkKeys, Role
from paceline.transports.codec import MsgpackCodec
from paceline.transports.driver import CoordinatorDriver
from paceline.transports.framed import FramedChannel
from paceline.transports.memory import MemoryTransport

from support.averaging import Ship, average, entry
from support.glue import Plane, Scripted, run_in_no_time
from support.old_ways_data import OLD_WAYS
from support.star_path import adopt, path, staged
from support.transports import CREDENTIALS, heartbeat, run

KEYS = LinkKeys(up=bytes([1]) * 32, down=bytes([2]) * 32)
PIECE = 16
"""Bytes that the lane below takes at a time: less than a frame."""
DEADLINE_S = 30.0


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


class Punctual(Scripted):
    """Ends the run at its deadline, and knows of time only what ticks say."""

    def handle(self, event: Any, now: float) -> None:
        super().handle(event, now)
        if now >= DEADLINE_S:
            self.todo.append(fx.Finish("ok", "in time"))

    def poll_timeout(self) -> float | None:
        return DEADLINE_S


class OnDevice(torch.Tensor):
    """A tensor that says it is on an accelerator."""

    device: Any = torch.device("cuda", 0)


class Device:
    """Computes what is queued when somebody waits for it, and not before."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], object]] = []

    def synchronize(self, device: object = None) -> None:
        while self.queue:
            self.queue.pop(0)()


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


@OLD_WAYS.against("the_timeout_was_cleared")
def test_time_comes_to_the_coordinator_although_nobody_says_anything() -> None:
    """17.1 #25, C-3, N-4: its deadline is its own business, not a property of a lane somebody reads from."""
    machine = Punctual()

    async def main() -> None:
        driver = CoordinatorDriver(machine, Plane(), lambda effect: None)
        listener = await MemoryTransport().listen("memory://time", CREDENTIALS)
        async with contextlib.aclosing(listener):
            with trio.CancelScope(deadline=2 * DEADLINE_S) as patience:
                await driver.run(listener)
        assert not patience.cancelled_caught, "the deadline of the run has passed, and nobody was told"

    run_in_no_time(main)


@OLD_WAYS.against("a_snapshot_is_a_view")
def test_a_snapshot_keeps_what_the_model_was() -> None:
    """17.1 #34, W-26: steps that follow do not change it."""
    model = torch.nn.Linear(3, 2, bias=False)
    snapshot = FlatModel(model, schema_of(model)).snapshot()
    before = bytes(snapshot.memory)
    with torch.no_grad():
        model.weight.add_(1.0)

    assert bytes(snapshot.memory) == before


@OLD_WAYS.against("nobody_waits_for_the_device")
def test_a_copy_waits_for_what_the_device_is_still_computing() -> None:
    """17.1 #35, W-26, R-17: a step that was begun before is in the snapshot, and an adoption is not undone by it."""
    device = Device()
    model = torch.nn.Linear(2, 1, bias=False)
    live = model.weight.detach()
    flat = FlatModel(model, schema_of(model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat, "_tensors", lambda fields: [live.as_subclass(OnDevice)])
        patch.setattr(torch.accelerator, "synchronize", device.synchronize)
        device.queue.append(lambda: live.fill_(1.0))
        copy = flat.snapshot()
        device.queue.append(lambda: live.fill_(2.0))
        flat.adopt(memoryview(bytearray(np.array([3, 4], "<f4").tobytes())))
        device.synchronize()

    assert np.frombuffer(copy.memory, "<f4").tolist() == [1, 1] and live.tolist() == [[3, 4]]


@OLD_WAYS.against("a_divergence_of_its_own")
def test_a_rank_says_how_far_what_it_shipped_is_from_what_it_adopts() -> None:
    """17.2 #16, R-16: whichever averager it is, so that the guard compares like with like; averagers that average in
    place are asked the same by the conformance kit (A122)."""

    told, true = [], []

    async def main() -> None:
        async with path(8, 8) as p:
            p.open(0, 1)
            before = [trainer.flat.snapshot(allocate(trainer.flat.riding.nbytes)) for trainer in p.ranks]
            for trainer in p.ranks:
                trainer.offer(trainer.rank + 1)
                p.admit(trainer.rank, trainer.rank + 1)
            for trainer, shipped, said in zip(p.ranks, before, await staged(p), strict=True):
                adopt(trainer)
                after = trainer.flat.snapshot(allocate(trainer.flat.riding.nbytes))
                told.append(Triple(said.divergence, said.pre_norm, said.post_norm))
                true.append(divergence(after.layout, shipped.memory, after.memory))

    run(main)

    assert told == true


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
