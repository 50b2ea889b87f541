"""Faults that users of comparable systems have met with checkpoints: what is decided about them; ids in the docstrings.

What becomes of the files is in `tests/backends/test_killed_saver.py` and `tests/end_to_end/test_full_disk.py`.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import WorkerPhase
from paceline.core.roles import ROLES

from support import duties
from support.field import QUICK, pass_time
from support.hand import alerts, messages, named
from support.rank import Rank

ELSEWHERE = "runs/checkpoint.v1"


@pytest.mark.parametrize("seconds", [0.0, 0.7, 100.0])
def test_the_place_of_a_checkpoint_is_the_coordinators_and_no_clock_is_in_it(seconds: float) -> None:
    """F57, K-8: every message that speaks of a save has the same path, whenever it is said."""
    run = duties.hand(save_path="runs")
    pass_time(run, seconds)
    (called,) = messages(duties.armed(run, duties.SAVE), m.Checkpoint)
    pass_time(run, 3.0)
    (written,) = [effect for effect in run.average() if isinstance(effect, fx.SaveConsensus)]

    assert called.stem == written.stem == ELSEWHERE


@pytest.mark.parametrize(("message", "order"), [(m.Checkpoint, fx.FireCallback), (m.SaveConsensusModel, fx.Save)])
def test_a_rank_saves_where_it_is_told(message: Any, order: Any) -> None:
    """F57, W-18: it makes no path of its own, whatever the hour."""
    rank = Rank(WorkerPhase.WAITING, callbacks=ROLES)
    ordered = rank.control(message, decision_id=1, version=0, target_rank=1, cycle=None, stem=ELSEWHERE)

    assert [effect.stem for effect in ordered if isinstance(effect, order)] == [ELSEWHERE]


@pytest.mark.parametrize("takes", [0.0, 40.0, 200.0])
def test_a_save_of_one_rank_leaves_the_other_nothing_to_answer(takes: float) -> None:
    """F58, K-9, M-11: only its target hears of it. While that writes the other one ships to the next average, which
    waits; nobody is taken for dead or slow, and the one result ends the duty."""
    run = duties.hand(save_path="runs", laggards="exclude", suspect_initial_s=5.0, role_limit_s=300.0,
                      **{**QUICK, "reduce_ceiling_s": 2000.0, "window_ceiling_s": 4000.0})  # fmt: skip
    (order,) = messages(duties.armed(run, duties.SAVE), m.Checkpoint)
    run.average()
    busy, other = order.target_rank, 1 - order.target_rank
    duties.arm(run)
    run.ready(other), run.feed(ev.RoundProgress(run.co.cycle.key, other, 100, True))
    effects = pass_time(run, takes)

    assert not [name for name in ("Suspect", "Died", "Excluded", "Stalled") if named(effects, name)]
    assert run.co.alive == [0, 1] and run.co.actions.under_way(busy) and run.co.cycle.pending
    assert not alerts(duties.result(run, order, elapsed_ms=1000 * takes), "checkpoint_failed")
    assert not run.co.actions.under_way(busy)
    assert duties.result(run, order) == [] and run.co.refused, "a second result ends nothing"
    run.ready(busy), run.reduce()
    run.ack(0), run.ack(1)
    assert run.co.cycle.version == 2


@pytest.mark.parametrize("order", list(permutations([float("nan"), 0.9, float("-inf"), 0.7])))
def test_who_keeps_the_best_of_what_it_hears_never_keeps_what_is_no_number(order: tuple[float, ...]) -> None:
    """F60, K-14: in whatever order they come, the ranks and the user's hook are told of finite ones alone; the others
    are on record, as evaluations without a metric."""
    run = duties.hand()
    told: list[float | None] = []
    hooked: list[float] = []
    recorded: list[float | None] = []
    for metric in order:
        (asked,) = messages(duties.armed(run, duties.EVAL), m.ExecuteEvalCallback)
        run.average()
        effects = duties.evaluated(run, asked, metric=metric)
        told += [message.metric for message in messages(effects, m.EvalBroadcast, 0)]
        hooked += [effect.arguments[3] for effect in effects if isinstance(effect, fx.Invoke)]
        recorded += [facts["metric"] for facts in named(effects, "Evaluated")]

    finite = [metric for metric in order if metric in (0.9, 0.7)]
    assert told == hooked == finite
    assert recorded == [metric if metric in finite else None for metric in order]
