"""The plan in hand while it is trained: its parts, where it stands, what there is to tell of it (W-4, W-16, K-20)."""

from __future__ import annotations

import math
import time
from operator import index
from typing import SupportsIndex

import attrs

from ..core import events as ev
from ..core.dispatch.tally import LONGEST_NAME, MOST_SCALARS
from ..core.errors import LocalProtocolError
from ..core.messages import Plan
from ..core.sayable import is_text

__all__ = ["Chunk"]

MOST_OBSERVATIONS = 2**32 - 1
"""Observations of one batch: more of them than any batch has, and the sum of a chunk fits its report (K-20)."""


@attrs.define(eq=False)
class Chunk:
    """See the module. `parts` are the plan and its extensions, `part` and `batch` the place in them; `scalars` are
    (sum, count) by name."""

    parts: list[Plan]
    part: int = 0
    batch: int = 0
    batches: int = 0
    samples: int = 0
    loss_sum: float = 0.0
    loss_samples: int = 0
    compute_ms: float = 0.0
    starve_ms: float = 0.0
    scalars: dict[str, tuple[float, int]] = attrs.field(factory=dict)
    begun: float = attrs.field(factory=time.monotonic)

    def due(self, batch_size: int) -> tuple[int, int, int]:
        """The next batch: epoch, offset in its order, and how many picks it has."""
        plan = self.parts[self.part]
        done = self.batch * batch_size
        return plan.epoch, plan.offset + done, min(batch_size, plan.size - done)

    def count(self, batch_size: int, samples: int, loss: float | None, batch_ms: float, data_ms: float) -> bool:
        """That batch is trained; whether it was the last one."""
        plan = self.parts[self.part]
        self.batch += 1
        self.batches += 1
        self.samples += samples
        self.compute_ms += batch_ms
        self.starve_ms += data_ms
        if loss is not None and math.isfinite(loss):
            self.loss_sum += loss * samples
            self.loss_samples += samples
        if self.batch * batch_size >= plan.size:
            self.part, self.batch = self.part + 1, 0
        return self.part == len(self.parts)

    def add(self, name: str, value: float, count: SupportsIndex) -> None:
        """`value` is the mean of `count` observations. One that is no finite number is left out, as a loss is."""
        if not 0 < len(name) <= LONGEST_NAME or not is_text(name):
            raise LocalProtocolError(f"the scalar {name[:40]!r} has a name of {len(name)} characters; give it 1 to "
                                     f"{LONGEST_NAME}, in UTF-8 (K-20)")  # fmt: skip
        if not 1 <= (whole := _whole(count)) <= MOST_OBSERVATIONS:
            raise LocalProtocolError(f"{name} = {value} is said of {count!r} observations; give a whole number from 1 "
                                     f"to {MOST_OBSERVATIONS} (K-20)")  # fmt: skip
        if name not in self.scalars and len(self.scalars) >= MOST_SCALARS:
            raise LocalProtocolError(f"{name[:40]!r} is one more than the {MOST_SCALARS} names that a run may have; is "
                                     "it made of something that changes with each batch? (K-20)")  # fmt: skip
        if math.isfinite(value * whole):
            total, counted = self.scalars.get(name, (0.0, 0))
            self.scalars[name] = total + value * whole, counted + whole

    def done(self) -> ev.ChunkDone:
        """What is told of it at its end (W-4)."""
        elapsed = (time.monotonic() - self.begun) * 1000
        return ev.ChunkDone(
            plan_ids=tuple(plan.plan_id for plan in self.parts), epoch=self.parts[-1].epoch, batches=self.batches,
            samples=self.samples, epoch_ms=elapsed, share_complete_ms=elapsed, compute_only_ms=self.compute_ms,
            data_starve_ms=self.starve_ms, scalars=self.scalars,
            avg_loss=self.loss_sum / self.loss_samples if self.loss_samples else None,
        )  # fmt: skip


def _whole(count: SupportsIndex) -> int:
    """The number, of whatever library; 0 for what is no whole one, as a tensor of fractions is not."""
    try:
        return index(count)
    except TypeError:
        return 0
