"""What was sent on a lane and is not known to have arrived, kept for a reattachment (protocol N-9, M-42).

Both ends keep a copy of each message under its lane number until the other end confirms that number, in any message
that flows back. A link that breaks loses what was on its way; after a reattachment exactly what the other end lacks is
sent again, in order, under the same numbers, so that each message is applied once (I53).

    sent 1 2 3 4 5      confirmed 2, then the link breaks; the other end says that it has seen 3
         . . x x x      kept: 3 4 5                          sent again: 4 5

A keeper that holds more than `MOST_MESSAGES` or `MOST_BYTES` is `overfull`, and its owner ends the incarnation: who
confirms nothing for so long does not take its messages, whatever its link looks like. So that a rank of many steps a
second never gets there while the coordinator takes its reports, they are confirmed after each `CONFIRM_EVERY` of them
too, and not only with the next beacon.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs

from .values import state

__all__ = ["CONFIRM_EVERY", "MOST_BYTES", "MOST_MESSAGES", "Retained", "weigher", "weight", "weights"]

MOST_MESSAGES = 4096
MOST_BYTES = 4 << 20
"""Limits of a lane (N-9)."""
CONFIRM_EVERY = 1024
"""Reports after which the coordinator confirms them, if it has not before."""
NUMBER_BYTES = 9
"""Most bytes of a number in a frame."""
FRAME_BYTES = 64
"""What a frame adds to its payload: header, tag, the map around it."""

Measure = int | str
"""What things of one type weigh: a number, where it is the same for all of them, or an expression that looks."""


def weight(message: Any) -> int:
    """Bytes that a message takes on the wire, never too few. The core knows no codec, so it counts what every codec
    has to carry: names, numbers, text."""
    return weigher(type(message))(message)


def weigher(kind: type) -> Callable[[Any], int]:
    """`weight` of messages of this class only, for who weighs many of them."""
    return _looking(kind, FRAME_BYTES)


def weights(like: Any, own: Mapping[str, Sequence[Any]]) -> Iterable[int]:
    """What messages weigh that differ from `like` in these fields only: for each a value per message. What they have in
    common is measured once; where nothing else weighs anything, there is no end of them."""
    kind: type = type(like)
    common, sizes = weight(like), None
    for column in [look(own[name]) for name in own if (look := _column(kind, name)) is not None]:
        common -= column[0]  # that of `like`, which says what the first one says
        sizes = column if sizes is None else list(map(operator.add, sizes, column))
    return repeat(common) if sizes is None else [common + size for size in sizes]


# Every message that is sent is weighed, a finish sends three to each rank, and most of what they hold weighs the same
# each time. So what the declared types say is read once per class, and written down as an expression: it adds up what
# is known to one number, and looks at the few parts whose size is open, such as text, or the items in a tuple.


def _size(thing: Any) -> int:
    kind: Any = type(thing)
    return _looking(kind, 0)(thing)


@functools.cache
def _looking(kind: Any, more: int) -> Callable[[Any], int]:
    """A function that measures things of this type, also where it need not look, with so much more for each."""
    look: Callable[[Any], int] = _compiled(f"lambda it: {more} + {_measure(kind, 'it')}")
    return look


@functools.cache
def _column(kind: type, name: str) -> Callable[[Sequence[Any]], list[int]] | None:
    """A function that measures this field of many messages; None if it weighs the same in all of them."""
    measure = _measure(get_type_hints(kind)[name], "it")
    return None if isinstance(measure, int) else _compiled(f"lambda column: [{measure} for it in column]")


def _compiled(source: str) -> Any:
    return eval(source, {"size": _size})


def _measure(kind: Any, it: str) -> Measure:
    """How things of one type are measured, of a class or of what an annotation tells beyond that, where the expression
    `it` stands for the thing."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        if args[1:] == (...,):
            return _of_row(args[0], it)
        return _sum([_measure(part, f"{it}[{place}]") for place, part in enumerate(args)])
    if origin in (Union, UnionType):
        return _of_choice(args, it)
    cls = kind if origin is None else origin
    if not isinstance(cls, type):
        return f"size({it})"  # an annotation that leaves it open: the thing itself will say
    if issubclass(cls, str):
        return f"({NUMBER_BYTES} + (len({it}) if {it}.isascii() else len({it}.encode())))"
    if issubclass(cls, bytes):
        return f"({NUMBER_BYTES} + len({it}))"
    if issubclass(cls, (tuple, list)):
        return f"({NUMBER_BYTES} + sum(map(size, {it})))"
    if issubclass(cls, Mapping):
        return f"({NUMBER_BYTES} + sum(map(size, {it})) + sum(map(size, {it}.values())))"
    if attrs.has(cls):
        hints, names = get_type_hints(cls), [field.name for field in attrs.fields(cls)]
        return _sum([sum(1 + len(name) for name in names), *(_measure(hints[name], f"{it}.{name}") for name in names)])
    return NUMBER_BYTES


def _sum(parts: Sequence[Measure]) -> Measure:
    """A thing of several parts. Those with a number for a size are added up beforehand."""
    known = NUMBER_BYTES + sum(part for part in parts if isinstance(part, int))
    open_parts = [part for part in parts if isinstance(part, str)]
    return f"({' + '.join([str(known), *open_parts])})" if open_parts else known


def _of_row(kind: Any, it: str) -> Measure:
    """Any number of things of one type."""
    item = _measure(kind, "it")
    if isinstance(item, int):
        return f"({NUMBER_BYTES} + {item} * len({it}))"
    return f"({NUMBER_BYTES} + sum([{item} for it in {it}]))"


def _of_choice(kinds: tuple[Any, ...], it: str) -> Measure:
    """Kinds of numbers, and None, weigh the same; of anything else the thing itself says which it is. Where it is one
    kind or None, that is seen at a glance."""
    sizes = {_measure(kind, it) for kind in kinds}
    if len(sizes) == 1:
        return sizes.pop()
    if len(kinds) != 2 or kinds[1] is not type(None):
        return f"size({it})"
    return f"({NUMBER_BYTES} if {it} is None else {_measure(kinds[0], it)})"


@state
class Retained:
    """See the module. `kept` holds (number, weight, message), ascending without a gap; `bytes` is their weight."""

    kept: deque[tuple[int, int, Any]] = attrs.field(factory=deque)
    bytes: int = 0

    def __len__(self) -> int:
        return len(self.kept)

    def append(self, number: int, message: Any, size: int) -> bool:
        """Keep the message that has just been given this number, the next one of its lane, and its weight. Whether the
        keeper is `overfull` now, said here because every sender asks."""
        kept = self.kept
        kept.append((number, size, message))
        self.bytes = held = self.bytes + size
        return held > MOST_BYTES or len(kept) > MOST_MESSAGES

    def get(self, number: int) -> Any | None:
        """The message with this number; None if it is not kept any more."""
        return next((message for known, _, message in self.kept if known == number), None)

    def release(self, confirmed: int) -> None:
        """Everything up to this number has arrived."""
        kept, freed = self.kept, 0
        while kept and kept[0][0] <= confirmed:
            freed += kept.popleft()[1]
        self.bytes -= freed

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
