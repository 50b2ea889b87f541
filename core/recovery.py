"""A coordinator that was started anew: where it stands, and what it does first (protocol M-40 to M-45).

A machine is a function of its state and its events (N-13), and every event is kept before any effect of it leaves. So
the state at the instant of the crash is the last snapshot, with the events after it gone through once more:

    snapshot --records--> the machine as it was --restart--> generation + 1, nobody attached, every wait afresh

What the dead process had promised is kept by others: messages wait in `retention.py` for their ranks, copies of the
round that was under way and the consensus itself lie at the ranks (R-10). What it may or may not have done is done once
more where that is harmless: files have the same name and content, whoever watches is told so (M-44).

The batch of effects that was last kept (`undone`) is the only one that may be half performed, because a driver keeps
the next one only after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from . import messages as m
from .effects import Alert, Emit, Finish, Invoke
from .phases import PeerPhase, RunPhase
from .timeline import AGAIN, REPLAYED

if TYPE_CHECKING:
    from .attachment import Attachment
    from .coordinator import Coordinator
    from .events import CoordinatorEvent

__all__ = ["first_number", "forgot_life", "move_forward", "overtaken", "restart", "stands_on_version", "tell_lost"]

NOTHING: Mapping[str, str] = MappingProxyType({})
NUMBERS_PER_LIFE = 1 << 32
"""Decisions and plans of one life of the coordinator are fewer than that."""

Machine = TypeVar("Machine", bound="Coordinator")


def first_number(generation: int) -> int:
    """Where decisions and plans of this life of the coordinator are numbered from. The end of a journal may be lost and
    with it what was numbered in there; the ranks have not forgotten, and do nothing twice (K-1, I24, M-45)."""
    return (generation - 1) * NUMBERS_PER_LIFE


def restart(machine: Machine, records: Iterable[tuple[float, CoordinatorEvent]], now: float,
            undone: Iterable[Any] = (), unkept: Mapping[str, str] = NOTHING) -> Machine:  # fmt: skip
    """M-40: go through the records, then begin the next generation at second `now`, which may be of another clock.
    `unkept` are the policies that begin without their history, and why (C-13).

    `machine` stands where its snapshot was made. What it wants done first waits in `take_ready`; a driver keeps a
    snapshot before it performs that, or a second crash would begin the same generation again (I8).
    """
    for second, event in records:
        machine.handle(event, second)
        machine.take_ready()
    waiting = list(machine.take_ready().effects)  # of a life that ended before it did anything
    _rebase(machine, now)
    machine.generation += 1
    first = first_number(machine.generation)
    machine.run.decisions = max(machine.run.decisions, first)
    machine.book.next_plan_id = max(machine.book.next_plan_id, first + 1)
    machine.joins.restarted()
    machine.lost_tail.restarted()
    machine.sessions.returned()
    window = machine.config.scaled(machine.config.reconnect_window_s)
    machine.outbox += [made for effect in (*waiting, *undone) if (made := _again(effect)) is not None]
    facts = {"generation": machine.generation, "version": machine.cycle.version, "ranks": list(machine.alive)}
    machine.emit(Emit("Restarted", facts))
    for method, raised in unkept.items():
        text = f"{raised} when the snapshot was made; the run goes on without its history"
        machine.emit(Alert("callback_failed", method, text))
    for peer in machine.peers.values():  # a life that is over may still say what it was told
        peer.link, peer.former_seq = None, peer.control_seq
        if peer.alive:
            peer.leave_link(window, "the coordinator was started anew")
    if machine.finished:
        machine.emit(Finish(machine.run.status, machine.run.text))
        return machine
    machine.couple("CoordinatorRestarted")
    machine.actions.restarted()
    machine.returned = machine.urgent = True
    machine.deadline = now  # the first Tick is due at once
    return machine


def _again(effect: Any) -> Any:
    """What of the last batch is done once more (M-44): people and hooks are told, with a mark. Messages to ranks wait
    in their lanes; rounds are opened anew, and files are ordered anew where they are still to be had."""
    if isinstance(effect, Emit):
        return attrs.evolve(effect, facts={**effect.facts, AGAIN: True})
    if isinstance(effect, Invoke):
        return Invoke(effect.callback, (*effect.arguments, {REPLAYED: True}))
    return attrs.evolve(effect, again=True) if isinstance(effect, Alert) else None


def _rebase(co: Coordinator, now: float) -> None:
    """M-40: instants of the old clock become now, so every wait starts afresh; what was said in a wait stays said."""
    config, run, cycle = co.config, co.run, co.cycle
    co.now, co.late_after = now, float("inf")
    co.next_beacon, co.dump_due = now + config.beacon_s, now + config.scaled(config.stall_dump_s)
    co.liveness = [(now + config.staleness_s, rank, co.peers[rank].incarnation) for rank in co.alive]
    for peer in co.peers.values():
        peer.last_seen = peer.last_progress = now
        peer.fenced_told_at = float("-inf")
        peer.climb.began_at = peer.climb.entered_at = peer.climb.evidence_at = now
        peer.since.restarted(now)
        peer.detached_at = None
        peer.merged_at = None if peer.merged_at is None else now
    cycle.armed_at = cycle.pending_since = cycle.last_evidence_at = cycle.last_ack_at = cycle.idle_since = now
    cycle.waiting_since = None if cycle.waiting_since is None else now
    run.opened_at = run.closed_at = run.stopped_at = run.ended_at = now
    for tally in co.desk.tallies.values():
        tally.opened_at = now
    run.below_min_since = None if run.below_min_since is None else now
    if run.save_deadline is not None:
        run.save_deadline = now + config.scaled(config.save_limit_s)
    if run.exit_deadline is not None:
        run.exit_deadline = now + config.scaled(config.exit_grace_s)
    co.actions.refresh()


# --- a rank that knows more than the journal (M-45) ------------------------------------------------------------------


def overtaken(co: Coordinator, peer: Attachment | None, claim: m.ResumeClaim) -> bool:
    """Whether a claim shows that the end of the journal was lost: an average that this coordinator does not know, or,
    while the run forms, that the rank has been further than the books are."""
    early = co.run.phase in (RunPhase.FORMING, RunPhase.TRAINING)
    if not early or co.save_issued or co.stopping or claim.version < co.cycle.version:
        return False
    if claim.version == co.cycle.version:
        old = any(co.peers[rank].born < co.generation for rank in co.alive)
        return co.run.phase == RunPhase.FORMING and old and (peer is None or _has_seen_more(co, peer, claim))
    return not co.config.is_collective or peer is None or _has_seen_more(co, peer, claim)


def _has_seen_more(co: Coordinator, peer: Attachment, claim: m.ResumeClaim) -> bool:
    """Who averages in place stands on the result before it counts, and one that left the cycle may stand on a result
    that never will (W-14, C-38): one version more proves nothing. A cycle, a life or a message that the books do not
    have does."""
    if claim.version > co.cycle.version + 1 or claim.cycle > co.cycle.number:
        return True
    if claim.incarnation != peer.incarnation:
        return claim.incarnation > peer.incarnation
    return peer.has_seen_lost(claim)


def forgot_life(co: Coordinator, hello: m.Hello) -> bool:
    """M-45: whether the books are behind the life that is claimed: they know one of that rank which nobody has come
    back to in this generation, and what it claims to be, or to have been told, is in what the journal lost."""
    claim, rank = hello.resume, hello.wanted_rank
    peer = None if rank is None else co.peers.get(rank)
    if claim is None or peer is None or not peer.alive or peer.link is not None or claim.generation < peer.born:
        return False
    return claim.incarnation > peer.incarnation or (claim.incarnation == peer.incarnation and peer.has_seen_lost(claim))


def stands_on_version(co: Coordinator, hello: m.Hello) -> bool:
    """Whether a rank whose life is over by that holds the very version of the books all the same: what they lack is
    reports and plans, and no average (M-45). They have to know its seat as that of a voter of the version: as nobody
    was in it since, no other average had the same number. A life that they do not know has to have taken a step or an
    average over, or its version is what a process begins with; where ranks average in place it has a vote, or was in no
    session since: whoever observes a call comes out with an average that may never count."""
    claim, rank = hello.resume, hello.wanted_rank
    if co.run.phase != RunPhase.TRAINING or co.lost_tail.version is not None or not forgot_life(co, hello):
        return False
    assert claim is not None and rank is not None, "only a rank with a claim has a life"
    peer = co.peers[rank]
    if claim.version != co.cycle.version:
        return False
    if peer.phase != PeerPhase.VOTER and (rank, peer.incarnation) not in co.lost_tail.holders:
        return False
    if claim.incarnation == peer.incarnation:
        return True
    untouched = not co.config.is_collective or claim.cycle > 0 or claim.session_id <= co.sessions.number
    return untouched and (claim.version > 0 or claim.step_count > 0)


def tell_lost(co: Coordinator, rank: int, what: str) -> None:
    """M-45: for people, how it shows that the journal has lost its end."""
    text = f"rank {rank} {what}, which the journal has lost; its picks are trained again"
    co.emit(Alert("accounting", "journal", text, critical=True))


def move_forward(co: Coordinator, rank: int, claim: m.ResumeClaim) -> None:
    """M-45: version and schedule base become the highest claimed ones, never backward. The books know nothing of what
    led there, so every life ends and its picks are trained again; all of them come back as observers of a cycle that
    has no member, and stand on the consensus that the claimant still has (R-8, R-10): the averager asks it for that;
    where ranks average in place it is the source of their next session (M-31). If the books do not even know that the
    run has formed, it forms once more, and the claimant gives the state of cycle 0 (M-6); but on the version that the
    books have themselves anybody does, as the first time."""
    cycle, ahead = co.cycle, claim.version > co.cycle.version
    cycle.version, cycle.global_step = claim.version, max(cycle.global_step, claim.global_step)
    tell_lost(co, rank, f"holds version {claim.version}" if ahead else "has been asked for something")
    if co.run.phase == RunPhase.FORMING:
        co.run.open_again()
    cycle.overtaken(claim.cycle)
    co.book.resolve_limbo({})  # of a cycle that ends here; what it made is not in the books
    if ahead:
        co.joins.restarted()
        co.lost_tail.overtaken(claim.version)
    for other in list(co.alive):
        co.peers[other].broken = True  # the lanes are not what the books say
        co.lose(other, f"its books are behind version {claim.version}")
