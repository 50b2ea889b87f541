"""The bulk lane: protocol N-23, N-25, N-26, invariant I22."""

from __future__ import annotations

import hashlib
import hmac
import io
import struct
import tracemalloc
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.errors import LocalProtocolError, RemoteProtocolError
from paceline.core.messages import BulkBlock, RoundKey, RoundKind
from paceline.core.wire import FRAME_HEAD, MAP_PREFIX, MAX_BLOCK, MAX_MAP, BulkFramer, LinkKeys, Role
from paceline.transports.codec import MsgpackCodec

from support.messages import BLOCKS

KEYS = LinkKeys(bytes(range(32)), bytes(range(32, 64)))
CODEC = MsgpackCodec()
DATA = memoryview(b"\x00\x00\x80\x3f\x00\x00\x00\xc0")
BLOCK = BulkBlock(key=RoundKey(generation=1, cycle=2, kind=RoundKind.PARAMS), attempt=3, rank=4, incarnation=5, entry=6,
                  offset=7, bytes=8)  # fmt: skip


def framer(role: Role, keys: LinkKeys | None = KEYS, bulk_auth: str = "full") -> BulkFramer:
    return BulkFramer(codec=CODEC, keys=keys, role=role, bulk_auth=bulk_auth)


def sealed(sender: BulkFramer, block: BulkBlock = BLOCK, data: memoryview = DATA) -> bytes:
    head, tag = sender.seal(block, data)
    return head + data + tag


def opened(receiver: BulkFramer, frame: bytes) -> tuple[BulkBlock, bytes]:
    """Read a frame piece by piece, as a transport does; `EOFError` where one would wait for more bytes."""
    stream = io.BytesIO(frame)

    def read(size: int) -> bytes:
        piece = stream.read(size)
        if len(piece) < size:
            raise EOFError
        return piece

    length = receiver.open_head(read(FRAME_HEAD))
    map_bytes = int.from_bytes(read(MAP_PREFIX), "little")
    block = receiver.open_map(read(map_bytes))
    data = read(length - MAP_PREFIX - map_bytes)
    receiver.verify(memoryview(data), read(16))
    return block, data


def forged(encoded: bytes, data: bytes = bytes(DATA), *, kind: int = 0x70, length: int | None = None,
           sequence: int = 0, key: bytes = KEYS.up) -> bytes:  # fmt: skip
    """A bulk frame as the text of N-23 and N-26 says, under a right tag."""
    payload = struct.pack("<H", len(encoded)) + encoded + data
    head = struct.pack("<4sBBHIQ", b"PCLF", kind, 0, 0, len(payload) if length is None else length, sequence)
    return head + payload + hmac.new(key, head + payload, hashlib.sha256).digest()[:16]


def broken(receiver: BulkFramer, frame: bytes, text: str) -> None:
    """`frame` ends the lane, and it stays ended (N-7)."""
    with pytest.raises(RemoteProtocolError, match=text):
        opened(receiver, frame)
    with pytest.raises(RemoteProtocolError, match=text):
        receiver.open_head(sealed(framer(Role.RANK))[:FRAME_HEAD])


def test_golden_block() -> None:
    """N-20, N-26: one bulk frame, byte by byte; data is raw and little-endian (1.0 and -2.0 in float32)."""
    frame = sealed(framer(Role.RANK))

    assert frame.hex() == (
        "50434c46700000005b0000000000000000000000510087a7617474656d707403a5627974657308a5656e74727906ab69"
        "6e6361726e6174696f6e05a36b657983a56379636c6502aa67656e65726174696f6e01a46b696e6401a66f6666736574"
        "07a472616e6b040000803f000000c09cc19b718f9ba62cb3a5c55f45e73944"
    )
    assert frame == forged(CODEC.encode(BLOCK))


@given(block=BLOCKS, data=st.binary(max_size=200), role=st.sampled_from(Role), keys=st.sampled_from([KEYS, None]),
       bulk_auth=st.sampled_from(["full", "header"]))  # fmt: skip
def test_blocks_round_trip(block: BulkBlock, data: bytes, role: Role, keys: LinkKeys | None, bulk_auth: str) -> None:
    """N-26: every header, any data, both directions, in sequence; also with no data at all."""
    block = attrs.evolve(block, bytes=len(data))
    empty = attrs.evolve(block, bytes=0)
    sender, receiver = framer(role, keys, bulk_auth), framer(Role(1 - role), keys, bulk_auth)
    for sent, content in ((block, data), (empty, b""), (block, data)):
        assert opened(receiver, sealed(sender, sent, memoryview(content))) == (sent, content)


