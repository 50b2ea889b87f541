"""What each rank of the demo runs: `python -m paceline.backends.demo_train --epochs 30 --seed 0`.

A small convolutional network learns scikit-learn's handwritten digits (1797 grey images of 8 x 8). It is the loop that
any user would write; `docs/examples/digits.py` is the shorter one to start from. The network is chosen for the ratio of
its costs: a step takes some milliseconds on one thread and its parameters fit into 300 KB, so that what the demo shows
is the policy, and neither the loopback nor the interpreter.
"""

from __future__ import annotations

import argparse

import numpy
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from .session import Session

__all__ = ["BATCH_SIZE", "SPLIT_SEED", "TEST_SAMPLES", "build_model", "evaluate", "load_split"]

BATCH_SIZE = 32
SPLIT_SEED = 1797
"""The held-out samples are the same in every run, whatever the seed of the training."""
TEST_SAMPLES = 360
LEARNING_RATE = 0.03
MOMENTUM = 0.9


def load_split() -> tuple[TensorDataset, TensorDataset]:
    """The digits as (images float32 [n, 64] in 0..1, labels int64 [n]): 1437 to train, 360 to test."""
    images, labels = load_digits(return_X_y=True)
    order = numpy.random.default_rng(SPLIT_SEED).permutation(len(labels))
    inputs = torch.tensor(images[order] / 16, dtype=torch.float32)
    targets = torch.tensor(labels[order], dtype=torch.int64)
    train = TensorDataset(inputs[TEST_SAMPLES:], targets[TEST_SAMPLES:])
    return train, TensorDataset(inputs[:TEST_SAMPLES], targets[:TEST_SAMPLES])


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
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    # One thread a rank: two ranks with two threads each would fight for the two cores of a small machine.
    torch.set_num_threads(1)
    train, _ = load_split()
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
