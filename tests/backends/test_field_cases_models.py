"""Faults that users of comparable systems have met with models: what of one is averaged, and where it is written (C4).

Real models, the shipped averager, and TCP between them; ids are in the docstrings.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paceline.backends.checkpoint import load_model
from paceline.backends.flat import FlatModel
from paceline.backends.schema import schema_of
from paceline.backends.star_link import StarLink
from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.errors import ConfigError
from paceline.core.schema import EntryClass

from support.averaging import Ship, average
from support.models import averaged, bits, holding
from support.star_path import adopt, path_of, staged, whole_cycle
from support.transports import TCP, run

# --- what rides -------------------------------------------------------------------------------------------------------


def test_counters_and_flags_stay_with_their_rank() -> None:
    """F24, R-7: 10 and 21 batches counted stay 10 and 21, an integer past 2**24 keeps its last bit, bool and uint8 what
    they are; beside them the averages of the same layer move."""
    models = []
    for counted, mean in ((10, 1.0), (21, 3.0)):
        model = nn.Sequential(nn.BatchNorm1d(2), holding(
            past=torch.tensor(2**24 + 1), mask=torch.tensor([counted == 10, True]),
            levels=torch.tensor([counted, 255], dtype=torch.uint8), w=nn.Parameter(torch.ones(1)),
        ))  # fmt: skip
        model[0].num_batches_tracked.fill_(counted)
        model[0].running_mean.fill_(mean)
        models.append(model)
    averaged(*models, steps=(10, 30))

    assert [int(model[0].num_batches_tracked) for model in models] == [10, 21]
    for model, counted in zip(models, (10, 21), strict=True):
        assert (model[0].num_batches_tracked.dtype, model[0].num_batches_tracked.shape) == (torch.int64, ())
        assert (model[1].past.item(), model[1].past.dtype) == (16777217, torch.int64)
        assert model[1].mask.tolist() == [counted == 10, True]
        assert (model[1].levels.tolist(), model[1].levels.dtype) == ([counted, 255], torch.uint8)
        assert model[0].running_mean.tolist() == [2.0, 2.0]


def test_running_statistics_are_averaged_once_and_saved(tmp_path: Path) -> None:
    """F25, R-3, R-7, K-7: 1 and 4 after 10 and 20 steps are 2.5 on both ranks and in the file, for each mover counts
    once. One buffer of two modules travels once; one that is not persistent is in the schema as one that stays."""
    models = []
    for mean in (1.0, 4.0):
        norm, shared = nn.BatchNorm1d(2), torch.full((3,), mean)
        norm.running_mean.fill_(mean)
        model = nn.ModuleDict({"norm": norm, "one": holding(scale=shared), "two": holding(scale=shared)})
        model.register_buffer("cache", torch.full((2,), mean), persistent=False)
        models.append(model)

    async def main() -> None:
        async with path_of(*models, kind=TCP) as p:
            await whole_cycle(p, {0: 10, 1: 20})
            p.server.perform(fx.SaveConsensus(7, 1, str(tmp_path / "consensus")))
            await p.server.settle()

    run(main)
    entries = {entry.name: entry for entry in schema_of(models[0]).entries}
    assert (entries["one.scale"].cls, entries["one.scale"].aliases) == (EntryClass.BUFFER, ("two.scale",))
    assert entries["cache"].cls == EntryClass.LOCAL and "two.scale" not in entries
    assert [each.name for each in schema_of(models[0]).riding()].count("one.scale") == 1
    saved = load_model(tmp_path / "consensus.safetensors")[0]
    for model, mean in zip(models, (1.0, 4.0), strict=True):
        assert model["norm"].running_mean.tolist() == saved["norm.running_mean"].tolist() == [2.5, 2.5]
        assert model["one"].scale.tolist() == saved["two.scale"].tolist() == [2.5] * 3
        assert model["one"].scale is model["two"].scale and model.cache.tolist() == [mean, mean]
    own = {"norm.num_batches_tracked"}
    assert {k: v for k, v in bits(models[0]).items() if k not in own} == {
        k: v for k, v in bits(models[1]).items() if k not in own}  # fmt: skip


def test_a_parameter_without_a_gradient_rides_with_all_others() -> None:
    """F29, R-3: rank 1 does not use a branch, so it has no gradient and no optimizer state there; its value counts all
    the same: (10 * 1 + 30 * 3) / 40."""
    models, x = [], torch.ones(2, 1)
    for used, value in ((True, 1.0), (False, 3.0)):
        model = nn.ModuleDict({"trunk": nn.Linear(1, 1), "branch": nn.Linear(1, 1), "head": nn.Linear(1, 1)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        inner = model["trunk"](x)
        model["head"](inner + model["branch"](inner) if used else inner).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model["branch"].weight.fill_(value)
        assert (model["branch"].weight.grad is None) != used
        models.append(model)
    told = averaged(*models, steps=(10, 30))

    assert [each.outcome for each in told] == [m.Outcome.MERGED] * 2
    assert [model["branch"].weight.item() for model in models] == [2.5, 2.5] and bits(models[0]) == bits(models[1])
    assert models[1]["branch"].weight.grad is None


@pytest.mark.parametrize("names", ["bac", "ab", "abcd"], ids=["permuted", "short", "long"])
def test_tensors_are_never_matched_by_their_place(names: str) -> None:
    """F29, R-3, R-4: entries of one shape in another order, one fewer, one more. All of it is refused; what it has in
    those places is in no sum."""
    plain = [holding(**{name: nn.Parameter(torch.full((2,), value)) for name in "abc"}) for value in (1.0, 2.0)]
    odd = holding(**{name: nn.Parameter(torch.full((2,), 100.0)) for name in names})

    async def main() -> None:
        async with path_of(*plain, odd, kind=TCP) as p:
            p.open(0, 1, 2)
            for trainer in p.ranks:
                trainer.offer(1)
                p.admit(trainer.rank, 1)
            reduced = await p.told.until(ev.RoundReduced)
            assert (reduced.accepted, reduced.refused) == ((0, 1), ((2, m.Refusal.SCHEMA),))
            await staged(p, ranks=(0, 1))
            adopt(p.ranks[0])

    run(main)
    assert [parameter.tolist() for parameter in plain[0].parameters()] == [[1.5, 1.5]] * 3


# --- memory -----------------------------------------------------------------------------------------------------------


def test_the_layout_in_memory_is_each_ranks_own() -> None:
    """F26, R-21, I66: a matrix by rows and by columns, a picture with channels first and last, every second value of a
    row. Logical places meet, strides and what lies in the gaps stay."""
    first = {"matrix": torch.arange(6.0).reshape(2, 3), "picture": torch.arange(120.0).reshape(2, 3, 4, 5),
             "part": torch.arange(5.0)}  # fmt: skip
    row = torch.full((10,), -7.0)
    other = {"matrix": (first["matrix"] + 8).t().contiguous().t(),
             "picture": (first["picture"] + 8).to(memory_format=torch.channels_last), "part": row[::2]}  # fmt: skip
    with torch.no_grad():
        row[::2] = first["part"] + 8
    wanted = {name: tensor + 5 for name, tensor in first.items()}
    models = [holding(**{name: nn.Parameter(tensor.clone() if each is first else tensor)
                         for name, tensor in each.items()}) for each in (first, other)]  # fmt: skip
    strides = [[parameter.stride() for parameter in model.parameters()] for model in models]
    assert all(a != b for a, b in zip(*strides, strict=True))
    averaged(*models, steps=(3, 5))

    for model, known in zip(models, strides, strict=True):
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.named_parameters())
        assert [parameter.stride() for parameter in model.parameters()] == known
    assert row[1::2].tolist() == [-7.0] * 5 and models[1].part.data_ptr() == row.data_ptr()


@settings(max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.lists(st.randoms(use_true_random=False), min_size=2,
       max_size=3), st.integers(1, 9))  # fmt: skip
def test_the_average_of_a_tensor_with_itself_is_itself(shape: list[int], orders: list[Random], steps: int) -> None:
    """F26, R-21: in any layout on any rank."""
    values = torch.arange(float(np.prod(shape))).reshape(shape)
    models = []
    for order in orders:
        dims = list(range(len(shape)))
        order.shuffle(dims)
        turned = values.permute(dims).contiguous().permute([dims.index(d) for d in range(len(shape))])
        models.append(holding(w=nn.Parameter(turned)))
    views = [FlatModel(model, schema_of(model)) for model in models]
    ships = {rank: Ship(steps + rank, bytes(view.snapshot().memory)) for rank, view in enumerate(views)}
    averager, _ = average(views[0].schema, ships)
    assert averager.consensus is not None
    for model, view in zip(models, views, strict=True):
        with torch.no_grad():
            model.w.zero_()
        view.adopt(averager.consensus)
        assert torch.equal(model.w, values)


def test_an_average_is_in_the_very_tensors_that_the_optimizer_has() -> None:
    """F27, R-17: through the model, its list, the groups of the optimizer and a view that a script has kept. Objects
    and places are the same, and the next step begins at the average: 2 - 0.5 * 1."""
    models, optimizers, views = [], [], []
    for value in (1.0, 3.0):
        model = holding(plain=nn.Parameter(torch.full((2, 3), value)))
        model.turned = nn.Parameter(torch.full((3, 2), value).t())
        model.several = nn.ParameterList([torch.full((4,), value), torch.full((), value)])
        models.append(model)
        optimizers.append(torch.optim.SGD(model.parameters(), lr=0.5))
        views.append([parameter.detach()[...] for parameter in model.parameters()])
    places = [[(id(p), p.data_ptr()) for p in model.parameters()] for model in models]
    averaged(*models, steps=(5, 5))

    for model, optimizer, kept, known in zip(models, optimizers, views, places, strict=True):
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for tensors in (list(model.parameters()), held, kept, [model.plain, model.turned, *model.several]):
            assert len(tensors) == 4 and all(bool((tensor == 2.0).all()) for tensor in tensors)
        assert [(id(p), p.data_ptr()) for p in model.parameters()] == known
        sum(parameter.sum() for parameter in model.parameters()).backward()
        optimizer.step()
        assert all(bool((parameter == 1.5).all()) for parameter in model.parameters())


def test_a_parameter_whose_elements_are_one_place_is_refused_by_name() -> None:
    """F27, R-3: there is no place to write an average of its elements to."""
    with pytest.raises(ConfigError, match="bias is expanded"):
        schema_of(holding(bias=nn.Parameter(torch.ones(1).expand(3))))


# --- frozen models ---------------------------------------------------------------------------------------------------


def mostly_frozen(value: float) -> nn.Module:
    """A hundred tensors of 32 bytes, ten of them trained."""
    model = nn.Module()
    model.parts = nn.ParameterList([torch.full((8,), value + number) for number in range(100)])
    for number, part in enumerate(model.parts):
        part.requires_grad_(number % 10 == 0)
    return model


def train(model: nn.Module, by: float) -> None:
    """Every trained tensor of a model moves."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += by


