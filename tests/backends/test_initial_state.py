"""`initial_state = "check"` in real sessions: what each rank brings is what it keeps, if all bring the same (M-6)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.backends.divergence import digest
from paceline.backends.flat import FlatModel
from paceline.backends.schema import schema_of
from paceline.core.errors import StallError

from support.small_run import SmallRun

CHECK: dict[str, Any] = {"initial_state": "check", "min_ranks": 2}


@pytest.mark.parametrize("knobs", [{}, {"policy": "async"}, {"digest": False}], ids=["cadence", "async", "no digests"])
def test_sessions_that_begin_alike_end_alike(knobs: dict[str, Any]) -> None:
    """M-6, I59: nobody is given a model, the average is of what all had, and the last one is everybody's in the end."""
    run = SmallRun(**CHECK, **knobs)
    ranks = [run.start(None, size=3) for _ in range(2)]  # no number: the same seed
    seen = [rank.result() for rank in ranks]
    assert run.coordinator.result().status == "ok"
    assert torch.equal(seen[0].parameters, seen[1].parameters)
    assert {one.session.version > 0 for one in seen} == {True}
    assert seen[0].session._connection.link.retained is not None


@pytest.mark.parametrize("knobs", [{}, {"digest": False}], ids=["digests", "no digests"])
def test_a_session_that_begins_otherwise_raises_and_so_do_all(knobs: dict[str, Any]) -> None:
    """M-6: whether or not digests of a consensus are compared (C-18); the model of the script is untouched."""
    run = SmallRun(**CHECK, **knobs)
    ranks = [run.start(rank) for rank in range(2)]
    for rank in ranks:
        with pytest.raises(StallError, match=r"did not form \(consensus_mismatch\)"):
            rank.result()
    finish = run.coordinator.result()
    assert finish.status == "failed" and "rank 0 has" in finish.text and "rank 1 has" in finish.text


def test_a_buffer_that_differs_is_another_state() -> None:
    """M-6, R-20: what is compared is all of the state: parameters, buffers, and what no consensus holds."""

    def begin(seed: int) -> torch.nn.Module:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        model[1].num_batches_tracked.fill_(seed)
        return model

    names = [digest(FlatModel(model, schema_of(model)).snapshot_state().memory) for model in map(begin, (0, 0, 1))]
    assert names[0] == names[1] != names[2]
