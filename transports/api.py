"""What a transport is: bytes between a coordinator and its ranks, nothing else.

A transport is found by URL scheme (entry point group `paceline.transports`), listens or dials, and yields a `Channel`
for each peer. A channel has two lanes. **Control** carries messages, small and in order. **Bulk** carries large
buffers, sent from and received into memory the caller owns. A full bulk lane never delays control (N-5). Loss of the
peer is reported at once and exactly once; nothing is delivered after close.

Error contract of every coroutine here: `TransportError` when the peer or the network ended the link (its text names
the peer and the cause), `RemoteProtocolError` when the peer sent what no correct peer sends, `trio.Cancelled` as
usual. A frame is written whole or the link is closed and never used again (N-4), cancellation included.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import attrs

from ..core.messages import BulkBlock

__all__ = ["Capabilities", "Channel", "Credentials", "Listener", "Place", "Transport"]

Buffer = memoryview
Place = Callable[[BulkBlock], Buffer]
"""Given a verified-in-shape block header, returns the writable memory its data goes into: exactly `block.bytes` long,
one-dimensional, contiguous, format 'B'. Raising `RemoteProtocolError` refuses the block and ends the link."""


@attrs.frozen(kw_only=True)
class Credentials:
    """What proves that both ends belong to one run (N-22): `run_id` 16 bytes, `token` 32 secret bytes."""

    run_id: bytes
    token: bytes
    bulk_auth: str = "full"


@attrs.frozen(kw_only=True)
class Capabilities:
    """What a transport claims; `transports.conformance` checks each claim in both directions.

    Fields:
        across_processes: another process of this host can dial the listener's URL. Without it such a dial is a
            `TransportError` or `ConfigError`.
        across_hosts: the listener's URL names a host, so that other hosts can dial it.
        authenticated: who does not know run id and token is refused (N-22). Without it whoever can reach the address is
            let in, so the address itself has to keep strangers out.
        separate_bulk: control passes while nobody reads bulk at all. Without it control may wait for blocks that are
            not read, and must arrive when they are (N-5 holds while blocks move).
    """

    across_processes: bool
    across_hosts: bool
    authenticated: bool
    separate_bulk: bool


class Channel(Protocol):
    """One peer, both lanes. One task may receive on a lane at a time, any number may send (each frame is whole)."""

    peer: str

    async def send(self, message: Any) -> None:
        """Send one message of `core.messages.KINDS` on the control lane."""
        ...

    async def receive(self) -> Any:
        """The next message of the control lane; `TransportError` at its end."""
        ...

    async def send_bulk(self, block: BulkBlock, data: Buffer) -> None:
        """Send `data` (`block.bytes` long) on the bulk lane; returns when the memory may be reused."""
        ...

    async def receive_bulk(self, place: Place) -> BulkBlock:
        """Receive one block into the memory that `place` names, verify it, return its header."""
        ...

    async def aclose(self) -> None:
        """Close both lanes at once; idempotent. Anything blocked on them gets `TransportError`."""
        ...


class Listener(Protocol):
    """The coordinator's end: where ranks arrive."""

    url: str
    """The URL to dial, with the real port."""

    async def serve(self, handler: Callable[[Channel], Awaitable[None]]) -> None:
        """Accept for ever; `handler` runs in a task of its own per channel, whose both lanes are up and whose peer
        has proved the token. An exception of the handler ends its own channel only, except cancellation."""
        ...

    async def aclose(self) -> None:
        """Stop accepting and close the socket."""
        ...


class Transport(Protocol):
    """A scheme: how to listen and how to dial. One with times of its own multiplies them by its attribute `time_scale`,
    which is set before anything else is asked of it (M-3)."""

    scheme: str
    capabilities: Capabilities

    async def listen(self, url: str, credentials: Credentials) -> Listener:
        """Bind; `TransportError` that names the address when it is taken or not ours."""
        ...

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        """Connect both lanes and prove both sides (N-22); `TransportError` when nobody answers, `RefusedError` when
        the coordinator is of another protocol, and when it does not know the token."""
        ...
