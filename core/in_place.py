"""What becomes of steps in an average that ranks make in place (protocol C-19, M-19).

Nobody at the coordinator sees such a sum. It knows what was in it from the acks: each says how many own steps are in
the consensus, and how many of all. Where all members live to say so, that is all there is to it. A member that died
inside the call may have gone before or after the others had its contribution; and how many steps that was may have been
lost with it. Then what is missing in the acks is its part: the total, less what the others say of themselves.

    acked, then died          its part is known, and waits in limbo for the end of the cycle
    died without an ack       all it held waits in limbo: trained steps, then those in flight, oldest first, because
                              the reports of the last steps may be lost; of these, as many as are missing are covered
    two such deaths           nobody can say whose steps are missing: all are trained again, which is allowed (M-19)
    the cycle is repeated     nothing of the attempt counts anywhere: all of it returns

So a step is covered at most once, and never while it may be in no consensus.

A rank that hangs inside the call looks like those that wait in there for it: none of them acknowledges. A rank that
hangs before the call can be told, because it has not even handled the request (section 3: the control number that every
report carries says what is handled), and it keeps all others inside. That tells a joiner, or a rank that cannot form,
from those who wait for it (M-6, M-26).

The request is SyncNow for who was there at the arm, and stays it for every attempt: who has handled that has begun. The
NewSession of a later attempt is served before what waits (W-20), so it may not be confirmed while the rank is inside.
Who has come for a later attempt was asked by its NewSession alone, and nothing waits before it (C-38, M-31).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from . import messages as m
from .effects import Alert

if TYPE_CHECKING:
    from .cycle import Cycle
    from .peer import Peer

__all__ = ["accepted", "outside", "requested", "set_aside", "unformed"]


def requested(cycle: Cycle, ranks: Iterable[int]) -> None:
    """What was sent last to these ranks asks them into the cycle: by its number a rank says that it has begun."""
    for rank in ranks:
        peer = cycle.co.peers[rank]
        peer.request_seq = peer.control_seq


def outside(cycle: Cycle) -> list[int]:
    """Who keeps all others inside, because it has not begun with the call; nobody if none of them has."""
    peers = cycle.co.peers
    owing = [rank for rank in cycle.participants if cycle.takes_part(rank) and not peers[rank].acked]
    late = [rank for rank in owing if peers[rank].handled_seq < peers[rank].request_seq]
    return late if len(late) < len(owing) else []


def unformed(cycle: Cycle) -> list[int]:
    """Who holds formation up (M-6). While a session is wanted nobody can form, and it waits for who has no link (M-42);
    a generator has a time of its own (M-32). In a session it is who keeps the others inside, if that can be told."""
    co = cycle.co
    if not co.sessions.current():
        return co.sessions.away
    return outside(cycle) or [rank for rank in co.alive if not co.peers[rank].acked]


def set_aside(cycle: Cycle, peer: Peer) -> None:
    """M-19: a member has gone while its cycle is pending."""
    if peer.acked:
        if peer.outcome == m.Outcome.MERGED and peer.shipped:
            cycle.co.book.into_limbo(peer.rank, peer.shipped)
    elif peer.rank in cycle.members:
        cycle.co.book.all_into_limbo(peer.rank)
        cycle.doubtful = (*cycle.doubtful, peer.rank)


def accepted(cycle: Cycle) -> tuple[dict[int, int], dict[int, m.Refusal], bool]:
    """C-15.1: merged steps of each member, who was refused and why, and whether there is a consensus at all."""
    co, total = cycle.co, cycle.total_steps or 0
    merged, refused = dict.fromkeys(cycle.members, 0), {}
    for rank in cycle.members:
        peer = co.peers[rank]
        if rank in cycle.gone:
            merged[rank] = 0 if rank in cycle.doubtful else co.book.limbo_batches(rank)
        elif peer.outcome == m.Outcome.MERGED:
            merged[rank] = peer.shipped or 0
        elif peer.outcome == m.Outcome.REFUSED:
            refused[rank] = m.Refusal.NONFINITE if peer.refusal is None else peer.refusal
    missing = total - sum(merged.values())
    if missing and len(cycle.doubtful) == 1 and 0 < missing <= co.book.limbo_batches(cycle.doubtful[0]):
        merged[cycle.doubtful[0]] = missing
    elif missing:
        whose = ", ".join(f"rank {rank}" for rank in cycle.doubtful) or "nobody who is known"
        co.emit(Alert("accounting", f"cycle {cycle.number}", f"the consensus has {total} steps, {missing} of them are "
                      f"of {whose}; what they held is trained again"))  # fmt: skip
    return merged, refused, total > 0
