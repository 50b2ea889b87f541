"""Window reports for tests of the cadence balancer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.core.cadence import Balancer, WindowReport

Costs = Mapping[int, float]


def window(
    costs: Costs,
    *,
    batches: int | Mapping[int, int] = 10,
    reduce_ms: float = 0.0,
    fill_ms: Costs | None = None,
    delivered: Costs | None = None,
    capable: bool = False,
) -> WindowReport:
    """A report in which rank r ran `batches` (a number or per rank) steps of `costs[r]` ms each; `delivered` gives
    costs on the delivered scale, one batch less per rank."""
    ran = dict.fromkeys(costs, batches) if isinstance(batches, int) else batches
    later = {r: ran[r] - 1 for r in delivered or {}}
    return WindowReport(
        wall_ms={r: costs[r] * ran[r] for r in costs},
        wall_batches=ran,
        delivered_ms={r: cost * later[r] for r, cost in (delivered or {}).items()},
        delivered_batches=later,
        fill_ms=fill_ms or {},
        reduce_ms=reduce_ms,
        capable=capable,
    )


def feed(balancer: Balancer, costs: Costs, times: int = 1, **more: Any) -> Balancer:
    """Report the same window several times; the voters are the ranks of `costs`."""
    for _ in range(times):
        balancer.report(window(costs, **more), tuple(costs))
    return balancer


def staged(anchor: int = 10, **knobs: Any) -> Balancer:
    """A balancer in phase Stable with a proposal of twice the anchor."""
    balancer = feed(Balancer(ranks=(0, 1), anchor=anchor, **knobs), {0: 100.0, 1: 50.0}, times=5)
    return feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=1e6)
