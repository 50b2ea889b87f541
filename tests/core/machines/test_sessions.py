"""Sessions at the coordinator, and what becomes of a cycle whose communicator broke (M-30 to M-32, C-38)."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import CyclePhase, RunPhase

from support.hand import alerts, messages, named
from support.hand_collective import SICK, Joint, asked, covered, joint, lost


@pytest.fixture(autouse=True)
def confirming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks here handle what they are sent, and say so with their heartbeats (M-32)."""
    monkeypatch.setattr(Joint, "confirms", True)


# --- formation (M-6) ----------------------------------------------------------------------------------------------


def test_a_run_forms_in_its_first_session() -> None:
    """M-6, M-30, M-31, C-31: session, then cycle 0 with mass 0, then training; the lowest rank gives the state."""
    hand = Joint(3)
    assert asked(hand.effects) == [(0, 1)] and hand.co.cycle.phase == CyclePhase.IDLE
    effects = hand.uid()
    for rank, message in enumerate(messages(effects, m.NewSession)):
        assert (message.rank, message.new_rank, message.new_world_size, message.state_from) == (rank, rank, 3, 0)
        assert (message.session_id, message.uid, message.cycle) == (1, b"u", None)
        assert message.members == ((0, 1), (1, 1), (2, 1))
    assert [(s.cycle, s.attempt, s.session_id, s.version) for s in messages(effects, m.SyncNow)] == [(0, 0, 1, 0)] * 3
    kinds = [type(e.message) for e in effects if isinstance(e, fx.Send)]
    assert kinds == [m.NewSession] * 3 + [m.SyncNow] * 3
    assert named(effects, "SessionNew") == [{"session": 1, "ranks": [0, 1, 2], "generator": 0, "state_from": 0,
                                             "cycle": None, "attempt": 0}]  # fmt: skip
    effects = hand.average(outcome=m.Outcome.OBSERVER)

    assert hand.co.run.phase == RunPhase.TRAINING and hand.co.voters == [0, 1, 2]
    assert [update.version for update in messages(effects, m.Update)] == [0, 0, 0]


def test_the_death_of_the_source_makes_the_next_one_the_source() -> None:
    """M-6, C-38: cycle 0 again as attempt 1, in the second session, from the lowest rank that is left."""
    hand = Joint(3)
    hand.uid()
    assert asked(lost(hand, 0)) == [(1, 2)]
    effects = hand.uid()
    assert {(s.session_id, s.state_from, s.cycle, s.attempt) for s in messages(effects, m.NewSession)} == {(2, 1, 0, 1)}
    assert not messages(effects, m.SyncNow), "NewSession is the request"
    hand.average(outcome=m.Outcome.OBSERVER)

    assert hand.co.voters == [1, 2] and hand.co.run.phase == RunPhase.TRAINING


def test_a_run_without_a_session_does_not_form() -> None:
    """M-32: each rank has 5 s; nobody is left to ask."""
    hand = Joint(2)
    effects = hand.tick(11)

    assert asked(effects) == [(1, 1)] and hand.co.run.phase == RunPhase.SHUTTING_DOWN
    assert "no rank made the id of session 1; asked were 0, 1" in hand.co.run.text


# --- who is asked (M-30, M-32) ------------------------------------------------------------------------------------


def test_the_generator_is_on_this_host_else_the_fastest() -> None:
    """M-30: hosts are those that ranks name; then the wall time of a batch, who has none last."""
    hand = Joint(3).form()
    for rank, wall in ((1, 30.0), (2, 10.0)):
        hand.step(rank, 1, batch_ms=wall)
    assert hand.co.sessions._candidates() == [2, 1, 0]
    hand.co.host, hand.co.peers[1].host = "head", "head"
    assert hand.co.sessions._candidates() == [1, 2, 0]
    hand.co.peers[1].attached = False

    assert hand.co.sessions._candidates() == [2, 0]


