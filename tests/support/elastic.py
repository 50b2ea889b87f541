"""A cohort to which ranks come while it trains, and whose training processes hang for a while.

Adds to `Cohort`: a schema with an entry that no consensus holds, the transfer of it to a joiner, and two faults:
`start` lets a rank knock (again, if it is dead), `hang` stops a rank's training process and nothing else of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.schema import EntryClass, Schema, SchemaEntry

from .cohort import SCHEMA, Cohort, Fault, Node, hello

STATEFUL = Schema(entries=(*SCHEMA.entries, SchemaEntry(name="n", cls=EntryClass.LOCAL, shape=(), dtype="int64")))
HANGS_S = (1.0, 8.0, 40.0, 500.0)
"""Seconds of a hang, by the `lose` of its fault: shorter than any deadline, up to longer than every ceiling."""
QUICK: dict[str, Any] = dict(
    suspect_initial_s=4.0, suspect_floor_s=2.0, reduce_ceiling_s=60.0, window_ceiling_s=120.0, first_step_s=90.0,
    beacon_s=3.0, rejoin_window_s=20.0,
)  # fmt: skip
"""Clocks with which all of the ladder is climbed in few ticks."""
KNOCKING = 1000
"""Link numbers of ranks that come late."""


class Elastic(Cohort):
    """See the module. `stateful` is whether the model has an entry that a joiner needs a donor for."""

    def __init__(self, *, stateful: bool = True, **knobs: Any) -> None:
        self.schema = STATEFUL if stateful else SCHEMA
        self.complete: set[tuple[int, int]] = set()
        self.hung: dict[int, float] = {}
        self.links = KNOCKING
        self.finished: list[int] = []
        super().__init__(**{**QUICK, **knobs})

    def greeting(self, rank: int | None = None) -> m.Hello:
        """A Hello with the schema of this cohort."""
        schema = self.schema
        return hello(self.samples, schema=schema, schema_hash=schema.hash(), wanted_rank=rank, callbacks=self.callbacks)

    def start(self, rank: int | None = None) -> bool:
        """A rank knocks, at its old seat or at any; whether it was let in."""
        if rank is not None and rank in self.nodes and self.nodes[rank].up:
            return False  # its end has not been told yet: the seat is taken
        self.links += 1
        refused = len(self.rejects)
        self.feed(ev.HelloReceived(self.links, self.greeting(rank)))
        return len(self.rejects) == refused

    def hang(self, rank: int, seconds: float) -> None:
        """From now on the training process does nothing; heartbeats go on."""
        self.hung[rank] = self.now + seconds

    # --- what differs --------------------------------------------------------------------------------------------

    def _perform(self, effect: Any) -> None:
        if isinstance(effect, (fx.OpenRound, fx.CloseRound)) and effect.key.is_transfer:
            return
        if isinstance(effect, fx.Admit):
            self.cut.discard(effect.rank)
            self.hung.pop(effect.rank, None)
        super()._perform(effect)

    def _obey(self, node: Node, effect: Any) -> None:
        if isinstance(effect, fx.SendState):
            node.trainer.orders.append(effect)
        else:
            super()._obey(node, effect)

    def _do_order(self, rank: int) -> None:
        order = self.nodes[rank].trainer.orders[0]
        if isinstance(order, fx.SendState):
            self.nodes[rank].trainer.orders.popleft()
            self.complete.add((order.joiner_rank, order.joiner_incarnation))
        else:
            super()._do_order(rank)

    def _do_stage(self, rank: int) -> None:
        assert self.round is not None
        if self.round.key.kind == m.RoundKind.STATE:
            self.complete.add((rank, self.nodes[rank].incarnation))
        super()._do_stage(rank)

    def _can_stage(self) -> list[int]:
        """A joiner stages when it has both parts; in formation everything comes at once."""
        ready = super()._can_stage()
        if not self.schema.static() or (self.round is not None and self.round.key.kind == m.RoundKind.STATE):
            return ready
        return [rank for rank in ready if (rank, self.nodes[rank].incarnation) in self.complete]

    def enabled(self) -> list[tuple[str, int]]:
        """What a hanging training process does not do is not enabled."""
        actions = super().enabled()
        if hung := {rank for rank, until in self.hung.items() if self.now < until}:
            actions = [a for a in actions if a[1] not in hung or a[0] not in ("drain", "order", "step")]
        if not actions and self.co.poll_timeout() is not None:
            actions.append(("tick", 0))
        return actions

    def strike(self, fault: Fault) -> None:
        """Two more kinds."""
        if fault.kind == "start":
            seat = fault.rank if fault.rank in self.nodes else None
            if not self.co.finished and (seat is None or not self.nodes[seat].alive):
                self.log.append(f"start {seat}")
                self.start(seat)
        elif fault.kind == "hang":
            rank = fault.rank % max(1, len(self.nodes))
            self.log.append(f"hang {rank} {fault.lose}")
            self.hang(rank, HANGS_S[fault.lose])
        else:
            super().strike(fault)

    def facts(self, name: str) -> list[int]:
        """The ranks of all timeline events of a name, in order."""
        return [facts["rank"] for facts in self.events(name)]


def life(cohort: Cohort, rank: int) -> Any:
    """The record of a rank's newest incarnation."""
    return cohort.co.peers[rank]


def starts(ranks: Iterable[int], when: int) -> list[Fault]:
    """These ranks knock at that time."""
    return [attrs.evolve(Fault(when, "start"), rank=rank) for rank in ranks]
