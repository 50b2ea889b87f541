"""A connected socket as a byte lane: whole writes, and a bound on a write without progress."""

from __future__ import annotations

import math
from collections.abc import Sequence

import trio

from .api import Buffer

__all__ = ["SocketLane"]


class SocketLane:
    """A connected trio socket of any family as a `framed.ByteLane`; takes it over and closes it.

    The socket is used directly and not through a stream, so that blocks are received into their final memory.
    `write_stall_s` bounds a write without progress, in seconds; by itself a write waits as long as the peer takes.
    """

    def __init__(self, connected: trio.socket.SocketType, write_stall_s: float = math.inf) -> None:
        self._socket = connected
        self.write_stall_s = write_stall_s

    async def send(self, views: Sequence[Buffer]) -> None:
        """Write all views. `TimeoutError` when the peer takes not one byte for `write_stall_s` (M-3): somebody who
        is alive but does not read holds memory at both ends and makes everyone wait."""
        rest = [view for view in views if len(view) > 0]
        while rest:
            taken = -1
            with trio.move_on_after(self.write_stall_s):
                taken = await self._socket.sendmsg(rest)
            if taken < 0:
                raise TimeoutError(f"the peer took no byte for {self.write_stall_s:g} s")
            while rest and taken >= len(rest[0]):
                taken -= len(rest[0])
                del rest[0]
            if taken:
                rest[0] = rest[0][taken:]

    async def receive_into(self, buffer: Buffer) -> int:
        """At most `len(buffer)` bytes straight into it; 0 is the end of the stream."""
        return await self._socket.recv_into(buffer)

    def close(self) -> None:
        """Close the socket, waking everything that waits on it."""
        self._socket.close()
