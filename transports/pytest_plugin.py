"""The options of the conformance kits when pytest runs them, such as

    pytest --pyargs paceline.transports.conformance --transport pigeon://loft

pytest loads this module in every session of everybody who has paceline installed, because options can only be added
before anything is collected. So it imports nothing of paceline, and adds nothing unless a kit was asked for by its
name: a project may have a `--transport` of its own.

The kits of all floors have their options here; what makes tests of their checks is `pytest_kit` beside this file.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

__all__ = ["OPTIONS", "pytest_load_initial_conftests"]

OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "paceline.transports.conformance": {
        "--transport": {
            "metavar": "TARGET",
            "help": "the transport to check: pigeon://address, or module:factory@pigeon://address",
        },
        "--fast": {"action": "store_true", "help": "repeat little and use few channels"},
    },
    "paceline.backends.conformance": {
        "--averager": {"metavar": "NAME", "help": "the averager to check: an installed one, or module:class"},
        "--over": {"metavar": "URL", "help": "the transport that carries the blocks of one that ships"},
        "--processes": {"action": "store_true", "help": "ranks of one that averages in place are processes"},
    },
    "paceline.transports.pytest_policies": {
        "--policy": {"metavar": "NAME", "help": "the policy to check: one that ships, or module:factory"},
        "--kind": {"choices": ["cadence", "guard", "detector"], "help": "what it decides"},
    },
}
"""For each package or module of checks its options, as `argparse` takes them."""

PATIENCE = {"type": float, "metavar": "SECONDS", "help": "after this a check is taken to hang, and has failed"}
LEVEL = {"default": "L3", "choices": ["L0", "L1", "L2", "L3"], "help": "how deep to check"}


def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Add the options of the kits that the command line names, and of no other. Modules of the working directory are
    then found, as by `paceline conform`: a plug-in that is not installed lies there."""
    asked = [name for name in OPTIONS if any(argument.partition("::")[0] == name for argument in args)]
    if not asked:
        return
    sys.path.insert(0, str(early_config.invocation_params.dir))
    group = parser.getgroup("paceline", "conformance kits of paceline")
    for option, described in (each for name in asked for each in OPTIONS[name].items()):
        group.addoption(option, **described)
    group.addoption("--level", **LEVEL)
    group.addoption("--patience", **PATIENCE)
