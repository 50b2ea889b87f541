"""Averagers whose fault shows on real lanes: over a transport, or when a process is killed. `asked` is how the kit has
to look."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import numpy as np

from paceline.backends.star import StarAverager
from paceline.core.effects import RunCollective
from paceline.core.events import CollectiveDone, CollectiveFailed
from paceline.core.messages import BulkBlock, RoundResult

from conformance.examples import example

Tcp: Any = example("tcp_in_place").TcpInPlace


class CountsInNumpy(StarAverager):
    """Equal to a number, and nothing that a record can carry."""

    asked: ClassVar[dict[str, Any]] = {"over": "tcp://127.0.0.1:0"}

    def scatter(self, rank: int) -> tuple[RoundResult, list[tuple[BulkBlock, memoryview]]]:
        result, blocks = super().scatter(rank)
        total: Any = np.int64(result.total_steps)
        return attrs.evolve(result, total_steps=total), blocks


class GoesOnAlone(Tcp):
    """A member that is gone has nothing to add."""

    asked: ClassVar[dict[str, Any]] = {"processes": True}

    def run(self, order: RunCollective) -> CollectiveDone | CollectiveFailed:
        ended: CollectiveDone | CollectiveFailed = super().run(order)
        if isinstance(ended, CollectiveFailed) and order.session_id not in self.aborted:
            return CollectiveDone(cycle=order.cycle, attempt=order.attempt, total_steps=order.steps)
        return ended
