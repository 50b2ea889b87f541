"""The plan in hand while it is trained: its parts, where it stands, what there is to tell of it (W-4, W-16, K-20)."""

from __future__ import annotations

import math
import time

import attrs

from ..core import events as ev
from ..core.errors import LocalProtocolError
from ..core.messages import Plan

__all__ = ["Chunk"]

LONGEST_NAME = 128
"""Characters of the name of a scalar; a coordinator drops what is longer (K-20)."""


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

    def add(self, name: str, value: float, count: int) -> None:
        """`value` is the mean of `count` observations. One that is no finite number is left out, as a loss is."""
        if not name or len(name) > LONGEST_NAME:
            raise LocalProtocolError(f"the scalar {name[:40]!r} has a name of {len(name)} characters; give it 1 to "
                                     f"{LONGEST_NAME} (K-20)")  # fmt: skip
        if count < 1:
            raise LocalProtocolError(f"{name} = {value} is said of {count} observations; give at least 1 (K-20)")
        if math.isfinite(value * count):
            total, counted = self.scalars.get(name, (0.0, 0))
            self.scalars[name] = total + value * count, counted + count

    def done(self) -> ev.ChunkDone:
        """What is told of it at its end (W-4)."""
        elapsed = (time.monotonic() - self.begun) * 1000
        return ev.ChunkDone(
            plan_ids=tuple(plan.plan_id for plan in self.parts), epoch=self.parts[-1].epoch, batches=self.batches,
            samples=self.samples, epoch_ms=elapsed, share_complete_ms=elapsed, compute_only_ms=self.compute_ms,
            data_starve_ms=self.starve_ms, scalars=self.scalars,
            avg_loss=self.loss_sum / self.loss_samples if self.loss_samples else None,
        )  # fmt: skip
