"""What a model looks like to the protocol: an ordered list of entries (R-3), no tensor.

Only `param` and `buffer` entries ride in data rounds; `frozen` and `local` ones never do. All ranks of a run have the
same schema, compared by hash at the door (M-5) and, where the hashes differ, by the first entry that differs.
"""

from __future__ import annotations

import hashlib
import json
from enum import IntEnum

from .values import value

__all__ = [
    "DTYPE_SIZES",
    "FLOATING",
    "EntryClass",
    "Schema",
    "SchemaEntry",
    "dataset_length",
    "dataset_signature",
]

DTYPE_SIZES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes per element of every dtype a schema may name."""
FLOATING = ("float64", "float32", "float16", "bfloat16")
"""Those with a fraction: only such entries can be averaged, so only such ones ride (R-3)."""
MOST_EXTENTS = 64
"""Dimensions of an entry: as many as numpy has. Without a bound the size of one could be a number that takes minutes to
compute, in a coordinator that may not pause (N-8)."""


class EntryClass(IntEnum):
    """What happens to an entry in averaging (R-3)."""

    PARAM = 0
    BUFFER = 1
    FROZEN = 2
    LOCAL = 3


@value(kw_only=True)
class SchemaEntry:
    """One tensor of the model: its name in the model's own state order, class, shape, dtype and tied names."""

    name: str
    cls: EntryClass
    shape: tuple[int, ...]
    dtype: str
    aliases: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        """Number of values; a scalar has one, a tensor with a zero dimension none (R-21)."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the entry in the wire layout: row-major, little-endian, no padding (R-21)."""
        return self.elements * DTYPE_SIZES[self.dtype]

    def describe(self) -> str:
        """One line for an error message."""
        return f"{self.name}: {self.cls.name.lower()} {self.dtype}{list(self.shape)}"


@value(kw_only=True)
class Schema:
    """All entries of a model, in order."""

    entries: tuple[SchemaEntry, ...]

    def canonical(self) -> bytes:
        """The encoding that is hashed: JSON without white space, entries in order."""
        rows = [[e.name, int(e.cls), list(e.shape), e.dtype, list(e.aliases)] for e in self.entries]
        return json.dumps(rows, separators=(",", ":"), ensure_ascii=True).encode()

    def hash(self) -> bytes:
        """SHA-256 of the canonical encoding, 32 bytes (R-3)."""
        return hashlib.sha256(self.canonical()).digest()

    def riding(self) -> tuple[SchemaEntry, ...]:
        """The entries that ride in rounds: all parameters first, then all floating buffers, each in model order."""
        params = tuple(e for e in self.entries if e.cls == EntryClass.PARAM)
        return params + tuple(e for e in self.entries if e.cls == EntryClass.BUFFER)

    def static(self) -> tuple[SchemaEntry, ...]:
        """The entries that no consensus holds, frozen ones first, then local: the static part of the state (R-20)."""
        rest = tuple(e for e in self.entries if e.cls == EntryClass.FROZEN)
        return rest + tuple(e for e in self.entries if e.cls == EntryClass.LOCAL)

    def whole(self) -> tuple[SchemaEntry, ...]:
        """Every entry, in the order a full state transfer uses (R-20): riding ones first, then frozen, then local."""
        return self.riding() + self.static()

    def fault(self) -> str | None:
        """What no model of this version has, in words, or None. A schema that a rank brings is looked at before
        anything is computed from it: a dtype of a later version has no size here, and what has no fraction no average
        (R-3)."""
        for entry in self.entries:
            if len(entry.shape) > MOST_EXTENTS:
                return f"{entry.name} has {len(entry.shape)} dimensions, {MOST_EXTENTS} are possible"
            if entry.dtype not in DTYPE_SIZES:
                return f"{entry.describe()}; known are {', '.join(DTYPE_SIZES)}"
            if entry.cls in (EntryClass.PARAM, EntryClass.BUFFER) and entry.dtype not in FLOATING:
                return f"{entry.describe()}; only {', '.join(FLOATING)} can be averaged"
        return None

    def first_difference(self, other: Schema) -> str | None:
        """The first entry in which `other` differs from this schema, in words, or None if they are the same."""
        for mine, theirs in zip(self.entries, other.entries, strict=False):
            if mine != theirs:
                return f"the run has {mine.describe()}, this rank has {theirs.describe()}"
        if len(self.entries) > len(other.entries):
            return f"this rank lacks {self.entries[len(other.entries)].describe()}"
        if len(self.entries) < len(other.entries):
            return f"this rank has {other.entries[len(self.entries)].describe()} too many"
        return None


def dataset_signature(length: int, sample: bytes) -> bytes:
    """32 bytes that name a data set (M-5): its length (8 bytes, little-endian), then 24 bytes of SHA-256 over the
    length and a content sample. The length is readable, so that a refusal can name both values."""
    head = length.to_bytes(8, "little")
    return head + hashlib.sha256(head + sample).digest()[:24]


def dataset_length(signature: bytes) -> int:
    """The number of samples in a data set, read back from its signature."""
    return int.from_bytes(signature[:8], "little")
