"""Functions of broken plug-ins that do not come back, and waits that end with them.

How long a kit waits for a plug-in is a limit of time. A test that lets a short one run out races against the machine:
if that is busy, the limit has run out before the plug-in has come to its fault, and something sound is caught instead.
So what does not come back is marked, and as soon as a call of a kit stands in there, all the time is over for whoever
waits for that call, however much it was; before that none is.
"""

from __future__ import annotations

import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from paceline.transports.limit import Call

__all__ = ["endless", "hangs", "never_comes_back", "skip_the_wait", "standing_in"]

Function = TypeVar("Function", bound=Callable[..., Any])

LOOK_S = 0.002
"""How often it is looked whether a call hangs."""
SHORT_S = 1.0
"""A wait for something else than a call that is shorter than this is not one for the patience of a kit."""
_ENDLESS: set[types.CodeType] = set()
_LOST: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def endless(function: Function) -> Function:
    """Who is in this function does not come back."""
    _ENDLESS.add(function.__code__)
    return function


def never_comes_back() -> None:
    """Said by who does not come back in this thread from now on, and is not in one function all the time."""
    _LOST.add(threading.current_thread())


def hangs(made: type) -> bool:
    """Whether a class has such a function of its own."""
    return any(getattr(each, "__code__", None) in _ENDLESS for each in vars(made).values())


def standing_in(thread: threading.Thread) -> set[types.CodeType]:
    """What is on the way in a thread."""
    frame = sys._current_frames().get(thread.ident or 0)
    found = set()
    while frame is not None:
        found.add(frame.f_code)
        frame = frame.f_back
    return found


def skip_the_wait(patch: pytest.MonkeyPatch) -> None:
    """From here on nobody waits for a call that hangs, or for another one while some call does. Of calls inside of
    calls the inner ones are given up, and what has begun them goes on."""
    begin, wait = Call.begin, threading.Event.wait
    begun: list[tuple[Call[Any], threading.Thread]] = []

    def beginning(call: Call[Any]) -> None:
        begun.append((call, threading.current_thread()))
        begin(call)

    def is_vain(event: threading.Event, timeout: float) -> bool:
        running = [(call, by) for call, by in begun if hasattr(call, "_thread") and not call.still]
        if not any(call._thread in _LOST or _ENDLESS & standing_in(call._thread) for call, _ in running):
            return False
        waited_for = [call for call, _ in running if call.over is event]
        return timeout >= SHORT_S if not waited_for else all(by is not waited_for[0]._thread for _, by in running)

    def waiting(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout is None:
            return wait(event)
        until = time.monotonic() + timeout
        while not wait(event, min(LOOK_S, max(0.0, until - time.monotonic()))):
            if time.monotonic() >= until or is_vain(event, timeout):
                return event.is_set()
        return True

    patch.setattr(Call, "begin", beginning)
    patch.setattr(threading.Event, "wait", waiting)
