"""The trio driver of a worker, between its links and a training process that lives in another thread.

The worker machine is shared: the training thread feeds it steps and takes orders, the trio thread feeds it messages
and ticks. A lock makes each feed one act, reports leave through the writer in the order in which the machine made
them (N-3), orders reach the training thread in the order of the machine. So a heartbeat is never late because a step
is long, and a step never pays for a thread switch: it feeds the machine where it is.

Clock and writer are two tasks. A writer that is held up by a coordinator which reads nothing must not stop the clock
that judges how long the coordinator has been silent (W-22).

A worker outlives its link (W-21). One link after the other is served by the same tasks; between two of them the driver
carries out the machine's orders to dial. What was to be written when a link broke is dropped: the machine keeps it, and
orders it again once the coordinator has said what it lacks (M-42).
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ..core import effects as fx
from ..core import events as ev
from ..core.errors import RefusedError, RemoteProtocolError, TransportError
from ..core.messages import Reject, ResumeClaim, Welcome
from ..core.phases import WorkerPhase
from ..core.worker import Worker
from .api import Channel

__all__ = ["Answer", "Dialler", "RankDriver"]

FLUSH_S = 5.0
"""How long the last reports (`Exiting` among them) may take to leave."""
LEAST_TICK_S = 0.01
"""Pause after a tick: a deadline that a tick does not move must not keep this thread from everything else."""

Answer = tuple[Channel, Welcome | Reject]
"""A new channel, and what the coordinator said to the Hello on it."""
Dialler = Callable[[int, Callable[[], ResumeClaim | None]], Awaitable[Answer]]
"""Dials once and says Hello: given the seat to ask for, and where to get the claim at the moment of the Hello. Raises
`TransportError` or `RemoteProtocolError` when that failed, `RefusedError` when trying again is no use."""


class RankDriver:
    """One worker over one channel after the other, beginning with `channel`. Made in the trio thread; `feed` and
    `orders` are for any thread. `keep` gets each batch of the machine before any effect of it is performed. `dial`
    looks for the coordinator when a link is lost; without it a lost link is one try after the other that fails.
    `beside` is run with each channel, for its bulk lane, and cancelled when it ends."""

    def __init__(
        self,
        worker: Worker,
        channel: Channel,
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[fx.Ready], None] | None = None,
        *,
        dial: Dialler | None = None,
        beside: Callable[[Channel], Awaitable[None]] | None = None,
    ) -> None:
        self.worker = worker
        self.orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.beside = beside
        self._channel = channel
        self._dial = dial or _nowhere
        self._clock = clock
        self._keep = keep
        self._lock = threading.Lock()
        self._outgoing: deque[Any] = deque()
        self._next_try: float | None = None
        self._search = trio.CancelScope()
        self._token = trio.lowlevel.current_trio_token()
        self._news = trio.Event()
        self._kick_due = False

    def feed(self, event: Any) -> None:
        """One event into the machine, from any thread; its reports and orders are on their way when this returns.
        Raises `LocalProtocolError`, nothing changed, for an event that cannot happen now."""
        with self._lock:
            self._handle(event)
            kick = not self._kick_due
            self._kick_due = True
        if kick:
            try:
                self._token.run_sync_soon(self._kick)
            except trio.RunFinishedError:
                return  # the link is gone and the machine knows; nobody is left to send to

    def _handle(self, event: Any) -> None:
        self.worker.handle(event, self._clock())
        ready = self.worker.take_ready()
        if self._keep is not None:
            self._keep(ready)
        for effect in ready.effects:
            if isinstance(effect, fx.Reporting):
                self._outgoing.append(effect.report)
            elif isinstance(effect, fx.Dial):
                self._next_try = self._clock() + effect.after_s
            else:
                self.orders.put(effect)
        if not self.worker.linked:
            self._outgoing.clear()

    def _kick(self) -> None:
        """In the trio thread. What is fed from here on kicks again, what was fed before is seen by whom this wakes."""
        self._kick_due = False
        self._news.set()
        self._news = trio.Event()

    async def run(self) -> None:
        """Read, write, tick, and dial again, until the worker has stopped and its last report has left."""
        channel: Channel | None = self._channel
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick)
            while channel is not None:
                await self._serve(channel)
                channel, self._search = None, trio.CancelScope()
                with self._search:
                    channel = await self._look_for_coordinator()

    def _look(self) -> tuple[bool, float | None, trio.Event]:
        """Whether the worker has stopped, when it wants a tick, and what wakes whoever waits for more. Once it has
        stopped, all its reports are in the queue: a feed ends before the next look begins."""
        with self._lock:
            return self.worker.phase == WorkerPhase.STOPPED, self.worker.poll_timeout(), self._news

    async def _tick(self) -> None:
        """The clock, until the worker has stopped."""
        while True:
            stopped, due, news = self._look()
            if stopped:
                self._search.cancel()  # a try may take long, and nobody waits for its answer any more
                return
            if due is not None and self._clock() >= due:
                self.feed(ev.Tick())
                await trio.sleep(LEAST_TICK_S)
                continue
            with trio.move_on_after(float("inf") if due is None else due - self._clock()):
                await news.wait()

    # --- one link --------------------------------------------------------------------------------------------------

    async def _serve(self, channel: Channel) -> None:
        """Until the link is lost, or the worker has stopped and its last report is out."""
        flushed = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, channel)
                nursery.start_soon(self._write, channel, flushed)
                if self.beside is not None:
                    nursery.start_soon(self.beside, channel)
                while True:
                    stopped, _, news = self._look()
                    if stopped or not self.worker.linked:
                        break
                    await news.wait()
                if stopped:
                    with trio.move_on_after(FLUSH_S):
                        await flushed.wait()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await channel.aclose()

    async def _read(self, channel: Channel) -> None:
        try:
            while True:
                self.feed(ev.Received(await channel.receive()))
        except TransportError as error:
            self.feed(ev.LinkLost(cause=str(error)))
        except RemoteProtocolError as error:
            self.feed(ev.LinkLost(cause=f"the coordinator broke the protocol: {error}"))

    async def _write(self, channel: Channel, flushed: trio.Event) -> None:
        """The only writer of the report lane (N-4). A report stays in the queue until it has left."""
        try:
            while True:
                stopped, _, news = self._look()
                while self._outgoing:
                    report = self._outgoing[0]
                    await channel.send(report)
                    with self._lock:  # the link may have been lost meanwhile, and with it what waited
                        if self._outgoing and self._outgoing[0] is report:
                            self._outgoing.popleft()
                if stopped:
                    break
                await news.wait()
        except TransportError as error:
            self.feed(ev.LinkLost(cause=str(error)))
        flushed.set()

    # --- between two links -----------------------------------------------------------------------------------------

    async def _look_for_coordinator(self) -> Channel | None:
        """Dial as the machine orders, until it is linked again or has stopped."""
        while await self._time_to_dial():
            try:
                channel, answer = await self._dial(self.worker.settings.rank, self._claim)
            except RefusedError as error:
                self.feed(ev.Received(Reject(code=error.code, text=str(error), retry=error.retry)))
            except (TransportError, RemoteProtocolError) as error:
                self.feed(ev.LinkLost(cause=str(error)))
            else:
                self.feed(ev.Received(answer))
                if self.worker.linked and self.worker.phase != WorkerPhase.STOPPED:
                    return channel
                await channel.aclose()
        return None

    async def _time_to_dial(self) -> bool:
        """Wait for the instant of the next try; False when the worker has stopped."""
        while True:
            stopped, _, news = self._look()
            if stopped:
                return False
            if self._next_try is not None and self._clock() >= self._next_try:
                self._next_try = None
                return True
            with trio.move_on_after(float("inf") if self._next_try is None else self._next_try - self._clock()):
                await news.wait()

    def _claim(self) -> ResumeClaim | None:
        with self._lock:
            return self.worker.claim()


async def _nowhere(rank: int, claim: Callable[[], ResumeClaim | None]) -> Answer:
    raise TransportError("there is no way to dial the coordinator from here")
