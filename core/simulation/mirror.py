"""Ranks that change places: a claim about the cohort, and a part of the search if it is true.

    report = check(Bounds(ranks=4, deaths=1), symmetry=(1, 2, 3))

The protocol prefers low numbers in many places: the source of a state, the generator of a session, every tie. So ranks
cannot be taken for interchangeable, as a search usually would by renaming them in a state. What is claimed here is
less, and it is looked at in every state: to each run belong its images, one for each way in which these ranks change
places, in which each of them has done what another one did. A state of this model is where a run and all its images
have led to. Each step takes them on together and compares: the same can happen in all but for the ranks, a step breaks
the same invariant in all or none, and each property holds in all or in none. As long as that is so, what can follow one
can follow the others, so a run and its images are one.

When it ends
    The part of the lowest rank is taken over when that is lost: by the one of these ranks that is the lowest then, and
    they are interchangeable no more. So where a rank besides these has lost its link, the first difference ends the
    claim for the runs that show it: from there on each of the images is explored by itself (`Images` of one state). No
    run is left out by that. A difference while all the others have their links says that the claim is false
    (`Asymmetry`), and the shortest run that shows it is known.

What may be left out
    Orders that cannot matter (`Cohort.actions`) are left out only where that may be done in each of the images.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import permutations

import attrs

from .action import Action, act
from .checker import Cohort, State
from .explore import Failure, Property
from .fingerprint import combine
from .violation import Violation

__all__ = ["Asymmetry", "Images", "Mirrored", "Turned"]

Images = tuple[tuple[State, ...], int]
"""A run and its images, or one run alone: where they have led to, in the order of `Mirrored.ways`, turned so that the
fingerprints are in the least order; and the way by which the first of them is an image of the run."""
Turned = tuple[Action, int]
"""An action of the run; and where the images part with it, the way to the one that is gone on with."""
Outcome = Images | Violation | Exception


class Asymmetry(Exception):
    """A run and an image of it differ: the ranks are not interchangeable."""


class Mirrored:
    """The cohort up to an exchange of some ranks (`explore.Model`). `parted` counts the steps after which the images of
    a run were explored each by itself."""

    failures = (Violation, Asymmetry)

    def __init__(self, cohort: Cohort, ranks: tuple[int, ...]) -> None:
        self.cohort, self.ranks = cohort, ranks
        self.ways = [dict(zip(ranks, places, strict=True)) for places in permutations(ranks)]
        number = {tuple(way.values()): index for index, way in enumerate(self.ways)}
        self.after = [[number[tuple(late[early[rank]] for rank in ranks)] for early in self.ways] for late in self.ways]
        """One way after another: `after[late][early]`."""
        self.back = [row.index(0) for row in zip(*self.after, strict=True)]
        self.parted = 0
        self._at: Images | None = None
        self._outcomes: dict[Turned, Outcome] = {}

    @functools.cached_property
    def properties(self) -> Sequence[Property[Images]]:
        """Those of the cohort, which hold in all images or in none."""

        def of_first(holds: Callable[[State], bool]) -> Callable[[Images], bool]:
            return lambda images: holds(images[0][0])

        return [Property(claim.kind, claim.name, of_first(claim.holds)) for claim in self.cohort.properties]

    def initial(self) -> Images:
        """Nothing has happened, so nobody has done anything that another one has not."""
        return (self.cohort.initial(),) * len(self.ways), 0

    def actions(self, images: Images) -> Sequence[Turned]:
        """What can happen in the run; where its images part with that, in each of them."""
        if self._at is not images:
            self._at, self._outcomes = images, self._all_outcomes(images)
        return list(self._outcomes)

    def step(self, images: Images, action: Turned) -> Images:
        """The run goes on, and its images. Raises `Violation` where all break something, `Asymmetry` where they
        differ and should not."""
        self.actions(images)
        outcome = self._outcomes[action]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def is_fault(self, action: Turned) -> bool:
        """See `Cohort.is_fault`."""
        return self.cohort.is_fault(action[0])

    def final(self, images: Images) -> bool:
        """See `Cohort.final`."""
        return self.cohort.final(images[0][0])

    def fingerprint(self, images: Images) -> int:
        """The same whichever of the images is the run."""
        return combine([self.cohort.fingerprint(state) for state in images[0]])

    def told(self, failure: Failure) -> Failure:
        """With the actions of the one run that has failed: of the image that was gone on with, from its beginning."""
        way: list[Action] = []
        for action, chosen in failure.actions:
            way = [self.image(action, chosen) for action in (*way, action)]
        return attrs.evolve(failure, actions=tuple(way))

    def image(self, action: Action, way: int) -> Action:
        """What another of the ranks does. Processes that came later have the same numbers in all images."""
        return act(action.kind, self.ways[way].get(action.who, action.who), action.amount)

    # --- one step ----------------------------------------------------------------------------------------------------

    def _all_outcomes(self, images: Images) -> dict[Turned, Outcome]:
        """What each action leads to."""
        states, turn = images
        outcomes: dict[Turned, Outcome] = {}
        if len(states) == 1:
            for action in self.cohort.actions(states[0]):
                outcomes[action, 0] = self._alone(self._after(states[0], action))
            return outcomes
        at_first = self._differ(states, turn) if states == self.initial()[0] else None
        for action in self._own_actions(states):
            run = self.image(action, self.back[turn])
            after = [self._after(state, self.image(action, way)) for way, state in enumerate(states)]
            differ = at_first or self._differ(after, turn)
            if differ is None:
                outcomes[run, 0] = self._together(after, turn)
            elif self._others_are_there(states[0]):
                outcomes[run, 0] = Asymmetry(differ)
            else:
                self.parted += 1
                for way, one in enumerate(after):
                    outcomes[run, self.after[way][turn]] = self._alone(one)
        return outcomes

    def _own_actions(self, states: tuple[State, ...]) -> Sequence[Action]:
        """Of the first image; those of one process alone only if they commute with all others in every image."""
        cohort = self.cohort
        own = cohort.actions(states[0])
        alone = {action.who for action in own}
        if len(alone) > 1 or len(own) == len(cohort.actions(states[0], every=True)):
            return own
        number = alone.pop()
        if all(cohort.commutes(state, way.get(number, number)) for way, state in zip(self.ways, states, strict=True)):
            return own
        return cohort.actions(states[0], every=True)

    def _others_are_there(self, state: State) -> bool:
        return not any(rank not in self.ranks for rank in self.cohort.unlinked(state))

    def _together(self, after: list[State | Violation], turn: int) -> Outcome:
        """All images, turned; or what is broken in the run itself."""
        states = [state for state in after if not isinstance(state, Violation)]
        if not states:
            broken = after[self.back[turn]]
            assert isinstance(broken, Violation)
            return broken
        prints = [self.cohort.fingerprint(state) for state in states]
        ways = range(len(self.ways))
        least = min(ways, key=lambda by: [prints[self.after[way][by]] for way in ways])
        return tuple(states[self.after[way][least]] for way in ways), self.after[least][turn]

    @staticmethod
    def _alone(after: State | Violation) -> Outcome:
        return after if isinstance(after, Violation) else ((after,), 0)

    def _after(self, state: State, action: Action) -> State | Violation:
        try:
            return self.cohort.step(state, action)
        except Violation as violation:
            return violation

    # --- comparing ---------------------------------------------------------------------------------------------------

    def _differ(self, after: Sequence[State | Violation], turn: int) -> str | None:
        """In what the run differs from one of its images, if it does. It is told with the way of the run, so it is said
        as the run has it, whichever image is the first."""
        run = self.back[turn]
        one = after[run]
        for way, other in enumerate(after):
            if way == run:
                continue
            if isinstance(one, Violation) or isinstance(other, Violation):
                if not (isinstance(one, Violation) and isinstance(other, Violation) and one.name == other.name):
                    return f"it leads to {_said(one)}, and in the mirror image to {_said(other)}"
            elif differ := self._compare(one, other, self.after[way][turn]):
                return differ
        return None

    def _compare(self, one: State, other: State, way: int) -> str | None:
        """What can happen is the same but for the ranks, in every order, and so is what is claimed."""
        here = {self.image(action, way): action for action in self.cohort.actions(one, every=True)}
        there = dict.fromkeys(self.cohort.actions(other, every=True))
        for image, action in here.items():
            if image not in there:
                return f"then {action} can happen, and in the mirror image {image} cannot"
        for action in there:
            if action not in here:
                return f"then {self.image(action, self.back[way])} cannot happen, and in the mirror image {action} can"
        for claim in self.cohort.properties:
            if claim.holds(one) != claim.holds(other):
                return f"then '{claim.name}' holds in the run or in its mirror image, and not in both"
        return None


def _said(found: State | Violation) -> str:
    return str(found) if isinstance(found, Violation) else "no broken invariant"
