"""Where in a plug-in something happened: an author looks at a line sooner than at a traceback through a kit."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator

import attrs

__all__ = ["Standing", "leaves", "place_of", "root_of", "said", "standing", "stood", "waiting"]

OURS = ("paceline", "trio", "outcome")
"""Packages through which a check reaches a plug-in."""
STDLIB = str(types.__file__).replace("\\", "/").rpartition("/")[0] + "/"
"""Where the standard library lies: a plug-in is written with it, and no line of it helps."""

FLOORS = tuple(f"{__file__.replace(chr(92), '/').rsplit('/', 3)[0]}/{floor}/" for floor in
               ("core", "transports", "backends"))  # fmt: skip
"""Where paceline itself lies."""
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
"""A line of what `faulthandler` writes of a thread, whose innermost frame comes first."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """What tasks that ran together raised, one after the other."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


def said(error: BaseException) -> str:
    """What was raised, with its place: one sentence for each task that raised."""
    return "; ".join(_said(leaf) for leaf in leaves(error))


def _said(error: BaseException) -> str:
    place = place_of(error)
    return f"{type(error).__name__}: {error}" + (f", in {place}" if place else "")


@attrs.frozen
class Standing:
    """Where a thread is: the outermost `call` of the plug-in that has not come back, and the `place` inside it."""

    call: str
    place: str


def place_of(error: BaseException) -> str:
    """The innermost function of the plug-in that an exception went through, as `dial (pigeon.py:21)`; empty where it
    went through none. The plug-in is the first package on the way that is neither one of `OURS` nor of `STDLIB`."""
    found = _of_plugin(_steps(error.__traceback__))
    return found.place if found else ""


def standing(frame: types.FrameType) -> Standing:
    """Where a thread whose innermost frame this is stands in the plug-in; in the check, where it is not in there."""
    frames: list[types.FrameType] = []
    inner: types.FrameType | None = frame
    while inner is not None:
        frames.append(inner)
        inner = inner.f_back
    return _of_plugin((each, each.f_lineno) for each in reversed(frames)) or _stands([(frame, frame.f_lineno)])


def waiting(frames: Iterable[tuple[types.FrameType, int]]) -> str:
    """The place in the plug-in at which a task waits whose frames these are, from the outermost on; empty if it is not
    in there."""
    found = _of_plugin(frames)
    return found.place if found else ""


def stood(dump: str) -> Standing | None:
    """Where in the plug-in a process stood of which nothing is left but the dump of `faulthandler`: that thread of it
    which was in there; None where none was."""
    for thread in dump.split("\n\n"):
        frames = [found.groups() for found in map(FRAME.fullmatch, reversed(thread.splitlines())) if found]
        inside = [(file, line, name) for file, line, name in frames if not _is_known(file.replace("\\", "/"))]
        if inside:
            (_, _, call), (file, line, name) = inside[0], inside[-1]
            return Standing(call, _place(name, file, line))
    return None


def _is_known(path: str) -> bool:
    """Whether a file is one of paceline, of what it runs on, or of the standard library."""
    return path.startswith(FLOORS) or _is_stdlib(path) or any(f"/site-packages/{name}/" in path for name in OURS)


def _steps(step: types.TracebackType | None) -> Iterator[tuple[types.FrameType, int]]:
    while step is not None:
        yield step.tb_frame, step.tb_lineno
        step = step.tb_next


def _of_plugin(steps: Iterable[tuple[types.FrameType, int]]) -> Standing | None:
    """The first and the last function of the plug-in on the way, from the outermost to the innermost; None where the
    way leads through none."""
    plugin, inside = None, []
    for frame, line in steps:
        root = root_of(frame)
        if plugin is None and root not in OURS and not _is_stdlib(frame.f_code.co_filename.replace("\\", "/")):
            plugin = root
        if plugin == root:
            inside.append((frame, line))
    return _stands(inside) if inside else None


def root_of(frame: types.FrameType) -> str:
    """The package of the function that runs in a frame."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _stands(inside: list[tuple[types.FrameType, int]]) -> Standing:
    (first, _), (last, line) = inside[0], inside[-1]
    call = first.f_code.co_qualname.rpartition("<locals>.")[2]
    return Standing(call, _place(last.f_code.co_name, last.f_code.co_filename, line))


def _place(name: str, path: str, line: object) -> str:
    file = path.replace("\\", "/").rpartition("/")[2]
    return f"{name} ({file}:{line})"


def _is_stdlib(path: str) -> bool:
    return path.startswith("<frozen") or (path.startswith(STDLIB) and "/site-packages/" not in path)
