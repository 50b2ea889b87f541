"""Since when a wait lasts (O-4): each code is brought about with time that passes before and after the wait begins."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.errors import LocalProtocolError
from paceline.core.explain import Reason
from paceline.core.reasons import CODES
from paceline.core.simulation.setup import STATEFUL

from support.hand import Hand
from support.hand_collective import joint, lost
from support.words import hello

LATER = 2.0
"""Seconds that pass between any two things of a case, less than any limit of it."""

Began = tuple[Hand, int | None, float]
"""A cohort in which a rank, or with None the run, waits since a second."""


def silent(hand: Hand, seconds: float = LATER) -> None:
    """Time passes, and nobody does a thing."""
    hand.tick(seconds)


def trains(steps: int = 0, ranks: int = 2, **knobs: object) -> Hand:
    """Everybody trains, has made so many steps, and time has passed since the run has formed."""
    defaults: dict[str, object] = {"samples": 400} | knobs
    hand = Hand(ranks, **defaults).form()  # type: ignore[arg-type]
    silent(hand)
    for rank in range(ranks):
        hand.step(rank, steps)
    return hand


def ends_plan(hand: Hand, rank: int, steps: int = 3) -> float:
    """The rank trains its plan, and says later that it has; gives when it does."""
    hand.step(rank, steps)
    silent(hand)
    hand.complete(rank)
    return hand.now


def pending(**knobs: object) -> tuple[Hand, float]:
    """A cycle of two was armed, at that second."""
    hand = trains(3, **knobs)  # type: ignore[arg-type]
    hand.complete(0)
    hand.complete(1)
    assert hand.co.cycle.pending
    return hand, hand.now


def until(hand: Hand, happened: Callable[[], bool]) -> float:
    """Time passes from deadline to deadline until that is so; gives when."""
    while not happened():
        due = hand.co.poll_timeout()
        assert due is not None
        if due > hand.now:
            silent(hand, due - hand.now)
        else:
            hand.feed(ev.Tick())
    return hand.now


def uploaded(rank: int, hand: Hand) -> float:
    """The rank has taken its copy and sent it later; gives when all of it was there."""
    hand.ready(rank)
    silent(hand)
    hand.feed(ev.RoundProgress(hand.co.cycle.key, rank, 64, complete=True))
    return hand.now


def e01() -> Began:
    hand = trains(1)
    return hand, 0, hand.now


def e02() -> Began:
    hand = Hand(2, samples=400)
    silent(hand)
    hand.form()
    return hand, 0, hand.now


def e03() -> Began:
    hand = trains()
    since = ends_plan(hand, 0)
    silent(hand)
    hand.say(0, m.ResourceSample, sample={})
    return hand, 0, since


def e04() -> Began:
    hand = trains(samples=8, num_epochs=2, anchor=2)
    return hand, 0, ends_plan(hand, 0, 2)


def e05() -> Began:
    hand = trains()
    hand.step(0, 3)
    return hand, 0, hand.now


def e06() -> Began:
    hand = trains(samples=8, num_epochs=1, anchor=2)
    return hand, 0, ends_plan(hand, 0, 2)


def e07() -> Began:
    hand, _ = pending()
    silent(hand)
    return hand, 0, uploaded(0, hand)


def e08() -> Began:
    hand = trains(max_batch_diff=1)
    hand.step(0, 2)
    return hand, 0, hand.now


def e09() -> Began:
    hand, armed = pending()
    return hand, 0, armed


def e10() -> Began:
    hand, _ = pending()
    silent(hand)
    hand.ready(0)
    since = hand.now
    silent(hand)
    hand.feed(ev.RoundProgress(hand.co.cycle.key, 0, 8, complete=False))
    return hand, 0, since


def e11() -> Began:
    hand, _ = pending()
    for rank in (0, 1):
        since = uploaded(rank, hand)
    return hand, 1, since


def e12() -> Began:
    hand, _ = e11()[:2]
    silent(hand)
    hand.reduce()
    return hand, 1, hand.now


def e13() -> Began:
    hand = joint(3)
    return hand, 1, hand.now


def e14() -> Began:
    hand, armed = pending(suspect_initial_s=10.0)
    silent(hand, 11.0)
    return hand, 0, armed


def e14_of_a_step() -> Began:
    hand = trains(1, suspect_initial_s=10.0)
    since = hand.now
    ends_plan(hand, 1, 2)
    silent(hand, 11.0)
    return hand, 0, since


def e15() -> Began:
    hand, armed = pending(suspect_initial_s=10.0)
    silent(hand, 21.0)
    return hand, 0, armed


def e16() -> Began:
    hand = trains(ranks=3, suspect_initial_s=10.0, laggards="exclude")
    for rank in (0, 1, 2):
        hand.step(rank, 3)
        hand.complete(rank)
    for rank in (1, 2):
        uploaded(rank, hand)
    return hand, 0, until(hand, lambda: hand.co.voters == [1, 2])


def joins(stateful: bool) -> Began:
    words = {"schema": STATEFUL, "schema_hash": STATEFUL.hash()} if stateful else {}
    hand = Hand(0, target_ranks=2, max_ranks=3, samples=400)
    for link in range(2):
        hand.feed(ev.HelloReceived(link, hello(400, **words)))
    hand.form()
    silent(hand)
    hand.feed(ev.HelloReceived(9, hello(400, **words)))
    return hand, 2, hand.now


def e17() -> Began:
    hand, joiner, _ = joins(stateful=True)
    silent(hand)
    hand.feed(ev.LinkLost(0, 1, "gone"))  # its donor, so another one is asked now
    return hand, joiner, hand.now


def e18() -> Began:
    return joins(stateful=False)


def e19() -> Began:
    hand = Hand(1, target_ranks=2)
    return hand, None, hand.now


def e19_of_the_initial_state() -> Began:
    hand = Hand(1, target_ranks=2)
    silent(hand)
    hand.feed(ev.HelloReceived(1, hello(hand.samples)))
    return hand, None, hand.now


def e20() -> Began:
    hand = joint(3)
    silent(hand)
    lost(hand, 2)
    return hand, None, hand.now


def e21() -> Began:
    hand = trains(1, samples=60, callbacks=("evaluate",), eval_every=1, anchor=15, num_epochs=2)
    hand.feed(ev.OperatorRequest(ev.Operator.EVAL))
    for rank in (0, 1):
        hand.step(rank, 14)
        hand.complete(rank)
    silent(hand)
    hand.average()
    return hand, 0, hand.now


def e22() -> Began:
    hand = trains(1, link_grace_s=60.0)
    hand.feed(ev.LinkLost(0, 1, "gone"))
    return hand, 0, hand.now


def e22_of_a_failed_send() -> Began:
    hand = trains(1)
    silent(hand)
    hand.feed(ev.SendFailed((0, 1, hand.co.peers[0].control_seq)))
    return hand, 0, hand.now


def e23() -> Began:
    hand = trains(1, min_ranks=2)
    hand.feed(ev.LinkLost(1, 1, "gone"))
    return hand, None, hand.now


def e24() -> Began:
    hand, _ = pending(policy="async")
    for rank in (0, 1):
        uploaded(rank, hand)
    hand.reduce()
    hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    while hand.co.book.head(0) is not None:
        hand.step(0)
    hand.ack(0)
    while hand.co.book.holdings(0).plans:
        since = ends_plan(hand, 0, 0)
    return hand, 0, since


def e24_of_the_final_evaluation() -> Began:
    hand = trains(samples=8, num_epochs=1, anchor=2, callbacks=("evaluate",))
    ends_plan(hand, 0, 2)
    ends_plan(hand, 1, 2)
    silent(hand)
    hand.average()
    return hand, 1, hand.now


def e25() -> Began:
    hand, _, _ = e26()
    return hand, None, hand.now


def e26() -> Began:
    hand, _ = pending()
    return hand, None, until(hand, lambda: hand.co.save_issued)


def e27() -> Began:
    hand, _ = pending()
    silent(hand)
    hand.average(refused=(1,))
    since = hand.now
    silent(hand)
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
    hand.average(refused=(1,))
    return hand, 1, since


CASES: dict[str, Callable[[], Began]] = {
    name: made for name, made in globals().items() if name.startswith("e") and name[1:3].isdigit()
}


def told(hand: Hand, code: str, rank: int | None) -> Reason:
    """The reason with that code."""
    found = [reason for reason in hand.co.explain(rank) if (reason.code, reason.rank) == (code, rank)]
    assert len(found) == 1, f"{code} of {rank}: {list(map(str, hand.co.explain()))}"
    return found[0]


def test_every_code_has_a_case() -> None:
    """O-4: 27 codes, each said by `explain` and by a case here."""
    assert {name[:3].upper() for name in CASES} == set(CODES) == {f"E{number:02}" for number in range(1, 28)}


@pytest.mark.parametrize("name", CASES)
def test_a_wait_is_told_with_the_instant_at_which_it_began(name: str) -> None:
    """O-4: `since` is that instant, does not move while time passes, outlives a snapshot, and is shown."""
    hand, rank, since = CASES[name]()
    code = name[:3].upper()
    at_once = told(hand, code, rank)
    assert (at_once.since, at_once.rule in CODES[code].rules) == (since, True), str(at_once)
    assert at_once.until is None or at_once.until > hand.now, "a wait that is over is none"
    assert (at_once.then == "") == (at_once.until is None), "what ends by itself ends with something that is done"
    hand.now += LATER / 4  # nothing happens
    hand.feed(ev.Tick())
    again = told(hand, code, rank)
    assert (again.since, again.until) == (at_once.since, at_once.until)
    assert f"since {since:.1f} s, " in str(again)
    assert (f"until {again.until:.1f} s" if again.until is not None else "no time ends it") in str(again)
    twin = Coordinator.restore(hand.co.config, hand.co.snapshot())
    assert twin.explain() == hand.co.explain()


@pytest.mark.parametrize("name", CASES)
def test_one_rank_is_told_its_own_reasons_and_those_of_the_run(name: str) -> None:
    """O-4: in every phase. A rank without a seat has none, and that is said."""
    hand, _, _ = CASES[name]()
    everything = hand.co.explain()
    for rank in hand.co.peers:
        assert hand.co.explain(rank) == [reason for reason in everything if reason.rank in (None, rank)]
    here = ", ".join(map(str, hand.co.alive))
    with pytest.raises(LocalProtocolError, match=f"rank 99 has no seat .*; ranks here: {here}"):
        hand.co.explain(99)


def test_the_epoch_barrier_is_told_apart_from_the_end_of_all_work() -> None:
    """O-4 E04, E06, D-4, G-4: whether another epoch follows; both wait for who still trains."""
    barrier, done = told(e04()[0], "E04", 0), told(e06()[0], "E06", 0)
    assert (barrier.rule, barrier.waiting_for, dict(barrier.numbers)) == ("D-4", (1,), {"epoch": 0})
    assert (done.rule, done.waiting_for) == ("G-4", (1,))


def test_the_epoch_barrier_of_whole_shares_waits_for_who_has_no_link() -> None:
    """O-4 E04, D-21: the next epoch is shared out when everyone is there."""
    hand = trains(2, samples=8, num_epochs=2, anchor=2, progressive=False, link_grace_s=60.0)
    for rank in (0, 1):
        hand.complete(rank)
        uploaded(rank, hand)
    hand.reduce()
    hand.ack(1)
    hand.feed(ev.LinkLost(1, 1, "gone"))
    hand.ack(0)
    assert not hand.co.cycle.pending and told(hand, "E04", 0).waiting_for == (1,)


def test_who_waits_for_the_final_evaluation_is_told_for_whom() -> None:
    """O-4 E24, M-54: the limit is that of the rank that evaluates."""
    hand, _, since = e24_of_the_final_evaluation()
    busy, waits = hand.co.explain()
    assert (busy.rank, waits.rank, waits.waiting_for) == (0, 1, (0,)) and busy.until == waits.until == since + 300.0


def test_a_suspect_whose_step_is_missing_is_told_until_the_run_is_over() -> None:
    """O-4 E14, M-16: nothing is asked again there, and nobody is excluded unless that is switched on."""
    hand, _, since = e14_of_a_step()
    assert told(hand, "E14", 0).until == hand.co.peers[0].last_progress + hand.co.config.window_ceiling > since
