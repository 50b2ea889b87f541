"""What happens without a fault: deliveries, work, and time, each a function of its own by the kind of its action.

`World.do` calls them after it has seen that they can happen. They take the world and the process that they concern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from ..wire import Role
from .action import COORDINATOR, Action
from .averager import BLOCK_BYTES
from .blocks import carried
from .links import dial
from .process import End
from .quiet import reports, steps
from .together import MOVES
from .violation import Violation

if TYPE_CHECKING:
    from .process import Process
    from .world import World

__all__ = ["AGAIN", "OF_AVERAGER", "at_process", "control_arrives", "report_arrives", "tick", "tick_all"]


def at_process(world: World, process: Process, action: Action) -> None:
    """What the action says, as often as it says and can be."""
    kind, amount = action.kind, action.amount
    if kind in AGAIN:
        AGAIN[kind](world, process, amount if amount > 1 else 1)
    else:
        OF_PROCESS[kind](world, process)


# --- the control lane ----------------------------------------------------------------------------------------------


def _failure(world: World, process: Process) -> None:
    """N-10: what the rank has written before still arrives."""
    token, link = world.failed[process.number].popleft()
    world.feed(ev.SendFailed(token, link))


def _reports(world: World, process: Process, most: int) -> None:
    left, quiet = most, most > 1 and not world.setup.thorough
    while left and process.up and not world.over:
        heard = reports(world, process, left) if quiet else 0
        if not heard:
            report_arrives(world, process, process.up.popleft())
            heard = 1
        left -= heard


def report_arrives(world: World, process: Process, report: Any) -> None:
    """A report, a frame, the end of a link, or what is wrong with a frame, reaches the coordinator."""
    if report.__class__ in m.REPORT_CLASSES:
        world.feed(ev.Received(report))
        return
    if process.frames is not None and (isinstance(report, bytes) or _ends_well(process, report)):
        heard = list(process.frames.hear(Role.COORDINATOR, report if isinstance(report, bytes) else None))
        for message in heard:
            report_arrives(world, process, message)
        if isinstance(report, bytes) or heard:
            return
    if isinstance(report, str):  # a damaged frame: the coordinator's end closes (N-4)
        report = End(process.link, process.rank, process.incarnation, report)
        process.up.clear()
        process.bulk_up.clear()
    if isinstance(report, End):
        if report.link == process.link:
            world.close(process, report.cause, keeps=True)
        world.feed(ev.LinkLost(report.rank, report.incarnation, report.cause, report.link))
    else:
        world.feed(ev.Received(report))


def _ends_well(process: Process, report: Any) -> bool:
    """The end of the stream that the frames at hand came over, with all that was written."""
    return isinstance(report, End) and report.link == process.link and report.cause == "closed by the rank"


def _controls(world: World, process: Process, most: int) -> None:
    for _ in range(most):
        control_arrives(world, process, process.down.popleft())
        if not process.down or not process.runs or world.over:
            break


def control_arrives(world: World, process: Process, message: Any) -> None:
    """A message, a frame, or the end of the lane (None, or the cause of it) reaches a process."""
    if isinstance(message, bytes) and process.frames is not None:
        for heard in process.frames.hear(Role.RANK, message):
            control_arrives(world, process, heard)
    elif message is None:
        world.tell(process, ev.LaneClosed())
    elif isinstance(message, str):
        world.tell(process, ev.LinkLost(cause=message))
    else:
        worker, before = process.worker, process.worker.position
        world.tell(process, ev.Received(message))
        merged = message.__class__ is m.Update and message.outcome == m.Outcome.MERGED and not worker.inbox
        known = not world.ghost.ambiguous  # M-19: a call counts all that it averaged, an Update what is known of it
        if merged and known and worker.committed == message.cycle and worker.position < before:
            text = f"the schedule position of process {process.number} fell from {before} to {worker.position}"
            raise Violation("I43", text)


# --- the training process ------------------------------------------------------------------------------------------


def _drain(world: World, process: Process) -> None:
    world.tell(process, ev.DrainPoint())


def _order(world: World, process: Process) -> None:
    order, event = process.carry_out()
    if isinstance(order, fx.TakeSnapshot):
        world.ghost.copied(process, order)
    else:
        world.ghost.order(process, order)
    world.settle(process)
    if event is not None:
        world.tell(process, event)
    if isinstance(order, fx.TakeSnapshot) and order.check:
        world.tell(process, process.stage_own(order))


def _steps(world: World, process: Process, most: int) -> None:
    left = most - steps(world, process, 1 if world.over else most)  # who has lost the coordinator still takes one
    while left and process.can_step and process.alive and not world.over:
        left -= steps(world, process, left)


def _resume(world: World, process: Process) -> None:
    process.paused = False


def _recover(world: World, process: Process) -> None:
    process.hung = False


def _heal(world: World, process: Process) -> None:
    process.muted = process.deafened = False


# --- the bulk lane and the averager --------------------------------------------------------------------------------


def _upload(world: World, process: Process) -> None:
    part = process.bulk_up.popleft()
    world.moved = _in_words(part)
    if fault := carried(world.setup, process, part, Role.RANK):
        report_arrives(world, process, fault)
        return
    if part[0] == "state":
        _pass_on(world, process, *part[1:])
        return
    if world.averager.knows_not(part):
        world.reached("late contribution after finalize")
    for event in world.averager.take(process, part):
        world.feed(event)
    world.offer()


def _in_words(part: tuple[Any, ...]) -> str:
    """A part of a contribution or a result, for people."""
    if part[0] == "header":
        return f"contribution {part[1]}.{part[2]}, {part[3]} steps{'' if part[4] else ', not finite'}"
    if part[0] == "result":
        return f"consensus {part[1]}.{part[2]} {part[3].name.lower()}"
    return f"{part[0]} {part[1]}"


def _pass_on(world: World, process: Process, number: int, rank: int, incarnation: int, generation: int,
             value: float | None) -> None:  # fmt: skip
    """The static part of the state goes to its joiner, if that transfer is still open (M-24). To the averager goes the
    consensus that it has lost (M-44)."""
    if rank == m.NO_RANK:
        if world.averager.regain(process.rank, process.incarnation, number, generation, value):
            world.reached("the averager got its consensus back")
            world.feed(ev.RoundProgress(m.transfer_key(generation, number), process.rank, BLOCK_BYTES, True))
        return
    joiner = world.seats.get(rank)
    wanted = number in world.averager.transfers and joiner is not None and joiner.incarnation == incarnation
    if wanted and joiner is not None and joiner.linked:
        joiner.bulk_down.append(("static", number))
        world.touch(joiner)


def _result(world: World, process: Process) -> None:
    part = process.bulk_down.popleft()
    world.moved = _in_words(part)
    if fault := carried(world.setup, process, part, Role.COORDINATOR):
        control_arrives(world, process, fault)
        return
    if part[0] == "static":
        process.lacks_static = False
        part, process.held = process.held, None
    staged = None if part is None else process.stage(part)
    if part is not None and part[1:3] != process.asked:
        world.reached("late result after a new attempt")
    if staged is not None:
        world.tell(process, staged)


def _reduce(world: World) -> None:
    event, current = world.averager.reduce(), world.averager.round
    if isinstance(event, ev.RoundReduced) and current is not None:
        senders = {rank: world.process_of(rank, member.incarnation).number for rank, member in current.members.items()}
        world.ghost.reduced(event, world.averager.consensus, senders, world.config.gamma)
    world.feed(event)
    world.offer()


def _write(world: World) -> None:
    for event in world.averager.write():
        world.feed(event)


# --- time ----------------------------------------------------------------------------------------------------------


def tick(world: World, who: int) -> None:
    """One machine looks at its deadlines."""
    if who == COORDINATOR:
        world.feed(ev.Tick())
    elif world.processes[who].runs:
        world.tell(world.processes[who], ev.Tick())


def tick_all(world: World, *, moves: bool) -> None:
    """Every machine whose deadline has come looks at it; time `moves` up to the next one first."""
    due = world.due()
    if moves and due is not None:
        world.now = max(world.now, due)
    machines = [process.number for process in world.processes if process.runs]
    for who in (*machines, COORDINATOR):
        own = world.due_of(who)
        if own is not None and own <= world.now:
            tick(world, who)


OF_PROCESS: dict[str, Callable[[World, Process], None]] = {
    "failure": _failure, "drain": _drain, "order": _order, "upload": _upload, "result": _result, "dial": dial, **MOVES,
    "resume": _resume, "recover": _recover, "heal": _heal,
}  # fmt: skip
AGAIN: dict[str, Callable[[World, Process, int], None]] = {"step": _steps, "report": _reports, "control": _controls}
"""What can be more than one in an action: it happens as long as it can, and at most so many times."""
OF_AVERAGER: dict[str, Callable[[World], None]] = {"reduce": _reduce, "write": _write}
