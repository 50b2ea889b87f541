"""What a checker need not remember: notes from which nothing is decided, so that runs which differ in no more meet.

Each of these is kept by the machines for people, for clocks, or for a use that is over:

- what stages have taken (M-11): while time stands still all durations are equal, and only their number differs;
  without them a stage is always suspected after `suspect_initial_s`;
- the kind of the last progress, the bytes that came, the metrics of an epoch (K-20), counts of what was fenced,
  refused, lost and replayed: shown and recorded, never asked;
- how far a rank has confirmed messages (N-10): confirming again what is confirmed changes nothing;
- all numbers of a rank that has left or died, once no cycle is in hand that it could have given to: what is asked of it
  afterwards is its incarnation and that it is gone (M-1);
- at a process that is gone, everything but what it gave to the round in hand; how often a batch was trained.

That none of this changes what can follow is a claim, and it is tested: small configurations are explored with and
without forgetting, and give the same ends and the same answers.
"""

from __future__ import annotations

import attrs

from ..coordinator import Coordinator
from ..dispatch.desk import EpochTally
from ..peer import Peer

__all__ = ["of_coordinator"]

KEPT_OF_THE_GONE = ("co", "rank", "incarnation", "phase", "attached", "host", "stopped", "callbacks")


def of_coordinator(co: Coordinator) -> None:
    """Forget it in this coordinator."""
    co.fenced.clear()
    co.refused.clear()
    co.violations = co.lost_sends = co.deaths = co.book.replayed = 0
    for epoch in co.desk.tallies:
        co.desk.tallies[epoch] = EpochTally()
    for peer in co.peers.values():
        for durations in peer.climb.durations:
            durations.clear()
        peer.progress_kind, peer.bytes_in, peer.handled_seq = "", 0, 0
        if not peer.alive and not co.cycle.pending:
            _of_the_gone(peer)


def _of_the_gone(peer: Peer) -> None:
    fresh = Peer(peer.co, peer.rank, peer.incarnation)
    for field in attrs.fields(Peer):
        if field.name not in KEPT_OF_THE_GONE:
            setattr(peer, field.name, getattr(fresh, field.name))
