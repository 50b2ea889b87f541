"""Faults that users of comparable systems have met: slow taken for dead, dead not noticed; ids are in the docstrings.

See `test_field_cases.py`. Where a case is about seconds, real workers live in virtual time (`support/timed.py`).
"""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs
import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import RunPhase, WorkerPhase
from paceline.core.roles import CHECKPOINT, EVALUATE

from support import duties
from support.field import QUICK, pass_time, work
from support.hand import Hand, alerts, messages, named, pending
from support.rank import of
from support.timed import Timed
from support.words import hello

# --- slow taken for dead, dead not noticed (C2) -----------------------------------------------------------------------


@pytest.mark.parametrize("wakes", [4.5, 5.0, 5.5, 8.0])
def test_a_rank_that_was_stopped_trains_again_under_its_next_incarnation(wakes: float) -> None:
    """F07 (b), M-17, M-18, D-19, W-20, W-21: dead once, after 5 s of silence, and what it held is free once. Awake, it
    hears that it is fenced, drops its steps, says Hello and trains; it is the same process. Every batch counts once."""
    run = Timed((0.5,), samples=200, num_epochs=1, max_anchor=4, **QUICK)
    run.until_second(5.25)
    co, worker = run.cohort.co, run.cohort.seats[1].worker
    run.strike("pause", 1)
    run.until_second(5.5)  # what was under way is there
    silent_since, held = co.peers[1].last_seen - run.began, co.book.holdings(1).in_flight_batches + co.peers[1].steps
    run.strike_at(silent_since + wakes, "resume", 1)
    if wakes > 5.0:
        run.until(lambda: run.events("Returned"))
        assert [facts["batches"] for _, facts in run.events("Returned")] == [held] and held > 0
    if wakes >= 5.0:
        run.until(lambda: worker.settings.incarnation == 2 and worker.phase == WorkerPhase.TRAINING)
        assert worker.steps_since_avg == 0 and run.cohort.seats[1].worker is worker
    assert run.run().status == "ok"

    deaths = [at for at, facts in run.events("Died") if facts["rank"] == 1]
    lives = [facts["incarnation"] for _, facts in run.events("Joined") if facts["rank"] == 1]
    assert (lives, co.deaths, len(run.events("Died"))) == (([2], 1, 1) if deaths else ([], 0, 0))
    assert bool(deaths) is (wakes >= 5.0)
    if deaths:
        assert 5.0 < deaths[0] - silent_since <= 6.0
        assert not run.when(m.Batch, rank=1, incarnation=1)[-1] > deaths[0] and run.when(m.Batch, rank=1, incarnation=2)
    assert co.book.covered == co.cycle.global_step == len(run.cohort.ghost.merged) == 100


def test_what_a_life_says_after_its_end_is_fenced_and_counts_nowhere() -> None:
    """F07 (b), N-6, I3: its end is told it before its link is closed. Each kind of frame that comes late changes no
    counter; to one that comes beside the next life, one reply a second says what is current."""
    hand = Hand(samples=400, **QUICK).form()
    hand.step(1, 2)
    effects = pass_time(hand, 5.5, silent=(1,))
    (told,), (closed,) = of(effects, fx.SendFenced), of(effects, fx.CloseLink)
    assert effects.index(told) < effects.index(closed)
    assert (told.rank, told.incarnation, told.fenced.incarnation) == (1, 1, 2)
    before = counters(hand)
    for kind, fields in late_reports(hand):
        assert hand.say(1, kind, incarnation=1, **fields) == []
    assert counters(hand) == before

    hand.feed(ev.HelloReceived(9, hello(hand.samples, wanted_rank=1)))
    assert hand.co.peers[1].incarnation == 2
    for kind, fields in late_reports(hand):
        hand.now += 1.0
        hand.feed(ev.Tick())
        before = counters(hand)
        [told] = hand.say(1, kind, incarnation=1, **fields)
        assert isinstance(told, fx.SendFenced) and told.fenced.why == "stale"
        assert (told.rank, told.incarnation, told.fenced.incarnation) == (1, 1, 2)
        assert hand.say(1, kind, incarnation=1, **fields) == [], "one reply a second"
        assert counters(hand) == before
    assert hand.co.fenced[1, "stale"] == 10


def late_reports(hand: Hand) -> list[tuple[type[m.Report], dict[str, Any]]]:
    """What rank 1 would say if its first life went on."""
    return [
        (m.Batch, dict(cycle=0, plan_id=1, step_count=3, samples=2, batch_ms=1.0, data_ms=0.0)),
        (m.Heartbeat, dict(step_count=3, state="x")),
        (m.Metrics, dict(cycle=0, plan_ids=(1,), epoch=0, batches=1, samples=2, epoch_ms=1.0, share_complete_ms=1.0,
                         compute_only_ms=1.0, data_starve_ms=0.0)),
        (m.SnapshotReady, dict(cycle=hand.co.cycle.number, attempt=0, shipped_steps=3, copy_ms=1.0)),
        (m.Exiting, dict(reason="leave")),
    ]  # fmt: skip


