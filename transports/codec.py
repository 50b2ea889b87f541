"""`MsgpackCodec`: the payloads of protocol N-24, by msgspec. Data only: no pickle, no code, no extension types.

A message is a MessagePack map from field name to value. Its bytes come from outside, so reading is in three steps, each
of which can rely on the one before:

1. `inspect` walks the raw bytes without building anything. Afterwards it is certain that they are one whole value of
   known types, with text in UTF-8, names that are text, at most 8 containers deep, no map above 4096 entries, no
   container that claims more values than bytes are left. It covers what typed decoding skips: fields we don't know.
2. msgspec decodes straight into the attrs class of the kind. Wrong types, missing fields and unknown enum numbers end
   here; fields that this version does not know are ignored, and an unknown `SaveReason` reads as GRACEFUL.
3. What a type can't say is checked against the class's own annotations: integers are never negative (section 3 knows
   only unsigned ones), hashes and run ids have their exact size.

Sending checks step 3 as well: a fault of ours should show here, not as the peer's closed link.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

import attrs
import msgspec

from ..core.errors import LocalProtocolError, RemoteProtocolError
from ..core.messages import BULK_KIND, KIND_OF, KINDS, BulkBlock, Contribution, RoundResult

__all__ = ["MAX_DEPTH", "MAX_MAP_ENTRIES", "MsgpackCodec", "decode_record", "encode_record", "inspect"]

MAX_DEPTH = 8
"""Containers inside each other, the message's own map counted."""
MAX_MAP_ENTRIES = 4096
"""Entries of one map."""

BYTES_SIZES = {
    "run_id": (0, 16),
    "schema_hash": (32,),
    "dataset_signature": (32,),
    "config_digest": (32,),
    "digest": (16,),
}
"""Sizes that a field of type bytes may have, by its name; a run id is empty where nothing is stamped yet, and `digest`
is the half hash of C-18. Other fields have any size, such as the communicator id of NewSession."""

Record = TypeVar("Record", Contribution, RoundResult)
Check = Callable[[Any], None]


class MsgpackCodec:
    """The `PayloadCodec` of all transports here. Has no state; decoders are made once per process."""

    def encode(self, message: Any) -> bytes:
        """The payload of a message of `KINDS`, or the map of a `BulkBlock`.

        Raises:
            LocalProtocolError: it is neither, or a field has a value that the field's type does not have.
        """
        kind = BULK_KIND if type(message) is BulkBlock else KIND_OF.get(type(message))
        if kind is None:
            raise LocalProtocolError(f"{type(message).__name__} is no message of the protocol")
        return _encode(message)

    def decode(self, kind: int, payload: bytes | memoryview) -> Any:
        """The message that a payload of this kind is, or the `BulkBlock` of kind 0x70.

        Raises:
            RemoteProtocolError: for anything that is wrong with the bytes; `frame` is the kind. Nothing else.
        """
        cls = BulkBlock if kind == BULK_KIND else KINDS.get(kind)
        if cls is None:
            raise RemoteProtocolError(f"there are no messages of kind {kind:#04x}", frame=kind)
        return _decode(cls, payload, kind)

    def encode_record(self, record: Contribution | RoundResult) -> bytes:
        """As the function of this name."""
        return encode_record(record)

    def decode_record(self, cls: type[Record], data: bytes | memoryview) -> Record:
        """As the function of this name."""
        return decode_record(cls, data)


def encode_record(record: Contribution | RoundResult) -> bytes:
    """The data of a block of kind COUNTS (R-4): a `Contribution` upward, a `RoundResult` downward."""
    return _encode(record)


def decode_record(cls: type[Record], data: bytes | memoryview) -> Record:
    """The record in the data of a block of kind COUNTS; `RemoteProtocolError` as for a message."""
    record: Record = _decode(cls, data, BULK_KIND)
    return record


def _encode(message: Any) -> bytes:
    try:
        _CHECKS[type(message)](message)
        return _encoder.encode(message)
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as fault:
        raise LocalProtocolError(f"{type(message).__name__} can't be sent: {fault}") from fault


