"""Hints of what comes next (D-24): what they say, when they leave, and that nothing depends on them."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.dispatch.advisory import MOST_OTHERS

from support.cohort import Cohort
from support.hand import Hand, messages, named


def hints(effects: list[Any], rank: int) -> list[m.StageAdvisory]:
    return messages(effects, m.StageAdvisory, rank)


def test_own_span_first_then_a_window_at_the_tail_of_each_other_one() -> None:
    """D-24: 200 picks, 100 batches, two spans of 50; each rank has the first 3 of its own. Then the next epoch, whose
    pool does not exist yet, the same way."""
    hand = Hand(2, samples=200).form()

    (hint,) = hints(hand.effects, 1)

    assert hint.counts == (3, 3)
    assert hint.segments == ((0, ((106, 94), (94, 6))), (1, ((100, 100), (94, 6))))
    assert 1 not in hand.co.book.pools, "a prediction opens nothing"


def test_each_finish_tells_anew_and_after_its_plans() -> None:
    """D-24, C-15.10: the hint is refreshed once the Updates with their plans are out."""
    hand = Hand(2, samples=200).form()

    effects = hand.window()

    (hint,) = hints(effects, 0)
    assert hint.segments[0] == (0, ((12, 88), (194, 6))), "own span from the seventh batch on"
    kinds = [type(e.message) for e in effects if isinstance(e, fx.Send) and e.rank == 0]
    assert kinds[-3:] == [m.Update, m.SetGlobalStep, m.StageAdvisory]
    names = [e.name for e in effects if isinstance(e, fx.Emit)]
    assert names.index("AverageEnd") > names.index("Cycle")


def test_the_last_epoch_has_no_next_one_and_a_stop_no_hint() -> None:
    """D-24: never past the end of the run."""
    hand = Hand(2, samples=200, num_epochs=1).form()
    assert [epoch for epoch, _ in hints(hand.effects, 0)[0].segments] == [0]

    hand.step(0)
    hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    effects = hand.average()
    assert messages(effects, m.Update, 0) and not hints(effects, 0)


def test_at_the_start_of_an_epoch_it_is_told_once_to_each() -> None:
    """D-24: the finish that covers the last of an epoch and the start of the next one each tell once."""
    hand = Hand(2, samples=24, num_epochs=3).form()
    hand.window()
    effects = hand.window()

    assert [facts["epoch"] for facts in named(effects, "EpochStart")] == [1]
    told = hints(effects, 0)
    assert [[epoch for epoch, _ in hint.segments] for hint in told] == [[1, 2], [1, 2]]
    assert told[0].segments[0] == (1, ((0, 12), (18, 6))), "as it would be laid out"
    assert told[1].segments[0] == (1, ((6, 6), (18, 6))), "as it is, with the first plan out"


def test_a_short_last_batch_is_no_longer_than_it_is() -> None:
    """D-24, D-3: segments are in picks, and the epoch has 21 of them."""
    hand = Hand(2, samples=21, num_epochs=1, drop_last=False).form()

    assert hints(hand.effects, 0)[0].segments == ((0, ((6, 6), (18, 3))),)


def test_a_run_of_whole_shares_hears_of_its_own_share_only() -> None:
    """D-24, D-17: nobody helps out there, so there is nothing to fetch of others."""
    hand = Hand(2, samples=40, policy="sync").form()

    assert hints(hand.effects, 1)[0].segments == ((0, ((20, 20),)), (1, ((20, 20),)))
    hand.step(0)
    hand.step(1, 2)
    assert hints(hand.average(), 1)[0].segments == ((0, ((24, 16),)), (1, ((20, 20),)))


def test_a_hint_does_not_grow_with_the_cohort() -> None:
    """D-24: the nearest spans of others only, the largest first and the last among equals."""
    hand = Hand(MOST_OTHERS + 4, samples=40 * (MOST_OTHERS + 4), num_epochs=1).form()

    (_, parts), = hints(hand.effects, 11)[0].segments  # fmt: skip

    assert parts[0] == (446, 34)
    assert [offset // 40 for offset, _ in parts[1:]] == list(range(10, 2, -1))


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_a_run_is_the_same_without_its_hints(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D-24: failures are ignored, since nothing depends on a hint; the numbers on the lane differ, that is all."""

    def story(told: bool) -> list[Any]:
        if not told:
            monkeypatch.setattr("paceline.core.dispatch.desk.advise", lambda co: None)
        cohort = Cohort(ranks=3, samples=60, policy=policy)
        cohort.run()
        return [(e.name, e.facts) for e in cohort.effects if isinstance(e, fx.Emit) and e.name in ("Cycle", "Covered")]

    with_hints, without = story(True), story(False)

    assert with_hints == without != []


def test_a_lost_hint_costs_a_rank_nothing_but_its_link() -> None:
    """D-24, N-10, I5: what any failed send costs, and nothing of anybody's work."""
    hand = Hand(2, samples=200).form()
    token = next(e.token for e in hand.effects if isinstance(e, fx.Send) and isinstance(e.message, m.StageAdvisory))
    before = [hand.co.book.holdings(rank).in_flight_batches for rank in (0, 1)]

    hand.feed(ev.SendFailed(token))

    assert [hand.co.book.holdings(rank).in_flight_batches for rank in (0, 1)] == before
