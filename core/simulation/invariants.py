"""What must hold in the books of the machines after every event, by the id of protocol section 16.

These look into the machines, so each is one half of an argument whose other half is the ghost's: the ghost says that
what went out was right, these that what is kept agrees with itself.
"""

from __future__ import annotations

from typing import Any

from ..coordinator import Coordinator
from ..events import Received
from ..messages import REPORT_CLASSES, Report, Update
from ..peer import Peer
from ..phases import CyclePhase, PeerPhase, RunPhase, WorkerPhase
from .ghost import Ghost
from .process import Process
from .violation import Violation, require

__all__ = [
    "applied_in_order", "blamed", "booked", "books", "ending", "explained", "parked", "report_seq_of", "steps_meet",
]  # fmt: skip

VOTER = PeerPhase.VOTER
THERE = (VOTER, PeerPhase.JOINING, PeerPhase.LAGGING)
WAITING, TRAINING, THROTTLED = WorkerPhase.WAITING, WorkerPhase.TRAINING, WorkerPhase.THROTTLED
QUIET = (WAITING, TRAINING, THROTTLED)


def books(co: Coordinator) -> None:
    """Everything below that concerns the coordinator alone."""
    _i19_who_is_there(co)
    progressive, most = co.config.is_progressive, 1 if co.config.barrier_paced else 2
    for rank, peer in co.peers.items():
        held = co.book.holdings(rank)
        if peer.missed > co.config.join_patience:
            raise Violation("I36", f"rank {rank} has missed {peer.missed} cycles")
        if progressive and len(held.plans) > most:
            raise Violation("I11", f"rank {rank} has {len(held.plans)} plans in flight")
        if not peer.steps == held.trained_batches == sum([run.count for run in held.trained]):
            raise Violation("D-11", f"rank {rank}: {peer.steps} steps, {held.trained_batches} trained batches")
        if held.in_flight_batches != sum([entry.slice.count - entry.done for entry in held.plans]):
            raise Violation("D-11", f"rank {rank}: {held.in_flight_batches} batches in flight")
    if co.cycle.phase == CyclePhase.IDLE and co.book.limbo:
        raise Violation("M-19", "limbo outlived its cycle")
    _i41_every_batch_in_one_place(co)
    _i61_the_balance_is_within_its_bounds(co)
    if co.run.phase != RunPhase.STOPPED:
        require(co.poll_timeout() is not None, "I40", "no deadline is set")
        _i27_the_gate_does_not_wait_for_nobody(co)
        _i29_idle_ranks_have_work(co)


def booked(co: Coordinator, peer: Peer) -> None:
    """D-11 of one rank in passing, after a report of it that had no effect: what it may have changed is its steps."""
    held = co.book.ranks.get(peer.rank)
    trained = 0 if held is None else held.trained_batches
    if peer.steps != trained:
        raise Violation("D-11", f"rank {peer.rank}: {peer.steps} steps, {trained} trained batches")


def _i19_who_is_there(co: Coordinator) -> None:
    alive = sorted([rank for rank, peer in co.peers.items() if peer.phase in THERE])
    if co.alive != alive:
        raise Violation("I19", f"the alive are {co.alive}, by their phases {alive}")
    voters = sorted([rank for rank, peer in co.peers.items() if peer.phase is VOTER])
    if co.voters != voters:
        raise Violation("I19", f"the voters are {co.voters}, by their phases {voters}")


def _i41_every_batch_in_one_place(co: Coordinator) -> None:
    """Free, in flight, trained, in limbo and covered make up the epoch, and no two of them overlap. Ranges are sorted
    once, so the cost is that of their number, not of the batches."""
    places = {epoch: list(pool.free_ranges()) for epoch, pool in co.book.pools.items()}
    for held in co.book.ranks.values():
        for entry in held.plans:
            if entry.slice.epoch in places:
                places[entry.slice.epoch].append((entry.slice.first + entry.done, entry.slice.count - entry.done))
        for run in held.trained:
            if run.epoch in places:
                places[run.epoch].append((run.first, run.count))
    for runs in co.book.limbo.values():
        for run in runs:
            if run.epoch in places:
                places[run.epoch].append((run.first, run.count))
    for epoch, pool in co.book.pools.items():
        if epoch <= co.book.last_closed_epoch:
            raise Violation("I13", f"epoch {epoch} is closed and has a pool")
        end, total = 0, pool.covered
        for first, count in sorted(places[epoch]):
            if count:
                if first < end:
                    raise Violation("I41", f"a batch of epoch {epoch} is in two places: {sorted(places[epoch])}")
                end, total = first + count, total + count
        if total != pool.total:
            raise Violation("I41", f"epoch {epoch} has {pool.total} batches, {total} are accounted for")


def _i27_the_gate_does_not_wait_for_nobody(co: Coordinator) -> None:
    cycle = co.cycle
    if cycle.pending:
        owing = [rank for rank in cycle.participants if cycle.owes(rank)]
        if cycle.owing != len(owing) or not owing:
            raise Violation("I27", f"cycle {cycle.number} is pending, owing is {cycle.owing}, by its ranks {owing}")


