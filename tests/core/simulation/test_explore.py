"""The explorer on models whose answers are known, or found by a search that is too simple to be wrong."""

from __future__ import annotations

import copy
import itertools
import os
import subprocess
import sys
from collections import deque
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.errors import InvariantError, LocalProtocolError
from paceline.core.message_types import Outcome
from paceline.core.simulation.explore import Budget, Exploration, Kind, Level, Progress, explore
from paceline.core.simulation.fingerprint import PLACES, Interned, combine, fingerprint, spread
from paceline.core.simulation.process import End
from paceline.core.simulation.space import Space
from paceline.core.simulation.spelling import spelled

from support.toys import Graph, Letters, Philosophers, Swaps, Tokens

STATES = 7
edges = st.lists(st.tuples(st.integers(0, STATES - 1), st.integers(-1, STATES - 1), st.booleans()), max_size=18)
some = st.frozensets(st.integers(0, STATES - 1), max_size=3)


# --- against the simplest search -------------------------------------------------------------------------------------


def nearest(graph: Graph) -> dict[int, tuple[int, int]]:
    """The fewest faults, and then steps, to each state, by repeating until nothing changes; -1 is the broken edge."""
    best = {0: (0, 0)}
    for _ in range(2 * STATES):
        for source, target, fault in graph.edges:
            if source in best and source != -1:
                way = (best[source][0] + fault, best[source][1] + 1)
                best[target] = min(best.get(target, way), way)
    return best


def trapped(graph: Graph, reachable: set[int]) -> set[int]:
    """The states without a way to an end."""
    safe = set(graph.ends)
    for _ in range(STATES):
        safe |= {source for source, target, fault in graph.edges if target in safe and not fault}
    return reachable - safe


@settings(max_examples=200)
@given(edges, some, some)
def test_states_ways_and_traps_are_those_of_the_simplest_search(
    drawn: list[tuple[int, int, bool]], poison: frozenset[int], ends: frozenset[int]
) -> None:
    """Fewest faults first, then fewest steps; whatever the order of edges."""
    graph = Graph(drawn, ends=ends, poison=poison)
    found, best = explore(graph), nearest(graph)
    bad = [best[state] for state in (*sorted(poison), -1) if state in best]
    reachable = {state for state in best if state != -1}
    traps = trapped(graph, reachable) if ends and not bad else set()

    if bad:
        assert found.failure is not None and (found.failure.faults, len(found.failure.actions)) == min(bad)
        assert found.cut == "failure" and not found.ok
    elif traps:
        assert found.failure is not None and (found.failure.property, found.failure.count) == ("an end", len(traps))
        assert (found.failure.faults, len(found.failure.actions)) == min(best[state] for state in traps)
        assert found.complete and not found.ok
    else:
        assert found.ok and found.complete and found.failure is None
    if not bad:
        assert found.states == len(reachable)
        assert found.transitions == sum(source in reachable for source, _, _ in drawn)
        for level in found.levels:
            ways = [best[state] for state in reachable if best[state][0] == level.faults]
            assert level.complete and level.states == len(ways)
            assert level.depth == max((way[1] for way in ways), default=0)
    if found.failure is not None:
        _leads_there(graph, found)


def _leads_there(graph: Graph, found: Exploration) -> None:
    """Each action of the counterexample can be taken where the one before it led."""
    assert found.failure is not None
    state = 0
    for action in found.failure.actions:
        assert graph.edges[action][0] == state
        state = graph.edges[action][1]


# --- known models ----------------------------------------------------------------------------------------------------


def test_every_state_is_found_once() -> None:
    """Three counters that take turns: 4 ** 3 places less those with two in the middle."""
    states = [s for s in itertools.product(range(4), repeat=3) if sum(0 < at < 3 for at in s) <= 1]
    found = explore(Tokens())
    assert found.ok and found.complete and found.states == len(states) == found.levels[0].states
    assert found.depth == 9 and 0 < found.bytes_per_state < 400


