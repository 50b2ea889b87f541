"""The kits as tests: `pytest --pyargs paceline.core.conformance.policies --policy mypackage:MyGuard --kind guard`."""

from __future__ import annotations

from typing import Any

import pytest

from .. import Kit
from ..named import named
from ..pytest_kit import Judge, kit_tests, option
from . import KITS, check_policy

__all__: list[str] = []


def _asked(config: pytest.Config) -> tuple[Kit[Any], Judge]:
    target = option(config, "--policy", "mypackage:MyGuard")
    kind = option(config, "--kind", "guard")
    make = named(target, "policy")
    return KITS[kind], lambda check: check_policy(kind, make, target=target, only=[check])


pytest_generate_tests, test_policy = kit_tests(_asked)
