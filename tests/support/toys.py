"""Small models for the explorer, each with something to find in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from paceline.core.simulation.explore import Kind, Property
from paceline.core.simulation.fingerprint import fingerprint

State = tuple[int, ...]


class Broken(Exception):
    """A step of a toy that must not happen."""


@attrs.define
class Graph:
    """States 0 to n-1. `edges` has (from, to, is a fault); a state in `poison` breaks `ALWAYS`, an edge to -1 raises.
    An action is the index of an edge."""

    edges: Sequence[tuple[int, int, bool]]
    ends: frozenset[int] = frozenset()
    poison: frozenset[int] = frozenset()
    wanted: int | None = None
    failures: tuple[type[Exception], ...] = (Broken,)

    @property
    def properties(self) -> Sequence[Property[int]]:
        """No poison; the wanted state; an end from everywhere, if there are ends."""
        claims = [Property(Kind.ALWAYS, "no poison", lambda s: s not in self.poison)]
        if self.wanted is not None:
            claims.append(Property(Kind.SOMETIMES, "wanted", lambda s: s == self.wanted))
        if self.ends:
            claims.append(Property(Kind.FROM_EVERYWHERE, "an end", lambda s: s in self.ends))
        return claims

    def initial(self) -> int:
        return 0

    def actions(self, state: int) -> Sequence[int]:
        return [index for index, edge in enumerate(self.edges) if edge[0] == state]

    def step(self, state: int, action: int) -> int:
        if self.edges[action][1] == -1:
            raise Broken(f"edge {action}")
        return self.edges[action][1]

    def is_fault(self, action: int) -> bool:
        return self.edges[action][2]

    def final(self, state: int) -> bool:
        return True

    def fingerprint(self, state: int) -> int:
        return fingerprint(state)


@attrs.define
class Tokens:
    """So many equal processes, each counts to `top`; at most one of them may be in the middle. With `greedy` the first
    process may go on when it should wait, so they are not equal."""

    processes: int = 3
    top: int = 3
    greedy: bool = False
    failures: tuple[type[Exception], ...] = ()
    properties: Sequence[Property[State]] = ()

    def initial(self) -> State:
        return (0,) * self.processes

    def actions(self, state: State) -> Sequence[int]:
        busy = [p for p, at in enumerate(state) if 0 < at < self.top]
        free = [p for p, at in enumerate(state) if at < self.top and (not busy or p in busy)]
        return [*free, 0] if self.greedy and 0 not in free and state[0] < self.top else free

    def step(self, state: State, action: int) -> State:
        return (*state[:action], state[action] + 1, *state[action + 1 :])

    def is_fault(self, action: int) -> bool:
        return False

    def final(self, state: State) -> bool:
        return min(state) == self.top

    def fingerprint(self, state: State) -> int:
        return fingerprint(state)


@attrs.define
class Swaps:
    """The symmetry of `Tokens`: neighbours change places."""

    processes: int = 3

    def representative(self, state: State) -> State:
        return tuple(sorted(state))

    def images(self) -> Iterable[tuple[Callable[[State], State], Callable[[int], int]]]:
        for left in range(self.processes - 1):
            order = list(range(self.processes))
            order[left], order[left + 1] = left + 1, left
            yield lambda state, order=order: tuple(state[p] for p in order), lambda action, order=order: order[action]


@attrs.define
class Philosophers:
    """Each takes the fork to the left, then the one to the right. A state has the number of forks each one holds."""

    seats: int = 3
    failures: tuple[type[Exception], ...] = ()
    properties: Sequence[Property[State]] = ()

    def initial(self) -> State:
        return (0,) * self.seats

    def actions(self, state: State) -> Sequence[int]:
        return [p for p, held in enumerate(state) if self._can(state, p, held)]

    def _can(self, state: State, seat: int, held: int) -> bool:
        left, right = state[seat - 1], state[(seat + 1) % self.seats]
        return (left < 2) if held == 0 else (right == 0) if held == 1 else True

    def step(self, state: State, action: int) -> State:
        return (*state[:action], (state[action] + 1) % 3, *state[action + 1 :])

    def is_fault(self, action: int) -> bool:
        return False

    def final(self, state: State) -> bool:
        return False

    def fingerprint(self, state: State) -> int:
        return fingerprint(state)


@attrs.define
class Letters:
    """A letter and its answer over a channel that may lose `losses` letters; who has `patience` writes again when
    nothing is under way. A state is (asked, answered, letters under way, answers under way, losses left)."""

    losses: int = 1
    patience: bool = False
    failures: tuple[type[Exception], ...] = ()

    @property
    def properties(self) -> Sequence[Property[State]]:
        """The answer comes."""
        return [
            Property(Kind.FROM_EVERYWHERE, "the answer comes", lambda s: s[1] == 1),
            Property(Kind.SOMETIMES, "a letter is lost", lambda s: s[4] < self.losses),
        ]

    def initial(self) -> State:
        return (0, 0, 0, 0, self.losses)

    def actions(self, state: State) -> Sequence[str]:
        asked, answered, letters, answers, losses = state
        moves = ["ask"] * (not asked) + ["deliver"] * (letters > 0) + ["answer"] * (answers > 0)
        moves += ["ask"] * (self.patience and asked and not answered and not letters and not answers)
        return moves + ["lose"] * (losses > 0 and letters > 0) + ["miss"] * (losses > 0 and answers > 0)

    def step(self, state: State, action: str) -> State:
        asked, answered, letters, answers, losses = state
        if action == "ask":
            return (1, answered, letters + 1, answers, losses)
        if action == "deliver":
            return (asked, answered, letters - 1, answers + 1, losses)
        if action == "answer":
            return (asked, 1, letters, answers - 1, losses)
        if action == "lose":
            return (asked, answered, letters - 1, answers, losses - 1)
        return (asked, answered, letters, answers - 1, losses - 1)

    def is_fault(self, action: str) -> bool:
        return action in ("lose", "miss")

    def final(self, state: State) -> bool:
        return True

    def fingerprint(self, state: State) -> int:
        return fingerprint(state)
