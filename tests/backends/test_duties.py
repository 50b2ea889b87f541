"""Callbacks in the training thread: what they see, what they leave behind, what they give (K-3, K-9, K-14)."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from paceline.backends.duties import Callbacks, consensus_in, evaluating, random_state_kept
from paceline.backends.flat import FlatModel
from paceline.backends.schema import schema_of
from paceline.core import effects as fx


class Someone:
    """In place of a session."""

    rank = 1


def model() -> nn.Module:
    """With a buffer, and an odd number of bytes in half precision, so that not everything is aligned."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1).to(torch.bfloat16))


def flat_of(model: nn.Module) -> FlatModel:
    return FlatModel(model, schema_of(model))


def bits(model: nn.Module) -> list[bytes]:
    """Every value of the model, exactly."""
    return [t.detach().contiguous().view(torch.uint8).numpy().tobytes() for t in model.state_dict().values() if t.dim()]


def act(callbacks: Callbacks, order: Any, consensus: memoryview | None = None, on: nn.Module | None = None) -> Any:
    """One order, on a model."""
    return callbacks.act(order, Someone(), flat_of(on or model()), consensus)  # type: ignore[arg-type]


EVALUATE = fx.Evaluate(7, 2, 4, True)
CHECKPOINT = fx.FireCallback("checkpoint", 5, 4, 2, "runs/checkpoint.v4")


def test_k3_the_consensus_is_in_the_model_only_meanwhile_and_what_was_there_comes_back_bit_for_bit() -> None:
    """K-3, also when the callback raises; NaN and signed zeros keep their bits."""
    live, other = model(), model()
    with torch.no_grad():
        for parameter in live.parameters():
            parameter.mul_(1.7)
        live[0].weight[0, 0] = float("nan")
        live[0].weight[0, 1] = -0.0
    flat, consensus = flat_of(live), flat_of(other).snapshot()
    before, storage = bits(live), [p.data_ptr() for p in live.parameters()]
    with pytest.raises(ValueError, match="boom"), consensus_in(flat, consensus.memory):
        assert bits(live) == bits(other)
        raise ValueError("boom")
    assert bits(live) == before and [p.data_ptr() for p in live.parameters()] == storage
    with consensus_in(flat, None):
        assert bits(live) == before


def test_k14_modes_of_all_modules_come_back() -> None:
    """K-14: also those that were in evaluation mode before."""
    live = model()
    live[1].eval()
    modes = [module.training for module in live.modules()]
    with evaluating(live):
        assert not any(module.training for module in live.modules()) and not torch.is_grad_enabled()
    assert [module.training for module in live.modules()] == modes and torch.is_grad_enabled()


def test_k14_what_an_evaluation_draws_is_not_missing_afterwards() -> None:
    """K-14: torch, Python, numpy."""

    def draw() -> tuple[float, float, float]:
        return torch.rand(1).item(), random.random(), float(numpy.random.rand())

    live = model()
    torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
    expected = draw()
    torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
    with random_state_kept(live):
        assert draw() == expected
    assert draw() == expected
    torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
    drawing = Callbacks(evaluate=lambda model: draw()[0], checkpoint=lambda version, session: draw())
    for order in (EVALUATE, CHECKPOINT):
        assert act(drawing, order, on=live).error is None
    assert draw() == expected


@pytest.mark.parametrize(("given", "metric", "count"), [(0.5, 0.5, None), ((0.25, 8), 0.25, 8), (None, None, None),
                                                        (torch.tensor(2.0), 2.0, None)])  # fmt: skip
def test_k14_an_evaluation_gives_a_number_or_a_number_and_its_count(given: Any, metric: Any, count: Any) -> None:
    """K-14: with the version and the schedule id of the order."""
    done = act(Callbacks(evaluate=lambda model: given), EVALUATE)
    assert (done.kind, done.decision_id, done.version) == ("evaluate", 7, 4)
    assert (done.metric, done.count, done.error) == (metric, count, None) and done.elapsed_ms >= 0


def test_k9_k16_what_a_callback_raises_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """K-9, K-16: the error travels, the training goes on, and a line says so where the script runs."""

    def fails(*arguments: Any) -> None:
        raise OSError("no space left")

    everything = Callbacks(epoch=fails, evaluate=fails, checkpoint=fails)
    for order in (EVALUATE, CHECKPOINT, fx.FireCallback("epoch", 2, 4, 2)):
        done = act(everything, order)
        assert done.error == "OSError: no space left" and done.metric is None
        assert f"rank 1: the {done.kind} callback raised" in capsys.readouterr().err
    for odd in ("much", (0.5, -1), (0.5, 2**63), (0.5, "many"), (0.5, float("nan")), (1, 2, 3)):
        assert act(Callbacks(evaluate=lambda model, odd=odd: odd), EVALUATE).error is not None, odd


def test_the_callbacks_of_a_script_get_what_their_names_say() -> None:
    """W-6, K-9: epoch and session, version and session; and a Hello names those that exist."""
    got: list[Any] = []
    callbacks = Callbacks(epoch=lambda *a: got.append(a[0]), checkpoint=lambda *a: got.append(a[0]))
    act(callbacks, fx.FireCallback("epoch", 2, 4, 2))
    act(callbacks, CHECKPOINT)
    assert got == [2, 4] and callbacks.names == ("epoch", "checkpoint")
    assert act(Callbacks(), EVALUATE).metric is None
    for order in (CHECKPOINT, fx.FireCallback("epoch", 0, 0, 0)):
        assert act(Callbacks(), order).error is None
