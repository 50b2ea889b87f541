"""Faults that users of comparable systems have met with averages (C4), in whole runs over TCP; ids in docstrings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline.backends.session import Session
from paceline.core.errors import ConfigError

from support.models import bits
from support.small_run import BATCH, SmallRun, Thread, dataset, train_one


def sessions(train: Callable[[int], Any], ranks: int = 2) -> list[Any]:
    """So many ranks as threads; gives what each made of it."""
    return [thread.result() for thread in [Thread(lambda rank=rank: train(rank)) for rank in range(ranks)]]


def own(run: SmallRun, rank: int, model: nn.Module, samples: int = 12 * BATCH, **options: Any) -> Session:
    """A session of a model that the test brings."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.5)
    known: dict[str, Any] = dict(batch_size=BATCH, epochs=1, environment=run.environment(rank))
    return Session(model, optimizer, options.pop("data", None) or dataset(samples), **{**known, **options})


@pytest.mark.parametrize("ratios", [(3.0, 1.0), (1.0,)], ids=["two ranks", "one rank"])
def test_the_loss_of_an_epoch_is_that_of_its_samples(ratios: tuple[float, ...]) -> None:
    """F23, K-20, D-17: three batches of 32 samples with a loss of 1, and one of 4 with a loss of 3, on another rank or
    behind them. It is 1.08: neither 1.5 by batches nor 2 by ranks; and so is what a script reports by itself."""
    run = SmallRun(policy="sync", partition_ratios=ratios, drop_last=False, target_ranks=len(ratios))

    def train(rank: int) -> list[int]:
        sizes = []
        for batch in (session := own(run, rank, nn.Linear(3, 1), samples=100, batch_size=32)):
            sizes.append(len(batch.samples))
            loss = 3.0 if sizes[-1] == 4 else 1.0
            session.report("x", loss, count=sizes[-1])
            session.model(batch.inputs).sum().backward()
            session.step(loss)
        return sizes

    assert sessions(train, len(ratios)) == ([[32, 32, 32], [4]] if len(ratios) == 2 else [[32, 32, 32, 4]])
    assert run.coordinator.result().status == "ok"
    (end,) = run.named("EpochEnd")
    assert (end["avg_loss"], end["scalars"], end["samples"]) == (1.08, {"x": 1.08}, 100.0)
    by_rank = [end["ranks"][rank]["avg_loss"] for rank in sorted(end["ranks"])]
    assert by_rank == ([1.0, 3.0] if len(ratios) == 2 else [1.08])


class Branching(nn.Module):
    """A part of it is not used where `used` is false."""

    def __init__(self, used: bool) -> None:
        super().__init__()
        self.used, self.trunk, self.branch = used, nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.trunk(inputs) + self.branch(inputs) if self.used else self.trunk(inputs)


def test_ranks_of_which_one_never_uses_a_branch_train_one_model() -> None:
    """F29, R-3: rank 1 has no gradient there, in any step; no rank waits, nothing is refused, and all end with the same
    bits, in which what rank 0 has learned of the branch is."""
    run = SmallRun(anchor=2)

    def train(rank: int) -> tuple[dict[str, bytes], bool, torch.Tensor]:
        for batch in (session := own(run, rank, Branching(rank == 0))):
            train_one(session, batch)
        branch = session.model.branch
        return bits(session.model), branch.weight in session.optimizer.state, branch.weight.detach()

    (first, learned, weight), (second, other, _) = sessions(train)
    assert run.coordinator.result().status == "ok" and not run.named("Refused")
    assert first == second and learned and not other and bool(weight.isfinite().all())


@pytest.mark.parametrize("change", ["frozen", "untied"])
def test_a_model_that_has_become_another_ends_its_rank_and_no_run_goes_on_in_vain(change: str) -> None:
    """F30, R-3: as soon as one of its contributions was refused. A run in which every rank had frozen a layer trained
    and refused for ever, without an end or an error."""
    run = SmallRun(anchor=2, max_anchor=2)

    def train(rank: int) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
        model[1].weight = model[0].weight
        for steps, batch in enumerate(session := own(run, rank, model, samples=400 * BATCH)):
            assert len(run.named("Refused")) < 20, "in vain"
            if steps == 5:
                if change == "frozen":
                    model[2].bias.requires_grad_(False)
                else:
                    model[1].weight = nn.Parameter(model[1].weight.detach().clone())
            train_one(session, batch)

    errors = []
    for thread in [Thread(lambda: train(0)), Thread(lambda: train(1))]:
        with pytest.raises(ConfigError, match=r"R-3") as error:
            thread.result()
        errors.append(str(error.value))
    assert run.coordinator.result().status == "saved"
    words = "this rank has 2.bias: frozen" if change == "frozen" else "0.weight"
    assert all(words in text for text in errors)
    assert {record["why"] for record in run.named("Refused")} == {"schema"}


