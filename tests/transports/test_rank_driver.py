"""The worker's driver over a channel in memory: heartbeats while the training thread is busy, reports in order, and
bounded ends."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.errors import LocalProtocolError, TransportError
from paceline.core.phases import WorkerPhase
from paceline.core.retention import MOST_MESSAGES
from paceline.core.worker import Worker, WorkerSettings
from paceline.transports import rank_driver
from paceline.transports.api import Channel
from paceline.transports.rank_driver import FLUSH_S, RankDriver

from support.glue import run_in_no_time
from support.patience import PATIENCE_S
from support.rank import RUN
from support.transports import MEMORY, meeting, run

PLAN = m.Plan(plan_id=7, epoch=0, offset=0, size=20_000)
STEP = ev.StepDone(samples=2, batch_ms=1.0, data_ms=0.1)
STALENESS_S = 30.0


@attrs.define
class Stage:
    """A rank at work: its driver, and the coordinator's end of its channel."""

    driver: RankDriver
    far: Channel
    ended: trio.Event
    number: int = 0

    async def say(self, kind: type, /, **fields: Any) -> None:
        """One control message."""
        self.number += 1
        stamp = dict(run_id=RUN, generation=1, rank=1, incarnation=1, control_seq=self.number, report_seq=0)
        await self.far.send(kind(**{**stamp, **fields}))

    async def train(self) -> None:
        """Bring the worker to training a long plan."""
        await self.say(m.RequestParams, cycle=0, attempt=0, observer=True)
        await self.order(fx.TakeSnapshot)
        self.driver.feed(ev.SnapshotTaken(0, 0, 1.0))
        self.driver.feed(ev.ConsensusStaged(cycle=0, attempt=0, outcome=m.Outcome.OBSERVER, total_steps=0))
        await self.say(m.Update, cycle=0, attempt=0, version=0, global_step=0, outcome=m.Outcome.OBSERVER,
                       merged_steps=0, next_plan=PLAN)  # fmt: skip
        await self.order(fx.Train)
        for kind in (m.SnapshotReady, m.SyncAck):
            while isinstance(report := await self.far.receive(), m.Heartbeat):  # one may be due at any time
                pass
            assert isinstance(report, kind)

    async def order(self, kind: type) -> Any:
        while True:
            while self.driver.orders.empty():
                await trio.lowlevel.checkpoint()
            order = self.driver.orders.get_nowait()
            if isinstance(order, kind):
                return order

    def stop(self) -> fx.Stop:
        """The last order of all."""
        last = None
        while not self.driver.orders.empty():
            last = self.driver.orders.get_nowait()
        assert isinstance(last, fx.Stop)
        return last


@asynccontextmanager
async def stage(clock: Callable[[], float] = trio.current_time, **settings: Any) -> AsyncIterator[Stage]:
    async with meeting(MEMORY) as met:
        near, far = await met.join()
        known = dict(run_id=RUN, generation=1, rank=1, incarnation=1, policy="cadence", batch_size=2,
                     staleness_s=STALENESS_S)  # fmt: skip
        worker = Worker.create(WorkerSettings(**{**known, **settings}), clock())
        driver = RankDriver(worker, near, clock=clock)
        ended = trio.Event()

        async def body() -> None:
            await driver.run()
            ended.set()

        met.nursery.start_soon(body)
        yield Stage(driver, far, ended)


async def everything(channel: Channel) -> list[Any]:
    """All that comes until the lane ends."""
    found = []
    try:
        while True:
            found.append(await channel.receive())
    except TransportError:
        return found


def test_heartbeats_leave_on_time_while_the_training_thread_is_in_a_step():
    """N-5, W-22: nobody feeds a step for a minute; the coordinator hears of this rank every second all the same."""

    async def main() -> None:
        async with stage() as s:
            await s.train()
            begun, times = trio.current_time(), []
            for _ in range(60):
                assert isinstance(await s.far.receive(), m.Heartbeat)
                times.append(trio.current_time() - begun)
                await s.say(m.Beacon, run_phase=1, cycle_phase=0, cycle=0)
            assert times == pytest.approx([float(n) for n in range(1, 61)], abs=0.7)
            assert s.driver.worker.phase == WorkerPhase.TRAINING

    run_in_no_time(main)


