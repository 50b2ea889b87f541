"""What can still become of a run: every order of what happens after a schedule, on the model checker's own search.

    well, verdict = search(Schedule.parse(text))        # of a schedule that says `never ends well`

That a run never ends well is no fault of any one order, so no single run can show it. A schedule leads to where it is
so; from there on everything that can happen without a further fault is explored, and the claim holds if no end is
found. A search that was cut, or met a broken invariant, shows nothing. A run in which as many deadlines pass as the
model checker has patience for is taken to go on as it does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from .checker import AXES, AXIS, Cohort, State
from .explore import Budget, Kind, Property, explore
from .parts import CENTRAL, LOCAL, Parts
from .schedule import Schedule, ScheduleError, play

__all__ = ["search"]

MOST_STATES = 1_000_000
"""States that are looked at; the runs of the model checker have fewer."""
KNOWN = {*LOCAL, *CENTRAL, *AXIS, "tick", "start", "unite", "dial"}
"""Actions after which a world is one of those that the model checker explores."""
NO_END = "no end of that kind"


class Onward(Cohort):
    """The cohort after a schedule, and no further fault."""

    def __init__(self, schedule: Schedule) -> None:
        self.budgets, self.reduce = (0,) * len(AXES), True
        self.parts = Parts(schedule.setup, AXIS)
        self.wanted = self.is_over if schedule.never == "ends" else self.ends_well
        for _ in play(self.parts.world, schedule.actions):
            pass
        self.parts.first = self.parts.row()

    @functools.cached_property
    def properties(self) -> Sequence[Property[State]]:
        """Broken by the end that is looked for, so that the shortest way to it is told."""
        return (Property(Kind.ALWAYS, NO_END, lambda state: not self.wanted(state)),)

    def final(self, state: State) -> bool:
        """Where nothing can happen any more no end will come; others may go another way."""
        return True


def search(schedule: Schedule) -> tuple[bool, str]:
    """Whether what a schedule says never comes does not come, and what was seen in words. Raises `ScheduleError` for a
    schedule with actions that the model checker does not have."""
    unknown = sorted({action.kind for _, action in schedule.actions} - KNOWN)
    if unknown or schedule.setup.wire:
        what = f"the action {unknown[0]}" if unknown else "setup wire"
        raise ScheduleError(f"'never {schedule.never}' is answered by the model checker, which has not {what}")
    seen = explore(Onward(schedule), budget=Budget(states=MOST_STATES))
    if seen.failure is not None and seen.failure.property != NO_END:
        return False, f"it was to be seen that the run never {schedule.never}, but then {seen.failure.text}"
    if seen.failure is not None:
        way = ", ".join(map(str, seen.failure.actions)) or "nothing"
        return False, f"the run was expected to be one that never {schedule.never}; it does after {way}"
    if not seen.complete:
        return False, f"whether the run never {schedule.never} is not known after {seen.states:,} states"
    return True, f"the run never {schedule.never}: in all {seen.states:,} states that can follow there is no such end"