def test_who_does_not_answer_within_5_seconds_is_passed_over() -> None:
    """M-32: the next one in order; the answer of the first comes too late and is dropped (M-31)."""
    hand = joint(4)
    assert asked(lost(hand, 3)) == [(0, 2)]
    assert not asked(hand.tick(4.9))
    assert asked(hand.tick(0.2)) == [(1, 2)]
    assert not messages(hand.uid(0), m.NewSession) and hand.co.refused
    reason = next(reason for reason in hand.co.explain() if reason.code == "E20")
    assert reason.waiting_for == (1,) and "asked before: 0" in reason.what and reason.until == hand.co.sessions.deadline

    assert messages(hand.uid(1), m.NewSession)


def test_a_generator_that_dies_is_passed_over_at_once() -> None:
    """M-32, M-31: also one that has answered in the same pass; deaths meanwhile join the renewal."""
    hand = joint(4)
    lost(hand, 3)
    assert asked(lost(hand, 0)) == [(1, 2)]
    effects = hand.uid()

    assert {s.members for s in messages(effects, m.NewSession)} == {((1, 1), (2, 1))}


@pytest.mark.parametrize("fields", [{"session_id": 1}, {"uid": b""}, {"uid": bytes(1025)}, {"rank": 1}])
def test_only_the_awaited_answer_counts(fields: dict[str, Any]) -> None:
    """M-31: of the pending generator, for the pending session, with 1 to 1024 bytes; the wait goes on."""
    hand = joint(3)
    lost(hand, 2)
    effects = hand.uid(**fields)

    assert not messages(effects, m.NewSession) and sum(hand.co.refused.values()) == 1
    assert messages(hand.uid(), m.NewSession)


def test_without_an_answer_of_anyone_the_run_is_saved() -> None:
    """M-32, C-42: reduce_stall, once; after that no session is begun (M-50, I9)."""
    hand = joint(3, save_path="runs")
    lost(hand, 2)
    effects = hand.tick(10.5)
    assert {save.reason for save in messages(effects, m.ShutdownWithSave)} == {m.SaveReason.REDUCE_STALL}
    assert hand.co.cycle.phase == CyclePhase.STALLED and hand.co.sessions.renewal is None
    effects = hand.uid(0) + lost(hand, 1)

    assert not messages(effects, m.NewSession) and not asked(effects)


def test_who_may_not_have_the_request_is_asked_again_in_its_turn() -> None:
    """M-32, M-17: silence may be a lost link that nobody has noticed; who confirms the request has had its time. Found
    by storms: all links were lost, and the run was given up 10 s later although every rank was back after 30 s."""
    hand = joint(4)
    lost(hand, 3)
    effects = hand.tick(14.5, silent=(0, 1))
    assert asked(effects) == [(1, 2), (2, 2)], "0 was asked when 3 died"
    effects = hand.tick(10, silent=(0, 1))
    assert asked(effects) == [(0, 2), (1, 2)] and not hand.co.save_issued, "2 has had its time"
    reason = next(reason for reason in hand.co.explain() if reason.code == "E20")
    assert reason.waiting_for == (1,) and "asked before: 2" in reason.what

    assert messages(hand.uid(1), m.NewSession)


def test_who_is_heard_again_and_does_not_answer_ends_the_wait() -> None:
    """M-32, C-42: nobody is left who may not have had its time."""
    hand = joint(3)
    lost(hand, 2)
    hand.tick(10.5, silent=(0, 1))
    assert not hand.co.save_issued
    effects = hand.tick(10.5)

    assert {save.reason for save in messages(effects, m.ShutdownWithSave)} == {m.SaveReason.REDUCE_STALL}


def test_who_is_heard_and_confirms_nothing_has_not_had_the_request() -> None:
    """M-32, M-15: only the lane to the rank is lost, or its training hangs; that is found out elsewhere."""
    hand = joint(2, min_ranks=1)
    lost(hand, 1)
    for _ in range(20):
        hand.now += 1.0
        handled = hand.co.peers[0].handled_seq
        hand.say(0, m.Heartbeat, step_count=0, state="x", control_seq=handled)
        hand.feed(ev.Tick())
    assert not hand.co.save_issued and len(asked(hand.effects)) >= 4
    assert messages(hand.uid(0), m.NewSession)


