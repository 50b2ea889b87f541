"""A cycle whose last member is gone while another rank still holds its version (M-45, M-27)."""

from __future__ import annotations

import math

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import RunPhase

from support.hand import messages
from support.hand_collective import joint, knock, restarted

GRACE_S = 30.0


def test_ranks_that_hold_the_version_of_the_books_need_no_voter() -> None:
    """M-45, M-27: both have been told what the journal lost, and are turned away; rank 1 takes the last vote with it.
    The cycle that the journal had pending has no member left, so it ends; the version is given on from who has it."""
    hand = joint(2, min_ranks=1, samples=200)
    hand.ack(1)
    restarted(hand)
    knock(hand, 0, generation=1, control_seq=900)
    assert hand.co.voters == [1] and hand.co.cycle.pending and hand.co.joins.giver == 0
    effects = knock(hand, 1, generation=1, control_seq=900)
    cycle = hand.co.cycle

    assert not hand.co.voters and not cycle.pending and cycle.version == 0 and hand.co.run.phase == RunPhase.TRAINING
    paths = [effect.path for effect in effects if isinstance(effect, fx.Alert) and effect.kind == "accounting"]
    assert paths == ["journal", "voters"] and not hand.co.book.limbo
    hand.sequence.clear(), hand.counted.clear()
    [session] = {told.state_from for told in messages(hand.uid(generation=2), m.NewSession)}
    assert session == 0
    for rank in (0, 1):
        hand.ack(rank, generation=2, outcome=m.Outcome.UNREALIZED, total_steps=0)
    assert hand.co.voters == [0, 1] and cycle.version == 0


def test_without_a_pending_cycle_there_is_none_to_take_over() -> None:
    """M-45: as above, but the journal ends between two cycles."""
    hand = joint(2, min_ranks=1, samples=200)
    hand.average()
    restarted(hand)
    effects = [effect for rank in (0, 1) for effect in knock(hand, rank, generation=1, version=1, control_seq=900)]

    assert not hand.co.voters and hand.co.run.phase == RunPhase.TRAINING
    assert [e.path for e in effects if isinstance(e, fx.Alert) and e.kind == "accounting"] == ["journal", "journal"]


def test_a_run_that_ends_for_its_losses_is_taken_over_by_nobody() -> None:
    """M-21 before M-45: rank 1 takes the last vote with it as the one death too many."""
    hand = joint(2, min_ranks=1, samples=200, max_failure=1, link_grace_s=GRACE_S)
    hand.ack(1)
    restarted(hand)
    knock(hand, 0, generation=1, control_seq=900)
    begun = len(hand.effects)
    hand.co.lose(1, "dead")
    hand.feed(ev.Tick())
    effects = hand.effects[begun:]

    assert hand.co.save_issued and hand.co.joins.giver == 0
    assert not [effect for effect in effects if isinstance(effect, fx.Alert) and effect.path == "voters"]


def test_who_is_to_come_back_may_until_the_window_is_over() -> None:
    """M-45, M-21: until then no seat that a lost journal has emptied counts as lost; the instant itself is too late."""
    hand = joint(3, min_ranks=1, samples=200, elastic=False)
    restarted(hand)
    knock(hand, 0, generation=1, version=3, control_seq=900)
    joins = hand.co.joins
    assert joins.excused == (1, 2), "rank 0 is here"
    hand.co.now = math.nextafter(joins.excused_until, 0.0)
    assert [joins.excuses(rank) for rank in (0, 1, 2)] == [False, True, True] and joins.absent == 2
    hand.co.now = joins.excused_until
    assert not any(joins.excuses(rank) for rank in (0, 1, 2)) and joins.absent == 0
