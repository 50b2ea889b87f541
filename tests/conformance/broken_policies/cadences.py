"""Balancers with one thing wrong each."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import attrs

from paceline.core.cadence import Balancer
from paceline.core.cadence_inputs import NudgeDown, Stable, SuppressGrowth, Verdict, WindowReport

from conformance.hanging import endless

CALLS = itertools.count()


class WantsFewArguments(Balancer):
    """Knows ranks and anchor, and nothing else."""

    def __init__(self, ranks: list[int], anchor: int) -> None:
        super().__init__(ranks=ranks, anchor=anchor)


class ClaimsToShrink(Balancer):
    """Nobody knows that claim."""

    claims: ClassVar[tuple[str, ...]] = ("balances", "grows", "shrinks")


class DividesByCost(Balancer):
    """Trusts that every rank has a cost."""

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        voters = list(voters)
        _ = [1.0 / report.wall_ms[rank] for rank in voters]
        super().report(report, voters)


class CountsInFractions(Balancer):
    """Half a step is a step."""

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        super().report(report, voters)
        self.counts = {rank: count * 0.5 for rank, count in self.counts.items()}  # type: ignore[misc]


class StarvesTheSlow(Balancer):
    """A rank that is much slower than the others gets nothing."""

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        voters = list(voters)
        super().report(report, voters)
        fastest = max(self.counts[rank] for rank in voters)
        self.counts.update({rank: 0 for rank in voters if self.counts[rank] * 8 < fastest})


class LongerThanAnEpoch(Balancer):
    """Knows no cap."""

    def _fit_cap(self) -> None:
        self.cap_binding = False


class DriftsByItself(Balancer):
    """Depends on how often it was called in this process."""

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        super().report(report, voters)
        self.counts = {rank: count + next(CALLS) % 3 for rank, count in self.counts.items()}


class GrowsUnasked(Balancer):
    """Commits its proposal without waiting for a verdict."""

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        super().report(report, voters)
        if self.proposal is not None:
            self.anchor, self.proposal = self.proposal, None


class GrowsWhenSuppressed(Balancer):
    """Any verdict is a yes."""

    def apply(self, verdict: Verdict) -> None:
        super().apply(Stable() if isinstance(verdict, SuppressGrowth) else verdict)


class TakesTheNudgeBack(Balancer):
    """The Stable of the guard erases the nudge of the meta-controller (17.1 #28)."""

    def apply(self, verdict: Verdict) -> None:
        before = self.anchor
        super().apply(verdict)
        if isinstance(verdict, NudgeDown):
            self.proposal = before


class ForgetsItsCounts(Balancer):
    """Starts with equal counts after a restart."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        taken = super().restore(saved)
        self.counts = dict.fromkeys(self.ranks, self.anchor)
        return taken


class TakesOtherRanks(Balancer):
    """A record of another cohort is better than none."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        super().restore(saved)
        return True


class ForgetsWhatItRefuses(Balancer):
    """Makes room for a record before it looks at it. One that is new has nothing to lose."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        self.counts = dict.fromkeys(self.ranks, self.anchor)
        return super().restore(saved)


class KnowsNoNewcomers(Balancer):
    """Who was not there at the start has no count."""

    def admit(self, rank: int) -> None:
        if rank in self.ranks:
            super().admit(rank)


class RunsAway(Balancer):
    """An overshoot for as long as a reduce takes, however long that is."""

    def overshoot(self, rank: int, reduce_ms: float | None, max_overshoot: int | str) -> int:
        self.overshoots[rank] = int(min(reduce_ms or 0.0, 1e9))
        return self.overshoots[rank]


class Equalizes(Balancer):
    """Claims that it balances, and gives everybody the same."""

    claims: ClassVar[tuple[str, ...]] = ("balances",)

    def _recount(self, slow: float, readings: Mapping[int, float]) -> None:
        self.counts.update(dict.fromkeys(self.voters, self.anchor))


class BalancesInSecret(Balancer):
    """Balances, and does not say so."""

    claims: ClassVar[tuple[str, ...]] = ("grows",)


class NeverGrows(Balancer):
    """Claims that it grows, and keeps its anchor."""

    def _commit(self, relax_up: bool) -> None:
        self.proposal = None


class GrowsInSecret(Balancer):
    """Grows, and does not say so."""

    claims: ClassVar[tuple[str, ...]] = ("balances",)


class StopsInARun(Balancer):
    """Its counts vanish when a run has begun to average: whoever reads them finds nothing."""

    def apply(self, verdict: Verdict) -> None:
        super().apply(verdict)
        if len(self.voters) == 3 and self.calibrations > 1:
            self.counts = {}


class EmptiesTheReport(Balancer):
    """Takes the costs out one by one, from what others look at, too."""

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        super().report(report, voters)
        taken: Any = report.wall_ms
        taken.clear()


class StretchesWhenSuppressed(Balancer):
    """The anchor stays, and everybody takes twice the steps."""

    def apply(self, verdict: Verdict) -> None:
        super().apply(verdict)
        if isinstance(verdict, SuppressGrowth):
            self.counts = {rank: 2 * count for rank, count in self.counts.items()}


class GoesOnOtherwise(Balancer):
    """Restores what is seen, and forgets what it had measured."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        return super().restore({**saved, "ms": [0.0 for _ in saved.get("ms", ())]})


class FollowsTheFirst(Balancer):
    """The first rank of a report is one step shorter, whichever comes first."""

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        super().report(report, voters)
        for rank in [*report.wall_ms][:1]:
            self.counts[rank] = max(1, self.counts[rank] - 1)


class HasOneMemory(Balancer):
    """What a rank cost once, in whichever run of the process, is what it costs when nothing else is known."""

    known: ClassVar[dict[int, float]] = {}

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        voters = list(voters)
        self.known.update({rank: ms for rank, ms in report.wall_ms.items() if 0 < ms < 1e6})
        silent = {rank: ms for rank, ms in self.known.items() if rank in voters and rank not in report.wall_ms}
        super().report(attrs.evolve(report, wall_ms={**report.wall_ms, **silent},
                                    wall_batches={**report.wall_batches, **dict.fromkeys(silent, 1)}), voters)


class LendsItsCounts(Balancer):
    """What it saved changes with every window."""

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        super().report(report, voters)
        vars(self).setdefault("kept", []).append(self.anchor)

    def saved(self) -> dict[str, Any]:
        return {**super().saved(), "kept": vars(self).setdefault("kept", [])}


class TrustsItsRecord(Balancer):
    """What is of its ranks is whole: it takes the anchor before it looks at the rest."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        if saved.get("ranks") != self.ranks or type(saved.get("anchor")) is not int or saved["anchor"] < 1:
            return False
        self.anchor = saved["anchor"]
        return super().restore(saved)


class ComparesWithTheOthers(Balancer):
    """A rank is slow if it is slower than the mean of the others, of which there may be none."""

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        super().report(report, voters)
        self.mean_of_others = sum(report.wall_ms.values()) / (len(self.ranks) - 1)


class HasSeatsFor64(Balancer):
    """Who is on a seat above 63 is given nothing."""

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        voters = list(voters)
        super().report(report, voters)
        self.counts.update({rank: 0 for rank in voters if rank > 63})


class KnowsSpeedsUpToFour(Balancer):
    """Says that it balances, and gives nobody more than four times the steps of the slowest."""

    def _recount(self, slow: float, readings: Mapping[int, float]) -> None:
        super()._recount(slow, readings)
        self.counts.update({rank: min(self.counts[rank], 4 * self.anchor) for rank in readings})


class FreesForGood(Balancer):
    """What was freed once for a callback stays free."""

    def stage_slack(self, rank: int, ms: float) -> None:
        super().stage_slack(rank, ms)
        if self._slack_ms:
            vars(self).setdefault("freed", {}).update(self._slack_ms)

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        self._slack_ms = {**vars(self).get("freed", {}), **self._slack_ms}
        super().report(report, voters)


# --- calls that never come back


class LoopsWithoutACost(Balancer):
    """Halves what a rank costs until it is small enough, which what is no number never is."""

    def report(self, report: WindowReport, voters: Iterable[int]) -> None:
        for cost in report.wall_ms.values():
            if not cost < 1e6:
                self._halve(cost)
        super().report(report, voters)

    @endless
    def _halve(self, cost: float) -> None:
        while not cost < 1e6:
            cost /= 2


class WaitsToRestore(Balancer):
    """Takes a lock that it holds."""

    @endless
    def restore(self, saved: Mapping[str, Any]) -> bool:
        lock = threading.Lock()
        with lock:
            lock.acquire()
        return super().restore(saved)
