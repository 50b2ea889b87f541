"""A coordinator fed by hand: reports of any rank with the right stamps and numbers, and what it answered.

For the rare cases that no obeying rank brings about. `say` sends one report, `form` brings the run to its first plans,
`step` trains, `average` does one whole cycle; each of them can be left out or bent by the test.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator

from .words import DIGEST, alerts, check_declared, hello, messages, named

__all__ = ["Hand", "alerts", "messages", "named", "pending"]

STUCK = 5
"""Ticks at one instant after which nothing will ever happen: a real driver would spin, and a test for ever."""


class Hand:
    """See the module. Time stands still unless `tick` moves it; `confirms`: its heartbeats say that control messages
    were handled."""

    confirms = False

    def __init__(self, ranks: int = 2, samples: int = 60, guard: Any = None, policies: Any = None,
                 callbacks: tuple[str, ...] = (), **knobs: Any) -> None:  # fmt: skip
        defaults: dict[str, Any] = dict(batch_size=2, num_epochs=2, target_ranks=ranks, min_ranks=1, anchor=3)
        if knobs.get("policy") == "sync":
            defaults["anchor"] = 1
        defaults.update(knobs)
        self.now = 50.0
        self.samples = samples
        self.callbacks = callbacks
        self.co = Coordinator(Config(**defaults), now=self.now, guard=guard, policies=policies)
        self.effects: list[Any] = []
        self.sequence: dict[int, int] = {}
        self.counted: dict[int, int] = {}
        self.ranks = ranks
        self.knock(ranks)

    # --- feeding -------------------------------------------------------------------------------------------------

    def feed(self, event: Any) -> list[Any]:
        """One event; gives its effects and keeps them."""
        self.co.handle(event, self.now)
        effects = list(self.co.take_ready().effects)
        self.effects += effects
        check_declared(effects)
        return effects

    def knock(self, ranks: int) -> None:
        """So many ranks say hello."""
        for link in range(ranks):
            self.feed(ev.HelloReceived(link, hello(self.samples, callbacks=self.callbacks)))

    def say(self, rank: int, report: type[m.Report], /, *, gap: int = 0, **fields: Any) -> list[Any]:
        """One report of a rank, with its next number (plus `gap`)."""
        number = self.sequence.get(rank, 0) + 1 + gap
        stamp = {"run_id": self.co.config.run_id, "generation": 1, "rank": rank,
                 "incarnation": self.co.peers[rank].incarnation, "report_seq": number,
                 "control_seq": self.co.peers[rank].handled_seq}  # fmt: skip
        stamp.update(fields)
        if stamp["incarnation"] == self.co.peers[rank].incarnation and stamp["run_id"] == self.co.config.run_id:
            self.sequence[rank] = number
        return self.feed(ev.Received(report(**stamp)))

    def tick(self, seconds: float, silent: Iterable[int] = ()) -> list[Any]:
        """Let time pass as a healthy driver does: with a tick at every deadline, and heartbeats of all ranks that are
        not silent; they have handled what they were told if this hand says so."""
        effects: list[Any] = []
        end, stuck = self.now + seconds, 0
        while self.now < end and not self.co.finished:
            due = self.co.poll_timeout()
            assert due is not None
            stuck = stuck + 1 if due <= self.now else 0
            assert stuck < STUCK, f"{stuck} ticks at {self.now:g} s did nothing about what is due (M-9)"
            self.now = min(end, max(due, self.now))
            for rank in [rank for rank in self.co.alive if rank not in silent]:
                peer = self.co.peers[rank]
                handled = peer.control_seq if self.confirms else peer.handled_seq
                effects += self.say(rank, m.Heartbeat, step_count=0, state="x", control_seq=handled)
            effects += self.feed(ev.Tick())
        return effects

    # --- a healthy run, in pieces ----------------------------------------------------------------------------------

    def form(self) -> Hand:
        """Cycle 0 to its end: everyone is a voter and has its first plan."""
        self.average(outcome=m.Outcome.OBSERVER)
        return self

    def plan(self, rank: int) -> m.Plan:
        """The plan at the head of a rank's queue."""
        head = self.co.book.head(rank)
        assert head is not None, f"rank {rank} has no plan"
        return head.plan

    def step(self, rank: int, steps: int = 1, **fields: Any) -> list[Any]:
        """So many steps of a rank on its plan."""
        effects: list[Any] = []
        for _ in range(steps):
            self.counted[rank] = self.counted.get(rank, 0) + 1
            known: dict[str, Any] = dict(
                cycle=max(0, self.co.cycle.finished), plan_id=self.plan(rank).plan_id, step_count=self.counted[rank],
                samples=2, batch_ms=10.0, data_ms=0.1, batch_loss=1.0,
            )
            known.update(fields)
            effects += self.say(rank, m.Batch, **known)
        return effects

    def complete(self, rank: int, plan_ids: tuple[int, ...] | None = None) -> list[Any]:
        """The rank's oldest plan, or the named ones, are done."""
        if plan_ids is None:
            plan_ids = (self.co.book.holdings(rank).plans[0].plan.plan_id,)
        return self.say(
            rank, m.Metrics, cycle=self.co.cycle.finished, plan_ids=plan_ids, epoch=0, batches=1, samples=2,
            epoch_ms=1.0, share_complete_ms=1.0, compute_only_ms=1.0, data_starve_ms=0.0,
        )  # fmt: skip

    def ready(self, rank: int, **fields: Any) -> list[Any]:
        """SnapshotReady as the books want it."""
        cycle = self.co.cycle
        known: dict[str, Any] = dict(
            cycle=cycle.number, attempt=cycle.attempt, shipped_steps=self.co.peers[rank].steps, copy_ms=1.0
        )
        known.update(fields)
        return self.say(rank, m.SnapshotReady, **known)

    def reduce(self, refused: Iterable[int] = (), accepted: Iterable[int] | None = None, *,
               why: m.Refusal = m.Refusal.NONFINITE, digest: bytes | None = DIGEST,
               **fields: Any) -> list[Any]:  # fmt: skip
        """RoundReduced: all members that are left, but for the refused."""
        cycle, sick = self.co.cycle, tuple((rank, why) for rank in refused)
        members = cycle.members or tuple(r for r in cycle.observers if r == cycle.source)
        if accepted is None:
            accepted = [r for r in members if r not in dict(sick) and r in self.co.alive]
        realized = cycle.forming or any(self.co.shipped_by(rank) for rank in accepted)
        known: dict[str, Any] = dict(key=cycle.key, attempt=cycle.attempt)
        known.update(fields)
        return self.feed(ev.RoundReduced(
            accepted=tuple(accepted), refused=sick, realized=realized, digest=digest, **known
        ))  # fmt: skip

    def ack(self, rank: int, **fields: Any) -> list[Any]:
        """SyncAck of a rank that staged what it was sent."""
        cycle = self.co.cycle
        known: dict[str, Any] = dict(
            cycle=cycle.number, attempt=cycle.attempt, step_count=self.counted.get(rank, 0),
            shipped_steps=self.co.shipped_by(rank), total_steps=0, outcome=m.Outcome.MERGED, state_complete=True,
            divergence=0.01, pre_norm=1.0, post_norm=1.0, digest=DIGEST,
        )
        known.update(fields)
        return self.say(rank, m.SyncAck, **known)

    def average(self, refused: Iterable[int] = (), **fields: Any) -> list[Any]:
        """One pending cycle from its snapshots to its end."""
        effects: list[Any] = []
        assert self.co.cycle.pending
        ranks = self.co.cycle.participants
        for rank in ranks:
            effects += self.ready(rank)
        effects += self.reduce(refused)
        for rank in ranks:
            effects += self.ack(rank, **fields)
        return effects

    def window(self, refused: Iterable[int] = ()) -> list[Any]:
        """Every rank trains and completes its plan, then one cycle."""
        for rank in list(self.co.voters):
            head = self.co.book.head(rank)
            if head is not None:
                self.step(rank, head.slice.count - head.done)
                self.complete(rank)
        return self.average(refused)


def pending(ranks: int = 2, steps: int = 3, **knobs: Any) -> Hand:
    """A run whose first cycle is armed: every rank has taken `steps` steps and completed its plan."""
    hand = Hand(ranks, **knobs).form()
    for rank in range(ranks):
        hand.step(rank, steps)
        hand.complete(rank)
    assert hand.co.cycle.pending and hand.co.cycle.number == 1
    return hand
