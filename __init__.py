"""Unequal machines train one PyTorch model by Local SGD, and the fast ones never wait for the slow ones.

A trainer needs `Session`. Who embeds the coordinator in an event loop of their own needs `Coordinator`, `Worker` and
`Link`. Everything else is reached by its module: `paceline.core`, `paceline.transports`, `paceline.backends`.

Names are imported when they are first used. `import paceline` loads neither torch nor trio, so that the command line
answers `--help` at once, and a program that only drives the state machine needs neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0.dev0"

__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "Coordinator",
    "InvariantError",
    "Link",
    "LocalProtocolError",
    "PacelineError",
    "RefusedError",
    "RemoteProtocolError",
    "Session",
    "StallError",
    "TransportError",
    "Worker",
    "__version__",
]

if TYPE_CHECKING:
    from .backends.session import Session
    from .core.config import Config
    from .core.coordinator import Coordinator
    from .core.errors import (
        CheckpointError,
        ConfigError,
        InvariantError,
        LocalProtocolError,
        PacelineError,
        RefusedError,
        RemoteProtocolError,
        StallError,
        TransportError,
    )
    from .core.wire import Link
    from .core.worker import Worker
else:
    # Hidden from type checkers: one that sees a module `__getattr__` takes every misspelt name for a good one.
    _HOMES = {
        "CheckpointError": ".core.errors",
        "Config": ".core.config",
        "ConfigError": ".core.errors",
        "Coordinator": ".core.coordinator",
        "InvariantError": ".core.errors",
        "Link": ".core.wire",
        "LocalProtocolError": ".core.errors",
        "PacelineError": ".core.errors",
        "RefusedError": ".core.errors",
        "RemoteProtocolError": ".core.errors",
        "Session": ".backends.session",
        "StallError": ".core.errors",
        "TransportError": ".core.errors",
        "Worker": ".core.worker",
    }
    _TENSORS = ("numpy", "safetensors", "torch")

    def __getattr__(name):
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(home, __name__), name)
        except ModuleNotFoundError as error:
            # Only a package that is absent altogether: a broken installation of torch has to tell its own story.
            if error.name not in _TENSORS:
                raise
            raise ImportError(
                f"paceline.{name} needs {error.name}, which is not installed: pip install 'paceline[torch]'",
                name=error.name,
            ) from None
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