@pytest.mark.parametrize("phase", [RunPhase.FORMING, RunPhase.TRAINING])
def test_a_renewal_that_nobody_confirms_comes_to_the_ceiling(phase: RunPhase) -> None:
    """M-15, M-32: asked in turn for ever, with no cycle pending or none to come; saved once, exceeded strictly."""
    hand = Joint(2, min_ranks=1, formation_s=1000.0)
    if phase == RunPhase.TRAINING:
        hand.form()
        lost(hand, 1)
    assert hand.co.run.phase == phase and not hand.co.cycle.pending
    renewal = hand.co.sessions.renewal
    assert renewal is not None and renewal.since == hand.now
    until = renewal.since + hand.co.config.reduce_ceiling
    while hand.now < until:
        for rank in hand.co.alive:
            hand.say(rank, m.Heartbeat, step_count=0, state="x", control_seq=hand.co.peers[rank].handled_seq)
        due = hand.co.poll_timeout()
        assert due is not None and not hand.co.save_issued and hand.co.sessions.renewal is not None
        hand.now = min(due, until)
        hand.feed(ev.Tick())
    assert not hand.co.save_issued and (hand.co.poll_timeout() or until) < until + 1e-6
    hand.now = hand.co.poll_timeout() or 0.0
    hand.feed(ev.Tick())

    assert hand.co.sessions.renewal is None and "within 300 s" in hand.co.run.text


@pytest.mark.parametrize(("attempt", "pause"), [(0, 0.0), (1, 0.5), (2, 1.0), (3, 2.0)])
def test_the_third_attempt_of_a_cycle_is_the_first_that_waits(attempt: int, pause: float) -> None:
    """R-18."""
    hand = joint(3)
    hand.co.cycle.attempt = attempt
    hand.failed(0)
    until = hand.co.sessions.paused_until
    assert (0.0 if until is None else until - hand.now) == pause


def test_whose_silence_lasts_is_dead() -> None:
    """M-17, M-31: the renewal goes on without it."""
    hand = joint(4)
    lost(hand, 3)
    hand.tick(hand.co.config.staleness_s + 1.0, silent=(0,))
    assert list(hand.co.alive) == [1, 2]
    assert hand.co.save_issued, "1 and 2 were heard and made no id"


# --- a pending cycle (C-38, M-19) ---------------------------------------------------------------------------------


def test_a_death_repeats_the_cycle_with_the_survivors() -> None:
    """C-38, C-32, C-33, R-18: the same cycle as attempt 1; acks of attempt 0 count no more."""
    hand = joint(3)
    hand.ack(0)
    effects = lost(hand, 2)
    kinds = [type(e.message) for e in effects if isinstance(e, fx.Send)]
    assert kinds == [m.DeclareDead, m.DeclareDead, m.RequestSessionId], "M-18: in this order"
    effects = hand.uid()
    assert {(s.cycle, s.attempt, s.state_from) for s in messages(effects, m.NewSession)} == {(1, 1, m.NO_RANK)}
    assert hand.co.cycle.attempt == 1 and hand.co.cycle.owing == 2
    hand.ack(1, attempt=0)
    assert hand.co.fenced[1, "SyncAck"] == 1
    effects = hand.average()

    assert covered(effects) == {0: 3, 1: 3} and hand.co.cycle.version == 1 and hand.co.cycle.global_step == 6
    assert hand.co.book.replayed == 3, "M-19: nothing of the dead is in the repeated call"


def test_when_the_survivors_have_acknowledged_nothing_is_repeated() -> None:
    """C-38, M-19, C-21: the call was over; what is missing in their acks was the dead rank's, and is covered."""
    hand = joint(3)
    hand.ack(0, total_steps=9), hand.ack(1, total_steps=9)
    effects = lost(hand, 2)
    assert covered(effects) == {0: 3, 1: 3, 2: 3} and hand.co.cycle.global_step == 9
    assert asked(effects) == [(0, 2)] and hand.co.cycle.phase == CyclePhase.IDLE
    effects = hand.uid()

    assert {(s.cycle, s.attempt) for s in messages(effects, m.NewSession)} == {(None, 0)}
    assert hand.co.book.replayed == 0 and not alerts(hand.effects, "accounting")


