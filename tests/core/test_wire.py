"""The control lane: protocol N-4, N-7, N-23, N-24, N-25, N-28, invariant I22."""

from __future__ import annotations

import hashlib
import hmac
import struct
import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.errors import LocalProtocolError, RemoteProtocolError
from paceline.core.messages import (
    BULK_KIND,
    KIND_OF,
    KINDS,
    Beacon,
    BulkBlock,
    Exiting,
    Fenced,
    Heartbeat,
    Hello,
    Reject,
    RoundKey,
    RoundKind,
    SaveReason,
    Shutdown,
    Welcome,
    WelcomeStatus,
)
from paceline.core.schema import Schema
from paceline.core.wire import FRAME_HEAD, FRAME_TAG, MAX_CONTROL, MAX_HELLO, Link, LinkKeys, Role
from paceline.transports.codec import MsgpackCodec

from support.messages import FROM_COORDINATOR, FROM_RANK

KEYS = LinkKeys(bytes(range(32)), bytes(range(32, 64)))
CODEC = MsgpackCodec()
RANK, COORDINATOR = Role.RANK, Role.COORDINATOR
HEARTBEAT = Heartbeat(run_id=bytes(range(16)), generation=1, rank=2, incarnation=3, report_seq=4, control_seq=5,
                      step_count=6, state="Training")  # fmt: skip
WELCOME = Welcome(rank=2, incarnation=3, generation=1, status=WelcomeStatus.FORMING, control_seq=0, report_seq=0,
                  config={})  # fmt: skip
FENCED = Fenced(generation=1, incarnation=3, cycle=9, why="stale")
REJECT = Reject(code=1, text="another protocol")


def link(role: Role, keys: LinkKeys | None = KEYS) -> Link:
    return Link(codec=CODEC, keys=keys, role=role)


def hello(host: str = "one") -> Hello:
    return Hello(protocol=1, package="1", host=host, devices=(), runtime="", byte_order=0, schema=Schema(entries=()),
                 schema_hash=bytes(32), dataset_signature=bytes(32), config_digest=bytes(32), averagers=())  # fmt: skip


def forged(kind: int, payload: bytes, sequence: int = 0, key: bytes = KEYS.up, *, length: int | None = None,
           magic: bytes = b"PCLF", flags: int = 0, zero: int = 0) -> bytes:  # fmt: skip
    """A frame as the text of N-23 says, with whatever fault is asked for, under a right tag."""
    head = struct.pack("<4sBBHIQ", magic, kind, flags, zero, len(payload) if length is None else length, sequence)
    return head + payload + hmac.new(key, head + payload, hashlib.sha256).digest()[:16]


def drain(receiver: Link) -> Iterator[Any]:
    while (message := receiver.next_message()) is not None:
        yield message


def heard(receiver: Link, pieces: Iterable[bytes]) -> list[Any]:
    """All messages out of the pieces, then the end of the stream."""
    messages = []
    for piece in pieces:
        receiver.receive_data(piece)
        messages += drain(receiver)
    receiver.receive_eof()
    return messages + list(drain(receiver))


def broken(receiver: Link, data: bytes, text: str, kind: int | None = None) -> None:
    """`data` ends the link, and it stays ended, also for good frames (N-7)."""
    receiver.receive_data(data)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match=text) as caught:
            list(drain(receiver))
        assert kind is None or kind == caught.value.frame
        receiver.receive_data(link(RANK).send(HEARTBEAT))
    assert not receiver.ended


