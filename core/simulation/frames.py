"""The wire of one process: two production `Link`s and two `BulkFramer`s, back to back.

The frames of the links lie in the lanes of the process, those of the bulk are made as they arrive (`blocks.py`). What a
codec loses on the way is a fault of its own, whatever the run would make of it: all that is read is compared with what
was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ..errors import RemoteProtocolError
from ..messages import BulkBlock, Contribution, RoundResult
from ..wire import FRAME_HEAD, FRAME_TAG, MAP_PREFIX, BulkFramer, Link, LinkKeys, PayloadCodec, Role
from .violation import Violation

__all__ = ["Frames", "Record", "RecordCodec", "turn_bit"]

Record = Contribution | RoundResult
"""What announces a contribution, and a result (R-4): the data of a block of kind COUNTS."""

KEYS = LinkKeys(up=bytes(range(32)), down=bytes(range(32, 64)))
"""Any two keys, so that every frame is authenticated."""


class RecordCodec(PayloadCodec, Protocol):
    """A codec that has the records of a round, too."""

    def encode_record(self, record: Any) -> bytes:
        """The data of a record."""
        ...

    def decode_record(self, cls: type, data: bytes | memoryview) -> Any:
        """The record of this class in some data; `RemoteProtocolError` where there is none."""
        ...


class Frames:
    """See the module. `hear` gives the messages that some bytes complete; what the peer may not send comes as text.
    `waiting` are the ends that have heard a part of a frame: for them the lane is not empty, though nothing is in it.
    `harm` is, by who writes it, the byte of the next bulk frame in which a bit is turned."""

    def __init__(self, codec: RecordCodec, reached: Callable[[str], None]) -> None:
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

    def data_of(self, record: Record) -> bytes:
        """The data of the block that a record goes in."""
        return self._codec.encode_record(record)

    def carry(self, role: Role, block: BulkBlock, data: bytes, record: Record | None = None) -> str:
        """A block that `role` writes is read at the other end, with the record that its data are, if they are one: what
        that end has against the frame, "" if nothing."""
        head, tag = self._bulk[role].seal(block, memoryview(data))
        frame = bytearray(head + data + tag)
        place = self.harm.pop(role, None)
        if place is not None:
            turn_bit(frame, place)
        reader = Role.COORDINATOR if role is Role.RANK else Role.RANK
        try:
            read, held = self._read(reader, memoryview(frame))
            found = None if record is None else self._codec.decode_record(type(record), held)
        except RemoteProtocolError as fault:
            self._reached("a damaged block ended a link")
            return str(fault)
        for written, came in ((block, read), (record, found)):
            if came != written:
                raise Violation("N-23", f"{written} was written, {came} was read")
        return ""

    def _read(self, role: Role, frame: memoryview) -> tuple[BulkBlock, memoryview]:
        """As a channel does (`transports/framed.py`): piece by piece, each judged before the next."""
        reader, at = self._bulk[role], FRAME_HEAD + MAP_PREFIX
        reader.open_head(frame[:FRAME_HEAD])
        data_at = at + reader.map_bytes(frame[FRAME_HEAD:at])
        block = reader.open_map(frame[at:data_at])
        data = frame[data_at:-FRAME_TAG]
        reader.verify(data, frame[-FRAME_TAG:])
        return block, data


def turn_bit(frame: bytearray, place: int) -> None:
    """One bit of the byte of that number."""
    frame[place % len(frame)] ^= 1 << (place % 8)