def test_a_set_that_is_as_before_when_the_average_comes_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """F30, R-3, R-4: one contribution is refused, and trained again; the rank goes on."""
    run = SmallRun(target_ranks=1, anchor=2)

    def train(rank: int) -> int:
        model = nn.Linear(3, 2)
        session = own(run, rank, model)
        adopt = session._adopt
        monkeypatch.setattr(session, "_adopt", lambda order: (model.bias.requires_grad_(True), adopt(order)))
        for steps, batch in enumerate(session):
            if steps == 1:
                model.bias.requires_grad_(False)
            train_one(session, batch)
        return session.global_step

    assert sessions(train, 1) == [12]
    assert [record["why"] for record in run.named("Refused")] == ["schema"]
    assert run.coordinator.result().status == "ok"


def test_a_run_of_which_nothing_has_an_element_ends() -> None:
    """F31, C-18, R-21: its consensus has no bytes, and every rank says their name. Without it the run never began."""
    run = SmallRun(anchor=2)

    def train(rank: int) -> int:
        model = nn.Module()
        model.register_parameter("w", nn.Parameter(torch.ones(0, 8)))
        for _ in (session := own(run, rank, model)):
            model.w.sum().backward()
            session.step(0.0)
        return session.version

    first, second = sessions(train)
    assert run.coordinator.result().status == "ok" and first == second > 0


def test_a_rank_that_is_left_alone_goes_on_learning_until_another_comes_back() -> None:
    """F34, R-6, R-17, M-7, W-28: rank 1 leaves with the first average. Rank 0 alone makes three more: version and steps
    rise, the optimizer keeps its momentum, the loss falls from step to step. Then rank 1 is there again, and the next
    averages are of both."""
    run = SmallRun(anchor=2, max_anchor=2)
    data = TensorDataset(torch.full((160, 3), 0.5), torch.full((160, 1), 4.0))
    losses: list[tuple[int, float]] = []
    moments: list[torch.Tensor] = []
    back: list[Thread] = []

    def step(session: Session, batch: Any) -> float:
        loss = nn.functional.mse_loss(session.model(batch.inputs), batch.targets)
        loss.backward()
        session.step(loss)
        return loss.item()

    def short() -> None:
        for batch in (session := own(run, 1, nn.Linear(3, 1), data=data)):
            step(session, batch)
            if session.version == 1:
                session.close()

    def again() -> int:
        for batch in (session := own(run, 1, nn.Linear(3, 1), data=data)):
            step(session, batch)
        return session.version

    def alone() -> int:
        session = own(run, 0, nn.Linear(3, 1), data=data)

        def moment(*_: object) -> None:
            known = [state["momentum_buffer"].reshape(-1).clone() for state in session.optimizer.state.values()]
            moments.append(torch.cat(known or [torch.zeros(0)]))

        session.optimizer.register_step_pre_hook(moment)
        session.optimizer.register_step_post_hook(moment)
        for batch in session:
            if session.version == 1:
                run.until("Left")
            if session.version == 4 and not back:
                back.append(Thread(again))
                run.until("Joined", 3)
            losses.append((session.version, step(session, batch)))
        return session.version

    first, second = Thread(alone), Thread(short)
    second.result()
    version = first.result()
    assert run.coordinator.result().status == "ok" and back[0].result() == version
    merged = [cycle["merged"] for cycle in run.named("Cycle")]
    assert all(set(each) == {"0"} for each in merged[1:4]) and all(cycle["realized"] for cycle in run.named("Cycle"))
    assert any(each.get("1") for each in merged[4:]), "an average of two"
    lone = [loss for version, loss in losses if 1 <= version < 4]
    assert len(lone) >= 3 and lone == sorted(lone, reverse=True) and lone[-1] < lone[0]
    assert all(map(torch.equal, moments[1:-1:2], moments[2::2])), "what an average changed of the optimizer"
