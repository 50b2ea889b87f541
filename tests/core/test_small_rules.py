"""Rules that need no story: what a machine is made of, and what it does with notices, hints and wishes."""

from __future__ import annotations

import ast
import inspect
import math
import re
import typing
from types import ModuleType
from typing import Any

import attrs
import pytest

from paceline.core import (
    control_messages,
    cycle,
    data_messages,
    finish,
    gates,
    report_messages,
    session_messages,
)
from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.cycle import Cycle
from paceline.core.dispatch.desk import Desk
from paceline.core.errors import InvariantError, LocalProtocolError
from paceline.core.phases import WorkerPhase
from paceline.core.worker import Worker

from support.cohort import Cohort
from support.hand import Hand, messages, named, pending
from support.rank import NEXT, Rank, of, reports

J, W, T, P, D = (
    WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.TRAINING, WorkerPhase.THROTTLED, WorkerPhase.DRAINING,
)  # fmt: skip


# --- coordinator -----------------------------------------------------------------------------------------------------


def test_the_cycle_composes_no_plan_and_keeps_no_cadence() -> None:
    """C-5: it asks the desk for plans and the balancer for counts, and imports what makes neither."""
    for module in (cycle, finish):
        tree = ast.parse(inspect.getsource(module))
        imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not {name for name in imported if name == "cadence" or name.startswith("dispatch")}


@pytest.mark.parametrize("engine", ["compiled", "transitions"])
@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf, -1.0, "1", None, 10**400],
                         ids=lambda now: str(now)[:9])  # fmt: skip
def test_a_time_that_is_none_is_refused_and_changes_nothing(engine: str, now: Any) -> None:
    """N-13: by both machines; with a NaN for its time no deadline would ever have passed again."""
    coordinator = Coordinator(Config(), now=0.0, engine=engine)
    worker = Worker.create(Rank().worker.settings, 0.0, engine)
    for machine in (coordinator, worker):
        before = machine.snapshot()
        with pytest.raises(LocalProtocolError, match="monotonic clock"):
            machine.handle(ev.Tick(), now)
        assert machine.snapshot() == before and not machine.take_ready().records
        machine.handle(ev.Tick(), 1)


def test_a_heartbeat_is_life_and_no_progress() -> None:
    """M-2: and only what comes from the training thread is progress."""
    hand = Hand().form()
    peer = hand.co.peers[0]
    before = peer.last_progress
    hand.now += 5.0
    hand.say(0, m.Heartbeat, step_count=0, state="x")
    assert (peer.last_seen, peer.last_progress) == (hand.now, before)
    hand.step(0)

    assert (peer.last_progress, peer.progress_kind) == (hand.now, "Batch")


NAMES_IN_BYTES = {"config_digest", "dataset_signature", "digest", "run_id", "schema_hash", "uid"}
"""Of 16 or 32 bytes each, but for the id of a communicator, of which a machine takes 1024 at most."""


@pytest.mark.parametrize("module", [
    ev, fx, control_messages, report_messages, session_messages, data_messages,
], ids=lambda module: module.__name__.rpartition(".")[2])  # fmt: skip
def test_no_tensor_passes_through_a_machine(module: ModuleType) -> None:
    """N-1: what goes in and comes out are names, numbers and what they are the digest of; the bytes of a round go from
    a rank to the averager and back, past every machine."""
    classes = [cls for cls in vars(module).values() if isinstance(cls, type) and attrs.has(cls)]
    hints = {(cls.__name__, name): str(hint) for cls in classes for name, hint in typing.get_type_hints(cls).items()}
    raw = {name for (_, name), hint in hints.items() if re.search(r"bytes|bytearray|memoryview|Buffer", hint)}
    assert len(classes) > 2 and raw <= NAMES_IN_BYTES


