"""The wire of one process: two production `Link`s and two `BulkFramer`s, back to back.

The frames of the links lie in the lanes of the process, those of the bulk are made as they arrive (`blocks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..errors import RemoteProtocolError
from ..messages import BulkBlock
from ..wire import FRAME_HEAD, FRAME_TAG, MAP_PREFIX, BulkFramer, Link, LinkKeys, PayloadCodec, Role
from .violation import Violation

__all__ = ["Frames", "turn_bit"]

KEYS = LinkKeys(up=bytes(range(32)), down=bytes(range(32, 64)))
"""Any two keys, so that every frame is authenticated."""


class Frames:
    """See the module. `hear` gives the messages that some bytes complete; what the peer may not send comes as text.
    `waiting` are the ends that have heard a part of a frame: for them the lane is not empty, though nothing is in it.
    `harm` is, by who writes it, the byte of the next bulk frame in which a bit is turned."""

    def __init__(self, codec: PayloadCodec, reached: Callable[[str], None]) -> None:
        self.waiting: set[Role] = set()
        self.harm: dict[Role, int] = {}
        self._reached = reached
        self._codec = codec
        self._links = {role: Link(codec=codec, keys=KEYS, role=role) for role in Role}
        self._bulk = {role: BulkFramer(codec=codec, keys=KEYS, role=role) for role in Role}

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
                self.waiting.discard(role)
            elif data:
                self.waiting.add(role)
                self._reached("half a frame waited")
            while message is not None:
                yield message
                message = link.next_message()
        except RemoteProtocolError as fault:
            self._reached("a damaged frame ended a link")
            yield str(fault)

    # --- bulk ------------------------------------------------------------------------------------------------------

    def size(self, block: BulkBlock, data: bytes) -> int:
        """Bytes of the frame of a block."""
        return FRAME_HEAD + MAP_PREFIX + len(self._codec.encode(block)) + len(data) + FRAME_TAG

    def carry(self, role: Role, block: BulkBlock, data: bytes) -> str:
        """A block that `role` writes is read at the other end: what that has against the frame, "" if nothing."""
        head, tag = self._bulk[role].seal(block, memoryview(data))
        frame = bytearray(head + data + tag)
        place = self.harm.pop(role, None)
        if place is not None:
            turn_bit(frame, place)
        try:
            read = self._read(Role.COORDINATOR if role is Role.RANK else Role.RANK, memoryview(frame))
        except RemoteProtocolError as fault:
            self._reached("a damaged block ended a link")
            return str(fault)
        if read != block:
            raise Violation("N-23", f"{block} was written, {read} was read")
        return ""

    def _read(self, role: Role, frame: memoryview) -> BulkBlock:
        """As a channel does (`transports/framed.py`): piece by piece, each judged before the next."""
        reader, at = self._bulk[role], FRAME_HEAD + MAP_PREFIX
        reader.open_head(frame[:FRAME_HEAD])
        data_at = at + reader.map_bytes(frame[FRAME_HEAD:at])
        block = reader.open_map(frame[at:data_at])
        reader.verify(frame[data_at:-FRAME_TAG], frame[-FRAME_TAG:])
        return block


def turn_bit(frame: bytearray, place: int) -> None:
    """One bit of the byte of that number."""
    frame[place % len(frame)] ^= 1 << (place % 8)
