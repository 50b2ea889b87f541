"""The wire of one process: two production `Link`s, back to back, whose frames lie in the lanes of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..errors import RemoteProtocolError
from ..wire import Link, LinkKeys, PayloadCodec, Role

__all__ = ["Frames"]

KEYS = LinkKeys(up=bytes(range(32)), down=bytes(range(32, 64)))
"""Any two keys, so that every frame is authenticated."""


class Frames:
    """See the module. `hear` gives the messages that some bytes complete; what the peer may not send comes as text.
    `inside` are the ends that have heard a part of a frame: for them the lane is not empty, though nothing is in it."""

    def __init__(self, codec: PayloadCodec, reached: Callable[[str], None]) -> None:
        self.inside: set[Role] = set()
        self._reached = reached
        self._links = {role: Link(codec=codec, keys=KEYS, role=role) for role in Role}

    def say(self, role: Role, message: Any) -> bytes:
        """The frame of a message of this end."""
        return self._links[role].send(message)

    def hear(self, role: Role, data: bytes | None) -> Iterator[Any]:
        """What this end gets out of these bytes, None for the end of the stream."""
        link = self._links[role]
        try:
            if data is None:
                link.receive_eof()
            else:
                link.receive_data(data)
            message = link.next_message()
            if message is not None:
                self.inside.discard(role)
            elif data:
                self.inside.add(role)
                self._reached("half a frame waited")
            while message is not None:
                yield message
                message = link.next_message()
        except RemoteProtocolError as fault:
            self._reached("a damaged frame ended a link")
            yield str(fault)
