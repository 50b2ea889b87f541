"""A simulated run from a seed: who is slow, what is lost, who dies, and when.

    outcome = simulate(Case(seed=7, ranks=8, faults="storm"))
    outcome.status, outcome.violation, outcome.schedule

The seed decides everything: the knobs of the run, the pace of each rank, the latency and bandwidth of its links, which
faults are on, and when they strike. Nothing of that is in the `World`, which only knows what happens; so the schedule
of a run is complete without its seed, and can be replayed and shortened.

A run has two halves. In the first faults strike, and every invariant must hold (safety). Then all faults stop: links
are healed, who hung or was stopped goes on, and the run must come to its end within a bound (liveness): converge, serve
fresh cycles, finish its epochs. Only then is it known that nothing waits for what will never come.

Bytes on a link arrive in order, after the latency of that link, and bulk no faster than its bandwidth. A message that
is lost takes its link with it, as TCP does. A link that is blocked in one direction (`mute`, `deafen`) holds back what
is under way. The kinds `drop`, `duplicate`, `overtake` and their like are what no link does: they show that the
machines notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs

from ..config import Config
from ..errors import ConfigError
from ..phases import RunPhase
from ..policies import Policies
from .action import Action
from .clockwork import Clockwork
from .dice import Dice
from .doomed import Losses
from .draws import STEP_S, draw_pace, draw_setup
from .faults import draw_plan, profile
from .frames import RecordCodec
from .marks import Marks
from .schedule import Schedule, Timed
from .setup import Setup, sorted_knobs
from .storms import Storm
from .violation import Violation, require
from .world import Step, World

__all__ = ["Case", "Outcome", "Run", "simulate"]

MOST_STEPS = 200_000
"""Steps of a world in one run; one that needs more does not end."""
AFTERWARDS = 4_000
"""Steps that may follow the end of a run, until every process has ended too."""
SETUP, PACE, TIMING, FAULTS, STORM = range(5)
"""The streams of choices of a run, so that a change in one leaves the others."""


@attrs.frozen(kw_only=True)
class Case:
    """One run: its seed, the ranks it begins with, the profile of its faults (`PROFILES`), a policy or None for any,
    and knobs that are not to be drawn."""

    seed: int
    ranks: int = 8
    faults: str = "storm"
    policy: str | None = None
    knobs: tuple[tuple[str, Any], ...] = attrs.field(default=(), converter=sorted_knobs)


@attrs.frozen(kw_only=True)
class Outcome:
    """What became of a run: how the coordinator ended (`died` if it was killed, `broken` if an invariant was), how many
    steps of the world it took and how many realized cycles it had, its virtual seconds, the marks it reached, how many
    faults struck; what a policy raised first, if one did (C-13). If an invariant broke: which, and the schedule that
    leads there."""

    case: Case
    status: str
    steps: int
    cycles: int
    seconds: float
    struck: int
    marks: dict[str, int]
    raised: str = ""
    excuse: str = ""
    violation: Violation | None = None
    schedule: Schedule | None = None

    @property
    def rank_hours(self) -> float:
        """Simulated hours of all ranks together."""
        return self.seconds * self.case.ranks / 3600.0


def simulate(case: Case, *, codec: RecordCodec | None = None, policies: Policies | None = None,
             watch: Callable[[Run], None] | None = None) -> Outcome:  # fmt: skip
    """The run of a case, from its beginning to its end. With a codec, some runs have real frames on their links;
    `policies` replaces what decides; `watch` is told of the run after each step of it."""
    return Run(case, codec=codec, policies=policies, watch=watch).outcome()


class Run:
    """A run in the making: `world`, and all that moves it. `actions` is what has happened so far; the arguments are
    those of `simulate`."""

    def __init__(self, case: Case, *, codec: RecordCodec | None = None, policies: Policies | None = None,
                 watch: Callable[[Run], None] | None = None) -> None:  # fmt: skip
        self.case = case
        self._watch = watch
        wild = profile(case.faults)
        dice = Dice(case.seed)
        given = dict(case.knobs)
        self.setup = draw_setup(case.ranks, case.policy, given, dice.fork(SETUP), wire=codec is not None)
        self.setup.check_door()
        self.actions: list[Timed] = []
        self.excuse = ""
        self.marks = Marks()
        self.world = World(self.setup, codec=codec, policies=policies)
        self.world.reached = self.marks.reach
        pace = draw_pace(case.ranks, self.setup.blocks, wild, dice.fork(PACE))
        self.clockwork = Clockwork(self.world, pace, dice.fork(TIMING), self._heard)
        plan = draw_plan(wild, dice.fork(FAULTS), wire=self.setup.wire)
        storm = dice.fork(STORM)
        config = self.setup.config()
        self.storm = Storm(self.clockwork, plan, storm, STEP_S, config.staleness_s)
        self.work = _batches(self.setup)
        slowest = max(pace.step_s)
        mean = sum(pace.step_s) / len(pace.step_s)
        self.quiet_at = self.work / case.ranks * mean * storm.between(0.4, 1.2)
        windows = config.link_grace_s + config.reconnect_window_s + config.rejoin_window_s
        wait = config.window_ceiling + config.scaled(windows)
        _check_wait(wait, config, case.ranks)
        self.bound_s = 8 * wait + 4 * self.work * slowest

    def _heard(self, step: Step) -> None:
        self.actions.append((step.at, step.action))
        self.marks.watch(self.world, step)
        self.storm.heard(step)
        if self._watch is not None:
            self._watch(self)

    # --- both halves -------------------------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        """Run to the end."""
        violation: Violation | None = None
        try:
            self._safety()
            self._liveness()
            self._afterwards()
        except Violation as broken:
            violation = broken
            if self.clockwork.doing is not None:
                self.actions.append((self.clockwork.now, self.clockwork.doing))
        finish = self.world.finish
        status = "broken" if violation is not None else "died" if finish is None else finish.status
        return Outcome(
            case=self.case, status=status, steps=self.clockwork.steps,
            cycles=self.world.co.cycle.sync_rounds, seconds=self.clockwork.now, struck=self.storm.struck,
            marks=dict(Counter(self.marks.reached)), raised=self.marks.policy_failure,
            excuse=self.excuse, violation=violation,
            schedule=None if violation is None else self.schedule(violation),
        )  # fmt: skip

    def schedule(self, violation: Violation | None = None) -> Schedule:
        """What has happened, as a file."""
        said = f"seed {self.case.seed}, {self.case.ranks} ranks, faults {self.case.faults}"
        if violation is not None:
            said += f"\n{violation}"
        return Schedule(
            setup=self.setup, actions=tuple(self.actions), comment=said,
            breaks=None if violation is None else violation.name,
            dullest=violation is not None and self.clockwork.doing is None,
        )  # fmt: skip

    @property
    def _ended(self) -> bool:
        """The run is over, or its coordinator is and nobody starts it again."""
        return self.world.over and not self.storm.comes_back

    def _safety(self) -> None:
        while not self._ended and self.clockwork.now < self.quiet_at and self.clockwork.steps < MOST_STEPS:
            if not self.clockwork.advance():
                break
        require(self.clockwork.steps < MOST_STEPS, "I38", f"the run needs more than {MOST_STEPS:,} steps")

    def _liveness(self) -> None:
        """All faults stop. What was decided or lost before stays so (`doomed.py`); any other run averages anew and
        finishes its epochs, and no life that was sound ends before. A run that was to be saved is saved, and one whose
        ranks have all given up on a coordinator that was away has nobody to go on with (W-21). An id of a session that
        was withheld stays lost: if nobody is left to make one, the run is saved for that (M-32)."""
        if self._ended:
            self.excuse = "over before it"
            return
        world = self.world
        decided = _is_ending(world) or not any(process.alive for process in world.processes)
        trained = world.co.run.phase > RunPhase.TRAINING
        self.storm.heal()
        lost = Losses.of(self.clockwork, self.storm.damaged, decided=decided)
        until, averages = self.clockwork.now + self.bound_s, world.co.cycle.sync_rounds
        self._advance(until, lambda: world.over or _is_ending(world))
        ended = lost.ended(world.co)
        require(not ended, "M-17", f"no fault had struck ranks {ended}, and they were lost after the last one")
        self._advance(until, lambda: world.over)
        finish = world.finish
        if finish is None:
            reasons = "; ".join(str(reason) for reason in world.co.explain())
            in_time = self.clockwork.steps < MOST_STEPS
            when = f"{self.bound_s:g} s after the last fault" if in_time else f"{MOST_STEPS:,} steps after it began"
            raise Violation("I38", f"{when} the run goes on: {reasons}")
        if finish.status not in ("ok", "stopped"):
            withheld = any(f"no rank made the id of session {n};" in finish.text for n in self.storm.withheld)
            self.excuse = "id withheld" if withheld else lost.excuse(finish.text)
            text = f"without any fault the run ended {finish.status}: {finish.text}"
            require(bool(self.excuse), "I30", text)
        elif world.co.cycle.sync_rounds == averages:
            stopped = finish.status == "stopped"  # of this it may have heard afterwards (M-54)
            self.excuse = "decided" if decided or stopped else "trained" if trained else ""
            require(bool(self.excuse), "I38", "after the last fault no cycle was realized")

    def _advance(self, until: float, done: Callable[[], bool]) -> None:
        while not done() and self.clockwork.now < until and self.clockwork.steps < MOST_STEPS:
            if not self.clockwork.advance():
                break

    def _afterwards(self) -> None:
        """The run is over; so must every rank be."""
        most = self.clockwork.steps + AFTERWARDS
        self.storm.over = True
        for process in self.world.processes:
            for kind in ("resume", "recover", "heal"):
                if kind in self.world.possible(process):
                    self.clockwork.do(Action(kind, process.number))
        while any(process.alive for process in self.world.processes) and self.clockwork.steps < most:
            if not self.clockwork.advance():
                break
        left = [process.number for process in self.world.processes if process.alive]
        require(not left, "I38", f"the run is over, processes {left} are not")


def _is_ending(world: World) -> bool:
    """How the run ends is decided; whom it loses on the way is no loss any more."""
    co = world.co
    return co.save_issued or co.stopping or co.run.shutdown_issued


def _check_wait(wait: float, config: Config, ranks: int) -> None:
    """A run in which the next thing that helps is further away than a run has steps, since every heartbeat on the way
    is one, cannot be seen to its end, and nothing would tell it from one that has none. Raises `ConfigError`."""
    every = min(config.beacon_s, config.heartbeat_s)
    if wait / every * (ranks + 1) > MOST_STEPS:
        raise ConfigError(f"a rank of this run may wait {wait:,.0f} s while the {ranks} of them say every {every:g} s "
                          f"that they live: a simulated run has {MOST_STEPS:,} steps at most; give shorter times, a "
                          "smaller time_scale, or a longer heartbeat_s and beacon_s")  # fmt: skip


def _batches(setup: Setup) -> int:
    """About how many batches a run trains."""
    config = setup.config()
    return max(1, setup.samples * (config.num_epochs or 0) // ((config.batch_size or 1) * config.epoch_splits))
