"""L0 and L1: it can be made, says truly what it is, and takes its calls in every order (R-1, R-2, N-25, N-26)."""

from __future__ import annotations

import hashlib
from typing import Any

import attrs

from ...core.conformance import Level, accepting, ensure, raising
from ...core.effects import AbortRound, AdmitContribution, CloseRound, RemoveFromRound
from ...core.errors import LocalProtocolError, RemoteProtocolError
from ...core.events import RoundProgress
from ...core.messages import Outcome
from ..averager import Averager, Capabilities
from ..in_place import InPlaceAverager
from ..layout import BLOCK_BYTES, FlatLayout
from .drive import KEY, SCHEMA, STATE, Cohort, Ship, header, opened, random_flat, received
from .kit import CLASSIC, GUIDE, KIT, Subject, ensure_consensus, ensure_ended, key_of

__all__: list[str] = []

SHIPS = {rank: Ship(steps, random_flat(rank) if steps else None) for rank, steps in CLASSIC.items()}


@KIT.check("A001", Level.L0, doc=f"{GUIDE}#the-whole-of-it")
def it_is_made_from_a_schema(subject: Subject) -> None:
    """It is made from the schema of the run, the exponent of the mass and whether digests are wanted; one that averages
    in place from the schema, the state of the rank and the exponent."""
    if subject.in_place:
        subject.bare()
        return
    for gamma in (-2.0, 0.0, 1.0):
        with accepting(f"making one with gamma={gamma:g}, digest={gamma > 0}"):
            subject.fresh(gamma=gamma, digest=gamma > 0)


@KIT.check("A002", Level.L0, doc=f"{GUIDE}#capabilities")
def it_says_what_it_can(subject: Subject) -> None:
    """It has a name, and Capabilities with truth values and device types without a number, cpu among them; no averager
    that ships needs a session."""
    averager = subject.bare()
    ensure(isinstance(averager.name, str) and bool(averager.name), f"its name is {averager.name!r}")
    able = averager.capabilities
    ensure(isinstance(able, Capabilities), f"its capabilities are a {type(able).__name__}, not Capabilities")
    flags = (able.in_place, able.abortable, able.needs_session)
    ensure(all(isinstance(flag, bool) for flag in flags), f"the flags {flags} are no truth values")
    named = isinstance(able.devices, tuple) and able.devices and all(isinstance(name, str) for name in able.devices)
    ensure(bool(named), f"devices = {able.devices!r} is no tuple of names such as 'cpu'")
    odd = [name for name in able.devices if not name.isidentifier()]
    ensure(not odd, f"devices names {', '.join(map(repr, odd))}: name types, such as 'cuda', and no single device")
    host = "claim cpu: what an averager is handed, here and in a run, is memory of the host"
    ensure("cpu" in able.devices, f"devices = {able.devices!r} lacks 'cpu'; {host}")
    ensure(able.in_place or not able.needs_session, "it ships and claims needs_session: who ships is in no session")


@KIT.check("A003", Level.L0, doc=f"{GUIDE}#capabilities")
def it_is_of_the_kind_that_it_claims(subject: Subject) -> None:
    """It has the methods of an averager that ships or of one in place, as it claims, and none that only the other kind
    has."""
    averager = subject.bare()
    kinds = {True: _public(InPlaceAverager), False: _public(Averager)}
    mine, other = kinds[subject.in_place], kinds[not subject.in_place]
    kind, claim = ("averages in place", "") if subject.in_place else ("ships", "not ")
    missing = sorted(name for name in mine if not hasattr(type(averager), name) and not hasattr(averager, name))
    ensure(not missing, f"it claims that it {kind}, and has no {', '.join(missing)}")
    both = sorted(name for name in other - mine if hasattr(averager, name))
    ensure(not both, f"in_place is {claim}claimed, and it has {', '.join(both)} of the other kind")


def _public(kind: type) -> set[str]:
    """The names of a protocol."""
    return {name for name in vars(kind) if not name.startswith("_")} | {"name", "capabilities"}


