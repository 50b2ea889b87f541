"""A transport that no limit inside the process ends, as the guards of `broken_policies/holds.py`."""

from __future__ import annotations

import itertools
from typing import Any

from paceline.transports.api import Credentials
from paceline.transports.memory import MemoryTransport

__all__ = ["HoldsInDial"]


class HoldsInDial(MemoryTransport):
    """Looks for a free number, and holds the loop of events and all other threads meanwhile."""

    async def dial(self, url: str, credentials: Credentials) -> Any:
        max(itertools.count())
        return await super().dial(url, credentials)
