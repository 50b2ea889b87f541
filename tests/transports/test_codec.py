"""Payloads: protocol N-24, N-25, invariant I22."""

from __future__ import annotations

import pickle
import tracemalloc
import typing
from enum import IntEnum

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import message_types
from paceline.core.errors import LocalProtocolError, RemoteProtocolError
from paceline.core.messages import (
    BULK_KIND,
    KIND_OF,
    KINDS,
    Batch,
    BulkBlock,
    Contribution,
    EpochAggregated,
    Exiting,
    Hello,
    Metrics,
    NewSession,
    Outcome,
    Plan,
    RoundKey,
    RoundKind,
    RoundResult,
    SaveReason,
    Shutdown,
    StartEpoch,
    SyncAck,
    Welcome,
    WelcomeStatus,
)
from paceline.transports.codec import (
    MAX_DEPTH,
    MAX_MAP_ENTRIES,
    MsgpackCodec,
    decode_record,
    encode_record,
    inspect,
)

from support.messages import BLOCKS, MESSAGES, RECORDS, instances_of

CODEC = MsgpackCodec()
EXITING = KIND_OF[Exiting]
pack = msgspec.msgpack.encode


def refused(kind: int, payload: bytes, text: str) -> None:
    """`payload` is a violation that names its reason and carries the kind byte (N-7, N-24)."""
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        CODEC.decode(kind, payload)
    assert kind == caught.value.frame


# --- round trips -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: KINDS[kind].__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_every_message_round_trips(kind: int, data: st.DataObject) -> None:
    """Each message of section 3 comes back equal, of the same class, with enums as enums (N-24)."""
    message = data.draw(instances_of(KINDS[kind]))
    payload = CODEC.encode(message)

    assert message == CODEC.decode(kind, payload)
    assert payload == CODEC.encode(CODEC.decode(kind, memoryview(payload)))


@settings(max_examples=50)
@given(block=BLOCKS, record=RECORDS)
def test_blocks_and_records_round_trip(block: BulkBlock, record: Contribution | RoundResult) -> None:
    """The header of a bulk block (N-26) and the records of a block of kind COUNTS (R-4) come back equal."""
    assert block == CODEC.decode(BULK_KIND, CODEC.encode(block))
    assert record == decode_record(type(record), encode_record(record))


def test_payload_is_a_map_of_all_field_names() -> None:
    """N-24: a map from field name to value, in the order of names (N-13); absent is nil, never zero."""
    message = SyncAck(cycle=1, attempt=0, step_count=9, shipped_steps=4, total_steps=8, outcome=Outcome.MERGED,
                      state_complete=True)  # fmt: skip
    fields = msgspec.msgpack.decode(CODEC.encode(message))

    assert sorted(field.name for field in attrs.fields(SyncAck)) == list(fields)
    assert fields["digest"] is None and fields["outcome"] == 0


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_losses_that_are_no_numbers_travel(number: float) -> None:
    """A diverged loss is a fact to report, not a violation (N-24: f64)."""
    batch = Batch(cycle=1, plan_id=1, step_count=1, samples=1, batch_ms=1.0, data_ms=0.0, batch_loss=number)

    assert repr(batch) == repr(CODEC.decode(KIND_OF[Batch], CODEC.encode(batch)))


# --- what a later version may add, and what nobody may ---------------------------------------------------------


def test_unknown_fields_are_ignored_and_optional_ones_may_be_missing() -> None:
    """F67, N-24: unknown optional fields are ignored, at any level."""
    plan = {"plan_id": 1, "epoch": 2, "offset": 3, "size": 4, "colour": ["green", {"deep": [1.5, b"x", -7]}]}
    payload = pack({"cycle": 5, "plan": plan, "weather": {"sun": True}})

    assert CODEC.decode(KIND_OF[StartEpoch], payload) == StartEpoch(
        cycle=5, plan=Plan(plan_id=1, epoch=2, offset=3, size=4)
    )


def test_missing_field_wrong_type_and_unknown_kind_are_violations() -> None:
    """F67, N-24: each of them, with the number of the kind."""
    refused(EXITING, pack({}), "reason")
    refused(EXITING, pack({"reason": 5}), "reason")
    refused(EXITING, pack({"reason": b"bytes"}), "reason")
    refused(EXITING, pack({"reason": "x", "rank": True}), "rank")
    refused(EXITING, pack({"reason": "x", "rank": 1.0}), "rank")
    refused(EXITING, pack(["x"]), "object")
    refused(EXITING, b"", "cut short")
    refused(0x7F, pack({}), "0x7f")
    refused(0x00, pack({}), "0x00")


