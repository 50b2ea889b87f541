"""Invariants of section 16 under drawn inputs, where no property of whole runs would notice them."""

from __future__ import annotations

import math
from typing import Any

import attrs
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.phases import PeerPhase, WorkerPhase

from support.hand import Hand, messages, pending
from support.messages import FROM_RANK
from support.rank import NEXT, Rank, of
from support.words import hello

LADDER = ("Suspect", "Nudge", "Excluded", "Stalled")


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["knock", "lose", "leave", "tick"]), st.integers(0, 5)), max_size=12))
def test_a_frozen_cohort_only_shrinks(moves: list[tuple[str, int]]) -> None:
    """I20, M-22: whoever knocks, in whatever way, after the forming."""
    hand = Hand(4, samples=400, elastic=False, min_ranks=1, rejoin_window_s=30.0).form()
    alive = set(hand.co.alive)
    for move, rank in moves:
        if hand.co.finished:
            break
        if move == "knock":
            hand.feed(ev.HelloReceived(90 + rank, hello(400, wanted_rank=rank if rank % 2 else None)))
        elif move == "tick":
            hand.tick(float(rank))
        elif rank in hand.co.alive and move == "lose":
            hand.feed(ev.LinkLost(rank, hand.co.peers[rank].incarnation, "reset"))
        elif rank in hand.co.alive:
            hand.say(rank, m.Exiting, reason="done")
        assert set(hand.co.alive) <= alive
        alive = set(hand.co.alive)


@settings(max_examples=60)
@given(steps=st.tuples(st.integers(1, 3), st.integers(1, 3)), claimed=st.integers(0, 5), again=st.booleans())
def test_what_is_shipped_is_what_was_trained(steps: tuple[int, int], claimed: int, again: bool) -> None:
    """I47, C-7: exactly the steps of the books in the first attempt, at most those later; anything else ends that
    incarnation and nobody else's."""
    hand = Hand(2, samples=400, policy="async").form()
    for rank in (0, 1):
        hand.step(rank, steps[rank])
    if not hand.co.cycle.pending:
        hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    if again:
        hand.feed(ev.RoundAborted(hand.co.cycle.key, 0, "a test"))
    assert hand.co.cycle.pending and hand.co.cycle.attempt == int(again)
    hand.ready(0, shipped_steps=claimed)

    fits = claimed <= steps[0] if again else claimed == steps[0]
    assert (hand.co.peers[0].phase == PeerPhase.VOTER) is fits and hand.co.peers[1].phase == PeerPhase.VOTER
    assert hand.co.peers[0].shipped == (claimed if fits else None) and hand.co.violations == (not fits)


@settings(max_examples=30)
@given(beats=st.lists(st.tuples(st.floats(0.0, 320.0), st.integers(0, 1)), max_size=20), owing=st.integers(0, 1))
def test_heartbeats_move_no_step_of_the_ladder(beats: list[tuple[float, int]], owing: int) -> None:
    """I33, M-2, M-15: the same suspicions, nudges and the same stall at the same seconds, however many there are."""

    def told(extra: list[tuple[float, int]]) -> list[tuple[str, Any]]:
        hand = Hand(2, samples=400, heartbeat_timeout_s=400.0, reduce_ceiling_s=400.0).form()
        for rank in (0, 1):
            hand.step(rank, 3)
            hand.complete(rank)
        begun, found = hand.now, []
        hand.ready(1 - owing)
        hand.feed(ev.RoundProgress(hand.co.cycle.key, 1 - owing, 8, complete=True))
        ticks = [(second, -1) for second in (59.0, 61.0, 121.0, 181.0, 241.0, 301.0, 399.0, 401.0)]
        for second, rank in sorted([*ticks, (250.0, 0), (250.0, 1), *extra]):
            hand.now = begun + second
            event = [] if rank < 0 else hand.say(rank, m.Heartbeat, step_count=0, state="x")
            for effect in [*event, *hand.feed(ev.Tick())]:
                if getattr(effect, "name", "") in LADDER:
                    found.append((effect.name, effect.facts.get("rank")))
        return sorted(found, key=str)

    plain = told([])
    assert plain == sorted([("Stalled", None), ("Suspect", owing), *[("Nudge", owing)] * 3], key=str)
    assert told(beats) == plain


