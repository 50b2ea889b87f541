"""What an averager is, and how one is found by name.

An averager turns contributions into a consensus. What the run needs to know before it picks one are its capabilities;
a combination of knobs that they exclude is refused when the run is configured (V-1, V-4), never in mid-run. The
coordinator's half of an averager is a passive object in the manner of the machines: events in, events out, no task,
no thread, no socket. A driver moves the bytes and feeds the returned events to the coordinator.

Averagers are found by name in the entry point group `paceline.averagers`; `star` is always there. Whether one keeps
this contract is what `paceline.backends.conformance` says; docs/guides/write-an-averager.md explains it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib.metadata import EntryPoint, entry_points
from typing import ClassVar, Protocol, cast

import attrs

from ..core.effects import AbortRound, AdmitContribution, CloseRound, OpenRound, RemoveFromRound
from ..core.errors import ConfigError
from ..core.events import RoundAborted, RoundProgress, RoundReduced
from ..core.messages import BulkBlock, Contribution, RoundKey, RoundResult
from ..core.schema import Schema

__all__ = ["GROUP", "Averager", "Capabilities", "RoundEvent", "find_averager", "known_averagers"]

GROUP = "paceline.averagers"

RoundEvent = RoundProgress | RoundReduced | RoundAborted
"""What an averager tells the coordinator."""


@attrs.frozen(kw_only=True)
class Capabilities:
    """What an averager can do.

    `in_place`: it averages the live parameters inside one call of all ranks; otherwise ranks ship copies.
    `abortable`: a round in flight can be given up and repeated. `needs_session`: it needs a communicator that is
    rebuilt when the cohort changes. `devices`: a label for people, the types of devices on which models lie that are
    averaged with it, as torch names them. Whatever these are, an averager is handed memory of the host.
    """

    in_place: bool
    abortable: bool
    needs_session: bool
    devices: tuple[str, ...]


class Averager(Protocol):
    """The coordinator's half. Remote misbehaviour raises `RemoteProtocolError` from `place`, which ends that link."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def __init__(self, schema: Schema, *, gamma: float = 1.0, digest: bool = True) -> None:
        """`gamma` is the exponent of the mass (R-5), `digest` whether the consensus is hashed (C-18)."""

    def open(self, opened: OpenRound) -> None:
        """Begin an attempt; whatever was in flight before is forgotten."""

    def admit(self, admitted: AdmitContribution) -> tuple[RoundEvent, ...]:
        """The report lane of a rank names its steps (R-11)."""

    def remove(self, removed: RemoveFromRound) -> tuple[RoundEvent, ...]:
        """A rank is gone (R-2)."""

    def abort(self, aborted: AbortRound) -> None:
        """The round will not be finished. Raises `LocalProtocolError` for the open round of an averager that is not
        abortable."""

    def close(self, closed: CloseRound) -> None:
        """The cycle is over; buffers may be reused."""

    def ready_for(self, rank: int) -> bool:
        """Whether there is memory for one more block of the rank. While not, its lane is not read."""

    def on_header(
        self, rank: int, incarnation: int, attempt: int, contribution: Contribution
    ) -> tuple[RoundEvent, ...]:
        """A contribution announces itself on the bulk lane of this rank and incarnation (R-4)."""

    def place(self, block: BulkBlock) -> memoryview:
        """Memory for the data of a block, `block.bytes` long."""

    def on_block(self, block: BulkBlock) -> tuple[RoundEvent, ...]:
        """The data of a placed block is there, verified."""

    @property
    def collected(self) -> bool:
        """Nobody is waited for any more: call `reduce`."""

    def reduce(self) -> RoundReduced | RoundAborted:
        """Make the consensus. Takes long for a large model; may run in a thread if no other method is called
        meanwhile."""

    def receivers(self, key: RoundKey, attempt: int) -> tuple[int, ...]:
        """Who gets the result of this attempt, ascending; nobody when another attempt is open or nothing is reduced."""

    def scatter(self, rank: int) -> tuple[RoundResult, list[tuple[BulkBlock, memoryview]]]:
        """What to send to a receiver, after `RoundReduced` has reached the coordinator (R-2)."""

    def on_scattered(self, rank: int) -> None:
        """All of it was sent, or the rank is gone."""

    def restore(self, flat: memoryview) -> None:
        """The last consensus, given back by a rank after this process was started anew (M-44); it is copied."""

    @property
    def consensus(self) -> memoryview | None:
        """The last consensus in the riding layout, None before the first."""

    def reading(self) -> AbstractContextManager[memoryview]:
        """The last consensus, not overwritten while the block lasts; from any thread (K-7)."""


def known_averagers() -> tuple[str, ...]:
    """Names that `find_averager` knows, sorted."""
    return tuple(sorted({"star", *(point.name for point in entry_points(group=GROUP))}))


def find_averager(name: str) -> type[Averager]:
    """The averager class called `name`. Raises `ConfigError` that lists the known names, or says why a plug-in could
    not be loaded. The shipped one cannot be replaced by a plug-in of the same name."""
    if name == "star":
        from .star import StarAverager

        return StarAverager
    for point in entry_points(group=GROUP):
        if point.name == name:
            return _load(point)
    raise ConfigError(f"averager = {name!r} is not known; known averagers: {', '.join(known_averagers())} (V-1)")


def _load(point: EntryPoint) -> type[Averager]:
    try:
        return cast("type[Averager]", point.load())
    except Exception as failure:
        # A plug-in may fail in any way at all; the user needs to know which one it was.
        raise ConfigError(f"averager = {point.name!r} ({point.value}) cannot be loaded: {failure!r}") from failure
