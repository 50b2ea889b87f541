"""Sessions at the coordinator while ranks come and go: newcomers, the last one, who leaves, the end (M-21 to M-31)."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase

from support.hand import alerts, messages, named
from support.hand_collective import SICK, Joint, asked, covered, joint, lost
from support.hand_collective import knock as reattached
from support.words import hello

# --- joins (M-23 to M-25, M-31) -----------------------------------------------------------------------------------


def knock(hand: Joint, **changes: Any) -> list[Any]:
    """Somebody is at the door."""
    return hand.feed(ev.HelloReceived(99, hello(hand.samples, **changes)))


def with_a_newcomer() -> Joint:
    """Two voters and a joiner in a session of three; a cycle of all of them is armed."""
    hand = Joint(2, max_ranks=4, samples=400).form()
    knock(hand)
    hand.uid()
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
    assert hand.co.cycle.pending and hand.co.cycle.observers == (2,)
    return hand


def test_a_newcomer_comes_with_a_session_at_rest() -> None:
    """M-23, M-25, M-30, M-31: the donor is the lowest voter; the newcomer observes a cycle and votes after it."""
    hand = Joint(2, max_ranks=4, samples=400).form()
    assert asked(knock(hand)) == [(0, 2)]
    effects = hand.uid()
    assert {(s.state_from, s.cycle) for s in messages(effects, m.NewSession)} == {(0, None)}
    assert not messages(effects, m.RequestState), "the whole state moves in the session"
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
    assert hand.co.cycle.observers == (2,)
    effects = hand.average()

    assert hand.co.voters == [0, 1, 2] and hand.co.sessions.current()
    assert {u.rank: u.outcome for u in messages(effects, m.Update)}[2] == m.Outcome.OBSERVER


def repeated_with_a_newcomer() -> Joint:
    """A member of three has died in the call, a newcomer has come meanwhile, and the cycle is repeated with it."""
    hand = joint(3, max_ranks=4, samples=400)
    knock(hand)
    lost(hand, 2)
    effects = hand.uid()
    assert {(session.rank, session.attempt) for session in messages(effects, m.NewSession)} == {(0, 1), (1, 1), (3, 1)}
    assert hand.co.cycle.pending and hand.co.cycle.observers == (3,)
    return hand


def beat(hand: Joint, until: float, handled: dict[int, int]) -> list[Any]:
    """Heartbeats of all ranks up to that second; each has handled so much."""
    effects: list[Any] = []
    while hand.now < until and not hand.co.save_issued:
        hand.now = min(until, max(hand.now, hand.co.poll_timeout() or until))
        for rank in list(hand.co.alive):
            effects += hand.say(rank, m.Heartbeat, step_count=0, state="x", control_seq=handled[rank])
        effects += hand.feed(ev.Tick())
        if named(effects, "Died"):
            break
    return effects


def test_a_newcomer_that_never_begins_with_the_repeated_call_goes_alone() -> None:
    """C-38, C-39, M-26, M-15: NewSession asked it; the others are inside and wait for it. At the ceiling its life ends,
    not the run, and the cycle is repeated without it. Nobody was outside in the books, and the run was saved and
    stopped for it."""
    hand = repeated_with_a_newcomer()
    sent = {rank: hand.co.peers[rank].control_seq for rank in hand.co.alive}
    before = {**sent, 3: sent[3] - 1}
    beat(hand, hand.now + 2, before)
    for rank in (0, 1):
        (reason,) = hand.co.explain(rank)
        assert (reason.code, reason.waiting_for) == ("E13", (3,))
    effects = beat(hand, hand.now + 310, before)

    assert [facts["rank"] for facts in named(effects, "Died")] == [3] and not hand.co.save_issued
    assert "join_timeout" in named(effects, "Died")[0]["cause"]
    hand.uid()
    hand.average()
    assert hand.co.cycle.version == 1 and hand.co.voters == [0, 1]


def test_who_is_inside_may_confirm_no_session_and_is_not_taken_for_one_outside() -> None:
    """M-26, W-20: a message that waits for the end of the call keeps the number below NewSession."""
    hand = repeated_with_a_newcomer()
    sent = {rank: hand.co.peers[rank].control_seq for rank in hand.co.alive}
    asked_by = {rank: hand.co.peers[rank].request_seq for rank in hand.co.alive}
    assert asked_by == {0: asked_by[0], 1: asked_by[1], 3: sent[3]} and asked_by[0] < sent[0]
    effects = beat(hand, hand.now + 310, {**asked_by, 3: sent[3]})

    assert not named(effects, "Died") and {save.reason for save in messages(effects, m.ShutdownWithSave)} == {
        m.SaveReason.REDUCE_STALL
    }


def test_a_newcomer_waits_until_no_cycle_is_pending() -> None:
    """M-30: whoever is in the call is not disturbed; it comes with the next session."""
    hand = joint(2, max_ranks=4, samples=400)
    assert not asked(knock(hand))
    assert asked(hand.average()) == [(0, 2)]


def test_a_newcomer_of_a_repeated_cycle_observes_it() -> None:
    """M-31, C-38: the session is that of who is alive now, so it takes part in attempt 1 with no mass."""
    hand = joint(3, max_ranks=4, samples=400)
    knock(hand)
    lost(hand, 2)
    effects = hand.uid()
    assert {(s.state_from, s.cycle, s.attempt) for s in messages(effects, m.NewSession)} == {(0, 1, 1)}
    assert hand.co.cycle.observers == (3,) and hand.co.cycle.members == (0, 1)
    hand.average()

    assert hand.co.voters == [0, 1, 3] and hand.co.cycle.global_step == 6


def test_a_rank_that_comes_back_into_its_own_cycle_observes_it() -> None:
    """M-7, M-31: the seat is the same, the life is another; what the old one held is not its own."""
    hand = joint(3, samples=400)
    lost(hand, 2)
    hand.sequence.pop(2), hand.counted.pop(2)
    knock(hand, wanted_rank=2)
    hand.uid()
    assert hand.co.cycle.observers == (2,) and hand.co.sessions.members[2] == (2, 2)
    hand.average()

    assert hand.co.voters == [0, 1, 2] and hand.co.cycle.global_step == 6


def test_an_observer_of_a_cycle_without_a_consensus_is_not_promoted() -> None:
    """M-25, I21: it holds the donor's drifting copy, and no average; the next cycle takes it along."""
    hand = with_a_newcomer()
    for rank in (0, 1):
        if rank == 0:
            hand.ack(2, total_steps=0, outcome=m.Outcome.UNREALIZED)
        hand.ack(rank, **SICK)
    assert hand.co.peers[2].phase == PeerPhase.JOINING and hand.co.peers[2].missed == 0
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
    hand.average()

    assert hand.co.voters == [0, 1, 2]


