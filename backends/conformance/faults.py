"""L3: what does not count, ranks that go, rounds that are repeated (R-1, R-2, R-4, R-10, R-11, R-18; I57)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from ...core.conformance import Level, accepting, ensure
from ...core.effects import AbortRound, CloseRound, RemoveFromRound
from ...core.errors import RemoteProtocolError
from ...core.events import RoundReduced
from ...core.messages import Outcome, Refusal, RoundKind
from ...core.schema import DTYPE_SIZES, Schema
from ..averager import Averager
from ..layout import FlatLayout
from .drive import KEY, SCHEMA, STATE, Cohort, Ship, header, opened, put, random_flat, received, several_blocks
from .kit import GUIDE, KIT, Subject, ensure_consensus, ensure_ended, key_of

__all__: list[str] = []

NBYTES = FlatLayout.riding(SCHEMA).nbytes
GOOD = {0: Ship(4, random_flat(0)), 3: Ship(2, random_flat(3))}
REFUSED = (
    (Ship(3, random_flat(1), claim={"schema_hash": b"?" * 32}), Refusal.SCHEMA),
    (Ship(1001, random_flat(1)), Refusal.STEPS),
    (Ship(3, random_flat(1), admitted=4), Refusal.STEPS),
    (Ship(3, random_flat(1), claim={"finite": False}), Refusal.NONFINITE),
    (Ship(3, random_flat(1), claim={"bytes": NBYTES + 4}), Refusal.SHAPE),
    (Ship(0, random_flat(1)), Refusal.SHAPE),
)
"""One contribution for each reason that a header or admission can give (R-4)."""


def _large() -> tuple[Schema, dict[int, Ship]]:
    """A model of several blocks and what ranks 0 and 3 ship of it."""
    schema = several_blocks()
    return schema, {rank: Ship(ship.steps, random_flat(rank, schema=schema)) for rank, ship in GOOD.items()}


@KIT.check("A301", Level.L3, doc=f"{GUIDE}#refusals", within="ships")
def a_refused_contribution_does_not_count(subject: Subject) -> None:
    """Wrong schema, steps, size or finiteness: out of sum and divisor, told why, and sent the consensus (R-4)."""
    for ship, why in REFUSED:
        averager, reduced = subject.cycle({**GOOD, 1: ship})
        ensure(reduced.refused == ((1, why),), f"{why.name}: refused is {reduced.refused}")
        ensure(reduced.accepted == (0, 3), f"{why.name}: accepted is {reduced.accepted}")
        ensure_consensus(averager, GOOD, f"with a contribution refused for {why.name}")
        result, _ = averager.scatter(1)
        told = (result.outcome, result.refusal, result.total_steps)
        ensure(told == (Outcome.REFUSED, why, 6), f"{why.name}: the rank is told {told}")
        ensure(received(averager, 1) == bytes(averager.consensus or b""), f"{why.name}: its rank gets other bytes")


@KIT.check("A302", Level.L3, doc=f"{GUIDE}#refusals", within="ships")
def bytes_of_who_does_not_count_change_no_bit(subject: Subject) -> None:
    """Whatever a refused rank, an observer or a stranger ships: not one bit of consensus or divisor differs (I57)."""
    rng = np.random.default_rng(57)
    for who in ("refused", "observer", "stranger"):
        for junk in (rng.bytes(NBYTES), b"\xff" * NBYTES, bytes(NBYTES)):
            bad = Ship(7, junk, claim={"schema_hash": b"?" * 32} if who == "refused" else {})
            averager = subject.fresh()
            members = [0, 1, 3] if who == "refused" else [0, 3]
            averager.open(opened(members, observers=[1] if who == "observer" else []))
            for order in ((2, 2, 2, 0), (0, 1, 4)):
                averager.open(opened(members, observers=[1] if who == "observer" else []))
                reduced = Cohort(SCHEMA, averager, {0: GOOD[0], 1: bad, 3: GOOD[3]}).reduce(order)
                ensure_ended(reduced, (0, 3), f"bytes of a {who}")
                ensure_consensus(averager, GOOD, f"bytes of a {who}")
                ensure(averager.scatter(0)[0].total_steps == 6, f"steps of a {who} were counted")


@KIT.check("A303", Level.L3, doc=f"{GUIDE}#refusals", within="ships")
def values_that_are_not_finite_are_found(subject: Subject) -> None:
    """A NaN or an infinity, in an entry of any dtype, against its header refuses its rank, in this attempt or, where it
    is in the sum, in the next (R-4)."""
    large, good = _large()
    end = FlatLayout.riding(large).nbytes
    for at in (0, end - 4):
        _ensure_found(subject, large, good, "float32", at, np.nan)
    last = {field.entry.dtype: field.offset + field.nbytes - DTYPE_SIZES[field.entry.dtype]
            for field in FlatLayout.riding(SCHEMA).fields if field.nbytes}  # fmt: skip
    for dtype, at in last.items():
        for number in (np.nan, np.inf, -np.inf):
            _ensure_found(subject, SCHEMA, GOOD, dtype, at, number)


def _ensure_found(
    subject: Subject, schema: Schema, good: Mapping[int, Ship], dtype: str, at: int, number: float
) -> None:
    """Rank 1 ships this number, in this dtype, at this byte, and is refused for it."""
    flat = bytearray(random_flat(1, schema=schema))
    put(number, dtype, memoryview(flat)[at:])
    ships = {0: good[0], 1: Ship(5, flat), 3: good[3]}
    averager, what = subject.fresh(schema), f"{number} in {dtype}, at byte {at} of {len(flat)},"
    reduced, attempt = None, 0
    while not isinstance(reduced, RoundReduced) and attempt < 2:
        averager.open(opened(ships, attempt=attempt))
        cohort = Cohort(schema, averager, ships, attempt=attempt)
        cohort.finish()
        reduced = averager.reduce() if averager.collected else None
        ensure(reduced is not None or cohort.aborted is not None, f"a round with {what} neither goes on nor ends")
        attempt += 1
    found = isinstance(reduced, RoundReduced) and reduced.refused == ((1, Refusal.NONFINITE),)
    ensure(found, f"{what} ended in {reduced}")
    ensure_consensus(averager, good, f"with {what} of rank 1", schema=schema)


@KIT.check("A304", Level.L3, doc=f"{GUIDE}#refusals", within="ships")
def a_second_contribution_changes_nothing(subject: Subject) -> None:
    """A deposit never overwrites: a second header in one attempt is refused and the first one stands (R-1)."""
    averager = subject.fresh()
    averager.open(opened(GOOD))
    Cohort(SCHEMA, averager, {0: GOOD[0]}).finish()
    again = Cohort(SCHEMA, averager, {0: Ship(9, random_flat(8))})
    ensure(again.act(0), "the lane of a second contribution stands still")
    reduced = Cohort(SCHEMA, averager, {3: GOOD[3]}).reduce()
    ensure_ended(reduced, (0, 3), "with a second contribution of rank 0")
    ensure_consensus(averager, GOOD, "with a second contribution of rank 0")
    ensure(averager.scatter(0)[0].total_steps == 6, "the steps of a second contribution were counted")


@KIT.check("A312", Level.L3, doc=f"{GUIDE}#refusals", within="ships")
def a_contribution_begun_twice_never_counts(subject: Subject) -> None:
    """A second header behind a part of the first contribution: what came before and what comes after it are not put
    together, and neither replaces the other. The rank is refused, or its link or the attempt ends (R-1, N-26)."""
    schema, good = _large()
    for twice, once in ((0, 3), (3, 0)):
        averager = subject.fresh(schema)
        averager.open(opened(good))
        cohort = Cohort(schema, averager, good)
        lane = 2 * list(good).index(twice)
        for each in (lane, lane, lane + 1):
            cohort.act(each)
        cohort.lanes[lane][1].clear()
        again = Cohort(schema, averager, {twice: Ship(good[twice].steps, random_flat(8, schema=schema))})
        again.lanes[1][1].clear()
        try:
            again.finish()
        except RemoteProtocolError:  # the driver closes the link, and the rank is lost
            again.events += averager.remove(RemoveFromRound(KEY, twice))
        cohort.finish()
        what = f"rank {twice} began its contribution twice"
        if cohort.aborted is not None or again.aborted is not None:
            ensure(not averager.collected, f"{what}: an aborted round is collected")
            continue
        ensure_ended(cohort.reduce(), (once,), what)
        ensure_consensus(averager, {once: good[once]}, what, schema=schema)


@KIT.check("A305", Level.L3, doc=f"{GUIDE}#foreign-frames", within="ships")
def frames_of_other_rounds_are_let_through(subject: Subject) -> None:
    """Headers and blocks of another generation, cycle, attempt or life, older or newer, and blocks of another kind of
    round, are read and forgotten, at any moment (R-1)."""
    now = attrs.evolve(KEY, generation=2)
    data = bytearray(random_flat(6))
    block, _ = next(FlatLayout.riding(SCHEMA).cut(memoryview(data), now, 1, 0, 2))
    head = header(SCHEMA, 0, 9, NBYTES, key=now, attempt=1, life=2)
    frames: list[tuple[dict[str, Any], dict[str, Any]]] = []
    # A header has no kind: this one is of another cycle.
    frames.append(({"cycle": now.cycle + 1}, {"key": attrs.evolve(now, kind=RoundKind.STATE)}))
    for off in (-1, 1):
        frames += [
            ({"incarnation": 2 + off}, {"incarnation": 2 + off}),
            ({"generation": 2 + off}, {"key": attrs.evolve(now, generation=2 + off)}),
            ({"cycle": now.cycle + off}, {"key": attrs.evolve(now, cycle=now.cycle + off)}),
            ({"attempt": 1 + off}, {"attempt": 1 + off}),
        ]
    for of_header, of_block in frames:
        for moment in range(4):
            averager = subject.fresh()
            averager.open(opened(GOOD, key=now, attempt=1, life=2))
            cohort = Cohort(SCHEMA, averager, GOOD, now, attempt=1, life=2)
            for _ in range(moment):
                cohort.act(0)
            stale, frame = attrs.evolve(head, **of_header), attrs.evolve(block, **of_block)
            with accepting(f"a frame of another round, {of_block},"):
                averager.on_header(0, stale.incarnation, stale.attempt, stale)
                averager.place(frame)[:] = b"\xff" * frame.bytes
                averager.on_block(frame)
            reduced = cohort.reduce()
            ensure_ended(reduced, (0, 3), f"with a frame of another round, {of_block}")
            ensure_consensus(averager, GOOD, f"with a frame of another round, {of_block}")


@KIT.check("A306", Level.L3, doc=f"{GUIDE}#removal", within="ships")
def a_rank_may_go_at_any_moment(subject: Subject) -> None:
    """A rank that is removed is waited for no longer: it counts whole or not at all, or the attempt ends (R-2)."""
    schema, good = _large()
    ships = {0: good[0], 1: Ship(5, random_flat(1, schema=schema)), 3: good[3]}
    steps = 1 + len(FlatLayout.riding(schema).blocks)
    for lost in ships:
        lane = 2 * list(ships).index(lost)
        for done in range(steps + 1):
            for admitted in (False, True):
                averager = subject.fresh(schema)
                averager.open(opened(ships))
                cohort = Cohort(schema, averager, ships)
                for each in (*([lane + 1] if admitted else []), *([lane] * done)):
                    cohort.act(each)
                whole = admitted and not cohort.lanes[lane][1]
                cohort.silence(lost)
                cohort.events += averager.remove(RemoveFromRound(KEY, lost))
                _judge_removal(averager, cohort, ships, lost, whole)


def _judge_removal(averager: Averager, cohort: Cohort, ships: Mapping[int, Ship], lost: int, whole: bool) -> None:
    schema = cohort.schema
    rest = {rank: ship for rank, ship in ships.items() if rank != lost}
    what = f"rank {lost} removed {'after' if whole else 'before'} its contribution was complete and admitted"
    cohort.finish()
    if cohort.aborted is not None:
        ensure(averager.capabilities.abortable, f"{what}: the round was aborted, and abortable is not claimed")
        ensure(not averager.collected, f"{what}: an aborted round is collected")
        averager.open(opened(rest, attempt=1))
        reduced = Cohort(schema, averager, rest, attempt=1).reduce()
        whole = False
    else:
        reduced = cohort.reduce()
    due = ships if whole else rest
    ended = ensure_ended(reduced, tuple(due), what)
    ensure(lost not in averager.receivers(KEY, ended.attempt), f"{what}: it is still to be sent the result")
    ensure_consensus(averager, due, what, schema=schema)


@KIT.check("A307", Level.L3, doc=f"{GUIDE}#removal", within="ships")
def without_admission_nothing_counts(subject: Subject) -> None:
    """A complete contribution that the report lane never named leaves with its rank: its picks return (R-11)."""
    averager = subject.fresh()
    averager.open(opened(GOOD))
    cohort = Cohort(SCHEMA, averager, GOOD)
    cohort.lanes[1][1].clear()
    cohort.finish()
    ensure(not averager.collected, "a round is collected although a contribution was never admitted")
    averager.remove(RemoveFromRound(KEY, 0))
    reduced = cohort.reduce()
    ensure_ended(reduced, (3,), "with a contribution that was never admitted")
    ensure_consensus(averager, {3: GOOD[3]}, "a contribution that was never admitted is in the sum")


@KIT.check("A313", Level.L3, doc=f"{GUIDE}#removal", within="ships")
def who_goes_late_is_sent_nothing(subject: Subject) -> None:
    """An observer may go at any moment, and so may a member whose contribution is in the consensus: nothing is sent to
    it, what it gave counts, and the others are sent theirs (R-2)."""
    averager = subject.fresh()
    averager.open(opened(GOOD, observers=[1, 2]))
    cohort = Cohort(SCHEMA, averager, GOOD)
    with accepting("the removal of an observer while contributions come"):
        averager.remove(RemoveFromRound(KEY, 1))
    ensure_ended(cohort.reduce(), (0, 3), "with an observer that went")
    ensure(averager.receivers(KEY, 0) == (0, 2, 3), f"rank 1 went, and receivers are {averager.receivers(KEY, 0)}")
    for lost, left in ((2, (0, 3)), (0, (3,))):
        with accepting(f"the removal of rank {lost} after the reduce"):
            averager.remove(RemoveFromRound(KEY, lost))
        there = averager.receivers(KEY, 0)
        ensure(there == left, f"rank {lost} went after the reduce, and receivers are {there} where {left} are due")
    ensure_consensus(averager, GOOD, "after a member went that had contributed")
    ensure(received(averager, 3) == bytes(averager.consensus or b""), "who stays is sent no consensus")
    averager.on_scattered(3)
    ensure(averager.receivers(KEY, 0) == (), "the one that stays has its result, and there are receivers left")


@KIT.check("A314", Level.L3, doc=f"{GUIDE}#removal", within="ships")
def a_state_without_its_source_is_none(subject: Subject) -> None:
    """When the source of a state goes before all of it is there, nobody is sent a state, and no consensus is made of
    what came (R-2, R-20)."""
    state = random_flat(9) + bytes(FlatLayout.whole(SCHEMA).nbytes - NBYTES)
    for done in (0, 1, 2):
        averager = subject.fresh()
        averager.open(opened([0], observers=[1], key=STATE, limit=0))
        cohort = Cohort(SCHEMA, averager, {0: Ship(0, state)}, STATE)
        for _ in range(done):
            cohort.act(0)
        cohort.silence(0)
        with accepting("the removal of the source of a state"):
            cohort.events += averager.remove(RemoveFromRound(STATE, 0))
        ended = averager.reduce() if cohort.aborted is None and averager.collected else cohort.aborted
        ensure(ended is not None, "the source of a state is gone, and its round neither ends nor is collected")
        made = isinstance(ended, RoundReduced) and ended.realized
        ensure(not made, f"the source of a state is gone, and its transfer ended in {ended}")
        ensure(averager.consensus is None, "the source of a state is gone, and there is a consensus")


@KIT.check("A315", Level.L3, doc=f"{GUIDE}#refusals", within="ships")
def nobody_is_out_for_longer_than_its_round(subject: Subject) -> None:
    """Who was refused in one cycle counts in the next, and so does the next life of a rank that went (R-4, R-11)."""
    averager = subject.fresh()
    ill = bytearray(random_flat(1))
    ill[0:4] = np.array([np.nan], "<f4").tobytes()
    ships = {**GOOD, 1: Ship(5, ill), 2: Ship(5, random_flat(2))}
    averager.open(opened(ships))
    cohort = Cohort(SCHEMA, averager, ships)
    cohort.silence(2)
    averager.remove(RemoveFromRound(KEY, 2))
    cohort.finish()
    if cohort.aborted is None:
        averager.reduce()
        averager.close(CloseRound(KEY))
    elif averager.capabilities.abortable:
        averager.abort(AbortRound(KEY))
    for cycle, life, what in ((4, 1, "rank 1 was refused in the cycle before"), (5, 2, "rank 2 was lost, and is back")):
        well = {**GOOD, 1: Ship(5, random_flat(1)), **({2: ships[2]} if life == 2 else {})}
        averager.open(opened(well, key=key_of(cycle), life=life))
        ensure_ended(Cohort(SCHEMA, averager, well, key_of(cycle), life=life).reduce(), tuple(sorted(well)), what)
        ensure_consensus(averager, well, what)
        averager.close(CloseRound(key_of(cycle)))


@KIT.check("A308", Level.L3, doc=f"{GUIDE}#removal", within="ships", needs="abortable")
def an_abort_at_any_moment_leaves_nothing(subject: Subject) -> None:
    """Given up at any moment, a round leaves nothing behind: the next attempt is exact (R-10, R-18)."""
    schema, ships = _large()
    averager = subject.fresh(schema)
    for moment in range(2 * (len(FlatLayout.riding(schema).blocks) + 2)):
        averager.open(opened(ships, attempt=2 * moment))
        cohort = Cohort(schema, averager, ships, attempt=2 * moment)
        for action in range(moment):
            cohort.act((0, 2, 1, 3)[action % 4])
        averager.abort(AbortRound(KEY))
        averager.open(opened(ships, attempt=2 * moment + 1))
        reduced = Cohort(schema, averager, ships, attempt=2 * moment + 1).reduce()
        ensure_ended(reduced, (0, 3), "the attempt after an abort")
        ensure_consensus(averager, ships, f"the attempt after an abort at action {moment}", schema=schema)


@KIT.check("A309", Level.L3, doc=f"{GUIDE}#retention", within="ships")
def a_consensus_is_kept_while_it_is_read(subject: Subject) -> None:
    """What a reader holds is not overwritten by later rounds, however long it takes (R-10, K-7)."""
    averager, first = subject.after(GOOD)
    with averager.reading() as held:
        for cycle in (4, 5, 6):
            subject.cycle({0: Ship(5, random_flat(cycle))}, averager=averager, key=key_of(cycle))
            averager.close(CloseRound(key_of(cycle)))
            ensure(bytes(held) == first, f"cycle {cycle} wrote over the consensus that is being read")
    ensure_consensus(averager, {0: Ship(5, random_flat(6))}, "after a reader held the consensus of three cycles ago")


@KIT.check("A310", Level.L3, doc=f"{GUIDE}#retention", within="ships", needs="abortable")
def an_unfinished_cycle_leaves_no_consensus(subject: Subject) -> None:
    """Given up or repeated after its reduce, a cycle left nothing: the consensus before it is the last one (K-10)."""
    averager, first = subject.after(GOOD)
    for cycle, gives_up in ((4, True), (5, False)):
        subject.cycle({0: Ship(5, random_flat(cycle))}, averager=averager, key=key_of(cycle))
        if gives_up:
            averager.abort(AbortRound(key_of(cycle)))
        else:
            averager.open(opened([0], key=key_of(cycle), attempt=1))
        ensure(bytes(averager.consensus or b"") == first, f"a cycle that was {'given up' if gives_up else 'repeated'} "
               "after its reduce left its consensus")  # fmt: skip


@KIT.check("A311", Level.L3, doc=f"{GUIDE}#foreign-frames", within="ships", needs="abortable")
def late_bytes_never_reach_the_next_attempt(subject: Subject) -> None:
    """Memory that a lane may still be writing into is not used for another block (R-1, R-10)."""
    averager = subject.fresh()
    averager.open(opened(GOOD))
    first = Cohort(SCHEMA, averager, GOOD)
    for lane in (0, 1):
        first.act(lane)
    block, data = next(FlatLayout.riding(SCHEMA).cut(memoryview(bytearray(GOOD[0].flat or b"")), KEY, 0, 0, 1))
    late = averager.place(block)
    averager.open(opened(GOOD, attempt=1))
    second = Cohort(SCHEMA, averager, GOOD, attempt=1)
    for lane in (0, 1):
        second.act(lane)
    again = attrs.evolve(block, attempt=1)
    averager.place(again)[:] = data
    late[:] = b"\xff" * len(late)
    second.events += averager.on_block(again)
    averager.on_block(block)
    second.lanes[0][1].popleft()
    reduced = second.reduce()
    ensure_ended(reduced, (0, 3), "with bytes of attempt 0 that came late")
    ensure_consensus(averager, GOOD, "with bytes of attempt 0 that came late")
