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
from .stage import UNREAD_BYTES, Landing, Way, block, both_ways, clogged, exchange, pair, pattern, quiet

__all__: list[str] = []

DOC = f"{PAGE}#cancellation"
LARGE = 16 * 1024 * 1024


@KIT.check("T301", Level.L3, doc=DOC)
@both_ways
async def a_block_cancelled_half_way_is_never_torn(bench: Bench, way: Way) -> None:
    """When a `send_bulk` is cancelled inside a block, the peer gets the whole blocks before it, in order, and none torn
    (N-4)."""
    async with clogged(bench, way) as (sender, receiver, flood, nursery):
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await quiet(0.01)
            heard: list[object] = []
            over = trio.Event()
            async with trio.open_nursery() as reading:
                reading.start_soon(_whole_blocks_or_the_end, receiver, flood.began, over)
                # Bulk first: what lies there must be looked at before control, which has nothing, tells of the end.
                await quiet(0.01)
                reading.start_soon(_hear, receiver, heard)
                with trio.move_on_after(bench.evidence_s):
                    await over.wait()
                if not over.is_set():
                    # All that came was whole, and no end came: then the channel must still be good for whole frames.
                    await _still_good(sender, way, heard, bench.evidence_s)
                reading.cancel_scope.cancel()


async def _hear(channel: Channel, heard: list[object]) -> None:
    """Read control, as somebody always does."""
    with suppress(TransportError):
        while True:
            heard.append(await channel.receive())


async def _still_good(sender: Channel, way: Way, heard: list[object], evidence_s: float) -> None:
    try:
        await sender.send(way.small(1))
    except TransportError as error:
        raise CheckFailed(f"the peer of a cancelled block heard of no end within {evidence_s:g} s ({error})") from error
    with within(evidence_s, "a message on a channel that outlived a cancelled block"):
        while heard != [way.small(1)]:
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
@both_ways
async def a_channel_cancelled_half_way_says_so(bench: Bench, way: Way) -> None:
    """After a `send_bulk` was cancelled inside a block, every call on that channel is a `TransportError` at once; the
    peer hears of the end."""
    async with clogged(bench, way) as (sender, receiver, _, nursery):
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await quiet(0.01)
            with due(TransportError, "send on a channel whose block was cancelled", bench.evidence_s):
                await sender.send(way.small(1))
            with due(TransportError, "receive at the peer of a cancelled block", bench.evidence_s):
                await receiver.receive()


@KIT.check("T303", Level.L3, doc=DOC)
@both_ways
async def a_message_cancelled_half_way_is_never_torn(bench: Bench, way: Way) -> None:
    """When a `send` is cancelled inside a message, its peer gets the whole messages before it and nothing of the torn
    one; a later message comes whole or not at all (N-4)."""
    sent = 0
    async with pair(bench, way) as (sender, receiver):

        async def talk() -> None:
            nonlocal sent
            while sent * LONG < UNREAD_BYTES:
                await sender.send(way.large("x" * LONG))
                sent += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk)
            await quiet(0.02)
            nursery.cancel_scope.cancel()
        try:
            with trio.move_on_after(bench.evidence_s):
                await sender.send(way.small(1))
        except TransportError:
            sent += 1  # The one that was cancelled may have been whole.
        with trio.move_on_after(bench.evidence_s):
            await _whole_messages_or_the_end(receiver, way, sent)


async def _whole_messages_or_the_end(channel: Channel, way: Way, sent: int) -> None:
    came = 0
    try:
        long = way.large("x" * LONG)
        while (message := await channel.receive()) == long:
            came += 1
            ensure(came <= sent + 1, f"{came} messages came and {sent} were sent")
        ensure(message == way.small(1), f"after a cancelled send there came {str(message)[:200]}")
    except TransportError:
        return


@KIT.check("T304", Level.L3, doc=DOC)
@both_ways
async def a_receive_cancelled_inside_a_block_ends_its_channel(bench: Bench, way: Way) -> None:
    """The memory goes back to the caller with the cancellation: nothing more is written there, and the channel is over
    or has kept the block for the next call (N-4)."""
    memory = bytearray(LARGE)
    scope = trio.CancelScope()

    def place(header: BulkBlock) -> memoryview:
        scope.cancel()
        return memoryview(memory)[: header.bytes]

    async with pair(bench, way) as (sender, receiver), trio.open_nursery() as nursery:
        nursery.start_soon(_send_and_lose, sender)
        with scope:
            await receiver.receive_bulk(place)
        if scope.cancelled_caught:
            given_back = bytes(memory)
            landing = Landing()
            try:
                with within(bench.evidence_s, "receive_bulk after one that was cancelled"):
                    await receiver.receive_bulk(landing)
                ensure(landing.memory == [pattern(LARGE)], "the block of a cancelled receive came with other bytes")
            except TransportError:
                await sender.aclose()
            await quiet(0.01)
            ensure(memory == given_back, "memory was written after a cancellation had given it back")
        nursery.cancel_scope.cancel()


async def _send_and_lose(sender: Channel) -> None:
    try:
        await sender.send_bulk(block(LARGE), pattern(LARGE))
    except TransportError:
        return


@KIT.check("T305", Level.L3, doc=DOC)
@both_ways
async def a_call_cancelled_before_its_frame_leaves_no_trace(bench: Bench, way: Way) -> None:
    """Idle receivers, and a sender that waits for its turn, may be cancelled; the channel goes on as if they had never
    called (N-4)."""
    async with pair(bench, way) as (sender, receiver):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receiver.receive)
            nursery.start_soon(receiver.receive_bulk, Landing())
            await quiet()
            nursery.cancel_scope.cancel()
        await exchange(way.ends((sender, receiver)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.send_bulk, block(LARGE, offset=1), pattern(LARGE))
            await quiet()
            with trio.CancelScope() as waiting:
                waiting.cancel()
                await sender.send_bulk(block(5, offset=2), pattern(5))
            nursery.start_soon(sender.send_bulk, block(5, offset=3), pattern(5))
            landing = Landing()
            offsets = [(await receiver.receive_bulk(landing)).offset for _ in range(2)]
        ensure(offsets == [1, 3], f"blocks {offsets} came where 1 and 3 were sent and 2 was cancelled before it began")
        ensure(landing.memory[0] == pattern(LARGE), "the block before a cancelled one came with other bytes")
        await exchange(way.ends((sender, receiver)), 2)


@KIT.check("T306", Level.L3, doc=DOC)
@both_ways
async def cancelled_receives_lose_no_message(bench: Bench, way: Way) -> None:
    """A `receive` that is cancelled again and again while messages arrive, long ones too, loses and doubles none of
    them."""
    count = bench.times(200, 50)
    async with pair(bench, way) as (sender, receiver), trio.open_nursery() as nursery:

        def said(number: int) -> object:
            return way.small(number) if number % 10 else way.large(f"{number}" + "x" * LONG)

        async def talk() -> None:
            for number in range(1, count + 1):
                await sender.send(said(number))

        nursery.start_soon(talk)
        due = 1
        while due <= count:
            with trio.CancelScope() as impatient:
                nursery.start_soon(_cancel_soon, impatient)
                came = await receiver.receive()
                ensure(came == said(due), f"{str(came)[:200]} came where message {due} is due, after cancelled calls")
                due += 1


async def _cancel_soon(scope: trio.CancelScope) -> None:
    await trio.lowlevel.checkpoint()
    scope.cancel()
