"""The state of everything at one moment, for whoever has to find out why nothing moves (protocol O-8).

A dump is told when the run stalls, and below that whenever nobody has shown progress for `stall_dump_s`. It decides
nothing. What it says of the gates comes from the gates: `gates.met`, `Cycle.fires` and `Cycle.gate_complete` are asked,
not retold, because a dump that retells a gate agrees with it on the day on which both are wrong.

When the next one is due is kept as an instant, `dump_due`, that progress does not touch: to move it with every step
would cost the hot path, for something that is almost never due. When it comes, the newest progress of all ranks says
whether it was due at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import gates
from .effects import Emit
from .participation import participation
from .phases import RunPhase

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .peer import Peer

__all__ = ["dump_when_due", "state_dump"]


def dump_when_due(co: Coordinator) -> None:
    """Step 10 of the pass: after `stall_dump_s` without progress of anyone, exceeded strictly, and again after each
    further one. Only while there is something to get on with."""
    if co.now <= co.dump_due:
        return
    every, newest = co.config.scaled(co.config.stall_dump_s), co.now
    if co.run.phase in (RunPhase.TRAINING, RunPhase.FINAL_EVAL):
        seen = [co.peers[rank].last_progress for rank in co.alive]
        newest = max([*seen, co.cycle.last_evidence_at, co.cycle.idle_since])
        if co.now > newest + every:
            co.emit(Emit("StateDump", {"elapsed_s": co.now - newest, "dump": state_dump(co)}))
            newest = co.now
    co.dump_due = newest + every


def state_dump(co: Coordinator) -> dict[str, Any]:
    """What O-8 lists, as plain data. Instants are monotonic seconds."""
    cycle, book, window = co.cycle, co.book, co.desk.window
    takes_part = participation(co, co.seats)
    return {
        "at": co.now, "run": co.run.phase.name, "alive": co.alive_count, "world": len(co.seats),
        "voters": list(co.voters), "cycle": cycle.number, "attempt": cycle.attempt, "phase": cycle.phase.name,
        "finished": cycle.finished, "members": list(cycle.members), "observers": list(cycle.observers),
        "armed_at": cycle.armed_at, "last_evidence_at": cycle.last_evidence_at, "reduced": cycle.reduced is not None,
        "owing": cycle.owing, "short": co.short, "movers": co.movers, "fires": cycle.fires(None),
        "complete": cycle.pending and cycle.gate_complete(None), "version": cycle.version,
        "sync_rounds": cycle.sync_rounds, "global_step": cycle.global_step, "lost_sends": co.lost_sends,
        "last_closed_epoch": book.last_closed_epoch,
        "ranks": [_of_rank(co, co.peers[rank], takes_part[rank]) for rank in co.seats],
        "pools": _pools(co),
        "window": None if window is None else {"epoch": window.epoch, "planned": dict(window.planned),
                                               "left": dict(window.left)},
        "reasons": [str(reason) for reason in co.explain()],
    }  # fmt: skip


def _of_rank(co: Coordinator, peer: Peer, takes_part: dict[str, Any]) -> dict[str, Any]:
    facts = {**peer.waits(), **takes_part}
    if peer.rank in co.voters:
        quiesced = peer.rank in co.desk.quiesced((peer.rank,))
        facts |= {"quiesced": quiesced, "gate": gates.met(peer, quiesced), "owes": co.cycle.owes(peer.rank)}
    return facts


def _pools(co: Coordinator) -> dict[int, dict[str, int]]:
    """The four places of D-3 per open epoch; what waits in limbo was trained."""
    pools = {}
    for epoch, pool in sorted(co.book.pools.items()):
        flying = co.book.in_flight(epoch)
        pools[epoch] = {"free": pool.free, "in_flight": flying, "trained": pool.outstanding - flying,
                        "covered": pool.covered, "total": pool.total}  # fmt: skip
    return pools