# --- frames ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [KEYS, None], ids=["keys", "no keys"])
def test_tags_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch, keys: LinkKeys | None) -> None:
    """N-22, N-23: of both lanes, which share the reader of frames; how long a wrong one takes tells nothing."""
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def noted(one: bytes, other: bytes) -> bool:
        compared.append(bytes(other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    frame = link(RANK, keys).send(HEARTBEAT)
    receiver = link(COORDINATOR, keys)
    receiver.receive_data(frame)

    assert receiver.next_message() == HEARTBEAT
    assert compared == [frame[-FRAME_TAG:]]


def test_golden_frame() -> None:
    """N-20, N-23, N-24: one frame, byte by byte; and its two halves as the text of the rules gives them."""
    frame = link(RANK).send(HEARTBEAT)

    assert frame.hex() == (
        "50434c46450000006d000000000000000000000088ab636f6e74726f6c5f73657105aa67656e65726174696f6e01ab69"
        "6e6361726e6174696f6e03a472616e6b02aa7265706f72745f73657104a672756e5f6964c41000010203040506070809"
        "0a0b0c0d0e0fa57374617465a8547261696e696e67aa737465705f636f756e7406144e2540ce25b43fcdc6cd05ccb456"
        "9e"
    )
    assert frame == forged(0x45, CODEC.encode(HEARTBEAT))
    assert (FRAME_HEAD, FRAME_TAG) == (20, 16)


@settings(max_examples=60)
@given(data=st.data(), role=st.sampled_from(Role), keys=st.sampled_from([KEYS, None]))
def test_messages_arrive_equal_in_order_for_every_cut(data: st.DataObject, role: Role, keys: LinkKeys | None) -> None:
    """N-2, N-4, F66: whatever the pieces, the messages are the same; the stream then ends between two frames."""
    messages = data.draw(st.lists(FROM_RANK if role is RANK else FROM_COORDINATOR, max_size=5))
    sender, receiver = link(role, keys), link(Role(1 - role), keys)
    stream = b"".join(map(sender.send, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert messages == heard(receiver, pieces)
    assert receiver.ended


def test_byte_at_a_time_equals_whole_buffer() -> None:
    """N-4: the link has no opinion on the size of pieces."""
    sender = link(RANK)
    stream = b"".join(map(sender.send, [hello(), HEARTBEAT, HEARTBEAT, Exiting(reason="done")]))
    single = heard(link(COORDINATOR), (stream[index : index + 1] for index in range(len(stream))))

    assert single == heard(link(COORDINATOR), [stream])
    assert len(single) == 4


def test_links_without_keys_have_a_zero_tag_and_still_count() -> None:
    """N-28: in memory nothing is authenticated, but a lost frame is noticed all the same."""
    sender = link(RANK, None)
    first, second = sender.send(HEARTBEAT), sender.send(HEARTBEAT)

    assert first[-16:] == bytes(16)
    assert heard(link(COORDINATOR, None), [first, second]) == [HEARTBEAT, HEARTBEAT]
    broken(link(COORDINATOR, None), second, "number 1 where 0")
    broken(link(COORDINATOR, None), first[:-1] + b"\x01", "wrong tag", 0x45)


def test_an_authenticated_end_refuses_one_that_is_not() -> None:
    """N-22, N-23: a tag of zeros is a wrong tag, and so is that of the other direction or of another link."""
    broken(link(COORDINATOR), link(RANK, None).send(HEARTBEAT), "wrong tag")
    broken(link(COORDINATOR), forged(0x45, CODEC.encode(HEARTBEAT), key=KEYS.down), "wrong tag")
    broken(link(COORDINATOR), link(RANK, LinkKeys(b"k" * 32, b"k" * 32)).send(HEARTBEAT), "wrong tag")


# --- faults of the stream --------------------------------------------------------------------------------------


FRAMES = tuple(map(link(RANK).send, [HEARTBEAT] * 4))


@pytest.mark.parametrize(
    ("order", "number"),
    [((0, 0), 0), ((0, 2), 2), ((1,), 1), ((0, 2, 1), 2), ((0, 1, 0), 0), ((0, 1, 3), 3)],
    ids=["replayed", "lost", "first lost", "swapped", "replayed later", "lost later"],
)
def test_replay_reorder_and_loss_close_the_link(order: tuple[int, ...], number: int) -> None:
    """N-23: any sequence number but the next one; what came before it was delivered."""
    receiver = link(COORDINATOR)
    delivered = []
    receiver.receive_data(b"".join(FRAMES[index] for index in order))
    with pytest.raises(RemoteProtocolError, match=f"has number {number} where"):
        for message in drain(receiver):
            delivered.append(message)

    assert [HEARTBEAT] * next(at for at, index in enumerate(order) if at != index) == delivered


@given(position=st.integers(0, len(FRAMES[0]) - 1), bit=st.integers(0, 7))
def test_every_bit_of_a_frame_is_protected(position: int, bit: int) -> None:
    """N-23: head, payload and tag; a frame with one changed bit is never delivered."""
    changed = bytearray(FRAMES[0])
    changed[position] ^= 1 << bit
    receiver = link(COORDINATOR)
    receiver.receive_data(bytes(changed))
    receiver.receive_eof()
    with pytest.raises(RemoteProtocolError):
        receiver.next_message()


@pytest.mark.parametrize("cut", range(1, len(FRAMES[0])))
def test_end_inside_a_frame_is_an_error(cut: int) -> None:
    """N-4: a torn frame is no clean end, wherever it is torn; whole frames before it are delivered."""
    receiver = link(COORDINATOR)
    receiver.receive_data(FRAMES[0] + FRAMES[1][:cut])
    receiver.receive_eof()

    assert receiver.next_message() == HEARTBEAT
    with pytest.raises(RemoteProtocolError, match="inside a frame"):
        receiver.next_message()
    assert not receiver.ended


def test_end_between_frames_is_an_end() -> None:
    """M-17: EOF is evidence of its own, not a violation; `ended` only once everything is handed out."""
    receiver = link(COORDINATOR)
    receiver.receive_data(FRAMES[0])
    receiver.receive_eof()

    assert not receiver.ended
    assert receiver.next_message() == HEARTBEAT
    assert receiver.ended and receiver.next_message() is None


@given(noise=st.binary(min_size=1, max_size=120), after=st.integers(0, 2))
def test_noise_raises_remote_errors_only(noise: bytes, after: int) -> None:
    """N-7, I22: any bytes, at the start or after good frames, end the link with RemoteProtocolError."""
    receiver = link(COORDINATOR)
    with pytest.raises(RemoteProtocolError):
        heard(receiver, [*FRAMES[:after], noise])


@settings(max_examples=60)
@given(data=st.data(), keys=st.sampled_from([KEYS, None]))
def test_corrupted_streams_raise_remote_errors_only(data: st.DataObject, keys: LinkKeys | None) -> None:
    """N-7, I22: without keys a changed payload reaches the codec, and that raises nothing else either."""
    sender, receiver = link(RANK, keys), link(COORDINATOR, keys)
    messages = data.draw(st.lists(FROM_RANK, min_size=1, max_size=3))
    stream = bytearray(b"".join(map(sender.send, messages)))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    del stream[data.draw(st.integers(1, len(stream))) :]
    try:
        heard(receiver, [bytes(stream)])
    except RemoteProtocolError:
        assert not receiver.ended


def test_wrong_heads_end_the_link() -> None:
    """N-23: magic, flags and zeros, under a right tag or not."""
    payload = CODEC.encode(HEARTBEAT)

    broken(link(COORDINATOR), b"GET / HTTP/1.1\r\nHost: x\r\n", "out of step")
    broken(link(COORDINATOR), forged(0x45, payload, magic=b"PCLN"), "out of step")
    broken(link(COORDINATOR), forged(0x45, payload, flags=1), "flags", 0x45)
    broken(link(COORDINATOR), forged(0x45, payload, zero=1), "flags", 0x45)
    broken(link(COORDINATOR), forged(0x45, payload, sequence=2**64 - 1), "number", 0x45)
    broken(link(COORDINATOR), forged(0x45, b"\xc1"), "Heartbeat", 0x45)


def test_nothing_is_decoded_before_its_tag_is_verified() -> None:
    """N-23: the codec never sees a payload that no one vouches for."""

    class Recorder:
        seen = 0

        def encode(self, message: Any) -> bytes:
            raise AssertionError("nothing is sent here")

        def decode(self, kind: int, payload: bytes | memoryview) -> Any:
            self.seen += 1
            return HEARTBEAT

    codec = Recorder()
    receiver = Link(codec=codec, keys=KEYS, role=COORDINATOR)
    receiver.receive_data(FRAMES[0])

    assert receiver.next_message() == HEARTBEAT and codec.seen == 1
    broken(receiver, FRAMES[1][:-1] + bytes([FRAMES[1][-1] ^ 1]), "wrong tag")
    assert codec.seen == 1


def test_sending_goes_on_after_a_fault_of_the_peer() -> None:
    """N-7: the session ends with a notice, so the direction that did not lie still works."""
    coordinator, rank = link(COORDINATOR), link(RANK)
    broken(coordinator, bytes(20), "out of step")

    assert heard(rank, [coordinator.send(FENCED)]) == [FENCED]


def test_a_poisoned_link_keeps_nothing() -> None:
    """N-7, N-25: what a violator had sent and goes on sending is dropped, and the stored fault holds no stack with
    somebody's read buffer in it."""
    receiver = link(COORDINATOR)

    def read_once() -> None:
        buffer = bytes(4 << 20)
        receiver.receive_data(buffer)
        with pytest.raises(RemoteProtocolError, match="out of step"):
            receiver.next_message()

    tracemalloc.start()
    for _ in range(3):
        read_once()
    receiver.receive_data(bytes(4 << 20))
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert current < 1 << 20


# --- roles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", range(256))
def test_each_role_hears_only_what_the_other_may_say(kind: int) -> None:
    """N-7, section 3: a kind of the wrong direction, a bulk block or an unknown kind is a violation at both ends."""
    ranks = {0x10} | {kind for kind in KINDS if 0x40 <= kind < 0x70}
    coordinators = {0x11, 0x12, 0x13} | {kind for kind in KINDS if 0x20 <= kind < 0x40}
    for role, key, allowed in ((COORDINATOR, KEYS.up, ranks), (RANK, KEYS.down, coordinators)):
        text = f"{KINDS[kind].__name__} " if kind in allowed else f"does not send kind {kind:#04x}"
        broken(link(role), forged(kind, b"\xc1", key=key), text, kind)


@pytest.mark.parametrize(
    "message",
    [HEARTBEAT, hello(), Beacon(run_phase=0, cycle_phase=0, cycle=0), FENCED, WELCOME, REJECT, object()],
    ids=lambda message: type(message).__name__,
)
def test_each_role_sends_only_what_is_its_own(message: Any) -> None:
    """N-7: the wrong direction is misuse by the local caller, and leaves no hole in the numbers."""
    for role in Role:
        sender = link(role)
        if type(message) in KIND_OF and (isinstance(message, Hello | Heartbeat)) == (role is RANK):
            sender.send(message)
            continue
        with pytest.raises(LocalProtocolError, match="does not send"):
            sender.send(message)
        good = HEARTBEAT if role is RANK else FENCED
        assert heard(link(Role(1 - role)), [sender.send(good)]) == [good]


def test_bulk_blocks_have_a_lane_of_their_own() -> None:
    """N-24: kind 70 is never a control message."""
    block = BulkBlock(key=RoundKey(generation=1, cycle=1, kind=RoundKind.PARAMS), attempt=0, rank=0, incarnation=1,
                      entry=0, offset=0, bytes=0)  # fmt: skip
    with pytest.raises(LocalProtocolError):
        link(RANK).send(block)
    broken(link(COORDINATOR), forged(BULK_KIND, CODEC.encode(block)), "0x70", BULK_KIND)


def test_an_unsendable_message_takes_no_number() -> None:
    """N-2, N-10: after a LocalProtocolError the next frame has the number that was due."""
    sender = link(RANK)
    with pytest.raises(LocalProtocolError):
        sender.send(Exiting(reason="x", rank=-1))

    assert heard(link(COORDINATOR), [sender.send(HEARTBEAT)]) == [HEARTBEAT]


# --- caps ------------------------------------------------------------------------------------------------------


def exiting(payload: int) -> Exiting:
    """A report whose payload has exactly that many bytes."""
    spare = payload - len(CODEC.encode(Exiting(reason="x" * 70000))) + 70000
    report = Exiting(reason="x" * spare)
    assert payload == len(CODEC.encode(report))
    return report


def established(role: Role) -> Link:
    """A link on which a Welcome has passed: the coordinator sent it, the rank received it."""
    coordinator, rank = link(COORDINATOR), link(RANK)
    list(heard(rank, [coordinator.send(WELCOME)]))
    assert coordinator.established and rank.established
    return coordinator if role is COORDINATOR else rank


def test_which_messages_establish() -> None:
    """N-25: not Hello, Reject and Fenced, which strangers exchange; Welcome, controls and reports do, on both ends."""
    for role, message in ((RANK, hello()), (COORDINATOR, FENCED), (COORDINATOR, REJECT)):
        sender, receiver = link(role), link(Role(1 - role))
        heard(receiver, [sender.send(message)])
        assert not sender.established and not receiver.established
    for role, message in ((RANK, HEARTBEAT), (COORDINATOR, WELCOME), (COORDINATOR, Shutdown(reason=SaveReason(0)))):
        sender, receiver = link(role), link(Role(1 - role))
        heard(receiver, [sender.send(message)])
        assert sender.established and receiver.established


@pytest.mark.parametrize(("start", "cap"), [(link, MAX_HELLO), (established, MAX_CONTROL)])
def test_caps_hold_on_both_ends(start: Any, cap: int) -> None:
    """N-25: 1 MiB until the link is established, 16 MiB then; the sender knows what the receiver will refuse."""
    largest = exiting(cap)

    assert heard(start(COORDINATOR), [start(RANK).send(largest)]) == [largest]
    with pytest.raises(LocalProtocolError, match=str(cap)):
        start(RANK).send(exiting(cap + 1))
    broken(start(COORDINATOR), forged(0x46, b"", length=cap + 1), f"{cap} are allowed", 0x46)


def test_a_hello_is_capped_on_an_established_link_too() -> None:
    """N-25: session messages never exceed 1 MiB."""
    with pytest.raises(LocalProtocolError):
        established(RANK).send(hello("x" * MAX_HELLO))
    broken(established(COORDINATOR), forged(0x10, b"", length=MAX_HELLO + 1), "are allowed", 0x10)


def test_a_claimed_length_costs_no_memory() -> None:
    """N-25, F76: four gigabytes in a head are refused at the head; what is allowed is held only as it arrives."""
    tracemalloc.start()
    broken(established(COORDINATOR), forged(0x46, b"", length=2**32 - 1), "are allowed", 0x46)
    waiting = established(COORDINATOR)
    waiting.receive_data(forged(0x46, b"", length=MAX_CONTROL)[:FRAME_HEAD])
    assert waiting.next_message() is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1 << 20


# --- the local caller ------------------------------------------------------------------------------------------


def test_misuse_is_the_callers_fault() -> None:
    """N-7: bytes after the end, a key of the wrong size."""
    receiver = link(COORDINATOR)
    receiver.receive_eof()
    with pytest.raises(LocalProtocolError, match="after the end"):
        receiver.receive_data(b"x")
    with pytest.raises(LocalProtocolError, match="key"):
        link(RANK, LinkKeys(b"short", b"k" * 32))
