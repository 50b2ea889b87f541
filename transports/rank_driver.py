"""The trio driver of a worker, between a channel and a training process that lives in another thread.

The worker machine is shared: the training thread feeds it steps and takes orders, the trio thread feeds it messages
and ticks. A lock makes each feed one act, reports leave through the writer in the order in which the machine made
them (N-3), orders reach the training thread in the order of the machine. So a heartbeat is never late because a step
is long, and a step never pays for a thread switch: it feeds the machine where it is.

Clock and writer are two tasks. A writer that is held up by a coordinator which reads nothing must not stop the clock
that judges how long the coordinator has been silent (W-22).
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from ..core import effects as fx
from ..core import events as ev
from ..core.errors import RemoteProtocolError, TransportError
from ..core.phases import WorkerPhase
from ..core.worker import Worker
from .api import Channel

__all__ = ["RankDriver"]

FLUSH_S = 5.0
"""How long the last reports (`Exiting` among them) may take to leave."""
OUTGOING_LIMIT = 4096
"""Reports that may wait for the writer; more end the incarnation as overflow (N-9)."""
LEAST_TICK_S = 0.01
"""Pause after a tick: a deadline that a tick does not move must not keep this thread from everything else."""


class RankDriver:
    """One incarnation's worker over one channel. Made in the trio thread; `feed` and `orders` are for any thread.
    `keep` gets each batch of the machine before any effect of it is performed."""

    def __init__(
        self,
        worker: Worker,
        channel: Channel,
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[fx.Ready], None] | None = None,
    ) -> None:
        self.worker = worker
        self.orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._channel = channel
        self._clock = clock
        self._keep = keep
        self._lock = threading.Lock()
        self._outgoing: deque[Any] = deque()
        self._token = trio.lowlevel.current_trio_token()
        self._news = trio.Event()
        self._flushed = trio.Event()
        self._kick_due = False

    def feed(self, event: Any) -> None:
        """One event into the machine, from any thread; its reports and orders are on their way when this returns.
        Raises `LocalProtocolError`, nothing changed, for an event that cannot happen now."""
        with self._lock:
            self._handle(event)
            if len(self._outgoing) > OUTGOING_LIMIT:
                self._handle(ev.LinkLost(cause="overflow: the coordinator takes no reports (N-9)"))
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
            else:
                self.orders.put(effect)

    def _kick(self) -> None:
        """In the trio thread. What is fed from here on kicks again, what was fed before is seen by whom this wakes."""
        self._kick_due = False
        self._news.set()
        self._news = trio.Event()

    async def run(self) -> None:
        """Read, write and tick until the worker has stopped and its last report has left, or the link is lost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            nursery.start_soon(self._write)
            await self._tick()
            with trio.move_on_after(FLUSH_S):
                await self._flushed.wait()
            nursery.cancel_scope.cancel()
        await self._channel.aclose()

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
                return
            if due is not None and self._clock() >= due:
                self.feed(ev.Tick())
                await trio.sleep(LEAST_TICK_S)
                continue
            with trio.move_on_after(float("inf") if due is None else due - self._clock()):
                await news.wait()

    async def _read(self) -> None:
        try:
            while True:
                self.feed(ev.Received(await self._channel.receive()))
        except TransportError as error:
            self.feed(ev.LinkLost(cause=str(error)))
        except RemoteProtocolError as error:
            self.feed(ev.LinkLost(cause=f"the coordinator broke the protocol: {error}"))

    async def _write(self) -> None:
        """The only writer of the report lane (N-4)."""
        try:
            while True:
                stopped, _, news = self._look()
                while self._outgoing:
                    await self._channel.send(self._outgoing[0])
                    self._outgoing.popleft()
                if stopped:
                    break
                await news.wait()
        except TransportError as error:
            self.feed(ev.LinkLost(cause=str(error)))
        self._flushed.set()
