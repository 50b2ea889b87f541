"""What ends a call that never comes back: afterwards it is over or asleep, whatever it does with what is raised."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from paceline.core.conformance import Stuck
from paceline.transports import limit
from paceline.transports.limit import Call, ended

from conformance.conftest import never_resting, running
from conformance.hanging import standing_in
from support.patience import PATIENCE_S

LIMIT_S = 0.05


class Forgets(logging.Handler):
    """It has a lock as every handler has, and keeps nothing: of thousands of records a second the collector would make
    pauses in which nobody can look at the thread."""

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)


LOG = logging.Logger(__name__, logging.DEBUG)
"""Nobody else finds it: whoever runs the tests puts handlers of his own, which keep all records, to those he finds."""
LOG.addHandler(Forgets())


@pytest.fixture(autouse=True)
def times_begin_in_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time of a limit is over before the thread of a call has come to what the test calls."""
    begin = Call.begin

    def begun(self: Call[object]) -> None:
        begin(self)
        while self.call.__code__ not in standing_in(self._thread) and not self.over.wait(0.001):
            pass

    monkeypatch.setattr(Call, "begin", begun)


def left_by(call: Callable[[], object], said: str) -> set[threading.Thread]:
    """The threads that are there after the call was given up, of those that are the call's own."""
    before = set(threading.enumerate())
    with pytest.raises(Stuck, match=f"the check did not end within 0.05 s: {said} did not come back, and was in"):
        ended(call, LIMIT_S)
    return {thread for thread in set(threading.enumerate()) - before if thread.name == "paceline check"}


def loops() -> None:
    while True:
        pass


def again_whatever_is_raised(turn: Callable[[], object], around: int = 2) -> None:
    """What is raised between two turns is caught by nobody in here, so there is the same again around it."""
    if around:
        inner, turn = turn, lambda: again_whatever_is_raised(inner, around - 1)
    raised: list[BaseException] = []
    while not math.isinf(len(raised)):
        try:
            turn()
        except BaseException as error:
            raised = [error]


def loops_whatever_is_raised() -> None:
    again_whatever_is_raised(loops)


def logs_whatever_is_raised() -> None:
    def logs() -> None:
        LOG.debug("once more")
        for _ in range(3000):
            pass

    again_whatever_is_raised(logs)


def sleeps_whatever_is_raised() -> None:
    again_whatever_is_raised(lambda: time.sleep(0.001))


def test_who_runs_on_is_found() -> None:
    """What the tests of the kits ask after each of them; else nothing below would show anything."""
    over: list[bool] = []

    def turns() -> None:
        while not over:
            pass

    thread = threading.Thread(target=turns, name="turns")
    thread.start()
    found = running({thread})
    over.append(True)
    thread.join()
    assert found == ["turns"] and running({thread}) == []


def test_what_loops_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "STOP_S", PATIENCE_S)  # it takes one turn of the loop, whenever the system lets it turn
    assert left_by(loops, "loops") == set()


@pytest.mark.parametrize("call", [loops_whatever_is_raised, sleeps_whatever_is_raised])
def test_what_catches_everything_is_put_to_rest(call: Callable[[], object]) -> None:
    left = left_by(call, call.__name__)
    assert len(left) == 1 and never_resting(left) == []


def test_what_is_put_to_rest_keeps_no_lock_of_the_log() -> None:
    """It is often inside of a handler, whose lock every other thread that logs needs."""
    left = left_by(logs_whatever_is_raised, "logs_whatever_is_raised")
    assert len(left) == 1 and never_resting(left) == []
    other = Call(lambda: LOG.debug("somebody else"))
    other.begin()
    assert other.over.wait(PATIENCE_S)


def test_who_wakes_up_later_and_loops_is_put_to_rest_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "FIRST_PAUSE_S", 0.01)
    woken = threading.Event()

    def wakes() -> None:
        woken.wait()
        loops_whatever_is_raised()

    before = set(threading.enumerate())
    call = Call(wakes)
    call.begin()
    assert "did not come back" in call.end() and not call.still
    (watch,) = (each for each in set(threading.enumerate()) - before if each.name == "paceline limit")
    woken.set()
    watch.join(PATIENCE_S)
    assert call.still


BLOCKED = """
import sys, threading
from paceline.core.conformance import Stuck
from paceline.transports.limit import ended

lock = threading.Lock()
lock.acquire()
try:
    ended(lock.acquire, 0.1)
except Stuck as stuck:
    print(stuck)

def trace(frame, event, argument):
    return trace

def work():
    for _ in range(1000):
        pass

sys.settrace(trace)
work()
print("traced")
"""


def test_who_stays_asleep_stops_no_traced_code() -> None:
    """An exception that waits in a sleeping thread keeps all that is traced in CPython 3.11 from getting on: a
    debugger, a measure of coverage, the fuzzers of this very suite."""
    found = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=PATIENCE_S)
    assert found.stdout.splitlines()[1:] == ["traced"] and "did not end within 0.1 s" in found.stdout, found.stderr
