"""How a process loses the coordinator and finds it again (W-21, M-42): what its driver does, for `World`.

    hang up   the worker dials: whatever is left of the old connection goes, and a pause begins
    dial      a new connection, and a Hello with what the worker claims at that moment
    let in    the welcome is on its way, and behind it what the process lacks; or it is turned away

Hello and its answer are one action, and the answer lies in the lane of the process, so that anything may happen before
it is read. A process that is given a new life goes on as a new process, with its number and its model, so that every
number stands for one life; what is left under the old number is gone.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from ..phases import WorkerPhase
from ..wire import Role
from ..worker import Worker
from .process import End, Process
from .setup import greeting

if TYPE_CHECKING:
    from .world import World

__all__ = ["dial", "hang_up", "let_in", "life", "turned_away"]

LANES = ("up", "down", "bulk_up", "bulk_down")
NOBODY_THERE = "nobody answers"


def life(world: World, rank: int, incarnation: int) -> Process | None:
    """The process that is, or was, this life of a rank; the newest, where the number was given twice (M-45). None: the
    coordinator died between the decision to let it in and the welcome, so nobody ever lived it."""
    found = world.seats.get(rank)
    if found is None or found.incarnation != incarnation:
        found = next((p for p in reversed(world.processes) if (p.rank, p.incarnation) == (rank, incarnation)), None)
    return found


def hang_up(world: World, process: Process, after_s: float) -> None:
    """The worker wants another connection, in so many seconds. What it had written still arrives, then the end."""
    if process.linked:
        process.up.append(End(process.link, process.rank, process.incarnation, "closed by the rank"))
    process.linked = False
    process.down.clear()
    process.bulk_up.clear()
    process.bulk_down.clear()
    process.dials_at = world.now + after_s


def dial(world: World, process: Process) -> None:
    """A process knocks again. Through a link that carries nothing, or at a door that is gone, nothing comes back; nor
    from a coordinator that dies of the knock before it answers."""
    process.dials_at = None
    process.down.clear()
    if world.over or process.muted or process.deafened:
        world.tell(process, ev.LinkLost(cause=NOBODY_THERE))
        return
    claim = process.worker.claim()
    process.link = world.knocks = world.knocks + 1
    world.knocking[process.link] = process.number
    hello = attrs.evolve(greeting(world.setup, process.worker.settings.rank), resume=claim)
    world.feed(ev.HelloReceived(process.link, hello))
    world.knocking.clear()
    if not world.alive and process.runs and not (process.linked or process.down):
        world.tell(process, ev.LinkLost(cause=NOBODY_THERE))


def turned_away(world: World, effect: fx.Refuse) -> None:
    """The refusal of a process that dialled; who knocks for the first time goes away."""
    if effect.link in world.knocking:
        process = world.processes[world.knocking[effect.link]]
        process.down.append(effect.reject)
        world.touch(process)


def let_in(world: World, effect: fx.Admit, process: Process) -> None:
    """The connection has a seat: the life of before, or another one. The life of before has it again, where another
    process had the seat in what a journal has lost (M-45)."""
    if (effect.rank, effect.incarnation) != (process.rank, process.incarnation):
        process = _born_again(world, effect, process)
    world.seats[process.rank] = process
    process.link, process.linked = effect.link, True
    world.rewire(process)
    process.down.append(effect.welcome)
    for message in effect.resend:
        process.down.append(message if process.frames is None else process.frames.say(Role.COORDINATOR, message))
    if effect.welcome.status == m.WelcomeStatus.RESUMED:
        world.reached("a rank was taken back")
        if effect.resend:
            world.reached("a message was sent again")
    world.touch(process)


def _born_again(world: World, effect: fx.Admit, old: Process) -> Process:
    """The same training process under a new number. What it has of its old life it drops when it reads its welcome, but
    for the parts of its model that no consensus holds: those are its own still (M-24)."""
    number = len(world.processes)
    process = attrs.evolve(old, number=number, rank=effect.rank, incarnation=effect.incarnation)
    if effect.welcome.status == m.WelcomeStatus.FORMING or world.ghost.forgot:
        process.adopted = -1  # cycles of which the journal knows nothing come again, if it forms once more all (M-45)
    for name in LANES:
        setattr(process, name, deque())
    world.begin_life(process)
    world.ghost.goes_on_as(old.number, number)
    _leave_behind(world, old)
    world.reached("a rank began a new life")
    return process


def _leave_behind(world: World, old: Process) -> None:
    """Of the old number nothing is left but what is under way from it."""
    worker = Worker.create(old.worker.settings, 0.0, world.setup.engine)
    worker.phase = WorkerPhase.STOPPED
    up, rest = old.up, Process(old.number, old.rank, old.incarnation, worker, old.theta)
    for field in attrs.fields(Process):
        setattr(old, field.name, getattr(rest, field.name))
    old.up, old.alive, old.linked = up, False, False
    world.touch(old)
