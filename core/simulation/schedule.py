"""A run as text: what it is made of, and what happened in it, one action a line.

    paceline schedule 1
    # rank 1 is killed between its snapshot and its acknowledgement
    setup ranks 2
    knob policy "async"
    ends saved
    0.0 control 0
    0.0 control 1
    12.5 crash 1 2
    then dullest

The first line names the format and its version. Lines of the head follow in any order: `setup` and `knob` with a value
in JSON, and at most one expectation: `ends STATUS` (how the coordinator finishes), `breaks ID` (the invariant that a
fault of the machines breaks), or `never ends` or `never ends well` (after the actions no order of what can happen then
leads to an end, or to one with everything covered; the model checker looks at all of them, `onward.py`). Then each line
is a virtual second and an action (`action.py`), in the order of time. With `then dullest` as the last line the run goes
on by itself to its end: faults are healed and the dullest happens.
What follows a # outside of a value is a comment; a file that is written anew keeps those before the head only.

The simulator writes such files, tests keep them, `paceline replay` plays them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import CheckpointError, ConfigError, LocalProtocolError
from .action import Action
from .setup import Setup
from .violation import CHECKED, Violation

if TYPE_CHECKING:
    from .world import Step, World

__all__ = ["FORMAT", "MAGIC", "NEVER", "Schedule", "ScheduleError", "end", "judge", "play"]

MAGIC = "paceline schedule"
FORMAT = 1
"""Version of the format; a newer one is refused."""
DULLEST = "then dullest"
NEVER = ("ends", "ends well")
"""What may never come of a run, the stronger claim first."""
MOST_ACTIONS = 50_000
"""Actions of the dull end of a run; one that needs more does not end (I38)."""
WITH_VALUE = ("setup ", "knob ")
STATUSES = ("ok", "saved", "stopped", "failed")
"""How a coordinator finishes."""
SETUP_FIELDS = tuple(field.name for field in attrs.fields(Setup) if field.name not in ("knobs", "thorough"))

Timed = tuple[float, Action]


class ScheduleError(CheckpointError):
    """A file is no schedule: the text names the line and what is wrong with it. `action`: of a schedule that is one,
    the number of the action that cannot happen, from 1 on."""

    action: int | None = None


@attrs.frozen(kw_only=True)
class Schedule:
    """A run: `actions` are pairs of a virtual second and an action. `ends`, `breaks` and `never` (`NEVER`) are what is
    expected of it, or None. `dullest`: it goes on to its end after them. `comment`: the lines above the head, without
    their signs. `numbers`: the line of each action, of a schedule that was read."""

    setup: Setup
    actions: tuple[Timed, ...]
    ends: str | None = None
    breaks: str | None = None
    never: str | None = None
    dullest: bool = False
    comment: str = ""
    numbers: tuple[int, ...] = attrs.field(default=(), eq=False, repr=False)

    def __str__(self) -> str:
        """The file. `parse` reads it."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{MAGIC} {FORMAT}"
        yield from (f"# {line}".rstrip() for line in self.comment.splitlines())
        plain = Setup()
        for name in SETUP_FIELDS:
            value = getattr(self.setup, name)
            if value != getattr(plain, name) or name == "ranks":
                yield f"setup {name} {json.dumps(value)}"
        yield from (f"knob {name} {json.dumps(value)}" for name, value in self.setup.knobs)
        if self.ends is not None:
            yield f"ends {self.ends}"
        if self.breaks is not None:
            yield f"breaks {self.breaks}"
        if self.never is not None:
            yield f"never {self.never}"
        yield from (f"{at!r} {action}" for at, action in self.actions)
        if self.dullest:
            yield DULLEST

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read a file. Raises `ScheduleError`, with the number of the line."""
        return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.number = 0
        self.setup: dict[str, Any] = {}
        self.knobs: dict[str, Any] = {}
        self.expected: dict[str, str] = {}
        self.comment: list[str] = []
        self.actions: list[Timed] = []
        self.dullest = False
        self.lines_of: dict[str, int] = {}
        self.numbers: list[int] = []

    def read(self) -> Schedule:
        self._first()
        for number, line in enumerate(self.lines[1:], 2):
            self.number = number
            words, sign, remark = line.partition("#")
            if words.startswith(WITH_VALUE):
                self._line(line.strip())  # a sign may belong to the value
            elif words.strip():
                self._line(words.strip())
            elif sign and not (self.setup or self.knobs or self.expected or self.actions):
                self.comment.append(remark.strip())
        try:
            setup = Setup(**self.setup, knobs=self.knobs)
        except (ConfigError, TypeError) as error:
            raise ScheduleError(f"{self._line_of(str(error))}{error}") from error
        return Schedule(
            setup=setup, actions=tuple(self.actions), ends=self.expected.get("ends"),
            breaks=self.expected.get("breaks"), never=self.expected.get("never"), dullest=self.dullest,
            comment="\n".join(self.comment).rstrip("\n"), numbers=tuple(self.numbers),
        )  # fmt: skip

    def _line_of(self, error: str) -> str:
        """Where the first name stands that an error of the whole setup speaks of."""
        named = next((self.lines_of[word] for word in re.findall(r"\w+", error) if word in self.lines_of), None)
        return "the setup of this schedule is not allowed: " if named is None else f"line {named}: "

    def _first(self) -> None:
        first = self.lines[0] if self.lines else ""
        word = first.removeprefix(MAGIC).strip()
        if not first.startswith(MAGIC) or not (word.isascii() and word.isdecimal()):
            raise ScheduleError(f"line 1: {first[:60]!r} begins no schedule; that is '{MAGIC} {FORMAT}'")
        if word.lstrip("0") != str(FORMAT):
            text = f"this schedule has format {word[:20]}, this version of paceline reads {FORMAT}"
            raise ScheduleError(f"line 1: {text}")

    def _line(self, line: str) -> None:
        key, _, rest = line.partition(" ")
        self._need(not self.dullest, f"nothing follows '{DULLEST}'")
        if key in ("setup", "knob"):
            self._need(not self.actions, "the head comes before the actions")
            name, _, value = rest.partition(" ")
            where = self.knobs if key == "knob" else self.setup
            self._need(key == "knob" or name in SETUP_FIELDS, f"a setup has {', '.join(SETUP_FIELDS)}, not {name!r}")
            self._need(name not in where, f"{name} is given twice")
            where[name] = self._json(value)
            self.lines_of.setdefault(name, self.number)
        elif key in ("ends", "breaks"):
            self._need(not self.actions and not self.expected, "one expectation, before the actions")
            known = STATUSES if key == "ends" else CHECKED
            self._need(rest in known, f"nothing {key} {rest!r}; write '{key}' and one of {', '.join(known)}")
            self.expected[key] = rest
        elif key == "never":
            self._need(not self.actions and not self.expected, "one expectation, before the actions")
            self._need(rest in NEVER, f"write one of {', '.join(f'never {what}' for what in NEVER)}")
            self.expected[key] = rest
        elif key == "then":
            self._need(line == DULLEST, f"{line!r} is not allowed; write '{DULLEST}'")
            self.dullest = True
        else:
            self._action(key, rest)

    def _action(self, second: str, words: str) -> None:
        try:
            at = float(second)
        except ValueError:
            at = math.nan
        self._need(math.isfinite(at) and at >= 0, f"{second!r} is neither a word of the head nor a second")
        self._need(not self.actions or at >= self.actions[-1][0], f"{second} lies before the action above it")
        self._need(bool(words), "an action is missing behind the second")
        try:
            self.actions.append((at, Action.parse(words)))
            self.numbers.append(self.number)
        except ConfigError as error:
            self._need(False, str(error))

    def _json(self, text: str) -> Any:
        """The value that the text begins with; a comment may follow."""
        text = text.lstrip()
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            why = f"{text[:60]!r} is no value in JSON; text has quotation marks"
            raise ScheduleError(f"line {self.number}: {why}") from None
        rest = text[end:].strip()
        self._need(not rest or rest.startswith("#"), f"{rest[:60]!r} follows the value")
        return value

    def _need(self, holds: bool, text: str) -> None:
        if not holds:
            raise ScheduleError(f"line {self.number}: {text}")


def play(world: World, actions: Iterable[Timed], *, dullest: bool = False, strict: bool = True) -> Iterator[Step]:
    """Make the actions happen, one step at a time, and the dull end after them if it is wanted.

    With `strict` off, what cannot happen (any more) is left out, so that a schedule which lost some of its lines is
    still one. Raises `Violation` when an invariant breaks, I38 for a run that does not end, and `ScheduleError` for an
    action that cannot happen.
    """
    for index, (at, action) in enumerate(actions, 1):
        try:
            step = world.do(action, max(at, world.now))
        except LocalProtocolError as error:
            if strict:
                told = ScheduleError(f"action {index} of the schedule: {error}")
                told.action = index
                raise told from error
            continue
        yield step
    if dullest:
        yield from end(world)


def end(world: World, most: int = MOST_ACTIONS) -> Iterator[Step]:
    """Everything is healed, and then the dullest happens until the run is over (I38) and nothing is left to deliver."""
    for process in world.processes:
        for kind in ("resume", "recover", "heal"):
            if kind in world.possible(process):
                yield world.do(Action(kind, process.number))
    for _ in range(most):
        found = world.enabled()
        if world.over:
            found = tuple(action for action in found if action.kind != "tick")
        if not found:
            return
        yield world.do(found[0])
    if not world.over:
        reasons = "; ".join(str(reason) for reason in world.co.explain())
        raise Violation("I38", f"the run did not end within {most} actions: {reasons}")


def judge(schedule: Schedule, world: World, broken: Violation | None, *, whole: bool = True) -> tuple[bool, str]:
    """Whether a run that was played is what its schedule expects, and how it ended in words. With `whole` off the run
    was stopped on the way, so that only an invariant that broke counts. What is never to come is searched for."""
    if broken is not None:
        return broken.name == schedule.breaks, f"{broken.name} is broken: {broken.text}"
    if not whole:
        return True, f"stopped at {world.now:g} s of virtual time"
    if schedule.never is not None:
        from .onward import search  # the model checker: only such a schedule needs it

        return search(schedule)
    ended = "the coordinator died" if not world.alive else "the run goes on"
    if world.finish is not None:
        ended = f"the run ended {world.finish.status}: {world.finish.text}"
    if schedule.breaks is not None:
        return False, f"{schedule.breaks} was expected to break and holds; {ended}"
    status = None if world.finish is None else world.finish.status
    if schedule.ends is not None and status != schedule.ends:
        return False, f"the run was expected to end {schedule.ends}; {ended}"
    return True, f"every invariant holds; {ended}"
