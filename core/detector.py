"""The failure detector: how long a rank may owe something before it is suspected (protocol M-11).

A detector is pure and keeps nothing: from the last durations of one stage of one rank it gives the deadline of the next
one. Where it learns nothing, because a rank has shown too little, it says the initial deadline. Whatever it says is
held within the limits of the run by `judged`, so that a bad detector can be hasty or patient and no worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Protocol

import attrs

from .values import value

__all__ = ["Detector", "FixedDetector", "Learned", "LearnedDetector", "Limits", "judged"]

LEAST_DURATIONS = 3
"""Durations from which a deadline is learned; fewer say nothing yet (M-11)."""


@value(kw_only=True)
class Limits:
    """What a deadline may be, in seconds: `initial` while too little is known, else from `floor` to `most` (half the
    ceiling of the stage). `suspect_k` is the knob of that name: how many deviations are still usual."""

    initial: float
    floor: float
    most: float
    suspect_k: float


@value
class Learned:
    """A deadline in seconds, and the numbers behind it: median and spread are None where too little is known."""

    seconds: float
    count: int
    median: float | None = None
    deviation: float | None = None


class Detector(Protocol):
    """A failure detector. Any object of this shape may be supplied (`Policies`)."""

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        """The deadline of a stage, from what it took the last times in seconds, oldest first."""
        ...


class LearnedDetector:
    """median + k * MAD of the last durations, within the limits; the MAD is not scaled (M-11)."""

    claims: ClassVar[tuple[str, ...]] = ("learns",)

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        if len(durations) < LEAST_DURATIONS:
            return Learned(limits.initial, len(durations))
        ordered, half = sorted(durations), len(durations) // 2
        middle = _middle(ordered)
        lower, upper = ordered[:half], ordered[half:]  # of which none is above the middle, and none below
        deviation = _middle(sorted([middle - each for each in lower] + [each - middle for each in upper]))
        seconds = within(limits.floor, middle + limits.suspect_k * deviation, limits.most)
        return Learned(seconds, len(durations), middle, deviation)


@attrs.frozen
class FixedDetector:
    """The same deadline for every rank and stage, as long as the limits allow it."""

    claims: ClassVar[tuple[str, ...]] = ()

    seconds: float

    def deadline(self, durations: tuple[float, ...], limits: Limits) -> Learned:
        return Learned(within(limits.floor, self.seconds, limits.most), len(durations))


def judged(detector: Detector, durations: tuple[float, ...], limits: Limits) -> Learned:
    """What a detector says, held within the limits. One that raises, or says what is no time, has said nothing: the
    initial deadline is in force."""
    try:
        found = detector.deadline(durations, limits)
        seconds = float(found.seconds)
    except Exception:
        return Learned(limits.initial, len(durations))
    if math.isnan(seconds):
        return Learned(limits.initial, len(durations))
    initial, floor, most = limits.initial, limits.floor, limits.most
    held = within(floor if floor < initial else initial, seconds, most if most > initial else initial)
    return found if held == seconds else attrs.evolve(found, seconds=held)


def within(low: float, value: float, high: float) -> float:
    """The value, or the bound that it exceeds; where they cross the lower one counts. Every explanation asks for the
    deadline of each rank, and `max` of two numbers costs three times as much as looking at them."""
    if value > high:
        value = high
    return value if value > low else low


def _middle(ordered: Sequence[float]) -> float:
    """The median of what is in order: the middle one, or the mean of the two in the middle."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
