"""Waiting is told (O-3): who is waited for, in lines 10 s apart at least, and in one line when it is over.

F93: 704 processes waited hours for one slow reader, and nothing named it. Here rank 5 of 8 is late by 45 s in each
thing that a run waits for; the ranks and the time are driven by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import attrs
import pytest

from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core import waiting
from paceline.core.coordinator import Coordinator
from paceline.core.explain import Reason
from paceline.core.reasons import CODES
from paceline.core.timeline import undeclared
from paceline.core.waiting import NAMED, TELL_S, Teller

from support.hand import Hand, messages, named, pending
from support.words import hello

LATE, LATE_S = 5, 45.0
OTHERS = (0, 1, 2, 3, 4, 6, 7)
LOOKS_S = 1.0
"""How often a driver asks, here."""

Told = list[tuple[float, str, dict[str, Any]]]


class Listener:
    """Asks a teller as a driver does, and keeps what it told, with the second of it."""

    def __init__(self, hand: Hand) -> None:
        self.hand, self.teller = hand, Teller()
        self.told: Told = []

    def look(self) -> None:
        """Once."""
        for event in self.teller.look(self.hand.co):
            assert undeclared(event.name, event.facts) is None
            json.dumps(event.facts)
            self.told.append((self.hand.now, event.name, event.facts))

    def listen(self, seconds: float) -> None:
        """Time passes."""
        for _ in range(round(seconds / LOOKS_S)):
            self.hand.tick(LOOKS_S)
            self.look()

    def of(self, name: str) -> list[dict[str, Any]]:
        """The facts of the events of that name."""
        return [facts for _, told, facts in self.told if told == name]


# --- F93: each thing that is waited for ------------------------------------------------------------------------------

Case = tuple[Hand, Callable[[], object]]
"""A cohort in which rank 5 is late from now on, and its arrival."""


def join() -> Case:
    """M-7: seats go in the order of admission, so who is still to come will be rank 7, whoever it is."""
    hand = Hand(7, target_ranks=8)
    return hand, lambda: hand.feed(ev.HelloReceived(7, hello(60)))


def load() -> Case:
    hand = Hand(8)
    for rank in range(8):
        hand.ready(rank)
    hand.reduce()
    for rank in OTHERS:
        hand.ack(rank, outcome=m.Outcome.OBSERVER)
    return hand, lambda: hand.ack(LATE, outcome=m.Outcome.OBSERVER)


def throttle() -> Case:
    hand = Hand(8, samples=800, max_batch_diff=1, anchor=4).form()
    hand.step(LATE)
    for rank in OTHERS:
        hand.step(rank, 3)
    assert all(hand.co.peers[rank].throttled == m.ThrottleReason.LEAD for rank in OTHERS)

    def arrive() -> None:
        hand.step(LATE, 3)
        hand.complete(LATE)
        hand.average()

    return hand, arrive


def shipped(hand: Hand, rank: int) -> None:
    """Its contribution is here."""
    hand.ready(rank)
    hand.feed(ev.RoundProgress(hand.co.cycle.key, rank, 8, complete=True))


def collect() -> Case:
    hand = pending(8, samples=800)
    for rank in OTHERS:
        shipped(hand, rank)

    def arrive() -> None:
        shipped(hand, LATE)
        hand.reduce()
        for rank in range(8):
            hand.ack(rank)

    return hand, arrive


def apply() -> Case:
    hand = pending(8, samples=800)
    for rank in range(8):
        shipped(hand, rank)
    hand.reduce()
    for rank in OTHERS:
        hand.ack(rank)
    return hand, lambda: hand.ack(LATE)


def evaluate() -> Case:
    """The only one that can; the others have done their part of the window meanwhile."""
    hand = Hand(0, samples=800, target_ranks=8)
    for link in range(8):
        hand.feed(ev.HelloReceived(link, hello(800, callbacks=("evaluate",) if link == LATE else ())))
    hand.form()
    hand.feed(ev.OperatorRequest(ev.Operator.EVAL))
    for rank in range(8):
        hand.step(rank, 3)
        hand.complete(rank)
    hand.average()
    (order,) = messages(hand.effects, m.ExecuteEvalCallback)
    assert order.target_rank == LATE
    for rank in OTHERS:
        hand.step(rank, 3)
        hand.complete(rank)

    def arrive() -> None:
        hand.say(LATE, m.EvalResult, schedule_id=order.schedule_id, epoch=order.epoch, version=order.version,
                 elapsed_ms=45000.0)  # fmt: skip
        hand.step(LATE, 3)
        hand.complete(LATE)
        hand.average()

    return hand, arrive


def saved(hand: Hand, rank: int) -> None:
    """It has saved, and said so."""
    assert hand.co.run.save is not None
    hand.say(rank, m.CheckpointResult, decision_id=hand.co.run.save.decision_id, version=0, elapsed_ms=1.0)


def save() -> Case:
    """Somebody died whom the run cannot spare; all are asked to save, and all but one have."""
    hand = Hand(9, samples=800, max_failure=1, save_limit_s=60.0).form()
    hand.feed(ev.LinkLost(8, 1, "gone"))
    for rank in OTHERS:
        saved(hand, rank)
    return hand, lambda: saved(hand, LATE)


def shutdown() -> Case:
    hand = Hand(8, num_epochs=0, exit_grace_s=60.0).form()
    for rank in OTHERS:
        hand.say(rank, m.Exiting, reason="done")
    return hand, lambda: hand.say(LATE, m.Exiting, reason="done")


PHASES = [
    # phase, what the run is at, what the late one does, its last sign, the next step
    (join, "joining", None, None, "the run begins with who is there"),
    (load, "loading", None, "SnapshotReady", "who is not done with it is dropped"),
    (throttle, "training", "rank 5 trains: 1 of 4 steps", "Batch", "it is suspected"),
    (collect, "collecting", "rank 5 owes its snapshot", "Metrics", "it is suspected"),
    (apply, "applying", "rank 5 owes its acknowledgement", "RoundProgress", "it is suspected"),
    (evaluate, "training", "rank 5 evaluates", "SyncAck", "another rank is asked"),
    (save, "saving", None, "SyncAck", "all are told to go"),
    (shutdown, "shutting down", None, "SyncAck", "its link is closed"),
]


@pytest.mark.parametrize(("case", "during", "what", "sign", "then"), PHASES, ids=[case.__name__ for case, *_ in PHASES])
def test_who_is_waited_for_is_told_from_ten_seconds_on(
    case: Callable[[], Case], during: str, what: str | None, sign: str | None, then: str
) -> None:
    """F93, O-3: from 10 s on one line per 10 s, with phase, cycle, who is missing, its last sign of progress and when
    what is done; then one line that it is there. Nobody is ended before its limit."""
    hand, arrive = case()
    whom = 7 if case is join else LATE
    listener, began = Listener(hand), hand.now
    listener.listen(LATE_S)

    assert [(at - began, name) for at, name, _ in listener.told] == [(s, "Waiting") for s in (10.0, 20.0, 30.0, 40.0)]
    for at, _, facts in listener.told:
        assert (facts["during"], facts["missing"], facts["next"]) == (during, [whom], then)
        assert facts["cycle"] == hand.co.cycle.number and facts["waited_s"] == at - began
        assert facts["what"] == ([] if what is None else [what]) and (facts["what"] or facts["why"])
        progress = None if sign is None else {"kind": sign, "ago_s": at - began}
        assert facts["progress"] == {str(whom): progress}
    limits = {at + facts["next_s"] for at, _, facts in listener.told}
    assert len(limits) == 1 and limits.pop() > hand.now, "the same limit each time, and it is not reached"
    assert listener.teller.facts == listener.told[-1][2], "a status says the same"
    assert not [facts for facts in named(hand.effects, "Died") if facts["rank"] == LATE]

    arrive()
    listener.listen(2.0)
    ((at, name, over),) = listener.told[4:]
    assert name == "Waited" and over["how"] == {str(whom): "left" if case is shutdown else "arrived"}
    assert over["during"] == during and over["waited_s"] == at - began == pytest.approx(LATE_S, abs=1.0)
    assert listener.teller.facts is None


def test_a_look_changes_nothing() -> None:
    """O-3: what goes in and out of the machine is the same with a teller and without one, so a record replays."""
    hand, _ = collect()
    listener = Listener(hand)
    for _ in range(12):
        hand.tick(1.0)
        before = hand.co.snapshot()
        listener.look()
        ready = hand.co.take_ready()
        assert hand.co.snapshot() == before and not ready.effects and not ready.records

    assert len(listener.told) == 1


# --- when something is told, and when not ----------------------------------------------------------------------------


def test_a_short_wait_is_not_told() -> None:
    """O-3: neither a line nor an end of what nobody has heard of."""
    hand, arrive = collect()
    listener = Listener(hand)
    listener.listen(TELL_S - LOOKS_S)
    arrive()
    listener.listen(2.0)

    assert listener.told == []


def test_who_trains_keeps_nobody_waiting_until_somebody_is_done() -> None:
    """O-3: a step of any length is no wait; the wait begins when another one has nothing to do, and says why."""
    hand = Hand(2, samples=400).form()
    listener = Listener(hand)
    hand.step(1)
    listener.listen(30.0)
    assert listener.told == []
    hand.step(0, 3)
    hand.complete(0)
    done = hand.now
    listener.listen(11.0)

    ((at, name, facts),) = listener.told
    assert name == "Waiting" and at == done + TELL_S and facts["missing"] == [1] and facts["waited_s"] == TELL_S
    assert facts["why"] == "rank 0 has used its budget of this window"
    assert facts["progress"] == {"1": {"kind": "Batch", "ago_s": 40.0}}


def test_lines_are_ten_seconds_apart_whatever_is_waited_for() -> None:
    """O-3: the line is one for all waits together, and an end is told when the last of those is over that were told."""
    hand = pending(4, samples=400)
    listener = Listener(hand)
    listener.listen(5.0)
    shipped(hand, 0)
    listener.listen(6.0)
    assert [facts["missing"] for facts in listener.of("Waiting")] == [[1, 2, 3]]
    shipped(hand, 1)
    listener.listen(3.0)
    shipped(hand, 2)
    listener.listen(7.0)
    assert [facts["missing"] for facts in listener.of("Waiting")] == [[1, 2, 3], [3]] and not listener.of("Waited")
    shipped(hand, 3)
    hand.reduce()
    listener.listen(1.0)
    times = [at for at, name, _ in listener.told if name == "Waiting"]

    assert min(later - earlier for earlier, later in pairwise(times)) >= TELL_S
    (over,) = listener.of("Waited")
    assert over["how"] == dict.fromkeys("123", "arrived") and over["waited_s"] == pytest.approx(21.0, abs=1.0)


def test_the_next_step_is_named_as_the_ladder_takes_it() -> None:
    """O-3, M-12 to M-14: suspected, asked again, excluded; and then the run ends at the ceiling (M-15)."""
    hand = pending(3, samples=400, laggards="exclude", max_nudges=2)
    for rank in (0, 1):
        shipped(hand, rank)
    listener = Listener(hand)
    listener.listen(181.0)

    steps: list[tuple[str, float]] = []
    for at, _, facts in [told for told in listener.told if told[1] == "Waiting"]:
        step = facts["next"], at + facts["next_s"] - hand.co.cycle.armed_at
        steps += [step] if step not in steps else []
    assert steps == [("it is suspected", 60.0), ("it is asked again", 120.0), ("it is excluded", 180.0)]
    assert listener.of("Waited")[0]["how"] == {"2": "excluded"}

    kept = pending(3, samples=400, max_nudges=0)
    listener = Listener(kept)
    listener.listen(80.0)
    assert listener.of("Waiting")[-1]["next"] == "the run is saved and ends"


def test_a_rank_that_dies_while_it_is_awaited_has_not_arrived() -> None:
    """O-3: what ended the wait is told."""
    hand, _ = collect()
    listener = Listener(hand)
    listener.listen(12.0)
    hand.feed(ev.LinkLost(LATE, 1, "gone"))
    listener.listen(1.0)

    assert listener.of("Waited")[0]["how"] == {str(LATE): "died"}


def test_the_return_of_a_link_and_the_averager_are_waited_for_as_well() -> None:
    """O-3, M-42: of a lost link its rank is named; an averager is no rank."""
    hand = Hand(2, samples=400, link_grace_s=60.0).form()
    hand.feed(ev.LinkLost(1, 1, "gone"))
    listener = Listener(hand)
    listener.listen(11.0)
    (facts,) = listener.of("Waiting")
    assert (facts["missing"], facts["next"], facts["next_s"]) == ([1], "it is dead", 50.0)

    hand = pending(2, samples=400)
    for rank in (0, 1):
        shipped(hand, rank)
    listener = Listener(hand)
    listener.listen(11.0)
    (facts,) = listener.of("Waiting")
    assert (facts["missing"], facts["why"]) == ([], "rank 0 waits for the averager")
    hand.reduce()
    listener.listen(1.0)
    assert listener.of("Waited")[0]["how"] == {}


def test_of_many_missing_ranks_those_are_described_that_showed_nothing_for_longest() -> None:
    """O-3: all are named, the line stays one that can be read."""
    hand = Hand(8, samples=800).form()
    for rank in (6, 4, 2, 7, 5, 3, 1):
        hand.step(rank)
        hand.tick(1.0)
    hand.step(0, 3)
    hand.complete(0)
    listener = Listener(hand)
    listener.listen(11.0)
    (facts,) = listener.of("Waiting")

    assert facts["missing"] == [1, 2, 3, 4, 5, 6, 7] and len(facts["what"]) == NAMED
    assert [words.partition(" trains")[0] for words in facts["what"]] == ["rank 6", "rank 4", "rank 2"]


def test_reasons_are_not_asked_for_before_a_wait_can_be_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """O-3, C-4: while all train, once in 10 s, however often a driver looks; once a second while somebody waits."""
    asked: list[float] = []
    hand = Hand(2, samples=4000, anchor=200).form()
    known = waiting.explain

    def asking(co: Coordinator) -> list[Reason]:
        asked.append(co.now)
        return known(co)

    monkeypatch.setattr(waiting, "explain", asking)
    teller = Teller()
    for _ in range(160):
        hand.tick(0.25)
        hand.step(0)
        hand.step(1)
        assert teller.look(hand.co) == []
    assert len(asked) <= 5

    asked.clear()
    listener = Listener(pending(2))
    listener.listen(30.0)
    assert len(listener.told) == 3 and len(asked) <= 22


def test_the_ends_of_a_run_leave_no_wait_open() -> None:
    """O-3, M-53: the last exit is told at once, also between two looks that would be due."""
    hand, arrive = shutdown()
    listener = Listener(hand)
    listener.listen(11.0)
    arrive()
    listener.look()

    assert hand.co.finished and listener.of("Waited")[0]["how"] == {str(LATE): "left"}
    assert attrs.asdict(listener.teller)["told"] == {}


# --- what is no wait, and what it is called --------------------------------------------------------------------------


def said(monkeypatch: pytest.MonkeyPatch, teller: Teller, hand: Hand, *reasons: Reason) -> list[Any]:
    """What a teller makes of these reasons."""
    monkeypatch.setattr(waiting, "explain", lambda co: list(reasons))
    return teller.look(hand.co)


def reason(code: str, rank: int, since: float, what: str = "", until: float | None = None) -> Reason:
    return Reason(code=code, rank=rank, what=what or code, rule="", since=since, until=until, waiting_for=(rank,))


@pytest.mark.parametrize("code", CODES)
def test_what_holds_nobody_up_is_not_told(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O-3: training, a callback, an exclusion, a refused contribution, a joiner, a run that was saved: who stands still
    for one of these has a reason of its own, and that one is told."""
    idle = {"E01", "E02", "E05", "E16", "E18", "E21", "E26", "E27"}
    hand = Hand(2, samples=400).form()
    told = said(monkeypatch, Teller(), hand, reason(code, 1, hand.now - 60.0))

    assert [event.name for event in told] == ([] if code in idle else ["Waiting"])


