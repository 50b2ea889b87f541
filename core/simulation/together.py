"""Averaging in place, simulated: what training processes and their communicators do, for `World` (R-13, R-15, W-14).

A call goes in two steps, because that is where the faults are. Once all members of a session are inside it, the average
exists (`unite`). Then each process comes out by itself (`emerge`), or the call fails there (`collapse`), which can
happen to who was aborted, has a member that is gone, or met a fault of its own. So a death can leave an average that
succeeded at some processes only, and a repeated call puts that back first.

Nobody but the ghost sees the whole: it works out the mean from the steps of all members (`Ghost.united`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from ..round import mass
from .links import life
from .process import Process, digest
from .violation import require

if TYPE_CHECKING:
    from .world import World

__all__ = ["AT_ONCE", "MOVES", "OF_CALL", "at_once", "mean", "members", "obey", "possible", "touch_members"]

AT_ONCE = (fx.MakeSessionId, fx.AbortCollective)
"""Orders that the driver carries out itself, whatever the training process is doing (W-20)."""
OF_CALL = (fx.BuildSession, fx.ShareState, fx.RunCollective)


# --- what can happen -----------------------------------------------------------------------------------------------


def possible(world: World, process: Process) -> list[str]:
    """The kinds of what can happen with its communicator."""
    found = []
    if process.runs:
        if process.uids:
            found.append("session")
        if process.inside is not None:
            if process.made is not None:
                found.append("emerge")
            elif _lowest_of_all_inside(world, process):
                found.append("unite")
            if _may_collapse(world, process):
                found.append("collapse")
    return found


def members(world: World, process: Process) -> list[Process]:
    """The lives of its session, ascending, but for those that nobody ever lived."""
    found = [] if process.session is None else [life(world, *member) for member in process.session.members]
    return [member for member in found if member is not None]


def touch_members(world: World) -> None:
    """Whether a call ends depends on all its members: with one of them, everybody who is inside is to be looked at."""
    if any(world.processes[number].session is not None for number in world.touched):
        for process in world.processes:
            if process.inside is not None:
                world.touched[process.number] = None


def _lowest_of_all_inside(world: World, process: Process) -> bool:
    """R-1: whoever meets in a session is in the same call, and nobody has left it."""
    all_of_it = members(world, process)
    if all_of_it[0] is not process or process.session is None or len(all_of_it) < len(process.session.members):
        return False
    session = process.inside.session_id if process.inside is not None else 0
    for other in all_of_it:
        call = other.inside
        if not other.runs or call is None or call.session_id != session or other.made is not None:
            return False
        if other.failing or session in other.aborted:
            return False
    calls = {(other.inside.cycle, other.inside.attempt) for other in all_of_it if other.inside is not None}
    require(len(calls) == 1, "R-1", f"the members of session {session} meet in the calls {sorted(calls)}")
    return True


def _may_collapse(world: World, process: Process) -> bool:
    call = process.inside
    if call is None:
        return False
    torn = any(not other.alive for other in members(world, process))
    return process.failing or torn or call.session_id in process.aborted


# --- orders --------------------------------------------------------------------------------------------------------


def at_once(process: Process, order: Any) -> None:
    """The driver's part."""
    if order.__class__ is fx.AbortCollective:
        process.aborted.append(order.session_id)
    elif process.withholds:
        process.withholds = False
    else:
        process.uids.append(order.session_id)


def obey(world: World, process: Process, order: Any) -> None:
    """The training process enters a session, or a call. A session that is aborted already is not entered, and a later
    life has another place than it names; the call in it fails (R-15, W-21)."""
    if order.__class__ is not fx.RunCollective and order.session_id in process.aborted:
        return
    if order.__class__ is fx.BuildSession:
        known = process.session
        require(known is None or known.session_id < order.session_id, "M-31", f"session {order.session_id} is old")
        place, own = order.members[order.new_rank], process.worker.settings
        require(place == (own.rank, own.incarnation), "M-31", f"{place} is the place of another one")
        require(order.new_world_size == len(order.members), "M-31", f"{order.new_world_size} is not the size of it")
        require(order.uid == _uid(order.session_id), "M-31", f"the id of session {order.session_id} is {order.uid!r}")
        process.session, process.shares = order, None
    elif order.__class__ is fx.ShareState:
        process.shares = order
        if order.put_back and process.consensus is not None:
            process.theta = process.consensus
            world.ghost.stands_on_consensus(process)
    else:
        if order.restore:
            world.reached("a call that had succeeded was taken back")
            require(process.scratch is not None, "W-14", f"process {process.number} has nothing to put back")
            if process.scratch is not None:
                process.theta, process.consensus, process.fresh = process.scratch
            process.scratch = None
            world.ghost.put_back(process.number)
        process.inside, process.made = order, None