def test_symmetric_states_count_once_and_the_claim_is_checked() -> None:
    found = explore(Tokens(), symmetry=Swaps())
    states = {tuple(sorted(s)) for s in itertools.product(range(4), repeat=3) if sum(0 < at < 3 for at in s) <= 1}
    assert found.ok and found.states == len(states)
    with pytest.raises(LocalProtocolError, match="no symmetry"):
        explore(Tokens(greedy=True), symmetry=Swaps())


def test_a_deadlock_comes_with_a_shortest_way() -> None:
    found = explore(Philosophers(4))
    assert found.failure is not None and found.failure.property == "no deadlock"
    assert sorted(found.failure.actions) == [0, 1, 2, 3] and found.cut == "failure"


def test_a_letter_that_nobody_repeats_is_a_trap_that_no_search_for_bad_states_sees() -> None:
    """The steps that are no faults cannot make good what was lost."""
    found = explore(Letters())
    assert found.failure is not None and found.complete
    assert found.failure.actions == ("ask", "lose") and found.failure.faults == found.failure.count == 1
    assert explore(Letters(losses=2, patience=True)).ok


def test_what_is_never_reached_fails_a_complete_search_and_no_other() -> None:
    graph = Graph([(0, 1, False), (1, 2, False)], wanted=6)
    found = explore(graph)
    assert found.unreached == ("wanted",) and found.complete and not found.ok and found.failure is None
    cut = explore(graph, budget=Budget(depth=1))
    assert cut.unreached == ("wanted",) and cut.cut == "depth" and cut.ok


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_a_cut_search_says_by_what_and_how_far_it_came() -> None:
    faulty = Graph([(0, 1, False), (1, 2, False), (2, 3, True), (3, 4, False)])
    cut = explore(faulty, budget=Budget(depth=2))
    assert cut.cut == "depth" and [level.complete for level in cut.levels] == [True, False]
    assert (cut.levels[0].states, cut.levels[1].states, cut.levels[1].unexplored) == (3, 1, 1)

    cut = explore(Tokens(), budget=Budget(states=20))
    assert cut.cut == "states" and cut.states >= 20 and not cut.levels[0].complete


def test_seconds_are_those_of_the_clock_that_is_given() -> None:
    """The core reads no clock (N-13)."""
    told: list[Progress] = []
    seconds = itertools.count()
    long = Graph([(state, state + 1, False) for state in range(1100)])
    cut = explore(long, budget=Budget(seconds=9), clock=lambda: float(next(seconds)), progress=told.append)
    assert cut.cut == "seconds" and cut.states == 5 and cut.seconds == 11.0 and cut.transitions == 4
    assert [(word.states, word.depth, word.waiting) for word in told] == [(n, n - 1, 1) for n in (1, 2, 3, 4, 5)]
    still = explore(long, clock=lambda: 0.0, progress=told.append)
    assert still.complete and [(word.states, word.depth) for word in told[5:]] == [(1001, 1000)]
    with pytest.raises(LocalProtocolError, match="clock"):
        explore(long, budget=Budget(seconds=1))


def test_a_trap_is_told_only_where_everything_behind_it_was_seen() -> None:
    """What a cut search has not explored may be the way out."""
    graph = Graph([(0, 1, False), (0, 2, False), (1, 1, False), (2, 3, False), (3, 4, False)], ends=frozenset({4}))
    assert explore(graph, budget=Budget(depth=2)).failure == explore(graph).failure
    assert explore(Graph(graph.edges[1:], ends=frozenset({9})), budget=Budget(depth=1)).ok


def test_an_error_of_the_model_itself_passes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        explore(_Bent([(0, 1, False)]))


class _Bent(Graph):
    def step(self, state: int, action: int) -> int:
        return 1 // 0