def test_a_block_of_the_largest_size_passes_and_no_larger() -> None:
    """N-25: 16 MiB of data, the map not counted."""
    largest = attrs.evolve(BLOCK, bytes=MAX_BLOCK)
    frame = sealed(framer(Role.RANK), largest, memoryview(bytes(MAX_BLOCK)))

    assert opened(framer(Role.COORDINATOR), frame)[0] == largest
    with pytest.raises(LocalProtocolError):
        framer(Role.RANK).seal(attrs.evolve(BLOCK, bytes=MAX_BLOCK + 1), memoryview(bytes(MAX_BLOCK + 1)))
    larger = CODEC.encode(attrs.evolve(BLOCK, bytes=MAX_BLOCK + 1))
    broken(framer(Role.COORDINATOR), forged(larger, bytes(MAX_BLOCK + 1)), f"{MAX_BLOCK + 1} of them")


@pytest.mark.parametrize(("bulk_auth", "noticed"), [("full", True), ("header", False)])
def test_what_the_tag_covers(bulk_auth: str, noticed: bool) -> None:
    """N-26: changed data is noticed under "full"; "header" is for one host and vouches for the header only."""
    frame = sealed(framer(Role.RANK, bulk_auth=bulk_auth))
    changed = frame[:-17] + bytes([frame[-17] ^ 1]) + frame[-16:]
    receiver = framer(Role.COORDINATOR, bulk_auth=bulk_auth)
    if noticed:
        broken(receiver, changed, "wrong tag")
    else:
        assert opened(receiver, changed)[0] == BLOCK


@pytest.mark.parametrize("bulk_auth", ["full", "header"])
@given(data=st.data())
def test_every_bit_before_the_data_is_protected(bulk_auth: str, data: st.DataObject) -> None:
    """N-23, N-26: head, map length, map and tag, in both modes; a larger length waits for bytes that never come."""
    frame = bytearray(sealed(framer(Role.RANK, bulk_auth=bulk_auth)))
    positions = [*range(len(frame) - 16 - len(DATA)), *range(len(frame) - 16, len(frame))]
    frame[data.draw(st.sampled_from(positions))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((RemoteProtocolError, EOFError)):
        opened(framer(Role.COORDINATOR, bulk_auth=bulk_auth), bytes(frame))


def test_modes_of_both_ends_must_agree() -> None:
    """N-26: "header" on one end only is a wrong tag at the first block."""
    broken(framer(Role.COORDINATOR), sealed(framer(Role.RANK, bulk_auth="header")), "wrong tag")
    broken(framer(Role.COORDINATOR, bulk_auth="header"), sealed(framer(Role.RANK)), "wrong tag")
    broken(framer(Role.COORDINATOR), sealed(framer(Role.RANK, None)), "wrong tag")


@pytest.mark.parametrize("order", [(0, 0), (0, 2), (1,), (0, 2, 1)], ids=["replayed", "lost", "first lost", "swapped"])
@pytest.mark.parametrize("keys", [KEYS, None], ids=["keys", "no keys"])
def test_replay_reorder_and_loss_close_the_lane(order: tuple[int, ...], keys: LinkKeys | None) -> None:
    """N-23: also of a link without keys (N-28)."""
    sender, receiver = framer(Role.RANK, keys), framer(Role.COORDINATOR, keys)
    frames = [sealed(sender) for _ in range(3)]
    with pytest.raises(RemoteProtocolError, match="has number"):
        for index in order:
            opened(receiver, frames[index])


def test_heads_are_checked_before_anything_is_allocated() -> None:
    """N-25: kind and length, from 20 bytes."""
    bound = MAP_PREFIX + MAX_MAP + MAX_BLOCK
    tracemalloc.start()
    for length in (0, MAP_PREFIX, bound + 1, 2**32 - 1):
        broken(framer(Role.COORDINATOR), forged(b"", length=length), f"claims {length}")
    broken(framer(Role.COORDINATOR), forged(CODEC.encode(BLOCK), kind=0x45), "0x45")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert framer(Role.COORDINATOR).open_head(forged(b"", length=bound)[:FRAME_HEAD]) == bound
    assert peak < 1 << 20


@pytest.mark.parametrize(("length", "fits"), [(MAP_PREFIX + 50, 50), (MAP_PREFIX + MAX_BLOCK, MAX_MAP)])
def test_the_length_of_a_map_is_checked_before_the_map_is_read(length: int, fits: int) -> None:
    """N-25, N-26: a map is no longer than its frame, nor than a map may be."""
    receiver = framer(Role.COORDINATOR)
    receiver.open_head(forged(b"", length=length)[:FRAME_HEAD])

    assert receiver.map_bytes(struct.pack("<H", fits)) == fits
    with pytest.raises(RemoteProtocolError, match=f"claims {fits + 1} of {length} bytes"):
        receiver.map_bytes(struct.pack("<H", fits + 1))
    with pytest.raises(RemoteProtocolError, match=f"claims {fits + 1} of {length} bytes"):
        receiver.open_map(CODEC.encode(BLOCK))


def changed_map(**fields: Any) -> bytes:
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(CODEC.encode(BLOCK)), **fields})


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (changed_map(bytes=7), "7 of them are data"),
        (changed_map(bytes=9), "9 of them are data"),
        (changed_map(bytes=-8), "negative"),
        (changed_map(offset=-1), "negative"),
        (changed_map(key={"generation": 1, "cycle": 1, "kind": 8}), "enum"),
        (changed_map(note="x" * MAX_MAP), "are allowed"),
        (b"\x80", "required"),
        (b"", "cut short"),
    ],
)
def test_wrong_maps_end_the_lane(encoded: bytes, text: str) -> None:
    """N-24, N-26: sizes that contradict the head, negative or unknown values, a map above its cap; a right tag
    excuses none of them, and no memory is asked for."""
    broken(framer(Role.COORDINATOR), forged(encoded), text)


