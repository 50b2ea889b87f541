"""Knobs on a command line: `--set KNOB=VALUE`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..core.errors import ConfigError

__all__ = ["parse_knobs"]


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
