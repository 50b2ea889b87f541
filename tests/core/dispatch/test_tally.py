"""The metrics of an epoch: sums by rank, each pick counted once (K-20)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.dispatch.tally import MOST_SCALARS, EpochTally

from support.hand import Hand, messages, named


def chunk(samples: int, loss: float | None = None, share_ms: float = 1.0, **fields: Any) -> m.Metrics:
    """Metrics of one chunk; everything that a test does not name takes a millisecond."""
    known: dict[str, Any] = dict(epoch_ms=share_ms, compute_only_ms=1.0, data_starve_ms=0.0)
    known.update(fields)
    return m.Metrics(run_id=b"", generation=1, rank=0, incarnation=1, cycle=0, plan_ids=(), epoch=0, batches=1,
                     samples=samples, avg_loss=loss, share_complete_ms=share_ms, **known)  # fmt: skip


def one_each(first: int, count: int) -> int:
    """Batches of one pick."""
    return count


def merged(tally: EpochTally, rank: int, *chunks: m.Metrics) -> None:
    """A rank tells of chunks, one behind the other, and a consensus contains them."""
    for told in chunks:
        first = 100 * rank + tally.of(rank).told
        tally.add(rank, told, [(first, told.samples)], one_each)
        tally.of(rank).cover(first, told.samples, one_each)


def test_a_worked_example() -> None:
    """K-20: durations are summed over chunks, losses weighted by samples, scalars divided once, the longest rank is the
    epoch."""
    tally = EpochTally()
    merged(tally, 0, chunk(6, 1.0, 30.0, scalars={"hits": (3.0, 6)}),
           chunk(2, 5.0, 10.0, scalars={"hits": (1.0, 2), "seldom": (8.0, 2)}))  # fmt: skip
    merged(tally, 1, chunk(8, 4.0, 20.0, epoch_ms=90.0, scalars={"hits": (0.0, 8)}))

    assert tally.cohort(now=0.0) == {
        "samples": 16.0, "batches": 16.0, "avg_loss": (1.0 * 6 + 5.0 * 2 + 4.0 * 8) / 16, "epoch_ms": 90.0,
        "throughput": 8 / 0.040 + 8 / 0.020,
    }  # fmt: skip
    assert tally.scalars() == {"hits": 4 / 16, "seldom": 4.0}
    ranks = tally.by_rank({0: 0.25})
    assert (ranks["0"]["avg_loss"], ranks["0"]["epoch_ms"], ranks["0"]["share"]) == (2.0, 40.0, 0.25)
    assert (ranks["1"]["throughput"], ranks["1"]["share"]) == (400.0, None), "idle time is not in it"


def test_what_has_no_data_is_absent() -> None:
    """K-20, C-20: not zero, and no number that is none."""
    tally = EpochTally(opened_at=5.0)
    empty = tally.cohort(now=7.5)
    assert (empty["avg_loss"], empty["throughput"], empty["epoch_ms"]) == (None, None, 2500.0), "the age of the pool"
    merged(tally, 0, chunk(2, math.nan, math.inf, epoch_ms=-math.inf, scalars={"x": (math.nan, 1), "y": (1.0, 0)}))
    assert (tally.cohort(9.0)["avg_loss"], tally.cohort(9.0)["throughput"]) == (None, None)
    assert tally.scalars() == {"x": None, "y": None}


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(), st.floats(), st.floats()), max_size=6))
def test_whatever_a_rank_says_the_view_is_finite_and_has_an_end(said: list[tuple[int, float, float, float]]) -> None:
    """K-20, I22, N-24: it goes to all ranks, into the journal and to a hook."""
    tally = EpochTally()
    for rank, loss, ms, total in said:
        names = {f"{rank}.{number}": (total, 1) for number in range(200)} | {"n" * 999: (1.0, 1)}
        merged(tally, rank, chunk(2, loss, ms, scalars=names))
        tally.of(rank).settle([], [])
    ranks = tally.by_rank({}).values()
    told = [*tally.cohort(1.0).values(), *tally.scalars().values(), *(n for view in ranks for n in view.values())]
    assert all(number is None or math.isfinite(number) for number in told)
    assert len(tally.scalars()) <= MOST_SCALARS and not any(len(name) > 128 for name in tally.scalars())


@given(losses=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.floats(0, 9)), min_size=1, max_size=12))
def test_without_a_fault_the_loss_is_that_of_all_samples(losses: list[tuple[int, int, float]]) -> None:
    """K-20: loss weighted by samples, however the chunks were dealt to ranks."""
    tally = EpochTally()
    for rank, samples, loss in losses:
        merged(tally, rank, chunk(samples, loss))
    mean = sum(samples * loss for _, samples, loss in losses) / sum(samples for _, samples, _ in losses)
    told = tally.cohort(0.0)["avg_loss"]
    assert told is not None and math.isclose(told, mean, abs_tol=1e-9)


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 9), st.sampled_from(["merged", "lost", "late"])), max_size=8),
       st.data())  # fmt: skip
def test_a_chunk_counts_as_far_as_it_is_merged_whenever_that_is_told(
    chunks: list[tuple[int, float, str]], data: st.DataObject
) -> None:
    """K-20, F23: merged before or after it is told, in any pieces, with any number of averages in between; what was
    refused, or was of a rank that died, is in no number; and the records that wait have an end."""
    tally, first, total, count = EpochTally(), 0, 0.0, 0
    for samples, loss, fate in chunks:
        seen, pieces = tally.of(0), data.draw(st.integers(0, samples)) if fate == "merged" else samples
        part = (first, samples)
        if fate == "merged":
            seen.cover(first, pieces, one_each)
            seen.settle([(first + pieces, samples - pieces)], [part])
        if fate == "late":
            seen.cover(first, samples, one_each)
        tally.add(0, chunk(samples, loss, scalars={"x": (loss * samples, samples)}), [part], one_each)
        if fate == "merged":
            seen.settle([(first + pieces, samples - pieces)], [])
            seen.cover(first + pieces, samples - pieces, one_each)
        total, count = (total + loss * samples, count + samples) if fate != "lost" else (total, count)
        if data.draw(st.booleans()):
            seen.settle([], [])
            assert not seen.waiting and not seen.early
        first += samples
        told = tally.cohort(0.0)["avg_loss"], tally.scalars().get("x")
        for mean in told:
            assert (mean is None) == (count == 0) and (mean is None or math.isclose(mean, total / count, abs_tol=1e-9))


TRAINED: dict[str, Any] = {"cycle": 0, "epoch": 0, "batches": 1, "epoch_ms": 1.0, "share_complete_ms": 1.0,
                           "compute_only_ms": 1.0, "data_starve_ms": 0.0}  # fmt: skip


def tell(hand: Hand, rank: int, mean: float) -> None:
    """The rank's oldest plan is trained, with this mean of its loss and of a scalar."""
    plan = hand.co.book.holdings(rank).plans[0].plan
    told = {**TRAINED, "batches": plan.size // 2, "samples": plan.size, "avg_loss": mean}
    hand.say(rank, m.Metrics, plan_ids=(plan.plan_id,), **told, scalars={"x": (mean * plan.size, plan.size)})


def test_picks_of_a_dead_rank_count_where_they_were_finally_trained() -> None:
    """K-20: it had told of its chunk; a death before the merge gives the picks to another one, and they count there."""
    hand = Hand(2, samples=12, num_epochs=1).form()
    for rank in (0, 1):
        hand.step(rank, 3)
    tell(hand, 1, 9.0)
    hand.feed(ev.LinkLost(1, 1, "reset"))
    begun = len(hand.effects)
    while not named(hand.effects[begun:], "EpochEnd"):
        while hand.co.book.head(0) is not None:
            hand.step(0)
        while hand.co.book.holdings(0).plans:
            tell(hand, 0, 1.0)
        hand.average()

    end = named(hand.effects[begun:], "EpochEnd")[0]
    assert (end["samples"], end["batches"], end["avg_loss"], end["scalars"]) == (12.0, 6.0, 1.0, {"x": 1.0})
    assert end["ranks"]["1"]["samples"] == 0.0
    told = messages(hand.effects[begun:], m.EpochAggregated)[0]
    assert told.metrics["scalars.x"] == 1.0 and told.metrics["samples"] == 12.0
    hook = next(e for e in hand.effects[begun:] if isinstance(e, fx.Invoke) and e.callback == "epoch_closed")
    assert hook.arguments[1] == {name: end[name] for name in hook.arguments[1]}


@pytest.mark.parametrize("how", ["refused", "dead", "left"])
def test_what_never_came_into_a_consensus_is_in_no_loss(how: str) -> None:
    """F23, K-20: rank 1 has a window of 1 merged, then tells of one with a loss of a million, and it is refused, or the
    rank gone, before the average. The batches are trained again with a loss of 1, which is the loss of the epoch and of
    rank 1: what was said of the other window is wholly out."""
    hand = Hand(2, samples=24, num_epochs=1).form()

    def window(losses: tuple[float, float]) -> None:
        for rank in list(hand.co.voters):
            if (head := hand.co.book.head(rank)) is not None:
                hand.step(rank, head.slice.count - head.done)
                tell(hand, rank, losses[rank])

    window((1.0, 1.0))
    hand.average()
    window((1.0, 1e6))
    if how == "dead":
        hand.feed(ev.LinkLost(1, 1, "reset"))
    elif how == "left":
        hand.say(1, m.Exiting, reason="leave")
    hand.average(refused=(1,) if how == "refused" else ())
    while not named(hand.effects, "EpochEnd"):
        window((1.0, 1.0))
        hand.average()

    end = named(hand.effects, "EpochEnd")[0]
    assert (end["avg_loss"], end["scalars"], end["samples"]) == (1.0, {"x": 1.0}, 24.0)
    assert [end["ranks"][rank]["avg_loss"] for rank in ("0", "1")] == [1.0, 1.0]


def test_what_a_chunk_did_not_train_counts_for_the_one_that_did() -> None:
    """K-20, D-9: a plan is ended after one of its batches. The others come back to the same rank and are in a consensus
    before it tells of them: with their own loss, not with that of the chunk that had them first."""
    hand = Hand(1, samples=24, num_epochs=1, policy="sync", anchor=3).form()

    def end(samples: int, mean: float) -> None:
        plan = hand.co.book.holdings(0).plans[0].plan
        hand.say(0, m.Metrics, plan_ids=(plan.plan_id,), **{**TRAINED, "samples": samples}, avg_loss=mean)

    hand.step(0)
    end(2, 9.0)
    while not named(hand.effects, "EpochEnd"):
        hand.step(0)
        if hand.co.book.head(0) is None:
            end(hand.co.book.holdings(0).plans[0].plan.size, 1.0)
        if hand.co.cycle.pending:
            hand.average()
    (told,) = named(hand.effects, "EpochEnd")
    assert told["avg_loss"] == pytest.approx((9.0 * 2 + 1.0 * 22) / 24)


def test_batches_of_which_every_chunk_has_its_end_are_not_remembered() -> None:
    """K-20: a tally holds what is said of a chunk no longer than it takes until the next average."""
    hand = Hand(2, samples=240, num_epochs=1).form()
    for _ in range(6):
        hand.window()
    ranks = hand.co.desk.tallies[0].ranks
    assert [(seen.waiting, seen.early) for seen in ranks.values()] == [([], [])] * 2
