"""Schedules from bytes: a whole simulated run, its actions and faults chosen by the input (N-7, I1 to I45).

The first bytes are the setup, each two after them one choice (`walk.numbers_of`). Every invariant is checked after
every event; then all faults stop, and the run must come to its end. What breaks one is a schedule, and a schedule is
what is kept of it: `run.py` writes it to tests/schedules/, shrunk, where the suite and `paceline replay` play it.

The text of a schedule file is a target of its own: it comes from people, and what is wrong with it is `ScheduleError`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

from paceline.core.simulation import COORDINATOR, Setup, Violation, World
from paceline.core.simulation.schedule import Schedule, ScheduleError, end, play
from paceline.core.simulation.shrink import shrink
from paceline.core.simulation.walk import numbers_of, schedule_of, walk

from .coverage import unwatched
from .engine import Target

__all__ = ["TARGETS", "as_schedule", "broken_schedule"]

KEPT = Path(__file__).parents[1] / "schedules"
MOST_CHOICES = 160
HEAD = 4
"""Bytes of the setup."""
SETUPS: tuple[Setup, ...] = tuple(
    Setup(ranks=ranks, samples=samples, knobs={"policy": policy, **more}, callbacks=callbacks, stateful=stateful,
          blocks=blocks)
    for ranks, samples, policy, more, callbacks, stateful, blocks in (
        (2, 8, "cadence", {}, (), False, 1),
        (3, 12, "cadence", {"num_epochs": 2}, (), True, 2),
        (2, 8, "sync", {}, (), False, 1),
        (2, 10, "async", {"laggards": "exclude"}, (), False, 2),
        (2, 8, "cadence", {"eval_every": 1, "checkpoint_every": 1, "save_path": "/files"},
         ("epoch", "evaluate", "checkpoint"), True, 1),
        (3, 9, "async", {"num_epochs": 2, "save_path": "/files"}, (), True, 1),
    )
)  # fmt: skip


def as_schedule(data: bytes) -> Schedule:
    """The run that an input spells. Raises `Violation` when it breaks an invariant on the way."""
    head = data[:HEAD].ljust(HEAD, b"\0")
    return schedule_of(SETUPS[head[0] % len(SETUPS)], numbers_of(data[HEAD:])[:MOST_CHOICES], most_faults=head[1] % 6)


def schedule(data: bytes) -> set[tuple[str, int, int]]:
    """The run that the input chooses, and its dull end. Gives what happened in which phases."""
    met: set[tuple[str, int, int]] = set()
    made = as_schedule(data)
    world = World(made.setup)
    for step in play(world, made.actions, dullest=True):
        for turn in step.turns:
            effects = ",".join(sorted({type(effect).__name__ for effect in turn.effects}))
            event = type(getattr(turn.event, "message", turn.event)).__name__
            met.add((f"{turn.who == COORDINATOR} {event}: {effects}", world.co.run.phase, world.co.cycle.phase))
    return met


def broken_schedule(data: bytes) -> Schedule | None:
    """What the input breaks, as a schedule from which nothing can be taken away; None if it breaks nothing."""
    head = data[:HEAD].ljust(HEAD, b"\0")
    world, actions = World(SETUPS[head[0] % len(SETUPS)]), []
    steps = walk(world, numbers_of(data[HEAD:])[:MOST_CHOICES], most_faults=head[1] % 6)
    try:
        for step in itertools.chain(steps, end(world)):
            actions.append((step.at, step.action))
    except Violation as violation:
        found = Schedule(setup=world.setup, actions=tuple(actions), breaks=violation.name, dullest=True,
                         comment=f"{violation}\nfound by the fuzzer")  # fmt: skip
        return shrink(found)
    return None


def schedule_text(data: bytes) -> None:
    """A schedule file. What is read is written so that it reads the same; a small one is played."""
    try:
        made = Schedule.parse(data.decode("utf-8", "replace"))
    except ScheduleError:
        return
    assert repr(Schedule.parse(str(made))) == repr(made)
    if made.setup.ranks <= 4 and made.setup.samples <= 32 and not made.setup.wire:
        with contextlib.suppress(ScheduleError, Violation), unwatched():
            for _ in play(World(made.setup), made.actions[:20]):
                pass


@functools.cache
def _walks() -> list[bytes]:
    """Each setup without faults, then with some early and late ones."""
    fault = b"\x0f\x00"
    return [
        bytes([number, faults, 0, 0]) + b"\0\0" * quiet + (fault + b"\x4f\x02" + b"\x8f\x01") * faults
        for number in range(len(SETUPS)) for faults, quiet in ((0, 0), (1, 12), (2, 40))
    ]  # fmt: skip


@functools.cache
def _files() -> list[bytes]:
    with unwatched():
        return [path.read_bytes() for path in sorted(KEPT.glob("*.schedule"))][:6]


WORDS = (b"setup ranks ", b"knob policy ", b"then dullest\n", b"ends ok\n", b"breaks I1\n", b"0.0 ", b"1e999 ", b"nan ",
         b"control 0\n", b"crash 0 1\n", b"# ", b"9" * 5000, b"paceline schedule 1\n", b"[" * 3000)  # fmt: skip

TARGETS: Sequence[Target] = (
    Target("schedule", schedule, _walks, (1, 0), traced=False),
    Target("schedule-text", schedule_text, _files, (3000, 60), WORDS),
)
