"""The desk: how much work a rank is given, when, and from where (D-4 to D-9, D-13 to D-22)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.explain import explain

from support.cohort import Cohort
from support.hand import Hand, alerts, messages, named
from support.words import hello


def sizes(effects: list[Any], kind: type = m.StartEpoch) -> dict[int, int]:
    """Batches of the plans among effects, by rank."""
    sends = [e for e in effects if isinstance(e, fx.Send) and isinstance(e.message, kind)]
    plans = {e.rank: e.message.plan if kind is m.StartEpoch else e.message.next_plan for e in sends}
    return {rank: 0 if plan is None else -(-plan.size // 2) for rank, plan in plans.items()}


# --- budgets and sizes (D-5, D-6) ------------------------------------------------------------------------------------


def test_a_paced_rank_gets_its_count_and_no_more_in_a_window() -> None:
    """D-5, D-6, I14: a hold until the average, whatever is free."""
    hand = Hand(2, samples=400).form()
    assert sizes(hand.effects) == {0: 3, 1: 3}
    hand.step(0, 3)
    assert not messages(hand.complete(0), m.StartEpoch)
    assert hand.co.desk.left(0) == 0


def test_an_anchor_hint_names_the_anchor_rank_until_it_is_measured() -> None:
    """B-6: the smallest, ties the lowest; the counts stay equal, and a speed hint is the stronger one."""
    ratios = (2.0, 0.5, 0.5)
    assert Hand(3, anchor_hint=ratios).form().co.balancer.anchor_rank == 1
    assert Hand(3, anchor_hint=ratios).form().co.balancer.counts == {0: 3, 1: 3, 2: 3}
    assert Hand(3, anchor_hint=ratios, speed_ratios=(3.0, 2.0, 1.0)).form().co.balancer.anchor_rank == 2


def test_the_weakest_device_names_the_anchor_rank_until_it_is_measured() -> None:
    """B-6: as the ranks tell them in their Hello; a hint of the operator is stronger, and a snapshot has it."""
    told = ["NVIDIA H100, generation 9.0, 80 GB", *["NVIDIA A10, generation 8.6, 22 GB"] * 2]

    def formed(devices: list[str], **knobs: Any) -> Coordinator:
        hand = Hand(0, target_ranks=3, **knobs)
        for link, device in enumerate(devices):
            hand.feed(ev.HelloReceived(link, hello(60, devices=(device,))))
        hand.ranks = 3
        return hand.form().co

    pinned = formed(told)
    assert pinned.balancer.anchor_rank == 1
    assert Coordinator.restore(pinned.config, pinned.snapshot()).snapshot() == pinned.snapshot()
    assert formed(["cpu", *told[1:]]).balancer.anchor_rank is None
    assert formed(told, anchor_hint=(1.0, 2.0, 3.0)).balancer.anchor_rank == 0


def test_hints_make_the_first_windows_unequal() -> None:
    """B-6, D-6: three times as fast, three times the steps."""
    hand = Hand(2, samples=400, speed_ratios=(3.0, 1.0)).form()
    assert sizes(hand.effects) == {0: 9, 1: 3}


def test_a_take_cut_short_is_topped_up_within_the_window() -> None:
    """D-5, 17.2 #17: a hole of one batch first, then the rest of the window and not a whole one more."""
    hand = Hand(3, samples=400).form()
    hand.step(2, 2)
    hand.feed(ev.LinkLost(2, 1, "reset"))
    hand.window()
    assert [hand.co.book.holdings(rank).in_flight_batches for rank in (0, 1)] == [3, 3]
    hand.step(0, 3)
    assert hand.co.desk.left(0) == 0


def test_async_probes_before_it_is_calibrated_and_never_beyond_its_overshoot() -> None:
    """D-6, G-9, 17.2 #19."""
    hand = Hand(2, samples=4000, policy="async").form()
    total = {rank: hand.co.book.holdings(rank).in_flight_batches for rank in (0, 1)}
    assert total == {0: 6, 1: 6}, "count 3 and overshoot 3"


