"""Invariants of section 16 under drawn inputs, where no property of whole runs would notice them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import PeerPhase

from support.hand import Hand, messages
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
