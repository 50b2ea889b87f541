"""Which rows of the tables are taken while something runs, and by which test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.core.engine import Engine, Taken
from paceline.core.joint import JointEngine
from paceline.core.tables import JOINT, TABLES, engine_for, joint_for, rows_in_words

KINDS = ("compiled", "transitions")


@contextmanager
def counted(names: Sequence[str] = (*TABLES, JOINT.name)) -> Iterator[Taken]:
    """Counts the rows that both engines of these tables take inside. What is counted around it goes on counting."""
    engines: list[Engine | JointEngine] = [
        joint_for(kind) if name == JOINT.name else engine_for(name, kind) for name in names for kind in KINDS
    ]
    around = [engine.taken for engine in engines]
    taken: Taken = {}
    for engine in engines:
        engine.taken = taken
    try:
        yield taken
    finally:
        for engine, outer in zip(engines, around, strict=True):
            engine.taken = outer
        for name, outer in zip(names, around[:: len(KINDS)], strict=True):
            for key, times in taken.items():
                if outer is not None and key[0] == name:
                    outer[key] = outer.get(key, 0) + times


class Recorder:
    """The plug-in behind `--table-coverage FILE`: writes the tests that take each row of each table.

    Where pytest-xdist spreads the tests over processes, each has a recorder and hands over what it saw at its end; that
    of the process which started them writes. One that dies hands over nothing, so its rows have no test.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[tuple[str, int], set[str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """A parametrised test counts as one."""
        with counted() as taken:
            yield
        name = item.nodeid.partition("[")[0]
        for key in taken:
            self.tests.setdefault(key, set()).add(name)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what one of the processes saw."""
        for table, index, names in getattr(node, "workeroutput", {}).get("taken", ()):
            self.tests.setdefault((table, index), set()).update(names)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand over, or write."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is None:
            self._write()
        else:
            output["taken"] = [(*key, sorted(names)) for key, names in self.tests.items()]

    def _write(self) -> None:
        """The file says rows in words, so that one made from other tables is recognised."""
        tables: dict[str, list[dict[str, Any]]] = {
            name: [
                {"row": told, "tests": sorted(self.tests.get((name, index), ()))}
                for index, (told, _) in enumerate(rows)
            ]
            for name, rows in rows_in_words().items()
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"format": 1, "tables": tables}, indent=1) + "\n", encoding="utf-8")
