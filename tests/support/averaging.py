"""The star averager in the hands of the cohort that the conformance kit brings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from paceline.backends import layout
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
    "TINY_BLOCK",
    "Cohort",
    "Ship",
    "average",
    "blocks_of",
    "entry",
    "flat_of",
    "header",
    "opened",
    "random_flat",
    "received",
    "values_of",
]

RIDING = FlatLayout.riding(SCHEMA)
TINY_BLOCK = 32
"""Bytes of a block in tests of averagers: a model of a few values then has several, in no time."""


def blocks_of(size: int) -> Callable[..., Any]:
    """A fixture: in this module of tests a block has at most so many bytes."""

    @pytest.fixture(autouse=True, scope="module")
    def tiny_blocks() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layout, "BLOCK_BYTES", size)
            yield

    return tiny_blocks


def average(
    schema: Schema, ships: Mapping[int, Ship], *, gamma: float = 1.0, order: Iterable[int] = ()
) -> tuple[StarAverager, RoundReduced]:
    """One whole cycle on a fresh averager."""
    averager = StarAverager(schema, gamma=gamma)
    averager.open(opened(ships))
    reduced = Cohort(schema, averager, ships).reduce(order)
    assert isinstance(reduced, RoundReduced)
    return averager, reduced
