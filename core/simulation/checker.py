"""The model checker: every order in which a small run can happen, on the production machines.

    report = check(Bounds(ranks=2, cycles=2, drops=1), seconds=60, clock=time.monotonic)
    print(report.text())

A state is a `World`, taken apart (`parts.py`); what can happen in it is what `World.enabled` says, and its faults as
long as their budgets last. `explore.py` visits them all. Every invariant of protocol section 16 that the world and its
ghost check is checked in every state and on every step; further properties are `PROPERTIES` below.

What is bounded
    The number of ranks; the data: so many batches that each rank takes one step a cycle, for `cycles` cycles after
    formation; and each kind of fault, by its own budget (`AXES`). Time passes only when nothing else can happen, up to
    the next deadline: deliveries in time are explored in every order, late ones by what their lateness leads to, such
    as a death. Beacons and heartbeats are so rare that they come only when a run is stuck, and a run that goes on after
    `PATIENCE` deadlines is taken to go on for ever. What is not on an axis does not happen: no rank leaves, no
    contribution is poisoned, no operator asks, nobody knocks again where a lost link is a death. But an operator whose
    start is waited for (M-4) comes before time passes.

What is left out although it is within the bounds
    Orders that cannot matter. If a process has a message to serve, is healthy and waits for no result, then whatever it
    does next commutes with all that others do: they can neither see it nor keep it from happening. The same is true of
    a process whose link is closed for ever, and of every process after the end of the run. Then only its own actions
    are explored, and the faults that could strike it first, before anybody else's (a persistent set; Godefroid, LNCS
    1032). Everything others could do can still be done afterwards, so no end of a run and no broken invariant is lost;
    `reduce=False` explores all orders, and the tests compare the two. Who is inside a call of a collective is not left
    alone: what the others do ends that call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs

from ..diagram import in_words
from ..engine import Taken, untaken
from ..errors import ConfigError
from ..tables import TABLES, engine_for
from .action import Action, act
from .check_report import ENDS, CheckReport, counterexample, in_a_row
from .explore import Budget, Exploration, Kind, Progress, Property, explore
from .parts import Parts, Row
from .setup import Setup
from .violation import Violation

__all__ = ["AXES", "PROOFS", "Bounds", "Cohort", "check"]

AXES: dict[str, tuple[str, ...]] = {
    "drops": ("drop", "lose"),
    "duplicates": ("duplicate", "repeat"),
    "deaths": ("crash",),
    "restarts": ("join",),
    "failures": ("fail", "withhold"),
}
"""The kinds of fault by the budget that they are taken from. `failures` are those of a collective: a call that fails at
a process, and the id of a session that is never made."""
AXIS = {kind: axis for axis, kinds in enumerate(AXES.values()) for kind in kinds}
"""Of each kind of fault the place of its budget in a state."""
MOST = {"ranks": 64, "cycles": 1000}
"""More would not be seen to the end by anybody; for more ranks there is the simulator. Of each kind of fault at most as
many as there may be cycles."""
MOST_ALIKE = 4
"""Ranks that change places, in 24 ways: each is a run that is taken along."""
KNOBS: dict[str, object] = {
    "num_epochs": 1, "batch_size": 1, "anchor": 1, "min_anchor": 1, "max_anchor": 1, "heartbeat_s": 1000.0,
    "heartbeat_timeout_s": 3000.0, "beacon_s": 1000.0, "reduce_ceiling_s": 3000.0, "window_ceiling_s": 6000.0,
    "meta_controller": False, "link_grace_s": 0.0, "reconnect_window_s": 0.0,
}  # fmt: skip
"""A run as small as the protocol allows, in which time matters only to who is stuck, and a lost link is a death (M-17):
a run with a grace for it is explored with `--set link_grace_s=...`."""
OF_COLLECTIVE: dict[str, object] = {"formation_s": 2500.0}
"""Who is inside a call says so with its next heartbeat, and only so it is known whom all the others wait for (M-6)."""
PATIENCE = 40
"""Deadlines that pass in one run. A run that has not ended then waits for ever, which counts as a deadlock: beacons and
heartbeats would go on, and make a new state each time. Runs that end need far fewer."""
UP_FAULTS, OWN_FAULTS = ("drop", "duplicate"), ("lose", "repeat", "crash", "fail", "withhold")
"""Faults of what a process has said, which take their turn with the coordinator's; and those of the process itself."""

State = tuple[int, ...]
"""What is left of each budget, in the order of `AXES`, and of `PATIENCE`; then the `Row`."""
HEAD = len(AXES) + 1
ASYMMETRY = "Asymmetry"
"""The name of that error of `mirror.py`, as a search tells it."""