@KIT.check("A101", Level.L1, doc=f"{GUIDE}#a-round", within="ships")
def before_the_first_round_there_is_nothing(subject: Subject) -> None:
    """Before a round there is no consensus, nothing collected and nobody to send to; reduce and scatter are misuse."""
    averager = subject.fresh()
    ensure(averager.consensus is None, "there is a consensus before the first round")
    ensure(not averager.collected, "a round that was never opened is collected")
    ensure(averager.receivers(KEY, 0) == (), "there are receivers before there is a result")
    with raising(LocalProtocolError, "reduce without a collected round"):
        averager.reduce()
    averager.open(opened([0, 1]))
    ensure(not averager.collected, "a round is collected before anybody contributed")
    with raising(LocalProtocolError, "scatter before reduce (R-2)"):
        averager.scatter(0)
    with raising(LocalProtocolError, "reading() without a consensus"), averager.reading():
        pass


@KIT.check("A102", Level.L1, doc=f"{GUIDE}#a-round", within="ships")
def orders_of_other_rounds_change_nothing(subject: Subject) -> None:
    """Admissions, removals, aborts and closes with another key, and admissions of another attempt, change nothing."""
    averager = subject.fresh()
    averager.open(opened(SHIPS))
    other = key_of(KEY.cycle + 1)
    for key in (other, STATE, attrs.evolve(KEY, generation=2)):
        ensure(averager.remove(RemoveFromRound(key, 0)) == (), "a removal of another round had events")
        ensure(averager.admit(AdmitContribution(key, 0, 0, 9)) == (), "an admission of another round had events")
        averager.close(CloseRound(key))
        if averager.capabilities.abortable:
            averager.abort(AbortRound(key))
    averager.admit(AdmitContribution(KEY, 1, 0, 9))
    ensure_ended(Cohort(SCHEMA, averager, SHIPS).reduce(), tuple(sorted(SHIPS)), "after orders of other rounds")
    ensure_consensus(averager, SHIPS, "after orders of other rounds")


@KIT.check("A103", Level.L1, doc=f"{GUIDE}#blocks", within="ships")
def blocks_that_do_not_tile_end_the_link(subject: Subject) -> None:
    """A block without a header, above the cap, out of order or with other bounds is the peer's fault and names it."""
    layout = FlatLayout.riding(SCHEMA)
    block, _ = next(layout.cut(memoryview(random_flat(0)), KEY, 0, 0, 1))
    averager = subject.fresh()
    averager.open(opened([0]))
    with raising(RemoteProtocolError, "a block before its header (N-26)"):
        averager.place(block)
    sizes = (block.bytes - 4, BLOCK_BYTES + 1)
    changes: tuple[dict[str, Any], ...] = ({"offset": 4}, {"entry": 1}, *({"bytes": size} for size in sizes))
    for change in changes:
        averager = subject.fresh()
        averager.open(opened([0]))
        averager.on_header(0, 1, 0, header(SCHEMA, 0, 5, layout.nbytes))
        with raising(RemoteProtocolError, f"a block with {change} (N-25, N-26)"):
            averager.place(attrs.evolve(block, **change))
    averager = subject.fresh()
    averager.open(opened([0, 1]))
    Cohort(SCHEMA, averager, {0: Ship(5, random_flat(0))}).finish()
    with raising(RemoteProtocolError, "a block behind the last one (N-26)"):
        averager.place(block)


@KIT.check("A104", Level.L1, doc=f"{GUIDE}#the-result", within="ships")
def each_receiver_is_told_what_became_of_it(subject: Subject) -> None:
    """Members and observers receive, ascending: their outcome, the merged steps and the whole consensus."""
    ships = {**SHIPS, 3: Ship(4, random_flat(3), claim={"finite": False}), 4: Ship(0), 7: Ship(0)}
    averager, reduced = subject.cycle(ships, observers=[4, 7])
    ensure(averager.receivers(KEY, 0) == (0, 1, 2, 3, 4, 5, 7), f"receivers are {averager.receivers(KEY, 0)}")
    ensure(averager.receivers(KEY, 1) == averager.receivers(STATE, 0) == (), "receivers of another attempt or round")
    due = {3: Outcome.REFUSED, 4: Outcome.OBSERVER, 7: Outcome.OBSERVER}
    for rank in averager.receivers(KEY, 0):
        result, _ = averager.scatter(rank)
        ensure(result.outcome == due.get(rank, Outcome.MERGED), f"rank {rank} is told {result.outcome.name}")
        ensure(result.total_steps == 14, f"rank {rank} is told {result.total_steps} steps where 14 were merged")
        ensure(received(averager, rank) == bytes(averager.consensus or b""), f"rank {rank} is sent other bytes than "
               "the consensus")  # fmt: skip
        ensure(result.bytes == len(averager.consensus or b""), f"rank {rank} is promised {result.bytes} bytes")
    with raising(LocalProtocolError, "scatter to a rank that is no receiver"):
        averager.scatter(6)
    ensure(reduced.realized and reduced.accepted == (0, 1, 2, 5), f"the coordinator is told {reduced}")


