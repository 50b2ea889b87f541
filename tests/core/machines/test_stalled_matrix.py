"""Every kind of event after a stall, in both flavours (C-44): what serves the save is served, all else changes nothing.

What stays of any valid frame is that it came: the numbers of its lane, and that its sender lives. Both serve the save
too, since a saver that falls silent is replaced (M-52, M-17).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.events import CoordinatorEvent
from paceline.core.phases import CyclePhase, RunPhase
from paceline.core.roles import ROLES

from support.hand import Hand, messages
from support.hand_collective import Joint
from support.words import hello

TOLD = (fx.Alert, fx.Refuse, fx.Emit)
"""What may be said to people, or to who knocks; it changes nothing."""


def stalled(make: type[Hand] = Hand) -> Hand:
    """A cycle of three ranks that nobody has acknowledged until its ceiling. In the flavour of copies under async, so
    that plans are in flight and a step is as good as any."""
    flavour: dict[str, Any] = {} if make is Joint else {"policy": "async"}
    soon: dict[str, Any] = {"reduce_ceiling_s": 30.0, "beacon_s": 25.0}  # few ticks
    hand = make(3, samples=400, save_path="runs", callbacks=ROLES, **flavour, **soon).form()
    for rank in range(3):
        hand.step(rank, 3)
        if make is Joint:
            hand.complete(rank)
    assert hand.co.cycle.pending
    hand.tick(30.5)
    assert hand.co.cycle.phase == CyclePhase.STALLED and hand.co.save_issued
    assert hand.co.run.phase == RunPhase.SHUTTING_DOWN
    hand.co.fenced.clear(), hand.co.refused.clear()
    return hand


def held(hand: Hand) -> tuple[int, ...]:
    """The plans of rank 0, as it would name the oldest."""
    plans = hand.co.book.holdings(0).plans
    return (plans[0].plan.plan_id,) if plans else (99,)


def step(hand: Hand) -> list[Any]:
    """A step on the plan in hand, or on one that it does not have."""
    return hand.say(0, m.Batch, cycle=0, plan_id=held(hand)[0], step_count=4, samples=2, batch_ms=1.0, data_ms=0.1)


def result(hand: Hand, error: str | None = None, decision_id: int | None = None) -> list[Any]:
    assert hand.co.run.save is not None
    number = hand.co.run.save.decision_id if decision_id is None else decision_id
    return hand.say(0, m.CheckpointResult, decision_id=number, version=0, elapsed_ms=1.0, error=error)


def operate(kind: ev.Operator) -> Callable[[Hand], list[Any]]:
    return lambda hand: hand.feed(ev.OperatorRequest(kind))


def key(hand: Hand) -> m.RoundKey:
    return hand.co.cycle.key


NOTHING: dict[str, Callable[[Hand], list[Any]]] = {
    "Batch": step,
    "Metrics": lambda hand: hand.complete(0, held(hand)),
    "SyncAck": lambda hand: hand.ack(0),
    "SnapshotReady": lambda hand: hand.ready(0),
    "RoundFailed": lambda hand: hand.say(0, m.RoundFailed, cycle=1, attempt=0, round=m.RoundKind.PARAMS, cause="x",
                                         retryable=True),
    "RoundFailed for good": lambda hand: hand.say(0, m.RoundFailed, cycle=1, attempt=0, round=m.RoundKind.PARAMS,
                                                  cause="x", retryable=False),
    "LrUpdate": lambda hand: hand.say(0, m.LrUpdate, lr=0.5, position=3),
    "Heartbeat": lambda hand: hand.say(0, m.Heartbeat, step_count=3, state="x"),
    "Intent to stop": lambda hand: hand.say(0, m.Intent, intent_id=1, kind=m.IntentKind.STOP_NOW),
    "Intent to save": lambda hand: hand.say(0, m.Intent, intent_id=1, kind=m.IntentKind.CHECKPOINT_NOW),
    "Intent to evaluate": lambda hand: hand.say(0, m.Intent, intent_id=1, kind=m.IntentKind.EVAL_NOW),
    "CheckpointResult of another decision": lambda hand: result(hand, decision_id=77),
    "EvalResult": lambda hand: hand.say(0, m.EvalResult, schedule_id=7, epoch=0, version=0, metric=1.0, count=1,
                                        elapsed_ms=1.0),
    "EpochFnElapsed": lambda hand: hand.say(0, m.EpochFnElapsed, epoch=0, elapsed_ms=3.0),
    "SessionIdGenerated": lambda hand: hand.say(0, m.SessionIdGenerated, session_id=2, uid=b"u"),
    "ResourceSample": lambda hand: hand.say(0, m.ResourceSample, sample={"gpu": 0.5}),
    "RoundProgress": lambda hand: hand.feed(ev.RoundProgress(key(hand), 0, 9, True)),
    "RoundReduced": lambda hand: hand.feed(ev.RoundReduced(key(hand), 0, (0, 1, 2), (), True, b"d" * 16)),
    "RoundAborted": lambda hand: hand.feed(ev.RoundAborted(key(hand), 0, "torn")),
    "Tick": lambda hand: hand.feed(ev.Tick()),
    "LinkUp": lambda hand: hand.feed(ev.LinkUp(0, 1)),
    "LinkLost of a life that is over": lambda hand: hand.feed(ev.LinkLost(0, 9, "reset")),
    "SendFailed of a life that is over": lambda hand: hand.feed(ev.SendFailed((0, 9, 1))),
    "ProcessExited of a life that is over": lambda hand: hand.feed(ev.ProcessExited(0, 9, 1)),
    "HelloReceived": lambda hand: hand.feed(ev.HelloReceived(9, hello(400))),
    "CallbackFailed": lambda hand: hand.feed(ev.CallbackFailed("hook", "it raised")),
    "OperatorRequest start": operate(ev.Operator.START), "OperatorRequest stop": operate(ev.Operator.STOP),
    "OperatorRequest checkpoint": operate(ev.Operator.CHECKPOINT), "OperatorRequest eval": operate(ev.Operator.EVAL),
}  # fmt: skip
SERVED: dict[str, Callable[[Hand], list[Any]]] = {
    "Exiting": lambda hand: hand.say(0, m.Exiting, reason="done"),
    "CheckpointResult": result,
    "LinkLost": lambda hand: hand.feed(ev.LinkLost(0, 1, "reset")),
    "SendFailed": lambda hand: hand.feed(ev.SendFailed((0, 1, hand.co.peers[0].control_seq))),
    "ProcessExited": lambda hand: hand.feed(ev.ProcessExited(0, 1, 1)),
    "ConsensusSaved": lambda hand: hand.feed(ev.ConsensusSaved(hand.co.actions.ordered[-1].decision_id, 0, "full")),
    "MetaWritten": lambda hand: hand.feed(ev.MetaWritten(hand.co.actions.ordered[-1].decision_id, 0)),
}  # fmt: skip
"""Beside the three of the rule: a failed send and the end of a process are said of a link and of a life too, and the
files are the averager's part of the save (M-52)."""


