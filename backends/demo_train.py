"""What each rank of the demo runs: `python -m paceline.backends.demo_train --samples FILE --epochs 30 --seed 0`.

A small convolutional network learns handwritten digits, grey images of 8 x 8 that the command has written to the file
(`write_samples`), so that no rank has to import scikit-learn before it can train. It is the loop that any user would
write; `docs/examples/digits.py` is the shorter one to start from. The network is chosen for the ratio of
its costs: a step takes some milliseconds on one thread and its parameters fit into 300 KB, so that what the demo shows
is the policy, and neither the loopback nor the interpreter.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from .checkpoint import load_model, save_model
from .session import Session

__all__ = ["BATCH_SIZE", "build_model", "evaluate", "write_samples"]

BATCH_SIZE = 32
LEARNING_RATE = 0.03
MOMENTUM = 0.9


def write_samples(path: Path, dataset: TensorDataset) -> None:
    """The samples to train, images float32 [n, 64] and labels int64 [n], for the ranks. Raises `CheckpointError`."""
    inputs, targets = dataset.tensors
    save_model(path, {"inputs": inputs, "targets": targets}, {})


def build_model(seed: int) -> nn.Module:
    """The network with its initial parameters, the same for one seed."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip


def evaluate(model: nn.Module, dataset: TensorDataset) -> float:
    """The share of samples, 0 to 1, whose label the model finds."""
    inputs, targets = dataset.tensors
    model.eval()
    with torch.no_grad():
        return float((model(inputs).argmax(1) == targets).float().mean())


def main() -> None:
    """Train as one rank of the run that the environment names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    # One thread a rank: two ranks with two threads each would fight for the two cores of a small machine.
    torch.set_num_threads(1)
    samples, _ = load_model(options.samples)
    train = TensorDataset(samples["inputs"], samples["targets"])
    model = build_model(options.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    loss_fn = nn.CrossEntropyLoss()
    session = Session(model, optimizer, train, batch_size=BATCH_SIZE, epochs=options.epochs, seed=options.seed)
    for batch in session:
        loss = loss_fn(model(batch.inputs), batch.targets)
        loss.backward()
        session.step(loss)


if __name__ == "__main__":
    main()
