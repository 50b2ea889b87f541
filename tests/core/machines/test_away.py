"""A machine that was itself away, with its process or its host, and what it may say of others then (M-9, W-22)."""

from __future__ import annotations

import math

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import CyclePhase, WorkerPhase

from support.hand import Hand, pending
from support.rank import Rank, of

LONG = 1e5
"""Longer than every ceiling that a run has."""


@pytest.mark.parametrize(("staleness", "limit"), [(30.0, 15.0), (4.5, 2.25), (3.0, 2.0)])
def test_a_coordinator_was_away_if_its_tick_is_later_than_the_limit(staleness: float, limit: float) -> None:
    """M-9: more than the larger of 2 s and half the staleness after the deadline, and not at that very instant; below
    it the silence is that of the ranks."""
    for late, away in ((limit, False), (math.nextafter(limit, math.inf), True)):
        hand = Hand(2, heartbeat_timeout_s=staleness).form()
        hand.tick(1.5)
        heard, due = hand.co.peers[0].last_seen, hand.co.poll_timeout()
        assert due is not None
        hand.now = due + late
        if away and hand.now == due + limit:  # the sum is rounded
            hand.now = math.nextafter(hand.now, math.inf)
        hand.feed(ev.Tick())
        assert hand.co.peers[0].last_seen == (hand.now if away else heard)


def away(hand: Hand) -> None:
    """The machine comes back after a long absence."""
    hand.now += LONG
    hand.feed(ev.Tick())


def stalls_after(hand: Hand, ceiling: float) -> None:
    """From now on, not sooner."""
    before = hand.co.cycle.phase
    assert before != CyclePhase.STALLED
    hand.tick(ceiling)
    assert hand.co.cycle.phase == before
    hand.tick(1.0)
    assert hand.co.cycle.phase == CyclePhase.STALLED


def test_a_pending_cycle_has_its_ceiling_anew_after_an_absence() -> None:
    """M-9, M-15: no evidence could have come while nobody listened."""
    hand = pending()
    away(hand)
    assert hand.co.cycle.phase == CyclePhase.PENDING
    stalls_after(hand, hand.co.config.reduce_ceiling)


def test_a_window_has_its_ceiling_anew_after_an_absence() -> None:
    """M-9, M-16: whoever is waited for has shown its progress to nobody."""
    hand = Hand(2, samples=400).form()
    hand.step(0), hand.step(1, 3)
    away(hand)
    assert hand.co.peers[0].last_progress == hand.now and hand.co.cycle.phase == CyclePhase.IDLE
    stalls_after(hand, hand.co.config.window_ceiling)


def test_who_has_no_link_has_its_window_anew_after_an_absence() -> None:
    """M-9, M-42: it may have knocked meanwhile. Who has a link is not taken for one that is awaited."""
    hand = Hand(2, link_grace_s=20.0).form()
    hand.feed(ev.LinkLost(1, 1, "reset"))
    away(hand)
    assert hand.co.peers[1].detached_at == hand.now and not hand.co.peers[0].detached
    hand.tick(20.0)
    assert hand.co.alive == [0, 1]
    hand.tick(0.5)
    assert hand.co.alive == [0]


def test_every_clock_of_the_ladder_stands_at_the_return() -> None:
    """M-9: start and last evidence of a stage, of voters and of others alike."""
    hand = pending(3)
    away(hand)
    climbs = [hand.co.peers[rank].climb for rank in hand.co.alive]
    assert [(climb.entered_at, climb.evidence_at) for climb in climbs] == [(hand.now, hand.now)] * 3


# --- a rank ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("late", "away"), [(2.0, False), (2.001, True)])
def test_a_rank_of_a_short_staleness_was_away_after_two_seconds(late: float, away: bool) -> None:
    """W-22, M-9: half of 3 s is less than the 2 s that any host may be late. The silence begins anew, or goes on."""
    rank = Rank(WorkerPhase.WAITING, staleness_s=3.0)
    rank.pass_time(1.0)
    rank.now = 2.0 + late
    lost = of(rank.feed(ev.Tick()), fx.Stop)
    assert bool(lost) is not away
    assert rank.worker.last_heard == (rank.now if away else 0.0)


def test_a_rank_that_looks_for_its_coordinator_takes_no_absence_for_its_word() -> None:
    """W-22, W-21: without a link nothing is heard, so what it was away for is no reason to wait longer."""
    rank = Rank(WorkerPhase.WAITING, reconnect_window_s=50.0)
    rank.pass_time(1.0)
    rank.feed(ev.LinkLost(cause="reset"))
    rank.now = 40.0
    assert not of(rank.feed(ev.Tick()), fx.Stop) and rank.worker.last_heard == 0.0
    assert rank.worker.poll_timeout() == 51.0
    rank.now = 500.0
    assert of(rank.feed(ev.Tick()), fx.Stop)[0].status == "coordinator_lost"


@pytest.mark.parametrize("kind", ["stale", "beacon", "fenced"])
def test_any_valid_frame_ends_the_silence(kind: str) -> None:
    """W-22: also one that is fenced, and one that is no control message: somebody is there."""
    rank = Rank(WorkerPhase.WAITING)
    rank.pass_time(20.0)
    if kind == "fenced":
        rank.feed(ev.Received(m.Fenced(generation=1, incarnation=1, cycle=0, why="stale")))
    else:
        rank.control(m.Beacon, run_phase=1, cycle_phase=0, cycle=0, incarnation=1 if kind == "beacon" else 9)
    assert rank.worker.fenced == (kind == "stale")
    assert not of(rank.pass_time(30.0), fx.Stop)
    assert of(rank.pass_time(0.5), fx.Stop)


def test_a_heartbeat_that_was_owed_while_away_is_said_at_the_return() -> None:
    """W-22, M-2: the coordinator judges this rank by its silence too, and hears from it first."""
    rank = Rank(WorkerPhase.WAITING)
    rank.now = 500.0
    orders = rank.feed(ev.Tick())
    assert [type(order) for order in orders] == [fx.Reporting] and rank.worker.last_beat == rank.now
