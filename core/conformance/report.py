"""What came of the checks: one outcome each, and the report, which is the same on every machine."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any

import attrs

from .kit import Level

__all__ = ["OUTCOME_FIELDS", "REPORT_FIELDS", "REPORT_FORMAT", "Outcome", "Report", "Status"]

REPORT_FORMAT = 1
"""Rises when the meaning of a field changes."""


class Status(enum.StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CLAIMED = "not_claimed"
    NOT_CHECKED = "not_checked"
    ERROR = "error"

    @property
    def meaning(self) -> str:
        """What it says of the plug-in."""
        return _MEANINGS[self]


_MEANINGS = {
    Status.PASSED: "the promise is kept",
    Status.FAILED: "the promise is broken",
    Status.NOT_CLAIMED: "the plug-in does not claim the capability, and where a way to lack it is documented, that is "
                        "how it lacks it",
    Status.NOT_CHECKED: "the promise was not looked at; the message says what is missing",
    Status.ERROR: "something else went wrong while it was looked at, in the plug-in or in the kit; counts as failed",
}  # fmt: skip

REPORT_FIELDS = {
    "format": "the version of this format, 1; it rises when the meaning of a field changes",
    "kit": "the name of the kit",
    "kit_version": "rises when a check is added or asks for more",
    "target": "what was checked, as it follows the command, with the options that change how the kit looks",
    "level": "how deep: L0 to L3",
    "claims": "for each capability of the kit whether the plug-in claims it",
    "ok": "whether no check failed: the exit code is 0",
    "counts": "for each status how many checks ended so",
    "outcomes": "one object for each check, by level and id",
}
"""The fields of a report as JSON, in their order."""
OUTCOME_FIELDS = {
    "id": "the check; it never changes",
    "name": "its name; it may change",
    "level": "L0 to L3",
    "status": "how it ended: one of those below",
    "message": "what was seen where something else was due, or what is missing; empty for a check that passed",
    "asserts": "what holds when it passes, with the rules of the protocol behind it",
    "doc": "page and heading below docs/ that explain the promise",
    "rerun": "the command that runs this check alone",
}
"""The fields of one of its outcomes."""


@attrs.frozen(kw_only=True)
class Outcome:
    """One check, how it ended and how to see it again."""

    id: str
    name: str
    level: Level
    status: Status
    message: str
    """Why, empty for a check that passed."""
    asserts: str
    doc: str
    rerun: str
    """The command that runs this check alone."""

    @property
    def ok(self) -> bool:
        """Whether this speaks for the plug-in, or at least not against it."""
        return self.status not in (Status.FAILED, Status.ERROR)


@attrs.frozen(kw_only=True)
class Report:
    """The outcomes of one run of a kit. Holds no time, no date and no path, so two reports can be compared."""

    kit: str
    kit_version: int
    target: str
    level: Level
    claims: Mapping[str, bool]
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(outcome.ok for outcome in self.outcomes)

    def count(self, status: Status) -> int:
        """How many checks ended so."""
        return sum(outcome.status is status for outcome in self.outcomes)

    def closed(self, message: str) -> Report:
        """A will (`will`), with how the process ended in the check that was under way."""
        last = next(n for n, outcome in enumerate(self.outcomes) if not outcome.ok and not outcome.message)
        outcomes = list(self.outcomes)
        outcomes[last] = attrs.evolve(outcomes[last], message=message)
        return attrs.evolve(self, outcomes=tuple(outcomes))

    def plain(self) -> dict[str, Any]:
        """As JSON has it: strings, numbers, lists and maps."""
        return {
            "format": REPORT_FORMAT,
            "kit": self.kit,
            "kit_version": self.kit_version,
            "target": self.target,
            "level": self.level.name,
            "claims": dict(sorted(self.claims.items())),
            "ok": self.ok,
            "counts": {status.value: self.count(status) for status in Status},
            "outcomes": [
                {**attrs.asdict(outcome), "level": outcome.level.name, "status": outcome.status.value}
                for outcome in self.outcomes
            ],
        }

    def to_json(self) -> str:
        """The report as text, with a line end."""
        return json.dumps(self.plain(), indent=2, ensure_ascii=False) + "\n"
