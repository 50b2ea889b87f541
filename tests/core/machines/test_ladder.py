"""The escalation ladder, step by step (M-10 to M-16): clocks, deadlines, what is said, and who is excluded."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import ladder
from paceline.core import messages as m
from paceline.core.detector import Learned, Limits
from paceline.core.ladder import Stage, learned
from paceline.core.phases import CyclePhase, PeerPhase
from paceline.core.simulation.action import act

from support import duties
from support.climbing import owes_snapshot, said, ship
from support.cohort import Cohort
from support.hand import Hand, messages, named, pending
from support.rank import Rank, reports
from support.runs import CLIMB

# --- the deadline (M-11) ---------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.0, 400.0), min_size=3, max_size=40), st.floats(0.5, 10.0))
def test_the_deadline_is_learned_from_the_last_durations(durations: list[float], k: float) -> None:
    """M-11: clamp(median + k * MAD, floor, ceiling / 2) over the last twenty; against the statistics module."""
    hand = Hand(1, suspect_k=k)
    peer = hand.co.peers[0]
    for seconds in durations:
        peer.climb.remember(Stage.ACK, seconds)
    last = durations[-20:]
    middle = statistics.median(last)
    spread = statistics.median(abs(x - middle) for x in last)
    known = learned(hand.co, peer, Stage.ACK)

    assert known.seconds == pytest.approx(max(5.0, min(middle + k * spread, 150.0))) and known.count == len(last)


def test_with_too_little_known_the_deadline_is_the_initial_one() -> None:
    """M-11: 60 s below three durations; 1800 s before the first step; both scaled, the ceiling halves the rest."""
    hand = Hand(1, time_scale=2.0)
    peer = hand.co.peers[0]
    assert learned(hand.co, peer, Stage.SNAPSHOT).seconds == 120.0
    assert learned(hand.co, peer, Stage.STEP).seconds == 3600.0
    peer.total_steps = 1
    peer.climb.durations[Stage.STEP].extend([1e6] * 3)
    assert learned(hand.co, peer, Stage.STEP).seconds == hand.co.config.window_ceiling / 2


@settings(max_examples=50)
@given(st.lists(st.floats(0.5, 30.0), min_size=3, max_size=8), st.floats(0.0, 1.0))
def test_a_rank_within_its_habits_is_never_suspected(habits: list[float], part: float) -> None:
    """I35: whatever it is used to, as long as it takes no longer than it has learned."""
    hand = owes_snapshot()
    peer = hand.co.peers[0]
    peer.climb.durations[Stage.SNAPSHOT].extend(habits)
    effects = hand.tick(part * learned(hand.co, peer, Stage.SNAPSHOT).seconds)
    assert not said(effects)


class Counting:
    """A detector that is hasty, and counts how often it is asked."""

    claims = ()

    def __init__(self) -> None:
        self.asked = 0

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        self.asked += 1
        return Learned(0.0, len(durations))


def test_the_detector_is_asked_when_the_shortest_deadline_there_is_has_passed() -> None:
    """M-11, M-12, C-4: it is exceeded strictly, so at that very instant nothing has to be learned yet."""
    hand, detector = owes_snapshot(), Counting()
    hand.co.policies = attrs.evolve(hand.co.policies, detector=detector)
    hand.tick(hand.co.config.suspect_floor_s)
    assert detector.asked == 0
    due = hand.co.poll_timeout()
    assert due is not None
    assert said(hand.tick(due - hand.now)) == [("Suspect", 0, "snapshot")] and detector.asked > 0


def test_who_comes_to_the_shortest_deadline_now_is_not_forgotten_for_another_that_is_late() -> None:
    """M-12: the next instant is that of rank 1; only of rank 0, which is late, something has to be learned."""
    hand, detector = pending(samples=400, suspect_initial_s=10.0), Counting()
    hand.co.policies = attrs.evolve(hand.co.policies, detector=detector)
    for rank, waits in ((0, 6.0), (1, hand.co.config.suspect_floor_s)):
        hand.co.peers[rank].climb.evidence_at = hand.now - waits
    assert ladder.next_due(hand.co) == math.nextafter(hand.now, math.inf) and detector.asked == 1


# --- the steps (M-12, M-13) ------------------------------------------------------------------------------------------


def test_suspect_then_three_nudges_and_nothing_else_below_the_ceiling() -> None:
    """M-12, M-13, I31: at L, 2L, 3L and 4L, each strictly after its instant; the request is the same one, so one that
    was lost on the way does not wait for the ceiling (17.2 #8)."""
    hand = owes_snapshot()
    start = hand.now
    times = {}
    while hand.now < start + 290:
        for what in said(hand.tick(0.5)):
            times.setdefault(what[0], []).append(hand.now - start)
    assert [round(t) for t in times["Suspect"]] == [10] and [round(t) for t in times["Nudge"]] == [20, 30, 40]
    assert min(times["Suspect"]) > 10 or times["Suspect"] == [10.5]
    requests = messages(hand.effects, m.RequestParams, 0)
    assert [(r.cycle, r.attempt, r.observer) for r in requests[-4:]] == [(1, 0, False)] * 4
    assert hand.co.voters == [0, 1] and hand.co.cycle.phase == CyclePhase.PENDING
    assert "E15" in [reason.code for reason in hand.co.explain(0)]


def test_each_stage_has_a_clock_of_its_own() -> None:
    """M-10: snapshot, upload, ack; between the last contribution and RoundReduced the averager owes, not a rank."""
    hand = owes_snapshot(max_nudges=0)
    assert said(hand.tick(11)) == [("Suspect", 0, "snapshot")]
    hand.ready(0)
    assert said(hand.tick(11)) == [("Suspect", 0, "upload")]
    hand.feed(ev.RoundProgress(hand.co.cycle.key, 0, 50, True))
    assert said(hand.tick(100)) == []
    hand.reduce()
    hand.ack(1)
    assert said(hand.tick(11)) == [("Suspect", 0, "ack")]
    hand.ack(0)
    assert hand.co.cycle.version == 1
    assert [len(d) for d in hand.co.peers[0].climb.durations[:3]] == [2, 1, 2], "formation counts too"


def test_an_upload_that_overtakes_the_report_of_its_copy_is_owed_no_more() -> None:
    """M-10, M-14, I35: bulk and reports are two connections. Whose last block came first waits for others, and is
    neither suspected nor excluded; in the next attempt both are owed again."""
    hand = owes_snapshot(laggards="exclude")
    hand.feed(ev.RoundProgress(hand.co.cycle.key, 0, 50, True))
    hand.ready(0)
    assert hand.co.peers[0].climb.stage is None and said(hand.tick(200)) == []
    hand.feed(ev.RoundAborted(hand.co.cycle.key, 0, "again"))
    assert hand.co.cycle.attempt == 1
    hand.ready(0)
    assert hand.co.peers[0].climb.stage == Stage.UPLOAD


def test_moving_bytes_are_evidence() -> None:
    """M-10, M-15: an upload that goes on is not suspected, however long it takes."""
    hand = owes_snapshot()
    hand.ready(0)
    for step in range(1, 40):
        assert not said(hand.tick(9))
        hand.feed(ev.RoundProgress(hand.co.cycle.key, 0, step, False))
    assert hand.co.cycle.pending


def test_the_one_batch_it_still_finishes_is_evidence_once() -> None:
    """M-10: a rank that goes on training without ever giving its copy is not excused by it."""
    hand = pending(samples=400, suspect_initial_s=10.0, policy="async", max_nudges=0)
    ship(hand, 1)
    hand.tick(6)
    hand.step(0)
    assert not said(hand.tick(6))
    hand.step(0)
    assert said(hand.tick(6)) == [("Suspect", 0, "snapshot")]


def test_a_step_that_others_wait_for_is_suspected_and_not_nudged() -> None:
    """M-16, M-13: stage step; nothing is suspected while nobody waits."""
    hand = Hand(2, samples=400, suspect_initial_s=10.0).form()
    hand.step(0, 1), hand.step(1, 1)
    assert not said(hand.tick(100)), "both train"
    assert not said(hand.step(1, 2) + hand.complete(1) + hand.tick(9)), "nobody has waited long for it"
    assert said(hand.tick(100)) == [("Suspect", 0, "step")]
    assert [reason.code for reason in hand.co.explain(0)] == ["E14"]


@pytest.mark.parametrize("answers", [True, False])
def test_the_clocks_stand_still_during_a_duty_for_the_role_limit_at_most(answers: bool) -> None:
    """M-11: an evaluation is time spent for all; the answer, or the limit, lets the clock of the stage go on."""
    run = duties.hand(suspect_initial_s=10.0, role_limit_s=50.0, max_nudges=0)
    duties.armed(run, duties.EVAL)
    run.average()
    [order] = messages(run.effects, m.ExecuteEvalCallback)
    assert order.target_rank == 0
    duties.arm(run)
    ship(run, 1)
    assert not said(run.tick(9)) and not said(run.tick(30)), "rank 0 evaluates"
    if answers:
        duties.evaluated(run, order)
        assert not said(run.tick(9))
    else:
        assert not said(run.tick(12)), "the limit has passed"
        assert not said(run.tick(8))
    assert said(run.tick(3)) == [("Suspect", 0, "snapshot")]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0.1, 30.0), st.booleans()), max_size=12))