def test_a_rank_is_described_by_the_reason_that_keeps_it_and_waited_for_since_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """O-3: a refused contribution of before is not why it is late now; a stage that begins anew is not another wait."""
    hand, teller = Hand(2, samples=400).form(), Teller()
    began = hand.now
    hand.tick(12.0)
    (first,) = said(monkeypatch, teller, hand, reason("E10", 1, began, "owes"), reason("E27", 1, began, "was refused"))
    hand.tick(12.0)
    said(monkeypatch, teller, hand, reason("E12", 1, began + 13.0))
    hand.tick(12.0)
    (over,) = said(monkeypatch, teller, hand)

    assert first.facts["what"] == ["rank 1 owes"] and (over.name, over.facts["waited_s"]) == ("Waited", 36.0)


def final_evaluation() -> Hand:
    hand = Hand(2, samples=8, num_epochs=1, anchor=2, callbacks=("evaluate",)).form()
    for rank in (0, 1):
        hand.step(rank, 2)
        hand.complete(rank)
    hand.average()
    return hand


def exits_after_a_save() -> Hand:
    hand, arrive = save()
    hand.tick(15.0)
    arrive()
    return hand


@pytest.mark.parametrize(("make", "during", "missing"), [
    (final_evaluation, "evaluating", [0]), (exits_after_a_save, "shutting down", list(range(8))),
])  # fmt: skip
def test_what_the_run_is_at_has_a_word(make: Callable[[], Hand], during: str, missing: list[int]) -> None:
    """O-3, M-52 to M-54: the exits that follow a save are waited for since the shutdown, not since the save."""
    listener = Listener(make())
    began = listener.hand.now
    listener.listen(11.0)

    ((at, _, facts),) = listener.told
    assert (facts["during"], facts["missing"], at) == (during, missing, began + TELL_S)


def test_the_seat_of_who_has_gone_while_the_run_forms_is_awaited() -> None:
    """O-3, M-4, M-7: that life has no last sign any more, and with too few ranks the run fails at the limit."""
    hand = Hand(2, target_ranks=3, min_ranks=3)
    hand.feed(ev.LinkLost(0, 1, "gone"))
    listener = Listener(hand)
    listener.listen(11.0)
    (facts,) = listener.of("Waiting")

    assert facts["missing"] == [0, 2] and facts["progress"] == {"0": None, "2": None}
    assert facts["next"] == "the run fails"


def test_who_is_not_to_be_excluded_is_asked_again() -> None:
    """O-3, M-13: whoever is not excluded is asked again, also at three times the deadline."""
    hand = pending(3, samples=400)
    hand.tick(130.0)
    assert {(r.code, r.then, r.until) for r in hand.co.explain()} == {("E15", "it is asked again", hand.now + 50.0)}
