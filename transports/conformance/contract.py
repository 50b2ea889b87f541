"""L1: types, errors, and calls in every order. What happens to a channel or a listener that nobody disturbs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from ...core.conformance import CheckFailed, Level, accepting, ensure, raising
from ...core.errors import LocalProtocolError, RemoteProtocolError, TransportError
from ...core.messages import Batch, BulkBlock, Exiting, Metrics, SessionIdGenerated
from ..api import Channel, Listener
from .kit import KIT, PAGE, Bench, due, within
from .stage import Flood, Landing, beacon, block, every_call, exchange, heartbeat, meet, pair, pattern, quiet

__all__: list[str] = []

TELLING = (
    Batch(cycle=2**40, plan_id=0, step_count=1, samples=2**31, batch_ms=0.1, data_ms=1e-300, batch_loss=-1.5e300),
    Metrics(cycle=1, plan_ids=(3, 1, 2), epoch=0, batches=1, samples=1, epoch_ms=1 / 3, share_complete_ms=0.0,
            compute_only_ms=2.0**-1074, data_starve_ms=1.0, scalars={"loss/ü": (0.1, 3), "": (-0.0, 0)}, resources={}),
    SessionIdGenerated(session_id=2**40, uid=bytes(range(256))),
)  # fmt: skip
"""Reports in which a field shows that is rounded, cut, re-ordered, or left out because it is nothing."""

ADDRESSES = f"{PAGE}#addresses"
LISTENER = f"{PAGE}#the-listener"
CHANNEL = f"{PAGE}#the-channel"


# --- listening and dialling


@KIT.check("T101", Level.L1, doc=ADDRESSES, gate=True)
async def a_listener_can_be_dialled_at_its_url(bench: Bench) -> None:
    """The listener's `url` is complete: whoever dials it gets a channel, both ends name their peer, and a message
    passes each way."""
    async with meet(bench) as met:
        url = met.listener.url
        ensure(url.startswith(f"{met.transport.scheme}://"), f"the listener's url is {url!r}")
        with within(bench.limit_s, "a dial, and the arrival of its channel at the handler,"):
            both = await met.join()
        for end in both:
            ensure(isinstance(end.peer, str) and end.peer != "", f"a channel's peer is {end.peer!r}")
        with within(bench.limit_s, "a message each way"):
            await exchange(both)


@KIT.check("T102", Level.L1, doc=ADDRESSES)
async def an_address_that_is_taken_is_named(bench: Bench) -> None:
    """Listening where somebody listens is a `TransportError` that names the address, and the first one goes on."""
    async with meet(bench) as met:
        address = met.listener.url.partition("://")[2]
        with raising(TransportError, f"a second listen at {met.listener.url}", naming=[address]):
            await met.transport.listen(met.listener.url, bench.credentials)
        await exchange(await met.join())


@KIT.check("T103", Level.L1, doc=ADDRESSES)
async def an_address_is_free_again_at_once(bench: Bench) -> None:
    """A closed listener leaves its address to the next one, even right after a channel was served there."""
    async with bench.open() as (transport, url):
        for _ in range(2):
            with accepting(f"listen at {url}, where the listener before was closed,"):
                listener = await transport.listen(url, bench.credentials)

            async def answer(channel: Channel) -> None:
                ensure(await channel.receive() == heartbeat(1), "a heartbeat came as something else")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.serve, answer)
                rank = await transport.dial(listener.url, bench.credentials)
                await rank.send(heartbeat(1))
                with raising(TransportError, "receive at a channel whose handler has returned"):
                    await rank.receive()
                await rank.aclose()
                await listener.aclose()
            url = listener.url


@KIT.check("T104", Level.L1, doc=LISTENER)
async def closing_a_listener_ends_serve(bench: Bench) -> None:
    """`Listener.aclose` may be called twice, before `serve`, or while it waits; `serve` then returns."""
    async with bench.open() as (transport, url):
        for early in (True, False):
            listener = await transport.listen(url, bench.credentials)
            if early:
                await listener.aclose()
            with within(bench.evidence_s, "serve of a closed listener"):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(listener.serve, _nobody)
                    await quiet()
                    await listener.aclose()
                    await listener.aclose()


async def _nobody(channel: Channel) -> None:
    ensure(False, "a channel was served though nobody has dialled")


@KIT.check("T105", Level.L1, doc=LISTENER)
async def a_closed_listener_lets_its_channels_go_on(bench: Bench) -> None:
    """Closing the door takes nobody new, and those who are inside are still heard (M-53)."""
    heard: list[object] = []

    async def hear_two(channel: Channel) -> None:
        heard.extend([await channel.receive(), await channel.receive()])

    async with bench.open() as (transport, url):
        listener = await transport.listen(url, bench.credentials)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve, hear_two)
            rank = await transport.dial(listener.url, bench.credentials)
            await rank.send(heartbeat(1))
            await listener.aclose()
            with accepting("a message on a channel whose listener was closed"):
                await rank.send(heartbeat(2))
        await rank.aclose()
    ensure(heard == [heartbeat(1), heartbeat(2)], f"of two heartbeats the handler heard {heard}")


@KIT.check("T106", Level.L1, doc=LISTENER)
async def a_failing_handler_ends_its_own_channel_only(bench: Bench) -> None:
    """What a handler raises closes its channel; `serve` and the other channels go on."""
    async with bench.open() as (transport, url):
        listener = await transport.listen(url, bench.credentials)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve_one_faulty, listener)
            good = await transport.dial(listener.url, bench.credentials)
            bad = await transport.dial(listener.url, bench.credentials)
            await bad.send(heartbeat(1))
            with raising(TransportError, "receive at a channel whose handler has failed"):
                await bad.receive()
            await good.send(heartbeat(2))
            ensure(await good.receive() == beacon(2), "the other channel did not go on")
            await good.aclose()
            await bad.aclose()
            await listener.aclose()


async def _serve_one_faulty(listener: Listener) -> None:
    async def handler(channel: Channel) -> None:
        number = (await channel.receive()).step_count
        if number == 1:
            raise ValueError("the fault that the conformance kit plants in one handler")
        await channel.send(beacon(number))
        await channel.receive()

    try:
        await listener.serve(handler)
    except* (ValueError, TransportError) as group:
        ensure(False, f"serve ended by what a handler raised: {group.exceptions[0]}")


@KIT.check("T107", Level.L1, doc=ADDRESSES)
async def credentials_of_the_wrong_shape_are_the_callers_fault(bench: Bench) -> None:
    """A run id or token of the wrong length is a `LocalProtocolError` of `listen` and `dial`, no failed link (N-22)."""
    wrong_shapes = {
        "run_id": attrs.evolve(bench.credentials, run_id=b"short"),
        "token": attrs.evolve(bench.credentials, token=b"short"),
        "bulk_auth": attrs.evolve(bench.credentials, bulk_auth="none"),
    }
    async with meet(bench) as met, bench.open() as (transport, url):
        for field, wrong in wrong_shapes.items():
            with raising(LocalProtocolError, f"listen with a {field} that is none"):
                await transport.listen(url, wrong)
            with raising(LocalProtocolError, f"dial with a {field} that is none"):
                await met.transport.dial(met.listener.url, wrong)
        await exchange(await met.join())


# --- a channel


@KIT.check("T111", Level.L1, doc=CHANNEL)
async def closing_a_channel_may_be_repeated(bench: Bench) -> None:
    """`aclose` is idempotent, works in a cancelled task, and later calls are `TransportError`s that name the peer."""
    async with meet(bench) as met:
        rank, coordinator = await met.join()
        with trio.CancelScope() as scope:
            scope.cancel()
            await rank.aclose()
        try:
            await rank.aclose()
        except Exception as error:
            raise CheckFailed(f"a second aclose raised {type(error).__name__}: {error}") from error
        with due(TransportError, "receive at the peer of a closed channel", bench.evidence_s):
            await coordinator.receive()
        await coordinator.aclose()
        for end, message in ((rank, heartbeat(1)), (coordinator, beacon(1))):
            for name, call in every_call(end, message).items():
                with raising(TransportError, f"{name} after aclose", naming=[end.peer]):
                    await call()


@KIT.check("T112", Level.L1, doc=CHANNEL)
async def closing_wakes_what_waits(bench: Bench) -> None:
    """Everything that is blocked on a channel gets `TransportError` when the channel is closed here."""
    woken: list[str] = []
    async with pair(bench) as (rank, _):

        async def blocked(name: str, call: Callable[[], Awaitable[object]]) -> None:
            with raising(TransportError, f"{name}, blocked while its channel was closed,"):
                await call()
            woken.append(name)

        calls = {
            "receive": rank.receive,
            "receive_bulk": lambda: rank.receive_bulk(Landing()),
            "send_bulk": Flood(rank).run,
            "a send_bulk behind another": Flood(rank).run,
        }
        with within(bench.evidence_s, "a call that was blocked while its channel was closed"):
            async with trio.open_nursery() as nursery:
                for name, call in calls.items():
                    nursery.start_soon(blocked, name, call)
                await quiet(0.01)
                await rank.aclose()
    ensure(set(woken) == set(calls), f"only {woken} woke")


@KIT.check("T113", Level.L1, doc=CHANNEL)
async def misuse_is_refused_and_changes_nothing(bench: Bench) -> None:
    """A second reader, memory of the wrong length or shape and a message of the other role are `LocalProtocolError`s,
    and the channel goes on (N-7)."""
    async with pair(bench) as (rank, coordinator):
        with raising(LocalProtocolError, "send_bulk of 5 bytes as a block of 4"):
            await rank.send_bulk(block(4), pattern(5))
        with raising(LocalProtocolError, "send_bulk of two-dimensional memory"):
            await rank.send_bulk(block(4), pattern(4).cast("B", (2, 2)))
        with raising(LocalProtocolError, "a beacon sent by a rank"):
            await rank.send(beacon(1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(coordinator.receive)
            nursery.start_soon(coordinator.receive_bulk, Landing())
            await quiet()
            with within(bench.evidence_s, "a second receive on a lane"):
                with raising(LocalProtocolError, "a second receive"):
                    await coordinator.receive()
                with raising(LocalProtocolError, "a second receive_bulk"):
                    await coordinator.receive_bulk(Landing())
            await rank.send(heartbeat(1))
            await rank.send_bulk(block(4), pattern(4))


@KIT.check("T114", Level.L1, doc=CHANNEL)
async def a_block_without_a_place_ends_its_channel(bench: Bench) -> None:
    """What `place` raises comes out of `receive_bulk` and ends the channel: a block cannot be skipped."""
    for refusal in (RemoteProtocolError("outside the schema"), ValueError("no such entry")):
        async with pair(bench) as (rank, coordinator):

            def place(header: BulkBlock, refusal: Exception = refusal) -> memoryview:
                raise refusal

            await rank.send_bulk(block(4), pattern(4))
            with raising(type(refusal), "receive_bulk whose place has refused", naming=[str(refusal)]):
                await coordinator.receive_bulk(place)
            for end in (coordinator, rank):
                with due(TransportError, "receive after a refused block", bench.evidence_s):
                    await end.receive()


@KIT.check("T115", Level.L1, doc=CHANNEL)
async def messages_come_as_they_were(bench: Bench) -> None:
    """A message is received with every field as it was sent: large and small numbers, fractions, bytes, maps, text of
    any script, nothing."""
    texts = ("", "done", "außer Tritt, 時間, 🚲", "x" * 900_000)
    async with pair(bench) as (rank, coordinator):
        for text in texts:
            message = Exiting(reason=text, report_seq=2**53 + 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rank.send, message)
                ensure(await coordinator.receive() == message, f"Exiting with a reason of {len(text)} letters changed")
        for told in TELLING:
            await rank.send(told)
            came = await coordinator.receive()
            ensure(came == told, f"{told} came as {came}")
