"""Random runs of a cohort: what is trained by whom, in which order things happen, and what goes wrong."""

from __future__ import annotations

import json
from typing import Any

import attrs
from hypothesis import strategies as st

from paceline.core.coordinator import Coordinator
from paceline.core.effects import Ready
from paceline.core.guard import GrowthGuard
from paceline.core.journal import batch, batch_of, decode_record, encode_record
from paceline.core.phases import RunPhase
from paceline.core.roles import ROLES
from paceline.core.simulation.action import Action
from paceline.core.simulation.step import Step
from paceline.core.worker import Worker

from .cohort import Cohort, Fault

FAULTS = ("crash", "cut", "pause", "poison", "abort", "leave", "stop")
OF_ACTIONS = ("break", "checkpoint", "evaluate")
CLIMB: dict[str, Any] = dict(
    suspect_initial_s=4.0, suspect_floor_s=2.0, reduce_ceiling_s=60.0, window_ceiling_s=120.0, first_step_s=90.0,
    beacon_s=3.0, rejoin_window_s=20.0,
)  # fmt: skip
"""Clocks with which all of the ladder is climbed in few ticks."""
IN_PLACE: dict[str, Any] = dict(averager="collective", min_ranks=1, stateful=True, **CLIMB)
"""A run that averages in place, to which ranks may come."""
LASTING: dict[str, Any] = dict(reconnect_window_s=120.0, stateful=True, **CLIMB)
"""A run whose ranks look for their coordinator again when a link is lost."""
OPTIONAL = st.sampled_from([None, 1, 2])


@st.composite
def run_knobs(draw: st.DrawFn, most_ranks: int = 4) -> dict[str, Any]:
    """Arguments of a `Cohort`: every policy, few and many samples, one to three epochs."""
    policy = draw(st.sampled_from(["cadence", "sync", "async", "whole shares"]))
    made: dict[str, Any] = {
        "ranks": draw(st.integers(1, most_ranks)), "num_epochs": draw(st.integers(1, 3)),
        "batch_size": draw(st.integers(1, 3)), "drop_last": draw(st.booleans()),
        "policy": "cadence" if policy == "whole shares" else policy,
    }  # fmt: skip
    if policy == "whole shares":
        made["progressive"] = False
    if policy != "sync":
        made["anchor"] = draw(st.integers(1, 4))
    splits = draw(st.sampled_from([1, 1, 2, 3]))
    made["samples"] = draw(st.integers(splits * made["batch_size"], 40))
    made["epoch_splits"] = splits
    return made


@st.composite
def action_knobs(draw: st.DrawFn) -> dict[str, Any]:
    """More arguments of a `Cohort`: callbacks, what triggers them, and who holds the roles."""
    return {
        "checkpoint_every": draw(OPTIONAL), "checkpoint_at_epoch": draw(OPTIONAL), "eval_every": draw(OPTIONAL),
        "save_path": draw(st.sampled_from([None, "runs"])), "role_policy": draw(st.sampled_from(["fastest", 0, 1, 7])),
        "callbacks": draw(st.sampled_from([ROLES, ROLES, ("evaluate",), ("checkpoint",)])),
    }  # fmt: skip


def schedules(most: int = 300) -> st.SearchStrategy[bytes]:
    """Choices among what could happen next: a length, evenly drawn, then so many numbers in one piece. A list of
    numbers would have some seven of them whatever its `max_size` is, and the rest of the run would be the dullest."""
    return st.integers(0, most).flatmap(lambda length: st.binary(min_size=length, max_size=length))


def run_faults(kinds: tuple[str, ...] = FAULTS, most: int = 3, *, until: int = 200, last_rank: int = 3,
               most_amount: int = 3) -> st.SearchStrategy[list[Fault]]:  # fmt: skip
    """At most so many faults of these kinds, before action `until`, of ranks up to `last_rank`, of amounts up to
    `most_amount`."""
    return st.lists(
        st.builds(Fault, when=st.integers(0, until), kind=st.sampled_from(kinds), rank=st.integers(0, last_rank),
                  amount=st.integers(0, most_amount)),
        max_size=most,
    )  # fmt: skip


def recovery_faults(kinds: tuple[str, ...], most: int = 4) -> st.SearchStrategy[list[Fault]]:
    """What breaks in a run whose coordinator may die, and when."""
    return run_faults(kinds, most, until=250, last_rank=5, most_amount=6)


class _Thorough(Coordinator):
    """Takes the whole pass after every event (C-4). While a run forms it does so anyway."""

    def handle(self, event: Any, now: float) -> None:
        if self.run.phase != RunPhase.FORMING:
            self.urgent = True
        super().handle(event, now)


def whole_passes(cohort: Cohort) -> Cohort:
    """The cohort, which has not begun, with a coordinator that never takes the short pass."""
    cohort.co = _Thorough.restore(cohort.config, cohort.co.snapshot())
    return cohort


class Swapping(Cohort):
    """A cohort in which machines are replaced by their restored selves, through JSON, after the actions numbered in
    `swaps`. `kept` are the snapshots at those moments, of who swaps and of who does not."""

    def __init__(self, swaps: set[int], *, really: bool, grows: bool = False, **knobs: Any) -> None:
        super().__init__(guard=GrowthGuard() if grows else None, **knobs)
        self.swaps, self.really, self.grows = swaps, really, grows
        self.kept: list[Any] = []

    def do(self, action: Action, at: float | None = None, *, sure: bool = False) -> Step:
        step = super().do(action, at, sure=sure)
        if len(self.log) in self.swaps:
            self.swap()
        return step

    def swap(self) -> None:
        self.kept.append([self.co.snapshot(), *(process.worker.snapshot() for process in self.processes)])
        if self.really:
            kept = _again(self.co.snapshot())
            guard = GrowthGuard() if self.grows else None
            self.co = Coordinator.restore(self.config, kept, engine=self.setup.engine, guard=guard)
            for process in self.processes:
                kept = _again(process.worker.snapshot())
                process.worker = Worker.restore(process.worker.settings, kept, engine=self.setup.engine)


class Filed(Cohort):
    """A cohort whose coordinator finds its journal as a file would have it: through JSON (M-40)."""

    def do(self, action: Action, at: float | None = None, *, sure: bool = False) -> Step:
        if action.kind == "revive" and not self.alive:
            kept = self.journal
            last = batch_of(_again(batch(Ready((), kept.undone))))
            records = [decode_record(_again(encode_record(record))) for record in kept.records]
            self.journal = attrs.evolve(kept, head=_again(kept.head), undone=last.effects, records=records)
        return super().do(action, at, sure=sure)


def _again(plain: Any) -> Any:
    return json.loads(json.dumps(plain, allow_nan=False))
