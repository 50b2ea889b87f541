"""What `paceline mutants` says: who noticed what, who was not noticed and why that is right, as tables and as JSON.

A mutant that changes nothing anybody can see is *equivalent*; nothing can notice it. Which ones are is written in
tests/mutants.toml, each with a reason of one line that a reviewer can check:

    [[equivalent]]
    mutant = "run/*/kind:*"
    reason = "nobody reads the kind of a row of this table"

A star stands for any text, so that a line outlives the rows around it. A line is stale when all mutants it names were
tried and every one of them was noticed.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table

from ..core.errors import CheckpointError
from .mutant_runs import Found
from .places import read_text
from .words import counted

__all__ = ["Equivalent", "Report", "matches", "read_equivalents"]

FORMAT = 1
LAYERS = ("lint", "own tests", "row tests", "whole runs")
"""The layers that always exist, in the order of the table."""


@attrs.frozen
class Equivalent:
    """Mutants that change nothing, and why."""

    mutant: str
    reason: str


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern, in which only the star means something, names a mutant."""
    return _compiled(pattern).fullmatch(name) is not None


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))))


def read_equivalents(path: Path) -> tuple[Equivalent, ...]:
    """The lines of the file. Raises CheckpointError, with the line, for one without a mutant or a reason."""
    remedy = 'write [[equivalent]] with mutant = "..." and reason = "..."'
    try:
        told = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; {remedy}") from error
    found = []
    for number, line in enumerate(told.get("equivalent", ()), 1):
        named = [line.get(key) for key in ("mutant", "reason")]
        if set(line) != {"mutant", "reason"} or not all(isinstance(each, str) and each for each in named):
            raise CheckpointError(f"{path}: number {number} is {line!r}; {remedy}")
        found.append(Equivalent(**line))
    return tuple(found)


@attrs.frozen
class Report:
    """Everything that was tried. `places` and `operators` give for each mutant where it is and what was done; `seconds`
    is how long all of it lasted, `processor` the seconds of processor time of all workers. `places` names every mutant
    that there is, tried or not."""

    found: Sequence[Found]
    places: Mapping[str, str]
    operators: Mapping[str, str]
    equivalents: Sequence[Equivalent]
    seconds: float
    processor: float
    workers: int

    def reason(self, mutant: str) -> str | None:
        """Why a mutant is equivalent, if it is said to be."""
        return next((line.reason for line in self.equivalents if matches(line.mutant, mutant)), None)

    @property
    def survivors(self) -> list[str]:
        """Mutants that nothing noticed and nothing explains."""
        return [each.mutant for each in self.found if not each.layer and self.reason(each.mutant) is None]

    @property
    def stale(self) -> list[str]:
        """Lines of the file that explain nothing any more: every mutant they name was tried and noticed."""
        lines = []
        noticed = {each.mutant for each in self.found if each.layer}
        for line in self.equivalents:
            named = {name for name in self.places if matches(line.mutant, name)}
            if named and named <= noticed:
                lines.append(line.mutant)
        return lines

    def json(self) -> str:
        """The whole report."""
        lines = [
            {
                "mutant": each.mutant, "place": self.places[each.mutant], "operator": self.operators[each.mutant],
                "outcome": self._outcome(each), "layer": each.layer, "by": each.by,
                "reason": self.reason(each.mutant) if not each.layer else None, "seconds": round(each.seconds, 3),
                "asked": each.asked,
            }
            for each in self.found
        ]  # fmt: skip
        whole: dict[str, Any] = {
            "format": FORMAT, "seconds": round(self.seconds, 1), "processor_s": round(self.processor, 1),
            "workers": self.workers, "killed": self._share(),
            "survivors": self.survivors, "stale": self.stale, "mutants": lines,
        }  # fmt: skip
        return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"

    def show(self, console: Console) -> None:
        """Tables per place and per operator, then what nobody noticed and what is stale."""
        for title, groups in (("where", self.places), ("damage", self.operators)):
            console.print(self._table(title, groups))
        survivors = self.survivors
        for mutant in survivors:
            console.print(f"not noticed: {mutant}", markup=False, highlight=False, soft_wrap=True)
        for line in self.stale:
            console.print(f"stale, it is noticed: {line}", markup=False, highlight=False, soft_wrap=True)
        alive = len(survivors)
        asked = sum(each.asked for each in self.found)
        told = (
            f"{counted(len(self.found), 'mutant')} in {self.seconds:.0f} s, {self.workers} at a time, "
            f"{self.processor:.0f} s of processor time, {counted(asked, 'test')} asked: "
            f"{self._share():.1%} of those that are not equivalent are noticed, "
            f"{alive} {'is' if alive == 1 else 'are'} not"
        )
        console.print(told, highlight=False, soft_wrap=True)

    def _outcome(self, each: Found) -> str:
        if each.layer:
            return "killed"
        return "survived" if self.reason(each.mutant) is None else "equivalent"

    def _share(self) -> float:
        outcomes = [self._outcome(each) for each in self.found]
        killed = outcomes.count("killed")
        return killed / max(1, killed + outcomes.count("survived"))

    def _table(self, title: str, groups: Mapping[str, str]) -> Table:
        layers = list(dict.fromkeys((*LAYERS, *(each.layer for each in self.found if each.layer))))
        table = Table(title, "mutants", *layers, "equivalent", "not noticed", "noticed")
        for column in table.columns[1:]:
            column.justify = "right"
        names = list(dict.fromkeys(groups[each.mutant] for each in self.found))
        for name in names:
            table.add_row(name, *self._cells(layers, (each for each in self.found if groups[each.mutant] == name)))
        if len(names) > 1:
            table.add_section()
            table.add_row("all", *self._cells(layers, self.found))
        return table

    def _cells(self, layers: Sequence[str], found: Iterable[Found]) -> Iterator[str]:
        of_group = attrs.evolve(self, found=list(found))
        outcomes = [of_group._outcome(each) for each in of_group.found]
        yield str(len(outcomes))
        for layer in layers:
            yield str(sum(1 for each in of_group.found if each.layer == layer))
        yield str(outcomes.count("equivalent"))
        yield str(outcomes.count("survived"))
        yield f"{of_group._share():.0%}"
