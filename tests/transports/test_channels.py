"""The promises of `transports.api`, over every transport of this package.

Nothing here knows what a channel is made of; what is peculiar to one transport is tested beside it.
"""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from paceline.core.errors import LocalProtocolError, RemoteProtocolError, TransportError
from paceline.core.messages import BulkBlock, Exiting
from paceline.transports import framed
from paceline.transports.api import Channel

from support.transports import (
    CREDENTIALS,
    Kind,
    Landing,
    beacon,
    block,
    every_transport,
    heartbeat,
    meeting,
    pattern,
    run,
)

UNENDING = 1000
"""Half-megabytes that a sender tries to send to somebody who does not read: no machine buffers that much."""


async def flood(channel: Channel, sent: list[int]) -> None:
    """Send blocks of half a megabyte, below the size that goes through a thread, and note each one that is gone."""
    data = pattern(512 * 1024)
    for number in range(UNENDING):
        await channel.send_bulk(block(len(data), offset=number), data)
        sent.append(number)


@every_transport
def test_messages_arrive_in_order_both_ways(kind: Kind) -> None:
    """N-2, N-3: each lane is first in, first out."""

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            for number in range(1, 50):
                await rank.send(heartbeat(number))
                await coordinator.send(beacon(number))
            assert [await coordinator.receive() for _ in range(1, 50)] == [heartbeat(n) for n in range(1, 50)]
            assert [await rank.receive() for _ in range(1, 50)] == [beacon(n) for n in range(1, 50)]

    run(main)


@every_transport
@pytest.mark.parametrize("size", [0, 1, 4096, 1024 * 1024 - 1, 1024 * 1024, 16 * 1024 * 1024])
def test_a_block_lands_in_the_memory_that_place_names(kind: Kind, size: int) -> None:
    """N-26, both ways, up to the cap of N-25 and on both sides of the size that is hashed in a thread."""

    async def main() -> None:
        async with meeting(kind) as met:
            for sender, receiver in (pair := await met.join(), pair[::-1]):
                landing = Landing()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(sender.send_bulk, block(size), pattern(size))
                    assert await receiver.receive_bulk(landing) == block(size)
                assert landing.memory == [pattern(size)]

    run(main)


@every_transport
def test_header_authentication_carries_blocks_too(kind: Kind) -> None:
    """N-26: under bulk_auth = "header" the same blocks pass."""

    async def main() -> None:
        async with meeting(kind, credentials=attrs.evolve(CREDENTIALS, bulk_auth="header")) as met:
            rank, coordinator = await met.join()
            landing = Landing()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rank.send_bulk, block(3_000_000), pattern(3_000_000))
                await coordinator.receive_bulk(landing)
            assert landing.memory == [pattern(3_000_000)]

    run(main)


@every_transport
def test_concurrent_senders_never_interleave(kind: Kind) -> None:
    """17.1 #24, N-4: each frame is whole, whoever else sends. Every block of every sender arrives as it was."""

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            landing = Landing()
            numbers: list[int] = []

            async def send_some(sender: int) -> None:
                for number in range(20):
                    await rank.send(heartbeat(100 * sender + number))
                    await rank.send_bulk(block(70_001, rank=sender, offset=number), pattern(70_001, sender + number))

            async def receive_messages() -> None:
                for _ in range(4 * 20):
                    numbers.append((await coordinator.receive()).step_count)

            async def receive_blocks() -> None:
                for _ in range(4 * 20):
                    await coordinator.receive_bulk(landing)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive_messages)
                nursery.start_soon(receive_blocks)
                for sender in range(4):
                    nursery.start_soon(send_some, sender)
            for header, memory in zip(landing.blocks, landing.memory, strict=True):
                assert memory == pattern(70_001, header.rank + header.offset)
            for sender in range(4):
                assert [b.offset for b in landing.blocks if b.rank == sender] == list(range(20))
                assert [n for n in numbers if n // 100 == sender] == [100 * sender + n for n in range(20)]

    run(main)


@every_transport
def test_a_full_bulk_lane_does_not_delay_control(kind: Kind) -> None:
    """N-5: nobody reads the bulk lane, its sender is stuck, and heartbeats and beacons pass all the same."""

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            sent: list[int] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flood, rank, sent)
                await trio.testing.wait_all_tasks_blocked()
                for number in range(1, 100):
                    await rank.send(heartbeat(number))
                    assert await coordinator.receive() == heartbeat(number)
                    await coordinator.send(beacon(number))
                    assert await rank.receive() == beacon(number)
                assert len(sent) < UNENDING
                nursery.cancel_scope.cancel()

    run(main)


