"""What a run is like, drawn from its seed: knobs, model, and the pace of its ranks and links."""

from __future__ import annotations

from typing import Any

from ..config import POLICIES
from ..errors import ConfigError
from .clockwork import Pace
from .dice import Dice
from .faults import Profile
from .setup import Setup

__all__ = ["STEP_S", "draw_pace", "draw_setup"]

STEP_S = 5.0
"""Virtual seconds of a step of the fastest rank."""
CLOCKS: dict[str, Any] = {
    "heartbeat_s": 20.0, "beacon_s": 20.0, "heartbeat_timeout_s": 60.0, "reduce_ceiling_s": 1200.0,
    "window_ceiling_s": 2400.0, "suspect_initial_s": 90.0, "suspect_floor_s": 20.0, "first_step_s": 400.0,
    "role_limit_s": 300.0, "rejoin_window_s": 200.0, "formation_s": 300.0, "save_limit_s": 60.0, "exit_grace_s": 60.0,
    "leave_grace_s": 60.0, "reconnect_window_s": 200.0, "session_wait_s": 300.0,
}  # fmt: skip
"""Durations that fit the pace of a simulated run: all of a ladder is climbed in some minutes."""
COLLECTIVE = 0.4
"""Share of the runs under sync and cadence that average in place."""
BATCHES = (12, 20, 32)
"""Batches per rank of a whole run."""
BLOCKS = (1, 1, 1, 2, 2, 2, 2, 5, 16)
"""Blocks of a model."""
MODEL_S = (0.2, 4.0, 20.0)
"""Seconds that a whole model needs to leave over the fastest link."""
LATENCY_S = (0.01, 0.05, 0.2)
"""Latency of the fastest link. A rank that is asked for the id of a session has 5 s for both ways (M-32), so a link
that is six times slower must still be good for that."""
SLOW_LINK = 0.25
"""Share of the ranks whose link is slower than that of the others, by up to the factor of the profile."""


def draw_setup(ranks: int, policy: str | None, given: dict[str, Any], dice: Dice, *, wire: bool) -> Setup:
    """The setup of a run. `given` are knobs that are not drawn; `wire`: a codec is there, so some runs have frames."""
    given = given if policy is None else {**given, "policy": policy}
    epochs = dice.pick((1, 2, 2, 3))
    batch_size = dice.pick((1, 2))
    samples = max(1, ranks * dice.pick(BATCHES) // epochs) * batch_size + dice.below(batch_size)
    knobs: dict[str, Any] = {
        **CLOCKS, "policy": policy or dice.pick(POLICIES), "num_epochs": epochs, "batch_size": batch_size,
        "seed": 1 + dice.below(1000), "max_ranks": ranks + dice.below(4), "laggards": dice.pick(("wait", "exclude")),
        "max_nudges": dice.pick((0, 1, 3)), "join_patience": dice.pick((1, 3)),
        "drop_last": dice.chance(0.5), "epoch_splits": dice.pick((1, 1, 2)),
        "gamma": dice.pick((1.0, 1.0, 1.0, 0.5, 0.0)), "guard": dice.pick(("level", "level", "growth", "none")),
        "role_policy": dice.pick(("fastest", 0)),
    }  # fmt: skip
    if knobs["policy"] != "sync":
        knobs["anchor"] = dice.pick((1, 2, 4, 8))
        knobs["progressive"] = None if knobs["policy"] == "async" or dice.chance(0.7) else False
    elif dice.chance(0.3):
        knobs["partition_ratios"] = tuple(float(1 + dice.below(3)) for _ in range(ranks))
    if dice.chance(0.3):
        knobs["max_batch_diff"] = dice.below(4)
    if dice.chance(0.1):
        knobs["elastic"] = False
    if dice.chance(0.2):
        knobs["min_ranks"] = min(ranks, 2)
    if dice.chance(0.2):
        knobs["max_failure"] = max(1, ranks // 2)
    callbacks: tuple[str, ...] = ()
    if dice.chance(0.5):
        callbacks = ("epoch", "evaluate", "checkpoint")
        knobs["eval_every"] = knobs["checkpoint_every"] = 1
    if dice.chance(0.5):
        knobs.update(save_path="/files", checkpoint_every=1)
    if dice.chance(0.4):
        knobs["link_grace_s"] = dice.pick((30.0, 120.0))
    if given.get("averager") == "collective" or ("averager" not in given and knobs["policy"] != "async"
                                                 and dice.chance(COLLECTIVE)):  # fmt: skip
        _average_in_place(knobs)
        knobs["min_ranks"] = min(ranks, dice.pick((1, 2)))
    return Setup(
        ranks=ranks, samples=samples, knobs=_agreed(ranks, given, knobs), callbacks=callbacks,
        stateful=dice.chance(0.5), blocks=dice.pick(BLOCKS), wire=wire and dice.chance(0.4), thorough=False,
    )  # fmt: skip


def _agreed(ranks: int, given: dict[str, Any], drawn: dict[str, Any]) -> dict[str, Any]:
    """Given knobs with as many of the drawn ones as go with them, in their order: who asks for a collective wants runs
    with one, whatever policy was drawn, and who gives a knob of one policy wants runs under it. Given knobs that do not
    go together raise `ConfigError`."""
    knobs = {**drawn, **given}
    if _is_allowed(ranks, knobs):
        return knobs
    policies: list[dict[str, Any]] = [{}, *({"policy": policy} for policy in POLICIES)]
    wishes = [{**clocks, **policy, **given} for clocks in (CLOCKS, {}) for policy in policies]
    knobs = next((wish for wish in wishes if _is_allowed(ranks, wish)), {**given})
    Setup(ranks=ranks, knobs=knobs)
    for name, value in drawn.items():
        if name not in given and _is_allowed(ranks, {**knobs, name: value}):
            knobs[name] = value
    return knobs


def _is_allowed(ranks: int, knobs: dict[str, Any]) -> bool:
    try:
        Setup(ranks=ranks, knobs=knobs)
    except ConfigError:
        return False
    return True


def _average_in_place(knobs: dict[str, Any]) -> None:
    """What goes with a collective (G-11, V-3): nobody is left out, and nobody runs ahead."""
    knobs["averager"] = "collective"
    knobs["laggards"] = "wait"
    knobs.pop("max_batch_diff", None)
    knobs.pop("progressive", None)


def draw_pace(ranks: int, blocks: int, wild: Profile, dice: Dice) -> Pace:
    """Some ranks are as fast as can be, some slower by up to the factor of the profile; and so are their links, each
    with a latency and a bandwidth of its own."""
    steps = tuple(STEP_S * (1.0 if dice.chance(0.5) else dice.between(1.0, wild.slow)) for _ in range(ranks))
    copy_s, latency_s, part_s = dice.pick((0.1, 1.0)), dice.pick(LATENCY_S), dice.pick(MODEL_S) / blocks

    def of_links(seconds: float) -> list[float]:
        return [seconds * (dice.between(1.0, wild.slow) if dice.chance(SLOW_LINK) else 1.0) for _ in range(ranks)]

    return Pace(
        step_s=steps, copy_s=copy_s, latency_s=of_links(latency_s), part_s=of_links(part_s),
        reduce_s=dice.pick((0.1, 5.0)), callback_s=dice.pick((1.0, 60.0)), write_s=dice.pick((1.0, 30.0)),
    )  # fmt: skip
