"""The old ways: how earlier systems did it, put back into the machines of one test (section 17 of the protocol).

A mutant is a small function that patches a guard, an effect, a row or a method. It is not a random change: each is a
fault that somebody had, and the tests named `test_section17` have for each a test that passes without it and fails with
it. The mutants themselves are in `old_ways_cycle.py` and `old_ways_work.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from paceline.core import tables
from paceline.core.coordinator import Coordinator
from paceline.core.engine import Row, Table
from paceline.core.errors import InvariantError, LocalProtocolError
from paceline.core.messages import Control
from paceline.core.simulation.violation import Violation

Patch = pytest.MonkeyPatch
Change = Callable[[Patch], None]
Check = Callable[[], None]


class OldWayError(Exception):
    """An error that the old way let through, where the rule is that nothing comes of it."""


CAUGHT = (AssertionError, InvariantError, LocalProtocolError, OldWayError)
"""How a test may fail with an old way put back; anything else would be a fault of the mutant."""
NOTICED = (*CAUGHT, Violation)
"""The same where a world looks on."""


@attrs.define
class OldWays:
    """The mutants of a module by name, each with its row of section 17, and the tests that stand against them."""

    rows: dict[str, str] = attrs.field(factory=dict)
    changes: dict[str, Change] = attrs.field(factory=dict)
    cases: list[tuple[str, Check]] = attrs.field(factory=list)

    def old_way(self, row: str) -> Callable[[Change], Change]:
        """Register a function that puts an old way back; its docstring says which."""

        def register(change: Change) -> Change:
            self.rows[change.__name__], self.changes[change.__name__] = row, change
            return change

        return register

    def against(self, *names: str) -> Callable[[Check], Check]:
        """The old ways with which this test has to fail."""

        def mark(test: Check) -> Check:
            self.cases.extend((name, test) for name in names)
            return test

        return mark

    def caught(self, name: str, test: Check, patch: Patch) -> None:
        """Fails unless the test fails with this old way put back."""
        self.changes[name](patch)
        with pytest.raises(NOTICED) as found:
            test()
        cause = found.value.__cause__ if isinstance(found.value, Violation) else None
        assert cause is None or isinstance(cause, CAUGHT), f"{name} makes a machine raise {cause!r}"

    def complete(self) -> None:
        """Fails unless each mutant has a test, and its docstring names the row."""
        assert sorted(name for name, _ in self.cases) == sorted(self.changes)
        for name, test in self.cases:
            assert f"{self.rows[name]}," in (test.__doc__ or ""), name
            assert self.changes[name].__doc__, name


def around(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace a function by `change(original, *arguments)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def changed(*arguments: Any, **named: Any) -> Any:
        return change(original, *arguments, **named)

    patch.setattr(owner, name, changed)


def change_rows(patch: Patch, name: str, chosen: Callable[[Row], bool], **changes: Any) -> None:
    """Both engines of a table, with the chosen rows changed; at least one has to be."""
    table = tables.TABLES[name]
    rows = tuple(attrs.evolve(row, **changes) if chosen(row) else row for row in table.rows)
    assert rows != table.rows, "the mutant changes no row"
    changed: Table = attrs.evolve(table, rows=rows)
    patch.setitem(tables._in_force, name, changed)
    patch.setattr(tables, "_engines", {key: made for key, made in tables._engines.items() if key[0] != name})


def raise_for_a_bad_link(patch: Patch, kind: type[Control]) -> None:
    """A message of this kind to a rank that cannot be reached raises."""

    def change(tell: Any, co: Coordinator, ranks: Any, message: type[Control], own: Any = None, **fields: Any) -> None:
        bad = [place for place, rank in enumerate(ranks) if message is kind and not co.peers[rank].attached]
        end = bad[0] if bad else len(ranks)
        tell(co, ranks[:end], message, {name: column[:end] for name, column in (own or {}).items()}, **fields)
        if bad:
            raise OldWayError(f"{kind.__name__} to rank {ranks[end]}")

    around(patch, Coordinator, "tell", change)
