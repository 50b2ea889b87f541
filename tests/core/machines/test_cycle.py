"""The averaging cycle at the coordinator: arm, evidence, finish, again, never (sections 4 and 7)."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.cadence_inputs import NudgeDown
from paceline.core.peer import Window
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase

from support.hand import Hand, alerts, messages, named, pending

# --- arm (C-11, G-1) -------------------------------------------------------------------------------------------------


def test_the_gate_waits_for_the_quota_of_every_voter() -> None:
    """C-30, G-1: counts only."""
    hand = Hand().form()
    hand.step(0, 3)
    hand.step(1, 2)
    hand.tick(20)
    assert not hand.co.cycle.pending
    hand.step(1)
    assert hand.co.cycle.pending


@pytest.mark.parametrize("knobs", [{"policy": "sync"}, {"policy": "cadence", "progressive": False}])
def test_a_run_without_chunks_parks_everyone_and_a_run_with_chunks_nobody(knobs: dict[str, Any]) -> None:
    """I6, C-11.6, 17.1 #9: the round opens before the requests, the requests come before the throttles."""
    hand = Hand(**knobs).form()
    for rank in (0, 1):
        effects = hand.step(rank, hand.co.peers[rank].quota)
    kinds = [type(e.message).__name__ if isinstance(e, fx.Send) else type(e).__name__ for e in effects]
    kinds = [kind for kind in kinds if kind != "Emit"]
    assert kinds == ["OpenRound", "RequestParams", "RequestParams", "Throttle", "Throttle"]

    chunks = Hand().form()
    for rank in (0, 1):
        effects = chunks.step(rank, 3)
    assert messages(effects, m.RequestParams) and not messages(effects, m.Throttle)


def test_nothing_is_armed_while_a_cycle_is_pending() -> None:
    """I1, C-1: async ranks go on, their steps belong to the next cycle (I2, C-36)."""
    hand = Hand(policy="async", samples=400).form()
    for rank in (0, 1):
        hand.step(rank, 3)
    assert hand.co.cycle.number == 1
    effects = hand.step(0, 3) + hand.step(1, 3)
    assert hand.co.cycle.number == 1 and hand.co.cycle.pending and not messages(effects, m.RequestParams)


# --- evidence (C-6, C-7, C-35, I2, I3) -------------------------------------------------------------------------------


def test_only_acks_of_this_attempt_finish_a_cycle() -> None:
    """C-32, C-33, I2, C-12: no batch, snapshot, heartbeat or tick does, and one missing ack holds it."""
    hand = pending()
    for rank in (0, 1):
        hand.ready(rank)
    hand.reduce()
    hand.ack(0)
    hand.tick(30)
    assert hand.co.cycle.pending
    hand.ack(0)  # once per attempt
    assert hand.co.cycle.pending and hand.co.fenced[0, "SyncAck"] == 1
    hand.ack(1)
    assert hand.co.cycle.phase == CyclePhase.IDLE and hand.co.cycle.version == 1


@pytest.mark.parametrize("what", ["SnapshotReady", "SyncAck", "RoundFailed"])
@pytest.mark.parametrize("stale", [{"cycle": 0}, {"attempt": 1}, {"cycle": 9}])
@pytest.mark.parametrize("idle", [False, True])
def test_stale_evidence_changes_nothing_but_its_counter(what: str, stale: dict[str, int], idle: bool) -> None:
    """I3, C-35, C-43, 17.2 #3."""
    hand = Hand().form() if idle else pending()
    peer = hand.co.peers[0]
    before = hand.co.snapshot()
    if what == "SnapshotReady":
        effects = hand.ready(0, **stale)
    elif what == "SyncAck":
        effects = hand.ack(0, **stale)
    else:
        fields = {"cycle": hand.co.cycle.number, "attempt": 0, "round": m.RoundKind.PARAMS, "cause": "x",
                  "retryable": True, **stale}  # fmt: skip
        effects = hand.say(0, m.RoundFailed, **fields)
    assert hand.co.fenced.pop((0, what)) == 1
    peer.report_seq -= 1

    assert hand.co.snapshot() == before and not effects


@pytest.mark.parametrize("life", [{"incarnation": 7}, {"generation": 3}, {"run_id": b"y" * 16}])
def test_a_message_of_another_life_changes_no_stamp_either(life: dict[str, Any]) -> None:
    """I3, N-6: one Fenced reply a second at most, and none to another run."""
    hand = Hand().form()
    hand.now += 5
    hand.feed(ev.Tick())
    before = hand.co.snapshot()
    effects = [*hand.say(0, m.Heartbeat, step_count=0, state="x", **life),
               *hand.say(0, m.Heartbeat, step_count=0, state="x", **life)]  # fmt: skip
    assert sum(hand.co.fenced.values()) == 2
    hand.co.fenced.clear()
    hand.co.peers[0].fenced_told_at = float("-inf")

    assert hand.co.snapshot() == before
    assert len([e for e in effects if isinstance(e, fx.SendFenced)]) == (0 if "run_id" in life else 1)


