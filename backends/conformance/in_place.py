"""L1 and L2 for averagers that average in place: sessions, what a call says, and what it does to memory (R-13, R-16,
R-20; I55, I59)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...core.conformance import Level, ensure
from ...core.effects import MakeSessionId
from ...core.messages import Refusal
from ..divergence import digest, divergence
from ..layout import FlatLayout
from .drive import flat_of, put, values_of
from .kit import CLASSIC, GUIDE, KIT, Subject
from .together import MARGIN, TOGETHER, Crew, crew, ensure_near

__all__ = ["STEPS", "same_bits"]

STEPS = {0: 3, 1: 4, 2: 10}
GAMMAS = (1.0, 0.0, -1.0, 0.5)


def same_bits(made: Crew, ranks: list[int], what: str) -> None:
    """I59: one digest of what rides at all of these ranks."""
    names = {rank: digest(memoryview(made.riding(rank))).hex() for rank in ranks}
    ensure(len(set(names.values())) == 1, f"{what}: ranks hold different bits, {names}")


@KIT.check("A121", Level.L1, doc=f"{GUIDE}#in-place", within="in_place")
def a_session_has_an_id_of_its_own(subject: Subject) -> None:
    """Ids of sessions are 1 to 1024 bytes and never the same; a session of one rank works like any other (M-30)."""
    with crew(subject, [0, 1], session=False) as made:
        ids = [made.averagers[rank].make_id(MakeSessionId(number)) for rank in (0, 1) for number in (7, 7, 8)]
        ensure(all(isinstance(each, bytes) and 1 <= len(each) <= 1024 for each in ids), f"ids of sessions are {ids}")
        ensure(len(set(ids)) == len(ids), f"ids of different sessions are the same: {ids}")
        made.enter([1])
        before = {1: made.riding(1)}
        found = made.call({1: 5})
        ensure(found[1].total_steps == 5, f"a call of one rank with 5 steps has a total of {found[1].total_steps}")
        ensure_near(made, before, {1: 5}, "a session of one rank")


@KIT.check("A122", Level.L1, doc=f"{GUIDE}#a-call", within="in_place")
def a_call_says_what_came_of_it(subject: Subject) -> None:
    """It names its cycle and attempt, the steps of all that are in it, and how far apart the rank was (R-13, R-16)."""
    with crew(subject, STEPS) as made:
        layout = FlatLayout.riding(made.schema)
        before = {rank: made.riding(rank) for rank in STEPS}
        for rank, done in made.call(STEPS, cycle=9, attempt=2).items():
            told = (done.cycle, done.attempt, done.total_steps, done.refusal)
            ensure(told == (9, 2, 17, None), f"rank {rank} was told {told} where (9, 2, 17, None) is due")
            due = divergence(layout, memoryview(before[rank]), memoryview(made.riding(rank)))
            for name in ("divergence", "pre_norm", "post_norm"):
                said, true = getattr(done, name), getattr(due, name)
                near = isinstance(said, float) and abs(said - true) <= 1e-2 * abs(true)
                ensure(near, f"{name} of rank {rank} is {said} where {true} is due")
        many = (1 << 24) + 1
        totals = {done.total_steps for done in made.call(dict.fromkeys(STEPS, many), cycle=10).values()}
        ensure(totals == {3 * many}, f"totals are {totals} where three ranks took {many} steps each")


@KIT.check("A123", Level.L1, doc=f"{GUIDE}#a-call", within="in_place")
def who_observes_receives(subject: Subject) -> None:
    """An observer adds nothing, and holds the same bits as the others afterwards (M-23)."""
    with crew(subject, STEPS) as made:
        before = {rank: made.riding(rank) for rank in STEPS}
        runs = [made.run(0, 3), made.run(1, 0, observer=True), made.run(2, 10)]
        totals = {done.total_steps for done in made.end(*runs).values()}
        ensure(totals == {13}, f"totals are {totals} where 13 steps were merged and one rank observed")
        ensure_near(made, before, {0: 3, 1: 0, 2: 10}, "with an observer")
        same_bits(made, [0, 1, 2], "with an observer")


@KIT.check("A221", Level.L2, doc=f"{GUIDE}#the-sum", within="in_place")
def parameters_become_the_mean_by_mass(subject: Subject) -> None:
    """In place each parameter becomes the mean by steps ** gamma, an idle rank weighing nothing (R-5, R-13, I55)."""
    for gamma in GAMMAS:
        with crew(subject, CLASSIC, gamma=gamma) as made:
            before = {rank: made.riding(rank) for rank in CLASSIC}
            found = made.call(CLASSIC)
            ensure(all(done.total_steps == 14 for done in found.values()), f"gamma {gamma}: the totals are wrong")
            ensure_near(made, before, CLASSIC, f"gamma {gamma}", gamma=gamma)


@KIT.check("A222", Level.L2, doc=f"{GUIDE}#the-sum", within="in_place")
def in_place_buffers_are_the_plain_mean(subject: Subject) -> None:
    """Floating buffers weigh the same for each mover, whatever its steps and whoever was idle (R-7)."""
    with crew(subject, [0, 1, 2]) as made:
        for rank, value in ((0, 1.0), (1, 3.0), (2, 50.0)):
            values = values_of(made.schema, made.riding(rank))
            values[:] = value
            flat = flat_of(made.schema, values)
            made.live(rank)[: len(flat)] = flat
        made.call({0: 90, 1: 10, 2: 0})
        (mean,) = (field for field in FlatLayout.riding(made.schema).fields if field.entry.name == "mean")
        got = made.riding(0)[mean.offset : mean.offset + mean.nbytes]
        ensure(memoryview(got).cast("f").tolist() == [2.0] * 3, "buffers of 1 and 3 have the mean "
               f"{memoryview(got).cast('f').tolist()} where 2 is due, whatever their steps")  # fmt: skip


@KIT.check("A223", Level.L2, doc=f"{GUIDE}#in-place", within="in_place")
def only_what_rides_is_touched(subject: Subject) -> None:
    """Frozen and local entries keep their bits, and not a byte beside the state of the rank is written."""
    with crew(subject, STEPS) as made:
        before = made.look()
        made.call(STEPS)
        end = MARGIN + FlatLayout.riding(made.schema).nbytes
        for rank, now in made.look().items():
            ensure(now[end:-MARGIN] == before[rank][end:-MARGIN], f"what is frozen or local at rank {rank} has changed")
            around = now[:MARGIN] + now[-MARGIN:]
            ensure(around == bytes(2 * MARGIN), f"bytes beside the state of rank {rank} have changed")


@KIT.check("A224", Level.L2, doc=f"{GUIDE}#in-place", within="in_place")
def all_ranks_hold_the_same_bits(subject: Subject) -> None:
    """After a call all its ranks hold the same bits of what rides, in whatever order they came to it (I59)."""
    for order in ((0, 1, 2, 5), (5, 2, 1, 0), (1, 5, 0, 2)):
        with crew(subject, CLASSIC, scale=1e3) as made:
            for cycle in (3, 4):
                made.call({rank: CLASSIC[rank] for rank in order}, cycle=cycle)
                same_bits(made, list(order), f"ranks in the order {order}, cycle {cycle}")


@KIT.check("A225", Level.L2, doc=f"{GUIDE}#a-cycle-without-mass", within="in_place")
def a_call_without_mass_changes_nothing(subject: Subject) -> None:
    """When nobody moved all skip the sum: the total is 0, and not a bit has changed (R-8, R-13, I58)."""
    with crew(subject, STEPS) as made:
        before = made.look()
        found = made.call(dict.fromkeys(STEPS, 0))
        ensure(all(done.total_steps == 0 for done in found.values()), "the total of a call of idle ranks is not 0")
        ensure(made.look() == before, "a call of idle ranks changed something (I58)")


@KIT.check("A226", Level.L2, doc=f"{GUIDE}#sessions", within="in_place")
def a_state_is_shared_bit_for_bit(subject: Subject) -> None:
    """Who adopts gets the whole state of the source, which is named by its rank and not by its place in the session,
    frozen and local entries too; nobody else changes (R-20)."""
    with crew(subject, [1, 2, 5]) as made:
        before = made.look()
        made.share(1, {5}, [1, 2, 5])
        now = made.look()
        ensure(now[1] == before[1] and now[2] == before[2], "sharing a state changed a rank that adopts nothing")
        ensure(bytes(made.live(5)) == bytes(made.live(1)), "the rank that adopts holds other bits than the source")
        made.call({1: 1, 2: 1, 5: 1})


@KIT.check("A321", Level.L3, doc=f"{GUIDE}#refusals", within="in_place")
def a_rank_that_is_not_finite_adds_nothing(subject: Subject) -> None:
    """A NaN or an infinity, in an entry of any dtype and of an idle rank too: its values are in no sum, its steps in no
    total, it is told so, and it receives the mean of the others (R-13)."""
    last = {field.entry.dtype: field for field in FlatLayout.riding(TOGETHER).fields if field.nbytes}
    for dtype, field in last.items():
        for number, steps in ((np.nan, 4), (np.inf, 4), (np.nan, 0)):
            with crew(subject, STEPS) as made:
                put(number, dtype, made.live(1)[field.offset :])
                _ensure_left_out(made, {**STEPS, 1: steps}, f"{number} in {dtype} at rank 1, {steps} steps")


def _ensure_left_out(made: Crew, steps: Mapping[int, int], what: str) -> None:
    """A call in which rank 1 holds what is no number, or none that is finite."""
    before = {rank: made.riding(rank) for rank in steps}
    found = made.call(steps)
    refusals = {rank: done.refusal for rank, done in found.items()}
    ensure(refusals == {0: None, 1: Refusal.NONFINITE, 2: None}, f"{what}: refused are {refusals}")
    ensure(all(done.total_steps == 13 for done in found.values()), f"{what}: its steps were counted")
    layout = FlatLayout.riding(made.schema)
    spoilt = [rank for rank in steps if not layout.finite(memoryview(made.riding(rank)))]
    ensure(not spoilt, f"{what}: values that are not finite are at the ranks {spoilt}")
    ensure_near(made, before, {0: 3, 1: 0, 2: 10}, f"beside {what}")
