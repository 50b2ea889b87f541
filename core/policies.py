"""What decides and can be replaced: convergence guard, cadence balancer, failure detector, meta-controller.

Each is a small pure object: numbers in, a decision out, no clock, no random source. A config names them, as
`guard = "mypackage:MyGuard"` (`policy_choice.py`); a program may give them beside the config instead:

    Coordinator(config, policies=Policies(cadence=MyBalancer, detector=FixedDetector(20.0)))

Whether one of your own keeps its contract is what `paceline.core.conformance.policies` says, and
`paceline conform policy module:factory --kind cadence`; docs/guides/write-a-policy.md explains it.

What one of your own raises is told and costs its answer, never the cycle in which it was asked (C-13): the coordinator
calls policies through `consulted`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs

from .cadence import CadencePhase
from .cadence_inputs import Verdict, WindowReport
from .detector import Detector
from .effects import Alert
from .guard import Guard
from .meta import Meta

if TYPE_CHECKING:
    from .coordinator import Coordinator

__all__ = [
    "UNCHANGED", "Cadence", "CadenceFactory", "Policies", "apply", "consulted", "forget", "overshoot", "readings",
    "recent_share", "slacken",
]  # fmt: skip

UNCHANGED = "the counts stay as they are"
"""What a balancer that raises is told to have answered."""

Answer = TypeVar("Answer")


class Cadence(Protocol):
    """How many steps each rank takes between two averages. `core.cadence.Balancer` is the one that ships.

    To read: `ranks` (every seat it knows, ascending), `anchor` (steps per window of the slowest), `counts[r]` (steps
    per window, for every rank it knows), `overshoots[r]` (Async, G-9), `phase`, and whether a report has calibrated
    the counts, or a hint made them unequal. Durations are milliseconds.
    """

    @property
    def ranks(self) -> list[int]: ...

    @property
    def anchor(self) -> int: ...

    @property
    def counts(self) -> dict[int, int]: ...

    @property
    def overshoots(self) -> dict[int, int]: ...

    @property
    def phase(self) -> CadencePhase: ...

    @property
    def calibrated(self) -> bool: ...

    @property
    def hinted(self) -> bool: ...

    def ms(self, rank: int) -> float:
        """What a step of the rank costs; 0 if it is not known."""
        ...

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        """One window is over (B-4)."""
        ...

    def apply(self, verdict: Verdict) -> None:
        """A verdict about this cycle (B-12)."""
        ...

    def stage_slack(self, rank: int, ms: float) -> None:
        """Free so much of the rank's next window for its callbacks (B-14)."""
        ...

    def overshoot(self, rank: int, reduce_ms: float | None, max_overshoot: int | str) -> int:
        """Recompute, keep in `overshoots` and return how far an Async rank may run ahead (G-9)."""
        ...

    def forget(self, rank: int) -> None:
        """The incarnation of the rank ended; its count may be kept (B-17)."""
        ...

    def admit(self, rank: int) -> None:
        """A new incarnation, or a new rank, became a voter (B-17)."""
        ...

    def saved(self) -> dict[str, Any]:
        """All that must survive a restart, ready for JSON (B-16)."""
        ...

    def restore(self, saved: Mapping[str, Any]) -> bool:
        """Take over what `saved` gave; False, and nothing changed, if it is not of this policy or of other ranks."""
        ...


CadenceFactory = Callable[..., Cadence]
"""Makes a balancer when training begins. It is called with the keyword arguments of `Balancer`: `ranks`, `anchor`,
`min_anchor`, `max_anchor`, `overhead_target`, `growth_applies`, `max_batch_diff`, `cap`, `relax_allowed`,
`speed_ratios`, `anchor_ratios`, `hardware`."""


@attrs.frozen(kw_only=True)
class Policies:
    """The policies of a coordinator. In the place of None comes what the config names (B-33, B-40, `policy_choice.py`).
    `cadence` and `meta` are factories; the balancer is made when training begins, the meta-controller with the
    coordinator."""

    guard: Guard | None = None
    cadence: CadenceFactory | None = None
    detector: Detector | None = None
    meta: Callable[[], Meta] | None = None


def consulted(co: Coordinator, method: str, ask: Callable[[], Answer], otherwise: Answer, text: str) -> Answer:
    """What a policy answers. One that raises is alerted under `method`, with `text` for what happens instead, and has
    answered `otherwise`: it may be the embedder's, and must not leave half the cohort updated (C-13)."""
    try:
        return ask()
    except Exception as error:
        co.emit(Alert("callback_failed", method, f"{type(error).__name__}: {error}; {text}"))
        return otherwise


def readings(co: Coordinator, ranks: Sequence[int]) -> list[float]:
    """What a step costs each of these ranks, in milliseconds; 0 where it is not known, or what the balancer says is no
    finite positive number."""

    def ask() -> list[float]:
        told = map(co.balancer.ms, ranks)
        return [float(ms) if isinstance(ms, (float, Real)) and 0 < ms < math.inf else 0.0 for ms in told]

    return consulted(co, "cadence.ms", ask, [0.0] * len(ranks), "none counts as measured")


def recent_share(co: Coordinator) -> dict[int, float]:
    """What part of the work each rank was given of late, for the record of an epoch (K-20). A balancer of the
    embedder's own need not tell; then there is none."""
    nothing: dict[int, float] = {}

    def ask() -> dict[int, float]:
        return dict(getattr(co.balancer, "recent_share", dict)())

    return consulted(co, "cadence.recent_share", ask, nothing, "the shares are absent")


def overshoot(co: Coordinator, rank: int) -> None:
    """How far an async rank may run ahead from now on (G-9); before an average was made none has been timed."""
    took = co.cycle.last_reduce_ms if co.cycle.version else None
    most = co.config.max_overshoot
    consulted(co, "cadence.overshoot", lambda: co.balancer.overshoot(rank, took, most), 0, UNCHANGED)


def apply(co: Coordinator, verdict: Verdict) -> None:
    """A verdict goes through the seam (B-12)."""
    consulted(co, "cadence.apply", lambda: co.balancer.apply(verdict), None, UNCHANGED)


def slacken(co: Coordinator, rank: int, ms: float) -> None:
    """A rank will need so much of its next window for its callbacks (B-14)."""
    consulted(co, "cadence.stage_slack", lambda: co.balancer.stage_slack(rank, ms), None, UNCHANGED)


def forget(co: Coordinator, rank: int) -> None:
    """A rank has died, left, or fallen behind (B-17, M-14)."""
    consulted(co, "cadence.forget", lambda: co.balancer.forget(rank), None, UNCHANGED)