# --- the final window (D-7) ------------------------------------------------------------------------------------------


def test_the_last_window_of_an_epoch_takes_in_the_crumb() -> None:
    """D-7, I50: 7 batches, counts 3 and 3: the crumb goes to the one that is not the fastest."""
    hand = Hand(2, samples=14, num_epochs=1).form()
    assert sizes(hand.effects) == {0: 3, 1: 3}, "a take ends with the span it comes from"
    assert [hand.co.desk.quota(rank) for rank in (0, 1)] == [3, 4]
    hand.step(1, 3)
    assert sizes(hand.complete(1)) == {1: 1}
    hand.window()
    assert hand.co.book.last_closed_epoch == 0


def test_the_last_window_is_planned_when_it_begins_and_not_within_the_one_before() -> None:
    """D-7, D-6: 19 batches are windows of 6, 6 and 7. Planned as soon as 7 were left, the second one took in the crumb
    of the third, as a chunk of a single step."""
    hand = Hand(2, samples=38, num_epochs=1).form()
    hand.window()
    assert hand.co.book.pools[0].free == 7 and hand.co.desk.window is None
    hand.step(1, 3)
    assert not sizes(hand.complete(1)) and hand.co.desk.quota(1) == 3
    hand.window()
    assert hand.co.desk.window is not None and hand.co.desk.window.planned == {0: 3, 1: 4}


def test_a_rank_without_a_slot_blocks_nobody() -> None:
    """D-7, G-4, 17.1 #15 and #16."""
    hand = Hand(2, samples=2, num_epochs=1).form()
    assert sizes(hand.effects) == {0: 1} and hand.co.desk.quiesced((1,))
    hand.step(0)
    hand.complete(0)
    assert hand.co.cycle.pending


def test_a_slot_of_nothing_is_no_work_although_batches_are_free() -> None:
    """G-4, D-7: the free batch belongs to the slot of another, whose take ended with its span."""
    hand = Hand(2, samples=14, num_epochs=1).form()
    hand.step(0, 3)
    hand.complete(0)
    assert hand.co.book.pools[0].free == 1
    assert hand.co.desk.quiesced((0, 1)) == {0}


def test_what_a_refusal_returns_is_planned_before_the_updates_leave() -> None:
    """D-7, D-13: a window that was served to its end is over at the finish, so the next plan rides in the Update."""
    hand = Hand(2, samples=12, num_epochs=1).form()
    effects = hand.window(refused=(0,))
    assert sum(sizes(effects, m.Update).values()) == 3


def test_a_window_is_pinned_anew_when_voters_change() -> None:
    """D-7, 17.1 #15."""
    hand = Hand(3, samples=20, num_epochs=1).form()
    assert hand.co.desk.window is not None and len(hand.co.desk.window.planned) == 3
    hand.feed(ev.LinkLost(2, 1, "reset"))
    window = hand.co.desk.window
    assert window is not None and list(window.planned) == [0, 1]
    assert sum(window.left.values()) == hand.co.book.pools[0].free


def test_a_rollback_gives_the_slot_back() -> None:
    """D-7, D-14, 17.2 #18, I49."""
    hand = Hand(2, samples=14, num_epochs=1).form()
    token = next(e.token for e in hand.effects if isinstance(e, fx.Send) and isinstance(e.message, m.StartEpoch))
    hand.feed(ev.SendFailed(token))
    assert hand.co.desk.window is not None
    assert hand.co.desk.window.left == {0: 3, 1: 1} and hand.co.book.pools[0].free == 4