def counters(hand: Hand) -> tuple[Any, ...]:
    """Every counter that a report could change: of the book, of the cycle, of each rank."""
    co = hand.co
    known = (co.book.covered, co.book.replayed, co.book.in_flight(0), co.cycle.global_step, co.deaths, co.alive,
                [pool.free for pool in co.book.pools.values()])  # fmt: skip
    peers = [{**facts_of(co.peers[rank]), "fenced_told_at": None} for rank in (0, 1)]
    return repr(known), peers


def facts_of(thing: Any) -> Any:
    """Everything a record holds, as plain values; not the coordinator that it belongs to."""
    if attrs.has(type(thing)):
        return {field.name: facts_of(getattr(thing, field.name)) for field in attrs.fields(type(thing))
                if field.name != "co"}  # fmt: skip
    if isinstance(thing, dict):
        return {key: facts_of(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple, deque)):
        return [facts_of(each) for each in thing]
    return thing


def test_a_rank_that_never_sent_a_heartbeat_is_judged_like_any_other() -> None:
    """F09, M-7, M-2: its clock starts at the Welcome, and without it the run does not begin."""
    hand = Hand(1, target_ranks=3, min_ranks=2, **QUICK)
    hand.feed(ev.HelloReceived(1, hello(hand.samples)))
    assert hand.co.alive == [0, 1]
    pass_time(hand, 5.5, silent=(1,))

    assert hand.co.alive == [0] and not hand.co.run.window_closed


@pytest.mark.parametrize("beats", [True, False])
def test_a_new_incarnation_inherits_nothing(beats: bool) -> None:
    """F10, M-7, M-18: rank 1 trained, shipped, was refused and parked in its first life. Its second record is, field by
    field, that of a rank which was never there before and knocks at the same second; so are its books. It dies by its
    own silence only: 200 s after its first death, and not before 5 s."""
    hand = Hand(2, samples=4000, **{**QUICK, "window_ceiling_s": 1000.0, "max_ranks": 3}).form()
    live_once(hand)
    died = pass_time(hand, 5.5, silent=(1,))
    assert named(died, "Died") and not hand.co.peers[1].alive
    pass_time(hand, 200.0)
    for link, rank in ((8, 1), (9, 2)):
        hand.sequence.pop(rank, None)
        hand.counted.pop(rank, None)
        hand.feed(ev.HelloReceived(link, hello(hand.samples, wanted_rank=rank)))
    again, fresh = facts_of(hand.co.peers[1]), facts_of(hand.co.peers[2])
    assert (again.pop("rank"), again.pop("incarnation"), again.pop("link")) == (1, 2, 8)
    assert (fresh.pop("rank"), fresh.pop("incarnation"), fresh.pop("link")) == (2, 1, 9)
    assert again == fresh and again["last_seen"] == hand.now
    co = hand.co
    assert facts_of(co.book.holdings(1)) == facts_of(co.book.holdings(2))
    assert co.balancer.saved()["ms"][1] == 0.0, "B-17"
    assert 1 not in co.desk.holds and not co.actions.busy() and co.voters == [0]

    pass_time(hand, 2.0, silent=(1,))
    assert co.peers[1].alive
    if beats:
        hand.say(1, m.Heartbeat, step_count=0, state="x")
    pass_time(hand, 2.9, silent=(1,))
    assert co.peers[1].alive
    pass_time(hand, 0.2, silent=(1,))
    assert co.peers[1].alive is beats


def live_once(hand: Hand) -> None:
    """A first life that leaves something in every field a life has."""
    hand.window()
    hand.window(refused=(1,))
    hand.say(1, m.LrUpdate, lr=0.25, position=3)
    hand.say(1, m.Intent, intent_id=7, kind=m.IntentKind.EVAL_NOW)
    hand.step(1, 2, batch_ms=40.0, batch_loss=3.0)
    peer = hand.co.peers[1]
    assert (peer.merges, peer.refusals_in_row, peer.steps, peer.total_steps, peer.last_intent) == (1, 1, 2, 8, 7)
    assert peer.window.wall_ms == 80.0 and peer.loss == 3.0 and peer.lr == 0.25


