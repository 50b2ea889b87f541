"""What commands say where a package of an extra is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import ConfigError

__all__ = ["needing"]


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """The imports of the block need an extra of paceline; `ConfigError` that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        text = f"this command needs {error.name}, which is not installed: pip install 'paceline[{extra}]'"
        raise ConfigError(text) from error
