"""Which policies a coordinator works with: those of its embedder, else those that its config names, else what ships.

    guard            level, growth, none        Policies.guard        judges whether ranks drift apart (B-30)
    cadence          unset                      Policies.cadence      makes the balancer when training begins (B-1)
    detector         learned, fixed             Policies.detector     says how long a rank may take (M-11)
    meta_controller  true, false                Policies.meta         shortens windows at a cliff of the rate (B-40)

Each knob takes `module:factory` besides, a name of the very kind that `paceline conform policy` judges. It is loaded
when a coordinator is made, never while it runs: from then on the machine is a function of its events again (N-13). A
restart and a replay load it anew, because the config they begin with holds the name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from .cadence import Balancer
from .config import Config
from .detector import Detector, FixedDetector, LearnedDetector
from .guard import Guard, chosen
from .meta import Meta, MetaController
from .named import is_target, made, named
from .policies import Cadence, CadenceFactory, Policies

if TYPE_CHECKING:
    from .coordinator import Coordinator

__all__ = ["KNOBS", "Chosen", "choose", "names_of", "own", "tried"]

KNOBS = {"guard": "guard", "cadence": "cadence", "detector": "detector", "meta": "meta_controller"}
"""The knob of each kind of policy."""
NONE = "none"
"""The name of a meta-controller that is switched off."""
_SHIPPED = f"{__package__}."
"""How the module of a policy begins that ships."""


@attrs.frozen
class Chosen:
    """The policies that keep nothing of a run. Guard and meta-controller have a history, so they are fields of the
    coordinator."""

    cadence: CadenceFactory
    detector: Detector


def choose(
    config: Config, given: Policies | None = None, guard: Guard | None = None
) -> tuple[Guard, Meta | None, Chosen]:
    """Guard, meta-controller and the rest for a new coordinator; `guard` is stronger than that of `given`. Raises
    `ConfigError` naming knob, target and remedy for what cannot be loaded or made, or has not the shape of its kind."""
    given = given or Policies()
    return (
        guard or given.guard or chosen(config),
        _meta(config) if given.meta is None else given.meta(),
        Chosen(given.cadence or _cadence(config), given.detector or _detector(config)),
    )


def _cadence(config: Config) -> CadenceFactory:
    """What makes the balancer. One is made on trial: the real one is made when everybody is there and training begins,
    too late to hear that it cannot be."""
    target = config.cadence
    if target is None:
        return Balancer
    factory: CadenceFactory = named(target, "cadence")
    made(lambda: tried(factory), f"cadence {target!r}", Cadence)
    return factory


def tried(make: CadenceFactory, **knobs: Any) -> Cadence:
    """A balancer for one rank with an anchor of 10, as a coordinator makes one; `knobs` replace what it is given."""
    given: dict[str, Any] = dict(
        ranks=[0], anchor=10, min_anchor=10, max_anchor=200, overhead_target=0.05, growth_applies=True,
        max_batch_diff=None, cap=None, relax_allowed=False, speed_ratios=None, anchor_ratios=None,
        hardware=None,
    )  # fmt: skip
    return make(**{**given, **knobs})


def _detector(config: Config) -> Detector:
    """`fixed` gives every stage the time that `learned` gives one of which too little is known."""
    target = config.detector
    if is_target(target):
        own_detector: Detector = made(named(target, "detector"), f"detector {target!r}", Detector)
        return own_detector
    return FixedDetector(config.scaled(config.suspect_initial_s)) if target == "fixed" else LearnedDetector()


def _meta(config: Config) -> Meta | None:
    target = config.meta_controller
    if isinstance(target, str):
        own_meta: Meta = made(named(target, "meta_controller"), f"meta_controller {target!r}", Meta)
        return own_meta
    return MetaController() if target else None


# --- what they are called --------------------------------------------------------------------------------------------


def names_of(co: Coordinator) -> dict[str, str]:
    """By kind, what decides in this coordinator: the class of the policy, for the balancer its factory, as
    `module:name`."""
    made_by = {
        "guard": co.guard, "cadence": co.policies.cadence, "detector": co.policies.detector, "meta": co.meta,
    }  # fmt: skip
    return {kind: NONE if policy is None else _name(policy) for kind, policy in made_by.items()}


def own(names: dict[str, str]) -> dict[str, str]:
    """Those of `names` that do not ship."""
    return {kind: name for kind, name in names.items() if name != NONE and not name.startswith(_SHIPPED)}


def _name(policy: Any) -> str:
    """Of a class or function itself, else of the class of the object; of a partial what it calls."""
    policy = getattr(policy, "func", policy)
    named_itself = policy if hasattr(policy, "__qualname__") else type(policy)
    return f"{named_itself.__module__}:{named_itself.__qualname__}"
