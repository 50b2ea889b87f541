"""Safetensors files, whole or not there at all (K-7, K-8).

A file is written under a temporary name in its own directory, flushed to the disk, renamed, and the directory flushed:
a reader finds the old file or the new one, after a power cut too. A failed write takes its temporary file away and
raises `CheckpointError` with path and size, so that the older file stays and training can go on. A writer that is
killed takes nothing away, so the next one of that host in that directory does. Each keeps its file locked, which tells
those of the dead from what is being written; a network's disk may keep the locks of a host from all others, so nobody
judges what another host has left.

What a rank writes is *sealed* (K-6). Nobody reports its hash, so the file says itself which it has, beside the run
and the version that it is of, which its writer, `rank_files`, names in the metadata. The SHA-256 there, 64 digits,
is that of the whole file with zeros in their place. What the averager of the coordinator writes is not sealed: the
record beside it, which is written later, has its hash.

The writer is our own because the consensus already lies in memory in file order: it is streamed from there, while the
library would want a copy of every tensor first. No torch here: a coordinator, which only adds flat memory and writes it
down, starts in a third of the time without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import attrs

from ..core.errors import CheckpointError
from ..core.plain import DAMAGE
from ..core.schema import DTYPE_SIZES, Schema
from ..transports import file_lock
from .layout import FlatLayout

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

__all__ = [
    "FORMAT_NAMES", "SEAL", "TensorItem", "check_seal", "replacing", "save_flat", "sync_directory", "write_tensors",
]  # fmt: skip

WRITE_BYTES = 16 << 20
"""Most bytes handed to the kernel at once, or taken from it."""
SEAL = "sha256"
"""The name of the seal in the metadata of a file."""
UNSEALED = "0" * 64
"""What stands in its place while the file is hashed."""
HOST = hashlib.sha256(os.fsencode(socket.gethostname())).hexdigest()[:8]
PARTIAL = re.compile(rf"\..+\.{HOST}[0-9a-f]{{12}}\.partial", re.DOTALL)
"""The name of a file that is being written on this host."""
MOST_SWEPT = 100
"""Files in a row that may be gone before their writer has them locked. One is, if somebody sweeps in that instant."""
FORMAT_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""Schema dtype to the name safetensors has for it."""


