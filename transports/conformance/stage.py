"""What checks and tests of transports have in common: a meeting of both ends, and traffic in which damage shows."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import attrs
import trio

from ...core.conformance import CheckFailed, accepting, ensure
from ...core.conformance.blame import leaves
from ...core.errors import TransportError
from ...core.messages import Beacon, BulkBlock, Exiting, Heartbeat, RoundKey, RoundKind, SaveConsensusModel
from ..api import Channel, Credentials, Listener, Transport
from .kit import Bench, Pair, within

__all__ = [
    "BLOCK_BYTES",
    "DOWN",
    "UNREAD_BYTES",
    "UP",
    "Flood",
    "Landing",
    "Meeting",
    "Way",
    "beacon",
    "block",
    "both_ways",
    "cancelled_after",
    "clogged",
    "every_call",
    "exchange",
    "heartbeat",
    "meet",
    "meeting",
    "pair",
    "pattern",
    "quiet",
    "receive_in_order",
]

BLOCK_BYTES = 512 * 1024
"""One block of a flood: below the size from which `framed` computes tags in a thread."""

FLOOD_S = 12.0
"""In what time a sender whose peer reads nothing stands still, or is seen to be free."""

UNREAD_BYTES = 64 * 1024 * 1024
"""More than any transport may take from a sender whose peer reads nothing. A socket on loopback takes 3 to 6 MiB."""


def heartbeat(number: int) -> Heartbeat:
    """A small report that can be told from others."""
    return Heartbeat(step_count=number, state="training", report_seq=number)


def beacon(number: int) -> Beacon:
    """A small control message that can be told from others."""
    return Beacon(run_phase=1, cycle_phase=2, cycle=number, control_seq=number)


@attrs.frozen(kw_only=True)
class Way:
    """One of the two directions of a channel, for checks of what is promised in both.

    Fields:
        name: how a failure tells it from the other.
        ends: from (rank, coordinator) the end that sends, and the end that receives; and back.
        small: a message of the sender that can be told from others by its number.
        answer: one of the receiver.
        large: a message of the sender with a text, as long as may be.
    """

    name: str
    ends: Callable[[Pair], Pair]
    small: Callable[[int], object]
    answer: Callable[[int], object]
    large: Callable[[str], object]


UP = Way(name="from a rank to its coordinator", ends=lambda both: both, small=heartbeat, answer=beacon,
         large=lambda text: Exiting(reason=text))  # fmt: skip
DOWN = Way(
    name="from the coordinator to a rank", ends=lambda both: both[::-1], small=beacon, answer=heartbeat,
    large=lambda text: SaveConsensusModel(decision_id=1, version=1, target_rank=0, cycle=1, stem=text),
)  # fmt: skip


def both_ways(body: Callable[[Bench, Way], Awaitable[None]]) -> Callable[[Bench], Awaitable[None]]:
    """A check that is made in both directions, the rank's first; what fails says in which."""

    @functools.wraps(body)
    async def check(bench: Bench) -> None:
        for way in (UP, DOWN):
            try:
                await body(bench, way)
            except* CheckFailed as failed:
                text = next(str(leaf) for leaf in leaves(failed))
                raise CheckFailed(f"{way.name}: {text}") from failed

    return check


def block(size: int, *, rank: int = 0, offset: int = 0) -> BulkBlock:
    """The header of a block of `size` bytes."""
    return BulkBlock(
        key=RoundKey(generation=1, cycle=1, kind=RoundKind.PARAMS),
        attempt=0,
        rank=rank,
        incarnation=1,
        entry=0,
        offset=offset,
        bytes=size,
    )


