"""However a rank leaves its loop, an order to stop that waits in its lane is obeyed first (W-24, W-22).

Messages wait while a step is trained, so the step may end in an exception, or the link in silence, before the rank has
read that the run is over and what it has is to be saved.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import WorkerPhase
from paceline.core.worker import stop_error

from support.rank import Rank, of, reports

T, D, S = WorkerPhase.TRAINING, WorkerPhase.DRAINING, WorkerPhase.STOPPED


def lane_closed(rank: Rank) -> None:
    rank.feed(ev.LaneClosed())


def link_lost(rank: Rank) -> None:
    rank.feed(ev.LinkLost(cause="reset"))


def silence(rank: Rank) -> None:
    rank.pass_time(31.0)


def window_over(rank: Rank) -> None:
    rank.worker.look_until, rank.worker.linked = rank.now, False
    rank.feed(ev.Tick())


def turned_away(rank: Rank) -> None:
    rank.worker.linked = False
    rank.feed(ev.Received(m.Reject(code=m.RejectCode.CLOSING, text="the run is over")))


EXITS = [lane_closed, link_lost, silence, window_over, turned_away]


def training(**waiting: Any) -> Rank:
    """In the middle of a step, with a notice and this order to stop in its lane."""
    rank = Rank(T, save_path="/own")
    rank.control(m.EvalBroadcast, serve=False, schedule_id=1, epoch=0, version=0, metric=0.5)
    if waiting:
        rank.control(m.ShutdownWithSave, serve=False, decision_id=3, reason=m.SaveReason.REDUCE_STALL, **waiting)
    else:
        rank.control(m.Shutdown, serve=False, reason=m.SaveReason.GRACEFUL)
    assert rank.worker.phase == T
    return rank


@pytest.mark.parametrize("leaves", EXITS)
@pytest.mark.parametrize("saver", [0, 1])
def test_a_save_that_waits_is_made_whatever_ends_the_loop(leaves: Any, saver: int) -> None:
    """W-24, W-19: under the shared name, as ordered, and not under the name of a rank that lost its coordinator."""
    rank = training(saver=saver, stem="/run/reduce_stall")
    leaves(rank)
    assert rank.worker.phase == D
    rank.feed(ev.ActionDone("save", 3, 0, 1.0))

    assert of(rank.orders, fx.Save) == [fx.Save(3, 0, "/run/reduce_stall", saver == 1)]
    assert [stop.status for stop in of(rank.orders, fx.Stop)] == ["saved"]
    assert "evaluated" not in [told.name for told in of(rank.orders, fx.Publish)], "what waits before it means nothing"


@pytest.mark.parametrize("leaves", EXITS)
def test_who_was_told_to_stop_has_not_lost_its_coordinator(leaves: Any) -> None:
    """W-24, W-22: after a Shutdown the end of a link is expected, also by a rank that has not read it yet."""
    rank = training()
    leaves(rank)

    assert [stop.status for stop in of(rank.orders, fx.Stop)] == ["ok"] and not of(rank.orders, fx.Save)
    assert [each.reason for each in reports(rank.orders, m.Exiting)] == (["done"] if rank.worker.linked else [])
    assert rank.worker.poll_timeout() is None


@pytest.mark.parametrize("leaves", EXITS)
def test_a_save_without_a_name_ends_the_loop_all_the_same(leaves: Any) -> None:
    """W-24, W-19."""
    rank = training(saver=1, stem=None)
    leaves(rank)

    assert [stop.status for stop in of(rank.orders, fx.Stop)] == ["saved"] and not of(rank.orders, fx.Save)


def test_a_step_that_fails_does_not_lose_the_save_that_waits() -> None:
    """W-24: it is made first. The end is an error all the same, and nobody is told that it was a clean one."""
    rank = training(saver=1, stem="/run/diverged")
    orders = rank.feed(ev.TrainingFailed("out of memory"))
    assert rank.worker.phase == D and not of(orders, fx.Stop)
    rank.feed(ev.ActionDone("save", 3, 0, 1.0, error="disk full"))

    assert of(rank.orders, fx.Save) == [fx.Save(3, 0, "/run/diverged", True)] and not of(rank.orders, fx.Publish)
    assert reports(rank.orders, m.CheckpointResult)[0].error == "disk full" and not reports(rank.orders, m.Exiting)
    error = stop_error(of(rank.orders, fx.Stop)[0])
    assert error is not None and "out of memory" in str(error) and rank.worker.phase == S


def test_a_step_that_failed_waits_for_both_files_of_who_becomes_the_saver() -> None:
    """W-24, M-52: the saver has died, and this rank is named in its place while it writes its own file."""
    rank = training(saver=0, stem="/run/diverged")
    rank.feed(ev.TrainingFailed("out of memory"))
    rank.control(m.ShutdownWithSave, decision_id=3, reason=m.SaveReason.REDUCE_STALL, saver=1, stem="/run/diverged")
    rank.feed(ev.ActionDone("save", 3, 0, 1.0))
    assert rank.worker.phase == D and not of(rank.orders, fx.Stop)
    rank.feed(ev.ActionDone("save", 3, 0, 1.0))

    assert [stop.status for stop in of(rank.orders, fx.Stop)] == ["failed"]


def test_a_door_that_is_busy_is_knocked_at_again_whatever_waits() -> None:
    """N-29 before W-24: the link is lost for now, and the step goes on."""
    rank = training(saver=1, stem="/run/reduce_stall")
    rank.worker.linked = False
    orders = rank.feed(ev.Received(m.Reject(code=m.RejectCode.BUSY, text="busy", retry=True, after_s=1.0)))

    assert of(orders, fx.Dial) and not of(orders, fx.Save) and rank.worker.phase == T


def test_a_step_that_failed_is_a_failure_also_where_the_save_hangs() -> None:
    """W-24: the last save takes longer than it may; the end is that of the step, not a clean one."""
    rank = training(saver=1, stem="/run/diverged")
    rank.feed(ev.TrainingFailed("out of memory"))
    assert rank.worker.drain_until is not None
    rank.now = rank.worker.drain_until
    rank.feed(ev.Tick())

    [stop] = of(rank.orders, fx.Stop)
    error = stop_error(stop)
    assert stop.status == "failed" and error is not None and "out of memory" in str(error)
    assert rank.worker.phase == S and not reports(rank.orders, m.Exiting)


@pytest.mark.parametrize("waiting", [{}, {"saver": 1, "stem": None}])
def test_a_step_that_fails_is_a_failure_also_at_the_end_of_a_run(waiting: dict[str, Any]) -> None:
    """W-24, 17.1 #22: where nothing is to be saved nothing is waited for, and there is no goodbye."""
    rank = training(**waiting)
    rank.feed(ev.TrainingFailed("out of memory"))

    assert [stop.status for stop in of(rank.orders, fx.Stop)] == ["failed"] and not reports(rank.orders, m.Exiting)
