"""The command `paceline mutants`: damage the tables of transitions and see whether the tests notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import ConfigError
from .places import STDOUT, Place, file_for, write_text
from .pool import MOST_PROCESSES

if TYPE_CHECKING:
    from rich.progress import Progress

    from ..core.mutation import Mutant
    from .mutant_runs import Found, Record, Worker

__all__ = ["mutants"]

EQUIVALENTS = Path("tests", "mutants.toml")
RECORD = Path("build", "mutants.json")
BY_HAND, HAND_OPERATOR = "section", "by hand"
"""Place and damage of the mutants that are written by hand, one for each row of section 17 of the protocol."""

MOST_SEED = (1 << 63) - 1
PLAIN_WIDTH, PLAIN_EVERY = 120, 100
"""Where nobody looks at a terminal: how wide the report is, and after how many mutants a line of progress comes."""


@click.command("mutants")
@click.option("--table", "tables", multiple=True, metavar="NAME",
              help="Only mutants of this table or module, repeatable; `section` are those written by hand.")
@click.option("--only", multiple=True, metavar="PATTERN",
              help="Only mutants whose name this matches, * for any text, repeatable.")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Only N of them, drawn at random.")
@click.option("--seed", type=click.IntRange(0, MOST_SEED), metavar="N", help="Of the sample.  [default: 0]")
@click.option("--list", "names_only", is_flag=True, help="Print their names and try none.")
@click.option("--tests", multiple=True, metavar="PATH",
              help="Ask only these tests, repeatable.  [default: all that test core]")
@click.option("--layer", "layers", multiple=True, metavar="NAME=MODULE:FUNCTION",
              help="After the tests also ask this function, which is called with the mutant in place and says how it "
                   "noticed, or None; repeatable.")
@click.option("--quick", is_flag=True, help="Ask the lint and the quick tests only.")
@click.option("--thorough", is_flag=True,
              help="Ask every test, also those that never come to the place, and put equivalents to all of them.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1, MOST_PROCESSES), metavar="N",
              help="Worker processes.")
@click.option("--record", type=Place("file", dir_okay=False), metavar="FILE",
              help="Where what the tests take is kept.  [default: build/mutants.json of the checkout]")
@click.option("--json", "out", type=Place("text", dir_okay=False), metavar="FILE",
              help="Also write the whole report there; - is standard output, and the tables go to standard error then.")
def mutants(tables: Sequence[str], only: Sequence[str], sample: int | None, seed: int | None, names_only: bool,
            tests: Sequence[str], layers: Sequence[str], quick: bool, thorough: bool, jobs: int, record: Path | None,
            out: Path | None) -> int:
    """Damage the tables and see whether the tests notice.

    One thing at a time is changed in the tables of transitions, or in the code around them. Ends with 1 when a mutant
    is not noticed and tests/mutants.toml does not say why it cannot be. Runs in a checkout.
    """  # fmt: skip
    import resource
    import time

    from ..core.mutation import mutants as all_mutants
    from . import mutant_runs as runs
    from .mutant_report import Report, matches, read_equivalents
    from .screen import Screen

    _check_options(sample, seed, names_only, layers, quick, thorough, out)
    root = runs.checkout()
    equivalents = read_equivalents(root / EQUIVALENTS)
    calls = _calls(layers)
    made = all_mutants()
    by_hand = not (tables or only) or any(name.startswith(BY_HAND) for name in (*tables, *only))
    _check_tests(root, tests)
    file = record or root / RECORD
    file_for("--json", out)
    if not names_only:
        file_for("--record", file, folders=True)
    asked = tests or runs.DEFAULT_TESTS[: 2 if by_hand else 1]
    needed = jobs if not names_only else 1 if by_hand else 0
    began = time.monotonic()
    with ExitStack() as stack:
        workers = [stack.enter_context(runs.Worker(root, asked)) for _ in range(needed)]
        places = {name: mutant.place for name, mutant in made.items()}
        places |= dict.fromkeys(workers[0].listed["by_hand"] if by_hand else (), BY_HAND)
        chosen = _choose(places, tables, only, sample, seed or 0)
        if names_only:
            click.echo("\n".join(chosen))
            return 0
        progress = stack.enter_context(_progress())
        known = {name for name in chosen if any(matches(line.mutant, name) for line in equivalents)}
        found = _try(root, file, workers, {name: made.get(name) for name in chosen}, known, calls, progress,
                     quick=quick, thorough=thorough)  # fmt: skip
    operators = {name: made[name].operator if name in made else HAND_OPERATOR for name in chosen}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = Report(found, places, operators, equivalents, time.monotonic() - began, used.ru_utime + used.ru_stime,
                    len(workers))  # fmt: skip
    aside = out == STDOUT
    screen = Screen(stderr=aside)
    report.show(screen if screen.is_terminal else Screen(width=PLAIN_WIDTH, stderr=aside))
    if out is not None:
        write_text(out, report.json())
    return 1 if report.survivors else 0


def _try(
    root: Path, file: Path, workers: Sequence[Worker], chosen: Mapping[str, Mutant | None], known: set[str],
    calls: Mapping[str, str], progress: Progress, *, quick: bool, thorough: bool,
) -> list[Found]:  # fmt: skip
    """What became of each mutant, None being one that was written by hand: first in what is cheap, and of those that
    are left in the rest."""
    from . import mutant_runs as runs

    tests = workers[0].listed["tests"]
    records = runs.prepare(root, file, workers, _bar(progress, "what the tests take"))
    _check(records)
    kin = {name: name if mutant is None else mutant.kin for name, mutant in chosen.items()}
    teller = _teller(progress, known)
    work = {name: runs.steps(mutant, tests, records, known=name in known) for name, mutant in chosen.items()}
    found = runs.try_all(workers, work, kin, _bar(progress, "mutants"), teller if quick else lambda _: None)
    left = [] if quick else [each.mutant for each in found if not each.layer and (thorough or each.mutant not in known)]
    if not left:
        return found
    cut_short = [test for test, record in records.items() if record.seconds is None]
    records = runs.prepare(root, file, workers, _bar(progress, "what whole runs take"), whole=True)
    _tell_failing({test: records[test] for test in cut_short})
    work = {name: runs.later_steps(chosen[name], tests, records, calls=calls, thorough=thorough) for name in left}
    return runs.joined(found, runs.try_all(workers, work, kin, _bar(progress, "mutants in whole runs"), teller))


def _check_options(
    sample: int | None, seed: int | None, names_only: bool, layers: Sequence[str], quick: bool, thorough: bool,
    out: Path | None,
) -> None:  # fmt: skip
    """No option is passed over in silence. Raises ConfigError."""
    for given, needed in (
        (seed is not None and sample is None, "--seed is that of a --sample: give both"),
        (names_only and out is not None, "--list tries no mutant, so there is no report for --json: give one of them"),
        (quick and thorough, "--quick asks little and --thorough all: give one of them"),
        (quick and bool(layers), "--quick asks no --layer: give one of them"),
    ):
        if given:
            raise ConfigError(needed)


def _check_tests(root: Path, tests: Sequence[str]) -> None:
    for test in tests:
        if not (root / test.partition("::")[0]).exists():
            raise ConfigError(f"--tests {test!r} is not allowed: there is no such file or folder in {root}")


def _calls(layers: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in layers:
        name, equals, function = text.partition("=")
        if not (name and equals and ":" in function):
            raise ConfigError(f"--layer {text!r} is not allowed: write NAME=MODULE:FUNCTION")
        found[name] = function
    return found


def _choose(
    places: Mapping[str, str], tables: Sequence[str], only: Sequence[str], sample: int | None, seed: int
) -> list[str]:
    """The mutants that were asked for, in their order. Raises ConfigError when there are none."""
    import random

    from .mutant_report import matches

    known = list(dict.fromkeys(places.values()))
    for name in tables:
        if name not in known:
            raise ConfigError(f"--table {name!r} is not allowed: mutants are made of {', '.join(known)}")
    chosen = [
        name for name, place in places.items()
        if (not tables or place in tables) and (not only or any(matches(pattern, name) for pattern in only))
    ]  # fmt: skip
    if not chosen:
        raise ConfigError(f"--only {' '.join(only)} matches no mutant; see their names with --list")
    if sample is not None and sample < len(chosen):
        drawn = set(random.Random(seed).sample(chosen, sample))
        chosen = [name for name in chosen if name in drawn]
    return chosen


def _check(records: Mapping[str, Record]) -> None:
    if not any(record.passed for record in records.values()):
        raise ConfigError("no test passes without a mutant; make them pass first")
    _tell_failing(records)


def _tell_failing(records: Mapping[str, Record]) -> None:
    for test in [test for test, record in records.items() if not record.passed]:
        click.echo(f"fails without a mutant, so it is not asked: {test}", err=True)


# --- progress ----------------------------------------------------------------------------------------------------


@contextmanager
def _progress() -> Iterator[Progress]:
    """Bars on a terminal; elsewhere a line now and then."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from .screen import Screen

    console = Screen(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield progress


def _teller(progress: Progress, known: set[str]) -> Callable[[Found], None]:
    """Called with what became of each mutant: a long run says at once what there is to look at."""

    def seen(each: Found) -> None:
        if not each.layer and each.mutant not in known:
            progress.console.print(f"not noticed: {each.mutant}", markup=False, highlight=False, soft_wrap=True)

    return seen


def _bar(progress: Progress, title: str) -> Callable[[int, int], None]:
    """Called with how many are done, and of how many."""
    task = progress.add_task(title, total=None)

    def moved(done: int, total: int) -> None:
        progress.update(task, completed=done, total=total)
        if progress.disable and done % PLAIN_EVERY == 0:
            click.echo(f"{title}: {done} of {total}", err=True)

    return moved
