"""How a command ends: whatever is raised becomes an exit code, and at most one line on standard error.

The codes are those of docs/reference/exit-codes.md. What came from several tasks at once is looked through, however
deep trio's groups have buried it: an interrupt wins, then a reader of the output who has gone, then an error of ours.
An output that cannot be written may show only in the last flush, so that is done here too, and not by the interpreter,
which would say so in words of its own.
"""

from __future__ import annotations

import difflib
import errno
import os
import select
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

import click

from ..core.conformance.blame import leaves
from ..core.errors import CheckpointError, ConfigError, PacelineError
from ..core.named import NEAR

__all__ = ["CLOSED_PIPE", "INTERRUPTED", "Commands", "complain", "debugging", "end", "leave"]

UNKNOWN_ERROR = 1
INTERRUPTED = 130
"""Ctrl-C: what a shell says of a process that SIGINT ended."""
CLOSED_PIPE = 141
"""Whoever read the output has gone, as `head` does when it has seen enough: what a shell says of SIGPIPE."""
NO_PLACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""What the system says where something could not be written, which is nobody's bug."""


class Commands(click.Group):
    """A group of commands that leaves every end to `end`."""

    def make_context(self, *words: Any, **more: Any) -> click.Context:
        """As click does it; `--help` is printed here."""
        with _own_ends():
            return super().make_context(*words, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does it."""
        with _own_ends():
            return super().invoke(ctx)


@contextmanager
def _own_ends() -> Iterator[None]:
    """click has ends of its own for some exceptions: 1 for a closed pipe, an interrupt for the end of any file. In a
    group, as trio raises them, it does not see them."""
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError, EOFError) as error:
        raise BaseExceptionGroup("the command ended early", [error]) from error


def end(error: BaseException) -> int:
    """Say in one line what was raised, if there is anything to say, and give the exit code."""
    found = list(leaves(error))
    if any(isinstance(leaf, (KeyboardInterrupt, click.Abort)) for leaf in found):  # Abort: between two of its calls
        return complain("interrupted", INTERRUPTED)
    if any(isinstance(leaf, BrokenPipeError) for leaf in found) and any(map(_unread, _outputs())):
        return CLOSED_PIPE
    cause = next((leaf for leaf in found if isinstance(leaf, PacelineError)), found[0])
    if isinstance(cause, PacelineError):
        return complain(str(cause), cause.exit_code)
    if isinstance(cause, click.exceptions.NoArgsIsHelpError):
        click.echo(cause.format_message(), err=True)
        return ConfigError.exit_code
    if isinstance(cause, click.ClickException):
        context = getattr(cause, "ctx", None)
        where = context.command_path if context else "paceline"
        return complain(f"{_in_our_words(cause)}; see {where} --help", ConfigError.exit_code)
    if isinstance(cause, OSError) and cause.errno in NO_PLACE:
        return _no_place(cause)
    return complain(f"{type(cause).__name__}: {cause}; this is a bug, please report it", UNKNOWN_ERROR)


def _in_our_words(cause: click.ClickException) -> str:
    """What click says of an option, without its questions: a guess at what was meant is of no use where the names have
    nothing in common, and "a valid integer range" is no word for a number."""
    if isinstance(cause, click.NoSuchOption):
        near = difflib.get_close_matches(cause.option_name, cause.possibilities or (), n=1, cutoff=NEAR)
        return f"no such option: {cause.option_name}" + (f", but there is {near[0]}" if near else "")
    text = cause.format_message().rstrip(".?")
    for kind, ours in (("integer", "whole number"), ("float", "number")):
        text = text.replace(f"a valid {kind} range", f"a {ours}").replace(f"a valid {kind}", f"a {ours}")
    return f"{text[:1].lower()}{text[1:]}"


def debugging() -> bool:
    """Whether tracebacks are wanted: `--debug`, or PACELINE_DEBUG=1."""
    return os.environ.get("PACELINE_DEBUG") == "1"


def leave(code: int) -> NoReturn:
    """End the process with this code, or with that of an output which turns out not to take the rest."""
    failure = _flushed()
    if failure is not None and code == 0:
        code = CLOSED_PIPE if isinstance(failure, BrokenPipeError) else _no_place(failure)
    sys.exit(code)


def complain(text: str, code: int) -> int:
    """One line on standard error, if that can be written; gives the code."""
    try:
        if debugging():
            traceback.print_exc()
        print(f"paceline: {' '.join(text.split())}", file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody can be told, and the code says it
    return code


def _no_place(failure: OSError) -> int:
    where = failure.filename or "the output"
    return complain(f"{where} cannot be written: {failure.strerror}; free space or name another place",
                    CheckpointError.exit_code)  # fmt: skip


def _outputs() -> list[TextIO]:
    """Standard output and error; one that was closed by whoever started the command is None."""
    return [stream for stream in (sys.stdout, sys.stderr) if stream is not None]


def _unread(stream: TextIO) -> bool:
    """Whether this is a pipe that nobody reads any more."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):
        return False  # no file at all
    return any(happened & (select.POLLERR | select.POLLHUP) for _, happened in poll.poll(0))


def _flushed() -> OSError | None:
    """Write what is left; the first failure. An output that fails is turned to nowhere, or the interpreter would fail
    once more at its end."""
    failures = []
    for stream in _outputs():
        try:
            stream.flush()
        except OSError as error:
            failures.append(error)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
    return failures[0] if failures else None
