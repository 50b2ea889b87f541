"""What a run had lost when all faults stopped, and so what it may still end of.

A run that no fault strikes any more must average anew and finish its epochs, and no *sound* life of a rank may end
before it does. What had gone by then is not made good: a run that was being saved is saved, dead ranks may be too many
to go on (M-21). A life is sound if both its ends are well and nothing that struck it is yet to show: the process runs,
the coordinator knows it as this very life, and neither end will call the other silent or give up the search for it
before the next sign of life arrives. All else about the end follows: whoever dies after that was lost before. Where the
journal has lost its end nobody is sound: whoever knows more may come at any time, and then all begin anew (M-45).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..events import HelloReceived
from ..finish import DIVERGED_CYCLES, UNHEALTHY_REFUSALS
from ..phases import PeerPhase, RunPhase, WorkerPhase
from ..worker_link import LAST_PAUSE_S, pause_s
from .clockwork import ID_S, JITTER, Clockwork
from .process import End
from .setup import greeting

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..coordinator import Coordinator
    from ..peer import Peer
    from .process import Process

__all__ = ["Losses"]

OF_LOSSES = ("max_failure is", "no rank is left", "one rank is left", "min_ranks is")
"""M-21: of what a run ends whose dead ranks are too many."""
OF_FORMING = ("ranks came within", "that a run needs", "nobody is left who holds", "everyone who came has left")
"""M-4, M-6: of what a run ends that has no ranks to begin with."""
OF_ROW = "no rank had finite parameters"
LEAVES = (WorkerPhase.DRAINING, WorkerPhase.STOPPED)


@attrs.frozen(kw_only=True)
class Losses:
    """See the module. `decided`: the run was ending or had nobody. `trained`: nothing was left to average. `forming`:
    it had not formed, and may have too few sound ranks (M-6). `spoilt`: the cycle that is pending may end a row of
    cycles without a finite one (D-12). `sound`: rank and incarnation of each life that goes on. `late`: the session
    whose id comes too late, and no other sound rank is left to be asked for it (M-32)."""

    decided: bool
    forming: bool
    spoilt: bool
    sound: tuple[tuple[int, int], ...]
    late: int | None

    @classmethod
    def of(cls, clock: Clockwork, damaged: Collection[tuple[int, int]], *, decided: bool) -> Losses:
        """What is lost in a world whose faults have just stopped. `damaged` are links, as number and link of a process,
        on which something was lost, doubled or changed."""
        world = clock.world
        co = world.co
        whole = [] if world.ghost.forgot else [each for each in world.seats.values() if not _is_damaged(each, damaged)]
        sound = tuple(sorted((each.rank, each.incarnation) for each in whole if _is_sound(clock, each)))
        return cls(
            decided=decided, forming=co.run.phase == RunPhase.FORMING,
            spoilt=co.cycle.sick_cycles + co.cycle.pending >= DIVERGED_CYCLES,
            sound=sound, late=_too_late(clock, sound),
        )  # fmt: skip

    def ended(self, co: Coordinator) -> list[int]:
        """Ranks whose sound life has ended all the same."""
        return [rank for rank, number in self.sound if not _lives(co, rank, number)]

    def excuse(self, text: str) -> str:
        """What of that a run may end of with this text; "" if nothing."""
        if self.decided:
            return "decided"
        if any(reason in text for reason in OF_LOSSES):
            return "ranks lost"
        if self.forming and any(reason in text for reason in OF_FORMING):
            return "not formed"
        if self.late is not None and f"no rank made the id of session {self.late};" in text:
            return "id late"
        return "not finite" if self.spoilt and OF_ROW in text else ""


def _is_damaged(process: Process, damaged: Collection[tuple[int, int]]) -> bool:
    """Its link is, or one before it whose end is still on the lanes: what was on that is heard first."""
    before = any(each.__class__ is End for each in (*process.up, *process.down))
    return any(number == process.number and (before or link == process.link) for number, link in damaged)


def _lives(co: Coordinator, rank: int, incarnation: int) -> bool:
    peer = co.peers[rank]
    return peer.alive and peer.incarnation == incarnation


def _is_sound(clock: Clockwork, process: Process) -> bool:
    co, worker = clock.world.co, process.worker
    peer = co.peers.get(process.rank)
    if peer is None or not _lives(co, process.rank, process.incarnation):
        return False
    if not process.runs or worker.departing or worker.phase in LEAVES:
        return False
    if co.cycle.pending and peer.refusals_in_row >= UNHEALTHY_REFUSALS - 1:
        return False  # what it has shipped may be the one too many (D-12)
    patient = co.run.phase != RunPhase.FORMING or _forms(clock)
    ends = _is_heard if process.linked else _finds_back
    return patient and _has_session(clock, process) and ends(clock, process, peer)


def _forms(clock: Clockwork) -> bool:
    """M-6: there is time to form, also once more after an attempt that fails (C-39), whatever is acknowledged. The
    state goes up one link and down another, behind what is on them."""
    co, config = clock.world.co, clock.world.config
    needs = LAST_PAUSE_S * config.time_scale + 3 * clock.transfer_s
    until = co.run.closed_at + config.scaled(config.formation_s)
    return not co.run.window_closed or clock.now + clock.world.skew + needs < until


def _has_session(clock: Clockwork, process: Process) -> bool:
    """R-15: it waits for none, or has waited for less than half of what it is given."""
    until, own = process.worker.session_deadline, process.worker.settings
    return until is None or clock.now + process.skew + own.session_wait_s / 2 < until


def _is_heard(clock: Clockwork, process: Process, peer: Peer) -> bool:
    """M-2, W-22: the next sign of life comes before the silence is too long, in both directions."""
    world, worker, silence = clock.world, process.worker, clock.world.config.staleness_s
    here, there = clock.now + process.skew, clock.now + world.skew
    beat = 0.0 if process.up else max(0.0, worker.last_beat + worker.settings.heartbeat_s - here)
    beacon = 0.0 if process.down else max(0.0, world.co.next_beacon - there)
    known = peer.attached and peer.link == process.link and worker.linked
    heard = there + beat + clock.trip_s < peer.last_seen + silence
    return known and heard and here + beacon + clock.trip_s < worker.last_heard + silence


def _finds_back(clock: Clockwork, process: Process, peer: Peer) -> bool:
    """M-42: it is taken back as the life that it is, and neither end gives it up before."""
    world, worker = clock.world, process.worker
    hello = attrs.evolve(greeting(world.setup, process.rank), resume=worker.claim())
    if not peer.claim_fits(HelloReceived(0, hello)) or _is_left_behind(clock, process, peer):
        return False
    if peer.attached and clock.now + clock.trip_s + world.skew >= peer.last_seen + world.config.staleness_s:
        return False  # the coordinator waits for a word over the link that is lost, and has waited too long (M-18)
    dials = process.dials_at
    if dials is None:  # it does not know yet, and will
        return clock.now + clock.trip_s + _first_pause(process) + world.skew < peer.return_until
    dials = max(dials, clock.now)  # it found a coordinator that was away
    patient = dials + clock.trip_s + process.skew < worker.look_until
    return patient and dials + world.skew < peer.return_until


def _is_left_behind(clock: Clockwork, process: Process, peer: Peer) -> bool:
    """M-42: the finish of the cycle that is pending gives it a vote before it is back, for the acknowledgement that it
    has made. Only of who votes a version is asked, and it stands on none that fits then."""
    cycle = clock.world.co.cycle
    acknowledged = peer.acked or bool(process.up)
    return cycle.pending and peer.phase != PeerPhase.VOTER and acknowledged and process.worker.version < cycle.version


def _too_late(clock: Clockwork, sound: Collection[tuple[int, int]]) -> int | None:
    """M-32: the session whose id has not come, and can't come in time from who was asked last, nor from another."""
    sessions, world = clock.world.co.sessions, clock.world
    renewal, until = sessions.renewal, sessions.deadline
    if renewal is None or until is None:
        return None
    if clock.now + world.skew + 2 * clock.trip_s + ID_S * (1.0 + JITTER) < until:
        return None
    others = [rank for rank, _ in sound if rank not in (*renewal.tried, renewal.generator[0])]
    return None if others else renewal.session_id


def _first_pause(process: Process) -> float:
    own = process.worker.settings
    return pause_s(own.run_id, own.rank, 0) * own.time_scale
