"""The options of `pytest --pyargs paceline.transports.conformance --transport pigeon://loft`.

pytest loads this module in every session of everybody who has paceline installed, because options can only be added
before anything is collected. So it imports nothing of paceline, and adds nothing unless a kit was asked for by its
name: a project may have a `--transport` of its own.

A kit of another floor that wants options adds a line to `OPTIONS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["OPTIONS", "pytest_load_initial_conftests"]

OPTIONS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "paceline.transports.conformance": (
        ("--transport", "TARGET", "the transport to check: pigeon://address, or module:factory@pigeon://address"),
    ),
}
"""For each package of checks its options: name, what stands for the value, explanation."""

LEVEL = ("--level", "L0|L1|L2|L3", "how deep to check")
FAST = ("--fast", "repeat little and use few channels")


def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Add the options of the kits that the command line names, and of no other."""
    asked = [name for name in OPTIONS if any(argument.partition("::")[0] == name for argument in args)]
    if not asked:
        return
    group = parser.getgroup("paceline", "conformance kits of paceline")
    for option, metavar, text in (option for name in asked for option in OPTIONS[name]):
        group.addoption(option, metavar=metavar, help=text)
    option, metavar, text = LEVEL
    group.addoption(option, metavar=metavar, default="L3", choices=metavar.split("|"), help=text)
    group.addoption(FAST[0], action="store_true", help=FAST[1])
