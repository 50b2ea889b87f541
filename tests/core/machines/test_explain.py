"""Every code of O-4: when it is said, until when it holds, whom it names and by which numbers."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from paceline.core import events as ev
from paceline.core import explain as module
from paceline.core import messages as m
from paceline.core.detector import Limits
from paceline.core.explain import Reason

from support.hand import Hand

FIRST_STEP_S, INITIAL_S, CEILING_S = 1800.0, 60.0, 300.0


def trained(**knobs: Any) -> Hand:
    """Two ranks that have each made a step of their three."""
    hand = Hand(2, samples=400, **knobs).form()
    hand.step(0)
    hand.step(1)
    return hand


def armed(**knobs: Any) -> Hand:
    """A pending cycle of two that owe their snapshots."""
    hand = trained(**knobs)
    for rank in (0, 1):
        hand.step(rank, 2)
        hand.complete(rank)
    return hand


def only(hand: Hand, rank: int | None = None) -> Reason:
    """The one reason there is."""
    (reason,) = hand.co.explain(rank)
    return reason


def test_all_codes_are_said_somewhere() -> None:
    """O-4: the codes are stable, and none of them is left out."""
    assert set(re.findall(r"\bE\d\d\b", inspect.getsource(module))) == {f"E{number:02}" for number in range(1, 28)}


def test_who_trains_has_what_a_step_of_it_takes() -> None:
    """O-4 E02, E01: the first step has its own limit, each later one what was learned."""
    hand = Hand(2, samples=400).form()
    first = only(hand, 0)
    assert (first.code, first.rule, first.until) == ("E02", "M-11", hand.co.peers[0].last_progress + FIRST_STEP_S)
    hand.step(0)
    later = only(hand, 0)
    assert (later.code, later.rule, later.until) == ("E01", "G-1", hand.now + INITIAL_S)
    assert (later.numbers["steps"], later.numbers["quota"], later.numbers["deadline"]) == (1, 3, INITIAL_S)


def test_who_holds_plans_it_has_trained_or_none_is_told_apart() -> None:
    """O-4 E05, E03: the Metrics are missing, or the budget is used."""
    hand = trained()
    hand.step(0, 2)
    assert (only(hand, 0).code, only(hand, 0).waiting_for) == ("E05", (0,))
    hand.complete(0)
    held = only(hand, 0)
    assert (held.code, held.numbers["steps"], held.numbers["quota"], held.waiting_for) == ("E03", 3, 3, (1,))


def test_a_lead_is_told_with_its_limit() -> None:
    """O-4 E08."""
    hand = Hand(2, samples=400, max_batch_diff=1).form()
    hand.step(0, 2)
    assert (only(hand, 0).code, dict(only(hand, 0).numbers)) == ("E08", {"lead": 2, "limit": 1})


def test_each_stage_of_a_cycle_until_what_was_learned_of_it() -> None:
    """O-4 E09 to E12, E07, M-10: a rank whose part is done is parked for who still owes."""
    hand = armed()
    key = hand.co.cycle.key
    for rank in (0, 1):
        assert (only(hand, rank).code, only(hand, rank).until) == ("E09", hand.now + INITIAL_S)
    hand.ready(0)
    hand.feed(ev.RoundProgress(key, 0, 8, complete=False))
    upload = only(hand, 0)
    assert hand.co.schema is not None
    size = sum(entry.nbytes for entry in hand.co.schema.riding())
    assert (upload.code, upload.until, upload.waiting_for) == ("E10", hand.now + INITIAL_S, (0,))
    assert (upload.numbers["bytes"], upload.numbers["of"]) == (8, size) and f"8 of {size}" in str(upload)
    hand.feed(ev.RoundProgress(key, 0, size, complete=True))
    assert (only(hand, 0).code, only(hand, 0).waiting_for) == ("E07", (1,))
    hand.ready(1)
    hand.feed(ev.RoundProgress(key, 1, size, complete=True))
    for rank in (0, 1):
        assert (only(hand, rank).code, only(hand, rank).until) == ("E11", hand.now + CEILING_S)
    hand.reduce()
    hand.ack(0)
    assert (only(hand, 1).code, only(hand, 1).until) == ("E12", hand.now + INITIAL_S)
    assert (only(hand, 0).code, only(hand, 0).waiting_for) == ("E07", (1,))


def test_a_suspect_is_told_with_what_it_was_judged_by() -> None:
    """O-4 E14, E15: median, deviation and count."""
    hand = armed()
    durations = (4.0, 5.0, 7.0)
    remembered = hand.co.peers[1].climb.durations[hand.co.cycle.first_stage]
    remembered.clear()
    remembered.extend(durations)
    known = hand.co.policies.detector.deadline(durations, Limits(initial=60.0, floor=5.0, most=150.0, suspect_k=6.0))
    since = hand.now
    hand.tick(known.seconds + 1.0)
    late = only(hand, 1)
    assert (late.code, late.rule, late.until) == ("E14", "M-12", since + 2 * known.seconds)
    assert dict(late.numbers) == {"deadline": 11.0, "median": 5.0, "deviation": 1.0, "count": 3}
    hand.tick(known.seconds)
    asked = only(hand, 1)
    assert (asked.code, asked.numbers["nudges"], asked.until) == ("E15", 1, since + 3 * known.seconds)


def test_refusals_in_a_row_are_told() -> None:
    """O-4 E27, D-12."""
    hand = armed()
    hand.average(refused=(1,))
    told = [reason for reason in hand.co.explain(1) if reason.code == "E27"]
    assert [(reason.rule, dict(reason.numbers)) for reason in told] == [("D-12", {"refused": 1, "limit": 3})]
    assert not [reason for reason in hand.co.explain(0) if reason.code == "E27"]


@pytest.mark.parametrize("path", [None, "runs"])
def test_a_stalled_run_says_what_was_saved_and_who_is_still_there(path: str | None) -> None:
    """O-4 E26, E25, I39: no time ends the first, an operator does."""
    hand = armed(save_path=path)
    hand.tick(CEILING_S + 1.0)
    stalled, exits = hand.co.explain()
    assert (stalled.code, stalled.rule, stalled.until) == ("E26", "C-16", None) and stalled.action in str(stalled)
    assert ("runs/reduce_stall" in stalled.what) is (path is not None) and ("resume" in stalled.action) is bool(path)
    assert (exits.code, exits.rule, exits.waiting_for) == ("E25", "M-53", (0, 1)) and exits.until is not None
    for rank in (0, 1):
        hand.feed(ev.LinkLost(rank, 1, "gone"))
    assert [reason.code for reason in hand.co.explain()] == ["E26"] and hand.co.finished


def test_who_is_missing_while_a_run_forms() -> None:
    """O-4 E19: until the window closes, or until it fails; an operator may start what is not automatic."""
    hand = Hand(1, target_ranks=2, min_ranks=1, start="hybrid")
    reason = only(hand)
    assert (reason.code, reason.until, reason.action != "") == ("E19", 50.0 + 300.0, True)
    assert dict(reason.numbers) == {"here": 1, "wanted": 2, "min_ranks": 1}
    alone = only(Hand(1, target_ranks=2, min_ranks=2))
    assert (alone.until, alone.action) == (50.0 + 600.0, "")


def test_who_has_come_and_gone_while_a_run_forms_is_waited_for_as_long_as_the_run_says() -> None:
    """O-4 E19, M-54: with nobody alive `rejoin_window_s` ends it, which is sooner than the join timeout."""
    hand = Hand(1, target_ranks=2, min_ranks=1, rejoin_window_s=20.0)
    hand.feed(ev.LinkLost(0, 1, "gone"))
    reason = only(hand)
    assert (reason.code, reason.until) == ("E19", hand.now + 20.0)
    hand.now = hand.co.poll_timeout() or 0.0
    while hand.now < reason.until:
        hand.feed(ev.Tick())
        hand.now = hand.co.poll_timeout() or 0.0
    hand.feed(ev.Tick())
    assert hand.co.finished and "20 s" in hand.co.run.text


def test_who_formed_once_needs_no_operator_again() -> None:
    """O-4 E19, M-45: who had come is waited for, until the join timeout."""
    hand = Hand(2, min_ranks=1, start="manual")
    hand.feed(ev.OperatorRequest(ev.Operator.START))
    hand.tick(5.0)
    hand.co.run.open_again()
    reason = only(hand)
    assert (reason.code, reason.until, reason.action) == ("E19", hand.now + 300.0, "")
    assert dict(reason.numbers) == {"here": 2, "wanted": 2, "min_ranks": 1}


def test_the_final_evaluation_is_part_of_the_end() -> None:
    """O-4 E24, M-54."""
    hand = Hand(1, samples=4, num_epochs=1, callbacks=("evaluate",), anchor=2).form()
    hand.step(0, 2)
    hand.complete(0)
    hand.average()
    reason = only(hand)
    assert (reason.code, reason.rule, reason.rank) == ("E24", "M-54", 0) and reason.until == hand.now + 300.0
    hand.say(0, m.EvalResult, schedule_id=m.FINAL_EVALUATION, epoch=0, version=1, metric=0.5, elapsed_ms=1.0)
    assert only(hand).code == "E25"
