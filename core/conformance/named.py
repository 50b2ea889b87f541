"""What a plug-in that is not installed is called: `module:name`."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import ConfigError

__all__ = ["named"]


def named(target: str, what: str) -> Any:
    """The object that `module:name` names; `name` may have dots. Raises `ConfigError` that says which part of it is
    wrong; `what` is what was looked for."""
    module, _, name = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as failure:
        raise ConfigError(
            f"{what} {target!r} cannot be loaded: {failure}; give module:name, importable from here"
        ) from failure
    return found