@pytest.mark.parametrize(("changes", "text"), [
    ({"devices": ("AMD Instinct MI300X",)}, "devices of cpu, this rank of AMD"),
    ({"runtime": "python 3.12, torch 2.9.1"}, "runs torch 2.13, this rank torch 2.9"),
])  # fmt: skip
def test_who_cannot_be_in_one_communicator_is_refused_at_the_door(changes: dict[str, Any], text: str) -> None:
    """M-5, N-29: vendor, and major and minor version of the library; other runs do not ask."""
    for averager, refused in (("collective", True), ("star", False)):
        hand = Joint(0, averager=averager, target_ranks=2)
        runtime = "python 3.11, torch 2.13.0"
        knock(hand, runtime=runtime)
        effects = knock(hand, **{"runtime": runtime, **changes})
        rejects = [e.reject for e in effects if isinstance(e, fx.Refuse)]
        assert bool(rejects) is refused
        assert all(reject.code == m.RejectCode.VENDOR and text in reject.text for reject in rejects)


# --- too few (M-21) -----------------------------------------------------------------------------------------------


def test_the_last_one_of_a_frozen_collective_is_saved_at_once() -> None:
    """M-21, C-42: also with min_ranks = 1, since nobody can come back."""
    hand = joint(2, elastic=False, min_ranks=1)
    effects = lost(hand, 1)

    assert {save.reason for save in messages(effects, m.ShutdownWithSave)} == {m.SaveReason.SINGLE_SURVIVOR}
    assert hand.co.cycle.phase == CyclePhase.STALLED and not asked(effects)


def test_a_collective_of_one_that_nobody_can_join_is_over_when_it_has_formed() -> None:
    """M-21, C-4: judged in the pass in which Training begins, not with whatever event happens to come next."""
    hand = Joint(1, elastic=False)
    hand.uid()
    effects = hand.average(outcome=m.Outcome.OBSERVER)

    assert [save.reason for save in messages(effects, m.ShutdownWithSave)] == [m.SaveReason.SINGLE_SURVIVOR]


def test_the_last_one_of_an_elastic_collective_waits_for_others() -> None:
    """M-21, M-30: without enough ranks no session; somebody comes, and the pending cycle goes on with it."""
    hand = joint(2, max_ranks=3)
    assert hand.co.config.min_ranks == 2
    assert not asked(lost(hand, 1))
    assert not asked(hand.tick(30))
    hand.sequence.pop(1), hand.counted.pop(1)
    assert asked(knock(hand)) == [(0, 2)]
    effects = hand.uid()
    assert {(s.state_from, s.cycle, s.attempt) for s in messages(effects, m.NewSession)} == {(0, 1, 1)}
    hand.average()
    assert hand.co.voters == [0, 1] and hand.co.cycle.global_step == 3