@KIT.check("A105", Level.L1, doc=f"{GUIDE}#the-result", within="ships")
def what_is_sent_tiles_the_layout(subject: Subject) -> None:
    """The blocks of a result are those of the schema, once each and in order, with the stamp of the receiver (N-26)."""
    averager, layout = subject.fresh(), FlatLayout.riding(SCHEMA)
    averager.open(opened(SHIPS, life=2))
    ensure_ended(Cohort(SCHEMA, averager, SHIPS, life=2).reduce(), tuple(SHIPS), "a cycle of second lives")
    for rank in averager.receivers(KEY, 0):
        blocks = averager.scatter(rank)[1]
        ensure(len(blocks) == len(layout.blocks), f"{len(blocks)} blocks where {len(layout.blocks)} are due")
        for due, (block, data) in zip(layout.blocks, blocks, strict=True):
            fault = layout.fault(due, block)
            ensure(fault is None, f"to rank {rank}: {fault}")
            stamp = (block.key, block.attempt, block.rank, block.incarnation)
            ensure(stamp == (KEY, 0, rank, 2), f"a block to the second life of rank {rank} has the stamp {stamp}")
            ensure(len(data) == block.bytes, f"a block of {block.bytes} bytes comes with {len(data)}")
            plain = data.format == "B" and data.contiguous
            ensure(plain, f"a block lies in memory that no transport can send: format {data.format!r}, contiguous "
                   f"{data.contiguous}")  # fmt: skip
        averager.on_scattered(rank)
    ensure(averager.receivers(KEY, 0) == (), "all have their result, and there are receivers left")


@KIT.check("A106", Level.L1, doc=f"{GUIDE}#the-result", within="ships")
def the_digest_names_the_bits(subject: Subject) -> None:
    """The digest is the first half of the SHA-256 of the consensus as delivered, in every cycle, and absent where it is
    off (C-18)."""
    averager = subject.fresh()
    for cycle in (3, 4):
        ships = {rank: Ship(ship.steps, random_flat(cycle + rank)) for rank, ship in SHIPS.items()}
        _, reduced = subject.cycle(ships, averager=averager, key=key_of(cycle))
        due = hashlib.sha256(averager.consensus or b"").digest()[:16]
        ensure(reduced.digest == due, f"the digest of cycle {cycle} is {reduced.digest!r} where {due!r} is due")
        averager.close(CloseRound(key_of(cycle)))
    silent = subject.fresh(digest=False)
    _, reduced = subject.cycle(SHIPS, averager=silent)
    ensure(reduced.digest is None, f"the digest is off, and it is {reduced.digest!r}")


@KIT.check("A107", Level.L1, doc=f"{GUIDE}#events", within="ships")
def progress_is_told_to_the_end(subject: Subject) -> None:
    """Each contribution's last progress names all its bytes and says that it is complete, once (R-11)."""
    averager = subject.fresh()
    averager.open(opened(SHIPS))
    cohort = Cohort(SCHEMA, averager, SHIPS)
    cohort.finish()
    for rank, ship in SHIPS.items():
        marks = [event for event in cohort.events if isinstance(event, RoundProgress) and event.rank == rank]
        ensure(bool(marks) and marks[-1].complete, f"rank {rank} is complete, and nobody was told")
        ensure(sum(mark.complete for mark in marks) == 1, f"rank {rank} became complete more than once")
        counted = [mark.bytes for mark in marks]
        ensure(counted == sorted(counted) and counted[-1] == len(ship.flat or b""),
               f"the bytes of rank {rank} were told as {counted}")  # fmt: skip


