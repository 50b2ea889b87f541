"""What a checker need not remember: notes from which nothing is decided, so that runs which differ in no more meet.

Each of these is kept by the machines for people, for clocks, or for a use that is over:

- what stages have taken (M-11): while time stands still all durations are equal, and only their number differs;
  without them a stage is always suspected after `suspect_initial_s`;
- the kind of the last progress, the bytes that came, the metrics of an epoch (K-20), counts of what was fenced,
  refused, lost and replayed: shown and recorded, never asked;
- how far a rank has confirmed messages (N-10): confirming again what is confirmed changes nothing;
- all numbers of a rank that has left or died, those of its lanes at once, the others when no cycle is in hand that it
  could have given to: what is asked of it afterwards is its incarnation and that it is gone (M-1);
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

KEPT_OF_THE_GONE = ("co", "rank", "incarnation", "phase", "host", "stopped", "callbacks")
ALL_OF_THE_GONE = tuple(field.name for field in attrs.fields(Peer) if field.name not in KEPT_OF_THE_GONE)
LANES_OF_THE_GONE = ("attached", "climb", "control_seq", "lr", "report_seq")
"""What is over with the link itself, also while a cycle is in hand that the rank may have given to."""


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
        peer.retained.clear()
        if not peer.alive:
            _of_the_gone(peer, LANES_OF_THE_GONE if co.cycle.pending else ALL_OF_THE_GONE)


def _of_the_gone(peer: Peer, names: tuple[str, ...]) -> None:
    fresh = Peer(peer.co, peer.rank, peer.incarnation, attached=False)
    for name in names:
        setattr(peer, name, getattr(fresh, name))
