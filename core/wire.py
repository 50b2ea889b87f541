"""`Link`: bytes to messages and back, on the control lane of one connection. Sans-I/O, as h11 is for HTTP.

    link = Link(codec=codec, keys=handshake.keys, role=Role.RANK)
    socket.sendall(link.send(message))        # a whole frame; write all of it or close (N-4)
    link.receive_data(socket.recv(65536))     # only buffers
    message = link.next_message()             # a message, or None: more bytes are needed

A link is symmetrical but for its role: a rank sends Hello and reports, a coordinator Welcome, Reject, Fenced and
controls, and what the other end may not say is a violation (N-7). Of the handshake that comes before (core.handshake)
it needs only the keys; the lanes' own numbers, the stamp and all meaning are the machines' (N-2, N-3, N-6).

Caps (N-25). Session messages never exceed 1 MiB. Other messages may have 16 MiB once the link is *established*,
which it is from the first message on, in either direction, that only a pair of peers who have agreed exchange: a
Welcome, a control or a report. Hello, Reject and Fenced do not establish. Both ends see the messages of a link in the
same order per direction, so a sender can hold itself to what the receiver will allow.

Errors. `next_message` raises `RemoteProtocolError` for whatever the peer did wrong; any other exception out of it is
a bug of ours. From then on the link is poisoned for receiving: there is no way to find the next frame in a stream that
lied once, so each further call raises the same. Sending goes on working, so that a notice can still leave.
`LocalProtocolError` means the call was wrong; the link is as before.

This module is also the one place to import the whole wire from: preludes, link, bulk framer, constants.
"""

from __future__ import annotations

from typing import Any

from .bulk import MAP_PREFIX, MAX_MAP, BulkFramer
from .errors import LocalProtocolError, RemoteProtocolError
from .frame import (
    FRAME_HEAD,
    FRAME_TAG,
    MAX_BLOCK,
    MAX_CONTROL,
    MAX_HELLO,
    Buffer,
    FrameReader,
    FrameWriter,
    Lane,
    LinkKeys,
    PayloadCodec,
    Role,
    same_fault,
)
from .handshake import (
    NONCE_BYTES,
    PRELUDE_1,
    PRELUDE_2,
    PRELUDE_3,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    RUN_ID_BYTES,
    TOKEN_BYTES,
    DialHandshake,
    ListenHandshake,
    check_magic,
    refusal_prelude,
)
from .messages import CONTROLS, KIND_OF, REPORTS, SESSION, Fenced, Hello, Reject, Welcome

__all__ = [
    "FRAME_HEAD",
    "FRAME_TAG",
    "MAP_PREFIX",
    "MAX_BLOCK",
    "MAX_CONTROL",
    "MAX_HELLO",
    "MAX_MAP",
    "NONCE_BYTES",
    "PRELUDE_1",
    "PRELUDE_2",
    "PRELUDE_3",
    "PROTOCOL_MAX",
    "PROTOCOL_MIN",
    "RUN_ID_BYTES",
    "TOKEN_BYTES",
    "BulkFramer",
    "DialHandshake",
    "Lane",
    "Link",
    "LinkKeys",
    "ListenHandshake",
    "PayloadCodec",
    "Role",
    "check_magic",
    "refusal_prelude",
]

_SAID_BY = {
    Role.RANK: frozenset(KIND_OF[message] for message in (Hello, *REPORTS)),
    Role.COORDINATOR: frozenset(KIND_OF[message] for message in (Welcome, Reject, Fenced, *CONTROLS)),
}
_OTHER = {Role.RANK: Role.COORDINATOR, Role.COORDINATOR: Role.RANK}
_SESSION = frozenset(KIND_OF[message] for message in SESSION)
_NOT_ESTABLISHING = _SESSION - {KIND_OF[Welcome]}


