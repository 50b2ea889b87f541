"""The samples of the demo: scikit-learn's handwritten digits (1797 grey images of 8 x 8), in two parts.

Only the command loads them and imports scikit-learn, which takes longer than a rank trains. Its ranks read a file.
"""

from __future__ import annotations

import numpy
import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

__all__ = ["SPLIT_SEED", "TEST_SAMPLES", "load_split"]

SPLIT_SEED = 1797
"""The held-out samples are the same in every run, whatever the seed of the training."""
TEST_SAMPLES = 360


def load_split() -> tuple[TensorDataset, TensorDataset]:
    """The digits as (images float32 [n, 64] in 0..1, labels int64 [n]): 1437 to train, 360 to test."""
    images, labels = load_digits(return_X_y=True)
    order = numpy.random.default_rng(SPLIT_SEED).permutation(len(labels))
    inputs = torch.tensor(images[order] / 16, dtype=torch.float32)
    targets = torch.tensor(labels[order], dtype=torch.int64)
    train = TensorDataset(inputs[TEST_SAMPLES:], targets[TEST_SAMPLES:])
    return train, TensorDataset(inputs[:TEST_SAMPLES], targets[:TEST_SAMPLES])
