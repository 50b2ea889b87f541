"""A cycle in which something goes wrong: aborted rounds, other bytes, deaths, and no evidence at all (C-18 to C-21)."""

from __future__ import annotations

import attrs
import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.cycle import MAX_ATTEMPTS
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase

from support import duties
from support.hand import Hand, alerts, messages, named, pending
from support.words import hello

# --- again (C-39, R-18) and digests (C-18) ---------------------------------------------------------------------------


def test_an_aborted_round_is_repeated_from_the_retained_copies() -> None:
    """C-39: a new attempt of the same cycle, evidence cleared, requests to all."""
    hand = pending()
    hand.ready(0)
    effects = hand.feed(ev.RoundAborted(hand.co.cycle.key, 0, "torn"))

    assert (hand.co.cycle.number, hand.co.cycle.attempt) == (1, 1) and hand.co.peers[0].shipped is None
    assert [request.attempt for request in messages(effects, m.RequestParams)] == [1, 1]
    hand.average()
    assert hand.co.cycle.version == 1


def test_a_later_attempt_may_ship_less_than_the_book_has() -> None:
    """C-7: the retained copy is older than the steps taken since; more than the book is still impossible."""
    hand = Hand(policy="async", samples=400).form()
    for rank in (0, 1):
        hand.step(rank, 3)
    hand.feed(ev.RoundAborted(hand.co.cycle.key, 0, "torn"))
    hand.step(0, 2)
    hand.ready(0, shipped_steps=3)
    assert hand.co.peers[0].shipped == 3
    hand.ready(1, shipped_steps=4)
    assert hand.co.peers[1].phase == PeerPhase.DEAD


def test_a_rank_that_cannot_average_must_go() -> None:
    """R-18: not retryable ends the incarnation, retryable repeats the attempt."""
    hand = pending(3)
    hand.say(0, m.RoundFailed, cycle=1, attempt=0, round=m.RoundKind.PARAMS, cause="slow", retryable=True)
    assert hand.co.cycle.attempt == 1 and hand.co.voters == [0, 1, 2]
    hand.say(0, m.RoundFailed, cycle=1, attempt=1, round=m.RoundKind.PARAMS, cause="no memory", retryable=False)
    assert hand.co.voters == [1, 2] and hand.co.cycle.pending


@pytest.mark.parametrize("who", ["averager", "rank"])
def test_attempts_are_bounded(who: str) -> None:
    """R-18: more than 32 attempts of one cycle are a stall."""
    hand = pending()
    for attempt in range(MAX_ATTEMPTS + 1):
        assert hand.co.cycle.phase == CyclePhase.PENDING
        if who == "averager":
            hand.feed(ev.RoundAborted(hand.co.cycle.key, attempt, "torn"))
        else:
            hand.say(0, m.RoundFailed, cycle=1, attempt=attempt, round=m.RoundKind.PARAMS, cause="x", retryable=True)

    assert hand.co.cycle.phase == CyclePhase.STALLED and hand.co.save_issued


def test_limbo_of_an_aborted_attempt_returns() -> None:
    """C-39, M-19: the dead rank's copy is not in the next attempt, so its picks are trained again."""
    hand = pending(3)
    hand.ready(0)
    hand.feed(ev.LinkLost(0, 1, "reset"))
    assert hand.co.book.limbo
    hand.feed(ev.RoundAborted(hand.co.cycle.key, 0, "torn"))

    assert not hand.co.book.limbo and hand.co.book.replayed == 3


def test_a_minority_with_other_bytes_goes_and_the_cycle_finishes() -> None:
    """C-18: named, dead, and finish goes on; what it contributed stays merged."""
    hand = pending(3)
    for rank in range(3):
        hand.ready(rank)
    hand.reduce()
    hand.ack(0), hand.ack(1, digest=b"x" * 16)
    effects = hand.ack(2)

    assert alerts(effects, "digest_mismatch") and hand.co.peers[1].phase == PeerPhase.DEAD
    assert hand.co.cycle.version == 1 and hand.co.cycle.global_step == 9