def test_heartbeats_move_no_step(pauses: list[tuple[float, bool]]) -> None:
    """I33: the same steps at the same times, with more or fewer heartbeats."""
    runs = []
    for chatty in (False, True):
        hand = owes_snapshot(laggards="exclude")
        seen: list[Any] = []
        for pause, extra in pauses:
            effects = hand.tick(pause)
            if chatty and extra:
                effects += hand.say(0, m.Heartbeat, step_count=9, state="x")
            seen += [(round(hand.now, 6), *what) for what in said(effects)]
        runs.append(seen)
    assert runs[0] == runs[1]


def test_a_coordinator_that_was_away_suspects_nobody_for_it() -> None:
    """M-9: every clock of the ladder starts anew."""
    hand = owes_snapshot()
    hand.tick(5)
    hand.now += 500
    assert not said(hand.feed(ev.Tick()))
    assert not said(hand.tick(9)) and said(hand.tick(2)) == [("Suspect", 0, "snapshot")]


def test_the_absence_of_the_coordinator_is_nobodys_habit() -> None:
    """M-9, M-11: a stage that was under way is remembered from the return on, or deadlines would be learned from it."""
    hand = owes_snapshot()
    hand.now += 500
    hand.feed(ev.Tick())
    hand.tick(2)
    ship(hand, 0)

    assert hand.co.peers[0].climb.durations[Stage.SNAPSHOT][-1] == pytest.approx(2.0)


