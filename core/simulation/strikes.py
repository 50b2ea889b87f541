"""Faults and wishes: which could strike a world now, and what each of them does to it.

A fault is never part of what happens by itself, so each is a function of its own here, by the kind of its action. One
that finds nothing to strike any more does nothing: a schedule that is shortened stays a schedule.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .. import events as ev
from .. import messages as m
from ..wire import Role
from .action import COORDINATOR, NOBODY, Action, act
from .comeback import die, revive
from .frames import turn_bit
from .moves import control_arrives, report_arrives
from .process import End

if TYPE_CHECKING:
    from .process import Process
    from .world import World

__all__ = ["FAULTS", "TAMPERING", "possible_faults", "tampers"]

Strike = Callable[["World", Action], None]
CUT = "the connection was reset"
TAMPERING: dict[str, tuple[str, int]] = {
    "drop": ("up", 1), "duplicate": ("up", 1), "overtake": ("up", 2),
    "lose": ("down", 1), "repeat": ("down", 1), "swap": ("down", 2),
}  # fmt: skip
"""Faults that no link has: they change messages with nobody told. The lane of each, and how many of the oldest messages
on it are concerned."""
REAPED = -9
"""The status of a process that was killed, as its parent knows it."""


def possible_faults(world: World) -> Iterator[Action]:
    """Every fault and wish that could strike now, for each process and then for the rest."""
    if not world.alive:
        yield act("revive", COORDINATOR)
        return
    for process in world.processes:
        for kind in _of_process(world, process):
            yield act(kind, process.number)
    if world.averager.round is not None:
        yield act("abort")
    yield act("full")
    yield act("jump", COORDINATOR, 1)
    yield from (act("join", rank) for rank, peer in sorted(world.co.peers.items()) if not peer.alive)
    yield act("join")
    yield from (act(kind) for kind in ("checkpoint", "evaluate", "stop"))
    yield act("die", COORDINATOR)


def _of_process(world: World, process: Process) -> Iterator[str]:
    if process.linked and process.alive:
        yield "cut"
    yield from (kind for kind in TAMPERING if tampers(process, kind))
    if not process.alive:
        return
    yield "crash"
    yield "reap"
    if not process.paused:
        yield "pause"
    if not process.hung:
        yield "hang"
    if process.linked and not process.muted:
        yield "mute"
    if process.linked and not process.deafened:
        yield "deafen"
    if not process.poisoned:
        yield "poison"
    if not process.forges:
        yield "forge"
    if world.config.is_collective:
        yield "fail"
        yield "withhold"
    if world.setup.callbacks:
        yield "break"
    yield "leave"


def tampers(process: Process, kind: str) -> bool:
    """Whether a fault of `TAMPERING` finds on its lane what it changes."""
    name, least = TAMPERING[kind]
    lane: deque[Any] = getattr(process, name)
    if len(lane) < least or not (name == "up" or process.runs):
        return False
    return all(isinstance(message, (m.Message, bytes)) for message in itertools.islice(lane, least))


def _process(world: World, action: Action) -> Process | None:
    """The process that is meant, if it is there and alive."""
    if not 0 <= action.who < len(world.processes):
        return None
    process = world.processes[action.who]
    return process if process.alive else None


# --- links ---------------------------------------------------------------------------------------------------------


def _cut(world: World, action: Action) -> None:
    process = _process(world, action)
    if process is not None and process.linked:
        process.up.clear()
        process.up.append(End(process.link, process.rank, process.incarnation, CUT))
        process.bulk_up.clear()
        process.muted = process.deafened = False
        world.close(process, CUT)


def _tampers(kind: str, change: Callable[[World, Process, deque[Any]], None]) -> tuple[str, Strike]:
    """One of `TAMPERING`, by its name."""

    def strike(world: World, action: Action) -> None:
        process = world.processes[action.who]
        if tampers(process, kind):
            process.tampered = True
            change(world, process, getattr(process, TAMPERING[kind][0]))

    return kind, strike


def _lose_first(world: World, process: Process, lane: deque[Any]) -> None:
    lane.popleft()


def _swap_first(world: World, process: Process, lane: deque[Any]) -> None:
    lane[0], lane[1] = lane[1], lane[0]


def _report_twice(world: World, process: Process, lane: deque[Any]) -> None:
    if not world.over:
        world.reached("a report came twice")
        report_arrives(world, process, lane[0])


def _control_twice(world: World, process: Process, lane: deque[Any]) -> None:
    world.reached("a message came twice")
    control_arrives(world, process, lane[0])


def _mute(world: World, action: Action) -> None:
    process = _process(world, action)
    if process is not None and process.linked:
        process.muted = True


def _deafen(world: World, action: Action) -> None:
    process = _process(world, action)
    if process is not None and process.linked:
        process.deafened = True


# --- processes -----------------------------------------------------------------------------------------------------


def _crash(world: World, action: Action) -> None:
    process = _process(world, action)
    if process is not None:
        lost = min(action.amount, len(process.up))
        for _ in range(lost):
            process.up.pop()
        _kill(world, process)


def _kill(world: World, process: Process) -> None:
    process.paused = False
    if process.linked:
        world.end(process)
    else:  # its end of the link has been told already
        process.alive, process.dials_at = False, None
        process.down.clear()
        process.orders.clear()


def _reap(world: World, action: Action) -> None:
    """Who has started a process may know of its end before its link has been read to the end, or long after it."""
    if 0 <= action.who < len(world.processes):
        process = world.processes[action.who]
        if process.alive:
            _kill(world, process)
        world.feed(ev.ProcessExited(process.rank, process.incarnation, REAPED))


def _mark(field: str) -> Strike:
    """The process is from here on what the field says; with an amount it is not any more."""

    def strike(world: World, action: Action) -> None:
        process = _process(world, action)
        if process is not None:
            setattr(process, field, action.amount == 0)

    return strike


def _break(world: World, action: Action) -> None:
    process = _process(world, action)
    if process is not None:
        process.broken = not process.broken


def _join(world: World, action: Action) -> None:
    seat = None if action.who == NOBODY else action.who
    if not world.over:
        world.knock(seat)


def _leave(world: World, action: Action) -> None:
    process = _process(world, action)
    if process is not None and process.runs:
        world.tell(process, ev.LeaveRequested())


# --- wire ----------------------------------------------------------------------------------------------------------


def _split(world: World, action: Action) -> None:
    process = world.processes[action.who]
    head = process.up[0] if process.up else None
    if isinstance(head, bytes) and not world.over:
        cut = action.amount % len(head)
        process.up[0] = head[cut:]
        report_arrives(world, process, head[:cut])


def _crack(world: World, action: Action) -> None:
    process = _process(world, action)
    head = process.down[0] if process is not None and process.runs and process.down else None
    if process is not None and isinstance(head, bytes):
        cut = action.amount % len(head)
        process.down[0] = head[cut:]
        control_arrives(world, process, head[:cut])


def _turns(control: str, bulk: str, role: Role) -> Strike:
    """One bit of the oldest frame on a lane of control, which `role` writes; of its bulk where nothing is on that."""

    def strike(world: World, action: Action) -> None:
        process = world.processes[action.who]
        lane: deque[Any] = getattr(process, control)
        if lane and isinstance(lane[0], bytes):
            frame = bytearray(lane[0])
            turn_bit(frame, action.amount)
            lane[0] = bytes(frame)
        elif not lane and getattr(process, bulk) and process.frames is not None:
            process.frames.harm[role] = action.amount

    return strike


def _sever(world: World, action: Action) -> None:
    process = _process(world, action)
    head = process.up[0] if process is not None and process.up else None
    if process is not None and isinstance(head, bytes):
        process.up.clear()
        process.up.append(head[: action.amount % len(head)])
        _kill(world, process)
    elif process is not None and process.frames is not None and process.bulk_up and not process.up:
        process.bulk_up.clear()  # a block is nothing without its tag (N-23), wherever it ends
        _kill(world, process)


# --- everybody -----------------------------------------------------------------------------------------------------


def _abort(world: World, action: Action) -> None:
    current = world.averager.round
    if current is not None and not world.over:
        world.feed(ev.RoundAborted(current.opened.key, current.opened.attempt, "the averager raised"))


def _full(world: World, action: Action) -> None:
    world.averager.seen = None
    world.averager.full = not world.averager.full


def _jump(world: World, action: Action) -> None:
    if action.who == COORDINATOR:
        world.skew += action.amount
    elif (process := _process(world, action)) is not None:
        process.skew += action.amount


def _die(world: World, action: Action) -> None:
    if action.amount:
        world.lasts = action.amount - 1
    else:
        die(world)


def _wish(intent: m.IntentKind, order: ev.Operator) -> Strike:
    def strike(world: World, action: Action) -> None:
        process = _process(world, action)
        if process is not None and process.runs:
            world.tell(process, ev.Wish(intent))
        elif action.who == NOBODY:
            world.feed(ev.OperatorRequest(order))

    return strike


def _start(world: World, action: Action) -> None:
    world.feed(ev.OperatorRequest(ev.Operator.START))


FAULTS: dict[str, Strike] = {
    "cut": _cut, **dict((
        _tampers("drop", _lose_first), _tampers("lose", _lose_first), _tampers("duplicate", _report_twice),
        _tampers("repeat", _control_twice), _tampers("overtake", _swap_first), _tampers("swap", _swap_first),
    )),
    "mute": _mute, "deafen": _deafen, "crash": _crash, "reap": _reap, "pause": _mark("paused"), "hang": _mark("hung"),
    "poison": _mark("poisoned"), "forge": _mark("forges"), "fail": _mark("failing"), "withhold": _mark("withholds"),
    "break": _break, "join": _join, "leave": _leave,
    "split": _split, "crack": _crack,
    "corrupt": _turns("up", "bulk_up", Role.RANK),
    "taint": _turns("down", "bulk_down", Role.COORDINATOR), "sever": _sever,
    "abort": _abort, "full": _full, "jump": _jump,
    "die": _die, "revive": revive,
    "checkpoint": _wish(m.IntentKind.CHECKPOINT_NOW, ev.Operator.CHECKPOINT),
    "evaluate": _wish(m.IntentKind.EVAL_NOW, ev.Operator.EVAL),
    "stop": _wish(m.IntentKind.STOP_NOW, ev.Operator.STOP), "start": _start,
}  # fmt: skip
