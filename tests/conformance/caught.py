"""What the tests of all kits ask of their folder of broken plug-ins: none is left out, and no check is without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from paceline.core.conformance import Kit

__all__ = ["Caught", "cases", "ensure_complete"]

Caught = Mapping[str, Sequence[Any]]
"""For each check, by its id, the broken plug-ins that it catches."""


def cases(caught: Caught) -> list[tuple[str, Any]]:
    """Each check with each plug-in that it has to catch."""
    return [(check, broken) for check, found in caught.items() for broken in found]


def ensure_complete(kit: Kit[Any], caught: Caught, folder: Sequence[ModuleType]) -> None:
    """A check that catches nothing may be unable to fail, and a broken plug-in that nobody looks for proves nothing."""
    without = [check.id for check in kit.checks if not caught.get(check.id)]
    assert without == [], f"checks of the kit {kit.name} that catch no broken plug-in: write one for each of them"
    assert set(caught) == {check.id for check in kit.checks}
    defined = {
        each for module in folder for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == module.__name__ and not each.__name__.startswith("_")
    }  # fmt: skip
    looked_for = {broken for found in caught.values() for broken in found}
    assert defined - looked_for == set(), "broken plug-ins that no check is held against"
