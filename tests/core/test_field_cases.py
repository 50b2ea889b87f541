"""Faults that users of comparable systems have met: hangs, deaths, reconnects; ids are in the docstrings.

Only the cases that a decision can answer are here, and only those whose feature exists. Times are those of the cases: a
heartbeat a second, dead after 5 s of silence, a stalled average after 60 s. The rest is in the other
files of that name: deaths (C2), data and what is seen (runs), clocks and ends, actions, collectives.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import CyclePhase, PeerPhase

from support.cohort import Cohort, Fault
from support.field import QUICK, pass_time, work
from support.hand import Hand, messages, named, pending
from support.words import hello

# --- hangs while heartbeats flow (C1) ---------------------------------------------------------------------------------


def test_heartbeats_of_a_stuck_rank_are_no_progress() -> None:
    """F01, M-2, M-15: it is never called dead; past the ceiling there is one stall and one save, of what there is."""
    hand = pending(**QUICK)
    hand.ready(0)
    last_evidence = hand.now
    effects = pass_time(hand, 60.0)
    assert hand.co.cycle.pending and hand.co.alive == [0, 1]
    assert hand.co.peers[1].last_seen > last_evidence >= hand.co.peers[1].last_progress
    effects = pass_time(hand, 30.0)

    assert len(named(effects, "Stalled")) == 1 and not named(effects, "Died")
    saves = messages(effects, m.ShutdownWithSave)
    assert {save.reason for save in saves} == {m.SaveReason.REDUCE_STALL} and len({s.decision_id for s in saves}) == 1
    assert hand.co.cycle.phase == CyclePhase.STALLED and hand.co.cycle.version == 0


@settings(max_examples=20)
@given(st.lists(st.booleans(), min_size=12, max_size=12))
def test_arrivals_at_one_barrier_open_no_other(repeats: list[bool]) -> None:
    """F03, N-6, I2: duplicates of the last cycle's acks are fenced, however many barriers there were."""
    hand = Hand(samples=400).form()
    for repeat in repeats:
        for rank in (0, 1):
            work(hand, rank)
        for rank in (0, 1):
            hand.ready(rank)
        hand.reduce()
        hand.ack(0)
        if repeat:
            hand.ack(1, cycle=hand.co.cycle.number - 1)
        assert hand.co.cycle.pending
        effects = hand.ack(1)
        assert sorted(update.rank for update in messages(effects, m.Update)) == [0, 1]

    assert hand.co.fenced.get((1, "SyncAck"), 0) == sum(repeats)
    assert hand.co.cycle.version == len(repeats)


# --- double application, lost updates, reconnects (C3) ----------------------------------------------------------------


@settings(max_examples=30)
@given(when=st.integers(0, 120), lose=st.integers(0, 4))
def test_what_is_queued_for_a_lost_link_is_delivered_up_to_a_point_or_not_at_all(when: int, lose: int) -> None:
    """F16, N-2, N-10: never one message without those before it; what they reserved is free again (I41, I42)."""
    cohort = Cohort(ranks=3)
    cohort.run(faults=[Fault(when, "cut", 1, lose), Fault(when + 3, "crash", 1, lose)])
    numbers = [effect.message.control_seq for effect in cohort.effects
               if isinstance(effect, fx.Send) and effect.rank == 1]  # fmt: skip

    assert numbers == list(range(1, len(numbers) + 1))
    assert not cohort.seats[1].worker.violations, "the rank saw a hole in the lane"


@pytest.mark.parametrize("bad", [{"schema_hash": b"x" * 32}, {"averagers": ()}, {"byte_order": 1}, {"protocol": 9}])
def test_a_refused_hello_leaves_no_half_member(bad: dict[str, Any]) -> None:
    """F17, M-5: one Reject and nothing else; the next, correct one is the first incarnation."""
    hand = Hand(1, target_ranks=3)
    before = hand.co.snapshot()
    effects = hand.feed(ev.HelloReceived(1, hello(hand.samples, **bad)))
    assert len([e for e in effects if isinstance(e, fx.Refuse)]) == 1 and hand.co.snapshot() == before
    effects = hand.feed(ev.HelloReceived(2, hello(hand.samples)))

    assert [(e.rank, e.incarnation) for e in effects if isinstance(e, fx.Admit)] == [(1, 1)]


def test_frames_of_a_session_that_is_gone_are_fenced() -> None:
    """F18, I3, M-1: heartbeat, step and goodbye after the loss; nobody leaves twice."""
    hand = Hand(3, samples=400).form()
    hand.step(1)
    hand.feed(ev.LinkLost(1, 1, "reset"))
    alive, exits = hand.co.alive_count, hand.co.deaths
    hand.say(1, m.Heartbeat, step_count=1, state="x")
    hand.say(1, m.Batch, cycle=0, plan_id=1, step_count=11, samples=2, batch_ms=1.0, data_ms=0.0)
    hand.say(1, m.Exiting, reason="done")

    assert sum(count for (rank, _), count in hand.co.fenced.items() if rank == 1) == 3
    assert (hand.co.alive_count, hand.co.deaths, hand.co.peers[1].phase) == (alive, exits, PeerPhase.DEAD)


@pytest.mark.parametrize("bad", [{"schema_hash": b"x" * 32}, {"protocol": 9}, None])
def test_a_refusal_says_whether_to_try_again(bad: dict[str, Any] | None) -> None:
    """F19, M-5, N-29: what will not be better next time is not retried; a run that is about to end is."""
    hand = Hand(1, num_epochs=0).form() if bad is None else Hand(1, target_ranks=3)
    effects = hand.feed(ev.HelloReceived(1, hello(60, **(bad or {}))))

    assert [e.reject.retry for e in effects if isinstance(e, fx.Refuse)] == [bad is None]


@pytest.mark.parametrize("grace_s", [0.0, 30.0])
@pytest.mark.parametrize("noticed", [True, False])
def test_the_ghost_of_a_try_that_broke_off_leaves_its_seat(noticed: bool, grace_s: float) -> None:
    """F19, M-7, M-17, M-42: reset after its Hello had been received. It is the same rank again: at once if the end of
    the link was seen, else when its ghost has been silent for 5 s; until then the refusal says that the seat is taken.
    There is one live session of it, and one link."""
    hand = Hand(1, target_ranks=3, link_grace_s=grace_s, **QUICK)
    knock = hello(hand.samples, wanted_rank=1)
    hand.feed(ev.HelloReceived(1, knock))
    if noticed:
        hand.feed(ev.LinkLost(1, 1, "reset", 1))
    else:
        effects = hand.feed(ev.HelloReceived(2, knock))
        assert [e.reject.code for e in effects if isinstance(e, fx.Refuse)] == [m.RejectCode.SEAT]
        pass_time(hand, 5.1, silent=(1,))
    effects = hand.feed(ev.HelloReceived(3, knock))

    assert [(e.link, e.rank, e.incarnation) for e in effects if isinstance(e, fx.Admit)] == [(3, 1, 2)]
    assert hand.co.alive == [0, 1] and hand.co.peers[1].link == 3 and not hand.co.peers[1].detached
    assert hand.feed(ev.LinkLost(1, 1, "reset", 1)) == [] and hand.co.alive == [0, 1]