def test_any_number_of_nudges_gives_one_copy() -> None:
    """I34, W-10: the same answer each time, and the same state in the end."""
    once, often = Rank(), Rank()
    for rank, times in ((once, 1), (often, 5)):
        rank.cycle(0, observer=True, outcome=m.Outcome.OBSERVER)
        rank.control(m.StartEpoch, cycle=0, plan=m.Plan(plan_id=7, epoch=0, offset=0, size=8))
        rank.step(3)
        for _ in range(times):
            rank.request(1)
        rank.copied(1)
        for _ in range(times):
            rank.request(1)
        rank.staged(1)
        for _ in range(times):
            rank.request(1)
    assert [sum(isinstance(o, fx.TakeSnapshot) and o.cycle == 1 for o in r.orders) for r in (once, often)] == [1, 1]
    assert {r.shipped_steps for r in reports(often.orders, m.SnapshotReady) if r.cycle == 1} == {3}
    once.update(1), often.update(1)
    assert (once.worker.steps_since_avg, once.worker.phase) == (often.worker.steps_since_avg, often.worker.phase)


# --- exclusion (M-14) ------------------------------------------------------------------------------------------------


def excluded(**knobs: Any) -> Hand:
    """Rank 0 of three was excluded from cycle 1, which then finished without it."""
    hand = pending(3, samples=400, suspect_initial_s=10.0, laggards="exclude", **knobs)
    ship(hand, 1, 2)
    hand.tick(31)
    assert hand.co.peers[0].phase == PeerPhase.LAGGING
    return hand


def test_who_is_excluded_leaves_the_gates_and_its_picks_return() -> None:
    """M-14, C-21, I27: RemoveFromRound, steps 0, void basis; its life and its process stay."""
    hand = excluded()
    peer = hand.co.peers[0]
    assert hand.co.alive == [0, 1, 2] and hand.co.voters == [1, 2]
    assert (peer.steps, peer.void_before) == (0, 2) and not hand.co.book.holdings(0).plans
    assert [e.rank for e in hand.effects if isinstance(e, fx.RemoveFromRound)] == [0]
    assert [reason.code for reason in hand.co.explain(0)] == ["E16"]
    hand.ready(0)
    assert hand.co.fenced[0, "SnapshotReady"] == 1
    hand.reduce(accepted=(1, 2))
    hand.ack(1), hand.ack(2)
    assert hand.co.cycle.version == 1 and hand.co.cycle.global_step == 6


