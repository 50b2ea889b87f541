"""A coordinator of a collective run fed by hand (see `hand.py`): no copies, and sessions that somebody has to make."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator

from .hand import Hand, messages, named
from .words import hello


class Joint(Hand):
    """`form` brings it to its first plans, with session 1; `ranks` that knock are all voters then."""

    def __init__(self, ranks: int = 3, **knobs: Any) -> None:
        super().__init__(ranks, **{"averager": "collective", "min_ranks": min(ranks, 2) or 1, **knobs})

    def uid(self, rank: int | None = None, **fields: Any) -> list[Any]:
        """The pending generator, or another rank, has made the id."""
        renewal = self.co.sessions.renewal
        known: dict[str, Any] = dict(session_id=self.co.sessions.number, uid=b"u")
        known.update(fields)
        if rank is None:
            assert renewal is not None, "no session is on its way"
            rank = renewal.generator[0]
        return self.say(rank, m.SessionIdGenerated, **known)

    def form(self) -> Joint:
        self.uid()
        self.average(outcome=m.Outcome.OBSERVER)
        return self

    def total(self) -> int:
        """Steps of all members of the pending cycle that live."""
        return sum(self.co.peers[rank].steps for rank in self.co.cycle.members if self.co.cycle.takes_part(rank))

    def ack(self, rank: int, **fields: Any) -> list[Any]:
        """SyncAck of a rank that came out of the call; the call counts as a step."""
        cycle, peer = self.co.cycle, self.co.peers[rank]
        self.counted[rank] = self.counted.get(rank, 0) + 1
        member = rank in cycle.members
        known: dict[str, Any] = dict(
            cycle=cycle.number, attempt=cycle.attempt, step_count=self.counted[rank],
            outcome=m.Outcome.MERGED if member else m.Outcome.OBSERVER, shipped_steps=peer.steps if member else 0,
            total_steps=self.total() if cycle.total_steps is None else cycle.total_steps, state_complete=True,
            divergence=0.01, pre_norm=1.0, post_norm=1.0,
        )  # fmt: skip
        known.update(fields)
        return self.say(rank, m.SyncAck, **known)

    def average(self, refused: Iterable[int] = (), **fields: Any) -> list[Any]:
        """Everyone comes out of the call, observers first: who comes after the last voter has missed the cycle."""
        assert self.co.cycle.pending
        total = self.total()
        effects: list[Any] = []
        for rank in (*self.co.cycle.observers, *self.co.cycle.members):
            if self.co.cycle.takes_part(rank):
                effects += self.ack(rank, total_steps=total, **fields)
        return effects

    def failed(self, rank: int, **fields: Any) -> list[Any]:
        """The call failed at a rank."""
        cycle = self.co.cycle
        known: dict[str, Any] = dict(cycle=cycle.number, attempt=cycle.attempt, round=m.RoundKind.PARAMS,
                                     cause="reset by peer", retryable=True)  # fmt: skip
        known.update(fields)
        return self.say(rank, m.RoundFailed, **known)


def joint(ranks: int = 3, steps: int = 3, **knobs: Any) -> Joint:
    """A run whose first cycle is armed: every rank has taken `steps` steps and completed its plan."""
    hand = Joint(ranks, **knobs).form()
    for rank in range(ranks):
        hand.step(rank, steps)
        hand.complete(rank)
    assert hand.co.cycle.pending and hand.co.cycle.number == 1
    return hand


SICK: dict[str, Any] = {
    "outcome": m.Outcome.REFUSED, "refusal": m.Refusal.NONFINITE, "shipped_steps": 0, "total_steps": 0,
}  # fmt: skip
"""The ack of a rank whose values are not finite, as everybody else's."""


def lost(hand: Joint, rank: int) -> list[Any]:
    """The rank dies."""
    return hand.feed(ev.LinkLost(rank, hand.co.peers[rank].incarnation, "reset"))


def asked(effects: list[Any]) -> list[tuple[int, int]]:
    """Who was asked for the id of which session."""
    return [(message.rank, message.session_id) for message in messages(effects, m.RequestSessionId)]


def covered(effects: list[Any]) -> dict[int, int]:
    """Batches that were covered, by the rank that trained them."""
    found: dict[int, int] = {}
    for facts in named(effects, "Covered"):
        for rank, _, _, count in facts["slices"]:
            found[rank] = found.get(rank, 0) + count
    return found


def claim(hand: Joint, rank: int, **fields: Any) -> m.ResumeClaim:
    """What an honest rank claims that has seen all."""
    peer = hand.co.peers[rank]
    known: dict[str, Any] = dict(
        generation=hand.co.generation, incarnation=peer.incarnation, version=hand.co.cycle.version,
        cycle=max(0, hand.co.cycle.finished), snapshot_cycle=0, shipped=0, step_count=peer.last_step_count,
        control_seq=peer.control_seq, report_seq=hand.sequence.get(rank, 0), session_id=hand.co.sessions.number,
    )  # fmt: skip
    known.update(fields)
    return m.ResumeClaim(**known)


def knock(hand: Joint, rank: int, **fields: Any) -> list[Any]:
    """A Hello of that rank, with its claim."""
    greeting = hello(hand.samples, wanted_rank=rank, resume=claim(hand, rank, **fields))
    return hand.feed(ev.HelloReceived(70 + rank, greeting))


def restarted(hand: Joint, now: float = 3.0) -> list[Any]:
    """The coordinator dies and is started anew."""
    hand.co = Coordinator.restart(hand.co.config, hand.co.snapshot(), (), now)
    hand.now = now
    return list(hand.co.take_ready().effects) + hand.feed(ev.Tick())
