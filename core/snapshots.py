"""The state of a machine as nested tuples of plain values: hashable, comparable, the same in every process."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import attrs

__all__ = ["freeze"]


def freeze(thing: Any, skip: tuple[str, ...] = ()) -> Any:
    """`thing` without its identity: attrs objects become tuples of their fields in order (except `skip`, whole levels
    down), mappings tuples of sorted pairs, sequences tuples. Anything else is taken as it is."""
    if isinstance(thing, IntEnum):
        return int(thing)
    if attrs.has(type(thing)):
        names = (field.name for field in attrs.fields(type(thing)) if field.name not in skip)
        return tuple(freeze(getattr(thing, name), skip) for name in names)
    if isinstance(thing, Mapping):
        return tuple(sorted((freeze(key, skip), freeze(item, skip)) for key, item in thing.items()))
    if isinstance(thing, (list, tuple, deque)):
        return tuple(freeze(item, skip) for item in thing)
    return thing
