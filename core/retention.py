"""What was sent on a lane and is not known to have arrived, kept for a reattachment (protocol N-9, M-42).

Both ends keep a copy of each message under its lane number until the other end confirms that number, in any message
that flows back. A link that breaks loses what was on its way; after a reattachment exactly what the other end lacks is
sent again, in order, under the same numbers, so that each message is applied once (I53).

    sent 1 2 3 4 5      confirmed 2, then the link breaks; the other end says that it has seen 3
         . . x x x      kept: 3 4 5                          sent again: 4 5

A keeper that holds more than `MOST_MESSAGES` or `MOST_BYTES` is `overfull`. What that means is its owner's decision:
the coordinator ends the incarnation, because a rank that confirms nothing for so long does not take its orders; a
rank only forgets the oldest, and with them the right to resume (`covers`).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from .values import state

__all__ = ["MOST_BYTES", "MOST_MESSAGES", "Retained", "weight"]

MOST_MESSAGES = 4096
MOST_BYTES = 4 << 20
"""Limits of a lane (N-9)."""
NUMBER_BYTES = 9
"""Most bytes of a number in a frame."""
FRAME_BYTES = 64
"""What a frame adds to its payload: header, tag, the map around it."""
NUMBERS = frozenset({int, float, bool, type(None)})
PLAIN = frozenset({"int", "float", "bool", "None"})
"""Types whose values take `NUMBER_BYTES` at most, and what is written in the annotation of a field that holds them."""

STAMP = ("run_id",)
"""What every message carries that is no number."""


def weight(message: Any) -> int:
    """Bytes that a message takes on the wire, never too few. The core knows no codec, so it counts what every codec
    has to carry: names, numbers, text."""
    return FRAME_BYTES + _sizer(message.__class__)(message)


def _size(thing: Any) -> int:
    kind: Any = type(thing)
    return _sizer(kind)(thing)


@functools.cache
def _sizer(cls: Any) -> Callable[[Any], int]:
    """How things of one class are measured. Every message that is sent is, so what is known of the class is found out
    once."""
    if issubclass(cls, str):
        return lambda thing: NUMBER_BYTES + (len(thing) if thing.isascii() else len(thing.encode()))
    if issubclass(cls, bytes):
        return lambda thing: NUMBER_BYTES + len(thing)
    if issubclass(cls, (tuple, list)):
        return _size_of_items
    if issubclass(cls, Mapping):
        return lambda thing: NUMBER_BYTES + sum(_size(key) + _size(item) for key, item in thing.items())
    if attrs.has(cls):
        return _sizer_of_fields(cls)
    return lambda thing: NUMBER_BYTES


def _size_of_items(things: Any) -> int:
    if NUMBERS.issuperset(map(type, things)):  # the counts of all ranks, in an advisory to each of them
        return NUMBER_BYTES * (1 + len(things))
    return NUMBER_BYTES + sum(map(_size, things))


def _sizer_of_fields(cls: Any) -> Callable[[Any], int]:
    """Fields that can hold nothing but a number weigh the same in each message; only the others are looked at."""
    fields = attrs.fields(cls)
    plain = [field for field in fields if PLAIN.issuperset(str(field.type).replace(" ", "").split("|"))]
    bare = NUMBER_BYTES * (1 + len(plain)) + sum(1 + len(field.name) for field in fields)
    looked_at = tuple(field.name for field in fields if field not in plain)
    if looked_at == STAMP:  # a message of nothing but numbers, such as that of every step
        return lambda thing: bare + NUMBER_BYTES + len(thing.run_id)
    return lambda thing: bare + sum([_size(getattr(thing, name)) for name in looked_at])


@state
class Retained:
    """See the module. `kept` holds (number, weight, message), ascending without a gap; `bytes` is their weight."""

    kept: deque[tuple[int, int, Any]] = attrs.field(factory=deque)
    bytes: int = 0

    def __len__(self) -> int:
        return len(self.kept)

    def append(self, number: int, message: Any) -> None:
        """Keep the message that has just been given this number, the next one of its lane."""
        size = weight(message)
        self.kept.append((number, size, message))
        self.bytes += size

    def release(self, confirmed: int) -> None:
        """Everything up to this number has arrived."""
        while self.kept and self.kept[0][0] <= confirmed:
            self.bytes -= self.kept.popleft()[1]

    def forget_oldest(self) -> None:
        """Back within the limits. What is forgotten can't be sent again."""
        while self.overfull:
            self.bytes -= self.kept.popleft()[1]

    def clear(self) -> None:
        """The lane is over."""
        self.kept.clear()
        self.bytes = 0

    @property
    def overfull(self) -> bool:
        """Beyond a limit of N-9."""
        return len(self.kept) > MOST_MESSAGES or self.bytes > MOST_BYTES

    def covers(self, seen: int, sent: int) -> bool:
        """Whether the lane can go on behind number `seen` when `sent` was the last one given: everything between is
        still here. False for a number that was never given."""
        if not 0 <= seen <= sent:
            return False
        return seen == sent or (bool(self.kept) and self.kept[0][0] <= seen + 1)

    def after(self, seen: int) -> tuple[Any, ...]:
        """What the other end lacks that has seen everything up to this number, in order."""
        return tuple(message for number, _, message in self.kept if number > seen)
