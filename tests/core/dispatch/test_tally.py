"""The metrics of an epoch: sums by rank, each pick counted once (K-20)."""

from __future__ import annotations

import math
from typing import Any

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


def covered(tally: EpochTally, rank: int, samples: int) -> None:
    """So many picks of a rank are in a consensus."""
    tally.of(rank).covered += samples


def test_a_worked_example() -> None:
    """K-20: durations are summed over chunks, losses weighted by samples, scalars divided once, the longest rank is the
    epoch."""
    tally = EpochTally()
    tally.add(0, chunk(6, 1.0, 30.0, scalars={"hits": (3.0, 6)}))
    tally.add(0, chunk(2, 5.0, 10.0, scalars={"hits": (1.0, 2), "seldom": (8.0, 2)}))
    tally.add(1, chunk(8, 4.0, 20.0, epoch_ms=90.0, scalars={"hits": (0.0, 8)}))
    covered(tally, 0, 8)
    covered(tally, 1, 8)

    assert tally.cohort(now=0.0) == {
        "samples": 16.0, "batches": 0.0, "avg_loss": (1.0 * 6 + 5.0 * 2 + 4.0 * 8) / 16, "epoch_ms": 90.0,
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
    tally.add(0, chunk(2, math.nan, math.inf, epoch_ms=-math.inf, scalars={"x": (math.nan, 1), "y": (1.0, 0)}))
    covered(tally, 0, 2)
    assert (tally.cohort(9.0)["avg_loss"], tally.cohort(9.0)["throughput"]) == (None, None)
    assert tally.scalars() == {"x": None, "y": None}


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(), st.floats(), st.floats()), max_size=6))
def test_whatever_a_rank_says_the_view_is_finite_and_has_an_end(said: list[tuple[int, float, float, float]]) -> None:
    """K-20, I22, N-24: it goes to all ranks, into the journal and to a hook."""
    tally = EpochTally()
    for rank, loss, ms, total in said:
        names = {f"{rank}.{number}": (total, 1) for number in range(200)} | {"n" * 999: (1.0, 1)}
        tally.add(rank, chunk(2, loss, ms, scalars=names))
        covered(tally, rank, 2)
    ranks = tally.by_rank({}).values()
    told = [*tally.cohort(1.0).values(), *tally.scalars().values(), *(n for view in ranks for n in view.values())]
    assert all(number is None or math.isfinite(number) for number in told)
    assert len(tally.scalars()) <= MOST_SCALARS and not any(len(name) > 128 for name in tally.scalars())


@given(losses=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.floats(0, 9)), min_size=1, max_size=12))
def test_without_a_fault_the_loss_is_that_of_all_samples(losses: list[tuple[int, int, float]]) -> None:
    """K-20: loss weighted by samples, however the chunks were dealt to ranks."""
    tally = EpochTally()
    for rank, samples, loss in losses:
        tally.add(rank, chunk(samples, loss))
        covered(tally, rank, samples)
    mean = sum(samples * loss for _, samples, loss in losses) / sum(samples for _, samples, _ in losses)
    told = tally.cohort(0.0)["avg_loss"]
    assert told is not None and math.isclose(told, mean, abs_tol=1e-9)


def tell(hand: Hand, rank: int, mean: float) -> None:
    """The rank's oldest plan is trained, with this mean of its loss and of a scalar."""
    plan = hand.co.book.holdings(rank).plans[0].plan
    hand.say(rank, m.Metrics, cycle=0, plan_ids=(plan.plan_id,), epoch=0, batches=plan.size // 2, samples=plan.size,
             epoch_ms=1.0, share_complete_ms=1.0, compute_only_ms=1.0, data_starve_ms=0.0, avg_loss=mean,
             scalars={"x": (mean * plan.size, plan.size)})  # fmt: skip


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
