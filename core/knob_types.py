"""Whether a value has the type that a knob is declared with, and how that type is called in an error.

Knobs come from command lines, files, scripts and ranks, so nothing about them is sure. Their types are read from the
annotations of the class that declares them: what is said there is what is checked.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any

import attrs

from .sayable import is_text

__all__ = ["alternatives", "check_types", "type_words"]

LEAST, LARGEST = -(2**63), 2**64 - 1
"""Whole numbers that Welcome can take to the ranks: 64 bits, with a sign or without (N-24, V-6)."""


def check_types(values: Any, refuse: Callable[[str, object, str], None]) -> None:
    """Call `refuse(knob, value, what is wanted)` for each field of an attrs object that does not fit its annotation.

    A whole number fits where a number is wanted, true and false do not: nobody means the number 1 by them. Text has to
    be UTF-8, which the name of a directory need not be: ranks are told where to save, and nothing else travels (N-24).
    """
    for knob, kinds in _kinds(type(values)):
        value = getattr(values, knob)
        if not any(FITS[kind](value) for kind in kinds):
            wanted = "text in UTF-8" if isinstance(value, str) and str in kinds else _words(kinds)
            refuse(knob, value, f"{wanted} is wanted")


def type_words(cls: type) -> dict[str, str]:
    """What may be given for each field of an attrs class whose annotation says something, in words."""
    return {knob: _words(kinds) for knob, kinds in _kinds(cls)}


def _words(kinds: tuple[Any, ...]) -> str:
    return " or ".join(WORDS[kind] for kind in kinds if kind is not types.NoneType)


def _kinds(cls: type) -> list[tuple[str, tuple[Any, ...]]]:
    """Each field whose annotation says something, with the types that fit it."""
    if cls not in _READ:
        hints = typing.get_type_hints(cls)
        fields = [(field.name, hints[field.name]) for field in attrs.fields(cls)]
        _READ[cls] = [(name, alternatives(hint)) for name, hint in fields if hint is not Any]
    return _READ[cls]


_READ: dict[type, list[tuple[str, tuple[Any, ...]]]] = {}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of which a value has to have one."""
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and LEAST <= value <= LARGEST


def _number(value: object) -> bool:
    return isinstance(value, float) or _whole(value)


def _numbers(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_number, value))


FITS: dict[Any, Callable[[object], bool]] = {
    bool: lambda value: isinstance(value, bool),
    int: _whole,
    float: _number,
    str: lambda value: isinstance(value, str) and is_text(value),
    bytes: lambda value: isinstance(value, bytes),
    tuple[float, ...]: _numbers,
    types.NoneType: lambda value: value is None,
}
WORDS: dict[Any, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", bytes: "bytes",
    tuple[float, ...]: "a list of numbers",
}  # fmt: skip
"""How each type is called in an error. A new type of a knob needs a line in both tables."""
