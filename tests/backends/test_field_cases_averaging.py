"""Faults that users of comparable systems have met with averages: what is summed, and by what it is divided (C4).

Real models, the shipped averager, and TCP between them. Ids are in the docstrings. What of a model is averaged, and
where it is written, is in `test_field_cases_models.py`, whole runs are in `test_field_cases_sessions.py`, what a
decision can answer in `tests/core/test_field_cases_averages.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paceline.backends.divergence import digest
from paceline.backends.flat import FlatModel
from paceline.backends.schema import schema_of
from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m

from support.averaging import SCHEMA, TINY_BLOCK, Ship, average, blocks_of, flat_of, values_of
from support.models import averaged, bits, holding
from support.star_path import PARAMS, STATE, adopt, path_of, staged, whole_cycle
from support.transports import TCP, run

tiny_blocks = blocks_of(2 * TINY_BLOCK)


# --- weights and divisor ----------------------------------------------------------------------------------------------


def test_an_average_of_nobody_divides_nothing_and_changes_nothing() -> None:
    """F20, R-8: two ranks without a step. Both keep every bit, the round says that it is not realized; the next one is
    an average like any."""
    models = [nn.Linear(3, 4), nn.Linear(3, 4)]
    before = [bits(model) for model in models]

    async def main() -> None:
        async with path_of(*models, kind=TCP) as p:
            empty = await whole_cycle(p, {0: 0, 1: 0})
            assert [(each.outcome, each.total_steps, each.divergence) for each in empty] == [
                (m.Outcome.UNREALIZED, 0, None)] * 2  # fmt: skip
            assert not p.told.of(ev.RoundReduced)[0].realized and [bits(model) for model in models] == before
            await whole_cycle(p, {0: 1, 1: 1}, 2)
            assert p.told.of(ev.RoundReduced)[1].realized and bits(models[0]) == bits(models[1]) != before[0]

    run(main)


def finite_flat(values: list[float]) -> bytes:
    """Values of any size that each dtype of the schema can hold."""
    largest = np.full(40, 3.38e38)
    largest[26] = 65504.0
    return flat_of(SCHEMA, np.clip(np.array(values), -largest, largest))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.floats(-1e39, 1e39), min_size=40, max_size=40)),
                min_size=1, max_size=4), st.sampled_from([1.0, 0.0, -1.0]))  # fmt: skip
def test_whatever_the_weights_no_average_of_finite_values_is_none(
    ranks: list[tuple[int, list[float]]], gamma: float
) -> None:
    """F20, R-6, R-8: all weights zero, some, or none; what would be too large is no average either, and says so."""
    ships = {rank: Ship(n, finite_flat(values) if n else None) for rank, (n, values) in enumerate(ranks)}
    averager, reduced = average(SCHEMA, ships, gamma=gamma)
    moved = [np.abs(values_of(SCHEMA, ship.flat)).max() for ship in ships.values() if ship.flat is not None]

    assert reduced.realized == (averager.consensus is not None)
    assert averager.consensus is None or np.isfinite(values_of(SCHEMA, averager.consensus)).all()
    assert moved or not reduced.realized
    assert reduced.realized or not moved or max(moved) > 1e37


@pytest.mark.parametrize("begun", [False, True], ids=["not admitted", "in the sum"])
def test_an_average_is_divided_by_what_is_in_it(begun: bool) -> None:
    """F22, R-6, R-11: 10, 30, 60 and 50 steps to 1, 2, 4 and 8; rank 3 is lost with one block of its copy sent. It is
    (10 + 60 + 240) / 100, rounded once: not by 150, nor by 3 or 4 ranks. Where a block of it is in the sum already, the
    attempt is repeated."""
    steps, values = (10, 30, 60, 50), (1.0, 2.0, 4.0, 8.0)
    models = [holding(w=nn.Parameter(torch.full((40,), value)), mean=torch.full((3,), value)) for value in values]

    async def main() -> None:
        async with path_of(*models, idle=(3,), kind=TCP) as p:
            p.open(0, 1, 2, 3)
            for trainer in p.ranks[:3]:
                trainer.offer(steps[trainer.rank])
                p.admit(trainer.rank, steps[trainer.rank])
            if begun:
                p.admit(3, steps[3])
            await p.ranks[3].ship_by_hand(steps[3], blocks=1)
            while not [each for each in p.told.of(ev.RoundProgress) if each.rank == 3]:
                await p.told.news.wait()
            while sum(each.complete for each in p.told.of(ev.RoundProgress)) < 3:
                await p.told.news.wait()
            await p.ranks[3].channel.aclose()
            p.server.perform(fx.RemoveFromRound(PARAMS, 3))
            if begun:
                assert (await p.told.until(ev.RoundAborted)).attempt == 0
                p.open(0, 1, 2, attempt=1)
                for trainer in p.ranks[:3]:
                    trainer.offer(steps[trainer.rank], attempt=1)
                    p.admit(trainer.rank, steps[trainer.rank], attempt=1)
            told = await staged(p, ranks=(0, 1, 2))
            assert {(each.outcome, each.total_steps) for each in told} == {(m.Outcome.MERGED, 100)}
            assert p.told.of(ev.RoundReduced)[-1].accepted == (0, 1, 2)
            for trainer in p.ranks[:3]:
                adopt(trainer)

    run(main)
    for model in models[:3]:
        assert model.w.tolist() == [float(np.float32(3.1))] * 40
        assert model.mean.tolist() == [float(np.float32(7 / 3))] * 3, "R-7: 1 for each rank that moved"


# --- shapes and dtypes ------------------------------------------------------------------------------------------------

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
SHAPES: Mapping[str, tuple[int, ...]] = {
    "empty": (0, 8), "scalar": (), "one": (1,), "zeros": (50, 7), "minus": (9,), "after": (3,),
}  # fmt: skip


def odd_shapes(value: float) -> nn.Module:
    """Every shape in every dtype, integers as frozen parameters and as buffers; `zeros` have the sign of the value,
    `minus` are zeros below it."""
    entries: dict[str, torch.Tensor] = {}
    for dtype in (*FLOATS, torch.int64):
        kind = str(dtype).removeprefix("torch.")
        for name, shape in SHAPES.items():
            tensor = torch.full(shape, value).to(dtype)
            if name in ("zeros", "minus"):
                tensor = torch.zeros(shape, dtype=dtype) * (1 if value > 0 and name == "zeros" else -1)
            entries[f"{kind}_{name}"] = nn.Parameter(tensor, requires_grad=dtype.is_floating_point)
            if not dtype.is_floating_point:
                entries[f"{kind}_{name}_buffer"] = tensor.clone()
    return holding(**entries)


def test_empty_scalar_and_zero_tensors_ride_like_all_others() -> None:
    """F31, R-20, R-21: as a whole state every bit arrives, of every dtype; as an average nothing behind an empty entry
    is shifted, and zeros of either sign give +0.0."""
    models = [odd_shapes(3.0), odd_shapes(-1.0)]
    before = bits(models[0])

    async def main() -> None:
        async with path_of(*models, kind=TCP) as p:
            p.open(0, observers=(1,), key=STATE)
            p.ranks[0].offer(0, cycle=0)
            p.ranks[1].offer(0, cycle=0, observer=True)
            p.admit(0, 0, STATE)
            await staged(p)
            own = bits(models[1])
            adopt(p.ranks[1], 0)
            assert bits(models[0]) == bits(models[1]) == before != own
            models[1].load_state_dict(odd_shapes(-1.0).state_dict())
            assert bits(models[1]) == own
            await whole_cycle(p, {0: 3, 1: 1})

    run(main)
    for model in models:
        for name, tensor in model.state_dict().items():
            kind, what = name.split("_")[:2]
            assert (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{kind}", SHAPES[what])
            if kind != "int64":
                assert bool((tensor == (0.0 if what in ("zeros", "minus") else 2.0)).all())
                assert not bool(tensor.signbit().any()), "+0.0"
    assert bits(models[0])["int64_one"] != bits(models[1])["int64_one"], "they never ride"


def test_a_model_of_which_nothing_has_an_element_averages_nothing() -> None:
    """F31, R-21: a contribution of no bytes is one; the round ends, and both sides name the same bits."""
    models = [holding(w=nn.Parameter(torch.ones(0, 8))) for _ in range(2)]
    told = averaged(*models, steps=(2, 3))

    assert [(each.outcome, each.total_steps, each.digest) for each in told] == [
        (m.Outcome.MERGED, 5, digest(memoryview(b"")))] * 2  # fmt: skip


def of_dtype(dtype: torch.dtype, contributions: list[tuple[int, list[float]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The average of parameters of a dtype, by the averager and in float64."""
    models = [holding(w=nn.Parameter(torch.tensor(values, dtype=dtype))) for _, values in contributions]
    steps = [n for n, _ in contributions]
    exact = sum(model.w.detach().double() * n for model, n in zip(models, steps, strict=True)) / sum(steps)
    views = [FlatModel(model, schema_of(model)) for model in models]
    ships = {rank: Ship(steps[rank], bytes(view.snapshot().memory)) for rank, view in enumerate(views)}
    averager, _ = average(views[0].schema, ships)
    assert averager.consensus is not None
    views[0].adopt(averager.consensus)
    return models[0].w.detach(), exact


