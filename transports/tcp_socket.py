"""One TCP connection as a byte lane: socket options, whole writes, and the bound on a write without progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from .api import Buffer

__all__ = ["Address", "SocketLane", "address_text"]

Address = tuple[Any, ...]
"""A socket address as the standard library gives and takes it: host and port, then two numbers more under IPv6."""

KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3
"""A bulk lane is silent for a whole window. Probes keep its entry in address translators alive, and show within a
minute that the host at the other end is gone, which heartbeats show for the control lane only."""

_OPTIONS = (
    ("IPPROTO_TCP", "TCP_NODELAY", 1),
    ("SOL_SOCKET", "SO_KEEPALIVE", 1),
    ("IPPROTO_TCP", "TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
    ("IPPROTO_TCP", "TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
    ("IPPROTO_TCP", "TCP_KEEPCNT", KEEPALIVE_PROBES),
)
"""Level, name and value of each option; a system that lacks one of the names goes without. Buffer sizes are left to
the kernel, which tunes them better while nobody sets them."""


class SocketLane:
    """A connected trio socket as a `framed.ByteLane`; takes it over and closes it.

    The socket is used directly and not through a stream, so that blocks are received into their final memory.
    `write_stall_s` bounds a write without progress, and is lifted from a lane that turns out to be a bulk lane: there
    the reader is meant to hold the writer back, a fast rank until a slow one has shipped (R-11), and whether the peer
    lives is shown by its heartbeats.
    """

    def __init__(self, connected: trio.socket.SocketType, write_stall_s: float) -> None:
        self._socket = connected
        self.write_stall_s = write_stall_s
        self.family = int(connected.family)
        self.remote: Address = connected.getpeername()
        for level, name, value in _OPTIONS:
            if hasattr(trio.socket, name):
                connected.setsockopt(getattr(trio.socket, level), getattr(trio.socket, name), value)

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


def address_text(address: Address) -> str:
    """`host:port`, an IPv6 address in brackets."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
