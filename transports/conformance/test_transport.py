"""The kit as tests: `pytest --pyargs paceline.transports.conformance --transport pigeon://loft`.

One test for each check, named by its id, so `-k T301` runs one. What is not claimed and what cannot be looked at here
is a skipped test with its reason; `-rs` shows them all.
"""

from __future__ import annotations

from typing import Any

import pytest

from ...core.conformance import Check, Level, Status
from .kit import KIT, Bench, bench_for, conform

__all__: list[str] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each check up to the level that was asked for."""
    if metafunc.config.getoption("--transport") is None:
        raise pytest.UsageError("which transport? give --transport, such as --transport tcp://127.0.0.1:0")
    level = Level[metafunc.config.getoption("--level")]
    checks = KIT.select(level=level)
    metafunc.parametrize("check", checks, ids=[f"{check.id}-{check.name}" for check in checks])


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest) -> Bench:
    return bench_for(request.config.getoption("--transport"), thorough=not request.config.getoption("--fast"))


def test_transport(check: Check[Any], bench: Bench) -> None:
    """Each check of the kit."""
    (outcome,) = conform(bench, only=[check.id]).outcomes
    if outcome.status in (Status.NOT_CLAIMED, Status.NOT_CHECKED):
        pytest.skip(f"{outcome.status.value.replace('_', ' ')}: {outcome.message}")
    if not outcome.ok:
        pytest.fail(f"{outcome.message}\nasserts: {outcome.asserts}\nexplained: docs/{outcome.doc}", pytrace=False)
