"""For the tests of the drivers: a machine that does what a test says, a data plane that notes what it is told, and a
run whose time jumps to the next deadline as soon as nothing else happens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio.testing import MockClock

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.config import Config

from .words import hello

HELLO = hello(60)


def run_in_no_time(main: Callable[[], Awaitable[None]]) -> None:
    """Run an async test whose sleeps take no time. Not for tests with threads: time would not wait for them."""

    async def bounded() -> None:
        with trio.fail_after(3600):
            await main()

    trio.run(bounded, clock=MockClock(autojump_threshold=0))


class Scripted:
    """In place of a coordinator machine: admits everyone, or does with a Hello what `door` says; `events` are all it
    was given but for ticks, `batches` how many came at once."""

    def __init__(self, door: Callable[[ev.HelloReceived], list[Any]] | None = None, **knobs: Any) -> None:
        self.config = Config(batch_size=2, num_epochs=1, **knobs)
        self.generation = 1
        self.peers: dict[int, Any] = {}
        self.events: list[Any] = []
        self.batches: list[int] = []
        self.todo: list[Any] = []
        self.door = door or self.admit
        self.news = trio.Event()
        self._admitted = 0
        self._batch = 0

    def admit(self, event: ev.HelloReceived) -> list[Any]:
        welcome = m.Welcome(rank=self._admitted, incarnation=1, generation=1, status=m.WelcomeStatus.FORMING,
                            control_seq=0, report_seq=0, config=self.config.welcome(60, 2))  # fmt: skip
        self._admitted += 1
        return [fx.Admit(event.link, welcome.rank, 1, welcome)]

    def handle(self, event: Any, now: float) -> None:
        if isinstance(event, ev.Tick):
            return
        self.events.append(event)
        self._batch += 1
        if isinstance(event, ev.HelloReceived):
            self.todo += self.door(event)
        self.news.set()
        self.news = trio.Event()

    def take_ready(self) -> fx.Ready:
        self.batches.append(self._batch)
        self._batch = 0
        effects = tuple(self.todo)
        self.todo.clear()
        return fx.Ready((), effects)

    def poll_timeout(self) -> float | None:
        return None

    def of(self, kind: type) -> list[Any]:
        """All events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, kind: type, count: int = 1) -> list[Any]:
        """Wait for so many events of a kind."""
        while len(self.of(kind)) < count:
            await self.news.wait()
        return self.of(kind)


class Plane:
    """A data plane that does nothing, or what a test puts in place of its methods."""

    def __init__(self) -> None:
        self.effects: list[Any] = []

    def perform(self, effect: Any) -> None:
        self.effects.append(effect)

    async def serve(self, rank: int, incarnation: int, channel: Any) -> None:
        await trio.sleep_forever()

    async def run(self, driver: Any) -> None:
        await trio.sleep_forever()

    async def settle(self) -> None:
        await trio.lowlevel.checkpoint()
