"""The conformance kit for averagers: does a plug-in keep the contract of `Averager`, or of `InPlaceAverager`?

    paceline conform averager myname --json out.json        the averager that is installed under this name
    check_averager(MyAverager)                              the same, from a test of your own

The checks need numpy; one of them torch, and says so where it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.conformance import Level, Outcome, Report, run_kit
from ...core.conformance.named import named
from ..averager import Averager, find_averager
from ..in_place import InPlaceAverager
from . import contract, faults, in_place, in_place_faults, sums
from .kit import KIT, Subject

__all__ = ["KIT", "Subject", "averager_named", "check_averager"]

CHECKED = (contract, sums, faults, in_place, in_place_faults)
"""The modules that hold the checks; importing them fills the kit."""


def averager_named(name: str) -> Any:
    """The class of an installed averager by its name, or what `module:class` names. Raises `ConfigError` if there is
    none."""
    return named(name, "averager") if ":" in name else find_averager(name)


def check_averager(
    make: Callable[..., Averager | InPlaceAverager],
    *,
    target: str = "",
    level: Level = Level.L3,
    only: Sequence[str] = (),
    on_outcome: Callable[[Outcome], None] | None = None,
    patience_s: float = 10.0,
) -> Report:
    """Judge an averager: its class, or whatever makes one from `(schema, *, gamma, digest)`; if it averages in place,
    from `(schema, live, *, gamma)`.

    What it claims is read from its `capabilities`. `target` is its name in the report, `level` and `only` choose the
    checks. `patience_s`: a call in place that takes longer is taken to hang. Raises `ConfigError` if `only` names no
    check.
    """
    able = getattr(make, "capabilities", None)
    claims = {name: bool(getattr(able, name, False)) for name in ("in_place", "abortable", "needs_session")}
    claims["ships"] = not claims["in_place"]
    name = target or str(getattr(make, "name", getattr(make, "__name__", "averager")))
    return run_kit(
        KIT, Subject(make, patience_s), target=name, claims=claims, level=level, only=only, on_outcome=on_outcome,
        rerun=lambda check: f"paceline conform averager {name} --check {check}",
    )  # fmt: skip
