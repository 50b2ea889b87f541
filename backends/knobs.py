"""Knobs on a command line: `--set KNOB=VALUE`, and what they name."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Sequence
from typing import Any

import click
from click.core import ParameterSource

from ..core.config import Config
from ..core.errors import ConfigError
from ..core.policy_choice import choose

__all__ = ["find_here", "load_policies", "parse_knobs", "was_given"]

OPTIONS = {"num_epochs": "epochs", "initial_state": "resume", "target_ranks": "ranks"}
"""Knobs that have an option of another name than theirs."""


def parse_knobs(words: Sequence[str], options: Collection[str] = ("policy",)) -> dict[str, Any]:
    """`anchor=20` is the number 20; what is no JSON is text. `options` are those of the command that say a knob. Raises
    `ConfigError` for a word without a sign, and for a knob that is given twice, here or by an option of its own: one of
    the two would be dropped without a word."""
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--set {word!r} is not allowed: write KNOB=VALUE, such as anchor=20")
        option = OPTIONS.get(name, name)
        if option in options and was_given(option):
            by = f"--{option.replace('_', '-')}"
            raise ConfigError(f"{name} is given twice, by {by} and by --set {word}: give it once")
        if name in values:
            raise ConfigError(f"{name} is given twice, the second time by --set {word}: give it once")
        try:
            values[name] = json.loads(text)
        except (ValueError, RecursionError):
            values[name] = text
    return values


def was_given(option: str) -> bool:
    """Whether the user wrote this option of the command that runs, rather than left it at its default."""
    context = click.get_current_context(silent=True)
    source = None if context is None else context.get_parameter_source(option)
    return source is not None and source is not ParameterSource.DEFAULT


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
