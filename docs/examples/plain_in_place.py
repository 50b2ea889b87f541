"""An averager that averages in place, over the memory of one process: for threads, tests and as a pattern.

docs/guides/write-an-averager.md explains it. The conformance kit says that it is right:

    cd docs/examples && paceline conform averager plain_in_place:PlainInPlace
"""

import os
import threading

import numpy as np

from paceline.backends.averager import Capabilities
from paceline.backends.divergence import divergence
from paceline.backends.layout import FlatLayout, narrow, widen
from paceline.core.errors import TransportError
from paceline.core.events import CollectiveDone, CollectiveFailed
from paceline.core.messages import Refusal
from paceline.core.round import mass
from paceline.core.schema import EntryClass

ROOMS = {}  # by the id of the session
DOORS = threading.Lock()


class Room:
    """Where the members of one session meet, again and again: turn after turn each lays something down, and takes what
    all have laid down. It is over when somebody aborts it, or when members meet for different things."""

    def __init__(self, size):
        self.size, self.over, self.tables, self.turns = size, None, {}, [0] * size
        self.news = threading.Condition()

    def meet(self, place, what, given):
        with self.news:
            if self.over:
                raise TransportError(f"the session is over: {self.over}")
            turn = self.turns[place]
            self.turns[place] += 1
            self.tables.pop(turn - 2, None)  # all have left it, or they would not be in the turn after it
            table = self.tables.setdefault(turn, {})
            table[place] = what, given
            wanted = {each for each, _ in table.values()}
            if len(wanted) > 1:  # by position they would be taken for one call
                self.over = f"members met for different things: {sorted(map(str, wanted))}"
            self.news.notify_all()
            self.news.wait_for(lambda: self.over or len(table) == self.size)
            if len(table) < self.size or len({each for each, _ in table.values()}) > 1:
                raise TransportError(f"the session is over: {self.over}")
            return [table[each][1] for each in range(self.size)]

    def end(self, cause):
        with self.news:
            self.over = self.over or cause
            self.news.notify_all()


class PlainInPlace:
    """Each rank lays a copy down, and each computes the same sum in the same order."""

    name = "plain_in_place"
    capabilities = Capabilities(in_place=True, abortable=True, needs_session=True, devices=("cpu",))

    def __init__(self, schema, live, *, gamma=1.0):
        self.layout, self.live, self.gamma = FlatLayout.riding(schema), live, gamma
        self.session = self.room = self.scratch = None
        self.aborted = set()

    # --- sessions

    def make_id(self, order):
        return os.urandom(16)

    def build(self, order):
        self.leave()
        self.room, self.session = self.enter(order), order
        self.meet("build", None)

    def enter(self, order):
        with DOORS:
            return ROOMS.setdefault(order.uid, Room(order.new_world_size))

    def share(self, order):
        gives = self.session.members[self.session.new_rank][0] == order.source
        states = self.meet("share", bytes(self.live) if gives else None)
        if order.adopts:
            self.live[:] = next(state for state in states if state is not None)

    def abort(self, order):
        self.aborted.add(order.session_id)
        if self.session is not None and self.session.session_id == order.session_id:
            self.room.end("it was aborted")

    def leave(self):
        if self.room is not None:
            self.room.end("a member left")
            ROOMS.pop(self.session.uid, None)
        self.session = self.room = None

    def close(self):
        self.leave()

    def meet(self, what, given):
        if self.session.session_id in self.aborted:
            self.room.end("it was aborted")
        return self.room.meet(self.session.new_rank, what, given)

    # --- the call

    def run(self, order):
        riding = self.live[: self.layout.nbytes]
        if order.restore:
            riding[:] = self.scratch  # an average that succeeded here and not everywhere (W-14)
        if self.session is None or self.session.session_id != order.session_id:
            return CollectiveFailed(order.cycle, order.attempt, f"this rank is not in session {order.session_id}")
        self.scratch = bytes(riding)
        finite = self.layout.finite(riding)
        try:
            parts = self.meet(("call", order.cycle, order.attempt), (order.steps, finite, self.scratch))
        except TransportError as lost:
            return CollectiveFailed(order.cycle, order.attempt, str(lost))  # nothing was written yet
        movers = [(steps, flat) for steps, good, flat in parts if good and steps]
        total = sum(steps for steps, _ in movers)
        if total:
            self.average(movers, riding)
        triple = divergence(self.layout, memoryview(self.scratch), riding) if finite else None
        return CollectiveDone(
            cycle=order.cycle, attempt=order.attempt, total_steps=total, refusal=None if finite else Refusal.NONFINITE,
            divergence=triple and triple.divergence, pre_norm=triple and triple.pre_norm,
            post_norm=triple and triple.post_norm,
        )  # fmt: skip

    def average(self, movers, into):
        """Σ (m_r / Σ m) T_r, entry by entry (R-13); buffers with the same weight for each mover (R-7)."""
        masses = sum(mass(steps, self.gamma) for steps, _ in movers)
        for field in self.layout.fields:
            where, total = slice(field.offset, field.offset + field.nbytes), 0.0
            for steps, flat in movers:
                values = widen(memoryview(flat)[where], field.entry.dtype)
                param = field.entry.cls == EntryClass.PARAM
                total = total + values * values.dtype.type(
                    mass(steps, self.gamma) / masses if param else 1 / len(movers)
                )
            if field.nbytes:
                narrow(np.atleast_1d(total), field.entry.dtype, into[where])
