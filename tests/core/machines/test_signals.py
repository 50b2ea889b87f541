"""Signs of life, signs of progress and how a life ends: each kind by itself (M-1, M-2, M-8)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import PeerPhase
from paceline.core.policies import readings
from paceline.core.roles import ROLES

from support import duties
from support.climbing import owes_snapshot
from support.hand import Hand, alerts, messages, named, pending
from support.hand_collective import Joint, lost
from support.words import hello

# --- what is progress (M-2) ------------------------------------------------------------------------------------------


def trains() -> Hand:
    return Hand(2, samples=400, callbacks=ROLES).form()


def trained() -> Hand:
    """Its plan is trained and not yet told to be."""
    hand = trains()
    hand.step(0, 3)
    return hand


def refused() -> Hand:
    """It has a plan, and its steps on the basis of before are void."""
    hand = pending(samples=400)
    hand.average(refused=[0])
    return hand


def lagging() -> Hand:
    """It was excluded, and what it steps belongs to others."""
    hand = owes_snapshot(laggards="exclude")
    hand.tick(31.0)
    assert hand.co.peers[0].phase is PeerPhase.LAGGING
    return hand


def shipped() -> Hand:
    """What all have is reduced."""
    hand = pending(samples=400)
    hand.ready(0), hand.ready(1), hand.reduce()
    return hand


def ordered(kind: m.IntentKind) -> tuple[Hand, Any]:
    """Rank 0 is asked to evaluate, or to call its checkpoint callback."""
    run = duties.hand()
    effects = duties.armed(run, kind)
    run.average()
    [order] = messages(effects, m.Checkpoint if kind == duties.SAVE else m.ExecuteEvalCallback)
    return run, order


def saving() -> Hand:
    """The run saves and stops; rank 0 is the saver."""
    hand = pending(3, samples=400, max_failure=1)
    hand.feed(ev.LinkLost(2, 1, "reset"))
    assert hand.co.run.save is not None
    return hand


def moved(hand: Hand, bytes_so_far: int) -> Any:
    return hand.feed(ev.RoundProgress(hand.co.cycle.key, 0, bytes_so_far, False))


PROGRESS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "Batch": (trains, lambda hand: hand.step(0)),
    "Batch of a refused basis": (refused, lambda hand: hand.step(0, cycle=0)),
    "Batch of an excluded rank": (lagging, lambda hand: hand.say(
        0, m.Batch, cycle=0, plan_id=1, step_count=9, samples=2, batch_ms=1.0, data_ms=0.0)),
    "Metrics": (trained, lambda hand: hand.complete(0)),
    "SnapshotReady": (lambda: pending(samples=400), lambda hand: hand.ready(0)),
    "RoundProgress": (lambda: pending(samples=400), lambda hand: moved(hand, 8)),
    "SyncAck": (shipped, lambda hand: hand.ack(0)),
    "EpochFnElapsed": (trains, lambda hand: hand.say(0, m.EpochFnElapsed, epoch=0, elapsed_ms=1.0)),
    "CheckpointResult": (lambda: ordered(duties.SAVE), lambda pair: duties.result(*pair)),
    "CheckpointResult of the save": (saving, lambda hand: hand.say(
        0, m.CheckpointResult, decision_id=hand.co.run.save.decision_id, version=0, elapsed_ms=1.0)),
    "EvalResult": (lambda: ordered(duties.EVAL), lambda pair: duties.evaluated(*pair)),
}  # fmt: skip
"""What comes from the training thread: a run in which it is due, and the report."""


@pytest.mark.parametrize("kind", PROGRESS)
def test_what_the_training_thread_says_is_progress(kind: str) -> None:
    """M-2: the whole list. It moves the clock of its own rank, and of no other."""
    make, say = PROGRESS[kind]
    made = make()
    hand = made[0] if isinstance(made, tuple) else made
    mine, other = hand.co.peers[0], hand.co.peers[1]
    before = other.last_progress
    hand.now += 0.25
    say(made)
    assert (mine.last_progress, mine.progress_kind) == (hand.now, kind.partition(" ")[0])
    assert other.last_progress == before
    assert mine.last_seen == hand.now or kind == "RoundProgress", "the bytes go over a lane of their own"


def joins() -> Joint:
    return Joint(3)


NO_PROGRESS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "Heartbeat": (trains, lambda hand: hand.say(0, m.Heartbeat, step_count=5, state="training")),
    "LrUpdate": (trains, lambda hand: hand.say(0, m.LrUpdate, lr=0.1, position=3)),
    "Intent": (trains, lambda hand: duties.wish(hand, 0, duties.SAVE)),
    "ResourceSample": (trains, lambda hand: hand.say(0, m.ResourceSample, sample={})),
    "SessionIdGenerated": (joins, lambda hand: hand.uid(0)),
    "a repeated SnapshotReady": (shipped, lambda hand: hand.ready(0)),
    "a result of nothing": (trains, lambda hand: hand.say(
        0, m.EvalResult, schedule_id=77, epoch=0, version=0, elapsed_ms=1.0, count=1)),
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_PROGRESS)
def test_what_a_helper_says_is_a_sign_of_life_alone(kind: str) -> None:
    """M-2: independent of the training, so it says nothing about it; nor does what was said before."""
    make, say = NO_PROGRESS[kind]
    hand = make()
    peer = hand.co.peers[0]
    before = peer.last_progress, peer.progress_kind
    hand.now += 0.25
    say(hand)
    assert (peer.last_progress, peer.progress_kind) == before and peer.last_seen == hand.now


def test_bytes_that_do_not_move_are_no_progress() -> None:
    """M-2, M-15: a lane that repeats its count is stuck, and the ceiling is not pushed out for it."""
    hand = pending(samples=400)
    moved(hand, 8)
    then = hand.now
    hand.now += 0.25
    moved(hand, 8), moved(hand, 3)
    assert hand.co.peers[0].last_progress == hand.co.cycle.last_evidence_at == then
    moved(hand, 9)
    assert hand.co.peers[0].last_progress == hand.co.cycle.last_evidence_at == hand.now


def test_both_clocks_begin_with_the_welcome() -> None:
    """M-2: the silence of a rank that never said a word is counted from there, and so is its idleness."""
    hand = Hand(0, target_ranks=2)
    hand.now += 7.0
    hand.feed(ev.HelloReceived(1, hello(60)))
    peer = hand.co.peers[0]
    assert peer.last_seen == peer.last_progress == hand.now
    hand.tick(30.0, silent=(0,))
    assert hand.co.alive == [0]
    hand.tick(0.5, silent=(0,))
    assert hand.co.alive == [] and "silent for 30" in named(hand.effects, "Died")[0]["cause"]


def test_the_silence_of_a_rank_without_a_link_is_not_held_against_it() -> None:
    """M-2, M-42: it is back with its Hello, which is a sign of life; what follows has the whole staleness."""
    hand = Hand(2, samples=400, link_grace_s=60.0).form()
    hand.feed(ev.LinkLost(0, 1, "reset"))
    hand.tick(50.0, silent=(0,))
    peer = hand.co.peers[0]
    claim = m.ResumeClaim(generation=1, incarnation=1, version=0, cycle=0, snapshot_cycle=0, shipped=0, step_count=0,
                          control_seq=peer.control_seq, report_seq=peer.report_seq)  # fmt: skip
    hand.feed(ev.HelloReceived(77, hello(400, wanted_rank=0, resume=claim)))
    assert peer.attached and peer.last_seen == hand.now
    hand.tick(30.0, silent=(0,))
    assert hand.co.alive == [0, 1]
    hand.tick(0.5, silent=(0,))
    assert hand.co.alive == [1]


# --- how a life ends (M-1, M-8) --------------------------------------------------------------------------------------

ENDS: dict[str, Callable[[Hand], Any]] = {
    "leaves": lambda hand: hand.say(0, m.Exiting, reason="leave"),
    "loses its link": lambda hand: hand.feed(ev.LinkLost(0, 1, "reset")),
    "its process ends": lambda hand: hand.feed(ev.ProcessExited(0, 1, 9)),
    "is silent": lambda hand: hand.tick(31.0, silent=(0,)),
}


@pytest.mark.parametrize("phase", [PeerPhase.JOINING, PeerPhase.VOTER, PeerPhase.LAGGING])
@pytest.mark.parametrize(("first", "second"), list(permutations(ENDS, 2)))
def test_a_life_ends_once_and_as_what_came_first(phase: PeerPhase, first: str, second: str) -> None:
    """M-1, I19: one alive less, however many say so; a departure is never declared a death, and no death a departure.
    Whatever phase it was in, it was alive."""
    hand = Hand(2, target_ranks=2 if phase is not PeerPhase.JOINING else 3, min_ranks=1)
    if phase is not PeerPhase.JOINING:
        hand.form()
    if phase is PeerPhase.LAGGING:
        hand.co.peer_engine.fire(hand.co.peers[0], "Excluded", None)
    assert hand.co.peers[0].phase is phase and hand.co.alive_count == 2
    ENDS[first](hand)
    leaves = first == "leaves"
    for _ in range(2):
        assert hand.co.peers[0].phase is (PeerPhase.EXITED if leaves else PeerPhase.DEAD)
        assert (hand.co.alive_count, hand.co.deaths) == (1, 0 if leaves else 1)
        assert len(named(hand.effects, "Left")) == leaves and len(named(hand.effects, "Died")) == (not leaves)
        ENDS[second](hand)


def test_who_has_left_is_told_nothing_any_more() -> None:
    """M-8: the link is closed behind what was sent before; no broadcast and no copy of one, no alert, and its silence
    is nothing. The others are told, once, so that nobody waits for it."""
    hand = Hand(3, samples=400).form()
    effects = hand.say(0, m.Exiting, reason="leave")
    assert [(e.rank, e.incarnation) for e in effects if isinstance(e, fx.CloseLink)] == [(0, 1)]
    told = [(e.rank, e.dead_rank, e.dead_incarnation) for e in messages(effects, m.DeclareDead)]
    assert told == [(1, 0, 1), (2, 0, 1)]
    assert not hand.co.peers[0].retained.after(0) and not hand.co.peers[0].tokens and not hand.co.peers[0].reachable
    later = hand.tick(100.0)
    assert messages(later, m.Beacon, 1) and not [e for e in later if isinstance(e, fx.Send) and e.rank == 0]
    assert not alerts(effects + later, "rank_lost") and hand.co.deaths == 0 and hand.co.alive == [1, 2]


def test_who_does_not_come_back_is_awaited_no_longer() -> None:
    """M-1, M-42: the end of a life is the end of its window, too."""
    hand = Hand(2, samples=400, link_grace_s=20.0).form()
    hand.feed(ev.LinkLost(0, 1, "reset"))
    assert hand.co.peers[0].reachable
    hand.tick(21.0)
    assert hand.co.peers[0].phase is PeerPhase.DEAD and not hand.co.peers[0].reachable


def test_who_leaves_at_the_end_of_a_run_is_mourned_by_nobody() -> None:
    """M-8, C-22: everybody goes then, so nobody is told of anybody."""
    hand = Hand(3, num_epochs=0).form()
    assert hand.co.run.shutdown_issued
    assert not messages(hand.say(0, m.Exiting, reason="done"), m.DeclareDead)


def test_a_rank_that_leaves_takes_no_reading_along() -> None:
    """M-8, B-17: the balancer plans for those that are there."""
    hand = pending(3, samples=400)
    hand.average()
    assert all(readings(hand.co, [0, 1]))
    hand.say(0, m.Exiting, reason="leave")
    assert not readings(hand.co, [0])[0] and readings(hand.co, [1])[0]


def test_a_member_of_a_collective_that_leaves_is_no_death() -> None:
    """M-8, M-30: a session without it is made, as after a death, and the count of deaths is that of deaths."""
    hand = Joint(3, samples=400).form()
    hand.say(1, m.Exiting, reason="leave")
    assert hand.co.deaths == 0 and hand.co.sessions.renewal is not None
    lost(hand, 2)
    assert hand.co.deaths == 1