def test_steps_that_the_books_do_not_have_end_the_incarnation() -> None:
    """C-7, I47: the alert says accounting, the rank goes, the cycle ends with the others (C-21)."""
    hand = pending()
    effects = hand.ready(0, shipped_steps=2)

    assert alerts(effects, "accounting") and hand.co.peers[0].phase == PeerPhase.DEAD
    assert hand.co.cycle.pending and hand.co.violations == 1
    hand.ready(1)
    hand.reduce()
    hand.ack(1)
    assert hand.co.cycle.version == 1 and hand.co.cycle.global_step == 3


def test_a_repeated_snapshot_is_no_evidence() -> None:
    """C-34, C-7: once per attempt; the contribution is admitted once."""
    hand = pending()
    assert [e for e in hand.ready(0) if isinstance(e, fx.AdmitContribution)]
    assert not hand.ready(0) and not hand.co.fenced


@pytest.mark.parametrize("ready", [False, True])
def test_an_ack_of_what_cannot_have_been_sent_ends_the_incarnation(ready: bool) -> None:
    """N-3, R-2: neither before the snapshot nor before the averager has the consensus."""
    hand = pending()
    if ready:
        hand.ready(0)
    hand.ack(0, shipped_steps=3)

    assert hand.co.peers[0].phase == PeerPhase.DEAD and hand.co.violations == 1


@pytest.mark.parametrize(
    ("norms", "told"),
    [
        ((1.0, 1.1, 1.0), [1]), ((1.1, 1.0, 1.2), [1]), ((1.0, 1.0, 1.1), [2]),  # once per cycle, however many follow
        ((1.0, 1.0000009, 1.0), []), ((1.0, 1.0000011, 1.0), [1]), ((2e6, 2e6 + 1, 2e6 + 2.1), [2]),  # relative
        ((1.0, 1.0, 1.0), []), ((0.0, 0.0, 0.0), []), ((None, 1.0, None), []),
        ((1.0, math.nan, 1.0), [1]), ((math.nan, 1.0, 1.0), [0]), ((1.0, math.inf, 1.0), [1]),
    ],
    ids=repr,
)  # fmt: skip
def test_post_norms_that_differ_are_told(norms: tuple[float | None, ...], told: list[int]) -> None:
    """C-6: by more than a millionth of the larger one. A norm that is no number is that of no consensus (R-6)."""
    hand = pending(3)
    for rank in range(3):
        hand.ready(rank)
    hand.reduce()
    effects = [hand.ack(rank, post_norm=norms[rank]) for rank in range(3)]

    assert [rank for rank in range(3) if alerts(effects[rank], "norm_mismatch")] == told


# --- finish (C-13 to C-17) -------------------------------------------------------------------------------------------


def test_finish_gives_its_effects_in_order_and_flips_last() -> None:
    """I4, C-15, 17.1 #1 and #3: steps fall before a plan is sized, the Update carries version, base and plan."""
    hand = pending()
    effects = hand.average()
    kinds = [type(e.message).__name__ if isinstance(e, fx.Send) else getattr(e, "name", type(e).__name__)
             for e in effects]  # fmt: skip
    tail = kinds[kinds.index("Cycle"):]
    assert tail == ["Cycle", "Covered", "Update", "Update", "SetGlobalStep", "SetGlobalStep", "StageAdvisory",
                    "StageAdvisory", "CloseRound", "AverageEnd", "SyncEnd"]  # fmt: skip
    update = messages(effects, m.Update, 0)[0]
    assert (update.version, update.global_step, update.merged_steps, update.outcome) == (1, 6, 3, m.Outcome.MERGED)
    assert update.next_plan is not None and update.next_plan.size == 6, "three whole batches, not a crumb"
    assert hand.co.peers[0].steps == 0 and hand.co.cycle.phase == CyclePhase.IDLE


