"""Cycle 0, as it goes and as it ends: what of an average it is, and what it is not (M-6)."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import PeerPhase, RunPhase

from support.hand import Hand, messages, named
from support.words import hello


def kinds(effects: list[Any]) -> list[str]:
    """Names of what was told, sent and ordered, in order."""
    return [
        e.name if isinstance(e, fx.Emit) else type(e.message if isinstance(e, fx.Send) else e).__name__ for e in effects
    ]


def test_formation_ends_as_an_average_without_its_judgement() -> None:
    """M-6: C-15.6 to 13 alone. Everyone is told version 0 and the position, becomes a voter, and trains only then; no
    report, no verdict, no version, nothing in the books."""
    hand = Hand(3, samples=400)
    assert [request.observer for request in messages(hand.effects, m.RequestParams)] == [False, True, True]
    effects = hand.average(outcome=m.Outcome.OBSERVER)
    updates = [
        (u.rank, u.cycle, u.attempt, u.version, u.global_step, u.outcome, u.merged_steps, u.next_plan)
        for u in messages(effects, m.Update)
    ]
    assert updates == [(rank, 0, 0, 0, 0, m.Outcome.OBSERVER, 0, None) for rank in range(3)]
    assert [(s.rank, s.version, s.global_step) for s in messages(effects, m.SetGlobalStep)] == [
        (rank, 0, 0) for rank in range(3)
    ]
    told = kinds(effects)
    order = ["Promoted", "Update", "SetGlobalStep", "CloseRound", "AverageEnd", "SyncEnd", "StartEpoch"]
    assert [name for index, name in enumerate(told) if name in order and name not in told[:index]] == order
    assert not {"Cycle", "Verdict", "Divergence", "Covered", "Throttle"} & set(told)
    [closed] = [e for e in effects if isinstance(e, fx.CloseRound)]
    assert (closed.key.cycle, closed.key.kind) == (0, m.RoundKind.STATE)
    co = hand.co
    assert (co.cycle.version, co.cycle.sync_rounds, co.cycle.global_step, co.cycle.number, co.cycle.finished) == (
        0, 0, 0, 0, 0,
    )  # fmt: skip
    assert co.voters == [0, 1, 2] and co.run.phase == RunPhase.TRAINING


def test_one_gives_and_the_others_look_on() -> None:
    """M-6, R-1: the lowest rank is the member of the round, with nothing to count; everybody else receives."""
    hand = Hand(3)
    [opened] = [e for e in hand.effects if isinstance(e, fx.OpenRound)]
    assert (opened.members, opened.observers) == (((0, 1, 0),), ((1, 1), (2, 1)))
    assert not hand.co.run.shutdown_issued and not messages(hand.effects, m.StartEpoch)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_every_rank_is_waited_for(missing: int) -> None:
    """M-6, C-12: also a rank that only looks on; nobody trains before all hold the state."""
    hand = Hand(3)
    for rank in range(3):
        hand.ready(rank)
    hand.reduce()
    for rank in range(3):
        if rank != missing:
            hand.ack(rank, outcome=m.Outcome.OBSERVER)
    assert hand.co.cycle.owing == 1 and hand.co.cycle.debtors() == [missing]
    assert not messages(hand.effects, m.StartEpoch) and hand.co.voters == []
    hand.ack(missing, outcome=m.Outcome.OBSERVER)
    assert hand.co.voters == [0, 1, 2] and messages(hand.effects, m.StartEpoch)


@pytest.mark.parametrize(("min_ranks", "forms"), [(2, True), (3, False)])
def test_who_is_not_done_in_time_is_dropped_if_enough_remain(min_ranks: int, forms: bool) -> None:
    """M-6: strictly after `formation_s` from the closing of the window."""
    hand = Hand(3, min_ranks=min_ranks)
    for rank in range(3):
        hand.ready(rank)
    hand.reduce()
    for rank in (0, 1):
        hand.ack(rank, outcome=m.Outcome.OBSERVER)
    hand.tick(60.0)
    assert hand.co.alive == [0, 1, 2] and hand.co.run.phase == RunPhase.FORMING
    hand.tick(0.5)
    assert named(hand.effects, "Died")[0]["cause"] == "not formed within 60 s"
    assert hand.co.run.phase == (RunPhase.TRAINING if forms else RunPhase.SHUTTING_DOWN)
    assert hand.co.voters == ([0, 1] if forms else [])


def test_the_time_begins_anew_with_another_source() -> None:
    """M-6: it and those who wait for it have done nothing wrong; what the dead one had shipped may be torn, so it is
    another attempt, with the next lowest."""
    hand = Hand(3)
    hand.tick(50.0)
    hand.ready(0)
    effects = hand.feed(ev.LinkLost(0, 1, "reset"))
    asked = [(r.rank, r.attempt, r.observer) for r in messages(effects, m.RequestParams)]
    assert asked == [(1, 1, False), (2, 1, True)]
    hand.tick(60.0)
    assert hand.co.alive == [1, 2]
    hand.average(outcome=m.Outcome.OBSERVER)
    assert hand.co.voters == [1, 2]


def test_whoever_comes_after_the_window_is_no_part_of_the_formation() -> None:
    """M-6, M-22: it may come again as soon as the cohort trains."""
    hand = Hand(2, max_ranks=3)
    assert [e.reject.retry for e in hand.feed(ev.HelloReceived(9, hello(60))) if isinstance(e, fx.Refuse)] == [True]
    hand.form()
    hand.feed(ev.HelloReceived(10, hello(60)))
    assert hand.co.peers[2].phase is PeerPhase.JOINING
