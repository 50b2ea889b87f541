"""A journal that lost its end back into the forming of the run, and numbers that are given once (M-45, K-1)."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.phases import PeerPhase, RunPhase

from support.hand import Hand, alerts, messages
from support.words import hello


def back(hand: Hand, snapshot: Any) -> None:
    """The coordinator is started anew from this snapshot, and nothing after it was kept."""
    hand.co = Coordinator.restart(hand.co.config, snapshot, (), hand.now)
    hand.co.take_ready()
    hand.sequence.clear(), hand.counted.clear()
    hand.feed(ev.Tick())


def knock(hand: Hand, rank: int, version: int, **fields: Any) -> list[Any]:
    """A rank of the run that was: it holds this version."""
    known: dict[str, Any] = dict(generation=1, incarnation=1, version=version, cycle=version + 2, snapshot_cycle=0,
                                 shipped=0, step_count=9, control_seq=90, report_seq=90,
                                 global_step=10 * version)  # fmt: skip
    known.update(fields)
    wanted = hello(hand.samples, wanted_rank=rank, resume=m.ResumeClaim(**known))
    return hand.feed(ev.HelloReceived(70 + rank, wanted))


def lost(*versions: int, closed: bool = True, **knobs: Any) -> Hand:
    """Ranks with these versions come to a coordinator that is forming, or has not even seen them."""
    hand = Hand(len(versions) if closed else 0, samples=400, target_ranks=len(versions), **knobs)
    snapshot = hand.co.snapshot()
    assert hand.co.run.window_closed is closed and hand.co.cycle.pending is closed
    back(hand, snapshot)
    for rank, version in enumerate(versions):
        knock(hand, rank, version)
    return hand


def form(hand: Hand) -> list[Any]:
    """Cycle 0, as everyone of the new generation sees it."""
    begun = len(hand.effects)
    for rank in hand.co.cycle.participants:
        hand.ready(rank, generation=2)
    hand.reduce()
    for rank in hand.co.cycle.participants:
        hand.ack(rank, generation=2, outcome=m.Outcome.OBSERVER)
    return hand.effects[begun:]


@pytest.mark.parametrize(("closed", "start"), [(True, "auto"), (True, "manual"), (False, "auto")])
def test_a_run_forms_once_more_and_goes_on_from_the_highest_version(closed: bool, start: str) -> None:
    """M-45: the books know of no training. Version and base go forward, who holds the version gives the state of cycle
    0, and no cycle number that a rank has seen is used again (I8)."""
    hand = Hand(3 if closed else 0, samples=400, target_ranks=3, start=start)
    if start == "manual":
        hand.feed(ev.OperatorRequest(ev.Operator.START))
    back(hand, hand.co.snapshot())
    knock(hand, 0, 3)
    assert hand.co.cycle.version == 3 and alerts(hand.effects, "accounting")[0].critical
    knock(hand, 1, 5)
    assert hand.co.peers[0].phase == PeerPhase.DEAD, "its version is behind"
    knock(hand, 0, 3, incarnation=hand.co.peers[0].incarnation, generation=2)
    knock(hand, 2, 5)

    cycle = hand.co.cycle
    assert (cycle.version, cycle.global_step, hand.co.run.phase) == (5, 50, RunPhase.FORMING)
    assert cycle.pending and cycle.number == 0 and cycle.source == 1
    asked = messages(hand.effects, m.RequestParams)[-3:]
    assert [(e.rank, e.generation, e.observer) for e in asked] == [(0, 2, True), (1, 2, False), (2, 2, True)]
    effects = form(hand)
    assert {(e.version, e.global_step) for e in messages(effects, m.Update)} == {(5, 50)}
    assert hand.co.run.phase == RunPhase.TRAINING and hand.co.voters == [0, 1, 2]
    rounds = [(e.key, e.attempt) for e in hand.effects if isinstance(e, fx.OpenRound)]
    assert len(set(rounds)) == len(rounds), "I8: no round has the name of another one"
    for rank in range(3):
        hand.step(rank, 3, generation=2)
    assert hand.co.cycle.number == 8, "the cycle after the highest that anybody knew"


def test_nothing_that_no_rank_holds_is_given() -> None:
    """M-45, M-27: with the last rank that holds the version goes the version; the run does not go back."""
    hand = lost(5, 3)
    knock(hand, 1, 3)
    assert hand.co.cycle.pending and hand.co.cycle.source == 0
    hand.feed(ev.LinkLost(0, hand.co.peers[0].incarnation, "gone"))
    assert hand.co.run.status == "failed" and "version 5" in hand.co.run.text


def test_another_rank_that_holds_the_version_takes_over() -> None:
    """M-45, M-6: the source dies, the next one that stands on the version gives it."""
    hand = lost(5, 5, 3, min_ranks=1)
    knock(hand, 2, 3)
    assert hand.co.cycle.source == 0 and hand.co.cycle.pending
    hand.feed(ev.LinkLost(0, hand.co.peers[0].incarnation, "gone"))
    assert hand.co.cycle.source == 1 and hand.co.cycle.attempt > 0
    form(hand)
    assert hand.co.voters == [1, 2] and hand.co.cycle.version == 5


def test_decisions_and_plans_of_another_generation_have_other_numbers() -> None:
    """K-1, I24: what the lost part of a journal had decided is never decided again under its number."""
    hand = Hand(2, samples=400, save_path="runs").form()
    kept = hand.co.snapshot()
    hand.window()
    decided, planned = hand.co.run.decisions, hand.co.book.next_plan_id
    hand.co.actions._decide()
    back(hand, kept)
    assert hand.co.actions._decide() > decided + 1 and hand.co.book.next_plan_id > planned
    first = hand.co.run.decisions
    back(hand, kept)
    assert hand.co.generation == 2
    hand.co = Coordinator.restart(hand.co.config, hand.co.snapshot(), (), hand.now)
    assert hand.co.generation == 3 and hand.co.actions._decide() > first
