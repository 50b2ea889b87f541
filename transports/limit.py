"""What ends a check whose plug-in never comes back: each one runs in a thread of its own, with a limit of time.

A policy that loops, a factory that waits for a lock and a dial that blocks its event loop would each hold a kit for
ever, and no exception of theirs tells of it. So whoever runs a check waits beside it, on whatever thread it is, and
gives it up when its time is over: `Stuck`, which names the call of the plug-in that was still on the way.

It is what the runner of the kits takes as `limit` (`paceline.core.conformance`), which has no threads of its own.

A thread cannot be killed, but what it runs is Python, so it can be made to raise:

1. It is *told*: an exception is raised in it, which ends it as soon as it runs Python code again, and whatever it holds
   is put back on the way out.
2. One that catches whatever is raised in it is *put to rest*: the next exception never comes to be, because making it
   waits for good. Wherever it stood, it stands there asleep from then on, with all that it holds, and costs no time.
3. One that waits in the system takes neither, and is asleep already. What waits there to be raised is withdrawn, and
   put to it again later, less and less often, so that one which wakes up after all and loops is put to rest then.

It is looked at before. Where it may hold a lock that all others need, such as that of a log, nothing is raised in it,
and it is looked at again a little later.

An end of the program that is raised in such a thread (`SystemExit`, `KeyboardInterrupt`, `GeneratorExit`) is the
plug-in's doing, for an interrupt by the user comes to whoever waits: it is a promise broken (`not_ended`), and no end.

None of them keeps a program from ending. A loop that holds the interpreter itself, such as `max(itertools.count())`,
lets no other thread see the time; a kit in a process of its own is ended all the same, which is how `paceline conform`
runs it.
"""

from __future__ import annotations

import contextvars
import ctypes
import inspect
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import attrs

from ..core.conformance import Stuck, not_ended
from ..core.conformance.blame import root_of, standing

__all__ = ["Call", "ended"]

Result = TypeVar("Result")
Stop = Callable[[], "str | None"]

SLICES = 10
"""In how many waits a limit is spent: a process that was stopped for an hour has lost one of them, not all."""
STOP_S = 0.4
"""How long what was told to end may take to put things back."""
TOLD_AGAIN, AGAIN_S = 2, 0.05
"""How often, and after how long each time, one that has caught what it was told is told again."""
REST_S = 10.0
"""How long one that is known to run may take to be put to rest. It takes one turn of its loop; this is for a machine
that does not let it run at all."""
LOOK_S = 0.05
"""For how long sleep is put to one that seems to be asleep already: in CPython 3.11 no traced code of this process gets
on meanwhile."""
TURN_S = 0.01
"""How long one look takes, after which it is told again, if it could not be, or sleep is put to it again."""
FIRST_PAUSE_S = 1.0
"""After how long that is done again; each time after twice as long as before."""
SHARING = ("logging", "importlib", "_frozen_importlib", "_frozen_importlib_external")
"""Modules with locks for the whole process, held while they call methods of anybody's."""
OWN_LOCKS = ("Event", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "_RLock")
"""What of `threading` has locks of its own only: whoever waits there has been told before it wakes up."""


class _GivenUp(BaseException):
    """Raised inside a thread that has been given up."""


