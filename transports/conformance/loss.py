"""L3, the end of a channel: told at once, told once, and nothing after it."""

from __future__ import annotations

from contextlib import suppress

import trio

from ...core.conformance import CheckFailed, Level, accepting, ensure, raising
from ...core.errors import TransportError
from ..api import Channel
from .kit import KIT, PAGE, Bench, due, within
from .stage import (
    UP,
    Flood,
    Landing,
    Way,
    block,
    both_ways,
    every_call,
    exchange,
    heartbeat,
    meet,
    pair,
    pattern,
    quiet,
    receive_in_order,
)

__all__: list[str] = []

DOC = f"{PAGE}#the-end-of-a-channel"


@KIT.check("T311", Level.L3, doc=DOC)
@both_ways
async def the_end_is_told_to_both_lanes(bench: Bench, way: Way) -> None:
    """When the peer closes, what waits on either lane, a sender that is held back too, gets one `TransportError` that
    names the peer, within the time for evidence (M-17)."""
    told: dict[str, str] = {}

    async with pair(bench, way) as (closing, hearing):
        calls = every_call(hearing, way.answer(1))
        calls["send_bulk"] = Flood(hearing).run

        async def wait(name: str) -> None:
            with raising(TransportError, f"{name}, blocked while the peer closed,", naming=[hearing.peer]) as raised:
                await calls[name]()
            told[name] = str(raised[0])

        waiting = ("receive", "receive_bulk", "send_bulk")
        with within(bench.evidence_s, "the news that the peer has closed"):
            async with trio.open_nursery() as nursery:
                for name in waiting:
                    nursery.start_soon(wait, name)
                await quiet(0.02)
                await closing.aclose()
    ensure(len(set(told.values())) == 1, f"the end of one channel was told as {told}")


@KIT.check("T312", Level.L3, doc=DOC)
@both_ways
async def the_end_is_told_on_bulk_alone(bench: Bench, way: Way) -> None:
    """Who only waits for blocks hears of the end too, within the time for evidence (M-17)."""
    async with pair(bench, way) as (closing, hearing):
        await closing.aclose()
        with due(TransportError, "receive_bulk at a channel whose peer has closed", bench.evidence_s):
            await hearing.receive_bulk(Landing())


@KIT.check("T313", Level.L3, doc=DOC)
@both_ways
async def a_channel_has_one_end_with_one_cause(bench: Bench, way: Way) -> None:
    """The loss is told once: whatever is called later, and whichever end closes then, has the same cause, in the same
    words; a block that had come by then is not handed out any more (M-17)."""
    async with pair(bench, way) as (closing, hearing):
        await closing.send_bulk(block(10), pattern(10))
        await closing.aclose()
        first = await _cause(hearing, "receive", way, bench)
        for _ in range(2):
            for name in every_call(hearing, way.answer(1)):
                again = await _cause(hearing, name, way, bench)
                ensure(again == first, f"a channel that had ended with {first!r} told {name} of another end: {again!r}")
            await hearing.aclose()


async def _cause(channel: Channel, name: str, way: Way, bench: Bench) -> str:
    try:
        with within(bench.evidence_s, f"{name} at a channel that has ended"):
            await every_call(channel, way.answer(1))[name]()
    except TransportError as error:
        return str(error)
    raise CheckFailed(f"{name} at a channel that has ended raised nothing")


@KIT.check("T314", Level.L3, doc=DOC)
async def a_handler_runs_once_for_each_dial(bench: Bench) -> None:
    """One dial is one channel is one run of the handler, before and after its end."""
    served: list[str] = []

    async def handler(channel: Channel) -> None:
        served.append(channel.peer)
        try:
            while True:
                await channel.receive()
        except TransportError:
            return

    dials = 3
    async with bench.open() as (transport, url):
        listener = await transport.listen(url, bench.credentials)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve, handler)
            for number in range(dials):
                rank = await transport.dial(listener.url, bench.credentials)
                await rank.send(heartbeat(number))
                await rank.aclose()
            with within(bench.evidence_s, f"the handler, run {len(served)} times for {dials} dials,"):
                while len(served) < dials:
                    await trio.sleep(0.01)
            await quiet(0.05)
            await listener.aclose()
    ensure(len(served) == dials, f"for {dials} dials the handler ran {len(served)} times")


@KIT.check("T315", Level.L3, doc=DOC)
@both_ways
async def nothing_is_delivered_after_close(bench: Bench, way: Way) -> None:
    """What had arrived and was not taken when this end closed is gone, on both lanes."""
    async with pair(bench, way) as (sender, receiver):
        for number in (1, 2, 3):
            await sender.send(way.small(number))
            await sender.send_bulk(block(10, offset=number), pattern(10))
        ensure(await receiver.receive() == way.small(1), "a small message came as something else")
        await receiver.receive_bulk(Landing())
        await receiver.aclose()
        with within(bench.evidence_s, "a call on a closed channel"):
            with raising(TransportError, "receive on a closed channel into which messages had come"):
                await receiver.receive()
            with raising(TransportError, "receive_bulk on a closed channel into which blocks had come"):
                await receiver.receive_bulk(Landing())


@KIT.check("T316", Level.L3, doc=DOC)
async def a_loss_concerns_one_channel_only(bench: Bench) -> None:
    """Of many ranks some close; the channels of the others go on."""
    count = bench.times(32, 8)
    async with meet(bench) as met:
        pairs = [await met.join() for _ in range(count)]
        for rank, _ in pairs[::2]:
            await rank.aclose()
        for number, (rank, coordinator) in enumerate(pairs[1::2], 1):
            with accepting("a message on a healthy channel beside lost ones"):
                await rank.send(heartbeat(number))
                came = await coordinator.receive()
            ensure(came == heartbeat(number), f"a healthy channel beside lost ones brought {came}")
        for _, coordinator in pairs[::2]:
            await _cause(coordinator, "receive", UP, bench)


@KIT.check("T317", Level.L3, doc=DOC)
@both_ways
async def a_new_channel_begins_anew(bench: Bench, way: Way) -> None:
    """What was under way when a channel ended, or was sent into its end, never comes on the next one: a rank that comes
    back says again what is missing (N-3, M-42)."""
    async with meet(bench) as met:
        sender, receiver = way.ends(await met.join())
        for number in (11, 12):
            await sender.send(way.small(number))
            await sender.send_bulk(block(10, offset=number), pattern(10, number))
        await receiver.aclose()
        await _cause(sender, "receive", way, bench)
        for call in every_call(sender, way.small(13)).values():
            with suppress(TransportError):
                await call()
        await sender.aclose()
        again = await met.join()
        await exchange(again)
        sender, receiver = way.ends(again)
        await sender.send_bulk(block(10), pattern(10))
        with within(bench.evidence_s, "a block on a channel that followed a lost one"):
            await receive_in_order(receiver, range(1))
