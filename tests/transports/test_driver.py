"""The coordinator's driver over channels in memory: what leaves, what is reported, and how it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.errors import InvariantError, TransportError
from paceline.transports import driver as module
from paceline.transports.api import Channel
from paceline.transports.driver import FLUSH_S, OUTGOING_LIMIT, CoordinatorDriver
from paceline.transports.memory import MemoryTransport

from support.glue import HELLO, Plane, Scripted, run_in_no_time
from support.transports import CREDENTIALS, beacon, heartbeat

URL = "memory://driver"
FINISH = fx.Finish("ok", "done")


def report(number: int, rank: int = 0) -> m.Report:
    """A report as the rank on that link stamps it."""
    return attrs.evolve(heartbeat(number), run_id=b"\0" * 16, rank=rank, incarnation=1)


def said(number: int) -> fx.Send:
    """A message to the first life of rank 0."""
    return fx.Send(attrs.evolve(beacon(number), incarnation=1))


@attrs.define
class Stage:
    """A driver at work, and the ranks that a test dials to it."""

    machine: Scripted
    plane: Plane
    driver: CoordinatorDriver
    shown: list[Any]
    ended: trio.Event = attrs.field(factory=trio.Event)
    result: Any = None

    async def dial(self) -> Channel:
        return await MemoryTransport().dial(URL, CREDENTIALS)

    async def join(self) -> Channel:
        """A rank that is welcomed."""
        channel = await self.dial()
        await channel.send(HELLO)
        assert isinstance(await channel.receive(), m.Welcome)
        return channel

    async def do(self, *effects: Any) -> None:
        """The machine decides on these; returns when they are performed."""
        self.machine.todo += effects
        await self.driver.settle(ev.LinkUp())

    async def send(self, count: int, first: int = 1) -> None:
        await self.do(*(said(n) for n in range(first, first + count)))

    async def finish(self) -> None:
        self.machine.todo.append(FINISH)
        self.driver.post(ev.LinkUp())
        await self.ended.wait()


@asynccontextmanager
async def stage(machine: Any = None, plane: Plane | None = None, observe: Any = None) -> AsyncIterator[Stage]:
    machine, plane, shown = machine or Scripted(), plane or Plane(), []
    driver = CoordinatorDriver(machine, plane, observe or shown.append)
    made = Stage(machine, plane, driver, shown)
    listener = await MemoryTransport().listen(URL, CREDENTIALS)

    async def run() -> None:
        try:
            made.result = await driver.run(listener)
        except Exception as error:
            made.result = error
        made.ended.set()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield made
            nursery.cancel_scope.cancel()
    finally:
        await listener.aclose()


async def hears(channel: Channel, count: int) -> list[int]:
    return [(await channel.receive()).control_seq for _ in range(count)]


async def assert_closed(channel: Channel) -> None:
    with pytest.raises(TransportError):
        await channel.receive()


def test_messages_arrive_in_order_behind_the_welcome():
    """N-2, N-4: one writer per lane; a token is reported only when its message failed."""

    async def main() -> None:
        async with stage() as s:
            rank = await s.join()
            await s.send(3)
            await s.send(2, first=4)
            assert await hears(rank, 5) == [1, 2, 3, 4, 5]
            assert s.machine.of(ev.SendFailed) == []

    run_in_no_time(main)


def test_each_message_of_a_lost_link_is_sent_or_reported_as_failed_and_never_both():
    """N-10: what was in the queue when the link ended has not left; LinkLost comes once, after those tokens."""

    async def main() -> None:
        async with stage() as s:
            rank = await s.join()
            await s.send(OUTGOING_LIMIT)  # more than the pipe holds
            got = await hears(rank, 10)
            await rank.aclose()
            lost = await s.machine.until(ev.LinkLost)
            failed = [event.token[2] for event in s.machine.of(ev.SendFailed)]
            assert got == list(range(1, 11))
            assert failed == list(range(failed[0], OUTGOING_LIMIT + 1)) and failed[0] > 10
            assert [event for event in s.machine.events if not isinstance(event, ev.LinkUp)][-1] == lost[0]
            await s.send(1, first=9000)
            assert (await s.machine.until(ev.SendFailed, len(failed) + 1))[-1].token == (0, 1, 9000)
            assert len(s.machine.of(ev.LinkLost)) == 1 and lost[0].cause != ""

    run_in_no_time(main)


def test_a_link_on_which_a_write_has_failed_is_used_no_more(monkeypatch: pytest.MonkeyPatch):
    """N-4, N-10: nothing is written behind the hole, and what was to follow has failed too, however well it reads."""

    async def main() -> None:
        async with stage() as s:
            rank, tried = await s.join(), []

            async def fails(message: Any) -> None:
                tried.append(message)
                raise TransportError("the write has failed")

            monkeypatch.setattr(s.driver._links[0, 1].channel, "send", fails)
            await s.send(3)
            with trio.fail_after(100.0):
                await s.machine.until(ev.LinkLost)
                await assert_closed(rank)
            assert [event.token[2] for event in s.machine.of(ev.SendFailed)] == [1, 2, 3] and len(tried) == 1

    run_in_no_time(main)


def test_a_rank_that_does_not_take_its_messages_overflows():
    """N-9: the incarnation ends as overflow, at once; the message too many has failed too."""

    async def main() -> None:
        async with stage() as s:
            rank = await s.join()
            begun = trio.current_time()
            await s.send(OUTGOING_LIMIT)
            await trio.testing.wait_all_tasks_blocked()
            await s.send(OUTGOING_LIMIT, first=OUTGOING_LIMIT + 1)
            lost = await s.machine.until(ev.LinkLost)
            assert [event.cause.startswith("overflow") for event in lost] == [True]
            failed = [event.token[2] for event in s.machine.of(ev.SendFailed)]
            assert len(failed) == len(set(failed)) and 2 * OUTGOING_LIMIT in failed
            assert trio.current_time() == begun, "nothing is flushed to somebody who does not read"
            await rank.aclose()
            await trio.sleep(60)
            assert len(s.machine.of(ev.LinkLost)) == 1

    run_in_no_time(main)


def test_a_closed_link_delivers_what_was_queued_before():
    """CloseLink follows Exiting or a death: the last words leave, then both lanes end; later sends fail."""

    async def main() -> None:
        async with stage() as s:
            rank = await s.join()
            await s.do(*(said(n) for n in (1, 2)), fx.CloseLink(0, 1, "left"))
            await s.send(1, first=3)
            assert await hears(rank, 2) == [1, 2]
            await assert_closed(rank)
            await s.machine.until(ev.LinkLost)
            assert [event.token for event in s.machine.of(ev.SendFailed)] == [(0, 1, 3)]

    run_in_no_time(main)


def test_closing_a_link_whose_peer_reads_nothing_is_bounded():
    """CloseLink holds nobody up for longer than FLUSH_S."""

    async def main() -> None:
        async with stage() as s:
            await s.join()
            await s.send(OUTGOING_LIMIT)
            begun = trio.current_time()
            await s.do(fx.CloseLink(0, 1, "silent"))
            await s.machine.until(ev.LinkLost)
            assert trio.current_time() - begun == pytest.approx(FLUSH_S)

    run_in_no_time(main)


def test_a_connection_that_says_nothing_is_closed():
    """M-3: handshake_s for a Hello, scaled like every other time; the machine never hears of it."""

    async def main() -> None:
        async with stage(Scripted(handshake_s=10.0, time_scale=0.5)) as s:
            begun = trio.current_time()
            await assert_closed(await s.dial())
            assert trio.current_time() - begun == pytest.approx(5.0)
            assert s.machine.events == []

    run_in_no_time(main)


def test_whoever_does_not_begin_with_hello_is_turned_away():
    """N-7: it ends that connection and nothing else."""

    async def main() -> None:
        async with stage() as s:
            stranger = await s.dial()
            await stranger.send(heartbeat(1))
            await assert_closed(stranger)
            rank = await s.join()
            await s.send(1)
            assert await hears(rank, 1) == [1]

    run_in_no_time(main)


def test_a_rank_admitted_after_it_gave_up_is_lost_at_once():
    """An admission that finds nobody any more is a lost link, or a seat would stay taken."""

    async def main() -> None:
        machine = Scripted(lambda event: [], handshake_s=1.0)
        async with stage(machine) as s:
            rank = await s.dial()
            await rank.send(HELLO)
            hello = (await machine.until(ev.HelloReceived))[0]
            await assert_closed(rank)
            await s.do(*machine.admit(hello))
            lost = await machine.until(ev.LinkLost)
            assert [(event.rank, event.incarnation) for event in lost] == [(0, 1)]

    run_in_no_time(main)


def test_a_refused_rank_hears_why():
    """M-5: Reject arrives whole, then the link ends."""
    reject = m.Reject(code=m.RejectCode.SCHEMA, text="another model", retry=False, after_s=0.0)

    async def main() -> None:
        async with stage(Scripted(lambda event: [fx.Refuse(event.link, reject)])) as s:
            rank = await s.dial()
            await rank.send(HELLO)
            assert await rank.receive() == reject
            await assert_closed(rank)
            assert s.machine.of(ev.LinkLost) == []

    run_in_no_time(main)


@pytest.mark.parametrize("stamp", [{"rank": 0}, {"incarnation": 2}, {"run_id": b"z" * 16}], ids=repr)
def test_a_rank_speaks_for_itself_alone(stamp: dict[str, Any]):
    """N-6, N-7: a report under the stamp of somebody else ends the link it came over, and nobody else's session."""

    async def main() -> None:
        async with stage() as s:
            await s.join()
            second = await s.join()
            await second.send(report(1, rank=1))
            await second.send(attrs.evolve(report(2, rank=1), **stamp))
            await second.send(report(3, rank=1))
            reject = await second.receive()
            assert reject.code == (m.RejectCode.OTHER_RUN if "run_id" in stamp else m.RejectCode.SEAT)
            assert not reject.retry
            await assert_closed(second)
            [lost] = await s.machine.until(ev.LinkLost)

            assert [each.message.report_seq for each in s.machine.of(ev.Received)] == [1]
            assert (lost.rank, lost.incarnation) == (1, 1) and "stamp" in lost.cause

    run_in_no_time(main)


