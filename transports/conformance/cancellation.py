"""L3, cancellation: a frame is whole or the channel is over; there is no torn one and no way back (N-4)."""

from __future__ import annotations

from contextlib import suppress

import trio

from ...core.conformance import CheckFailed, Level, ensure
from ...core.errors import TransportError
from ...core.messages import BulkBlock
from ..api import Channel
from .kit import KIT, PAGE, Bench, due, within
from .load import LONG
from .stage import UNREAD_BYTES, Landing, block, clogged, exchange, heartbeat, pair, pattern, quiet

__all__: list[str] = []

DOC = f"{PAGE}#cancellation"
LARGE = 16 * 1024 * 1024


@KIT.check("T301", Level.L3, doc=DOC)
async def a_block_cancelled_half_way_is_never_torn(bench: Bench) -> None:
    """When a `send_bulk` is cancelled inside a block, the peer gets the whole blocks before it, in order, and none torn
    (N-4)."""
    async with clogged(bench) as (rank, coordinator, flood, nursery):
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await quiet(0.01)
            heard: list[object] = []
            over = trio.Event()
            async with trio.open_nursery() as reading:
                reading.start_soon(_whole_blocks_or_the_end, coordinator, flood.began, over)
                # Bulk first: what lies there must be looked at before control, which has nothing, tells of the end.
                await quiet(0.01)
                reading.start_soon(_hear, coordinator, heard)
                with trio.move_on_after(bench.evidence_s):
                    await over.wait()
                if not over.is_set():
                    # All that came was whole, and no end came: then the channel must still be good for whole frames.
                    await _still_good(rank, heard, bench.evidence_s)
                reading.cancel_scope.cancel()


async def _hear(channel: Channel, heard: list[object]) -> None:
    """Read control, as somebody always does."""
    with suppress(TransportError):
        while True:
            heard.append(await channel.receive())


async def _still_good(rank: Channel, heard: list[object], evidence_s: float) -> None:
    try:
        await rank.send(heartbeat(1))
    except TransportError as error:
        raise CheckFailed(f"the peer of a cancelled block heard of no end within {evidence_s:g} s ({error})") from error
    with within(evidence_s, "a message on a channel that outlived a cancelled block"):
        while heard != [heartbeat(1)]:
            await trio.sleep(0.01)


async def _whole_blocks_or_the_end(channel: Channel, began: int, over: trio.Event) -> None:
    number = 0
    try:
        while True:
            landing = Landing()
            header = await channel.receive_bulk(landing)
            ensure(header.offset == number, f"after a cancelled send block {header.offset} came where {number} is due")
            whole = landing.memory[-1] == pattern(header.bytes, number)
            ensure(whole, f"block {number} was handed out torn: its sender was cancelled in the middle of it")
            number += 1
            ensure(number <= began, f"{number} blocks came and {began} were begun")
    except TransportError:
        over.set()


@KIT.check("T302", Level.L3, doc=DOC)
async def a_channel_cancelled_half_way_says_so(bench: Bench) -> None:
    """After a `send_bulk` was cancelled inside a block, every call on that channel is a `TransportError` at once; the
    peer hears of the end."""
    async with clogged(bench) as (rank, coordinator, _, nursery):
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await quiet(0.01)
            with due(TransportError, "send on a channel whose block was cancelled", bench.evidence_s):
                await rank.send(heartbeat(1))
            with due(TransportError, "receive at the peer of a cancelled block", bench.evidence_s):
                await coordinator.receive()


@KIT.check("T303", Level.L3, doc=DOC)
async def a_message_cancelled_half_way_is_never_torn(bench: Bench) -> None:
    """When a `send` is cancelled inside a message, its peer gets the whole messages before it and nothing of the torn
    one; a later message comes whole or not at all (N-4)."""
    sent = 0
    async with pair(bench) as (rank, coordinator):

        async def talk() -> None:
            nonlocal sent
            while sent * len(LONG.reason) < UNREAD_BYTES:
                await rank.send(LONG)
                sent += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk)
            await quiet(0.02)
            nursery.cancel_scope.cancel()
        try:
            with trio.move_on_after(bench.evidence_s):
                await rank.send(heartbeat(1))
        except TransportError:
            sent += 1  # The one that was cancelled may have been whole.
        with trio.move_on_after(bench.evidence_s):
            await _whole_messages_or_the_end(coordinator, sent)


