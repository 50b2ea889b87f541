"""The cadence balancer: how many steps each rank takes between two averages.

A column on the march keeps together when its slowest walker sets the pace and the strong ones cover more ground instead
of waiting at every corner. Here the slowest rank, the *anchor rank*, takes `anchor` steps per window, and every other
rank takes as many steps as it finishes in that same time. Two loops turn, both once per cycle:

- *shares*: `report` folds what the window cost into a short history per rank (the trust window), elects the anchor
  rank and counts anew (B-4, B-5, B-7). Shares are relative, so all readings of one report lie on one scale (B-3).
- *length*: an average has a fixed price, the reduce and the slow first batch after it. When that price is too large a
  part of the anchor rank's window, `report` stages a proposal of a longer window (B-10). It only proposes: the guard's
  verdict of the same cycle commits or drops it, and verdicts enter through one seam, `apply` (B-12). Growth is the
  controller's, shrinking is the guard's alone.

One cycle is therefore `report`, then at most one verdict of the meta-controller, then the guard's verdict. A nudge that
went first survives whatever comes second (I62).

The object is pure: numbers in, numbers out. A number that cannot be a measurement (infinite, not a number, zero or
negative) is a missing reading; it neither raises nor stays behind in an average. Loops over ranks ascend and only
voters enter a sum (B-8); who is gone keeps its count, unused.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, ClassVar

import attrs

from .cadence_inputs import (
    Device,
    NudgeDown,
    Stable,
    SuppressGrowth,
    Verdict,
    WindowReport,
    hardware_anchor,
    largest_of,
    measurement,
    select_feed,
)
from .trust import TrustWindows
from .values import rha, state

__all__ = ["Balancer", "CadencePhase", "NudgeDown", "Stable", "SuppressGrowth", "Verdict", "WindowReport"]

# The constants of B-1, in the order of its table; those of readings are in `trust.py`, the weight of a callback's cost
# is in `cadence_inputs.py`.
SHARE_WINDOW = 10
COHORT_BAND = 0.15
DOMINANCE_MARGIN = 0.10
MAX_SPEED_RATIO = 64.0
DEAD_ZONE = 0.05
OVERHEAD_TARGET = 0.05
INITIAL_ANCHOR = 10
INITIAL_ANCHOR_SYNC = 1
MAX_ANCHOR = 1000
GROWTH_STEP_CAP = 2.0
EARLY_GROWTH_FACTOR = 2.0
GROWTH_REARM_STABLE = 5

SAME_SPEED_MS = 1e-6
"""Two readings closer than this are one speed (B-7)."""
SLACK_FLOOR_MS = 100.0
SLACK_FLOOR_SHARE = 0.05
"""Callback time below both floors is not worth moving batches for (B-14)."""
NUDGE_MIN, NUDGE_MAX = 0.1, 1.0
INITIAL_OVERSHOOT = 3
"""Steps beyond the window before a reduce has ever been timed (G-9)."""
MIN_BALANCED_WORLD = 2


class CadencePhase(IntEnum):
    """How far the balancer trusts its readings (B-2). Rises only, by at most one step per calibrating report."""

    PROBE = 0
    WARMUP = 1
    STABLE = 2
    MATURE = 3


PHASE_STARTS = {CadencePhase.WARMUP: 1, CadencePhase.STABLE: 5, CadencePhase.MATURE: 20}
"""The calibrating report with which each phase begins (B-2)."""


def _ascending(ranks: Iterable[int]) -> list[int]:
    return sorted(ranks)


@state(kw_only=True)
class Balancer:
    """Counts per rank, the anchor, and the phase (section 8 of the protocol).

    `ranks` are the seats at the start; all of them vote until `report` names the voters. `growth_applies` is false
    under Sync, `max_batch_diff` the lead limit D (None: no limit), `cap` the batches of an epoch (`window_cap`),
    `relax_allowed` the option `relax_up`. `speed_ratios` (relative speeds, larger is faster), `anchor_ratios` (the
    smallest names the anchor rank) and `hardware` are the hints of B-6, strongest first. Knobs are expected to be
    valid: `config` checks them.

    To read: `anchor`, `anchor_rank` (None: nobody elected), `counts[r]`, `phase`, `calibrations`, `voters` (ascending),
    `proposal` (the staged anchor or None), `growth_enabled`, `cap_binding`, `overshoots[r]`, `overshoot_suppressed`.
    Durations are milliseconds. Every field is a plain value, list or dict, so that a snapshot can copy it.
    """

    claims: ClassVar[tuple[str, ...]] = ("balances", "grows")
    """What `paceline.core.conformance.policies` may test."""

    ranks: list[int] = attrs.field(converter=_ascending)
    anchor: int = INITIAL_ANCHOR
    min_anchor: int = attrs.field(default=attrs.Factory(lambda self: self.anchor, takes_self=True))
    max_anchor: int = MAX_ANCHOR
    overhead_target: float = OVERHEAD_TARGET
    growth_applies: bool = True
    max_batch_diff: int | None = None
    cap: int | None = None
    relax_allowed: bool = False
    speed_ratios: Mapping[int, float] | None = None
    anchor_ratios: Mapping[int, float] | None = None
    hardware: Mapping[int, Device] | None = None

    counts: dict[int, int] = attrs.field(init=False, factory=dict)
    anchor_rank: int | None = attrs.field(init=False, default=None)
    phase: CadencePhase = attrs.field(init=False, default=CadencePhase.PROBE)
    calibrations: int = attrs.field(init=False, default=0)
    voters: list[int] = attrs.field(init=False, factory=list)
    proposal: int | None = attrs.field(init=False, default=None)
    growth_enabled: bool = attrs.field(init=False, default=True)
    stable_streak: int = attrs.field(init=False, default=0)
    cap_binding: bool = attrs.field(init=False, default=False)
    overshoots: dict[int, int] = attrs.field(init=False, factory=dict)
    overshoot_suppressed: bool = attrs.field(init=False, default=False)
    _nudged: bool = attrs.field(init=False, default=False)
    _trust: TrustWindows = attrs.field(init=False, factory=TrustWindows)
    _slack_ms: dict[int, float] = attrs.field(init=False, factory=dict)
    _shares: list[dict[int, int]] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        self.voters = list(self.ranks)
        for rank in self.ranks:
            self._trust.put(rank, [])
        self.counts = dict.fromkeys(self.ranks, self.anchor)
        self._pin()
        self._fit_cap()

    # --- what the scheduler reads ---------------------------------------------------------------------------------

    @property
    def calibrated(self) -> bool:
        """Whether a report has ever calibrated the counts (B-4)."""
        return self.calibrations > 0

    @property
    def hinted(self) -> bool:
        """Whether the voters' counts are not all equal (B-15)."""
        return len({self.counts[rank] for rank in self.voters}) > 1

    @property
    def anchor_wall_ms(self) -> float:
        """How long a window is meant to last, in milliseconds; 0 before the first calibration (B-15)."""
        return self.anchor * self._slow_ms() if self.calibrated else 0.0

    def ms(self, rank: int) -> float:
        """Smoothed cost of one step of `rank` in milliseconds, the plain mean of its trust window; 0 if unknown."""
        return self._trust.means.get(rank, 0.0)

    def recent_share(self) -> dict[int, float]:
        """Each voter's part of the steps of the last ten windows, summing to 1 (B-15); empty without voters."""
        for vectors in (self._shares, [self.counts]):
            steps = {rank: sum(vector.get(rank, 0) for vector in vectors) for rank in self.voters}
            total = sum(steps.values())
            if total > 0:
                return {rank: steps[rank] / total for rank in self.voters}
        return {}

    # --- the window report ----------------------------------------------------------------------------------------

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        """Fold one window into the readings, count anew and stage a proposal, in the order of B-4.

        Every voter is a rank of the start or admitted since. A proposal and a nudge never outlive their cycle, so
        both are forgotten here, also when the report turns out to be empty.
        """
        self.proposal = None
        self._nudged = False
        self.voters = sorted(voters)
        feed = select_feed(report, self.voters)
        if len(self.ranks) < MIN_BALANCED_WORLD or not any(cost > 0 for cost, _ in feed.values()):
            return
        self._trust.take(feed)
        if self.anchor_rank not in self.voters:
            # An excluded rank sends no reading and counts no miss: kept, its pin would freeze the phases.
            self.anchor_rank = None
        readings = self._trust.of(self.voters)
        if self.anchor_rank is None or self.phase >= CadencePhase.STABLE:
            self.anchor_rank = self._elect(readings)
        slow = self._anchor_reading(readings)
        if self.anchor_rank is None or slow <= 0:
            return
        if self.phase >= CadencePhase.WARMUP:
            # The first report never proposes: its reduce contains the forming of the cohort (B-10).
            self.proposal = self._propose(report, self.anchor_rank, slow)
        self._recount(slow, readings)
        self._shares = [*self._shares[1 - SHARE_WINDOW :], {rank: self.counts[rank] for rank in self.voters}]
        self.calibrations += 1
        if self.phase < CadencePhase.MATURE and self.calibrations >= PHASE_STARTS[CadencePhase(self.phase + 1)]:
            self.phase = CadencePhase(self.phase + 1)

    def _anchor_reading(self, readings: Mapping[int, float]) -> float:
        """The anchor rank's reading; a pinned one that never reports is replaced first (B-4 step 3)."""
        if self.anchor_rank is not None and readings[self.anchor_rank] <= 0:
            if not self._trust.silent(self.anchor_rank):
                return 0.0
            self.anchor_rank = self._elect(readings)
        return 0.0 if self.anchor_rank is None else readings[self.anchor_rank]

    def _elect(self, readings: Mapping[int, float]) -> int | None:
        """The anchor rank among the slowest voters (B-5); the holder stays unless it is clearly dominated, so that
        two equal cards do not swap the role on every reading."""
        floor = (1 - COHORT_BAND) * max(readings.values(), default=0.0)
        cohort = [rank for rank, reading in readings.items() if reading > 0 and reading >= floor]
        if len(cohort) <= 1:
            return cohort[0] if cohort else None
        if self.anchor_rank not in cohort:
            return cohort[0]
        slowest = max([readings[rank] for rank in cohort if rank != self.anchor_rank])
        if not slowest > (1 + DOMINANCE_MARGIN) * readings[self.anchor_rank]:
            return self.anchor_rank
        return max([rank for rank in cohort if readings[rank] == slowest])

    def _propose(self, report: WindowReport, anchor_rank: int, marginal: float) -> int | None:
        """The longer anchor that would bring the fixed price of an average to its target part (B-10).

        `marginal` is the anchor rank's reading, above 0. That rank alone is asked, because it never waits for others.
        """
        if not self.growth_applies or not self.growth_enabled or self.cap_binding:
            return None
        fixed = measurement(report.reduce_ms) + measurement(report.fill_ms.get(anchor_rank, 0.0))
        overhead = fixed / (self.anchor * marginal + fixed)
        early = self.phase < CadencePhase.STABLE
        fire_at = self.overhead_target * (EARLY_GROWTH_FACTOR if early else 1.0)
        if not overhead > fire_at:
            return None
        grown = math.ceil(self.anchor * min(overhead / self.overhead_target, GROWTH_STEP_CAP))
        grown = max(self.min_anchor, min(grown, self.max_anchor))
        return grown if grown > self.anchor else None

    # --- counting -------------------------------------------------------------------------------------------------

    def _recount(self, slow: float, readings: Mapping[int, float]) -> None:
        """Steps per window of each voter, for the anchor in force (B-7). Staged slack is consumed exactly once."""
        anchor, counts, slack_ms = self.anchor, self.counts, self._slack_ms
        for rank, reading in readings.items():
            base, back = anchor, 0
            if reading > 0:
                if abs(reading - slow) >= SAME_SPEED_MS:
                    base = max(1, rha(anchor * min(slow / reading, MAX_SPEED_RATIO)))
                # More slack than the whole count changes nothing further; `min` keeps the ceiling finite.
                slack = slack_ms.get(rank) if slack_ms else None
                back = math.ceil(min(slack / reading, base)) if slack else 0
            target = base - back if base > back else 1
            if target != counts[rank]:  # in a steady run hardly any is
                self._retarget(rank, target, forced=back > 0)
        self._fit_cap()
        self._slack_ms = {}

    def _retarget(self, rank: int, target: int, *, forced: bool) -> None:
        current = self.counts[rank]
        if self.calibrated and not forced and abs(target - current) <= DEAD_ZONE * current:
            return
        if self.max_batch_diff is not None and self.calibrated:
            # Within D of the count in force: a jump above the lead limit would only park the rank (G-8).
            target = max(current - self.max_batch_diff, min(current + self.max_batch_diff, target), 1)
        self.counts[rank] = target

    def _fit_cap(self) -> None:
        """Scale the voters' counts so that a window fits an epoch (B-8). The floor of 1 wins over the cap."""
        total = sum([self.counts[rank] for rank in self.voters])
        self.cap_binding = self.cap is not None and total > self.cap
        if self.cap is None or not self.cap_binding:
            return
        scale = self.cap / total
        counts = {rank: max(1, math.floor(self.counts[rank] * scale)) for rank in self.voters}
        left = self.cap - sum(counts.values())
        if left > 0:
            counts[largest_of(counts)] += left
        for _ in range(-left):
            largest = largest_of(counts)
            if counts[largest] == 1:
                break
            counts[largest] -= 1
        self.counts.update(counts)

    def _slow_ms(self) -> float:
        """The anchor rank's reading; while there is none, the largest of the voters (B-17)."""
        elected = 0.0 if self.anchor_rank is None else self.ms(self.anchor_rank)
        return elected if elected > 0 else max((self.ms(rank) for rank in self.voters), default=0.0)

    # --- the verdict seam -----------------------------------------------------------------------------------------

    def apply(self, verdict: Verdict) -> None:
        """The only way a verdict changes the balancer, whoever gave it (B-12). A complaint switches growth off,
        quiet cycles in a row switch it on again (B-11)."""
        if isinstance(verdict, Stable):
            self._commit(verdict.relax_up)
            return
        # A proposal staged in this cycle was computed from the anchor before the nudge: committed later, it would
        # erase the nudge (I62).
        self.proposal = None
        self.stable_streak = 0
        self.growth_enabled = False
        self.overshoot_suppressed = True
        if isinstance(verdict, NudgeDown):
            self._nudge_down(verdict.factor)

    def _commit(self, relax_up: bool) -> None:
        self.stable_streak += 1
        if self.stable_streak >= GROWTH_REARM_STABLE:
            self.growth_enabled = True
        if self.proposal is not None:
            self.anchor, self.proposal = self.proposal, None
            self._recount(self._slow_ms(), self._trust.of(self.voters))
        if self._nudged:
            # Whatever a nudge of this cycle tightened stays tight until the next one (I62).
            return
        if relax_up and self._may_relax():
            self.anchor += 1
            self._recount(self._slow_ms(), self._trust.of(self.voters))
        self.overshoot_suppressed = False

    def _nudge_down(self, factor: float) -> None:
        self._nudged = True
        if not math.isfinite(factor):
            return
        kept = max(NUDGE_MIN, min(factor, NUDGE_MAX))
        # `min_anchor` is ignored on purpose: divergence is a stronger reason than overhead (B-12).
        self.anchor = max(1, min(math.ceil(self.anchor * kept), self.anchor))
        self._recount(self._slow_ms(), self._trust.of(self.voters))

    def _may_relax(self) -> bool:
        """Whether one step more keeps the fastest voter within the lead limit (B-13)."""
        if not self.relax_allowed or self.anchor >= self.max_anchor:
            return False
        readings = [reading for reading in map(self.ms, self.voters) if reading > 0]
        if self.max_batch_diff is None or not readings:
            return True
        longer = self.anchor + 1
        fastest = longer * max(readings) / min(readings)
        return math.isfinite(fastest) and rha(fastest) - longer <= self.max_batch_diff

    # --- slack, overshoot -----------------------------------------------------------------------------------------

    def stage_slack(self, rank: int, ms: float) -> None:
        """Free `ms` milliseconds of the next window of `rank` for its callbacks (B-14).

        `ms` is everything that will fire on the rank at that boundary, in one call. Time below the floor of B-14 is
        dropped, as is any time before calibration. Call it before the `report` of the same cycle.
        """
        floor = max(SLACK_FLOOR_SHARE * self.anchor_wall_ms, SLACK_FLOOR_MS)
        if self.calibrated and measurement(ms) >= floor:
            self._slack_ms[rank] = self._slack_ms.get(rank, 0.0) + ms

    def overshoot(self, rank: int, reduce_ms: float | None, max_overshoot: int | str) -> int:
        """Recompute and return how many steps an Async rank may take beyond its count (G-9).

        `reduce_ms` is the time of the last average, None before the first realized cycle. `max_overshoot` is the
        knob: "auto" or a number of steps. A rank without a reading keeps the initial value, at most one window.
        """
        steps = INITIAL_OVERSHOOT
        if reduce_ms is not None:
            reading = self.ms(rank)
            needed = measurement(reduce_ms) / reading if reading > 0 else INITIAL_OVERSHOOT
            steps = max(1, math.ceil(min(needed, self.counts[rank])))
            if self.overshoot_suppressed:
                steps = min(steps, self.overshoots.get(rank, INITIAL_OVERSHOOT))
        if isinstance(max_overshoot, int):
            steps = min(steps, max_overshoot)
        self.overshoots[rank] = steps
        return steps

    # --- membership -----------------------------------------------------------------------------------------------

    def forget(self, rank: int) -> None:
        """The incarnation of `rank` ended: its readings go, its count stays unused (B-17)."""
        if rank in self.ranks:
            self._trust.put(rank, [])
        self._slack_ms.pop(rank, None)
        self.overshoots.pop(rank, None)
        if rank in self.voters:
            self.voters.remove(rank)
        if rank == self.anchor_rank:
            self.anchor_rank = None

    def admit(self, rank: int) -> None:
        """A new incarnation, or a new rank, became a voter: no readings, and a count equal to the anchor (B-17).

        Not for the ranks given at the start: it would drop their hints. The cap holds at once (I61).
        """
        self.forget(rank)
        if rank not in self.ranks:
            insort(self.ranks, rank)
            self._trust.put(rank, [])
        insort(self.voters, rank)
        self.counts[rank] = self.anchor
        self._fit_cap()

    def _pin(self) -> None:
        """Cold start: name an anchor rank before anything is measured (B-6). The pin holds through Warmup, because
        first readings carry one-off costs that fall mostly on the newest device."""
        speeds = self._hints(self.speed_ratios)
        ratios = speeds or self._hints(self.anchor_ratios)
        if ratios:
            self.anchor_rank = min(ratios, key=lambda rank: (ratios[rank], rank))
        elif self.hardware:
            self.anchor_rank = hardware_anchor({r: self.hardware[r] for r in self.ranks if r in self.hardware})
        slowest = min(speeds.values(), default=1.0)
        for rank, speed in speeds.items():
            self.counts[rank] = rha(self.anchor * min(speed / slowest, MAX_SPEED_RATIO))

    def _hints(self, ratios: Mapping[int, float] | None) -> dict[int, float]:
        given = ratios or {}
        return {rank: given[rank] for rank in self.ranks if measurement(given.get(rank, 0.0)) > 0}

    # --- resume ---------------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """What the meta record keeps (B-16), ready for JSON; knobs are not in it."""
        return {
            "ranks": list(self.ranks),
            "anchor": self.anchor,
            "anchor_rank": self.anchor_rank,
            "counts": [self.counts[rank] for rank in self.ranks],
            "ms": [self.ms(rank) for rank in self.ranks],
            "phase": int(self.phase),
            "calibrations": self.calibrations,
        }

    def restore(self, saved: Mapping[str, Any]) -> bool:
        """Take over what `saved` returned, into a fresh balancer (B-16). Each window gets one reading, the mean.

        Returns False, and changes nothing, when the record is of another cohort or cannot be read: the balancer then
        starts from its configured state, and the caller raises the alert.
        """
        if not _readable(saved, self.ranks):
            return False
        self.anchor = min(saved["anchor"], self.max_anchor)
        self.anchor_rank = saved["anchor_rank"]
        self.counts = dict(zip(self.ranks, saved["counts"], strict=True))
        for rank, reading in zip(self.ranks, saved["ms"], strict=True):
            self._trust.put(rank, [float(reading)] if reading > 0 else [])
        self.phase = CadencePhase(saved["phase"])
        self.calibrations = saved["calibrations"]
        self._fit_cap()
        return True


# --- functions -------------------------------------------------------------------------------------------------


def _readable(saved: Mapping[str, Any], ranks: list[int]) -> bool:
    """Whether a record fits these ranks and holds only values that a balancer can have."""
    counts, readings = saved.get("counts"), saved.get("ms")
    if saved.get("ranks") != ranks or not isinstance(counts, list) or not isinstance(readings, list):
        return False
    whole = [saved.get("anchor"), saved.get("calibrations"), saved.get("phase"), *counts]
    return (
        len(counts) == len(readings) == len(ranks)
        and all(isinstance(number, int) for number in whole)
        and all(isinstance(reading, int | float) and 0 <= reading < math.inf for reading in readings)
        and min(saved["anchor"], *counts, math.inf) >= 1
        and saved["phase"] in tuple(CadencePhase)
        and saved["calibrations"] >= PHASE_STARTS.get(saved["phase"], 0)
        and "anchor_rank" in saved
        and (saved["anchor_rank"] is None or saved["anchor_rank"] in ranks)
    )