@settings(max_examples=40)
@given(waits=st.lists(st.floats(0.01, 40.0), min_size=1, max_size=20), dies=st.integers(0, 20), forming=st.booleans())
def test_a_deadline_is_set_and_beacons_leave(waits: list[float], dies: int, forming: bool) -> None:
    """I40, N-8: in every phase up to the end, whatever is waited for."""
    hand = Hand(2, samples=400)
    if not forming:
        hand.form()
    for index, wait in enumerate(waits):
        if index == dies:
            hand.feed(ev.LinkLost(1, 1, "reset"))
        due_at, every = hand.co.next_beacon, hand.co.config.beacon_s
        effects = hand.tick(wait)
        if hand.co.finished:
            assert hand.co.poll_timeout() is None
            return
        due = hand.co.poll_timeout()
        assert due is not None and due <= hand.co.next_beacon and due >= hand.now - 1e-9
        beacons = messages(effects, m.Beacon, 0)
        fell_due = 0 if due_at > hand.now else 1 + int((hand.now - due_at) / every - 1e-6)
        assert len(beacons) >= fell_due or 0 not in hand.co.alive


# --- what is over, who leaves, and what comes once -------------------------------------------------------------------

STAMPS = {"another run": {"run_id": b"?" * 16}, "another generation": {"generation": 2}, "a life that is over": {}}


def without_counter(co: Coordinator) -> tuple[Any, ...]:
    """The state but for how often something was fenced, and when that was told last."""
    co.fenced.clear()
    co.fenced_told.clear()
    for peer in co.peers.values():
        peer.fenced_told_at = -math.inf
    return co.snapshot()


@settings(max_examples=30)
@given(report=FROM_RANK, stale=st.sampled_from(sorted(STAMPS)), number=st.integers(0, 9), pended=st.booleans())
def test_a_fenced_report_changes_its_counter_and_nothing_else(
    report: m.Report, stale: str, number: int, pended: bool
) -> None:
    """I3, N-6: whatever it says, in a cycle and outside; of a life that is over no stamp is taken either."""
    hand = pending(3) if pended else Hand(3, samples=400).form()
    if stale == "a life that is over":
        hand.feed(ev.LinkLost(1, 1, "reset"))
    before, counted = hand.co.snapshot(), sum(hand.co.fenced.values())
    effects = hand.feed(ev.Received(attrs.evolve(report, **{
        "run_id": hand.co.config.run_id, "generation": 1, "rank": 1, "incarnation": 1, "report_seq": number,
        "control_seq": number, **STAMPS[stale],
    })))  # fmt: skip

    assert not [effect for effect in effects if not isinstance(effect, fx.SendFenced)]
    assert sum(hand.co.fenced.values()) == counted + 1
    assert without_counter(hand.co) == without_counter(Coordinator.restore(hand.co.config, before))


ORDERS = ("request", "sync", "throttle", "start", "update", "session", "dead")


@settings(max_examples=50)
@given(orders=st.lists(st.tuples(st.sampled_from(ORDERS), st.integers(0, 3)), max_size=12), parked=st.booleans(),
       in_place=st.booleans())  # fmt: skip
def test_a_rank_that_leaves_runs_no_collective_and_never_parks(
    orders: list[tuple[str, int]], parked: bool, in_place: bool
) -> None:
    """I23, W-23: from wherever it leaves, whatever it is told then."""
    rank = Rank(WorkerPhase.THROTTLED if parked else WorkerPhase.TRAINING, collective=in_place)
    rank.feed(ev.LeaveRequested())
    rank.orders.clear()
    assert rank.worker.phase == WorkerPhase.DRAINING
    for order, cycle in orders:
        if order == "request":
            rank.request(cycle)
        elif order == "sync":
            rank.control(m.SyncNow, cycle=cycle, attempt=0, session_id=1, version=1, global_step=0)
        elif order == "throttle":
            rank.control(m.Throttle, cycle=cycle, reason=m.ThrottleReason.BARRIER)
        elif order == "start":
            rank.control(m.StartEpoch, cycle=cycle, plan=NEXT)
        elif order == "update":
            rank.update(cycle)
        elif order == "session":
            rank.session(1 + cycle, cycle=cycle)
        else:
            rank.control(m.DeclareDead, dead_rank=0, dead_incarnation=1)
        assert rank.worker.phase in (WorkerPhase.DRAINING, WorkerPhase.STOPPED)
    assert not of(rank.orders, fx.RunCollective)


