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
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any

import attrs

from . import events
from .config import Config
from .errors import LocalProtocolError
from .instants import need_time
from .ledger import Resume
from .policies import Policies

__all__ = ["OF_COORDINATOR", "OF_WORKER", "check_parts", "need"]

Fits = Callable[[Any], bool]

ATOMS: dict[Any, frozenset[type]] = {
    bool: frozenset({bool}),
    int: frozenset({int}),
    float: frozenset({float, int}),
    str: frozenset({str}),
    bytes: frozenset({bytes}),
    types.NoneType: frozenset({types.NoneType}),
}
"""The classes that nearly every value has of which an annotation says this; what is of another one is looked at more
slowly, and may be a member of an enumeration or a number of another library."""


def need(name: str, given: object, kind: type) -> None:
    """What was given for an argument is of its kind. Raises `LocalProtocolError` that names both."""
    if not isinstance(given, kind):
        raise LocalProtocolError(f"{name} = {given!r:.60} is not allowed: give a {kind.__name__}")


def check_parts(config: Any, now: Any, guard: Any, resume: Any, policies: Any) -> None:
    """What a coordinator is made of. Raises `LocalProtocolError`."""
    need("config", config, Config)
    need("policies", policies, Policies)
    need_time(now)
    if resume is not None:
        need("resume", resume, Resume)
    for one in (guard, policies.guard):
        if one is not None and not callable(getattr(one, "observe", None)):
            raise LocalProtocolError(f"guard = {one!r:.60} is not allowed: give an object with observe (B-30)")


class Events(dict[type, Fits]):
    """Of each event of a machine, whether every field of it has the type that it is declared with. It is filled as they
    come; an object of another class is no event of the machine: `LocalProtocolError`."""

    def __init__(self, of: Any, machine: str) -> None:
        super().__init__()
        self.members = frozenset(typing.get_args(of))
        self.machine = machine

    def __missing__(self, kind: type) -> Fits:
        if kind not in self.members:
            raise LocalProtocolError(f"{kind.__name__} is not an event of {self.machine}")
        fits = self[kind] = _fast(kind, tuple(self._slowly(kind)))
        return fits

    def check(self, event: Any) -> None:
        """Raises `LocalProtocolError` that names the field, the value and the type."""
        if not self[event.__class__](event):
            for name, declared, fits in self._slowly(event.__class__):
                given = getattr(event, name)
                if not fits(given):
                    where = f"{type(event).__name__}.{name} = {given!r:.60}"
                    raise LocalProtocolError(f"{where} is not allowed: {declared} is wanted")

    @staticmethod
    def _slowly(kind: type) -> Iterator[tuple[str, object, Fits]]:
        hints = typing.get_type_hints(kind, vars(events))
        for field in attrs.fields(kind):
            yield field.name, field.type, _fits(hints[field.name])


OF_COORDINATOR = Events(events.CoordinatorEvent, "the coordinator")
OF_WORKER = Events(events.WorkerEvent, "a worker")


def _fast(kind: type, slowly: tuple[tuple[str, object, Fits], ...]) -> Fits:
    """Whether all fields have the classes that they nearly always have: one expression, since a worker is told of every
    step."""
    known: dict[str, Any] = {}
    parts = []
    hints = typing.get_type_hints(kind, vars(events))
    for number, (name, _, fits) in enumerate(slowly):
        classes = [ATOMS.get(one) for one in _alternatives(hints[name])]
        atoms = [one for one in classes if one is not None]
        if len(atoms) == len(classes):
            known[f"k{number}"] = frozenset().union(*atoms)
            parts.append(f"event.{name}.__class__ in k{number}")
        else:
            known[f"k{number}"] = fits
            parts.append(f"k{number}(event.{name})")
    exec(f"def fast(event):\n    return {' and '.join(parts) or 'True'}", known)
    fast: Fits = known["fast"]
    return fast


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


@functools.cache
def _fits(hint: Any) -> Fits:
    """Whether a value is what an annotation says. True and false are no numbers: nobody means 1 by them."""
    several = _alternatives(hint)
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
