"""A user's script with every callback, for `paceline run`: each call is a line of JSON on standard output.

`WORD` arguments: `wish` asks for an evaluation and a checkpoint in the fifth step of rank 1, `broken` lets the
checkpoint callback of rank 0 raise.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline

WORDS = sys.argv[1:]
WISH_AT = 5


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def name(model: nn.Module) -> str:
    """A hash of what an average moves."""
    raw = b"".join(tensor.detach().numpy().tobytes() for tensor in model.parameters())
    return hashlib.sha256(raw).hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(320, 8)
    targets = (inputs.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def on_epoch(epoch: int, session: paceline.Session) -> None:
        say(call="epoch", rank=session.rank, epoch=epoch)

    def evaluate(model: nn.Module) -> tuple[float, int]:
        assert not model.training and not torch.is_grad_enabled()
        torch.rand(3)  # what it draws must not be missing in the training
        correct = (model(inputs).argmax(1) == targets).float()
        say(call="evaluate", model=name(model), metric=correct.mean().item())
        return correct.mean().item(), len(correct)

    def on_checkpoint(version: int, session: paceline.Session) -> None:
        if "broken" in WORDS and session.rank == 0:
            raise OSError("no space left")
        say(call="checkpoint", rank=session.rank, version=version, model=name(session.model))

    session = paceline.Session(
        model, optimizer, TensorDataset(inputs, targets), batch_size=2, epochs=3, on_epoch=on_epoch, evaluate=evaluate,
        on_checkpoint=on_checkpoint,
    )  # fmt: skip
    for steps, batch in enumerate(session, 1):
        assert model.training
        if steps == WISH_AT and session.rank == 1 and "wish" in WORDS:
            session.evaluate_now()
            session.checkpoint_now()
        loss = nn.functional.cross_entropy(model(batch.inputs), batch.targets)
        loss.backward()
        session.step(loss)
    say(call="done", rank=session.rank, version=session.version, model=name(model))


if __name__ == "__main__":
    main()
