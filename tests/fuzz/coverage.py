"""Which lines of paceline an input runs, and how many: the eyes of the fuzzer without an engine.

`sys.settrace` rather than `sys.monitoring`: it is there on every Python we support, and a campaign of ours is bounded
by what it finds, not by its speed. What is seen is a step from one line of a function to the next one, as `(file, line
before, line)`; two inputs that take the same lines in another order differ. The number of lines is the work that an
input costs, which, unlike a duration, is the same on every machine.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import paceline

__all__ = ["Seen", "Step", "unwatched", "watch"]

ROOT = str(Path(paceline.__path__[0]).resolve())
FLOORS = tuple(f"{ROOT}/{floor}/" for floor in ("core", "transports", "backends"))

Step = tuple[str, int, int]


class Seen:
    """What one input ran: `steps` between lines, `work` in lines."""

    def __init__(self) -> None:
        self.steps: set[Step] = set()
        self.work = 0


def watch(call: Callable[[], Any]) -> tuple[Seen, BaseException | None]:
    """Run `call` and look on. What it raises is given back, not raised; an interrupt by the user passes through."""
    seen, raised = Seen(), None
    before = sys.gettrace()
    sys.settrace(_tracer(seen))
    try:
        call()
    except Exception as error:
        raised = error
    finally:
        sys.settrace(before)
    return seen, raised


@contextmanager
def unwatched() -> Iterator[None]:
    """What a target prepares is neither seen nor counted as work."""
    before = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)


@functools.cache
def _is_ours(file: str) -> bool:
    return str(Path(file).resolve()).startswith(FLOORS)


def _tracer(seen: Seen) -> Callable[[FrameType, str, Any], Any]:
    def enter(frame: FrameType, event: str, _: Any) -> Any:
        return _inside(seen, frame.f_code) if _is_ours(frame.f_code.co_filename) else None

    return enter


def _inside(seen: Seen, code: CodeType) -> Callable[[FrameType, str, Any], Any]:
    name, last, steps = code.co_filename, 0, seen.steps

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal last
        if event == "line":
            seen.work += 1
            steps.add((name, last, frame.f_lineno))
            last = frame.f_lineno
        return line

    return line
