"""Policies of one's own: guard, balancer, failure detector, meta-controller (docs/guides/write-a-policy.md).

    cd docs/examples
    paceline run --ranks 2 --set guard=own_policies:PatientGuard digits.py
    paceline conform policy own_policies:PatientGuard --kind guard
    paceline conform policy own_policies:EqualSteps --kind cadence
    paceline conform policy own_policies:TwiceTheSlowest --kind detector
    paceline conform policy own_policies:HalfAtACliff --kind meta
"""

from paceline.core.cadence import CadencePhase
from paceline.core.cadence_inputs import NudgeDown, Stable, SuppressGrowth
from paceline.core.detector import Learned


class PatientGuard:
    """Nudges the window down when the divergence was above 1 for five cycles, and says nothing before."""

    reports_telemetry = True
    claims = ("nudges", "free_of_world")

    def __init__(self):
        self.above = 0

    def observe(self, cycle):
        self.above = self.above + 1 if cycle.signal > 1.0 else 0
        if self.above >= 5:
            self.above = 0
            return NudgeDown(0.5)
        return SuppressGrowth() if self.above else Stable()

    def saved(self):
        return {"guard": "patient", "above": self.above}

    def restore(self, saved):
        if saved.get("guard") != "patient" or type(saved.get("above")) is not int or saved["above"] < 0:
            return False
        self.above = saved["above"]
        return True


class EqualSteps:
    """The same number of steps for every rank, however slow; only nudges change it."""

    claims = ()
    calibrated = hinted = False
    phase = CadencePhase.PROBE

    def __init__(self, *, ranks, anchor, cap, **knobs):
        self.ranks, self.anchor, self.cap = list(ranks), anchor, cap
        self.counts, self.overshoots = {}, {}
        self._spread()

    def _spread(self):
        steps = self.anchor if self.cap is None else max(1, min(self.anchor, self.cap // max(1, len(self.ranks))))
        self.counts = dict.fromkeys(self.ranks, steps)

    def ms(self, rank):
        return 0.0

    def report(self, report, voters):
        pass

    def apply(self, verdict):
        if isinstance(verdict, NudgeDown) and 0 <= verdict.factor <= 1:
            self.anchor = max(1, int(self.anchor * verdict.factor))
            self._spread()

    def stage_slack(self, rank, ms):
        pass

    def overshoot(self, rank, reduce_ms, max_overshoot):
        self.overshoots[rank] = 1 if max_overshoot == "auto" else min(1, max_overshoot)
        return self.overshoots[rank]

    def forget(self, rank):
        self.overshoots.pop(rank, None)

    def admit(self, rank):
        self.ranks = sorted({*self.ranks, rank})
        self._spread()

    def saved(self):
        return {"cadence": "equal", "ranks": list(self.ranks), "anchor": self.anchor}

    def restore(self, saved):
        if saved.get("cadence") != "equal" or saved.get("ranks") != self.ranks:
            return False
        if type(saved.get("anchor")) is not int or saved["anchor"] < 1:
            return False  # damaged: what is taken over now is used in every cycle
        self.anchor = saved["anchor"]
        self._spread()
        return True


class TwiceTheSlowest:
    """Twice the longest of the last durations."""

    claims = ("learns",)

    def deadline(self, durations, limits):
        usable = [duration for duration in durations if 0 < duration < 1e9]
        if len(usable) < 3:
            return Learned(limits.initial, len(durations))
        return Learned(max(limits.floor, min(2 * max(usable), limits.most)), len(durations))


class HalfAtACliff:
    """Halves the window when the learning rate has fallen to a half or less since the last cycle."""

    claims = ("cliffs",)

    def __init__(self):
        self.rate = None

    def observe(self, lr, anchor, verdict, phase):
        if lr is None or not 0 < lr < 1e9:
            return None
        before, self.rate = self.rate, lr
        return NudgeDown(0.5) if before and lr <= before / 2 else None

    def saved(self):
        return {"meta": "half", "rate": self.rate}

    def restore(self, saved):
        rate = saved.get("rate", 0)
        if saved.get("meta") != "half" or not (rate is None or (type(rate) is float and 0 < rate < 1e9)):
            return False
        self.rate = rate
        return True
