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
from collections.abc import Mapping
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


def weight(message: Any) -> int:
    """Bytes that a message takes on the wire, never too few. The core knows no codec, so it counts what every codec
    has to carry: names, numbers, text."""
    return FRAME_BYTES + _size(message)


def _size(thing: Any) -> int:
    if isinstance(thing, str):
        return NUMBER_BYTES + (len(thing) if thing.isascii() else len(thing.encode()))
    if isinstance(thing, bytes):
        return NUMBER_BYTES + len(thing)
    if isinstance(thing, (tuple, list)):
        return NUMBER_BYTES + sum(_size(item) for item in thing)
    if isinstance(thing, Mapping):
        return NUMBER_BYTES + sum(_size(key) + _size(item) for key, item in thing.items())
    if attrs.has(type(thing)):
        cls: Any = type(thing)
        names, bare = _fields(cls)
        return bare + sum(_size(getattr(thing, name)) for name in names)
    return NUMBER_BYTES


@functools.cache
def _fields(cls: Any) -> tuple[tuple[str, ...], int]:
    names = tuple(field.name for field in attrs.fields(cls))
    return names, NUMBER_BYTES + sum(1 + len(name) for name in names)


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
