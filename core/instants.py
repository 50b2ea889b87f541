"""The seconds of a monotonic clock, as the machines take them: finite, and never before the last one."""

from __future__ import annotations

import math
from typing import Any

from .errors import LocalProtocolError

__all__ = ["LATEST", "late_after", "need_time", "shown", "wrong_time"]

LATEST = math.nextafter(math.inf, 0.0)
"""No second comes after this one: an infinity is later, and what no float can hold, and a NaN is no earlier."""

LATE_TICK_S = 2.0
"""A tick this much behind its deadline, or half the staleness, says that the machine itself was away (M-9)."""

LONG = 1e12
"""From here on a second is no second of any clock, and its hundreds of digits would say nothing."""


def shown(second: float, digits: int) -> str:
    """A second for a line that a person reads."""
    return f"{second:.{digits}f}" if abs(second) < LONG else f"{second:g}"


def wrong_time(before: float, now: object) -> LocalProtocolError:
    """What a machine that is at second `before` says of a time that is before it, or no finite number at all."""
    if isinstance(now, float | int) and not isinstance(now, bool) and now < before:
        return LocalProtocolError(f"time went back from {before} to {now}; pass a monotonic clock")
    return LocalProtocolError(f"{now!r} is no time; pass the seconds of a monotonic clock, a finite number")


def late_after(deadline: float, staleness_s: float) -> float:
    """M-9: a machine that gets its tick later than this was itself away, with its process or its host; the silence it
    finds then is its own, and says nothing about anybody else."""
    return deadline + max(LATE_TICK_S, staleness_s / 2)


def need_time(now: Any) -> None:
    """The second at which a machine is made is one. Raises `LocalProtocolError`."""
    try:
        holds = not isinstance(now, bool) and -LATEST <= now <= LATEST
    except TypeError:
        holds = False
    if not holds:
        raise wrong_time(-math.inf, now)