def test_fields_of_a_later_version_are_ignored() -> None:
    """N-24: in the map of a block as in any other."""
    assert opened(framer(Role.COORDINATOR), forged(changed_map(colour="green")))[0] == BLOCK


@given(noise=st.binary(min_size=FRAME_HEAD, max_size=200), keep=st.integers(0, 24))
def test_noise_raises_remote_errors_only(noise: bytes, keep: int) -> None:
    """N-7, I22: any bytes in place of a frame, from its first byte or behind a part of a good one."""
    frame = sealed(framer(Role.RANK))[:keep] + noise
    with pytest.raises((RemoteProtocolError, EOFError)):
        opened(framer(Role.COORDINATOR), frame)


def test_sealing_goes_on_after_a_fault_of_the_peer() -> None:
    """N-7: only the direction that lied is closed."""
    coordinator = framer(Role.COORDINATOR)
    broken(coordinator, bytes(100), "out of step")

    assert opened(framer(Role.RANK), sealed(coordinator))[0] == BLOCK


def test_misuse_is_the_callers_fault() -> None:
    """N-7: wrong sizes and a wrong order of calls are LocalProtocolError and change nothing."""
    sender, receiver = framer(Role.RANK), framer(Role.COORDINATOR)
    for data in (DATA[:-1], memoryview(bytes(16))[::2]):
        with pytest.raises(LocalProtocolError, match="contiguous"):
            sender.seal(BLOCK, data)
    with pytest.raises(LocalProtocolError):
        framer(Role.RANK, bulk_auth="none")
    frame = sealed(sender)
    with pytest.raises(LocalProtocolError, match="head"):
        receiver.open_map(b"")
    with pytest.raises(LocalProtocolError, match="20 bytes"):
        receiver.open_head(b"")
    receiver.open_head(frame[:FRAME_HEAD])
    with pytest.raises(LocalProtocolError, match="map"):
        receiver.open_head(frame[:FRAME_HEAD])
    with pytest.raises(LocalProtocolError, match="2 bytes, not 1"):
        receiver.map_bytes(b"1")
    receiver.open_map(frame[FRAME_HEAD + MAP_PREFIX : -24])
    with pytest.raises(LocalProtocolError, match="8 bytes"):
        receiver.verify(DATA[:-1], frame[-16:])
    with pytest.raises(LocalProtocolError, match="8 bytes"):
        receiver.verify(memoryview(bytes(16))[::2], frame[-16:])
    with pytest.raises(LocalProtocolError, match="8 bytes"):
        receiver.verify(DATA, frame[-15:])
    receiver.verify(DATA, frame[-16:])

    assert opened(receiver, sealed(sender))[0] == BLOCK
