"""A consensus on disk and the record beside it, as they are written, and as a run that resumes finds them (K-6, K-12).

    DIR/consensus.safetensors    the weights
    DIR/consensus.meta.json      what they contain, and the hash of the file

A newer bundle of the same name takes their place one after the other, the record last (K-8). Until it is there the file
that the older record names keeps a second name, so a writer may be killed at any instant: one of the two bundles is
whole, and a resume goes on from the one that the record in place is of.

    DIR/.consensus.safetensors.former

Where ranks write the consensus, the record names the file and no hash: it was put in place before anybody could know
it. Such a file is sealed and says of which run and version it is (K-6).

The coordinator reads the record, since it decides what is left to train. The weights are loaded by the source of cycle
0, the lowest rank, into the model it has built, and reach all others with the state it gives (M-6). So the averager
needs no way to send what it was not sent, entries that never ride in averages come from a real model, and only one
rank needs the file: on another host under the same path. The hash travels in the welcome, so a file of the same name
is not enough.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from ..core.errors import CheckpointError
from ..core.ledger import Resume
from ..core.plain import DAMAGE
from ..core.run import FINAL_STEM
from .tensor_file import SEAL, check_seal, replacing, sync_directory

__all__ = ["Bundle", "check_file", "newest_whole", "read_bundle", "replacing_weights", "write_record"]


@attrs.frozen
class Bundle:
    """A consensus `file` that is whole, and what its record says."""

    file: Path
    resume: Resume


def read_bundle(path: Path) -> Bundle:
    """The bundle in the directory `path`, or of the consensus file `path`. Raises `CheckpointError` for a file that is
    missing, damaged, of a newer format, or not the one that the record was written for; it names the newest bundle of
    that directory that is older and whole, if there is one. Which to take is for a person to say: going on from an
    older one trains again what came after it."""
    file = (path / f"{FINAL_STEM}.safetensors" if path.is_dir() else path).resolve()
    try:
        return _read(file)
    except CheckpointError as failure:
        older = _next_older(file)
        if older is None:
            raise
        raise CheckpointError(
            f"{failure}; the newest older bundle that is whole is {older.file}, version {older.resume.version}: to go "
            "on from there, name it"
        ) from None


def newest_whole(run_dir: Path) -> Bundle | None:
    """The bundle of the highest version in a directory that is whole; None without one."""
    return _highest(_by_version(run_dir))


def _next_older(refused: Path) -> Bundle | None:
    """The one beside a bundle that was refused, below that one's own version if its record can be read."""
    found = _by_version(refused.parent)
    limit = found.pop(refused, None)
    return _highest({file: version for file, version in found.items() if limit is None or version < limit})


def _by_version(run_dir: Path) -> dict[Path, int]:
    """The versions of the bundles in a directory by their records, whole or not."""
    found: dict[Path, int] = {}
    for meta in sorted(run_dir.glob("*.meta.json")):
        file = meta.with_name(meta.name.removesuffix(".meta.json") + ".safetensors")
        with contextlib.suppress(OSError, *DAMAGE, CheckpointError):
            found[file] = Resume.read(json.loads(meta.read_text(encoding="utf-8"))).version
    return found


def _highest(found: Mapping[Path, int]) -> Bundle | None:
    """The first that is whole from the newest down, so that no more files are hashed than must be."""
    for file in sorted(found, key=lambda file: (found[file], file), reverse=True):
        with contextlib.suppress(CheckpointError):
            return _read(file)
    return None