class Raising:
    """A guard of the embedder that fails, or answers nonsense."""

    reports_telemetry = False

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def observe(self, cycle: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def saved(self) -> dict[str, Any]:
        return {}

    def restore(self, saved: Any) -> bool:
        return False


@pytest.mark.parametrize("answer", [ValueError("bad"), "shrink"])
def test_a_guard_that_fails_leaves_nobody_without_an_update(answer: Any) -> None:
    """C-13, I4: alerted and read as Stable; everyone is updated, once."""
    hand = pending(guard=Raising(answer))
    effects = hand.average()

    assert alerts(effects, "callback_failed")
    assert len(messages(effects, m.Update)) == 2 and hand.co.cycle.version == 1
    assert hand.co.cycle.phase == CyclePhase.IDLE


def test_a_finish_leaves_nothing_of_its_cycle_behind() -> None:
    """C-15.10: a window begins at zero, nobody is parked, and no divergence, norm or digest is left."""
    hand = pending(policy="sync", samples=400)
    hand.average()
    for peer in (hand.co.peers[rank] for rank in (0, 1)):
        assert (peer.divergence, peer.pre_norm, peer.post_norm, peer.digest) == (None, None, None, None)
        assert peer.throttled is None and not peer.climb.suspected
        assert attrs.asdict(peer.window) == attrs.asdict(Window())


def test_a_nudge_shortens_the_window_loudly() -> None:
    """B-12, B-30."""
    hand = pending(guard=Raising(NudgeDown(0.5)))
    effects = hand.average()

    assert alerts(effects, "drift") and hand.co.balancer.anchor == 2
    assert named(effects, "AnchorChanged") == [{"from": 3, "to": 2}]


def test_an_unrealized_cycle_changes_nothing_but_releases() -> None:
    """C-17, I58: version, base and coverage stay, refused ranks start over."""
    hand = pending()
    effects = hand.average(refused=(0, 1))
    outcomes = {update.outcome for update in messages(effects, m.Update)}

    assert outcomes == {m.Outcome.REFUSED}
    assert (hand.co.cycle.version, hand.co.cycle.global_step, hand.co.book.covered) == (0, 0, 0)
    assert [hand.co.peers[r].steps for r in (0, 1)] == [0, 0] and hand.co.book.replayed == 6


def test_a_step_on_a_refused_basis_is_void() -> None:
    """C-8, D-12, I48: its pick returns and it counts for nothing; the same step on the new basis counts."""
    hand = Hand(policy="async", samples=400).form()
    for rank in (0, 1):
        hand.step(rank, 3)
    hand.ready(0), hand.ready(1)
    hand.reduce(refused=(0,))
    hand.ack(0, outcome=m.Outcome.REFUSED, refusal=m.Refusal.NONFINITE), hand.ack(1)
    assert hand.co.peers[0].steps == 0 and hand.co.cycle.version == 1
    replayed = hand.co.book.replayed
    hand.step(0, cycle=0)
    assert (hand.co.peers[0].steps, hand.co.book.replayed) == (0, replayed + 1)
    hand.step(0, cycle=1)
    assert hand.co.peers[0].steps == 1


def test_three_refusals_in_a_row_end_an_incarnation() -> None:
    """D-12: unhealthy; the run goes on without it."""
    hand = Hand(samples=400).form()
    for _ in range(2):
        hand.window(refused=(0,))
        assert hand.co.peers[0].phase == PeerPhase.VOTER
    effects = hand.window(refused=(0,))

    assert hand.co.peers[0].phase == PeerPhase.DEAD and "unhealthy" in named(effects, "Died")[0]["cause"]
    assert hand.co.run.phase == RunPhase.TRAINING and hand.co.voters == [1]


def test_a_merge_in_between_forgives() -> None:
    """D-12: in a row."""
    hand = Hand(samples=400).form()
    for refused in ((0,), (0,), (), (0,), (0,)):
        hand.window(refused=refused)
    assert hand.co.peers[0].phase == PeerPhase.VOTER and hand.co.peers[0].refusals_in_row == 2


def test_three_sick_cycles_save_and_stop_with_everyone_there_to_save() -> None:
    """D-12, C-46: diverged comes before unhealthy."""
    hand = Hand(samples=400).form()
    for _ in range(3):
        effects = hand.window(refused=(0, 1))

    assert alerts(effects, "diverged") and hand.co.save_issued
    saves = messages(effects, m.ShutdownWithSave)
    assert [(save.reason, save.saver) for save in saves] == [(m.SaveReason.DIVERGED, 0)] * 2
    assert len(hand.co.alive) == 2 and hand.co.cycle.phase == CyclePhase.IDLE


# --- the gate reads no time (I26) ------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1e6, allow_nan=False), min_size=6, max_size=6))
def test_no_measured_time_opens_the_gate(times: list[float]) -> None:
    """G-2, I26, 17.1 #5."""
    hand = Hand().form()
    for index, ms in enumerate(times):
        assert not hand.co.cycle.pending
        hand.step(index % 2, batch_ms=ms, data_ms=ms)
    assert hand.co.cycle.pending
