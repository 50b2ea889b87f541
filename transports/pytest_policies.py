"""The kits for policies as tests:

    pytest --pyargs paceline.transports.pytest_policies --policy mypackage:MyGuard --kind guard
"""

from __future__ import annotations

from typing import Any

import pytest

from ..core.conformance import PATIENCE_S, Kit
from ..core.conformance.policies import KITS, check_policy, policy_named
from .limit import ended
from .pytest_kit import Judge, kit_tests, option, patience

__all__: list[str] = []


def _asked(config: pytest.Config) -> tuple[Kit[Any], Judge]:
    target = option(config, "--policy", "mypackage:MyGuard")
    kind = option(config, "--kind", "guard")
    make = policy_named(kind, target)
    patience_s = patience(config, PATIENCE_S)
    return KITS[kind], lambda check: check_policy(kind, make, target=target, only=[check], limit=ended,
                                              patience_s=patience_s)  # fmt: skip


pytest_generate_tests, test_policy = kit_tests(_asked)
