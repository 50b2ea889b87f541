"""The real tables: complete, the same on both engines, and every row taken by something that can really happen.

That the rows mean what the protocol says is tested in `machines/`; here it is asked whether there are rows that nothing
brings about. The worker's rows are counted in `machines/test_worker_matrix.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.actions import Duty
from paceline.core.attachment import Back
from paceline.core.engine import Kind, untaken
from paceline.core.errors import ConfigError
from paceline.core.lint import differences, lint
from paceline.core.membership import Sentence
from paceline.core.peer import Lost
from paceline.core.phases import WorkerPhase
from paceline.core.roles import CHECKPOINT, EVALUATE, ROLES
from paceline.core.tables import CYCLE, PEER, RUN, TABLES, WORKER, engine_for, machine_class

from support.cohort import Cohort, Fault
from support.hand import Hand, pending
from support.hand_collective import Joint, joint
from support.rank import NEXT, PLAN, Rank
from support.taken import counted
from support.words import hello

STAMP: dict[str, Any] = {"run_id": b"\0" * 16, "generation": 1, "rank": 0, "incarnation": 1}


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_tables_are_complete_and_name_only_what_exists(name: str) -> None:
    """Architecture 3: every phase decides every event, no row is dead, guards return real bools."""
    assert lint(TABLES[name], machine_class(name)) == []


def test_an_engine_that_does_not_exist_is_refused() -> None:
    """Section 15: the message names the choices; and there is one engine of a kind for everybody."""
    with pytest.raises(ConfigError, match="compiled"):
        engine_for("run", "fast")
    assert engine_for("run") is engine_for("run", "compiled")


def test_only_a_violation_or_an_accepted_event_moves_a_machine() -> None:
    """N-7: what is ignored, fenced or refused leaves the phase alone, and performs nothing."""
    for table in TABLES.values():
        for row in table.rows:
            if row.kind in (Kind.IGNORE, Kind.FENCED, Kind.REFUSED):
                assert not row.effects, (table.name, row)


# --- both engines -----------------------------------------------------------------------------------------------------


def batch(**fields: Any) -> m.Batch:
    """A step of rank 0."""
    known: dict[str, Any] = dict(cycle=0, plan_id=1, step_count=4, samples=2, batch_ms=1.0, data_ms=0.0)
    return m.Batch(**STAMP, **{**known, **fields})


def metrics(*plan_ids: int) -> m.Metrics:
    """The end of plans of rank 0."""
    return m.Metrics(**STAMP, cycle=0, plan_ids=plan_ids, epoch=0, batches=1, samples=2, epoch_ms=1.0,
                     share_complete_ms=1.0, compute_only_ms=1.0, data_starve_ms=0.0)  # fmt: skip


def ack(attempt: int = 0, cycle: int = 1) -> m.SyncAck:
    """An acknowledgement of rank 0."""
    return m.SyncAck(**STAMP, cycle=cycle, attempt=attempt, step_count=3, shipped_steps=3, total_steps=6,
                     outcome=m.Outcome.MERGED, state_complete=True)  # fmt: skip


def ready(attempt: int = 0, cycle: int = 1, steps: int = 3, rank: int = 0) -> m.SnapshotReady:
    """A snapshot."""
    return m.SnapshotReady(**{**STAMP, "rank": rank}, cycle=cycle, attempt=attempt, shipped_steps=steps)


def failed(attempt: int = 0, retryable: bool = True) -> m.RoundFailed:
    """A round that rank 0 could not finish."""
    return m.RoundFailed(**STAMP, cycle=1, attempt=attempt, round=m.RoundKind.PARAMS, cause="x", retryable=retryable)


KEY = m.RoundKey(generation=1, cycle=1, kind=m.RoundKind.PARAMS)
OLD_KEY = m.RoundKey(generation=1, cycle=0, kind=m.RoundKind.PARAMS)
SENTENCE = Sentence(m.SaveReason.MAX_FAILURE, "enough")

CLAIM = m.ResumeClaim(generation=1, incarnation=1, version=0, cycle=0, snapshot_cycle=0, shipped=0, step_count=3,
                      control_seq=4, report_seq=99)  # fmt: skip
TORN = attrs.evolve(CLAIM, snapshot_cycle=1)
AHEAD = attrs.evolve(CLAIM, control_seq=400)

PEER_EVENTS: dict[str, list[Any]] = {
    "Batch": [batch(), batch(step_count=0), batch(plan_id=9), batch(samples=1), batch(cycle=-1)],
    "SyncAck": [ack()], "SnapshotReady": [ready()], "RoundFailed": [failed()],
    "Metrics": [metrics(1), metrics(9)],
    "LrUpdate": [m.LrUpdate(**STAMP, lr=0.1, position=1)],
    "Heartbeat": [m.Heartbeat(**STAMP, step_count=1, state="x")],
    "Exiting": [m.Exiting(**STAMP, reason="done")],
    "Intent": [m.Intent(**STAMP, intent_id=1, kind=kind) for kind in m.IntentKind],
    "CheckpointResult": [m.CheckpointResult(**STAMP, decision_id=1, version=0, elapsed_ms=1.0)],
    "EvalResult": [m.EvalResult(**STAMP, schedule_id=1, epoch=0, version=0, elapsed_ms=1.0)],
    "EpochFnElapsed": [m.EpochFnElapsed(**STAMP, epoch=0, elapsed_ms=5.0)],
    "SessionIdGenerated": [m.SessionIdGenerated(**STAMP, session_id=1, uid=b"u")],
    "ResourceSample": [m.ResourceSample(**STAMP, sample={})],
    "LinkLost": [ev.LinkLost(0, 1, "reset", link) for link in (None, 7)],
    "SendFailed": [ev.SendFailed((0, 1, 5), link) for link in (None, 7)],
    "Claim": [ev.HelloReceived(9, hello(60, wanted_rank=0, resume=resume)) for resume in (CLAIM, AHEAD, None)],
    "Lost": [Lost("reset")], "Promoted": [None], "Excluded": [None],
}
CYCLE_EVENTS: dict[str, list[Any]] = {
    "Judge": [None], "Ceiling": [None], "Abandoned": [None], "Unrecoverable": [SENTENCE],
    "SyncAck": [ack(), ack(attempt=1), ack(cycle=0)],
    "SnapshotReady": [ready(), ready(attempt=1), ready(steps=2), ready(rank=5), ready(rank=1)],
    "RoundReduced": [ev.RoundReduced(KEY, a, (0, 1), (), True) for a in (0, 1)],
    "RoundProgress": [ev.RoundProgress(key, 0, 5, False) for key in (KEY, OLD_KEY)],
    "RoundAborted": [ev.RoundAborted(KEY, a, "x") for a in (0, 1)],
    "RoundFailed": [failed(), failed(attempt=1), failed(retryable=False)],
    "Back": [Back(0, CLAIM), Back(0, TORN)], "Restarted": [None], "Overtaken": [None],
}
RUN_EVENTS: dict[str, list[Any]] = {name: [None] for name in RUN.events}


def _in_cycle(stage: int | str) -> Hand:
    if isinstance(stage, str):
        hand = joint(2, num_epochs=1)
        if stage == "acked":
            hand.ack(1)
        if stage == "renewing":
            hand.failed(1)
        return hand
    hand = pending(steps=3, num_epochs=1)
    if stage > 0:
        hand.ready(1)
    if stage > 1:
        hand.ready(0)
        hand.reduce()
    if stage == 4:
        return _awaiting()
    if stage > 2:
        hand.ack(0), hand.co.cycle.record_ack(ack_of(hand, 1))
    return hand


def ack_of(hand: Hand, rank: int) -> m.SyncAck:
    """The ack of another rank."""
    return m.SyncAck(**{**STAMP, "rank": rank}, cycle=1, attempt=0, step_count=3, shipped_steps=3, total_steps=6,
                     outcome=m.Outcome.MERGED, state_complete=True)  # fmt: skip


def _awaiting() -> Hand:
    """Every member has acknowledged, a joiner that had its time has not (M-26)."""
    hand = Hand(2, max_ranks=3, join_patience=1, samples=400).form()
    hand.knock(1)
    for _ in range(2):
        for rank in (0, 1):
            hand.step(rank, 3)
            hand.complete(rank)
        for rank in (0, 1):
            hand.ready(rank)
        hand.reduce()
        hand.ready(2)
        hand.ack(2, state_complete=False)
        hand.ack(0), hand.ack(1)
    assert hand.co.cycle.pending and hand.co.cycle.only_joiners_owe(None)
    return hand


@pytest.mark.parametrize("stage", [*range(5), "inside", "acked", "renewing"])
def test_both_engines_decide_the_cycle_alike(stage: int | str) -> None:
    """The compiled table is the reference, in every phase, for every event, down to the calls of guards."""
    observe = _after
    assert differences(CYCLE, lambda: _in_cycle(stage).co.cycle, CYCLE_EVENTS, observe=observe) == []


@pytest.mark.parametrize("stage", ["stepping", "ended", "asked", "excluded", "generator"])
def test_both_engines_decide_the_peer_alike(stage: str) -> None:
    """As above."""

    def make() -> Any:
        if stage == "generator":
            return Joint(2).co.peers[0]
        hand = Hand(2, callbacks=ROLES).form()
        hand.step(0, 3)
        if stage == "asked":
            hand.co.actions.duties = [Duty(role, 1, 0, 0, 0, hand.now) for role in (CHECKPOINT, EVALUATE)]
        if stage == "ended":
            hand.complete(0)
        if stage == "excluded":
            hand.co.peer_engine.fire(hand.co.peers[0], "Excluded", None)
        return hand.co.peers[0]

    assert differences(PEER, make, PEER_EVENTS, observe=_after) == []


@pytest.mark.parametrize("make", [lambda: Hand(1, target_ranks=2), lambda: Hand(2).form(),
                                  lambda: Hand(2, num_epochs=0).form(), lambda: Hand(0, target_ranks=1),
                                  lambda: Hand(2, num_epochs=0, callbacks=ROLES).form()])  # fmt: skip
def test_both_engines_decide_the_run_alike(make: Callable[[], Hand]) -> None:
    """As above."""
    assert differences(RUN, lambda: make().co.run, RUN_EVENTS, observe=_after) == []


def _after(machine: Any) -> object:
    return (machine.co.snapshot(), machine.co.take_ready())


CONTROL: dict[str, Any] = {"run_id": b"r" * 16, "generation": 1, "rank": 1, "incarnation": 1}
SAVE = m.ShutdownWithSave(**CONTROL, decision_id=1, reason=m.SaveReason.GRACEFUL, saver=1, stem="x")
WORKER_EVENTS: dict[str, list[Any]] = {
    "RequestParams": [m.RequestParams(**CONTROL, cycle=c, attempt=a, observer=False) for c, a in
                      ((0, 0), (1, 0), (1, 1), (2, 0))],
    "Update": [m.Update(**CONTROL, cycle=c, attempt=0, version=1, global_step=3, outcome=o, merged_steps=0, next_plan=p)
               for c, o, p in ((0, m.Outcome.MERGED, None), (1, m.Outcome.MERGED, None), (1, m.Outcome.MERGED, NEXT),
                               (1, m.Outcome.UNREALIZED, None), (3, m.Outcome.OBSERVER, None))],
    "SyncNow": [m.SyncNow(**CONTROL, cycle=1, attempt=0, session_id=1, version=1, global_step=0)],
    "StartEpoch": [m.StartEpoch(**CONTROL, cycle=c, plan=NEXT) for c in (0, 1)],
    "ExtendPartition": [m.ExtendPartition(**CONTROL, cycle=c, extends=e, plan=NEXT) for c in (0, 1) for e in (7, 9)],
    "Throttle": [m.Throttle(**CONTROL, cycle=c, reason=m.ThrottleReason.LEAD) for c in (0, 1, 2)],
    "SetGlobalStep": [m.SetGlobalStep(**CONTROL, version=v, global_step=3) for v in (0, 1)],
    "StageAdvisory": [m.StageAdvisory(**CONTROL, counts=(), segments=())],
    "Checkpoint": [m.Checkpoint(**CONTROL, decision_id=d, version=v, target_rank=r, cycle=c)
                   for d, v, r, c in ((1, 0, 0, None), (1, 0, 1, None), (2, 0, 1, None), (2, 5, 1, 1))],
    "SaveConsensusModel": [m.SaveConsensusModel(**CONTROL, decision_id=d, version=v, target_rank=r, cycle=1, stem=s)
                           for d, v, r, s in ((1, 0, 0, "x"), (1, 0, 1, "x"), (2, 0, 1, None), (2, 5, 1, "x"))],
    "ExecuteEvalCallback": [m.ExecuteEvalCallback(**CONTROL, schedule_id=d, epoch=0, target_rank=r, version=v,
                                                  on_consensus=True, cycle=c)
                            for d, v, r, c in ((1, 0, 0, None), (1, 0, 1, None), (2, 0, 1, None), (2, 5, 1, 1))],
    "SetEpochCallbackRole": [m.SetEpochCallbackRole(**CONTROL, holder=1)],
    "EpochAggregated": [m.EpochAggregated(**CONTROL, epoch=0, metrics={})],
    "EvalBroadcast": [m.EvalBroadcast(**CONTROL, schedule_id=1, epoch=0, version=0)],
    "DeclareDead": [m.DeclareDead(**CONTROL, dead_rank=0, dead_incarnation=1)],
    "RequestSessionId": [m.RequestSessionId(**CONTROL, session_id=1)],
    "NewSession": [m.NewSession(**CONTROL, session_id=1, uid=b"u", new_rank=0, new_world_size=1, members=(),
                                state_from=0, attempt=0)],
    "RequestState": [m.RequestState(**CONTROL, transfer_id=1, joiner_rank=r, joiner_incarnation=1)
                     for r in (2, m.NO_RANK)],
    "ShutdownWithSave": [SAVE, m.ShutdownWithSave(**CONTROL, decision_id=1, reason=m.SaveReason.GRACEFUL, saver=0)],
    "Shutdown": [m.Shutdown(**CONTROL, reason=m.SaveReason.GRACEFUL)],
    "Beacon": [m.Beacon(**CONTROL, run_phase=1, cycle_phase=0, cycle=0)],
    "Fenced": [m.Fenced(generation=1, incarnation=i, cycle=0, why="x") for i in (1, 2)],
    "Welcome": [m.Welcome(rank=1, incarnation=i, generation=2, status=s, control_seq=0, report_seq=0, config={})
                for i, s in ((1, m.WelcomeStatus.RESUMED), (2, m.WelcomeStatus.JOINING))],
    "Reject": [m.Reject(code=12, text="x", retry=retry) for retry in (True, False)], "WindowOver": [None],
    "Overflow": [None],
    "LinkLost": [ev.LinkLost(cause="x"), None], "LinkUp": [ev.LinkUp()], "LaneClosed": [ev.LaneClosed()],
    "StepDone": [ev.StepDone(samples=2, batch_ms=1.0, data_ms=0.0, lr=0.1)],
    "ChunkDone": [ev.ChunkDone(plan_ids=(i,), epoch=0, batches=1, samples=2, epoch_ms=1.0, share_complete_ms=1.0,
                               compute_only_ms=1.0, data_starve_ms=0.0) for i in (7, 9)],
    "DrainPoint": [ev.DrainPoint()],
    "SnapshotTaken": [ev.SnapshotTaken(c, 0, 1.0) for c in (1, 2)],
    "ConsensusStaged": [ev.ConsensusStaged(cycle=c, attempt=0, outcome=m.Outcome.MERGED, total_steps=1)
                        for c in (1, 2)],
    "RoundBroken": [ev.RoundBroken(c, 0, "x", True) for c in (0, 1)],
    "ActionDone": [ev.ActionDone(kind, 1, 0, 1.0) for kind in ("save", "evaluate", "checkpoint", "epoch", "consensus")],
    "TrainingFailed": [ev.TrainingFailed("x")], "LeaveRequested": [ev.LeaveRequested()], "GraceOver": [None],
    "Wish": [ev.Wish(m.IntentKind.EVAL_NOW)],
    "SessionIdMade": [ev.SessionIdMade(1, b"u")], "SessionOverdue": [None],
    "CollectiveDone": [ev.CollectiveDone(cycle=1, attempt=a, total_steps=t) for a, t in ((0, 0), (0, 9), (1, 9))],
    "CollectiveFailed": [ev.CollectiveFailed(1, a, "x", r) for a, r in ((0, True), (1, True), (0, False))],
}  # fmt: skip


@pytest.mark.parametrize("stage", ["inside", "departing", "superseded", "done", "failed"])
def test_both_engines_decide_the_worker_of_a_collective_alike(stage: str) -> None:
    """As above; every phase with the variables of a rank that is, or was, in a call."""

    def make() -> Any:
        rank = Rank(WorkerPhase.TRAINING, collective=True, callbacks=("checkpoint",))
        rank.control(m.Checkpoint, decision_id=1, version=1, target_rank=1, cycle=1)
        rank.sync(1)
        if stage == "departing":
            rank.feed(ev.LeaveRequested())
        if stage == "superseded":
            rank.session(2, cycle=1, attempt=1)
        if stage == "done":
            rank.done(1)
        if stage == "failed":
            rank.broke(1)
        return rank.worker

    def observe(worker: Any) -> object:
        return (worker.take_ready(), worker.snapshot())

    events = {**WORKER_EVENTS, "NewSession": [_new_session(n, c) for n, c in ((1, None), (3, None), (3, 1))],
              "SyncNow": [m.SyncNow(**CONTROL, cycle=c, attempt=0, session_id=s, version=1, global_step=0)
                          for c, s in ((0, 1), (1, 1), (2, 1), (2, 9))]}  # fmt: skip
    assert differences(WORKER, make, events, observe=observe) == []


def _new_session(number: int, cycle: int | None) -> m.NewSession:
    return m.NewSession(**CONTROL, session_id=number, uid=b"u", new_rank=0, new_world_size=1, members=((1, 1),),
                        state_from=m.NO_RANK, attempt=1, cycle=cycle)  # fmt: skip


@pytest.mark.parametrize("stage", ["idle", "requested", "staged", "saving", "mailbox", "asked"])
def test_both_engines_decide_the_worker_alike(stage: str) -> None:
    """As above; the phase is forced, the variables are those of the stage."""

    def make() -> Any:
        brought = ("epoch", "evaluate", "checkpoint") if stage in ("asked", "staged") else ()
        rank = Rank(WorkerPhase.WAITING, "async", callbacks=brought)
        rank.control(m.StartEpoch, cycle=0, plan=PLAN)
        if stage in ("requested", "staged"):
            rank.request(1)
            rank.copied(1)
        if stage == "staged":
            rank.staged(1)
        if stage == "saving":
            rank.control(m.ShutdownWithSave, decision_id=1, reason=m.SaveReason.GRACEFUL, saver=0, stem="x")
        if stage == "asked":
            rank.control(m.ExecuteEvalCallback, schedule_id=1, epoch=0, target_rank=1, version=0, on_consensus=True)
            rank.control(m.Checkpoint, decision_id=1, version=0, target_rank=1)
        if stage == "mailbox":
            rank.control(m.StartEpoch, cycle=0, plan=NEXT)
        return rank.worker

    def observe(worker: Any) -> object:
        return (worker.take_ready(), worker.steps_since_avg, worker.hand, worker.mailbox, worker.throttle, worker.cycle,
                worker.armed, worker.served, worker.asked)

    assert differences(WORKER, make, WORKER_EVENTS, observe=observe) == []


# --- every row --------------------------------------------------------------------------------------------------------


def _runs() -> None:
    """Sixty joined runs of all policies, with faults; always the same ones."""
    for seed in range(60):
        chance = random.Random(seed)
        policy = chance.choice(["sync", "cadence", "async"])
        faults = [Fault(chance.randint(0, 120), kind, chance.randint(0, 2), chance.randint(0, 2))
                  for kind in chance.sample(["crash", "poison", "abort", "leave", "stop", "pause"], 2)]  # fmt: skip
        cohort = Cohort(ranks=3, samples=chance.randint(4, 40), policy=policy)
        cohort.run([chance.randint(0, 9) for _ in range(200)], faults)


def _bad_reports() -> None:
    """What an obeying rank never says."""
    joining = Hand(3)
    joining.say(0, m.Metrics, cycle=0, plan_ids=(1,), epoch=0, batches=1, samples=1, epoch_ms=1.0,
                share_complete_ms=1.0, compute_only_ms=1.0, data_starve_ms=0.0)  # fmt: skip
    joining.say(0, m.Batch, cycle=0, plan_id=1, step_count=1, samples=1, batch_ms=1.0, data_ms=0.0)
    for fields in ({"step_count": 0}, {"samples": 1}, {"plan_id": 9}):
        Hand(2).form().step(0, **fields)
    hand = Hand(2).form()
    asked = Hand(2, num_epochs=0, callbacks=ROLES).form()
    asked.co.actions.duties.append(Duty(CHECKPOINT, 1, 0, 0, 0))
    asked.co.peer_engine.fire(asked.co.peers[0], "CheckpointResult", PEER_EVENTS["CheckpointResult"][0])
    asked.say(0, m.EvalResult, schedule_id=m.FINAL_EVALUATION, epoch=0, version=0, elapsed_ms=1.0)
    hand.co.peer_engine.fire(hand.co.peers[0], "Intent", PEER_EVENTS["Intent"][0])
    for name in ("EvalResult", "SessionIdGenerated", "EpochFnElapsed", "ResourceSample", "Intent", "CheckpointResult",
                 "RoundFailed"):  # fmt: skip
        for event in PEER_EVENTS[name]:
            hand.co.peer_engine.fire(hand.co.peers[0], name, event)
    hand.complete(0, (99,))
    hand.co.peer_engine.fire(hand.co.peers[0], "Promoted", None)
    hand.feed(ev.LinkLost(0, 1, "x"))
    for name, values in PEER_EVENTS.items():
        hand.co.peer_engine.fire(hand.co.peers[0], name, values[0])
    away = Hand(2).form()
    away.step(0)
    for _ in range(2):
        away.co.peer_engine.fire(away.co.peers[0], "Excluded", None)
    away.co.peer_engine.fire(away.co.peers[0], "Batch", batch(step_count=9))
    back = Hand(2).form()
    back.co.peers[0].void_before = 1
    back.step(0, plan_id=99)
    void = Hand(policy="async", samples=400).form()
    void.step(0, 3), void.step(1, 3)
    void.average(refused=(0,))
    void.step(0, cycle=0)


def _bad_cycles() -> None:
    """Evidence at the wrong time, other bytes, attempts without end, and every event after a stall."""
    for stage in range(5):
        for name, values in CYCLE_EVENTS.items():
            for value in values:
                hand = _in_cycle(stage)
                hand.co.cycle_engine.fire(hand.co.cycle, name, value)
    for name, values in CYCLE_EVENTS.items():
        idle, stalled = Hand(2, min_ranks=2).form(), pending()
        idle.co.cycle_engine.fire(idle.co.cycle, name, values[-1])
        idle.co.cycle_engine.fire(idle.co.cycle, name, values[0])
        stalled.tick(302)
        stalled.co.cycle_engine.fire(stalled.co.cycle, name, values[0])
    for event in (ev.RoundAborted(KEY, 32, "x"), failed(attempt=32)):
        hand = pending()
        hand.co.cycle.attempt = 32
        hand.co.cycle_engine.fire(hand.co.cycle, type(event).__name__, event)
    split = pending()
    split.ready(0), split.ready(1)
    split.reduce(digest=b"a" * 16)
    split.ack(0, digest=b"b" * 16), split.ack(1, digest=b"c" * 16)
    old = pending()
    old.ready(0), old.ready(1)
    old.reduce()
    old.ack(0), old.ack(0)
    estranged = Hand(2, initial_state="check")
    for rank, digest in ((0, b"b" * 16), (1, b"c" * 16)):
        estranged.ready(rank), estranged.ack(rank, outcome=m.Outcome.OBSERVER, digest=digest)


def _sessions() -> None:
    """What ends a communicator, and acks that no obeying rank sends."""
    for stage in ("inside", "acked", "renewing"):
        for name, values in CYCLE_EVENTS.items():
            for value in values:
                hand = _in_cycle(stage)
                hand.co.cycle_engine.fire(hand.co.cycle, name, value)
    for fields in ({"step_count": 0}, {"total_steps": 1}):
        joint(2).ack(0, **fields)


def _bad_ends() -> None:
    """Runs that never form, ranks that do not leave, saves that take too long."""
    Hand(0, target_ranks=1).tick(602)
    Hand(1, target_ranks=2, min_ranks=2).tick(602)
    Hand(2, num_epochs=0).form().tick(31)
    Hand(2, num_epochs=0, callbacks=ROLES).form().tick(301)
    slow = Hand(2, max_failure=1, save_path="x").form()
    slow.feed(ev.LinkLost(1, 1, "x"))
    assert slow.co.run.save is not None
    slow.say(0, m.CheckpointResult, decision_id=slow.co.run.save.decision_id, version=0, elapsed_ms=1.0, error="full")
    slow.tick(62)
    for make in (lambda: Hand(1, target_ranks=2), lambda: Hand(2).form(), lambda: Hand(2, num_epochs=0).form(),
                 lambda: Hand(2, num_epochs=0, callbacks=ROLES).form()):
        for name in RUN.events:
            hand = make()
            hand.co.run_engine.fire(hand.co.run, name, None)
    over = Hand(0, target_ranks=1)
    over.tick(602)
    for name in RUN.events:
        over.co.run_engine.fire(over.co.run, name, None)


def _lost_links() -> None:
    """Links of a run with a grace and of one without, and what a pending cycle makes of a rank that is back."""
    for knobs in ({}, {"link_grace_s": 9.0}):
        for name in ("LinkLost", "SendFailed"):
            for value in (*reversed(PEER_EVENTS[name]), PEER_EVENTS[name][0]):
                hand = Hand(2, **knobs).form()
                hand.co.peers[0].link = 3
                for _ in range(2):
                    hand.co.peer_engine.fire(hand.co.peers[0], name, value)
    hand = Hand(2, link_grace_s=9.0).form()
    sent = hand.co.peers[0].control_seq
    for claim in (attrs.evolve(CLAIM, control_seq=sent), AHEAD):
        event = ev.HelloReceived(9, hello(60, wanted_rank=0, resume=claim))
        hand.co.peer_engine.fire(hand.co.peers[0], "Claim", event)
    for attempt in (0, 32):
        hand = pending()
        hand.co.cycle.attempt = attempt
        hand.co.cycle_engine.fire(hand.co.cycle, "Back", Back(0, attrs.evolve(TORN, attempt=attempt)))
    hand = pending()
    for name in ("Restarted", "Judge"):
        hand.co.cycle_engine.fire(hand.co.cycle, name, None)
    inside = joint(2)
    for name, value in (("Back", Back(0, TORN)), ("Restarted", None), ("Judge", None)):
        inside.co.cycle_engine.fire(inside.co.cycle, name, value)


def test_every_row_of_the_coordinators_tables_is_taken() -> None:
    """Architecture 8.1: a row that nothing takes is one that nobody has seen work."""
    with counted(("peer", "cycle", "run")) as taken:
        for story in (_runs, _bad_reports, _bad_cycles, _sessions, _bad_ends, _lost_links):
            story()
    missing = [(table.name, row.source, row.event, row.guards) for table in (PEER, CYCLE, RUN)
               for row in untaken(table, taken)]  # fmt: skip

    assert missing == []
