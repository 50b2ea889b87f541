"""Locks on open files. The system takes one back when its process ends, however it ends: who finds a file locked knows
that its writer lives, and who gets the lock knows that nobody writes it any more.
"""

from __future__ import annotations

import importlib
import os
from typing import IO, Any

fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

__all__ = ["KNOWN", "lock"]

KNOWN = fcntl is not None
"""Whether this system has such locks."""


def lock(file: IO[bytes], *, wait: bool = False) -> bool:
    """Lock a file for as long as it is open; with `wait`, when whoever has it locked is through. False if somebody else
    has it locked. Where the system has no locks nothing is locked, and all is well; raises `OSError` where only the
    file system of this file has none."""
    if not KNOWN:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
