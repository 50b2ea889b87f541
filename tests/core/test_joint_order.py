"""What each row of the joint table is for, and why it has its turn before another: one test for each (C-3).

The rest of the suite sees most rows in whole runs. Here are those whose phases, guards or place only show when two
things fall into one pass, which a driver that was late for a moment brings about.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import gates
from paceline.core import messages as m
from paceline.core.events import LinkLost, Operator, OperatorRequest, Tick
from paceline.core.phases import CyclePhase, RunPhase

from support.climbing import said
from support.hand import Hand, messages, named, pending
from support.hand_collective import Joint

STOP = OperatorRequest(Operator.STOP)


def told(effects: list[Any]) -> list[str]:
    """The names of effects, of what is sent the name of the message, of what is told the name of the event."""
    return [
        effect.name if isinstance(effect, fx.Emit)
        else type(effect.message if isinstance(effect, fx.Send) else effect).__name__
        for effect in effects
    ]  # fmt: skip


def before(first: str, second: str, effects: list[Any]) -> bool:
    """Whether the first one of a name comes before the first one of another."""
    names = told(effects)
    return names.index(first) < names.index(second)


# --- steps 5 to 9 ----------------------------------------------------------------------------------------------------


def test_a_window_is_not_divided_anew_because_time_has_passed() -> None:
    """D-7 (step 5): what is left after this window is the next one's, so nobody has to take more steps in this one."""
    hand = Hand(2, samples=14, anchor=2, num_epochs=1).form()
    hand.tick(2.0)
    hand.step(0, 2), hand.step(1, 2)
    assert hand.co.cycle.pending


def test_the_lead_limit_sees_who_is_left_before_their_cycle_is_finished() -> None:
    """C-3 (6 before 7), G-8: what a rank leaves behind as it dies is work for one that had none, and is now the
    slowest; the cycle that it was the last to owe its word to is finished after that, and releases who was parked."""
    hand = Hand(3, policy="async", max_batch_diff=1, samples=16, anchor=2, min_chunk=2, num_epochs=1).form()
    assert not hand.co.book.holdings(2).plans
    for rank in (0, 1, 0, 1, 0):
        hand.step(rank)
    for rank in (0, 1, 2):
        hand.ready(rank)
    hand.reduce()
    hand.ack(0), hand.ack(2)
    assert hand.co.cycle.pending and not named(hand.effects, "Throttle")
    effects = hand.feed(LinkLost(1, 1, "its host is gone"))
    assert before("Throttle", "Update", effects) and hand.co.peers[0].throttled is None


def test_what_an_excluded_rank_held_goes_out_before_its_cycle_is_finished() -> None:
    """C-3 (7 before 8, and only 7), M-14, D-22: the last one that owed its word is excluded in step 8, so the finish
    belongs to the next round, after what has come back."""
    hand = pending(3, steps=1, policy="sync", samples=60, suspect_initial_s=10.0, laggards="exclude")
    for rank in (0, 1, 2):
        hand.ready(rank)
    hand.reduce(refused=(0,))
    hand.ack(1), hand.ack(2)
    effects = hand.tick(31)
    assert said(effects, "Excluded") == [("Excluded", 0, "ack")]
    assert before("ExtendPartition", "Update", effects)


def test_a_stop_that_comes_after_the_ceiling_comes_too_late() -> None:
    """C-3 (8 before 9), M-16, G-10: the run has stalled, so no cycle is forced any more."""
    hand = Hand(2, samples=400, window_ceiling_s=40.0).form()
    hand.step(0), hand.step(1)
    hand.tick(40.0)
    hand.now += 0.5
    hand.feed(STOP)
    assert hand.co.cycle.phase is CyclePhase.STALLED and hand.co.run.phase is RunPhase.SHUTTING_DOWN


def test_who_can_be_excluded_does_not_stall_the_run() -> None:
    """C-3 (8, below the ceilings), M-14, M-16: both are due in one pass."""
    hand = Hand(3, samples=400, suspect_initial_s=9.99, laggards="exclude", window_ceiling_s=30.0).form()
    hand.step(0)
    for rank in (1, 2):
        hand.step(rank, 3)
        hand.complete(rank)
    hand.tick(29.9)
    hand.now += 0.2
    assert said(hand.feed(Tick()), "Excluded") == [("Excluded", 0, "step")]
    assert hand.co.cycle.pending and hand.co.cycle.members == (1, 2)