async def _whole_messages_or_the_end(channel: Channel, sent: int) -> None:
    came = 0
    try:
        while (message := await channel.receive()) == LONG:
            came += 1
            ensure(came <= sent + 1, f"{came} messages came and {sent} were sent")
        ensure(message == heartbeat(1), f"after a cancelled send there came {str(message)[:200]}")
    except TransportError:
        return


@KIT.check("T304", Level.L3, doc=DOC)
async def a_receive_cancelled_inside_a_block_ends_its_channel(bench: Bench) -> None:
    """The memory goes back to the caller with the cancellation: nothing more is written there, and the channel is over
    or has kept the block for the next call (N-4)."""
    memory = bytearray(LARGE)
    scope = trio.CancelScope()

    def place(header: BulkBlock) -> memoryview:
        scope.cancel()
        return memoryview(memory)[: header.bytes]

    async with pair(bench) as (rank, coordinator), trio.open_nursery() as nursery:
        nursery.start_soon(_send_and_lose, rank)
        with scope:
            await coordinator.receive_bulk(place)
        if scope.cancelled_caught:
            given_back = bytes(memory)
            landing = Landing()
            try:
                with within(bench.evidence_s, "receive_bulk after one that was cancelled"):
                    await coordinator.receive_bulk(landing)
                ensure(landing.memory == [pattern(LARGE)], "the block of a cancelled receive came with other bytes")
            except TransportError:
                await rank.aclose()
            await quiet(0.01)
            ensure(memory == given_back, "memory was written after a cancellation had given it back")
        nursery.cancel_scope.cancel()


async def _send_and_lose(rank: Channel) -> None:
    try:
        await rank.send_bulk(block(LARGE), pattern(LARGE))
    except TransportError:
        return


@KIT.check("T305", Level.L3, doc=DOC)
async def a_call_cancelled_before_its_frame_leaves_no_trace(bench: Bench) -> None:
    """Idle receivers, and a sender that waits for its turn, may be cancelled; the channel goes on as if they had never
    called (N-4)."""
    async with pair(bench) as (rank, coordinator):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(coordinator.receive)
            nursery.start_soon(coordinator.receive_bulk, Landing())
            await quiet()
            nursery.cancel_scope.cancel()
        await exchange((rank, coordinator))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rank.send_bulk, block(LARGE, offset=1), pattern(LARGE))
            await quiet()
            with trio.CancelScope() as waiting:
                waiting.cancel()
                await rank.send_bulk(block(5, offset=2), pattern(5))
            nursery.start_soon(rank.send_bulk, block(5, offset=3), pattern(5))
            landing = Landing()
            offsets = [(await coordinator.receive_bulk(landing)).offset for _ in range(2)]
        ensure(offsets == [1, 3], f"blocks {offsets} came where 1 and 3 were sent and 2 was cancelled before it began")
        ensure(landing.memory[0] == pattern(LARGE), "the block before a cancelled one came with other bytes")
        await exchange((rank, coordinator), 2)


@KIT.check("T306", Level.L3, doc=DOC)
async def cancelled_receives_lose_no_message(bench: Bench) -> None:
    """A `receive` that is cancelled again and again while messages arrive loses none of them and doubles none."""
    count = bench.times(200, 50)
    async with pair(bench) as (rank, coordinator), trio.open_nursery() as nursery:

        async def talk() -> None:
            for number in range(1, count + 1):
                await rank.send(heartbeat(number))

        nursery.start_soon(talk)
        due = 1
        while due <= count:
            with trio.CancelScope() as impatient:
                nursery.start_soon(_cancel_soon, impatient)
                came = await coordinator.receive()
                ensure(came == heartbeat(due), f"{came} came where heartbeat {due} is due, after cancelled receives")
                due += 1


async def _cancel_soon(scope: trio.CancelScope) -> None:
    await trio.lowlevel.checkpoint()
    scope.cancel()
