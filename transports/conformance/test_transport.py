"""The kit as tests: `pytest --pyargs paceline.transports.conformance --transport pigeon://loft`."""

from __future__ import annotations

from typing import Any

import pytest

from ...core.conformance import Kit
from ..pytest_kit import Judge, kit_tests, option, patience
from .kit import KIT, PATIENCE_S, bench_for, conform

__all__: list[str] = []


def _asked(config: pytest.Config) -> tuple[Kit[Any], Judge]:
    target = option(config, "--transport", "tcp://127.0.0.1:0")
    bench = bench_for(target, thorough=not config.getoption("--fast"), patience_s=patience(config, PATIENCE_S))
    return KIT, lambda check: conform(bench, only=[check])


pytest_generate_tests, test_transport = kit_tests(_asked)