def test_the_timeline_of_a_cycle_has_stable_names() -> None:
    """O-1: a cycle is told from its start to its end, and an epoch around it."""
    cohort = Cohort(num_epochs=1, samples=12)
    cohort.run()
    told = [effect.name for effect in cohort.effects if isinstance(effect, fx.Emit)]
    frame = [name for name in told if name in ("SyncStart", "AverageStart", "AverageEnd", "SyncEnd")]

    assert frame == ["SyncStart", "AverageStart", "AverageEnd", "SyncEnd"] * (cohort.co.cycle.number + 1)
    assert told.count("EpochStart") == told.count("EpochEnd") == 1


def test_a_sample_of_resources_is_passed_on_and_decides_nothing() -> None:
    """O-5."""
    hand = Hand().form()
    before = hand.co.snapshot()
    effects = hand.say(0, m.ResourceSample, sample={"gpu": 0.5})
    hand.co.peers[0].report_seq -= 1

    assert named(effects, "Custom") == [{"rank": 0, "sample": {"gpu": 0.5}}]
    assert hand.co.snapshot() == before


def test_the_dump_of_a_stall_has_the_answers_of_the_gate() -> None:
    """O-8: the same counters and functions that judge, not a copy of them."""
    hand = pending()
    dump = hand.co.dump()

    assert (dump["owing"], dump["short"], dump["movers"]) == (2, hand.co.short, hand.co.movers)
    assert [rank["quiesced"] for rank in dump["ranks"]] == [bool(hand.co.desk.quiesced((rank,))) for rank in (0, 1)]
    assert dump["reasons"] == [str(reason) for reason in hand.co.explain()] != []


def test_a_dump_asks_the_gates_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """O-8, I39: another gate gives another dump."""
    hand = Hand(2, samples=400).form()
    hand.step(0, 2)
    honest = hand.co.dump()
    assert [rank["gate"] for rank in honest["ranks"]] == [False, False] and not honest["fires"]
    assert honest["pools"] == {0: {"free": 194, "in_flight": 4, "trained": 2, "covered": 0, "total": 200}}

    monkeypatch.setattr(Desk, "quiesced", lambda self, ranks: {1}.intersection(ranks))
    monkeypatch.setattr(gates, "met", lambda peer, quiesced: True)
    monkeypatch.setattr(Cycle, "fires", lambda self, event: True)
    bent = hand.co.dump()

    assert [(rank["quiesced"], rank["gate"]) for rank in bent["ranks"]] == [(False, True), (True, True)]
    assert bent["fires"]


def test_nobody_who_moves_is_dumped_and_who_stands_still_is_again_and_again() -> None:
    """O-8: after `stall_dump_s` without progress, strictly, of anyone; heartbeats are none."""
    hand = Hand(2, samples=400, stall_dump_s=40.0).form()
    hand.tick(30.0)
    hand.step(0)
    assert not named(hand.tick(40.0), "StateDump")

    told = named(hand.tick(79.0), "StateDump")

    assert [facts["elapsed_s"] for facts in told] == [pytest.approx(40.0), pytest.approx(80.0, abs=0.01)]
    assert [rank["steps"] for rank in told[1]["dump"]["ranks"]] == [1, 0]


def test_a_run_that_forms_or_is_over_is_not_dumped() -> None:
    """O-8: what is waited for there has deadlines of its own."""
    hand = Hand(1, target_ranks=2, stall_dump_s=5.0, join_timeout_s=100.0, min_ranks=2)
    assert not named(hand.tick(90.0), "StateDump")
    done = Hand(2, num_epochs=0, stall_dump_s=5.0, exit_grace_s=60.0).form()
    assert not named(done.tick(50.0), "StateDump")


def test_a_stall_is_dumped_once_and_not_a_second_time_by_the_clock() -> None:
    """I32, O-8, C-16: the dump of the stall is the last one, even where the periodic one falls due with it."""
    hand = pending(stall_dump_s=300.0, reduce_ceiling_s=300.0)
    effects = hand.tick(301.0) + hand.tick(200.0)

    dumps = [e for e in effects if isinstance(e, fx.Emit) and "dump" in e.facts]
    assert [e.name for e in dumps] == ["Stalled"]


