"""The order of samples: which pick of a pass stands at which position (D-1, D-2).

Shuffling a list of all picks would cost every rank the memory of the whole data set, and every rank would have to draw
the same random numbers in the same order to agree. Here the order is a function instead: a keyed bijection of
`0..picks-1`, computed alone for each position. Whoever knows (picks, seed, pass) knows the whole order, and a slice of
it costs only its own size. Coordinator ledger, plans, extensions, resume and prefetch all ask this module, because two
opinions about the order train the wrong samples and no error appears anywhere.

How the bijection is made. A balanced Feistel network permutes the numbers of an even number of bits: it cuts a number
into two halves and eight times replaces (left, right) by (right, left XOR f(right)), which can be undone whatever f
is. Its domain is the smallest even power of two that holds all positions, so it can leave `0..picks-1`; then it is
applied again until it comes back ("cycle walking"). Going round in a cycle it must come back, in the worst case to
where it started, and since the domain is less than four times `picks` it takes fewer than four turns on average.

How it is computed. One Python integer carries many positions, each in a lane of 128 bits: the product of two 64-bit
numbers fills a lane and never spills into the next, so one big multiplication does the work of hundreds of small ones.
That is about six times as fast as a loop over positions, without tables and without numpy.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import LocalProtocolError

__all__ = ["GOLDEN", "MAX_PICKS", "EpochBounds", "Permutation", "decode", "epoch_bounds", "mix", "partition"]

_EPOCHS = 64
"""Bounds kept at a time: a run asks for those of the epoch it is in again and again."""
MAX_PICKS = 2**64
"""The network works on 64-bit numbers, so a pass cannot have more picks than there are of them."""


class EpochBounds(NamedTuple):
    """Where an epoch lies: `length` picks from position `start` of pass `pass_number` on."""

    pass_number: int
    start: int
    length: int


class Permutation:
    """The order of one pass over `picks` picks, 1 to `MAX_PICKS`; seed and pass number count modulo 2**64 (D-1).

    Raises LocalProtocolError for a number of picks outside that, and for positions outside `0..picks-1`.
    """

    __slots__ = ("_half_bits", "_keys", "pass_number", "picks", "seed")

    def __init__(self, picks: int, seed: int, pass_number: int) -> None:
        if not 1 <= picks <= MAX_PICKS:
            raise LocalProtocolError(f"a pass has {picks} picks; give it 1 to 2**64")
        self.picks = picks
        self.seed = seed
        self.pass_number = pass_number
        self._half_bits = (max(2, (picks - 1).bit_length()) + 1) // 2
        self._keys = _round_keys(seed, pass_number)

    def at(self, position: int) -> int:
        """The pick at one position. A slice costs far less per pick than many calls of this."""
        return self.slice(position, 1)[0]

    def slice(self, start: int, size: int) -> list[int]:
        """The picks at positions `start` to `start + size - 1`, in that order."""
        if start < 0 or size < 0 or start + size > self.picks:
            raise LocalProtocolError(f"positions {start} to {start + size - 1} are not all in 0..{self.picks - 1}")
        order = self._apply(range(start, start + size))
        # Only what fell outside walks on, gathered from the whole slice: the lanes stay full.
        outside = [index for index, pick in enumerate(order) if pick >= self.picks]
        while outside:
            walked = self._apply([order[index] for index in outside])
            for index, pick in zip(outside, walked, strict=True):
                order[index] = pick
            outside = [index for index in outside if order[index] >= self.picks]
        return order

    def _apply(self, numbers: Sequence[int]) -> list[int]:
        """One turn through the network for each number."""
        turned: list[int] = []
        for start in range(0, len(numbers), _LANES):
            turned += _network(numbers[start : start + _LANES], self._half_bits, self._keys)
        return turned


@functools.lru_cache(maxsize=_EPOCHS)
def epoch_bounds(picks: int, splits: int, epoch: int) -> EpochBounds:
    """Which part of which pass an epoch is, when every pass of `picks` picks is cut into `splits` epochs (D-2).

    The pieces of a pass differ by at most one pick and the longer ones come first, so that no odd tail is left over.
    """
    pass_number, piece = divmod(epoch, splits)
    base, extra = divmod(picks, splits)
    return EpochBounds(pass_number, piece * base + min(piece, extra), base + (1 if piece < extra else 0))


def partition(picks: int, splits: int, seed: int, epoch: int, offset: int, size: int) -> list[int]:
    """The picks of the slice of an epoch that a plan names; offset and size in picks (D-2).

    Cut off at the end of the epoch, so it may be shorter than `size`, even empty. Raises LocalProtocolError for a
    negative offset or size.
    """
    if offset < 0 or size < 0:
        raise LocalProtocolError(f"a plan cannot start at pick {offset} of its epoch with {size} picks")
    bounds = epoch_bounds(picks, splits, epoch)
    size = min(size, bounds.length - offset)
    if size <= 0:
        return []
    return Permutation(picks, seed, bounds.pass_number).slice(bounds.start + offset, size)


def decode(pick: int, repeats: int) -> tuple[int, int]:
    """The sample a pick stands for, and which of its `repeats` repetitions it is (section 1)."""
    return divmod(pick, repeats)


# --- the network -----------------------------------------------------------------------------------------------

_WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
_FIRST_FACTOR = 0xBF58476D1CE4E5B9
_SECOND_FACTOR = 0x94D049BB133111EB
_ROUNDS = 8

_LANES = 256
"""Numbers per big integer. Past this the gain is a few percent, and the integers start to leave the inner caches."""

_LANE_BITS = 128
_ONES = (2 ** (_LANES * _LANE_BITS) - 1) // (2**_LANE_BITS - 1)
"""A one in every lane: times a small number it is that number in every lane."""

_EPOCHS = 64
"""Epochs whose bounds are kept: every plan asks for those of its own, and only a few are open at a time."""

_KEY_SETS = 64
"""Round keys kept at a time: runs touch a pass or two at once, tests and simulations many."""


def mix(word: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every input bit reaches every output bit."""
    word ^= word >> 30
    word = word * _FIRST_FACTOR & _WORD
    word ^= word >> 27
    word = word * _SECOND_FACTOR & _WORD
    return word ^ word >> 31


