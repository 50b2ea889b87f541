"""What both halves of the star averager set memory aside for, and what not (N-25)."""

from __future__ import annotations

import attrs
import pytest

from paceline.backends.layout import BLOCK_BYTES, header_block
from paceline.backends.star import StarAverager
from paceline.backends.star_link import MAX_RESULT
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.errors import RemoteProtocolError

from support.averaging import KEY, RIDING, SCHEMA, header, opened
from support.star_path import PARAMS, path
from support.transports import run


@pytest.mark.parametrize("of", [{}, {"attempt": 7}, {"incarnation": 2}], ids=["this round", "attempt", "life"])
def test_a_block_above_the_cap_gets_no_memory_whatever_it_belongs_to(of: dict[str, int]) -> None:
    """N-25, R-1: what belongs to nothing open is read and thrown away, but not in any size."""
    averager = StarAverager(SCHEMA)
    averager.open(opened([0]))
    averager.on_header(0, 1, 0, header(SCHEMA, 0, 5, RIDING.nbytes))
    (block, _), *_ = averager.riding.cut(memoryview(bytes(RIDING.nbytes)), KEY, 0, 0, 1)
    with pytest.raises(RemoteProtocolError, match=f"{BLOCK_BYTES + 1} bytes, the limit is"):
        averager.place(attrs.evolve(block, bytes=BLOCK_BYTES + 1, **of))


@pytest.mark.parametrize("kind", [m.RoundKind.COUNTS, m.RoundKind.PARAMS], ids=["a result", "nothing asked for"])
def test_a_result_that_no_averager_sends_ends_the_link_before_memory_is_given(kind: m.RoundKind) -> None:
    """N-25: the rank's half of it. A result is a small map too, and without a round nothing larger is due."""

    async def main() -> None:
        async with path(8) as p:
            block = attrs.evolve(header_block(PARAMS, 0, 0, 1, MAX_RESULT + 1), key=attrs.evolve(PARAMS, kind=kind))
            await p.ranks[0].far.send_bulk(block, memoryview(bytes(MAX_RESULT + 1)))
            lost = await p.ranks[0].until(ev.LinkLost)
            assert f"a result header of {MAX_RESULT + 1} bytes" in lost.cause

    run(main)
