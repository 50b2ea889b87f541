"""The trio driver of a worker, between a channel and a training process that lives in another thread.

The worker machine is shared: the training thread feeds it steps and takes orders, the trio thread feeds it messages
and ticks. A lock makes each feed one act, reports leave through the writer in the order in which the machine made
them (N-3), orders reach the training thread in the order of the machine. So a heartbeat is never late because a step
is long, and a step never pays for a thread switch: it feeds the machine where it is.
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


class RankDriver:
    """One incarnation's worker over one channel. Made in the trio thread; `feed` and `orders` are for any thread."""

    def __init__(self, worker: Worker, channel: Channel, clock: Callable[[], float] = time.monotonic) -> None:
        self.worker = worker
        self.orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._channel = channel
        self._clock = clock
        self._lock = threading.Lock()
        self._outgoing: deque[Any] = deque()
        self._kicked = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._kick_due = False

    def feed(self, event: Any) -> None:
        """One event into the machine, from any thread; its reports and orders are on their way when this returns."""
        with self._lock:
            self.worker.handle(event, self._clock())
            for effect in self.worker.take_ready().effects:
                if isinstance(effect, fx.Reporting):
                    self._outgoing.append(effect.report)
                else:
                    self.orders.put(effect)
            kick = not self._kick_due
            self._kick_due = True
        if kick:
            try:
                self._token.run_sync_soon(self._kick, idempotent=True)
            except trio.RunFinishedError:
                return  # the link is gone and the machine knows; nobody is left to send to

    def _kick(self) -> None:
        self._kick_due = False
        self._kicked.set()

    async def run(self) -> None:
        """Read, write and tick until the worker has stopped and its last report has left, or the link is lost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            await self._write()
            nursery.cancel_scope.cancel()
        await self._channel.aclose()

    async def _read(self) -> None:
        try:
            while True:
                self.feed(ev.Received(await self._channel.receive()))
        except TransportError as error:
            self.feed(ev.LinkLost(cause=str(error)))
        except RemoteProtocolError as error:
            self.feed(ev.LinkLost(cause=f"the coordinator broke the protocol: {error}"))

    async def _write(self) -> None:
        """The writer and the clock: it wakes for reports, and when the machine's deadline is due."""
        while True:
            while self._outgoing:
                with trio.move_on_after(FLUSH_S) as patience:
                    try:
                        await self._channel.send(self._outgoing[0])
                    except TransportError as error:
                        self.feed(ev.LinkLost(cause=str(error)))
                        return
                if patience.cancelled_caught:
                    self.feed(ev.LinkLost(cause="the coordinator takes no report"))
                    return
                self._outgoing.popleft()
            if self.worker.phase == WorkerPhase.STOPPED:
                return
            due = self.worker.poll_timeout()
            with trio.move_on_after(1.0 if due is None else max(0.0, due - self._clock())):
                await self._kicked.wait()
            self._kicked = trio.Event()
            if due is not None and self._clock() >= due:
                self.feed(ev.Tick())
