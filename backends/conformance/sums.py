"""L2: weights, sums and the one division, to the bit (R-3, R-5 to R-8, R-17, R-20 to R-22; I55 to I60)."""

from __future__ import annotations

import random

import numpy as np

from ...core.conformance import Level, NotChecked, ensure
from ...core.effects import CloseRound
from ...core.events import RoundReduced
from ...core.messages import Outcome, Refusal
from ...core.schema import EntryClass, Schema
from ..layout import FlatLayout
from .drive import (
    KEY,
    LIMIT,
    SCHEMA,
    STATE,
    Cohort,
    Ship,
    entry,
    flat_of,
    opened,
    random_flat,
    received,
    several_blocks,
    values_of,
)
from .kit import CLASSIC, GUIDE, KIT, Subject, ensure_consensus, ensure_ended, key_of
from .reference import same

__all__: list[str] = []

SHIPS = {rank: Ship(steps, random_flat(rank) if steps else None) for rank, steps in CLASSIC.items()}
GAMMAS = (1.0, 0.0, -1.0, 0.5, 2.0, -2.0)


@KIT.check("A201", Level.L2, doc=f"{GUIDE}#the-sum", within="ships")
def the_consensus_is_the_mean_by_mass(subject: Subject) -> None:
    """Parameters are weighed by steps ** gamma, in ascending rank order, with one division: equal to the bit (R-6)."""
    for gamma in GAMMAS:
        for scale in (1.0, 1e3):
            ships = {r: Ship(n, random_flat(r, scale) if n else None) for r, n in CLASSIC.items()}
            averager, reduced = subject.cycle(ships, gamma=gamma)
            ensure(reduced.realized, f"gamma {gamma}: a cycle with movers was not realized")
            told = averager.scatter(0)[0].total_steps
            ensure(told == 14, f"gamma {gamma}: told are {told} steps where 14 were merged: steps are no mass")
            ensure_consensus(averager, ships, f"gamma {gamma}", gamma=gamma)


@KIT.check("A202", Level.L2, doc=f"{GUIDE}#the-sum", within="ships")
def an_idle_rank_weighs_nothing(subject: Subject) -> None:
    """A rank with 0 steps has mass 0 at every gamma, and is no divisor of anything (R-5, I55)."""
    alone = {0: Ship(4, random_flat(0))}
    for gamma in GAMMAS:
        averager, reduced = subject.cycle({**alone, 1: Ship(0), 2: Ship(0)}, gamma=gamma)
        ensure(reduced.accepted == (0, 1, 2), f"gamma {gamma}: {reduced.accepted} were accepted where 0, 1, 2 are due")
        ensure_consensus(averager, alone, f"gamma {gamma}, two idle ranks", gamma=gamma)


@KIT.check("A203", Level.L2, doc=f"{GUIDE}#the-sum", within="ships")
def buffers_are_the_plain_mean_of_movers(subject: Subject) -> None:
    """Floating buffers have mass 1 for each mover whatever its steps, so no fast rank dominates statistics (R-7)."""
    schema = Schema(entries=(entry("w", EntryClass.PARAM, (1,)), entry("mean", EntryClass.BUFFER, (2,))))
    ships = {0: Ship(90, np.array([1, 1, 1], "<f4").tobytes()), 1: Ship(10, np.array([3, 3, 3], "<f4").tobytes()),
             2: Ship(0)}  # fmt: skip
    averager, _ = subject.cycle(ships, schema=schema)
    weight, *mean = values_of(schema, averager.consensus or b"").tolist()
    ensure(mean == [2.0, 2.0], f"the buffer is {mean} where the plain mean of the movers is 2")
    ensure(abs(weight - 1.2) < 1e-6, f"the parameter is {weight} where the mean by steps is 1.2")


