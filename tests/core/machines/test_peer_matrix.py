"""Every report of an incarnation in every phase of it, as the matrix of protocol 11.1 has it.

What is asked is what the sender feels: is the report taken, counted as stale, counted as refused, or the end of the
session. The incarnation is brought to its phase as it really gets there.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import PeerPhase

from support.hand import Hand, alerts, named, pending
from support.words import hello

J, V, L, X, D = PeerPhase.JOINING, PeerPhase.VOTER, PeerPhase.LAGGING, PeerPhase.EXITED, PeerPhase.DEAD
RANK = 1
METRICS: dict[str, Any] = dict(cycle=0, plan_ids=(99,), epoch=0, batches=1, samples=2, epoch_ms=1.0,
                               share_complete_ms=1.0, compute_only_ms=1.0, data_starve_ms=0.0)  # fmt: skip
BATCH: dict[str, Any] = dict(cycle=0, plan_id=99, step_count=1, samples=2, batch_ms=1.0, data_ms=0.0)
RESULT: dict[str, Any] = dict(version=0, elapsed_ms=1.0)
REPORTS: list[tuple[type[m.Report], dict[str, Any], str]] = [
    (m.Batch, BATCH, "violation violation taken"),
    (m.Metrics, METRICS, "fenced fenced fenced"),
    (m.SyncAck, dict(cycle=1, attempt=0, step_count=0, shipped_steps=0, total_steps=0, outcome=m.Outcome.MERGED,
                     state_complete=True), "fenced fenced fenced"),
    (m.SnapshotReady, dict(cycle=1, attempt=0, shipped_steps=0, copy_ms=1.0), "fenced fenced fenced"),
    (m.RoundFailed, dict(cycle=1, attempt=0, round=m.RoundKind.PARAMS, cause="x", retryable=True),
     "fenced fenced fenced"),
    (m.LrUpdate, dict(lr=0.1, position=3), "taken taken taken"),
    (m.Heartbeat, dict(step_count=0, state="x"), "taken taken taken"),
    (m.Intent, dict(intent_id=1, kind=m.IntentKind.CHECKPOINT_NOW), "taken taken taken"),
    (m.CheckpointResult, dict(decision_id=77, **RESULT), "refused refused refused"),
    (m.EvalResult, dict(schedule_id=77, epoch=0, count=1, **RESULT), "refused refused refused"),
    (m.EpochFnElapsed, dict(epoch=0, elapsed_ms=1.0), "taken taken taken"),
    (m.SessionIdGenerated, dict(session_id=1, uid=b"u"), "refused refused refused"),
    (m.ResourceSample, dict(sample={}), "taken taken taken"),
]  # fmt: skip
"""A report, its fields, and what becomes of it from a joining rank, a voter and a lagging one, while the cycle is idle.
From who is gone everything is fenced."""


def incarnation(phase: PeerPhase) -> Hand:
    """A run that trains, in which rank 1 is in this phase."""
    hand = Hand(1 if phase is J else 2, max_ranks=3, elastic=True, callbacks=())
    hand.form()
    if phase is J:
        hand.feed(ev.HelloReceived(7, hello(hand.samples)))
    elif phase is L:
        hand.co.peer_engine.fire(hand.co.peers[RANK], "Excluded", None)
    elif phase is X:
        hand.say(RANK, m.Exiting, reason="done")
    elif phase is D:
        hand.feed(ev.LinkLost(RANK, 1, "cut"))
    assert hand.co.peers[RANK].phase is phase
    return hand


def counters(hand: Hand) -> tuple[int, int, int]:
    """Fenced, refused, violations."""
    co = hand.co
    return sum(co.fenced.values()), sum(co.refused.values()), co.violations


COUNTED = {"taken": (0, 0, 0), "fenced": (1, 0, 0), "refused": (0, 1, 0), "violation": (0, 0, 1)}
CASES = [
    pytest.param(phase, report, fields, becomes.split()[place] if place < 3 else "fenced",
                 id=f"{phase.name.lower()}-{report.__name__}")
    for report, fields, becomes in REPORTS for place, phase in enumerate((J, V, L, X, D))
]  # fmt: skip


@pytest.mark.parametrize(("phase", "report", "fields", "becomes"), CASES)
def test_what_becomes_of_a_report(
    phase: PeerPhase, report: type[m.Report], fields: dict[str, Any], becomes: str
) -> None:
    """N-6, N-7, C-8, D-9, K-17, M-31: counted as what it is, and only a violation ends a session, with a notice."""
    hand = incarnation(phase)
    before = counters(hand)
    effects = hand.say(RANK, report, **fields)

    risen = tuple(now - then for now, then in zip(counters(hand), before, strict=True))
    assert risen == COUNTED[becomes]
    if becomes == "violation":
        assert hand.co.peers[RANK].phase is D and named(effects, "Died")
        assert [e.rank for e in effects if isinstance(e, fx.CloseLink)] == [RANK, RANK]
        assert any("broke the protocol" in alert.text for alert in alerts(effects, "refused"))
    else:
        assert hand.co.peers[RANK].phase is phase and not named(effects, "Died")


def test_a_wish_that_is_repeated_is_no_stale_one() -> None:
    """K-1: once per id, and a repetition is no fault of anybody."""
    hand = incarnation(V)
    for _ in range(2):
        hand.say(RANK, m.Intent, intent_id=4, kind=m.IntentKind.STOP_NOW)
    assert counters(hand) == (0, 0, 0)


def refused() -> Hand:
    """Rank 1 took part in a cycle with rubbish: its steps on that basis are void, and it has its next plan."""
    hand = pending()
    hand.average(refused=[RANK])
    assert hand.co.peers[RANK].void_before == 1
    return hand


def test_a_void_step_of_a_plan_that_went_back_is_a_sign_of_life_and_no_more() -> None:
    """C-8: no violation, although it names no plan that the rank holds; the step is counted nowhere."""
    hand = refused()
    book = hand.co.book.holdings(RANK)
    hand.now += 1.0
    effects = hand.say(RANK, m.Batch, **{**BATCH, "step_count": 9})

    peer = hand.co.peers[RANK]
    assert peer.phase is V and counters(hand)[2] == 0 and not named(effects, "Died")
    assert (peer.last_step_count, peer.steps, peer.last_progress, peer.progress_kind) == (9, 0, hand.now, "Batch")
    assert hand.co.book.holdings(RANK) == book


def test_a_void_step_of_a_plan_still_in_hand_is_a_sign_of_life_too() -> None:
    """M-2: a Batch of the training thread, whatever its picks are worth; its books are as C-8 says."""
    hand = refused()
    replayed = hand.co.book.replayed
    hand.now += 5.0
    hand.step(RANK, cycle=0)
    peer = hand.co.peers[RANK]

    assert (peer.last_progress, peer.progress_kind) == (hand.now, "Batch")
    assert peer.steps == 0 and hand.co.book.replayed == replayed + 1


def test_a_void_step_with_other_samples_is_refused() -> None:
    """D-11 before C-8: the plan is the right one, so its pick would go back as something it is not."""
    hand = refused()
    before = counters(hand)
    hand.step(RANK, cycle=0, samples=1, step_count=9)
    assert counters(hand)[1] == before[1] + 1 and hand.co.peers[RANK].last_step_count < 9


def test_a_step_of_another_plan_ends_the_session_whatever_its_samples() -> None:
    """D-12 before D-11."""
    hand = incarnation(V)
    hand.say(RANK, m.Batch, **{**BATCH, "samples": 1})
    assert hand.co.violations == 1 and hand.co.peers[RANK].phase is D
