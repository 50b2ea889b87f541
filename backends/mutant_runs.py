"""The body of `paceline mutants`: workers that put mutants to the tests, and which tests that is.

A worker is a pytest process of the checkout (tests/support/mutation.py); it collects the tests once and forks for every
mutant. Which tests a mutant is put to comes from a record, made without any mutant: what each test takes and calls, and
how long it lasts. A test that never comes to a damaged row cannot notice the damage, so it is not asked. The record is
kept in build/ and made anew for what has changed.

Layers, cheapest first: the lint; the quick tests that come to the row; those that last, which are whole runs of cohorts
with faults; and whatever functions the caller names, such as a simulator or a model checker.

What costs is mutants that are put to many tests before one notices, and tests that last. So mutants of one event go to
one worker one after the other, each first to the tests that noticed the last of them; then short tests that come to few
places are asked before long ones that come to many. And what the lasting tests take is found out only when some mutant
gets as far as them: usually none does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs

from ..core.errors import ConfigError, InvariantError, PacelineError
from ..core.mutation import Mutant
from .places import write_text

__all__ = [
    "DEFAULT_TESTS", "Found", "Record", "Worker", "checkout", "joined", "later_steps", "prepare", "steps", "try_all",
]  # fmt: skip

DEFAULT_TESTS = ("tests/core", "tests/backends/test_section17_data.py")
"""The tests of core, and those of the mutants written by hand that are of other floors."""
QUICK_S = 0.25
"""A test that uses no more of the processor is a quick one."""
KNOWN_S = 0.3
"""Seconds of tests that a mutant recorded as equivalent is put to: whether it still deserves its line is seen there, if
it is easy to see at all."""
PATIENCE_S, PATIENCE = 5.0, 20.0
"""A test notices a mutant by lasting longer than this plus so many times what it lasts without one."""
FORMAT = 2
MAKERS = ("mutation.py", "comparisons.py")
"""Modules that make mutants: no test takes other rows because of them."""


@attrs.frozen
class Found:
    """What became of a mutant: the layer that noticed it and how, both empty if none has; what it took, in seconds of
    the processor, and how many tests were asked."""

    mutant: str
    layer: str
    by: str
    seconds: float
    asked: int = 0


@attrs.frozen
class Record:
    """One test without any mutant: the rows it takes, the functions it calls, and how long it lasts. A test that was
    cut short because it is no quick one has no seconds; where it comes to is not known then."""

    seconds: float | None
    passed: bool
    near: frozenset[str]


def checkout() -> Path:
    """The root of the checkout that this package runs from, or else the current folder if it is one: an installed
    package is without its tests. Raises ConfigError where neither has any."""
    for root in (Path(__file__).parents[1], Path.cwd()):
        if (root / "tests" / "support" / "mutation.py").is_file():
            return root
    raise ConfigError("paceline mutants needs the tests, which are not installed: run it in the root of a checkout")


class Worker:
    """A pytest process that waits for jobs. Raises PacelineError when it cannot start, or ends before its time."""

    def __init__(self, root: Path, tests: Sequence[str]) -> None:
        self.began = time.time()
        orders, self._jobs = os.pipe()
        self._answers, answers = os.pipe()
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed by __exit__
        command = [
            sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--mutants", f"{orders},{answers}",
            "--tb=native", "--assert=plain", *tests,  # nobody reads how a test failed, so it need not be found out
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, cwd=root, pass_fds=(orders, answers), stdout=self._said, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, env={**os.environ, "CI": "1"},
        )  # fmt: skip
        os.close(orders)
        os.close(answers)
        self._to = os.fdopen(self._jobs, "w", encoding="utf-8")
        self._from = os.fdopen(self._answers, encoding="utf-8")
        try:
            self.listed: dict[str, list[str]] = self.ask({"do": "list"})
        except BaseException:  # an interrupt too: there is no block yet that would end it
            self._process.terminate()
            self._close()
            raise

    def ask(self, job: Mapping[str, Any]) -> Any:
        """Give a job and wait for its answer."""
        try:
            self._to.write(json.dumps(job) + "\n")
            self._to.flush()
            line = self._from.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._said.seek(0)
            last = [text for text in self._said.read().splitlines() if text.strip()][-12:]
            raise PacelineError(f"the tests ended with status {self._process.returncode}: {' | '.join(last)}")
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._process.terminate()
        self._close()

    def _close(self) -> None:
        for end in (self._to, self._from):
            with contextlib.suppress(BrokenPipeError):
                end.close()
        self._process.wait()
        self._said.close()


# --- the record --------------------------------------------------------------------------------------------------


def prepare(
    root: Path, file: Path, workers: Sequence[Worker], done: Callable[[int, int], None], *, whole: bool = False
) -> dict[str, Record]:
    """What each test takes and calls, from the file where it is known, else by running it; those that last are run to
    their end only if `whole`. `done` is told how many parts of how many have been run."""
    tests = workers[0].listed["tests"]
    code = _digest(
        path for place in ("core", "tests/support") for path in (root / place).rglob("*.py") if path.name not in MAKERS
    )
    digests = {name: _digest([root / name]) for name in dict.fromkeys(test.partition("::")[0] for test in tests)}
    known = _read(file, code)
    files = {name: digest for name, digest in known["files"].items() if digests.get(name, digest) == digest}
    told = {test: line for test, line in known["tests"].items() if test.partition("::")[0] in files}
    parts: dict[str, list[int]] = {}  # the quick ones file by file, those that last one by one
    for number, test in enumerate(tests):
        if whole and (test not in told or told[test][0] is None):
            parts[test] = [number]
        elif test not in told:
            parts.setdefault(test.partition("::")[0], []).append(number)

    def keep(answer: Mapping[str, Any]) -> None:
        """What was found so far is worth keeping when the rest is cut short."""
        names = set()
        for line in answer["tests"]:
            told[tests[line["test"]]] = [line["seconds"], line["passed"], line["near"]]
            names.add(tests[line["test"]].partition("::")[0])
        # A file that was edited after the tests were collected is not the one that was run.
        files.update((name, digests[name]) for name in names if (root / name).stat().st_mtime < workers[0].began)
        kept = {"format": FORMAT, "code": code, "files": files, "tests": told}
        write_text(file, json.dumps(kept, indent=0))

    limit = None if whole else QUICK_S
    jobs = [{"do": "record", "tests": numbers, "limit": limit} for numbers in parts.values()]
    _share(workers, jobs, keep, lambda over: done(over, len(jobs)))
    return {test: Record(told[test][0], told[test][1], frozenset(told[test][2])) for test in tests}


def _read(file: Path, code: str) -> dict[str, Any]:
    try:
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if (known["format"], known["code"]) == (FORMAT, code):
            return known
    except (OSError, ValueError, KeyError, TypeError):
        pass  # then it is made anew
    return {"files": {}, "tests": {}}


def _digest(paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


# --- the mutants -------------------------------------------------------------------------------------------------


Step = tuple[str, Any]
"""The name of a layer, and what is asked in it."""


def steps(mutant: Mutant | None, tests: Sequence[str], records: Mapping[str, Record], *, known: bool) -> list[Step]:
    """The cheap layers a mutant is put to, in order; None is one that was written by hand and has tests of its own.
    One that is `known` to be equivalent is put to a moment of tests only."""
    if mutant is None:
        return []
    chosen, total = [], 0.0
    for number in _order(tests, records):
        seconds = records[tests[number]].seconds
        if seconds is None or seconds > QUICK_S or not _comes_to(mutant, records[tests[number]]):
            continue
        if known and total > KNOWN_S:
            break
        chosen.append(_limited(number, seconds))
        total += seconds
    return [("lint", "lint"), ("row tests", chosen)]


def later_steps(
    mutant: Mutant | None, tests: Sequence[str], records: Mapping[str, Record], *, calls: Mapping[str, str],
    thorough: bool = False,
) -> list[Step]:  # fmt: skip
    """What is asked about a mutant that was not noticed in any of its `steps`, with records of whole tests. `calls` are
    layers by name, each a "MODULE:FUNCTION". `thorough` adds every quick test, also those that a mutant known to be
    equivalent was spared, and those that never come to the row."""
    if mutant is None:
        return []
    quick: list[tuple[int, float]] = []
    long: list[tuple[int, float]] = []
    other: list[tuple[int, float]] = []
    for number in _order(tests, records):
        record = records[tests[number]]
        if record.seconds is None:
            raise InvariantError(f"{tests[number]} was cut short when what it takes was recorded: prepare it whole")
        kind = other if not _comes_to(mutant, record) else long if record.seconds > QUICK_S else quick
        kind.append(_limited(number, record.seconds))
    before, after = ([("row tests", quick)], [("other tests", other)]) if thorough else ([], [])
    return [*before, ("whole runs", long), *calls.items(), *after]


def _order(tests: Sequence[str], records: Mapping[str, Record]) -> list[int]:
    """The tests that pass: short ones that come to few places first, since they look at what they come to."""

    def key(number: int) -> tuple[float, int]:
        record = records[tests[number]]
        return (record.seconds or 0.0) * len(record.near), number

    return sorted((number for number, test in enumerate(tests) if records[test].passed), key=key)


def _comes_to(mutant: Mutant, record: Record) -> bool:
    return not record.near.isdisjoint(mutant.near)


def _limited(number: int, seconds: float) -> tuple[int, float]:
    return number, PATIENCE_S + PATIENCE * seconds


def try_all(
    workers: Sequence[Worker], jobs: Mapping[str, list[Step]], kin: Mapping[str, str],
    done: Callable[[int, int], None], seen: Callable[[Found], None],
) -> list[Found]:  # fmt: skip
    """Put each mutant to its steps, kin one after the other in one worker; `done` is told how many of how many are
    over, `seen` gets what became of each as it ends. The result is in the order of the mutants."""
    families: dict[str, list[tuple[str, list[Step]]]] = {}
    for name, layers in jobs.items():
        families.setdefault(kin[name], []).append((name, layers))
    found: dict[str, Found] = {}

    def keep(answers: Sequence[Mapping[str, Any]]) -> None:
        for answer in answers:
            each = found[answer["mutant"]] = Found(**answer)
            seen(each)

    # The largest first, so that no worker is left alone with one at the end.
    order = sorted(families.values(), key=len, reverse=True)
    _share(workers, [{"do": "try", "mutants": family} for family in order], keep, lambda _: done(len(found), len(jobs)))
    return [found[name] for name in jobs]


def joined(found: Sequence[Found], later: Sequence[Found]) -> list[Found]:
    """What became of each mutant in the end, where some were put to more steps later."""
    again = {each.mutant: each for each in later}
    return [
        attrs.evolve(again[each.mutant], seconds=each.seconds + again[each.mutant].seconds,
                     asked=each.asked + again[each.mutant].asked) if each.mutant in again else each
        for each in found
    ]  # fmt: skip


def _share(
    workers: Sequence[Worker], jobs: Sequence[Mapping[str, Any]], seen: Callable[[Any], None],
    done: Callable[[int], None],
) -> None:
    """All jobs by all workers, each job by whoever is free; `seen` gets each answer as it comes, `done` is told how
    many have come. Raises what a worker raised."""
    waiting: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work(worker: Worker) -> None:
        try:
            while True:
                answers.put(worker.ask(waiting.get_nowait()))
        except queue.Empty:
            pass
        except BaseException as error:
            answers.put(error)

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for number in range(len(jobs)):
        answer = answers.get()
        if isinstance(answer, BaseException):
            raise answer
        seen(answer)
        done(number + 1)
    for thread in threads:
        thread.join()