@settings(max_examples=30)
@given(ranks=st.integers(2, 5), last=st.integers(0, 4), how=st.sampled_from(["link", "leave", "misbehave"]),
       stage=st.sampled_from(["copy", "ack"]))  # fmt: skip
def test_the_departure_of_the_last_that_owes_moves_the_cycle_on_in_the_same_pass(
    ranks: int, last: int, how: str, stage: str
) -> None:
    """I27, C-21: nobody is waited for once nobody owes, however the last one went."""
    last %= ranks
    hand = pending(ranks, samples=400)
    others = [rank for rank in range(ranks) if rank != last]
    for rank in others if stage == "copy" else range(ranks):
        hand.ready(rank)
    if stage == "ack":
        hand.reduce()
        for rank in others:
            hand.ack(rank)
    assert hand.co.cycle.pending
    if how == "link":
        effects = hand.feed(ev.LinkLost(last, 1, "reset"))
    elif how == "leave":
        effects = hand.say(last, m.Exiting, reason="done")
    else:
        effects = hand.say(last, m.Heartbeat, gap=3, step_count=0, state="x")

    assert last not in hand.co.alive
    if stage == "ack":
        assert hand.co.cycle.finished == 1
        assert [rank for rank in others if messages(effects, m.Update, rank)] == others
    else:
        removed = [effect.rank for effect in effects if isinstance(effect, fx.RemoveFromRound)]
        assert removed == [last], "the averager waits for the others alone"


@settings(max_examples=12)
@given(waits=st.lists(st.floats(0.1, 200.0), max_size=12), copied=st.integers(0, 2),
       every=st.sampled_from([1e5, 40.0]))  # fmt: skip
def test_a_ceiling_is_acted_on_once_at_the_first_pass_after_it(waits: list[float], copied: int, every: float) -> None:
    """I32, M-15: one stall with one dump and one decision to save, however far the cycle is, whenever passes come."""
    hand = pending(3, samples=400, reduce_ceiling_s=300.0, heartbeat_timeout_s=300.0, stall_dump_s=every)
    for rank in range(copied):
        hand.ready(rank)
    begun, stalls, saves = hand.now, [], []
    for wait in [*waits, 300.5, 50.0]:
        effects = hand.tick(wait)
        stalls += [effect for effect in effects if getattr(effect, "name", "") == "Stalled"]
        saves += messages(effects, m.ShutdownWithSave)
        assert bool(stalls) == (hand.now > begun + 300.0)
    assert [bool(stall.facts["dump"]) for stall in stalls] == [True] and len({save.decision_id for save in saves}) == 1
    assert {save.reason for save in saves} == {m.SaveReason.REDUCE_STALL}


@settings(max_examples=30)
@given(idle=st.lists(st.booleans(), min_size=2, max_size=4), data=st.data())
def test_a_cycle_without_a_consensus_changes_no_coverage_and_no_version(idle: list[bool], data: st.DataObject) -> None:
    """I58, R-8: whoever has not moved is let go as it is, whoever is refused has its batches trained again."""
    ranks = range(len(idle))
    hand = Hand(len(idle), samples=400, policy="async").form()
    for rank in ranks:
        if not idle[rank]:
            hand.step(rank, data.draw(st.integers(1, 3)))
    if not hand.co.cycle.pending:
        hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    assume(hand.co.cycle.pending)
    movers = [rank for rank in ranks if hand.co.peers[rank].steps]
    before = (hand.co.cycle.version, hand.co.cycle.global_step, hand.co.book.covered)
    kept = {rank: hand.co.peers[rank].steps for rank in ranks if rank not in movers}
    for rank in ranks:
        hand.ready(rank)
    hand.reduce(movers)
    for rank in ranks:
        moved = rank in movers
        hand.ack(rank, outcome=m.Outcome.REFUSED if moved else m.Outcome.UNREALIZED,
                 refusal=m.Refusal.NONFINITE if moved else None)  # fmt: skip

    assert not hand.co.cycle.pending and hand.co.cycle.finished == 1
    assert (hand.co.cycle.version, hand.co.cycle.global_step, hand.co.book.covered) == before
    assert all(hand.co.peers[rank].steps == 0 for rank in movers if rank in hand.co.peers)
    assert {rank: hand.co.peers[rank].steps for rank in kept} == kept
    assert not [each for each in hand.effects if isinstance(each, fx.SaveConsensus | fx.WriteMeta)], "no file"