# --- making it happen ----------------------------------------------------------------------------------------------


def _make_session(world: World, process: Process) -> None:
    """The id of a session is there."""
    session = process.uids.popleft()
    world.tell(process, ev.SessionIdMade(session, _uid(session)))


def _uid(session: int) -> bytes:
    """What the training processes here call a session of that number."""
    return b"session %d" % session


def _unite(world: World, process: Process) -> None:
    """The average exists (R-13); nobody has come out yet."""
    all_of_it = members(world, process)
    for other in all_of_it:
        _share(world, other)
    total = weight = 0.0
    steps = 0
    for other in all_of_it:
        call = other.inside
        if call is not None and call.steps and not other.poisoned:
            own = mass(call.steps, world.config.gamma)
            total, weight, steps = total + own * other.theta, weight + own, steps + call.steps
    value = total / weight if steps else None
    call = process.inside
    assert call is not None, "only who is inside can unite"
    version = world.ghost.united(call.cycle, call.attempt, all_of_it, value, world.config.gamma)
    for other in all_of_it:
        sick = other.poisoned and other.inside is not None and other.inside.steps > 0
        other.made = (value, steps, version, sick)
        world.touch(other)


def _share(world: World, process: Process) -> None:
    """R-20: who joins takes over all that its source holds, before the sum."""
    shares, process.shares = process.shares, None
    if shares is not None and shares.adopts:
        source = world.process_of(shares.source, dict(_lives(process))[shares.source])
        process.theta, process.consensus, process.lacks_static = source.theta, source.consensus, False
        world.ghost.shared(source.number, process)


def _lives(process: Process) -> tuple[tuple[int, int], ...]:
    return () if process.session is None else process.session.members


def _emerge(world: World, process: Process) -> None:
    """The call succeeded here: the average is in the parameters."""
    call, made = process.inside, process.made
    assert call is not None and made is not None, "only a call that has an average ends well"
    value, steps, version, sick = made
    refusal = m.Refusal.NONFINITE if sick else None  # what is poisoned behind the sum is in it as it was
    process.inside = process.made = None
    process.scratch = (process.theta, process.consensus, process.fresh)
    before = process.theta
    if call.steps:
        process.poisoned = False
    if value is not None:
        process.theta = process.consensus = value
    elif call.cycle == 0:
        process.consensus = process.theta
    process.fresh = value is not None or call.cycle == 0
    world.ghost.emerged(process, value, version, gave=bool(value is not None or refusal))
    merged = value is not None and refusal is None and not call.observer
    distance = abs(before - process.theta) if merged else None
    world.tell(process, ev.CollectiveDone(
        cycle=call.cycle, attempt=call.attempt, total_steps=steps, refusal=refusal, divergence=distance,
        pre_norm=abs(before), post_norm=abs(process.theta), state_complete=not process.lacks_static,
        session_id=call.session_id, digest=digest(process.theta) if call.check else None,
    ))  # fmt: skip


def _collapse(world: World, process: Process) -> None:
    """R-15: nothing of the call is in the parameters."""
    call = process.inside
    assert call is not None, "only who is inside can fail"
    process.inside, process.made, process.failing = None, None, False
    world.tell(process, ev.CollectiveFailed(
        call.cycle, call.attempt, "the communicator is torn", session_id=call.session_id
    ))  # fmt: skip


MOVES: dict[str, Callable[[World, Process], None]] = {
    "session": _make_session, "unite": _unite, "emerge": _emerge, "collapse": _collapse,
}  # fmt: skip


def mean(values: list[tuple[int, float]], gamma: float) -> float:
    """Weighted by steps (R-5), as the ghost sums it."""
    weights = [steps**gamma for steps, _ in values]
    return math.fsum(w * value for w, (_, value) in zip(weights, values, strict=True)) / math.fsum(weights)