def state(hand: Hand) -> dict[str, Any]:
    """Everything but the lane of rank 0, by name."""
    peer = hand.co.peers[0]
    kept = peer.report_seq
    peer.report_seq = 0
    hand.co.fenced.clear(), hand.co.refused.clear()
    snapshot = hand.co.snapshot()
    peer.report_seq = kept
    return dict(snapshot[5])


def test_no_kind_of_event_is_left_out() -> None:
    """C-44: "anything" is all that a coordinator can be told."""
    kinds = {kind.__name__ for kind in CoordinatorEvent.__args__} - {"Received"}
    reports = {report.__name__ for report in m.REPORTS}
    assert {name.split(" ")[0] for name in (*NOTHING, *SERVED)} == kinds | reports


@pytest.mark.parametrize("make", [Hand, Joint])
@pytest.mark.parametrize("name", NOTHING)
def test_what_does_not_serve_the_save_changes_nothing(name: str, make: type[Hand]) -> None:
    """C-44: no count, book, role, wish, rate or decision; nothing is sent, armed, handed out or called."""
    hand = stalled(make)
    before, violations = state(hand), hand.co.violations
    effects = NOTHING[name](hand)

    after = state(hand)
    assert [field for field in before if before[field] != after[field]] == [] and hand.co.violations == violations
    assert not [effect for effect in effects if not isinstance(effect, TOLD)]
    assert not [e for e in effects if isinstance(e, fx.Emit) and e.name not in ("Refused", "Custom")]


@pytest.mark.parametrize("name", SERVED)
def test_what_serves_the_save_is_served(name: str) -> None:
    """C-44, M-52: and the cycle stays what it was."""
    hand = stalled()
    before = state(hand)
    SERVED[name](hand)
    after = state(hand)
    assert any(before[field] != after[field] for field in before) and hand.co.cycle.phase == CyclePhase.STALLED


def test_an_error_or_the_death_of_the_saver_names_the_next_one() -> None:
    """C-44, M-52: the same decision, another saver; when all have saved, they are shut down."""
    hand = stalled()
    again = messages(result(hand, "disk full"), m.ShutdownWithSave)
    assert [(save.rank, save.saver) for save in again] == [(1, 1)]
    again = messages(hand.feed(ev.LinkLost(1, 1, "reset")), m.ShutdownWithSave)
    assert [(save.rank, save.saver) for save in again] == [(2, 2)]
    assert hand.co.run.save is not None
    effects = hand.say(2, m.CheckpointResult, decision_id=hand.co.run.save.decision_id, version=0, elapsed_ms=1.0)
    assert {stop.rank for stop in messages(effects, m.Shutdown)} == {0, 2}
