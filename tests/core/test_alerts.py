"""Equal alerts are one, with a count (O-2)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.alerts import FOLD_S, LIVE_LIMIT, Alerts
from paceline.core.effects import Alert


def refused(rank: int, text: str = "non-finite") -> Alert:
    return Alert("refused", f"rank {rank}", text)


def test_equal_alerts_within_ten_seconds_are_one_with_a_count() -> None:
    """O-2: the first is told at once; the others together, with the newest text, and again while it goes on."""
    alerts = Alerts()
    told = [(now, counted) for now in range(25) for counted in alerts.take(refused(1, f"at {now}"), float(now))]

    assert told == [(0, (refused(1, "at 0"), 1)), (10, (refused(1, "at 9"), 10)), (20, (refused(1, "at 19"), 20))]
    assert alerts.close() == [(refused(1, "at 24"), 25)] and alerts.close() == []


def test_time_alone_tells_what_was_counted_and_forgets_what_was_not_repeated() -> None:
    """O-2: nobody has to wait for another alert to hear of those that came; after ten quiet seconds it is a new one."""
    alerts = Alerts()
    alerts.take(refused(1), 5.0)
    assert alerts.take(refused(1), 6.0) == [] and alerts.due(14.9) == []
    assert alerts.due(15.0) == [(refused(1), 2)] and alerts.due(24.9) == []
    assert alerts.due(25.0) == [] and not alerts.live
    assert alerts.take(refused(1), 25.0) == [(refused(1), 1)]


def test_another_class_or_path_is_another_alert() -> None:
    """O-2: equal is (class, path); the text may differ."""
    alerts = Alerts()
    others = [refused(1), refused(2), Alert("short_plan", "rank 1", "non-finite")]

    assert [alerts.take(alert, 0.0) for alert in others] == [[(alert, 1)] for alert in others]
    assert alerts.take(refused(1, "something else"), 1.0) == []


def test_at_most_two_hundred_are_live() -> None:
    """O-2: one more makes the oldest give way; what was counted of it is told, none is swallowed."""
    alerts = Alerts()
    for rank in range(LIVE_LIMIT):
        alerts.take(refused(rank), 0.0)
    alerts.take(refused(0), 1.0)

    assert alerts.take(refused(LIVE_LIMIT), 2.0) == [(refused(0), 2), (refused(LIVE_LIMIT), 1)]
    assert len(alerts.live) == LIVE_LIMIT == 200
    assert alerts.take(refused(0), 3.0) == [(refused(0), 1)]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 3.0, 9.0, 10.0, 11.0]), st.integers(0, 3)), max_size=60))
def test_every_alert_is_in_a_count_and_equal_ones_are_told_apart(given_: list[tuple[float, int]]) -> None:
    """O-2: of each wave the last count is its size, and two records of one alert are never less than ten seconds apart
    but at the end."""
    alerts, now, sizes = Alerts(), 0.0, dict.fromkeys(range(4), 0)
    told: list[tuple[float, int, int]] = []
    for gap, rank in given_:
        now += gap
        sizes[rank] += 1
        told += [(now, int(alert.path[5:]), count) for alert, count in alerts.take(refused(rank), now)]
    told += [(now + FOLD_S, int(alert.path[5:]), count) for alert, count in alerts.close()]
    for rank, size in sizes.items():
        mine = [(at, count) for at, whose, count in told if whose == rank]
        following = [count for _, count in mine[1:]] + [1]
        waves = [count for (_, count), after in zip(mine, following, strict=False) if after == 1]
        assert sum(waves) == size
        assert all(later - earlier >= FOLD_S for (earlier, _), (later, _) in pairwise(mine))
