"""Files that a user names. Whether they can be written is found out before the work begins, not after it; what cannot
be read or written is told in one way."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ..core.errors import CheckpointError, ConfigError

__all__ = ["STDOUT", "Place", "file_for", "folder_for", "read_text", "reading", "refuse_order_mark", "text_of",
           "write_text"]  # fmt: skip

STDOUT = Path("-")
"""Standard output, where an option may name it."""


class Place(click.Path):
    """What an option names to write into: a `file`, a `folder`, or a `text`, which standard output takes as well. A `-`
    in the place of the others is refused, for it would become a file of that name; `./-` is one."""

    def __init__(self, kind: str, *, dir_okay: bool = True) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay)
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path != STDOUT:
            return path
        if str(value) != "-":  # a Path forgets that it was ./-
            return path.absolute()
        if self.kind != "text":
            option = param.opts[0] if param else "the place"
            raise ConfigError(f"{option} - is not allowed: what is written there is a {self.kind} and no stream; name "
                              f"a {self.kind}, such as ./- if it is called so")  # fmt: skip
        return STDOUT


def file_for(option: str, path: Path | None, *, folders: bool = False) -> None:
    """`path`, which `option` names, can be written: it is tried, and nothing is changed. None was not named. With
    `folders` those that it lies in will be made where they are missing. Standard output always can. Raises
    `ConfigError`."""
    if path is None or path == STDOUT:
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
    """Write a file, and the folders that it needs, or to standard output. Raises `CheckpointError`: what there was to
    write is lost."""
    if path == STDOUT:
        click.echo(text, nl=False)
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {_why(error)}; free space or name another place") from error
    return path


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
