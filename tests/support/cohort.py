"""Short names over `World` for tests: a run of real coordinators and workers in memory, and what was said in it.

    cohort = Cohort(ranks=3, samples=60, policy="sync")
    cohort.run_until(lambda: cohort.co.cycle.version == 2)
    cohort.strike("crash", 1)
    cohort.run(schedule, [Fault(40, "poison", 2)])

`World` delivers, keeps time and checks every invariant. Here the numbers of a schedule choose among what may happen
next, time passes only when nothing else can happen, and what the machines were told and answered is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from paceline.core.effects import Alert
from paceline.core.policies import Policies
from paceline.core.simulation.action import COORDINATOR, NOBODY, Action, act
from paceline.core.simulation.setup import Setup
from paceline.core.simulation.world import Step, Turn, World

from .words import alerts, check_declared, messages, named

MOST_ACTIONS = 60_000
"""Actions of a run; one that needs more does not end."""
HANGS_S = (1.0, 8.0, 40.0, 500.0)
"""Seconds of a hang, by the `amount` of its fault: shorter than any deadline, up to longer than every ceiling."""
DOWNTIME_S = 5.0


@attrs.frozen
class Fault:
    """What strikes before action number `when`: a kind of `core.simulation.action`, at a rank if it is about one, or
    `doom`, which kills the rank in its next call: when the average exists, or right after it with `amount` - 1 reports
    lost. `amount`: the reports that a crash loses, the effects that a coordinator has left, the length of a hang."""

    when: int
    kind: str
    rank: int = 0
    amount: int = 0


class Cohort(World):
    """See the module. `guard` replaces the guard; `knobs` go into the config. By machine (`COORDINATOR`, or the number
    of a process) `said` are its effects, `records` its events with their seconds."""

    step_s = 0.01  # seconds of a step

    def __init__(self, *, ranks: int = 2, samples: int = 60, engine: str = "compiled", guard: Any = None,
                 callbacks: tuple[str, ...] = (), stateful: bool = False, resume: Any = None,
                 **knobs: Any) -> None:  # fmt: skip
        self.said: dict[int, list[Any]] = {COORDINATOR: []}
        self.records: dict[int, list[tuple[float, Any]]] = {COORDINATOR: []}
        self.log: list[Action] = []
        self.hung: dict[int, float] = {}
        self.doomed: dict[int, int] = {}
        usual: dict[str, Any] = {"batch_size": 2, "num_epochs": 2, "anchor": 1 if knobs.get("policy") == "sync" else 3}
        setup = Setup(ranks=ranks, samples=samples, knobs={**usual, **knobs}, callbacks=callbacks, stateful=stateful,
                      engine=engine, thorough=False)  # fmt: skip
        super().__init__(setup, resume=resume, now=100.0, policies=Policies(guard=guard))
        self._note(self.begun)

    @property
    def effects(self) -> list[Any]:
        """All effects of the coordinator."""
        return self.said[COORDINATOR]

    def events(self, name: str) -> list[dict[str, Any]]:
        """The facts of all timeline events of this name."""
        return named(self.effects, name)

    def alerts(self, kind: str) -> list[Alert]:
        """All alerts of this kind."""
        return alerts(self.effects, kind)

    def sent(self, kind: type, rank: int | None = None) -> list[Any]:
        """All messages of this kind that were sent, to one rank or to any."""
        return messages(self.effects, kind, rank)

    def _note(self, turns: Iterable[Turn]) -> None:
        for turn in turns:
            self.said.setdefault(turn.who, []).extend(turn.effects)
            self.records.setdefault(turn.who, []).append((self.now, turn.event))
            check_declared(turn.effects)

    def do(self, action: Action, at: float | None = None, *, sure: bool = False) -> Step:
        """See `World.do`. A step takes its time, and so does the restart of a coordinator."""
        if at is None and action.kind in ("step", "revive"):
            at = self.now + (self.step_s if action.kind == "step" else DOWNTIME_S)
        step = super().do(action, at, sure=sure)
        self.log.append(action)
        self._note(step.turns)
        for number, amount in list(self.doomed.items()):
            if (action == act("emerge", number)) if amount else (self.processes[number].made is not None):
                self.do(act("crash", number, max(0, self.doomed.pop(number) - 1)))
        return step

    def choices(self) -> list[Action]:
        """What may happen next, dullest first. Who was stopped stays so, and who hangs does for its time."""
        kinds = [(kind, process.number) for process in self.processes for kind in self.possible(process)]
        found = [act(*one) for one in kinds if one[0] not in ("step", "resume", "recover", "heal")]
        found += [act(kind, who) for kind, who in kinds if kind == "recover" and self.now >= self.hung.get(who, 0.0)]
        found += [act(kind) for kind in self.of_averager()] + [act(*one) for one in kinds if one[0] == "step"]
        if not self.alive and self.finish is None:
            found.append(act("revive", COORDINATOR))
        return found or ([act("tick")] if self.due() is not None else [])

    def strike(self, kind: str, rank: int = 0, amount: int = 0) -> None:
        """Let a fault happen (see `Fault`); one that cannot any more is nothing."""
        known = self.seats.get(rank)
        number = self.seats[sorted(self.seats)[rank % len(self.seats)]].number if self.seats else NOBODY
        if kind == "doom":
            self.doomed[number] = amount
        elif kind == "join":
            if known is None or not known.alive:
                self.do(act(kind, NOBODY if known is None else rank))
        elif kind in ("stop", "abort"):
            self.do(act(kind))
        elif kind == "die":
            self.do(act(kind, COORDINATOR, amount + 1))
        else:
            if kind == "hang":
                self.hung[number] = self.now + HANGS_S[amount % len(HANGS_S)]
            self.do(act(kind, number, amount if kind == "crash" else 0))

    def run(self, schedule: Sequence[int] = (), faults: Iterable[Fault] = ()) -> None:
        """To the end: the numbers of the schedule choose among what may happen, after them the dullest does."""
        waiting = deque(sorted(faults, key=lambda fault: fault.when))
        for index in range(MOST_ACTIONS):
            while waiting and waiting[0].when <= index and self.finish is None:
                fault = waiting.popleft()
                self.strike(fault.kind, fault.rank, fault.amount)
            if not self._take_turn(schedule, index):
                break
        assert self.finish is not None, f"I38: the run did not end: {self.co.explain()} {self.log[-12:]}"

    def run_until(self, done: Callable[[], Any], schedule: Sequence[int] = ()) -> None:
        """Until `done()` holds; a run that ends before is an error."""
        for index in range(MOST_ACTIONS):
            if done():
                return
            assert self._take_turn(schedule, index), f"the run ended before: {self.log[-12:]}"
        raise AssertionError(f"it never came to that: {self.co.explain()} {self.log[-12:]}")

    def _take_turn(self, schedule: Sequence[int], index: int) -> bool:
        found = self.choices()
        assert self.over or found != [act("tick")] or self.co.explain(), "I39: nobody knows what is waited for"
        if found:
            self.do(found[schedule[index] % len(found) if index < len(schedule) else 0], sure=True)
        return bool(found)
