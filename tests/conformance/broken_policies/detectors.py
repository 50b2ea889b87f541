"""Failure detectors with one thing wrong each."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from paceline.core.detector import FixedDetector, Learned, LearnedDetector, Limits

from conformance.hanging import endless


class AnswersInSeconds(LearnedDetector):
    """A number without the numbers behind it."""

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Any:
        return super().deadline(durations, limits).seconds


class ClaimsToForget(LearnedDetector):
    """Nobody knows that claim."""

    claims: ClassVar[tuple[str, ...]] = ("learns", "forgets")


class MeanOfNothing(LearnedDetector):
    """Divides by the number of durations, which may be 0."""

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        sum(durations) / len(durations)
        return super().deadline(durations, limits)


class KnowsNoLimits(LearnedDetector):
    """The largest duration, ten times."""

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        return Learned(10 * max(durations, default=limits.initial), len(durations))


class RemembersOthers(LearnedDetector):
    """Keeps the longest deadline it has ever given, to whichever rank."""

    longest: float = 0.0

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        found = super().deadline(durations, limits)
        self.longest = max(self.longest, found.seconds)
        return attrs.evolve(found, seconds=max(limits.floor, min(self.longest, limits.most)))


class SuspectsHabits(LearnedDetector):
    """Half the median: who is as slow as ever is late."""

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        found = super().deadline(durations, limits)
        if found.median is None:
            return found
        return attrs.evolve(found, seconds=max(limits.floor, min(found.median / 2, limits.most)))


class LearnsBackwards(LearnedDetector):
    """The slower a rank has been, the sooner it is suspected: but never below what it always takes."""

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        found = super().deadline(durations, limits)
        if found.median is None or not 0 < found.median < limits.most:
            return found
        seconds = max(limits.floor, min(limits.most, limits.most / found.median))
        return attrs.evolve(found, seconds=seconds)


class LearnsInSecret(LearnedDetector):
    """Learns, and does not say so."""

    claims: ClassVar[tuple[str, ...]] = ()


class OneForAll:
    """Claims that it learns, and has one deadline."""

    claims: ClassVar[tuple[str, ...]] = ("learns",)

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        return FixedDetector(20.0).deadline(durations, limits)


class AlwaysHasty(LearnedDetector):
    """As soon as the limits allow, whoever it is."""

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        return Learned(limits.floor, len(durations))


class TellsTheMedianInWords(LearnedDetector):
    """The numbers behind a deadline are for people."""

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        found = super().deadline(durations, limits)
        median: Any = "unknown" if found.median is None else f"{found.median:.1f} s"
        return attrs.evolve(found, median=median)


class SaysWhetherThereWereAny(LearnedDetector):
    """Counts with the truth: right for none and for one."""

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        found = super().deadline(durations, limits)
        return attrs.evolve(found, count=bool(durations)) if len(durations) < 2 else found


class HasRoomForTwenty(LearnedDetector):
    """As many durations as are kept where nothing else is said."""

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        room: list[float] = [0.0] * 20
        for place, duration in enumerate(durations):
            room[place] = duration
        return super().deadline(durations, limits)


class KnowsItAgain(LearnedDetector):
    """Has seen these last three durations before, and answers as it did then."""

    def __init__(self) -> None:
        self.known: dict[Any, Learned] = {}

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        found = self.known.setdefault((durations[-3:], limits), super().deadline(durations, limits))
        return attrs.evolve(found, count=len(durations))


# --- calls that never come back


class LoopsOverNothing(LearnedDetector):
    """Waits for the first duration in a list that does not change."""

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        if len(durations) == 1:
            self._await_more(durations)
        return super().deadline(durations, limits)

    @endless
    def _await_more(self, durations: tuple[float, ...]) -> None:
        while len(durations) == 1:
            pass