def test_unknown_enum_is_a_violation_except_a_save_reason() -> None:
    """N-24, section 3: an unknown save reason reads as graceful, every other unknown number ends the session."""
    key = {"generation": 1, "cycle": 1, "kind": 9}
    block = {"key": key, "attempt": 0, "rank": 0, "incarnation": 1, "entry": 0, "offset": 0, "bytes": 0}

    assert CODEC.decode(KIND_OF[Shutdown], pack({"reason": 200})).reason is SaveReason.GRACEFUL
    refused(BULK_KIND, pack(block), "enum")
    refused(KIND_OF[Shutdown], pack({"reason": "graceful"}), "reason")


NUMBERS = {
    "Outcome": ["merged", "refused", "unrealized", "observer"],
    "Refusal": ["schema", "shape", "dtype", "steps", "nonfinite", "duplicate"],
    "ThrottleReason": ["barrier", "lead"],
    "RoundKind": ["counts", "params", "buffers", "state"],
    "IntentKind": ["eval_now", "checkpoint_now", "stop_now"],
    "SaveReason": ["graceful", "max_failure", "single_survivor", "all_ranks_lost", "reduce_stall", "checkpoint",
                   "diverged", "consensus_mismatch"],
    "WelcomeStatus": ["forming", "joining", "resumed"],
}  # fmt: skip
"""The enumerations of section 3, each from 0 on."""


def test_the_numbers_of_enumerations_never_change() -> None:
    """N-24, section 3: they travel, and stand in files."""
    for name, words in NUMBERS.items():
        members = getattr(message_types, name)
        assert [(member.name.lower(), member.value) for member in members] == [(w, n) for n, w in enumerate(words)]
    assert BULK_KIND == 0x70 and (MAX_DEPTH, MAX_MAP_ENTRIES) == (8, 4096)


OF_ENUMS = [
    (cls, field.name, hint)
    for cls in KINDS.values()
    for field in attrs.fields(cls)
    for hint in [typing.get_type_hints(cls)[field.name]]
    if any(isinstance(kind, type) and issubclass(kind, IntEnum) for kind in (hint, *typing.get_args(hint)))
]


@pytest.mark.parametrize(("cls", "name", "hint"), OF_ENUMS, ids=[f"{cls.__name__}.{name}" for cls, name, _ in OF_ENUMS])
@settings(max_examples=2)
@given(data=st.data())
def test_an_unknown_number_ends_the_session_in_every_message(
    cls: type, name: str, hint: object, data: st.DataObject
) -> None:
    """N-24: wherever an enumeration stands; where a default is stated the message is read, and nowhere else."""
    fields = msgspec.msgpack.decode(CODEC.encode(data.draw(instances_of(cls))))
    payload = pack({**fields, name: 200})
    if hint is SaveReason:
        assert getattr(CODEC.decode(KIND_OF[cls], payload), name) is SaveReason.GRACEFUL
    else:
        refused(KIND_OF[cls], payload, name)


def test_integers_are_unsigned() -> None:
    """Section 3 knows u8, u32 and u64 only, in messages, in values inside them and in lists."""
    plan = {"plan_id": 1, "epoch": 2, "offset": -3, "size": 4}
    chunk = {"cycle": 0, "plan_ids": [1, -1], "epoch": 0, "batches": 1, "samples": 1, "epoch_ms": 0.0,
             "share_complete_ms": 0.0, "compute_only_ms": 0.0, "data_starve_ms": 0.0}  # fmt: skip
    scalars = {"loss": [0.5, -1]}

    refused(EXITING, pack({"reason": "x", "incarnation": -1}), "incarnation")
    refused(KIND_OF[StartEpoch], pack({"cycle": 5, "plan": plan}), "negative")
    refused(KIND_OF[Metrics], pack(chunk), "plan_ids")
    refused(KIND_OF[Metrics], pack({**chunk, "plan_ids": [1], "scalars": scalars}), "scalars")


def test_values_of_the_configuration_may_be_negative() -> None:
    """V-6: a knob is any number, text, truth value or nothing."""
    config = {"seed": -1, "momentum": -0.5, "policy": "sync", "digest": True, "path": None}
    welcome = Welcome(rank=0, incarnation=1, generation=1, status=WelcomeStatus.FORMING, control_seq=0, report_seq=0,
                      config=config)  # fmt: skip

    assert welcome == CODEC.decode(KIND_OF[Welcome], CODEC.encode(welcome))


