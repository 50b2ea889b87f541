"""What an averager that averages in place is: the half of a rank, because there is no other.

Nothing is shipped. The ranks of a session go into one call together and come out with the average in their live
parameters (R-13); the coordinator learns of it from their reports alone. What carries the orders out that
`core.worker_collective` gives is an object like this one, one in each rank. It is found by name like every averager
(`averager.find_averager`), and says so by `Capabilities(in_place=True, needs_session=True, …)`.

Whether one keeps this contract is what `paceline.backends.conformance` says; docs/guides/write-an-averager.md explains
it, and docs/examples/plain_in_place.py is one.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from ..core.effects import AbortCollective, BuildSession, MakeSessionId, RunCollective, ShareState
from ..core.events import CollectiveDone, CollectiveFailed
from ..core.schema import Schema
from .averager import Capabilities

__all__ = ["InPlaceAverager"]


class InPlaceAverager(Protocol):
    """The half of a rank.

    `build`, `share` and `run` block until all members of the session are through, and are called one after the other
    by whoever trains; `make_id` and `abort` may come from any thread at any moment. What several of them have in common
    they find by the id of the session: nothing else may be shared, so that many of them can live in one process.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def __init__(self, schema: Schema, live: memoryview, *, gamma: float = 1.0) -> None:
        """`live` is the state of the rank in the layout `FlatLayout.whole(schema)`, the memory itself and no copy:
        tensors may be made over it. `gamma` is the exponent of the mass (R-5)."""

    def make_id(self, order: MakeSessionId) -> bytes:
        """1 to 1024 bytes by which the members of a session find each other (M-30), never the same twice."""

    def build(self, order: BuildSession) -> None:
        """Leave the session before, enter this one with all its members (M-31). `TransportError` if it is aborted or a
        member is gone."""

    def share(self, order: ShareState) -> None:
        """The whole state of `order.source` goes to who adopts it (R-20); all members take part. `TransportError` as
        above."""

    def run(self, order: RunCollective) -> CollectiveDone | CollectiveFailed:
        """Average in place with all members of the session (R-13). A call that fails has changed no bit (R-15); where
        that cannot be had the averager is not `abortable`, and says that it failed for good (`retryable=False`)."""

    def abort(self, order: AbortCollective) -> None:
        """Free whoever is inside of a call of this session, or about to enter one (W-20)."""

    def close(self) -> None:
        """Leave the session, give everything back."""
