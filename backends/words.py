"""Numbers in sentences."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, thing: str, things: str = "") -> str:
    """`1 cycle`, `2 cycles`, `1,000 cycles`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
