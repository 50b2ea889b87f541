"""A run that goes on from the record of another one."""

from __future__ import annotations

import json
from typing import Any

from paceline.core import effects as fx
from paceline.core.ledger import Resume

from .cohort import Cohort


def record_of(effects: list[Any]) -> dict[str, Any]:
    """The last meta record of a run, after its way through a file."""
    written = [effect.record for effect in effects if isinstance(effect, fx.WriteMeta)]
    kept: dict[str, Any] = json.loads(json.dumps(written[-1]))
    return kept


def resumed(first: Cohort, **knobs: Any) -> Cohort:
    """A cohort that goes on from the last record of one that has ended, which says what the first one's ghost saw."""
    cohort = Cohort(resume=Resume.read(record_of(first.effects)), save_path="runs", **knobs)
    before, now = first.ghost, cohort.ghost
    assert (set(now.merged), now.version, now.closed) == (set(before.merged), before.version, before.closed), "K-10"
    assert now.uncounted == 0, "I44"
    return cohort
