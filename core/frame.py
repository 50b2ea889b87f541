"""What every frame has in common, on both lanes: a head, a tag and a place in the sequence.

    head, 20 bytes   "PCLF" 4 | kind 1 | flags 1 | zero 2 | payload length u32 | sequence u64     little-endian
    payload          length bytes
    tag, 16 bytes    first half of HMAC-SHA256(key of this direction, head and payload)

Each direction of a link has its own key and its own sequence, which starts at 0 and rises by one per frame. Because
the number is under the tag, a frame that is repeated, held back, swapped or lost shows up as a wrong number, and the
link ends there (N-23). A head can only ever close a link, so it is judged as soon as it is there: a length above the
cap is refused before a byte of memory is set aside for it (N-25). Everything else waits for the tag.

Without keys (memory, or a shared memory segment that only this user may open, N-28) the tag is 16 zero bytes and the
sequence is checked all the same.

`FrameWriter` and `FrameReader` are one direction each. `core.wire.Link` builds the control lane on them, and
`core.bulk.BulkFramer` the bulk lane.
"""

from __future__ import annotations

import hmac
import struct
from enum import IntEnum
from typing import Any, Protocol

from .errors import LocalProtocolError, RemoteProtocolError
from .values import state, value

__all__ = [
    "FRAME_HEAD",
    "FRAME_TAG",
    "KEY_BYTES",
    "MAX_BLOCK",
    "MAX_CONTROL",
    "MAX_HELLO",
    "Buffer",
    "FrameReader",
    "FrameWriter",
    "Lane",
    "LinkKeys",
    "PayloadCodec",
    "Role",
    "same_fault",
]

FRAME_HEAD = 20
FRAME_TAG = 16
KEY_BYTES = 32
MAX_HELLO = 1 << 20
"""Bytes of payload of a session message, and of any message of a link that is not established (N-25)."""
MAX_CONTROL = 16 << 20
"""Bytes of payload of a control message or report (N-25)."""
MAX_BLOCK = 16 << 20
"""Bytes of data in one bulk block, its map not counted (N-25)."""

_MAGIC = b"PCLF"
_HEAD = struct.Struct("<4sBBHIQ")
_NO_TAG = bytes(FRAME_TAG)

Buffer = bytes | bytearray | memoryview


class Lane(IntEnum):
    """Which of its two lanes a link is (N-21)."""

    CONTROL = 0
    BULK = 1


class Role(IntEnum):
    """Which end of a link this is: a rank dials, the coordinator listens."""

    RANK = 0
    COORDINATOR = 1


@value
class LinkKeys:
    """The two secrets of an authenticated link (N-22), 32 bytes each: `up` is rank to coordinator."""

    up: bytes
    down: bytes

    def sending(self, role: Role) -> bytes:
        """The key of the frames that `role` writes."""
        return self.up if role is Role.RANK else self.down

    def receiving(self, role: Role) -> bytes:
        """The key of the frames that `role` reads."""
        return self.down if role is Role.RANK else self.up


class PayloadCodec(Protocol):
    """Message to payload and back (N-24). An argument, so that core needs no serialisation library."""

    def encode(self, message: Any) -> bytes:
        """The payload of a message; `LocalProtocolError` if the message is none or a field has no place in it."""
        ...

    def decode(self, kind: int, payload: bytes | memoryview) -> Any:
        """The message of this kind byte. Whatever the bytes are, nothing but `RemoteProtocolError` comes out, and
        its `frame` is the kind."""
        ...


@state
class _Tagger:
    """The tags of one direction. The keyed hash is set up once and copied per frame, which halves its cost."""

    keyed: Any

    @classmethod
    def of(cls, key: bytes | None) -> _Tagger:
        if key is None:
            return cls(None)
        if len(key) != KEY_BYTES:
            raise LocalProtocolError(f"a link key has {KEY_BYTES} bytes, not {len(key)}")
        return cls(hmac.new(key, digestmod="sha256"))

    def tag(self, *parts: Buffer) -> bytes:
        if self.keyed is None:
            return _NO_TAG
        running = self.keyed.copy()
        for part in parts:
            running.update(part)
        return bytes(running.digest()[:FRAME_TAG])


def same_fault(fault: RemoteProtocolError) -> RemoteProtocolError:
    """The fault once more, to keep or to raise again: the one that was raised holds on to the stack it came through,
    and with it to every buffer in there."""
    return RemoteProtocolError(str(fault), rank=fault.rank, frame=fault.frame)


class FrameWriter:
    """The sending direction. `head`, then `tag` over the same frame, then `advance`: nothing moves before that, so a
    message that turns out to be unsendable leaves the sequence without a hole."""

    def __init__(self, key: bytes | None) -> None:
        self._tagger = _Tagger.of(key)
        self.sequence = 0

    def head(self, kind: int, length: int) -> bytes:
        """The 20 bytes in front of a payload of `length` bytes."""
        return _HEAD.pack(_MAGIC, kind, 0, 0, length, self.sequence)

    def tag(self, *parts: Buffer) -> bytes:
        """The 16 bytes behind it; `parts` are head and payload in order, in as many pieces as they come."""
        return self._tagger.tag(*parts)

    def advance(self) -> None:
        """This frame is made; the next one has the next number."""
        self.sequence += 1


class FrameReader:
    """The receiving direction."""

    def __init__(self, key: bytes | None) -> None:
        self._tagger = _Tagger.of(key)
        self.sequence = 0

    def head(self, head: Buffer) -> tuple[int, int]:
        """Kind and payload length of a head, judged in every respect but those two; `RemoteProtocolError`."""
        magic, kind, flags, zero, length, sequence = _HEAD.unpack(head)
        if magic != _MAGIC:
            raise RemoteProtocolError(f"expected a frame, got the bytes {bytes(magic).hex()}: this link is out of step")
        if flags or zero:
            raise RemoteProtocolError(f"frame of kind {kind:#04x} has flags {flags:#x}, {zero:#x} where 0 is due",
                                      frame=kind)  # fmt: skip
        if sequence != self.sequence:
            raise RemoteProtocolError(
                f"frame of kind {kind:#04x} has number {sequence} where {self.sequence} is due: "
                "a frame was lost, repeated or out of order",
                frame=kind,
            )
        return kind, length

    def verify(self, kind: int, tag: Buffer, *parts: Buffer) -> None:
        """Compare the tag in constant time and move on to the next frame; `RemoteProtocolError` if it is wrong."""
        if not hmac.compare_digest(self._tagger.tag(*parts), bytes(tag)):
            raise RemoteProtocolError(f"frame {self.sequence} of kind {kind:#04x} has a wrong tag", frame=kind)
        self.sequence += 1
