"""L3, who should not be there: strangers, noise, diallers that stop half way, and listeners that are not there."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import AsyncExitStack, suppress
from urllib.parse import urlsplit

import attrs
import trio

from ...core.conformance import CheckFailed, Level, NotChecked, accepting, ensure
from ...core.errors import RefusedError, TransportError
from ...core.messages import RejectCode
from ..api import Credentials
from .kit import KIT, PAGE, Bench, Pair, due, within
from .leaks import DESCRIPTORS
from .stage import Meeting, cancelled_after, exchange, heartbeat, meet

__all__: list[str] = []

DIALS = f"{PAGE}#dialling"
STRANGERS = f"{PAGE}#strangers"

FRESH = 7
"""The number of the heartbeat by which a new channel is known."""

NOISE = {
    "a web browser": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "a TLS client": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "zeros": bytes(64),
    "a long line": b"\xff" * 200,
    "one byte": b"P",
    "half a prelude": b"PCLN\x01\x01\x01\x01",
}


@KIT.check("T331", Level.L3, doc=DIALS)
async def a_dial_to_nobody_says_so(bench: Bench) -> None:
    """Where nobody listens a dial ends, in bounded time, with a `TransportError` that names the address."""
    async with bench.open() as (transport, url):
        listener = await transport.listen(url, bench.credentials)
        await listener.aclose()
        address = listener.url.partition("://")[2]
        with due(TransportError, "a dial to nobody", bench.limit_s, naming=[address]):
            await transport.dial(listener.url, bench.credentials)


@KIT.check("T332", Level.L3, doc=DIALS)
async def a_dial_that_is_cancelled_leaves_nothing(bench: Bench) -> None:
    """Dials that are cancelled at any point disturb neither the listener nor those who come after."""
    async with meet(bench) as met:
        for turns in range(bench.times(60, 20)):
            with cancelled_after(turns):
                with accepting("a dial after others that were cancelled"):
                    rank = await met.transport.dial(met.listener.url, bench.credentials)
                await rank.aclose()
        await exchange(await _join(met, bench, "a dial after some that were cancelled"))


async def strangers_get_in(bench: Bench) -> None:
    """Without `authenticated`, who can reach the address is let in, whatever it knows."""
    async with meet(bench) as met:
        for stranger in _strangers(bench):
            try:
                channel = await met.transport.dial(met.listener.url, stranger)
            except RefusedError as refusal:
                raise CheckFailed(f"a stranger was refused ({refusal}): claim authenticated") from refusal
            await channel.aclose()


@KIT.check("T341", Level.L3, doc=STRANGERS, needs="authenticated", unclaimed=strangers_get_in)
async def strangers_are_refused(bench: Bench) -> None:
    """Who has another run id or token gets a final `RefusedError` (code 2, no retry) at once; nobody else notices
    (N-22, M-5)."""
    async with meet(bench) as met:
        both = await met.join()
        for stranger in _strangers(bench):
            what = "run id" if stranger.token == bench.credentials.token else "token"
            with due(RefusedError, f"a dial with another {what}", bench.limit_s):
                try:
                    channel = await met.transport.dial(met.listener.url, stranger)
                except RefusedError as refusal:
                    final = refusal.code == RejectCode.OTHER_RUN and not refusal.retry
                    ensure(final, f"a dial with another {what} was refused with code {refusal.code}, to be tried again")
                    raise
                await channel.aclose()
        await exchange(both)
        await exchange(await met.join(), 2)
        ensure(met.arrivals.statistics().current_buffer_used == 0, "a stranger was refused and served all the same")


def _strangers(bench: Bench) -> list[Credentials]:
    return [
        attrs.evolve(bench.credentials, run_id=bytes(16)),
        attrs.evolve(bench.credentials, token=bytes(32)),
    ]


async def no_door_is_open(bench: Bench) -> None:
    """Without `across_processes` nothing is there at which another program could knock: no socket listens."""
    before = _listening()
    async with meet(bench):
        more = _listening() - before
    ensure(not more, f"while it listens, programs can knock at {', '.join(more)}: claim across_processes")


async def only_this_host_gets_in(bench: Bench) -> None:
    """Without `across_hosts` no socket listens at an address that other hosts can reach."""
    before = _listening()
    async with meet(bench):
        more = {each for each in _listening() - before if not each.startswith(("127.", "::1", "unix"))}
    ensure(not more, f"while it listens, other hosts can knock at {', '.join(more)}: claim across_hosts")


def _listening() -> set[str]:
    """Where sockets of this process take connections. Those of Unix are all of this host, and may have no name."""
    if not DESCRIPTORS.exists():
        raise NotChecked(f"this system does not list its descriptors at {DESCRIPTORS}")
    found = set()
    for name in os.listdir(DESCRIPTORS):
        with suppress(OSError):  # the descriptor of the listing itself is gone by now
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as opened:
                    if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found.add(_address(opened))
    return found


def _address(listening: socket.socket) -> str:
    if listening.family in (socket.AF_INET, socket.AF_INET6):
        host, port, *_ = listening.getsockname()
        return f"{host} port {port}"
    return f"unix {listening.getsockname()!r}, number {listening.fileno()}"


@KIT.check("T342", Level.L3, doc=STRANGERS, needs="across_processes", unclaimed=no_door_is_open)
async def noise_disturbs_nobody(bench: Bench) -> None:
    """Bytes of other programs on the address end nothing but their own connection, and no handler sees them (N-29)."""
    async with meet(bench) as met:
        both = await met.join()
        for who, noise in NOISE.items():
            async with await _knock(bench, met.listener.url) as stranger:
                with suppress(trio.BrokenResourceError):  # closed at the first bytes, as it should be
                    await stranger.send_all(noise)
                await exchange(both)
                await exchange(await _join(met, bench, f"a dial after {who}"))
        ensure(met.arrivals.statistics().current_buffer_used == 0, "a handler was run for noise")


@KIT.check("T343", Level.L3, doc=STRANGERS, needs="across_processes")
async def a_handshake_that_stands_still_is_ended(bench: Bench) -> None:
    """Who connects and says nothing, or stops in the middle, is closed in bounded time, and keeps nobody out meanwhile
    (N-25)."""
    async with meet(bench) as met, AsyncExitStack() as standing:
        silent = [await standing.enter_async_context(await _knock(bench, met.listener.url)) for _ in range(3)]
        await silent[1].send_all(b"PCLN\x01")
        await silent[2].send_all(b"P")
        await exchange(await _join(met, bench, "a dial while others stand still"))
        what = "the end of a handshake that stands still"
        for stranger in silent:
            with within(bench.limit_s, what), suppress(trio.BrokenResourceError):
                while await stranger.receive_some(4096):
                    continue


async def _join(met: Meeting, bench: Bench, what: str) -> Pair:
    """A new channel, in bounded time. Channels of dials that were cancelled late may have come before it, and end by
    themselves: only one whose exchange works is the one just dialled."""
    with within(bench.limit_s, what):
        with accepting(what):
            rank = await met.transport.dial(met.listener.url, bench.credentials)
            met.dialled.append(rank)
            await rank.send(heartbeat(FRESH))
        while True:
            coordinator = await met.arrivals.receive()
            try:
                ensure(await coordinator.receive() == heartbeat(FRESH), "a heartbeat came as something else")
            except TransportError:
                continue
            return rank, coordinator


async def _knock(bench: Bench, url: str) -> trio.abc.Stream:
    """A plain connection to a listener's address."""
    if bench.stranger is not None:
        return await bench.stranger(url)
    parts = urlsplit(url)
    if parts.hostname and parts.port:
        return await trio.open_tcp_stream(parts.hostname, parts.port)
    if parts.path and os.path.exists(parts.path):
        return await trio.open_unix_socket(parts.path)
    raise NotChecked(f"nothing is known that could knock at {url}: give the bench a stranger if there is")


@KIT.check("T344", Level.L3, doc=STRANGERS, needs="across_hosts", unclaimed=only_this_host_gets_in)
async def the_address_names_a_host(bench: Bench) -> None:
    """The listener's URL has a host and a port, or a name that other hosts can look up. That another host really
    reaches it is not looked at: the kit runs on one."""
    async with meet(bench) as met:
        named = bool(urlsplit(met.listener.url).hostname)
        ensure(named, f"{met.listener.url} names no host, and across_hosts is claimed")