@pytest.mark.parametrize("who", ["member", "observer"])
def test_an_ack_without_its_digest_proves_nothing_and_ends_nobody_else(who: str) -> None:
    """C-18, N-7, V-6: who was delivered a consensus and does not say its digest is not counted as one that agrees; its
    session ends, and the others finish without it. Nobody is compared with what is not there."""
    hand = pending(3, max_ranks=4)
    rank = 1
    if who == "observer":
        hand.average()
        hand.feed(ev.HelloReceived(9, hello(60)))
        for each in (0, 1, 2):
            hand.step(each, 3), hand.complete(each)
        rank = 3
        assert hand.co.cycle.observers == (3,)
    version = hand.co.cycle.version
    for each in hand.co.cycle.participants:
        hand.ready(each)
    hand.reduce()
    effects = hand.ack(rank, digest=None)
    assert hand.co.peers[rank].phase == PeerPhase.DEAD and hand.co.violations == 1
    assert "without the digest" in alerts(effects, "refused")[0].text
    others = [each for each in hand.co.cycle.members if each != rank]
    for each in others:
        effects = hand.ack(each)
    assert hand.co.cycle.version == version + 1 and hand.co.voters == others
    assert not alerts(hand.effects, "digest_mismatch")


def test_nobody_has_to_name_what_was_not_delivered() -> None:
    """C-18, R-8, C-17: of a cycle that is not realized there is no consensus, and an ack without a digest is whole."""
    hand = pending(2)
    hand.ready(0), hand.ready(1)
    hand.reduce(refused=(0, 1), accepted=())
    for rank in (0, 1):
        hand.ack(rank, digest=None, outcome=m.Outcome.REFUSED, refusal=m.Refusal.NONFINITE)
    assert not hand.co.cycle.pending and hand.co.cycle.version == 0 and hand.co.voters == [0, 1]
    assert hand.co.violations == 0


@pytest.mark.parametrize("digest", [True, False])
def test_where_there_are_no_digests_an_ack_needs_none(digest: bool) -> None:
    """C-18: the knob `digest`, or an averager that says none of its own, as an embedder's may."""
    hand = pending(2, digest=digest)
    hand.ready(0), hand.ready(1)
    hand.reduce(**{"digest": None} if digest else {})
    for rank in (0, 1):
        hand.ack(rank, digest=None)
    assert hand.co.cycle.version == 1 and hand.co.violations == 0


def test_an_averager_alone_with_its_digest_does_not_hold_the_cycle() -> None:
    """C-18: all ranks hold the same bytes, which is what the digests are for."""
    hand = pending()
    for rank in (0, 1):
        hand.ready(rank)
    hand.reduce(digest=b"z" * 16)
    hand.ack(0), hand.ack(1)
    assert hand.co.cycle.version == 1 and hand.co.voters == [0, 1]


def test_without_a_majority_the_cycle_is_repeated_once_and_then_the_run_ends() -> None:
    """C-18, C-42: consensus_mismatch."""
    hand = pending(2)
    for attempt in (0, 1):
        assert hand.co.cycle.attempt == attempt
        for rank in (0, 1):
            hand.ready(rank)
        hand.reduce(digest=b"a" * 16)
        hand.ack(0, digest=b"b" * 16)
        effects = hand.ack(1, digest=b"c" * 16)

    assert messages(effects, m.ShutdownWithSave)[0].reason == m.SaveReason.CONSENSUS_MISMATCH
    assert hand.co.cycle.phase == CyclePhase.STALLED


def test_a_split_of_the_initial_state_fails_the_run() -> None:
    """C-18, M-6: while forming there is nothing to save."""
    hand = Hand(2)
    for _ in range(2):
        for rank in (0, 1):
            hand.ready(rank)
        hand.reduce(digest=b"a" * 16)
        hand.ack(0, digest=b"b" * 16, outcome=m.Outcome.OBSERVER)
        effects = hand.ack(1, digest=b"c" * 16, outcome=m.Outcome.OBSERVER)

    assert messages(effects, m.Shutdown) and hand.co.run.status == "failed"
    assert hand.co.cycle.phase != CyclePhase.PENDING