def test_who_is_done_with_its_part_of_a_final_window_is_waited_for_no_longer() -> None:
    """G-1, G-4, C-4, D-7: what rank 2 left behind is planned as two and two. Rank 1 has one of its two in hand, so a
    batch is free; rank 0 is below its count of three all the same when its two are done, and gets no more."""
    hand = Hand(3, samples=20, num_epochs=1).form()
    hand.feed(ev.LinkLost(2, 1, "reset"))
    hand.window()
    window = hand.co.desk.window
    assert window is not None and window.planned == {0: 2, 1: 2}
    hand.step(0, 2)
    assert not hand.co.peers[0].satisfied and hand.co.short == 2
    hand.complete(0)
    assert window.left == {0: 0, 1: 1} and hand.co.book.pools[0].free == 1
    assert hand.co.peers[0].satisfied and hand.co.short == 1 and hand.co.cycle.waiting_since == hand.now


@pytest.mark.parametrize(("batches", "passes"), [(200, 0), (6, 1)])
def test_the_end_of_a_plan_concerns_others_only_when_no_batch_is_free(
    monkeypatch: pytest.MonkeyPatch, batches: int, passes: int
) -> None:
    """C-4, D-9: looked at is one rank, not all of them; whoever is idle is done once nothing is left to hand out."""
    hand = Hand(2, samples=2 * batches, num_epochs=1).form()
    hand.step(0, 3)
    taken: list[Coordinator] = []
    whole = Coordinator._pass

    def noted(co: Coordinator) -> None:
        taken.append(co)
        whole(co)

    monkeypatch.setattr(Coordinator, "_pass", noted)
    hand.complete(0)
    assert len(taken) == passes and not hand.co.cycle.pending


# --- who is served when (D-8, D-13, D-16, D-20, D-21) ----------------------------------------------------------------


def test_the_next_chunk_rides_in_the_update() -> None:
    """D-13, G-7: and a rank that still has a plan gets none (D-15, 17.1 #10)."""
    hand = Hand(2, samples=400).form()
    for rank in (0, 1):
        hand.step(rank, 3)
    hand.complete(0)
    effects = hand.average()
    assert sizes(effects, m.Update) == {0: 3, 1: 0}
    assert sizes(hand.complete(1)) == {1: 3}


@pytest.mark.parametrize("progressive", [True, False])
def test_an_epoch_closes_when_all_of_it_is_covered_and_the_next_begins_in_that_pass(progressive: bool) -> None:
    """D-20, D-21, 17.1 #14: in order, with its metrics; whole shares are latched once."""
    hand = Hand(2, samples=12, num_epochs=2, progressive=progressive).form()
    effects = hand.window()
    assert [facts["epoch"] for facts in named(effects, "EpochEnd")] == [0]
    assert [facts["epoch"] for facts in named(effects, "EpochStart")] == [1]
    assert sizes(effects) == {0: 3, 1: 3} and len(messages(effects, m.EpochAggregated)) == 2
    hand.tick(3)
    assert hand.co.book.last_closed_epoch == 0


def test_nothing_is_handed_out_after_a_stop() -> None:
    """D-8, M-54: also where the budget would allow it."""
    for stops in (False, True):
        hand = Hand(3, samples=600, policy="async", anchor=50).form()
        head = hand.co.book.head(0)
        assert head is not None
        hand.step(0, head.slice.count)
        if stops:
            hand.feed(ev.OperatorRequest(ev.Operator.STOP))
        effects = hand.complete(0) + hand.feed(ev.LinkLost(2, 1, "reset"))
        assert bool(messages(effects, m.StartEpoch)) is not stops


def test_an_async_rank_holds_two_plans_and_no_third() -> None:
    """D-8, D-15: one is trained, one is in the mailbox, whatever it might be given besides."""
    hand = Hand(2, samples=400, policy="async", anchor=50).form()
    hand.step(0, len(hand.co.book.holdings(0).plans))
    for _ in range(3):
        hand.co.desk.wake()
    assert [len(hand.co.book.holdings(rank).plans) for rank in (0, 1)] == [2, 2]
    assert hand.co.desk.left(0) > 0 and not hand.co.desk.dispatch_next(0)


