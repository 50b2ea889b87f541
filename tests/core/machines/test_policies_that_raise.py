"""A policy of the embedder's may raise in any of its methods, and the run goes on as if it had said nothing (C-13).

A cycle is finished once, whatever fails in it: nobody is left without an Update, no version is counted twice, and what
follows the policy in the order of C-15 still happens. The same holds where a policy is told of a death or of the record
of a run before.
"""

from __future__ import annotations

import random
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.cadence import Balancer
from paceline.core.coordinator import Coordinator
from paceline.core.guard import LevelGuard
from paceline.core.phases import CyclePhase, PeerPhase
from paceline.core.policies import Policies, readings
from paceline.core.snapshots import unkept

from support.cohort import Cohort
from support.hand import Hand, alerts, messages, named
from support.words import hello

KNOBS: dict[str, Any] = dict(callbacks=("epoch",), save_path="/x", checkpoint_every=1, anchor=3, max_ranks=3)


def fails(*_: object, **__: object) -> NoReturn:
    raise ZeroDivisionError("a policy of the embedder")


def window(hand: Hand) -> list[Any]:
    """As `Hand.window`, but a rank that only observes takes over the consensus before the others."""
    effects: list[Any] = []
    for rank in list(hand.co.voters):
        while hand.co.cycle.phase == CyclePhase.IDLE and hand.co.book.holdings(rank).plans:
            head = hand.co.book.head(rank)
            effects += hand.complete(rank) if head is None else hand.step(rank)
    for rank in hand.co.cycle.participants:
        effects += hand.ready(rank)
    effects += hand.reduce()
    for rank in reversed(hand.co.cycle.participants):
        effects += hand.ack(rank)
    return effects


