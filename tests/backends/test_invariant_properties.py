"""Invariants of section 16 that are about parameters and their memory, under drawn inputs."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paceline.backends.flat import FlatModel
from paceline.backends.schema import schema_of
from paceline.core.effects import CloseRound
from paceline.core.events import RoundReduced
from paceline.core.messages import Outcome

from support.averaging import KEY, RIDING, SCHEMA, Cohort, Ship, average, opened, random_flat, received

REFUSED: dict[str, dict[str, Any]] = {
    "schema": {"claim": {"schema_hash": b"?" * 32}}, "nonfinite": {"claim": {"finite": False}},
    "shape": {"claim": {"bytes": RIDING.nbytes + 4}}, "steps": {"admitted": 1},
}  # fmt: skip


@settings(max_examples=60)
@given(whos=st.lists(st.sampled_from(["idle", *REFUSED]), min_size=1, max_size=4), before=st.booleans(),
       order=st.lists(st.integers(0, 9), max_size=30))  # fmt: skip
def test_a_cycle_without_a_consensus_leaves_the_last_one(whos: list[str], before: bool, order: list[int]) -> None:
    """I58, R-8: of any mixture of the idle and the refused no bit comes. Who is idle gets no bytes, who is refused the
    last consensus, where there is one."""
    averager, _ = average(SCHEMA, {0: Ship(5 if before else 0, random_flat(9) if before else None)})
    last = bytes(averager.consensus or b"")
    averager.close(CloseRound(KEY))
    key = attrs.evolve(KEY, cycle=KEY.cycle + 1)
    averager.open(opened(range(len(whos)), key=key))
    ships = {rank: Ship(0) if who == "idle" else Ship(3, random_flat(rank), **REFUSED[who])
             for rank, who in enumerate(whos)}  # fmt: skip
    reduced = Cohort(SCHEMA, averager, ships, key=key).reduce(order)

    assert isinstance(reduced, RoundReduced) and not reduced.realized and reduced.digest is None
    assert reduced.accepted == tuple(rank for rank, who in enumerate(whos) if who == "idle")
    assert bytes(averager.consensus or b"") == last
    for rank, who in enumerate(whos):
        result, blocks = averager.scatter(rank)
        assert result.outcome is (Outcome.UNREALIZED if who == "idle" else Outcome.REFUSED)
        assert bool(blocks) == (who != "idle" and before)
        if blocks:
            assert received(averager, rank) == last


DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@st.composite
def placed(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """A storage, and a tensor that lies in it somehow: with an offset, gaps, turned, or whole."""
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    before, gap = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    storage = torch.arange(before + rows * (columns + gap)).to(draw(st.sampled_from(DTYPES)))
    view = storage[before:].view(rows, columns + gap)[:, :columns]
    return storage, view.t() if draw(st.booleans()) else view


def model_of(places: list[tuple[torch.Tensor, torch.Tensor]], tied: int, integer: int) -> nn.Module:
    """A model of these parameters, one of them under a second name, with entries that never ride."""
    model = nn.Module()
    for number, (_, view) in enumerate(places):
        model.register_parameter(f"p{number}", nn.Parameter(view))
    model.register_parameter("tied", getattr(model, f"p{tied % len(places)}"))
    model.register_parameter("frozen", nn.Parameter(torch.full((2,), 7.0), requires_grad=False))
    model.register_buffer("count", torch.tensor(integer))
    return model


@settings(max_examples=60)
@given(places=st.lists(placed(), min_size=1, max_size=4), tied=st.integers(0, 3), value=st.integers(-100, 100),
       integer=st.integers(-(2**63), 2**63 - 1), blended=st.booleans())  # fmt: skip
def test_adoption_writes_the_values_and_nothing_around_them(
    places: list[tuple[torch.Tensor, torch.Tensor]], tied: int, value: int, integer: int, blended: bool
) -> None:
    """I66, R-7, R-17: whatever the strides, gaps, aliases and dtypes; objects stay who they are, frozen and local
    entries what they are, an integer to its last bit."""
    model = model_of(places, tied, integer)
    view = FlatModel(model, schema_of(model))
    expected = []
    for storage, part in places:
        wanted = storage.clone()
        wanted.as_strided(part.shape, part.stride(), part.storage_offset()).fill_(value)
        expected.append(wanted)
    source = model_of([(part, torch.full(part.shape, float(value), dtype=part.dtype)) for _, part in places], tied, 0)
    flat = FlatModel(source, schema_of(source)).snapshot().memory
    names = dict(model.named_parameters(remove_duplicate=False))
    known = {name: (id(each), each.data_ptr(), each.stride(), each.dtype) for name, each in names.items()}
    view.adopt(flat, "blend", 1.0) if blended else view.adopt(flat)

    for (storage, _), wanted in zip(places, expected, strict=True):
        assert torch.equal(storage, wanted)
    now = dict(model.named_parameters(remove_duplicate=False))
    assert {name: (id(each), each.data_ptr(), each.stride(), each.dtype) for name, each in now.items()} == known
    assert model.count.item() == integer and model.frozen.tolist() == [7.0, 7.0]
