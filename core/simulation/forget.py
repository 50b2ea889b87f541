"""What a checker need not remember: notes from which nothing is decided, so that runs which differ in no more meet.

Each of these is kept by the machines for people, for clocks, or for a use that is over:

- what stages have taken (M-11): while time stands still all durations are equal, and only their number differs;
  without them a stage is always suspected after `suspect_initial_s`;
- since when somebody waits (O-4), the kind of the last progress, the bytes that came, the metrics of an epoch (K-20),
  also in the message that tells of them, what idle ranks are held by (D-8), counts of what was fenced, refused, lost
  and replayed: shown and recorded, never asked;
- where no link comes back and nobody is excluded (`no_returns`): the copies of messages that both ends keep (N-9), of
  which only a reattachment asks, and a limit that no run here comes near; how far either end has confirmed what it got,
  which releases those copies; and what a message reserved that has got into the lane, since only a message that has
  not can fail (N-10). In a collective it is asked whether a rank has confirmed two messages, the request of the call
  (M-6) and the one for an id (M-32). So what it has confirmed counts as the newest of these that it covers: all that is
  asked for later comes later in the lane than anything it has confirmed;
- all numbers of a rank that has left or died, those of its lanes at once, the others when no cycle is in hand that it
  takes part in: what is asked of it afterwards is its incarnation and that it is gone (M-1);
- of the ghost, whether the last batch of effects was a quiet one (I14): it is said anew before each batch;
- at a process that is gone, everything but what it gave to the round in hand; how often a batch was trained.

That none of this changes what can follow is a claim, and it is tested: small configurations are explored with and
without forgetting, and give the same ends and the same answers; and in their states to act and then to forget is the
same as to forget and then to act. What depends on nothing but notes is not seen: that a rank confirms a message which
was never sent, say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

import attrs

from .. import messages as m
from ..config import Config
from ..coordinator import Coordinator
from ..dispatch.tally import EpochTally
from ..peer import Peer
from ..since import Since
from ..worker import Worker

__all__ = ["no_questions", "no_returns", "of_coordinator", "of_item", "of_worker"]

KEPT_OF_THE_GONE = ("co", "rank", "incarnation", "phase", "host", "stopped", "callbacks")
ALL_OF_THE_GONE = tuple(field.name for field in attrs.fields(Peer) if field.name not in KEPT_OF_THE_GONE)
LANES_OF_THE_GONE = ("attached", "climb", "control_seq", "lr", "report_seq")
"""What is over with the link itself, also while a cycle is in hand that the rank may have given to."""


def no_returns(config: Config) -> bool:
    """Whether confirmations are never asked for: a lost link is a death (M-17, W-21), and no rank is ever excluded,
    which would be told to be back by what it confirms (M-14)."""
    return not (config.link_grace_s or config.reconnect_window_s) and config.laggards == "wait"


def no_questions(config: Config) -> bool:
    """Whether nobody asks either what a rank has handled, by which it is told who has begun with a call (M-6, M-32)."""
    return no_returns(config) and not config.is_collective


def of_coordinator(co: Coordinator, failed: Collection[tuple[int, int, int]]) -> None:
    """Forget it in this coordinator. `failed` are the tokens of messages whose failure it has yet to hear of."""
    co.fenced.clear()
    co.fenced_told.clear()
    co.refused.clear()
    co.desk.holds.clear()
    co.desk.untold.clear()
    co.violations = co.lost_sends = co.deaths = co.book.replayed = 0
    co.run.stopped_at = co.run.ended_at = co.joins.lost_at = 0.0
    for epoch in co.desk.tallies:
        co.desk.tallies[epoch] = EpochTally()
    forgets = no_returns(co.config)
    for peer in co.peers.values():
        for durations in peer.climb.durations:
            durations.clear()
        peer.climb.began_at, peer.since = 0.0, Since()
        peer.progress_kind, peer.bytes_in = "", 0
        if forgets:
            peer.handled_seq = max([number for number in _asked_for(co, peer) if number <= peer.handled_seq], default=0)
            peer.retained.clear()
            for number in [n for n in peer.tokens if (peer.rank, peer.incarnation, n) not in failed]:
                del peer.tokens[number]
        if not peer.alive:
            gives = co.cycle.pending and peer.rank in co.cycle.participants
            _of_the_gone(peer, LANES_OF_THE_GONE if gives else ALL_OF_THE_GONE)


def _asked_for(co: Coordinator, peer: Peer) -> list[int]:
    """The control messages of which somebody may ask whether this rank has confirmed them."""
    renewal = co.sessions.renewal
    if renewal is None or renewal.generator != (peer.rank, peer.incarnation):
        return [peer.request_seq]
    return [peer.request_seq, renewal.number]


def of_worker(worker: Worker, no_returns: bool, no_questions: bool) -> None:
    """Forget it in this worker, of a run with or without `no_returns` and `no_questions`."""
    worker.inbox = deque(of_item(message, no_returns, no_questions) for message in worker.inbox)
    for kept in ("session", "saving"):
        setattr(worker, kept, of_item(getattr(worker, kept), no_returns, no_questions))
    if no_returns:
        worker.reports.clear()
    if no_questions:
        worker.control_handled = 0


def of_item(item: Any, no_returns: bool, no_questions: bool) -> Any:
    """What is left of an entry of a lane or an inbox."""
    if isinstance(item, m.EpochAggregated):
        item = attrs.evolve(item, metrics={})
    if no_returns and isinstance(item, m.Control):
        return attrs.evolve(item, report_seq=0)
    return attrs.evolve(item, control_seq=0) if no_questions and isinstance(item, m.Report) else item


def _of_the_gone(peer: Peer, names: tuple[str, ...]) -> None:
    fresh = Peer(peer.co, peer.rank, peer.incarnation, attached=False)
    for name in names:
        setattr(peer, name, getattr(fresh, name))