@pytest.mark.parametrize("policy", ["cadence", "async"])
@pytest.mark.parametrize(
    ("owner", "method", "path"),
    [
        (Balancer, "report", "cadence.report"), (Balancer, "apply", "cadence.apply"),
        (Balancer, "stage_slack", "cadence.stage_slack"), (Balancer, "overshoot", "cadence.overshoot"),
        (Balancer, "admit", "cadence.admit"), (Balancer, "ms", "cadence.ms"), (Balancer, "saved", "cadence.saved"),
        (LevelGuard, "observe", "guard"), (LevelGuard, "saved", "guard.saved"),
    ],
)  # fmt: skip
def test_a_policy_that_raises_leaves_every_finish_whole(
    owner: type, method: str, path: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-13, I4: a whole epoch and a rank that joins in it; the alert names what failed."""
    hand = Hand(2, policy=policy, **KNOBS).form()
    monkeypatch.setattr(owner, method, fails)
    hand.feed(ev.HelloReceived(9, hello(60, callbacks=())))
    effects: list[Any] = []
    while not any(isinstance(effect, fx.WriteMeta) for effect in effects):
        cycle = hand.co.cycle.finished
        done = window(hand)
        effects += done
        closed = [e for e in done if isinstance(e, fx.CloseRound)]
        assert hand.co.cycle.phase == CyclePhase.IDLE and len(closed) == 1 and hand.co.cycle.finished == cycle + 1
        assert sorted(update.rank for update in messages(done, m.Update)) == hand.co.voters == [0, 1, 2]
    happens = method != "overshoot" or policy == "async"

    assert (path in {alert.path for alert in alerts(effects, "callback_failed")}) is happens
    assert hand.co.cycle.version == hand.co.cycle.finished and hand.co.peers[2].phase == PeerPhase.VOTER
    assert len(named(effects, "EpochEnd")) == hand.co.book.last_closed_epoch + 1


@pytest.mark.parametrize("goes", ["dies", "leaves"])
def test_a_policy_that_raises_keeps_nobody_in_the_run(goes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-13, B-17: the rank is gone, and what it held is trained by the other one."""
    hand = Hand(2, **KNOBS).form()
    monkeypatch.setattr(Balancer, "forget", fails)
    effects = hand.feed(ev.LinkLost(1, 1, "reset")) if goes == "dies" else hand.say(1, m.Exiting, reason="leave")

    assert [alert.path for alert in alerts(effects, "callback_failed")] == ["cadence.forget"]
    assert hand.co.voters == [0] and named(effects, "Returned")


def test_a_balancer_that_cannot_tell_whom_it_gave_how_much_closes_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """C-13, I22: in the middle of step 11 of the pass; the shares are absent from the record (K-20)."""
    hand = Hand(2, samples=24, num_epochs=1, anchor=3).form()
    monkeypatch.setattr(Balancer, "recent_share", fails)
    while not named(hand.effects, "EpochEnd"):
        hand.window()
    [facts] = named(hand.effects, "EpochEnd")

    assert [alert.path for alert in alerts(hand.effects, "callback_failed")] == ["cadence.recent_share"]
    assert [view["share"] for view in facts["ranks"].values()] == [None, None]
    assert [effect.callback for effect in hand.effects if isinstance(effect, fx.Invoke)].count("epoch_closed") == 1


@pytest.mark.parametrize("said", [None, "fast", float("nan"), float("inf"), -1.0, 0])
def test_what_is_no_duration_counts_as_not_known(said: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-13: shares and records see finite positive numbers, or 0; nothing was raised, so nothing is told."""
    hand = Hand(2).form()
    monkeypatch.setattr(Balancer, "ms", lambda self, rank: said if rank else 7)

    assert readings(hand.co, (0, 1)) == [7.0, 0.0] and not alerts(hand.co.take_ready().effects, "callback_failed")


class Own(Balancer):
    """A balancer of the embedder's."""


@pytest.mark.parametrize(
    ("owner", "path"), [(Own, "cadence.saved"), (LevelGuard, "guard.saved")],
)  # fmt: skip
def test_a_snapshot_is_made_of_what_the_policies_can_say(
    owner: type, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-13: the machine is whole without the history of a policy; whoever goes on from it does so without that, and
    says so, in a restart (M-40). Who is only looked at says nothing."""
    policies = Policies(cadence=Own)
    hand = Hand(2, policies=policies).form()
    hand.window()
    monkeypatch.setattr(owner, "saved", fails)
    snapshot = hand.co.snapshot()
    monkeypatch.undo()
    twin = Coordinator.restore(hand.co.config, snapshot, policies=policies)

    assert twin.cycle.version == hand.co.cycle.version == 1 and list(twin.balancer.ranks) == [0, 1]
    assert twin.take_ready() == hand.co.take_ready() == fx.Ready((), ())
    assert list(unkept(snapshot)) == [path] and not unkept(hand.co.snapshot())
    again = Coordinator.restart(hand.co.config, iter(snapshot), (), hand.now, policies=policies)
    (alert,) = alerts(again.take_ready().effects, "callback_failed")
    assert alert.path == path and "ZeroDivisionError" in alert.text and "without its history" in alert.text


@pytest.mark.parametrize("said", ["raises", "no plain data"])
@given(seed=st.integers(0, 2**16), swaps=st.sets(st.integers(1, 120), max_size=20))
@settings(max_examples=12, deadline=None)
def test_to_look_at_a_machine_changes_nothing(said: str, seed: int, swaps: set[int]) -> None:
    """N-13, I25, C-13, O-4, O-8: snapshots, dumps and explanations between any two events, twice each: the same answer
    twice, and the machine that was looked at has the same effects and the same state in the end as its twin."""
    chance = random.Random(seed)
    choices = [chance.randint(0, 9) for _ in range(120)]

    def guard() -> LevelGuard:
        return Mute(said)

    looked, alone = Cohort(ranks=2, samples=20, guard=guard()), Cohort(ranks=2, samples=20, guard=guard())
    for number, choice in enumerate(choices):
        for cohort in (looked, alone):
            moves = cohort.enabled()
            if moves:
                cohort.do(moves[choice % len(moves)])
        if number in swaps:
            co = looked.co
            assert co.snapshot() == co.snapshot() and co.dump() == co.dump() and co.explain() == co.explain()
            assert list(unkept(co.snapshot())) == ["guard.saved"]
            assert co.take_ready() == fx.Ready((), ())
    assert looked.effects == alone.effects and looked.co.snapshot() == alone.co.snapshot()


class Mute(LevelGuard):
    """A guard of the embedder's that cannot say what it has seen."""

    def __init__(self, said: str) -> None:
        super().__init__()
        self.said = said

    def saved(self) -> dict[str, Any]:
        if self.said == "raises":
            raise ValueError("nothing to say")
        return {"seen": object()}
