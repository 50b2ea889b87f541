"""Every exception paceline raises, by who is to blame.

A message says what happened, to which rank and cycle where that is known, and what to do about it. The command line
turns each class into one line on standard error and the class's `exit_code` (docs/reference/exit-codes.md); a
traceback appears only with `--debug`.

Remote misbehaviour never raises out of a machine (protocol N-7): `RemoteProtocolError` comes from `Link` and from
drivers only.
"""

from __future__ import annotations

import math

__all__ = [
    "LATEST",
    "CheckpointError",
    "ConfigError",
    "InvariantError",
    "LocalProtocolError",
    "PacelineError",
    "RefusedError",
    "RemoteProtocolError",
    "StallError",
    "TransportError",
    "wrong_time",
]


class PacelineError(Exception):
    """Base of all errors of this package; catch it to catch them all."""

    exit_code = 1


class LocalProtocolError(PacelineError):
    """The local caller misused a machine or a link; its state is as it was before the call."""

    exit_code = 1


LATEST = math.nextafter(math.inf, 0.0)
"""No second comes after this one: an infinity is later, and what no float can hold, and a NaN is no earlier."""


def wrong_time(before: float, now: object) -> LocalProtocolError:
    """What a machine that is at second `before` says of a time that is before it, or no finite number at all."""
    if isinstance(now, float | int) and now < before:
        return LocalProtocolError(f"time went back from {before} to {now}; pass a monotonic clock")
    return LocalProtocolError(f"{now!r} is no time; pass the seconds of a monotonic clock, a finite number")


class RemoteProtocolError(PacelineError):
    """The peer sent what no correct peer sends; only that link ends.

    `rank` is the sender's rank where it is known, `frame` the kind byte of the offending frame or None.
    """

    exit_code = 5

    def __init__(self, text: str, *, rank: int | None = None, frame: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank
        self.frame = frame


class ConfigError(PacelineError, ValueError):
    """A knob has a value that the rules of protocol section 15 do not allow; names knob, value and rule."""

    exit_code = 2


class TransportError(PacelineError, OSError):
    """A link could not be made, or was lost: nobody listens, the port is taken, the peer went away."""

    exit_code = 3


class RefusedError(PacelineError):
    """The coordinator refused this rank at the door (protocol M-5, N-29).

    `code` is the number of the refusal in N-29, `retry` whether the same Hello may succeed later.
    """

    exit_code = 4

    def __init__(self, text: str, *, code: int = 0, retry: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.retry = retry


class StallError(PacelineError):
    """The run gave up: it did not form (M-6), or it ended by ShutdownWithSave, without progress past a ceiling or with
    nobody left to go on with (C-16, M-21)."""

    exit_code = 6


class CheckpointError(PacelineError):
    """A file of a checkpoint could not be written, or does not fit the run that wants to read it (K-8, K-12)."""

    exit_code = 7


class InvariantError(PacelineError):
    """An invariant of protocol section 16 does not hold: a bug of paceline. Raised in production too."""

    exit_code = 70
