"""Guards with one thing wrong each."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar

import attrs

from paceline.core.cadence_inputs import NudgeDown, Stable, SuppressGrowth, Verdict
from paceline.core.guard import GrowthGuard, GuardInput, LevelGuard

from conformance.hanging import endless

CALLS = itertools.count()


class TelemetryByName(LevelGuard):
    """Says in words whether it reports telemetry."""

    reports_telemetry: ClassVar[Any] = "yes"


class ClaimsANameOfItsOwn(LevelGuard):
    """Misspelt: nobody would ever test it."""

    claims: ClassVar[tuple[str, ...]] = ("nudge",)


class ClaimsInWords(LevelGuard):
    """One name, where a tuple of names is due: each letter of it would be a claim."""

    claims: ClassVar[Any] = "nudges"


class HasNoMemory:
    """Half of a guard: nothing is saved, so a restart could not go on."""

    reports_telemetry: ClassVar[bool] = False
    claims: ClassVar[tuple[str, ...]] = ()

    def observe(self, cycle: GuardInput) -> Verdict:
        return Stable()


class IsOneForAll(LevelGuard):
    """Made once, whoever asks: two runs in one process share a memory."""

    one: ClassVar[Any] = None

    def __new__(cls) -> IsOneForAll:
        cls.one = super().__new__(cls) if cls.one is None else cls.one
        return cls.one

    def __init__(self) -> None:
        if not hasattr(self, "made"):
            super().__init__()
            self.made = True


class DividesByTheNorm(LevelGuard):
    """Looks at the rank with the largest norm, which may be none."""

    def observe(self, cycle: GuardInput) -> Verdict:
        norms = cycle.pre_norms or {}
        largest = max(norms, key=lambda rank: norms[rank])
        return super().observe(cycle) if norms[largest] >= 0 else Stable()


class NudgesByTheSignal(GrowthGuard):
    """Nudges by one over the divergence, whatever that is."""

    def observe(self, cycle: GuardInput) -> Verdict:
        verdict = super().observe(cycle)
        return NudgeDown(1.0 / max(cycle.signal, 1e-6)) if isinstance(verdict, NudgeDown) else verdict


class AnswersInWords(LevelGuard):
    """A verdict of its own kind."""

    def observe(self, cycle: GuardInput) -> Any:
        return "stable"


class CountsItsCalls(LevelGuard):
    """Every seventh cycle of the process is suspicious."""

    def observe(self, cycle: GuardInput) -> Verdict:
        return SuppressGrowth() if next(CALLS) % 7 == 0 and cycle.signal > 1e-5 else Stable()


class ForgetsAtRestart(GrowthGuard):
    """Restores all but its streaks."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        return super().restore({**saved, "hard_streak": 0, "soft_streak": 0})


class SavesObjects(LevelGuard):
    """What it saves is no JSON."""

    def saved(self) -> dict[str, Any]:
        return {**super().saved(), "last": Stable()}


class TakesAnyRecord(LevelGuard):
    """Any history will do."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        self.recent = [1.0]
        return True


class ForgetsWhatItRefuses(GrowthGuard):
    """Makes room for a record before it looks at it. One that is new has nothing to lose."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        self.hard_streak = self.soft_streak = 0
        return super().restore(saved)


class RemembersEverything(LevelGuard):
    """Keeps every divergence of the run."""

    def observe(self, cycle: GuardInput) -> Verdict:
        self.recent = [*self.recent, cycle.signal]
        return Stable()


class NeverSatisfied(LevelGuard):
    """Suppresses growth whenever there is any divergence."""

    def observe(self, cycle: GuardInput) -> Verdict:
        return SuppressGrowth() if cycle.signal > 0 else Stable()


class ClaimsToNudge(LevelGuard):
    """Says that it nudges, and never does."""

    claims: ClassVar[tuple[str, ...]] = ("nudges",)


class NudgesInSecret(GrowthGuard):
    """Nudges, and does not say so."""

    claims: ClassVar[tuple[str, ...]] = ("free_of_world",)


class CountsRanks(LevelGuard):
    """Adds the divergences of all ranks up."""

    def observe(self, cycle: GuardInput) -> Verdict:
        total = sum(value for value in cycle.divergences.values() if math.isfinite(value))
        return SuppressGrowth() if total > 1.0 else Stable()


class CannotSayWhatItSaw(LevelGuard):
    """Its history of a run cannot be written down."""

    def saved(self) -> dict[str, Any]:
        if self.recent:
            raise OverflowError("too much has happened")
        return super().saved()


class FreeInSecret(LevelGuard):
    """Does not look at how many ranks there are, and does not say so."""

    claims: ClassVar[tuple[str, ...]] = ()