def test_nobody_comes_to_the_last_one() -> None:
    """M-21: after rejoin_window_s."""
    hand = joint(2)
    lost(hand, 1)
    effects = hand.tick(61)

    assert {save.reason for save in messages(effects, m.ShutdownWithSave)} == {m.SaveReason.SINGLE_SURVIVOR}


def test_one_rank_alone_is_a_session_of_one() -> None:
    """M-21, M-30: if min_ranks allows it and others may come."""
    hand = joint(2, min_ranks=1)
    lost(hand, 1)
    effects = hand.uid()
    assert [s.new_world_size for s in messages(effects, m.NewSession)] == [1]
    hand.average()

    assert hand.co.cycle.version == 1


def test_a_rank_that_leaves_takes_its_session_along() -> None:
    """M-8, M-30: no death, no alert, and the next session is without it."""
    hand = joint(3)
    hand.ack(2, total_steps=9)
    effects = hand.say(2, m.Exiting, reason="leave")
    assert asked(effects) == [(0, 2)] and not alerts(effects, "rank_lost")
    effects = hand.ack(0, total_steps=9) + hand.ack(1, total_steps=9)

    assert covered(effects) == {0: 3, 1: 3, 2: 3} and not alerts(hand.effects, "accounting")


def test_a_coordinator_that_was_away_gives_the_generator_its_time_again() -> None:
    """M-9."""
    hand = joint(3)
    lost(hand, 2)
    hand.now += 100.0
    effects = hand.feed(ev.Tick())

    assert asked(effects) == [(0, 2)] and hand.co.sessions.deadline == hand.now + 5.0


def test_a_stop_between_two_sessions_waits_for_the_next_one() -> None:
    """G-10, M-30, I10: the forced reduce needs a session, so until then the run goes on with the steps that ranks hold.
    tests/mutants.toml once said that a stop always arms in its own pass; here it cannot."""
    hand = Joint(3, samples=400).form()
    hand.step(0), hand.step(1)
    lost(hand, 2)
    effects = hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    assert not messages(effects, m.Shutdown) and hand.co.run.phase == RunPhase.TRAINING
    assert hand.co.cycle.phase == CyclePhase.IDLE and hand.co.movers == 2
    hand.uid()
    assert hand.co.cycle.phase == CyclePhase.PENDING
    assert len(messages(hand.average(), m.Shutdown)) == 2


def test_there_is_no_shutdown_while_a_collective_may_spin() -> None:
    """M-53, I10: the stop takes effect when the cycle is over."""
    hand = joint(2)
    effects = hand.feed(ev.OperatorRequest(ev.Operator.STOP)) + hand.tick(5) + hand.ack(0)
    assert not messages(effects, m.Shutdown) and hand.co.cycle.pending
    effects = hand.ack(1)

    kinds = [type(e.message) for e in effects if isinstance(e, fx.Send)]
    assert kinds == [m.Update] * 2 + [m.SetGlobalStep] * 2 + [m.Shutdown] * 2


def handled(hand: Joint, *ranks: int) -> None:
    """The training threads of these ranks have begun with everything they were sent."""
    for rank in ranks:
        hand.say(rank, m.Heartbeat, step_count=0, state="x", control_seq=hand.co.peers[rank].control_seq)


def test_a_joiner_that_hangs_before_its_call_ends_and_not_the_run() -> None:
    """M-26, I36: the voters wait for it inside the call, which it never enters; at the ceiling its life ends, and the
    cycle goes on in a session without it, with a ceiling of its own."""
    hand = with_a_newcomer()
    handled(hand, 0, 1)
    assert [reason.waiting_for for reason in hand.co.explain(0)] == [(2,)], "O-4 E13: it is told apart"
    effects = hand.tick(301)
    assert [(e["rank"], e["cause"].split(":")[0]) for e in named(effects, "Died")] == [(2, "join_timeout")]
    assert not named(effects, "Stalled") and hand.co.cycle.pending
    effects = hand.tick(5) + hand.uid()
    assert {(s.rank, s.cycle, s.attempt) for s in messages(effects, m.NewSession)} == {(0, 1, 1), (1, 1, 1)}
    hand.average()
    assert hand.co.cycle.version == 1 and hand.co.voters == [0, 1] and hand.co.run.phase == RunPhase.TRAINING


@pytest.mark.parametrize("inside", [(0, 2), (0, 1, 2), ()])
def test_where_a_voter_may_be_the_one_that_hangs_the_run_is_saved(inside: tuple[int, ...]) -> None:
    """M-15 beside M-26: a member outside, everyone inside, or nobody: a wedged cohort, diagnosed."""
    hand = with_a_newcomer()
    handled(hand, *inside)
    effects = hand.tick(301)
    assert named(effects, "Stalled") and not named(effects, "Died")


