"""L2, what the lanes carry: order, frames of every size, memory of the caller's own, nothing lost at an orderly end."""

from __future__ import annotations

import attrs
import trio

from ...core.conformance import Level, accepting, ensure, raising
from ...core.errors import LocalProtocolError, TransportError
from ...core.messages import BulkBlock, Exiting, RoundKey, RoundKind
from ...core.wire import MAX_BLOCK, MAX_CONTROL, MAX_HELLO
from ..api import Channel
from .kit import KIT, PAGE, Bench, due
from .stage import (
    DOWN,
    UP,
    Landing,
    Way,
    beacon,
    block,
    both_ways,
    exchange,
    heartbeat,
    meet,
    pair,
    pattern,
    quiet,
    receive_in_order,
)

__all__: list[str] = []

ORDER = f"{PAGE}#order"
FRAMES = f"{PAGE}#frames"
MEMORY = f"{PAGE}#memory"

SIZES = (0, 1, 4095, 4096, 1024 * 1024 - 1, 1024 * 1024, MAX_BLOCK)
"""Bytes of a block: none, one, around a page, around what is hashed in a thread, the largest allowed (N-25)."""

HEADERS = (
    attrs.evolve(block(3), key=RoundKey(generation=70_001, cycle=2**40 + 1, kind=RoundKind.STATE), attempt=3,
                 rank=1023, incarnation=70_002, entry=70_003, offset=2**40 + 2),
    attrs.evolve(block(4), attempt=300, incarnation=2**31, entry=1),
)  # fmt: skip
"""Headers in which a field that is dropped, cut to sixteen bits or mixed up shows."""

NAMES_BYTES = 1024
"""More than a message takes beside its text."""

MARGIN = 64
"""Bytes watched on both sides of the memory of a block."""


@KIT.check("T201", Level.L2, doc=ORDER)
async def messages_keep_their_order(bench: Bench) -> None:
    """Control is first in, first out, both ways at once, each message once, however long each of them is (N-2, N-3)."""
    count = bench.times(500, 100)

    def said(way: Way, number: int) -> object:
        return way.small(number) if number % 5 else way.large(f"{number}" + "x" * (number * 997 % 200_000))

    async def send_all(channel: Channel, way: Way) -> None:
        for number in range(1, count + 1):
            await channel.send(said(way, number))

    async with pair(bench) as (rank, coordinator), trio.open_nursery() as nursery:
        nursery.start_soon(send_all, rank, UP)
        nursery.start_soon(send_all, coordinator, DOWN)
        for number in range(1, count + 1):
            for end, way in ((coordinator, UP), (rank, DOWN)):
                came, due = await end.receive(), said(way, number)
                ensure(came == due, f"{str(came)[:200]} came where {str(due)[:200]} is due")


@KIT.check("T202", Level.L2, doc=ORDER)
async def blocks_keep_their_order(bench: Bench) -> None:
    """Bulk is first in, first out, each block once and as it was, small ones behind large ones too."""
    count = bench.times(200, 40)

    async def send_all(channel: Channel) -> None:
        for number in range(count):
            size = (10_007, 700_001, 5)[number % 3]
            await channel.send_bulk(block(size, offset=number), pattern(size, number))

    async with pair(bench) as both, trio.open_nursery() as nursery:
        for sender, receiver in (both, both[::-1]):
            nursery.start_soon(send_all, sender)
            nursery.start_soon(receive_in_order, receiver, range(count))


