"""Ranks that average in place, for the checks: each in a thread of its own, or in a process if the subject has hosts,
each with memory that shows what was done.

A rank that does not come out of a call in `Subject.patience_s` is taken to hang, and everything is aborted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import attrs
import numpy as np

from ...core.conformance import CheckFailed, NotChecked, ensure
from ...core.conformance.blame import said
from ...core.effects import AbortCollective, BuildSession, MakeSessionId, RunCollective, ShareState
from ...core.events import CollectiveDone, CollectiveFailed
from ...core.schema import EntryClass, Schema
from ...transports.limit import Call
from ..in_place import InPlaceAverager
from ..layout import FlatLayout, widen
from .drive import entry, random_flat
from .hosts import Remote
from .kit import Subject
from .reference import consensus_of

__all__ = ["MARGIN", "TOGETHER", "Crew", "Running", "crew", "ensure_near"]

TOGETHER = Schema(
    entries=(
        entry("fine", EntryClass.PARAM, (4,), "float64"),
        entry("weight", EntryClass.PARAM, (3, 5)),
        entry("mean", EntryClass.BUFFER, (3,)),
        entry("half", EntryClass.PARAM, (7,), "bfloat16"),
        entry("small", EntryClass.PARAM, (), "float16"),
        entry("nothing", EntryClass.PARAM, (0, 3)),
        entry("frozen", EntryClass.FROZEN, (2,)),
        entry("count", EntryClass.LOCAL, (), "int64"),
    )
)
"""A model with an entry of each class and floating dtype, each aligned to its values, so that tensors can lie there."""
MARGIN = 64
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The step between 1 and the next value: an average in place may be summed in the dtype of its entry (R-13, R-22)."""


@attrs.define(eq=False, kw_only=True)
class Running(Call[Any]):
    """A call of one rank on its way: what it returned or raised, once `over`."""

    rank: int
    what: str