def _decode(cls: type, payload: bytes | memoryview, kind: int) -> Any:
    raw = bytes(payload)
    try:
        inspect(raw)
        message = _DECODERS[cls].decode(raw)
        _CHECKS[cls](message)
    except (ValueError, msgspec.MsgspecError) as fault:
        raise RemoteProtocolError(f"{cls.__name__} (kind {kind:#04x}): {fault}", frame=kind) from fault
    return message


# --- step 1: the raw bytes -------------------------------------------------------------------------------------


def _scalar_sizes() -> tuple[int, ...]:
    """Size of a value by its first byte, for values of fixed size; 0 for all others."""
    sizes = [0] * 256
    for first in (*range(0x00, 0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):  # small integers, nil, false, true
        sizes[first] = 1
    sizes[0xCA], sizes[0xCB] = 5, 9  # float32, float64
    for power in range(4):  # unsigned and signed integers of 1, 2, 4, 8 bytes
        sizes[0xCC + power] = sizes[0xD0 + power] = 1 + (1 << power)
    return tuple(sizes)


_SCALAR = _scalar_sizes()
_TEXT, _BINARY, _ARRAY, _MAP = range(4)
_SIZED = {
    0xD9: (_TEXT, 1), 0xDA: (_TEXT, 2), 0xDB: (_TEXT, 4),
    0xC4: (_BINARY, 1), 0xC5: (_BINARY, 2), 0xC6: (_BINARY, 4),
    0xDC: (_ARRAY, 2), 0xDD: (_ARRAY, 4), 0xDE: (_MAP, 2), 0xDF: (_MAP, 4),
}  # fmt: skip
"""What a first byte begins whose size follows it, and in how many bytes. The ten extension types, and the byte that
MessagePack leaves undefined, are in no table here: they are refused."""


def inspect(payload: bytes) -> None:
    """Walk MessagePack bytes by the rules of step 1 above; `ValueError` names the first one broken.

    Time is linear in the bytes and memory constant, whatever the bytes claim.
    """
    position, end = 0, len(payload)
    left, named = 1, False  # values to come in the container at hand, and whether every other one is a name
    outer: list[tuple[int, bool]] = []
    try:
        while True:
            while not left:
                if not outer:
                    if position != end:
                        raise ValueError(f"{end - position} bytes too many")
                    return
                left, named = outer.pop()
            first = payload[position]
            left -= 1
            if 0xA0 <= first < 0xC0:
                start, position = position + 1, position + 1 + (first & 0x1F)
                text = payload[start:position]
                if not text.isascii():
                    text.decode("utf-8")
                continue
            if named and left & 1 and first not in (0xD9, 0xDA, 0xDB):
                raise ValueError(f"a name at byte {position} is no text")
            if _SCALAR[first]:
                position += _SCALAR[first]
                continue
            shape, count, position = _open(payload, first, position)
            if shape in (_TEXT, _BINARY):
                if shape == _TEXT:
                    payload[position : position + count].decode("utf-8")
                position += count
                continue
            if shape == _MAP and count > MAX_MAP_ENTRIES:
                raise ValueError(f"a map of {count} entries, {MAX_MAP_ENTRIES} are allowed")
            outer.append((left, named))
            if len(outer) > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} containers inside each other")
            left, named = (2 * count, True) if shape == _MAP else (count, False)
            if left > end - position:
                raise ValueError(f"a container of {count} entries in {end - position} bytes")
    except IndexError:
        raise ValueError("the payload is cut short") from None


def _open(payload: bytes, first: int, position: int) -> tuple[int, int, int]:
    """Of a value that says its own size: what it is, how many bytes or entries it has, where they start."""
    if 0x80 <= first < 0x90:
        return _MAP, first & 0x0F, position + 1
    if 0x90 <= first < 0xA0:
        return _ARRAY, first & 0x0F, position + 1
    if first not in _SIZED:
        raise ValueError(f"byte {first:#04x} begins no type that the protocol uses")
    shape, width = _SIZED[first]
    start = position + 1 + width
    return shape, int.from_bytes(payload[position + 1 : start], "big"), start


