"""Modules of folders that are no packages, such as docs/."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

__all__ = ["loaded"]


def loaded(path: Path) -> ModuleType:
    """The module of a file, fresh, so that a test may change it."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
