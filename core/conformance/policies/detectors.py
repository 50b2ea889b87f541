"""The kit for failure detectors (M-11, I35)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...detector import Detector, Learned, Limits
from ...simulation.dice import Dice
from .. import Kit, Level, accepting, ensure
from .subjects import GUIDE, WILD, ensure_claims, ensure_shape, is_number

__all__ = ["DETECTORS"]

DETECTORS: Kit[Callable[[], Detector]] = Kit(
    name="detectors",
    version=5,
    capabilities={"learns": "what a stage took lately moves its deadline"},
)
LIMITS = (
    Limits(initial=60.0, floor=5.0, most=150.0, suspect_k=6.0),
    Limits(initial=60.0, floor=5.0, most=5.0, suspect_k=6.0),
    Limits(initial=1e-3, floor=1e-3, most=1.0, suspect_k=0.001),
    Limits(initial=1e6, floor=0.5, most=1e7, suspect_k=1e6),
)


def _histories(number: int) -> Iterator[tuple[float, ...]]:
    dice = Dice(number)
    for length in (0, 1, 2, 3, 4, 20, 100):
        yield tuple(dice.pick(WILD) for _ in range(length))
        yield tuple(20 * dice.unit() for _ in range(length))
    for long_ago in (0.1, 50.0):
        yield (*[long_ago] * 9, 1.0, 2.0, 3.0)


@DETECTORS.check("P301", Level.L0, doc=f"{GUIDE}#a-failure-detector")
def a_detector_is_made(make: Callable[[], Detector]) -> None:
    """The factory makes one, it gives a deadline for a rank of which nothing is known, and claims only what can be
    claimed."""
    with accepting("a first deadline"):
        made = make()
        ensure_shape(made, Detector)
        found = made.deadline((), LIMITS[0])
    ensure_claims(DETECTORS, make, made)
    ensure(isinstance(found, Learned), f"the deadline is a {type(found).__name__}, not Learned")


@DETECTORS.check("P311", Level.L1, doc=f"{GUIDE}#total")
def a_detector_answers_everything(make: Callable[[], Detector]) -> None:
    """Whatever a stage took, and however many durations are kept, the deadline is a number of seconds within floor and
    ceiling, or the initial one; median and spread are numbers, or None."""
    detector = make()
    for limits in LIMITS:
        for number in range(20):
            for durations in _histories(number):
                with accepting(f"deadline({durations}, {limits})"):
                    found = detector.deadline(durations, limits)
                seconds = found.seconds
                ensure(is_number(seconds), f"the deadline is {seconds!r}")
                inside = limits.floor <= seconds <= limits.most or seconds == limits.initial
                ensure(inside, f"after {durations} the deadline is {seconds} s; {limits} allow no such thing")
                counted = type(found.count) is int and found.count == len(durations)
                ensure(counted, f"it says {found.count!r} durations of {len(durations)}")
                for name in ("median", "deviation"):
                    told = getattr(found, name)
                    number = isinstance(told, int | float) and not isinstance(told, bool)
                    ensure(told is None or number, f"the {name} is {told!r}, no number of seconds and not None")


@DETECTORS.check("P312", Level.L1, doc=f"{GUIDE}#the-same-again")
def a_detector_keeps_nothing(make: Callable[[], Detector]) -> None:
    """The deadline depends on the durations and limits alone: asked again, in any order, it is the same (N-13)."""
    detector = make()
    asked = [(durations, limits) for limits in LIMITS for number in range(5) for durations in _histories(number)]
    first = [detector.deadline(*each) for each in asked]
    again = [detector.deadline(*each) for each in reversed(asked)][::-1]
    fresh = [make().deadline(*each) for each in asked]
    ensure(repr(first) == repr(again), "asked in another order, it gives other deadlines")
    ensure(repr(first) == repr(fresh), "a new detector gives other deadlines")


@DETECTORS.check("P313", Level.L1, doc=f"{GUIDE}#a-failure-detector", needs="learns")
def habits_are_never_suspected(make: Callable[[], Detector]) -> None:
    """A stage that always takes the same is not suspected for it, up to the ceiling (I35)."""
    limits = LIMITS[0]
    for took in (0.001, 1.0, 30.0, 140.0):
        seconds = make().deadline((took,) * 20, limits).seconds
        ensure(seconds >= took, f"a stage that always takes {took} s has a deadline of {seconds} s")


def _constant(make: Callable[[], Detector]) -> None:
    found = {make().deadline((took,) * 20, LIMITS[0]).seconds for took in (0.1, 10.0, 100.0)}
    ensure(len(found) == 1, f"deadlines are {sorted(found)}, and it does not claim that it learns")


@DETECTORS.check("P321", Level.L2, doc=f"{GUIDE}#claims", needs="learns", unclaimed=_constant)
def longer_stages_have_longer_deadlines(make: Callable[[], Detector]) -> None:
    """With all durations longer in proportion the deadline is not shorter, and where they differ much it is longer.
    Who does not claim it gives one deadline."""
    detector, limits = make(), LIMITS[0]
    for number in range(20):
        dice = Dice(number)
        durations = tuple(0.1 + dice.unit() for _ in range(20))
        seconds = [detector.deadline(tuple(factor * each for each in durations), limits).seconds
                   for factor in (0.1, 0.5, 1.0, 2.0, 10.0, 100.0)]  # fmt: skip
        ensure(seconds == sorted(seconds), f"durations that grow have the deadlines {seconds}")
        ensure(seconds[-1] > seconds[0], f"durations a thousand times as long have the same deadline, {seconds[0]} s")