# --- steps 9 to 13 ---------------------------------------------------------------------------------------------------


def test_a_run_that_gets_on_in_the_same_pass_is_not_dumped() -> None:
    """C-3 (9 before 10), O-8: as the dump falls due, who held all of them up is found dead, and a cycle is armed."""
    hand = Hand(2, samples=400, stall_dump_s=30.0, heartbeat_timeout_s=30.0).form()
    hand.step(0, 3)
    hand.complete(0)
    hand.tick(29.9, silent=(1,))
    hand.now += 0.2
    effects = hand.feed(Tick())
    assert hand.co.alive == [0] and hand.co.cycle.pending and not named(effects, "StateDump")


def test_whoever_completes_its_plan_while_a_cycle_is_pending_has_the_next_one_in_that_pass() -> None:
    """D-9 (step 11): also where the lead limit makes each end of a plan a matter of the pass."""
    hand = Hand(2, policy="async", max_batch_diff=50, samples=60, anchor=2, min_chunk=2, num_epochs=1).form()
    hand.step(0, 2), hand.step(1, 2)
    assert hand.co.cycle.pending
    effects = hand.complete(0)
    assert [message.rank for message in messages(effects, m.StartEpoch)] == [0] and "Alert" not in told(effects)


def test_what_may_come_next_is_said_in_the_pass_in_which_an_epoch_begins() -> None:
    """C-3 (the run is judged, then it is said), D-21, D-24, D-20."""
    hand = Hand(2, policy="sync", samples=8, num_epochs=2).form()
    hand.step(0), hand.step(1)
    hand.average()
    for rank in (0, 1):
        hand.step(rank)
        hand.complete(rank)
    names = told(hand.average())
    assert "StageAdvisory" in names[names.index("EpochStart") :]


def test_after_a_beacon_nothing_is_due_at_once() -> None:
    """N-8, C-3 (the last of 13): the deadline knows of the next beacon."""
    hand = Hand(1).form()
    hand.now = hand.co.next_beacon
    assert messages(hand.feed(Tick()), m.Beacon)
    due = hand.co.poll_timeout()
    assert due is not None and due > hand.now


@pytest.mark.parametrize(("begin", "times"), [
    (lambda: Hand(2).form(), 1),
    (pending, 1),
    (lambda: Hand(2, policy="async", max_batch_diff=50).form(), 3),
])  # fmt: skip
def test_a_pass_looks_at_all_ranks_no_more_often_than_it_has_to(
    begin: Any, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-4: once while nothing changes, and for the lead limit twice more: before and after the finish (G-8)."""
    hand = begin()
    looks: list[Any] = []
    count = gates.count_gate
    monkeypatch.setattr(gates, "count_gate", lambda co: (looks.append(co), count(co)))
    hand.now = hand.co.next_beacon
    hand.feed(Tick())
    assert len(looks) == times
    looks.clear()
    hand.feed(STOP), hand.co.condemn(m.SaveReason.GRACEFUL, "it has to end")
    hand.now = hand.co.next_beacon
    hand.feed(Tick())
    looks.clear()
    hand.now = hand.co.next_beacon
    hand.feed(Tick())
    assert hand.co.run.phase is RunPhase.SHUTTING_DOWN and not looks


# --- what cannot wait ------------------------------------------------------------------------------------------------


def test_a_run_that_is_condemned_as_it_forms_orders_no_save() -> None:
    """M-6, M-21, C-25: there is nothing to save; who is there is only told that it is over."""
    hand = Joint(2)
    hand.confirms = True
    effects = hand.tick(100.0)
    assert hand.co.run.text.startswith("the run did not form: no rank made the id of session 1")
    assert messages(effects, m.Shutdown) and not messages(effects, m.ShutdownWithSave)


def test_a_run_that_does_not_form_ends_its_round_before_anything_is_shut_down() -> None:
    """I10, C-25: the round of cycle 0, by its own name."""
    effects = Hand(2).feed(STOP)
    assert before("AbortRound", "Shutdown", effects)
    assert [effect.key.kind for effect in effects if isinstance(effect, fx.AbortRound)] == [m.RoundKind.STATE]


def test_who_gave_the_initial_state_is_out_of_the_round_before_another_one_gives_it() -> None:
    """M-6, M-18, C-21: it leaves the attempt that it was the source of, and not the next one."""
    effects = Hand(3).feed(LinkLost(0, 1, "its host is gone"))
    assert before("RemoveFromRound", "OpenRound", effects)
