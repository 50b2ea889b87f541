"""Meta-controllers with one thing wrong each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from paceline.core.cadence import CadencePhase
from paceline.core.cadence_inputs import NudgeDown, Stable, Verdict
from paceline.core.meta import MetaController

from conformance.hanging import endless

CALLS = itertools.count()


class ClaimsByHalves(MetaController):
    """Misspelt: nobody would ever test it."""

    claims: ClassVar[tuple[str, ...]] = ("cliff", "sustained")


class HasNoMemory:
    """Half of a meta-controller: nothing is saved, so a restart could not go on."""

    claims: ClassVar[tuple[str, ...]] = ()

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        return None


class CannotBeMade(MetaController):
    """Looks for what is not there."""

    def __init__(self) -> None:
        super().__init__()
        raise FileNotFoundError("no table of rates here")


class DividesByTheRate(MetaController):
    """Looks at how the rate changed, relative to what it is."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        if lr is not None and self.rates and (self.rates[-1] - lr) / lr > 100:
            return NudgeDown(0.5)
        return super().observe(lr, anchor, verdict, phase)


class NudgesByTheFall(MetaController):
    """Nudges by what is left of the rate, which may be nothing."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        before = self.rates[-1] if self.rates else None
        answer = super().observe(lr, anchor, verdict, phase)
        return NudgeDown(lr / before) if answer is not None and before and lr is not None else answer


class AnswersInNumbers(MetaController):
    """Gives the factor itself."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> Any:
        answer = super().observe(lr, anchor, verdict, phase)
        return 1.0 if answer is None else answer.factor


class LoopsDownTheRate(MetaController):
    """Halves the rate of before until it is that of now: an infinite one for ever."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        if lr == math.inf:
            self._halve(lr)
        return super().observe(lr, anchor, verdict, phase)

    @endless
    def _halve(self, at: float) -> None:
        while at > 1.0:
            at /= 2


class CountsItsCalls(MetaController):
    """Deaf in every seventh cycle of the process."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        answer = super().observe(lr, anchor, verdict, phase)
        return None if next(CALLS) % 7 == 0 else answer


class HasOneMemory(MetaController):
    """All of them look at the rates of whichever was told one last."""

    told: ClassVar[list[float]] = [math.nan]

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        if self.anchors:  # a new one begins with its own
            self.rates = [*self.rates[:-1], *self.told] if self.rates else self.rates
        answer = super().observe(lr, anchor, verdict, phase)
        self.told[:] = self.rates[-1:] or self.told
        return answer


class IsOneForAll(MetaController):
    """Made once, whoever asks: two runs in one process share a memory."""

    one: ClassVar[Any] = None

    def __new__(cls) -> IsOneForAll:
        cls.one = super().__new__(cls) if cls.one is None else cls.one
        return cls.one


class ForgetsItsRates(MetaController):
    """Restores all but its rates."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        return super().restore({**saved, "rates": []})


class SavesObjects(MetaController):
    """What it saves is no JSON."""

    def saved(self) -> dict[str, Any]:
        return {**super().saved(), "last": Stable()}


class TakesAnyRecord(MetaController):
    """Any history will do."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        super().restore(saved)
        return True


class ForgetsWhatItRefuses(MetaController):
    """Makes room for a record before it looks at it. One that is new has nothing to lose."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        self.rates, self.complaints = [], []
        return super().restore(saved)


class RemembersEverything(MetaController):
    """Keeps every anchor of the run, to be sure."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[int] = []

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        self.kept.append(anchor)
        return super().observe(lr, anchor, verdict, phase)

    def saved(self) -> dict[str, Any]:
        return {**super().saved(), "kept": list(self.kept)}


class NudgesARise(MetaController):
    """Takes any change of the rate for a cliff, also the warm-up."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        changed = bool(self.rates) and lr is not None and 0 < lr != self.rates[-1]
        return super().observe(lr, anchor, verdict, phase) or (NudgeDown(0.9) if changed else None)


class SeesNoCliff(MetaController):
    """Says that it knows a cliff, and never looks at the rate."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        return super().observe(None if lr is None else 0.1, anchor, verdict, phase)


class CliffsInSecret(MetaController):
    """Nudges at a cliff, and does not say so."""

    claims: ClassVar[tuple[str, ...]] = ("sustained",)


class HearsNoComplaint(MetaController):
    """Says that it hears the guard, and does not."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        return super().observe(lr, anchor, Stable(), phase)


class HearsInSecret(MetaController):
    """Nudges for a guard that goes on complaining, and does not say so."""

    claims: ClassVar[tuple[str, ...]] = ("cliffs",)


class StopsInARun(MetaController):
    """Knows no window of its run that is as short as its own nudges make it."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        if anchor < 2 and phase is not CadencePhase.PROBE and lr is not None and 0 < lr < 1e-2:
            raise ValueError(f"a window of {anchor}")
        return super().observe(lr, anchor, verdict, phase)


class NudgesInTruths(MetaController):
    """Nudges by True, which is 1 and no number."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        answer = super().observe(lr, anchor, verdict, phase)
        return None if answer is None else NudgeDown(True)


class LendsItsMemory(MetaController):
    """What it saved is what it goes on with."""

    def __init__(self) -> None:
        super().__init__()
        self.lent: dict[str, Any] = {}

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        answer = super().observe(lr, anchor, verdict, phase)
        self.lent.update(super().saved())
        return answer

    def saved(self) -> dict[str, Any]:
        self.lent.update(super().saved())
        return self.lent


class TrustsItsRecord(MetaController):
    """What is its own is whole."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        if saved.get("meta") != "windows":
            return False
        self.rates, self.anchors, self.complaints = (list(saved[name]) for name in ("rates", "anchors", "complaints"))
        return True


class WakesUpLate(MetaController):
    """Says that it knows a cliff, and looks for none before the balancer is mature."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        answer = super().observe(lr, anchor, verdict, phase)
        return answer if phase is CadencePhase.MATURE else None


class LooksForALargeFall(MetaController):
    """A rate that falls by less than a millionth has not fallen, however small it was."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        before = self.rates[-1] if self.rates else None
        answer = super().observe(lr, anchor, verdict, phase)
        rests = before is not None and lr is not None and abs(before - lr) < 1e-6
        return None if rests and not any(self.complaints[-2:]) else answer


class HearsOneKindOfComplaint(MetaController):
    """Says that it hears the guard, and takes its nudges for contentment."""

    def observe(self, lr: float | None, anchor: int, verdict: Verdict, phase: CadencePhase) -> NudgeDown | None:
        return super().observe(lr, anchor, Stable() if isinstance(verdict, NudgeDown) else verdict, phase)