def test_a_flood_of_reports_waits_outside(monkeypatch: pytest.MonkeyPatch):
    """Back-pressure: the inbox is bounded, a rank that talks too fast is not read, and nothing is lost."""
    monkeypatch.setattr(module, "INBOX_LIMIT", 10)

    async def main() -> None:
        async with stage() as s:
            rank = await s.join()
            for number in range(500):
                await rank.send(report(number))
            received = await s.machine.until(ev.Received, 500)
            assert [event.message.report_seq for event in received] == list(range(500))
            assert max(s.machine.batches) <= 12

    run_in_no_time(main)


def test_beacons_leave_on_time_whatever_others_do():
    """N-8: a rank that reads nothing, and a data plane that is busy with both lanes, delay no beacon."""

    async def main() -> None:
        machine = Coordinator(Config(batch_size=2, num_epochs=1, target_ranks=3), now=trio.current_time())
        async with stage(machine) as s:
            await s.join()
            listener = await s.join()
            begun = trio.current_time()
            times = []
            while len(times) < 5:
                await listener.send(m.Heartbeat(step_count=0, state="x", run_id=machine.config.run_id, generation=1,
                                                rank=1, incarnation=1, report_seq=len(times) + 1))  # fmt: skip
                if isinstance(await listener.receive(), m.Beacon):
                    times.append(trio.current_time() - begun)
            assert times == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0], abs=0.01)

    run_in_no_time(main)