# --- cancellation


@every_transport
def test_a_send_cancelled_inside_a_block_ends_the_link(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-4: the receiver gets every block before it whole, and never the torn one."""
    monkeypatch.setattr(framed, "LANE_SKEW_S", 0.0)

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            sent: list[int] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flood, rank, sent)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            with pytest.raises(TransportError, match="cancelled in the middle of a frame"):
                await rank.send(heartbeat(1))
            landing = Landing()
            with pytest.raises(TransportError, match=r"closed by the peer|reset by the peer"):
                for _ in range(UNENDING):
                    await coordinator.receive_bulk(landing)
            whole = [memory for memory in landing.memory if memory == pattern(512 * 1024)]
            assert len(sent) < UNENDING
            assert len(whole) <= len(sent) <= len(landing.memory) + 1

    run(main)


@every_transport
def test_a_receive_cancelled_inside_a_block_ends_the_link(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-4: the memory goes back to the caller with the cancellation, so the rest of the block has no place."""
    monkeypatch.setattr(framed, "LANE_SKEW_S", 0.0)

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            scope = trio.CancelScope()

            def place(header: BulkBlock) -> memoryview:
                scope.cancel()
                return memoryview(bytearray(header.bytes))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_and_lose, rank)
                with scope:
                    await coordinator.receive_bulk(place)
                assert scope.cancelled_caught
                with pytest.raises(TransportError, match="cancelled in the middle of a bulk block"):
                    await coordinator.receive_bulk(Landing())

    async def send_and_lose(rank: Channel) -> None:
        with pytest.raises(TransportError):
            await flood(rank, [])

    run(main)


@every_transport
def test_a_call_cancelled_before_its_frame_leaves_no_trace(kind: Kind) -> None:
    """N-4: idle receivers and a sender that waits for its turn may be cancelled; the channel goes on."""

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(coordinator.receive)
                nursery.start_soon(coordinator.receive_bulk, Landing())
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            async with trio.open_nursery() as nursery:
                size = 16 * 1024 * 1024
                nursery.start_soon(rank.send_bulk, block(size, offset=1), pattern(size))
                await trio.testing.wait_all_tasks_blocked()
                with trio.CancelScope() as waiting:
                    waiting.cancel()
                    await rank.send_bulk(block(5, offset=2), pattern(5))
                nursery.start_soon(rank.send_bulk, block(5, offset=3), pattern(5))
                await rank.send(heartbeat(1))
                landing = Landing()
                assert [(await coordinator.receive_bulk(landing)).offset for _ in range(2)] == [1, 3]
            assert landing.memory[0] == pattern(size)
            assert await coordinator.receive() == heartbeat(1)

    run(main)


# --- the end


@every_transport
def test_the_loss_of_the_peer_is_told_once_to_each_lane(kind: Kind) -> None:
    """M-17, api: an end is an event and not something to wait for; after it there is only the same cause."""

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            told: list[str] = []

            async def listen_on_control() -> None:
                with pytest.raises(TransportError) as loss:
                    await coordinator.receive()
                told.append(str(loss.value))

            async def listen_on_bulk() -> None:
                with pytest.raises(TransportError) as loss:
                    await coordinator.receive_bulk(Landing())
                told.append(str(loss.value))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen_on_control)
                nursery.start_soon(listen_on_bulk)
                await trio.testing.wait_all_tasks_blocked()
                await rank.aclose()
            assert told == [f"link to {coordinator.peer}: closed by the peer"] * 2
            for call in (
                coordinator.receive(),
                coordinator.receive_bulk(Landing()),
                coordinator.send(beacon(1)),
                coordinator.send_bulk(block(1), pattern(1)),
            ):
                with pytest.raises(TransportError, match="closed by the peer"):
                    await call

    run(main)


