"""Faults that users of comparable systems have met with hooks that call back; ids are in the docstrings.

A real coordinator in its driver. Of its effects only those for people leave, so no rank has to be there; what ranks
say is posted as it would come from their links.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.errors import LocalProtocolError
from paceline.core.guard import GuardInput, LevelGuard, Verdict
from paceline.core.roles import ROLES
from paceline.transports.driver import CoordinatorDriver
from paceline.transports.memory import MemoryTransport

from support.glue import Plane, run_in_no_time
from support.hand import Hand, alerts, named, pending
from support.transports import CREDENTIALS

FOR_PEOPLE = (fx.Emit, fx.Alert, fx.Finish)
STOP, CHECKPOINT = ev.OperatorRequest(ev.Operator.STOP), ev.OperatorRequest(ev.Operator.CHECKPOINT)


class Watched:
    """A coordinator whose calls must not nest. `events` are what it was given, but for the driver's own ticks."""

    def __init__(self, hand: Hand) -> None:
        self.co = hand.co
        self.config = hand.co.config
        self.depth = 0
        self.events: list[Any] = []

    def handle(self, event: Any, now: float) -> None:
        assert not self.depth, "N-12: an event inside of an event"
        self.depth += 1
        self.events.append(event)
        self.co.handle(event, now)
        self.depth -= 1

    def take_ready(self) -> fx.Ready:
        ready = self.co.take_ready()
        return fx.Ready(ready.records, tuple(effect for effect in ready.effects if isinstance(effect, FOR_PEOPLE)))

    def poll_timeout(self) -> float | None:
        return self.co.poll_timeout()


Hook = Callable[[CoordinatorDriver, Any], None]


@asynccontextmanager
async def hooked(hand: Hand, hook: Hook) -> AsyncIterator[tuple[Watched, list[Any], CoordinatorDriver]]:
    """The run of a hand goes on in a driver, whose observer calls the hook; what the hand says is posted."""
    machine, seen = Watched(hand), list[Any]()
    watched: Any = machine  # it has of a coordinator what a driver calls

    def posted(event: Any) -> list[Any]:
        driver.post(event)
        return []

    def observe(effect: Any) -> None:
        assert not machine.depth
        seen.append(effect)
        hook(driver, effect)

    begun = hand.now - trio.current_time()
    driver = CoordinatorDriver(watched, Plane(), observe, clock=lambda: begun + trio.current_time())
    listener = await MemoryTransport().listen("memory://hooks", CREDENTIALS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hand, "feed", posted)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(driver.run, listener)
                yield machine, seen, driver
                nursery.cancel_scope.cancel()
        finally:
            await listener.aclose()


def last_ack_owed(**knobs: Any) -> Hand:
    """An average that lacks the last acknowledgement, of rank 1."""
    hand = pending(samples=400, callbacks=ROLES, **knobs)
    hand.ready(0)
    hand.ready(1)
    hand.reduce()
    hand.ack(0)
    return hand


def test_what_a_hook_asks_for_is_handled_after_the_event_in_the_order_of_its_calls() -> None:
    """F96, N-12: a hook on the end of a cycle asks for a checkpoint and for a stop, and feeds a Tick. The cycle is over
    before any of them is looked at."""
    hand, standing = last_ack_owed(), list[tuple[bool, int, bool]]()

    def hook(driver: CoordinatorDriver, effect: Any) -> None:
        if isinstance(effect, fx.Emit) and effect.name == "Cycle":
            driver.post(CHECKPOINT)
            driver.post(STOP)
            driver.post(ev.Tick())
            standing.append((hand.co.cycle.pending, hand.co.cycle.version, hand.co.stopping))

    async def main() -> None:
        async with hooked(hand, hook) as (machine, _, driver):
            hand.ack(1)
            await driver.settle(ev.CallbackFailed("last", "one"))
            await driver.settle(ev.Tick())
            asked = [event for event in machine.events if isinstance(event, ev.OperatorRequest)]
            assert asked == [CHECKPOINT, STOP] and standing == [(False, 1, False)]
            first, *rest = [event for event in machine.events if not isinstance(event, ev.Tick)]
            assert isinstance(first.message, m.SyncAck) and rest[-2:] == asked
            assert hand.co.stopping and hand.co.cycle.version == 1

    run_in_no_time(main)


def test_a_hook_that_raises_is_told_once_and_leaves_no_half_of_anything() -> None:
    """F96, N-12, N-7: on the death of a rank, in the middle of an average; the death is whole, and the average ends."""

    def hook(driver: CoordinatorDriver, effect: Any) -> None:
        if isinstance(effect, fx.Emit) and effect.name in ("Died", "Cycle"):
            raise ValueError("no")

    async def main() -> None:
        hand, alone = last_ack_owed(), last_ack_owed()
        quiet = [effect.name for effect in alone.feed(ev.LinkLost(1, 1, "reset")) if isinstance(effect, fx.Emit)]
        async with hooked(hand, hook) as (_, seen, driver):
            await driver.settle(ev.LinkLost(1, 1, "reset"))
            await driver.settle(ev.Tick())
            assert len(named(seen, "Died")) == 1 and hand.co.alive == hand.co.voters == [0]
            assert not hand.co.cycle.pending and hand.co.cycle.version == 1
            told = [(alert.path, alert.text) for alert in alerts(seen, "callback_failed")]
            assert told == [("observe", "ValueError: no")]
            assert [effect.name for effect in seen if isinstance(effect, fx.Emit)][: len(quiet)] == quiet

    run_in_no_time(main)


INJECTED = st.lists(st.sampled_from([ev.Tick(), CHECKPOINT, ev.OperatorRequest(ev.Operator.EVAL), STOP,
                                     ev.LinkLost(0, 1, "reset"), ev.CallbackFailed("a", "b")]), max_size=6)  # fmt: skip


@settings(max_examples=25)
@given(INJECTED)
def test_whatever_hooks_inject_comes_one_by_one_and_in_order(injected: list[Any]) -> None:
    """F96, N-12: one event more with each effect that is shown; all of them are handled, none inside of another."""

    async def main() -> None:
        hand, left = last_ack_owed(), list(injected)

        def hook(driver: CoordinatorDriver, effect: Any) -> None:
            if left:
                driver.post(left.pop(0))

        async with hooked(hand, hook) as (machine, _, driver):
            hand.ack(1)
            for _ in range(len(injected) + 2):
                await driver.settle(ev.Tick())
            came = iter(machine.events)
            asked = injected[: len(injected) - len(left)]
            assert all(any(event is one for event in came) for one in asked), "all of them, in the order of the calls"
            assert hand.co.cycle.version == 1

    run_in_no_time(main)


class Nesting(LevelGuard):
    """A guard that hands the coordinator an event from inside of one, as a hook without a driver would."""

    co: Any = None
    refused = 0

    def observe(self, cycle: GuardInput) -> Verdict:
        before = self.co.snapshot()
        with pytest.raises(LocalProtocolError, match="N-12"):
            self.co.handle(ev.Tick(), self.co.now)
        assert self.co.snapshot() == before
        self.refused += 1
        return super().observe(cycle)


def test_an_event_from_inside_an_event_is_refused() -> None:
    """F96, N-12: by the machine itself, whoever drives it; its state is as before, and the cycle still ends."""
    guard = Nesting()
    hand = pending(guard=guard)
    guard.co = hand.co
    hand.average()
    assert guard.refused == 1 and hand.co.cycle.version == 1 and not alerts(hand.effects, "policy")