def test_the_last_messages_leave_before_the_end():
    """M-53: what is queued when the run ends still arrives, Finish is shown last."""

    async def main() -> None:
        async with stage() as s:
            rank = await s.join()
            s.machine.todo += [*(said(n) for n in range(1, 400)), fx.Emit("Left")]
            await s.finish()
            assert await hears(rank, 399) == list(range(1, 400))
            assert s.result == FINISH and s.shown == [fx.Emit("Left"), FINISH]

    run_in_no_time(main)


def test_the_end_does_not_wait_for_a_rank_that_reads_nothing():
    """The flush is bounded by FLUSH_S."""

    async def main() -> None:
        async with stage() as s:
            await s.join()
            await s.send(OUTGOING_LIMIT)
            begun = trio.current_time()
            await s.finish()
            assert s.result == FINISH
            assert trio.current_time() - begun == pytest.approx(FLUSH_S)

    run_in_no_time(main)


def test_a_file_that_fails_after_the_last_rank_left_is_still_told():
    """K-7: the machine hears of it, and Finish comes after it."""

    async def main() -> None:
        plane = Plane()
        async with stage(plane=plane) as s:

            async def settle() -> None:
                s.driver.post(ev.ConsensusSaved(1, 3, "disk full"))

            plane.settle = settle  # type: ignore[method-assign]
            await s.finish()
            assert s.machine.of(ev.ConsensusSaved) == [ev.ConsensusSaved(1, 3, "disk full")]
            assert s.shown == [FINISH]

    run_in_no_time(main)


