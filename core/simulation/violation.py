"""What a run must not do, and how it is said."""

from __future__ import annotations

from .action import COORDINATOR

__all__ = ["CHECKED", "Violation", "close", "raised", "require"]

TOLERANCE = 1e-6
"""Relative, for sums in another order and masses rounded to float32 (R-6, R-22)."""

CHECKED = (
    "C-25", "D-11", "D-20", "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "I13", "I14",
    "I15", "I16", "I17", "I18", "I19", "I20", "I21", "I22", "I23", "I24", "I27", "I29", "I30", "I31", "I32", "I33",
    "I36", "I37", "I38", "I39", "I40", "I41", "I42", "I43", "I44", "I45", "I46", "I47", "I52", "I53", "I59", "I61",
    "K-16", "K-20", "M-6", "M-17", "M-18", "M-19", "M-31", "M-33", "M-44", "M-45", "N-7", "N-11", "N-23", "R-1", "R-6",
    "R-8", "R-13", "R-16", "W-4", "W-12", "W-14", "W-16",
)  # fmt: skip
"""The rules that some check of a simulated run names when they do not hold."""


class Violation(Exception):
    """A named invariant does not hold: `name` is its id in protocol section 16, `text` says what was seen."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        """Its two parts, so that it comes whole out of another process."""
        return Violation, (self.name, self.text)


def raised(event: object, who: int, error: Exception) -> Violation:
    """A machine did not take an event (I22)."""
    machine = "the coordinator" if who == COORDINATOR else f"process {who}"
    return Violation("I22", f"{type(event).__name__} made {machine} raise {error!r}")


def require(holds: bool, name: str, text: str) -> None:
    """Raise `Violation` unless it holds. For checks whose text costs nothing; others ask first and raise then."""
    if not holds:
        raise Violation(name, text)


def close(one: float, other: float) -> bool:
    """Equal within `TOLERANCE`."""
    return abs(one - other) <= TOLERANCE * max(1.0, abs(one), abs(other))