@KIT.check("A109", Level.L1, doc=f"{GUIDE}#a-round", within="ships")
def a_round_is_reduced_once(subject: Subject) -> None:
    """A second reduce of a round is misuse, and so is a scatter after its close, when nobody is a receiver any more."""
    averager, _ = subject.cycle(SHIPS)
    made = bytes(averager.consensus or b"")
    with raising(LocalProtocolError, "a second reduce of a round"):
        averager.reduce()
    ensure(bytes(averager.consensus or b"") == made, "a second reduce changed the consensus")
    averager.close(CloseRound(KEY))
    ensure(averager.receivers(KEY, 0) == (), "a closed round has receivers")
    with raising(LocalProtocolError, "scatter after the close of the round"):
        averager.scatter(0)


@KIT.check("A110", Level.L1, doc=f"{GUIDE}#blocks", within="ships")
def blocks_of_all_ranks_may_be_on_their_way(subject: Subject) -> None:
    """Each block has memory of its own from `place` to `on_block`, whoever else is sending meanwhile, and whoever is
    there first (R-1, R-11)."""
    layout = FlatLayout.riding(SCHEMA)
    ships = {rank: Ship(rank + 1, random_flat(rank)) for rank in (0, 2, 3)}
    averager = subject.fresh()
    averager.open(opened(ships))
    for rank, ship in ships.items():
        averager.on_header(rank, 1, 0, header(SCHEMA, rank, ship.steps, layout.nbytes))
        averager.admit(AdmitContribution(KEY, 0, rank, ship.steps))
    left = {rank: list(layout.cut(memoryview(ship.flat or b""), KEY, 0, rank, 1)) for rank, ship in ships.items()}
    while any(left.values()):
        ready = [rank for rank in left if left[rank] and averager.ready_for(rank)]
        ensure(bool(ready), f"no lane is read, and blocks are left of the ranks {[r for r in left if left[r]]}")
        landing = [(*left[rank].pop(0), rank) for rank in ready]
        for (_, data, _), memory in [(each, averager.place(each[0])) for each in landing]:
            memory[:] = data
        for block, _, _ in reversed(landing):
            averager.on_block(block)
    ensure(averager.collected, "all blocks are there, and the round is not collected")
    ensure_ended(averager.reduce(), tuple(ships), "blocks of all ranks on their way at once")
    ensure_consensus(averager, ships, "blocks of all ranks on their way at once")


@KIT.check("A111", Level.L1, doc=f"{GUIDE}#a-round", within="ships")
def two_of_one_process_share_nothing(subject: Subject) -> None:
    """What goes on in one averager changes nothing in another one of the same process: each has a run of its own."""
    one, other = subject.fresh(), subject.fresh()
    strange = {rank: Ship(7, random_flat(50 + rank)) for rank in SHIPS}
    mine, foreign = (Cohort(SCHEMA, each, ships) for each, ships in ((one, SHIPS), (other, strange)))
    one.open(opened(SHIPS))
    other.open(opened(strange))
    while any([cohort.act(lane) for lane in range(2 * len(SHIPS)) for cohort in (mine, foreign)]):
        pass
    for averager, ships in ((one, SHIPS), (other, strange)):
        ensure(averager.collected, "of two averagers in one process one is not collected")
        ensure_ended(averager.reduce(), tuple(ships), "beside another averager in one process")
    ensure_consensus(one, SHIPS, "beside another averager in one process")
    ensure_consensus(other, strange, "beside another averager in one process")


def _no_abort(subject: Subject) -> None:
    averager = subject.fresh()
    averager.open(opened(SHIPS))
    with raising(LocalProtocolError, "abort of an averager that is not abortable"):
        averager.abort(AbortRound(KEY))


@KIT.check("A108", Level.L1, doc=f"{GUIDE}#capabilities", within="ships", needs="abortable", unclaimed=_no_abort)
def a_round_can_be_given_up(subject: Subject) -> None:
    """An aborted round is never collected, what arrives for it is let through, and the next attempt is a fresh one."""
    averager = subject.fresh()
    averager.open(opened(SHIPS))
    with accepting("an abort, and what still arrives after it,"):
        averager.abort(AbortRound(KEY))
        Cohort(SCHEMA, averager, SHIPS).finish()
    ensure(not averager.collected, "an aborted round became collected")
    averager.open(opened(SHIPS, attempt=1))
    ensure_ended(Cohort(SCHEMA, averager, SHIPS, attempt=1).reduce(), tuple(sorted(SHIPS)), "after an abort")
    ensure_consensus(averager, SHIPS, "after an abort")
