"""Two machines for tests of the table engine: a turnstile with a table of its own, and a puppet for random tables."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import attrs
from hypothesis import strategies as st

from paceline.core.engine import ANY, SAME, Engine, Kind, Row, Table
from paceline.core.values import state


class Gate(IntEnum):
    LOCKED = 0
    OPEN = 1
    SCRAPPED = 2


@state
class Turnstile:
    phase: Gate = Gate.LOCKED
    credit: int = 0
    failing: bool = False
    log: list[str] = attrs.field(factory=list)
    engine: Engine | None = None

    def enough(self, event: int) -> bool:
        return self.credit + event >= 2

    def broken(self, event: object) -> bool:
        if event is None:
            raise ValueError("a kick has a strength")
        return event == 9

    def take(self, event: int) -> None:
        self.credit += event

    def turn(self, event: object) -> None:
        self.log.append(f"turn in {self.phase.name}")
        if self.failing:
            raise RuntimeError("stuck")

    def ring(self, event: object) -> None:
        self.log.append("ring")

    def kick_myself(self, event: object) -> None:
        assert self.engine is not None
        self.engine.fire(self, "Kick", 9)

    def odd(self, event: object):  # deliberately without an annotation
        return 2

    def needs_two(self, event: object, other: object) -> None: ...


TABLE = Table(
    name="turnstile",
    phases=Gate,
    initial=Gate.LOCKED,
    events=("Coin", "Push", "Kick"),
    rows=(
        Row(Gate.LOCKED, "Coin", Gate.OPEN, ("enough",), ("take",), rule="C-1"),
        Row((Gate.LOCKED, Gate.OPEN), "Coin", SAME, (), ("take",), rule="C-1 C-2"),
        Row(Gate.OPEN, "Push", Gate.LOCKED, (), ("turn", "ring"), rule="C-13", note="one | person"),
        Row((Gate.LOCKED, Gate.SCRAPPED), "Push", SAME, kind=Kind.REFUSED, rule="N-7"),
        Row(Gate.SCRAPPED, "Coin", SAME, kind=Kind.IGNORE, rule="N-7"),
        Row(ANY, "Kick", SAME, ("!broken",), ("ring",), rule="M-1"),
        Row(ANY, "Kick", Gate.SCRAPPED, ("broken",), kind=Kind.VIOLATION, rule="N-7"),
    ),
    final=(Gate.SCRAPPED,),
)


def changed(*rows: Row, **other: Any) -> Table:
    """The turnstile with other rows."""
    return attrs.evolve(TABLE, rows=rows, **other)


GUARDS = ("guard_0", "guard_1", "guard_2")
EFFECTS = ("effect_0", "effect_1", "effect_2")


class Deliberate(Exception):
    """Raised by a puppet that was told to."""


def _guard(name: str) -> Callable[..., bool]:
    def guard(self: Puppet, event: object) -> bool:
        self.log.append((name, event))
        answer = self.answers[name]
        if answer is None:
            raise Deliberate(name)
        return answer

    return guard


def _effect(name: str) -> Callable[..., None]:
    def effect(self: Puppet, event: object) -> None:
        self.log.append((name, event, self.phase))
        if name in self.raising:
            raise Deliberate(name)

    return effect


@state
class Puppet:
    """A machine whose guards answer what the test says (None raises) and whose effects in `raising` raise."""

    phase: IntEnum
    answers: dict[str, bool | None] = attrs.field(factory=dict)
    raising: tuple[str, ...] = ()
    log: list[tuple[object, ...]] = attrs.field(factory=list)

    guard_0, guard_1, guard_2 = map(_guard, GUARDS)
    effect_0, effect_1, effect_2 = map(_effect, EFFECTS)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Any table: cells may be missing, rows may be dead."""
    phases = IntEnum("phases", [f"P{n}" for n in range(draw(st.integers(1, 3)))], start=0)
    events = tuple(f"Event{n}" for n in range(draw(st.integers(1, 3))))
    phase = st.sampled_from(list(phases))
    guard = st.sampled_from([*GUARDS, *(f"!{name}" for name in GUARDS)])
    row = st.builds(
        Row,
        source=phase | st.lists(phase, max_size=3, unique=True).map(tuple) | st.just(ANY),
        event=st.sampled_from(events),
        target=phase | st.just(SAME),
        guards=st.lists(guard, max_size=3).map(tuple),
        effects=st.lists(st.sampled_from(EFFECTS), max_size=3).map(tuple),
        kind=st.sampled_from(Kind),
    )
    rows = tuple(draw(st.lists(row, max_size=10)))
    return Table("random", phases, draw(phase), events, rows)
