"""A run that begins from what all of its ranks bring: `initial_state = "check"` (M-6)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.door import RejectCode
from paceline.core.errors import StallError
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase, WorkerPhase
from paceline.core.roles import EVALUATE
from paceline.core.simulation.setup import Setup
from paceline.core.simulation.simulator import Case, simulate
from paceline.core.simulation.world import World
from paceline.core.worker import stop_error

from support.duties import evaluated
from support.hand import Hand, alerts, messages, named
from support.hand_collective import Joint
from support.rank import Rank, of, reports
from support.words import hello

CHECK: dict[str, Any] = {"initial_state": "check"}
OTHER = b"x" * 16


def brought(hand: Hand, *digests: bytes | None) -> list[Any]:
    """All ranks have staged what they brought, and say its digest; the usual one where None is given."""
    effects: list[Any] = []
    if isinstance(hand, Joint):
        hand.uid()
    else:
        for rank in hand.co.cycle.participants:
            hand.ready(rank)
    for rank, digest in zip(hand.co.cycle.participants, digests, strict=True):
        effects += hand.ack(rank, outcome=m.Outcome.OBSERVER, digest=b"d" * 16 if digest is None else digest)
    return effects


def given(hand: Hand) -> None:
    """The donor has given the averager the version that it lacks."""
    opened = [effect for effect in hand.effects if isinstance(effect, fx.OpenRound)][-1]
    hand.feed(ev.RoundProgress(opened.key, opened.members[0][0], 8, True))


# --- the coordinator -------------------------------------------------------------------------------------------------


def test_nothing_is_sent_and_each_rank_says_the_digest_of_what_it_brings() -> None:
    """M-6: no source, no round, no contribution; when all digests agree every rank is a voter of version 0."""
    hand = Hand(3, **CHECK)
    assert [request.observer for request in messages(hand.effects, m.RequestParams)] == [True] * 3
    assert hand.co.cycle.source is None and hand.co.cycle.forming
    assert "digests" in str(hand.co.explain()[0])
    effects = brought(hand, None, None, None)

    kinds = {type(effect) for effect in hand.effects[: -len(effects)]}
    assert not kinds & {fx.OpenRound, fx.AdmitContribution}
    assert {(e.cycle, e.version, e.outcome) for e in messages(effects, m.Update)} == {(0, 0, m.Outcome.OBSERVER)}
    assert hand.co.voters == [0, 1, 2] and hand.co.run.phase == RunPhase.TRAINING


def test_the_averager_is_given_version_0_while_the_first_window_is_trained() -> None:
    """M-6, R-8, R-11: it keeps the last consensus, and has seen none; before it has one no cycle is armed."""
    hand = Hand(2, **CHECK)
    brought(hand, None, None)
    (order,) = messages(hand.effects, m.RequestState)
    assert (order.rank, order.joiner_rank) == (0, m.NO_RANK)
    for rank in (0, 1):
        assert hand.co.explain(rank)[0].code == "E02", "it trains"
        hand.step(rank, 3), hand.complete(rank)
        assert hand.co.explain(rank)[0].code == "E11", "it waits for the averager"
    assert not hand.co.cycle.pending
    given(hand)

    assert hand.co.cycle.pending and hand.co.cycle.number == 1
    hand.average()
    assert hand.co.cycle.version == 1


@pytest.mark.parametrize("make", [Hand, Joint])
def test_a_rank_that_brings_something_else_stops_the_run_and_is_shown(make: type[Hand]) -> None:
    """M-6: whatever the majority has; nobody is dropped, nothing is repeated, and who has which is told with a
    remedy."""
    hand = make(4, **CHECK)
    effects = brought(hand, None, OTHER, None, b"y" * 16)

    text = hand.co.run.text
    assert f"ranks 0, 2 have {(b'd' * 16).hex()}, rank 1 has {OTHER.hex()}, rank 3 has {(b'y' * 16).hex()}" in text
    assert "one seed or one file" in text and "initial_state = 'rank'" in text
    (alert,) = alerts(effects, "digest_mismatch")
    assert alert.critical and alert.text in text
    assert [stop.reason for stop in messages(effects, m.Shutdown)] == [m.SaveReason.CONSENSUS_MISMATCH] * 4
    assert not named(effects, "Died") and not messages(hand.effects, m.Update)
    assert not [effect for effect in effects if isinstance(effect, fx.AbortRound)], "none was opened"
    assert hand.co.cycle.phase == CyclePhase.STALLED and hand.co.cycle.attempt == 0
    assert named(effects, "PhaseChanged")[-1]["phase"] == "shutting_down"
    for rank in range(4):
        effects = hand.say(rank, m.Exiting, reason="done")
    assert effects[-1] == fx.Finish("failed", f"the run did not form: {alert.text}")


def test_nobody_is_judged_before_all_have_spoken() -> None:
    """M-6, C-12: who has which is shown of all ranks, not of the first two that differ."""
    hand = Hand(3, **CHECK)
    for rank in range(3):
        hand.ready(rank)
    hand.ack(0, outcome=m.Outcome.OBSERVER), hand.ack(1, outcome=m.Outcome.OBSERVER, digest=OTHER)
    hand.tick(2.5)
    assert hand.co.run.phase == RunPhase.FORMING and hand.co.cycle.pending
    hand.ack(2, outcome=m.Outcome.OBSERVER, digest=OTHER)
    assert f"ranks 1, 2 have {OTHER.hex()}, rank 0 has " in hand.co.run.text


def test_of_many_digests_a_few_are_shown() -> None:
    """M-6: where every rank has another one, a line for each tells no more."""
    hand = Hand(12, **CHECK)
    brought(hand, *(bytes([number]) * 16 for number in range(12)))
    assert "rank 7 has " in hand.co.run.text and "rank 8 has " not in hand.co.run.text
    assert "and 4 ranks still others" in hand.co.run.text


def test_a_collective_shares_no_state() -> None:
    """M-6, M-31: the session of formation has no source, and the acks of SyncNow(0) bring the digests, although the
    digests of a consensus are off in this flavour (V-4)."""
    hand = Joint(3, **CHECK)
    effects = brought(hand, None, None, None)
    assert [session.state_from for session in messages(hand.effects, m.NewSession)] == [m.NO_RANK] * 3
    assert messages(effects, m.Update) and hand.co.voters == [0, 1, 2]
    assert not messages(effects, m.RequestState), "no averager keeps anything"


@pytest.mark.parametrize("make", [Hand, Joint])
def test_who_says_no_digest_proves_nothing_and_holds_nobody_up(make: type[Hand]) -> None:
    """M-6, C-18, N-7: its session ends; the others form without it."""
    hand = make(3, min_ranks=2, **CHECK)
    if make is Joint:
        hand.uid()
    for rank in range(3):
        if make is Hand:
            hand.ready(rank)
    hand.ack(1, outcome=m.Outcome.OBSERVER, digest=None)
    assert hand.co.peers[1].phase == PeerPhase.DEAD and hand.co.violations == 1
    if make is Joint:
        hand.uid()
    for rank in (0, 2):
        hand.ack(rank, outcome=m.Outcome.OBSERVER, digest=b"d" * 16)
    assert hand.co.voters == [0, 2] and hand.co.run.phase == RunPhase.TRAINING


def test_what_is_missing_in_an_ack_is_told_by_its_first_fault() -> None:
    """M-6, N-3: without a copy there is nothing to name; and a state that is not complete needs its name too."""
    hand = Hand(3, **CHECK)
    hand.ack(0, outcome=m.Outcome.OBSERVER, digest=None)
    hand.ready(1)
    hand.ack(1, outcome=m.Outcome.OBSERVER, digest=None, state_complete=False)
    told = [alert.text for alert in alerts(hand.effects, "refused")]
    assert len(told) == 2 and "before there is a consensus" in told[0] and "without the digest" in told[1]


def test_a_death_while_forming_repeats_nothing_for_the_others() -> None:
    """M-6, C-21: there is no source that could be gone."""
    hand = Hand(3, **CHECK)
    hand.ready(1), hand.ready(2)
    hand.ack(1, outcome=m.Outcome.OBSERVER), hand.ack(2, outcome=m.Outcome.OBSERVER)
    hand.feed(ev.LinkLost(0, 1, "gone"))
    assert hand.co.voters == [1, 2] and hand.co.cycle.attempt == 0


def test_who_does_not_say_its_digest_in_time_is_left_out() -> None:
    """M-6: `formation_s` after the window closed; who has said it is not to blame."""
    hand = Hand(3, formation_s=20.0, min_ranks=2, **CHECK)
    for rank in (0, 2):
        hand.ready(rank), hand.ack(rank, outcome=m.Outcome.OBSERVER)
    hand.tick(21.0)
    assert hand.co.voters == [0, 2] and hand.co.peers[1].phase == PeerPhase.DEAD


def test_a_dead_rank_that_had_brought_something_else_is_not_compared() -> None:
    """M-6: it is not in the run."""
    hand = Hand(3, **CHECK)
    for rank in range(3):
        hand.ready(rank)
    hand.ack(0, outcome=m.Outcome.OBSERVER, digest=OTHER), hand.ack(1, outcome=m.Outcome.OBSERVER)
    hand.feed(ev.LinkLost(0, 1, "gone"))
    hand.ack(2, outcome=m.Outcome.OBSERVER)
    assert hand.co.voters == [1, 2]


def test_the_door_is_closed_while_a_run_that_did_not_form_waits_for_exits() -> None:
    """C-25: who comes now is told `closing`, and may try again at the next run."""
    hand = Hand(2, target_ranks=2, **CHECK)
    brought(hand, None, OTHER)
    assert hand.co.run.phase == RunPhase.SHUTTING_DOWN
    (refused,) = [e for e in hand.feed(ev.HelloReceived(9, hello(60))) if isinstance(e, fx.Refuse)]
    assert refused.reject.code == RejectCode.CLOSING


def test_a_restart_in_the_middle_asks_all_again() -> None:
    """M-43: attempt 0 of the next generation; digests said to the dead coordinator count no more."""
    hand = Hand(2, reconnect_window_s=60.0, **CHECK)
    hand.ready(0), hand.ack(0, outcome=m.Outcome.OBSERVER, digest=OTHER)
    claims = {rank: m.ResumeClaim(generation=1, incarnation=1, version=0, cycle=0, snapshot_cycle=0, shipped=0,
                                  step_count=0, control_seq=hand.co.peers[rank].control_seq,
                                  report_seq=hand.sequence.get(rank, 0)) for rank in (0, 1)}  # fmt: skip
    hand.co = Coordinator.restart(hand.co.config, hand.co.snapshot(), (), hand.now)
    for rank, claim in claims.items():
        hand.feed(ev.HelloReceived(70 + rank, hello(60, wanted_rank=rank, resume=claim)))
    resent = [message for e in hand.effects if isinstance(e, fx.Admit) for message in e.resend]
    asked = [message for message in resent + messages(hand.effects, m.RequestParams) if message.generation == 2]
    assert {(e.rank, e.attempt, e.observer) for e in asked if isinstance(e, m.RequestParams)} == {
        (0, 0, True), (1, 0, True),
    }  # fmt: skip
    for rank in (0, 1):
        hand.ready(rank, generation=2)
    for rank in (0, 1):
        hand.ack(rank, generation=2, outcome=m.Outcome.OBSERVER)
    assert hand.co.voters == [0, 1] and hand.co.run.phase == RunPhase.TRAINING


def test_a_run_that_forms_once_more_from_a_version_has_a_source() -> None:
    """M-45: what one rank holds nobody else has brought; the welcome says so to all."""
    hand = Hand(0, target_ranks=2, **CHECK)
    claim = m.ResumeClaim(generation=1, incarnation=1, version=5, cycle=7, snapshot_cycle=0, shipped=0, step_count=9,
                          control_seq=90, report_seq=90, global_step=50)  # fmt: skip
    for rank, held in ((0, 5), (1, 3)):
        known = m.ResumeClaim(**{**{f: getattr(claim, f) for f in claim.__slots__ if f != "__weakref__"},
                                 "version": held})  # fmt: skip
        hand.feed(ev.HelloReceived(70 + rank, hello(60, wanted_rank=rank, resume=known)))
    welcomes = [effect.welcome for effect in hand.effects if isinstance(effect, fx.Admit)]
    assert [welcome.config["initial_state"] for welcome in welcomes] == ["rank", "rank"]
    assert hand.co.cycle.source == 0 and not hand.co.cycle.checking
    assert [request.observer for request in messages(hand.effects, m.RequestParams)] == [False, True]
    hand.average(outcome=m.Outcome.OBSERVER)
    assert hand.co.cycle.version == 5 and not hand.co.joins.consensus_lost


# --- the worker ------------------------------------------------------------------------------------------------------


def welcome(initial_state: str) -> m.Welcome:
    return m.Welcome(rank=1, incarnation=2, generation=1, status=m.WelcomeStatus.FORMING, control_seq=0, report_seq=0,
                     config={"initial_state": initial_state})  # fmt: skip


def test_a_worker_stages_its_own_copy() -> None:
    """M-6: the whole state is copied, nothing is shipped, and the ack has its digest."""
    rank = Rank(checks=True)
    (order,) = of(rank.request(0, observer=True), fx.TakeSnapshot)
    assert (order.check, order.state, order.shipped, order.put_back) == (True, True, 0, False)
    rank.copied(0)
    (ack,) = reports(rank.feed(ev.ConsensusStaged(cycle=0, attempt=0, outcome=m.Outcome.OBSERVER, total_steps=0,
                                                  digest=OTHER)), m.SyncAck)  # fmt: skip
    assert (ack.digest, ack.shipped_steps, ack.outcome) == (OTHER, 0, m.Outcome.OBSERVER)
    rank.update(0, outcome=m.Outcome.OBSERVER)
    assert rank.worker.phase == WorkerPhase.WAITING
    (later,) = of(rank.request(1), fx.TakeSnapshot)
    assert not later.check and not later.state


@pytest.mark.parametrize("initial_state", ["rank", "check"])
def test_a_new_life_takes_the_rule_of_its_own_welcome(initial_state: str) -> None:
    """M-45: a run that forms once more may send a state although its first formation did not, and the other way."""
    rank = Rank(checks=initial_state == "rank", reconnect_window_s=60.0)
    rank.feed(ev.LinkLost(cause="gone"))
    rank.feed(ev.Received(welcome(initial_state)))
    rank.number = 0
    (order,) = of(rank.control(m.RequestParams, cycle=0, attempt=0, observer=True, incarnation=2), fx.TakeSnapshot)
    assert order.check is (initial_state == "check")


def test_who_has_stepped_before_brings_what_it_stands_on() -> None:
    """M-45, R-10: the steps since then count nowhere, so what they led to is nobody's initial state."""
    rank = Rank(WorkerPhase.TRAINING, checks=True, reconnect_window_s=60.0)
    rank.step(2)
    rank.feed(ev.LinkLost(cause="gone"))
    rank.feed(ev.Received(welcome("check")))
    rank.number = 0
    (order,) = of(rank.control(m.RequestParams, cycle=0, attempt=0, observer=True, incarnation=2), fx.TakeSnapshot)
    assert order.check and order.put_back


