"""`paceline check`: every order in which a small run can happen, within bounds, on the production machines.

One configuration is explored in this process. `--prove` explores the ones that every release is checked with, which are
independent, in processes of their own (spawned), and wants all of them complete.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from ..core.config import POLICIES
from ..core.errors import ConfigError
from .knobs import find_here, parse_knobs, was_given
from .places import Place, folder_for, write_text
from .pool import MOST_PROCESSES, spawned

if TYPE_CHECKING:
    from ..core.simulation.check_report import CheckReport
    from ..core.simulation.checker import Bounds
    from ..core.simulation.explore import Progress

__all__ = ["check", "parse_budget"]

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
SECONDS_OVER, SECONDS_PLAIN = 0.2, 30.0
"""Between two words about how far a search is: in a line that is written over, and in lines of their own."""
OWN_BOUNDS = ("ranks", "cycles", "drops", "duplicates", "deaths", "restarts", "failures", "policy", "symmetry")
"""Options that say what one search explores, which --prove knows by itself."""
FILES = {"counterexample.schedule": "schedule", "counterexample.mmd": "diagram", "test_counterexample.py": "test"}


def parse_budget(text: str) -> float:
    """`60s`, `8m`, `1h`, or seconds. Raises `ConfigError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None or float(found[1]) == 0:
        raise ConfigError(f"--budget {text!r} is not allowed: write a time such as 60s, 8m or 1h")
    return float(found[1]) * UNITS[found[2]]


def parse_symmetry(text: str) -> tuple[int, ...]:
    """`1,2` or `1,2,3`: ranks. Raises `ConfigError`."""
    if re.fullmatch(r"\d{1,3}(,\d{1,3})+", text, re.ASCII) is None:
        raise ConfigError(f"--symmetry {text!r} is not allowed: write ranks with commas, such as 1,2")
    return tuple(map(int, text.split(",")))


@click.command()
@click.option("--ranks", default=2, show_default=True, metavar="N", help="Ranks of the run.")
@click.option("--cycles", default=1, show_default=True, metavar="N", help="Averaging cycles after formation.")
@click.option("--drops", default=0, show_default=True, metavar="N", help="Messages or reports that may be lost.")
@click.option("--duplicates", default=0, show_default=True, metavar="N",
              help="Messages or reports that may arrive twice.")
@click.option("--deaths", default=0, show_default=True, metavar="N", help="Processes that may be killed.")
@click.option("--restarts", default=0, show_default=True, metavar="N", help="Processes that may come back to a seat.")
@click.option("--failures", default=0, show_default=True, metavar="N",
              help="Calls of a collective that may fail, and session ids that may never come.")
@click.option("--policy", default="cadence", show_default=True, metavar="|".join(POLICIES), help="Policy of the run.")
@click.option("--set", "knobs", multiple=True, metavar="KNOB=VALUE", help="Any other knob of the run, repeatable.")
@click.option("--budget", metavar="TIME", help="Time until a search is cut; 60s by default, none with --prove.")
@click.option("--all-orders", is_flag=True, help="Explore also orders that cannot matter; many times the states.")
@click.option("--all-notes", is_flag=True, help="Tell apart states that differ in notes nobody decides by; likewise.")
@click.option("--symmetry", metavar="A,B,...", help="Ranks that may change places: fewer states. Looked at in each.")
@click.option("--prove", is_flag=True, help="Explore the configurations that releases are checked with, to the end.")
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1, MOST_PROCESSES), metavar="N",
              help="With --prove: processes that explore them.")
@click.option("--rows/--no-rows", default=True, help="Name the rows of the tables that were never taken.")
@click.option("--out", default="paceline-check", show_default=True, type=Place("folder"), metavar="DIR",
              help="Where a counterexample goes: its schedule, its diagram, and a test that replays it.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(policy: str, knobs: Sequence[str], budget: str | None, all_orders: bool, all_notes: bool,
          symmetry: str | None, prove: bool, processes: int, rows: bool, out: Path, as_json: bool,
          **numbers: int) -> int:  # fmt: skip
    """Check the protocol in every order within the bounds.

    Deliveries, losses, deaths and restarts come in every order that the numbers allow. The production machines run;
    every invariant is checked in every state, and from each state the run must still be able to end. The command ends
    with 1 if one is broken; the shortest run that shows it is printed and written.
    """
    from ..core.simulation.checker import PROOFS, Bounds

    _check_options(prove)
    seconds = math.inf if prove and budget is None else parse_budget("60s" if budget is None else budget)
    given = tuple(sorted({"policy": policy, **parse_knobs(knobs)}.items()))
    bounds = list(PROOFS) if prove else [Bounds(**numbers, knobs=given)]
    find_here()
    for one in bounds:
        one.setup()  # knobs that do not go together are said before anything is explored
    folder_for("--out", out)
    same = None if symmetry is None else parse_symmetry(symmetry)
    for one in bounds:
        if same is not None:
            one.some_of_its_ranks(same)
    jobs = [_Job(one, seconds, not all_orders, not all_notes, same) for one in bounds]
    found = []
    for report in _reports(jobs, min(processes, len(jobs))):
        found.append(report)
        if not as_json:
            click.echo(report.text(rows=rows and not prove))
    for report in found:
        _write(report, out)
    if as_json:
        click.echo(json.dumps([report.facts() for report in found], indent=1))
    elif prove and rows:
        click.echo("\n".join(_never(found)))
    bad = [report for report in found if not report.ok or (prove and not report.exploration.complete)]
    return 1 if bad else 0


def _check_options(prove: bool) -> None:
    """No option is passed over in silence. Raises `ConfigError`."""
    own = [f"--{name}" for name in OWN_BOUNDS if was_given(name)] + ["--set"] * was_given("knobs")
    if prove and own:
        raise ConfigError(f"--prove explores configurations of its own: leave {', '.join(own)} out, or --prove")
    if not prove and was_given("processes"):
        raise ConfigError("--processes is for the configurations of --prove: one search has one process; leave it out")


# --- exploring -------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Job:
    """One search."""

    bounds: Bounds
    seconds: float
    reduce: bool
    forget: bool
    symmetry: tuple[int, ...] | None


def _run(job: _Job, *, alone: bool) -> CheckReport:
    from ..core.simulation.checker import check as explored

    over = alone and sys.stderr.isatty()
    try:
        return explored(job.bounds, seconds=job.seconds, clock=time.monotonic, progress=_teller(job.bounds, over=over),
                        reduce=job.reduce, forget=job.forget, symmetry=job.symmetry)  # fmt: skip
    finally:
        if over:
            click.echo("\r\x1b[2K", nl=False, err=True)


def _reports(jobs: Sequence[_Job], processes: int) -> Iterator[CheckReport]:
    """In the order in which they are done."""
    if processes == 1:
        for job in jobs:
            yield _run(job, alone=True)
        return
    with spawned(processes) as pool:
        yield from pool.imap_unordered(functools.partial(_run, alone=False), jobs)


def _teller(bounds: Bounds, *, over: bool) -> Callable[[Progress], None]:
    """Says on standard error how far a search is: in one line that is written `over`, where it has the terminal for
    itself, else in a line now and then."""
    told = 0.0, 0

    def tell(now: Progress) -> None:
        nonlocal told
        seconds, states = now.seconds - told[0], now.states - told[1]
        if seconds < (SECONDS_OVER if over else SECONDS_PLAIN):
            return
        told = now.seconds, now.states
        text = (f"{now.states:,} states ({now.waiting:,} to be explored), {now.transitions:,} transitions, "
                f"faults: {now.faults}, depth: {now.depth}, {now.seconds:.0f} s, {states / seconds:,.0f} states/s, "
                f"{_peak_mib():,.0f} MiB")  # fmt: skip
        click.echo(f"\r\x1b[2K{text}\r" if over else f"{bounds}: {text}", nl=not over, err=True)

    return tell


def _peak_mib() -> float:
    """The most memory that this process has had, in MiB."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


# --- what is written -------------------------------------------------------------------------------------------------


def _write(report: CheckReport, out: Path) -> None:
    found = report.counterexample
    if found is None:
        return
    text = {"schedule": str(found.schedule), "diagram": found.diagram(), "test": found.test()}
    for name, part in FILES.items():
        write_text(out / name, text[part])
    click.echo(f"written: {', '.join(str(out / name) for name in FILES)}; see `paceline replay`", err=True)


def _never(reports: Sequence[CheckReport]) -> Iterator[str]:
    """The rows that none of the searches took."""
    never = [row for row in reports[0].untaken if all(row in report.untaken for report in reports)]
    yield f"{reports[0].rows - len(never)} of {reports[0].rows} rows of the tables were taken; never taken:"
    yield from (f"  {row}" for row in never)
