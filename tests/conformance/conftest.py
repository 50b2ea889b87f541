"""After each test of the kits: what a hanging plug-in left behind comes to rest. A thread that runs on would take its
share of the interpreter from every test after it, and what they wait for would come too late."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.hanging import skip_the_wait
from support.patience import PATIENCE_S

TASKS = Path("/proc/self/task")
SHARE_S = 0.05
"""How much of its own time the test takes to look. A thread that runs gets as much, since both want the interpreter."""


def used_s(thread: threading.Thread) -> float:
    """The time of a processor that a thread has had; 0 for one that has ended, and where the system does not say."""
    try:
        fields = (TASKS / str(thread.native_id) / "schedstat").read_text().split()
    except OSError:
        return 0.0
    return int(fields[0]) / 1e9


def running(threads: set[threading.Thread]) -> list[str]:
    """The names of those that take time while this thread takes some."""
    before = {thread: used_s(thread) for thread in threads}
    until = time.thread_time() + SHARE_S
    while time.thread_time() < until:
        pass
    return [thread.name for thread, had in before.items() if used_s(thread) - had > SHARE_S / 10]


def never_resting(threads: set[threading.Thread]) -> list[str]:
    """The names of those that do not come to rest. One that the system did not let run while it was told is told again
    a little later, by a thread that was left for that."""
    until = time.monotonic() + PATIENCE_S
    while (found := running(threads)) and time.monotonic() < until:
        for thread in threads:
            thread.join(SHARE_S)  # lets them run
    return found


@pytest.fixture
def nobody_waits_for_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_the_wait(monkeypatch)


@pytest.fixture(autouse=True)
def nobody_runs_on() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert not left or never_resting(left) == []
