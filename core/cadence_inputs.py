"""What the cadence balancer is told: the report of a window, hints about devices, and verdicts.

All of it is plain data, and the few functions here turn what the coordinator knows into it. They are apart from the
balancer because guards, the meta-controller and the coordinator speak these words without needing its state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import attrs

from .values import value

__all__ = [
    "Device",
    "NudgeDown",
    "Stable",
    "SuppressGrowth",
    "Verdict",
    "WindowReport",
    "callback_cost_ms",
    "device_text",
    "hardware_anchor",
    "hardware_of",
    "largest_of",
    "measurement",
    "select_feed",
    "window_cap",
]

CALLBACK_COST_WEIGHT = 0.3
"""How much a new measurement moves the average cost of a callback (B-1)."""
ARCHITECTURE_WEIGHT = 10.0
"""A device generation counts as much as this many gigabytes (B-6)."""
_FACTS = re.compile(r"(?P<vendor>\S+)\s.*\bgeneration (?P<generation>\d{1,4}(?:\.\d{1,4})?), (?P<memory>\d{1,6}) GB")
"""A device in a Hello, as `device_text` writes it."""


@value
class Stable:
    """Training converges: a staged growth may be committed; `relax_up` asks for one step more (B-13)."""

    relax_up: bool = False


@value
class SuppressGrowth:
    """The ranks drift apart: the window must not grow."""


@value
class NudgeDown:
    """The ranks drift apart badly: multiply the anchor by `factor`, kept within 0.1 and 1.0."""

    factor: float


Verdict = Stable | SuppressGrowth | NudgeDown
"""What a guard or the meta-controller may say to the balancer."""


@value(kw_only=True)
class WindowReport:
    """What one window cost, per rank (B-3, C-20). A rank that is absent from a mapping has a zero there.

    `wall_ms` over `wall_batches` is the compute scale, `delivered_ms` over `delivered_batches` the delivered scale
    (data wait included, first batch of the window left out); batches are those really run, never those scheduled.
    `fill_ms` is what the first batch cost more than a later one. `reduce_ms` is the time of the average (C-10).
    `capable` says that the mode may use the delivered scale at all: star and shared under Cadence or Async,
    collective under Cadence; Sync never.
    """

    wall_ms: Mapping[int, float] = attrs.field(hash=False)
    wall_batches: Mapping[int, int] = attrs.field(hash=False)
    delivered_ms: Mapping[int, float] = attrs.field(hash=False)
    delivered_batches: Mapping[int, int] = attrs.field(hash=False)
    fill_ms: Mapping[int, float] = attrs.field(hash=False)
    reduce_ms: float
    capable: bool


@value(kw_only=True)
class Device:
    """What is known about a rank's device before it has trained: the base of the hardware prior (B-6)."""

    vendor: str
    arch_generation: float
    memory_gb: float


def select_feed(report: WindowReport, voters: Iterable[int]) -> dict[int, tuple[float, int]]:
    """(cost in ms, batches) per voter, all movers on one scale (B-3).

    The delivered scale is used only if the mode is capable and every voter with batches has a delivered sample. One
    rank on the compute scale among peers on the delivered one would look fast for no other reason than the scale.
    """
    ranks = list(voters)
    if report.capable:
        feed = _scale(report.delivered_ms, report.delivered_batches, ranks)
        silent = [rank for rank, (cost, batches) in feed.items() if not (cost > 0 and batches > 0)]
        if not silent:  # as a rule
            return feed
        computed = _scale(report.wall_ms, report.wall_batches, silent)
        if not any([batches > 0 for _, batches in computed.values()]):
            return {**feed, **computed}
    return _scale(report.wall_ms, report.wall_batches, ranks)


def _scale(ms: Mapping[int, float], batches: Mapping[int, int], ranks: Iterable[int]) -> dict[int, tuple[float, int]]:
    return {rank: (ms.get(rank, 0.0), batches.get(rank, 0)) for rank in ranks}


def measurement(number: float) -> float:
    """`number` if it can be a measurement, else 0."""
    return number if math.isfinite(number) and number > 0 else 0.0


def largest_of(counts: Mapping[int, int]) -> int:
    """The rank with the largest count, the highest among equals."""
    return max(counts, key=lambda rank: (counts[rank], rank))


def window_cap(picks: int, epoch_splits: int, batch_size: int) -> int | None:
    """Batches of one epoch, the longest window that makes sense; None if an epoch is shorter than a batch (B-8)."""
    return picks // epoch_splits // batch_size or None


def hardware_anchor(devices: Mapping[int, Device]) -> int | None:
    """The rank with the weakest device by generation and memory (B-6), ties lowest; None if vendors are mixed or
    nothing is known: scores of two vendors do not compare."""
    if len({device.vendor for device in devices.values()}) != 1:
        return None
    scores = {rank: ARCHITECTURE_WEIGHT * d.arch_generation + d.memory_gb for rank, d in devices.items()}
    return min(scores, key=lambda rank: (scores[rank], rank))


def device_text(name: str, arch_generation: str, memory_bytes: int) -> str:
    """A device as its rank tells it in the Hello: the name, whose first word is the vendor (M-5), and what the prior of
    B-6 goes by. Gigabytes are whole, so that cards of one kind, which keep back a little more or less, are equal."""
    return f"{name}, generation {arch_generation}, {round(memory_bytes / 2**30)} GB"


def hardware_of(told: Mapping[int, Sequence[str]]) -> dict[int, Device] | None:
    """The weakest device of each rank, from what the ranks have told; None as soon as one has told nothing to go by,
    such as a processor: it may well be the weakest of all, and no score says so (B-6)."""
    hardware = {}
    for rank, texts in told.items():
        found = [match for text in texts if (match := _FACTS.fullmatch(text)) is not None]
        devices = dict(enumerate(
            Device(vendor=f["vendor"], arch_generation=float(f["generation"]), memory_gb=float(f["memory"]))
            for f in found
        ))  # fmt: skip
        weakest = hardware_anchor(devices)
        if weakest is None or len(found) != len(texts):
            return None
        hardware[rank] = devices[weakest]
    return hardware


def callback_cost_ms(known: float | None, measured: float) -> float:
    """Moving average of what a callback costs in milliseconds (B-14); the first measurement counts as it is."""
    if not math.isfinite(measured) or measured < 0:
        return known or 0.0
    return measured if known is None else CALLBACK_COST_WEIGHT * measured + (1 - CALLBACK_COST_WEIGHT) * known
