"""What the model checker says: how far it saw, what it found, and a counterexample in every form somebody may want.

A counterexample is a schedule (`schedule.py`), and everything else is made from it by playing it on a `World` of its
own, without any of the checker's shortcuts: numbered steps, a sequence diagram, a test. One that did not break the same
invariant there would be a fault of the checker, and is reported as that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import ConfigError, InvariantError
from .explore import NO_DEADLOCK, Exploration, Failure, Level
from .schedule import NEVER, Schedule, Timed, judge
from .sequence import of_steps
from .transcript import lines
from .violation import Violation
from .world import Step, World

if TYPE_CHECKING:
    from .checker import Bounds

__all__ = ["ENDS", "CheckReport", "Counterexample", "counterexample", "in_a_row"]

NO_END = "I38"
NOT_HERE = ("tick", "dial")
"""What a world offers and the checker does not, or not there: time has passed already, nobody comes back by itself."""
ENDS = "the run ends (I38)"
"""The claim whose traps never end at all; from those of any other such claim a run never ends well."""


@attrs.frozen
class Counterexample:
    """A run that goes wrong. `schedule` shows it, `steps` are its actions with what they led to."""

    schedule: Schedule
    steps: tuple[Step, ...]
    lives: tuple[tuple[int, int], ...]
    text: str

    def numbered(self) -> Iterator[str]:
        """Each step in a line, with its number."""
        for number, step in enumerate(self.steps, 1):
            for line in lines(step):
                yield f"{number:>4}. {line.strip()}"

    def diagram(self) -> str:
        """The run as a Mermaid sequence diagram."""
        return of_steps(list(self.lives), self.steps)

    def test(self) -> str:
        """A test that fails until it is repaired, for pytest."""
        schedule = "\n".join(f"    {line}" for line in str(self.schedule).splitlines())
        schedule = schedule.replace("\\", r"\\").replace('"""', r"\"\"\"")
        return (
            "from paceline.core.simulation import World\n"
            "from paceline.core.simulation.schedule import Schedule, judge, play\n\n"
            f'FOUND = """\n{schedule}\n"""\n\n\n'
            "def test_what_the_model_checker_found() -> None:\n"
            f'    """{self.schedule.breaks or NO_END}: every invariant holds, and the run can end as it should."""\n'
            '    schedule = Schedule.parse("\\n".join(line.strip() for line in FOUND.strip().splitlines()))\n'
            "    world = World(schedule.setup)\n"
            "    for _ in play(world, schedule.actions):\n"
            "        pass\n"
            "    broken, what = judge(schedule, world, None)\n"
            "    assert not broken, what\n"
        )


def counterexample(bounds: Bounds, failure: Failure) -> Counterexample:
    """Play the actions of a failure on a world. Raises `InvariantError` if they do not lead to it, the same invariant
    to be broken. What is seen of it may differ in notes that the search has forgotten (`forget.py`)."""
    setup = bounds.setup()
    world, steps, timed = World(setup), list[Step](), list[Timed]()
    broken: Violation | None = None
    for action in failure.actions:
        try:
            steps.append(world.do(action))
        except Violation as violation:
            broken = violation
        timed.append((world.now, action))
        if broken is not None:
            break
    breaks = failure.text.partition(":")[0] if failure.property == Violation.__name__ else None
    if breaks != (broken.name if broken else None):
        raise InvariantError(f"the checker's counterexample leads to {broken}, not to {failure.text}; please report it")
    said = str(broken) if broken is not None else f"{failure.property}: {failure.text}"
    schedule = Schedule(setup=setup, actions=tuple(timed), breaks=breaks)
    if broken is None:
        schedule, text = _never(schedule, world, failure)
        said += text
    schedule = attrs.evolve(schedule, comment=f"Found by the model checker within {bounds}.\n{said}")
    lives = tuple((process.rank, process.incarnation) for process in world.processes)
    return Counterexample(schedule, tuple(steps), lives, said)


def _never(schedule: Schedule, world: World, failure: Failure) -> tuple[Schedule, str]:
    """What never comes after these actions, and a word on it. A run in which only time passes has not ended within the
    patience of the checker; whether it ends later, and how, is seen from there."""
    if failure.property != NO_DEADLOCK:
        return attrs.evolve(schedule, never="ends" if failure.property == ENDS else "ends well"), ""
    if left := [str(action) for action in world.enabled() if action.kind not in NOT_HERE]:
        raise InvariantError(f"the checker's deadlock is none, since {', '.join(left)} can happen; please report it")
    for never in NEVER:
        claimed = attrs.evolve(schedule, never=never)
        if judge(claimed, world, None)[0]:
            return claimed, f"; the run never {never}"
    raise ConfigError("a run waits for longer than the checker has patience, and ends well after that: it cannot be "
                      "checked with these knobs; choose time limits that are nearer to each other")  # fmt: skip