def test_a_silent_coordinator_counts_as_lost():
    """W-22: strictly past the staleness, and the training thread gets its order to stop."""

    async def main() -> None:
        async with stage() as s:
            begun = trio.current_time()
            await s.ended.wait()
            assert trio.current_time() - begun == pytest.approx(STALENESS_S, abs=0.1)
            assert s.stop().status == "coordinator_lost"

    run_in_no_time(main)


def test_a_coordinator_that_is_silent_and_reads_nothing_counts_as_lost_too():
    """W-22: a writer that is held up does not hold up the clock; the end is bounded by FLUSH_S more."""

    async def main() -> None:
        async with stage() as s:
            await s.train()
            begun = trio.current_time()
            for _ in range(MOST_MESSAGES // 2):
                s.driver.feed(STEP)  # more bytes than the pipe holds, fewer reports than would be an overflow
            await s.ended.wait()
            assert trio.current_time() - begun == pytest.approx(STALENESS_S + FLUSH_S, abs=0.1)
            assert s.stop().status == "coordinator_lost"

    run_in_no_time(main)


def test_reports_that_nobody_takes_overflow():
    """N-9: bounded memory; the incarnation ends, and the rank looks for a new one, without a claim."""

    async def main() -> None:
        async with stage() as s:
            await s.train()
            for _ in range(MOST_MESSAGES - 3):  # after SnapshotReady and SyncAck, so this lane is full to the last
                s.driver.feed(STEP)
            assert s.driver.worker.phase == WorkerPhase.TRAINING
            for _ in range(2):
                s.driver.feed(STEP)
            worker = s.driver.worker
            assert (worker.phase, worker.linked, len(worker.reports)) == (WorkerPhase.JOINING, False, 0)
            told = await s.order(fx.Publish)
            assert told.name == "link_lost" and "overflow" in told.facts["cause"]
            assert s.driver.worker.claim() is None
            await s.ended.wait()
            assert s.stop().status == "coordinator_lost"

    run_in_no_time(main)


def test_the_last_report_leaves_before_the_link_is_closed():
    """W-24: Exiting is the last frame, behind everything said before."""

    async def main() -> None:
        async with stage() as s:
            await s.train()
            for _ in range(100):
                s.driver.feed(STEP)
            await s.say(m.Shutdown, reason=m.SaveReason.GRACEFUL)
            await trio.testing.wait_all_tasks_blocked()
            s.driver.feed(STEP)  # comes to its drain point
            kinds = [type(report) for report in await everything(s.far) if not isinstance(report, m.Heartbeat)]
            assert kinds == [m.Batch] * 101 + [m.Exiting]
            await s.ended.wait()
            assert s.stop().status == "ok"

    run_in_no_time(main)


def test_a_failed_training_ends_without_exiting():
    """W-24: the closed link is the death report."""

    async def main() -> None:
        async with stage() as s:
            await s.train()
            s.driver.feed(STEP)
            s.driver.feed(ev.TrainingFailed("ValueError: no"))
            reports = await everything(s.far)
            assert [type(report) for report in reports] == [m.Batch]
            await s.ended.wait()

    run_in_no_time(main)


def test_a_lost_link_is_told_once_and_ends_the_driver():
    """W-21: reader and writer both meet the end; the worker stops once."""

    async def main() -> None:
        async with stage() as s:
            await s.train()
            await s.far.aclose()
            s.driver.feed(STEP)
            await s.ended.wait()
            stops = []
            while not s.driver.orders.empty():
                stops.append(s.driver.orders.get_nowait())
            assert [order.status for order in stops if isinstance(order, fx.Stop)] == ["coordinator_lost"]

    run_in_no_time(main)


def test_a_lost_link_waits_for_the_save_that_is_under_way():
    """W-23: while files are written a lost coordinator changes nothing; the end of the save is the end."""

    async def main() -> None:
        async with stage(drain_s=200.0) as s:
            await s.train()
            await s.say(m.ShutdownWithSave, decision_id=1, reason=m.SaveReason.MAX_FAILURE, saver=1, stem="x")
            await trio.testing.wait_all_tasks_blocked()
            s.driver.feed(STEP)
            await trio.sleep(2 * STALENESS_S)  # silent for longer than it may be
            assert s.driver.worker.phase == WorkerPhase.DRAINING and not s.ended.is_set()
            s.driver.feed(ev.ActionDone("save", 1, 0, 1.0))
            await s.ended.wait()
            assert s.stop().status == "saved"

    run_in_no_time(main)


def test_an_impossible_event_raises_where_it_is_fed_and_changes_nothing():
    """N-7: misuse by the local caller."""

    async def main() -> None:
        async with stage() as s:
            with pytest.raises(LocalProtocolError):
                s.driver.feed(STEP)
            assert s.driver.worker.phase == WorkerPhase.JOINING and s.driver.worker.report_seq == 0

    run_in_no_time(main)


def test_reports_keep_their_order_when_two_threads_feed(monkeypatch: pytest.MonkeyPatch):
    """N-3: steps come from the training thread while messages and ticks come from this one; numbers have no gap."""
    monkeypatch.setattr(rank_driver, "FLUSH_S", PATIENCE_S)  # it is not the time that is tested here
    steps = 2000
    reports: list[Any] = []

    async def main() -> None:
        async with stage(time.monotonic, heartbeat_s=0.001, staleness_s=3600.0) as s:
            await s.train()

            def training() -> None:
                for _ in range(steps):
                    s.driver.feed(STEP)
                s.driver.feed(ev.LeaveRequested())

            async def talk() -> None:
                while True:
                    taken = reports[-1].report_seq if reports else 0
                    await s.say(m.Beacon, run_phase=1, cycle_phase=0, cycle=0, report_seq=taken)
                    await trio.lowlevel.checkpoint()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(talk)
                nursery.start_soon(trio.to_thread.run_sync, training)
                while not reports or not isinstance(reports[-1], m.Exiting):
                    reports.append(await s.far.receive())
                nursery.cancel_scope.cancel()
            numbers = [report.report_seq for report in reports]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert [r.step_count for r in reports if isinstance(r, m.Batch)] == list(range(1, steps + 1))

    run(main)


def test_feeding_after_the_end_is_quiet():
    """A training thread that is still in a step when everything is over is not punished for it (W-19)."""
    kept: list[RankDriver] = []

    async def main() -> None:
        async with stage(time.monotonic) as s:
            await s.train()
            await s.far.aclose()
            await s.ended.wait()
            kept.append(s.driver)

    run(main)
    kept[0].feed(STEP)
    kept[0].feed(ev.TrainingFailed("too late"))
    assert kept[0].worker.phase == WorkerPhase.STOPPED


def test_a_lost_link_is_replaced_and_what_was_lost_is_sent_again():
    """W-21, M-42: tries fail, then one is answered; reports made meanwhile are kept, and nothing is said twice."""

    async def main() -> None:
        async with meeting(MEMORY) as met:
            near, far = await met.join()
            known = dict(run_id=RUN, generation=1, rank=1, incarnation=1, policy="cadence", batch_size=2,
                         staleness_s=STALENESS_S, reconnect_window_s=60.0)  # fmt: skip
            worker = Worker.create(WorkerSettings(**known), trio.current_time())
            tries: list[m.ResumeClaim | None] = []
            beside: list[Channel] = []
            ends: list[Channel] = []

            async def dial(rank: int, claim: Callable[[], m.ResumeClaim | None]) -> Any:
                tries.append(claim())
                if len(tries) < 3:
                    raise TransportError("connection refused")
                again, other = await met.join()
                ends.append(other)
                return again, m.Welcome(rank=1, incarnation=1, generation=2, status=m.WelcomeStatus.RESUMED,
                                        control_seq=0, report_seq=1, config={})  # fmt: skip

            async def note(channel: Channel) -> None:
                beside.append(channel)

            driver = RankDriver(worker, near, clock=trio.current_time, dial=dial, beside=note)
            met.nursery.start_soon(driver.run)
            driver.feed(ev.Wish(m.IntentKind.EVAL_NOW))
            assert (await far.receive()).report_seq == 1
            begun = trio.current_time()
            await far.aclose()
            while worker.linked:
                await trio.sleep(0.01)
            driver.feed(ev.Wish(m.IntentKind.STOP_NOW))
            while not ends:
                await trio.sleep(0.1)
            report = await ends[0].receive()
            assert (report.report_seq, report.kind, report.generation) == (2, m.IntentKind.STOP_NOW, 1)
            assert [claim is not None and claim.report_seq for claim in tries] == [2, 2, 2]
            assert 3.5 <= trio.current_time() - begun <= 5.0, "0.5, 1 and 2 s, each at most a fifth longer"
            assert len(beside) == 2 and not isinstance(driver.orders.get_nowait(), fx.Dial)
            driver.feed(ev.LaneClosed())

    run_in_no_time(main)
