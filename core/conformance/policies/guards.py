"""The kit for convergence guards (B-30 to B-34, I64)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ...cadence_inputs import NudgeDown, Stable, SuppressGrowth, Verdict
from ...guard import Guard, GuardInput
from .. import Kit, Level, accepting, ensure
from .subjects import (
    GUIDE,
    ensure_apart,
    ensure_claims,
    ensure_factor,
    ensure_refused,
    ensure_shape,
    ensure_small,
    ensure_withstands,
    guard_inputs,
    handed_over,
    plain,
    runaway,
    turned,
)

__all__ = ["GUARDS"]

GUARDS: Kit[Callable[[], Guard]] = Kit(
    name="guards",
    version=6,
    capabilities={
        "nudges": "shortens the window when a cohort flies apart",
        "free_of_world": "its verdicts do not change when ranks with the same divergence are added (I64)",
    },
)
WORLDS = (2, 16, 200)
"""Ranks of the cohorts that are compared."""
SEEN = (0, 5, 8)
"""Cycles that a guard has seen before a record is brought to it."""


def _observed(guard: Guard, cycle: GuardInput) -> Verdict:
    return guard.observe(cycle)


def _verdicts(guard: Guard, cycles: Iterable[GuardInput]) -> list[Verdict]:
    return [guard.observe(cycle) for cycle in cycles]


@GUARDS.check("P101", Level.L0, doc=f"{GUIDE}#a-guard")
def a_guard_is_made(make: Callable[[], Guard]) -> None:
    """The factory makes a new guard at each call, which says whether it reports telemetry, and claims only what can be
    claimed."""
    first, second = make(), make()
    ensure_shape(first, Guard)
    ensure(isinstance(first.reports_telemetry, bool), f"reports_telemetry is {first.reports_telemetry!r}")
    if first is second:
        before = first.saved()
        _verdicts(first, guard_inputs(1, 40))
        ensure(first.saved() == before, "the factory gives the same guard twice, and it remembers what it saw")
    ensure_claims(GUARDS, make, first)


@GUARDS.check("P111", Level.L1, doc=f"{GUIDE}#total")
def a_guard_answers_everything(make: Callable[[], Guard]) -> None:
    """Whatever a cycle showed, the answer is a verdict, and a nudge is by a factor from 0 to 1; what it was told
    stays as it was."""
    for number in range(20):
        guard = make()
        for cycle in guard_inputs(number, 40):
            told = repr(cycle)
            with accepting(f"observe({told})"):
                verdict = guard.observe(cycle)
            ensure(repr(cycle) == told, f"it changed the {told} that it was told to {cycle}")
            ensure(isinstance(verdict, Stable | SuppressGrowth | NudgeDown), f"observe gave {verdict!r}, no verdict")
            if isinstance(verdict, NudgeDown):
                ensure_factor(verdict, f"after {told}")


@GUARDS.check("P112", Level.L1, doc=f"{GUIDE}#the-same-again")
def a_guard_is_a_function_of_its_history(make: Callable[[], Guard]) -> None:
    """Two guards of one process that saw the same cycles give the same verdicts, in whatever order the ranks of a cycle
    are told, and whatever another guard sees meanwhile (N-13)."""
    for cycles in (runaway(30), *(guard_inputs(number, 60) for number in range(5))):
        # In turn, so that whatever they share (a count of calls, a random source) is not the same for both.
        one, other = make(), make()
        for cycle in cycles:
            first, second = one.observe(cycle), other.observe(cycle)
            ensure(first == second, f"the same cycles were answered with {first} and with {second}")
    for number in range(20):
        seen = list(guard_inputs(number, 60))
        due, found = _verdicts(make(), seen), _verdicts(make(), map(turned, seen))
        ensure(due == found, f"with the ranks in another order the same cycles were answered with {found}, before with "
               f"{due}")  # fmt: skip
    for seen in (list(runaway(60)), list(guard_inputs(1, 300))):
        ensure_apart(make, seen, guard_inputs(99, len(seen)), _observed)


@GUARDS.check("P113", Level.L1, doc=f"{GUIDE}#saved-and-restored")
def a_guard_goes_on_after_a_restart(make: Callable[[], Guard]) -> None:
    """What it saved is JSON, and the guard that restores it judges from there as the first one does; a record stays as
    it was when either goes on (B-16)."""
    for cycles in (list(runaway(30)), *(list(guard_inputs(number, 30)) for number in range(5))):
        for cut in (0, 1, 3, 7, 15):
            first, second = make(), make()
            _verdicts(first, cycles[:cut])
            ensure_kept = handed_over(first, second, "a guard")
            ensure(_verdicts(first, cycles[cut:]) == _verdicts(second, cycles[cut:]),
                   f"restored after {cut} cycles, it judges otherwise")  # fmt: skip
            ensure_kept()


@GUARDS.check("P114", Level.L1, doc=f"{GUIDE}#saved-and-restored")
def a_guard_knows_foreign_records(make: Callable[[], Guard]) -> None:
    """A record that is not its own is refused with False, and changes nothing: neither a new guard, nor what one has
    seen of a run. One of its own that is damaged is refused likewise, or the guard goes on with it (B-16)."""
    records: tuple[dict[str, object], ...] = (
        {}, {"guard": "another"}, {"guard": None, "recent": [1]}, {"recent": "x"}, {"": math.nan},
    )  # fmt: skip
    for record in records:
        for seen in SEEN:
            guard, twin = make(), make()
            for each in (guard, twin):
                _verdicts(each, runaway(seen))
            ensure_refused(guard, record)
            after = f"the {record} that it refused after {seen} cycles left a trace"
            ensure(plain(guard.saved(), "a guard") == plain(twin.saved(), "a guard"), f"{after} in what it saves")
            ensure(_verdicts(guard, runaway(30)) == _verdicts(twin, runaway(30)), after)
    ensure_withstands(make, list(runaway(8)), list(guard_inputs(1, 40)), _observed, "a guard")


@GUARDS.check("P115", Level.L1, doc=f"{GUIDE}#saved-and-restored")
def a_guard_does_not_grow(make: Callable[[], Guard]) -> None:
    """Its history stays small however long the run is: it is written beside every checkpoint."""
    guard = make()
    _verdicts(guard, guard_inputs(1, 3000))
    ensure_small(guard, "a guard", 3000)


@GUARDS.check("P121", Level.L2, doc=f"{GUIDE}#a-guard")
def a_guard_lets_quiet_training_be(make: Callable[[], Guard]) -> None:
    """A cohort that does not drift apart is Stable, from the first cycle on."""
    for divergence in (0.0, 1e-6):
        cycle = GuardInput(divergences={0: divergence, 1: divergence}, k_used=20, k_max=10)
        verdicts = _verdicts(make(), [cycle] * 60)
        ensure(all(isinstance(each, Stable) for each in verdicts),
               f"a constant divergence of {divergence} was answered with {verdicts}")  # fmt: skip


def _never_nudges(make: Callable[[], Guard]) -> None:
    streams = (runaway(60), *(guard_inputs(number, 60) for number in range(20)))
    for stream in streams:
        nudges = [each for each in _verdicts(make(), stream) if isinstance(each, NudgeDown)]
        ensure(not nudges, f"it gave {nudges[:1]}, and does not claim that it nudges")


@GUARDS.check("P122", Level.L2, doc=f"{GUIDE}#claims", needs="nudges", unclaimed=_never_nudges)
def a_runaway_is_nudged(make: Callable[[], Guard]) -> None:
    """A cohort that flies apart is nudged within 60 cycles. Who does not claim it never nudges anybody (I64)."""
    verdicts = _verdicts(make(), runaway(60))
    ensure(any(isinstance(each, NudgeDown) for each in verdicts), "a divergence that grew by a fifth per step for 60 "
           "cycles was never nudged")  # fmt: skip


def _by_world(make: Callable[[], Guard]) -> list[list[Verdict]]:
    return [_verdicts(make(), runaway(60, range(ranks))) for ranks in WORLDS]


def _depends_on_the_world(make: Callable[[], Guard]) -> None:
    first, *others = _by_world(make)
    ensure(any(other != first for other in others), f"cohorts of {WORLDS} ranks with the same divergences had the same "
           "verdicts: claim free_of_world")  # fmt: skip


@GUARDS.check("P123", Level.L2, doc=f"{GUIDE}#claims", needs="free_of_world", unclaimed=_depends_on_the_world)
def more_ranks_change_no_verdict(make: Callable[[], Guard]) -> None:
    """With every rank's steps and divergence kept, verdicts do not change when ranks are added (I64). Of who does not
    claim it they do."""
    first, *others = _by_world(make)
    for ranks, other in zip(WORLDS[1:], others, strict=True):
        ensure(other == first, f"{WORLDS[0]} ranks and {ranks} with the same divergences had different verdicts")
