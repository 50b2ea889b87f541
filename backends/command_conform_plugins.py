"""`paceline conform averager` and `paceline conform policy`: the kits for what averages and for what decides."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..core.conformance import Level
from ..core.errors import ConfigError
from .command_conform import KIT_OPTIONS, list_checks, show_outcome, show_report

__all__ = ["averager", "named", "policy"]


def named(target: str, what: str) -> Any:
    """The object that `module:name` names; modules of the working directory are found, as by `python -m`. Raises
    `ConfigError` that says which part of it is wrong."""
    module, _, name = target.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as failure:
        raise ConfigError(f"{what} {target!r} cannot be loaded: {failure}; give module:name, importable from "
                          "here") from failure  # fmt: skip
    finally:
        sys.path.remove(here)
    return found


@click.command()
@KIT_OPTIONS
@click.argument("name", required=False)
def averager(level: str, only: Sequence[str], json_path: Path | None, list_only: bool, name: str | None) -> int:
    """Check the averager NAME.

    It is that of an installed one, or module:class if it is not installed.
    """
    from .averager import find_averager
    from .conformance import KIT, check_averager

    if list_only:
        return list_checks(KIT, Level[level], only)
    if name is None:
        raise ConfigError("which averager? give NAME, such as star, or --list to see the checks")
    make = named(name, "averager") if ":" in name else find_averager(name)
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
    from ..core.conformance.policies import KITS, check_policy

    if list_only:
        return list_checks(KITS[kind], Level[level], only)
    if target is None:
        raise ConfigError("which policy? give MODULE:FACTORY, such as mypackage:MyGuard, or --list to see the checks")
    make = named(target, "policy")
    report = check_policy(kind, make, target=target, level=Level[level], only=only, on_outcome=show_outcome)
    return show_report(report, json_path)
