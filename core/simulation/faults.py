"""Which faults a simulated run meets, and how often: profiles, swarm choice, and sites in the run itself.

A *profile* says how wild a run may be. What one run of it is like is drawn from its seed: each kind of fault is off
with a probability of 40 %, and the others have wildly different weights (swarm testing), since a run with everything at
once hides what two faults alone would show. A *site* is a moment at which a fault is worst, such as between a snapshot
and its acknowledgement. Each is switched on in one run of four and then strikes one time of four (as FoundationDB's
BUGGIFY does), or each time if its moment is seldom, a few times at most.
"""

from __future__ import annotations

import attrs

from ..errors import ConfigError
from .dice import Dice

__all__ = ["PROFILES", "SELDOM", "SITES", "Plan", "Profile", "draw_plan", "profile"]

OFF = 0.4
ACTIVE = FIRES = 0.25
MOST_PER_SITE = 2
SELDOM = frozenset({
    "dies as it joins", "dies inside a call", "the disk is full for a bundle", "the end of the journal is lost",
})  # fmt: skip
"""Sites that few runs come to: there they strike each time."""

SITES: dict[str, str] = {
    "a message lingers": "a delivery takes fifty times as long",
    "a step lingers": "a step takes twenty times as long",
    "a copy lingers": "the copy of a snapshot takes twenty times as long",
    "the averager lingers": "the division takes a hundred times as long",
    "dies after its snapshot": "a process is killed when its SnapshotReady arrives",
    "dies while it uploads": "a process is killed when its contribution has begun",
    "dies before it acknowledges": "a process is killed when its result arrives",
    "dies with its update under way": "a process is killed when an Update is on the way to it",
    "dies as it joins": "a process is killed when it is asked to observe",
    "dies when its chunk is done": "a process is killed in its last step of a plan, with the report of it under way",
    "is cut off with a plan under way": "a link is cut when a plan is on the way",
    "two die at once": "the next process is killed in the very moment in which one was",
    "the disk is full for a bundle": "there is no space when a bundle is to be written",
    "the coordinator is away": "the coordinator does nothing for longer than the staleness",
    "dies inside a call": "a process is killed when the average of its call exists",
    "dies out of a call": "a process is killed when its call has just succeeded",
    "the coordinator dies in a finish": "the coordinator is killed between two effects of a finish",
    "the coordinator dies in a cycle": "the coordinator is killed when a cycle is pending",
    "the end of the journal is lost": "a coordinator comes back without the last that it had kept",
    "its steps outlive its seat": "a process is killed with a step under way, and another one has its seat before that "
                                  "arrives",
    "its evidence outlives its seat": "a process is killed with evidence of a cycle under way, and another one has its "
                                      "seat before that arrives",
}


@attrs.frozen(kw_only=True)
class Profile:
    """How wild runs may be. `weights` of kinds of faults; `every` the mean time between two of them, in steps of the
    fastest rank; `sites`: whether the sites above are used; `slow`: the factor by which a rank may be slower than the
    fastest; `loss`: the largest share of messages whose link breaks with them."""

    weights: dict[str, float] = attrs.field(factory=dict)
    every: float = 20.0
    sites: bool = False
    slow: float = 1.5
    loss: float = 0.0


LINKS = {"cut": 3.0, "mute": 2.0, "deafen": 2.0, "partition": 2.0}
LIVES = {"zombie": 2.0, "crash": 4.0, "pause": 3.0, "hang": 3.0, "join": 3.0, "leave": 1.0, "return": 6.0}
TASKS = {"poison": 3.0, "fail": 2.0, "withhold": 2.0, "forge": 1.0, "plague": 1.0, "break": 1.0,
         "abort": 3.0, "full": 2.0}  # fmt: skip
PEERS = {"drop": 2.0, "lose": 2.0, "duplicate": 2.0, "repeat": 3.0, "overtake": 2.0, "swap": 2.0}
CLOCKS = {"away": 1.5, "jump": 1.0}
WIRE = {"split": 4.0, "crack": 4.0, "corrupt": 3.0, "taint": 3.0, "sever": 3.0}
"""Only where there are frames."""
ASKED = {"checkpoint": 1.0, "evaluate": 1.0}

PROFILES: dict[str, Profile] = {
    "calm": Profile(),
    "slow": Profile(weights={"hang": 2.0, "pause": 2.0, "away": 1.0}, every=40.0, slow=8.0),
    "flaky": Profile(weights={**LINKS, "crash": 1.0, "return": 3.0, **TASKS}, every=40.0, slow=3.0, loss=0.001),
    "storm": Profile(weights={**LINKS, **LIVES, **TASKS, **PEERS, **CLOCKS, **WIRE, **ASKED, "stop": 0.2, "die": 0.5},
                     every=4.0, slow=6.0, loss=0.002, sites=True),
}  # fmt: skip


@attrs.frozen(kw_only=True)
class Plan:
    """What one run meets: kinds of faults with their weights, in a fixed order; the mean time between two in steps;
    sites that are switched on; the loss of its links."""

    kinds: tuple[str, ...]
    weights: tuple[float, ...]
    every: float
    sites: frozenset[str]
    loss: float


def profile(name: str) -> Profile:
    """A profile by its name. Raises `ConfigError`."""
    if name not in PROFILES:
        raise ConfigError(f"there are no faults {name!r}; choose one of {', '.join(PROFILES)}")
    return PROFILES[name]


def draw_plan(wild: Profile, dice: Dice, *, wire: bool = True) -> Plan:
    """Swarm choice: what of a profile one run meets; `wire`: there are frames that can be struck. Sites are drawn last,
    so that a new one behind the others changes nothing of a run that does not have it."""
    chosen = [(kind, weight * 4.0 ** dice.below(4)) for kind, weight in wild.weights.items() if not dice.chance(OFF)]
    chosen = [(kind, weight) for kind, weight in chosen if wire or kind not in WIRE]
    every, loss = wild.every * dice.pick((0.5, 1.0, 2.0, 6.0)), 0.0 if dice.chance(OFF) else wild.loss * dice.unit()
    return Plan(
        kinds=tuple(kind for kind, _ in chosen), weights=tuple(weight for _, weight in chosen), every=every, loss=loss,
        sites=frozenset(site for site in SITES if wild.sites and dice.chance(ACTIVE)),
    )  # fmt: skip
