"""An explicit-state explorer: every state that a model can reach within bounds, and what is true of all of them.

It knows nothing of paceline. A `Model` says where it begins, what can happen in a state, and what a state is after it;
`explore` visits every state once and gives an `Exploration`.

The order
    States are visited by the number of faults on the way to them, and among those with equally many by the number of
    steps: first everything that can happen without a fault, then everything with one, and so on. So the first
    counterexample has the fewest faults that any has, and of those with that many it is a shortest one; and when the
    budget ends early, all that can happen with fewer faults has been seen.

What is asked
    `ALWAYS` holds in every state, and no step raises one of the model's `failures`.
    `SOMETIMES` holds in some state: one that never does says that the bounds are too small, or the model is wrong.
    `FROM_EVERYWHERE`: from every state one where it holds can be reached by steps that are no faults (AG EF). It is
    answered by going backwards from those states over the stored graph; a state left over is a trap, and nothing that
    happens to it will end well. This sees what no search for bad states can see: a cohort that waits for ever.
    No deadlock: a state in which nothing can happen must be one that the model calls `final`.

What is said
    `Exploration` says of each number of faults how many states and steps there were and whether that was all. It never
    claims more: what a cut search has not seen is named, `SOMETIMES` is then unknown instead of false, and a state
    behind which something is unexplored counts as no trap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import attrs

from ..errors import InvariantError, LocalProtocolError
from ..values import value
from .space import Space

__all__ = ["NO_DEADLOCK", "Budget", "Exploration", "Failure", "Kind", "Level", "Model", "Progress", "Property",
           "Symmetry", "explore"]  # fmt: skip

State = TypeVar("State")
Action = TypeVar("Action")

NO_DEADLOCK = "no deadlock"
"""The property that a state breaks in which nothing can happen and which is no end."""
PROGRESS_STATES, PROGRESS_SECONDS = 1000, 1.0
"""Between two calls of `progress`: so many states at most, and about so many seconds."""


class Kind(Enum):
    """What is claimed of the states; see the module."""

    ALWAYS = "always"
    SOMETIMES = "sometimes"
    FROM_EVERYWHERE = "from everywhere"


@value
class Property(Generic[State]):
    """A claim with a name; `holds` is asked once in each state and must be pure."""

    kind: Kind
    name: str
    holds: Callable[[State], bool]


class Model(Protocol[State, Action]):
    """What can be explored. All of it must be pure: the same answer to the same question, in every process.

    `fingerprint` has to tell apart whatever differs in what can follow (`fingerprint.py`), and `actions` gives them in
    an order that is the same each time. `failures` are the errors by which a `step` says that something is broken;
    any other error is one of the model itself and ends the exploration.
    """

    @property
    def properties(self) -> Sequence[Property[State]]: ...
    @property
    def failures(self) -> tuple[type[Exception], ...]: ...
    def initial(self) -> State: ...
    def actions(self, state: State, /) -> Sequence[Action]: ...
    def step(self, state: State, action: Action, /) -> State: ...
    def is_fault(self, action: Action, /) -> bool: ...
    def final(self, state: State, /) -> bool: ...
    def fingerprint(self, state: State, /) -> int: ...


class Symmetry(Protocol[State, Action]):
    """A claim that parts of a model can change places. `representative` gives the same state for all states that
    differ in nothing else; `images` gives, for each way to change places but the identity, how it maps a state and an
    action. The claim is checked at every explored state while `explore` runs: it is wrong as soon as the code
    prefers, say, the lowest number."""

    def representative(self, state: State, /) -> State: ...
    def images(self) -> Iterable[tuple[Callable[[State], State], Callable[[Action], Action]]]: ...


@value
class Budget:
    """Where a search stops at the latest. `seconds` needs the clock that is given to `explore`; `depth` is the number
    of steps on the way to a state that is still explored."""

    states: float = math.inf
    seconds: float = math.inf
    depth: float = math.inf


@value
class Level:
    """What was seen with one number of faults: states found, steps taken from them, the longest shortest way to one,
    and how many of the states were not explored."""

    faults: int
    states: int
    transitions: int
    depth: int
    unexplored: int

    @property
    def complete(self) -> bool:
        """Every state of the level was explored."""
        return self.unexplored == 0


@value
class Failure:
    """What went wrong, and the shortest way there: the actions from the first state. `count` is how many states are
    traps, for a property of that kind."""

    property: str
    text: str
    actions: tuple[Any, ...]
    faults: int
    count: int = 1


@value
class Progress:
    """How far a search is."""

    states: int
    transitions: int
    faults: int
    depth: int
    waiting: int
    seconds: float


@value
class Exploration:
    """The outcome. `cut` is None or names what ended the search early: states, seconds, depth or failure. `unreached`
    are the `SOMETIMES` properties that held nowhere; only of a complete search is that a failure."""

    levels: tuple[Level, ...]
    cut: str | None
    failure: Failure | None
    unreached: tuple[str, ...]
    seconds: float
    bytes_per_state: float

    @property
    def states(self) -> int:
        """States found, over all levels."""
        return sum(level.states for level in self.levels)

    @property
    def transitions(self) -> int:
        """Steps taken, faults included."""
        return sum(level.transitions for level in self.levels)

    @property
    def depth(self) -> int:
        """The longest of the shortest ways."""
        return max(level.depth for level in self.levels)

    @property
    def complete(self) -> bool:
        """Every reachable state was explored."""
        return self.cut is None

    @property
    def ok(self) -> bool:
        """Nothing was found wrong in what was explored, and a complete search reached what it should."""
        return self.failure is None and not (self.complete and self.unreached)


def explore(
    model: Model[State, Action],
    *,
    budget: Budget | None = None,
    clock: Callable[[], float] | None = None,
    symmetry: Symmetry[State, Action] | None = None,
    progress: Callable[[Progress], None] | None = None,
    since: float | None = None,
) -> Exploration:
    """Visit every state of the model, or as many as the budget allows; stop at the first failure.

    `clock` gives monotonic seconds; without it nothing is timed. It is read before every step, so that a budget of
    seconds is kept to within one of them. `since` is what it said when the work began, if that was earlier: to make a
    model takes time too. `LocalProtocolError` if the budget has seconds and there is no clock, or if `symmetry` turns
    out not to be one.
    """
    budget = budget or Budget()
    if clock is None and budget.seconds != math.inf:
        raise LocalProtocolError("a budget of seconds needs a clock: pass clock=time.monotonic")
    return _Search(model, budget, clock or (lambda: 0.0), symmetry, progress, since).run()


@attrs.define
class _Tally:
    """A level while it is explored; `layers` maps a depth to the states, or the breakages, that wait there."""

    layers: dict[int, list[tuple[int, Any]]] = attrs.field(factory=dict)
    states: int = 0
    transitions: int = 0
    depth: int = 0
    explored: int = 0


@value
class _Broken:
    """A step that failed. It waits like a state: what fails with fewer faults or steps is told first."""

    property: str
    text: str
    action: Any


class _Found(Exception):
    """A failure was found; ends the search."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure


