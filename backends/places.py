"""Files that a user names. Whether they can be written is found out before the work begins, not after it; what cannot
be read or written is told in one way."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import CheckpointError, ConfigError

__all__ = ["file_for", "folder_for", "read_text", "reading", "refuse_order_mark", "text_of", "write_text"]


def file_for(option: str, path: Path | None, *, folders: bool = False) -> None:
    """`path`, which `option` names, can be written: it is tried, and nothing is changed. None was not named. With
    `folders` those that it lies in will be made where they are missing. Raises `ConfigError`."""
    if path is None:
        return
    if folders and not path.parent.is_dir():
        folder_for(option, path.parent)
        return
    there = path.exists()
    if there and not path.is_file() and not path.is_dir():
        return  # a device or a pipe: to open it may mean something to its other end
    try:
        with open(path, "ab"):
            pass
        if not there:
            path.unlink()
    except IsADirectoryError:
        raise ConfigError(f"{option} {path} is a directory; give the name of a file") from None
    except OSError as error:
        if not path.parent.is_dir():
            raise ConfigError(f"{option} {path}: there is no directory {path.parent}; make it first") from error
        raise ConfigError(f"{option} {path} cannot be written: {_why(error)}; give another file") from error


def folder_for(option: str, path: Path) -> None:
    """Files can be written into the folder `path`, which `option` names; folders on the way to it are made for the
    trial, and taken away again. Raises `ConfigError`."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {_why(error)}; give another {option}") from error
    finally:
        for place in missing:
            if place.is_dir():
                place.rmdir()


ORDER_MARKS = {b"\xef\xbb\xbf": "UTF-8", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""What some editors put before a text."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What the system refuses while `path` is read in the block is a `CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {_why(error)}") from error


def read_text(path: Path) -> str:
    """What is in a file of text. Raises `CheckpointError`."""
    with reading(path):
        data = path.read_bytes()
    return text_of(path, data)


def text_of(path: Path, data: bytes) -> str:
    """The text that was read from a file. Raises `CheckpointError`."""
    refuse_order_mark(path, data)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} cannot be read: byte {error.start} is no text in UTF-8") from error


def refuse_order_mark(path: Path, data: bytes) -> None:
    """A mark that no eye sees is named. Raises `CheckpointError`."""
    for mark, name in ORDER_MARKS.items():
        if data.startswith(mark):
            raise CheckpointError(f"{path} cannot be read: it begins with the byte order mark (BOM) of {name}; save it "
                                  "as UTF-8 without one")  # fmt: skip


def write_text(path: Path, text: str) -> Path:
    """Write a file, and the folders that it needs. Raises `CheckpointError`: what there was to write is lost."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {_why(error)}; free space or name another place") from error
    return path


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
