"""All targets by name."""

from __future__ import annotations

from . import kept, machines, wire
from .engine import Target

__all__ = ["TARGETS"]

TARGETS: dict[str, Target] = {target.name: target for target in (*wire.TARGETS, *kept.TARGETS, *machines.TARGETS)}
