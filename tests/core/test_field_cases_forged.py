"""Reports that claim what is not so: more than was given, another rank's work, a role one does not have (F77).

The weight of an average is the steps inside a contribution; what may be claimed there is tested in `test_round.py` and
`tests/backends/test_star.py`. Bytes that are no such message never come so far (`tests/transports/test_codec.py`).
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import events as ev
from paceline.core import messages as m

from support import duties
from support.hand import Hand, messages, named
from support.hand_collective import joint

STEP: dict[str, Any] = {"cycle": 0, "step_count": 1, "samples": 2, "batch_ms": 1.0, "data_ms": 0.0}
DONE: dict[str, Any] = {"cycle": 0, "epoch": 0, "batches": 1, "samples": 2, "epoch_ms": 1.0, "share_complete_ms": 1.0,
                        "compute_only_ms": 1.0, "data_starve_ms": 0.0}  # fmt: skip
ACK: dict[str, Any] = {"attempt": 0, "step_count": 3, "shipped_steps": 3, "total_steps": 6,
                       "outcome": m.Outcome.MERGED, "state_complete": True}  # fmt: skip
EVALUATED: dict[str, Any] = {"schedule_id": 1, "epoch": 0, "version": 0, "elapsed_ms": 1.0, "metric": 0.99, "count": 10}


def plan_of(run: Hand, rank: int) -> int:
    """The plan that a rank has in hand."""
    head = run.co.book.head(rank)
    assert head is not None
    return head.plan.plan_id


FORGED: dict[str, tuple[Any, str]] = {
    "a step of 4,000 samples": (lambda run: run.say(1, m.Batch, plan_id=plan_of(run, 1), **{**STEP, "samples": 8000}),
                                "refused"),
    "no samples": (lambda run: run.say(1, m.Batch, plan_id=plan_of(run, 1), **{**STEP, "samples": 0}), "refused"),
    "fewer than none": (lambda run: run.say(1, m.Batch, plan_id=plan_of(run, 1), **{**STEP, "samples": -2}), "refused"),
    "a step count of the past": (lambda run: run.say(1, m.Batch, plan_id=plan_of(run, 1), **{**STEP, "step_count": 0}),
                                 "refused"),
    "the plan of another rank": (lambda run: run.say(1, m.Batch, plan_id=plan_of(run, 0), **STEP), "ended"),
    "a plan of nobody": (lambda run: run.say(1, m.Batch, plan_id=2**63, **STEP), "ended"),
    "the end of another's plan": (lambda run: run.say(1, m.Metrics, plan_ids=(plan_of(run, 0),), **DONE), "fenced"),
    "an ack of a cycle to come": (lambda run: run.say(1, m.SyncAck, cycle=7, **ACK), "fenced"),
    "an ack of a cycle that is over": (lambda run: run.say(1, m.SyncAck, cycle=0, **ACK), "fenced"),
    "a result without the role": (lambda run: run.say(1, m.EvalResult, **EVALUATED), "refused"),
    "a save without the role": (lambda run: run.say(1, m.CheckpointResult, decision_id=1, version=0, elapsed_ms=1.0),
                                "refused"),
    "an order of the coordinator": (lambda run: run.feed(ev.Received(m.Checkpoint(
        **stamp(run), decision_id=1, version=0, target_rank=0, cycle=None, stem=None))), "ended"),
    "the end of the run": (lambda run: run.feed(ev.Received(m.Shutdown(
        **stamp(run), reason=m.SaveReason.GRACEFUL))), "ended"),
}  # fmt: skip


def stamp(run: Hand) -> dict[str, Any]:
    """Of rank 1, in its life."""
    return {"run_id": run.co.config.run_id, "generation": 1, "rank": 1, "incarnation": 1}


def books(run: Hand) -> tuple[Any, ...]:
    """What a lie could have changed: versions, steps of either rank, where every batch is, who votes."""
    co = run.co
    held = [(plan.plan.plan_id, plan.done) for rank in (0, 1) for plan in co.book.holdings(rank).plans]
    free = [tuple(pool.free_ranges()) for pool in co.book.pools.values()]
    cycle = (co.cycle.phase, co.cycle.version, co.cycle.global_step, co.cycle.finished)
    return cycle, [co.peers[rank].steps for rank in (0, 1)], held, free


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_report_is_counted_and_moves_nothing(name: str) -> None:
    """F77, N-6, N-7: each under its own reason. What cannot be ends the session of who said it, what is implausible or
    late does not; the average of the other rank is what it would be."""
    forge, outcome = FORGED[name]
    run = duties.hand()
    before = books(run)
    effects = forge(run)
    counted = {"fenced": sum(run.co.fenced.values()), "refused": sum(run.co.refused.values()),
               "ended": run.co.violations}  # fmt: skip
    assert counted == {**dict.fromkeys(counted, 0), outcome: 1}
    assert run.co.voters == ([0] if outcome == "ended" else [0, 1])
    assert not messages(effects, m.EvalBroadcast) and not named(effects, "Cycle")
    if outcome != "ended":  # then the batches of the liar are free again
        assert books(run) == before
    while not run.co.cycle.pending:
        for rank in run.co.voters:
            head = run.co.book.head(rank)
            if head is not None:
                run.step(rank, head.slice.count - head.done)
                run.complete(rank)
    (cycle,) = named(run.average(), "Cycle")
    assert cycle["merged"]["0"] > 0 and run.co.cycle.version == 1


@pytest.mark.parametrize("total", [2**64 - 1, 401, 2])
def test_a_forged_total_of_a_call_ends_who_said_it(total: int) -> None:
    """F77, C-6, W-14: the first ack of a call says for all how many steps are in it; more than there is to train are in
    none. The others come out of the call as they did, and the total is what they say."""
    run = joint(3, samples=400)
    run.ack(1, total_steps=total)
    assert run.co.voters == [0, 2] and run.co.violations == 1 and run.co.cycle.pending
    run.ack(0, total_steps=9)
    (cycle,) = named(run.ack(2), "Cycle")
    assert cycle["merged"] == {"0": 3, "1": 3, "2": 3} and run.co.cycle.global_step == 9
