"""Changes to inputs: of their bytes, and of the values that the bytes spell.

Bytes are flipped, cut, repeated, moved, overwritten with lengths and words that matter. Values are what most of the
code behind a codec sees, and random bytes seldom spell one: so an input that is a tree of values (MessagePack, JSON) is
also changed as a tree: another type in a place, a field left out or doubled, numbers at the edges, no numbers at all,
depth and map sizes around the limits of N-24.

Everything is a function of the random source that is passed in.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs

__all__ = ["LONGEST", "Tree", "mutated"]

LONGEST = 1 << 16
"""Bytes of an input; what is longer is cut."""
EDGES = (0, 1, 2, 7, 8, 9, 15, 16, 17, 127, 128, 255, 256, 4095, 4096, 4097, 65535, 65536, (1 << 24) - 1, 1 << 24,
         (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
SIZES = (0, 1, 15, 16, 4095, 4096, 4097)
DEPTHS = (1, 7, 8, 9, 40, 2000)


@attrs.frozen
class Tree:
    """How an input spells a value. `parse` raises `ValueError` for bytes that spell none, `write` for a value that
    cannot be spelt."""

    parse: Callable[[bytes], Any]
    write: Callable[[Any], bytes]


def mutated(
    data: bytes, rng: random.Random, *, other: bytes = b"", words: Sequence[bytes] = (), tree: Tree | None = None
) -> bytes:
    """`data` after one to four changes. `other` is spliced in, `words` are inserted, `tree` lets values be changed."""
    if tree is not None and rng.random() < 0.6:
        try:
            value = tree.parse(data)
            for _ in range(rng.randint(1, 2)):
                value = _changed(value, rng)
            return tree.write(value)[:LONGEST]
        except (ValueError, TypeError, RecursionError, OverflowError):
            pass
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(_CHANGES)(data, rng, other, words)
    return data[:LONGEST]


# --- bytes -----------------------------------------------------------------------------------------------------------


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.choice((1, 2, 4, 8, 16, 64, len(data))))


def _flip(data: bytes, rng: random.Random, other: bytes, words: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _overwrite(data: bytes, rng: random.Random, other: bytes, words: Sequence[bytes]) -> bytes:
    start, _ = _span(data, rng)
    size = rng.choice((1, 2, 4, 8))
    number = (rng.choice(EDGES) % (1 << 8 * size)).to_bytes(size, rng.choice(("little", "big")))
    return data[:start] + number + data[start + size :]


def _remove(data: bytes, rng: random.Random, other: bytes, words: Sequence[bytes]) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def _truncate(data: bytes, rng: random.Random, other: bytes, words: Sequence[bytes]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _repeat(data: bytes, rng: random.Random, other: bytes, words: Sequence[bytes]) -> bytes:
    """A replay: a stretch comes again, there or elsewhere."""
    (start, end), (at, _) = _span(data, rng), _span(data, rng)
    return data[:at] + data[start:end] * rng.choice((1, 1, 2, 16)) + data[at:]


def _insert(data: bytes, rng: random.Random, other: bytes, words: Sequence[bytes]) -> bytes:
    at, _ = _span(data, rng)
    word = rng.choice(words) if words and rng.random() < 0.7 else rng.randbytes(rng.choice((1, 2, 4, 16)))
    return data[:at] + word + data[at:]


def _splice(data: bytes, rng: random.Random, other: bytes, words: Sequence[bytes]) -> bytes:
    start, _ = _span(data, rng)
    first, end = _span(other, rng)
    return data[:start] + other[first:end] + data[rng.randint(start, len(data)) :]


_CHANGES = (_flip, _flip, _overwrite, _remove, _truncate, _repeat, _insert, _splice)


# --- values ----------------------------------------------------------------------------------------------------------


def _changed(value: Any, rng: random.Random) -> Any:
    """The value with one place in it changed; places deep inside are as likely as those outside."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        return _changed_map(value, rng)
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        if rng.random() < 0.15:
            return value[:at] + value[at + 1 :]
        if rng.random() < 0.15:
            return [*value, value[at]]
        return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    return _replacement(value, rng)


def _changed_map(value: dict[Any, Any], rng: random.Random) -> dict[Any, Any]:
    name = rng.choice(list(value))
    rest = {key: item for key, item in value.items() if key != name}
    match rng.randrange(8):
        case 0:
            return rest
        case 1:
            return {**rest, f"{name}_": value[name]}
        case 2:
            return {**value, name: value[rng.choice(list(value))]}
        case _:
            return {**value, name: _changed(value[name], rng)}


def _replacement(value: Any, rng: random.Random) -> Any:
    """Another value: near to the one that was there, at an edge, or of another type."""
    if isinstance(value, bool | None.__class__) or rng.random() < 0.3:
        return _strange(rng)
    if isinstance(value, int):
        return rng.choice((value + 1, max(0, value - 1), -1, *EDGES))
    if isinstance(value, float):
        return rng.choice((0.0, -value, value * 1e300, math.nan, math.inf, -math.inf, 5e-324))
    if isinstance(value, str | bytes):
        return rng.choice((value[:-1], value + value, value * 0, value[::-1]))
    return _strange(rng)


def _strange(rng: random.Random) -> Any:
    kind = rng.randrange(9)
    if kind == 0:
        return {f"n{index}": index for index in range(rng.choice(SIZES))}
    if kind == 1:
        nested: Any = 0
        for _ in range(rng.choice(DEPTHS)):
            nested = [nested] if rng.random() < 0.5 else {"n": nested}
        return nested
    if kind == 2:
        return [0] * rng.choice(SIZES)
    if kind == 3:
        return rng.choice((math.nan, math.inf, -math.inf, 1e308, 0.5))
    if kind == 4:
        return "a" * rng.choice(SIZES)
    return rng.choice((None, True, False, "", "\x00", "ä", -1, -(1 << 63), rng.choice(EDGES), [], {}))