@pytest.mark.parametrize(("told", "total", "of_the_dead"), [(3, 9, 3), (1, 9, 3), (0, 9, 3), (2, 6, 0), (3, 7, 1)])
def test_what_a_dead_rank_gave_is_what_is_missing_in_the_acks(told: int, total: int, of_the_dead: int) -> None:
    """M-19, I44, I46: however many of its last reports were lost with it; the oldest batches are taken."""
    hand = Joint(3, samples=200).form()
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
    hand.step(2, told)
    hand.feed(ev.OperatorRequest(ev.Operator.STOP))  # arms although rank 2 is behind, as far as is known here
    assert hand.co.cycle.pending
    effects = hand.ack(0, total_steps=total) + hand.ack(1, total_steps=total) + lost(hand, 2)

    assert covered(effects).get(2, 0) == of_the_dead and hand.co.cycle.global_step == 6 + of_the_dead
    assert hand.co.book.replayed == max(0, told - of_the_dead)


def test_who_acknowledged_and_died_is_known_exactly() -> None:
    """M-19: its part waits in limbo; steps of another one that is gone are what is missing beside it."""
    hand = joint(4, samples=400)
    hand.ack(3, total_steps=12), hand.ack(0, total_steps=12)
    lost(hand, 3)
    hand.ack(1, total_steps=12)
    effects = lost(hand, 2)

    assert covered(effects) == {0: 3, 1: 3, 2: 3, 3: 3} and hand.co.cycle.global_step == 12


def test_two_that_died_without_a_word_are_trained_again() -> None:
    """M-19: nobody can say whose steps the consensus has; twice is allowed, lost is not. It is told."""
    hand = joint(4, samples=400)
    hand.ack(0, total_steps=9), hand.ack(1, total_steps=9)
    effects = lost(hand, 2) + lost(hand, 3)

    assert covered(effects) == {0: 3, 1: 3} and hand.co.book.replayed == 6
    assert "3 of them are of rank 2, rank 3" in alerts(effects, "accounting")[0].text


def test_a_failure_renews_the_session_of_everyone() -> None:
    """C-38, R-18, M-30: one report is enough, a second one joins, a late one is fenced."""
    hand = joint(3)
    assert asked(hand.failed(1)) == [(0, 2)]
    assert not asked(hand.failed(2))
    effects = hand.uid()
    assert [s.rank for s in messages(effects, m.NewSession)] == [0, 1, 2] and hand.co.cycle.attempt == 1
    hand.failed(0, attempt=0)
    assert hand.co.fenced[0, "RoundFailed"] == 1 and hand.co.sessions.current()
    hand.average()

    assert hand.co.cycle.version == 1 and hand.co.cycle.global_step == 9 and hand.co.book.replayed == 0


@pytest.mark.parametrize(("attempt", "after"), [(0, CyclePhase.PENDING), (32, CyclePhase.STALLED)])
def test_an_attempt_that_is_given_up_renews_the_session_unless_it_was_the_last(attempt: int, after: CyclePhase) -> None:
    """C-38, R-18: whoever says that the round is over, the next attempt begins with the next session."""
    hand = joint(3)
    hand.co.cycle.attempt = attempt
    effects = hand.feed(ev.RoundAborted(hand.co.cycle.key, attempt, "torn"))
    assert hand.co.cycle.phase == after and asked(effects) == ([(0, 2)] if attempt == 0 else [])


def test_who_cannot_average_at_all_goes() -> None:
    """R-18: its incarnation ends, the others go on."""
    hand = joint(3)
    effects = hand.failed(1, retryable=False)

    assert hand.co.alive == [0, 2] and asked(effects) == [(0, 2)]


