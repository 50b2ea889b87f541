"""Many simulated runs, and what they came to. Pure: who calls `simulate` where (in this process, in several) is the
caller's matter (`backends/command_simulate.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from .faults import PROFILES
from .marks import MARKS
from .simulator import Outcome

__all__ = ["ENOUGH_SEEDS", "Campaign"]

ENOUGH_SEEDS = 1_000
"""Storms after which a mark that was never reached is a failure: before that it may be chance."""
ENOUGH_RANKS = 4


class Campaign:
    """The sum of outcomes. `add` takes them in any order; all that it says is the same whatever the order was."""

    def __init__(self, faults: str, ranks: int) -> None:
        self.faults = faults
        self.ranks = ranks
        self.seeds = self.steps = self.cycles = self.struck = 0
        self.rank_hours = 0.0
        self.statuses: Counter[str] = Counter()
        self.excuses: Counter[str] = Counter()
        self.marks: Counter[str] = Counter()
        self.runs_with: Counter[str] = Counter()
        self.failures: dict[int, Outcome] = {}

    def add(self, outcome: Outcome) -> None:
        """One more run."""
        self.seeds += 1
        self.steps += outcome.steps
        self.cycles += outcome.cycles
        self.struck += outcome.struck
        self.rank_hours += outcome.rank_hours
        self.statuses[outcome.status] += 1
        if outcome.excuse:
            self.excuses[outcome.excuse] += 1
        self.marks.update(outcome.marks)
        self.runs_with.update(outcome.marks.keys())
        if outcome.violation is not None:
            self.failures[outcome.case.seed] = outcome

    @property
    def unreached(self) -> tuple[str, ...]:
        """Marks that no run came upon, in the order of their list."""
        return tuple(mark for mark in MARKS if not self.marks[mark])

    @property
    def complete(self) -> bool:
        """Whether so many storms were run that every mark must have been reached."""
        wild = PROFILES[self.faults].sites
        return wild and self.seeds >= ENOUGH_SEEDS and self.ranks >= ENOUGH_RANKS

    @property
    def failed(self) -> bool:
        """An invariant broke, or so many storms looked at too little."""
        return bool(self.failures) or (self.complete and bool(self.unreached))

    def facts(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "faults": self.faults, "ranks": self.ranks, "seeds": self.seeds, "events": self.steps,
            "cycles": self.cycles, "faults_struck": self.struck, "rank_hours": round(self.rank_hours, 3),
            "ends": dict(sorted(self.statuses.items())), "excused": dict(sorted(self.excuses.items())),
            "unreached": list(self.unreached),
            "marks": {mark: {"times": self.marks[mark], "runs": self.runs_with[mark]} for mark in MARKS},
            "failures": [
                {"seed": seed, "invariant": outcome.violation.name, "text": outcome.violation.text}
                for seed, outcome in sorted(self.failures.items()) if outcome.violation is not None
            ],
        }  # fmt: skip