def test_sums_of_short_floats_are_made_in_long_ones() -> None:
    """F32, R-6: (256 + 1 + 1) / 3 is 86 in bfloat16, and 85.5 if the sum is in it too; in float16 the sum of two times
    60000 would be infinite."""
    assert of_dtype(torch.bfloat16, [(1, [256.0]), (1, [1.0]), (1, [1.0])])[0].tolist() == [86.0]
    assert of_dtype(torch.float16, [(1, [60000.0]), (1, [60000.0])])[0].tolist() == [60000.0]
    assert of_dtype(torch.float16, [(500, [60000.0]), (499, [60000.0])])[0].tolist() == [60000.0]


@settings(max_examples=40)
@given(st.sampled_from([torch.bfloat16, torch.float16]), st.lists(st.floats(-200, 200), min_size=8, max_size=8),
       st.permutations([998, 1, 1]), st.lists(st.floats(-200, 200), min_size=16, max_size=16))  # fmt: skip
def test_small_weights_count_in_short_floats(
    dtype: torch.dtype, large: list[float], steps: list[int], small: list[float]
) -> None:
    """F32, R-6: 998 to 1 to 1; within one unit of the last place of what float64 gives."""
    now, exact = of_dtype(dtype, list(zip(steps, (large, small[:8], small[8:]), strict=True)))
    last_place = torch.finfo(dtype).eps * exact.abs().clamp(min=torch.finfo(dtype).tiny)
    assert bool(((now.double() - exact).abs() <= last_place).all()), (now, exact)