def test_what_a_dead_rank_held_goes_to_whoever_has_room() -> None:
    """D-16, D-19, I29: idle ranks are woken in the pass of the death."""
    hand = Hand(2, samples=12, num_epochs=1).form()
    hand.step(0, 3)
    hand.complete(0)
    hand.step(1)
    effects = hand.feed(ev.LinkLost(1, 1, "reset"))
    assert hand.co.cycle.pending, "rank 0 has its quota, and what came back is for the next window"
    effects = hand.average()
    assert sizes(effects, m.Update) == {0: 3}


def test_a_hold_is_told_once_per_episode() -> None:
    """D-8: however often the rank is looked at while it waits; its next hold is another one."""
    hand = Hand(2, samples=400).form()
    told = []
    for window in range(1, 4):
        hand.step(0, 3)
        hand.complete(0)
        hand.tick(20)  # each tick wakes whoever has nothing to do
        hand.co.desk.wake()
        hand.step(1, 3)
        hand.complete(1)
        told += [facts["held"] for facts in named(hand.effects, "Idle")][window - 1 :]
        hand.average()
    # Rank 1 arms the cycle with its last step, so the end of its plan is told with the next one.
    assert told == [{"0": "E03"}, {"0": "E03", "1": "E03"}, {"0": "E03", "1": "E03"}]
    assert set(hand.co.desk.untold) == {1}


def test_a_rank_that_is_held_in_each_window_is_told_in_each() -> None:
    """C-15.10, D-8: rank 1 has no part in the last window, which comes again twice because rank 0 is refused; it is
    given nothing in between. A window that begins is another episode."""
    hand = Hand(2, samples=12, num_epochs=1).form()
    hand.window(refused=(0,))
    for _ in range(2):
        assert hand.co.desk.holds == {1: "E06"} and hand.co.book.holdings(0).plans
        hand.step(0, 3)
        hand.complete(0)
        hand.average(refused=(0,))
    assert [facts["held"].get("1") for facts in named(hand.effects, "Idle")] == [None, "E06", "E06"]


def test_a_hold_says_what_explain_says() -> None:
    """D-8, O-4: by what an idle rank is held: nothing left for it, the window, the stop; and the life that was held is
    forgotten with its end."""
    hand = Hand(3, samples=36, num_epochs=1).form()
    for rank in (0, 1):
        hand.step(rank, 3)
        hand.complete(rank)
    assert {rank: [reason.code for reason in explain(hand.co, rank)] for rank in (0, 1)} == {0: ["E03"], 1: ["E03"]}
    assert hand.co.desk.holds == {0: "E03", 1: "E03"}
    assert hand.co.desk.told_holds() == {"0": "E03", "1": "E03"}
    hand.co.desk.wake()
    assert hand.co.desk.told_holds() == {}, "they are held all the time"
    hand.feed(ev.LinkLost(1, 1, "reset"))
    assert hand.co.desk.holds == {0: "E03"}
    hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    hand.step(2)
    hand.co.desk.holds.clear()
    assert not hand.co.desk.dispatch_next(0) and hand.co.desk.holds == {0: "E24"}

    last = Hand(2, samples=12, num_epochs=1).form()
    last.step(0, 3)
    last.complete(0)
    assert last.co.desk.holds == {0: "E06"} and [reason.code for reason in explain(last.co, 0)] == ["E06"]
    assert not messages(last.feed(ev.Tick()), m.StartEpoch)


# --- whole shares (D-17, D-18) ---------------------------------------------------------------------------------------


def test_ratios_divide_an_epoch() -> None:
    """D-17."""
    hand = Hand(2, policy="sync", samples=40, partition_ratios=(3.0, 1.0)).form()
    assert sizes(hand.effects) == {0: 15, 1: 5}


def test_measured_speeds_divide_the_next_epoch() -> None:
    """D-17: not progressive, calibrated."""
    hand = Hand(2, samples=48, num_epochs=2, progressive=False, anchor=12).form()
    hand.step(0, 12, batch_ms=10.0, data_ms=0.0), hand.step(1, 12, batch_ms=20.0, data_ms=0.0)
    hand.complete(0), hand.complete(1)
    effects = hand.average()
    assert sizes(effects) == {0: 16, 1: 8}