@attrs.frozen(kw_only=True)
class Bounds:
    """How much can happen: ranks, cycles after formation, and faults of each kind (`AXES`). `knobs` are knobs of the
    run besides `KNOBS`."""

    ranks: int = 2
    cycles: int = 1
    drops: int = 0
    duplicates: int = 0
    deaths: int = 0
    restarts: int = 0
    failures: int = 0
    knobs: tuple[tuple[str, object], ...] = ()

    def __attrs_post_init__(self) -> None:
        for name in ("ranks", "cycles", *AXES):
            least, most, number = int(name not in AXES), MOST.get(name, MOST["cycles"]), getattr(self, name)
            if not least <= number <= most:
                more = "; `paceline simulate` takes more ranks" if name == "ranks" and number > most else ""
                raise ConfigError(f"--{name} {number} is not allowed: give {least} to {most}{more}")
        self.setup().check_door()
        if self.failures and not self.setup().config().is_collective:
            raise ConfigError(f"--failures {self.failures} is not allowed: only a call of a collective fails so; give "
                              "0, or --set averager=collective")  # fmt: skip

    def setup(self) -> Setup:
        """The run."""
        more = OF_COLLECTIVE if dict(self.knobs).get("averager") == "collective" else {}
        return Setup(ranks=self.ranks, samples=self.ranks * self.cycles, knobs={**KNOBS, **more, **dict(self.knobs)})

    def some_of_its_ranks(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The same ranks, if they are different ones of this run, and neither one alone nor too many."""
        if not (2 <= len(set(ranks)) == len(ranks) <= MOST_ALIKE and all(0 <= rank < self.ranks for rank in ranks)):
            raise ConfigError(f"--symmetry {','.join(map(str, ranks))} is not allowed: give 2 to {MOST_ALIKE} "
                              f"different ranks from 0 to {self.ranks - 1}")  # fmt: skip
        return ranks

    @property
    def survivable(self) -> int:
        """Faults after which the configuration still calls for everything to be covered. Each costs one rank at most;
        with fewer than `min_ranks`, or when `max_failure` have died, a run is to be saved and to stop (M-4, M-21), and
        without the others a collective that nobody may join is. Below 0 it cannot even form."""
        config = self.setup().config()
        needed = max(config.min_ranks, 1 if config.elastic or not config.is_collective else 2)
        limit = config.max_failure
        if isinstance(limit, float):
            limit = math.ceil(limit * self.ranks)
        return min(self.ranks - needed, self.ranks if limit is None else limit - 1)

    def __str__(self) -> str:
        """2 ranks / 1 cycle / 1 drop."""
        numbers = {name: getattr(self, name) for name in ("ranks", "cycles", *AXES)}
        return " / ".join(f"{n} {name if n != 1 else name[:-1]}" for name, n in numbers.items() if n)


PROOFS = (
    Bounds(ranks=3, drops=1, deaths=1),
    Bounds(ranks=2, cycles=2, drops=1, duplicates=1),
    Bounds(ranks=2, deaths=1, restarts=1),
)
"""What every release is checked with, to the end; the largest first, since they are shared out among processes."""


def check(
    bounds: Bounds,
    *,
    seconds: float = math.inf,
    states: float = math.inf,
    clock: Callable[[], float] | None = None,
    progress: Callable[[Progress], None] | None = None,
    reduce: bool = True,
    forget: bool = True,
    symmetry: tuple[int, ...] | None = None,
) -> CheckReport:
    """Explore a cohort within bounds. `seconds` needs `clock`, of monotonic seconds. `reduce` and `forget` off: every
    order, and every note of the machines in the state, which is the same answer for much more time. `symmetry`: ranks
    of which it is claimed that they can change places (`mirror.py`); raises `ConfigError` if they cannot."""
    since = None if clock is None else clock()
    with _counted() as taken:
        cohort, budget = Cohort(bounds, reduce=reduce, forget=forget), Budget(states=states, seconds=seconds)
        parted = 0
        if symmetry is None:
            seen = explore(cohort, budget=budget, clock=clock, progress=progress, since=since)
        else:
            from .mirror import Mirrored  # it is a model of cohorts itself

            all_of_them = Mirrored(cohort, bounds.some_of_its_ranks(symmetry))
            seen = explore(all_of_them, budget=budget, clock=clock, progress=progress, since=since)
            if seen.failure is not None:
                seen = attrs.evolve(seen, failure=all_of_them.told(seen.failure))
            _refuse_asymmetry(symmetry, seen)
            parted = all_of_them.parted
    never = [f"{name}: {in_words(row)}" for name, table in TABLES.items() for row in untaken(table, taken)]
    found = None if seen.failure is None else counterexample(bounds, seen.failure)
    rows = sum(len(table.rows) for table in TABLES.values())
    return CheckReport(bounds, seen, rows, tuple(never), reduce, cohort.parts.forget, found, symmetry, parted)


def _refuse_asymmetry(ranks: tuple[int, ...], seen: Exploration) -> None:
    """Ranks that were called interchangeable are not: the shortest run that tells them apart is the answer."""
    failure = seen.failure
    if failure is not None and failure.property == ASYMMETRY:
        way = ", ".join(map(str, failure.actions))
        raise ConfigError(f"ranks {in_a_row(ranks)} cannot change places within these bounds: after {way}: "
                          f"{failure.text}; explore without --symmetry")  # fmt: skip


@contextmanager
def _counted() -> Iterator[Taken]:
    """Counts the rows of all tables that are taken inside. What is counted around it goes on counting."""
    engines = {name: engine_for(name) for name in TABLES}
    around = {name: engine.taken for name, engine in engines.items()}
    taken: Taken = {}
    for engine in engines.values():
        engine.taken = taken
    try:
        yield taken
    finally:
        for name, engine in engines.items():
            outer = engine.taken = around[name]
            for key, times in taken.items():
                if outer is not None and key[0] == name:
                    outer[key] = outer.get(key, 0) + times


class Cohort:
    """The model that is explored (`explore.Model`)."""

    failures = (Violation,)

    def __init__(self, bounds: Bounds, *, reduce: bool = True, forget: bool = True) -> None:
        self.budgets = tuple(getattr(bounds, name) for name in AXES)
        self.survivable = bounds.survivable
        self.reduce = reduce
        self.parts = Parts(bounds.setup(), AXIS, forget=forget)

    @functools.cached_property
    def properties(self) -> Sequence[Property[State]]:
        """What is claimed of all runs, besides the invariants."""
        claims = (
            Property(Kind.SOMETIMES, "a run ends with everything covered", self.ends_well),
            Property(Kind.FROM_EVERYWHERE, ENDS, self.is_over),
        )
        faults = f"with at most {self.survivable} faults" if self.survivable else "without a fault"
        well: Property[State] = Property(Kind.FROM_EVERYWHERE, f"{faults} the run ends with everything covered",
                        lambda state: self.ends_well(state) or self._struck(state) > self.survivable)  # fmt: skip
        return claims if self.survivable < 0 else (*claims, well)

    def initial(self) -> State:
        """The cohort at the door: every rank has been let in, nothing else has happened."""
        return (*self.budgets, PATIENCE, *self.parts.first)

    def actions(self, state: State, *, every: bool = False) -> Sequence[Action]:
        """Moves, dullest first, then faults; see the module for what is left out, unless `every` one is asked for."""
        row, parts = self._row(state), self.parts
        moves: list[Action] = []
        faults: list[Action] = []
        for number in range(parts.count(row)):
            offer = parts.offer(row, number)
            allowed = [action for action in offer.faults if state[AXIS[action.kind]]]
            if offer.own and self.reduce and not every and self.commutes(state, number):
                return [*offer.own, *(action for action in allowed if action.kind in OWN_FAULTS)]
            moves += offer.own
            moves += offer.central
            faults += allowed
        moves += parts.of_averager(row)
        if not moves and parts.may_start(row):
            moves.append(act("start"))
        if not moves and parts.is_due(row):
            if not state[HEAD - 1]:
                return ()
            moves.append(act("tick"))
        if state[AXIS["join"]] and not parts.over(row):
            faults += [act("join", rank) for rank in parts.vacant(row)]
        return moves + faults

    def step(self, state: State, action: Action) -> State:
        """See `Parts.do`."""
        after = self.parts.do(self._row(state), action)
        spent = HEAD - 1 if action.kind == "tick" else AXIS.get(action.kind)
        left = state[:HEAD]
        if spent is not None:
            left = (*left[:spent], left[spent] - 1, *left[spent + 1 :])
        return (*left, *after)

    def is_fault(self, action: Action) -> bool:
        """On an axis."""
        return action.kind in AXIS

    def final(self, state: State) -> bool:
        """The run is over."""
        return self.is_over(state)

    def is_over(self, state: State) -> bool:
        """The run is over, well or not."""
        return self.parts.over(self._row(state))

    def ends_well(self, state: State) -> bool:
        """It is, with everything covered."""
        finish = self.parts.run(self._row(state))[1]
        return finish is not None and finish.status == "ok"

    def fingerprint(self, state: State) -> int:
        """Of what is left of the budgets, and of the content of the world."""
        return self.parts.fingerprint(self._row(state), state[:HEAD])

    def _row(self, state: State) -> Row:
        return state[HEAD:]

    def _struck(self, state: State) -> int:
        """Faults so far; who comes back is none."""
        return sum(had - left for kind, had, left in zip(AXES, self.budgets, state, strict=False) if kind != "restarts")

    def unlinked(self, state: State) -> list[int]:
        """The ranks of the processes that have no link."""
        return self.parts.unlinked(self._row(state))

    def commutes(self, state: State, number: int) -> bool:
        """Whether what this process can do next is seen by nobody, and kept from happening by nobody but itself."""
        parts, row = self.parts, self._row(state)
        if parts.is_in_a_call(row, number):
            return False
        if parts.is_cut_off(row, number):
            return True
        if any(state[AXIS[kind]] for kind in UP_FAULTS) and parts.has_spoken(row, number):
            return False
        return parts.is_left_alone(row, number)