def test_what_is_frozen_travels_only_to_who_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """F30, R-3, R-7, R-20: a cycle carries ten tensors each way, a joiner gets all hundred. Ten more are set free on
    rank 0 before cycle 4 and on rank 1 before cycle 5: none of them is averaged, by one rank or by two."""
    models = [mostly_frozen(0.0), mostly_frozen(0.0), mostly_frozen(500.0)]
    sent: Counter[int] = Counter()

    async def main() -> None:
        async with path_of(*models, idle=(2,), kind=TCP) as p:
            send = type(p.ranks[0].channel).send_bulk

            async def counted(channel: Any, block: m.BulkBlock, data: memoryview) -> None:
                sent[block.key.cycle] += len(data) if block.key.kind != m.RoundKind.COUNTS else 0
                await send(channel, block, data)

            monkeypatch.setattr(type(p.ranks[0].channel), "send_bulk", counted)
            for cycle in (1, 2):
                train(models[0], 1.0), train(models[1], 3.0)
                await whole_cycle(p, {0: 1, 1: 1}, cycle)
            assert sent == {1: 4 * 10 * 32, 2: 4 * 10 * 32} and bits(models[0]) == bits(models[1])

            late: Any = p.ranks[2]
            late.link = StarLink(late, late.flat, with_digest=True, joining=True)
            p.start(2)
            key = m.transfer_key(1, 9)
            p.server.perform(fx.OpenRound(key, 0, ((0, 1, 0),), ((2, 1),)))
            p.ranks[0].link.donate(fx.SendState(9, 1, 2, 1), p.ranks[0].flat.snapshot_static())
            await whole_cycle(p, {0: 1, 1: 1}, 3, observers=(2,))
            late.flat.adopt_static(late.link.take_static())
            assert sent[3] == 5 * 10 * 32 and sent[9] == 2 * 90 * 32
            assert bits(models[2]) == bits(models[0]) and models[2].parts[99].tolist() == [99.0] * 8

            for cycle, refused in ((4, (0,)), (5, (0, 1))):
                for number in range(1, 100, 10):
                    models[refused[-1]].parts[number].requires_grad_(True)
                last, trained = bits(models[2]), {f"parts.{number}" for number in range(0, 100, 10)}
                train(models[0], 1.0), train(models[1], 3.0), train(models[2], 5.0)
                told = await whole_cycle(p, {0: 1, 1: 1, 2: 2}, cycle)
                assert [each.refusal for each in told if each.refusal is not None] == [m.Refusal.SCHEMA] * len(refused)
                assert p.told.of(ev.RoundReduced)[-1].accepted == ((1, 2), (2,))[cycle - 4]
                now = [bits(model) for model in models]
                assert {name for name, held in now[2].items() if held != last[name]} == trained
                assert all(each[name] == now[2][name] for each in now for name in trained)

    run(main)
