"""Runs checks one after the other and turns whatever they raise into outcomes.

A check may be a coroutine function; how such a function is run is the caller's, who passes `run`: `trio.run` under a
limit of time, for instance. So is what ends any other that does not come back in time, `limit`: no clock and no thread
is in here. Whatever a check raises is an outcome, `SystemExit` too; an interrupt by the user is none, and ends the run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..errors import ConfigError, LocalProtocolError
from .blame import leaves, said
from .kit import Body, Check, CheckFailed, Kit, Level, NotChecked, Stuck, Subject, not_ended
from .report import Outcome, Report, Status

__all__ = ["PATIENCE_S", "Limit", "Run", "run_check", "run_kit", "unlimited", "will"]

PATIENCE_S = 60.0
"""The seconds that a check may take, where nothing else is said: many times what any of ours needs."""

Run = Callable[[Callable[[], Awaitable[object]]], object]
"""Runs a coroutine function without arguments to its end and lets its exceptions out."""

Limit = Callable[[Callable[[], Any], float], Any]
"""Makes a call and gives what it returns or raises; raises `Stuck` if it has not come back after so many seconds."""

Rerun = Callable[[str], str]
"""The command that runs the check of this id alone."""


def unlimited(call: Callable[[], Any], limit_s: float) -> Any:
    """A `Limit` that waits for as long as the call takes. What it raises to end the program is a `CheckFailed`, but for
    an interrupt."""
    try:
        return call()
    except (SystemExit, GeneratorExit) as error:
        raise not_ended(error) from error


def run_kit(
    kit: Kit[Subject],
    subject: Subject,
    *,
    target: str,
    claims: Mapping[str, bool],
    run: Run | None = None,
    limit: Limit = unlimited,
    patience_s: float = PATIENCE_S,
    level: Level = Level.L3,
    only: Sequence[str] = (),
    rerun: Rerun = str,
    on_begin: Callable[[Report], None] | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Report:
    """Run the checks up to `level`, or those that `only` names, and report.

    A plug-in that fails at L0, or at a check that is a gate, or never comes back from a call, cannot be judged
    further: the checks after it are then reported as not checked.

    Args:
        subject: what the bodies of the checks take.
        target: what the report calls it.
        claims: for each capability of the kit whether the plug-in claims it.
        run: runs the bodies that are coroutine functions; needed if there are any.
        limit: runs the bodies that are none, `paceline.transports.limit.ended` for instance; left open, one that never
            comes back holds whoever calls.
        patience_s: the seconds after which such a body is taken to hang.
        rerun: gives the command that runs one check alone.
        on_begin: called before each check with its `will`, for whoever sees the process end.
        on_outcome: called after each check, for a display.

    Raises:
        ConfigError: `claims` has not exactly the kit's capabilities, or `only` names no check.
    """
    _ensure_asked(kit, target, claims)
    outcomes: list[Outcome] = []
    shut: Outcome | None = None
    hung = False
    for check in kit.select(level=level, only=only):
        stuck = False
        if shut is not None and (hung or check.level > Level.L0):
            outcome = _shut(check, shut.id, rerun)
        elif check.within is not None and not claims[check.within]:
            outcome = _outcome(check, Status.NOT_CLAIMED, f"{check.within} is not claimed", rerun)
        else:
            if on_begin is not None:
                on_begin(will(kit, target=target, claims=claims, level=level, only=only, rerun=rerun, made=outcomes))
            claimed = check.needs is None or claims[check.needs]
            outcome, stuck = _checked(check, subject, claimed, run, rerun, limit, patience_s)
        outcomes.append(outcome)
        hung |= stuck
        if not outcome.ok and shut is None and (stuck or check.gate or check.level is Level.L0):
            shut = outcome
        if on_outcome is not None:
            on_outcome(outcome)
    return Report(
        kit=kit.name, kit_version=kit.version, target=target, level=level, claims=dict(claims),
        outcomes=tuple(outcomes),
    )  # fmt: skip


def _ensure_asked(kit: Kit[Any], target: str, claims: Mapping[str, bool]) -> None:
    if set(claims) != set(kit.capabilities):
        raise ConfigError(
            f"the kit {kit.name} wants to know of the capabilities {sorted(kit.capabilities)} whether {target} claims "
            f"them, and was told of {sorted(claims)}"
        )


def will(
    kit: Kit[Any],
    *,
    target: str,
    claims: Mapping[str, bool],
    level: Level = Level.L3,
    only: Sequence[str] = (),
    rerun: Rerun = str,
    made: Sequence[Outcome] = (),
) -> Report:
    """What there is to say if the check after those that were `made` ends with the whole process: it has failed, and
    none after it is made. Its message is empty, for only who sees that end can say how it came (`Report.closed`).
    Arguments as of `run_kit`."""
    lost, *rest = kit.select(level=level, only=only)[len(made) :]
    outcomes = (*made, _outcome(lost, Status.FAILED, "", rerun), *(_shut(check, lost.id, rerun) for check in rest))
    return Report(kit=kit.name, kit_version=kit.version, target=target, level=level, claims=dict(claims),
                  outcomes=outcomes)  # fmt: skip


def run_check(
    check: Check[Subject],
    subject: Subject,
    *,
    claimed: bool = True,
    run: Run | None = None,
    rerun: Rerun = str,
    limit: Limit = unlimited,
    patience_s: float = PATIENCE_S,
) -> Outcome:
    """Run one check. `claimed` is whether the plug-in has the capability that the check needs."""
    return _checked(check, subject, claimed, run, rerun, limit, patience_s)[0]


def _checked(
    check: Check[Subject], subject: Subject, claimed: bool, run: Run | None, rerun: Rerun, limit: Limit,
    patience_s: float,
) -> tuple[Outcome, bool]:  # fmt: skip
    """The outcome, and whether the plug-in did not come back."""
    if not claimed and check.unclaimed is None:
        return _outcome(check, Status.NOT_CLAIMED, f"{check.needs} is not claimed", rerun), False
    body = check.body if claimed or check.unclaimed is None else check.unclaimed
    raised = _raised(body, subject, run, limit, patience_s)
    status, message = (Status.PASSED, "") if raised is None else _judge(raised)
    if not claimed and status is Status.PASSED:
        status, message = Status.NOT_CLAIMED, f"{check.needs} is not claimed, and lacks as documented"
    elif not claimed:
        message = f"{check.needs} is not claimed: {message}"
    return _outcome(check, status, message, rerun), isinstance(raised, Stuck)


def _raised(
    body: Body[Subject], subject: Subject, run: Run | None, limit: Limit, patience_s: float
) -> Exception | None:
    try:
        if inspect.iscoroutinefunction(body):
            if run is None:
                raise LocalProtocolError("this check is a coroutine function, and nothing was given that runs those")
            run(functools.partial(body, subject))
        else:
            limit(functools.partial(body, subject), patience_s)
    except Exception as error:
        return error
    return None


def _judge(error: Exception) -> tuple[Status, str]:
    """The weightiest thing that was raised; tasks that run together raise in groups."""
    raised = list(leaves(error))
    for kind, status in ((CheckFailed, Status.FAILED), (NotChecked, Status.NOT_CHECKED)):
        for leaf in raised:
            if isinstance(leaf, kind):
                return status, str(leaf)
    return Status.ERROR, said(error)


def _shut(check: Check[Subject], by: str, rerun: Rerun) -> Outcome:
    return _outcome(check, Status.NOT_CHECKED, f"{by} failed: repair that first", rerun)


def _outcome(check: Check[Subject], status: Status, message: str, rerun: Rerun) -> Outcome:
    return Outcome(
        id=check.id,
        name=check.name,
        level=check.level,
        status=status,
        message=message,
        asserts=check.asserts,
        doc=check.doc,
        rerun=rerun(check.id),
    )