def test_a_model_that_is_not_pure_is_found_out_on_the_way_back() -> None:
    class Moody(Graph):
        asked = 0

        def step(self, state: int, action: int) -> int:
            self.asked += 1
            return super().step(state, action) + (self.asked > 2) * 10

    with pytest.raises(InvariantError, match="not pure"):
        explore(Moody([(0, 1, False), (1, 2, False)], poison=frozenset({2})))


# --- names and numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [
    (1, True), (1, 1.0), (0, False), (0.0, -0.0), (-1, -2), ((1,), ((1,),)), ("a", b"a"), (None, "None"), ((), ((),)),
    (0.1 + 0.2, 0.3), (1 << 64, 0), (("a", "b"), ("a', 'b",)),
])  # fmt: skip
def test_what_python_takes_for_one_has_two_fingerprints(one: Any, other: Any) -> None:
    """A state that counts as another is never explored."""
    assert fingerprint(one) != fingerprint(other) and fingerprint((one, 2)) != fingerprint((other, 2))
    drawer = Interned()
    assert [drawer.number(thing) for thing in (one, other, one, other)] == [0, 1, 0, 1] and len(drawer) == 2


def test_fingerprints_are_the_same_in_every_process() -> None:
    """Under two hash seeds, and as they were when this was written."""
    code = ("from paceline.core.simulation.fingerprint import *;"
            "print(fingerprint((1, 'x', b'y', None, 0.1)), combine([1, 2]))")  # fmt: skip
    said = {
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, text=True,
                       capture_output=True, check=True).stdout
        for seed in ("0", "4711")
    }  # fmt: skip
    assert said == {f"{fingerprint((1, 'x', b'y', None, 0.1))} {combine([1, 2])}\n"}
    assert combine([1, 2]) != combine([2, 1])


END = End(1, 0, 1, "gone")


@pytest.mark.parametrize(("one", "other"), [
    ((1, 2), [1, 2]), ([1, 2], deque([1, 2])), ((1, 2), deque([1, 2])), (Kind.ALWAYS, Kind.SOMETIMES),
    (Outcome.MERGED, int(Outcome.MERGED)), (END, attrs.evolve(END, link=2)), (END, attrs.astuple(END)),
    ({1: 2, 3: 4}, {3: 4, 1: 2}), (Level(1, 2, 3, 4, 5), Level(1, 2, 3, 4, 5.0)), ({1: [END]}, {1: [None]}),
])  # fmt: skip
def test_what_machines_hold_is_spelled_by_kind_and_content(one: Any, other: Any) -> None:
    """Whatever differs differs in it, also inside; what is equal is spelled the same whoever made it."""
    assert fingerprint(one) != fingerprint(other) and fingerprint((one, [other])) != fingerprint((other, [one]))
    assert fingerprint((one, one)) == fingerprint((copy.deepcopy(one), one))


def test_a_spelling_does_not_say_which_text_is_the_same_object() -> None:
    """Equal states would count as two."""
    one, other = (sys.intern("a rank"), *("".join(["a ", "rank"]) for _ in range(1)))
    assert one is not other and spelled((one, one)) == spelled((one, other)) == spelled((other, one))
    with pytest.raises(LocalProtocolError, match="a object has no spelling"):
        fingerprint((1, object()))


def test_a_sum_tells_places_apart() -> None:
    """Two parts that change places are another state, and so is one part more."""
    one, other = fingerprint("one"), fingerprint("other")
    sums = {spread(parts) for parts in ((one, other), (other, one), (one,), (one, one), (0, one), (one, 0, other))}
    assert len(sums) == 6 and len(set(PLACES)) == len(PLACES) and all(place % 2 for place in PLACES)


def test_the_size_of_a_space_counts_all_of_its_arrays() -> None:
    space = Space()
    for number in range(1000):
        space.add(fingerprint(number), max(0, number - 1), 0, number)
        space.explored(number, [number, number, 0])
    assert 100 < space.size / 1000 < 250 and space.way_to(2) == [0, 1, 2] and space.traps([]) == list(range(1000))
