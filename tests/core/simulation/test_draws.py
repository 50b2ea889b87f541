"""What a run is like is drawn from its seed, but for what was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.core.simulation.dice import Dice
from paceline.core.simulation.draws import draw_setup
from paceline.core.simulation.setup import Setup

SEEDS = 60


def drawn(seed: int, policy: str | None = None, **given: Any) -> Setup:
    return draw_setup(2, policy, given, Dice(seed), wire=False)


@pytest.mark.parametrize("wish", [
    {"averager": "collective"}, {"max_overshoot": 3}, {"progressive": False}, {"progressive": True},
    {"laggards": "exclude"}, {"partition_ratios": [1, 2]}, {"relax_up": True}, {"min_ranks": 2},
])  # fmt: skip
def test_what_was_asked_for_stands_and_what_does_not_go_with_it_yields(wish: dict[str, Any]) -> None:
    """V-1 to V-4: a campaign that asked for a collective ended at once with an error about a policy that it had not
    asked for."""
    for seed in range(SEEDS):
        knobs = dict(drawn(seed, **wish).knobs)
        assert wish.items() <= knobs.items()
        assert {"num_epochs", "seed", "gamma", "heartbeat_s"} <= knobs.keys(), "the rest is drawn all the same"


def test_what_was_asked_for_and_does_not_go_together_is_an_error() -> None:
    """D-17: nothing else was asked for that could yield."""
    for seed in range(SEEDS):
        with pytest.raises(ConfigError, match="only with policy sync"):
            drawn(seed, "cadence", partition_ratios=[1, 2])
