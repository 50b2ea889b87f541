"""Where in a plug-in something happened: an author looks at a line sooner than at a traceback through a kit."""

from __future__ import annotations

import types
from collections.abc import Iterator

__all__ = ["leaves", "place_of", "said"]

OURS = ("paceline", "trio", "outcome")
"""Packages through which a check reaches a plug-in."""
STDLIB = str(types.__file__).replace("\\", "/").rpartition("/")[0] + "/"
"""Where the standard library lies: a plug-in is written with it, and no line of it helps."""


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


def place_of(error: BaseException) -> str:
    """The innermost function of the plug-in that an exception went through, as `dial (pigeon.py:21)`; empty where it
    went through none. The plug-in is the first package on the way that is neither one of `OURS` nor of `STDLIB`."""
    plugin, place, step = None, "", error.__traceback__
    while step is not None:
        frame: types.FrameType = step.tb_frame
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        path = frame.f_code.co_filename.replace("\\", "/")
        if plugin is None and root not in OURS and not _is_stdlib(path):
            plugin = root
        if plugin == root:
            place = f"{frame.f_code.co_name} ({path.rpartition('/')[2]}:{step.tb_lineno})"
        step = step.tb_next
    return place


def _is_stdlib(path: str) -> bool:
    return path.startswith("<frozen") or (path.startswith(STDLIB) and "/site-packages/" not in path)