@attrs.define(eq=False)
class Call(Generic[Result]):
    """A call in a thread of its own, which no exit of the interpreter waits for.

    Fields:
        call: what is called, in the context of whoever begins it.
        name: the name of the thread.
        over: set when the call has come back.
        found: what it returned then.
        raised: what it raised; None when it returned, and when it was given up.
    """

    call: Callable[[], Result]
    name: str = "paceline check"
    over: threading.Event = attrs.field(factory=threading.Event, init=False)
    found: Result | None = attrs.field(default=None, init=False)
    raised: BaseException | None = attrs.field(default=None, init=False)
    _thread: threading.Thread = attrs.field(init=False)
    _inside: bool = attrs.field(default=False, init=False)
    _caught: bool = attrs.field(default=False, init=False)
    _resting: bool = attrs.field(default=False, init=False)
    _leaving: Any = attrs.field(factory=threading.Lock, init=False)

    def begin(self) -> None:
        """Start it, once."""
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._main,), daemon=True, name=self.name)
        self._thread.start()

    def _main(self) -> None:
        try:
            self._inside = True
            try:
                self.found = self.call()
            except BaseException as error:
                self._inside = False
                if not isinstance(error, _GivenUp):  # whose frames hold all that the plug-in had
                    self.raised = error
            self._inside = False
            with self._leaving:  # after this nothing is raised in here
                self.over.set()
        except _GivenUp:
            self.over.set()

    @property
    def still(self) -> bool:
        """Whether it will run no Python code any more, of which that is known: it is over, or was put to rest."""
        return self._resting or not self._thread.is_alive()

    def end(self, stop: Stop | None = None) -> str:
        """Bring it to its end, or to rest, as the head of this module says; where it stood, in words.

        Args:
            stop: asks a call that runs tasks of its own to end in good order, and says what stands where among them, or
                None when nobody answers. What has not ended after that is put to rest, and not told: an exception in
                the middle of a loop of events would tear what the tasks hold.
        """
        where = stop() if stop is not None else None
        if where is not None:
            self._thread.join(STOP_S)
            self._put_to_rest(STOP_S)  # it turned just now, so it runs or has nothing left to do
            return where
        frame = sys._current_frames().get(self._thread.ident or 0)
        found = None if frame is None else standing(frame)
        runs = self._tell()
        self._put_to_rest(REST_S if runs else LOOK_S)
        return "it was about to" if found is None else f"{found.call} did not come back, and was in {found.place}"

    def _tell(self) -> bool:
        """Whether it is known to run on: it has caught what it was told, or stood where nobody may be told."""
        for wait_s in (STOP_S, *[AGAIN_S] * TOLD_AGAIN):
            self._caught = False
            kind = self._telling(for_good=False)
            told = False
            for _ in range(round(wait_s / TURN_S)):
                told = told or self._raise(kind)
                self._thread.join(TURN_S)
                if self.still:
                    return False
            if told and not self._caught:
                return False
        return True

    def _put_to_rest(self, wait_s: float) -> None:
        """Return when it is still, or seems to sleep. What is to be done later, or must be alone in its thread, is done
        in one of its own."""
        if not self.still:
            looked = threading.Event()
            threading.Thread(target=self._watch, args=(wait_s, looked), daemon=True, name="paceline limit").start()
            looked.wait()

    def _watch(self, wait_s: float, looked: threading.Event) -> None:
        self._sleep(wait_s)
        looked.set()
        pause_s = FIRST_PAUSE_S
        while not self.still:
            self._thread.join(pause_s)
            self._sleep(LOOK_S)
            pause_s *= 2

    def _sleep(self, wait_s: float) -> None:
        kind = self._telling(for_good=True)
        for _ in range(round(wait_s / TURN_S)):
            if self.still:
                return
            self._raise(kind)
            self._thread.join(TURN_S)
        if not self.still:
            self._withdraw()

    def _telling(self, *, for_good: bool) -> type[_GivenUp]:
        """What is raised in there. It is made where it is caught, by who catches it: that is how it is known to run."""
        work = self

        class Told(_GivenUp):
            def __init__(self) -> None:
                work._caught = True
                here = inspect.currentframe()
                catches = None if here is None else here.f_back
                if for_good and catches is not None and not _shares(catches):  # else it is told, and asked again
                    work._resting = True
                    never = threading.Lock()
                    never.acquire()
                    never.acquire()

        return Told

    def _withdraw(self) -> None:
        """Take back what it has not taken: in CPython 3.11 no traced code of this process gets on while an exception
        waits in a thread that is asleep, so a debugger or a measure of coverage would hang."""
        self._raise(None)
        try:
            _raise_in(threading.get_ident(), _GivenUp)  # who takes one puts the signal out that one waits
            while True:
                pass
        except _GivenUp:
            return

    def _raise(self, kind: type[BaseException] | None) -> bool:
        """Raise it where the thread stands, or with None take back what it has not taken; whether that was done. It
        goes on from where it is seen, since nobody but this thread runs meanwhile, and takes there what is raised."""
        if not self._leaving.acquire(blocking=False):  # what is raised where it is taken may leave it locked
            return False
        try:
            frame = sys._current_frames().get(self._thread.ident or 0)
            if not self._inside or frame is None or (kind is not None and _shares(frame)):
                return False
            _raise_in(self._thread.ident or 0, kind)
            return True
        finally:
            self._leaving.release()


def _shares(frame: types.FrameType) -> bool:
    """Whether a thread of a check that stands here may hold a lock that every other thread needs, so that it must
    neither be stopped here nor torn out: inside of a log, an import, the start of a thread."""
    outer: types.FrameType | None = frame
    while outer is not None and outer.f_globals.get("__name__") != __name__:
        root, owner = root_of(outer), outer.f_code.co_qualname.partition(".")[0]
        if root in SHARING or (root == "threading" and owner not in OWN_LOCKS):
            return True
        outer = outer.f_back
    return False


def _raise_in(ident: int, kind: type[BaseException] | None) -> None:
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), raised)


def ended(call: Callable[[], Result], limit_s: float, *, stop: Stop | None = None) -> Result:
    """What `call` returns or raises, from a thread with the context of the caller.

    Args:
        limit_s: the seconds it may take.
        stop: as of `Call.end`. Left open, the thread is ended from outside.

    Raises:
        Stuck: it did not come back; the text names the call of the plug-in that was on the way, and its line.
        CheckFailed: it raised what ends a program.
    """
    work = Call(call)
    work.begin()
    try:
        in_time = any(work.over.wait(limit_s / SLICES) for _ in range(SLICES))
    except BaseException:  # an interrupt of the program
        work.end(stop)
        raise
    if not in_time:
        raise Stuck(f"the check did not end within {limit_s:g} s: {work.end(stop)}")
    if work.raised is not None:
        raise not_ended(work.raised)
    return cast("Result", work.found)
