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
import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs

from .values import state

__all__ = ["MOST_BYTES", "MOST_MESSAGES", "Retained", "weight", "weights"]

MOST_MESSAGES = 4096
MOST_BYTES = 4 << 20
"""Limits of a lane (N-9)."""
NUMBER_BYTES = 9
"""Most bytes of a number in a frame."""
FRAME_BYTES = 64
"""What a frame adds to its payload: header, tag, the map around it."""

Measure = int | Callable[[Any], int]
"""What things of one type weigh: a number, where it is the same for all of them, or a function that looks."""


def weight(message: Any) -> int:
    """Bytes that a message takes on the wire, never too few. The core knows no codec, so it counts what every codec
    has to carry: names, numbers, text."""
    kind: Any = type(message)
    bare = _but_for_the_run(kind)
    return FRAME_BYTES + _looking(kind)(message) if bare is None else bare + len(message.run_id)


def weights(like: Any, own: Mapping[str, Sequence[Any]]) -> list[int]:
    """What several messages weigh that differ from `like` in these fields only: for each a value per message, and at
    least one field. What they have in common is measured once."""
    kind: Any = type(like)
    measures = _fields(kind)
    looked_at = [(name, measure) for name in own if callable(measure := measures[name])]
    common = weight(like) - sum(measure(getattr(like, name)) for name, measure in looked_at)
    sizes = [common] * len(next(iter(own.values())))
    for name, measure in looked_at:
        sizes = [size + measure(item) for size, item in zip(sizes, own[name], strict=True)]
    return sizes


# Every message that is sent is weighed, a finish sends three to each rank, and most of what they hold weighs the same
# each time. So what the declared types say is read once per class; what is left to do for a message is to look at the
# few fields whose size is open, such as text, or the number of items in a tuple.


def _size(thing: Any) -> int:
    kind: Any = type(thing)
    return _looking(kind)(thing)


@functools.cache
def _looking(kind: Any) -> Callable[[Any], int]:
    """A function that measures things of this type, also where it need not look."""
    measure = _measure(kind)
    return measure if callable(measure) else lambda thing: measure


@functools.cache
def _but_for_the_run(kind: Any) -> int | None:
    """What a frame of this class weighs beside the name of the run, if nothing else in it has an open size. None of
    what a rank says with every step has."""
    if [name for name, measure in _fields(kind).items() if callable(measure)] != ["run_id"]:
        return None
    of_no_run = object.__new__(kind)
    of_no_run.run_id = b""
    return FRAME_BYTES + _looking(kind)(of_no_run)


@functools.cache
def _measure(kind: Any) -> Measure:
    """How things of one type are measured: of a class, or of what an annotation tells beyond that."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        return _of_row(args[0]) if args[1:] == (...,) else _of_tuple(args)
    if origin in (Union, UnionType):
        return _of_choice(args)
    cls = kind if origin is None else origin
    if not isinstance(cls, type):
        return _size  # an annotation that leaves it open: the thing itself will say
    if issubclass(cls, str):
        return lambda thing: NUMBER_BYTES + (len(thing) if thing.isascii() else len(thing.encode()))
    if issubclass(cls, bytes):
        return lambda thing: NUMBER_BYTES + len(thing)
    if issubclass(cls, (tuple, list)):
        return lambda thing: NUMBER_BYTES + sum(map(_size, thing))
    if issubclass(cls, Mapping):
        return lambda thing: NUMBER_BYTES + sum(_size(key) + _size(item) for key, item in thing.items())
    if attrs.has(cls):
        fields = _fields(cls)
        return _of_record(fields.items(), operator.attrgetter, sum(1 + len(name) for name in fields))
    return NUMBER_BYTES


@functools.cache
def _fields(cls: Any) -> dict[str, Measure]:
    """How the fields of a class are measured."""
    hints = get_type_hints(cls)
    return {field.name: _measure(hints[field.name]) for field in attrs.fields(cls)}


def _of_row(kind: Any) -> Measure:
    """Any number of things of one type."""
    item = _measure(kind)
    if callable(item):
        return lambda things: NUMBER_BYTES + sum([item(thing) for thing in things])
    return lambda things: NUMBER_BYTES + item * len(things)


def _of_tuple(kinds: tuple[Any, ...]) -> Measure:
    """So many things, each of its type."""
    return _of_record(tuple(enumerate(map(_measure, kinds))), operator.itemgetter)


def _of_record(
    parts: Iterable[tuple[Any, Measure]], getter: Callable[[Any], Callable[[Any], Any]], names: int = 0
) -> Measure:
    """Parts of different types, each under a key that `getter` can read. Those with a number for a size are added up
    beforehand."""
    measures = list(parts)
    bare = NUMBER_BYTES + names + sum(measure for _, measure in measures if not callable(measure))
    looked_at = tuple((getter(key), measure) for key, measure in measures if callable(measure))
    if not looked_at:
        return bare
    if len(looked_at) == 1:
        only, measure_only = looked_at[0]
        return lambda thing: bare + measure_only(only(thing))

    def measured(thing: Any) -> int:
        size = bare
        for part_of, measure in looked_at:
            size += measure(part_of(thing))
        return size

    return measured


def _of_choice(kinds: tuple[Any, ...]) -> Measure:
    """Kinds of numbers, and None, weigh the same; of anything else the thing itself says which it is. Where it is one
    kind or None, that is seen at a glance."""
    sizes = {_measure(kind) for kind in kinds}
    if len(sizes) == 1:
        return sizes.pop()
    if len(kinds) != 2 or kinds[1] is not type(None):
        return _size
    there = _measure(kinds[0])
    if callable(there):
        return lambda thing: NUMBER_BYTES if thing is None else there(thing)
    return lambda thing: NUMBER_BYTES if thing is None else there


@state
class Retained:
    """See the module. `kept` holds (number, weight, message), ascending without a gap; `bytes` is their weight."""

    kept: deque[tuple[int, int, Any]] = attrs.field(factory=deque)
    bytes: int = 0

    def __len__(self) -> int:
        return len(self.kept)

    def append(self, number: int, message: Any, size: int | None = None) -> bool:
        """Keep the message that has just been given this number, the next one of its lane. `size` is its weight, if
        the caller knows it. Whether the keeper is `overfull` now, said here because every sender asks."""
        if size is None:
            size = weight(message)
        kept = self.kept
        kept.append((number, size, message))
        self.bytes = held = self.bytes + size
        return held > MOST_BYTES or len(kept) > MOST_MESSAGES

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
