"""Single cases of recovery where ranks average in place (M-42, M-43, M-45, C-38, W-14, W-21), fed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase, WorkerPhase
from paceline.core.recovery import stands_on_version

from support.hand import messages, named
from support.hand_collective import Joint, asked, claim, joint, knock, restarted
from support.rank import Rank, of, reports
from support.words import hello

GRACE_S = 30.0


def status(effects: list[Any]) -> m.WelcomeStatus:
    """What the one admission among effects says."""
    [admit] = [effect for effect in effects if isinstance(effect, fx.Admit)]
    return admit.welcome.status


def lose(hand: Joint, rank: int) -> list[Any]:
    """The link of a rank breaks."""
    return hand.feed(ev.LinkLost(rank, hand.co.peers[rank].incarnation, "reset"))


# --- claims ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead", "cycle", "fits"), [
    (0, 0, True), (1, 1, True), (1, 0, False), (-1, 0, True), (-2, 0, False), (2, 1, False),
])  # fmt: skip
def test_a_rank_may_be_ahead_by_the_cycle_that_is_pending(ahead: int, cycle: int, fits: bool) -> None:
    """M-42: version + 1 only with claim.cycle = cycle, adopted before the finish; it keeps its life and its steps."""
    hand = joint(3, link_grace_s=GRACE_S)
    lose(hand, 1)
    effects = knock(hand, 1, version=ahead, cycle=cycle)

    assert (status(effects) == m.WelcomeStatus.RESUMED) == fits
    assert (hand.co.peers[1].incarnation == 1) == fits


def test_after_the_finish_nobody_may_be_ahead() -> None:
    """M-42: with phase Idle the version is the version."""
    hand = joint(3, link_grace_s=GRACE_S)
    hand.average()
    lose(hand, 1)
    assert hand.co.cycle.phase == CyclePhase.IDLE and hand.co.cycle.version == 1
    assert status(knock(hand, 1, version=2, cycle=1, control_seq=2)) == m.WelcomeStatus.JOINING
    assert hand.co.cycle.version == 1, "M-45: a version that may never have counted proves nothing"


def test_a_rank_that_stands_on_a_result_that_never_counted_moves_nobody() -> None:
    """M-45, C-38: it died inside the cycle, the others repeated it, and nobody's values were finite: its version is
    ahead of the run's, and its average is nobody's."""
    hand = joint(3)
    dead = claim(hand, 2, version=1, cycle=1)
    lose(hand, 2)
    hand.uid()
    for rank in (0, 1):
        hand.ack(rank, outcome=m.Outcome.REFUSED, refusal=m.Refusal.NONFINITE, shipped_steps=0, total_steps=0)
    assert (hand.co.cycle.version, hand.co.cycle.phase) == (0, CyclePhase.IDLE)
    effects = hand.feed(ev.HelloReceived(72, hello(hand.samples, wanted_rank=2, resume=dead)))

    assert status(effects) == m.WelcomeStatus.JOINING and hand.co.voters == [0, 1]
    assert hand.co.cycle.version == 0 and not named(effects, "Died")


@pytest.mark.parametrize("proof", [
    {"cycle": 2}, {"version": 3}, {"incarnation": 2}, {"control_seq": 900},
], ids=str)  # fmt: skip
def test_who_has_seen_more_than_the_journal_moves_the_run_forward(proof: dict[str, Any]) -> None:
    """M-45, M-31, C-2: version and base of the claim. All begin anew, and what the claimant holds is given to all in
    their next session, which no session of before has the number of; no rank votes until it has that."""
    hand = Joint(2, min_ranks=1, samples=200).form()
    restarted(hand)
    effects = knock(hand, 0, **{"generation": 1, "version": 1, "cycle": 0, "global_step": 9, "session_id": 6, **proof})
    cycle = hand.co.cycle
    version = proof.get("version", 1)

    assert (cycle.version, cycle.global_step) == (version, 9) and not hand.co.voters
    assert len(named(effects, "Died")) == 2 and asked(effects) == [(0, 7)]
    hand.sequence.clear(), hand.counted.clear()
    effects = hand.uid(generation=2)
    [session] = messages(effects, m.NewSession)
    assert (session.state_from, session.cycle) == (0, None)
    assert cycle.pending and not cycle.members and cycle.observers == (0,)
    effects = hand.ack(0, generation=2, outcome=m.Outcome.UNREALIZED, total_steps=0)
    assert hand.co.voters == [0] and cycle.version == version and hand.co.run.phase == RunPhase.TRAINING
    assert [update.outcome for update in messages(effects, m.Update)] == [m.Outcome.OBSERVER]


@pytest.mark.parametrize(("claimed", "stands"), [
    ({"control_seq": 900}, True), ({"control_seq": 900, "version": 0}, False), ({"incarnation": 2, "cycle": 1}, True),
    ({"control_seq": 900, "version": 2}, False), ({"incarnation": 2, "cycle": 0, "session_id": 1}, True),
    ({"incarnation": 2, "cycle": 0, "session_id": 9}, False), ({}, False),
])  # fmt: skip
def test_who_stands_on_the_version_of_the_books(claimed: dict[str, Any], stands: bool) -> None:
    """M-45: a life that the journal lost has it by its vote, or where no call can have led it elsewhere since."""
    hand = joint(3, samples=200)
    hand.average()
    hand.co.sessions.number = 1
    restarted(hand)
    greeting = hello(hand.samples, wanted_rank=1, resume=claim(hand, 1, **{"generation": 1, **claimed}))

    assert stands_on_version(hand.co, greeting) == stands
    hand.co.peers[1].link = 5
    assert not stands_on_version(hand.co, greeting), "somebody has come back to this seat since"


def test_nothing_is_built_on_a_rank_that_has_not_come() -> None:
    """M-45, M-27: while nobody stands on the version no session is made: its members would have nothing to begin
    with."""
    hand = Joint(2, min_ranks=1, samples=200).form()
    restarted(hand)
    knock(hand, 0, generation=1, version=1, cycle=2)
    hand.co.lost_tail.holders, hand.co.lost_tail.version = (), 1
    hand.co.sessions.renewal = None
    assert not hand.co.sessions.due() and not hand.co.cycle.fires(None)


def test_what_the_dead_gave_to_a_cycle_that_is_overtaken_returns() -> None:
    """M-45, M-19: its average has happened and is not in the books, so nothing of it waits for its end."""
    hand = joint(3, samples=200)
    hand.ack(2)
    hand.feed(ev.ProcessExited(2, 1, 1))
    assert hand.co.book.limbo
    restarted(hand)
    hand.feed(ev.ProcessExited(1, 1, 1))
    knock(hand, 0, generation=1, version=2, cycle=2)
    assert hand.co.cycle.phase == CyclePhase.IDLE and not hand.co.book.limbo


def test_a_cycle_of_observers_alone_arms_nothing() -> None:
    """M-45, K-3: nobody takes over a consensus in it, and nobody has a vote who could write one."""
    hand = Joint(2, min_ranks=1, samples=200, save_path="x", checkpoint_every=1).form()
    restarted(hand)
    knock(hand, 0, generation=1, version=1, cycle=2, global_step=9)
    hand.sequence.clear(), hand.counted.clear()
    effects = hand.uid(generation=2)
    assert hand.co.cycle.pending and not messages(effects, m.SaveConsensusModel)


def test_a_put_off_cycle_whose_ranks_are_all_dead_ends() -> None:
    """M-43, I27: there is nobody for whom a session could be made."""
    hand = joint(2, min_ranks=1)
    restarted(hand)
    hand.co.cycle.owing = 0
    hand.co.cycle_engine.fire(hand.co.cycle, "Judge", None)
    assert not hand.co.cycle.pending


@pytest.mark.parametrize(("generation", "fits"), [(1, False), (2, True), (3, False)])
def test_a_life_that_the_journal_lost_is_not_that_of_its_number(generation: int, fits: bool) -> None:
    """M-42, M-45, M-7: a number may be given twice then; the generation in which a life began tells them apart."""
    hand = Joint(2, min_ranks=1, link_grace_s=GRACE_S, samples=200).form()
    restarted(hand)
    hand.feed(ev.ProcessExited(1, 1, 1))
    hand.feed(ev.HelloReceived(9, hello(hand.samples, wanted_rank=1)))
    lose(hand, 1)
    assert (hand.co.peers[1].incarnation, hand.co.peers[1].born) == (2, 2)
    assert (status(knock(hand, 1, generation=generation, report_seq=0)) == m.WelcomeStatus.RESUMED) == fits


# --- links -----------------------------------------------------------------------------------------------------------


def test_a_link_that_is_lost_in_a_call_costs_no_attempt() -> None:
    """M-42, R-13: what a rank says over its next link is the ack that is waited for."""
    hand = joint(3, link_grace_s=GRACE_S)
    for rank in (0, 2):
        hand.ack(rank)
    assert not messages(lose(hand, 1), m.DeclareDead) and hand.co.cycle.pending
    effects = knock(hand, 1, version=1, cycle=1)
    assert status(effects) == m.WelcomeStatus.RESUMED and hand.co.cycle.attempt == 0 and hand.co.sessions.current()
    hand.ack(1)
    assert (hand.co.cycle.version, hand.co.cycle.phase) == (1, CyclePhase.IDLE)


def test_formation_goes_on_over_another_link() -> None:
    """M-42, M-6: the call of cycle 0 is a call."""
    hand = Joint(2, link_grace_s=GRACE_S)
    hand.uid()
    lose(hand, 1)
    assert status(knock(hand, 1)) == m.WelcomeStatus.RESUMED and hand.co.cycle.attempt == 0
    hand.average(outcome=m.Outcome.OBSERVER)
    assert hand.co.voters == [0, 1]


@pytest.mark.parametrize("comes_back", [True, False])
def test_no_session_is_made_over_the_head_of_a_rank_that_is_away(comes_back: bool) -> None:
    """M-30, M-42, R-18: it may be dead, and then the 32 attempts would be used up before anybody knows."""
    hand = joint(3, link_grace_s=GRACE_S)
    lose(hand, 2)
    assert not asked(hand.failed(0)) and not asked(hand.failed(1))
    hand.tick(GRACE_S / 2)
    assert not hand.co.sessions.due() and hand.co.sessions.deadline is None and hand.co.cycle.attempt == 0
    if comes_back:
        effects = knock(hand, 2)
    else:
        effects = hand.tick(GRACE_S / 2 + 2.0)
        assert [facts["cause"] for facts in named(effects, "Died")] == ["not_reattached"]
    assert asked(effects)[0] == (0, 2)
    [*_, told] = messages(hand.uid(), m.NewSession)
    assert (told.cycle, told.attempt, told.new_world_size) == (1, 1, 3 if comes_back else 2)


@pytest.mark.parametrize("away", [0, 1])
def test_who_goes_away_while_an_id_is_made_is_waited_for(away: int) -> None:
    """M-31, M-32: the id is kept, and the generator's time begins anew when all are there: its answer may be among what
    it says again."""
    hand = joint(3, link_grace_s=GRACE_S)
    assert asked(hand.failed(0)) == [(0, 2)]
    lose(hand, away)
    if away != 0:
        assert not messages(hand.uid(), m.NewSession)
    hand.tick(GRACE_S / 2)
    effects = knock(hand, away)
    if away == 0:
        assert not asked(effects) and hand.co.sessions.deadline == hand.now + 5.0
        effects = hand.uid()
    assert [told.rank for told in messages(effects, m.NewSession)] == [0, 1, 2]


def test_a_generator_that_dies_while_all_others_are_away_ends_no_run() -> None:
    """M-32: they are asked when they are back."""
    hand = joint(3, link_grace_s=GRACE_S)
    hand.failed(0)
    lose(hand, 1), lose(hand, 2)
    hand.feed(ev.ProcessExited(0, 1, 1))
    assert hand.co.sessions.renewal is None and not hand.co.save_issued
    knock(hand, 1)
    assert asked(knock(hand, 2)) == [(1, 3)]


def test_a_newcomer_whose_link_is_lost_is_still_in_its_session() -> None:
    """M-23, M-31: nobody averages without a member, so it is asked like all."""
    hand = joint(2, link_grace_s=GRACE_S, max_ranks=4)
    hand.average()
    hand.feed(ev.HelloReceived(9, hello(hand.samples)))
    hand.uid()
    lose(hand, 2)
    for rank in (0, 1):
        hand.step(rank, hand.co.book.head(rank).slice.count)  # type: ignore[union-attr]
        hand.complete(rank)
    assert hand.co.cycle.pending and hand.co.cycle.observers == (2,)
    [resent] = [e.resend for e in knock(hand, 2, version=0) if isinstance(e, fx.Admit)]
    assert not resent and hand.co.peers[2].phase == PeerPhase.JOINING, "it claims to have seen all, the request too"


# --- a coordinator that was started anew -----------------------------------------------------------------------------


def test_a_pending_cycle_begins_anew_in_a_session_of_the_new_generation() -> None:
    """M-43, C-38, I37: same number, attempt 0; nothing of before counts, whatever it was; who was out of the call goes
    back into it, and the version that follows is the one that would have."""
    hand = joint(3)
    hand.failed(0), hand.uid(), hand.ack(0)
    assert hand.co.cycle.attempt == 1
    restarted(hand)
    assert hand.co.cycle.pending and hand.co.cycle.attempt == 0 and not hand.co.peers[0].acked
    assert not asked(knock(hand, 0, generation=1, version=1, cycle=1))
    assert not asked(knock(hand, 1, generation=1))
    assert asked(knock(hand, 2, generation=1)) == [(0, 3)], "when all are back"
    late = hand.ack(1, generation=1, attempt=0)
    assert not hand.co.peers[1].acked and hand.co.fenced[1, "SyncAck"] == 1 and not named(late, "Died")
    told = messages(hand.uid(generation=2), m.NewSession)
    assert {(each.cycle, each.attempt, each.generation, each.state_from) for each in told} == {(1, 0, 2, m.NO_RANK)}
    hand.average(generation=2)
    assert (hand.co.cycle.version, hand.co.cycle.global_step, hand.co.cycle.attempt) == (1, 9, 0)


def test_formation_begins_anew_too() -> None:
    """M-43, M-6: cycle 0 was pending; the new session gives the state once more."""
    hand = Joint(2)
    hand.uid()
    restarted(hand)
    for rank in (0, 1):
        knock(hand, rank, generation=1)
    told = messages(hand.uid(generation=2), m.NewSession)
    assert [(each.cycle, each.attempt, each.state_from) for each in told] == [(0, 0, 0)] * 2
    hand.average(outcome=m.Outcome.OBSERVER, generation=2)
    assert hand.co.voters == [0, 1] and hand.co.run.phase == RunPhase.TRAINING


def test_with_no_cycle_pending_the_session_goes_on() -> None:
    """M-40, C-19: a communicator is among the ranks; the next cycle is armed in it."""
    hand = joint(2)
    hand.average()
    restarted(hand)
    for rank in (0, 1):
        knock(hand, rank, generation=1)
    assert hand.co.sessions.current() and hand.co.sessions.number == 1
    for rank in (0, 1):
        hand.step(rank, hand.co.book.head(rank).slice.count, generation=2)  # type: ignore[union-attr]
    [*_, request] = messages(hand.effects, m.SyncNow)
    assert (request.cycle, request.session_id, request.generation) == (2, 1, 2)


def test_a_generator_that_was_asked_before_the_restart_has_its_time_anew() -> None:
    """M-40, M-32: its answer may be on the lane, of a generation that is over, and is as good."""
    hand = joint(2)
    assert asked(hand.failed(0)) == [(0, 2)]
    restarted(hand)
    for rank in (0, 1):
        assert not asked(knock(hand, rank, generation=1))
    assert hand.co.sessions.deadline == hand.now + 5.0
    assert [each.session_id for each in messages(hand.uid(), m.NewSession)] == [2, 2]


def test_a_rank_waits_for_a_session_as_long_as_a_member_may_be_away() -> None:
    """R-15, M-42: or it would give up before the coordinator knows whether that one is dead."""
    knobs: dict[str, Any] = dict(averager="collective", session_wait_s=60.0, time_scale=2.0)
    assert Config(**knobs, link_grace_s=300.0).welcome(8, 2)["session_wait_s"] == 720.0
    assert Config(**knobs, reconnect_window_s=100.0).welcome(8, 2)["session_wait_s"] == 320.0


# --- ranks -----------------------------------------------------------------------------------------------------------


def away(phase: WorkerPhase = WorkerPhase.IN_COLLECTIVE, **settings: Any) -> Rank:
    """Rank 1 that averages in place, may look for its coordinator, and has to."""
    r = Rank(phase, collective=True, reconnect_window_s=60.0, **settings)
    orders = r.feed(ev.LinkLost(cause="reset"))
    assert of(orders, fx.Dial) and r.worker.phase == phase
    return r


def welcome(r: Rank, *, generation: int = 2, incarnation: int = 1, known: int | None = None) -> list[Any]:
    """The coordinator takes it back, or gives it a new life."""
    mine = incarnation == r.worker.settings.incarnation
    return r.feed(ev.Received(m.Welcome(
        rank=1, incarnation=incarnation, generation=generation, control_seq=0, config={},
        status=m.WelcomeStatus.RESUMED if mine else m.WelcomeStatus.JOINING,
        report_seq=r.worker.report_seq if known is None else known,
    )))  # fmt: skip


def test_a_call_goes_on_without_a_link_and_its_end_is_told_over_the_next() -> None:
    """W-21, M-42, N-6: no abort; the claim says what was adopted; the ack is of the generation of its request."""
    r = away()
    assert not of(r.orders, fx.AbortCollective)
    before = r.worker.report_seq
    assert not reports(r.done(1))
    held = r.worker.claim()
    assert held is not None and (held.version, held.cycle, held.session_id) == (1, 1, 1)
    (again,) = reports(welcome(r, known=before))
    assert isinstance(again, m.SyncAck) and (again.generation, again.report_seq) == (1, before + 1)


@pytest.mark.parametrize("fate", ["inside", "out", "failed"])
def test_attempt_0_of_a_new_generation_follows_any_of_the_former(fate: str) -> None:
    """M-43, W-14, R-15: it is repeated like any later attempt, and what is said of it is of its own generation."""
    r = Rank(WorkerPhase.IN_COLLECTIVE, collective=True, reconnect_window_s=60.0)
    r.broke(1)
    r.session(2, cycle=1, attempt=3)
    if fate != "inside":
        r.done(1, attempt=3) if fate == "out" else r.broke(1, attempt=3)
    r.feed(ev.LinkLost(cause="reset"))
    welcome(r)
    orders = r.control(m.NewSession, serve=False, generation=2, session_id=3, uid=b"u", new_rank=1, cycle=1, attempt=0,
                       members=((0, 1), (1, 1)), new_world_size=2, state_from=m.NO_RANK)  # fmt: skip
    if fate == "inside":
        assert of(orders, fx.AbortCollective) and not of(orders, fx.RunCollective)
        orders = r.broke(1, attempt=3)
    (run,) = of(orders, fx.RunCollective)
    assert (run.attempt, run.session_id, run.restore) == (0, 3, fate == "out")
    assert not r.control(m.SyncNow, generation=1, cycle=1, attempt=3, session_id=2, version=1, global_step=0)
    (ack,) = reports(r.done(1), m.SyncAck)
    assert (ack.generation, ack.attempt) == (2, 0)
    assert not r.control(m.SyncNow, generation=1, cycle=1, attempt=9, session_id=2, version=1, global_step=0)
    (nudged,) = reports(r.control(m.SyncNow, generation=2, cycle=1, attempt=0, session_id=3, version=1, global_step=0))
    assert isinstance(nudged, m.SyncAck) and nudged.generation == 2


@pytest.mark.parametrize("succeeds", [True, False])
def test_the_end_of_a_call_of_another_session_is_none_of_this_one(succeeds: bool) -> None:
    """M-43, W-14: the attempt may be the same one."""
    r = Rank(WorkerPhase.IN_COLLECTIVE, collective=True)
    stale = (ev.CollectiveDone(cycle=1, attempt=0, total_steps=9, session_id=9) if succeeds
             else ev.CollectiveFailed(1, 0, "of a life before", session_id=9))  # fmt: skip
    assert not r.feed(stale) and r.worker.phase == WorkerPhase.IN_COLLECTIVE
    assert reports(r.feed(ev.CollectiveDone(cycle=1, attempt=0, total_steps=9, session_id=1)), m.SyncAck)


def test_a_failure_is_told_with_the_generation_of_its_call() -> None:
    """N-6, M-43: or it would end the attempt of the same number that has begun since."""
    r = away()
    before = r.worker.report_seq
    r.broke(1)
    (told,) = reports(welcome(r, known=before))
    assert isinstance(told, m.RoundFailed) and told.generation == 1


def test_without_a_link_nobody_waits_for_a_session() -> None:
    """R-15, W-21: none can come; the time begins anew with the next link."""
    r = away(session_wait_s=5.0)
    r.broke(1)
    assert r.worker.session_deadline is None
    r.now = 50.0
    r.feed(ev.Tick())
    assert r.worker.phase == WorkerPhase.THROTTLED
    welcome(r)
    assert r.worker.session_deadline == 55.0


@pytest.mark.parametrize(("answer", "after", "stop"), [
    ("nobody", WorkerPhase.IN_COLLECTIVE, None), ("again", WorkerPhase.IN_COLLECTIVE, None),
    ("never", WorkerPhase.STOPPED, "coordinator_lost"), ("too late", WorkerPhase.STOPPED, "coordinator_lost"),
    ("a new life", WorkerPhase.JOINING, None), ("a hole", WorkerPhase.IN_COLLECTIVE, None),
])  # fmt: skip
def test_what_becomes_of_a_search_from_inside_a_call(answer: str, after: WorkerPhase, stop: str | None) -> None:
    """W-21, W-24, N-9: whatever ends the stay first frees the rank from the call; a try that fails is followed by the
    next one."""
    r = away()
    if answer == "a hole":
        r.worker.reports.clear()
    r.now = 61.0 if answer == "too late" else 1.0
    event: Any = {
        "nobody": ev.LinkLost(cause="nobody answers"), "too late": ev.Tick(),
        "again": ev.Received(m.Reject(code=14, text="busy", retry=True, after_s=1.0)),
        "never": ev.Received(m.Reject(code=12, text="closing")),
    }.get(answer)  # fmt: skip
    orders = r.feed(event) if event else welcome(r, incarnation=2 if answer == "a new life" else 1, known=0)
    assert r.worker.phase == after and [each.status for each in of(orders, fx.Stop)] == ([stop] if stop else [])
    assert isinstance(orders[0], fx.AbortCollective) == (after != WorkerPhase.IN_COLLECTIVE)
    assert bool(of(orders, fx.Dial)) == (after == WorkerPhase.IN_COLLECTIVE)


@pytest.mark.parametrize("cycle", [0, 7])
def test_a_source_without_a_vote_puts_its_consensus_back_first(cycle: int) -> None:
    """M-45, R-10: what it has stepped since counts nowhere, also where a run forms once more. Who forms one for the
    first time has adopted none, and gives what it has."""
    r = Rank(collective=True)
    r.session(4, state_from=1)
    (share,) = of(r.sync(cycle), fx.ShareState)
    assert share.put_back and not share.adopts
