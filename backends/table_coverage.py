"""The body of `paceline coverage-tables`: which test takes which row of the tables of transitions.

The suite counts, this reads: `pytest tests/core --table-coverage FILE` writes for each row the tests that took it. A
row that no test takes is one that nobody has seen work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..core.engine import Table
from ..core.errors import CheckpointError
from ..core.joint import JointTable
from ..core.tables import rows_in_words
from .places import read_text

__all__ = ["FORMAT", "HOW", "TESTS_SHOWN", "read", "report"]

FORMAT = 1
HOW = "pytest tests/core --table-coverage"
TESTS_SHOWN = 3
"""Tests of a row that are named unless all are asked for: some rows have a hundred."""

Tests = dict[str, dict[str, list[str]]]
"""Per table the tests by the row in words."""


def read(path: Path) -> Tests:
    """What the suite has written. Raises CheckpointError, with the remedy, when there is none or it cannot be read."""
    remedy = f"make it with: {HOW} {path}"
    if not path.is_file():
        raise CheckpointError(f"there is no record of the tests at {path}; {remedy}")
    try:
        found = json.loads(read_text(path))
        if found["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {found['format']!r}, this version reads {FORMAT}; {remedy}")
        return {name: {line["row"]: list(line["tests"]) for line in rows} for name, rows in found["tables"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no record of the tests; name another file, or {remedy}") from error


def report(tests: Tests, tables: Mapping[str, Table | JointTable], most: int | None) -> tuple[list[str], list[str]]:
    """The lines to print, and the rows that no test takes. At most `most` tests a row are named; None is all."""
    lines: list[str] = []
    untaken: list[str] = []
    in_words = rows_in_words(tables)
    for name, rows in in_words.items():
        lines += [*([""] if lines else []), f"{name}: {len(rows)} rows"]
        for told, remark in rows:
            lines.append(f"  {told} [{remark}]")
            taking = tests.get(name, {}).get(told, [])
            if not taking:
                lines.append("      no test")
                untaken.append(f"{name}: {told}")
            lines += [f"      {test}" for test in taking[:most]]
            if len(taking) > len(taking[:most]):
                lines.append(f"      and {len(taking[most:])} more")
    known = sum(map(len, in_words.values()))
    lines += ["", f"{known - len(untaken)} of {known} rows are taken by a test"]
    lines += [f"no test: {row}" for row in untaken]
    return lines, untaken