class _Spent(Exception):
    """The budget is used up; says by what."""


class _Search(Generic[State, Action]):
    def __init__(self, model: Model[State, Action], budget: Budget, clock: Callable[[], float],
                 symmetry: Symmetry[State, Action] | None,
                 progress: Callable[[Progress], None] | None, since: float | None) -> None:  # fmt: skip
        self.model, self.budget, self.clock, self.symmetry, self.progress = model, budget, clock, symmetry, progress
        self.space = Space()
        self.levels: list[_Tally] = []
        self.always = [p for p in model.properties if p.kind is Kind.ALWAYS]
        self.sometimes = {p.name: p for p in model.properties if p.kind is Kind.SOMETIMES}
        self.goals = {p.name: (p, list[int]()) for p in model.properties if p.kind is Kind.FROM_EVERYWHERE}
        self.began = clock() if since is None else since
        self.ends_at = self.began + budget.seconds
        self.too_deep = False
        self.told = self.began, 0

    def run(self) -> Exploration:
        """The search, then the questions about the whole graph."""
        cut, failure = None, None
        try:
            self.find(self.model.initial(), 0, 0, 0)
            self.walk()
            cut = "depth" if self.too_deep else None
        except _Spent as spent:
            cut = str(spent)
        except _Found as found:
            cut, failure = "failure", found.failure
        if failure is None:
            failure = self.trap()
        return Exploration(
            levels=tuple(Level(faults, tally.states, tally.transitions, tally.depth, tally.states - tally.explored)
                         for faults, tally in enumerate(self.levels)),
            cut=cut, failure=failure, unreached=tuple(self.sometimes), seconds=self.clock() - self.began,
            bytes_per_state=self.space.size / max(1, len(self.space)),
        )  # fmt: skip

    def walk(self) -> None:
        """Level by level, and in a level layer by layer: a layer is filled by the one before it in its own level and
        in the level below, and both come earlier."""
        faults = 0
        while faults < len(self.levels):
            layers = self.levels[faults].layers
            while layers:
                depth = min(layers)
                layer = layers.pop(depth)
                if depth > self.budget.depth:
                    self.too_deep = True
                    continue
                for number, state in layer:
                    if isinstance(state, _Broken):
                        raise _Found(self.failure(state.property, state.text, number, [state.action]))
                    if self.space.is_at(number, faults, depth):
                        self.keep_within_budget(faults, depth)
                        self.expand(number, state, faults, depth)
            faults += 1

    def keep_within_budget(self, faults: int, depth: int) -> None:
        """The budget, and now and then a word to who waits."""
        if len(self.space) >= self.budget.states:
            raise _Spent("states")
        if self.progress is None:
            return
        now, explored = self.clock(), sum(tally.explored for tally in self.levels)
        if explored - self.told[1] >= PROGRESS_STATES or now - self.told[0] >= PROGRESS_SECONDS:
            self.told = now, explored
            waiting = sum(tally.states for tally in self.levels) - explored
            steps = sum(tally.transitions for tally in self.levels)
            self.progress(Progress(len(self.space), steps, faults, depth, waiting, now - self.began))

    def name(self, state: State) -> int:
        """The fingerprint of a state, or of all that are symmetric to it."""
        return self.model.fingerprint(state if self.symmetry is None else self.symmetry.representative(state))

    def find(self, state: State, parent: int, faults: int, depth: int) -> int:
        """The number of a state. It waits to be explored if it is new, and also if it waits already and this way to it
        has fewer faults or steps than the one known so far: its older entry is passed over when its turn comes."""
        name = self.name(state)
        number = self.space.number_of.get(name)
        if number is None:
            number = self.space.add(name, parent, faults, depth)
        elif self.space.comes_before(number, faults, depth):
            self.levels[self.space.faults_to(number)].states -= 1
            self.space.move(number, parent, faults, depth)
        else:
            return number
        self.await_turn(number, state, faults, depth)
        self.levels[faults].states += 1
        return number

    def await_turn(self, number: int, what: Any, faults: int, depth: int) -> None:
        """Put a state, or a breakage, into the layer of its faults and depth."""
        while len(self.levels) <= faults:
            self.levels.append(_Tally())
        self.levels[faults].layers.setdefault(depth, []).append((number, what))

    def expand(self, number: int, state: State, faults: int, depth: int) -> None:
        """Judge a state, and take every action."""
        model, tally = self.model, self.levels[faults]
        tally.depth, tally.explored = max(tally.depth, depth), tally.explored + 1
        self.judge(number, state)
        actions = model.actions(state)
        if not actions and not model.final(state):
            raise _Found(self.failure(NO_DEADLOCK, "nothing can happen here, and it is no end", number))
        successors = []
        for action in actions:
            if self.clock() >= self.ends_at:
                tally.explored -= 1
                raise _Spent("seconds")
            tally.transitions += 1
            fault = model.is_fault(action)
            try:
                after = model.step(state, action)
            except model.failures as error:
                broken = _Broken(type(error).__name__, str(error), action)
                self.await_turn(number, broken, faults + fault, depth + 1)
                continue
            found = self.find(after, number, faults + fault, depth + 1)
            if not fault:
                successors.append(found)
        self.space.explored(number, successors)
        if self.symmetry is not None:
            self.check_symmetry(state, actions)

    def judge(self, number: int, state: State) -> None:
        """Ask the properties of one state."""
        for claim in self.always:
            if not claim.holds(state):
                raise _Found(self.failure(claim.name, "does not hold here", number))
        for claim in [claim for claim in self.sometimes.values() if claim.holds(state)]:
            del self.sometimes[claim.name]
        for claim, goals in self.goals.values():
            if claim.holds(state):
                goals.append(number)

    def check_symmetry(self, state: State, actions: Sequence[Action]) -> None:
        """Permuted runs give permuted results, here at least."""
        assert self.symmetry is not None
        for of_state, of_action in self.symmetry.images():
            image = of_state(state)
            there = self.model.actions(image)
            if self.name(image) != self.name(state) or len(there) != len(actions):
                raise _no_symmetry(state, image)
            for action in actions:
                moved = of_action(action)
                if moved not in there or self.print_after(image, moved) != self.print_after(state, action, of_state):
                    raise _no_symmetry(action, moved)

    def print_after(self, state: State, action: Action, of_state: Callable[[State], State] | None = None) -> int | None:
        """The fingerprint of what an action leads to, or of its image; None for a failure."""
        try:
            after = self.model.step(state, action)
        except self.model.failures:
            return None
        return self.model.fingerprint(after if of_state is None else of_state(after))

    # --- afterwards ----------------------------------------------------------------------------------------------

    def trap(self) -> Failure | None:
        """The nearest state from which a goal cannot be reached any more."""
        for name, (_, goals) in self.goals.items():
            traps = self.space.traps(goals)
            if traps:
                nearest = min(traps, key=self.space.place)
                return self.failure(name, "cannot be reached any more from here", nearest, count=len(traps))
        return None

    def failure(self, name: str, text: str, number: int, last: Sequence[Action] = (), count: int = 1) -> Failure:
        """With the way there."""
        actions = (*self.way_to(number), *last)
        return Failure(name, text, actions, sum(self.model.is_fault(action) for action in actions), count)

    def way_to(self, number: int) -> list[Action]:
        """The actions that lead to a state, found again: in each state on the way one that leads to the next
        fingerprint, no fault if there is one."""
        model, state, way = self.model, self.model.initial(), list[Action]()
        for there in self.space.way_to(number)[1:]:
            for action in sorted(model.actions(state), key=model.is_fault):
                try:
                    after = model.step(state, action)
                except model.failures:
                    continue
                if self.space.number_of.get(self.name(after)) == there:
                    state = after
                    way.append(action)
                    break
            else:
                raise InvariantError("a step led elsewhere the second time: this model is not pure")
        return way


def _no_symmetry(here: object, there: object) -> LocalProtocolError:
    return LocalProtocolError(f"this is no symmetry of the model: {here!r} and its image {there!r} are not followed by "
                              "the same; explore without it")  # fmt: skip
