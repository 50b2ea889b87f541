"""What an embedder gives a machine, looked at before anything has changed.

A driver is written by somebody else, so what it gives may be of any kind. A machine that trips over it half way through
an event is worth nothing afterwards, and what it trips over names neither the event nor the field; so the types of an
event are compared with its annotations first, and whoever is wrong is told by `LocalProtocolError`. Messages of peers
are not looked at here: their codec has done that (N-7).
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from numbers import Real
from typing import Any

import attrs

from . import events
from .config import Config
from .errors import LocalProtocolError
from .instants import need_time
from .knob_types import alternatives
from .ledger import Resume
from .policies import Policies

__all__ = ["OF_COORDINATOR", "OF_WORKER", "check_parts", "need"]

Fits = Callable[[Any], bool]


def _refused(name: str, given: object, wanted: str) -> LocalProtocolError:
    return LocalProtocolError(f"{name} = {given!r:.60} is not allowed: {wanted}")


# --- what a machine is made of ---------------------------------------------------------------------------------------


def need(name: str, given: object, kind: type) -> None:
    """What was given for an argument is of its kind. Raises `LocalProtocolError` that names both."""
    if not isinstance(given, kind):
        raise _refused(name, given, f"give a {kind.__name__}")


def check_parts(config: Any, now: Any, guard: Any, resume: Any, policies: Any) -> None:
    """What a coordinator is made of. Raises `LocalProtocolError`."""
    need("config", config, Config)
    need("policies", policies, Policies)
    need_time(now)
    if resume is not None:
        need("resume", resume, Resume)
    for one in (guard, policies.guard):
        if one is not None and not callable(getattr(one, "observe", None)):
            raise _refused("guard", one, "give an object with observe (B-30)")


# --- what it is told -------------------------------------------------------------------------------------------------


ATOMS: dict[Any, tuple[type, ...]] = {
    bool: (bool,), int: (int,), float: (float, int), str: (str,), bytes: (bytes,), types.NoneType: (types.NoneType,),
}  # fmt: skip
"""The classes that nearly every value has of which an annotation says this, the usual one first; what is of another one
is looked at more slowly, and may be a member of an enumeration or a number of another library."""


class Events(dict[type, Fits]):
    """Of each event of a machine how one sees at a glance whether its fields fit. It is filled as they come; an object
    of another class is no event of the machine: `LocalProtocolError`."""

    def __init__(self, of: Any, machine: str) -> None:
        super().__init__()
        self.members: frozenset[type] = frozenset(typing.get_args(of))
        self.machine = machine

    def __missing__(self, kind: type) -> Fits:
        if kind not in self.members:
            raise LocalProtocolError(f"{kind.__name__} is not an event of {self.machine}")
        fits = self[kind] = _at_a_glance(kind)
        return fits

    def check(self, event: Any) -> None:
        """Look closely at an event of the machine that does not fit at a glance, which a machine that is told of every
        step has asked for itself: a field may be a number of another library. Raises `LocalProtocolError` that names
        the first that is not what it is declared as, the value and the type."""
        for name, declared, hint in _fields(event.__class__):
            given = getattr(event, name)
            if not _fits(hint)(given):
                raise _refused(f"{type(event).__name__}.{name}", given, f"{declared} is wanted")


OF_COORDINATOR = Events(events.CoordinatorEvent, "the coordinator")
OF_WORKER = Events(events.WorkerEvent, "a worker")


def _fields(kind: type) -> list[tuple[str, object, Any]]:
    """Of each field its name, its type as it is written and what that means."""
    hints = typing.get_type_hints(kind, vars(events))
    return [(field.name, field.type, hints[field.name]) for field in attrs.fields(kind)]


def _at_a_glance(kind: type) -> Fits:
    """Whether all fields fit, judged by their class where that is enough: one expression, since a worker is told of
    every step, and what it has counted before it trips over a field cannot be taken back. Classes are compared one by
    one, as the first one is nearly always it."""
    known: dict[str, Any] = {}
    parts = ["True"]
    for name, _, hint in _fields(kind):
        classes = [ATOMS.get(one, ()) for one in alternatives(hint)]
        if all(classes):
            each = {f"{name}_{one.__name__}": one for several in classes for one in several}
            known |= each
            parts.append(f"((of := event.{name}.__class__) is {' or of is '.join(each)})")
        else:
            known[f"fits_{name}"] = _fits(hint)
            parts.append(f"fits_{name}(event.{name})")
    fits: Fits = eval(f"lambda event: {' and '.join(parts)}", known)
    return fits


@functools.cache
def _fits(hint: Any) -> Fits:
    """Whether a value is what an annotation says. True and false are no numbers: nobody means 1 by them."""
    several = alternatives(hint)
    if len(several) > 1:
        each = tuple(map(_fits, several))
        return lambda given: any(fits(given) for fits in each)
    origin, inside = typing.get_origin(hint), tuple(map(_fits, (a for a in typing.get_args(hint) if a is not ...)))
    if origin is tuple and ... in typing.get_args(hint):
        return lambda given: isinstance(given, tuple) and all(map(inside[0], given))
    if origin is tuple:
        return lambda given: (isinstance(given, tuple) and len(given) == len(inside)
                              and all(fits(item) for fits, item in zip(inside, given, strict=True)))  # fmt: skip
    if origin is dict:
        return lambda given: (isinstance(given, dict) and all(map(inside[0], given))
                              and all(map(inside[1], given.values())))  # fmt: skip
    wanted: Any = Real if hint is float else hint
    if hint in (int, float):
        return lambda given: isinstance(given, wanted) and not isinstance(given, bool)
    return lambda given: isinstance(given, wanted)
