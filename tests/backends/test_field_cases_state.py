"""Faults that users of comparable systems have met with the state of optimizers; ids are in the docstrings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.backends.checkpoint import load_optimizer, restore_optimizer, save_optimizer
from paceline.backends.flat import FlatModel
from paceline.backends.schema import schema_of
from paceline.backends.session import Session
from paceline.core.errors import CheckpointError

from support.small_run import BATCH, SmallRun, dataset, train_one


def one_number(at: float) -> nn.Module:
    """A model of one parameter."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(at)
    return model


def test_momentum_stays_with_its_rank_over_an_average() -> None:
    """F41, R-17: adoption writes parameters and leaves the optimizer alone. From 1 and 3, with momentum 1 and -1, to 2;
    then a step without a gradient goes on by the momentum: 2 - 0.1 * 0.9 and 2 + 0.1 * 0.9."""
    after = []
    for at, gradient in ((1.0, 1.0), (3.0, -1.0)):
        model = one_number(at + 0.1 * gradient)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model.weight.grad = torch.tensor([[gradient]])
        optimizer.step()
        assert model.weight.item() == pytest.approx(at)
        FlatModel(model, schema_of(model)).adopt(memoryview(torch.tensor([2.0]).numpy().view("u1")))
        model.weight.grad = torch.zeros(1, 1)
        optimizer.step()
        after.append(model.weight.item())

    assert after == [pytest.approx(1.91), pytest.approx(2.09)]


def test_the_step_count_of_adam_stays_with_its_rank() -> None:
    """F41: it corrects the bias of averages that this rank has made, so it is of this rank, and whole."""
    model = one_number(1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        model.weight.grad = torch.ones(1, 1)
        optimizer.step()
    FlatModel(model, schema_of(model)).adopt(memoryview(torch.tensor([2.0]).numpy().view("u1")))

    assert [state["step"].item() for state in optimizer.state.values()] == [3.0]


def test_a_session_keeps_the_state_of_its_optimizer_over_an_average() -> None:
    """F41, R-17: eight batches, an average after four. Adam counts to eight, and its moments go on where they stood."""
    run = SmallRun(target_ranks=1, anchor=4, max_anchor=4)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    moments: list[torch.Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: moments.append(moment(optimizer)))
    optimizer.register_step_post_hook(lambda *_: moments.append(moment(optimizer)))
    session = Session(model, optimizer, dataset(8 * BATCH), batch_size=BATCH, epochs=1, environment=run.environment(0))
    seen = []
    for batch in session:
        seen.append((session.version, {int(state["step"].item()) for state in optimizer.state.values()}))
        train_one(session, batch)

    assert run.coordinator.result().status == "ok"
    assert seen == [(0, set()), *((step // 4, {step}) for step in range(1, 8))]
    assert len(moments) == 16 and all(map(torch.equal, moments[1:-1:2], moments[2::2]))


def moment(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """The first moments of all parameters, in a row."""
    return torch.cat([state["exp_avg"].reshape(-1).clone() for state in optimizer.state.values()] or [torch.zeros(0)])


def test_a_state_that_does_not_exist_yet_is_said_to_and_is_a_fresh_start(tmp_path: Path) -> None:
    """F42: an optimizer makes its state at its first step; saved before it, there is none to lose."""
    fresh = torch.optim.Adam(one_number(1.0).parameters(), lr=0.1)
    save_optimizer(tmp_path / "o.safetensors", fresh, {"rank": "0"})
    other = torch.optim.Adam(one_number(1.0).parameters(), lr=0.1)
    restore_optimizer(tmp_path / "o.safetensors", other, 0)

    assert not load_optimizer(tmp_path / "o.safetensors")["state"] and not other.state


def test_a_state_that_lacks_a_parameter_is_refused_by_its_place(tmp_path: Path) -> None:
    """F42, K-12: a library that reads a missing entry as nothing to do would train it without its history."""
    model = nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    del optimizer.state[model.bias]
    save_optimizer(tmp_path / "o.safetensors", optimizer, {"rank": "0"})
    other = torch.optim.Adam(nn.Linear(2, 3).parameters(), lr=0.1)

    with pytest.raises(CheckpointError, match=r"no state for parameter 1 of group 0"):
        restore_optimizer(tmp_path / "o.safetensors", other, 0)
    assert not other.state


def three_groups(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    groups = [{"params": [model[0].weight]}, {"params": [model[0].bias]}, {"params": model[2].parameters()}]
    return [torch.optim.SGD(groups, lr=1.0, momentum=0.9)]


def two_optimizers(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model[0].parameters(), lr=1.0), torch.optim.Adam(model[2].parameters(), lr=0.01)]


@pytest.mark.parametrize("make", [three_groups, two_optimizers])
def test_a_step_is_one_batch_however_many_groups_and_optimizers_it_has(
    make: Callable[[nn.Sequential], list[torch.optim.Optimizer]],
) -> None:
    """F40, F37, W-2, W-8: eight batches, averages after four. With three parameter groups, or with a second optimizer
    that the script steps itself, they come after the steps 4 and 8 only; both sides count 1 to 4 twice. Every group
    that the session steps has the rate of the position, which rises by one a batch."""
    run = SmallRun(target_ranks=1, anchor=4, max_anchor=4)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    mine, *others = optimizers = make(model)
    calls: Counter[int] = Counter()
    for number, optimizer in enumerate(optimizers):
        optimizer.register_step_post_hook(lambda *_, number=number: calls.update([number]))
    session = Session(model, mine, dataset(8 * BATCH), batch_size=BATCH, epochs=1, environment=run.environment(0),
                      lr_schedule=lambda position: 0.1 * (1.0 - position / 400.0))  # fmt: skip
    seen, rates = [], []
    for batch in session:
        worker = session._connection.driver.worker
        seen.append((session.version, session.local_step, worker.steps_since_avg))
        rates.append([group["lr"] for group in mine.param_groups])
        loss = nn.functional.cross_entropy(model(batch.inputs), batch.targets)
        loss.backward()
        for other in others:
            other.step()
            other.zero_grad()
        session.step(loss)

    assert run.coordinator.result().status == "ok"
    assert seen == [(step // 4, step, step % 4) for step in range(8)] and session.version == 2
    assert [cycle["merged"] for cycle in run.named("Cycle")] == [{"0": 4}, {"0": 4}]
    assert calls == {number: 8 for number in range(len(optimizers))}
    assert rates == [[0.1 * (1.0 - step / 400.0)] * len(mine.param_groups) for step in range(8)]
