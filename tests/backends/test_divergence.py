"""The divergence triple and the digest: R-16, C-18."""

from __future__ import annotations

import hashlib
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.backends.divergence import CHUNK, Triple, digest, divergence
from paceline.backends.layout import FlatLayout
from paceline.core.errors import LocalProtocolError
from paceline.core.schema import EntryClass, Schema, SchemaEntry


def layout_of(*rows: tuple[EntryClass, int, str]) -> FlatLayout:
    entries = [SchemaEntry(name=str(i), cls=c, shape=(n,), dtype=d) for i, (c, n, d) in enumerate(rows)]
    return FlatLayout.riding(Schema(entries=tuple(entries)))


PAIR = layout_of((EntryClass.PARAM, 2, "float32"), (EntryClass.BUFFER, 1, "float32"))


def floats(*values: float) -> memoryview:
    return np.array(values, "<f4").data.cast("B")


def test_the_triple_is_over_parameters_only() -> None:
    """R-16: ‖(3, 4)‖ = 5, ‖(0, 4)‖ = 4, 3 apart; the buffer is far off and does not matter."""
    assert divergence(PAIR, floats(0, 4, 100), floats(3, 4, -100)) == Triple(0.6, 4.0, 5.0)


def test_a_tiny_norm_gives_zero_and_no_parameters_give_no_norms() -> None:
    """R-16."""
    assert divergence(PAIR, floats(3, 4, 0), floats(0, 0, 0)) == Triple(0.0, 5.0, 0.0)
    assert divergence(PAIR, floats(3, 4, 0), floats(0.99e-10, 0, 0)).divergence == 0.0
    assert divergence(layout_of((EntryClass.BUFFER, 1, "float32")), floats(1), floats(2)) == Triple(0.0, None, None)


def test_the_norm_that_is_tiny_is_that_of_the_rule() -> None:
    """R-16: 1e-10 itself is, the next number above is not."""
    layout = layout_of((EntryClass.PARAM, 1, "float64"))
    for post, apart in ((1e-10, 0.0), (math.nextafter(1e-10, 1.0), 1e10)):
        told = divergence(layout, np.array([1.0], "<f8").data.cast("B"), np.array([post], "<f8").data.cast("B"))
        assert (told.post_norm, told.divergence) == (post, pytest.approx(apart))


def test_a_length_mismatch_is_an_error() -> None:
    """R-16."""
    with pytest.raises(LocalProtocolError, match=r"8 bytes.*12"):
        divergence(PAIR, floats(1, 2), floats(1, 2, 3))


def test_squares_are_summed_in_float64() -> None:
    """R-16: in float32 the small values would vanish behind the large one, and its square would overflow."""
    small = layout_of((EntryClass.PARAM, 10_001, "float32"))
    pre = floats(3e20, *([1e13] * 10_000))
    triple = divergence(small, pre, floats(*([0.0] * 10_000), 1.0))
    assert triple.pre_norm == pytest.approx(math.hypot(float(np.float32(3e20)), math.sqrt(1e4) * 1e13), rel=1e-15)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.floats(-1e3, 1e3, width=32)), min_size=1, max_size=50))
def test_the_triple_agrees_with_the_formula(pairs: list[tuple[float, float]]) -> None:
    """17.2 #16, R-16, against math.fsum."""
    layout = layout_of((EntryClass.PARAM, len(pairs), "float64"))
    pre, post = (np.array(side, "<f8").data.cast("B") for side in zip(*pairs, strict=True))
    triple = divergence(layout, pre, post)
    norm = math.sqrt(math.fsum(b * b for _, b in pairs))
    apart = math.sqrt(math.fsum((a - b) ** 2 for a, b in pairs))
    assert triple.post_norm == pytest.approx(norm, rel=1e-12)
    assert triple.divergence == (pytest.approx(apart / norm, rel=1e-12) if norm > 1e-10 else 0.0)


def test_coarse_dtypes_are_read_as_what_they_are() -> None:
    """R-16: bfloat16 1.0 is 0x3F80, float16 1.0 is 0x3C00."""
    layout = layout_of((EntryClass.PARAM, 1, "bfloat16"), (EntryClass.PARAM, 1, "float16"))
    flat = memoryview(np.array([0x3F80, 0x3C00], "<u2").tobytes())
    assert divergence(layout, flat, flat) == Triple(0.0, math.sqrt(2), math.sqrt(2))


def test_no_float64_copy_of_the_model_is_made() -> None:
    """R-16: memory stays within a few chunks, however large the model."""
    count = 64 * CHUNK + 1
    layout, flat = layout_of((EntryClass.PARAM, count, "float32")), np.ones(count, "<f4").data.cast("B")
    tracemalloc.start()
    try:
        assert divergence(layout, flat, flat).post_norm == pytest.approx(math.sqrt(count))
        assert tracemalloc.get_traced_memory()[1] < 8 * CHUNK * 8
    finally:
        tracemalloc.stop()


def test_the_digest_is_the_first_half_of_sha256() -> None:
    """C-18."""
    assert digest(memoryview(b"abc")) == hashlib.sha256(b"abc").digest()[:16]
