"""The star averager in the hands of the cohort that the conformance kit brings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paceline.backends.conformance.drive import (
    KEY,
    LIMIT,
    SCHEMA,
    STATE,
    Cohort,
    Ship,
    entry,
    flat_of,
    header,
    opened,
    random_flat,
    received,
    values_of,
)
from paceline.backends.layout import FlatLayout
from paceline.backends.star import StarAverager
from paceline.core.events import RoundReduced
from paceline.core.schema import Schema

__all__ = [
    "KEY",
    "LIMIT",
    "RIDING",
    "SCHEMA",
    "STATE",
    "Cohort",
    "Ship",
    "average",
    "entry",
    "flat_of",
    "header",
    "opened",
    "random_flat",
    "received",
    "values_of",
]

RIDING = FlatLayout.riding(SCHEMA)


def average(
    schema: Schema, ships: Mapping[int, Ship], *, gamma: float = 1.0, order: Iterable[int] = ()
) -> tuple[StarAverager, RoundReduced]:
    """One whole cycle on a fresh averager."""
    averager = StarAverager(schema, gamma=gamma)
    averager.open(opened(ships))
    reduced = Cohort(schema, averager, ships).reduce(order)
    assert isinstance(reduced, RoundReduced)
    return averager, reduced
