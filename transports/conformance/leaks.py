"""L3, leaks: what channels, losses, refused and failed dials took, they give back."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import trio

from ...core.conformance import Level, NotChecked, ensure
from ...core.errors import PacelineError, TransportError
from ...core.messages import BulkBlock
from .kit import KIT, PAGE, Bench
from .stage import (
    BLOCK_BYTES,
    UNREAD_BYTES,
    Landing,
    Meeting,
    block,
    cancelled_after,
    exchange,
    meet,
    pattern,
    quiet,
)

__all__ = ["DESCRIPTORS"]

DOC = f"{PAGE}#leaks"
DESCRIPTORS = Path("/proc/self/fd")
MAPPINGS = Path("/proc/self/maps")
SHARED = "/dev/shm/"
LOSES_EVERY = 6
"""Every how many lives a channel is lost inside a block, which takes as long as all the rest of one; and another one
ends with a dial to nobody, which some transports repeat for a while."""
NOBODY_S = 0.3
"""How long that dial may go on."""
CANCELLED = 3
"""Dials of a life that are cancelled on their way, each a turn later than the one before it."""


@KIT.check("T351", Level.L3, doc=DOC)
async def no_descriptor_is_left(bench: Bench) -> None:
    """Channels, losses (inside a block, too), dials that are refused, cancelled on their way or that nobody answers
    give every file descriptor back."""
    _needs(DESCRIPTORS, "descriptors")
    await _stays_level(bench, "file descriptors", lambda: len(os.listdir(DESCRIPTORS)))


@KIT.check("T352", Level.L3, doc=DOC)
async def no_thread_is_left(bench: Bench) -> None:
    """Channels, losses and dials that come to nothing leave no thread but the idle ones of trio's own pool."""
    await _stays_level(bench, "threads", lambda: sum(not _of_trio(each) for each in threading.enumerate()))


def _of_trio(thread: threading.Thread) -> bool:
    return thread.name.startswith("Trio thread")


@KIT.check("T353", Level.L3, doc=DOC)
async def no_shared_segment_is_left(bench: Bench) -> None:
    """Channels, losses and dials that come to nothing leave no segment of shared memory, mapped or named."""
    _needs(MAPPINGS, "mappings")
    others, seen = set(_shared()), set[str]()
    await _stays_level(bench, "shared mappings", lambda: len(_shared()), lambda: seen.update(_shared()))
    left = [path for path in sorted(seen - others) if path.startswith(SHARED) and os.path.exists(path)]
    ensure(left == [], f"segments that this process had mapped are still there, by their names: {left}")


def _shared() -> list[str]:
    """The paths of this process's shared mappings, as the system lists them."""
    lines = (line.split(maxsplit=5) for line in MAPPINGS.read_text().splitlines())
    return [fields[5] if len(fields) > 5 else "" for fields in lines if fields[1].endswith("s")]


def _needs(path: Path, what: str) -> None:
    if not path.exists():
        raise NotChecked(f"this system does not list its {what} at {path}")


async def _stays_level(bench: Bench, what: str, count: Callable[[], int], look: Callable[[], object] = bool) -> None:
    """The same life of channels again and again: what is more after the last than after the first is a leak. What the
    first took for good, such as a pool, is none. `look` is called while a channel is open."""
    lives = bench.times(20, 3)
    levels = []
    with _old_objects_apart():
        for life in range(lives):
            async with meet(bench) as met:
                await _live(met, look)
                if life % LOSES_EVERY == 1:
                    await _lose_inside_a_block(met)
                if life > 0:  # what the first life leaves behind is no growth
                    await _dial_and_cancel(met, range((life - 1) * CANCELLED, life * CANCELLED))
                if life % LOSES_EVERY == 2:
                    await _dial_nobody(met)
            await quiet(0.01)
            gc.collect()
            levels.append(count())
    more = levels[-1] - levels[0]
    ensure(more <= 0, f"{more} more {what} after {lives - 1} more lives of the same channels: {levels}")


@contextmanager
def _old_objects_apart() -> Iterator[None]:
    """What is there already is collected once and then let be: a collection costs as much as the heap of the whole
    process, and that of a test run is large."""
    gc.collect()
    if gc.get_freeze_count():
        yield  # somebody else has done so, and means to keep it
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _live(met: Meeting, look: Callable[[], object]) -> None:
    """Channels that exchange and end from either side, a dial that is refused and one that is cancelled."""
    for which in (0, 1):
        both = await met.join()
        await exchange(both)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(both[0].send_bulk, block(BLOCK_BYTES), pattern(BLOCK_BYTES))
            await both[1].receive_bulk(Landing())
        look()
        await both[which].aclose()
        try:
            await both[1 - which].receive()
        except TransportError:
            await both[1 - which].aclose()
    if met.transport.capabilities.authenticated:
        try:
            await met.transport.dial(met.listener.url, attrs.evolve(met.credentials, token=bytes(32)))
        except PacelineError:
            await trio.lowlevel.checkpoint()
    with trio.CancelScope() as scope:
        scope.cancel()
        await met.transport.dial(met.listener.url, met.credentials)


async def _dial_and_cancel(met: Meeting, after: range) -> None:
    """Dials that are cancelled after so many turns; one that is through by then is closed."""
    for turns in after:
        with cancelled_after(turns):
            rank = await met.transport.dial(met.listener.url, met.credentials)
            with trio.CancelScope(shield=True):
                await rank.aclose()


async def _dial_nobody(met: Meeting) -> None:
    """Close the listener, and dial all the same."""
    await met.listener.aclose()
    with suppress(TransportError), trio.move_on_after(NOBODY_S):
        rank = await met.transport.dial(met.listener.url, met.credentials)
        await rank.aclose()


async def _lose_inside_a_block(met: Meeting) -> None:
    """A channel whose block is cancelled half way, at an end that has no place for what came before it."""

    def place(header: BulkBlock) -> memoryview:
        raise TransportError("this block has no place")

    both = await met.join()
    with suppress(TransportError), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_quiet, scope)
            for offset in range(2 * UNREAD_BYTES // BLOCK_BYTES):
                await both[0].send_bulk(block(BLOCK_BYTES, offset=offset), pattern(BLOCK_BYTES))
    with suppress(TransportError):
        await both[1].receive_bulk(place)
    for end in both:
        await end.aclose()


async def _cancel_when_quiet(scope: trio.CancelScope) -> None:
    await quiet(0.01)
    scope.cancel()
