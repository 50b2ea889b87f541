"""Fuzzing by an own loop: inputs that run new lines are kept and changed again, those that break a promise are found.

A target is a function of bytes that returns when every promise was kept, and raises when one was not; what it may be
fed is its own business. Besides, no input may cost more lines of code than the target allows for its length.

    report = campaign(TARGETS["codec"], random.Random(7), seconds=10.0)

A finding is shrunk before it is reported, to the smallest input the shrinker finds that still fails at the same place
of the code with the same class of error. With the optional engine (atheris) `run.py` hands the same target to that.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import attrs

from .coverage import Seen, Step, watch
from .mutate import LONGEST, Tree, mutated

__all__ = ["CORPUS", "Finding", "Report", "Target", "campaign", "fault_of", "inputs", "keep"]

CORPUS = Path(__file__).parent / "corpus"
POOL = 400
"""Inputs kept in a campaign; the oldest that are no seeds give way."""


@attrs.frozen(eq=False)
class Target:
    """One thing to fuzz. `seeds` are valid inputs, `words` bytes worth inserting, `tree` the values they spell.

    `work` is what an input may cost: so many lines of paceline, and so many more per byte. A target that is not
    `traced` runs too much code to look at each line: it gives what an input met itself, as what `run` returns.
    """

    name: str
    run: Callable[[bytes], Iterable[Step] | None]
    seeds: Callable[[], Sequence[bytes]]
    work: tuple[int, int]
    words: tuple[bytes, ...] = ()
    tree: Tree | None = None
    traced: bool = True

    def allowance(self, data: bytes) -> int:
        """Lines that this input may run."""
        return self.work[0] + self.work[1] * len(data)


@attrs.frozen
class Finding:
    """An input that broke a promise: the class of the error and the innermost line of paceline or of the target."""

    data: bytes
    error: str
    place: str

    def __str__(self) -> str:
        return f"{self.error} at {self.place}, {len(self.data)} bytes: {self.data[:80].hex()}"


@attrs.define
class Report:
    """What a campaign did. `kept` are the inputs that ran something new, in the order in which they were met."""

    target: str
    runs: int = 0
    steps: set[Step] = attrs.field(factory=set)
    kept: list[bytes] = attrs.field(factory=list)
    findings: list[Finding] = attrs.field(factory=list)
    heaviest: float = 0.0
    """Largest part of its allowance that an input used."""


def fault_of(target: Target, data: bytes) -> tuple[Finding | None, Seen]:
    """Run one input; the finding it is, or None."""
    seen, raised = watch(lambda: target.run(data)) if target.traced else _met(target, data)
    if raised is not None:
        frame = traceback.extract_tb(raised.__traceback__)[-1]
        return Finding(data, f"{type(raised).__name__}: {raised}"[:200], f"{frame.filename}:{frame.lineno}"), seen
    if seen.work > target.allowance(data):
        text = f"Work: {seen.work} lines for {len(data)} bytes, {target.allowance(data)} are allowed"
        return Finding(data, text, "work"), seen
    return None, seen


def _met(target: Target, data: bytes) -> tuple[Seen, BaseException | None]:
    seen = Seen()
    try:
        seen.steps.update(target.run(data) or ())
    except Exception as error:
        return seen, error
    return seen, None


def campaign(
    target: Target, rng: random.Random, *, seconds: float | None = None, runs: int | None = None,
    first: Iterable[bytes] = (), most_findings: int = 5, report: Report | None = None,
) -> Report:  # fmt: skip
    """Feed a target until the time or the number of runs is spent, or enough is found. `first` joins its seeds. With a
    `report`, which must be new, it can be seen what was found by whoever ends this early."""
    report = Report(target.name) if report is None else report
    until = None if seconds is None else time.monotonic() + seconds
    pool, places = [], set()
    waiting = [*target.seeds(), *first]
    seeds = len(waiting)
    while len(report.findings) < most_findings:
        if (runs is not None and report.runs >= runs) or (until is not None and time.monotonic() >= until):
            break
        if waiting:
            data = waiting.pop(0)
        else:
            base, other = rng.choice(pool or [b""]), rng.choice(pool or [b""])
            data = mutated(base, rng, other=other, words=target.words, tree=target.tree)
        finding, seen = fault_of(target, data)
        report.runs += 1
        report.heaviest = max(report.heaviest, seen.work / target.allowance(data))
        if finding is not None:
            if (finding.error.partition(":")[0], finding.place) not in places:
                places.add((finding.error.partition(":")[0], finding.place))
                report.findings.append(_shrunk(target, finding))
        elif not seen.steps <= report.steps or len(pool) < seeds:
            report.steps |= seen.steps
            report.kept.append(data)
            pool.append(data)
            if len(pool) > seeds + POOL:
                pool.pop(seeds)
    return report


def _shrunk(target: Target, finding: Finding) -> Finding:
    """Leave out stretches, long ones first, then put zeros, as long as it stays the same finding."""

    def same(data: bytes) -> Finding | None:
        again, _ = fault_of(target, data)
        if again is None or again.place != finding.place:
            return None
        return again if again.error.partition(":")[0] == finding.error.partition(":")[0] else None

    size = max(1, len(finding.data) // 2)
    while True:
        at, shorter = 0, False
        while at < len(finding.data):
            found = same(finding.data[:at] + finding.data[at + size :])
            if found is not None:
                finding, shorter = found, True
            else:
                at += size
        if size == 1 and not shorter:
            return finding
        size = max(1, size // 2)


def inputs(target: Target) -> list[tuple[str, bytes]]:
    """The target's files of the corpus, by name."""
    folder = CORPUS / target.name
    return [(path.name, path.read_bytes()[:LONGEST]) for path in sorted(folder.iterdir())] if folder.is_dir() else []


def keep(target: Target, name: str, data: bytes) -> Path:
    """Put an input into the corpus, for the suite to replay for ever."""
    path = CORPUS / target.name / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
