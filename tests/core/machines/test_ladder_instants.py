"""The escalation ladder at the very instant of each step, and what it remembers (M-10 to M-16)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.core import events as ev
from paceline.core import ladder
from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.detector import Learned, LearnedDetector
from paceline.core.ladder import Climb, Stage, next_due
from paceline.core.phases import PeerPhase

from support.climbing import owes_snapshot, said, ship
from support.hand import Hand, named
from support.words import hello


def at(hand: Hand, seconds: float) -> list[Any]:
    """A Tick at this instant, seconds after the arm of the cycle that is pending."""
    hand.now = hand.co.cycle.armed_at + seconds
    for rank in hand.co.alive:
        hand.co.peers[rank].last_seen = hand.now
    hand.co.urgent, hand.co.late_after = True, float("inf")
    return hand.feed(ev.Tick())


def test_each_step_is_exceeded_strictly() -> None:
    """M-12, M-13, M-14: at L, 2L and 3L nothing is due yet; a moment later it is."""
    hand = owes_snapshot(laggards="exclude", max_nudges=2)
    for seconds, due in ((10.0, "Suspect"), (20.0, "Nudge"), (30.0, "Nudge")):
        assert (due, 0, "snapshot") not in said(at(hand, seconds))
        assert hand.co.peers[0].phase is PeerPhase.VOTER
        assert (due, 0, "snapshot") in said(at(hand, seconds + 0.001))
    assert hand.co.peers[0].phase is PeerPhase.LAGGING


@pytest.mark.parametrize(("laggards", "due"), [("wait", False), ("exclude", True)])
def test_a_tick_is_due_only_where_a_step_is(laggards: str, due: bool) -> None:
    """M-10: after the last nudge nothing is waited for but an exclusion, where there is one."""
    hand = owes_snapshot(laggards=laggards, max_nudges=1)
    at(hand, 10.001)
    at(hand, 20.001)
    assert hand.co.peers[0].climb.nudges == 1
    assert (next_due(hand.co) == pytest.approx(hand.co.cycle.armed_at + 30.0)) is due
    assert (next_due(hand.co) < float("inf")) is due


@pytest.mark.parametrize("seconds", [5.0, 10.0])
def test_a_tick_is_due_right_after_the_instant_itself(seconds: float) -> None:
    """M-12: what is exceeded strictly is still to come at its instant, of the least deadline and of this one."""
    hand = owes_snapshot()
    hand.now = hand.co.now = hand.co.cycle.armed_at + seconds
    assert ladder.next_due(hand.co) == math.nextafter(hand.now, math.inf)


def test_no_more_durations_are_remembered_than_the_history_holds() -> None:
    """M-11."""
    climb = Climb(3)
    for seconds in (1.0, 2.0, 3.0, 4.0):
        climb.remember(Stage.ACK, seconds)
    assert list(climb.durations[Stage.ACK]) == [2.0, 3.0, 4.0]


@pytest.mark.parametrize(("durations", "seconds", "middle", "spread"), [
    ((7.0, 30.0), 60.0, None, None), ((9.0, 6.0, 30.0), 27.0, 9.0, 3.0), ((30.0, 7.0, 6.0, 9.0), 17.0, 8.0, 1.5),
    ((1.0, 1.0, 1.0), 5.0, 1.0, 0.0), ((100.0, 140.0, 180.0), 150.0, 140.0, 40.0),
])  # fmt: skip
def test_a_deadline_by_hand(
    durations: tuple[float, ...], seconds: float, middle: float | None, spread: float | None
) -> None:
    """M-11: nothing is learned from two; the middle one of three, the mean of the two in the middle of four; held
    between the floor and half the ceiling."""
    limits = Config().cycle_limits
    assert LearnedDetector().deadline(durations, limits) == Learned(seconds, len(durations), middle, spread)


def test_a_duration_is_that_of_the_stage_and_not_of_its_last_silence() -> None:
    """M-11, M-10: from the start of the stage, whatever moved meanwhile; the next one begins where it ends."""
    climb = Climb(3)
    climb.enter(Stage.UPLOAD, 1.0)
    climb.evidence_at = 3.0
    climb.complete(Stage.UPLOAD, Stage.ACK, 5.0)
    assert list(climb.durations[Stage.UPLOAD]) == [4.0]
    assert (climb.stage, climb.entered_at, climb.evidence_at, climb.began_at) == (Stage.ACK, 5.0, 5.0, 5.0)


@pytest.mark.parametrize(("since", "took"), [(4.0, 3.0), (0.0, 1.0)])
def test_a_duty_is_no_part_of_a_duration(since: float, took: float) -> None:
    """M-11: a stage of 7 s with a duty in it until its last second, that began in it or before it; neither what is
    learned nor what is waited for counts that time."""
    climb = Climb(3)
    climb.enter(Stage.ACK, 2.0)
    climb.excuse(since, 8.0)
    assert climb.evidence_at == 9.0 - took
    climb.complete(Stage.ACK, None, 9.0)
    assert list(climb.durations[Stage.ACK]) == [took]


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.SNAPSHOT])
def test_a_batch_is_evidence_of_the_copy_and_of_nothing_else(stage: Stage) -> None:
    """M-10: a rank that trains on owes its upload, or its call, all the same."""
    climb = Climb(3)
    climb.enter(stage, 1.0)
    climb.stepped(2.0)
    assert climb.evidence_at == 1.0
    climb.enter(Stage.SNAPSHOT, 3.0)
    climb.stepped(4.0), climb.stepped(5.0)
    assert climb.evidence_at == 4.0


def test_a_step_is_waited_for_from_the_last_sign_of_the_training_on() -> None:
    """M-10, M-2: or from when somebody began to wait, if that is later; heartbeats move nothing."""
    hand = Hand(2, samples=400).form()
    waited, other = hand.co.peers
    hand.now += 2.0
    hand.step(0)
    hand.now += 2.0
    hand.step(1, 3)
    assert ladder.step_clock(hand.co, hand.co.peers[waited]) == hand.now, "since then it is waited for"
    hand.now += 2.0
    hand.step(0)
    hand.now += 2.0
    hand.say(0, m.Heartbeat, step_count=0, state="x"), hand.say(other, m.Heartbeat, step_count=0, state="x")
    assert ladder.step_clock(hand.co, hand.co.peers[waited]) == hand.now - 2.0


def test_a_suspicion_is_said_once_in_a_cycle_and_again_in_the_next() -> None:
    """M-12: per rank, cycle and stage; another attempt goes through the same stages. What it says are the numbers it
    was judged by."""
    hand = owes_snapshot(max_nudges=0)
    effects = hand.tick(11.0)
    [facts] = named(effects, "Suspect")
    assert facts["cycle"] == 1 and (facts["deadline"], facts["median"], facts["count"]) == (10.0, None, 1)
    assert 10.0 < facts["waited"] <= 11.0
    hand.ready(0)
    hand.tick(5.0)
    hand.feed(ev.RoundProgress(hand.co.cycle.key, 0, 50, False))
    effects = hand.tick(11.0)
    assert said(effects) == [("Suspect", 0, "upload")] and 10.0 < named(effects, "Suspect")[0]["waited"] <= 11.0
    hand.say(0, m.RoundFailed, cycle=1, attempt=0, round=m.RoundKind.PARAMS, cause="torn", retryable=True)
    ship(hand, 1)
    assert hand.co.cycle.attempt == 1 and not said(hand.tick(20.0))
    hand.average()
    hand.step(0, 3), hand.step(1, 3), hand.complete(0), hand.complete(1)
    ship(hand, 1)
    assert hand.co.cycle.number == 2 and said(hand.tick(100.0)) == [("Suspect", 0, "snapshot")]


def test_who_has_no_link_has_a_window_and_no_ladder() -> None:
    """M-10, M-42: it cannot say what it owes, and its return is awaited by a clock of its own."""
    hand = owes_snapshot(link_grace_s=100.0)
    hand.feed(ev.LinkLost(0, 1, "reset"))
    assert not said(hand.tick(60.0)) and hand.co.alive == [0, 1]


def test_who_still_owes_its_copy_when_all_is_reduced_owes_that_first() -> None:
    """M-10: an observer, which nobody waited for; its ack is owed from its own report on."""
    hand = Hand(2, max_ranks=3, samples=400).form()
    hand.feed(ev.HelloReceived(9, hello(400)))
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
    hand.ready(0), hand.ready(1)
    hand.now += 3.0
    hand.reduce()
    stages = [(peer.climb.stage, peer.climb.entered_at) for peer in hand.co.peers.values()]
    assert stages == [(Stage.ACK, hand.now), (Stage.ACK, hand.now), (Stage.SNAPSHOT, hand.now - 3.0)]
    hand.now += 2.0
    hand.ready(2, shipped_steps=0)
    assert (hand.co.peers[2].climb.stage, hand.co.peers[2].climb.entered_at) == (Stage.ACK, hand.now)


def test_when_everyone_has_done_its_part_nobody_is_waited_for() -> None:
    """M-16: the clock of a wait runs while some have done theirs, and neither before nor after."""
    hand = Hand(2).form()
    assert hand.co.cycle.waiting_since is None
    hand.step(0, 3)
    hand.complete(0)
    assert hand.co.cycle.waiting_since == hand.now
    hand.step(1, 3)
    assert hand.co.cycle.pending and hand.co.cycle.waiting_since is None


@pytest.mark.parametrize(("policy", "grows"), [("sync", False), ("cadence", True), ("async", True)])
def test_the_window_grows_where_it_may(policy: str, grows: bool) -> None:
    """B-10: lock-step has no window."""
    assert Hand(2, policy=policy).form().co.balancer.growth_applies is grows
