"""A second machine in the same state: it takes an event, and the first one stays as it is.

    other = twin(coordinator)

What `Coordinator.restore(config, coordinator.snapshot())` gives, at a tenth of the cost: what cannot change is not made
again but shared. These are names, numbers, members of enumerations, and every `value` (`values.py`): messages, events,
effects, plans. Made again are containers and every `state` object, so that nothing which one machine writes is the
other's too. The parts of a coordinator know the new one as theirs.

Two fields that hold the same mutable thing hold two of them afterwards, as after a snapshot; the machines have none.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import attrs

from ..coordinator import Coordinator
from ..errors import LocalProtocolError
from ..plain import OWNER
from ..snapshots import GIVEN_TO_COORDINATOR, GIVEN_TO_WORKER
from ..worker import Worker
from .spelling import ATOMS, written_out

__all__ = ["twin"]

Machine = TypeVar("Machine", Coordinator, Worker)
Again = Callable[[Any, Any], Any]
"""A thing of one class made again, for an owner."""

GIVEN = (GIVEN_TO_COORDINATOR | GIVEN_TO_WORKER) - {"guard"}
"""What a machine was given and never writes; a guard keeps its history itself."""

_shared = set(ATOMS)
"""Classes of what is shared: those that were met."""


def twin(machine: Machine) -> Machine:
    """See the module. Only for a machine whose policies are those that ship: how to copy another is not known here."""
    cls: Any = type(machine)
    made: Machine = object.__new__(cls)
    names = cls.__slots__ if cls is Coordinator else [field.name for field in attrs.fields(cls)]
    for name in names:
        item = getattr(machine, name)
        setattr(made, name, item if name in GIVEN else _again(item, made))
    return made


def _again(thing: Any, owner: Any) -> Any:
    kind = thing.__class__
    return thing if kind in _shared else _maker(kind)(thing, owner)


@functools.cache
def _maker(kind: Any) -> Again:
    """How things of one class are made again."""
    if kind is list or kind is tuple:
        return lambda thing, owner: kind([item if item.__class__ in _shared else _again(item, owner) for item in thing])
    if kind is deque:
        return lambda thing, owner: deque([_again(item, owner) for item in thing], thing.maxlen)
    if kind is dict:
        return lambda thing, owner: {
            key: item if item.__class__ in _shared else _again(item, owner) for key, item in thing.items()
        }
    if issubclass(kind, Enum) or (attrs.has(kind) and kind.__hash__ not in (None, object.__hash__)):
        _shared.add(kind)  # a `value`; what is a `state` is compared by identity
        return lambda thing, owner: thing
    if attrs.has(kind):
        return _maker_of_fields(kind)
    raise LocalProtocolError(f"a {kind.__name__} is no part of a machine that could be made a second time")


def _maker_of_fields(kind: Any) -> Again:
    lines = list(written_out(kind, frozenset({"tuple"}), "made.{0} = thing.{0}", "made.{0} = thing.{0}.copy()",
                             "made.{0} = item if (item := thing.{0}).__class__ in shared else again(item, owner)"))
    if OWNER in attrs.fields_dict(kind):
        lines.append(f"made.{OWNER} = owner")
    names: dict[str, Any] = {"new": object.__new__, "kind": kind, "shared": _shared, "again": _again}
    exec("\n    ".join(["def maker(thing, owner):", "made = new(kind)", *lines, "return made"]), names)
    maker: Again = names["maker"]
    return maker
