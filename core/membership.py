"""Who belongs to the run: admission, the ways to leave it, and when too few are left (protocol sections 11.1 to 11.3).

An incarnation ends once (I19), and whatever says so first counts (M-17). Its end is a chain in one pass: nothing waits
for it any more, its contribution is told from its unfinished work, and what it held goes back to the pool. A failed
send is not such an end. It only says that this link is done for: what the message had reserved is undone, nothing more
is sent, and the rank stays a voter until its link or its silence tells that it is gone (N-10).
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from . import attachment, in_place, recovery
from . import messages as m
from .door import may_follow, other_versions, refusal, refused_claim
from .effects import Admit, Alert, CloseLink, Emit, Refuse, RemoveFromRound, SendFenced
from .engine import Kind
from .events import HelloReceived, LinkLost, ProcessExited, SendFailed
from .peer import Lost, Peer
from .phases import PeerPhase, RunPhase
from .policies import forget
from .values import value

if TYPE_CHECKING:
    from .coordinator import Coordinator

__all__ = [
    "Sentence",
    "buried",
    "bury",
    "check_recoverable",
    "departed",
    "enrol",
    "fail_formation",
    "give_back",
    "knock",
    "leave_round",
    "link_ended",
    "pronounce",
    "send_failed",
    "stop_waiting",
    "takes_part",
    "turn_away",
    "withdraw",
]  # fmt: skip


@value
class Sentence:
    """Why a run cannot go on (M-21, C-18, D-12)."""

    reason: m.SaveReason
    text: str


# --- in --------------------------------------------------------------------------------------------------------------


def knock(co: Coordinator, event: HelloReceived) -> None:
    """A Hello: refused before anything changes (M-5), or given a seat and a new record (M-7). One that claims a life
    goes on with it if it can (M-42), or begins anew at its old seat."""
    if _resumed(co, event):
        return
    reject = refusal(co, event.hello)
    if reject is not None:
        turn_away(co, event, reject)
        return
    hello = event.hello
    stands = recovery.stands_on_version(co, hello)
    differs = other_versions(co, hello)
    co.config = co.config.resolved(hello.wishes)
    co.schema, co.schema_hash, co.dataset = hello.schema, hello.schema_hash, hello.dataset_signature
    peer = Peer(co, *_seat(co, hello), host=hello.host, devices=hello.devices, package=hello.package,
                runtime=hello.runtime, callbacks=hello.callbacks)  # fmt: skip
    rank = peer.rank
    peer.link, peer.born = event.link, co.generation
    if hello.resume is not None and hello.wanted_rank == rank:
        peer.former = hello.resume.incarnation
    peer.last_seen = peer.last_progress = peer.since.seat = co.now
    co.peers[rank] = peer
    co.seats = sorted({*co.seats, rank})
    co.alive = sorted([*co.alive, rank])
    heapq.heappush(co.liveness, (co.now + co.config.staleness_s, rank, peer.incarnation))
    forming = co.run.phase == RunPhase.FORMING
    status = m.WelcomeStatus.FORMING if forming else m.WelcomeStatus.JOINING
    co.lost_tail.came(peer, hello.resume, stands=stands)
    if stands:
        recovery.tell_lost(co, rank, "has been asked for something")
    co.sessions.came(hello.resume)
    co.emit(Admit(event.link, rank, peer.incarnation, attachment.welcome(co, peer, status)))
    co.emit(Emit("Joined", {"rank": rank, "incarnation": peer.incarnation, "host": hello.host}))
    if differs is not None:
        co.emit(Alert("versions", f"rank {rank}", differs))


def turn_away(co: Coordinator, event: HelloReceived, reject: m.Reject) -> None:
    """The answer to a Hello that is not let in; it is told, and changes nothing (M-5)."""
    co.emit(Refuse(event.link, reject))
    co.emit(Emit("Refused", {"who": event.hello.host, "why": reject.text}))


def _resumed(co: Coordinator, event: HelloReceived) -> bool:
    """M-42: whether this Hello was about a life that goes on, or was turned away while it claimed one."""
    claim, rank = event.hello.resume, event.hello.wanted_rank
    if claim is None or rank is None:
        return False
    peer, reject = co.peers.get(rank), refused_claim(co, event.hello)
    if reject is None and recovery.overtaken(co, peer, claim):
        recovery.move_forward(co, rank, claim)
    if peer is None:
        return False  # a life that is in no books
    if reject is not None:
        turn_away(co, event, reject)
        return True
    return co.peer_engine.fire(peer, "Claim", event).kind is Kind.ACCEPT


def _seat(co: Coordinator, hello: m.Hello) -> tuple[int, int]:
    """M-7: seat and incarnation. Whoever is still booked there is dead from this moment: a life ends with a new Hello.
    Its number never comes back, not even that of a life which this coordinator has forgotten (M-45)."""
    rank, former = hello.wanted_rank, 0 if hello.resume is None else hello.resume.incarnation
    if rank is not None and not may_follow(co, hello, rank):
        rank = None
    if rank is None:
        rank = next(r for r in range(len(co.peers) + 1) if r not in co.peers or not co.peers[r].alive)
    old = co.peers.get(rank)
    if old is not None and old.alive:
        co.lose(rank, "its process began anew")
        bury(co)
    return rank, max(0 if old is None else old.incarnation, former) + 1


# --- out -------------------------------------------------------------------------------------------------------------


def link_ended(co: Coordinator, event: LinkLost | ProcessExited) -> None:
    """M-17: link or process ended without Exiting. Of who has left or died already it is nothing."""
    peer = co.peers.get(event.rank)
    if peer is None or peer.incarnation != event.incarnation:
        return
    if isinstance(event, LinkLost):
        _about_link(co, peer, event)
    elif peer.alive:
        peer.attached = False
        co.lose(event.rank, f"its process ended with status {event.exit_code}")


def send_failed(co: Coordinator, event: SendFailed) -> None:
    """N-10: what a failed send means is the table's to say; of a life that is over it means nothing."""
    peer = co.peers.get(event.token[0])
    if peer is not None and peer.incarnation == event.token[1]:
        _about_link(co, peer, event)