# --- lone ranks -------------------------------------------------------------------------------------------------------


def test_the_averages_of_a_lone_rank_are_what_it_ships() -> None:
    """F34, R-6: rank 1 has left after cycle 1. Three cycles of rank 0 alone, at 1, 2 and 3, give its own copy back to
    the bit and leave its momentum alone; with rank 1 there again it is an average of two."""
    models = [holding(w=nn.Parameter(torch.zeros(5))) for _ in range(2)]
    optimizer = torch.optim.SGD(models[0].parameters(), lr=1.0, momentum=0.5)

    async def main() -> None:
        async with path_of(*models, kind=TCP) as p:
            await whole_cycle(p, {0: 1, 1: 1})
            for cycle, value, gradient in ((2, 1.0, -1.0), (3, 2.0, -0.5), (4, 3.0, -0.5)):
                models[0].w.grad = torch.full((5,), gradient)
                optimizer.step()
                before = bits(models[0])
                (told,) = await whole_cycle(p, {0: 7}, cycle)
                assert (told.outcome, told.total_steps, told.divergence) == (m.Outcome.MERGED, 7, 0.0)
                assert bits(models[0]) == before and models[0].w.tolist() == [value] * 5
                assert optimizer.state[models[0].w]["momentum_buffer"].tolist() == [-1.0] * 5
            await whole_cycle(p, {0: 3, 1: 1}, 5)

    run(main)
    assert [model.w.tolist() for model in models] == [[2.25] * 5] * 2