@attrs.frozen
class TensorItem:
    """A tensor to write; `data` yields its bytes, row-major and little-endian, when its turn comes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], memoryview]

    @property
    def nbytes(self) -> int:
        count = DTYPE_SIZES[self.dtype]
        for extent in self.shape:
            count *= extent
        return count


def save_flat(path: str | os.PathLike[str], schema: Schema, flat: memoryview, metadata: Mapping[str, str]) -> None:
    """Write a consensus in the riding layout, keyed by schema names, straight from its memory (K-7). Raises
    `CheckpointError`."""
    target, layout = Path(path), FlatLayout.riding(schema)
    _check_size(target, layout, len(flat))
    items = [
        TensorItem(
            field.entry.name, field.entry.dtype, field.entry.shape,
            lambda start=field.offset, end=field.offset + field.nbytes: flat[start:end],  # type: ignore[misc]
        )
        for field in layout.fields
    ]  # fmt: skip
    aliases = {alias: field.entry.name for field in layout.fields for alias in field.entry.aliases}
    write_tensors(target, items, {**metadata, **aliases})


def _check_size(target: Path, layout: FlatLayout, nbytes: int) -> None:
    if nbytes != layout.nbytes:
        raise CheckpointError(f"{target}: the consensus has {nbytes} bytes, the schema {layout.nbytes} (K-7)")


def write_tensors(
    target: Path, items: Sequence[TensorItem], metadata: Mapping[str, str], *, sealed: bool = False
) -> None:
    """Write the tensors in place of `target`; `sealed` asks for their data twice. Raises `CheckpointError`; what
    `TensorItem.data` raises goes through. Of either kind of failure no trace is left (K-8)."""
    # Widest dtype first, as the library does it: then every tensor is aligned in the file.
    ordered = sorted(items, key=lambda item: -DTYPE_SIZES[item.dtype])
    told = {**metadata, SEAL: UNSEALED} if sealed else dict(metadata)
    header: dict[str, Any] = {"__metadata__": told} if told else {}
    end = 0
    for item in ordered:
        start, end = end, end + item.nbytes
        header[item.name] = {
            "dtype": FORMAT_NAMES[item.dtype], "shape": list(item.shape), "data_offsets": [start, end],
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    if sealed:
        hasher = hashlib.sha256(head)
        for item in ordered:
            hasher.update(item.data())
        head = _with_seal(head, UNSEALED, hasher.hexdigest())
    with replacing(target, len(head) + end) as file:
        file.write(head)
        for item in ordered:
            data = item.data()
            for first in range(0, len(data), WRITE_BYTES):
                file.write(data[first : first + WRITE_BYTES])


# --- seals (K-6) -----------------------------------------------------------------------------------------------------

def check_seal(path: Path, whole: Hash | None = None) -> dict[str, str]:
    """The metadata of a file, which is what it was when it was written, if it is sealed: then they have `SEAL`. One
    that is not sealed is read no further. `whole` is fed all of a sealed file as it is, so that the hash by which
    others know it is of the very bytes that were checked. Raises `CheckpointError` for a file that is not what its
    seal says, or cannot be read."""
    try:
        with open(path, "rb") as file:
            size = file.read(8)
            length = int.from_bytes(size, "little")
            text = file.read(length) if length <= path.stat().st_size else b""
            metadata: dict[str, str] = dict(json.loads(text).get("__metadata__", {}))
            if SEAL not in metadata:
                return metadata
            seal = metadata[SEAL]
            if not isinstance(seal, str):
                raise TypeError(f"its {SEAL} is {seal!r}")
            head = size + text
            hashers = [hashlib.sha256(_with_seal(head, seal, UNSEALED))]
            if whole is not None:
                whole.update(head)
                hashers.append(whole)
            while data := file.read(WRITE_BYTES):
                for hasher in hashers:
                    hasher.update(data)
    except (OSError, *DAMAGE) as failure:
        raise CheckpointError(f"{path} cannot be read: {failure}; give another file (K-12)") from None
    found = hashers[0].hexdigest()
    if found != seal:
        raise CheckpointError(f"{path} has SHA-256 {found[:16]}, and says of itself {seal[:16]}; it is damaged: give "
                              "another file (K-6, K-12)")  # fmt: skip
    return metadata


def _with_seal(head: bytes, old: str, new: str) -> bytes:
    """A quote within a text of JSON has a backslash before it, so this is nothing but the entry of that name."""
    place = '"' + SEAL + '":"{}"'
    return head.replace(place.format(old).encode(), place.format(new).encode(), 1)


@contextlib.contextmanager
def replacing(target: Path, size: int) -> Iterator[BinaryIO]:
    """A file of `size` bytes that takes the place of `target` when the block ends well, and leaves no trace otherwise
    (K-8): a file of tensors, or the record beside it. Raises `CheckpointError` for what the system refuses."""
    try:
        _sweep(target.parent)
        with _own_file(target) as file:  # open, and so locked, until it has its name
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, target)
        sync_directory(target.parent)
    except OSError as failure:
        raise CheckpointError(
            f"{target} ({size} bytes) could not be written: {failure}; an older file, if any, is still there (K-8)"
        ) from failure


@contextlib.contextmanager
def _own_file(target: Path) -> Iterator[BinaryIO]:
    """A file of a name of its own, since two savers of one decision must not write into one, locked; taken away if the
    block ends badly. Who sweeps may have come upon it before it was locked: then there is another one."""
    for _ in range(MOST_SWEPT):
        path = target.with_name(f".{target.name}.{HOST}{secrets.token_hex(6)}.partial")
        try:
            with open(path, "xb") as file:
                with contextlib.suppress(OSError):  # without locks nobody takes anything away
                    file_lock.lock(file, wait=True)
                if path.exists():  # its count of names would not tell: not every file system counts them
                    yield file
                    return
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise
    raise OSError(f"{MOST_SWEPT} files were taken away before they could be written, the last one {path.name}")


def _sweep(directory: Path) -> None:
    """Take away what writers of this host have left here that were killed (K-8)."""
    if not file_lock.KNOWN:
        return
    for path in directory.glob(".*.partial"):
        if PARTIAL.fullmatch(path.name):
            with contextlib.suppress(OSError), open(path, "r+b") as file:  # another one may sweep as well
                if file_lock.lock(file):
                    path.unlink()


def sync_directory(directory: Path) -> None:
    """What was renamed, made or removed in a directory is so after a power cut, too."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
