"""Simulated runs as hypothesis strategies: setups, walks, and schedules as data.

    @given(schedules())
    def test_nothing_breaks(schedule):
        for _ in play(World(schedule.setup), schedule.actions, dullest=True):
            pass

A schedule here is a list of whole numbers until it is played (`walk.py`): that is several times as fast as a state
machine with a rule for each action, it shrinks towards the dullest run, and a failure can be kept as a schedule file.
This module alone needs hypothesis, so nothing of the package imports it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .schedule import Schedule
from .setup import Setup
from .walk import schedule_of

__all__ = ["schedules", "setups", "walks"]

POLICIES = ("cadence", "sync", "async")
MOST_CHOICE = 2**16 - 1


@st.composite
def setups(draw: st.DrawFn, most_ranks: int = 4, most_samples: int = 24) -> Setup:
    """Small runs of every policy."""
    knobs: dict[str, Any] = {"policy": draw(st.sampled_from(POLICIES)), "num_epochs": draw(st.integers(1, 2))}
    if knobs["policy"] != "sync":
        knobs["anchor"] = draw(st.integers(1, 4))
    if draw(st.booleans()):
        knobs["laggards"] = "exclude"
    callbacks = draw(st.sampled_from(((), ("epoch", "evaluate", "checkpoint"))))
    if callbacks:
        knobs.update(eval_every=1, checkpoint_every=1)
    if draw(st.booleans()):
        knobs["save_path"] = "/files"
    return Setup(
        ranks=draw(st.integers(1, most_ranks)), samples=draw(st.integers(4, most_samples)), knobs=knobs,
        callbacks=callbacks, stateful=draw(st.booleans()), blocks=draw(st.integers(1, 2)),
    )  # fmt: skip


def walks(most: int = 200) -> st.SearchStrategy[list[int]]:
    """Numbers for `walk`: each chooses one action, 0 the dullest."""
    return st.lists(st.integers(0, MOST_CHOICE), max_size=most)


@st.composite
def schedules(draw: st.DrawFn, most: int = 200, most_faults: int = 3) -> Schedule:
    """Whole runs: a setup, actions and faults, and a dull end."""
    return schedule_of(draw(setups()), draw(walks(most)), most_faults=draw(st.integers(0, most_faults)))