def test_a_detached_voter_gets_no_share() -> None:
    """N-10, D-18: its link is broken, so its part would wait for its death."""
    hand = Hand(2, policy="sync", samples=24).form()
    hand.step(0, 6), hand.step(1)
    for rank in (0, 1):
        hand.ready(rank)
    hand.reduce()
    hand.feed(ev.SendFailed((1, 1, hand.co.peers[1].control_seq)))
    assert hand.co.desk._attached() == [0] and not hand.co.desk.may_serve(hand.co.peers[1])


# --- the tally of an epoch (K-20) ------------------------------------------------------------------------------------


def test_the_metrics_of_an_epoch_are_sums_over_chunks() -> None:
    """K-20, 17.1 #40: loss by samples, durations summed by rank, the longest rank is the epoch."""
    hand = Hand(1, samples=8, num_epochs=1, anchor=4).form()
    hand.step(0, 4)
    hand.say(0, m.Metrics, cycle=0, plan_ids=(hand.co.book.holdings(0).plans[0].plan.plan_id,), epoch=0, batches=4,
             samples=8, epoch_ms=7.0, share_complete_ms=4.0, compute_only_ms=1.0, data_starve_ms=0.0,
             avg_loss=2.0)  # fmt: skip
    closed = named(hand.average(), "EpochEnd")[0]
    assert (closed["avg_loss"], closed["epoch_ms"], closed["throughput"]) == (2.0, 7.0, 2000.0)


# --- any sizes -------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(samples=st.integers(2, 80), ranks=st.integers(1, 4), anchor=st.integers(1, 6), size=st.integers(1, 4),
       drop=st.booleans(), repeats=st.integers(1, 2), seed=st.lists(st.integers(0, 9), max_size=120))
def test_final_windows_of_any_size_end_their_epoch(
    samples: int, ranks: int, anchor: int, size: int, drop: bool, repeats: int, seed: list[int]
) -> None:
    """I29, I30, I50: no crumb is left behind, no rank waits for ever."""
    if samples < size:
        samples = size
    cohort = Cohort(ranks=ranks, samples=samples, anchor=anchor, batch_size=size, drop_last=drop, repeats=repeats)
    cohort.run(seed)
    assert cohort.finish is not None and cohort.finish.status == "ok"


def test_a_rollback_that_is_not_of_the_newest_plan_is_loud() -> None:
    """D-14, O-2: the older of two async plans failed; both are undone, and the epoch of the rank is what it was."""
    hand = Hand(2, samples=400, policy="async").form()
    hand.co.desk.take(0, 0, 1)
    first, second = (entry.plan.plan_id for entry in hand.co.book.holdings(0).plans)
    hand.co.desk.rollback(0, first)
    assert [alert.path for alert in alerts(hand.co.take_ready().effects, "accounting")] == ["rank 0"]
    assert hand.co.book.holdings(0).epoch == 0
    hand.co.desk.rollback(0, second)
    assert not alerts(hand.co.take_ready().effects, "accounting") and hand.co.book.holdings(0).epoch == -1


# --- an epoch that closes while a cycle is pending (D-16, D-20) ------------------------------------------------------


def test_the_close_of_an_epoch_wakes_who_may_enter_the_next_one_whatever_the_phase() -> None:
    """D-16, D-4, I29: the cycle that covers the epoch finishes and the next one is armed in the same pass, before the
    epoch closes. Idle ranks stood until that cycle was over (`paceline simulate --ranks 16 --seed 1055181`)."""
    cohort = Cohort(ranks=2, samples=2, policy="async", num_epochs=3, batch_size=1, anchor=1)
    schedule = [int(number) for number in "4212254015023005033250520122130231325502104125454412"]
    for index in range(len(schedule)):
        cohort._take_turn(schedule, index)
    assert cohort.co.cycle.pending and cohort.co.book.first_live == 1 and 2 in cohort.co.book.pools
