"""The canonical spelling of what a world is made of: bytes that are the same if, and only if, the things are.

It is the `repr` of numbers, text, bytes and nested tuples, lists and dicts (in their order), which tells the types of
all of them apart, and floats to the last bit. A member of an enumeration, a deque and an attrs object are spelled as
tuples that begin with `...`, which stands nowhere else, and the name of their class. Sets are refused.

A machine is spelled by all that is in its snapshot, several times faster than that is made: the code for each class is
written out, as there are hundreds of fields in a coordinator. The tests hold the two against each other.
"""

from __future__ import annotations

import functools
import operator
import re
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import attrs

from ..config import WISHABLE
from ..coordinator import Coordinator
from ..errors import LocalProtocolError
from ..plain import OWNER
from ..snapshots import GIVEN_TO_COORDINATOR, GIVEN_TO_WORKER
from ..worker import Worker

__all__ = ["ATOMS", "of_coordinator", "of_worker", "spelled", "written_out"]

ATOMS = frozenset({type(None), bool, int, float, str, bytes})
"""What is spelled as it is, and never changes."""
NAMES = frozenset({"None", "bool", "int", "float", "str", "bytes"})
WORD = re.compile(r"\w+")
FLAT = re.compile(r"(?:list|dict|deque)\[(.*)\]")

Plain = Callable[[Any], Any]

_in_coordinator = operator.attrgetter(*(name for name in Coordinator.__slots__ if name not in GIVEN_TO_COORDINATOR))
_in_worker = operator.attrgetter(*(f.name for f in attrs.fields(Worker) if f.name not in GIVEN_TO_WORKER))
_wishes = operator.attrgetter(*WISHABLE)


def spelled(thing: Any) -> bytes:
    """See the module."""
    return repr(_plain(thing)).encode()


def of_coordinator(co: Coordinator) -> bytes:
    """Two coordinators of one run have the same spelling if, and only if, they have the same snapshot."""
    return spelled((_wishes(co.config), co.guard, _in_coordinator(co)))


def of_worker(worker: Worker) -> tuple[Any, ...]:
    """What is to be spelled of a worker, likewise."""
    settings = worker.settings
    return (settings.generation, settings.rank, settings.incarnation, _in_worker(worker))


def written_out(kind: Any, allowed: frozenset[str], plain: str, flat: str, other: str) -> Iterator[str]:
    """A line of code for each field of an attrs class: `plain` where its annotation says that it holds nothing but
    atoms, in `allowed` containers; `flat` where it is a container of such; `other` where that has to be looked at.
    `{0}` in them stands for the name."""
    for field in attrs.fields(kind):
        if field.name != OWNER:
            said = str(field.type)
            inside = FLAT.fullmatch(said)
            if set(WORD.findall(said)) <= NAMES | allowed:
                line = plain
            elif inside is not None and set(WORD.findall(inside[1])) <= NAMES | allowed:
                line = flat
            else:
                line = other
            yield line.format(field.name)


def _plain(thing: Any) -> Any:
    kind = thing.__class__
    return thing if kind in ATOMS else _maker(kind)(thing)


@functools.cache
def _maker(kind: Any) -> Plain:
    """How things of one class are made plain."""
    if kind is tuple or kind is list:
        return lambda thing: kind([item if item.__class__ in ATOMS else _plain(item) for item in thing])
    if kind is deque:
        return lambda thing: (..., "deque", *map(_plain, thing))
    if kind is dict:
        return lambda thing: {_plain(key): _plain(item) for key, item in thing.items()}
    if issubclass(kind, Enum):
        return {member: (..., kind.__name__, member.value) for member in kind}.__getitem__
    if attrs.has(kind):
        return _maker_of_fields(kind)
    raise LocalProtocolError(f"a {kind.__name__} has no spelling, so a state that holds one has no name")


def _maker_of_fields(kind: Any) -> Plain:
    look = "item if (item := thing.{0}).__class__ in atoms else plain(item)"
    lines = written_out(kind, frozenset({"tuple", "list", "dict"}), "thing.{0}", look, look)
    names: dict[str, Any] = {"atoms": ATOMS, "plain": _plain}
    exec(f"def maker(thing):\n    return (..., {kind.__qualname__!r}, {''.join(line + ', ' for line in lines)})", names)
    maker: Plain = names["maker"]
    return maker
