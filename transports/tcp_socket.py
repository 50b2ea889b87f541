"""One TCP connection as a byte lane: the options of its socket, and its address as text."""

from __future__ import annotations

import ipaddress
from typing import Any

import trio

from .socket_lane import SocketLane

__all__ = ["Address", "TcpLane", "address_text", "on_one_host"]

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


class TcpLane(SocketLane):
    """A TCP connection with the options of this module. `write_stall_s` is lifted from a lane that turns out to be a
    bulk lane: there the reader is meant to hold the writer back, a fast rank until a slow one has shipped (R-11), and
    whether the peer lives is shown by its heartbeats."""

    def __init__(self, connected: trio.socket.SocketType, write_stall_s: float) -> None:
        super().__init__(connected, write_stall_s)
        self.family = int(connected.family)
        self.remote: Address = connected.getpeername()
        self.own: Address = connected.getsockname()
        for level, name, value in _OPTIONS:
            if hasattr(trio.socket, name):
                connected.setsockopt(getattr(trio.socket, level), getattr(trio.socket, name), value)


def on_one_host(own: Address, other: Address) -> bool:
    """Whether the two ends of a connection are on one host (N-26): within a host both have the same address, or both
    are of loopback. Two network namespaces of one kernel, as containers have them, are two hosts here."""
    return bool(own[0] == other[0]) or all(map(_is_loopback, (own, other)))


def _is_loopback(address: Address) -> bool:
    ip = ipaddress.ip_address(address[0])
    # A socket for both families has an address of IPv4 inside one of IPv6, in which Python 3.11 sees no loopback.
    return bool((getattr(ip, "ipv4_mapped", None) or ip).is_loopback)


def address_text(address: Address) -> str:
    """`host:port`, an IPv6 address in brackets."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