def test_a_worker_in_a_collective_is_asked_for_the_digest_of_cycle_0_only() -> None:
    """M-6, M-31."""
    rank = Rank(checks=True, collective=True)
    rank.session()
    (call,) = of(rank.sync(0), fx.RunCollective)
    assert call.check
    done = ev.CollectiveDone(cycle=0, attempt=0, total_steps=0, digest=OTHER)
    assert reports(rank.feed(done), m.SyncAck)[0].digest == OTHER
    rank.update(0, outcome=m.Outcome.OBSERVER, merged=0)
    assert not of(rank.sync(1), fx.RunCollective)[0].check


@pytest.mark.parametrize("had", [True, False], ids=["with a consensus", "without one"])
@pytest.mark.parametrize("reason", list(m.SaveReason))
def test_a_rank_without_a_run_does_not_end_as_if_it_had_trained(reason: m.SaveReason, had: bool) -> None:
    """C-25: only a graceful shutdown is a good end, and that for who has had a consensus (M-23)."""
    rank = Rank(checks=True)
    if had:
        rank.request(0, observer=True), rank.copied(0), rank.staged(0, outcome=m.Outcome.OBSERVER)
        rank.update(0, outcome=m.Outcome.OBSERVER)
    orders = rank.control(m.Shutdown, reason=reason)
    (stop,) = of(orders, fx.Stop)
    assert reports(orders, m.Exiting) and rank.worker.phase == WorkerPhase.STOPPED
    error = stop_error(stop)
    if reason != m.SaveReason.GRACEFUL:
        assert isinstance(error, StallError) and reason.name.lower() in str(error)
    elif had:
        assert stop.status == "ok" and error is None
    else:
        assert isinstance(error, StallError) and "this rank came too late" in str(error)


