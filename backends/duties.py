"""Callbacks of the user, called in the training thread as the worker orders it (protocol K-3, K-9, K-14, W-6).

An evaluation and a checkpoint are of one version of the consensus. Where the live model is something else (async
blends, and whoever is asked later has stepped on), the consensus is put into it for as long as the callback runs, and
what was there comes back bit for bit. An evaluation leaves no other trace either: modes of all modules and random state
are as before, so a run trains the same numbers whether it is evaluated or not.

What a callback raises is an answer, not an end: the coordinator is told, and asks another rank where that helps.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from ..core import effects as fx
from ..core import events as ev
from ..core.door import LARGEST_COUNT
from ..core.roles import CHECKPOINT, EPOCH, EVALUATE
from .flat import FlatModel
from .layout import allocate

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Callbacks", "consensus_in", "evaluating", "random_state_kept"]


@attrs.frozen(eq=False)
class Callbacks:
    """What the script brought. `epoch(epoch, session)`, `checkpoint(version, session)`, and `evaluate(model)`, which
    gives a number, or a number and the count of samples behind it."""

    epoch: Callable[[int, Session], Any] | None = None
    evaluate: Callable[[nn.Module], Any] | None = None
    checkpoint: Callable[[int, Session], Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are there, as a Hello announces them."""
        all_of_them = {EPOCH: self.epoch, EVALUATE: self.evaluate, CHECKPOINT: self.checkpoint}
        return tuple(name for name, callback in all_of_them.items() if callback is not None)

    def act(self, order: fx.Evaluate | fx.FireCallback, session: Session, flat: FlatModel,
            consensus: memoryview | None) -> ev.ActionDone:  # fmt: skip
        """Carry out an order; `consensus` is what the model must hold meanwhile, None if it does already. The time
        told is that of everything, the switching of models and modes included (K-14)."""
        kind = EVALUATE if isinstance(order, fx.Evaluate) else order.name
        decision_id = order.schedule_id if isinstance(order, fx.Evaluate) else order.decision_id
        begun, error = time.monotonic(), None
        found: tuple[float | None, int | None] = (None, None)
        try:
            found = self._call(order, session, flat, consensus)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            where = f"paceline: rank {session.rank}: the {kind} callback raised {error}; the training goes on"
            print(where, file=sys.stderr, flush=True)
        elapsed = (time.monotonic() - begun) * 1000
        return ev.ActionDone(kind, decision_id, order.version, elapsed, error, *found)

    def _call(self, order: fx.Evaluate | fx.FireCallback, session: Session, flat: FlatModel,
              consensus: memoryview | None) -> tuple[float | None, int | None]:  # fmt: skip
        if isinstance(order, fx.FireCallback) and order.name == EPOCH:
            if self.epoch is not None:
                self.epoch(order.epoch, session)
            return None, None
        with ExitStack() as stack:
            stack.enter_context(consensus_in(flat, consensus))
            stack.enter_context(random_state_kept(flat.model))
            if isinstance(order, fx.FireCallback):
                if self.checkpoint is not None:
                    self.checkpoint(order.version, session)
                return None, None
            stack.enter_context(evaluating(flat.model))
            return (None, None) if self.evaluate is None else _number(self.evaluate(flat.model))


def _number(result: Any) -> tuple[float | None, int | None]:
    """A metric, or a metric and its count, at most as many as a run can have picks (K-16); None is no metric. What is
    neither raises."""
    value, count = result if isinstance(result, tuple) else (result, None)
    counted = None if count is None else int(count)
    if counted is not None and not 0 <= counted <= LARGEST_COUNT:
        raise ValueError(f"a metric over {counted} samples: give how many it is of, from 0 to {LARGEST_COUNT}")
    return (None if value is None else float(value)), counted


@contextmanager
def consensus_in(flat: FlatModel, consensus: memoryview | None) -> Iterator[None]:
    """The model holds `consensus` inside, and afterwards what it held before, bit for bit (K-3)."""
    if consensus is None:
        yield
        return
    own = flat.snapshot(into=allocate(flat.riding.nbytes))
    flat.adopt(consensus)
    try:
        yield
    finally:
        flat.adopt(own.memory)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; each module gets its own mode back (K-14)."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def random_state_kept(model: nn.Module) -> Iterator[None]:
    """What is drawn inside is not missing outside (K-14): torch on the processor and where the model is, Python, and
    numpy where it is loaded."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type != "cpu"})
    kind = next((p.device.type for p in model.parameters() if p.device.type != "cpu"), "cuda")
    numpy = sys.modules.get("numpy")
    own = random.getstate()
    numbers = None if numpy is None else numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices, device_type=kind):
            yield
    finally:
        random.setstate(own)
        if numpy is not None:
            numpy.random.set_state(numbers)