@KIT.check("A204", Level.L2, doc=f"{GUIDE}#the-sum", within="ships")
def only_what_rides_is_averaged(subject: Subject) -> None:
    """Frozen and local entries are in no consensus, tied names are one entry, empty and scalar ones are legal (R-3)."""
    schemas = (
        SCHEMA,
        Schema(entries=(entry("tied", EntryClass.PARAM, (2,), aliases=("head", "tail")),)),
        Schema(entries=(entry("nothing", EntryClass.PARAM, (0,)), entry("one", EntryClass.PARAM, ()))),
        Schema(entries=(entry("half", EntryClass.PARAM, (3,), "float16"), entry("n", EntryClass.LOCAL, (), "int64"),
                        entry("wide", EntryClass.PARAM, (), "float64"), entry("mask", EntryClass.FROZEN, (4,)))),
    )  # fmt: skip
    for schema in schemas:
        ships = {rank: Ship(rank + 1, random_flat(rank, schema=schema)) for rank in range(3)}
        averager, _ = subject.cycle(ships, schema=schema)
        due = FlatLayout.riding(schema).nbytes
        ensure(len(averager.consensus or b"") == due, f"the consensus of {[e.name for e in schema.entries]} has "
               f"{len(averager.consensus or b'')} bytes, {due} ride")  # fmt: skip
        ensure_consensus(averager, ships, f"{[e.name for e in schema.entries]}", schema=schema)


@KIT.check("A205", Level.L2, doc=f"{GUIDE}#the-sum", within="ships")
def each_dtype_keeps_its_precision(subject: Subject) -> None:
    """Two-byte entries are summed in float32, float64 ones in float64, and cast back once; values that are as small or
    as large as a dtype allows are values (R-4, R-6)."""
    schema = Schema(entries=(entry("edge", EntryClass.PARAM, (42,)), entry("half", EntryClass.PARAM, (64,), "bfloat16"),
                             entry("fine", EntryClass.PARAM, (2,), "float64")))  # fmt: skip
    bits, large = 1 + 2.0**-40, 2.0**900
    edge = [1e-40, -3e-42] + [1e37] * 40  # subnormal; finite, though their sum is not
    halves = np.random.default_rng(2).normal(0, 1, (3, 64))
    ships = {rank: Ship(2 * rank + 3, flat_of(schema, np.array([*edge, *halves[rank], bits, large])))
             for rank in range(3)}  # fmt: skip
    averager, reduced = subject.cycle(ships, schema=schema)
    ensure(reduced.refused == (), f"of contributions that are finite {reduced.refused} were refused")
    ensure_consensus(averager, ships, "float32, bfloat16 and float64", schema=schema)
    *_, fine, huge = values_of(schema, averager.consensus or b"")
    ensure(fine == bits, f"a float64 entry lost its last bits: {fine!r} where {bits!r} is due")
    ensure(huge == large, f"a float64 entry beyond float32 became {huge!r}")


@KIT.check("A206", Level.L2, doc=f"{GUIDE}#the-sum", within="ships")
def arrival_changes_no_bit(subject: Subject) -> None:
    """Any interleaving of headers, blocks and admissions gives the same bits and the same events of the end, with those
    who were refused in ascending order (I60)."""
    ships = {rank: Ship(steps, random_flat(rank, 1e3) if steps else None) for rank, steps in CLASSIC.items()}
    ships |= {rank: Ship(2, random_flat(rank), claim={"finite": False}) for rank in (3, 7)}
    first, due = subject.cycle(ships)
    ensure([rank for rank, _ in due.refused] == [3, 7], f"refused is {due.refused} where 3 and 7 are due")
    rng = random.Random(6)
    lanes = list(range(2 * len(ships)))
    orders = [lanes[::-1] * 30, [1, 3, 5, 7, 9, 11, 10, 8, 6, 4, 2, 0] * 30]
    orders += [[rng.choice(lanes) for _ in range(60)] for _ in range(8)]
    for order in orders:
        averager, reduced = subject.cycle(ships, order=order)
        ensure(reduced == due, f"lanes in the order {order[:10]}…: {reduced} where {due} is due")
        differs = same(SCHEMA, averager.consensus or b"", first.consensus or b"")
        ensure(not differs, f"lanes in the order {order[:10]}…: {differs}")


