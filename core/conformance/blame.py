"""Where in a plug-in something happened: an author looks at a line sooner than at a traceback through a kit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

__all__ = ["leaves", "place_of", "said"]

OURS = frozenset({"paceline", "trio", "outcome"}) | sys.stdlib_module_names
"""Packages through which a check reaches a plug-in, and what a plug-in is written with: no line of those helps."""


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
    went through none. The plug-in is the first package on the way that is not one of `OURS`."""
    plugin, place, step = None, "", error.__traceback__
    while step is not None:
        frame: FrameType = step.tb_frame
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if plugin is None and root not in OURS:
            plugin = root
        if plugin == root:
            file = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
            place = f"{frame.f_code.co_name} ({file}:{step.tb_lineno})"
        step = step.tb_next
    return place
