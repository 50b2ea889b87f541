"""How events, effects and messages are declared.

`value` makes a soft-frozen attrs class: type checkers see a frozen one, at run time it is a plain slotted class with
a hash, because constructing a really frozen slotted class costs two to three times as much and the hot path builds
two effects per event. `state` makes a mutable slotted class whose setattr runs no validator.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

__all__ = ["among", "maker", "rha", "state", "value"]

T = TypeVar("T")

if TYPE_CHECKING:
    from attrs import define as state
    from attrs import frozen as value
else:
    value = functools.partial(attrs.define, unsafe_hash=True, on_setattr=attrs.setters.NO_OP)
    state = functools.partial(attrs.define, eq=False, on_setattr=attrs.setters.NO_OP)


@functools.cache
def maker(kind: type[T]) -> Callable[..., T]:
    """A function that makes what the constructor of a `value` class makes, of its fields in their order or by name, for
    what is made with every event. Fields up to the last one without a default have to be given.

    A class that is called with names sorts them into a dictionary, and its constructor sorts them out again: for the
    fields of a message that takes several times as long as to fill them in.
    """
    cls: Any = kind
    fields = attrs.fields(cls)
    due = max((place for place, field in enumerate(fields, 1) if field.default is attrs.NOTHING), default=0)
    known: dict[str, Any] = {"_kind": kind, "_new": object.__new__, "_absent": attrs.NOTHING}
    arguments, lines = [], []
    for place, field in enumerate(fields, 1):
        name, made_anew = field.name, getattr(field.default, "factory", None)
        known[f"_default_{name}"] = made_anew or field.default
        default = "" if place <= due else "=_absent" if made_anew else f"=_default_{name}"
        arguments.append(f"{name}{default}")
        choice = f"_default_{name}() if {name} is _absent else {name}" if made_anew else name
        lines.append(f"    _made.{name} = {choice}\n")
    exec(f"def make({', '.join(arguments)}):\n    _made = _new(_kind)\n{''.join(lines)}    return _made\n", known)
    make: Callable[..., T] = known["make"]
    return make


def among(rank: int, ascending: Sequence[int]) -> bool:
    """Whether a rank is one of these, by halving: the whole cohort says what it has done in each cycle, and to look at
    all ranks for each of them would cost the square of their number (C-4)."""
    place = bisect_left(ascending, rank)
    return place < len(ascending) and ascending[place] == rank


def rha(x: float) -> int:
    """Round half away from zero, the only rounding the protocol knows (conventions at the top of protocol.md)."""
    if x < 0:
        return -rha(-x)
    whole = int(x)
    return whole + 1 if x - whole >= 0.5 else whole
