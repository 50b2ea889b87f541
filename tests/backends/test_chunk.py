"""The numbers of a script in the plan in hand (K-20): what can be told, and what is refused where it is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from paceline.backends.chunk import Chunk
from paceline.core import messages as m
from paceline.core.dispatch.tally import MOST_SCALARS
from paceline.core.errors import LocalProtocolError
from paceline.transports.codec import MsgpackCodec


def chunk() -> Chunk:
    """Of one plan."""
    return Chunk([m.Plan(1, 0, 0, 8)])


def sent(held: Chunk) -> m.Metrics:
    """What the coordinator hears of it."""
    done = held.done()
    told = m.Metrics(cycle=1, plan_ids=done.plan_ids, epoch=0, batches=1, samples=8, epoch_ms=1.0,
                     share_complete_ms=1.0, compute_only_ms=1.0, data_starve_ms=0.0, scalars=done.scalars)  # fmt: skip
    heard: m.Metrics = MsgpackCodec().decode(m.KIND_OF[m.Metrics], MsgpackCodec().encode(told))
    return heard


@pytest.mark.parametrize("count", [
    0, -1, 2**32, 2**64, 1.5, "3", None, torch.tensor(3.0), torch.tensor([1, 2]), np.array([1, 2]),
], ids=repr)  # fmt: skip
def test_a_count_that_is_none_is_refused_where_it_is_said(count: Any) -> None:
    """K-20: one that no report can hold ended the rank at the end of its chunk; half an observation ended its link."""
    held = chunk()
    with pytest.raises(LocalProtocolError, match=r"^accuracy = 0\.5 is said of .* from 1 to 4294967295"):
        held.add("accuracy", 0.5, count)
    assert held.scalars == {}


@pytest.mark.parametrize("count", [1, 2**32 - 1, np.int64(7), torch.tensor(7), True], ids=repr)
def test_whatever_counts_is_a_count(count: Any) -> None:
    """K-20: numpy and torch count too."""
    held = chunk()
    for _ in range(3):
        held.add("accuracy", 0.5, count)
    assert sent(held).scalars == {"accuracy": (1.5 * int(count), 3 * int(count))}


@pytest.mark.parametrize("name", ["", "x" * 129, "a\udcff"])
def test_a_name_that_nobody_can_be_told_is_refused(name: str) -> None:
    """K-20, N-24: too long, or no text."""
    with pytest.raises(LocalProtocolError, match="1 to 128"):
        chunk().add(name, 1.0, 1)


def test_names_have_an_end() -> None:
    """K-20, N-24: a coordinator keeps so many; one for each sample, by a mistake, would not even fit its report."""
    held = chunk()
    for number in range(MOST_SCALARS):
        held.add(f"n{number}", 1.0, 1)
    held.add("n0", 1.0, 1)
    with pytest.raises(LocalProtocolError, match=f"{MOST_SCALARS} names"):
        held.add("one more", 1.0, 1)
    assert len(sent(held).scalars) == MOST_SCALARS