# --- runs that end before their first average ------------------------------------------------------------------------

STOP = ev.OperatorRequest(ev.Operator.STOP)


def begun(**knobs: Any) -> Hand:
    """A run that trains from what two ranks have brought, and keeps its consensus."""
    hand = Hand(2, **{**CHECK, "save_path": "run", "reduce_ceiling_s": 60.0, **knobs})
    brought(hand, None, None)
    return hand


def ended(hand: Hand) -> list[str]:
    """What of the end has been ordered so far."""
    return [type(each).__name__ for each in hand.effects if isinstance(each, fx.SaveConsensus)] + [
        type(each).__name__ for each in messages(hand.effects, m.Shutdown)[:1]
    ]


@pytest.mark.parametrize("callbacks", [(), (EVALUATE,)], ids=["", "with a final evaluation"])
def test_a_run_without_an_epoch_is_given_what_it_saves(callbacks: tuple[str, ...]) -> None:
    """M-6, K-4, M-44: the averager has seen nothing of what all have brought; the end waits until a rank has given it,
    or there would be nothing to write."""
    hand = begun(num_epochs=0, callbacks=callbacks)
    assert ended(hand) == [] and hand.co.run.phase == RunPhase.TRAINING and hand.co.explain()
    given(hand)
    for order in messages(hand.effects, m.ExecuteEvalCallback):
        evaluated(hand, order)
    assert ended(hand) == ["SaveConsensus", "Shutdown"]


