"""The table of times, number by number (M-3): what a user reads there is what a run does that sets nothing."""

from __future__ import annotations

import math

import pytest

from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.worker_link import pause_s

from support.hand import messages
from support.hand_collective import Joint, asked

TABLE = {
    "heartbeat_s": 1.0, "beacon_s": 1.0, "heartbeat_timeout_s": 30.0, "handshake_s": 10.0, "formation_s": 60.0,
    "join_timeout_s": 300.0, "max_join_timeout_s": 600.0, "session_wait_s": 60.0, "reconnect_window_s": 120.0,
    "stall_dump_s": 120.0, "exit_grace_s": 30.0, "leave_grace_s": 30.0, "save_limit_s": 30.0, "role_limit_s": 300.0,
    "time_scale": 1.0, "suspect_k": 6.0, "suspect_floor_s": 5.0, "suspect_initial_s": 60.0, "suspect_history": 20,
    "first_step_s": 1800.0, "max_nudges": 3, "laggards": "wait",
}  # fmt: skip
"""M-3, and the numbers of M-11 to M-14 that are knobs."""


def test_the_times_of_a_run_that_sets_none_are_those_of_the_table() -> None:
    """M-3, M-11, M-13, M-14."""
    assert {knob: getattr(Config(), knob) for knob in TABLE} == TABLE


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_ceilings_of_a_run_that_sets_none(scale: float) -> None:
    """M-3, M-15, M-16, M-11: ten times the staleness and at least 300 s, twice that for a window, half of each for a
    deadline; scaled like all times."""
    for timeout, ceiling in ((30.0, 300.0), (20.0, 300.0), (31.0, 310.0)):
        config = Config(heartbeat_timeout_s=timeout, time_scale=scale)
        assert config.reduce_ceiling == ceiling * scale and config.window_ceiling == 2 * ceiling * scale
        assert config.cycle_limits.most == ceiling / 2 * scale and config.step_limits.most == ceiling * scale
        assert (config.cycle_limits.initial, config.cycle_limits.floor) == (60.0 * scale, 5.0 * scale)


def test_a_scale_is_a_number_from_a_tenth_on() -> None:
    """M-3: that itself is allowed, what is below is not."""
    assert Config(time_scale=0.1).time_scale == 0.1
    with pytest.raises(ConfigError, match="M-3"):
        Config(time_scale=math.nextafter(0.1, 0.0))


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_generator_has_five_seconds_for_the_id_of_a_session(scale: float) -> None:
    """M-3, M-32: then the next one is asked; scaled."""
    hand = Joint(3, time_scale=scale)
    hand.confirms = True
    assert asked(hand.effects) == [(0, 1)]
    hand.tick(5.0 * scale - 0.01)
    assert len(messages(hand.effects, m.RequestSessionId)) == 1
    hand.tick(0.02)
    assert asked(hand.effects) == [(0, 1), (1, 1)]


def test_a_rank_looks_for_its_coordinator_in_pauses_that_double() -> None:
    """M-3, M-40: from half a second to ten, each a fifth longer at most, so that not all of them knock at once."""
    for attempt, base in enumerate([0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]):
        pauses = [pause_s(b"r" * 16, rank, attempt) for rank in range(8)]
        assert all(base <= pause <= 1.2 * base for pause in pauses) and len(set(pauses)) == 8
