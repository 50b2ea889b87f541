"""The kit as tests: `pytest --pyargs paceline.backends.conformance --averager mypackage:MyAverager`."""

from __future__ import annotations

from typing import Any

import pytest

from ...core.conformance import Kit
from ...transports.pytest_kit import Judge, kit_tests, option, patience
from . import CHECK_S, KIT, averager_named, check_averager, claims_of, ensure_suits

__all__: list[str] = []


def _asked(config: pytest.Config) -> tuple[Kit[Any], Judge]:
    target = option(config, "--averager", "star")
    make, over, processes = averager_named(target), config.getoption("--over"), config.getoption("--processes")
    ensure_suits(target, claims_of(make, patience(config, CHECK_S)), over, processes)
    check_s = patience(config, CHECK_S)
    return KIT, lambda check: check_averager(
        make, target=target, only=[check], over=over, processes=processes, check_s=check_s
    )


pytest_generate_tests, test_averager = kit_tests(_asked)
