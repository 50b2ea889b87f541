"""Storms strike what they say, and at the moments at which a missing fence shows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from paceline.core import events as ev
from paceline.core import membership
from paceline.core import messages as m
from paceline.core.attachment import Attachment
from paceline.core.coordinator import Coordinator
from paceline.core.cycle import Cycle
from paceline.core.simulation.action import Action
from paceline.core.simulation.dice import Dice
from paceline.core.simulation.faults import MOST_PER_SITE, SELDOM, SITES
from paceline.core.simulation.simulator import Case, Run, simulate
from paceline.core.simulation.strikes import TAMPERING, tampers
from paceline.core.worker import Worker
from paceline.transports.codec import MsgpackCodec

from support.mutants import Patch, around

CODEC = MsgpackCodec()


def in_training(ranks: int = 3, **knobs: Any) -> Run:
    """A run that no fault strikes by itself, in its second window, with nothing on its lanes."""
    run = Run(Case(seed=1, ranks=ranks, faults="calm", policy="cadence", knobs={"averager": "star", **knobs}))
    while run.world.co.cycle.finished < 1 or any(process.up or process.down for process in run.world.processes):
        run.clockwork.advance()
    return run


# --- faults of lanes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(TAMPERING))
def test_a_fault_of_a_lane_waits_until_something_is_on_it(kind: str) -> None:
    """N-2, N-3: lanes are empty most of the time, so one that strikes at any moment would strike nothing, and its link
    would be excused for it (`damaged`)."""
    run = in_training()
    storm, processes = run.storm, run.world.processes
    storm._on_lane(kind)
    assert not storm.struck and not storm.damaged and not any(process.tampered for process in processes)

    while not storm.struck:
        run.clockwork.advance()
    assert [(process.number, process.link) for process in processes if process.tampered] == sorted(storm.damaged)
    assert len(storm.damaged) == 1 and not storm._due


def test_a_fault_of_a_lane_at_the_coordinator_waits_until_that_is_back() -> None:
    """M-9: what arrives twice arrives at somebody."""
    run = in_training()
    run.clockwork.away_until = back = run.clockwork.now + 30.0
    run.storm._on_lane("duplicate")
    while not run.storm.struck:
        run.clockwork.advance()
    assert run.clockwork.now >= back and run.marks.reached["a report came twice"] == 1


@pytest.mark.parametrize(("kind", "mark"), [
    ("drop", "a report was missing"), ("overtake", "a report was missing"), ("duplicate", "a report came twice"),
    ("lose", "a message was missing"), ("swap", "a message was missing"), ("repeat", "a message came twice"),
])  # fmt: skip
def test_what_a_fault_of_a_lane_leads_to_has_a_mark(kind: str, mark: str) -> None:
    """N-2, N-3: a hole ends a session, and what comes twice is heard once."""
    run = in_training()
    while not tampers(run.world.processes[1], kind):
        run.clockwork.advance()
    run.clockwork.do(Action(kind, 1))
    until = run.clockwork.now + 60.0
    while run.clockwork.now < until and not run.marks.reached[mark]:
        run.clockwork.advance()
    assert run.marks.reached[mark] == 1


# --- who is heard after the next one has its seat -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["step", "order"])
def test_a_life_is_heard_when_the_next_one_has_its_seat(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """N-6, I3, M-7: its last report is fenced, also when somebody tells once more that its process has ended."""
    run = in_training(link_grace_s=0.0)
    storm, clockwork = run.storm, run.clockwork
    sites = frozenset({"its steps outlive its seat" if kind == "step" else "its evidence outlives its seat"})
    storm.plan = attrs.evolve(storm.plan, sites=sites)
    monkeypatch.setattr(Dice, "chance", lambda self, share: True)
    while not storm.struck:
        clockwork.advance()
    old, new = next((p, q) for p in run.world.processes for q in run.world.processes
                    if p.rank == q.rank and p.incarnation < q.incarnation)  # fmt: skip
    assert not old.alive and old.up and new.alive and run.world.co.peers[old.rank].incarnation == new.incarnation

    monkeypatch.undo()
    storm.plan = attrs.evolve(storm.plan, sites=frozenset())
    told = storm.struck
    while storm.struck == told or old.up:
        clockwork.advance()
    assert run.marks.reached["a life was heard when the next one had its seat"]
    assert run.world.co.peers[old.rank].alive and run.world.co.fenced[old.rank, "stale"] >= 1
    run._liveness()
    assert run.world.finished


def test_a_site_that_few_runs_come_to_strikes_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the dice say, but no more often than any other."""
    run = in_training()
    run.storm.plan = attrs.evolve(run.storm.plan, sites=frozenset(SITES))
    monkeypatch.setattr(Dice, "chance", lambda self, share: False)
    assert {site for site in SITES if run.storm.site(site)} == SELDOM < set(SITES)
    assert [run.storm.site(next(iter(SELDOM))) for _ in range(MOST_PER_SITE)] == [True] * (MOST_PER_SITE - 1) + [False]


