"""Who still holds a version that the journal has lost, or that no voter has any more, and who may come back for it
(M-45, M-27). The whole way through a restart: `test_recovery.py`, `test_lost_forming.py`."""

from __future__ import annotations

import math

import attrs

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import RunPhase

from support.hand import Hand, messages
from support.hand_collective import joint, knock, restarted

GRACE_S = 30.0


def test_ranks_that_hold_the_version_of_the_books_need_no_voter() -> None:
    """M-45, M-27: both have been told what the journal lost, and are turned away; rank 1 takes the last vote with it.
    The cycle that the journal had pending has no member left, so it ends; the version is given on from who has it."""
    hand = joint(2, min_ranks=1, samples=200)
    hand.ack(1)
    restarted(hand)
    knock(hand, 0, generation=1, control_seq=900)
    assert hand.co.voters == [1] and hand.co.cycle.pending and hand.co.lost_tail.giver == 0
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

    assert hand.co.save_issued and hand.co.lost_tail.giver == 0
    assert not [effect for effect in effects if isinstance(effect, fx.Alert) and effect.path == "voters"]


def test_who_is_to_come_back_may_until_the_window_is_over() -> None:
    """M-45, M-21: until then no seat that a lost journal has emptied counts as lost; the instant itself is too late."""
    hand = joint(3, min_ranks=1, samples=200, elastic=False)
    restarted(hand)
    knock(hand, 0, generation=1, version=3, control_seq=900)
    tail = hand.co.lost_tail
    assert tail.excused == (1, 2), "rank 0 is here"
    hand.co.now = math.nextafter(tail.excused_until, 0.0)
    assert [tail.excuses(rank) for rank in (0, 1, 2)] == [False, True, True] and tail.absent == 2
    hand.co.now = tail.excused_until
    assert not any(tail.excuses(rank) for rank in (0, 1, 2)) and tail.absent == 0


def test_the_giver_is_a_living_holder_of_the_version_and_rather_one_in_reach() -> None:
    """M-45, M-44: the lowest of them; a life that is over gives nothing, and neither does what is behind the books."""
    hand = Hand(4, samples=400, link_grace_s=GRACE_S).form()
    co, tail = hand.co, hand.co.lost_tail
    assert tail.giver is None and not tail.reseating
    tail.holders, tail.held = ((3, 2), (2, 1), (1, 1)), co.cycle.version
    assert tail.giver == 1 and tail.reseating
    hand.feed(ev.LinkLost(1, 1, "reset"))
    assert tail.giver == 2
    hand.feed(ev.LinkLost(2, 1, "reset"))
    assert tail.giver == 1, "none is in reach"
    co.lose(1, "dead")
    hand.feed(ev.Tick())
    assert tail.giver == 2
    co.lose(2, "dead")
    hand.feed(ev.Tick())
    assert tail.giver is None, "the life of rank 3 that holds it is another one"
    tail.held += 1
    tail.holders = ((0, 1),)
    assert tail.giver is None


def test_who_comes_with_the_lost_version_holds_it_until_somebody_is_promoted() -> None:
    """M-45: while nobody has come yet, somebody is about to. Holders of another version are none of this one."""
    hand = Hand(3, samples=400).form()
    co, tail = hand.co, hand.co.lost_tail
    claim = m.ResumeClaim(generation=1, incarnation=1, version=5, cycle=6, snapshot_cycle=0, shipped=0, step_count=9,
                          control_seq=9, report_seq=9, global_step=50)  # fmt: skip
    tail.came(co.peers[0], claim, stands=False)
    assert tail.holders == (), "the books lack nothing"
    tail.came(co.peers[0], None, stands=True)
    assert tail.holders == ((0, 1),) and tail.held == co.cycle.version

    tail.overtaken(5)
    co.cycle.version = 5
    assert (tail.version, tail.excused, tail.giver, tail.reseating) == (5, (0, 1, 2), None, True)
    tail.came(co.peers[1], attrs.evolve(claim, version=4), stands=False)
    assert tail.holders == () and tail.excused == (0, 2)
    tail.came(co.peers[2], claim, stands=False)
    tail.came(co.peers[0], claim, stands=False)
    assert tail.holders == ((2, 1), (0, 1)) and tail.held == 5 and tail.excused == ()
    tail.promoted()
    assert (tail.holders, tail.version, tail.reseating) == ((), None, False)
