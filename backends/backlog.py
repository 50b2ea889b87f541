"""Files that wait for a disk: how many may, which gives way, and a thread that writes them (K-7).

What waits holds a copy of a model, so its number is bounded. No torch here: a coordinator keeps its bundles in the same
order and writes them by tasks of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

__all__ = ["Backlog", "DetachedWriter", "left_out"]

WAITING = 4
"""Files that may be written or wait for it. The oldest that is not being written gives way: a disk that slow delays no
average and no step (K-7)."""

Job = TypeVar("Job")


def left_out(stem: str) -> str:
    """Why a bundle of this name was not written."""
    return f"{stem}.safetensors was left out: the disk is slower than the bundles come"


class Backlog(Generic[Job]):
    """Jobs in the order in which they are done, by the stems of their files. The first one is being done."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[str, Job]] = deque()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def put(self, stem: str, job: Job) -> tuple[list[Job], list[Job]]:
        """Behind what waits. A newer file of the same name replaces one that has not been begun. Gives the jobs that it
        replaces, and those that are left out because too many wait."""
        waiting = list(self._jobs)[1:]
        same = [old for old in waiting if old[0] == stem]
        too_many = [] if same else waiting[: max(0, len(waiting) + 1 - WAITING)]
        for old in (*same, *too_many):
            self._jobs.remove(old)
        self._jobs.append((stem, job))
        return [old for _, old in same], [old for _, old in too_many]

    @property
    def first(self) -> Job:
        """The one to be done."""
        return self._jobs[0][1]

    def done(self) -> None:
        """The first one is over."""
        self._jobs.popleft()


@attrs.frozen(eq=False)
class _Job:
    """What writes a file, and who is told its error, or None."""

    stem: str
    write: Callable[[], None]
    told: Callable[[str | None], None]


class DetachedWriter:
    """Writes files in a thread that lives while there is something to write. For one thread that orders."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._backlog: Backlog[_Job] = Backlog()

    def order(self, stem: str, write: Callable[[], None], told: Callable[[str | None], None]) -> None:
        """Have a file written and return. `told` hears in the writer's thread that it is there (None) or the error in
        words; in the caller's that it is left out. Of one that a newer file of its name replaces it hears nothing."""
        with self._changed:
            starts = not self._backlog  # else the thread that is there finds this one too
            _, gone = self._backlog.put(stem, _Job(stem, write, told))
        if starts:
            threading.Thread(target=self._run, name="paceline-writer", daemon=True).start()
        for job in gone:
            job.told(left_out(job.stem))

    def settle(self) -> None:
        """Wait until every file that was ordered is written, or told why not."""
        with self._changed:
            self._changed.wait_for(lambda: not self._backlog)

    def _run(self) -> None:
        try:
            going = True
            while going:
                job = self._backlog.first  # nobody else takes the first one away
                job.told(_error_of(job.write))
                with self._changed:
                    self._backlog.done()
                    going = bool(self._backlog)
                    self._changed.notify_all()
        except BaseException:
            with self._changed:  # who settles must not wait for a thread that is gone
                self._backlog = Backlog()
                self._changed.notify_all()
            raise


def _error_of(write: Callable[[], None]) -> str | None:
    try:
        write()
    except Exception as failure:  # whatever it is, the training goes on (K-8)
        return str(failure) or type(failure).__name__
    return None
