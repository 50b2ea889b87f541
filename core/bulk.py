"""`BulkFramer`: the frames of the bulk lane, made and judged in pieces so that the data never passes through here.

    head 20 | map length u16 | map | data | tag 16          the length in the head counts from the u16 to the data

The writer sends what `seal` returns around the data, straight from the tensor's memory. The reader asks for each piece
as it needs it: `open_head`, `map_bytes`, then `open_map`, which says where the data belongs, then the data itself, read
straight into that place, then `verify`. The head's length is known to fit the map's before a byte of data is read
(N-25, N-26).

The data lies in its place before its tag is verified. Nobody may act on it until `verify` has returned (N-23): a round
counts a block from then on, never earlier.

Under `bulk_auth = "header"` the tag covers head and map only. That saves hashing the model on one host, where whoever
could change the data in flight could change the process as well; across hosts it must be "full" (N-26).

Errors are those of `core.wire.Link`: a framer that met a `RemoteProtocolError` reads no more, and still seals.
"""

from __future__ import annotations

from enum import IntEnum

from .errors import LocalProtocolError, RemoteProtocolError
from .frame import (
    FRAME_HEAD,
    FRAME_TAG,
    MAX_BLOCK,
    Buffer,
    FrameReader,
    FrameWriter,
    LinkKeys,
    PayloadCodec,
    Role,
    same_fault,
)
from .messages import BULK_KIND, BulkBlock

__all__ = ["MAP_PREFIX", "MAX_MAP", "BulkFramer"]

MAP_PREFIX = 2
"""Bytes of the map's length in front of the map: u16, little-endian."""
MAX_MAP = 1024
"""Bytes of a map. Ours have about 120; the rest is room for fields of later versions, which are ignored."""


class _Due(IntEnum):
    """The piece of a frame that the reader must bring next."""

    HEAD = 0
    MAP = 1
    DATA = 2


class BulkFramer:
    """One end of a bulk lane; `keys` and `role` as in `Link`, `bulk_auth` is "full" or "header" on both ends alike."""

    def __init__(
        self, *, codec: PayloadCodec, keys: LinkKeys | None, role: Role, bulk_auth: str = "full"
    ) -> None:
        if bulk_auth not in ("full", "header"):
            raise LocalProtocolError(f"bulk_auth is full or header, not {bulk_auth!r}")
        self._codec = codec
        self._writer = FrameWriter(keys.sending(role) if keys else None)
        self._reader = FrameReader(keys.receiving(role) if keys else None)
        self._covers_data = bulk_auth == "full"
        self._due = _Due.HEAD
        self._signed = b""
        self._length = 0
        self._expected = 0
        self._fault: RemoteProtocolError | None = None

    def seal(self, block: BulkBlock, data: memoryview) -> tuple[bytes, bytes]:
        """What goes on the wire in front of `data` and behind it.

        `data` is contiguous and has `block.bytes` bytes, 16 MiB at most; else `LocalProtocolError`, nothing happened.
        The data must not change until all three pieces are written.
        """
        if not data.c_contiguous or data.nbytes != block.bytes or data.nbytes > MAX_BLOCK:
            raise LocalProtocolError(
                f"a block of {block.bytes} bytes needs as many contiguous ones, at most {MAX_BLOCK}; got {data.nbytes}"
            )
        encoded = self._codec.encode(block)
        if len(encoded) > MAX_MAP:
            raise LocalProtocolError(f"a block's map takes {len(encoded)} bytes, {MAX_MAP} are allowed")
        prefix = len(encoded).to_bytes(MAP_PREFIX, "little")
        head = self._writer.head(BULK_KIND, MAP_PREFIX + len(encoded) + data.nbytes) + prefix + encoded
        tag = self._writer.tag(head, data) if self._covers_data else self._writer.tag(head)
        self._writer.advance()
        return head, tag

    def open_head(self, head: Buffer) -> int:
        """Judge the 20 bytes of a head; returns the payload length, which counts map length, map and data."""
        self._expect(_Due.HEAD)
        if len(head) != FRAME_HEAD:
            raise LocalProtocolError(f"a head has {FRAME_HEAD} bytes, not {len(head)}")
        try:
            kind, length = self._reader.head(head)
            if kind != BULK_KIND:
                raise RemoteProtocolError(f"the bulk lane carries no frames of kind {kind:#04x}", frame=kind)
            if not MAP_PREFIX < length <= MAP_PREFIX + MAX_MAP + MAX_BLOCK:
                raise RemoteProtocolError(f"a bulk frame claims {length} bytes", frame=kind)
        except RemoteProtocolError as fault:
            self._fault = same_fault(fault)
            raise
        self._signed = bytes(head)
        self._length = length
        self._due = _Due.MAP
        return length

    def map_bytes(self, prefix: Buffer) -> int:
        """Judge the 2 bytes behind a head; returns how many the map has, so that no more are read for it (N-25). Raises
        `RemoteProtocolError` for more than there can be, after which nothing is read any more."""
        self._expect(_Due.MAP)
        if len(prefix) != MAP_PREFIX:
            raise LocalProtocolError(f"the length of a map has {MAP_PREFIX} bytes, not {len(prefix)}")
        size = int.from_bytes(prefix, "little")
        if size > min(MAX_MAP, self._length - MAP_PREFIX):
            self._fault = RemoteProtocolError(f"a block's map claims {size} of {self._length} bytes", frame=BULK_KIND)
            raise same_fault(self._fault)
        return size

    def open_map(self, raw: Buffer) -> BulkBlock:
        """Judge a map, its length prefix taken off; returns the block's header, not verified yet."""
        self._expect(_Due.MAP)
        try:
            if len(raw) > MAX_MAP:
                raise RemoteProtocolError(f"a block's map has {len(raw)} bytes, {MAX_MAP} are allowed", frame=BULK_KIND)
            block: BulkBlock = self._codec.decode(BULK_KIND, bytes(raw))
            if block.bytes != self._length - MAP_PREFIX - len(raw) or block.bytes > MAX_BLOCK:
                raise RemoteProtocolError(
                    f"a bulk frame of {self._length} bytes says that {block.bytes} of them are data", frame=BULK_KIND
                )
        except RemoteProtocolError as fault:
            self._fault = same_fault(fault)
            raise
        self._signed += len(raw).to_bytes(MAP_PREFIX, "little") + bytes(raw)
        self._expected = block.bytes
        self._due = _Due.DATA
        return block

    def verify(self, data: memoryview, tag: Buffer) -> None:
        """Judge the data, now in its place, by the 16 bytes behind it. Only after this may the block be used."""
        self._expect(_Due.DATA)
        if data.nbytes != self._expected or not data.c_contiguous or len(tag) != FRAME_TAG:
            raise LocalProtocolError(f"the block has {self._expected} bytes and a tag {FRAME_TAG}, got {data.nbytes} "
                                     f"and {len(tag)}")  # fmt: skip
        parts = (self._signed, data) if self._covers_data else (self._signed,)
        try:
            self._reader.verify(BULK_KIND, tag, *parts)
        except RemoteProtocolError as fault:
            self._fault = same_fault(fault)
            raise
        self._due = _Due.HEAD

    def _expect(self, due: _Due) -> None:
        if self._fault is not None:
            raise same_fault(self._fault)
        if self._due is not due:
            raise LocalProtocolError(f"the next piece of this frame is its {self._due.name.lower()}")
