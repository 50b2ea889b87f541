"""What the tests of all kits ask of their folder of broken plug-ins.

Each folder has a module `table`, with one `Folder` for each kit: which check catches which plug-in, and for each
capability who claims it and lacks it, who has it and does not claim it. What must hold of any such table is here, and
`test_folders.py` asks it of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from paceline.core.conformance import Kit, Outcome, Status

__all__ = ["Folder", "ensure_caught"]

DOCS = Path(__file__).parents[2] / "docs"
CASE = {"argnames": ("check", "broken"), "ids": lambda case: getattr(case, "__name__", case)}

SLIPS = ("TypeError", "NameError", "AttributeError", "the whole check")
"""Words of a failure that says nothing: a mistake in the broken plug-in itself, and a hang that the limit ends."""

MEANT = ("unexpected keyword argument", "not JSON serializable")
"""What Python says of a signature that is too short, and of a record that holds objects: checks look for both."""


def ensure_caught(outcome: Outcome) -> None:
    """The failure is the check's own: an error, a slip or a hang would be caught by everything."""
    assert outcome.status is Status.FAILED, f"{outcome.status}: {outcome.message}"
    slipped = any(slip in outcome.message for slip in SLIPS)
    assert not slipped or any(words in outcome.message for words in MEANT), outcome.message


@attrs.frozen(kw_only=True)
class Folder:
    """Broken plug-ins for one kit, one fault each.

    Fields:
        modules: where they are defined; a class whose name begins with an underscore is none of them.
        caught: for each check, by its id, the plug-ins that it has to catch.
        both_ways: for each capability its check, who claims it and lacks it, who has it and does not claim it.
        claims: what a plug-in claims, by the names of the kit.
    """

    kit: Kit[Any]
    modules: Sequence[ModuleType]
    caught: Mapping[str, Sequence[Any]]
    both_ways: Mapping[str, tuple[str, Any, Any]]
    claims: Callable[[Any], Mapping[str, bool]]

    def cases(self, *, without: str = "") -> dict[str, Any]:
        """Each check with each plug-in that it has to catch, as arguments of `parametrize`. `without`: a check that has
        a test of its own."""
        found = [(check, broken) for check, all_of in self.caught.items() for broken in all_of if check != without]
        return {**CASE, "argvalues": found}

    def ensure_complete(self) -> None:
        """A check that catches nothing may be unable to fail, and a plug-in that nobody looks for proves nothing."""
        without = [check.id for check in self.kit.checks if not self.caught.get(check.id)]
        assert without == [], f"checks of the kit {self.kit.name} that catch no broken plug-in: write one for each"
        assert set(self.caught) == {check.id for check in self.kit.checks}
        defined = {
            each for module in self.modules for each in vars(module).values()
            if isinstance(each, type) and each.__module__ == module.__name__ and not each.__name__.startswith("_")
        }  # fmt: skip
        looked_for = {broken for found in self.caught.values() for broken in found}
        assert defined - looked_for == set(), "broken plug-ins that no check is held against"

    def ensure_both_ways(self) -> None:
        """A claim is tested, and what is there is to be claimed: the liar and the hider are both among the caught."""
        assert set(self.both_ways) == set(self.kit.capabilities)
        for capability, (check, liar, hider) in self.both_ways.items():
            assert {liar, hider} <= set(self.caught[check]), capability
            assert [self.claims(each)[capability] for each in (liar, hider)] == [True, False], capability

    def ensure_explained(self) -> None:
        """A check that fails names a page and a heading of it: both are there."""
        for check in self.kit.checks:
            page, _, heading = check.doc.partition("#")
            lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
            assert heading in {line[3:].lower().replace(" ", "-") for line in lines if line.startswith("## ")}, check.id
