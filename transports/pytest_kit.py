"""A kit as tests of pytest: one for each check, named by its id, so that `-k T301` runs one.

What is not claimed, and what cannot be looked at here, is a skipped test with its reason; `-rs` shows them all. A
package of checks has a module that pytest collects, of a few lines:

    pytest_generate_tests, test_codec = kit_tests(lambda config: (KIT, judge_of(config.getoption("--codec"))))

and its options an entry in `paceline.transports.pytest_plugin`. The kits themselves know nothing of pytest: those of
policies are on the floor of core, and what makes tests of them is `pytest_policies` beside this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ..core.conformance import Kit, Level, Report, Status
from ..core.errors import ConfigError

__all__ = ["Asked", "Judge", "kit_tests", "option", "patience"]

Judge = Callable[[str], Report]
"""Runs the one check of this id and reports."""
Asked = Callable[[pytest.Config], tuple[Kit[Any], Judge]]
"""What the options of a session ask for: a kit, and how one of its checks is run over the plug-in that they name."""


def option(config: pytest.Config, name: str, example: str) -> str:
    """An option without which there is nothing to check. `ConfigError` with an example if it is not given."""
    given: str | None = config.getoption(name)
    if given is None:
        raise ConfigError(f"what is to be checked? give {name}, such as {name} {example}")
    return given


def patience(config: pytest.Config, usual_s: float) -> float:
    """How long a check may take: what the session was given, or what is usual. `ConfigError` if that is no time."""
    given = config.getoption("--patience")
    if given is not None and not 0 < given < math.inf:
        raise ConfigError(f"--patience {given:g} is not allowed: give a finite number of seconds above 0")
    return usual_s if given is None else given


def kit_tests(asked: Asked) -> tuple[Callable[[pytest.Metafunc], None], Callable[[Judge, str], None]]:
    """The two names that a module of tests needs: `pytest_generate_tests`, and the test, whose name is free."""

    def generate(metafunc: pytest.Metafunc) -> None:
        try:
            kit, judge = asked(metafunc.config)
        except ConfigError as mistake:
            # Shown as it is; any other exception would be shown with a traceback through files of paceline.
            raise pytest.Collector.CollectError(str(mistake)) from None
        checks = kit.select(level=Level[metafunc.config.getoption("--level")])
        names = [f"{check.id}-{check.name}" for check in checks]
        metafunc.parametrize(("judge", "check"), [(judge, check.id) for check in checks], ids=names)

    def test(judge: Judge, check: str) -> None:
        (outcome,) = judge(check).outcomes
        if outcome.status in (Status.NOT_CLAIMED, Status.NOT_CHECKED):
            pytest.skip(f"{outcome.status.value.replace('_', ' ')}: {outcome.message}")
        if not outcome.ok:
            pytest.fail(
                f"{outcome.message}\nasserts: {outcome.asserts}\nexplained: docs/{outcome.doc}", pytrace=False
            )

    return generate, test
