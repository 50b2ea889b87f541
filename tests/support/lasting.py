"""A cohort that averages in place and outlives its links and its coordinator: `Mended` over `Together`.

The call of a communicator goes on while a link is down or the coordinator is dead. A rank that begins a new life keeps
what its training process has, and the call that it may still be in.
"""

from __future__ import annotations

from typing import Any

from paceline.core import effects as fx
from paceline.core import messages as m

from .cohort import Node
from .collective import Together
from .mended import Mended

__all__ = ["Lasting"]


class Lasting(Mended, Together):
    """See the module."""

    def _admit(self, effect: fx.Admit) -> None:
        knock = self.knocking.get(effect.link)
        node = None if knock is None else self.nodes[knock.rank]
        tensors = None if node is None else self.of(node)
        super()._admit(effect)
        if node is not None and tensors is not None:
            self.tensors[node.rank, node.incarnation] = tensors

    def _obey(self, node: Node, effect: Any) -> None:
        if isinstance(effect, fx.Reporting) and isinstance(effect.report, m.SyncAck):
            node.said.add((effect.report.cycle, effect.report.attempt))  # of a copy, which this flavour has not
        super()._obey(node, effect)

    def _do_tick(self, rank: int) -> None:
        assert self.co.explain(), "I39: nobody knows what is waited for"
        super()._do_tick(rank)