def test_a_run_that_is_stopped_before_its_first_step_saves_what_it_began_with() -> None:
    """M-54, K-4: it ends as soon as there is something to save."""
    hand = begun()
    hand.feed(STOP)
    assert ended(hand) == []
    given(hand)
    assert ended(hand) == ["SaveConsensus", "Shutdown"]


def test_a_final_evaluation_outlasts_no_consensus_that_is_lost_meanwhile() -> None:
    """M-44, K-17: a restart in the final evaluation loses what the averager held; its result alone ends nothing."""
    hand = begun(num_epochs=0, callbacks=(EVALUATE,))
    given(hand)
    (order,) = messages(hand.effects, m.ExecuteEvalCallback)
    hand.co.joins.unsent()
    evaluated(hand, order)
    assert ended(hand) == [] and hand.co.run.phase == RunPhase.FINAL_EVAL
    given(hand)
    assert ended(hand) == ["SaveConsensus", "Shutdown"]


def test_a_donor_that_never_answers_does_not_keep_a_run_from_its_end() -> None:
    """M-16: it has as long as an averager has for a round, and that instant itself; then the run ends with an error
    instead of a file."""
    hand = begun(num_epochs=0)
    hand.tick(60.0)
    assert ended(hand) == []
    assert hand.co.poll_timeout() == math.nextafter(hand.now, math.inf), "it is not left to the next beacon"
    hand.tick(1.0)
    assert ended(hand) == ["SaveConsensus", "Shutdown"]


