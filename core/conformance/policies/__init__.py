"""The conformance kits for policies: convergence guards, cadence balancers, failure detectors, meta-controllers.

    paceline conform policy mypackage:MyGuard --kind guard
    paceline conform policy growth --kind guard             one that ships, by its name in the configuration
    check_guard(MyGuard), check_cadence(MyBalancer), check_detector(MyDetector), check_meta(MyController)
                                                            the same, from a test of your own

What a kit takes is a factory, called anew for every policy it needs: a class will do. A policy may say what it `claims`
as a tuple of names of capabilities, an attribute of the class or of what is made; what it claims is tested, and what it
does not claim it must not do. Whatever is asked of it here the simulator asks of it too: a run with the policy plugged
in must finish its epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...detector import Detector
from ...guard import Guard
from ...meta import Meta
from ...policies import CadenceFactory
from .. import PATIENCE_S, Kit, Level, Limit, Outcome, Report, run_kit, unlimited, will
from . import liveness
from .cadences import CADENCES
from .detectors import DETECTORS
from .guards import GUARDS
from .metas import METAS
from .shipped import SHIPPED, policy_named
from .subjects import cadence, stated_claims

__all__ = ["CADENCES", "DETECTORS", "GUARDS", "KITS", "METAS", "SHIPPED", "check_cadence", "check_detector",
           "check_guard", "check_meta", "check_policy", "claims_of", "policy_named"]  # fmt: skip

KITS: dict[str, Kit[Any]] = {"cadence": CADENCES, "guard": GUARDS, "detector": DETECTORS, "meta": METAS}
"""The kits by the name of what they are for."""

LIVENESS = liveness
"""Holds the checks that simulate; importing it adds them to the kits."""


def check_policy(
    kind: str,
    make: Callable[..., Any],
    *,
    target: str = "",
    level: Level = Level.L3,
    only: Sequence[str] = (),
    on_begin: Callable[[Report], None] | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
    limit: Limit = unlimited,
    patience_s: float = PATIENCE_S,
) -> Report:
    """Judge what `make` makes by the kit of its `kind`: cadence, guard, detector or meta. `target` is its name in the
    report.

    With a `limit` (`paceline.transports.limit.ended`) a check that has not ended after `patience_s` seconds has failed,
    and those after it are not made: whatever the policy does, all of it ends within twice that, and the time of what
    was made before. Left open, a policy that loops holds whoever calls. Raises `ConfigError` if `only` names no check.
    """
    kit = KITS[kind]
    name = target or str(getattr(make, "__name__", kind))
    asked: dict[str, Any] = dict(
        target=name, level=level, only=only,
        rerun=lambda check: f"paceline conform policy {name} --kind {kind} --check {check}",
    )  # fmt: skip
    if on_begin is not None:  # what it claims is the first that it is asked
        on_begin(will(kit, claims=dict.fromkeys(kit.capabilities, False), **asked))
    claimed = claims_of(kind, make, limit, patience_s)
    return run_kit(kit, make, claims=claimed, limit=limit, patience_s=patience_s, on_begin=on_begin,
                   on_outcome=on_outcome, **asked)  # fmt: skip


def check_guard(make: Callable[[], Guard], **options: Any) -> Report:
    """Judge a guard; options as of `check_policy`."""
    return check_policy("guard", make, **options)


def check_cadence(make: CadenceFactory, **options: Any) -> Report:
    """Judge a balancer; options as of `check_policy`."""
    return check_policy("cadence", make, **options)


def check_detector(make: Callable[[], Detector], **options: Any) -> Report:
    """Judge a failure detector; options as of `check_policy`."""
    return check_policy("detector", make, **options)


def check_meta(make: Callable[[], Meta], **options: Any) -> Report:
    """Judge a meta-controller; options as of `check_policy`."""
    return check_policy("meta", make, **options)


def claims_of(
    kind: str, make: Callable[..., Any], limit: Limit = unlimited, patience_s: float = PATIENCE_S
) -> dict[str, bool]:
    """For each capability of the kit whether the policy claims it. One that cannot be made, or whose `claims` are no
    names, claims nothing, and L0 says why; so does one that is not made in `patience_s`."""

    def stated() -> tuple[str, ...]:
        return stated_claims(make, cadence(make) if kind == "cadence" else make())

    try:
        claimed = limit(stated, patience_s)
    except Exception:
        claimed = ()
    return {each: each in claimed for each in KITS[kind].capabilities}
