"""`tcp://host:port`: ranks on any host, one port, two connections per rank.

Why two connections: a gigabyte of parameters in flight must not stand before a heartbeat (N-5), and bytes on one TCP
connection can't overtake each other. Both connections go to the same port and say in their first prelude which lane
they are (N-21).

Pairing
-------
The listener must know which bulk connection belongs to which control connection, and may not go by addresses, which
proxies share and network translation changes (N-28). So the 32 bytes of a dialler's nonce are made of two halves:

    nonce of P1 = dial id, 16 bytes, the same on both lanes of one dial | 16 bytes of its own

Each half is fresh and random for each dial, thus the whole is as fresh as N-21 wants it. The dial id travels in
clear, but knowing it gains nothing: a lane can be paired only after it has proved the token over its own prelude, and
with a recorded prelude it can't, since the listener's nonce is new.

Opening: when a dialler has both lanes proved it sends one empty block on the bulk lane, and the listener, once it has
paired the lanes, answers with one. So a dial that returns is a channel that a handler is about to serve, and one that
the listener gave up on (too many knocking, partner late) fails inside `dial`, which tries again.

Times are those of M-3: a handshake, pairing included, takes at most `handshake_s`; a write on the control lane that
makes no progress for `write_stall_s` ends the channel; a dial repeats itself for `dial_total_s`.
"""

from __future__ import annotations

import errno
import math
import os
import socket as stdlib_socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import attrs
import trio

from ..core.errors import ConfigError, RefusedError, RemoteProtocolError, TransportError
from ..core.messages import RejectCode
from ..core.wire import NONCE_BYTES, PRELUDE_2, DialHandshake, Lane, LinkKeys, Role
from .api import Capabilities, Channel, Credentials
from .framed import FramedChannel, check_credentials, fill
from .tcp_listener import DIAL_ID_BYTES, TcpListener, open_lanes
from .tcp_socket import Address, TcpLane, address_text, on_one_host

__all__ = ["TcpTransport"]

FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 10.0
"""Pauses between two attempts of a dial double from the first to the last of these (M-3), under `time_scale`."""

LEAST_ATTEMPT_S = 1.0
"""What the last attempt of a dial gets when the total is used up."""

LISTEN_BACKLOG = 128
"""Connections the system holds until they are accepted."""

LOOPBACK = "127.0.0.1"
"""Where a listener binds whose URL names no host (N-28)."""