# --- worker ----------------------------------------------------------------------------------------------------------


def test_a_worker_begins_with_nothing() -> None:
    """W-1: no step, no consensus, no plan, no throttle."""
    worker = Rank(J).worker

    assert (worker.local_step, worker.steps_since_avg, worker.shipped, worker.global_step, worker.version) == (0,) * 5
    assert worker.snapshot_cycle == worker.committed == worker.throttle == -1
    assert worker.staged is None and not worker.hand and not worker.mailbox


def test_a_rank_reports_a_broken_round_and_decides_nothing() -> None:
    """N-1, R-18: neither a retry nor an end is its to choose."""
    rank = Rank(T)
    rank.request(1)
    before = rank.worker.phase
    orders = rank.feed(ev.RoundBroken(1, 0, "torn", True))

    assert [type(report) for report in reports(orders)] == [m.RoundFailed]
    assert rank.worker.phase == before and not of(orders, fx.TakeSnapshot)


@pytest.mark.parametrize("phase", [W, T, P])
@pytest.mark.parametrize("kind", [m.Checkpoint, m.SaveConsensusModel])
def test_what_is_meant_for_another_is_ignored_without_a_word(phase: WorkerPhase, kind: type[Any]) -> None:
    """W-18, I24."""
    rank = Rank(phase)
    fields = {"decision_id": 1, "version": 0, "target_rank": 0, "cycle": 1}

    assert not rank.control(kind, **fields) and rank.worker.phase == phase


def test_some_messages_are_served_inside_a_step() -> None:
    """W-20: a death is noted at once, while a plan that came before it waits for the end of the step."""
    rank = Rank(T)
    rank.control(m.StartEpoch, serve=False, cycle=0, plan=NEXT)
    rank.control(m.DeclareDead, serve=False, dead_rank=0, dead_incarnation=1)

    assert rank.worker.dead_peers == ((0, 1),) and not rank.worker.mailbox


def test_a_leaving_rank_runs_no_collective_and_does_not_park() -> None:
    """I23, W-23: peers may be gone, and it would wait for them for ever."""
    rank = Rank(D)
    orders = rank.control(m.SyncNow, cycle=1, attempt=0, session_id=1, version=1, global_step=0)
    orders += rank.control(m.Throttle, cycle=1, reason=m.ThrottleReason.BARRIER)

    assert not orders and rank.worker.phase == D


def test_records_and_hints_are_forwarded_and_do_not_pile_up() -> None:
    """W-25: the latest of each may be kept, so that any number of them leaves what one leaves."""

    def after(times: int) -> tuple[Any, list[Any]]:
        rank = Rank(T)
        orders: list[Any] = []
        for _ in range(times):
            orders += rank.control(m.EpochAggregated, epoch=0, metrics={"avg_loss": 1.0})
            orders += rank.control(m.EvalBroadcast, schedule_id=1, epoch=0, version=0, metric=None)
            orders += rank.control(m.StageAdvisory, counts=(1, 1), segments=())
        rank.worker.control_seen = rank.worker.control_handled = 0
        return rank.worker.snapshot(), [type(order) for order in orders]

    assert after(3)[1] == [fx.Publish, fx.Publish, fx.Stage] * 3
    assert after(3)[0] == after(1)[0]


