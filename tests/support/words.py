"""What is said: the Hello of a healthy rank, and the words of a coordinator, picked from its effects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from paceline.core import effects as fx
from paceline.core import messages as m
from paceline.core.config import config_digest
from paceline.core.schema import dataset_signature
from paceline.core.simulation.setup import Setup, greeting
from paceline.core.timeline import undeclared

DIGEST = b"d" * 16
"""Of a consensus."""


def hello(samples: int, wishes: dict[str, Any] | None = None, **changes: Any) -> m.Hello:
    """A Hello of a healthy rank over a data set of `samples` samples."""
    signature = dataset_signature(samples, b"simulated")
    known = {"dataset_signature": signature, "wishes": wishes or {}, "config_digest": config_digest(wishes or {})}
    return attrs.evolve(greeting(Setup()), **{**known, **changes})


def messages(effects: Iterable[Any], kind: type, rank: int | None = None) -> list[Any]:
    """The messages of a kind among effects, to one rank or to any."""
    sends = [e for e in effects if isinstance(e, fx.Send) and rank in (None, e.rank)]
    return [e.message for e in sends if isinstance(e.message, kind)]


def named(effects: Iterable[Any], name: str) -> list[dict[str, Any]]:
    """The facts of the timeline events of a name among effects."""
    return [e.facts for e in effects if isinstance(e, fx.Emit) and e.name == name]


def alerts(effects: Iterable[Any], kind: str) -> list[fx.Alert]:
    """The alerts of a kind among effects."""
    return [e for e in effects if isinstance(e, fx.Alert) and e.kind == kind]


def check_declared(effects: Iterable[Any]) -> None:
    """O-1: a timeline event has the name and the fields it is declared with."""
    for effect in effects:
        if isinstance(effect, fx.Emit):
            wrong = undeclared(effect.name, effect.facts)
            assert wrong is None, f"O-1: {wrong}"