def _read(file: Path) -> Bundle:
    meta = _record_of(file)
    try:
        resume = Resume.read(json.loads(meta.read_text(encoding="utf-8")))
    except (OSError, *DAMAGE) as failure:
        raise CheckpointError(
            f"{meta} cannot be read: {failure}; name the directory of a run that saved its model (K-12)"
        ) from None
    except CheckpointError as failure:
        raise CheckpointError(f"{meta}: {failure}") from None
    if file.name not in resume.files:
        raise CheckpointError(f"{meta} does not name {file.name}, but {sorted(resume.files)} (K-12)")
    named = resume.files[file.name]
    if named is not None:
        found = _named_so(file, named)
        return Bundle(found, attrs.evolve(resume, files={found.name: named}))
    whole = hashlib.sha256()
    told = check_seal(file, whole)
    if SEAL not in told:
        raise CheckpointError(f"{file} says no SHA-256 of itself, and neither does its record (K-6)")
    resume.check_told(str(file), told)
    return Bundle(file, attrs.evolve(resume, files={file.name: whole.hexdigest()}))  # for the rank that loads it


def _named_so(file: Path, sha256: str) -> Path:
    """The file with that hash: it, or what was there before it, if its own record never came. Raises
    `CheckpointError`."""
    try:
        check_file(file, sha256)
    except CheckpointError:
        if not _is(_former(file), sha256):
            raise
        return _former(file)
    return file


def check_file(file: Path, sha256: str) -> None:
    """Raise `CheckpointError` unless this is the file with that SHA-256, in hexadecimal, naming both."""
    found = hash_of(file)
    if found != sha256:
        raise CheckpointError(f"{file} has SHA-256 {found[:16]}, the record of the run {sha256[:16]}; it is another "
                              "file, or damaged (K-12)")  # fmt: skip


def hash_of(file: Path) -> str:
    """Its SHA-256, in hexadecimal. Raises `CheckpointError` if it cannot be read."""
    try:
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as failure:
        raise CheckpointError(f"{file} cannot be read: {failure}; the lowest rank needs it to resume (K-12)") from None


# --- writing (K-8) ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replacing_weights(file: Path) -> Iterator[None]:
    """While a newer file takes the place of this one, and until `write_record`, the file that the record in place names
    has a second name; if the block ends badly it has its own again. Raises `OSError`."""
    named, former = _named_in_place(file), _former(file)
    if named is None or not _is(former, named):  # else a writer was killed: what has the name now has no record
        former.unlink(missing_ok=True)
        if named is not None and file.exists():
            _name_twice(file, former)
    with _or_as_before(file):
        yield


def write_record(file: Path, record: Mapping[str, Any]) -> None:
    """Put the record of a file in place that was written in `replacing_weights`, with its hash (K-6). If that fails the
    older bundle is there again, whole. Raises `CheckpointError`; `OSError` if it is in place, and what was there before
    cannot be taken away."""
    with _or_as_before(file):
        text = json.dumps({**record, "files": {file.name: hash_of(file)}}, indent=1, sort_keys=True).encode()
        with replacing(_record_of(file), len(text)) as opened:
            opened.write(text)
    _former(file).unlink(missing_ok=True)


@contextlib.contextmanager
def _or_as_before(file: Path) -> Iterator[None]:
    """If the block ends badly the file in place is the one that the record in place names: the former one. Only a newer
    record may have come so far; then the former one stays too, since after a power cut the older record may be back."""
    try:
        yield
    except BaseException:
        former, named = _former(file), _named_in_place(file)
        if former.exists():
            if named is None or not _is(file, named):
                os.replace(former, file)
            if former.exists() and former.samefile(file):  # a rename leaves both names of one file
                former.unlink()
        raise


def _name_twice(file: Path, former: Path) -> None:
    try:
        os.link(file, former)
    except OSError:  # a file system without second names
        os.replace(file, former)
    sync_directory(file.parent)


def _record_of(file: Path) -> Path:
    return file.with_suffix(".meta.json")


def _former(file: Path) -> Path:
    return file.with_name(f".{file.name}.former")


def _named_in_place(file: Path) -> str | None:
    """The hash that the record in place has of the file; None without one that could be read."""
    try:
        named = json.loads(_record_of(file).read_text(encoding="utf-8"))["files"][file.name]
    except (OSError, *DAMAGE):
        return None
    return named if isinstance(named, str) else None


def _is(file: Path, sha256: str) -> bool:
    """Whether there is a file of that hash."""
    try:
        return hash_of(file) == sha256
    except CheckpointError:
        return False
