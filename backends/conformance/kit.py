"""The kit for averagers, what its checks look at, and the ways in which they look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

import attrs

from ...core.conformance import CheckFailed, Kit, accepting, ensure
from ...core.effects import CloseRound
from ...core.events import RoundReduced
from ...core.messages import RoundKey
from ...core.schema import Schema
from ..averager import Averager
from ..layout import FlatLayout
from .drive import KEY, SCHEMA, Cohort, Ship, opened
from .hosts import Hosts
from .reference import consensus_of, same
from .wire import Carried, Wire

__all__ = ["CLASSIC", "GUIDE", "KIT", "Subject", "capabilities_of", "contributions", "ensure_consensus",
           "ensure_ended", "key_of"]  # fmt: skip

GUIDE = "guides/write-an-averager.md"

KIT: Kit[Subject] = Kit(
    name="averagers",
    version=6,
    capabilities={
        "ships": "ranks ship copies of their parameters to the coordinator's half (it does not average in place)",
        "in_place": "it averages the live parameters inside one call of all ranks",
        "abortable": "a round or call in flight can be given up and repeated",
        "needs_session": "it needs a communicator that is rebuilt when the cohort changes",
    },
)
"""The checks; the modules beside this one hold them."""

CLASSIC: Mapping[int, int] = {0: 3, 1: 0, 2: 10, 5: 1}
"""Steps by rank of an unequal cohort with an idle rank and a gap."""


@attrs.frozen
class Subject:
    """The averager under judgement.

    Fields:
        make: its class, or whatever else is called like the class in `Averager` or `InPlaceAverager`.
        in_place: it claims to average in place.
        patience_s: a call in place, or a block over the wire, that takes longer is taken to hang.
        wire: what carries the blocks of an averager that ships; None: they are handed over in memory.
        hosts: the processes in which ranks that average in place live; None: they are threads of this one.
    """

    make: Callable[..., Any]
    in_place: bool = False
    patience_s: float = 10.0
    wire: Wire | None = None
    hosts: Hosts | None = None

    def fresh(self, schema: Schema = SCHEMA, *, gamma: float = 1.0, digest: bool = True) -> Averager:
        """A new one, behind the wire if there is one."""
        made: Averager = self.make(schema, gamma=gamma, digest=digest)
        return made if self.wire is None else cast("Averager", Carried(made, self.wire))

    def bare(self) -> Any:
        """A new one of either kind, for a look at it."""
        with accepting(f"making one that {'averages in place' if self.in_place else 'ships'}, as it claims,"):
            if not self.in_place:
                return self.make(SCHEMA, gamma=1.0, digest=True)
            return _one_in_place(self.make)

    def cycle(
        self,
        ships: Mapping[int, Ship],
        *,
        schema: Schema = SCHEMA,
        gamma: float = 1.0,
        order: Iterable[int] = (),
        observers: Iterable[int] = (),
        averager: Averager | None = None,
        key: RoundKey = KEY,
    ) -> tuple[Averager, RoundReduced]:
        """One cycle up to its reduce, on a fresh averager or on `averager`. Ships of observers are theirs to try."""
        averager = self.fresh(schema, gamma=gamma) if averager is None else averager
        watching = set(observers)
        averager.open(opened([rank for rank in ships if rank not in watching], observers=sorted(watching), key=key))
        reduced = Cohort(schema, averager, ships, key).reduce(order)
        if not isinstance(reduced, RoundReduced):
            raise CheckFailed(f"a healthy cycle ended in {reduced}")
        return averager, reduced

    def after(self, ships: Mapping[int, Ship], *, schema: Schema = SCHEMA) -> tuple[Averager, bytes]:
        """An averager whose first cycle is over, and its consensus."""
        averager, reduced = self.cycle(ships, schema=schema)
        averager.close(CloseRound(reduced.key))
        ensure(averager.consensus is not None, "a cycle with movers left no consensus")
        return averager, bytes(averager.consensus or b"")


def capabilities_of(make: Callable[..., Any]) -> object:
    """The `capabilities` of a class, or of what another factory makes; None if nothing can be made, which L0 tells."""
    if hasattr(make, "capabilities"):
        return make.capabilities
    with suppress(Exception):
        return getattr(make(SCHEMA, gamma=1.0, digest=True), "capabilities", None)
    with suppress(Exception):
        return getattr(_one_in_place(make), "capabilities", None)
    return None


def _one_in_place(make: Callable[..., Any]) -> Any:
    return make(SCHEMA, memoryview(bytearray(FlatLayout.whole(SCHEMA).nbytes)), gamma=1.0)


def key_of(cycle: int) -> RoundKey:
    """The parameter round of a cycle."""
    return attrs.evolve(KEY, cycle=cycle)


def contributions(ships: Mapping[int, Ship]) -> dict[int, tuple[int, bytes]]:
    """What of these ships has mass."""
    return {rank: (ship.steps, bytes(ship.flat)) for rank, ship in ships.items() if ship.steps and ship.flat}


def ensure_ended(reduced: object, accepted: tuple[int, ...], what: str) -> RoundReduced:
    """A round ended in a result to which exactly these ranks contributed."""
    if not isinstance(reduced, RoundReduced) or reduced.accepted != accepted:
        raise CheckFailed(f"{what}: it ended in {reduced} where {accepted} should have been accepted")
    return reduced


def ensure_consensus(
    averager: Averager, ships: Mapping[int, Ship], what: str, *, schema: Schema = SCHEMA, gamma: float = 1.0
) -> None:
    """The averager's consensus is that of these contributions, to the bit (R-6)."""
    ensure(averager.consensus is not None, f"{what}: there is no consensus")
    due = consensus_of(schema, contributions(ships), gamma)
    differs = same(schema, averager.consensus or b"", due)
    ensure(not differs, f"{what}: {differs}")