# --- death in a cycle (C-21, M-19) -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["armed", "shipped", "reduced", "acked"])
def test_a_death_in_each_stage_of_a_cycle(stage: str) -> None:
    """C-3, C-21, C-37, M-19, I27, I42: merged iff it was in the accepted set, and the pass of the death finishes."""
    hand = pending(2)
    if stage != "armed":
        hand.ready(0)
    hand.ready(1)
    if stage in ("reduced", "acked"):
        hand.reduce()
        hand.ack(1)
    if stage == "acked":
        # another member keeps the cycle open: the death comes after the ack
        return _death_after_the_ack()
    effects = hand.feed(ev.LinkLost(0, 1, "reset"))
    assert [e for e in effects if isinstance(e, fx.RemoveFromRound)]
    if stage == "reduced":
        assert hand.co.cycle.phase == CyclePhase.IDLE, "I27: in the same pass"
        assert hand.co.cycle.global_step == 6
    else:
        assert hand.co.cycle.pending
        hand.reduce(accepted=(0, 1) if stage == "shipped" else (1,))
        hand.ack(1)
        assert hand.co.cycle.global_step == (6 if stage == "shipped" else 3)
    assert not hand.co.book.limbo
    assert hand.co.book.replayed == (3 if stage == "armed" else 0)
    return None


def _death_after_the_ack() -> None:
    hand = pending(3)
    for rank in range(3):
        hand.ready(rank)
    hand.reduce()
    hand.ack(0), hand.ack(1)
    hand.feed(ev.LinkLost(0, 1, "reset"))
    assert hand.co.cycle.pending
    hand.ack(2)
    assert hand.co.cycle.global_step == 9 and hand.co.book.replayed == 0


def test_a_refused_contribution_of_a_dead_rank_returns() -> None:
    """M-19: known to be out."""
    hand = pending(3)
    for rank in range(3):
        hand.ready(rank)
    hand.reduce(refused=(0,))
    hand.feed(ev.LinkLost(0, 1, "reset"))
    assert not hand.co.book.limbo and hand.co.book.replayed == 3


def test_the_clock_of_a_reduce_ends_with_the_last_ack_not_with_a_death() -> None:
    """C-10: the time a detector needs is no cost of an average."""
    hand = pending(2)
    for rank in (0, 1):
        hand.ready(rank)
    hand.now += 0.5
    hand.reduce()
    hand.ack(0)
    hand.now += 0.9
    hand.feed(ev.LinkLost(1, 1, "reset"))
    assert hand.co.cycle.version == 1 and hand.co.cycle.last_reduce_ms == pytest.approx(500.0)


# --- ceilings (M-15, M-16, C-16) -------------------------------------------------------------------------------------


def test_a_pending_cycle_without_evidence_stalls_once_strictly_after_the_ceiling() -> None:
    """C-9, C-16, C-41, O-8, M-15, I31, I32: one dump, one Stalled, one ShutdownWithSave."""
    hand = pending()
    hand.ready(0)
    effects = hand.tick(300.0)
    assert hand.co.cycle.pending and not named(effects, "Stalled")
    effects = hand.tick(1.0) + hand.tick(20.0)

    assert len(named(effects, "Stalled")) == 1 and named(effects, "Stalled")[0]["dump"]["owing"] == 2
    saves = messages(effects, m.ShutdownWithSave)
    assert [save.reason for save in saves] == [m.SaveReason.REDUCE_STALL] * 2
    assert len({save.decision_id for save in saves}) == 1 and hand.co.cycle.phase == CyclePhase.STALLED
    assert [e for e in effects if isinstance(e, fx.AbortRound)]


def test_moving_bytes_push_the_ceiling_out_and_repeats_do_not() -> None:
    """M-15: heartbeats and repeated snapshots are no evidence."""
    hand = pending()
    hand.ready(0)
    hand.tick(200)
    hand.feed(ev.RoundProgress(hand.co.cycle.key, 1, 1 << 20, False))
    hand.tick(200)
    assert hand.co.cycle.pending
    hand.ready(0)
    hand.feed(ev.RoundProgress(hand.co.cycle.key, 1, 1 << 20, False))
    hand.tick(101)
    assert hand.co.cycle.phase == CyclePhase.STALLED