def test_the_last_one_owing_finishes_the_cycle_in_the_same_pass() -> None:
    """C-21, I27."""
    hand = pending(2, samples=400, suspect_initial_s=10.0, laggards="exclude")
    ship(hand, 0, 1)
    hand.reduce(refused=(0,))
    hand.ack(1)
    effects = hand.tick(31)
    assert said(effects, "Excluded") == [("Excluded", 0, "ack")] and hand.co.cycle.version == 1


def test_who_is_in_the_consensus_is_not_excluded() -> None:
    """M-14: only who has not contributed; its steps are merged, so its ack is waited for."""
    hand = pending(2, samples=400, suspect_initial_s=10.0, laggards="exclude")
    ship(hand, 0, 1)
    hand.reduce()
    hand.ack(1)
    assert not said(hand.tick(200), "Excluded")


def test_the_only_mover_is_not_excluded() -> None:
    """M-14: somebody must be left to average."""
    hand = Hand(2, samples=400, suspect_initial_s=10.0, laggards="exclude", policy="async").form()
    hand.step(0, 1)
    hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    assert hand.co.cycle.pending
    assert "0" not in str(said(hand.tick(200), "Excluded")) and 0 in hand.co.voters


@pytest.mark.parametrize("others", [1, 0])
def test_a_mover_that_is_in_the_consensus_and_dead_is_enough_for_those_who_are_left(others: int) -> None:
    """M-14: another mover was accepted already, so there is an average without the one that hangs; the last voter is
    not excluded all the same, because nobody could go on."""
    hand = Hand(2 + others, samples=400, suspect_initial_s=10.0, laggards="exclude", policy="async").form()
    hand.step(0, 1), hand.step(1, 1)
    hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    for rank in range(2 + others):
        hand.ready(rank)
    hand.reduce(refused=(1,), accepted=(0,))
    hand.feed(ev.LinkLost(0, 1, "gone"))
    if others:
        hand.ack(2)
    effects = hand.tick(32)
    assert said(effects, "Excluded") == [("Excluded", 1, "ack")] * others


def test_a_rank_that_steps_too_slowly_is_excluded_from_its_window() -> None:
    """M-16: as above, while nothing is pending; the others go on."""
    hand = Hand(3, samples=400, suspect_initial_s=10.0, laggards="exclude").form()
    hand.step(0, 1)
    for rank in (1, 2):
        hand.step(rank, 3)
        hand.complete(rank)
    effects = hand.tick(31)
    assert said(effects, "Excluded") == [("Excluded", 0, "step")]
    assert hand.co.cycle.pending and hand.co.cycle.members == (1, 2)


@pytest.mark.parametrize("sign", ["batch", "control"])
def test_a_lagging_rank_comes_back_as_an_observer(sign: str) -> None:
    """M-14, M-25, I35: its training thread shows itself, it observes the next cycle, and votes again."""
    hand = excluded()
    hand.reduce(accepted=(1, 2))
    hand.ack(1), hand.ack(2)
    peer = hand.co.peers[0]
    hand.say(0, m.Heartbeat, step_count=0, state="x")
    assert not peer.back, "a heartbeat that has handled nothing new is no sign"
    if sign == "batch":
        hand.say(0, m.Batch, cycle=0, plan_id=1, step_count=4, samples=2, batch_ms=1.0, data_ms=0.0)
    else:
        hand.say(0, m.Heartbeat, step_count=0, state="x", control_seq=peer.handled_seq + 1)
    assert peer.back and peer.phase == PeerPhase.LAGGING and peer.steps == 0
    for rank in (1, 2):
        hand.step(rank, 3)
        hand.complete(rank)
    assert hand.co.cycle.observers == (0,)
    effects = hand.average()
    update = messages(effects, m.Update, 0)[0]
    assert (update.outcome, update.version) == (m.Outcome.OBSERVER, 2) and hand.co.voters == [0, 1, 2]
    assert hand.co.balancer.counts[0] == hand.co.balancer.anchor


