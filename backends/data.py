"""From sample numbers to a batch of tensors, and what names a data set at the door (M-5)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from ..core.errors import ConfigError
from ..core.schema import dataset_signature

__all__ = ["Collator", "Upcoming", "dataset_identity"]

PROBES = 16
"""Samples whose content goes into the signature, spread evenly over the data set."""


READ_AHEAD = 256
"""Sample numbers computed at a time for whoever reads a hint; the permutation is fastest in runs of this length."""


class Upcoming:
    """Numbers of the samples that this rank may be given next, soonest first (D-24).

    For the `prefetch(indices)` of a data set: iterate over it as far as there is room, in any thread, as often as
    wanted. It may go on for millions of samples, which are numbered only as they are read. It is a guess: others may
    come, and each new hint takes the place of the one before (W-25).
    """

    def __init__(
        self, segments: Sequence[tuple[int, Sequence[tuple[int, int]]]], samples: Callable[[int, int, int], list[int]]
    ) -> None:
        self._segments = segments
        self._samples = samples

    def __iter__(self) -> Iterator[int]:
        for epoch, parts in self._segments:
            for offset, size in parts:
                for start in range(offset, offset + size, READ_AHEAD):
                    yield from self._samples(epoch, start, min(READ_AHEAD, offset + size - start))


class Collator:
    """Fetches samples by number and stacks them, on `device` if one is given."""

    def __init__(self, dataset: Any, device: torch.device | str | None) -> None:
        self._dataset = dataset
        self._device = None if device is None else torch.device(device)

    def __call__(self, samples: Sequence[int]) -> tuple[Any, ...]:
        if type(self._dataset) is TensorDataset:  # a subclass may have a __getitem__ of its own
            index = torch.tensor(samples, dtype=torch.long)
            parts: Any = tuple(tensor[index] for tensor in self._dataset.tensors)
        elif hasattr(self._dataset, "__getitems__"):
            parts = default_collate(self._dataset.__getitems__(list(samples)))
        else:
            parts = default_collate([self._dataset[index] for index in samples])
        parts = tuple(parts) if isinstance(parts, (list, tuple)) else (parts,)
        if not parts:
            raise ConfigError("a sample of the data set is empty; it needs at least an input")
        return parts if self._device is None else tuple(_moved(part, self._device) for part in parts)

    def prefetch(self, upcoming: Upcoming) -> str | None:
        """Tell the data set what may come, if it has a `prefetch(indices)`, which must return at once. Gives what it
        raised, in words: a hint never fails (W-25)."""
        hook = getattr(self._dataset, "prefetch", None)
        if callable(hook):
            try:
                hook(upcoming)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        return None


def _moved(part: Any, device: torch.device) -> Any:
    """Tensors on the device, in whatever default_collate has put them."""
    if isinstance(part, torch.Tensor):
        return part.to(device)
    if isinstance(part, dict):
        return {key: _moved(inner, device) for key, inner in part.items()}
    return [_moved(inner, device) for inner in part] if isinstance(part, (list, tuple)) else part


def dataset_identity(dataset: Any, batch_size: int | None) -> bytes:
    """The signature of a data set; `ConfigError` for one that nobody can train on."""
    try:
        length = len(dataset)
    except TypeError:
        raise ConfigError(
            f"the data set ({type(dataset).__name__}) has no len(); paceline deals out samples by number and needs a "
            "map-style data set"
        ) from None
    if length == 0:
        raise ConfigError("the data set is empty; there is nothing to train on")
    if batch_size is not None and length < batch_size:
        raise ConfigError(
            f"batch_size = {batch_size} is more than the data set's {length} samples; take a smaller batch_size (D-2)"
        )
    hasher = hashlib.sha256()
    for probe in range(min(PROBES, length)):
        hasher.update(_content(dataset[probe * length // min(PROBES, length)]))
    return dataset_signature(length, hasher.digest())


def _content(sample: Any) -> bytes:
    """Bytes that depend on a sample's values only. A sample that is not stable (random augmentation) or cannot be
    read as bytes counts by its type alone: a signature must never refuse two equal data sets."""
    if isinstance(sample, torch.Tensor):
        plain = sample.detach().cpu().contiguous()
        return str((plain.dtype, tuple(plain.shape))).encode()
    if isinstance(sample, (list, tuple)):
        return b"".join(_content(part) for part in sample)
    if isinstance(sample, dict):
        return b"".join(str(key).encode() + _content(sample[key]) for key in sorted(sample))
    if isinstance(sample, (bool, int, float, str, bytes)):
        return repr(sample).encode()
    return type(sample).__name__.encode()