def _about_link(co: Coordinator, peer: Peer, event: LinkLost | SendFailed) -> None:
    name = type(event).__name__
    if co.peer_engine.fire(peer, name, event).kind is Kind.FENCED:
        co.fence(peer.rank, name)


def bury(co: Coordinator) -> None:
    """Step 4 of the pass: reported deaths first, then staleness and windows, exceeded strictly (M-17, M-18, M-42)."""
    attachment.expire(co)
    while co.liveness and co.liveness[0][0] < co.now:
        _, rank, incarnation = heapq.heappop(co.liveness)
        peer = _living(co, rank, incarnation)
        if peer is None:
            continue
        due = peer.last_seen + co.config.staleness_s
        if peer.detached:  # judged by its window; the silence that counts begins when it is back
            heapq.heappush(co.liveness, (co.now + co.config.staleness_s, rank, incarnation))
        elif due < co.now:
            co.lose(rank, f"silent for {co.now - peer.last_seen:.1f} s")
        else:
            heapq.heappush(co.liveness, (due, rank, incarnation))
    lost, co.lost = co.lost, []
    for rank, incarnation, cause in lost:
        peer = co.peers[rank]
        if peer.incarnation == incarnation:
            co.couple("IncarnationEnded", peer, Lost(cause))


def departed(co: Coordinator, peer: Peer, reason: str) -> None:
    """M-8: no alert and no death; its steps since the last merge are trained again by others."""
    facts = {"rank": peer.rank, "incarnation": peer.incarnation, "reason": reason, "unmerged": peer.steps}
    co.emit(Emit("Left", facts))
    _remove(co, peer)
    if not (co.run.shutdown_issued or co.save_issued):
        _declare(co, peer)
    forget(co, peer.rank)
    co.emit(CloseLink(peer.rank, peer.incarnation, "left"))


def enrol(co: Coordinator, peer: Peer) -> None:
    """M-25: it has a vote from now on, and a role may be its own again."""
    co.voters = sorted([*co.voters, peer.rank])
    co.roles.promoted(peer.rank)
    co.joins.promoted(peer)


def buried(co: Coordinator, peer: Peer, cause: str) -> None:
    """M-18: the chain of a death, for one rank."""
    co.emit(Emit("Died", {"rank": peer.rank, "incarnation": peer.incarnation, "cause": cause}))
    if not (co.run.shutdown_issued or co.save_issued):
        co.emit(Alert("rank_lost", f"rank {peer.rank}", cause, critical=True))
        if cause.startswith("overflow"):
            co.emit(Alert("overflow", f"rank {peer.rank}", cause))
    co.deaths += 1
    _remove(co, peer)
    _declare(co, peer)
    forget(co, peer.rank)
    # Said before its link is closed: a process that was only slow, or away, learns that it may come anew (W-20, W-21).
    co.emit(SendFenced(peer.rank, peer.incarnation, attachment.fenced(co, peer, cause, ends=True)))
    co.emit(CloseLink(peer.rank, peer.incarnation, cause))
    co.run.dead(peer)