@pytest.mark.parametrize("phase", ["idle", "armed", "shipped", "reduced", "eval", "checkpoint"])
def test_everything_follows_from_a_death_in_the_step_that_notices_it(phase: str) -> None:
    """F11, M-18, M-21, C-21, B-17, K-9, K-16: one of three ranks dies with work in hand. In that same step its work is
    free, the others are told, gates and roles are for two; then the run goes to its end with each batch once. No
    timer is needed for any of this: time stands still."""
    hand = brought_to(phase)
    co, victim = hand.co, 0 if phase in ("eval", "checkpoint") else 2
    others = sorted({0, 1, 2} - {victim})
    plans, idle_before = len(co.book.holdings(victim).plans), not co.cycle.pending
    limbo = phase == "shipped"
    outstanding, version = out(hand), co.cycle.version
    effects = hand.feed(ev.LinkLost(victim, 1, "reset"))

    assert [notice.rank for notice in messages(effects, m.DeclareDead)] == others
    assert alerts(effects, "rank_lost") and co.alive == co.voters == co.balancer.voters == others
    left = co.book.holdings(victim)
    assert not left.plans and not left.trained and bool(co.book.limbo) is limbo
    back = sum(facts["batches"] for facts in named(effects, "Returned"))
    assert bool(back) is (plans > 0 or phase == "armed")
    assert co.cycle.version == version + (phase == "reduced")
    assert phase == "reduced" or out(hand) == outstanding - back, "free again"
    assert co.cycle.pending is (not idle_before and phase != "reduced") and not co.cycle.owes(victim)
    if phase in ("eval", "checkpoint"):
        role = EVALUATE if phase == "eval" else CHECKPOINT
        assert co.roles.holder(role) == 1 and co.actions.under_way(victim) is None
        assert messages(to_the_next_arm(hand), m.ExecuteEvalCallback if phase == "eval" else m.Checkpoint, rank=1)
    to_the_end(hand)
    assert co.cycle.global_step == co.book.covered == 60 and co.book.last_closed_epoch == 0


def brought_to(phase: str) -> Hand:
    """A run of three in that phase, each rank with steps behind it that no average has."""
    hand = duties.hand(3, samples=120, num_epochs=1, anchor=3)
    hand.window()
    if phase == "idle":
        hand.step(2, 2)
    elif phase in ("eval", "checkpoint"):
        duties.armed(hand, duties.EVAL if phase == "eval" else duties.SAVE)
        hand.average()
        hand.step(0, 2)
        assert hand.co.actions.under_way(0) is not None
    else:
        duties.arm(hand)
        if phase != "armed":
            for rank in range(3):
                hand.ready(rank)
        if phase == "reduced":
            hand.reduce()
            hand.ack(0), hand.ack(1)
    return hand


def out(hand: Hand) -> int:
    """Batches that are neither free nor in the consensus."""
    book = hand.co.book
    return book.total(0) - book.covered - sum(pool.free for pool in book.pools.values())


def to_the_next_arm(hand: Hand) -> list[Any]:
    """What was pending ends, and every voter does its part of the next window."""
    if hand.co.cycle.pending:
        finish(hand)
    return duties.arm(hand)


def finish(hand: Hand) -> None:
    """The pending cycle, from wherever it stands, to its end."""
    for rank in hand.co.cycle.participants:
        if hand.co.peers[rank].shipped is None:
            hand.ready(rank)
    if hand.co.cycle.reduced is None:
        hand.reduce()
    for rank in hand.co.cycle.participants:
        hand.ack(rank)


def to_the_end(hand: Hand) -> None:
    """Windows, until nothing is left to train."""
    for _ in range(60):
        if hand.co.cycle.pending:
            finish(hand)
        if hand.co.run.phase != RunPhase.TRAINING:
            return
        for rank in list(hand.co.voters):
            work(hand, rank)
    raise AssertionError(f"it does not end: {hand.co.explain()}")


def test_an_orderly_close_without_goodbye_is_a_death() -> None:
    """F13, M-17: exit code 0 and no Exiting; the cycle goes on with the others."""
    hand = pending(3)
    for rank in range(3):
        hand.ready(rank)
    effects = hand.feed(ev.ProcessExited(1, 1, 0))
    assert alerts(effects, "rank_lost") and hand.co.cycle.pending
    hand.reduce(accepted=(0, 2))
    hand.ack(0), hand.ack(2)

    assert hand.co.cycle.version == 1 and hand.co.cycle.global_step == 6


# --- one deadline for all ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slow_s", "cycles"), [(12.0, 10), (60.0, 2)])
def test_a_slow_rank_is_in_every_average(slow_s: float, cycles: int) -> None:
    """F12, C-9, M-10, M-15: 0.5 s a batch and 12 s; the request reaches the slow rank one second into a batch. It is in
    every average, never dead or stalled, and no average is repeated. Nobody waits longer than its batch and two
    seconds on the way.
    With 60 s a batch an average takes longer than the ceiling of 60 s, which counts from the last evidence."""
    run = Timed((0.5, slow_s), {"latency_s": 0.5}, samples=8000, policy="sync", **{**QUICK, "window_ceiling_s": 600.0})
    co = run.cohort.co
    run.until(lambda: co.cycle.finished == cycles)

    requests, answers = run.sent(m.RequestParams, rank=1), run.when(m.SnapshotReady, rank=1)[1:]
    ends = [at for at, _ in run.events("Cycle")]
    assert len(requests) == len(answers) == len(ends) == cycles
    for asked, answered, ended in zip(requests, answers, ends, strict=True):
        assert asked + 0.5 + (slow_s - 1.0) <= answered < ended <= asked + slow_s + 2.0
        assert ended - asked > (10.0 if slow_s < 60.0 else 60.0), "or no deadline was ever looked at"
    assert [(facts["attempt"], facts["merged"]["1"]) for _, facts in run.events("Cycle")] == [(0, 2)] * cycles
    assert co.peers[1].merges == cycles and co.alive == [0, 1]
    assert not run.events("Died") and not run.events("Stalled") and not run.events("RoundAborted")
