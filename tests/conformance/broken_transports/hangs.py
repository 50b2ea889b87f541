"""Calls that never come back, and keep the thread in which everything runs."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import trio

from paceline.transports.api import Channel, Credentials

from .base import SoundChannel, SoundTransport


class IsNeverMade(SoundTransport):
    """The factory waits for what nobody does."""

    patience_s: ClassVar[float] = 0.2

    def __init__(self) -> None:
        threading.Event().wait()


class DialsOnTheSpot(SoundTransport):
    """Asks again and again whether the other end is there, and lets nobody else run meanwhile."""

    patience_s: ClassVar[float] = 0.2

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        while url:
            pass
        return await super().dial(url, credentials)


class WillNotBeCancelled(SoundTransport):
    """Takes a cancellation for a fault of the line, and tries again."""

    patience_s: ClassVar[float] = 0.2

    class layer(SoundChannel):
        async def receive(self) -> Any:
            while True:
                try:
                    await trio.sleep(0.01)
                except trio.Cancelled:
                    continue