class Link:
    """One end of a control lane. `keys` None: no authentication, for links that no stranger can reach (N-28)."""

    def __init__(self, *, codec: PayloadCodec, keys: LinkKeys | None, role: Role) -> None:
        self._codec = codec
        self._writer = FrameWriter(keys.sending(role) if keys else None)
        self._reader = FrameReader(keys.receiving(role) if keys else None)
        self._speaks = _SAID_BY[role]
        self._hears = _SAID_BY[_OTHER[role]]
        self._role = role
        self._established = False
        self._buffer = bytearray()
        self._awaited: tuple[int, int] | None = None
        self._eof = False
        self._fault: RemoteProtocolError | None = None

    @property
    def established(self) -> bool:
        """Whether messages above 1 MiB may pass; see the rules at the top."""
        return self._established

    @property
    def ended(self) -> bool:
        """The peer closed its side between two frames, and all it had said has been handed out."""
        return self._eof and not self._buffer and self._fault is None

    def send(self, message: Any) -> bytes:
        """The frame of a message, to be written whole.

        Raises:
            LocalProtocolError: this role does not send that message, a field does not fit its type, or the payload
                is above the cap. Nothing has happened: the next message takes the number.
        """
        kind = KIND_OF.get(type(message))
        if kind is None or kind not in self._speaks:
            raise LocalProtocolError(f"a {self._role.name.lower()} does not send {type(message).__name__}")
        payload = self._codec.encode(message)
        cap = self._cap(kind)
        if len(payload) > cap:
            raise LocalProtocolError(f"{type(message).__name__} takes {len(payload)} bytes, {cap} may be sent")
        frame = self._writer.head(kind, len(payload)) + payload
        tag = self._writer.tag(frame)
        self._writer.advance()
        self._note(kind)
        return frame + tag

    def receive_data(self, data: Buffer) -> None:
        """Take bytes from the peer. Call `next_message` until it returns None before giving more: so the buffer never
        holds more than one incomplete frame and one read. `LocalProtocolError` after `receive_eof`."""
        if self._eof:
            raise LocalProtocolError("bytes after the end of the stream")
        if self._fault is None:
            self._buffer += data

    def receive_eof(self) -> None:
        """The peer has closed its side; idempotent. Whether that was allowed shows in `next_message`."""
        self._eof = True

    def next_message(self) -> Any | None:
        """The next whole, authentic message, or None: more bytes are needed, or the link has `ended`.

        Raises:
            RemoteProtocolError: the peer broke a rule, or went away inside a frame. Final for this link.
        """
        if self._fault is not None:
            raise same_fault(self._fault)
        try:
            message = self._next()
            if message is None and self._eof and self._buffer:
                raise RemoteProtocolError(f"the peer went away inside a frame, {len(self._buffer)} bytes into it")
        except RemoteProtocolError as fault:
            self._fault = same_fault(fault)
            self._buffer.clear()
            raise
        return message

    def _next(self) -> Any | None:
        if self._awaited is None:
            if len(self._buffer) < FRAME_HEAD:
                return None
            self._awaited = self._judge_head(bytes(self._buffer[:FRAME_HEAD]))
        kind, tag_at = self._awaited
        end = tag_at + FRAME_TAG
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            frame, tag = bytes(view[:tag_at]), bytes(view[tag_at:end])
        self._reader.verify(kind, tag, frame)
        message = self._codec.decode(kind, frame[FRAME_HEAD:])
        del self._buffer[:end]
        self._awaited = None
        self._note(kind)
        return message

    def _judge_head(self, head: bytes) -> tuple[int, int]:
        """The kind of a frame and where its tag begins. All that can be said against a frame before it is there."""
        kind, length = self._reader.head(head)
        if kind not in self._hears:
            raise RemoteProtocolError(f"a {_OTHER[self._role].name.lower()} does not send kind {kind:#04x}", frame=kind)
        cap = self._cap(kind)
        if length > cap:
            raise RemoteProtocolError(f"frame of kind {kind:#04x} claims {length} bytes, {cap} are allowed", frame=kind)
        return kind, FRAME_HEAD + length

    def _cap(self, kind: int) -> int:
        return MAX_CONTROL if self._established and kind not in _SESSION else MAX_HELLO

    def _note(self, kind: int) -> None:
        if not self._established and kind not in _NOT_ESTABLISHING:
            self._established = True
