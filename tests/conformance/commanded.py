"""Plug-ins that the tests of `paceline conform` name: the command runs its kit in a process of its own, which imports
them from here."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import trio

from paceline.core.guard import GuardInput, LevelGuard, Verdict
from paceline.core.messages import BulkBlock
from paceline.transports.api import Credentials
from paceline.transports.memory import MemoryTransport

from conformance.broken_transports.base import SoundChannel, SoundTransport


def cannot_be_made() -> None:
    raise OSError("the device is not there")


class Deaf(MemoryTransport):
    """Lets everybody in, and serves nobody."""

    async def listen(self, url: str, credentials: Credentials) -> Any:
        listener: Any = await super().listen(url, credentials)
        serve = listener.serve
        listener.serve = lambda handler: serve(lambda channel: trio.sleep_forever())
        return listener


class Slow(MemoryTransport):
    """A dial that takes for ever."""

    async def dial(self, url: str, credentials: Credentials) -> Any:
        await trio.sleep_forever()


class LeavesInABlock(SoundTransport):
    """Ends as an interrupt by the user would, for a block."""

    class layer(SoundChannel):
        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            raise KeyboardInterrupt


class IsInterrupted(LevelGuard):
    """While this is asked, the user has had enough, and interrupts the command."""

    def observe(self, cycle: GuardInput) -> Verdict:
        os.kill(os.getppid(), signal.SIGINT)
        threading.Event().wait()
        return super().observe(cycle)