@KIT.check("T203", Level.L2, doc=ORDER)
async def senders_never_interleave(bench: Bench) -> None:
    """Many tasks may send on one channel: every frame stays whole, and each task's frames keep their order (N-4)."""
    senders, count, size = 4, bench.times(100, 20), 70_001

    async with pair(bench) as (rank, coordinator):
        landing = Landing()
        numbers: list[int] = []

        async def send_some(sender: int) -> None:
            for number in range(count):
                await rank.send(heartbeat(1000 * sender + number))
                await rank.send_bulk(block(size, rank=sender, offset=number), pattern(size, sender + number))

        async def receive_messages() -> None:
            for _ in range(senders * count):
                numbers.append((await coordinator.receive()).step_count)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive_messages)
            for sender in range(senders):
                nursery.start_soon(send_some, sender)
            for _ in range(senders * count):
                header = await coordinator.receive_bulk(landing)
                whole = landing.memory.pop() == pattern(size, header.rank + header.offset)
                ensure(whole, f"block {header.offset} of task {header.rank} came with other bytes")
    for sender in range(senders):
        offsets = [header.offset for header in landing.blocks if header.rank == sender]
        ensure(offsets == list(range(count)), f"the blocks of one task came in the order {offsets}")
        mine = [number % 1000 for number in numbers if number // 1000 == sender]
        ensure(mine == list(range(count)), f"the messages of one task came in the order {mine}")


@KIT.check("T211", Level.L2, doc=FRAMES)
async def blocks_of_every_size_pass(bench: Bench) -> None:
    """Blocks of 0 bytes, 1 byte, around a page and up to the cap of 16 MiB come through, both ways, with every field of
    their headers (N-25, N-26)."""
    async with pair(bench) as both:
        for sender, receiver in (both, both[::-1]):
            for size in SIZES:
                landing = Landing()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(sender.send_bulk, block(size), pattern(size))
                    header = await receiver.receive_bulk(landing)
                ensure(header == block(size), f"the header of a block of {size} bytes came as {header}")
                ensure(landing.memory == [pattern(size)], f"a block of {size} bytes came with other bytes")
            for sent in HEADERS:
                await sender.send_bulk(sent, pattern(sent.bytes))
                header = await receiver.receive_bulk(Landing())
                ensure(header == sent, f"a header came as {header} where {sent} was sent")


@KIT.check("T212", Level.L2, doc=FRAMES)
async def frames_above_the_cap_are_refused(bench: Bench) -> None:
    """A block above 16 MiB, and a message above its cap, is the sender's `LocalProtocolError`, and the channel goes on
    (N-25)."""
    async with pair(bench) as both:
        rank, coordinator = both
        with due(LocalProtocolError, f"send_bulk of {MAX_BLOCK + 1} bytes", bench.evidence_s):
            await rank.send_bulk(block(MAX_BLOCK + 1), pattern(MAX_BLOCK + 1))
        with due(LocalProtocolError, f"send of a message above {MAX_CONTROL} bytes", bench.evidence_s):
            await rank.send(Exiting(reason="x" * (MAX_CONTROL + 1)))
        await exchange(both)
        await rank.send_bulk(block(3), pattern(3))
        await receive_in_order(coordinator, range(1))


@KIT.check("T213", Level.L2, doc=FRAMES)
@both_ways
async def long_messages_pass(bench: Bench, way: Way) -> None:
    """Once a link is up, messages of more than 1 MiB and of nearly 16 MiB come through as they were (N-25)."""
    async with pair(bench, way) as (sender, receiver):
        await exchange(way.ends((sender, receiver)))
        for length in (MAX_HELLO + 1, MAX_CONTROL - NAMES_BYTES)[: bench.times(2, 1)]:
            message = way.large("x" * length)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sender.send, message)
                with accepting(f"a message with a text of {length} letters"):
                    came = await receiver.receive()
            ensure(came == message, f"a message with a text of {length} letters came as {str(came)[:200]}")


@KIT.check("T221", Level.L2, doc=MEMORY)
@both_ways
async def a_block_fills_its_place_and_no_more(bench: Bench, way: Way) -> None:
    """The bytes lie in the very memory that `place` gave, all of it, and not one byte around it is touched."""
    for size in (1, 4097, 3_000_001):
        memory = bytearray(b"\xaa" * (size + 2 * MARGIN))

        def place(header: BulkBlock, memory: bytearray = memory) -> memoryview:
            return memoryview(memory)[MARGIN : MARGIN + header.bytes]

        async with pair(bench, way) as (sender, receiver), trio.open_nursery() as nursery:
            nursery.start_soon(sender.send_bulk, block(size), pattern(size))
            await receiver.receive_bulk(place)
        ensure(memory[MARGIN:-MARGIN] == pattern(size), f"a block of {size} bytes does not lie in its place")
        around = memory[:MARGIN] + memory[-MARGIN:]
        ensure(around == b"\xaa" * (2 * MARGIN), f"bytes beside the memory of a block of {size} bytes have changed")


