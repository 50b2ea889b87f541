"""The kit for cadence balancers (B-2 to B-17, G-9, I61, I62)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...cadence import CadencePhase
from ...cadence_inputs import NudgeDown, Stable, SuppressGrowth, Verdict, WindowReport
from ...policies import Cadence, CadenceFactory
from .. import Kit, Level, accepting, ensure
from .subjects import (
    GUIDE,
    RANKS,
    cadence,
    ensure_apart,
    ensure_claims,
    ensure_refused,
    ensure_shape,
    ensure_withstands,
    handed_over,
    plain,
    reports,
    turned,
    verdicts,
    window,
)

__all__ = ["CADENCES"]

CADENCES: Kit[CadenceFactory] = Kit(
    name="cadences",
    version=6,
    capabilities={
        "balances": "gives a faster rank more steps per window",
        "grows": "lengthens the window while averaging costs too large a part of it",
    },
)
COSTS = {0: 100.0, 1: 50.0, 2: 25.0, 5: 100.0}
"""Milliseconds per step of ranks of three speeds."""
KNOBS: tuple[dict[str, Any], ...] = (
    {}, {"cap": 12}, {"cap": 2}, {"max_batch_diff": 0}, {"max_batch_diff": 3, "relax_allowed": True},
    {"anchor": 1, "min_anchor": 1, "max_anchor": 1}, {"growth_applies": False}, {"speed_ratios": {0: 1.0, 1: 8.0}},
)  # fmt: skip


def _ensure_bounds(made: Cadence, what: str, knobs: dict[str, Any], voters: tuple[int, ...]) -> None:
    """I61, B-2."""
    for rank in voters:
        count = made.counts.get(rank)
        ensure(type(count) is int and count >= 1, f"{what}: counts[{rank}] is {count!r}, a whole number from 1 is due")
        cost = made.ms(rank)
        ensure(isinstance(cost, int | float) and math.isfinite(cost) and cost >= 0, f"{what}: ms({rank}) is {cost!r}")
    most = knobs.get("max_anchor", 200)
    ensure(type(made.anchor) is int and 1 <= made.anchor <= most, f"{what}: the anchor is {made.anchor!r}, from 1 to "
           f"{most} is due")  # fmt: skip
    ensure(isinstance(made.phase, CadencePhase), f"{what}: the phase is {made.phase!r}, no CadencePhase")
    cap, total = knobs.get("cap"), sum(made.counts[rank] for rank in voters)
    fits = cap is None or cap < len(voters) or total <= cap
    ensure(fits, f"{what}: a window of {total} batches in an epoch of {cap}")


def _move(made: Cadence, before: tuple[int, ...], voters: tuple[int, ...]) -> None:
    """The change of voters that lies between two reports."""
    for rank in before:
        if rank not in voters:
            made.forget(rank)
    for rank in voters:
        if rank not in before:
            made.admit(rank)


@CADENCES.check("P201", Level.L0, doc=f"{GUIDE}#a-balancer")
def a_balancer_is_made(make: CadenceFactory) -> None:
    """It is made with the arguments of `Balancer`, knows its ranks, has a count of at least 1 for each, and claims only
    what can be claimed."""
    for knobs in KNOBS:
        with accepting(f"making one with {knobs}"):
            made = cadence(make, **knobs)
        ensure_shape(made, Cadence)
        ensure(list(made.ranks) == list(RANKS), f"it was made for {RANKS} and knows {made.ranks}")
        _ensure_bounds(made, f"new, {knobs}", knobs, RANKS)
        ensure(isinstance(made.calibrated, bool), f"calibrated is {made.calibrated!r}")
        ensure(isinstance(made.hinted, bool), f"hinted is {made.hinted!r}")
        ensure_claims(CADENCES, make, made)


@CADENCES.check("P211", Level.L1, doc=f"{GUIDE}#total")
def a_balancer_takes_everything(make: CadenceFactory) -> None:
    """Whatever a window cost and whatever the verdict, counts stay whole and within their bounds; what it was told is
    left as it was (I61)."""
    for number, knobs in enumerate(KNOBS * 3):
        made = cadence(make, **knobs)
        before: tuple[int, ...] = RANKS
        for (report, voters), verdict in zip(reports(number, 40), verdicts(number, 40), strict=True):
            told = repr(report)
            with accepting(f"report({told})"):
                _move(made, before, voters)
                made.report(report, voters)
            ensure(repr(report) == told, f"it changed the {told} that it was told to {report}")
            before = voters
            _ensure_bounds(made, "after a report", knobs, voters)
            with accepting(f"apply({verdict})"):
                made.apply(verdict)
            _ensure_bounds(made, f"after {verdict}", knobs, voters)
            for rank, ms in zip(voters, (0.0, 1e9, math.nan, math.inf), strict=False):
                with accepting(f"stage_slack({rank}, {ms})"):
                    made.stage_slack(rank, ms)


@CADENCES.check("P212", Level.L1, doc=f"{GUIDE}#the-same-again")
def a_balancer_is_a_function_of_its_history(make: CadenceFactory) -> None:
    """Two balancers of one process that were told the same have the same counts, in whatever order the ranks of a
    report are told, and whatever another balancer is told meanwhile (N-13)."""
    for number in range(6):
        # In turn, so that whatever they share (a count of calls, a random source) is not the same for both.
        twins = [cadence(make) for _ in range(2)]
        for (report, voters), verdict in zip(reports(number, 30), verdicts(number, 30), strict=True):
            for made in twins:
                made.report(report, voters)
                made.apply(verdict)
            first, second = ((made.anchor, dict(made.counts), made.phase) for made in twins)
            ensure(first == second, f"the same windows gave {second} the second time, {first} the first")
        cycles = list(zip(reports(number, 30), verdicts(number, 30), strict=True))
        due, found = (_all_told(cadence(make), cycles, each) for each in (lambda report: report, turned))
        ensure(due == found, f"with the ranks in another order the same windows gave {found}, before {due}")
        strange = list(zip(reports(99, 30), verdicts(99, 30), strict=True))
        ensure_apart(lambda: cadence(make), cycles, strange, _told)


Cycle = tuple[tuple[WindowReport, tuple[int, ...]], Verdict]


def _told(made: Cadence, cycle: Cycle) -> tuple[object, ...]:
    """What has become of it after one cycle."""
    (report, voters), verdict = cycle
    made.report(report, voters)
    made.apply(verdict)
    return made.anchor, dict(sorted(made.counts.items())), made.phase


def _all_told(made: Cadence, cycles: list[Cycle], turn: Callable[[WindowReport], WindowReport]) -> list[object]:
    return [_told(made, ((turn(report), voters), verdict)) for (report, voters), verdict in cycles]


@CADENCES.check("P213", Level.L1, doc=f"{GUIDE}#verdicts")
def only_stable_lengthens_the_window(make: CadenceFactory) -> None:
    """A report alone never changes the anchor; SuppressGrowth and NudgeDown never raise it, and the former adds no step
    to a window; Stable at most doubles it (from below `min_anchor`: up to that), and adds one where that may be relaxed
    (B-10, B-12, I61)."""
    for number in range(8):
        made = cadence(make, relax_allowed=number % 2 == 0)
        for (report, voters), verdict in zip(reports(number, 40), verdicts(number, 40), strict=True):
            before = made.anchor
            made.report(report, voters)
            ensure(made.anchor == before, f"a report moved the anchor from {before} to {made.anchor}")
            counts = dict(made.counts)
            made.apply(verdict)
            longer = isinstance(verdict, SuppressGrowth) and sum(made.counts.values()) > sum(counts.values())
            ensure(not longer, f"{verdict} lengthened a window of {counts} steps to {made.counts}")
            most = max(2 * before, 10) + 1 if isinstance(verdict, Stable) else before
            ensure(made.anchor <= most, f"{verdict} moved the anchor from {before} to {made.anchor}, at most {most}")


@CADENCES.check("P214", Level.L1, doc=f"{GUIDE}#verdicts")
def a_nudge_stays_for_its_cycle(make: CadenceFactory) -> None:
    """What a nudge took away, no later verdict of the same cycle gives back (I62)."""
    made = cadence(make, relax_allowed=True, anchor=40, min_anchor=40)
    for _ in range(8):
        made.report(window(COSTS, made.counts, reduce_ms=1e5), RANKS)
        made.apply(NudgeDown(0.5))
        nudged = made.anchor
        made.apply(Stable(relax_up=True))
        ensure(made.anchor <= nudged, f"nudged to {nudged}, the anchor was {made.anchor} at the end of the cycle")
    ensure(made.anchor < 40, "eight nudges by a half left the anchor where it was")


@CADENCES.check("P215", Level.L1, doc=f"{GUIDE}#saved-and-restored")
def a_balancer_goes_on_after_a_restart(make: CadenceFactory) -> None:
    """What it saved is JSON, and one that restores it has the same anchor, counts, phase and costs, and goes on alike
    while windows cost what they did; a record stays as it was when either goes on (B-16)."""
    for cycles in (0, 1, 6):
        made = cadence(make)
        for _ in range(cycles):
            made.report(window(COSTS, made.counts, reduce_ms=300.0), RANKS)
            made.apply(Stable())
        twin = cadence(make)
        ensure_kept = handed_over(made, twin, "a balancer")
        for further in range(3):
            mine, its = (_seen(each) for each in (made, twin))
            ensure(mine == its, f"restored after {cycles} cycles it is {its} after {further} more, not {mine}")
            for each in (made, twin):
                each.report(window(COSTS, each.counts, reduce_ms=300.0), RANKS)
                each.apply(Stable())
        ensure_kept()


def _seen(made: Cadence) -> tuple[object, ...]:
    costs = {rank: round(made.ms(rank), 6) for rank in RANKS}
    return made.anchor, dict(made.counts), made.phase, made.calibrated, costs


@CADENCES.check("P216", Level.L1, doc=f"{GUIDE}#saved-and-restored")
def a_balancer_knows_foreign_records(make: CadenceFactory) -> None:
    """A record of other ranks, or none at all, is refused with False and changes nothing: neither a new balancer, nor
    what one has learnt of a run. One of its own that is damaged is refused likewise, or it goes on with it (B-16)."""
    other = plain(cadence(make, ranks=[0, 7]).saved(), "a balancer")
    for record in (other, {}, {"ranks": list(RANKS)}, {"anchor": -1}, {"ranks": None, "counts": "x"}):
        for cycles in (0, 6):
            made = cadence(make)
            for _ in range(cycles):
                made.report(window(COSTS, made.counts, reduce_ms=300.0), RANKS)
                made.apply(Stable())
            before = _seen(made), plain(made.saved(), "a balancer")
            ensure_refused(made, record)
            after = _seen(made), plain(made.saved(), "a balancer")
            ensure(after == before, f"the {record} that it refused after {cycles} cycles left a trace")
    tame = [((window(COSTS, {0: 10}, reduce_ms=300.0), RANKS), NudgeDown(0.5))] * 6
    wild = list(zip(reports(1, 20), verdicts(1, 20), strict=True))
    ensure_withstands(lambda: cadence(make), tame, wild, _bounded, "a balancer")


def _bounded(made: Cadence, cycle: Cycle) -> None:
    """One cycle more, after which its counts are counts."""
    _told(made, cycle)
    _ensure_bounds(made, "after a record that was damaged", {}, cycle[0][1])


@CADENCES.check("P217", Level.L1, doc=f"{GUIDE}#ranks-come-and-go")
def ranks_may_come_and_go(make: CadenceFactory) -> None:
    """At any moment a rank may end, and a new one or a new life of it become a voter: it has a count at once (B-17)."""
    made = cadence(make, cap=60)
    voters = list(RANKS)
    for cycle, (report, _) in enumerate(reports(9, 30)):
        gone, new = RANKS[cycle % 4], (RANKS[cycle % 3], 7, 8)[cycle % 3]
        with accepting(f"forget({gone}) and admit({new})"):
            made.forget(gone)
            voters = [rank for rank in voters if rank != gone]
            if new not in voters:
                made.admit(new)
                voters = sorted([*voters, new])
        _ensure_bounds(made, f"after rank {gone} went and {new} came", {"cap": 60}, tuple(voters))
        with accepting("a report after that"):
            made.report(report, voters)
            made.apply(Stable())
        _ensure_bounds(made, "after a report", {"cap": 60}, tuple(voters))


@CADENCES.check("P218", Level.L1, doc=f"{GUIDE}#a-balancer")
def the_overshoot_is_bounded(make: CadenceFactory) -> None:
    """An Async rank may run ahead by a whole number of steps, at most a window or the knob, and it is kept (G-9)."""
    made = cadence(make)
    for cycle in range(8):
        for rank in RANKS:
            for knob in ("auto", 0, 2):
                for took in (None, 0.0, 500.0, 1e12, math.nan, math.inf):
                    with accepting(f"overshoot({rank}, {took}, {knob!r})"):
                        steps = made.overshoot(rank, took, knob)
                    most = knob if isinstance(knob, int) else max(3, made.counts[rank])
                    ensure(type(steps) is int and 0 <= steps <= most, f"overshoot{rank, took, knob} is {steps!r}")
                    ensure(made.overshoots.get(rank) == steps, f"overshoots[{rank}] is not what was returned")
        made.report(window(COSTS, made.counts), RANKS)
        made.apply(SuppressGrowth() if cycle % 3 else Stable())


@CADENCES.check("P219", Level.L1, doc=f"{GUIDE}#a-balancer")
def a_cohort_may_have_any_size(make: CadenceFactory) -> None:
    """With one rank, two, sixty-four or two hundred, whatever their numbers, and an epoch that hardly holds a window,
    or does not: every rank has its count, and a window fits (I61, B-2, B-8)."""
    for size in (1, 2, 64, 200):
        ranks = tuple(range(3, 3 + 5 * size, 5))
        costs = {rank: 20.0 + 30 * (rank % 7) for rank in ranks}
        for cap in (None, 1, size, 2 * size + 1):
            what = f"a cohort of {size} with {'no cap' if cap is None else f'a cap of {cap}'}"
            with accepting(what):
                made = cadence(make, ranks=list(ranks), cap=cap)
            for _ in range(4):
                _ensure_bounds(made, what, {"cap": cap}, ranks)
                with accepting(f"a report of {what}"):
                    made.report(window(costs, made.counts, reduce_ms=1e4), ranks)
                    made.apply(Stable())
            _ensure_bounds(made, what, {"cap": cap}, ranks)


def _equal_counts(make: CadenceFactory) -> None:
    made = cadence(make)
    for _ in range(10):
        made.report(window(COSTS, made.counts), RANKS)
        made.apply(Stable())
        ensure(len(set(made.counts.values())) == 1, f"counts are {made.counts}, and it does not claim that it balances")


@CADENCES.check("P221", Level.L2, doc=f"{GUIDE}#claims", needs="balances", unclaimed=_equal_counts)
def faster_ranks_take_more_steps(make: CadenceFactory) -> None:
    """After ten windows ranks of different speed need about the same time for theirs, and the slow one not fewer
    steps than the anchor, also where the fastest is fifty times as fast. Who does not claim it gives equal counts."""
    for costs in (COSTS, {0: 100.0, 1: 4.0, 2: 25.0, 5: 2.0}):
        made = cadence(make, growth_applies=False)
        for _ in range(10):
            made.report(window(costs, made.counts), RANKS)
            made.apply(Stable())
        lengths = [costs[rank] * made.counts[rank] for rank in RANKS]
        ensure(max(lengths) <= 1.5 * min(lengths), f"windows last {lengths} ms with the counts {made.counts}")


def _fixed_anchor(make: CadenceFactory) -> None:
    made = cadence(make)
    for _ in range(40):
        made.report(window(COSTS, made.counts, reduce_ms=1e5), RANKS)
        made.apply(Stable())
        ensure(made.anchor == 10, f"the anchor is {made.anchor}, and it does not claim that it grows")


@CADENCES.check("P222", Level.L2, doc=f"{GUIDE}#claims", needs="grows", unclaimed=_fixed_anchor)
def a_dear_average_lengthens_the_window(make: CadenceFactory) -> None:
    """An average that costs far above the target lengthens the window within 40 cycles, to `max_anchor` at most; one
    that costs nothing does not; Sync never does. Who does not claim it never grows."""
    cases: tuple[tuple[dict[str, Any], float, bool], ...] = (
        ({}, 1e5, True), ({}, 0.0, False), ({"growth_applies": False}, 1e5, False),
    )  # fmt: skip
    for knobs, cost, due in cases:
        made = cadence(make, **knobs)
        for _ in range(40):
            made.report(window(COSTS, made.counts, reduce_ms=cost), RANKS)
            made.apply(Stable())
        ensure((made.anchor > 10) == due, f"averages of {cost} ms, {knobs}: the anchor went from 10 to {made.anchor}")


@CADENCES.check("P223", Level.L2, doc=f"{GUIDE}#a-balancer")
def slack_is_for_one_window(make: CadenceFactory) -> None:
    """What was freed for a callback of a rank is given back: a few windows later it takes as many steps as if there had
    been none (B-7, B-14)."""
    made, twin = (cadence(make, growth_applies=False) for _ in range(2))
    for each in (made, twin):
        for cycle in range(10):
            if each is made and cycle == 5:
                each.stage_slack(0, 500.0)
            each.report(window(COSTS, each.counts), RANKS)
            each.apply(Stable())
    ensure(made.counts == twin.counts, f"five windows after a callback counts are {made.counts}, without it "
           f"{twin.counts}")  # fmt: skip
