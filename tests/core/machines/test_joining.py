"""Joining a running cohort, step by step (M-7, M-21 to M-28)."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import PeerPhase, RunPhase
from paceline.core.roles import ROLES
from paceline.core.simulation.setup import STATEFUL

from support.cohort import Cohort
from support.hand import Hand, messages, named
from support.runs import CLIMB
from support.words import hello


def knock(hand: Hand, rank: int | None = None, **changes: Any) -> list[Any]:
    """Somebody says Hello."""
    return hand.feed(ev.HelloReceived(77, hello(hand.samples, wanted_rank=rank, **changes)))


def code(effects: list[Any]) -> m.RejectCode:
    """Why it was refused."""
    return m.RejectCode(next(e.reject.code for e in effects if isinstance(e, fx.Refuse)))


def joined(**knobs: Any) -> Hand:
    """Two ranks train, a third has been let in."""
    hand = Hand(2, max_ranks=4, samples=400, **knobs).form()
    knock(hand)
    return hand


def train(hand: Hand) -> None:
    """Both voters end their window, so that a cycle is armed."""
    for rank in (0, 1):
        hand.step(rank, hand.co.desk.quota(rank))
        hand.complete(rank)


def average(hand: Hand, ranks: tuple[int, ...], late: tuple[int, ...] = ()) -> list[Any]:
    """The pending cycle with the acknowledgements of these ranks; `late` only say that they are ready."""
    effects: list[Any] = []
    for rank in sorted((*ranks, *late)):
        effects += hand.ready(rank)
    effects += hand.reduce()
    for rank in ranks:
        effects += hand.ack(rank)
    return effects


def test_the_door_while_the_cohort_forms_and_trains_and_ends() -> None:
    """M-22, M-5: busy and closing may try again, a taken seat may not."""
    hand = Hand(2, max_ranks=3)
    assert code(knock(hand)) == m.RejectCode.BUSY
    hand.form()
    assert code(knock(hand, 1)) == m.RejectCode.SEAT and code(knock(hand, 3)) == m.RejectCode.SEAT
    welcome = next(e.welcome for e in knock(hand) if isinstance(e, fx.Admit))
    assert (welcome.rank, welcome.incarnation, welcome.status) == (2, 1, m.WelcomeStatus.JOINING)
    assert code(knock(hand)) == m.RejectCode.FULL
    hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    assert code(knock(hand)) == m.RejectCode.CLOSING


def test_a_joiner_has_no_say_before_its_promotion() -> None:
    """I18, M-23: gates, sums, budgets and pools are those of the cohort without it."""
    hand, plain = joined(), Hand(2, samples=400).form()
    for each in (hand, plain):
        train(each)
    opened = [e for e in hand.effects if isinstance(e, fx.OpenRound)][-1]
    assert [member[0] for member in opened.members] == [0, 1] and opened.observers == ((2, 1),)
    assert [r.observer for r in messages(hand.effects, m.RequestParams, 2)] == [True]
    assert (hand.co.short, hand.co.movers) == (plain.co.short, plain.co.movers)
    assert not messages(hand.effects, m.StartEpoch, 2) and 2 not in hand.co.balancer.counts


def test_it_is_promoted_in_the_finish_whose_consensus_it_acknowledged() -> None:
    """M-25, I21: version and base of that finish, a count of the anchor, and a plan like everyone."""
    hand = joined()
    train(hand)
    effects = average(hand, (2, 0, 1))
    update = messages(effects, m.Update, 2)[0]

    assert (update.outcome, update.version, update.global_step) == (m.Outcome.OBSERVER, 1, 6)
    assert hand.co.peers[2].phase == PeerPhase.VOTER and hand.co.balancer.counts[2] == hand.co.balancer.anchor
    assert update.next_plan is not None and update.next_plan.size > 0


def test_a_late_acknowledgement_is_fenced_and_the_next_cycle_takes_it() -> None:
    """M-25, M-26: the gate does not wait for a joiner that has its patience left."""
    hand = joined()
    train(hand)
    average(hand, (0, 1), late=(2,))
    assert hand.co.cycle.version == 1 and hand.co.peers[2].missed == 1
    hand.ack(2, cycle=1)
    assert hand.co.fenced[2, "SyncAck"] == 1 and hand.co.peers[2].phase == PeerPhase.JOINING
    train(hand)
    average(hand, (2, 0, 1))
    assert hand.co.peers[2].phase == PeerPhase.VOTER and hand.co.peers[2].missed == 0


def test_after_its_patience_the_gate_waits_and_at_the_ceiling_its_life_ends() -> None:
    """M-26, I36: promoted or ended within join_patience + 1 cycles; the run goes on."""
    hand = joined(join_patience=2)
    for _ in range(2):
        train(hand)
        average(hand, (0, 1))
    train(hand)
    average(hand, (0, 1))
    assert hand.co.cycle.pending and hand.co.cycle.awaited == (2,)
    effects = hand.tick(301)

    assert "join_timeout" in named(effects, "Died")[0]["cause"] and not named(effects, "Stalled")
    assert hand.co.voters == [0, 1] and hand.co.cycle.version == 3 and hand.co.run.phase == RunPhase.TRAINING


def test_a_member_that_owes_at_the_ceiling_is_a_stall_all_the_same() -> None:
    """M-15 beside M-26."""
    hand = joined(join_patience=1)
    train(hand)
    average(hand, (0, 1))
    train(hand)
    average(hand, (0,))
    assert named(hand.tick(302), "Stalled")


# --- the static part (M-24) ------------------------------------------------------------------------------------------


def stateful(**changes: Any) -> Hand:
    """Three ranks whose model has an entry that no consensus holds; a fourth has been let in."""
    hand = Hand(0, target_ranks=3, max_ranks=5, samples=400)
    for link in range(3):
        hand.feed(ev.HelloReceived(link, hello(400, schema=STATEFUL, schema_hash=STATEFUL.hash(), **changes)))
    hand.form()
    knock(hand, schema=STATEFUL, schema_hash=STATEFUL.hash(), **changes)
    return hand


def test_one_donor_is_asked_once() -> None:
    """M-24: the lowest voter, with a round of kind state of its own before the request."""
    hand = stateful()
    kinds = [e for e in hand.effects if isinstance(e, fx.OpenRound) and e.key.is_transfer]
    assert [(e.members, e.observers) for e in kinds] == [(((0, 1, 0),), ((3, 1),))]
    asked = messages(hand.effects, m.RequestState)
    assert [(a.rank, a.joiner_rank, a.joiner_incarnation) for a in asked] == [(0, 3, 1)]
    hand.tick(20)
    assert len(messages(hand.effects, m.RequestState)) == 1
    assert [r.code for r in hand.co.explain(3)] == ["E17"]


def test_a_donor_without_a_role_is_preferred() -> None:
    """M-24: rank 0 calls the callbacks and may be inside one; where everybody has a role the lowest gives."""
    hand = stateful(callbacks=ROLES)
    assert set(hand.co.roles.holders.values()) == {0}
    assert [asked.rank for asked in messages(hand.effects, m.RequestState)] == [1]
    hand.co.roles.holders.update(evaluate=1, checkpoint=2)
    effects = hand.feed(ev.LinkLost(3, 1, "reset"))
    effects += knock(hand, schema=STATEFUL, schema_hash=STATEFUL.hash(), callbacks=ROLES)
    assert [asked.rank for asked in messages(effects, m.RequestState)] == [0]


@pytest.mark.parametrize("leave", [False, True])
def test_a_donor_that_is_gone_is_replaced(leave: bool) -> None:
    """M-24, M-27: by the next voter; the first transfer is closed."""
    hand = stateful()
    effects = hand.say(0, m.Exiting, reason="x") if leave else hand.feed(ev.LinkLost(0, 1, "reset"))
    assert [a.rank for a in messages(effects, m.RequestState)] == [1]
    assert [e.key.cycle for e in effects if isinstance(e, fx.CloseRound)] == [1]
    assert [e.key.cycle for e in effects if isinstance(e, fx.OpenRound)] == [2]


def test_a_joiner_that_is_gone_needs_no_donor() -> None:
    """M-24: its transfer ends with it."""
    hand = stateful()
    effects = hand.feed(ev.LinkLost(3, 1, "reset"))
    assert [e.key.is_transfer for e in effects if isinstance(e, fx.CloseRound)] == [True] and not hand.co.joins.open


def test_an_acknowledgement_without_the_static_part_is_none_yet() -> None:
    """M-25: it does not promote, and a complete one of the same attempt does."""
    hand = stateful()
    for rank in (0, 1, 2):
        hand.step(rank, 3)
        hand.complete(rank)
    for rank in range(4):
        hand.ready(rank)
    hand.reduce()
    hand.ack(3, state_complete=False)
    assert not hand.co.peers[3].acked
    hand.ack(3)
    for rank in (0, 1, 2):
        hand.ack(rank)
    assert hand.co.peers[3].phase == PeerPhase.VOTER and not hand.co.joins.open


# --- a seat that is taken again (M-7) --------------------------------------------------------------------------------


def test_a_new_life_starts_with_nothing_of_the_old_one() -> None:
    """M-7, N-6: next incarnation, empty record; what the old one still says is fenced."""
    hand = Hand(2, samples=400).form()
    hand.step(1, 2)
    hand.feed(ev.LinkLost(1, 1, "reset"))
    knock(hand, 1)
    peer = hand.co.peers[1]
    assert (peer.incarnation, peer.phase, peer.steps, peer.last_step_count) == (2, PeerPhase.JOINING, 0, 0)
    effects = hand.say(1, m.Heartbeat, step_count=0, state="x", incarnation=1)
    assert [e for e in effects if isinstance(e, fx.SendFenced)] and hand.co.fenced[1, "stale"] == 1


def test_a_new_life_inherits_nothing_of_a_pending_cycle() -> None:
    """M-7, M-19: what the old life had shipped is merged once, in its name; the new one is not asked, not even by a
    new attempt, and its evidence is fenced."""
    hand = Hand(2, samples=400).form()
    train(hand)
    hand.ready(1)
    hand.feed(ev.LinkLost(1, 1, "reset"))
    hand.sequence[1] = 0
    knock(hand, 1)
    hand.ready(1, shipped_steps=0)
    assert hand.co.fenced[1, "SnapshotReady"] == 1
    hand.ready(0)
    effects = hand.reduce(accepted=(0, 1)) + hand.ack(0)

    assert named(effects, "Cycle")[0]["merged"] == {"0": 3, "1": 3}
    assert hand.co.cycle.global_step == 6 and hand.co.peers[1].phase == PeerPhase.JOINING
    assert hand.co.peers[1].missed == 0


def test_a_joiner_promoted_at_the_end_of_an_epoch_starts_with_the_next() -> None:
    """M-28: in the same pass, never an empty chunk of the old one."""
    hand = Hand(2, max_ranks=3, samples=12).form()
    knock(hand)
    train(hand)
    effects = average(hand, (2, 0, 1))
    update = messages(effects, m.Update, 2)[0]
    plans = messages(effects, m.StartEpoch, 2)
    assert update.next_plan is None and named(effects, "EpochEnd")
    assert plans and plans[0].plan.epoch == 1 and plans[0].plan.size > 0


# --- too few, for now (M-21) -----------------------------------------------------------------------------------------


def test_below_min_ranks_an_elastic_run_waits_for_others() -> None:
    """M-21: nothing is armed, joiners count as alive, and the wait ends with the first one."""
    hand = Hand(2, min_ranks=2, samples=400).form()
    hand.feed(ev.LinkLost(1, 1, "reset"))
    hand.step(0, 3)
    hand.complete(0)
    hand.tick(30)
    assert not hand.co.cycle.pending and not hand.co.save_issued
    assert "E23" in [reason.code for reason in hand.co.explain()]
    knock(hand, 1)
    assert hand.co.cycle.pending and hand.co.cycle.observers == (1,)


@pytest.mark.parametrize("stop", [False, True])
def test_the_wait_for_others_ends(stop: bool) -> None:
    """M-21: after rejoin_window_s, or at once when nobody may come any more."""
    hand = Hand(2, min_ranks=2, samples=400, rejoin_window_s=60.0).form()
    hand.feed(ev.LinkLost(1, 1, "reset"))
    hand.tick(59.5)
    assert not hand.co.save_issued
    if stop:
        hand.step(0)
        hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    else:
        hand.tick(0.5)
    assert hand.co.run.save is not None and hand.co.run.save.reason == m.SaveReason.SINGLE_SURVIVOR


def test_without_a_voter_joiners_cannot_go_on() -> None:
    """M-27, M-54: nobody stands on the consensus any more; what the averager holds is saved."""
    hand = joined(save_path="x")
    for rank in (0, 1):
        hand.feed(ev.LinkLost(rank, 1, "reset"))
    assert hand.co.run.save is not None and hand.co.run.save.reason == m.SaveReason.ALL_RANKS_LOST
    assert [e for e in hand.effects if isinstance(e, fx.SaveConsensus)]


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
@pytest.mark.parametrize("is_stateful", [False, True])
def test_a_killed_rank_comes_back_and_trains(policy: str, is_stateful: bool) -> None:
    """M-22 to M-25, I42, with real workers."""
    cohort = Cohort(ranks=2, samples=160, num_epochs=3, policy=policy, stateful=is_stateful, max_batch_diff=8, **CLIMB)
    cohort.run_until(lambda: cohort.co.cycle.version == 2)
    cohort.strike("crash", 1)
    cohort.run_until(lambda: cohort.co.voters == [0])
    cohort.strike("join", 1)
    cohort.run_until(lambda: cohort.co.voters == [0, 1])
    cohort.run()
    assert cohort.finish is not None and cohort.finish.status == "ok" and cohort.co.peers[1].merges > 0


def test_joiners_transfers_and_clocks_survive_a_snapshot() -> None:
    """I25: a coordinator restored in the middle of all this is the same one."""
    hand = stateful()
    hand.step(0, 2)
    hand.tick(3)
    twin = type(hand.co).restore(hand.co.config, hand.co.snapshot())
    assert twin.snapshot() == hand.co.snapshot()
    lost = ev.LinkLost(0, 1, "reset")
    hand.co.take_ready()
    twin.take_ready()
    hand.co.handle(lost, hand.now)
    twin.handle(lost, hand.now)
    assert twin.take_ready() == hand.co.take_ready() and twin.joins.open == hand.co.joins.open


@pytest.mark.parametrize(("policy", "has"), [("cadence", False), ("async", True)])
def test_a_new_voter_may_overshoot_where_ranks_do(policy: str, has: bool) -> None:
    """M-25, G-9: from its first plan on, and only under async."""
    hand = joined(policy=policy)
    train(hand)
    average(hand, (2, 0, 1))
    assert hand.co.voters == [0, 1, 2] and (2 in hand.co.balancer.overshoots) is has
