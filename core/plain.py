"""Values of the core as plain data, and back: what a snapshot and a journal are made of.

`encode` turns whatever a machine holds, takes or gives into what JSON knows: None, truth values, numbers, text, arrays
and objects. What JSON does not know says what it is:

    a tuple                             [...]
    a list, a deque                     {"is": "list", "of": [...]}, {"is": "deque", "of": [...]}
    a mapping, in its order             {"is": "map", "of": [[key, value], ...]}
    bytes, a float that is no number    {"is": "bytes", "of": "00ff"}, {"is": "float", "of": "nan"}
    a member of an enumeration          {"is": "message_types:Outcome", "of": 1}
    an attrs object of the core         {"is": "events:LinkLost", "rank": 1, ...}

The order of a mapping is kept, because a machine that goes over one in another order is another machine (N-13). Sets
are refused for the same reason. The field `co`, by which the parts of a coordinator know it, is no data: it is left
out, and `decode` puts the new owner in.

`decode` makes nothing but classes of this package that are attrs classes or enumerations, and calls none of them:
fields are set as they stand. What is damaged raises `CheckpointError`.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections import deque
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import attrs

from .errors import CheckpointError, LocalProtocolError

__all__ = ["DAMAGE", "decode", "encode"]

DAMAGE = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""What goes wrong while something is built from plain data that is not what was written: a part is missing, is of
another type, or lies deeper than any value of ours."""

OWNER = "co"
"""The field that leads back to the coordinator."""
MODULE = re.compile(r"[a-z_]+(\.[a-z_]+)*")


def encode(thing: Any) -> Any:
    """`thing` as plain data. Raises `LocalProtocolError` for what is none of the core's, such as an open file."""
    if thing is None or type(thing) in (bool, int, str):
        return thing
    if type(thing) is float:
        return thing if math.isfinite(thing) else {"is": "float", "of": repr(thing)}
    if isinstance(thing, IntEnum):
        return {"is": _name(type(thing)), "of": int(thing)}
    if isinstance(thing, bytes):
        return {"is": "bytes", "of": thing.hex()}
    if isinstance(thing, tuple):
        return [encode(item) for item in thing]
    if isinstance(thing, (list, deque)):
        return {"is": type(thing).__name__, "of": [encode(item) for item in thing]}
    if isinstance(thing, Mapping):
        return {"is": "map", "of": [[encode(key), encode(item)] for key, item in thing.items()]}
    cls: Any = type(thing)
    if attrs.has(cls):
        return {"is": _name(cls), **{name: encode(getattr(thing, name)) for name in _fields(cls)}}
    raise LocalProtocolError(f"a {type(thing).__name__} is no plain value of the core and cannot be kept (N-13)")


def decode(plain: Any, owner: Any = None) -> Any:
    """What `encode` was given; `owner` becomes the `co` of every part. Raises `CheckpointError`."""
    try:
        return _decode(plain, owner)
    except DAMAGE as failure:
        raise CheckpointError(f"this record is damaged: {failure!r}") from failure


def _decode(plain: Any, owner: Any) -> Any:
    if isinstance(plain, list):
        return tuple(_decode(item, owner) for item in plain)
    if not isinstance(plain, dict):
        return plain
    kind = plain["is"]
    if kind in ("list", "deque"):
        return (list if kind == "list" else deque)(_decode(item, owner) for item in plain["of"])
    if kind == "map":
        return {_decode(key, owner): _decode(item, owner) for key, item in plain["of"]}
    if kind == "bytes":
        return bytes.fromhex(plain["of"])
    if kind == "float":
        return float(plain["of"])
    cls = _class(kind)
    if issubclass(cls, IntEnum):
        return cls(plain["of"])
    return _rebuilt(cls, plain, owner)


def _rebuilt(cls: type, plain: Mapping[str, Any], owner: Any) -> Any:
    names = _fields(cls)
    if plain.keys() != {"is", *names}:
        raise CheckpointError(f"a {cls.__name__} has the fields {names}, not {sorted(plain.keys() - {'is'})}; it was "
                              "kept by another version of paceline")  # fmt: skip
    made: Any = object.__new__(cls)
    for name in names:
        object.__setattr__(made, name, _decode(plain[name], owner))  # also of a class that is frozen
    if OWNER in attrs.fields_dict(cls):
        object.__setattr__(made, OWNER, owner)
    return made


@functools.cache
def _fields(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(cls) if field.name != OWNER)


@functools.cache
def _name(cls: type) -> str:
    package = __package__ or ""
    if not cls.__module__.startswith(f"{package}."):
        raise LocalProtocolError(f"{cls.__qualname__} is no class of the core and cannot be kept (N-13)")
    return f"{cls.__module__.removeprefix(f'{package}.')}:{cls.__qualname__}"


@functools.cache
def _class(name: str) -> type:
    """The class of this package by its name; never anything else, whatever a file says."""
    module, _, word = name.partition(":")
    if MODULE.fullmatch(module) and word.isidentifier():
        try:
            found = getattr(importlib.import_module(f"{__package__}.{module}"), word)
        except (ImportError, AttributeError):
            found = None
        if isinstance(found, type) and (attrs.has(found) or issubclass(found, IntEnum)) and _name(found) == name:
            return found
    raise CheckpointError(f"there is no class {name!r}; it was kept by another version of paceline, or is damaged")