@attrs.define(kw_only=True)
class TcpTransport:
    """Listens and dials over TCP. Times are seconds, see the top of the module; `time_scale` multiplies all of them."""

    dial_total_s: float = 30.0
    handshake_s: float = 10.0
    write_stall_s: float = 30.0
    time_scale: float = 1.0
    """That of the run (M-3), the same on every process."""
    once: bool = False
    """One try per dial, for a caller that counts its tries itself (M-40)."""

    scheme = "tcp"
    capabilities = Capabilities(across_processes=True, across_hosts=True, authenticated=True, separate_bulk=True)

    async def listen(self, url: str, credentials: Credentials) -> TcpListener:
        """Bind host and port of `url`; no host means loopback, port 0 a free port, and the listener's `url` has the
        real one. `TransportError` when that address is taken or not ours; there is no second choice."""
        check_credentials(credentials)
        host, port = _host_and_port(url, lowest_port=0)
        family, address = await _address_to_bind(url, host or LOOPBACK, port)
        bound = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        try:
            # A restarted coordinator must get its port back while connections of its former life are in TIME_WAIT;
            # this does not let two listeners share a port.
            bound.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
            await bound.bind(address)
            bound.listen(LISTEN_BACKLOG)
        except OSError as error:
            bound.close()
            raise TransportError(f"cannot listen at {host or LOOPBACK}:{port}: {_remedy(error)}") from error
        except trio.Cancelled:
            bound.close()
            raise
        return TcpListener(
            listening=bound,
            url=f"tcp://{address_text(bound.getsockname())}",
            credentials=credentials,
            handshake_s=self.handshake_s * self.time_scale,
            write_stall_s=self.write_stall_s * self.time_scale,
        )

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        """Connect both lanes and prove both sides.

        A coordinator that is not there yet, or breaks off, is tried again for `dial_total_s`; a refusal that can't
        succeed later (other run, wrong token, other protocol) ends the dial at once.

        Raises:
            TransportError: nobody answered in all that time.
            RefusedError: the coordinator is of another run or protocol, or does not know the token (N-22), or is on
                another host while tags are to cover headers alone (N-26).
            RemoteProtocolError: what answers is no paceline coordinator.
        """
        check_credentials(credentials)
        host, port = _host_and_port(url, lowest_port=1)
        host = host or LOOPBACK
        total_s, pause = self.dial_total_s * self.time_scale, FIRST_PAUSE_S * self.time_scale
        deadline = trio.current_time() + total_s
        while True:
            failure: Exception
            left = math.inf if self.once else deadline - trio.current_time()
            limit_s = max(LEAST_ATTEMPT_S, min(left, self.handshake_s * self.time_scale))
            try:
                return await self._attempt(host, port, credentials, limit_s)
            except RefusedError as error:
                if not error.retry:
                    raise RefusedError(f"{url}: {error}", code=error.code) from error
                failure = error
            except RemoteProtocolError as error:
                raise RemoteProtocolError(f"{url}: {error}", frame=error.frame) from error
            except (OSError, EOFError) as error:
                failure = error
            left = deadline - trio.current_time()
            if left <= 0 or self.once:
                tried = "once" if self.once else f"for {total_s:g} s"
                if isinstance(failure, RefusedError):
                    text = f"{url}: {failure}; tried {tried}"
                    raise RefusedError(text, code=failure.code, retry=True) from failure
                raise TransportError(
                    f"nobody answers at {host}:{port}, tried {tried} ({_plain(failure)}): "
                    "is the coordinator running, and is this its address?"
                ) from failure
            await trio.sleep(min(pause, left))
            pause = min(2 * pause, LAST_PAUSE_S * self.time_scale)

    async def _attempt(self, host: str, port: int, credentials: Credentials, limit_s: float) -> Channel:
        """One try, at most `limit_s` from the look-up of the name to the listener's opening block."""
        with trio.move_on_after(limit_s), ExitStack() as on_failure:
            dial_id = os.urandom(DIAL_ID_BYTES)
            found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
            control = await self._connect([(entry[0], entry[4]) for entry in found], limit_s)
            on_failure.callback(control.close)
            if credentials.bulk_auth == "header" and not on_one_host(control.own, control.remote):
                raise RefusedError("bulk_auth = header leaves tensors without a tag, and this coordinator is on "
                                   "another host, so that they could be changed on the way: set bulk_auth = full there "
                                   "(N-26)", code=RejectCode.CONFIG)  # fmt: skip
            control_keys = await _prove(control, Lane.CONTROL, dial_id, credentials)
            # The second lane goes where the first one got through, whatever else the name stands for.
            bulk = await self._connect([(control.family, control.remote)], limit_s)
            on_failure.callback(bulk.close)
            bulk_keys = await _prove(bulk, Lane.BULK, dial_id, credentials)
            channel = FramedChannel(
                peer=address_text(control.remote),
                role=Role.RANK,
                control=control,
                bulk=bulk,
                control_keys=control_keys,
                bulk_keys=bulk_keys,
                bulk_auth=credentials.bulk_auth,
            )
            await open_lanes(channel, Role.RANK)
            on_failure.pop_all()
            return channel
        raise TimeoutError(f"no handshake within {limit_s:g} s")

    async def _connect(self, addresses: list[tuple[int, Address]], limit_s: float) -> TcpLane:
        """The first of these addresses that takes a connection; the time is shared among them, so that one which
        swallows everything does not hide the next."""
        failure: OSError = TimeoutError(f"no connection within {limit_s:g} s")
        for family, address in addresses:
            connected = trio.socket.socket(family, trio.socket.SOCK_STREAM)
            with ExitStack() as on_failure, trio.move_on_after(limit_s / len(addresses)):
                on_failure.callback(connected.close)
                try:
                    await connected.connect(address)
                    if connected.getsockname() == connected.getpeername():
                        # While nobody listens, a connect to a port of the ephemeral range may be given that very
                        # port as its own, and then TCP connects it to itself.
                        raise ConnectionRefusedError(errno.ECONNREFUSED, "connected to itself")
                    lane = TcpLane(connected, self.write_stall_s * self.time_scale)
                except OSError as error:
                    failure = error
                else:
                    on_failure.pop_all()
                    return lane
        raise failure


async def _prove(lane: TcpLane, kind: Lane, dial_id: bytes, credentials: Credentials) -> LinkKeys:
    """The dialler's half of N-21 and N-22 on one lane."""
    handshake = DialHandshake(
        run_id=credentials.run_id,
        token=credentials.token,
        lane=kind,
        nonce=dial_id + os.urandom(NONCE_BYTES - len(dial_id)),
    )
    await lane.send((memoryview(handshake.first),))
    second = memoryview(bytearray(PRELUDE_2))
    await fill(lane, second)
    await lane.send((memoryview(handshake.receive(second)),))
    if kind is Lane.BULK:
        lane.write_stall_s = math.inf
    return handshake.keys


async def _address_to_bind(url: str, host: str, port: int) -> tuple[int, Address]:
    try:
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM, flags=trio.socket.AI_PASSIVE)
    except stdlib_socket.gaierror as error:
        raise TransportError(f"cannot listen at {url}: the name {host!r} stands for no address ({error})") from error
    family, _, _, _, address = found[0]
    return family, address


def _host_and_port(url: str, *, lowest_port: int) -> tuple[str, int]:
    """Host (empty if the URL has none) and port of `tcp://host:port`, an IPv6 address in brackets."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no address: {error}") from error
    if parts.scheme != TcpTransport.scheme or parts.path not in ("", "/") or parts.username is not None:
        raise ConfigError(f"{url!r} is no address of this transport: it must read tcp://host:port")
    if port is None or port < lowest_port:
        raise ConfigError(f"{url!r} needs a port of {lowest_port} to 65535, as in tcp://host:port")
    return host, port


def _remedy(error: OSError) -> str:
    """What is wrong with an address to listen at, and what to do about it."""
    if error.errno == errno.EADDRINUSE:
        return "the port is in use: stop the other program (an older run?), choose another port, or 0 for a free one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address: use one of its own, or 0.0.0.0 for all of them"
    if error.errno == errno.EACCES:
        return "not permitted: choose a port of 1024 or above"
    return str(error)


def _plain(failure: Exception) -> str:
    if isinstance(failure, ConnectionRefusedError):
        return "connection refused"
    if isinstance(failure, EOFError):
        return "closed by the peer during the handshake"
    return str(failure)