# --- step 3: what annotations mean beyond their types ----------------------------------------------------------


def _check_of_class(cls: type) -> Check | None:
    """The check of a whole attrs class. Its plain integers, the bulk of a message, are looked at in one go."""
    hints = typing.get_type_hints(cls)
    names = [field.name for field in attrs.fields(cls)]
    integers = [name for name in names if hints[name] is int]
    together = attrgetter(*integers) if len(integers) > 1 else None
    others: list[tuple[str, Check]] = []
    for name in names:
        check = None if together and hints[name] is int else _check_of(hints[name], name)
        if check is not None:
            others.append((name, check))

    def check_class(message: Any) -> None:
        if together is not None and min(together(message)) < 0:
            raise ValueError(f"one of {', '.join(integers)} is negative")
        for name, check in others:
            check(getattr(message, name))

    return check_class if together or others else None


def _check_of(hint: Any, name: str) -> Check | None:
    """The check of one field, or of a part of one, by its annotation; None if every value of the type will do."""
    if hint is int:
        return lambda number: _check_integer(number, name)
    if hint is bytes and name in BYTES_SIZES:
        return lambda string: _check_size(string, name)
    if attrs.has(hint):
        return _check_of_class(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _check_of_optional(arguments, name)
    if origin is tuple:
        return _check_of_tuple(arguments, name)
    if origin is dict:
        return _check_of_dict(arguments, name)
    return None


def _check_of_optional(arguments: tuple[Any, ...], name: str) -> Check | None:
    """A field that may be absent is checked when it is not; a field of several types is free (a knob may be -1)."""
    present = [argument for argument in arguments if argument is not type(None)]
    inner = _check_of(present[0], name) if len(present) == 1 else None
    if inner is None:
        return None
    check = inner
    return lambda value: None if value is None else check(value)


def _check_of_tuple(arguments: tuple[Any, ...], name: str) -> Check | None:
    if arguments[-1] is Ellipsis:
        each = _check_of(arguments[0], name)
        return None if each is None else lambda values: _check_all(values, each)
    columns = [(index, check) for index, part in enumerate(arguments) if (check := _check_of(part, name)) is not None]

    def check_columns(values: tuple[Any, ...]) -> None:
        for index, check in columns:
            check(values[index])

    return check_columns if columns else None


def _check_of_dict(arguments: tuple[Any, ...], name: str) -> Check:
    each = _check_of(arguments[1], name)

    def check_dict(entries: dict[str, Any]) -> None:
        if len(entries) > MAX_MAP_ENTRIES:
            raise ValueError(f"{name} has {len(entries)} entries, {MAX_MAP_ENTRIES} are allowed")
        if each is not None:
            _check_all(entries.values(), each)

    return check_dict


def _check_all(values: typing.Iterable[Any], check: Check) -> None:
    for one in values:
        check(one)


def _check_integer(number: int, name: str) -> None:
    if number < 0:
        raise ValueError(f"{name} is negative: {number}")


def _check_size(string: bytes, name: str) -> None:
    if len(string) not in BYTES_SIZES[name]:
        sizes = " or ".join(map(str, BYTES_SIZES[name]))
        raise ValueError(f"{name} has {len(string)} bytes, {sizes} are due")


def _anything(_: Any) -> None:
    """The check of a class whose types say everything."""


_encoder = msgspec.msgpack.Encoder(order="sorted")  # by name: one message, one sequence of bytes, on every Python
_CLASSES: tuple[type, ...] = (*KINDS.values(), BulkBlock, Contribution, RoundResult)
_DECODERS: dict[type, msgspec.msgpack.Decoder[Any]] = {cls: msgspec.msgpack.Decoder(cls) for cls in _CLASSES}
_CHECKS: dict[type, Check] = {cls: _check_of_class(cls) or _anything for cls in _CLASSES}
