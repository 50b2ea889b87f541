"""One event into the worker of a process, and what that leads to there: its reports, its orders, and its end.

These are methods of `World`, whose `feed` is the coordinator's half. What a worker orders is done at once as far as
that takes no time; an order that does waits in the process for an action of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from ..phases import WorkerPhase
from ..wire import Role
from . import together
from .invariants import blamed, parked
from .links import hang_up
from .process import End
from .step import new_turn
from .violation import Violation, raised

if TYPE_CHECKING:
    from .process import Process
    from .world import World

__all__ = ["end", "follow", "into", "post", "settle", "tell"]

JOINING = WorkerPhase.JOINING


def tell(world: World, process: Process, event: Any) -> None:
    """One event into a worker, and its orders."""
    worker = process.worker
    phase, throttle, committed = worker.phase, worker.throttle, worker.committed
    into(world, process, event)
    follow(world, process, event, worker.take_ready().effects, phase, throttle, committed)


def into(world: World, process: Process, event: Any) -> None:
    """One event into a worker, which must take it (I22)."""
    try:
        process.worker.handle(event, world.now + process.skew)
    except Exception as error:
        raise raised(event, process.number, error) from error


def follow(world: World, process: Process, event: Any, effects: tuple[Any, ...], phase: WorkerPhase, throttle: int,
           committed: int) -> None:  # fmt: skip
    """What an event has led to: the effects, with what there was of the worker before."""
    world.touch(process)
    worker, anew = process.worker, event.__class__ is ev.Received and _is_new_life(event.message)
    if worker.phase is not phase:
        parked(process, phase, throttle, event)
        anew = anew or worker.phase is JOINING
    if anew:  # an observer has no steps, nor has a new life, also one that is leaving
        world.ghost.drop(process.number)
        process.orders = deque(order for order in process.orders if order.__class__ is not fx.TakeSnapshot)
    process.generation = worker.settings.generation
    if worker.committed > committed and world.in_place:
        world.ghost.committed(process, worker.version)
    world.turns.append(new_turn(process.number, event, effects))
    for effect in effects:
        if effect.__class__ is fx.Reporting:
            _says(world, process, effect.report)
        else:
            _orders(world, process, effect)
    if process.ended is not None and process.alive:
        end(world, process)
    if process.orders:
        settle(world, process)


def _is_new_life(message: Any) -> bool:
    """It is let in under a new number (W-21)."""
    return message.__class__ is m.Welcome and message.status != m.WelcomeStatus.RESUMED


def _orders(world: World, process: Process, effect: Any) -> None:
    kind = effect.__class__
    if kind is fx.Dial:
        hang_up(world, process, effect.after_s)
    elif kind is fx.Stop:
        blamed(process, effect.text)
        process.ended = effect
    elif kind in together.AT_ONCE:
        together.at_once(process, effect)
    else:
        process.orders.append(effect)


def settle(world: World, process: Process) -> None:
    """The training process carries out the orders at hand, up to the first that takes time."""
    while process.at_once:
        order = process.orders.popleft()
        if order.__class__ in together.OF_CALL:
            together.obey(world, process, order)
        elif order.__class__ is fx.Adopt:
            process.adopt(order, world.config.alpha)
            world.ghost.adopt(process, order, world.config.alpha)
        else:
            process.obey(order)


def _says(world: World, process: Process, report: Any) -> None:
    kind = report.__class__
    if kind is m.SnapshotReady:
        process.said = (report.cycle, report.attempt)
    elif kind is m.SyncAck and report.report_seq == process.worker.report_seq and (
        not world.in_place and process.said != (report.cycle, report.attempt)
    ):  # fmt: skip
        raise Violation("I16", f"process {process.number} acknowledges a cycle before its snapshot is ready")
    post(process, (report,))


def post(process: Process, reports: Iterable[Any]) -> None:
    """Reports go on the lane, if there is one."""
    if process.linked:
        frames = process.frames
        process.up.extend(reports if frames is None else [frames.say(Role.RANK, report) for report in reports])


def end(world: World, process: Process) -> None:
    """A process is over: what it has written still arrives, then its lane ends."""
    if process.linked:
        process.up.append(End(process.link, process.rank, process.incarnation, "closed by the rank"))
    process.alive = process.linked = False
    process.dials_at = None
    process.down.clear()
    process.bulk_down.clear()
    process.orders.clear()
    world.touch(process)