@KIT.check("A207", Level.L2, doc=f"{GUIDE}#the-sum", within="ships")
def the_consensus_stays_among_the_contributions(subject: Subject) -> None:
    """Each element lies in the contributions' range, widened by R-22; equal contributions are reproduced (I56)."""
    fine = slice(0, 15)
    for gamma in GAMMAS:
        flats = [random_flat(seed, 10.0) for seed in (1, 2, 3)]
        for shipped in (flats, [flats[0]] * 3):
            ships = {rank: Ship(7 * rank + 1, flat) for rank, flat in enumerate(shipped)}
            averager, _ = subject.cycle(ships, gamma=gamma)
            stack = np.stack([values_of(SCHEMA, ship.flat or b"") for ship in ships.values()])[:, fine]
            slack = (len(ships) + 2) * 2**-23 * np.abs(stack).max(axis=0)
            got = values_of(SCHEMA, averager.consensus or b"")[fine]
            inside = np.all(got >= stack.min(axis=0) - slack) and np.all(got <= stack.max(axis=0) + slack)
            ensure(bool(inside), f"gamma {gamma}: an element left the range of the contributions")


@KIT.check("A208", Level.L2, doc=f"{GUIDE}#a-cycle-without-mass", within="ships")
def without_mass_nothing_changes(subject: Subject) -> None:
    """A cycle in which nobody moved is not realized: the last consensus stays, and only observers are sent it (R-8)."""
    averager, last = subject.after(SHIPS)
    _, reduced = subject.cycle({0: Ship(0), 1: Ship(0), 2: Ship(0)}, observers=[2], averager=averager, key=key_of(4))
    ensure(not reduced.realized, "a cycle without mass was realized")
    ensure(reduced.digest is None, "a cycle without mass has a digest, and no consensus that it could name")
    ensure(reduced.accepted == (0, 1), f"idle ranks are accepted; told was {reduced.accepted}")
    result, blocks = averager.scatter(0)
    told = (result.outcome, result.total_steps, result.bytes, blocks)
    ensure(told == (Outcome.UNREALIZED, 0, 0, []), f"an idle member of it was sent {told[:3]} and {len(blocks)} blocks")
    ensure(received(averager, 2) == last, "an observer of it was not sent the last consensus")
    averager.close(CloseRound(key_of(4)))
    ensure(bytes(averager.consensus or b"") == last, "it changed the consensus (I58)")


@KIT.check("A209", Level.L2, doc=f"{GUIDE}#a-cycle-without-mass", within="ships")
def an_overflow_is_not_realized(subject: Subject) -> None:
    """A consensus that is not finite is none: all are refused, and the last consensus goes out again (R-6)."""
    for where, first, behind in (("parameters", 0, 15), ("buffers", 27, 30)):
        averager, last = subject.after(SHIPS)
        at = np.arange(40)
        huge = flat_of(SCHEMA, np.where((first <= at) & (at < behind), 3e38, 1.0))
        _, reduced = subject.cycle({0: Ship(900, huge), 1: Ship(900, huge)}, averager=averager, key=key_of(4))
        what = f"an overflow of {where} ended in {reduced}"
        ensure(not reduced.realized and reduced.accepted == (), what)
        due = ((0, Refusal.NONFINITE), (1, Refusal.NONFINITE))
        ensure(reduced.refused == due and reduced.digest is None, what)
        ensure(received(averager, 1) == last == bytes(averager.consensus or b""), "the last consensus is gone (I58)")


@KIT.check("A210", Level.L2, doc=f"{GUIDE}#a-round", within="ships")
def a_state_travels_bit_for_bit(subject: Subject) -> None:
    """A state transfer hands the source's bytes on, every entry of them, and leaves a first consensus (R-20, M-6)."""
    rest = FlatLayout.whole(SCHEMA).nbytes - FlatLayout.riding(SCHEMA).nbytes
    state = random_flat(9) + np.full(2, -np.inf, "<f4").tobytes() + bytes(range(rest - 8))
    averager = subject.fresh()
    averager.open(opened([0], observers=[1, 2], key=STATE, limit=0))
    reduced = Cohort(SCHEMA, averager, {0: Ship(0, state)}, STATE).reduce()
    ensure(isinstance(reduced, RoundReduced) and reduced.realized, f"a state transfer ended in {reduced}")
    ensure(received(averager, 1) == received(averager, 2) == state, "the state arrived with other bytes")
    ensure(averager.scatter(0)[1] == [], "the source was sent its own state")
    averager.close(CloseRound(STATE))
    ensure(bytes(averager.consensus or b"") == random_flat(9), "the riding part of the state is the first consensus")


