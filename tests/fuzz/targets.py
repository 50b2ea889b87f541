"""All targets by name."""

from __future__ import annotations

from . import kept, machines, schedules, wire
from .engine import Target

__all__ = ["TARGETS"]

ALL = (*wire.TARGETS, *kept.TARGETS, *machines.TARGETS, *schedules.TARGETS)
TARGETS: dict[str, Target] = {target.name: target for target in ALL}