def test_a_cycle_is_not_repeated_for_ever() -> None:
    """R-15, R-18: after 32 attempts, also when deaths made them."""
    for end in ("failed", "death"):
        hand = joint(3)
        hand.co.cycle.attempt = 32
        effects = hand.failed(0) if end == "failed" else lost(hand, 2) + hand.uid()
        assert {save.reason for save in messages(effects, m.ShutdownWithSave)} == {m.SaveReason.REDUCE_STALL}
        assert hand.co.cycle.phase == CyclePhase.STALLED


def test_attempts_are_not_used_up_before_a_death_is_known() -> None:
    """R-18, M-17: a rank is dead and its link says nothing, so every call fails at once at the others. Found by
    `paceline simulate --ranks 8 --seed 3445`: 32 attempts were over in a second, and the run with them."""
    hand = joint(3)
    begun, tries = hand.now, 0
    hand.failed(0)
    while hand.co.alive_count == 3:
        if hand.co.sessions.renewal is not None:
            hand.uid()
            tries += 1
            hand.failed(0)
        else:
            [reason] = [reason for reason in hand.co.explain() if reason.code == "E20"]
            assert reason.rule == "R-18" and reason.until == hand.co.sessions.paused_until
        hand.now = min(hand.co.poll_timeout() or hand.now, hand.now + 1.0)
        for rank in (0, 1):
            hand.say(rank, m.Heartbeat, step_count=0, state="x", control_seq=hand.co.peers[rank].control_seq)
        hand.feed(ev.Tick())
    assert tries < 12 and hand.now - begun >= hand.co.config.staleness_s and not hand.co.save_issued
    hand.uid()
    hand.average()

    assert hand.co.cycle.version == 1


# --- the gate (G-1) and the acks (C-6) ----------------------------------------------------------------------------


def test_nothing_is_armed_while_a_session_is_renewed() -> None:
    """G-1, M-30: everyone has its quota, and yet the gate stays shut until the session is there."""
    hand = Joint(3).form()
    lost(hand, 2)
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
    assert hand.co.short == 0 and hand.co.cycle.phase == CyclePhase.IDLE
    effects = hand.uid()
    kinds = [type(e.message) for e in effects if isinstance(e, fx.Send)]

    assert hand.co.cycle.pending and kinds == [m.NewSession] * 2 + [m.SyncNow] * 2


def test_a_cycle_is_armed_by_syncnow_and_parks_nobody() -> None:
    """C-11, C-19, C-31, I6: also where shares are whole; version and base are those of the consensus to come."""
    hand = joint(3, policy="sync", steps=1)
    armed = hand.effects
    assert [(s.rank, s.cycle, s.session_id, s.version, s.global_step) for s in messages(armed, m.SyncNow)[3:]] == [
        (rank, 1, 1, 1, 0) for rank in range(3)
    ]
    assert not messages(armed, m.RequestParams) and not messages(armed, m.Throttle)
    hand.average()

    assert [hand.co.peers[rank].last_step_count for rank in range(3)] == [3, 3, 3], "C-6: calls are counted here"


def test_an_ack_has_to_exceed_the_steps_of_the_arm() -> None:
    """C-6: strictly; a smaller one is refused and the cycle goes on."""
    hand = joint(3)
    hand.ack(0, step_count=hand.co.peers[0].snapshot_steps)
    assert hand.co.cycle.owing == 3 and sum(hand.co.refused.values()) == 1
    hand.counted[0] -= 1
    hand.average()

    assert hand.co.cycle.version == 1


@pytest.mark.parametrize("fields", [{"shipped_steps": 2}, {"total_steps": 2}, {"total_steps": 8, "late": True},
                                    {"outcome": m.Outcome.UNREALIZED}])  # fmt: skip
def test_an_ack_that_contradicts_the_books_ends_its_sender(fields: dict[str, Any]) -> None:
    """C-6, W-14, N-7: own steps as in the book, the total as everybody says."""
    hand = joint(3)
    if fields.pop("late", False):
        hand.ack(0)
    effects = hand.ack(1, **fields)

    assert alerts(effects, "accounting") and hand.co.alive == [0, 2]