@KIT.check("A211", Level.L2, doc=f"{GUIDE}#the-sum", within="ships")
def a_model_larger_than_a_block_is_whole(subject: Subject) -> None:
    """A model of several blocks, received under the flow control of `ready_for`, has the same consensus (R-11)."""
    schema = several_blocks()
    ships = {0: Ship(3, random_flat(0, schema=schema)), 4: Ship(LIMIT, random_flat(4, schema=schema))}
    averager, _ = subject.cycle(ships, schema=schema, order=[2] * 9)
    ensure_consensus(averager, ships, "a model of several blocks", schema=schema)


@KIT.check("A212", Level.L2, doc=f"{GUIDE}#the-sum", within="ships")
def a_model_is_adopted_in_place(subject: Subject) -> None:
    """From models to models: strided, tied, frozen and local tensors keep identity, strides and bits (R-17, I66)."""
    try:
        from .models import adopted_in_place
    except ImportError as missing:
        raise NotChecked(f"this check needs torch: {missing}") from missing
    adopted_in_place(subject)


@KIT.check("A214", Level.L2, doc=f"{GUIDE}#retention", within="ships")
def a_consensus_may_be_given_back(subject: Subject) -> None:
    """After a restart a rank gives the last consensus back: it is copied, and is the last one from then on (M-44)."""
    given = bytearray(random_flat(7))
    averager = subject.fresh()
    averager.restore(memoryview(given))
    given[:] = bytes(len(given))
    kept = bytes(averager.consensus or b"") == random_flat(7)
    ensure(kept, "the consensus that was given back is not the last one, or was not copied")
    subject.cycle({0: Ship(0), 1: Ship(0)}, observers=[1], averager=averager)
    ensure(received(averager, 1) == random_flat(7), "an observer was not sent the consensus that was given back")


@KIT.check("A213", Level.L2, doc=f"{GUIDE}#the-sum", within="ships")
def one_round_leaves_nothing_to_the_next(subject: Subject) -> None:
    """Each of several cycles on one averager is that of its own contributions alone, also after an idle one."""
    averager = subject.fresh()
    for cycle, steps in enumerate(((3, 4), (0, 0), (1, 0), (5, 5)), start=1):
        ships = {rank: Ship(n, random_flat(10 * cycle + rank) if n else None) for rank, n in enumerate(steps)}
        _, reduced = subject.cycle(ships, averager=averager, key=key_of(cycle))
        if reduced.realized:
            ensure_consensus(averager, ships, f"cycle {cycle} of one averager")
        averager.close(CloseRound(key_of(cycle)))


@KIT.check("A215", Level.L2, doc=f"{GUIDE}#the-sum", within="ships")
def a_large_cohort_is_summed_rank_by_rank(subject: Subject) -> None:
    """Seventy ranks, whose numbers go beyond their count, with steps beyond what float32 can count: ascending, one by
    one, and no step is lost (R-4, R-6)."""
    schema = Schema(entries=(entry("w", EntryClass.PARAM, (5,)), entry("m", EntryClass.BUFFER, (2,))))
    ranks = tuple(range(1, 211, 3))
    ships = {rank: Ship(1 + (rank * 2654435761) % (1 << 30), random_flat(rank, schema=schema)) for rank in ranks}
    averager = subject.fresh(schema)
    averager.open(opened(ranks, limit=1 << 30))
    ensure_ended(Cohort(schema, averager, ships).reduce(), ranks, "a cohort of seventy")
    ensure_consensus(averager, ships, "a cohort of seventy", schema=schema)
    ensure(averager.receivers(KEY, 0) == ranks, f"receivers of a cohort of seventy are {averager.receivers(KEY, 0)}")
    told, due = averager.scatter(ranks[0])[0].total_steps, sum(ship.steps for ship in ships.values())
    ensure(told == due, f"a cohort of seventy is told {told} steps where {due} were merged")
