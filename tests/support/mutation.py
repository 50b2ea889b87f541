"""Puts mutants to the tests: the worker behind `paceline mutants`, one pytest process that is told what to do.

The tests are collected once. Whatever a mutant may spoil runs in a child forked from this process, in which all imports
are warm and nothing of the last mutant is left. Three kinds of job come in as lines of JSON, each answered by one line:

    {"do": "record", "tests": [3, 4], "limit": 0.25}      what each test takes and calls, and how long it lasts
    {"do": "try", "mutants": [[NAME, [[LAYER, STEP], ...]], ...]}   for each the first step that notices, or none
    {"do": "list"}                                        the tests, and the mutants written by hand

A step is "lint", a list of tests each with its time limit in seconds, or "MODULE:FUNCTION", which is called with the
mutant in place and says how it noticed, or None. A test that lasts too long has noticed too: a mutant that never ends
is a dead one. A mutant written by hand (mutants.py) is put to its own tests.

The mutants of one job are kin, such as those of one row. The test that noticed one is asked first about the next, since
it probably looks at the same thing, and after it the other tests of its file. What a mutant's kin are does not depend on which worker is free, nor does,
therefore, which test is named.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from paceline.core.comparisons import called
from paceline.core.mutation import in_place, mutants, name_of_row, noticed_by_lint
from paceline.core.tables import EVERY_TABLE

from .mutants import NOTICED, OldWays
from .taken import counted

PROFILE = "mutants"
LINT = "lint"
"""The step that is neither a list of tests nor a function."""
MEMORY = 2 << 30
"""Bytes a child may grow by: a mutant that fills the memory ends itself, not the machine."""
LAYER_LIMIT_S = 120.0
"""For a step that is a function."""


class Worker:
    """The plug-in behind `--mutants IN,OUT`: reads jobs from one file descriptor and answers on the other."""

    def __init__(self, channels: str) -> None:
        self.jobs, self.answers = (int(number) for number in channels.split(","))
        self.items: list[pytest.Item] = []
        self.files: list[str] = []
        # The same examples for every mutant, none kept, and neither a smaller one nor a second fault looked for: only
        # whether it fails counts.
        hypothesis.settings.register_profile(
            PROFILE, deadline=None, derandomize=True, database=None, report_multiple_bugs=False,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        )  # fmt: skip

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Before the test modules are imported: their settings are made from the profile in force."""
        hypothesis.settings.load_profile(PROFILE)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of running the tests."""
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        self.items = session.items
        self.files = [item.nodeid.partition("::")[0] for item in self.items]
        with os.fdopen(self.jobs, encoding="utf-8") as jobs, os.fdopen(self.answers, "w", encoding="utf-8") as answers:
            for line in jobs:
                job = json.loads(line)
                answer = getattr(self, f"do_{job['do']}")(**{key: job[key] for key in job if key != "do"})
                answers.write(json.dumps(answer) + "\n")
                answers.flush()
        return True

    # --- jobs ------------------------------------------------------------------------------------------------------

    def do_list(self) -> dict[str, Any]:
        """What there is to choose from. Made here once, so that no child has to make it."""
        mutants()
        # A collection in a child would write to every object there is, and so copy all memory that it shares with this
        # process: it costs more than most tests.
        gc.collect()
        gc.freeze()
        return {"tests": [item.nodeid for item in self.items], "by_hand": sorted(by_hand())}

    def do_record(self, tests: list[int], limit: float | None) -> dict[str, Any]:
        """What tests take and call, without any mutant. One that uses more than `limit` seconds of the processor is cut
        short; of it only that is told."""
        told: list[dict[str, Any]] = []
        while len(told) < len(tests):
            with Child(self._record, tests[len(told) :], limit) as child, contextlib.suppress(EOFError):
                told += child.lines(None)
            if len(told) < len(tests):
                test = tests[len(told)]
                if child.status != signal.SIGVTALRM:
                    raise RuntimeError(f"{self.items[test].nodeid} ends its process: wait status {child.status}")
                told.append({"test": test, "seconds": None, "passed": True, "near": []})
        return {"tests": told}

    def _record(self, tests: list[int], limit: float | None) -> Iterator[Any]:
        with called() as names:
            for number, following in _with_next(tests):
                names.clear()
                # What the alarm does is up to nobody: it ends the process.
                signal.setitimer(signal.ITIMER_VIRTUAL, limit or 0.0)
                began = time.process_time()  # of this process: what others do to the machine is no matter
                with counted() as taken:
                    passed = self._run(number, following)
                seconds = time.process_time() - began
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
                rows = {name_of_row(EVERY_TABLE[name], index) for name, index in taken}
                yield {"test": number, "seconds": seconds, "passed": passed, "near": sorted(rows | names)}

    def do_try(self, mutants: list[tuple[str, list[tuple[str, Any]]]]) -> list[dict[str, Any]]:
        """Put kin mutants to steps, each until one notices."""
        noticed: list[int] = []  # tests, the last that noticed first
        return [self._put(name, steps, noticed) for name, steps in mutants]

    def _put(self, mutant: str, steps: list[tuple[str, Any]], noticed: list[int]) -> dict[str, Any]:
        layer, by = self._lint(mutant, steps)
        told = {"layer": layer, "by": by, "seconds": 0.0, "asked": 0}
        if not layer:
            ordered = [(name, first(step, noticed, self.files)) for name, step in steps if step != LINT]
            told = self._in_child(mutant, ordered)
        test = told.pop("test", None)
        if test is not None and told["layer"]:
            noticed[:] = [test, *(number for number in noticed if number != test)]
        return {"mutant": mutant, **told}

    def _lint(self, mutant: str, steps: list[tuple[str, Any]]) -> tuple[str, str]:
        """The layer and what the lint says, if it is asked. It runs nothing, so it needs no child."""
        for layer, step in steps:
            found = noticed_by_lint(mutants()[mutant]) if step == LINT else None
            if found is not None:
                return layer, found
        return "", ""

    def _in_child(self, mutant: str, steps: list[tuple[str, Any]]) -> dict[str, Any]:
        """The layer that notices and how, both empty if none does; the number of the last test that was asked, how many
        were, and the seconds of the processor that all of it took."""
        told: dict[str, Any] = {"layer": "", "by": "", "asked": 0}
        with Child(self._try, mutant, steps) as child:
            try:
                for line in child.lines(LAYER_LIMIT_S):
                    told["asked"] += "test" in line and not line["noticed"]
                    told |= {key: line[key] for key in ("layer", "by", "test") if key in line}
                    if line["noticed"]:
                        break
                    child.limit = line["limit"]
                else:
                    told |= {"layer": "", "by": ""}
            except TimeoutError:
                told["by"] += ": lasts too long"
            except EOFError:
                told["by"] += ": the process died"
        return {**told, "seconds": child.seconds}

    def _try(self, mutant: str, steps: list[tuple[str, Any]]) -> Iterator[Any]:
        """Before each test what comes, so that it is known what lasts too long; and what has noticed."""
        if mutant in by_hand():
            yield from self._try_by_hand(mutant)
            return
        damage = mutants()[mutant]
        for layer, step in steps:
            yield {"layer": layer, "by": layer, "noticed": False, "limit": LAYER_LIMIT_S}
            if isinstance(step, str):
                module, _, function = step.partition(":")
                with in_place(damage):
                    found = getattr(importlib.import_module(module), function)(damage)
                if found is not None:
                    yield {"by": str(found), "noticed": True}
            else:
                with in_place(damage):
                    yield from self._try_tests(step)

    def _try_tests(self, step: list[tuple[int, float]]) -> Iterator[Any]:
        for (number, limit), following in _with_next(step):
            told = {"by": self.items[number].nodeid, "test": number}
            yield {**told, "noticed": False, "limit": limit}
            if not self._run(number, following and following[0]):
                yield {**told, "noticed": True}

    def _try_by_hand(self, name: str) -> Iterator[Any]:
        """An old way and the tests that stand against it."""
        ways, key = by_hand()[name]
        yield {"layer": "own tests", "by": "own tests", "noticed": False, "limit": LAYER_LIMIT_S}
        for test in [test for against, test in ways.cases if against == key]:
            with pytest.MonkeyPatch.context() as patch:
                ways.changes[key](patch)
                try:
                    test()
                except NOTICED:
                    yield {"by": test.__name__, "noticed": True}

    def _run(self, number: int, following: int | None) -> bool:
        reports = runtestprotocol(
            self.items[number], log=False, nextitem=None if following is None else self.items[following]
        )
        return not any(report.failed for report in reports)


class Child:
    """A forked process that runs a generator and tells each of its values; ended when the block is left. Then `status`
    is how, as the system gives it, and `seconds` what it used of the processor: what others do is no matter."""

    def __init__(self, body: Any, *arguments: Any) -> None:
        self.limit: float | None = None
        self.status: int | None = None
        self.seconds = 0.0
        self._rest = b""
        self._read, write = os.pipe()
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other threads: nothing of this process holds a lock that the child needs
            self._pid = os.fork()
        if self._pid == 0:
            self._be_child(write, body, arguments)
        os.close(write)

    def _be_child(self, write: int, body: Any, arguments: tuple[Any, ...]) -> None:
        try:
            os.close(self._read)
            os.setsid()
            limit_memory()
            for value in body(*arguments):
                os.write(write, json.dumps(value).encode() + b"\n")
            os.write(write, b"null\n")
        except BaseException:  # a fault of the runner must neither pass for one that the tests found, nor come back
            os.write(write, json.dumps({"broken": traceback.format_exc()}).encode() + b"\n")
        finally:
            os._exit(0)

    def lines(self, limit: float | None) -> Iterator[Any]:
        """What the child tells, until it is done. Raises TimeoutError when the next word takes longer than `limit`,
        which the reader may change on the way, EOFError when the child ends too early."""
        self.limit = limit
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                told = json.loads(line)
                if told is None:
                    return
                if "broken" in told:
                    raise RuntimeError(told["broken"])
                yield told
                continue
            if not select.select([self._read], [], [], self.limit)[0]:
                raise TimeoutError
            chunk = os.read(self._read, 1 << 16)
            if not chunk:
                raise EOFError
            self._rest += chunk

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)  # one that has not come to its own session yet
        _, self.status, used = os.wait4(self._pid, 0)
        self.seconds = used.ru_utime + used.ru_stime


def first(step: Any, noticed: list[int], files: list[str]) -> Any:
    """A step that is a list of tests with those in front that noticed before, the last one first, then those of the
    same files, which look at the same thing from other sides; any other step as it is."""
    if isinstance(step, str):
        return step
    place = {number: index for index, number in enumerate(noticed)}
    near = {files[number]: len(place) + index for index, number in reversed(list(enumerate(noticed)))}
    return sorted(step, key=lambda each: place.get(each[0], near.get(files[each[0]], 2 * len(place))))


def _with_next(values: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(values, [*values[1:], None], strict=False)


def limit_memory() -> None:
    """The size of this process, and what it may grow by; where the system does not tell the size, no limit."""
    size = Path("/proc/self/statm")
    if size.exists():
        most = int(size.read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def by_hand() -> dict[str, tuple[OldWays, str]]:
    """The old ways of the test modules that are loaded, by the names under which they are reported."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("support.old_ways_"):
            ways: OldWays = module.OLD_WAYS
            found |= {f"section/{row}/{key}": (ways, key) for key, row in ways.rows.items()}
    return found
