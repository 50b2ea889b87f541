"""Calls that never come back, and keep the thread in which everything runs."""

from __future__ import annotations

import threading
from typing import Any

import trio

from paceline.transports.api import Channel, Credentials

from .base import SoundChannel, SoundTransport
from conformance.hanging import endless, never_comes_back


class IsNeverMade(SoundTransport):
    """The factory waits for what nobody does."""

    @endless
    def __init__(self) -> None:
        threading.Event().wait()


class DialsOnTheSpot(SoundTransport):
    """Asks again and again whether the other end is there, and lets nobody else run meanwhile."""

    @endless
    async def dial(self, url: str, credentials: Credentials) -> Channel:
        while url:
            pass
        return await super().dial(url, credentials)


class WillNotBeCancelled(SoundTransport):
    """Takes a cancellation for a fault of the line, and tries again."""

    class layer(SoundChannel):
        async def receive(self) -> Any:
            while True:
                try:
                    await trio.sleep_forever()
                except trio.Cancelled:
                    never_comes_back()
