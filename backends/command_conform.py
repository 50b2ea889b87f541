"""The command `paceline conform`: run a conformance kit over a plug-in and say what it does not keep.

A group with one command for each kind of plug-in. What they share is here: which checks, how they are shown, the report
as a file, the exit code. A command says what runs its kit, and `judged` runs that in a process of its own
(`kit_process.py`): what a plug-in does to its process is an outcome, too.

Whatever the caller got wrong is a `ConfigError` before the first check: a name that names nothing, a module that cannot
be imported, a report that could not be written after minutes of checks. What is wrong with the plug-in is an outcome.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ..core.conformance import Kit, Level, Outcome, Report, Status
from ..core.errors import ConfigError
from .kit_process import Job, Watch, judged_apart
from .places import STDOUT, Place, file_for, write_text

__all__ = ["FOUND_WANTING", "KIT_OPTIONS", "conform", "judged", "list_checks", "show_outcome", "show_report"]

FOUND_WANTING = 1
"""Exit code when a check failed."""

Command = TypeVar("Command", bound=Callable[..., Any])

_WORDS = {
    Status.PASSED: "passed",
    Status.FAILED: "FAILED",
    Status.NOT_CLAIMED: "not claimed",
    Status.NOT_CHECKED: "not checked",
    Status.ERROR: "ERROR",
}


def _above_zero(context: click.Context, option: click.Parameter, given: float | None) -> float | None:
    if given is not None and not 0 < given < math.inf:
        raise ConfigError(f"{option.opts[0]} {given:g} is not allowed: give a finite number of seconds above 0")
    return given


_seconds = functools.partial(click.option, type=float, callback=_above_zero, metavar="SECONDS")


def KIT_OPTIONS(command: Command) -> Command:
    """The options of every kit: `level`, `only`, `json_path`, `patience_s`, `list_only`."""
    for option in reversed((
        click.option("--level", type=click.Choice([level.name for level in Level]), default=Level.L3.name,
                     show_default=True, help="How deep: found and made (L0), contract (L1), order and load (L2), "
                                             "faults (L3)."),
        click.option("--check", "only", multiple=True, metavar="ID", help="Only this check, repeatable."),
        click.option("--json", "json_path", type=Place("text"), metavar="FILE",
                     help="Write the report there, as docs/reference/conformance.md says; - is standard output, and "
                          "all else goes to standard error then."),
        _seconds("--patience", "patience_s", help="After this a check is taken to hang, and has failed. More than "
                                                  "the default is more for all times that are not given.  "
                                                  "[default: 60 for a policy, else 120]"),
        click.option("--list", "list_only", is_flag=True, help="Name the checks and run none."),
    )):  # fmt: skip
        command = option(command)
    return command


@click.group()
def conform() -> None:
    """Check that a plug-in keeps its contract.

    Each kind of plug-in has a kit of checks. A capability that the plug-in claims is tested; one that it does not claim
    is reported as such. What is not installed is named module:factory; the module may lie in this directory.

    Ends with 0 when no check failed and with 1 when one did. Any other code means that there is no report, most often
    2: the plug-in is not found, its module cannot be imported, the file of the report has no place. --json FILE keeps
    all that was found, --json - prints it; docs/reference/conformance.md has its fields.
    """


def judged(job: Job, name: str, json_path: Path | None, patience_s: float) -> int:
    """Run the kit of a plug-in of this name, show each outcome, write the report if it is wanted; gives the exit code.
    `patience_s`: what each check may take, as far as that is known here. Raises `ConfigError` where the report has no
    place, before anything is run."""
    file_for("--json", json_path)
    aside = json_path == STDOUT
    left: list[str] = []

    def show(outcome: Outcome) -> None:
        # When one check shuts the rest, that is said once, and how many there are in the sums; the report has them all.
        if outcome.status is not Status.NOT_CHECKED or outcome.message not in left:
            show_outcome(outcome, aside)
        if outcome.status is Status.NOT_CHECKED:
            left.append(outcome.message)

    return show_report(judged_apart(job, name, patience_s, show, aside=aside), json_path)


@conform.command()
@KIT_OPTIONS
@click.option("--fast", is_flag=True, help="Repeat little and use few channels: the same checks in less time.")
@_seconds("--heartbeat", "heartbeat_s", help="In what time control must pass, whatever bulk does.  [default: 1]")
@_seconds("--evidence", "evidence_s", help="In what time the death of a peer must be evidenced.  [default: 5]")
@_seconds("--limit", "limit_s", help="In what time a dial to nobody, or a handshake that stands still, must end.  "
                                     "[default: 60]")
@_seconds("--idle", "idle_s", help="How long a bulk lane is left silent, as it is while ranks compute.  "
                                   "[default: 12, with --fast 0.2]")
@click.argument("target", required=False)
def transport(level: str, only: Sequence[str], json_path: Path | None, list_only: bool, fast: bool, target: str | None,
              patience_s: float | None, **times: float | None) -> int:
    """Check the transport TARGET, such as pigeon://address.

    One that is not installed is named module:factory@pigeon://address. The address is one to listen at; it is used
    again and again, one listener at a time.
    """
    from ..transports.conformance import KIT, PATIENCE_S

    if list_only:
        return list_checks(KIT, Level[level], only)
    if target is None:
        raise ConfigError("which transport? give TARGET, such as tcp://127.0.0.1:0, or --list to see the checks")
    KIT.select(only=only)  # a check that there is not is told before anything is started
    patience_s = patience_s or PATIENCE_S
    given: dict[str, Any] = {name: seconds for name, seconds in times.items() if seconds is not None}
    job = functools.partial(_judge_transport, target=target, level=Level[level], only=only, thorough=not fast,
                            patience_s=patience_s, **given)  # fmt: skip
    return judged(job, f"transport {target!r}", json_path, patience_s)


def _judge_transport(watch: Watch, *, target: str, level: Level, only: Sequence[str], patience_s: float,
                     **options: Any) -> Report:  # fmt: skip
    from ..transports.conformance import bench_for, conform

    bench = bench_for(target, patience_s=patience_s, **options)
    # A kit provokes faults; what the library logs about them is no news to whoever reads the outcomes.
    logging.getLogger("paceline").addHandler(logging.NullHandler())
    return conform(bench, level=level, only=only, **watch(patience_s))


def list_checks(kit: Kit[Any], level: Level, only: Sequence[str] = ()) -> int:
    """Name the checks of a kit: id, level, what each asserts, and the capability it depends on."""
    for check in kit.select(level=level, only=only):
        needed = ", ".join(each for each in (check.within, check.needs) if each)
        needs = f" [{needed}]" if needed else ""
        click.echo(f"{check.id} {check.level.name} {check.name.replace('_', ' ')}{needs}\n        {check.asserts}")
    return 0


def show_outcome(outcome: Outcome, aside: bool = False) -> None:
    """A line for each check; for one that failed also what it asserts, why it failed, and what to do next. `aside`: on
    standard error."""
    name = outcome.name.replace("_", " ")
    lines = [f"{outcome.id} {outcome.level.name} {_WORDS[outcome.status]:<12} {name}"]
    if outcome.status is not Status.PASSED:
        lines.append(f"        {outcome.message}")
    if not outcome.ok:
        lines += [f"        asserts: {outcome.asserts}", f"        explained: docs/{outcome.doc}",
                  f"        again: {outcome.rerun}"]  # fmt: skip
    click.echo("\n".join(lines), err=aside)


def show_report(report: Report, json_path: Path | None) -> int:
    """The sums, the report as a file if it is wanted, and the exit code."""
    claimed = ", ".join(name for name, claim in sorted(report.claims.items()) if claim) or "nothing"
    counts = ", ".join(f"{report.count(status)} {_WORDS[status].lower()}" for status in Status if report.count(status))
    aside = json_path == STDOUT
    kit = f"kit {report.kit} {report.kit_version}, up to {report.level.name}"
    click.echo(f"{report.target}: {kit}; claims {claimed}", err=aside)
    click.echo(counts or "no check was run", err=aside)
    if json_path is not None:
        write_text(json_path, report.to_json())
    return 0 if report.ok else FOUND_WANTING
