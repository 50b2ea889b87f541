"""Faults that users of systems like this one have met: what paceline does about each, and which tests show it.

The list of cases is `field_cases.toml`. Tests are found as those of a rule are (`rules.test_citations`): one that names
an id in its docstring, a comment or an assertion shows that case.
"""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

HERE = Path(__file__).parent
LIST = "docs/field_cases.toml"

CASE = re.compile(r"(?<![\w`\"'-])F\d\d(?![\w-]*\w)")
"""An id as a citation: `F07`, also in `F07 (b)`. A dtype in quotes, as `"F32"` in a file of tensors, is none."""
THREAD = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")
COMMIT = re.compile(r"([\w.-]+/[\w.-]+)@([0-9a-f]{7})[0-9a-f]{33}")

Places = Mapping[str, Iterable[tuple[str, str]]]
"""Per id the tests that cite it: a file below the root and a name in it."""
Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]


class Case(NamedTuple):
    """A fault, and what happens `here` instead; or `open`, the feature that the case waits for. `sources` are threads
    (`owner/repository#number`) and commits (`owner/repository@hash`) on GitHub."""

    id: str
    kind: str
    title: str
    fault: str
    here: str
    open: str
    sources: tuple[str, ...]


@functools.cache
def cases() -> dict[str, Case]:
    """Every case by its id, in the order of the file. `kind` is the id of its class, `title` what that is about."""
    found: dict[str, Case] = {}
    for kind, told in tomllib.loads((HERE / "field_cases.toml").read_text(encoding="utf-8")).items():
        title = told.pop("title")
        for name, case in told.items():
            if name in found:
                raise SystemExit(f"{LIST} has {name} twice")
            said = (" ".join(case.get(part, "").split()) for part in ("fault", "here", "open"))
            found[name] = Case(name, kind, title, *said, tuple(case["sources"]))
    return found


def cited(text: str) -> set[str]:
    """The ids of cases that a text names."""
    return set(CASE.findall(text))


def faults(known: Iterable[Case], tests: Places, features: Iterable[str]) -> list[str]:
    """What is wrong with the list, a line each: a case that no test shows, a case that is open without need, or waits
    for what is no feature that rules wait for, and an id that tests cite and nobody knows."""
    known, features = list(known), set(features)
    unknown = sorted(set(tests) - {case.id for case in known})
    found = [f"{name} is cited by a test: add it to {LIST}" for name in unknown]
    for case in known:
        if case.open and case.id in tests:
            found.append(f"{case.id} is shown by a test: say in {LIST} what happens here, in place of `open`")
        elif case.open and case.open not in features:
            found.append(f"{case.id} is open for {case.open!r}, and no rule waits for that any more: write its test")
        elif not case.open and case.id not in tests:
            found.append(f"{case.id} is cited by no test: cite it in the test that shows it, or write the test")
    return found


# --- the page ------------------------------------------------------------------------------------------------------


def page(tests: Places, table: Table, prose: Callable[[str], str]) -> str:
    """docs/reference/field-cases.md, but for its first comment; `table` and `prose` are those of `generate.py`."""
    known = list(cases().values())
    out = [
        "# Field cases\n",
        prose(
            "Faults that users of systems like this one have met, taken from public threads about training systems, "
            "schedulers, transports and the tools around them. If you know one of them, here is what paceline does "
            "about it and which tests show that. Ids never change their meaning and are never used twice. "
            "[Rules](rules.md) says what the protocol asks for, [How paceline is tested](../testing.md) what else is "
            "tried."
        ) + "\n",
        prose(
            f"{len(known)} cases; {sum(not case.open for case in known)} are closed, each by at least one test. The "
            "others wait for a feature that this version does not have:"
        ) + "\n",
        *_waiting(known),
    ]
    for (kind, title), group in itertools.groupby(known, lambda case: (case.kind, case.title)):
        rows = [
            (f'<a id="{case.id.lower()}"></a>{case.id}', case.fault, case.here or f"Open: waits for {case.open}.",
             _tests(tests.get(case.id, ())), ", ".join(map(link, case.sources)))
            for case in group
        ]  # fmt: skip
        out += [f"## {title} ({kind})\n", table(("id", "the fault", "what happens here", "tests", "sources"), rows)]
    return "\n".join(out)


def _waiting(known: list[Case]) -> Iterator[str]:
    """A line per feature that cases wait for."""
    for feature in dict.fromkeys(case.open for case in known if case.open):
        yield f"- {feature}: " + ", ".join(f"[{c.id}](#{c.id.lower()})" for c in known if c.open == feature)
    yield ""


def _tests(places: Iterable[tuple[str, str]]) -> str:
    files = itertools.groupby(sorted(places), lambda place: place[0])
    return "; ".join(
        f"[{PurePosixPath(file).relative_to('tests')}](../../{file}): {', '.join(f'`{name}`' for _, name in names)}"
        for file, names in files
    )


def link(source: str) -> str:
    """A source as a link to GitHub. Raises `SystemExit` for what is neither a thread nor a commit."""
    if thread := THREAD.fullmatch(source):
        return f"[{source}](https://github.com/{thread[1]}/issues/{thread[2]})"
    if commit := COMMIT.fullmatch(source):
        return f"[{commit[1]}@{commit[2]}](https://github.com/{commit[1]}/commit/{source.rpartition('@')[2]})"
    raise SystemExit(f"{LIST}: {source} is neither owner/repository#number nor owner/repository@hash")
