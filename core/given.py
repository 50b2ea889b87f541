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
from .ledger import Resume
from .policies import Policies

__all__ = ["check_event", "check_parts", "need"]

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


def check_event(event: Any, of: Any, machine: str) -> None:
    """An event is one of those that the union `of` names, and every field of it has the type that it is declared with.
    Raises `LocalProtocolError` that names the field, the value and the type."""
    kind = event.__class__
    if kind not in _members(of):
        raise LocalProtocolError(f"{kind.__name__} is not an event of {machine}")
    if not _fast(kind)(event):
        for field in attrs.fields(kind):
            given = getattr(event, field.name)
            if not _fits(_hints(kind)[field.name])(given):
                where = f"{kind.__name__}.{field.name} = {given!r:.60}"
                raise LocalProtocolError(f"{where} is not allowed: {field.type} is wanted")


@functools.cache
def _members(union: Any) -> frozenset[type]:
    return frozenset(typing.get_args(union))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, vars(events))


@functools.cache
def _fast(kind: type) -> Fits:
    """Whether all fields have the classes that they nearly always have: one expression, since a worker is told of every
    step."""
    known: dict[str, Any] = {}
    parts = []
    for number, field in enumerate(attrs.fields(kind)):
        hint = _hints(kind)[field.name]
        classes = [ATOMS.get(one) for one in _alternatives(hint)]
        atoms = [one for one in classes if one is not None]
        if len(atoms) == len(classes):
            known[f"k{number}"] = frozenset().union(*atoms)
            parts.append(f"event.{field.name}.__class__ in k{number}")
        else:
            known[f"k{number}"] = _fits(hint)
            parts.append(f"k{number}(event.{field.name})")
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