@pytest.mark.parametrize("size", [1, 15, 17, 32])
def test_run_id_has_its_size(size: int) -> None:
    """N-6, N-21: 16 bytes, or none where nothing is stamped yet; checked on both ends."""
    refused(EXITING, pack({"reason": "x", "run_id": bytes(size)}), "run_id")
    with pytest.raises(LocalProtocolError, match="run_id"):
        CODEC.encode(Exiting(run_id=bytes(size), reason="x"))


def test_hashes_have_their_size() -> None:
    """R-4, C-18: 32 bytes of schema hash, 16 of digest; a communicator id has any length (M-31)."""
    record = Contribution(cycle=1, attempt=0, schema_hash=bytes(32), steps=1, finite=True, bytes=0)
    short = {**msgspec.msgpack.decode(encode_record(record)), "schema_hash": bytes(31)}
    ack = {"cycle": 1, "attempt": 0, "step_count": 1, "shipped_steps": 1, "total_steps": 1, "outcome": 0,
           "state_complete": True, "digest": bytes(32)}  # fmt: skip
    session = NewSession(session_id=1, uid=bytes(128), new_rank=0, new_world_size=1, members=((0, 1),), state_from=0,
                         attempt=0)  # fmt: skip

    with pytest.raises(RemoteProtocolError, match="schema_hash"):
        decode_record(Contribution, pack(short))
    refused(KIND_OF[SyncAck], pack(ack), "digest")
    assert session == CODEC.decode(KIND_OF[NewSession], CODEC.encode(session))


@pytest.mark.parametrize("name", ["schema_hash", "dataset_signature", "config_digest"])
@pytest.mark.parametrize("size", [0, 31, 33])
@settings(max_examples=1)
@given(data=st.data())
def test_each_hash_of_a_hello_has_its_size(name: str, size: int, data: st.DataObject) -> None:
    """M-5, N-24: the door compares what is whole."""
    fields = msgspec.msgpack.decode(CODEC.encode(data.draw(instances_of(Hello))))
    refused(KIND_OF[Hello], pack({**fields, name: bytes(size)}), name)


# --- strictness of the raw bytes -------------------------------------------------------------------------------


def nested(levels: int) -> bytes:
    """An Exiting with an unknown field that makes the whole message `levels` containers deep."""
    return b"\x82\xa6reason\xa1x\xa1?" + b"\x91" * (levels - 1) + b"\x01"


def test_depth_is_limited_in_unknown_fields_too() -> None:
    """N-24: depth 8 passes, 9 does not, and a megabyte of brackets is no stack overflow."""
    assert CODEC.decode(EXITING, nested(MAX_DEPTH)).reason == "x"
    refused(EXITING, nested(MAX_DEPTH + 1), "inside each other")
    refused(EXITING, nested(1 << 20), "inside each other")


def test_map_entries_are_limited() -> None:
    """N-24: 4096 entries pass, one more does not, known field or not; the sender is told."""
    entries = {str(index): 1.0 for index in range(MAX_MAP_ENTRIES)}
    largest = EpochAggregated(epoch=1, metrics=entries)
    larger = EpochAggregated(epoch=1, metrics={**entries, "one more": None})

    assert largest == CODEC.decode(KIND_OF[EpochAggregated], CODEC.encode(largest))
    refused(KIND_OF[EpochAggregated], pack(attrs.asdict(larger)), "4097")
    refused(EXITING, pack({"reason": "x", "?": larger.metrics}), "4097")
    with pytest.raises(LocalProtocolError, match="4097"):
        CODEC.encode(larger)


@pytest.mark.parametrize("claim", [b"\xdd\xff\xff\xff\xff", b"\xdd\x0f\xff\xff\xff", b"\xdc\xff\xff"])
@pytest.mark.parametrize("field", [b"\xa8plan_ids", b"\xa1?"])
def test_claimed_sizes_are_checked_before_allocation(field: bytes, claim: bytes) -> None:
    """N-25, F76: a claim of four billion entries in a few bytes costs no memory."""
    tracemalloc.start()
    refused(KIND_OF[Metrics], b"\x81" + field + claim, "entries in 0 bytes")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"\x82\xa6reason\xa1x\xa1\xff\x01", "utf-8"),
        (b"\x82\xa6reason\xa1x\xd9\x01\xff\x01", "utf-8"),
        (b"\x81\xa6reason\xa1\xff", "utf-8"),
        (b"\x82\xa6reason\xa1x\x01\x01", "no text"),
        (b"\x82\xa6reason\xa1x\xa1?\x81\xc4\x01a\x01", "no text"),
        (b"\x82\xa6reason\xa1x\xa1?\xd4\x01\x01", "no type"),
        (b"\x82\xa6reason\xa1x\xa1?\xd6\xff\x00\x00\x00\x00", "no type"),
        (b"\x82\xa6reason\xa1x\xa1?\xc7\x01\x01\x01", "no type"),
        (b"\x82\xa6reason\xa1x\xa1?\xc1", "no type"),
        (b"\x81\xa6reason\xa1x\x01", "too many"),
        (b"\x81\xa6reason\xa5x", "cut short|too many"),
        (b"\x81\xa6reason\xda", "cut short|too many"),
    ],
)
def test_bad_names_types_and_ends_are_violations(payload: bytes, text: str) -> None:
    """N-24: UTF-8 names, no extension types, nothing missing and nothing behind."""
    refused(EXITING, payload, text)


