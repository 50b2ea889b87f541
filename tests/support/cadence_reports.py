"""Window reports for tests of the cadence balancer."""

from __future__ import annotations

from paceline.core.cadence import Balancer, WindowReport


def window(costs, *, batches=10, reduce_ms=0.0, fill_ms=None, delivered=None, capable=False):
    """A report in which rank r ran `batches` (a number or per rank) steps of `costs[r]` ms each; `delivered` gives
    costs on the delivered scale, one batch less per rank."""
    ran = batches if isinstance(batches, dict) else dict.fromkeys(costs, batches)
    later = {r: ran[r] - 1 for r in delivered or {}}
    return WindowReport(
        wall_ms={r: costs[r] * ran[r] for r in costs},
        wall_batches=ran,
        delivered_ms={r: delivered[r] * later[r] for r in later},
        delivered_batches=later,
        fill_ms=fill_ms or {},
        reduce_ms=reduce_ms,
        capable=capable,
    )


def feed(balancer, costs, times=1, **more):
    """Report the same window several times; the voters are the ranks of `costs`."""
    for _ in range(times):
        balancer.report(window(costs, **more), tuple(costs))
    return balancer


def staged(anchor=10, **knobs):
    """A balancer in phase Stable with a proposal of twice the anchor."""
    balancer = feed(Balancer(ranks=(0, 1), anchor=anchor, **knobs), {0: 100.0, 1: 50.0}, times=5)
    return feed(balancer, {0: 100.0, 1: 50.0}, reduce_ms=1e6)
