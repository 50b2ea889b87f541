"""Faults that users of comparable systems have met: sleeping hosts, shutdown races; ids are in the docstrings.

See `test_field_cases.py`. Where a case is about seconds, real workers live in virtual time (`support/timed.py`).
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import PeerPhase, RunPhase, WorkerPhase

from support.cohort import Cohort
from support.field import QUICK, pass_time
from support.hand import Hand, alerts, messages, named, pending
from support.messages import any_of, instances_of
from support.rank import Rank, of, reports
from support.timed import Timed
from support.words import hello

SLEEP_S = 519.0

# --- clocks and pauses (C12) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grace_s", [0.0, 30.0])
@pytest.mark.parametrize("asleep_at", [5.25, 4.0])
def test_a_whole_host_that_slept_blames_nobody(asleep_at: float, grace_s: float) -> None:
    """F85 (a), M-9, W-22: coordinator and ranks wake up together, in a window or in the middle of an average. Nobody
    has died, stalled or lost its link, and the run goes on as if there had been no night."""
    run = Timed((0.5,), samples=120, num_epochs=1, max_anchor=4, link_grace_s=grace_s, **QUICK)
    run.until_second(asleep_at)
    assert run.cohort.co.cycle.pending is (asleep_at == 4.0)
    run.clockwork.now += SLEEP_S
    assert run.run().status == "ok"

    told = {effect.name for _, effect in run.told if isinstance(effect, fx.Emit)}
    assert not told & {"Died", "Stalled", "Suspect", "Detached", "Joined", "Aborted"} and run.cohort.co.deaths == 0
    assert run.cohort.co.cycle.global_step == run.cohort.co.book.covered == 60
    assert SLEEP_S < run.now < SLEEP_S + 60.0


def test_a_rank_whose_host_slept_is_dead_and_comes_back_as_a_new_one() -> None:
    """F85 (b), M-17, W-20, W-21: the others were awake. Dead after 5 s; on waking it is fenced, and trains again under
    its next incarnation."""
    run = Timed((5.0,), samples=300, num_epochs=1, max_anchor=4, heartbeat_s=1.6, beacon_s=1.6, **QUICK)
    co, worker = run.cohort.co, run.cohort.seats[1].worker
    run.until_second(30.25)
    run.strike("pause", 1)
    run.strike_at(30.25 + SLEEP_S, "resume", 1)
    run.until(lambda: run.events("Joined"))
    assert [facts["rank"] for _, facts in run.events("Died")] == [1] and run.events("Died")[0][0] < 37.0
    assert SLEEP_S < run.events("Joined")[0][0] - 30.25 < SLEEP_S + 5.0
    assert co.peers[1].incarnation == 2 and co.deaths == 1

    run.until(lambda: run.when(m.Batch, rank=1, incarnation=2))
    assert run.cohort.seats[1].worker is worker and worker.version == co.cycle.version
    assert run.run().status == "ok" and co.book.covered == co.cycle.global_step == 150


@pytest.mark.parametrize("window_s", [0.0, 600.0])
def test_a_rank_whose_coordinator_slept_looks_for_it_up_to_its_limit(window_s: float) -> None:
    """F85 (c), W-22, W-21: the rank is awake, and hears nothing. It saves and stops, or dials until it is answered."""
    rank = Rank(WorkerPhase.TRAINING, staleness_s=5.0, reconnect_window_s=window_s)
    orders = rank.pass_time(5.1)
    assert [stop.status for stop in of(orders, fx.Stop)] == ([] if window_s else ["coordinator_lost"])
    if not window_s:
        assert rank.worker.poll_timeout() is None
        return
    while rank.now < SLEEP_S:
        [dial] = of(orders, fx.Dial)
        orders = rank.pass_time(dial.after_s)
        orders += rank.feed(ev.LinkLost(cause="nobody answers"))
    assert not of(rank.orders, fx.Stop) and rank.worker.claim() is not None


@pytest.mark.parametrize("phase", ["idle", "pending"])
def test_a_coordinator_that_slept_takes_its_ranks_back(phase: str) -> None:
    """F85 (c), M-9, M-17, M-42: on waking it finds the ends of both links and both ranks at the door. It does not act
    on what it saw 519 s ago: nobody is dead or stalled, both are taken back, and the average goes on."""
    known: dict[str, Any] = {"samples": 400, "link_grace_s": 30.0, **QUICK}
    hand = pending(**known) if phase == "pending" else Hand(**known).form()
    co, second = hand.co, hand.co.cycle.number
    hand.now += SLEEP_S
    effects = [each for rank in (0, 1) for each in hand.feed(ev.LinkLost(rank, 1, "closed by the rank", rank))]
    for rank in (0, 1):
        peer = co.peers[rank]
        claim = m.ResumeClaim(
            generation=1, incarnation=1, version=co.cycle.version, cycle=co.cycle.finished, snapshot_cycle=0, shipped=0,
            step_count=hand.counted.get(rank, 0), control_seq=peer.control_seq, report_seq=peer.report_seq,
        )  # fmt: skip
        effects += hand.feed(ev.HelloReceived(70 + rank, hello(400, wanted_rank=rank, resume=claim)))
    effects += hand.feed(ev.Tick())
    assert [(admit.rank, admit.incarnation) for admit in of(effects, fx.Admit)] == [(0, 1), (1, 1)]
    assert not named(effects, "Died") and not named(effects, "Stalled") and not named(effects, "Suspect")
    assert co.alive == co.voters == [0, 1] and co.run.phase == RunPhase.TRAINING
    hand.window() if phase == "idle" else hand.average()
    assert co.cycle.version == 1 and co.cycle.finished == max(second, 1)


# --- shutdown races (C13) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [10.0, 31.0])
def test_the_coordinator_is_the_last_to_leave(late: float) -> None:
    """F87, M-53: it listens until the last goodbye or the end of the grace, and names who did not go."""
    hand = Hand(num_epochs=0).form()
    hand.say(0, m.Exiting, reason="done")
    effects = pass_time(hand, late)
    assert hand.co.finished is (late > 30.0)
    if not hand.co.finished:
        effects += hand.say(1, m.Exiting, reason="done")

    assert hand.co.finished and [e.status for e in effects if isinstance(e, fx.Finish)] == ["ok"]
    assert [alert.path for alert in alerts(effects, "unserved_role")] == (["rank 1"] if late > 30.0 else [])


@pytest.mark.parametrize("phase", [WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.THROTTLED])
def test_a_rank_does_not_wait_for_ever_for_its_coordinator(phase: WorkerPhase) -> None:
    """F88, W-22: silence ends in a bounded time, as a lost coordinator and never as a clean end."""
    rank = Rank(phase)
    for _ in range(2000):
        due = rank.worker.poll_timeout()
        if due is None:
            break
        rank.now = due
        rank.feed(ev.Tick())

    assert [stop.status for stop in of(rank.orders, fx.Stop)] == ["coordinator_lost"]
    assert not reports(rank.orders, m.Exiting)


@pytest.mark.parametrize("stage", ["forming", "idle", "pending", "over"])
def test_messages_of_another_run_change_nothing(stage: str) -> None:
    """F90, N-6: in any phase, and none of its plans is ever given to them."""
    hand = Hand(2) if stage == "forming" else pending() if stage == "pending" else Hand(2).form()
    if stage == "over":
        hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    before = hand.co.snapshot()
    effects = hand.say(0, m.Exiting, reason="done", run_id=b"z" * 16)
    hand.co.fenced.clear()

    assert not effects and hand.co.snapshot() == before


LATE = any_of((ev.LinkLost, ev.SendFailed, ev.ProcessExited, ev.RoundProgress, ev.RoundReduced, ev.RoundAborted,
               ev.LinkUp, ev.OperatorRequest, ev.Tick)) | st.just(ev.LinkLost(0, 1, "reset"))  # fmt: skip
"""Events that may come late, of this run or of any other."""
TOLD = (ev.ConsensusSaved, ev.MetaWritten, ev.CallbackFailed)
"""What became of the last files and hooks is told after the end, too."""


def late_report(rank: int, report: m.Report, number: int) -> ev.Received:
    """The report with the stamp and the number that it would have from that rank of this run."""
    stamp = {"run_id": bytes(16), "generation": 1, "rank": rank, "incarnation": 1, "report_seq": number}
    return ev.Received(attrs.evolve(report, **stamp, control_seq=0))


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(LATE | any_of(TOLD) | st.builds(late_report, st.integers(0, 1), any_of(m.REPORTS), st.integers(0, 9)),
                max_size=6))  # fmt: skip
def test_nothing_that_comes_after_the_end_does_anything(late: list[Any]) -> None:
    """F91, M-53: a closed core maps every event to no action, arms no timer, and stays as it is; the door says that
    the run is closing, and what became of the last files is told."""
    hand = Hand(num_epochs=0).form()
    hand.say(0, m.Exiting, reason="done"), hand.say(1, m.Exiting, reason="done")
    assert hand.co.finished and hand.co.poll_timeout() is None
    before = hand.co.snapshot()
    for event in late:
        effects = hand.feed(event)
        assert not effects or (isinstance(event, TOLD) and not [e for e in effects if not is_told(e)]), event
    refused = [e for e in hand.feed(ev.HelloReceived(7, hello(60))) if isinstance(e, fx.Refuse)]

    assert [each.reject.code for each in refused] == [m.RejectCode.CLOSING]
    assert hand.co.snapshot() == before and hand.co.poll_timeout() is None


def is_told(effect: Any) -> bool:
    """It is for people, and changes nothing."""
    return isinstance(effect, (fx.Alert, fx.Emit))


@pytest.mark.parametrize("kind", [*m.REPORTS, ev.OperatorRequest, ev.CallbackFailed, ev.RoundReduced, ev.RoundAborted],
                         ids=lambda kind: kind.__name__)  # fmt: skip
@settings(max_examples=3, phases=(Phase.generate,))
@given(data=st.data())
def test_between_the_shutdown_and_the_end_only_goodbyes_count(kind: Any, data: st.DataObject) -> None:
    """F91, M-53: two ranks are still awaited. Whatever comes starts nothing: no plan, no round, no second shutdown.
    Then each of them goes, and the run ends, once."""
    hand = Hand(num_epochs=0).form()
    assert hand.co.run.phase == RunPhase.SHUTTING_DOWN and not hand.co.finished
    before = standing(hand)
    event = data.draw(instances_of(kind))
    if issubclass(kind, m.Report):
        hand.sequence[0] += 1
        event = late_report(0, event, hand.sequence[0])
    effects = hand.feed(event)
    assert not [e for e in effects if isinstance(e, (fx.OpenRound, fx.Admit, fx.SaveConsensus, fx.Finish))]
    assert {type(e.message) for e in of(effects, fx.Send)} <= {m.DeclareDead}, "a rank that broke the protocol is gone"
    assert standing(hand) == before
    for rank in list(hand.co.alive):
        effects += hand.say(rank, m.Exiting, reason="done")
    assert [finish.status for finish in of(effects, fx.Finish)] == ["ok"] and hand.co.finished


def standing(hand: Hand) -> tuple[Any, ...]:
    """Where run, cycle and books stand."""
    co = hand.co
    return (co.run.phase, co.run.decisions, co.cycle.phase, co.cycle.number, co.cycle.version, co.cycle.global_step,
            co.book.covered, co.book.next_plan_id, list(co.actions.duties))  # fmt: skip


PHASES = {"idle": lambda co: not co.cycle.pending and co.cycle.version > 0 and co.short > 0,
          "collect": lambda co: co.cycle.pending and co.cycle.reduced is None and co.cycle.version > 0,
          "apply": lambda co: co.cycle.pending and co.cycle.reduced is not None}  # fmt: skip


@pytest.mark.parametrize("order", [("idle", "collect", "apply"), ("apply", "idle", "collect")], ids="-".join)
def test_a_polite_leave_and_a_quick_return_close_nothing_for_the_others(order: tuple[str, ...]) -> None:
    """F92, M-7, M-8, M-22, M-25: rank 2 leaves and comes back, in three phases of an average. Each time it is its next
    incarnation, gets the state and work; no death, no alert, and ranks 0 and 1 lose no step."""
    cohort = Cohort(ranks=3, samples=600, num_epochs=1, max_anchor=4)
    for life, phase in enumerate(order, 2):
        cohort.run_until(lambda wanted=PHASES[phase]: wanted(cohort.co))
        cohort.strike("leave", 2)
        cohort.run_until(lambda: not cohort.co.peers[2].alive and not cohort.seats[2].alive)
        assert cohort.co.peers[2].phase == PeerPhase.EXITED and cohort.co.run.phase == RunPhase.TRAINING
        cohort.strike("join", 2)
        assert (cohort.co.peers[2].incarnation, cohort.co.peers[2].phase) == (life, PeerPhase.JOINING)
        cohort.run_until(lambda: cohort.co.peers[2].phase == PeerPhase.VOTER)
        worker = cohort.seats[2].worker
        cohort.run_until(lambda worker=worker: worker.steps_since_avg)
        assert worker.version == cohort.co.cycle.version and not cohort.sent(m.Shutdown)
    cohort.run()

    assert cohort.finish is not None and cohort.finish.status == "ok" and cohort.co.deaths == 0
    assert [facts["incarnation"] for facts in cohort.events("Joined") if facts["rank"] == 2] == [1, 2, 3, 4]
    assert not [effect for effect in cohort.effects if isinstance(effect, fx.Alert)]
    merged = [sum(facts["merged"].get(str(rank), 0) for facts in cohort.events("Cycle")) for rank in (0, 1)]
    assert merged == [process.worker.local_step for process in cohort.processes[:2]], "no step of theirs was in vain"
    assert cohort.co.book.covered == cohort.co.cycle.global_step == 300


@pytest.mark.parametrize("phase", ["idle", "armed", "reduced"])
def test_a_leave_and_a_return_in_the_same_moment_are_two_lives(phase: str) -> None:
    """F92, M-8, M-7: Exiting and Hello in one batch of events; the others do not see a run that closes."""
    hand = Hand(3, samples=400).form() if phase == "idle" else pending(3, samples=400)
    if phase == "reduced":
        for rank in range(3):
            hand.ready(rank)
        hand.reduce()
    effects = hand.say(2, m.Exiting, reason="leave")
    effects += hand.feed(ev.HelloReceived(77, hello(400, wanted_rank=2)))
    hand.sequence.pop(2)
    assert not [e for e in effects if isinstance(e, fx.Alert)] and not messages(effects, m.Shutdown)
    assert [(e.rank, e.incarnation, e.welcome.status) for e in of(effects, fx.Admit)] == [
        (2, 2, m.WelcomeStatus.JOINING)]  # fmt: skip
    if phase == "armed":
        hand.average()
    elif phase == "reduced":
        hand.ack(0), hand.ack(1)
    assert hand.co.run.phase == RunPhase.TRAINING and hand.co.voters == [0, 1] and hand.co.deaths == 0
    assert hand.co.cycle.version == (0 if phase == "idle" else 1)


@pytest.mark.parametrize("returns", [True, False])
def test_a_leave_below_min_ranks_waits_for_the_return(returns: bool) -> None:
    """F92, M-21: for `rejoin_window_s`, and no longer; then the run is saved."""
    hand = Hand(2, samples=400, min_ranks=2, rejoin_window_s=30.0).form()
    effects = hand.say(1, m.Exiting, reason="leave")
    effects += hand.tick(29.0)
    assert hand.co.run.phase == RunPhase.TRAINING and not messages(effects, m.ShutdownWithSave)
    if returns:
        hand.sequence.pop(1)
        hand.feed(ev.HelloReceived(9, hello(400, wanted_rank=1)))
    effects = hand.tick(2.0)

    saves = {save.reason for save in messages(effects, m.ShutdownWithSave)}
    assert saves == (set() if returns else {m.SaveReason.SINGLE_SURVIVOR})
    assert hand.co.peers[1].incarnation == (2 if returns else 1)