@every_transport
def test_last_words_are_delivered_before_the_end(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """W-24, M-8: a rank that says Exiting and closes is not taken for dead, even if bulk is looked at first."""
    monkeypatch.setattr(framed, "LANE_SKEW_S", 10 * 60.0)

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()

            async def look_at_bulk() -> None:
                with pytest.raises(TransportError):
                    await coordinator.receive_bulk(Landing())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(look_at_bulk)
                for number in range(1, 20):
                    await rank.send(heartbeat(number))
                await rank.send(Exiting(reason="done"))
                await rank.aclose()
                await trio.testing.wait_all_tasks_blocked()
                assert [await coordinator.receive() for _ in range(1, 20)] == [heartbeat(n) for n in range(1, 20)]
                assert await coordinator.receive() == Exiting(reason="done")
                with pytest.raises(TransportError, match="closed by the peer"):
                    await coordinator.receive()

    run(main)


@every_transport
def test_an_end_that_nobody_reads_on_control_is_told_on_bulk(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """M-17: the patience with a reader of the control lane is bounded."""
    monkeypatch.setattr(framed, "LANE_SKEW_S", 0.0)

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            await rank.aclose()
            with pytest.raises(TransportError, match="closed by the peer"):
                await coordinator.receive_bulk(Landing())

    run(main)


@every_transport
def test_closing_wakes_every_blocked_call_and_may_be_repeated(kind: Kind) -> None:
    """api: `aclose` is idempotent, and anything blocked gets `TransportError`."""

    async def main() -> None:
        async with meeting(kind) as met:
            rank, _ = await met.join()
            woken: list[str] = []

            async def blocked(name: str, call: object) -> None:
                with pytest.raises(TransportError, match="closed here"):
                    await call  # type: ignore[misc]
                woken.append(name)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(blocked, "receive", rank.receive())
                nursery.start_soon(blocked, "receive_bulk", rank.receive_bulk(Landing()))
                nursery.start_soon(blocked, "send_bulk", flood(rank, []))
                nursery.start_soon(blocked, "next send_bulk", flood(rank, []))
                await trio.testing.wait_all_tasks_blocked()
                await rank.aclose()
                await rank.aclose()
            assert sorted(woken) == ["next send_bulk", "receive", "receive_bulk", "send_bulk"]
            await rank.aclose()

    run(main)


@every_transport
def test_nothing_is_delivered_after_close(kind: Kind) -> None:
    """api: what had arrived and was not taken is gone."""

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            for number in (1, 2, 3):
                await rank.send(heartbeat(number))
            assert await coordinator.receive() == heartbeat(1)
            await coordinator.aclose()
            with pytest.raises(TransportError, match="closed here"):
                await coordinator.receive()

    run(main)


@every_transport
def test_closing_works_in_a_cancelled_task(kind: Kind) -> None:
    """api: a cancelled owner still closes."""

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            with trio.CancelScope() as scope:
                scope.cancel()
                await rank.aclose()
            with pytest.raises(TransportError, match="closed by the peer"):
                await coordinator.receive()

    run(main)


# --- misuse and misbehaviour


@every_transport
def test_misuse_is_refused_and_leaves_the_channel_as_it_was(kind: Kind) -> None:
    """N-7: a second reader, memory of the wrong length and a message of the other role are the caller's fault."""

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            with pytest.raises(LocalProtocolError, match="5 bytes"):
                await rank.send_bulk(block(4), pattern(5))
            with pytest.raises(LocalProtocolError, match="2 dimensions"):
                await rank.send_bulk(block(4), pattern(4).cast("B", (2, 2)))
            with pytest.raises(LocalProtocolError, match="does not send Beacon"):
                await rank.send(beacon(1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(coordinator.receive)
                nursery.start_soon(coordinator.receive_bulk, Landing())
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(LocalProtocolError, match="already receives on the control lane"):
                    await coordinator.receive()
                with pytest.raises(LocalProtocolError, match="already receives on the bulk lane"):
                    await coordinator.receive_bulk(Landing())
                await rank.send(heartbeat(1))
                await rank.send_bulk(block(4), pattern(4))

    run(main)


@every_transport
@pytest.mark.parametrize(
    "refusal", [RemoteProtocolError("outside the schema"), ValueError("no such entry")], ids=["violation", "fault"]
)
def test_a_block_without_a_place_ends_its_link(kind: Kind, refusal: Exception) -> None:
    """api: `place` refuses by raising; there is no way to skip a block."""

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            await rank.send_bulk(block(4), pattern(4))

            def place(header: BulkBlock) -> memoryview:
                raise refusal

            with pytest.raises(type(refusal), match=str(refusal)):
                await coordinator.receive_bulk(place)
            with pytest.raises(TransportError, match=str(refusal)):
                await coordinator.receive()
            with pytest.raises(TransportError):
                await rank.receive()

    run(main)


@every_transport
def test_memory_of_the_wrong_length_from_place_is_the_callers_fault(kind: Kind) -> None:
    """api: the memory has exactly the block's length."""

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            await rank.send_bulk(block(4), pattern(4))
            with pytest.raises(LocalProtocolError, match="place gave 3 bytes"):
                await coordinator.receive_bulk(lambda header: memoryview(bytearray(3)))

    run(main)
