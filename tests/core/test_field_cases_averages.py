"""Faults that users of comparable systems have met with averages (C4): what is counted; ids are in the docstrings.

The numbers themselves are in `tests/backends/test_field_cases_averaging.py`.
"""

from __future__ import annotations

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import PeerPhase, RunPhase

from support.field import averaged, pass_time, work
from support.hand import Hand, messages, named, pending
from support.words import hello


def test_right_after_an_average_there_is_nothing_to_average() -> None:
    """F20, G-1, G-2, G-10: nobody has moved, so no cycle is armed, however long that takes, nor to end the run."""
    hand = pending()
    hand.average()
    effects = pass_time(hand, 60.0)
    effects += hand.feed(ev.OperatorRequest(ev.Operator.STOP))

    assert messages(effects, m.Shutdown)
    assert not hand.co.cycle.pending and hand.co.cycle.number == 1
    assert not messages(effects, m.RequestParams) and not named(effects, "SyncStart")


@pytest.mark.parametrize("ends", ["dead", "refused"])
def test_an_average_whose_only_mover_does_not_count_is_told_once_and_the_run_goes_on(ends: str) -> None:
    """F20, R-8, C-17, D-12: rank 1 has had nothing to train, rank 0 has moved, and its contribution is lost or refused.
    The cycle closes as not realized: no version, no step, nothing covered, no file, one record of it. The batch is
    trained again, and the next average is one."""
    hand = Hand(2, samples=2, num_epochs=1, policy="sync", save_path="runs", checkpoint_every=1).form()
    hand.step(0)
    hand.complete(0)
    assert hand.co.cycle.pending and hand.co.cycle.members == (0, 1) and hand.co.peers[1].steps == 0
    begun = len(hand.effects)
    sick = (0,) if ends == "refused" else ()
    if ends == "dead":
        hand.feed(ev.LinkLost(0, 1, "reset"))
    else:
        hand.ready(0)
    hand.ready(1)
    hand.reduce(sick)
    if sick:
        hand.ack(0, outcome=m.Outcome.REFUSED, refusal=m.Refusal.NONFINITE)
    effects = hand.ack(1, outcome=m.Outcome.UNREALIZED, divergence=None, pre_norm=None, post_norm=None)

    (told,) = named(hand.effects[begun:], "Cycle")
    assert (told["realized"], told["version"], told["global_step"]) == (False, 0, 0)
    update = messages(effects, m.Update, 1)[0]
    assert (update.outcome, update.version, update.global_step, update.merged_steps) == (m.Outcome.UNREALIZED, 0, 0, 0)
    assert (hand.co.cycle.version, hand.co.cycle.global_step, hand.co.book.covered) == (0, 0, 0)
    assert not [each for each in hand.effects if isinstance(each, fx.SaveConsensus | fx.WriteMeta)]
    assert not named(hand.effects[begun:], "Divergence") and hand.co.run.phase == RunPhase.TRAINING
    again = next(rank for rank in hand.co.voters if hand.co.book.head(rank) is not None)
    hand.step(again)
    hand.complete(again)
    (told,) = named(hand.average(), "Cycle")
    assert (told["realized"], told["version"], told["global_step"]) == (True, 1, 1)


def test_the_steps_of_who_is_not_in_an_average_are_not_counted() -> None:
    """F22, C-15, I44, D-12: four ranks with 10, 30, 60 and 50 steps, and rank 3 dies before its copy is complete. It is
    100 steps further and not 150; the 50 batches are trained again."""
    hand = Hand(4, samples=2000, num_epochs=1, policy="sync").form()
    for rank, steps in enumerate((10, 30, 60, 50)):
        hand.step(rank, steps)
    assert hand.co.cycle.pending
    for rank in range(3):
        hand.ready(rank)
    effects = hand.feed(ev.LinkLost(3, 1, "reset"))
    assert [each.rank for each in effects if isinstance(each, fx.RemoveFromRound)] == [3]
    hand.reduce()
    effects = [effect for rank in range(3) for effect in hand.ack(rank, total_steps=100)]

    updates = messages(effects, m.Update)
    assert [(each.global_step, each.version, each.merged_steps) for each in updates] == [
        (100, 1, 10), (100, 1, 30), (100, 1, 60)]  # fmt: skip
    (told,) = named(effects, "Cycle")
    assert (told["global_step"], told["merged"]) == (100, {"0": 10, "1": 30, "2": 60, "3": 0})
    assert (hand.co.book.covered, hand.co.book.replayed) == (100, 50)


def test_a_lone_rank_makes_versions_and_an_average_of_two_when_another_is_back() -> None:
    """F34, C-15, M-7, M-8, M-25: rank 1 leaves; three cycles of rank 0 are realized and each a version more, and its
    optimizer is left alone; then rank 1 is there again as its next life, and is a member of the next average."""
    hand = Hand(2, samples=400, num_epochs=1).form()
    hand.window()
    hand.say(1, m.Exiting, reason="leave")
    begun = len(hand.effects)
    for _ in range(3):
        hand.window()
    told = named(hand.effects[begun:], "Cycle")
    assert [(each["realized"], each["version"], set(each["merged"])) for each in told] == [
        (True, version, {"0"}) for version in (2, 3, 4)]  # fmt: skip
    assert [update.outcome for update in messages(hand.effects[begun:], m.Update)] == [m.Outcome.MERGED] * 3

    hand.sequence[1] = hand.counted[1] = 0
    hand.feed(ev.HelloReceived(9, hello(400, wanted_rank=1)))
    assert (hand.co.peers[1].phase, hand.co.peers[1].incarnation) == (PeerPhase.JOINING, 2)
    for merged in ({"0": 3}, {"0": 3, "1": 3}):
        work(hand, 0)
        work(hand, 1)
        averaged(hand)
        assert named(hand.effects, "Cycle")[-1]["merged"] == merged and hand.co.peers[1].phase == PeerPhase.VOTER