@attrs.frozen
class CheckReport:
    """What was explored within which bounds, and what of it. `rows` is the number of rows of the tables, `untaken` are
    those that none of the explored runs takes. `reduced` says that orders which cannot matter were left out,
    `forgetful` that notes were by which nobody decides (`forget.py`). `symmetry` are ranks that have changed places in
    every state (`mirror.py`); then a state and its images were counted once, but for `parted` steps after which each
    was explored by itself."""

    bounds: Bounds
    exploration: Exploration
    rows: int
    untaken: tuple[str, ...]
    reduced: bool
    forgetful: bool
    counterexample: Counterexample | None
    symmetry: tuple[int, ...] | None = None
    parted: int = 0

    @property
    def ok(self) -> bool:
        """Nothing is wrong in what was explored."""
        return self.exploration.ok

    @property
    def headline(self) -> str:
        """One line: the bounds, the size, and whether that was all."""
        seen = self.exploration
        size = f"{seen.states:,} states, {seen.transitions:,} transitions"
        if seen.failure is not None:
            return f"broken within {self.bounds}: found after {size}"
        if seen.complete:
            return f"exhaustive to {self.bounds}: {size}, complete"
        return f"bounded: {self.bounds} was cut at {size} ({self._cut()})"

    def _cut(self) -> str:
        seen = self.exploration
        if seen.cut == "seconds":
            return f"{seen.seconds:.0f} s were over"
        return {"states": "as many as were allowed", "depth": "as deep as was allowed"}.get(seen.cut or "", "")

    def lines(self, *, rows: bool = True) -> Iterator[str]:
        """The report."""
        seen = self.exploration
        yield self.headline
        for level in seen.levels:
            yield f"  {_level(level)}"
        yield f"  {seen.seconds:.1f} s, {seen.bytes_per_state:.0f} bytes a state"
        orders = "left out where they cannot matter" if self.reduced else "all of them"
        yield f"  orders: {orders}; time passes only when nothing else can happen"
        yield f"  notes of the machines: {'left out where nobody decides by them' if self.forgetful else 'all of them'}"
        if self.symmetry is not None:
            yield f"  symmetry: ranks {in_a_row(self.symmetry)} change places; looked at in every state"
            if self.parted and self.counterexample is None:
                yield f"  {self.parted:,} steps after the loss of another rank told them apart: then each by itself"
        if seen.unreached:
            verdict = "fails" if seen.complete else "open, as not all was explored"
            yield from (f"  never: {name} ({verdict})" for name in seen.unreached)
        if self.counterexample is None:
            yield "  every invariant holds" if self.ok else "  every invariant holds, and something is never reached"
        else:
            yield from self._broken(self.counterexample)
        if rows:
            yield f"  {self.rows - len(self.untaken)} of {self.rows} rows of the tables were taken; never taken:"
            yield from (f"    {row}" for row in self.untaken)

    def _broken(self, found: Counterexample) -> Iterator[str]:
        failure = self.exploration.failure
        assert failure is not None
        many = f" (from {failure.count:,} states)" if failure.count > 1 else ""
        yield f"  {found.text}{many}, after {len(failure.actions)} steps with {failure.faults} faults:"
        yield from (f"  {line}" for line in found.numbered())

    def text(self, *, rows: bool = True) -> str:
        """The report as text; `rows` names those never taken."""
        return "\n".join(self.lines(rows=rows))

    def facts(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        seen, found = self.exploration, self.counterexample
        return {
            "bounds": attrs.asdict(self.bounds), "states": seen.states, "transitions": seen.transitions,
            "complete": seen.complete, "cut": seen.cut, "ok": self.ok, "seconds": seen.seconds, "depth": seen.depth,
            "bytes_per_state": seen.bytes_per_state, "levels": [attrs.asdict(level) for level in seen.levels],
            "unreached": list(seen.unreached), "reduced": self.reduced, "forgetful": self.forgetful,
            "symmetry": self.symmetry, "parted": self.parted, "rows": self.rows,
            "untaken": list(self.untaken),
            "counterexample": None if found is None else {
                "text": found.text, "schedule": str(found.schedule), "steps": list(found.numbered()),
                "diagram": found.diagram(), "test": found.test(),
            },
        }  # fmt: skip


def in_a_row(ranks: Sequence[int]) -> str:
    """1 and 2; or 1, 2 and 3."""
    return f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _level(level: Level) -> str:
    faults = {0: "without a fault", 1: "with 1 fault"}.get(level.faults, f"with {level.faults} faults")
    size = f"{level.states:,} states, {level.transitions:,} transitions, {level.depth} steps deep"
    rest = "complete" if level.complete else f"{level.unexplored:,} of the states not explored"
    return f"{faults}: {size}, {rest}"