def test_a_collective_forms_without_the_rank_that_never_enters_it() -> None:
    """M-6: dropped after `formation_s`, because min_ranks remain; the others get theirs anew, in a session of their
    own."""
    hand = Joint(3)
    hand.uid()
    handled(hand, 0, 2)
    effects = hand.tick(61)
    assert [e["rank"] for e in named(effects, "Died")] == [1] and hand.co.run.phase == RunPhase.FORMING
    effects = hand.tick(1) + hand.uid()
    assert {(s.rank, s.cycle, s.attempt, s.state_from) for s in messages(effects, m.NewSession)} == {
        (0, 0, 1, 0), (2, 0, 1, 0),
    }  # fmt: skip
    hand.average(outcome=m.Outcome.OBSERVER)
    assert hand.co.voters == [0, 2] and hand.co.run.phase == RunPhase.TRAINING


@pytest.mark.parametrize("begun", [True, False])
def test_who_waits_for_a_session_does_not_hold_formation_up(begun: bool) -> None:
    """M-6, M-42: no session is made while a rank without a link may still come back, so that rank is the late one. All
    the others were dropped with it, or without it if it had acknowledged, and a dead rank alone began to train (storms
    of seeds 13036147 and 13041900)."""
    hand = Joint(4, link_grace_s=120.0)
    if begun:
        hand.uid()
        hand.ack(0, outcome=m.Outcome.OBSERVER)
    lost(hand, 0)
    for rank in (1, 2, 3) if begun else ():
        hand.failed(rank)
    [waits] = [reason for reason in hand.co.explain() if reason.code == "E19"]
    effects = hand.tick(61)
    assert waits.waiting_for == (0,), "who would be dropped (O-4)"
    assert [e["rank"] for e in named(effects, "Died")] == [0] and hand.co.run.phase == RunPhase.FORMING
    hand.uid()
    hand.average(outcome=m.Outcome.OBSERVER)
    assert hand.co.voters == [1, 2, 3] and hand.co.run.phase == RunPhase.TRAINING


@pytest.mark.parametrize("back", [True, False])
def test_the_time_to_form_begins_with_the_session(back: bool) -> None:
    """M-6: until then nobody could."""
    hand = Joint(3, link_grace_s=50.0)
    hand.uid()
    lost(hand, 2)
    hand.failed(0), hand.failed(1)
    hand.tick(49, silent=(2,))
    if back:
        reattached(hand, 2)
    hand.tick(2)
    hand.uid()
    assert hand.co.sessions.members == (((0, 1), (1, 1), (2, 1)) if back else ((0, 1), (1, 1)))
    handled(hand, 0)
    assert not named(hand.tick(59), "Died") and hand.co.run.phase == RunPhase.FORMING
    assert 0 not in [e["rank"] for e in named(hand.tick(2), "Died")]


def test_who_is_late_is_dropped_at_the_first_instant_after_its_time() -> None:
    """M-6, C-4: not with the next beacon; exceeded strictly, so a tick at the instant itself changes nothing, and a
    deadline at it let the short pass and the whole one differ."""
    hand = Joint(3, beacon_s=7.0, formation_s=45.0)
    hand.uid()
    handled(hand, 0, 2)
    until = hand.now + 45.0
    effects: list[Any] = []
    while not named(effects, "Died"):
        effects = hand.tick((hand.co.poll_timeout() or 0.0) - hand.now)
    assert [e["rank"] for e in named(effects, "Died")] == [1] and until < hand.now < until + 1e-6


def test_a_collective_of_which_nobody_enters_does_not_form() -> None:
    """M-6: nobody is done, and nobody can be told from the others."""
    hand = Joint(3)
    hand.uid()
    hand.tick(62)
    assert hand.co.run.status == "failed"


def test_the_next_life_of_a_generator_was_not_asked() -> None:
    """M-32, M-45: a coordinator comes back to a session that rank 0 was to make an id for. Rank 0 is alone and has a
    new life, since its journal has lost what it was told; that life is asked (a storm of 3 ranks, collective)."""
    hand = joint(2, min_ranks=1, samples=200)
    assert asked(hand.failed(0)) == [(0, 2)]
    hand.co = Coordinator.restart(hand.co.config, hand.co.snapshot(), (), 3.0)
    hand.now = 3.0
    hand.feed(ev.ProcessExited(1, 1, 1))
    claim = m.ResumeClaim(
        generation=1, incarnation=1, version=0, cycle=0, snapshot_cycle=0, shipped=0, step_count=9, control_seq=900,
        report_seq=hand.sequence[0], session_id=1,
    )  # fmt: skip
    effects = hand.feed(ev.HelloReceived(70, hello(hand.samples, wanted_rank=0, resume=claim)))

    assert asked(effects)[-1][0] == 0 and not hand.co.save_issued