def pattern(size: int, seed: int = 0) -> memoryview:
    """Bytes in which a piece that is missing, doubled or moved shows: the period is a prime."""
    row = bytes((seed + 7 * index) % 251 for index in range(251))
    return memoryview((row * (size // 251 + 1))[:size])


@attrs.define
class Landing:
    """A `Place` that remembers the headers and keeps the memory."""

    blocks: list[BulkBlock] = attrs.field(factory=list)
    memory: list[bytearray] = attrs.field(factory=list)

    def __call__(self, header: BulkBlock) -> memoryview:
        self.blocks.append(header)
        self.memory.append(bytearray(header.bytes))
        return memoryview(self.memory[-1])


@attrs.define
class Meeting:
    """A listener that serves, and the way to get more channels to it."""

    transport: Transport
    listener: Listener
    credentials: Credentials
    arrivals: trio.MemoryReceiveChannel[Channel]
    nursery: trio.Nursery
    dialled: list[Channel] = attrs.field(factory=list)

    async def join(self) -> Pair:
        """Both ends of a new channel: the rank's and the coordinator's."""
        rank = await self.transport.dial(self.listener.url, self.credentials)
        self.dialled.append(rank)
        return rank, await self.arrivals.receive()


@asynccontextmanager
async def meeting(transport: Transport, url: str, credentials: Credentials) -> AsyncIterator[Meeting]:
    """A listener whose handler hands its channel to the caller and keeps it open until the meeting is over."""
    listener = await transport.listen(url, credentials)
    arriving, arrivals = trio.open_memory_channel[Channel](1024)

    async def hand_over(channel: Channel) -> None:
        arriving.send_nowait(channel)
        await trio.sleep_forever()

    with arriving, arrivals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve, hand_over)
            met = Meeting(transport, listener, credentials, arrivals, nursery)
            try:
                yield met
            finally:
                with trio.CancelScope(shield=True):
                    await listener.aclose()
                    for channel in met.dialled:
                        # That closing may be repeated is a check of its own, and must not hide what this one found.
                        with suppress(Exception):
                            await channel.aclose()
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def meet(bench: Bench) -> AsyncIterator[Meeting]:
    """A meeting over a fresh transport of the bench."""
    async with (
        bench.open() as (transport, url),
        meeting(transport, url, bench.credentials) as met,
    ):
        yield met


async def quiet(cushion_s: float = 0.0) -> None:
    """Return when every task here has been blocked for so long."""
    # Imported late: trio.testing loads pytest where it is installed, and a process that plays a peer needs neither.
    from trio.testing import wait_all_tasks_blocked

    await wait_all_tasks_blocked(cushion_s)


@attrs.define(eq=False)
class _Turns(trio.abc.Instrument):
    """Cancels a scope once the loop has taken so many turns. It does so between two of them: a task that did it would
    take its own step before or after that of the task it cancels, as chance has it, for trio mixes those of a turn."""

    scope: trio.CancelScope
    left: int

    def after_io_wait(self, timeout: float) -> None:
        if self.left == 0:
            self.scope.cancel()
        self.left -= 1


@contextmanager
def cancelled_after(turns: int) -> Iterator[None]:
    """Cancel what is inside when the loop has taken so many turns, at the same point in every run."""
    with trio.CancelScope() as scope:
        watch = _Turns(scope, turns)
        trio.lowlevel.add_instrument(watch)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(watch)


async def exchange(pair: Pair, number: int = 1) -> None:
    """One message each way; what shows that a channel is well."""
    rank, coordinator = pair
    with accepting("a message each way on a channel that should be well"):
        await rank.send(heartbeat(number))
        ensure(await coordinator.receive() == heartbeat(number), "a heartbeat came as something else")
        await coordinator.send(beacon(number))
        ensure(await rank.receive() == beacon(number), "a beacon came as something else")


def every_call(channel: Channel, message: object) -> dict[str, Callable[[], Awaitable[object]]]:
    """What a channel can do, by name."""
    return {
        "send": lambda: channel.send(message),
        "receive": channel.receive,
        "send_bulk": lambda: channel.send_bulk(block(1), pattern(1)),
        "receive_bulk": lambda: channel.receive_bulk(Landing()),
    }


async def receive_in_order(channel: Channel, numbers: range, *, rank: int = 0) -> None:
    """These blocks of a flood, one after the other, each as it was sent."""
    for number in numbers:
        landing = Landing()
        header = await channel.receive_bulk(landing)
        ensure(header.offset == number, f"block {header.offset} came where {number} is due")
        ensure(landing.memory[-1] == pattern(header.bytes, number), f"block {number} came with other bytes")


@attrs.define
class Flood:
    """An end that sends blocks without end, how many of them it was told are gone, and how many were read."""

    channel: Channel
    sent: int = 0
    read: int = 0
    began: int = 0
    size: int = BLOCK_BYTES

    async def run(self) -> None:
        """Send until `UNREAD_BYTES` are gone and not read: then somebody holds them in memory without a bound."""
        while not self.free:
            self.began = self.sent + 1
            await self.channel.send_bulk(block(self.size, offset=self.sent), pattern(self.size, self.sent))
            self.sent += 1

    @property
    def free(self) -> bool:
        """Whether more was taken from this sender than any transport may."""
        return (self.sent - self.read) * self.size >= UNREAD_BYTES

    async def until_stuck(self, bench: Bench) -> None:
        """Return when it makes no progress for a while; `CheckFailed` when it is never held back."""
        with within(bench.patiently(FLOOD_S), "a sender without a reader was neither held back nor free: it"):
            seen = -1
            while seen != self.sent:
                seen = self.sent
                await quiet(0.02)
        if self.free:
            raise CheckFailed(f"took {UNREAD_BYTES >> 20} MiB from a sender whose peer read nothing: no back-pressure")


@asynccontextmanager
async def pair(bench: Bench, way: Way = UP) -> AsyncIterator[Pair]:
    """Both ends of the only channel of a meeting, the sender's first."""
    async with meet(bench) as met:
        yield way.ends(await met.join())


@asynccontextmanager
async def clogged(bench: Bench, way: Way = UP) -> AsyncIterator[tuple[Channel, Channel, Flood, trio.Nursery]]:
    """A channel whose bulk lane is full, its sender stuck inside a block; the sender's end first."""
    given = bench.clogged if way is UP else None
    async with (given or (lambda: pair(bench, way)))() as (sender, receiver), trio.open_nursery() as nursery:
        flood = Flood(sender)

        async def run_flood() -> None:
            try:
                await flood.run()
            except TransportError:
                # The check ends the channel; what matters then is what the other end was given.
                return

        nursery.start_soon(run_flood)
        await flood.until_stuck(bench)
        yield sender, receiver, flood, nursery
        nursery.cancel_scope.cancel()
