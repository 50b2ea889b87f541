"""Faults that users of comparable systems have met with the bytes of models; ids are in the docstrings."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from paceline.backends import connection
from paceline.backends.checkpoint import save_model
from paceline.backends.flat import FlatModel
from paceline.backends.layout import FlatLayout
from paceline.backends.schema import schema_of
from paceline.core.errors import RefusedError
from paceline.core.frame import MAX_BLOCK
from paceline.core.messages import BULK_KIND, Contribution, RoundKey, RoundKind
from paceline.core.schema import EntryClass, Schema, SchemaEntry
from paceline.transports.codec import MsgpackCodec, decode_record, encode_record

from support.small_run import SmallRun

PARAMS = RoundKey(generation=1, cycle=1, kind=RoundKind.PARAMS)
MIB = 1 << 20


class Lazy:
    """Memory of any size that nobody has: a slice of it says from where to where it would be."""

    def __getitem__(self, part: slice) -> tuple[int, int]:
        return part.start, part.stop


@pytest.mark.parametrize("nbytes", [64 * MIB - 2, 64 * MIB, 64 * MIB + 2, (1 << 31) + 8, (1 << 32) + 8])
@pytest.mark.parametrize("tensors", [1, 3])
def test_a_model_of_any_size_travels_in_frames_that_have_one(nbytes: int, tensors: int) -> None:
    """F65, N-25, N-26: one tensor or several, around the sizes at which counts of 31 and 32 bits end. Blocks tile it
    once, no larger than a frame may be, and their offsets and the total come out of the codec as they went in."""
    elements = [nbytes // 2 // tensors] * (tensors - 1)
    elements.append(nbytes // 2 - sum(elements))
    schema = Schema(entries=tuple(
        SchemaEntry(name=str(number), cls=EntryClass.PARAM, shape=(count,), dtype="bfloat16")
        for number, count in enumerate(elements)
    ))  # fmt: skip
    layout, codec = FlatLayout.riding(schema), MsgpackCodec()
    lazy: Any = Lazy()
    end = 0
    for block, (header, piece) in zip(layout.blocks, layout.cut(lazy, PARAMS, 0, 1, 1), strict=True):
        known = codec.decode(BULK_KIND, codec.encode(header))
        assert known == header and layout.fault(block, header) is None
        assert piece == (end, end + header.bytes) and header.offset == end and 0 < header.bytes <= MAX_BLOCK
        end += header.bytes
    assert end == layout.nbytes == nbytes
    said = Contribution(run_id=bytes(16), generation=1, rank=1, incarnation=1, cycle=1, attempt=0,
                        schema_hash=schema.hash(), steps=1, finite=True, bytes=nbytes)  # fmt: skip
    assert decode_record(Contribution, memoryview(encode_record(said))) == said


ONES = {
    "float32": "0000803f", "bfloat16": "803f", "float16": "003c", "float64": "000000000000f03f",
    "int64": "0100000000000000", "int32": "01000000", "int16": "0100", "int8": "01", "uint8": "01", "bool": "01",
}  # fmt: skip
"""1 in each type, as it lies on the wire and on disk."""


@pytest.mark.parametrize("dtype", ONES)
def test_numbers_lie_in_one_order_on_wire_and_disk(tmp_path: Path, dtype: str) -> None:
    """F68, R-21, K-7: the low byte first, whatever reads it."""
    one = torch.ones(1, dtype=getattr(torch, dtype))
    save_model(tmp_path / "m", {"one": one}, {})
    assert (tmp_path / "m").read_bytes().endswith(bytes.fromhex(ONES[dtype]))
    if one.is_floating_point():
        model = nn.Module()
        model.one = nn.Parameter(one)
        assert bytes(FlatModel(model, schema_of(model)).snapshot().memory) == bytes.fromhex(ONES[dtype])


def test_a_host_of_the_other_order_is_refused_before_a_number_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """F68, M-5: its Hello says which order it has; the refusal says what to do, and the run goes on without it."""
    assert sys.byteorder == "little"
    run = SmallRun(target_ranks=1)
    with monkeypatch.context() as there:
        there.setattr(connection, "sys", SimpleNamespace(byteorder="big"))
        with pytest.raises(RefusedError, match="little-endian"):
            run.session(1)
    run.train(0)
    assert run.coordinator.result().status == "ok"
