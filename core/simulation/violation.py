"""What a run must not do, and how it is said."""

from __future__ import annotations

from .action import COORDINATOR

__all__ = ["Violation", "raised", "require"]


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