@KIT.check("T222", Level.L2, doc=MEMORY)
@both_ways
async def memory_of_the_wrong_length_is_the_callers_fault(bench: Bench, way: Way) -> None:
    """A `place` whose memory is not as long as the block gets a `LocalProtocolError`, and nothing is written there."""
    memory = bytearray(3)
    async with pair(bench, way) as (sender, receiver):
        await sender.send_bulk(block(4), pattern(4, 1))
        with raising(LocalProtocolError, "receive_bulk into 3 bytes of a block of 4"):
            await receiver.receive_bulk(lambda header: memoryview(memory))
    ensure(memory == bytes(3), "a block was written into memory of another length")


@KIT.check("T223", Level.L2, doc=MEMORY)
@both_ways
async def sent_memory_may_be_reused(bench: Bench, way: Way) -> None:
    """When `send_bulk` returns, the sender may overwrite the memory; the peer still gets what was sent."""
    count, size = 8, 30_011
    async with pair(bench, way) as (sender, receiver):
        buffer = bytearray(size)

        async def send_from_one_buffer() -> None:
            for number in range(count):
                buffer[:] = pattern(size, number)
                await sender.send_bulk(block(size, offset=number), memoryview(buffer))
                buffer[:] = bytes(size)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_from_one_buffer)
            # Nothing is read before the sender is through or held back: what it still refers to has changed by then.
            await quiet(0.01)
            await receive_in_order(receiver, range(count))


@KIT.check("T231", Level.L2, doc=f"{PAGE}#the-end-of-a-channel")
@both_ways
async def last_words_arrive(bench: Bench, way: Way) -> None:
    """Every message that was sent before an orderly close is received, then the end: a rank that says `Exiting` and
    closes is not taken for dead, and the last order of a coordinator is obeyed (W-24, M-8)."""
    count = 20
    last = way.large("done")
    async with pair(bench, way) as (sender, receiver):

        async def look_at_bulk() -> None:
            with raising(TransportError, "receive_bulk at the end of a channel"):
                await receiver.receive_bulk(Landing())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look_at_bulk)
            for number in range(1, count):
                await sender.send(way.small(number))
            await sender.send(last)
            await sender.aclose()
            try:
                came = [await receiver.receive() for _ in range(count)]
            except TransportError as end:
                ensure(False, f"the last messages before an orderly close were lost: {end}")
            ensure(came[:-1] == [way.small(number) for number in range(1, count)], f"there came {came}")
            ensure(came[-1] == last, f"the last message came as {came[-1]}")
            with due(TransportError, "receive after the last words", bench.evidence_s):
                await receiver.receive()


@KIT.check("T232", Level.L2, doc=f"{PAGE}#the-end-of-a-channel")
async def channels_do_not_mix(bench: Bench) -> None:
    """Many channels at once: each end hears its own peer only, on both lanes."""
    count = bench.times(64, 16)
    async with meet(bench) as met:
        heard: set[int] = set()

        async def rank_number(number: int) -> None:
            rank = await met.transport.dial(met.listener.url, bench.credentials)
            met.dialled.append(rank)
            await rank.send(heartbeat(number))
            await rank.send_bulk(block(1009, rank=number), pattern(1009, number))
            ensure(await rank.receive() == beacon(number), f"rank {number} got the answer to another one")

        async def answer(coordinator: Channel) -> None:
            number = (await coordinator.receive()).step_count
            landing = Landing()
            header = await coordinator.receive_bulk(landing)
            ensure(header.rank == number, f"a channel brought a message of rank {number} and a block of {header.rank}")
            ensure(landing.memory == [pattern(1009, number)], f"the block of rank {number} came with other bytes")
            heard.add(number)
            await coordinator.send(beacon(number))

        async with trio.open_nursery() as nursery:
            for number in range(1, count + 1):
                nursery.start_soon(rank_number, number)
            for _ in range(count):
                nursery.start_soon(answer, await met.arrivals.receive())
        ensure(len(heard) == count, f"of {count} ranks {len(heard)} were heard")
