"""A run in words: one line for each event, the same for the same run everywhere and for ever.

    12.500000  report 1     coordinator  SyncAck from 1.1 cycle=3 attempt=0 ... -> Cycle, Update to 0.1, Update to 1.1

First the virtual second, then the action, then the machine that took the event, the event with its fields, and what it
led to. What is the same in every message (run, generation, lane numbers) is left out, as is what only people would
read, and a field that is what it would be by default; but whom something is about is always said.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import attrs

from .. import effects as fx
from .. import events as ev
from ..instants import shown
from ..messages import NO_RANK, Control, Message, Report
from .action import COORDINATOR

if TYPE_CHECKING:
    from .world import Step, Turn

__all__ = ["describe", "lines", "name_of", "of_turn"]

LEFT_OUT = frozenset({"run_id", "generation", "rank", "incarnation", "report_seq", "control_seq", "digest", "text"})
WHOM = ("rank", "incarnation")
"""What says whom something is about: never left out, also where it is what it would be by default."""
NOBODYS = 0
"""The incarnation of no life: at a worker rank and incarnation of an event may be left open, as they are its own."""
SHORT = 48


def lines(step: Step) -> Iterator[str]:
    """The lines of one step; an action that no machine took notice of has one all the same."""
    head = f"{shown(step.at, 6):>14}  {step.action!s:<16}"
    if not step.turns:
        yield f"{head}  -".rstrip()
    for turn in step.turns:
        yield f"{head}  {of_turn(turn)}"


def of_turn(turn: Turn) -> str:
    """One event of one machine, and its effects."""
    found = ", ".join(_effects(turn.effects))
    return f"{name_of(turn.who):<12} {describe(turn.event)}{' -> ' if found else ''}{found}"


def name_of(who: int) -> str:
    """A machine, as a transcript calls it."""
    return "coordinator" if who == COORDINATOR else f"process {who}"


def describe(thing: Any) -> str:
    """An event, a message or an effect in a few words."""
    if isinstance(thing, ev.Received):
        return describe(thing.message)
    if isinstance(thing, fx.Send):
        return f"{type(thing.message).__name__} to {thing.rank}.{thing.incarnation}{_fields(thing.message)}"
    if isinstance(thing, fx.Reporting):
        return f"{type(thing.report).__name__}{_fields(thing.report)}"
    if isinstance(thing, fx.Emit):
        return " ".join((thing.name, *(f"{name}={thing.facts[name]}" for name in WHOM if name in thing.facts)))
    if isinstance(thing, ev.SendFailed):
        rank, incarnation, _ = thing.token
        return f"SendFailed to {rank}.{incarnation}{_fields(thing)}"
    if isinstance(thing, ev.HelloReceived) and thing.hello.wanted_rank is not None:
        again = "" if thing.hello.resume is None else f" incarnation={thing.hello.resume.incarnation}"
        return f"HelloReceived wanted_rank={thing.hello.wanted_rank}{again}{_fields(thing)}"
    sender = f" from {thing.rank}.{thing.incarnation}" if isinstance(thing, Report) else ""
    return f"{type(thing).__name__}{sender}{_fields(thing)}"


def _effects(effects: Iterable[Any]) -> Iterator[str]:
    """Effects in order; neighbours that say the same to several ranks are one."""
    group, ranks = "", ""
    for effect in effects:
        if isinstance(effect, fx.Send):
            said = f"{type(effect.message).__name__}{_fields(effect.message)}"
            if said == group:
                ranks += f" {effect.rank}.{effect.incarnation}"
                continue
        if group:
            yield f"{group} to {ranks}"
            group = ""
        if isinstance(effect, fx.Send):
            group, ranks = said, f"{effect.rank}.{effect.incarnation}"
        else:
            yield describe(effect)
    if group:
        yield f"{group} to {ranks}"


def _fields(thing: Any) -> str:
    own = isinstance(thing, (Message, Control, Report))
    parts = []
    cls: Any = type(thing)
    whom = WHOM if getattr(thing, "incarnation", NOBODYS) != NOBODYS else ()
    for name, default in _names(cls):
        value = getattr(thing, name)
        if (own and name in LEFT_OUT) or name in ("digest", "text", "token", "hello", "welcome"):
            continue
        if value == default and name not in whom:
            continue
        parts.append(f"{name}={_value(value)}")
    return f" {' '.join(parts)}" if parts else ""


@functools.cache
def _names(cls: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in attrs.fields(cls)) if attrs.has(cls) else ()


def _value(value: Any) -> str:
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return value.hex()[:8]
    if value == NO_RANK:
        return "nobody"
    if isinstance(value, tuple):
        return f"[{' '.join(_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"[{' '.join(f'{key}:{_value(item)}' for key, item in value.items())}]"
    if attrs.has(type(value)):
        return f"({type(value).__name__}{_fields(value)})"
    text = str(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}…"
