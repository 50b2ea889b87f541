"""Runs fed by hand in which every rank brought every callback, for the tests of section 12."""

from __future__ import annotations

from typing import Any

from paceline.core import messages as m
from paceline.core.roles import ROLES

from .hand import Hand


def hand(ranks: int = 2, **knobs: Any) -> Hand:
    """A run in training whose ranks brought every callback; 200 batches an epoch unless said otherwise."""
    return Hand(ranks, **{"samples": 400, "callbacks": ROLES, **knobs}).form()


def wish(run: Hand, rank: int, kind: m.IntentKind, number: int = 1) -> list[Any]:
    """An Intent of a rank."""
    return run.say(rank, m.Intent, intent_id=number, kind=kind)


def armed(run: Hand, kind: m.IntentKind, rank: int = 1) -> list[Any]:
    """A rank's wish, then steps until the next average is armed; gives what that led to."""
    wish(run, rank, kind, run.co.peers[rank].last_intent + 1)
    return arm(run)


def arm(run: Hand) -> list[Any]:
    """Everyone does its part."""
    effects: list[Any] = []
    for rank in list(run.co.voters):
        head = run.co.book.head(rank)
        assert head is not None
        effects += run.step(rank, head.slice.count - head.done)
        effects += run.complete(rank)
    assert run.co.cycle.pending
    return effects


def result(run: Hand, order: m.Checkpoint, error: str | None = None, elapsed_ms: float = 5.0) -> list[Any]:
    """The answer of a checkpoint's target."""
    return run.say(order.target_rank, m.CheckpointResult, decision_id=order.decision_id, version=order.version,
                   elapsed_ms=elapsed_ms, error=error)  # fmt: skip


def evaluated(run: Hand, order: m.ExecuteEvalCallback, **fields: Any) -> list[Any]:
    """The answer of an evaluation's target."""
    known: dict[str, Any] = dict(schedule_id=order.schedule_id, epoch=order.epoch, version=order.version,
                                 elapsed_ms=5.0, metric=0.5, count=10)  # fmt: skip
    return run.say(order.target_rank, m.EvalResult, **{**known, **fields})


SAVE, EVAL = m.IntentKind.CHECKPOINT_NOW, m.IntentKind.EVAL_NOW
