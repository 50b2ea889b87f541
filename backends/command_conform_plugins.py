"""`paceline conform averager` and `paceline conform policy`: the kits for what averages and for what decides."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from ..core.conformance import Level
from ..core.errors import ConfigError
from .command_conform import KIT_OPTIONS, list_checks, show_outcome, show_report

__all__ = ["averager", "policy"]


@contextmanager
def _modules_of_this_directory() -> Iterator[None]:
    """Modules of the working directory are found, as by `python -m`."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


@click.command()
@KIT_OPTIONS
@click.argument("name", required=False)
def averager(level: str, only: Sequence[str], json_path: Path | None, list_only: bool, name: str | None) -> int:
    """Check the averager NAME.

    It is that of an installed one, or module:class if it is not installed.
    """
    from .conformance import KIT, averager_named, check_averager

    if list_only:
        return list_checks(KIT, Level[level], only)
    if name is None:
        raise ConfigError("which averager? give NAME, such as star, or --list to see the checks")
    with _modules_of_this_directory():
        make = averager_named(name)
    report = check_averager(make, target=name, level=Level[level], only=only, on_outcome=show_outcome)
    return show_report(report, json_path)


@click.command()
@KIT_OPTIONS
@click.option(
    "--kind",
    type=click.Choice(["cadence", "guard", "detector"]),
    required=True,
    help="What it decides: the steps per window, whether ranks drift apart, how long a rank may take.",
)
@click.argument("target", metavar="MODULE:FACTORY", required=False)
def policy(level: str, only: Sequence[str], json_path: Path | None, list_only: bool, kind: str,
           target: str | None) -> int:  # fmt: skip
    """Check the policy that MODULE:FACTORY makes.

    A class is a factory.
    """
    from ..core.conformance.named import named
    from ..core.conformance.policies import KITS, check_policy

    if list_only:
        return list_checks(KITS[kind], Level[level], only)
    if target is None:
        raise ConfigError("which policy? give MODULE:FACTORY, such as mypackage:MyGuard, or --list to see the checks")
    with _modules_of_this_directory():
        make = named(target, "policy")
    report = check_policy(kind, make, target=target, level=Level[level], only=only, on_outcome=show_outcome)
    return show_report(report, json_path)
