"""Broken plug-ins that take their time, and limits that run out while one of them does and not before.

`paceline conform` runs a kit in a process of its own, where no fixture of a test has a say. So the import of this
module does there what fixtures do in the process of the tests: the loop of events has a clock that moves when nothing
else does, nobody waits for a call that hangs, and what ends a process that is held counts from where it is held.
However much time the command is given, none of it passes for nothing, and no machine is too slow for it.
"""

from __future__ import annotations

import faulthandler
import functools
from typing import Any

import pytest
from trio.testing import MockClock

from paceline.core.guard import GuardInput, Verdict
from paceline.transports.api import Credentials
from paceline.transports.conformance import kit

from conformance.broken_policies import holds
from conformance.broken_policies.guards import LoopsInObserve
from conformance.broken_transports import holds as held
from conformance.commanded import Deaf, Slow
from conformance.hanging import skip_the_wait

__all__ = ["Deaf", "HoldsInDial", "HoldsTheInterpreter", "HoldsWhenMade", "LoopsInObserve", "Slow"]

MOMENT_S = 0.05
_ends: list[dict[str, Any]] = []
_end = faulthandler.dump_traceback_later


def _later(seconds: float, **how: Any) -> None:
    """In place of what would end this process then."""
    _ends.append(how)


def its_time_is_over() -> None:
    """Said by who is about to hold the interpreter."""
    _end(MOMENT_S, **_ends[-1])


class HoldsTheInterpreter(holds.HoldsTheInterpreter):
    """Likewise, from here on."""

    def observe(self, cycle: GuardInput) -> Verdict:
        its_time_is_over()
        return super().observe(cycle)


class HoldsWhenMade(holds.HoldsWhenMade):
    """Likewise, from here on."""

    def __init__(self) -> None:
        its_time_is_over()
        super().__init__()


class HoldsInDial(held.HoldsInDial):
    """Likewise, from here on."""

    async def dial(self, url: str, credentials: Credentials) -> Any:
        its_time_is_over()
        return await super().dial(url, credentials)


faulthandler.cancel_dump_traceback_later()
faulthandler.dump_traceback_later = _later
skip_the_wait(pytest.MonkeyPatch())
kit.Bench = functools.partial(kit.Bench, clock=functools.partial(MockClock, autojump_threshold=0.0))
