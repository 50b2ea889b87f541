"""What comes with every step, plan and cycle of each rank costs the same whatever the number of ranks (C-4).

Counted, not timed: each bytecode that the coordinator executes for one report. A loop over ranks, or a sum over them,
shows in the count as soon as there are more of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from paceline.core import messages as m

from support.hand import Hand

FEW, MANY = 4, 32
CHUNK = 12
"""Batches of the first chunks of an async rank: a tenth of its part of the epoch (D-6)."""


class Counted(Hand):
    """A hand that counts the bytecodes of the coordinator."""

    executed = 0

    def count(self, act: Callable[[], object]) -> int:
        """How many are executed for what is fed by `act`."""
        before, self.executed = sys.gettrace(), 0
        sys.settrace(self._entered)
        try:
            act()
        finally:
            sys.settrace(before)
        return self.executed

    def _entered(self, frame: FrameType, what: str, argument: object) -> Any:
        if "/core/" not in frame.f_code.co_filename and "paceline table" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._executed

    def _executed(self, frame: FrameType, what: str, argument: object) -> Any:
        self.executed += what == "opcode"
        return self._executed


def costs(ranks: int, policy: str) -> dict[str, int]:
    """Bytecodes for each report of the third rank that makes it: the first one compiles and remembers things, and is
    waited for by nobody (M-16)."""
    hand = Counted(ranks, samples=2 * 10 * CHUNK * ranks, policy=policy, anchor=50, num_epochs=3, digest=False)
    hand.form()
    reports: dict[str, Callable[[int], object]] = {
        "Batch": hand.step,
        "Heartbeat": lambda rank: hand.say(rank, m.Heartbeat, step_count=1, state="x"),
        "LrUpdate": lambda rank: hand.say(rank, m.LrUpdate, lr=0.1, position=1),
    }
    if policy == "async":
        for rank in range(3):
            hand.step(rank, CHUNK - 1)
        reports["Metrics"] = hand.complete
    found = {}
    for name, say in reports.items():
        say(0)
        for rank in (1, 2):  # Python 3.12 begins to tell of bytecodes with the second function that traces
            found[name] = hand.count(lambda say=say, rank=rank: say(rank))  # type: ignore[misc]
    if policy == "async":
        assert [len(hand.co.book.holdings(rank).plans) for rank in range(ranks)] == [2] * ranks  # a new one went out
        assert hand.co.book.holdings(2).plans[-1].plan.plan_id > 2 * ranks
    return found


@pytest.mark.parametrize("policy", ["cadence", "async"])
def test_a_report_costs_the_same_among_few_and_among_many(policy: str) -> None:
    """C-4: no scan over ranks, also not behind the end of a plan (D-9)."""
    assert costs(FEW, policy) == costs(MANY, policy)


def test_a_cycle_costs_each_rank_the_same_among_few_and_among_many() -> None:
    """C-4, C-6, C-7: what one rank says of a cycle looks at this rank alone, as long as others are still owing."""

    def evidence(ranks: int) -> tuple[int, int]:
        hand = Counted(ranks, samples=60 * ranks, anchor=3, digest=False)
        hand.form()
        for rank in range(ranks):
            hand.step(rank, 3)
        assert hand.co.cycle.pending
        for rank in range(2):
            hand.ready(rank)
        ready = hand.count(lambda: hand.ready(2))
        for rank in range(3, ranks):
            hand.ready(rank)
        hand.reduce()
        for rank in range(2):
            hand.ack(rank)
        return ready, hand.count(lambda: hand.ack(2))

    assert evidence(FEW) == evidence(MANY)


@pytest.mark.parametrize("pending", [False, True], ids=["window", "cycle"])
def test_an_explanation_costs_no_more_for_each_rank_among_many(pending: bool) -> None:
    """O-4: who is waited for is looked up once, however many wait: a driver asks each second while somebody does."""

    def each(ranks: int) -> float:
        hand = Counted(ranks, samples=20 * ranks, anchor=4, num_epochs=3, digest=False)
        hand.form()
        for rank in range(ranks if pending else ranks // 2):
            hand.step(rank, 4)
            hand.complete(rank)
        assert hand.co.cycle.pending is pending
        hand.count(hand.co.explain)
        return hand.count(hand.co.explain) / ranks

    assert 0 < each(MANY) <= each(FEW)
