"""A consensus on disk and the record beside it, as a run that resumes finds them (K-6, K-12).

    DIR/consensus.safetensors    the weights
    DIR/consensus.meta.json      what they contain, and the hash of the file

Where ranks write the consensus, the record names the file and no hash: it was put in place before anybody could know
it. Such a file is sealed and says of which run and version it is (K-6).

The coordinator reads the record, since it decides what is left to train. The weights are loaded by the source of cycle
0, the lowest rank, into the model it has built, and reach all others with the state it gives (M-6). So the averager
needs no way to send what it was not sent, entries that never ride in averages come from a real model, and only one
rank needs the file: on another host under the same path. The hash travels in the welcome, so a file of the same name
is not enough.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import attrs

from ..core.errors import CheckpointError
from ..core.ledger import Resume
from ..core.plain import DAMAGE
from ..core.run import FINAL_STEM
from .tensor_file import SEAL, check_seal

__all__ = ["Bundle", "check_file", "read_bundle"]


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


def _next_older(refused: Path) -> Bundle | None:
    """The bundle of the highest version beside one that was refused, below that one's own if its record can be read.
    Records first and from the newest down, so that no more files are hashed than must be."""
    limit = None
    found: list[tuple[int, Path]] = []
    for meta in sorted(refused.parent.glob("*.meta.json")):
        file = meta.with_name(meta.name.removesuffix(".meta.json") + ".safetensors")
        try:
            version = Resume.read(json.loads(meta.read_text(encoding="utf-8"))).version
        except (OSError, *DAMAGE, CheckpointError):
            continue
        if file == refused:
            limit = version
        else:
            found.append((version, file))
    for version, file in sorted(found, reverse=True):
        if limit is None or version < limit:
            try:
                return _read(file)
            except CheckpointError:
                continue
    return None


def _read(file: Path) -> Bundle:
    meta = file.with_suffix(".meta.json")
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
        check_file(file, named)
        return Bundle(file, resume)
    whole = hashlib.sha256()
    told = check_seal(file, whole)
    if SEAL not in told:
        raise CheckpointError(f"{file} says no SHA-256 of itself, and neither does its record (K-6)")
    resume.check_told(str(file), told)
    return Bundle(file, attrs.evolve(resume, files={file.name: whole.hexdigest()}))  # for the rank that loads it


def check_file(file: Path, sha256: str) -> None:
    """Raise `CheckpointError` unless this is the file with that SHA-256, in hexadecimal, naming both."""
    try:
        with open(file, "rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as failure:
        text = f"{file} cannot be read: {failure}; the lowest rank needs it to resume (K-12)"
        raise CheckpointError(text) from None
    if found != sha256:
        raise CheckpointError(f"{file} has SHA-256 {found[:16]}, the record of the run {sha256[:16]}; it is another "
                              "file, or damaged (K-12)")  # fmt: skip
