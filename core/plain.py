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

Snapshots hold the same data in tuples instead of arrays and objects. `encoder` and `decoder` make the two functions for
any such spelling. They work once through a thing, with one function per class that is made when it is first met: the
model checker keeps and restores machines thousands of times a second.

`decode` makes nothing but classes of this package that are attrs classes or enumerations, and calls none of them:
fields are set as they stand. What is damaged raises `CheckpointError`.
"""

from __future__ import annotations

import functools
import importlib
import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from math import isfinite
from typing import Any, Protocol

import attrs

from .errors import CheckpointError, LocalProtocolError

__all__ = ["DAMAGE", "damaged", "decode", "decoder", "encode", "encoder"]

DAMAGE = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""What goes wrong while something is built from plain data that is not what was written: a part is missing, is of
another type, or lies deeper than any value of ours."""


def damaged(what: str, failure: Exception) -> CheckpointError:
    """What is said of plain data over which its reader has tripped."""
    why = f"{type(failure).__name__}: {failure}"
    return CheckpointError(f"this {what} is damaged: a part of it is missing or is not what it should be ({why})")


DEEPEST = 100
"""Levels of arrays and objects that are read; what a machine holds has some twenty. A bound of our own, because that of
the interpreter is another one in each version of it, and another for writing than for reading."""
OWNER = "co"
"""The field that leads back to the coordinator."""
MODULE = re.compile(r"[a-z_]+(\.[a-z_]+)*")
ATOMS = frozenset({type(None), bool, int, str})
"""Written as they are."""
PLAINEST = ATOMS | {float}
"""Read as they are."""
LISTS: dict[str, Callable[[Iterable[Any]], Any]] = {"list": list, "deque": deque}

Encode = Callable[[Any], Any]
Read = Callable[[Any, Any, int], Any]


class Decode(Protocol):
    """See `decoder`."""

    def __call__(self, plain: Any, owner: Any = None, /) -> Any: ...


# --- there -----------------------------------------------------------------------------------------------------------


def encoder(array: Callable[[list[Any]], Any], mapping: Callable[[list[tuple[str, Any]]], Any]) -> Encode:
    """An `encode` in whose result `array` and `mapping` stand for arrays and objects, made from their parts."""
    spellers: dict[type, Encode] = {}

    def encode(thing: Any) -> Any:
        """`thing` as plain data. Raises `LocalProtocolError` for what is none of the core's, such as an open file."""
        kind = type(thing)
        if kind in ATOMS or (kind is float and isfinite(thing)):
            return thing
        speller = spellers.get(kind)
        if speller is None:
            speller = spellers[kind] = _speller(kind, encode, array, mapping)
        return speller(thing)

    return encode


def _speller(kind: Any, encode: Encode, array: Encode, mapping: Encode) -> Encode:
    """How things of one class are written."""
    if kind is float:  # those that are not finite
        return lambda thing: mapping([("is", "float"), ("of", repr(thing))])
    if issubclass(kind, IntEnum):
        name = ("is", _name(kind))
        return lambda thing: mapping([name, ("of", int(thing))])
    if issubclass(kind, bytes):
        return lambda thing: mapping([("is", "bytes"), ("of", thing.hex())])
    if issubclass(kind, tuple):
        return lambda thing: array([encode(item) for item in thing])
    if issubclass(kind, (list, deque)):
        head = ("is", kind.__name__)
        return lambda thing: mapping([head, ("of", array([encode(item) for item in thing]))])
    if issubclass(kind, Mapping):
        return lambda thing: mapping([
            ("is", "map"), ("of", array([array([encode(key), encode(item)]) for key, item in thing.items()]))
        ])  # fmt: skip
    if attrs.has(kind):
        return _speller_of_fields(kind, encode, mapping)
    raise LocalProtocolError(f"a {kind.__name__} is no plain value of the core and cannot be kept (N-13)")


def _speller_of_fields(kind: Any, encode: Encode, mapping: Encode) -> Encode:
    head, names = ("is", _name(kind)), _fields(kind)
    if len(names) < 2:  # attrgetter gives a tuple from two names on
        return lambda thing: mapping([head, *((name, encode(getattr(thing, name))) for name in names)])
    values = operator.attrgetter(*names)
    return lambda thing: mapping([head, *zip(names, map(encode, values(thing)), strict=True)])


# --- and back --------------------------------------------------------------------------------------------------------


def decoder(opened: Callable[[Any], Any]) -> Decode:
    """A `decode` of what an `encoder` wrote. `opened` gives an array as a list or tuple of its items, an object as a
    dict, and anything else as it is; it looks no deeper."""
    readers: dict[str, Read] = {}

    def read(plain: Any, owner: Any, left: int) -> Any:
        if type(plain) in PLAINEST:
            return plain
        if not left:
            raise CheckpointError(f"this record is damaged: it has more than {DEEPEST} levels")
        plain = opened(plain)
        kind = type(plain)
        left -= 1
        if kind is list or kind is tuple:
            return tuple([read(item, owner, left) for item in plain])
        if kind is not dict:
            return plain
        reader = readers.get(plain["is"])
        if reader is None:
            reader = readers[plain["is"]] = _reader(plain["is"], read)
        return reader(plain, owner, left)

    def decode(plain: Any, owner: Any = None, /) -> Any:
        """What `encode` was given; `owner` becomes the `co` of every part. Raises `CheckpointError`."""
        try:
            return read(plain, owner, DEEPEST)
        except DAMAGE as failure:
            raise damaged("record", failure) from failure

    return decode


def _reader(kind: str, read: Read) -> Read:
    """How things of one name are made again."""
    if kind in LISTS:
        made = LISTS[kind]
        return lambda plain, owner, left: made(read(plain["of"], owner, left))
    if kind == "map":
        return lambda plain, owner, left: dict(read(plain["of"], owner, left))
    if kind == "bytes":
        return lambda plain, owner, left: bytes.fromhex(plain["of"])
    if kind == "float":
        return lambda plain, owner, left: float(plain["of"])
    cls = _class(kind)
    if issubclass(cls, IntEnum):
        return lambda plain, owner, left: cls(plain["of"])
    return _reader_of_fields(cls, read)


def _reader_of_fields(cls: Any, read: Read) -> Read:
    names, owned = _fields(cls), OWNER in attrs.fields_dict(cls)
    expected = {"is", *names}

    def made(plain: Any, owner: Any, left: int) -> Any:
        if plain.keys() != expected:
            raise CheckpointError(
                f"a {cls.__name__} has the fields {names}, not {sorted(plain.keys() - {'is'})}; it was kept by another "
                "version of paceline"
            )
        thing: Any = object.__new__(cls)
        put = functools.partial(object.__setattr__, thing)  # also of a class that is frozen
        for name in names:
            value = plain[name]
            put(name, value if type(value) in PLAINEST else read(value, owner, left))
        if owned:
            put(OWNER, owner)
        return thing

    return made


# --- names of classes ------------------------------------------------------------------------------------------------


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


encode = encoder(list, dict)
decode = decoder(lambda plain: plain)