def test_participation_is_shown_beside_liveness() -> None:
    """O-5: merges of cycles, the age of the last one, idle share, what was fenced and refused, what a copy took; a rank
    whose heartbeats flow and whose steps are nowhere is only alive."""
    hand = Hand(2, samples=400).form()
    fresh = hand.co.dump()["ranks"][0]
    assert (fresh["participation"], fresh["last_merge_s"], fresh["idle_share"]) == (None, None, None)
    hand.now += 4.0
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
        hand.now += 1.0
    hand.average(refused=(1,))
    hand.now += 2.0
    hand.say(1, m.SyncAck, cycle=0, attempt=0, step_count=0, shipped_steps=0, total_steps=0,
             outcome=m.Outcome.OBSERVER, state_complete=True)  # fmt: skip
    mine, other = hand.co.dump()["ranks"]
    assert (mine["participation"], mine["only_alive"], mine["copy_ms"]) == (1.0, False, 1.0)
    assert mine["last_merge_s"] == hand.co.now - hand.co.cycle.idle_since and mine["idle_share"] == 1.0 / 5.0
    assert (other["participation"], other["only_alive"], other["last_merge_s"]) == (0.0, True, None)
    assert (other["idle_share"], other["fenced"], other["refused"]) == (0.0, 1, 1)


def test_who_is_in_no_cycle_does_not_seem_to_take_part() -> None:
    """O-5: cycles count for all who live when they are finished, also who was excluded, or waits to be promoted; whose
    last merge is a cycle ago is only alive."""
    hand = Hand(2, samples=400).form()
    hand.window()
    hand.co.peer_engine.fire(hand.co.peers[1], "Excluded", None)
    assert hand.co.voters == [0]
    for _ in range(3):
        hand.window()
    mine, other = hand.co.dump()["ranks"]
    assert (mine["participation"], mine["only_alive"]) == (1.0, False)
    assert (other["participation"], other["only_alive"]) == (0.25, True)


def test_a_message_to_many_needs_a_value_for_each() -> None:
    """N-9: too short a column would keep the message from the last ranks, and nobody would know."""
    hand = Hand(2).form()
    for column in ([1], [1, 2, 3]):
        with pytest.raises(InvariantError, match=r"SetGlobalStep to 2 ranks.*'version'"):
            hand.co.tell((0, 1), m.SetGlobalStep, {"version": column}, global_step=0)
    assert not hand.co.take_ready().effects


def test_the_window_of_the_formation_closes_at_its_timeout_itself() -> None:
    """M-4: with enough ranks, at that instant and not before."""
    hand = Hand(1, target_ranks=3, join_timeout_s=10.0)
    hand.tick(8.0)
    assert not hand.co.run.window_closed
    hand.tick(2.0)
    assert hand.co.run.window_closed and messages(hand.effects, m.RequestParams)


@pytest.mark.parametrize("back", [0, 1, 2], ids=["the newest", "the one before", "an older one"])
def test_a_message_that_comes_a_second_time_is_fenced(back: int) -> None:
    """N-6, I53, M-42: sent again over another link, it is stale, does nothing, and does not end the session."""
    rank = Rank()
    for phase in range(3):
        rank.control(m.Beacon, serve=False, run_phase=phase, cycle_phase=0, cycle=0)
    seen = rank.number
    orders = rank.control(m.Beacon, serve=False, run_phase=9, cycle_phase=0, cycle=0, control_seq=seen - back)
    assert orders == [] and rank.worker.phase == J and rank.worker.fenced == 1
    assert (rank.worker.control_seen, rank.worker.control_handled) == (seen, seen)


@pytest.mark.parametrize(("wanted", "told"), [(0, []), (1, [1]), (3, [1, 2, 3]), (100, [50, 100])])
def test_an_epoch_is_told_of_in_parts(wanted: int, told: list[int]) -> None:
    """O-5: at finishes, at most `reports_per_epoch`; each with what is known so far."""
    samples, windows = (24, 2) if wanted == 100 else (36, 3)
    hand = Hand(2, samples=samples, num_epochs=1, reports_per_epoch=wanted).form()
    for _ in range(windows):
        hand.window()
    parts = [facts for facts in named(hand.effects, "Custom") if facts.get("what") == "epoch_part"]
    assert [facts["part"] for facts in parts] == told
    assert all(facts["of"] == wanted and facts["samples"] == 2.0 * facts["covered"] for facts in parts)
    assert all(set(facts["ranks"]) == {"0", "1"} for facts in parts)