def test_an_ack_that_is_wrong_in_two_ways_has_one_answer() -> None:
    """C-6: what was said already is stale; before a call came out nobody compares books."""
    hand = joint(3)
    hand.ack(0, step_count=hand.co.peers[0].snapshot_steps, shipped_steps=2)
    assert sum(hand.co.refused.values()) == 1 and hand.co.violations == 0
    hand.ack(1)
    hand.ack(1, step_count=hand.co.peers[1].snapshot_steps, shipped_steps=2)
    assert hand.co.fenced[1, "SyncAck"] == 1 and sum(hand.co.refused.values()) == 1 and hand.co.violations == 0


@pytest.mark.parametrize("attempt", [0, 5])
def test_a_copy_is_impossible_whichever_attempt_it_names(attempt: int) -> None:
    """C-19 before C-35: it breaks the protocol and is not merely late."""
    hand = joint(3)
    hand.ready(1, attempt=attempt)
    assert hand.co.violations == 1 and hand.co.alive == [0, 2]


def test_a_copy_is_nothing_that_anybody_asked_for() -> None:
    """C-19: SnapshotReady is impossible in this flavour."""
    hand = joint(3)
    hand.ready(1)

    assert hand.co.alive == [0, 2]


def test_a_cycle_in_which_everyone_was_refused_changes_nothing() -> None:
    """C-17, R-8, D-12: no version, and the batches return."""
    hand = joint(3)
    effects: list[Any] = []
    for rank in range(3):
        effects += hand.ack(rank, **SICK)

    assert hand.co.cycle.version == 0 and hand.co.cycle.global_step == 0 and hand.co.book.replayed == 9
    assert {update.outcome for update in messages(effects, m.Update)} == {m.Outcome.REFUSED}


def test_the_ladder_has_a_stage_for_the_call() -> None:
    """M-10, M-12, M-13: suspected, then asked again with the same SyncNow; the ceiling ends it (C-41)."""
    hand = joint(3)
    hand.ack(0)
    effects = hand.tick(130)
    assert {(e["rank"], e["stage"]) for e in named(effects, "Suspect")} == {(1, "collective"), (2, "collective")}
    nudges = [(s.rank, s.cycle, s.attempt) for s in messages(effects, m.SyncNow)]
    assert nudges == [(1, 1, 0), (2, 1, 0)]
    assert [reason.code for reason in hand.co.explain(0)] == ["E07"]
    assert hand.co.explain(1)[0].code in ("E14", "E15")
    effects = hand.tick(300)

    assert hand.co.cycle.phase == CyclePhase.STALLED and len(named(effects, "Stalled")) == 1
    assert hand.co.peers[0].climb.durations[4], "what a call took is learned"


def test_explain_says_who_is_in_the_collective() -> None:
    """O-4, E13: with the ceiling, and for whom."""
    hand = joint(3)
    (reason,) = hand.co.explain(1)

    assert (reason.code, reason.rule, reason.waiting_for) == ("E13", "R-13", (0, 1, 2))
    assert reason.until == hand.now + hand.co.config.reduce_ceiling


def test_a_rank_whose_send_failed_is_awaited_before_a_renewal_is_given_up() -> None:
    """M-32, N-10: it cannot be asked, and is neither back nor dead yet. The run was saved as if nobody had made the id
    while the links of all broke one by one (`paceline simulate --ranks 8 --seed 1029018 --set averager=collective`)."""
    hand = Joint(3)
    hand.uid()
    hand.average(outcome=m.Outcome.OBSERVER)
    assert hand.co.run.phase == RunPhase.TRAINING
    for rank in (1, 2):
        number = hand.co.peers[rank].control_seq
        hand.feed(ev.SendFailed((rank, 1, number), hand.co.peers[rank].link))
        assert hand.co.peers[rank].broken and hand.co.peers[rank].alive
    lost(hand, 0)
    assert not hand.co.save_issued, "two are still to be heard of"
    lost(hand, 1)
    lost(hand, 2)
    assert hand.co.run.save is not None and hand.co.run.save.reason == m.SaveReason.ALL_RANKS_LOST
