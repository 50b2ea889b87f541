"""Every exception paceline raises, by who is to blame.

A message says what happened, to which rank and cycle where that is known, and what to do about it. The command line
turns each class into one line on standard error and the class's `exit_code` (docs/reference/exit-codes.md); a
traceback appears only with `--debug`.

Remote misbehaviour never raises out of a machine (protocol N-7): `RemoteProtocolError` comes from `Link` and from
drivers only.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ConfigError",
    "InvariantError",
    "LocalProtocolError",
    "PacelineError",
    "RefusedError",
    "RemoteProtocolError",
    "StallError",
    "TransportError",
]


class PacelineError(Exception):
    """Base of all errors of this package; catch it to catch them all."""

    exit_code = 1


class LocalProtocolError(PacelineError):
    """The local caller misused a machine or a link; its state is as it was before the call."""

    exit_code = 1


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
    """A file could not be written, cannot be read, or is not what it is taken for: of a checkpoint (K-8, K-12), a
    journal, a record, a schedule, a report."""

    exit_code = 7


class InvariantError(PacelineError):
    """An invariant of protocol section 16 does not hold: a bug of paceline. Raised in production too."""

    exit_code = 70