def test_settle_returns_when_the_effects_are_performed_and_at_once_after_the_end():
    """R-2: no byte of a scatter leaves before the machine knows of the result. A plane that asks too late is not
    left waiting, or the run would never end."""

    async def main() -> None:
        plane = Plane()
        asked = trio.Event()

        async def run(driver: Any) -> None:
            await driver.settle(ev.LinkUp())  # is in the inbox when the run ends

        async def settle() -> None:
            await s.driver.settle(ev.LinkUp())
            asked.set()

        async with stage(plane=plane) as s:
            await s.do(fx.CloseRound(m.RoundKey(generation=1, cycle=1, kind=m.RoundKind.PARAMS)))
            assert len(plane.effects) == 1
            plane.settle = settle  # type: ignore[method-assign]
            await s.finish()
            assert asked.is_set()

    run_in_no_time(main)


async def fails(*_: Any) -> None:
    raise ValueError("sums do not add up")


def fails_now(*_: Any) -> None:
    raise ValueError("sums do not add up")


BUGS = {"serve": fails, "run": fails, "perform": fails_now, "settle": fails, "handle": fails_now}


@pytest.mark.parametrize("where", BUGS)
def test_a_bug_of_ours_ends_the_run_with_one_clear_error(where: str):
    """A coordinator that went on would leave its ranks waiting: the run is broken off, every link closed."""

    async def main() -> None:
        plane, machine = Plane(), Scripted()
        setattr(machine if where == "handle" else plane, where, BUGS[where])
        async with stage(machine, plane) as s:
            rank = await s.dial()
            await rank.send(HELLO)
            machine.todo.append(fx.CloseRound(m.RoundKey(generation=1, cycle=1, kind=m.RoundKind.PARAMS)))
            if where == "settle":
                machine.todo.append(FINISH)
            await s.ended.wait()
            assert isinstance(s.result, InvariantError) and isinstance(s.result.__cause__, ValueError)
            assert str(s.result) == "the run was broken off by ValueError: sums do not add up"
            with pytest.raises(TransportError):
                while True:
                    await rank.receive()

    run_in_no_time(main)


def test_an_observer_that_raises_is_reported_once_and_changes_nothing_else():
    """N-12."""

    def observe(effect: Any) -> None:
        raise RuntimeError("no screen")

    async def main() -> None:
        async with stage(observe=observe) as s:
            rank = await s.join()
            await s.do(fx.Emit("one"), fx.Emit("two"), said(1))
            assert await hears(rank, 1) == [1]
            await s.finish()
            assert s.machine.of(ev.CallbackFailed) == [ev.CallbackFailed("observe", "RuntimeError: no screen")]
            assert s.result == FINISH

    run_in_no_time(main)


def test_a_rank_that_is_back_gets_what_it_lacks_and_its_old_link_is_silent():
    """M-42, N-4: welcome, then what is sent again, then what is new; the link that was replaced ends without an
    event."""

    def door(event: ev.HelloReceived) -> list[Any]:
        resumed = event.link > 1
        welcome = m.Welcome(rank=0, incarnation=1, generation=1, control_seq=0, report_seq=0, config={}, status=(
            m.WelcomeStatus.RESUMED if resumed else m.WelcomeStatus.FORMING))
        return [fx.Admit(event.link, 0, 1, welcome, (beacon(4), beacon(5)) if resumed else ())]

    async def main() -> None:
        async with stage(Scripted(door)) as s:
            old = await s.join()
            new = await s.join()
            await s.send(1, first=6)
            assert await hears(new, 3) == [4, 5, 6]
            await assert_closed(old)
            await trio.testing.wait_all_tasks_blocked()
            assert s.machine.of(ev.LinkLost) == [] and s.machine.of(ev.SendFailed) == []
            await new.aclose()
            [lost] = await s.machine.until(ev.LinkLost)
            assert (lost.rank, lost.link) == (0, 2)

    run_in_no_time(main)


def test_a_fenced_rank_is_told_before_its_link_is_closed():
    """W-20: the reason is on its way when the end of the lane comes."""

    async def main() -> None:
        async with stage() as s:
            rank = await s.join()
            fenced = m.Fenced(generation=1, incarnation=2, cycle=0, why="silent")
            await s.do(fx.SendFenced(0, 1, fenced), fx.CloseLink(0, 1, "silent"))
            assert await rank.receive() == fenced
            await assert_closed(rank)

    run_in_no_time(main)
