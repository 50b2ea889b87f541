"""Two ranks that change places: a claim about the cohort, and half of the search if it is true.

    report = check(Bounds(ranks=3), symmetry=(1, 2))

The protocol prefers low numbers in many places: the source of a state, the generator of a session, every tie. So ranks
cannot be taken for interchangeable, as a search usually would by renaming them in a state. What is claimed here is
less, and it is looked at in every state: to each run belongs its mirror image, in which the two ranks have done what
the other one did. A state of this model is a pair, where a run has led to and where its image has led to. Each step
takes both on, and compares: the same can happen in both, but for the two ranks, a step breaks the same invariant in
both or none, and each property holds in both or in none. As long as that is so, what can follow one can follow the
other, so a pair and the same pair the other way round are one. With the first difference the claim is false
(`Asymmetry`), and the shortest run that shows it is known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from .action import Action, act
from .checker import Cohort, State
from .explore import Property
from .fingerprint import combine
from .violation import Violation

__all__ = ["Asymmetry", "Mirrored", "Pair"]

Pair = tuple[State, State, bool]
"""Two states, in the order of their fingerprints, and whether the run itself leads to the second one."""


class Asymmetry(Exception):
    """A run and its mirror image differ: the two ranks are not interchangeable."""


class Mirrored:
    """The cohort up to an exchange of two ranks (`explore.Model`). Actions are those of the run, not of its image."""

    failures = (Violation, Asymmetry)

    def __init__(self, cohort: Cohort, ranks: tuple[int, int]) -> None:
        self.cohort = cohort
        self.other = {ranks[0]: ranks[1], ranks[1]: ranks[0]}

    @functools.cached_property
    def properties(self) -> Sequence[Property[Pair]]:
        """Those of the cohort, which hold in both states of a pair or in none."""

        def of_first(holds: Callable[[State], bool]) -> Callable[[Pair], bool]:
            return lambda pair: holds(pair[0])

        return [Property(claim.kind, claim.name, of_first(claim.holds)) for claim in self.cohort.properties]

    def initial(self) -> Pair:
        """Nothing has happened, so nobody has done anything that the other one has not."""
        first = self.cohort.initial()
        return first, first, False

    def actions(self, pair: Pair) -> Sequence[Action]:
        """What can happen in the run."""
        here, _, turned = pair
        return [self.image(action) if turned else action for action in self.cohort.actions(here)]

    def step(self, pair: Pair, action: Action) -> Pair:
        """The run goes on, and its image. Raises `Violation` where both break something, `Asymmetry` where they
        differ."""
        here, there, turned = pair
        if here == there:
            self._compare(here, there)
        own = self.image(action) if turned else action
        one, other = self._after(here, own), self._after(there, self.image(own))
        if isinstance(one, Violation) or isinstance(other, Violation):
            if isinstance(one, Violation) and isinstance(other, Violation) and one.name == other.name:
                raise other if turned else one
            raise Asymmetry(f"{own} leads to {_said(one)}, and in the image {self.image(own)} to {_said(other)}")
        self._compare(one, other)
        if self.cohort.fingerprint(other) < self.cohort.fingerprint(one):
            return other, one, not turned
        return one, other, turned

    def is_fault(self, action: Action) -> bool:
        """See `Cohort.is_fault`."""
        return self.cohort.is_fault(action)

    def final(self, pair: Pair) -> bool:
        """See `Cohort.final`."""
        return self.cohort.final(pair[0])

    def fingerprint(self, pair: Pair) -> int:
        """The same whichever of the two states the run leads to."""
        return combine([self.cohort.fingerprint(state) for state in pair[:2]])

    def image(self, action: Action) -> Action:
        """What the other of the two ranks does. Processes that came later have the same numbers in both runs."""
        return act(action.kind, self.other.get(action.who, action.who), action.amount)

    def _after(self, state: State, action: Action) -> State | Violation:
        try:
            return self.cohort.step(state, action)
        except Violation as violation:
            return violation

    def _compare(self, one: State, other: State) -> None:
        """What can happen is the same but for the two ranks, in every order, and so is what is claimed."""
        here = {self.image(action): action for action in self.cohort.actions(one, every=True)}
        there = dict.fromkeys(self.cohort.actions(other, every=True))
        for image, action in here.items():
            if image not in there:
                raise Asymmetry(f"then {action} can happen, and in the mirror image {image} cannot")
        for action in there:
            if action not in here:
                raise Asymmetry(f"then {self.image(action)} cannot happen, and in the mirror image {action} can")
        for claim in self.cohort.properties:
            if claim.holds(one) != claim.holds(other):
                raise Asymmetry(f"then '{claim.name}' holds in the run or in its mirror image, and not in both")


def _said(found: State | Violation) -> str:
    return str(found) if isinstance(found, Violation) else "no broken invariant"
