"""Guards that no limit inside the process ends: for the command, which runs a kit in a process of its own. In that of
the tests they would hold, or end, the tests."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal

from paceline.core.guard import GuardInput, LevelGuard, Verdict

__all__ = ["Crashes", "EndsTheProcess", "HoldsTheInterpreter", "HoldsWhenMade", "StandsStill"]


class HoldsTheInterpreter(LevelGuard):
    """Loops in C, and lets no other thread run meanwhile."""

    def observe(self, cycle: GuardInput) -> Verdict:
        max(itertools.count())
        return super().observe(cycle)


class HoldsWhenMade(LevelGuard):
    """Does so before it has said what it claims."""

    def __init__(self) -> None:
        super().__init__()
        max(itertools.count())


class EndsTheProcess(LevelGuard):
    """Ends it without an exception, as if all were well."""

    def observe(self, cycle: GuardInput) -> Verdict:
        os._exit(0)


class Crashes(LevelGuard):
    """Reads where nothing is."""

    def observe(self, cycle: GuardInput) -> Verdict:
        ctypes.string_at(0)
        return super().observe(cycle)


class StandsStill(LevelGuard):
    """Stops the process, so that not even the clock in it goes on."""

    def observe(self, cycle: GuardInput) -> Verdict:
        os.kill(os.getpid(), signal.SIGSTOP)
        return super().observe(cycle)