def check_recoverable(co: Coordinator) -> None:
    """M-21, in this order, from Training on until a shutdown is issued; while forming M-4 and M-6 decide."""
    co.condemned = _too_few(co)


def pronounce(co: Coordinator) -> None:
    """What has been said of the run is carried out, once: it is not said again of a run that ends already."""
    sentence, co.condemned = co.condemned, None
    co.couple("Condemned", event=sentence)


def fail_formation(co: Coordinator, peer: None, sentence: Sentence) -> None:
    """A run that is condemned before it has formed (M-6)."""
    co.run.fail(sentence.text, reason=sentence.reason)


def _too_few(co: Coordinator) -> Sentence | None:
    limit = co.config.max_failure
    if isinstance(limit, float):
        limit = math.ceil(limit * len(co.seats))
    if limit is not None:
        empty = sum([co.peers[rank].phase == PeerPhase.DEAD for rank in co.seats]) - co.lost_tail.absent
        if empty >= limit:
            return Sentence(m.SaveReason.MAX_FAILURE, f"{empty} rank{'s' * (empty != 1)} died, max_failure is {limit}")
    if not co.voters and not co.lost_tail.reseating:
        return Sentence(m.SaveReason.ALL_RANKS_LOST, "no rank is left to go on with")
    if co.config.is_collective and not co.config.elastic and co.alive_count + co.lost_tail.absent < 2:
        return Sentence(m.SaveReason.SINGLE_SURVIVOR, "one rank is left of a collective that nobody can join")
    if _has_waited_below_min(co):
        text = f"{co.alive_count} ranks are left, min_ranks is {co.config.min_ranks}"
        return Sentence(m.SaveReason.SINGLE_SURVIVOR, text)
    return None


def _has_waited_below_min(co: Coordinator) -> bool:
    """M-21: an elastic run waits `rejoin_window_s` for others to come, unless nobody may come any more."""
    run = co.run
    if co.alive_count + co.lost_tail.absent >= co.config.min_ranks:
        run.below_min_since = None
        return False
    if run.below_min_since is None:
        run.below_min_since = co.now
    return not co.config.elastic or co.stopping or co.now >= run.rejoin_deadline


def _living(co: Coordinator, rank: int, incarnation: int) -> Peer | None:
    peer = co.peers.get(rank)
    return peer if peer is not None and peer.incarnation == incarnation and peer.alive else None


def _declare(co: Coordinator, peer: Peer) -> None:
    """M-18.7: averager clients and watchers free what waits for it."""
    co.tell(co.alive, m.DeclareDead, dead_rank=peer.rank, dead_incarnation=peer.incarnation)


def _remove(co: Coordinator, peer: Peer) -> None:
    """M-18.3 to 6: no longer alive, nothing is waited for, what it holds returns, its roles go on."""
    co.alive = [rank for rank in co.alive if rank != peer.rank]
    withdraw(co, peer)
    peer.attached, peer.detached_at = False, None
    peer.retained.clear()
    co.joins.ended(peer)
    if not (co.run.shutdown_issued or co.save_issued):
        co.roles.gone(peer.rank)
        co.actions.gone(peer.rank)


def withdraw(co: Coordinator, peer: Peer) -> None:
    """No vote, no work, no part in the cycle: what a rank has merged stays, all else it held returns (M-14, M-18)."""
    co.voters = [rank for rank in co.voters if rank != peer.rank]
    co.couple("RankGone", peer)


def takes_part(co: Coordinator, peer: Peer) -> bool:
    """Whether this life of the rank was asked in the pending cycle, and has not left it."""
    return co.cycle.takes_part(peer.rank)


def leave_round(co: Coordinator, peer: Peer) -> None:
    """M-18, M-19: its part in the round, and what it had shipped, which may be in the consensus."""
    cycle = co.cycle
    co.emit(RemoveFromRound(cycle.key, peer.rank))
    if co.config.is_collective:
        in_place.set_aside(cycle, peer)
    elif peer.shipped and (cycle.reduced is None or peer.rank in cycle.reduced.accepted):
        co.book.into_limbo(peer.rank, peer.shipped)


def stop_waiting(co: Coordinator, peer: Peer) -> None:
    """C-21: the cycle is complete without it."""
    co.cycle.member_gone(peer.rank)


def give_back(co: Coordinator, peer: Peer) -> None:
    """D-19: what it held and is not in limbo goes to others."""
    rank = peer.rank
    returned = co.book.forfeit(rank)
    co.desk.holds.pop(rank, None)
    peer.tokens.clear()
    peer.steps = 0
    co.returned = True
    if returned:
        co.emit(Emit("Returned", {"rank": rank, "batches": returned, "replayed": co.book.replayed}))
    co.desk.refresh_window()
