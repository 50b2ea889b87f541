"""Small mutable records as plain tuples, and back: what the parts of a world's snapshot are made of.

A record is an attrs class whose fields hold immutable values, or one level of list, deque, set or dict of immutable
values. Messages and effects of the core count as immutable. Sets and dicts are written in the order of their members
and keys, so that equal records give equal tuples.
"""

from __future__ import annotations

import functools
from collections import deque
from operator import itemgetter
from typing import Any

import attrs

__all__ = ["frozen", "thaw"]


@functools.cache
def _fields(cls: Any, without: frozenset[str]) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(cls) if field.name not in without)


def frozen(record: Any, without: frozenset[str] = frozenset()) -> tuple[Any, ...]:
    """The fields of the record in their order, but for those in `without`."""
    cls: Any = type(record)
    return tuple([_plain(getattr(record, name)) for name in _fields(cls, without)])


def thaw(record: Any, plain: tuple[Any, ...], without: frozenset[str] = frozenset()) -> None:
    """Put back what `frozen` gave, into a record of the same class whose containers are of the right type."""
    cls: Any = type(record)
    for name, value in zip(_fields(cls, without), plain, strict=True):
        kind = type(getattr(record, name))
        setattr(record, name, kind(value) if kind in (list, deque, set, dict) else value)


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return tuple(sorted(value.items(), key=itemgetter(0)))
    if kind is set:
        return tuple(sorted(value))
    if kind is list or kind is deque:
        return tuple(value)
    return value