def test_shipped_steps_of_an_excluded_rank_wait_in_limbo() -> None:
    """M-14, M-19: its upload may have completed meanwhile; then they are covered once, in its name. D-12: and it was
    finite, which ends a row of refusals."""
    hand = pending(3, samples=400, suspect_initial_s=10.0, laggards="exclude")
    hand.co.peers[0].refusals_in_row = hand.co.peers[1].refusals_in_row = 2
    hand.ready(0)
    ship(hand, 1, 2)
    assert said(hand.tick(31), "Excluded") == [("Excluded", 0, "upload")]
    hand.reduce(accepted=(0, 1, 2))
    effects = hand.ack(1) + hand.ack(2)
    assert named(effects, "Cycle")[0]["merged"] == {"0": 3, "1": 3, "2": 3} and hand.co.book.replayed == 0
    assert [hand.co.peers[rank].refusals_in_row for rank in range(3)] == [0, 0, 0]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.sampled_from(["cadence", "async"]), st.integers(80, 240))
def test_a_rank_that_hangs_for_a_while_is_a_voter_again(rank: int, policy: str, when: int) -> None:
    """I35, I31 with real workers: whoever is excluded comes back and is promoted; nobody dies, nothing is lost."""
    cohort = Cohort(ranks=4, samples=400, num_epochs=3, policy=policy, laggards="exclude", stateful=True, **CLIMB)
    cohort.step_s = 0.04  # so that the others are not done before the hang is over
    actions = iter(range(10**6))
    cohort.run_until(lambda: next(actions) >= when)
    cohort.hung[rank] = cohort.now + 14.0
    cohort.do(act("hang", rank))
    fair = random.Random(when)  # the dullest schedule would starve the highest rank
    cohort.run(fair.randbytes(30_000))

    assert cohort.finish is not None and cohort.finish.status == "ok" and not cohort.events("Died")
    assert len(cohort.events("Promoted")) == 4 + len(cohort.events("Excluded"))


def epoch_begins(**knobs: Any) -> Hand:
    """Rank 0 holds the roles and has just been given its first plan of epoch 1; rank 1 has trained its own."""
    run = duties.hand(samples=24, num_epochs=3, suspect_floor_s=10.0, role_limit_s=50.0, **knobs)
    run.window(), run.window()
    assert run.plan(0).epoch == 1
    run.step(1, 3), run.complete(1)
    return run


@pytest.mark.parametrize("answers", [True, False])
def test_the_clocks_stand_still_in_the_epoch_callback(answers: bool) -> None:
    """M-11, W-6: the holder calls it before its first step of an epoch, and nobody orders it, so the plan tells."""
    run = epoch_begins()
    assert not said(run.tick(45)), "rank 0 is in the callback"
    assert [(reason.code, reason.what) for reason in run.co.explain(0)] == [("E21", "is in the epoch callback")]
    if answers:
        run.say(0, m.EpochFnElapsed, epoch=1, elapsed_ms=45000.0)
        assert not said(run.tick(9))
    else:
        assert not said(run.tick(6)), "the limit has passed"
        assert run.co.roles.holder("epoch") == 0, "and the callback stays where it is"
        assert not said(run.tick(8))
    assert said(run.tick(3)) == [("Suspect", 0, "step")]


def test_who_steps_is_in_no_callback_and_who_holds_no_role_is_judged() -> None:
    """M-11: a rank that did not call it, because it had begun the epoch under another holder, is not excused."""
    run = epoch_begins()
    run.now += 1.0
    run.step(0)
    assert run.co.actions.under_way(0) is None
    assert not said(run.tick(9)) and said(run.tick(2)) == [("Suspect", 0, "step")]

    other = duties.hand(samples=24, num_epochs=3, suspect_floor_s=10.0, role_limit_s=50.0)
    other.window(), other.window()
    other.step(0, 3), other.complete(0)
    assert said(other.tick(11)) == [("Suspect", 1, "step")]


def test_one_epoch_is_one_callback() -> None:
    """M-11: the second chunk of an epoch excuses nobody; nor does one that another rank has called already."""
    run = duties.hand(samples=400, suspect_initial_s=10.0, role_limit_s=50.0)
    run.say(0, m.EpochFnElapsed, epoch=0, elapsed_ms=1.0)
    run.window()
    run.step(1, 3), run.complete(1)
    assert said(run.tick(11)) == [("Suspect", 0, "step")]
    assert not run.co.actions.duties


def test_a_death_in_the_epoch_callback_passes_nothing_on() -> None:
    """M-11, M-34: the new holder counts the epoch it is in as fired."""
    run = epoch_begins()
    run.feed(ev.LinkLost(0, 1, "reset"))
    assert run.co.roles.holder("epoch") == 1
    assert not run.co.actions.duties
