"""Waiting is told: who is waited for, what that rank showed last, and what is done about it when (protocol O-3).

A barrier that names nobody lets a whole cohort wait for hours for one slow reader, without a line that says so (F93).
`explain()` knows all of it, but somebody has to ask. A `Teller` asks at the right times: it looks at a coordinator and
gives the events of the timeline that are due, `Waiting` while somebody is waited for that long, at most one in 10 s
whatever is waited for, and one `Waited` when it is over.

It is no part of the machine. It changes nothing, decides nothing and has no clock but `co.now`; whoever drives a
coordinator calls `look` as often as it likes, a few times a second, and records what it gives. What goes in and out of
the machine is the same with it and without it. Between two looks that matter a call compares two numbers: no wait that
has not begun yet can be due within 10 s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import attrs

from .effects import Emit
from .explain import Reason, explain
from .phases import PeerPhase, RunPhase
from .values import state

if TYPE_CHECKING:
    from .coordinator import Coordinator

__all__ = ["NAMED", "TELL_S", "Teller"]

TELL_S = 10.0
"""A wait is told from this age on, and waits are told this far apart (O-3). For people, so `time_scale` leaves it."""
LOOK_S = 1.0
"""While something waits, the reasons are asked for once in so many seconds."""
NAMED = 3
"""Ranks of which a line says what they do; those that showed nothing for longest."""

HOLDS_NOBODY_UP = frozenset({"E01", "E02", "E05", "E16", "E18", "E21", "E26", "E27"})
"""What a rank does, or a run has come to, while nobody stands still for it. Whoever does has a reason of its own, which
names that rank."""
COMING = "E19"
ITS_RETURN = "E22"
ENDS = {PeerPhase.EXITED: "left", PeerPhase.DEAD: "died", PeerPhase.LAGGING: "excluded"}


@state
class Teller:
    """See the module. `told` has the ranks that the newest event named, and since when each is waited for, `over` those
    that were named before and are not waited for any more: how that ended, and after how many seconds. None stands for
    something other than a rank. `facts` are those of the newest `Waiting` until all of it is over, then None."""

    told: dict[int | None, float] = attrs.field(factory=dict)
    over: dict[int | None, tuple[str, float]] = attrs.field(factory=dict)
    facts: dict[str, Any] | None = None
    next_look: float = float("-inf")
    next_line: float = float("-inf")

    def look(self, co: Coordinator) -> list[Emit]:
        """What is due at `co.now`: nothing, one event, or the end of one wait and the beginning of another."""
        if co.now < self.next_look and not co.finished:
            return []
        reasons = explain(co)
        oldest = min([reason.since for reason in reasons], default=co.now)
        self.next_look = max(co.now + LOOK_S, min(oldest, co.now) + TELL_S)
        waits = [r for r in reasons if r.code not in HOLDS_NOBODY_UP and co.now - r.since >= TELL_S]
        missing = _missing(co, waits)
        ended = self._ended(co, missing)
        if not missing or co.now < self.next_line:
            return ended
        self.next_line = co.now + TELL_S
        for rank, since in missing.items():
            self.told[rank] = min(since, self.told.get(rank, since))
        self.facts = _facts(co, reasons, waits, missing)
        return [*ended, Emit("Waiting", self.facts)]

    def _ended(self, co: Coordinator, missing: Collection[int | None]) -> list[Emit]:
        """One event when the last one is there of those that were said to be missing."""
        for rank in [rank for rank in self.told if rank not in missing]:
            how = "arrived" if rank is None or rank not in co.peers else ENDS.get(co.peers[rank].phase, "arrived")
            self.over[rank] = how, co.now - self.told.pop(rank)
        if self.told or self.facts is None:
            return []
        ends = {str(rank): self.over[rank][0] for rank in _ranks(self.over)}
        waited_s = max([seconds for _, seconds in self.over.values()])
        facts = {"cycle": co.cycle.number, "during": self.facts["during"], "waited_s": waited_s, "how": ends}
        self.over, self.facts = {}, None
        return [Emit("Waited", facts)]


def _missing(co: Coordinator, waits: Iterable[Reason]) -> dict[int | None, float]:
    """Who is waited for, and since when."""
    groups: dict[tuple[int | None, ...], float] = {}  # a cohort waits for the same few, so these are looked at once
    for reason in waits:
        whom: tuple[int | None, ...] = reason.waiting_for or (None,)
        if reason.code == ITS_RETURN:
            whom = (reason.rank,)
        elif reason.code == COMING and not reason.waiting_for:
            whom = _seats(co, reason) or (None,)
        groups[whom] = min(reason.since, groups.get(whom, reason.since))
    missing: dict[int | None, float] = {}
    for group, since in groups.items():
        for rank in group:
            missing[rank] = min(since, missing.get(rank, since))
    return missing


def _seats(co: Coordinator, forming: Reason) -> tuple[int, ...]:
    """M-7: who is still to come gets the lowest seats that are free."""
    lacking = int(forming.numbers["wanted"] or 0) - int(forming.numbers["here"] or 0)
    return tuple(islice((seat for seat in count() if seat not in co.alive), max(0, lacking)))


def _facts(co: Coordinator, reasons: list[Reason], waits: list[Reason],
           missing: dict[int | None, float]) -> dict[str, Any]:  # fmt: skip
    """A `Waiting`: what is done next is what is done first about a rank that is missing, else what ends the waits."""
    own: dict[int, Reason] = {}
    for reason in reasons:  # a rank has one reason not to move, and maybe others to complain of after it
        if reason.rank is not None and reason.rank in missing:
            own.setdefault(reason.rank, reason)
    longest = min(waits, key=lambda reason: reason.since)
    dues = [(r.until, r.then) for r in own.values() if r.until is not None]
    until, then = min(dues or [(r.until, r.then) for r in waits if r.until is not None], default=(None, None))
    return {
        "cycle": co.cycle.number, "during": _during(co), "waited_s": co.now - min(missing.values()),
        "missing": _ranks(missing), "why": None if longest.rank in own else _in_words(longest),
        "what": [_in_words(own[rank]) for rank in sorted(own, key=lambda rank: co.peers[rank].last_progress)[:NAMED]],
        "progress": {str(rank): _progress(co, rank) for rank in _ranks(missing)},
        "next": then, "next_s": None if until is None else max(0.0, until - co.now),
    }  # fmt: skip


def _ranks(found: Iterable[int | None]) -> list[int]:
    return sorted(rank for rank in found if rank is not None)


def _in_words(reason: Reason) -> str:
    return reason.what if reason.rank is None else f"rank {reason.rank} {reason.what}"


def _progress(co: Coordinator, rank: int) -> dict[str, Any] | None:
    """What its training thread showed last (M-2)."""
    peer = co.peers.get(rank)
    if peer is None or rank not in co.alive:
        return None
    return {"kind": peer.progress_kind, "ago_s": co.now - peer.last_progress}


def _during(co: Coordinator) -> str:
    """What the run is at."""
    run, cycle = co.run, co.cycle
    if run.phase == RunPhase.FORMING:
        return "loading" if run.window_closed else "joining"
    if run.phase == RunPhase.FINAL_EVAL:
        return "evaluating"
    if run.phase != RunPhase.TRAINING:
        return "shutting down" if run.save is None or run.exit_deadline is not None else "saving"
    if cycle.pending:
        return "collecting" if cycle.reduced is None else "applying"
    return "training"
