"""Hypothesis strategies for every message and record of the protocol, made from the classes' own annotations.

A field that is added to a message is drawn from then on without a change here. Sizes of hashes and run ids are stated
once more, apart from the codec's table, so that the two have to agree.
"""

from __future__ import annotations

import types
import typing
from enum import IntEnum
from typing import Any

import attrs
from hypothesis import strategies as st

from paceline.core.messages import CONTROLS, KINDS, REPORTS, BulkBlock, Contribution, RoundResult

SIZED_BYTES = {
    "run_id": st.just(b"") | st.binary(min_size=16, max_size=16),
    "schema_hash": st.binary(min_size=32, max_size=32),
    "dataset_signature": st.binary(min_size=32, max_size=32),
    "config_digest": st.binary(min_size=32, max_size=32),
    "digest": st.binary(min_size=16, max_size=16),
}
UNSIGNED = st.integers(0, 2**64 - 1)
NUMBERS = st.floats(allow_nan=False)
FREE_VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | NUMBERS | st.text(max_size=8)
"""Values of configuration maps, the only place where an integer may be negative."""


def values_of(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """All values of an annotation; `name` is the field's, which decides the length of byte strings. No NaN: nothing is
    equal to it."""
    if attrs.has(hint):
        return instances_of(hint)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return st.sampled_from(list(hint))
    plain = {int: UNSIGNED, float: NUMBERS, bool: st.booleans(), str: st.text(max_size=12)}
    if hint in plain:
        return plain[hint]
    if hint is bytes:
        return SIZED_BYTES.get(name, st.binary(max_size=40))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0], name), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(values_of(argument, name) for argument in arguments))
    if origin is dict:
        return st.dictionaries(st.text(max_size=8), values_of(arguments[1], name), max_size=3)
    if origin in (types.UnionType, typing.Union):
        if len(arguments) > 2:
            return FREE_VALUES
        return st.none() | values_of(arguments[0], name)
    raise TypeError(f"no strategy for {hint!r} of field {name}")


def instances_of(cls: type) -> st.SearchStrategy[Any]:
    """All instances of a message, record or value class, every field set."""
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{field.name: values_of(hints[field.name], field.name) for field in attrs.fields(cls)})


def any_of(classes: typing.Iterable[type]) -> st.SearchStrategy[Any]:
    """An instance of one of the classes."""
    return st.sampled_from(list(classes)).flatmap(instances_of)


MESSAGES = any_of(KINDS.values())
FROM_COORDINATOR = any_of(CONTROLS)
FROM_RANK = any_of(REPORTS)
BLOCKS = instances_of(BulkBlock)
RECORDS = any_of((Contribution, RoundResult))