@pytest.mark.parametrize("name", [b"\xa1?", b"\xd9\x01?", b"\xda\x00\x01?", b"\xdb\x00\x00\x00\x01?"])
def test_a_name_may_say_its_length_in_any_way(name: bytes) -> None:
    """N-24: UTF-8 names, and no more is asked of them; a later version may have long ones."""
    assert CODEC.decode(EXITING, b"\x82\xa6reason\xa1x" + name + b"\x01").reason == "x"


def test_pickles_are_noise() -> None:
    """N-24, F74: no pickle is ever loaded; as a payload it is a violation of any kind."""
    for kind in (*KINDS, BULK_KIND):
        with pytest.raises(RemoteProtocolError):
            CODEC.decode(kind, pickle.dumps({"reason": "x"}))


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
TREES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
                     max_leaves=30)  # fmt: skip


def depth(tree: object) -> int:
    """Containers inside each other."""
    if isinstance(tree, dict):
        return 1 + max(map(depth, tree.values()), default=0)
    return 1 + max(map(depth, tree), default=0) if isinstance(tree, list) else 0


@given(tree=TREES)
def test_inspection_accepts_what_an_encoder_writes(tree: object) -> None:
    """N-24: every value of MessagePack's own types passes unless it is too deep."""
    if depth(tree) <= MAX_DEPTH:
        inspect(pack(tree))
    else:
        with pytest.raises(ValueError, match="inside each other"):
            inspect(pack(tree))


@given(tree=TREES, data=st.data())
def test_inspection_agrees_with_a_decoder(tree: object, data: st.DataObject) -> None:
    """What inspection lets through, cut or corrupted, a general decoder can read (names of other types aside)."""
    payload = bytearray(pack(tree))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    del payload[data.draw(st.integers(1, len(payload))) :]
    try:
        inspect(bytes(payload))
    except ValueError:
        return
    msgspec.msgpack.decode(payload)


@settings(max_examples=300)
@given(kind=st.integers(0, 255), payload=st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_else(kind: int, payload: bytes) -> None:
    """N-7, I22: RemoteProtocolError with the kind, or a message."""
    try:
        CODEC.decode(kind, payload)
    except RemoteProtocolError as fault:
        assert kind == fault.frame


@settings(max_examples=300)
@given(message=MESSAGES, data=st.data())
def test_corrupted_payloads_raise_nothing_else(message: object, data: st.DataObject) -> None:
    """N-7, I22: bytes near a real message, cut or changed, likewise; what still decodes can be encoded again."""
    kind = KIND_OF[type(message)]
    payload = bytearray(CODEC.encode(message))
    for _ in range(data.draw(st.integers(0, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    del payload[data.draw(st.integers(0, len(payload))) :]
    try:
        survivor = CODEC.decode(kind, bytes(payload))
    except RemoteProtocolError as fault:
        assert kind == fault.frame
    else:
        CODEC.encode(survivor)


# --- the local caller ------------------------------------------------------------------------------------------


exiting: typing.Any = Exiting
"""Without its types, as a caller without a checker has it."""
UNSENDABLE = {
    "no message": object(),
    "a key": RoundKey(generation=1, cycle=1, kind=RoundKind.PARAMS),
    "a contribution": Contribution(cycle=1, attempt=0, schema_hash=bytes(32), steps=1, finite=True, bytes=0),
    "a rank below 0": Exiting(reason="x", rank=-1),
    "a rank above 64 bits": Exiting(reason="x", rank=2**64),
    "half a character": Exiting(reason="\ud800"),
    "an object for a text": exiting(reason=object()),
    "a text for a number": exiting(reason="x", rank="0"),
}


@pytest.mark.parametrize("message", UNSENDABLE.values(), ids=UNSENDABLE)
def test_what_can_not_be_sent_is_the_callers_fault(message: object) -> None:
    """N-7: misuse by the local caller is a LocalProtocolError."""
    with pytest.raises(LocalProtocolError):
        CODEC.encode(message)