def test_a_donor_has_its_time_anew_after_an_absence_of_the_coordinator() -> None:
    """M-9, K-4: it may have given the consensus to nobody who listened."""
    hand = begun(num_epochs=0)
    hand.now += 500.0
    hand.feed(ev.Tick())
    assert ended(hand) == []
    hand.tick(60.0)
    assert ended(hand) == []
    hand.tick(0.5)
    assert ended(hand) == ["SaveConsensus", "Shutdown"]


def test_a_run_that_saves_nothing_waits_for_nothing() -> None:
    """M-54: at once."""
    assert ended(begun(num_epochs=0, save_path=None)) == ["Shutdown"]


def test_since_when_the_averager_lacks_what_all_brought() -> None:
    """O-4: from the end of the formation on, and not from the beginning of time."""
    hand = begun(num_epochs=0)
    assert hand.co.joins.lost_at == hand.now == hand.co.cycle.idle_since


# --- whole runs ------------------------------------------------------------------------------------------------------


def dullest(world: World) -> World:
    """To its end, without a fault."""
    while world.enabled():
        world.do(world.enabled()[0])
    return world


@pytest.mark.parametrize("averager", ["star", "collective"])
@pytest.mark.parametrize("same", [True, False])
def test_a_cohort_begins_from_what_all_bring_or_not_at_all(averager: str, same: bool) -> None:
    """M-6, in both flavours, with every invariant checked on the way."""
    world = World(Setup(ranks=3, samples=12, knobs={**CHECK, "averager": averager}))
    if not same:
        world.processes[1].theta = world.ghost.base[1] = 9.0
    dullest(world)
    assert world.finish is not None and world.finished is same
    assert world.processes[1].ended is not None
    assert world.processes[1].ended.status == ("ok" if same else "unformed")
    if not same:
        assert "rank 1 has" in world.finish.text and len(world.ghost.trained) == 0


@pytest.mark.parametrize("averager", ["star", "collective"])
@pytest.mark.parametrize("seed", [10, 16])
def test_storms_over_a_cohort_that_checks(averager: str, seed: int) -> None:
    """M-6 under deaths, lost links, joins and restarts; in these storms all of them come."""
    outcome = simulate(Case(ranks=4, seed=seed, faults="storm", knobs=(("averager", averager), *CHECK.items())))
    assert outcome.violation is None
    for mark in ("a rank died", "a rank was taken back", "a dead rank came back", "a coordinator came back"):
        assert outcome.marks[mark]
