"""How values are made: what `maker` writes out is what the constructor does."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from paceline.core import messages as m
from paceline.core.values import maker, value


@value(kw_only=True)
class _Kind:
    """Fields whose names a careless maker would trip over."""

    kind: int
    new: str = "new"
    made: list[int] = attrs.field(factory=list)


@pytest.mark.parametrize("report", m.REPORTS, ids=lambda report: report.__name__)
def test_a_made_report_is_the_constructed_one(report: Any) -> None:
    """N-3: by order and by name, with every field given and with those alone that have to be."""
    names = [field.name for field in attrs.fields(report)]
    needed = [field.name for field in attrs.fields(report) if field.default is attrs.NOTHING]
    stamp = names[:6]
    said = {name: f"what {name} says" for name in names}

    assert maker(report)(*said.values()) == maker(report)(**said) == report(**said)
    least = {name: said[name] for name in (*stamp, *needed)}
    assert maker(report)(**least) == report(**least)


def test_what_is_made_anew_is_nobody_elses() -> None:
    one, other = maker(_Kind)(3), maker(_Kind)(kind=3)
    one.made.append(1)

    assert (one.kind, one.new, other.made) == (3, "new", [])
    assert maker(_Kind)(3, made=[7]) == _Kind(kind=3, made=[7])


def test_a_field_that_must_be_given_is_missed() -> None:
    with pytest.raises(TypeError, match="kind"):
        maker(_Kind)()