class EmptiesWhatItIsTold(LevelGuard):
    """Takes the divergences out one by one, from what others look at, too."""

    def observe(self, cycle: GuardInput) -> Verdict:
        verdict = super().observe(cycle)
        taken: Any = cycle.divergences
        taken.clear()
        return verdict


class NudgesInDecimals(GrowthGuard):
    """A half is a half, and no number that a record can hold."""

    def observe(self, cycle: GuardInput) -> Verdict:
        verdict = super().observe(cycle)
        factor: Any = Decimal("0.5")
        return NudgeDown(factor) if isinstance(verdict, NudgeDown) else verdict


class ComparesWithNaN(LevelGuard):
    """Takes the largest of what may be no number: which one that is depends on which comes first."""

    def observe(self, cycle: GuardInput) -> Verdict:
        largest = max(cycle.divergences.values(), default=0.0)
        return super().observe(attrs.evolve(cycle, divergences={0: largest}))


class HasOneMemory(LevelGuard):
    """A list that was made with the class: every guard of the process writes down what it saw in the same one."""

    seen: ClassVar[list[float]] = []

    def observe(self, cycle: GuardInput) -> Verdict:
        if not self.recent:
            self.seen.clear()
        self.seen.append(cycle.signal)
        verdict = super().observe(cycle)
        return SuppressGrowth() if len(self.seen) > 400 else verdict


class LendsItsMemory(LevelGuard):
    """What it saved goes on growing."""

    def observe(self, cycle: GuardInput) -> Verdict:
        verdict = super().observe(cycle)
        self.lent[:] = self.recent
        return verdict

    @property
    def lent(self) -> list[float]:
        found: list[float] = self.__dict__.setdefault("lent_out", [])
        return found

    def saved(self) -> dict[str, Any]:
        return {**super().saved(), "recent": self.lent}


class KeepsTheRecord(LendsItsMemory):
    """What it restored becomes its memory, and is written into."""

    def saved(self) -> dict[str, Any]:
        return LevelGuard.saved(self)

    def restore(self, saved: Mapping[str, Any]) -> bool:
        taken = super().restore(saved)
        if taken:
            self.__dict__["lent_out"] = saved["recent"]
        return taken


class TrustsItsRecord(GrowthGuard):
    """What is its own is whole."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        if saved.get("guard") != "growth":
            return False
        self.previous, self.average, self.rates = saved["previous"], saved["average"], saved["rates"]
        self.soft_streak, self.hard_streak = saved["soft_streak"], saved["hard_streak"]
        return True


class CannotGoOn(GrowthGuard):
    """Looks whether the numbers of its record are numbers, and not at which: after -1 rates it divides by 0."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        taken = super().restore({**saved, "rates": 1})
        if taken and type(saved.get("rates")) is int:
            self.rates = saved["rates"]
        return taken


class FearsCrowds(LevelGuard):
    """Says that it does not look at how many ranks there are, and does from seventeen on."""

    def observe(self, cycle: GuardInput) -> Verdict:
        return SuppressGrowth() if len(cycle.divergences) > 16 else super().observe(cycle)


# --- calls that never come back


class IsNeverMade(LevelGuard):
    """The factory waits for what nobody does."""

    @endless
    def __init__(self) -> None:
        threading.Event().wait()


class EndsTheProgram(LevelGuard):
    """Takes a norm that is too large for the end of all."""

    def observe(self, cycle: GuardInput) -> Verdict:
        raise SystemExit(3)


class LoopsInObserve(LevelGuard):
    """Looks for a norm until there is one."""

    def observe(self, cycle: GuardInput) -> Verdict:
        return super().observe(self._with_norms(cycle))

    @endless
    def _with_norms(self, cycle: GuardInput) -> GuardInput:
        found = None
        while found is None:
            found = None
        return cycle


class WillNotBeStopped(LevelGuard):
    """Takes whatever is raised in it for a measurement that failed."""

    @endless
    def saved(self) -> dict[str, Any]:
        tries = 3
        while tries:
            try:
                while True:
                    pass
            except BaseException:
                tries -= 1
        return super().saved()


class LoopsInARun(LevelGuard):
    """With three ranks it never comes to a verdict."""

    def observe(self, cycle: GuardInput) -> Verdict:
        if len(cycle.divergences) == 3 and 0 in cycle.divergences and 2 in cycle.divergences:
            self._compare(cycle.divergences)
        return super().observe(cycle)

    @endless
    def _compare(self, divergences: Mapping[int, float]) -> None:
        while len(divergences) == 3:
            pass
