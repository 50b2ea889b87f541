"""Knobs on a command line: `--set KNOB=VALUE`, and what they name."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from ..core.config import Config
from ..core.errors import ConfigError
from ..core.policy_choice import choose

__all__ = ["find_here", "load_policies", "parse_knobs"]


def parse_knobs(words: Sequence[str]) -> dict[str, Any]:
    """`anchor=20` is the number 20; what is no JSON is text. Raises `ConfigError` for a word without a sign."""
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--set {word!r} is not allowed: write KNOB=VALUE, such as anchor=20")
        try:
            values[name] = json.loads(text)
        except (ValueError, RecursionError):
            values[name] = text
    return values


def find_here() -> None:
    """As long as this command lasts `module:factory` may name a module of the working directory. It is looked for there
    last: a file that happens to be called as a library is must not be taken for it."""
    here = os.getcwd()
    sys.path.append(here)
    click.get_current_context().call_on_close(lambda: sys.path.remove(here))


def load_policies(config: Config) -> None:
    """The policies that the config names are there and can be made. Raises `ConfigError`; it is raised before any
    process of the run is started."""
    find_here()
    choose(config)