def test_bytes_of_another_round_are_counted_and_push_nothing_out() -> None:
    """R-1, R-11, M-15: they are fenced, so the cycle stalls when it would have without them."""
    hand = pending()
    hand.tick(200)
    other = attrs.evolve(hand.co.cycle.key, cycle=hand.co.cycle.number + 1)
    hand.feed(ev.RoundProgress(other, 1, 1 << 20, False))
    assert hand.co.fenced == {(m.NO_RANK, "RoundProgress"): 1}
    hand.tick(101)
    assert hand.co.cycle.phase == CyclePhase.STALLED


def test_a_voter_that_keeps_others_waiting_past_the_window_ceiling_stalls_the_run() -> None:
    """M-16, C-45: alive, and without a step."""
    hand = Hand(samples=400).form()
    hand.window()
    hand.step(0, 3)
    hand.complete(0)
    hand.step(1)
    hand.tick(599)
    assert hand.co.run.phase == RunPhase.TRAINING
    effects = hand.tick(3)
    assert hand.co.cycle.phase == CyclePhase.STALLED and messages(effects, m.ShutdownWithSave)


def test_the_first_step_of_an_incarnation_may_take_long() -> None:
    """M-16, M-11: 1800 s before its first Batch."""
    hand = Hand().form()
    hand.step(0, 3)
    hand.complete(0)
    hand.tick(1790)
    assert hand.co.run.phase == RunPhase.TRAINING
    hand.tick(20)
    assert hand.co.cycle.phase == CyclePhase.STALLED


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_cohort_that_all_stands_still_is_stalled_too(ranks: int) -> None:
    """M-16, I38: all are below quota, so nobody has done its part and waits; each waits for all. The newest progress of
    any of them counts, and the ladder says nothing of anybody."""
    hand = Hand(ranks, samples=400).form()
    for rank in range(ranks):
        hand.tick(100)
        hand.step(rank)
    hand.tick(599)
    assert hand.co.run.phase == RunPhase.TRAINING and not named(hand.effects, "Suspect")
    effects = hand.tick(3)
    assert hand.co.cycle.phase == CyclePhase.STALLED and not named(hand.effects, "Suspect")
    assert {save.reason for save in messages(effects, m.ShutdownWithSave)} == {m.SaveReason.REDUCE_STALL}
    hand.tick(100)
    assert hand.co.finished


def test_one_that_goes_on_keeps_a_cohort_that_waits_for_it_alive() -> None:
    """M-16: progress of one is enough while nobody has met its quota."""
    hand = Hand(2, samples=400, anchor=40).form()
    hand.step(1)
    for _ in range(5):
        hand.tick(500)
        hand.step(0)
    assert hand.co.run.phase == RunPhase.TRAINING


def test_a_duty_counts_as_progress_for_its_limit() -> None:
    """M-16, M-11: a checkpoint of half an hour is no wedge, if the limit allows for it."""
    run = duties.hand(role_limit_s=2000.0)
    duties.armed(run, duties.SAVE)
    run.average()
    run.say(0, m.EpochFnElapsed, epoch=0, elapsed_ms=1.0)
    run.step(1, 3), run.complete(1)
    run.tick(1990)
    assert run.co.run.phase == RunPhase.TRAINING
    run.tick(620)
    assert run.co.cycle.phase == CyclePhase.STALLED


def test_after_a_stall_evidence_changes_nothing() -> None:
    """C-44: terminal."""
    hand = pending()
    hand.tick(302)
    version = hand.co.cycle.version
    hand.ready(0)
    hand.feed(ev.RoundReduced(hand.co.cycle.key, 0, (0, 1), (), True))
    hand.ack(0)
    hand.feed(ev.RoundAborted(hand.co.cycle.key, 0, "x"))
    hand.feed(ev.RoundProgress(hand.co.cycle.key, 0, 5, True))
    hand.say(0, m.RoundFailed, cycle=1, attempt=0, round=m.RoundKind.PARAMS, cause="x", retryable=True)
    assert hand.co.cycle.phase == CyclePhase.STALLED and hand.co.cycle.version == version