@functools.lru_cache(maxsize=_KEY_SETS)
def _round_keys(seed: int, pass_number: int) -> tuple[int, ...]:
    """One key per round."""
    stem = mix((seed + GOLDEN) & _WORD)
    stem = mix(((stem ^ pass_number) + GOLDEN) & _WORD)
    return tuple(mix((stem + turn * GOLDEN) & _WORD) for turn in range(1, _ROUNDS + 1))


def _network(numbers: Sequence[int], half_bits: int, keys: tuple[int, ...]) -> tuple[int, ...]:
    """The network on at most `_LANES` numbers at once; `mix` is written out because it works on all lanes together.

    A shift to the right drags bits of the next lane into the top of a lane. They are masked away before a
    multiplication, where they would spill over; after the last one only low bits are read and no mask is needed.
    """
    lanes = len(numbers)
    ones = _ONES >> _LANE_BITS * (_LANES - lanes)
    words = ones * _WORD
    halves = ones * (2**half_bits - 1)
    # Little-endian on every host, so the lanes lie the same way everywhere; the second word of a lane is empty.
    layout = f"<{2 * lanes}Q"
    spread = [0] * (2 * lanes)
    spread[::2] = numbers
    packed = int.from_bytes(struct.pack(layout, *spread), "little")
    left, right = packed >> half_bits & halves, packed & halves
    for key in keys:
        mixed = right + key * ones & words
        mixed = ((mixed ^ mixed >> 30) & words) * _FIRST_FACTOR & words
        mixed = ((mixed ^ mixed >> 27) & words) * _SECOND_FACTOR
        left, right = right, left ^ (mixed ^ mixed >> 31) & halves
    packed = left << half_bits | right
    return struct.unpack(layout, packed.to_bytes(16 * lanes, "little"))[::2]
