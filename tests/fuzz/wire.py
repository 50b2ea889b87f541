"""Targets for bytes of strangers and peers: handshake, link, bulk lane, payloads (N-4, N-7, N-21 to N-26, I22).

Whatever the bytes are, nothing but `RemoteProtocolError` comes out (`RefusedError` too where a rank dials), what came
out before stands, what is sent afterwards is what would have been sent without them, and a link that met a violation
stays ended. Under keys nothing is ever heard that the peer did not say, in its order.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import msgspec

from paceline.core import messages as m
from paceline.core.bulk import MAP_PREFIX, BulkFramer
from paceline.core.errors import LocalProtocolError, RefusedError, RemoteProtocolError
from paceline.core.frame import FRAME_HEAD, FRAME_TAG, FrameWriter, Lane, LinkKeys, Role
from paceline.core.handshake import PRELUDE_1, PRELUDE_2, DialHandshake, ListenHandshake
from paceline.core.schema import EntryClass, Schema, SchemaEntry
from paceline.core.wire import Link
from paceline.transports.codec import MsgpackCodec, decode_record, encode_record, inspect

from .engine import Target
from .mutate import Tree

__all__ = ["TARGETS"]

CODEC = MsgpackCodec()
KEYS = LinkKeys(bytes(range(32)), bytes(range(32, 64)))
RUN_ID, TOKEN, NONCES = bytes(range(16)), bytes(range(50, 82)), (b"\x01" * 32, b"\x02" * 32)
STAMP: dict[str, Any] = dict(run_id=RUN_ID, generation=1, rank=1, incarnation=1, report_seq=1, control_seq=1)
SCHEMA = Schema(entries=(SchemaEntry(name="w", cls=EntryClass.PARAM, shape=(2, 2), dtype="float32"),))
KEY = m.RoundKey(generation=1, cycle=3, kind=m.RoundKind.PARAMS)
HELLO = m.Hello(
    protocol=1, package="1", host="one", devices=("cpu",), runtime="", byte_order=0, schema=SCHEMA,
    schema_hash=SCHEMA.hash(), dataset_signature=bytes(32), config_digest=bytes(32), averagers=("star",),
    resume=m.ResumeClaim(generation=1, incarnation=1, version=1, cycle=1, snapshot_cycle=1, shipped=1, step_count=1,
                         control_seq=1, report_seq=1), wishes={"gamma": 0.5},
)  # fmt: skip
REPORTS = (
    HELLO,
    m.Batch(**STAMP, cycle=1, plan_id=1, step_count=1, samples=2, batch_ms=1.5, data_ms=0.5, batch_loss=0.25),
    m.SyncAck(**STAMP, cycle=1, attempt=0, step_count=9, shipped_steps=4, total_steps=8, outcome=m.Outcome.REFUSED,
              refusal=m.Refusal.STEPS, state_complete=True, digest=bytes(16)),
    m.Metrics(**STAMP, cycle=1, plan_ids=(1, 2), epoch=0, batches=1, samples=2, epoch_ms=1.0, share_complete_ms=1.0,
              compute_only_ms=1.0, data_starve_ms=0.0, scalars={"a": (1.0, 2)}, resources={"gpu": 1.0}),
    m.SessionIdGenerated(**STAMP, session_id=1, uid=b"x" * 8),
    m.Exiting(**STAMP, reason="done"),
)  # fmt: skip
CONTROLS = (
    m.Welcome(rank=1, incarnation=1, generation=1, status=m.WelcomeStatus.JOINING, control_seq=0, report_seq=0,
              config={"policy": "cadence", "cap": None, "x": -1}),
    m.Update(**STAMP, cycle=1, attempt=0, version=1, global_step=8, outcome=m.Outcome.MERGED, merged_steps=4,
             next_plan=m.Plan(plan_id=1, epoch=0, offset=0, size=4)),
    m.StageAdvisory(**STAMP, counts=(1, 2), segments=((0, ((0, 4), (4, 2))),)),
    m.NewSession(**STAMP, session_id=1, uid=b"u", new_rank=0, new_world_size=2, members=((0, 1), (1, 1)),
                 state_from=m.NO_RANK, attempt=0),
    m.ShutdownWithSave(**STAMP, decision_id=1, reason=m.SaveReason.GRACEFUL, saver=0, stem="x"),
    m.Fenced(generation=1, incarnation=1, cycle=9, why="stale"),
    m.Reject(code=1, text="another protocol"),
)  # fmt: skip
BLOCK = m.BulkBlock(key=KEY, attempt=0, rank=1, incarnation=1, entry=0, offset=0, bytes=16)
RECORDS = (
    m.Contribution(run_id=RUN_ID, generation=1, rank=1, incarnation=1, cycle=3, attempt=0, schema_hash=SCHEMA.hash(),
                   steps=4, finite=True, bytes=16),
    m.RoundResult(outcome=m.Outcome.MERGED, total_steps=8, bytes=16),
)  # fmt: skip
SAID = {Role.RANK: REPORTS, Role.COORDINATOR: CONTROLS}
OTHER = {Role.RANK: Role.COORDINATOR, Role.COORDINATOR: Role.RANK}
NAMES = tuple(sorted({field.name.encode() for cls in m.KINDS.values() for field in attrs.fields(cls)}))
WORDS = (b"PCLF", b"PCLN", bytes(16), b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff",
         b"\xc6\x7f\xff\xff\xff", b"\xd4\x01\x00", b"\xcb\x7f\xf8\0\0\0\0\0\0", *NAMES)  # fmt: skip


# --- the control lane ------------------------------------------------------------------------------------------------


def _listen(receiver: Link, pieces: Iterator[bytes]) -> tuple[list[Any], str]:
    """All messages out of the pieces and the end of the stream, then the fault in words, if there was one."""
    heard: list[Any] = []
    try:
        for piece in pieces:
            receiver.receive_data(piece)
            while (message := receiver.next_message()) is not None:
                heard.append(message)
        receiver.receive_eof()
        assert receiver.next_message() is None
    except RemoteProtocolError as fault:
        return heard, str(fault)
    return heard, ""


def _pieces(stream: bytes, step: int) -> Iterator[bytes]:
    return (stream[at : at + step] for at in range(0, len(stream), step))


def _check_link(role: Role, keys: LinkKeys | None, stream: bytes, step: int) -> list[Any]:
    receiver = Link(codec=CODEC, keys=keys, role=role)
    heard, fault = _listen(receiver, _pieces(stream, step))
    again = _listen(Link(codec=CODEC, keys=keys, role=role), iter([stream]))
    assert repr((heard, fault)) == repr(again), "the size of the pieces changes what is heard (N-4)"
    if fault:
        for data in (b"", stream[:64]):
            receiver = _still_ended(receiver, data, fault)
    else:
        assert receiver.ended
    # Small enough for a link that is not established, so that both twins may send it.
    answer = m.Exiting(**STAMP, reason="") if role is Role.RANK else m.Fenced(generation=1, incarnation=1, cycle=1,
                                                                               why="")  # fmt: skip
    assert receiver.send(answer) == Link(codec=CODEC, keys=keys, role=role).send(answer), "sending was disturbed"
    return heard


def _still_ended(receiver: Link, data: bytes, fault: str) -> Link:
    with contextlib.suppress(LocalProtocolError):  # after the end of the stream
        receiver.receive_data(data)
    try:
        receiver.next_message()
    except RemoteProtocolError as again:
        assert str(again) == fault and not receiver.ended
        return receiver
    raise AssertionError("a link that was lied to goes on (N-7)")


def _frames(role: Role, keys: LinkKeys | None) -> list[bytes]:
    sender = Link(codec=CODEC, keys=keys, role=role)
    return [sender.send(message) for message in SAID[role]]


def link(data: bytes) -> None:
    """A stream on the control lane: role, keys and the size of the pieces in the first byte."""
    if not data:
        return
    role, keyed, step = Role(data[0] & 1), bool(data[0] & 2), 1 + (data[0] >> 2)
    heard = _check_link(role, KEYS if keyed else None, data[1:], step)
    if keyed:
        said = SAID[OTHER[role]]
        assert [*map(CODEC.encode, heard)] == [*map(CODEC.encode, said[: len(heard)])], "a forged message (N-23)"


@functools.cache
def _link_seeds() -> list[bytes]:
    return [
        bytes([role | keyed << 1 | 62 << 2]) + b"".join(_frames(OTHER[role], KEYS if keyed else None))
        for role in Role for keyed in (0, 1)
    ]  # fmt: skip


def payloads(data: bytes) -> None:
    """Frames whose heads and tags are right, around payloads that need not be: role, then (kind, length u16, payload)
    again and again. So the fuzzer gets behind the tag."""
    if not data:
        return
    writer, stream, at = FrameWriter(None), b"", 1
    while at + 3 <= len(data) and len(stream) < 1 << 16:
        kind, length = data[at], int.from_bytes(data[at + 1 : at + 3], "little")
        payload = data[at + 3 : at + 3 + length]
        frame = writer.head(kind, len(payload)) + payload
        stream += frame + writer.tag(frame)
        writer.advance()
        at += 3 + length
    _check_link(Role(data[0] & 1), None, stream, 1 + (data[0] >> 1))


@functools.cache
def _payload_seeds() -> list[bytes]:
    seeds = []
    for role in Role:
        parts = [(m.KIND_OF[type(message)], CODEC.encode(message)) for message in SAID[OTHER[role]]]
        seeds.append(bytes([role | 126]) + b"".join(
            bytes([kind]) + len(body).to_bytes(2, "little") + body for kind, body in parts))  # fmt: skip
    return seeds


# --- payloads --------------------------------------------------------------------------------------------------------


def codec(data: bytes) -> None:
    """A kind byte and a payload. What is accepted can be sent again, and means the same."""
    if not data:
        return
    try:
        message = CODEC.decode(data[0], data[1:])
    except RemoteProtocolError as fault:
        assert fault.frame == data[0]
        return
    sent = CODEC.encode(message)
    assert CODEC.encode(CODEC.decode(data[0], sent)) == sent, "what was heard cannot be passed on"


def record(data: bytes) -> None:
    """The data of a block of kind COUNTS, in both directions."""
    if not data:
        return
    cls: Any = (m.Contribution, m.RoundResult)[data[0] & 1]
    try:
        found = decode_record(cls, data[1:])
    except RemoteProtocolError:
        return
    assert found == decode_record(cls, encode_record(found))


def walk(data: bytes) -> None:
    """`inspect` against msgspec: what the walk lets through is one whole value of MessagePack; and it ends."""
    try:
        inspect(data)
    except ValueError:
        return
    msgspec.msgpack.decode(data)


@functools.cache
def _codec_seeds() -> list[bytes]:
    messages = [(m.KIND_OF[type(message)], message) for message in (*REPORTS, *CONTROLS)]
    return [bytes([kind]) + CODEC.encode(message) for kind, message in (*messages, (m.BULK_KIND, BLOCK))]


def _parsed(data: bytes) -> Any:
    """Kind byte and value."""
    try:
        return [data[:1], msgspec.msgpack.decode(data[1:])]
    except msgspec.MsgspecError as failure:
        raise ValueError(str(failure)) from failure


def _written(value: Any) -> bytes:
    if not isinstance(value, list) or len(value) < 2 or not isinstance(value[0], bytes):
        raise ValueError("the kind byte is gone")
    return value[0][:1] + msgspec.msgpack.encode(value[1])


MESSAGE_TREE = Tree(_parsed, _written)


# --- the bulk lane ---------------------------------------------------------------------------------------------------


def bulk(data: bytes) -> None:
    """A stream on the bulk lane, read as a driver does: options in the first byte, the stream behind it."""
    if not data:
        return
    keys, auth = (KEYS if data[0] & 1 else None), ("full", "header")[data[0] >> 1 & 1]
    reader = BulkFramer(codec=CODEC, keys=keys, role=Role.COORDINATOR, bulk_auth=auth)
    heard, fault = [], ""
    try:
        for block, body in _blocks(reader, data[1:]):
            heard.append((block, body))
    except RemoteProtocolError as error:
        fault = str(error)
        for call in (lambda: reader.open_head(bytes(FRAME_HEAD)), lambda: reader.open_map(b"")):
            try:
                call()
            except RemoteProtocolError as again:
                assert str(again) == fault
            else:
                raise AssertionError("a framer that was lied to goes on (N-7)")
    if keys is not None:
        genuine = [BLOCK, attrs.evolve(BLOCK, entry=1, offset=16)]
        assert [block for block, _ in heard] == genuine[: len(heard)]
        assert auth == "header" or all(body == bytes(range(16)) for _, body in heard)
    twin = BulkFramer(codec=CODEC, keys=keys, role=Role.COORDINATOR, bulk_auth=auth)
    assert reader.seal(BLOCK, memoryview(bytes(16))) == twin.seal(BLOCK, memoryview(bytes(16)))


def _blocks(reader: BulkFramer, stream: bytes) -> Iterator[tuple[m.BulkBlock, bytes]]:
    """Blocks of a stream until it is used up or cut short; data is looked at only once it is all there."""
    at = 0
    while at + FRAME_HEAD + MAP_PREFIX <= len(stream):
        length = reader.open_head(stream[at : at + FRAME_HEAD])
        if at + FRAME_HEAD + length + FRAME_TAG > len(stream):
            return
        at += FRAME_HEAD
        size = int.from_bytes(stream[at : at + MAP_PREFIX], "little")
        block = reader.open_map(stream[at + MAP_PREFIX : at + MAP_PREFIX + size])
        start = at + MAP_PREFIX + size
        body = stream[start : start + block.bytes]
        at += length
        reader.verify(memoryview(body), stream[at : at + FRAME_TAG])
        at += FRAME_TAG
        yield block, body


@functools.cache
def _bulk_seeds() -> list[bytes]:
    seeds = []
    for options in range(4):
        writer = BulkFramer(codec=CODEC, keys=KEYS if options & 1 else None, role=Role.RANK,
                            bulk_auth=("full", "header")[options >> 1])  # fmt: skip
        stream, body = b"", bytes(range(16))
        for block in (BLOCK, attrs.evolve(BLOCK, entry=1, offset=16)):
            head, tag = writer.seal(block, memoryview(body))
            stream += head + body + tag
        seeds.append(bytes([options]) + stream)
    return seeds


# --- the handshake ---------------------------------------------------------------------------------------------------


def handshake(data: bytes) -> None:
    """Preludes: what a listener hears (P1, P3) or a dialler (P2), by the first byte. Nobody without the token gets
    keys, and nobody who failed gets a second try."""
    if not data:
        return
    if data[0] & 1:
        _dial(data[1:])
    else:
        _listen_to(data[1:])


def _dial(second: bytes) -> None:
    dialler = DialHandshake(run_id=RUN_ID, token=TOKEN, lane=Lane.CONTROL, nonce=NONCES[0])
    try:
        dialler.receive(second)
    except (RemoteProtocolError, RefusedError):
        _no_keys(dialler)
        return
    assert second == _preludes()[1], "a forged coordinator was believed (N-22)"
    assert dialler.keys


def _listen_to(stream: bytes) -> None:
    listener = ListenHandshake(run_id=RUN_ID, token=TOKEN, nonce=NONCES[1])
    try:
        said = listener.receive_first(stream[:PRELUDE_1])
    except RemoteProtocolError:
        _no_keys(listener)
        return
    assert len(said) == PRELUDE_2
    if listener.refused:
        _no_keys(listener)
        return
    try:
        listener.receive_proof(stream[PRELUDE_1:])
    except RemoteProtocolError:
        _no_keys(listener)
        return
    first, _, third = _preludes()
    assert stream == first + third, "a forged rank was believed (N-22)"


def _no_keys(hand: DialHandshake | ListenHandshake) -> None:
    try:
        _ = hand.keys
    except LocalProtocolError:
        return
    raise AssertionError("a handshake that failed gave keys (N-22)")


def _preludes() -> tuple[bytes, bytes, bytes]:
    dialler = DialHandshake(run_id=RUN_ID, token=TOKEN, lane=Lane.CONTROL, nonce=NONCES[0])
    second = ListenHandshake(run_id=RUN_ID, token=TOKEN, nonce=NONCES[1]).receive_first(dialler.first)
    return dialler.first, second, dialler.receive(second)


@functools.cache
def _handshake_seeds() -> list[bytes]:
    first, second, third = _preludes()
    bulk_lane = DialHandshake(run_id=RUN_ID, token=TOKEN, lane=Lane.BULK, nonce=NONCES[0]).first
    refused = ListenHandshake(run_id=bytes(16), token=TOKEN, nonce=NONCES[1]).receive_first(first)
    return [b"\0" + first + third, b"\0" + bulk_lane, b"\1" + second, b"\1" + refused]


TARGETS: Sequence[Target] = (
    Target("link", link, _link_seeds, (6000, 40), WORDS),
    Target("payloads", payloads, _payload_seeds, (6000, 40), WORDS),
    Target("codec", codec, _codec_seeds, (2000, 40), WORDS, MESSAGE_TREE),
    Target("record", record, lambda: [bytes([i]) + encode_record(r) for i, r in enumerate(RECORDS)], (2000, 40), WORDS,
           MESSAGE_TREE),
    Target("walk", walk, lambda: [seed[1:] for seed in _codec_seeds()], (500, 20), WORDS),
    Target("bulk", bulk, _bulk_seeds, (4000, 40), WORDS),
    Target("handshake", handshake, _handshake_seeds, (2000, 5), WORDS),
)  # fmt: skip
