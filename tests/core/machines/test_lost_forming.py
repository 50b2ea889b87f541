"""A journal that lost its end back into the forming of the run, and numbers that are given once (M-45, K-1)."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.phases import PeerPhase, RunPhase, WorkerPhase

from support.hand import Hand, alerts, messages
from support.rank import Rank, of
from support.words import hello


def back(hand: Hand, snapshot: Any) -> None:
    """The coordinator is started anew from this snapshot, and nothing after it was kept."""
    hand.co = Coordinator.restart(hand.co.config, snapshot, (), hand.now)
    hand.co.take_ready()
    hand.sequence.clear(), hand.counted.clear()
    hand.feed(ev.Tick())


def knock(hand: Hand, rank: int, version: int, **fields: Any) -> list[Any]:
    """A rank of the run that was: it holds this version."""
    known: dict[str, Any] = dict(generation=1, incarnation=1, version=version, cycle=version + 2, snapshot_cycle=0,
                                 shipped=0, step_count=9, control_seq=90, report_seq=90,
                                 global_step=10 * version)  # fmt: skip
    known.update(fields)
    wanted = hello(hand.samples, wanted_rank=rank, resume=m.ResumeClaim(**known))
    return hand.feed(ev.HelloReceived(70 + rank, wanted))


def lost(*versions: int, closed: bool = True, **knobs: Any) -> Hand:
    """Ranks with these versions come to a coordinator that is forming, or has not even seen them."""
    hand = Hand(len(versions) if closed else 0, samples=400, target_ranks=len(versions), **knobs)
    snapshot = hand.co.snapshot()
    assert hand.co.run.window_closed is closed and hand.co.cycle.pending is closed
    back(hand, snapshot)
    for rank, version in enumerate(versions):
        knock(hand, rank, version)
    return hand


def form(hand: Hand) -> list[Any]:
    """Cycle 0, as everyone of the new generation sees it."""
    begun = len(hand.effects)
    for rank in hand.co.cycle.participants:
        hand.ready(rank, generation=2)
    hand.reduce()
    for rank in hand.co.cycle.participants:
        hand.ack(rank, generation=2, outcome=m.Outcome.OBSERVER)
    return hand.effects[begun:]


@pytest.mark.parametrize(("closed", "start"), [(True, "auto"), (True, "manual"), (False, "auto")])
def test_a_run_forms_once_more_and_goes_on_from_the_highest_version(closed: bool, start: str) -> None:
    """M-45: the books know of no training. Version and base go forward, who holds the version gives the state of cycle
    0, and no cycle number that a rank has seen is used again (I8)."""
    hand = Hand(3 if closed else 0, samples=400, target_ranks=3, start=start)
    if start == "manual":
        hand.feed(ev.OperatorRequest(ev.Operator.START))
    back(hand, hand.co.snapshot())
    knock(hand, 0, 3)
    assert hand.co.cycle.version == 3 and alerts(hand.effects, "accounting")[0].critical
    knock(hand, 1, 5)
    assert hand.co.peers[0].phase == PeerPhase.DEAD, "its version is behind"
    knock(hand, 0, 3, incarnation=hand.co.peers[0].incarnation, generation=2)
    knock(hand, 2, 5)

    cycle = hand.co.cycle
    assert (cycle.version, cycle.global_step, hand.co.run.phase) == (5, 50, RunPhase.FORMING)
    assert cycle.pending and cycle.number == 0 and cycle.source == 1
    asked = messages(hand.effects, m.RequestParams)[-3:]
    assert [(e.rank, e.generation, e.observer) for e in asked] == [(0, 2, True), (1, 2, False), (2, 2, True)]
    effects = form(hand)
    assert {(e.version, e.global_step) for e in messages(effects, m.Update)} == {(5, 50)}
    assert hand.co.run.phase == RunPhase.TRAINING and hand.co.voters == [0, 1, 2]
    rounds = [(e.key, e.attempt) for e in hand.effects if isinstance(e, fx.OpenRound)]
    assert len(set(rounds)) == len(rounds), "I8: no round has the name of another one"
    for rank in range(3):
        hand.step(rank, 3, generation=2)
    assert hand.co.cycle.number == 8, "the cycle after the highest that anybody knew"


def test_nothing_that_no_rank_holds_is_given() -> None:
    """M-45, M-27: with the last rank that holds the version goes the version; the run does not go back."""
    hand = lost(5, 3)
    knock(hand, 1, 3)
    assert hand.co.cycle.pending and hand.co.cycle.source == 0
    hand.feed(ev.LinkLost(0, hand.co.peers[0].incarnation, "gone"))
    assert hand.co.run.status == "failed" and "version 5" in hand.co.run.text


def test_another_rank_that_holds_the_version_takes_over() -> None:
    """M-45, M-6: the source dies, the next one that stands on the version gives it."""
    hand = lost(5, 5, 3, min_ranks=1)
    knock(hand, 2, 3)
    assert hand.co.cycle.source == 0 and hand.co.cycle.pending
    hand.feed(ev.LinkLost(0, hand.co.peers[0].incarnation, "gone"))
    assert hand.co.cycle.source == 1 and hand.co.cycle.attempt > 0
    form(hand)
    assert hand.co.voters == [1, 2] and hand.co.cycle.version == 5


def test_decisions_and_plans_of_another_generation_have_other_numbers() -> None:
    """K-1, I24: what the lost part of a journal had decided is never decided again under its number."""
    hand = Hand(2, samples=400, save_path="runs").form()
    kept = hand.co.snapshot()
    hand.window()
    decided, planned = hand.co.run.decisions, hand.co.book.next_plan_id
    hand.co.actions._decide()
    back(hand, kept)
    assert hand.co.actions._decide() > decided + 1 and hand.co.book.next_plan_id > planned
    first = hand.co.run.decisions
    back(hand, kept)
    assert hand.co.generation == 2
    hand.co = Coordinator.restart(hand.co.config, hand.co.snapshot(), (), hand.now)
    assert hand.co.generation == 3 and hand.co.actions._decide() > first


def cut(hand: Hand, rank: int) -> None:
    """The link of a rank breaks; it keeps its seat for a while."""
    hand.feed(ev.LinkLost(rank, hand.co.peers[rank].incarnation, "reset"))
    assert hand.co.peers[rank].detached


def again(hand: Hand, rank: int) -> None:
    """It is back over another link, in the same life."""
    peer = hand.co.peers[rank]
    knock(hand, rank, hand.co.cycle.version, generation=hand.co.generation, incarnation=peer.incarnation, cycle=0,
          step_count=peer.last_step_count, control_seq=peer.control_seq, report_seq=peer.report_seq)  # fmt: skip
    assert hand.co.peers[rank] is peer and peer.attached


def half(*versions: int, expected: int, **knobs: Any) -> Hand:
    """A run that forms once more: these have come, of so many that are waited for, and cycle 0 is not armed."""
    hand = Hand(expected, samples=400, target_ranks=expected, **knobs)
    back(hand, hand.co.snapshot())
    for rank, version in enumerate(versions):
        knock(hand, rank, version)
    assert not hand.co.run.window_closed and not hand.co.cycle.pending
    return hand


def stranger(hand: Hand) -> int:
    """A rank that was never in the run takes the next seat."""
    hand.feed(ev.HelloReceived(90 + len(hand.effects), hello(hand.samples)))
    return max(hand.co.alive)


@pytest.mark.parametrize("averager", ["star", "collective"])
def test_a_version_that_is_lost_before_cycle_0_is_armed_ends_the_run(averager: str) -> None:
    """M-45, M-27: the last rank that holds it dies while others are awaited; the run neither waits for ever nor takes
    the weights of somebody else."""
    hand = half(5, expected=3, averager=averager)
    hand.co.lose(0, "dead")
    hand.feed(ev.Tick())
    stranger(hand), stranger(hand), stranger(hand)
    hand.tick(5.0)
    assert hand.co.run.status == "failed" and "nobody is left who holds version 5" in hand.co.run.text
    assert not hand.co.cycle.pending


def test_a_source_that_is_away_is_waited_for() -> None:
    """M-27, M-45: the only rank that holds the version has lost its link when the window closes. A stranger's weights
    never become that version."""
    hand = half(5, expected=3, link_grace_s=100.0)
    stranger(hand)
    cut(hand, 0)
    stranger(hand)
    assert hand.co.run.window_closed and not hand.co.cycle.pending, "cycle 0 has no source"
    again(hand, 0)
    assert hand.co.cycle.pending and hand.co.cycle.source == 0
    form(hand)
    assert hand.co.run.phase == RunPhase.TRAINING and hand.co.cycle.version == 5


@pytest.mark.parametrize("averager", ["star", "collective"])
def test_a_source_that_stays_away_ends_the_run_and_nobody_else(averager: str) -> None:
    """M-6, M-45: at the end of `formation_s` it is the one that has held the run up."""
    hand = half(5, expected=3, averager=averager, link_grace_s=1000.0, formation_s=20.0)
    stranger(hand)
    cut(hand, 0)
    stranger(hand)
    hand.tick(21.0, silent=(0,))
    assert hand.co.run.status == "failed" and "holds version 5" in hand.co.run.text
    assert hand.co.peers[0].phase == PeerPhase.DEAD and hand.co.alive_count == 2


def test_of_those_that_hold_the_version_one_that_can_be_reached_gives() -> None:
    """M-44, M-45: the lowest of them is away."""
    hand = half(5, 5, expected=3, link_grace_s=100.0)
    assert hand.co.lost_tail.giver == 0
    cut(hand, 0)
    assert hand.co.lost_tail.giver == 1
    stranger(hand)
    assert hand.co.cycle.pending and hand.co.cycle.source == 1


def test_who_holds_the_version_and_came_later_takes_over() -> None:
    """M-45, M-6: the source dies, and the other one that stands on the version was away when cycle 0 was armed."""
    hand = half(5, 5, expected=3, link_grace_s=100.0)
    cut(hand, 0)
    stranger(hand)
    assert hand.co.cycle.source == 1 and hand.co.cycle.attempt == 1
    hand.co.lose(1, "dead")
    hand.feed(ev.Tick())
    assert hand.co.run.status != "failed" and not hand.co.cycle.pending
    again(hand, 0)
    assert hand.co.cycle.pending and hand.co.cycle.source == 0 and hand.co.cycle.attempt > 1
    form(hand)
    assert hand.co.run.phase == RunPhase.TRAINING and hand.co.voters == [0, 2] and hand.co.cycle.version == 5


# --- the version is that of the books, and the run had formed (storms of seed 1010424) ----------------------------


@pytest.mark.parametrize("averager", ["star", "collective"])
@pytest.mark.parametrize("unknown", [False, True])
def test_ranks_that_have_been_further_than_a_forming_run_form_it_once_more(averager: str, unknown: bool) -> None:
    """M-45, M-42: all stand on version 0, so no version tells that the journal has lost its end; the messages that they
    have handled do. They were turned away as late until their seats were given up, and a newcomer formed alone."""
    hand = Hand(2 if unknown else 3, samples=400, target_ranks=3, averager=averager, reconnect_window_s=200.0)
    back(hand, hand.co.snapshot())
    assert hand.co.run.window_closed is not unknown
    ranks = [2, 0, 1] if unknown else [0, 1, 2]  # the books don't even know one of them
    for rank in ranks:
        effects = knock(hand, rank, 0, cycle=1, control_seq=9, report_seq=9)
        (admit,) = [effect for effect in effects if isinstance(effect, fx.Admit)]
        assert admit.welcome.status == m.WelcomeStatus.FORMING
    assert not [effect for effect in hand.effects if isinstance(effect, fx.Refuse)]
    assert len(alerts(hand.effects, "accounting")) == 1, "the first one tells, the others come again"
    assert hand.co.alive == sorted(ranks) and hand.co.run.window_closed
    assert hand.co.lost_tail.version is None, "anybody may give the state that has never been averaged"
    if averager == "star":
        assert hand.co.cycle.pending and hand.co.cycle.source == min(ranks)
        form(hand)
        assert hand.co.voters == sorted(ranks) and hand.co.cycle.version == 0


def test_a_rank_that_has_handled_nothing_else_goes_on_in_a_forming_run() -> None:
    """M-42: nothing is lost, so nobody begins anew."""
    hand = Hand(2, samples=400, target_ranks=2)
    back(hand, hand.co.snapshot())
    for rank in range(2):
        again(hand, rank)
    assert not alerts(hand.effects, "accounting") and hand.co.peers[0].incarnation == 1


@pytest.mark.parametrize("averager", ["star", "collective"])
def test_a_dead_rank_that_has_handled_all_it_was_told_proves_no_loss(averager: str) -> None:
    """M-45: the books know what its life was told, though that was over before the restart. It was taken for one that
    had been further than a whole journal, and every other life of a forming run ended (a storm of 16 ranks)."""
    hand = Hand(3, samples=400, target_ranks=3, averager=averager, reconnect_window_s=200.0, link_grace_s=100.0)
    told = hand.co.peers[2].control_seq
    hand.co.lose(2, "dead")
    hand.feed(ev.Tick())
    back(hand, hand.co.snapshot())
    again(hand, 0), again(hand, 1)
    (refuse,) = [e for e in knock(hand, 2, 0, cycle=0, step_count=0, control_seq=told) if isinstance(e, fx.Refuse)]

    assert refuse.reject.retry and not alerts(hand.effects, "accounting"), "it may join once the run trains"
    assert [hand.co.peers[rank].incarnation for rank in (0, 1)] == [1, 1] and hand.co.alive == [0, 1]


@pytest.mark.parametrize("averager", ["star", "collective"])
def test_cycle_0_waits_for_somebody_who_can_be_asked(averager: str) -> None:
    """M-6, M-21: its only rank dies while the others have no link. With nobody in it cycle 0 was over at once, and a
    run without a rank began to train."""
    hand = Hand(3, samples=400, target_ranks=3, averager=averager, reconnect_window_s=200.0, link_grace_s=100.0)
    back(hand, hand.co.snapshot())
    again(hand, 2)
    hand.co.lose(2, "dead")
    hand.feed(ev.Tick())
    assert hand.co.run.phase == RunPhase.FORMING and not hand.co.cycle.fires(None)
    again(hand, 0), again(hand, 1)
    assert hand.co.run.phase == RunPhase.FORMING and hand.co.alive == [0, 1]
    if averager == "star":
        assert hand.co.cycle.pending and hand.co.cycle.source == 0
        form(hand)
        assert hand.co.voters == [0, 1] and hand.co.book.last_closed_epoch == -1


@pytest.mark.parametrize(("version", "steps", "put_back"), [(0, 0, False), (5, 0, True), (0, 3, True)])
def test_a_source_that_has_adopted_a_consensus_puts_it_back(version: int, steps: int, put_back: bool) -> None:
    """M-45, R-10: what it has stepped since is in no books. Nobody steps before a first consensus, so steps tell of one
    whose version is 0."""
    rank = Rank(WorkerPhase.JOINING)
    rank.worker.version, rank.worker.local_step = version, steps
    (order,) = of(rank.request(0), fx.TakeSnapshot)
    assert order.state and order.put_back is put_back
    (order,) = of(rank.request(0, attempt=1, observer=True), fx.TakeSnapshot)
    assert not order.put_back
