"""What ends a check whose plug-in never comes back: each one runs in a thread of its own, with a limit of time.

A policy that loops, a factory that waits for a lock and a dial that blocks its event loop would each hold a kit for
ever, and no exception of theirs tells of it. So whoever runs a check waits beside it, on whatever thread it is, and
gives it up when its time is over: `Stuck`, which names the call of the plug-in that was still on the way.

The thread is then ended by an exception raised inside it, which comes as soon as it runs Python code again. One that
waits in the system for longer than that stays behind, asleep, and keeps no program from ending. A loop that holds the
interpreter itself, such as `max(itertools.count())`, lets no other thread see the time; a kit in a process of its own
is ended all the same (`paceline conform`).
"""

from __future__ import annotations

import contextvars
import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import attrs

from .blame import standing
from .kit import CheckFailed

__all__ = ["Stuck", "ended"]

Result = TypeVar("Result")
SLICES = 10
"""In how many waits a limit is spent: a process that was stopped for an hour has lost one of them, not all."""
STOP_S = 0.4
"""How long what was asked to end may take to put things back."""
AGAIN_S, MOST_AGAIN = 0.05, 20
"""How long after that, and how often, what still goes on is told again: it may catch whatever is raised in it. Nobody
waits for that."""


class Stuck(CheckFailed):
    """A call of the plug-in did not come back. What it does may still go on, so nothing after it is judged."""


class _GivenUp(BaseException):
    """Raised inside a thread that has been given up."""


@attrs.define(eq=False)
class _Work(Generic[Result]):
    """A call in a thread, and what came of it."""

    call: Callable[[], Result]
    over: threading.Event = attrs.field(factory=threading.Event)
    lock: Any = attrs.field(factory=threading.Lock)
    found: Result | None = None
    raised: BaseException | None = None

    def main(self) -> None:
        try:
            try:
                self.found = self.call()
            except BaseException as error:
                self.raised = error
            with self.lock:  # after this nothing is raised in here
                self.over.set()
        except _GivenUp:
            self.over.set()

    def give_up(self, thread: threading.Thread) -> None:
        """Ask it to end; it does when it next runs Python code."""
        self._raise_there(thread, _GivenUp)

    def leave(self, thread: threading.Thread) -> None:
        """Ask it no more. What it has not taken is withdrawn: in CPython 3.11 no traced code of this process gets on
        while an exception waits in a thread that is asleep, so a debugger or a measure of coverage would hang."""
        self._raise_there(thread, None)
        try:
            _raise_in(threading.get_ident(), _GivenUp)  # who takes one puts the signal out that one waits
            while True:
                pass
        except _GivenUp:
            return

    def _raise_there(self, thread: threading.Thread, kind: type[BaseException] | None) -> None:
        if self.lock.acquire(blocking=False):  # what is raised where it is taken may leave it locked
            try:
                if not self.over.is_set():
                    _raise_in(thread.ident or 0, kind)
            finally:
                self.lock.release()


def _raise_in(ident: int, kind: type[BaseException] | None) -> None:
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), raised)


def ended(call: Callable[[], Result], limit_s: float, *, stop: Callable[[], str | None] | None = None) -> Result:
    """What `call` returns or raises, from a thread with the context of the caller.

    Args:
        limit_s: the seconds it may take.
        stop: asks a call that runs tasks of its own to end in good order, from another thread, and says what stands
            where among them. Left open, or None when nobody answers: the thread is ended from outside.

    Raises:
        Stuck: it did not come back; the text names the call of the plug-in that was on the way, and its line.
    """
    work = _Work(call)
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work.main,), daemon=True, name="paceline check")
    thread.start()
    try:
        in_time = any(work.over.wait(limit_s / SLICES) for _ in range(SLICES))
    except BaseException:  # an interrupt of the program
        _end(work, thread, stop)
        raise
    if not in_time:
        raise Stuck(f"the check did not end within {limit_s:g} s: {_end(work, thread, stop)}")
    if work.raised is not None:
        raise work.raised
    return cast("Result", work.found)


def _end(work: _Work[Any], thread: threading.Thread, stop: Callable[[], str | None] | None) -> str:
    """Where it stood."""
    where = stop() if stop is not None else None
    if where is not None:
        thread.join(STOP_S)
        return where
    frame = sys._current_frames().get(thread.ident or 0)
    found = None if frame is None else standing(frame)
    work.give_up(thread)
    thread.join(STOP_S)
    rest = threading.Thread(target=_finish, args=(work, thread), daemon=True, name="paceline limit")
    rest.start()
    if not thread.is_alive():
        rest.join()
    return "it was about to" if found is None else f"{found.call} did not come back, and was in {found.place}"


def _finish(work: _Work[Any], thread: threading.Thread) -> None:
    for _ in range(MOST_AGAIN):
        if not thread.is_alive():
            break
        work.give_up(thread)
        thread.join(AGAIN_S)
    work.leave(thread)
