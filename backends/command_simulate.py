"""`paceline simulate`: many runs of a cohort under virtual time and faults, each with every invariant checked.

The runs are independent, so they are spread over processes (spawned, each with an interpreter of its own) and their
outcomes are added up in whatever order they come. What is printed does not depend on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import ConfigError
from .knobs import find_here, parse_knobs
from .places import Place, folder_for, write_text
from .pool import MOST_PROCESSES, spawned
from .words import counted

if TYPE_CHECKING:
    from ..core.simulation.campaign import Campaign
    from ..core.simulation.simulator import Case, Outcome, Run

__all__ = ["begin_process", "simulate"]

PROCESSES = 2
CHUNK = 4
"""Runs that a process takes at a time."""
COLLECT_EVERY = 50_000
"""New objects between two searches for rings. A run makes many small values and few rings; to look for them as often as
an interpreter does took a tenth of its time."""
SEEDS, MOST_SEEDS, MOST_SEED = 100, 1_000_000, (1 << 63) - 1
PLAIN_FIRST, PLAIN_EVERY = (10, 100), 1000
"""Runs after which a line of progress comes where there is no terminal."""
SINGLE_S = 15.0
"""Between two lines of progress of a single run."""
SHOWN = 5
"""Failures that are shortened and written; the others are named."""


@click.command()
@click.option("--ranks", default=8, show_default=True, type=click.IntRange(min=1), metavar="N",
              help="Ranks a run begins with.")
@click.option("--seeds", type=click.IntRange(1, MOST_SEEDS), metavar="N",
              help="Runs, with seeds 0 to N-1.  [default: 100]")
@click.option("--seed", type=click.IntRange(0, MOST_SEED), metavar="S", help="One run, with this seed.")
@click.option("--faults", default="storm", show_default=True, metavar="NAME",
              help="What strikes: calm, slow, flaky or storm.")
@click.option("--policy", metavar="NAME", help="sync, cadence or async.  [default: drawn from the seed]")
@click.option("--set", "knobs", multiple=True, metavar="KNOB=VALUE", help="A knob that is not to be drawn, repeatable.")
@click.option("--processes", default=PROCESSES, show_default=True, type=click.IntRange(1, MOST_PROCESSES),
              metavar="N", help="Processes that run them.")
@click.option("--out", default="paceline-simulate", show_default=True, type=Place("folder"), metavar="DIR",
              help="Where the schedules of failures go.")
@click.option("--keep", is_flag=True, help="With --seed: write the schedule of the run, failed or not.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def simulate(ranks: int, seeds: int | None, seed: int | None, faults: str, policy: str | None, knobs: Sequence[str],
             processes: int, out: Path, keep: bool, as_json: bool) -> int:  # fmt: skip
    """Simulate cohorts under virtual time, with faults.

    Slow ranks, lost links, deaths and full disks, all drawn from a seed. Every invariant of the protocol is checked
    after every event; then all faults stop and the run must come to its end. The command ends with 1 if an invariant
    breaks; a schedule that shows it, as short as can be, is written and named. From 1,000 storms on it also fails if
    one of the situations that they must come upon was never reached.
    """
    from ..core.simulation.campaign import Campaign
    from ..core.simulation.faults import profile
    from ..core.simulation.simulator import Case

    if seed is not None and seeds is not None:
        raise ConfigError("--seed is one run and --seeds are many: give one of them")
    if keep and seed is None:
        raise ConfigError("--keep writes the schedule of one run: name it with --seed")
    profile(faults)
    given = parse_knobs(knobs)
    find_here()
    folder_for("--out", out)
    numbers = range(seeds or SEEDS) if seed is None else (seed,)
    cases = [Case(seed=number, ranks=ranks, faults=faults, policy=policy, knobs=given) for number in numbers]
    _check(cases[0])
    campaign = Campaign(faults, ranks)
    written: dict[int, Path] = {}
    with _progress(len(cases), hidden=as_json) as progress:
        alone = None if as_json else _Teller()
        outcomes = _outcomes(cases, min(processes, len(cases))) if seed is None else [_run(cases[0], alone)]
        for outcome in outcomes:
            campaign.add(outcome)
            if outcome.schedule is not None:
                # At once: a campaign is long, and who ends it for what it has found wants to have that.
                written[outcome.case.seed] = file = _file(out, outcome.case.seed)
                write_text(file, str(outcome.schedule))
                progress.say(f"seed {outcome.case.seed}: {outcome.violation}; {file}")
            progress.advance(len(campaign.failures))
    _shorten(campaign, written)
    if keep and seed is not None:
        written[seed] = write_text(_file(out, seed), _whole(cases[0]))
    if as_json:
        schedules = {str(number): str(path) for number, path in written.items()}
        click.echo(json.dumps({**campaign.facts(), "schedules": schedules}, indent=1))
    else:
        click.echo("\n".join(_summary(campaign, written)))
    return 1 if campaign.failed else 0


def _check(case: Case) -> None:
    """Knobs that do not go together are said once, before any process is started."""
    from ..core.simulation.simulator import Run

    Run(case)


# --- running ---------------------------------------------------------------------------------------------------------


def _run(case: Case, watch: Callable[[Run], None] | None = None) -> Outcome:
    from ..core.simulation.simulator import simulate as run
    from ..transports.codec import MsgpackCodec

    try:
        return run(case, codec=MsgpackCodec(), watch=watch)
    except StopIteration as error:  # to whoever goes through the cases it would be the end of them
        raise RuntimeError(f"seed {case.seed} broke off") from error


def begin_process() -> None:
    """A process of the pool begins, which does nothing but runs."""
    import gc

    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)


def _outcomes(cases: Sequence[Case], processes: int) -> Iterator[Outcome]:
    if processes == 1:
        yield from map(_run, cases)
        return
    with spawned(processes, begin_process) as pool:
        yield from pool.imap_unordered(_run, cases, chunksize=CHUNK)


class _progress:
    """A bar on standard error, if somebody looks at it; else a line now and then."""

    def __init__(self, total: int, *, hidden: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from .screen import Screen

        console = Screen(stderr=True)
        self._bar = Progress(
            TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]} failed"),
            TimeRemainingColumn(), console=console, transient=True,
            disable=hidden or total == 1 or not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=total, failed=0)
        self._plain = not hidden and not console.is_terminal
        self._total, self._done = total, 0

    def __enter__(self) -> _progress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._bar.disable:
            click.echo(text, err=True)
        else:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def advance(self, failed: int) -> None:
        """One more run is over; so many have failed."""
        self._done += 1
        self._bar.update(self._task, advance=1, failed=failed)
        if self._plain and (self._done in PLAIN_FIRST or self._done % PLAIN_EVERY == 0):
            click.echo(f"simulating: {self._done:,} of {self._total:,}, {failed} failed", err=True)


class _Teller:
    """Says on standard error how far a single run is, now and then: one of many ranks may take minutes."""

    def __init__(self) -> None:
        self._next = time.monotonic() + SINGLE_S

    def __call__(self, run: Run) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SINGLE_S
            cycles = counted(run.world.co.cycle.sync_rounds, "cycle")
            click.echo(f"simulating seed {run.case.seed}: {counted(run.clockwork.steps, 'event')}, "
                       f"{run.clockwork.now:,.0f} s of virtual time, {cycles}", err=True)  # fmt: skip


# --- what is written and said ----------------------------------------------------------------------------------------


def _whole(case: Case) -> str:
    from ..core.simulation.simulator import Run
    from ..transports.codec import MsgpackCodec

    run = Run(case, codec=MsgpackCodec())
    outcome = run.outcome()
    return str(outcome.schedule or run.schedule())


def _file(out: Path, seed: int) -> Path:
    return out / f"seed-{seed}.schedule"


def _shorten(campaign: Campaign, written: dict[int, Path]) -> None:
    """The first few schedules of failures as short as can be: that may take minutes, and whoever does not wait for it
    has the whole ones."""
    from ..core.simulation.shrink import shrink
    from ..transports.codec import MsgpackCodec

    for seed, file in sorted(written.items())[:SHOWN]:
        schedule = campaign.failures[seed].schedule
        if schedule is not None:
            click.echo(f"seed {seed}: {file} is being shortened", err=True)
            write_text(file, str(shrink(schedule, MsgpackCodec())))


def _summary(campaign: Campaign, written: dict[int, Path]) -> Iterator[str]:
    from ..core.simulation.marks import MARKS

    ends = ", ".join(f"{count} {status}" for status, count in sorted(campaign.statuses.items()))
    yield (f"{counted(campaign.seeds, 'run')} of {counted(campaign.ranks, 'rank')}, faults {campaign.faults}: "
           f"{counted(campaign.steps, 'event')}, {counted(campaign.cycles, 'cycle')}, "
           f"{counted(campaign.struck, 'fault')}, {campaign.rank_hours:,.1f} simulated rank-hours")
    yield f"ended {ends}"
    if campaign.excuses:
        excused = ", ".join(f"{count} {why}" for why, count in sorted(campaign.excuses.items()))
        yield f"need not finish after the last fault: {excused}"
    width = max(map(len, MARKS))
    yield f"{'reached':<{width}}    runs   times  rule"
    for mark, rule in MARKS.items():
        yield f"{mark:<{width}}  {campaign.runs_with[mark]:>6}  {campaign.marks[mark]:>6}  {rule}"
    if campaign.unreached:
        yield f"never reached: {'; '.join(campaign.unreached)}"
    for seed, outcome in sorted(campaign.failures.items()):
        yield f"seed {seed}: {outcome.violation}"
    for seed, path in sorted(written.items()):
        yield f"schedule of seed {seed}: {path}, for `paceline replay`"
    if not campaign.failures:
        yield "every invariant holds"
