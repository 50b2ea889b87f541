"""Random runs of a cohort: what is trained by whom, in which order things happen, and what goes wrong."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from paceline.core.phases import RunPhase
from paceline.core.roles import ROLES

from .cohort import Cohort, Fault

FAULTS = ("kill", "cut", "freeze", "poison", "abort", "leave", "stop")
OF_ACTIONS = ("break", "checkpoint", "evaluate")
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
               lose: int = 3) -> st.SearchStrategy[list[Fault]]:  # fmt: skip
    """At most so many faults of these kinds, before action `until`, of ranks up to `last_rank`; `lose` is the most that
    each loses: messages of a rank that dies, or effects that a coordinator that dies does not perform."""
    return st.lists(
        st.builds(Fault, when=st.integers(0, until), kind=st.sampled_from(kinds), rank=st.integers(0, last_rank),
                  lose=st.integers(0, lose)),
        max_size=most,
    )  # fmt: skip


def recovery_faults(kinds: tuple[str, ...], most: int = 4) -> st.SearchStrategy[list[Fault]]:
    """What breaks, and when; `lose` is how many effects of a batch are performed before the coordinator dies."""
    return run_faults(kinds, most, until=250, last_rank=5, lose=6)


class Thorough(Cohort):
    """Asks for the whole pass after every event (C-4), ahead of another class of cohort."""

    def feed(self, event: Any) -> None:
        """See `Cohort.feed`. While a run forms its pass is always whole."""
        if self.co.run.phase != RunPhase.FORMING:
            self.co.urgent = True
        super().feed(event)
