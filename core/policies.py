"""What decides and can be replaced: the convergence guard, the cadence balancer, the failure detector.

Each is a small pure object: numbers in, a decision out, no clock, no random source. `Policies` says which ones a
coordinator uses, and is given to it beside the config:

    Coordinator(config, policies=Policies(cadence=MyBalancer, detector=FixedDetector(20.0)))

Whether one of your own keeps its contract is what `paceline.core.conformance.policies` says, and
`paceline conform policy module:factory --kind cadence`; docs/guides/write-a-policy.md explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import attrs

from .cadence import Balancer, CadencePhase
from .cadence_inputs import Verdict, WindowReport
from .detector import Detector, LearnedDetector
from .guard import Guard

__all__ = ["Cadence", "CadenceFactory", "Policies"]


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
`speed_ratios`."""


@attrs.frozen(kw_only=True)
class Policies:
    """The policies of a coordinator. `guard` None: the one that the config names (B-33)."""

    guard: Guard | None = None
    cadence: CadenceFactory = Balancer
    detector: Detector = attrs.field(factory=LearnedDetector)
