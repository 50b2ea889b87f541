"""The conformance kit for averagers: does a plug-in keep the contract of `Averager`, or of `InPlaceAverager`?

    paceline conform averager myname --json out.json        the averager that is installed under this name
    paceline conform averager myname --over tcp://127.0.0.1:0
                                                            the same over a real transport
    paceline conform averager myname --processes            one that averages in place, each rank in a process
    check_averager(MyAverager)                              the same, from a test of your own

The checks need numpy; one of them torch, and says so where it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from ...core.conformance import CheckFailed, Level, Outcome, Report, run_kit, will
from ...core.errors import ConfigError
from ...core.named import named
from ...transports.limit import ended
from ..averager import Averager, find_averager, known_averagers
from ..in_place import InPlaceAverager
from . import contract, faults, in_place, in_place_faults, sums
from .hosts import hosting
from .kit import KIT, Subject, capabilities_of
from .wire import wired

__all__ = ["CHECK_S", "KIT", "Subject", "averager_named", "check_averager", "claims_of", "ensure_suits"]

CHECK_S = 120.0
"""The seconds that a check may take, where nothing else is said: over a slow wire, among many processes, too."""
CALL_S = 10.0
"""The seconds that one call of a check may take then; more where a check is given more, and never less."""

CHECKED = (contract, sums, faults, in_place, in_place_faults)
"""The modules that hold the checks; importing them fills the kit."""


def averager_named(name: str) -> Any:
    """The class of an installed averager by its name, or what `module:class` names. Raises `ConfigError` if there is
    none."""
    if ":" not in name and name not in known_averagers():
        installed = ", ".join(known_averagers())
        raise ConfigError(f"there is no averager {name!r}; installed are {installed}; another is named module:class")
    return named(name, "averager") if ":" in name else find_averager(name)


def claims_of(make: Callable[..., Any], check_s: float = CHECK_S) -> dict[str, bool]:
    """For each capability of the kit whether the averager claims it; of one that is not made in `check_s`, or ends the
    program instead, nothing is known, and it is judged as one that ships."""

    def stated() -> dict[str, bool]:
        able = capabilities_of(make)
        return {name: bool(getattr(able, name, False)) for name in ("in_place", "abortable", "needs_session")}

    claims = dict.fromkeys(("in_place", "abortable", "needs_session"), False)
    with suppress(CheckFailed):
        claims = ended(stated, check_s)
    return {**claims, "ships": not claims["in_place"]}


def ensure_suits(name: str, claims: Mapping[str, bool], over: str | None, processes: bool) -> None:
    """`ConfigError` unless the kit can look so at an averager of this kind; see `check_averager`."""
    if over is not None and claims["in_place"]:
        raise ConfigError(f"--over {over}: {name} averages in place, over connections of its own; take --processes")
    if processes and claims["ships"]:
        raise ConfigError(f"--processes: {name} ships, so its checks have no ranks to put there; take --over URL")


def check_averager(
    make: Callable[..., Averager | InPlaceAverager],
    *,
    target: str = "",
    level: Level = Level.L3,
    only: Sequence[str] = (),
    on_begin: Callable[[Report], None] | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
    patience_s: float | None = None,
    over: str | None = None,
    processes: bool = False,
    check_s: float = CHECK_S,
) -> Report:
    """Judge an averager: its class, or whatever makes one from `(schema, *, gamma, digest)`; if it averages in place,
    from `(schema, live, *, gamma)`.

    What it claims is read from its `capabilities`, or from those of what a function makes.

    Args:
        target: its name in the report.
        level, only: which checks.
        patience_s: a call in place, or a block over a transport, that takes longer is taken to hang. Left open, a part
            of `check_s`, and 10 s at least.
        over: the transport over which blocks travel, `scheme://address` or `module:factory@scheme://address`; left
            open, they are handed over in memory. For an averager that ships.
        processes: whether each rank lives in a process of its own, and may be killed; else ranks are threads. For one
            that averages in place, which a process finds by `target` (an installed name, or `module:class`).
        check_s: a check that has not ended after that has failed, and those after it are not made. Whatever the
            averager does, all of it ends within twice that, and the time of what was made before.

    Raises:
        ConfigError: `only` names no check; `over` or `processes` is for the other kind of averager; `over` names no
            transport.
        TransportError: nobody can listen at `over`.
    """
    patience_s = patience_s or max(CALL_S, check_s * CALL_S / CHECK_S)
    name = target or str(getattr(make, "name", getattr(make, "__name__", "averager")))
    shown = " ".join([name, *(["--over", over] if over else []), *(["--processes"] if processes else [])])
    asked: dict[str, Any] = dict(
        target=shown, level=level, only=only, rerun=f"paceline conform averager {shown} --check {{}}".format
    )
    if on_begin is not None:  # what it claims is the first that it is asked
        on_begin(will(KIT, claims=dict.fromkeys(KIT.capabilities, False), **asked))
    claims = claims_of(make, check_s)
    ensure_suits(name, claims, over, processes)
    with ExitStack() as held:
        wire = None if over is None else held.enter_context(wired(over, patience_s))
        hosts = held.enter_context(hosting(name, check_s / 2)) if processes else None
        return run_kit(
            KIT, Subject(make, claims["in_place"], patience_s, wire, hosts), claims=claims, limit=ended,
            patience_s=check_s, on_begin=on_begin, on_outcome=on_outcome, **asked,
        )  # fmt: skip