def _i29_idle_ranks_have_work(co: Coordinator) -> None:
    if not co.config.is_progressive or co.run.phase != RunPhase.TRAINING:
        return
    for rank in co.voters:
        if co.book.holdings(rank).plans or not co.desk.may_serve(co.peers[rank]):
            continue
        for epoch in co.desk.enterable():
            pool = co.book.pools.get(epoch)  # of one that nobody has entered yet all batches are free
            if co.desk.left(rank) if pool is None else pool.free and co.desk.size(rank, pool):
                free = co.book.total(epoch) if pool is None else pool.free
                raise Violation("I29", f"rank {rank} is idle while epoch {epoch} has {free} free batches")


def explained(co: Coordinator) -> None:
    """I39: what waits is explained, and each reason names a rank, a deadline or what an operator can do."""
    reasons = co.explain()
    waits = co.cycle.pending or co.run.phase not in (RunPhase.TRAINING, RunPhase.STOPPED)
    if waits and not reasons:
        raise Violation("I39", f"nothing is explained in {co.run.phase.name}")
    for reason in reasons:
        if reason.rank is None and reason.until is None and not reason.waiting_for and not reason.action:
            raise Violation("I39", f"{reason} names neither a rank nor a deadline nor a remedy")


def parked(process: Process, before: WorkerPhase, throttle: int, event: Any) -> None:
    """I15: a parked worker goes on only by the end of that cycle, or by a stop of any kind. I23: one that leaves never
    parks."""
    after = process.worker.phase
    if before == WorkerPhase.DRAINING and after == WorkerPhase.THROTTLED:
        raise Violation("I23", f"process {process.number} is leaving and parks")
    if before is not THROTTLED or after not in (WAITING, TRAINING):
        return
    message = event.message if isinstance(event, Received) else None
    if not isinstance(message, Update) or message.cycle < throttle:
        raise Violation("I15", f"process {process.number} was parked for cycle {throttle} and goes on by {event}")


def report_seq_of(co: Coordinator, report: Any) -> int | None:
    """The last report that was applied of the life that this one is of; None if that life is over, or this is none."""
    if report.__class__ not in REPORT_CLASSES:
        return None
    peer = co.peers.get(report.rank)
    if peer is None or peer.phase not in THERE or peer.incarnation != report.incarnation:
        return None
    return peer.report_seq


def applied_in_order(co: Coordinator, report: Report, before: int) -> None:
    """I53: each report of a life is applied once, in order, over all its links and all lives of the coordinator."""
    peer = co.peers[report.rank]
    if peer.report_seq == before + 1 == report.report_seq:
        return  # as it should be, whoever is there now
    due = report.report_seq == before + 1 and report.generation == co.generation and peer.alive and not co.finished
    if peer.incarnation == report.incarnation and (due or peer.report_seq not in (before, report.report_seq)):
        raise Violation("I53", f"{report} was applied after report {before}, the books are at {peer.report_seq}")
    if peer.incarnation == report.incarnation and peer.report_seq > before + 1:
        raise Violation("I53", f"reports {before + 1} to {report.report_seq - 1} of rank {report.rank} were left out")


def _i61_the_balance_is_within_its_bounds(co: Coordinator) -> None:
    balancer = co.balancer
    if balancer.counts:
        if min(balancer.counts.values()) < 1:
            raise Violation("I61", f"counts {balancer.counts}")
        if not 1 <= balancer.anchor <= co.config.max_anchor:
            raise Violation("I61", f"anchor {balancer.anchor}")


def steps_meet(co: Coordinator, ghost: Ghost, process: Process, under_way: bool) -> None:
    """I46: the steps of a worker are those that no consensus holds. I45: with empty lanes its books say the same;
    `under_way`: they are not, though nothing is in them."""
    worker, unmerged = process.worker, len(ghost.unmerged[process.number])
    if worker.steps_since_avg != unmerged and not process.orders and process.alive and process.ended is None:
        text = f"process {process.number} counts {worker.steps_since_avg} steps, {unmerged} are unmerged"
        raise Violation("I46", text)
    if under_way or process.tampered or process.up or process.down or worker.inbox:
        return
    if not (process.alive and process.linked and worker.linked) or worker.phase not in QUIET:
        return
    peer = co.peers[process.rank]
    if peer.phase is not VOTER or not peer.attached or peer.incarnation != process.incarnation:
        return
    if worker.steps_booked != peer.steps:
        raise Violation("I45", f"rank {process.rank} has {worker.steps_booked} steps, its books say {peer.steps}")


def blamed(process: Process, why: str) -> None:
    """N-7: no end breaks the protocol, so none is told that it did, unless what one wrote is not what the other got."""
    if "broke the protocol" in why and not process.tampered:
        raise Violation("N-7", f"nothing had struck the lanes of process {process.number}, and it is said: {why}")


def ending(co: Coordinator, ghost: Ghost, status: str) -> None:
    """I38, I44, I42: the run stopped, global_step is what was covered, and an end that is well has covered all."""
    require(co.run.phase == RunPhase.STOPPED, "I38", f"the run ended as {co.run.phase.name}")
    merged = len(ghost.merged)
    text = f"global_step is {co.cycle.global_step}, {merged} were covered, {ghost.uncounted} are in no books"
    require(co.cycle.global_step == merged + ghost.uncounted, "I44", text)
    if status == "ok":
        wanted = sum(co.book.total(epoch) for epoch in range(co.book.num_epochs))
        require(merged == wanted, "I42", f"{merged} of {wanted} batches were covered")
        require(ghost.closed == co.book.num_epochs, "D-20", f"{ghost.closed} of {co.book.num_epochs} epochs closed")