@attrs.define(eq=False)
class Crew:
    """The ranks of a cohort, their memory and the session they are in."""

    subject: Subject
    schema: Schema
    averagers: dict[int, InPlaceAverager] = attrs.field(factory=dict)
    memory: dict[int, memoryview] = attrs.field(factory=dict)
    session: int = 0
    started: list[Running] = attrs.field(factory=list)

    def join(self, rank: int, riding: bytes, gamma: float) -> None:
        """A new rank that holds these riding values, and others in all that does not ride."""
        layout = FlatLayout.whole(self.schema)
        rest = bytes((17 * rank + index) % 256 for index in range(layout.nbytes - len(riding)))
        if self.subject.hosts is not None:
            self.averagers[rank], self.memory[rank] = self.subject.hosts.rank(self.schema, riding + rest, MARGIN, gamma)
            return
        self.memory[rank] = memoryview(bytearray(bytes(MARGIN) + riding + rest + bytes(MARGIN)))
        self.averagers[rank] = self.subject.make(self.schema, self.live(rank), gamma=gamma)

    def live(self, rank: int) -> memoryview:
        """The live state of a rank."""
        return self.memory[rank][MARGIN:-MARGIN]

    def riding(self, rank: int) -> bytes:
        """What of it rides."""
        return bytes(self.live(rank)[: FlatLayout.riding(self.schema).nbytes])

    def look(self) -> dict[int, bytes]:
        """Every bit of every rank, with what lies around its state."""
        return {rank: bytes(memory) for rank, memory in self.memory.items()}

    # --- running -----------------------------------------------------------------------------------------------------

    def begin(self, rank: int, what: str, call: Callable[[], Any]) -> Running:
        """Start a call of one rank."""
        running = Running(call, f"rank {rank}: {what}", rank=rank, what=what)
        self.started.append(running)
        running.begin()
        return running

    def end(self, *runnings: Running) -> dict[int, Any]:
        """What these returned, by rank; `CheckFailed` for one that raised or does not end."""
        patience_s = self.subject.patience_s
        deadline = time.monotonic() + patience_s
        for running in runnings:
            if not running.over.wait(max(0.0, deadline - time.monotonic())):
                raise CheckFailed(f"{running.what} of rank {running.rank} did not end within {patience_s:g} s")
        for running in runnings:
            if running.raised is not None:
                raise CheckFailed(f"{running.what} of rank {running.rank} raised {said(running.raised)}"
                                  ) from running.raised  # fmt: skip
        return {running.rank: running.found for running in runnings}

    def enter(self, members: Collection[int]) -> int:
        """A new session of these ranks; its number."""
        self.session += 1
        ranks = sorted(members)
        uid = self.averagers[ranks[0]].make_id(MakeSessionId(self.session))
        lives = tuple((rank, 1) for rank in ranks)
        self.end(*(
            self.begin(rank, "build", partial(self.averagers[rank].build, BuildSession(
                self.session, uid, place, len(ranks), lives))) for place, rank in enumerate(ranks)
        ))  # fmt: skip
        return self.session

    def share(self, source: int, adopts: Collection[int], members: Collection[int]) -> None:
        """The state of one rank to some others."""
        self.end(*(
            self.begin(rank, "share", partial(self.averagers[rank].share, ShareState(
                self.session, source, rank in adopts))) for rank in members
        ))  # fmt: skip

    def run(self, rank: int, steps: int, *, cycle: int = 3, attempt: int = 0, session: int | None = None,
            observer: bool = False, restore: bool = False) -> Running:  # fmt: skip
        """One rank goes into a call."""
        order = RunCollective(cycle, attempt, self.session if session is None else session, steps, observer, restore)
        what = f"the call of cycle {cycle}, attempt {attempt},"
        return self.begin(rank, what, partial(self.averagers[rank].run, order))

    def call(self, steps: Mapping[int, int], **order: Any) -> dict[int, CollectiveDone]:
        """All of these in one call that succeeds."""
        found = self.end(*(self.run(rank, count, **order) for rank, count in steps.items()))
        for rank, ended in found.items():
            ensure(isinstance(ended, CollectiveDone), f"a healthy call of rank {rank} ended in {ended}")
        return found

    def failed(self, *runnings: Running) -> dict[int, CollectiveFailed]:
        """All of these calls fail."""
        found = self.end(*runnings)
        for rank, ended in found.items():
            ensure(isinstance(ended, CollectiveFailed), f"a call of rank {rank} that must fail ended in {ended}")
        return found

    def abort(self, session: int | None = None) -> None:
        """At every rank, as each of them is told of a death."""
        order = AbortCollective(self.session if session is None else session)
        for rank, averager in self.averagers.items():
            self.end(self.begin(rank, "an abort", partial(averager.abort, order)))

    def kill(self, rank: int) -> None:
        """`kill -9` of the process of a rank; `NotChecked` where ranks are threads."""
        gone = self.averagers[rank]
        if not isinstance(gone, Remote):
            raise NotChecked("ranks are threads of one process here, none can be killed: run the kit with --processes")
        gone.host.kill()
        del self.averagers[rank], self.memory[rank]

    def leave(self) -> None:
        """Nobody is left inside of anything."""
        # Whatever an abort or a close raises is a matter of its own checks, and must not hide what was found.
        for number in range(1, self.session + 1):
            if not all(running.over.is_set() for running in self.started):
                with suppress(Exception):
                    self.abort(number)
        with suppress(Exception):
            self.end(*(self.begin(rank, "close", averager.close) for rank, averager in self.averagers.items()))
        for averager in self.averagers.values():
            if isinstance(averager, Remote) and self.subject.hosts is not None:
                self.subject.hosts.take_back(averager)


@contextmanager
def crew(subject: Subject, ranks: Collection[int], *, gamma: float = 1.0, scale: float = 1.0,
         schema: Schema = TOGETHER, session: bool = True) -> Iterator[Crew]:  # fmt: skip
    """Ranks with values of their own, in a first session; at the end nobody is left inside of anything."""
    made = Crew(subject, schema)
    for rank in sorted(ranks):
        made.join(rank, random_flat(rank, scale, schema), gamma)
    try:
        if session:
            made.enter(ranks)
        yield made
    finally:
        try:
            made.leave()
        finally:
            for running in made.started:
                if not running.over.is_set():
                    running.end()


def ensure_near(
    crew: Crew, before: Mapping[int, bytes], steps: Mapping[int, int], what: str, *, gamma: float = 1.0
) -> None:
    """Each rank holds the mean of what the movers held before, but for roundings (R-13, R-22)."""
    movers = {rank: (count, before[rank]) for rank, count in steps.items() if count}
    due = consensus_of(crew.schema, movers, gamma)
    for rank in steps:
        for field in FlatLayout.riding(crew.schema).fields:
            where = slice(field.offset, field.offset + field.nbytes)
            got, mean = (widen(memoryview(flat)[where], field.entry.dtype).astype(np.float64)
                         for flat in (crew.riding(rank), due))  # fmt: skip
            most = max((float(np.abs(widen(memoryview(flat)[where], field.entry.dtype)).max(initial=0.0))
                        for _, flat in movers.values()), default=0.0)  # fmt: skip
            slack = (len(movers) + 2) * EPSILON[field.entry.dtype] * most
            ensure(bool(np.all(np.abs(got - mean) <= slack)), f"{what}: rank {rank} holds {field.entry.name} = "
                   f"{got.tolist()[:4]} where {mean.tolist()[:4]} is due")  # fmt: skip
