"""`paceline conform averager` and `paceline conform policy`: the kits for what averages and for what decides."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from ..core.conformance import PATIENCE_S, Level, Report
from ..core.errors import ConfigError
from .command_conform import KIT_OPTIONS, judged, list_checks
from .extras import needing
from .kit_process import Watch

__all__ = ["averager", "policy"]


@click.command()
@KIT_OPTIONS
@click.option("--over", metavar="URL", help="Send blocks over this transport, such as tcp://127.0.0.1:0; else they are "
                                            "handed over in memory. For an averager that ships.")
@click.option("--processes", is_flag=True, help="Give each rank a process of its own, and kill some; else ranks are "
                                                "threads. For an averager that averages in place.")
@click.argument("name", required=False)
def averager(level: str, only: Sequence[str], json_path: Path | None, list_only: bool, over: str | None,
             processes: bool, patience_s: float | None, name: str | None) -> int:  # fmt: skip
    """Check the averager NAME.

    It is that of an installed one, or module:class if it is not installed.
    """
    if list_only:
        return list_checks(_averagers().KIT, Level[level], only)
    if name is None:
        raise ConfigError("which averager? give NAME, such as star, or --list to see the checks")
    job = functools.partial(_judge_averager, name=name, level=Level[level], only=only, over=over, processes=processes,
                            patience_s=patience_s)  # fmt: skip
    return judged(job, f"averager {name!r}", json_path, patience_s or PATIENCE_S)


def _judge_averager(watch: Watch, *, name: str, patience_s: float | None, **options: Any) -> Report:
    kit = _averagers()
    check_s = patience_s or kit.CHECK_S
    report: Report = kit.check_averager(kit.averager_named(name), target=name, check_s=check_s, **options,
                                        **watch(check_s))  # fmt: skip
    return report


def _averagers() -> ModuleType:
    """The package of the kit, which needs an extra."""
    with needing("torch"):
        return importlib.import_module(".conformance", __package__)


@click.command()
@KIT_OPTIONS
@click.option(
    "--kind",
    type=click.Choice(["cadence", "guard", "detector", "meta"]),
    required=True,
    help="What it decides: the steps per window, whether ranks drift apart, how long a rank may take, whether a window "
         "is too long for the learning rate.",
)
@click.argument("target", metavar="NAME", required=False)
def policy(level: str, only: Sequence[str], json_path: Path | None, list_only: bool, kind: str,
           patience_s: float | None, target: str | None) -> int:  # fmt: skip
    """Check the policy NAME.

    It is one that ships, by its name in the configuration (guards level, growth, none; cadences sync, cadence, async;
    detectors learned, fixed; the meta-controller true), or what module:factory makes. A class is a factory.
    """
    from ..core.conformance.policies import KITS

    if list_only:
        return list_checks(KITS[kind], Level[level], only)
    if target is None:
        raise ConfigError("which policy? give NAME, such as level or mypackage:MyGuard, or --list to see the checks")
    KITS[kind].select(only=only)  # a check that there is not is told before anything is started
    patience_s = patience_s or PATIENCE_S
    job = functools.partial(_judge_policy, kind=kind, target=target, level=Level[level], only=only,
                            patience_s=patience_s)  # fmt: skip
    return judged(job, f"{kind} {target!r}", json_path, patience_s)


def _judge_policy(watch: Watch, *, kind: str, target: str, patience_s: float, **options: Any) -> Report:
    from ..core.conformance.policies import check_policy, policy_named
    from ..transports.limit import ended

    return check_policy(kind, policy_named(kind, target), target=target, limit=ended, patience_s=patience_s, **options,
                        **watch(patience_s))  # fmt: skip
