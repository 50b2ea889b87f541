"""What a rank writes: its files when the run is saved and stopped, and bundles of the consensus (K-7, K-11).

The first is written where it is ordered, in the training thread: nothing is trained any more, and only that thread may
touch the optimizer. A bundle is ordered in the middle of the training. It is copied out before any further step, and
written in a thread beside it, so the training waits for memory and never for the disk.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ..core import effects as fx
from ..core import events as ev
from ..core.errors import CheckpointError
from .backlog import DetachedWriter
from .checkpoint import save_model, save_optimizer
from .duties import consensus_in
from .flat import FlatModel

__all__ = ["RankFiles"]

STEM = "paceline"
"""Where an order names no place."""


class RankFiles:
    """The files of one rank, whose model is `flat`. `feed` is told the end of each order, from any thread. Each file is
    sealed and names the run and the version it is of, because nobody reports that (K-6, W-18)."""

    def __init__(
        self, flat: FlatModel, optimizer: torch.optim.Optimizer, feed: Callable[[ev.ActionDone], None], run_id: bytes
    ) -> None:
        self._flat = flat
        self._optimizer = optimizer
        self._feed = feed
        self._run_id = run_id.hex()
        self._writer = DetachedWriter()

    def write(self, rank: int, order: fx.Save, consensus: memoryview | None) -> None:
        """Carry out an order to this rank, in the training thread; an error is told and ends nothing. A bundle is of
        `consensus`; None: of what the model holds."""
        if order.optimizer:
            self._save(rank, order)
        else:
            self._detach(rank, order, consensus)

    def settle(self) -> None:
        """Wait until every bundle that was ordered is written, or told why not."""
        self._writer.settle()

    def _save(self, rank: int, order: fx.Save) -> None:
        """K-11: the optimizer file always, the model if this rank is the saver; an error never blocks the exit."""
        begun, error = time.monotonic(), None
        stem, told = order.stem or STEM, self._told(order)
        own = {"rank": str(rank), **told}
        try:
            _make_directory(stem)
            save_optimizer(f"{stem}.rank{rank}.optim.safetensors", self._optimizer, own)
            if order.model:
                save_model(f"{stem}.model.safetensors", self._flat.model.state_dict(), told)
        except (CheckpointError, OSError) as failure:
            error = str(failure)
        self._done("save", order, begun, error)

    def _detach(self, rank: int, order: fx.Save, consensus: memoryview | None) -> None:
        """K-7. No report goes to the coordinator (W-18): what goes wrong is said here (K-8)."""
        begun, stem = time.monotonic(), order.stem or STEM
        with consensus_in(self._flat, consensus):
            tensors = self._flat.copies()

        def write() -> None:
            _make_directory(stem)
            save_model(f"{stem}.safetensors", tensors, self._told(order))

        def told(error: str | None) -> None:
            if error is not None:
                print(f"paceline: rank {rank}: {error}; the training goes on", file=sys.stderr, flush=True)
            self._done("consensus", order, begun, error)

        self._writer.order(stem, write, told)

    def _told(self, order: fx.Save) -> dict[str, str]:
        return {"run_id": self._run_id, "version": str(order.version)}

    def _done(self, kind: str, order: fx.Save, begun: float, error: str | None) -> None:
        elapsed = (time.monotonic() - begun) * 1000
        self._feed(ev.ActionDone(kind, order.decision_id, order.version, elapsed, error))


def _make_directory(stem: str) -> None:
    """Another host may not have the one that the coordinator named (K-8)."""
    Path(stem).parent.mkdir(parents=True, exist_ok=True)
