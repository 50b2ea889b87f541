"""Cases of the matrix of a worker: what a rank was like, what came, where it is afterwards and which orders it gave.

Orders are told by their names, and by the names of the reports behind `Reporting`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core.phases import WorkerPhase
from paceline.core.retention import MOST_BYTES

from .rank import Rank

TICKS = 50
"""As many heartbeats as a rank sends in the longest wait there is."""


@attrs.frozen
class Case:
    """See the module. `before` brings the rank of that phase into a more special situation."""

    phase: WorkerPhase
    what: str
    come: Callable[[Rank], list[Any]]
    after: WorkerPhase
    orders: tuple[str, ...] = ()
    policy: str = "cadence"
    before: Callable[[Rank], object] = lambda rank: None
    settings: dict[str, Any] = attrs.field(factory=dict)

    def __str__(self) -> str:
        return f"{self.phase.name.lower()}-{self.what}".replace(" ", "_")


def names(orders: list[Any]) -> tuple[str, ...]:
    """What the rank did, in words."""
    return tuple(type(o.report if isinstance(o, fx.Reporting) else o).__name__ for o in orders)


def say(kind: type, **fields: Any) -> Callable[[Rank], list[Any]]:
    """The coordinator sends a message."""
    return lambda rank: rank.control(kind, **fields)


def tell(event: Any) -> Callable[[Rank], list[Any]]:
    """The training process or the driver says something."""
    return lambda rank: rank.feed(event)


def overflow(rank: Rank) -> list[Any]:
    """More is unconfirmed than a lane may hold (N-9)."""
    rank.worker.reports.bytes = MOST_BYTES + 1
    return rank.feed(ev.LinkUp())


def seq(*steps: Callable[[Rank], object]) -> Callable[[Rank], object]:
    """One after the other."""

    def run(rank: Rank) -> None:
        for step in steps:
            step(rank)

    return run


def each(phases: tuple[WorkerPhase, ...], what: str, come: Callable[[Rank], list[Any]], orders: tuple[str, ...] = (),
         after: WorkerPhase | None = None, **more: Any) -> list[Case]:  # fmt: skip
    """The same case in several phases; without `after` the phase stays."""
    return [Case(p, what, come, p if after is None else after, orders, **more) for p in phases]


def run(case: Case) -> tuple[Rank, list[Any]]:
    """Bring the case about."""
    rank = Rank(case.phase, case.policy, **case.settings)
    case.before(rank)
    return rank, case.come(rank)


def comes_to_rest(case: Case, then: Callable[[Rank], object]) -> bool:
    """Whether no deadline stays behind when it has passed: a driver would give Ticks for it without a pause. `then`
    comes 20 s after the case, so that no two waits end at one instant."""
    rank, _ = run(case)
    rank.now += 20.0
    rank.feed(ev.Tick())
    then(rank)
    idle = 0
    for _ in range(TICKS):
        due = rank.worker.poll_timeout()
        if due is None or idle > 2:  # several waits may end at one instant all the same
            break
        idle = idle + 1 if due <= rank.now else 0
        rank.now = max(rank.now, due)
        rank.feed(ev.Tick())
    return idle <= 2