# --- what storms see -------------------------------------------------------------------------------------------------


def no_fence_of_lives(patch: Patch) -> None:
    """What a rank says is taken for the word of whoever has its seat now."""

    def change(receive: Any, co: Coordinator, message: Any) -> None:
        peer = co.peers.get(message.rank)
        receive(co, message if peer is None else attrs.evolve(message, incarnation=peer.incarnation))

    around(patch, Coordinator, "_receive", change)


def holes_are_not_seen(patch: Patch) -> None:
    """A coordinator that takes reports as they come."""

    def change(receive: Any, co: Coordinator, message: Any) -> None:
        peer = co.peers.get(message.rank)
        if peer is not None and message.incarnation == peer.incarnation and message.report_seq > peer.report_seq:
            peer.report_seq = message.report_seq - 1
        receive(co, message)

    around(patch, Coordinator, "_receive", change)


def holes_are_not_seen_by_ranks(patch: Patch) -> None:
    """A worker that takes messages as they come."""

    def change(admissible: Any, worker: Worker, message: m.Control) -> bool:
        worker.control_seen = max(worker.control_seen, message.control_seq - 1)
        return bool(admissible(worker, message))

    around(patch, Worker, "_admissible", change)


def an_old_process_ends_a_new_life(patch: Patch) -> None:
    """The end of a process is held against who has its seat."""

    def change(ended: Any, co: Coordinator, event: Any) -> None:
        peer = co.peers.get(event.rank)
        known = isinstance(event, ev.ProcessExited) and peer is not None
        ended(co, attrs.evolve(event, incarnation=peer.incarnation) if known and peer is not None else event)

    around(patch, membership, "link_ended", change)


def an_old_link_ends_a_new_one(patch: Patch) -> None:
    """The end of a connection is held against the one that has replaced it."""
    patch.setattr(Attachment, "other_link", lambda self, event: False)


def old_attempts_count(patch: Patch) -> None:
    """Evidence of another attempt of the cycle counts for this one."""
    patch.setattr(Cycle, "round_current", lambda self, event: (
        event.key if hasattr(event, "key") else event).cycle == self.number)  # fmt: skip


@pytest.mark.parametrize(("fault", "breaks", "ranks", "least"), [
    (no_fence_of_lives, "N-7", 8, 3), (holes_are_not_seen, "I53", 8, 1), (holes_are_not_seen_by_ranks, "I53", 8, 1),
    (an_old_process_ends_a_new_life, "I3", 8, 2), (an_old_link_ends_a_new_one, "I3", 8, 1),
    (old_attempts_count, "I3", 3, 1),
])  # fmt: skip
def test_storms_see_what_a_fence_keeps_away(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[Patch], None], breaks: str, ranks: int, least: int
) -> None:
    """N-6, N-2, N-3: of 30 storms at least so many. Without the fence between the lives of a seat it is one in ten."""
    fault(monkeypatch)
    broken = (simulate(Case(seed=seed, ranks=ranks), codec=CODEC).violation for seed in range(30))
    found = list(itertools.islice((broke for broke in broken if broke is not None and broke.name == breaks), least))
    assert len(found) == least
