"""The policies that ship, by the names that a user gives them: the knobs `guard`, `policy`, `detector` and
`meta_controller` of a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ...cadence import Balancer
from ...config import GUARD_NAMES, POLICIES, Config
from ...detector import FixedDetector, LearnedDetector
from ...errors import ConfigError
from ...guard import chosen
from ...meta import MetaController
from ...named import named
from ...policies import Cadence

__all__ = ["SHIPPED", "policy_named"]

FIXED_S = 20.0
"""The deadline of the fixed detector that is judged."""


@attrs.frozen
class _Paced:
    """Makes the balancer of a run of this policy: under sync it never grows (B-10), under any other it may."""

    policy: str

    @property
    def claims(self) -> tuple[str, ...]:
        return tuple(claim for claim in Balancer.claims if claim != "grows" or self.policy != "sync")

    def __call__(self, **given: Any) -> Cadence:
        return Balancer(**{**given, "growth_applies": given["growth_applies"] and self.policy != "sync"})


SHIPPED: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "guard": {name: functools.partial(chosen, Config(guard=name)) for name in GUARD_NAMES},
    "cadence": {policy: _Paced(policy) for policy in POLICIES},
    "detector": {"learned": LearnedDetector, "fixed": functools.partial(FixedDetector, FIXED_S)},
    "meta": {"true": MetaController},
}
"""What makes each of them, by kind and name."""


def policy_named(kind: str, target: str) -> Callable[..., Any]:
    """What makes the policy of this kind that `target` names: one that ships, or `module:factory`. Raises `ConfigError`
    if there is none."""
    if ":" in target:
        return named(target, kind)
    if target not in SHIPPED[kind]:
        raise ConfigError(f"there is no {kind} {target!r}; those that ship are {', '.join(SHIPPED[kind])}, one of your "
                          "own is named module:factory")  # fmt: skip
    return SHIPPED[kind][target]
