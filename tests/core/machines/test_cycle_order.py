"""Which of two rows of the cycle's table comes first, and in which order a row does things, where it matters.

A report that is wrong in two ways has one answer: stale comes before impossible, a repetition before a contradiction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.cycle import MAX_ATTEMPTS
from paceline.core.membership import Sentence
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase

from support.hand import Hand, alerts, messages, named, pending
from support.words import hello


def fenced(hand: Hand) -> int:
    """How much was counted as stale."""
    return sum(hand.co.fenced.values())


def aborted(hand: Hand, *, attempt: int | None = None) -> list[Any]:
    """The averager gives an attempt up."""
    cycle = hand.co.cycle
    return hand.feed(ev.RoundAborted(cycle.key, cycle.attempt if attempt is None else attempt, "torn"))


def failed(hand: Hand, rank: int = 0, *, cycle: int | None = None, retryable: bool = True) -> list[Any]:
    """A rank gives its round up."""
    number = hand.co.cycle.number if cycle is None else cycle
    return hand.say(rank, m.RoundFailed, cycle=number, attempt=hand.co.cycle.attempt, round=m.RoundKind.PARAMS,
                    cause="torn", retryable=retryable)  # fmt: skip


# --- acknowledgements ------------------------------------------------------------------------------------------------


def test_digests_are_compared_when_everyone_has_acknowledged() -> None:
    """C-18 after C-12: who is early is no minority yet."""
    hand = pending(3, digest=True)
    for rank in range(3):
        hand.ready(rank)
    hand.reduce(digest=b"a" * 16)
    hand.ack(0, digest=b"b" * 16)
    hand.feed(ev.RoundProgress(hand.co.cycle.key, 1, 10, False))
    hand.tick(3)
    assert hand.co.cycle.pending and hand.co.cycle.attempt == 0 and not alerts(hand.effects, "digest_mismatch")


def test_an_ack_of_who_was_not_asked_is_stale_and_not_impossible() -> None:
    """C-6 before N-3: a rank that came after the arm cannot know that there is no consensus yet."""
    hand = pending(max_ranks=3)
    hand.feed(ev.HelloReceived(9, hello(hand.samples)))
    before = fenced(hand)
    hand.ack(2, shipped_steps=0)
    assert fenced(hand) == before + 1 and hand.co.violations == 0 and hand.co.peers[2].alive


def observing() -> Hand:
    """A cycle is pending that rank 2 observes."""
    hand = Hand(2, max_ranks=3).form()
    hand.feed(ev.HelloReceived(9, hello(hand.samples)))
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
    assert hand.co.cycle.pending and hand.co.cycle.observers == (2,)
    return hand


def test_an_ack_before_there_is_a_consensus_ends_the_session_with_or_without_the_state() -> None:
    """N-3 before M-25."""
    hand = observing()
    hand.ack(2, shipped_steps=0, state_complete=False)
    assert hand.co.violations == 1 and hand.co.peers[2].phase is PeerPhase.DEAD and hand.co.cycle.pending


def test_an_ack_without_the_state_is_no_evidence_and_no_fault() -> None:
    """M-25: it is on its way."""
    hand = observing()
    for rank in range(3):
        hand.ready(rank)
    hand.reduce()
    before = fenced(hand)
    hand.ack(2, state_complete=False)
    assert (fenced(hand), hand.co.violations, hand.co.peers[2].acked) == (before, 0, False)


# --- snapshots -------------------------------------------------------------------------------------------------------


def test_a_copy_of_who_has_left_the_cycle_is_stale_even_when_it_is_a_repetition() -> None:
    """C-7: its place in this cycle is gone."""
    hand = pending(3)
    hand.ready(1)
    hand.co.peer_engine.fire(hand.co.peers[1], "Excluded", None)
    before = fenced(hand)
    hand.ready(1, shipped_steps=3)
    assert fenced(hand) == before + 1


def test_a_repetition_that_contradicts_is_still_a_repetition() -> None:
    """C-7: what counted first stays; nobody dies of saying it twice."""
    hand = pending()
    hand.ready(0)
    hand.ready(0, shipped_steps=99)
    assert hand.co.violations == 0 and hand.co.peers[0].shipped == 3 and hand.co.peers[0].alive


# --- rounds that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tell", [lambda hand: aborted(hand, attempt=7), lambda hand: failed(hand, cycle=0)])
@pytest.mark.parametrize("attempts", [0, MAX_ATTEMPTS])
def test_news_of_another_attempt_is_stale_also_when_this_one_is_the_last(
    tell: Callable[[Hand], list[Any]], attempts: int
) -> None:
    """R-1 before R-18."""
    hand = pending()
    hand.co.cycle.attempt = attempts
    before = fenced(hand)
    effects = tell(hand)
    assert fenced(hand) == before + 1 and hand.co.cycle.pending
    assert hand.co.cycle.attempt == attempts and not messages(effects, m.RequestParams)


def test_an_aborted_round_after_its_cycle_is_stale() -> None:
    """R-1."""
    hand = pending()
    key = hand.co.cycle.key
    hand.average()
    before = fenced(hand)
    hand.feed(ev.RoundAborted(key, 0, "torn"))
    assert fenced(hand) == before + 1 and hand.co.cycle.phase is CyclePhase.IDLE


@pytest.mark.parametrize("stale", [False, True])
def test_a_rank_that_cannot_average_goes_and_the_cycle_stays_what_it_is(stale: bool) -> None:
    """R-18 before R-1: of whatever cycle it says so, it will never be able to. The cycle goes on without it."""
    hand = pending(3)
    failed(hand, 2, cycle=0 if stale else None, retryable=False)
    assert hand.co.peers[2].phase is PeerPhase.DEAD
    assert hand.co.cycle.pending and hand.co.cycle.number == 1 and hand.co.cycle.attempt == 0

    idle = Hand(3).form()
    effects = failed(idle, 2, retryable=False)
    assert idle.co.peers[2].phase is PeerPhase.DEAD and idle.co.cycle.phase is CyclePhase.IDLE
    assert not named(effects, "SyncEnd")  # no cycle was finished that nobody armed


def test_progress_of_another_round_is_stale() -> None:
    """R-1, M-15: it pushes no ceiling out."""
    hand = pending()
    evidence, before = hand.co.cycle.last_evidence_at, fenced(hand)
    hand.now += 1.0
    hand.feed(ev.RoundProgress(m.transfer_key(1, 5), 0, 10, False))
    assert fenced(hand) == before + 1 and hand.co.cycle.last_evidence_at == evidence


# --- never -----------------------------------------------------------------------------------------------------------


def last_abort(hand: Hand) -> list[Any]:
    """The averager gives the last attempt up."""
    hand.co.cycle.attempt = MAX_ATTEMPTS
    return aborted(hand)


def last_failure(hand: Hand) -> list[Any]:
    """A rank gives the last attempt up."""
    hand.co.cycle.attempt = MAX_ATTEMPTS
    return failed(hand)


def ceiling(hand: Hand) -> list[Any]:
    """No evidence comes."""
    return hand.tick(hand.co.config.reduce_ceiling + 1)


def condemned(hand: Hand) -> list[Any]:
    """The run cannot go on."""
    hand.co.condemned = Sentence(m.SaveReason.DIVERGED, "nothing is finite")
    hand.co.urgent = True
    return hand.feed(ev.Tick())


@pytest.mark.parametrize("how", [last_abort, last_failure, ceiling, condemned])
def test_a_round_that_never_ends_well_is_aborted_before_anybody_saves(how: Callable[[Hand], list[Any]]) -> None:
    """C-16, C-41, C-42, R-18: the averager lets go of its buffers first, for the save reads them."""
    hand = pending(save_path="runs")
    effects = how(hand)
    kinds = [type(e.message).__name__ if isinstance(e, fx.Send) else type(e).__name__ for e in effects]
    assert hand.co.cycle.phase is CyclePhase.STALLED and kinds.count("AbortRound") == 1
    assert kinds.index("AbortRound") < min(kinds.index(name) for name in ("WriteMeta", "ShutdownWithSave"))


def test_a_run_that_does_not_form_aborts_its_round() -> None:
    """C-25, I10: nothing is shut down while it is pending."""
    hand = Hand(2)
    assert hand.co.run.phase is RunPhase.FORMING and hand.co.cycle.pending
    effects = hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    assert [type(e) for e in effects if isinstance(e, (fx.AbortRound, fx.Finish))][:1] == [fx.AbortRound]


def test_after_a_stall_nothing_is_stale_any_more() -> None:
    """C-44: it is over, and whatever still comes is ignored without a count."""
    hand = pending(3)
    key = hand.co.cycle.key
    last_abort(hand)
    before = fenced(hand)
    hand.feed(ev.RoundReduced(key, MAX_ATTEMPTS, (0, 1, 2), (), True, b""))
    hand.feed(ev.RoundProgress(key, 0, 10, False))
    hand.feed(ev.RoundAborted(key, 0, "torn"))
    hand.ready(0)
    hand.ack(1, shipped_steps=3)
    failed(hand, 2)
    assert fenced(hand) == before and hand.co.violations == 0 and len(hand.co.alive) == 3
