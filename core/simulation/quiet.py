"""Runs of quiet events: steps of one rank that lead to a report each, and reports of steps that lead to nothing.

Where a rank takes many steps as one action (`strides.py`) nearly all events are of these two kinds. Each is an event of
the production machine, and is judged by itself as far as it could have changed anything: the order of the reports
(I53), the books of its rank (D-11), what the worker gave for it. What cannot differ from one to the next is done once
for the run: to take the effects out, to keep the journal, to tell the watch. With the first event that is not quiet,
because it has another effect, changes a phase or is not applied, a run ends; it goes the way of all events.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from .action import COORDINATOR
from .invariants import applied_in_order, booked, report_seq_of
from .step import Run, Turn
from .telling import follow, into, post

if TYPE_CHECKING:
    from .process import Process
    from .world import World

__all__ = ["reports", "steps"]


def steps(world: World, process: Process, most: int) -> int:
    """Some of the next `most` steps of a process that can step, at least one: up to the first that is not quiet."""
    size, worker, ghost, number = world.co.config.batch_size or 1, process.worker, world.ghost, process.number
    quiet: list[Any] = []
    for count in range(1, most + 1):
        epoch, batch, told = process.step(size)
        ghost.step(number, (epoch, batch))
        before = worker.phase, worker.throttle, worker.committed
        event, outbox = told[0], worker.outbox
        into(world, process, event)
        if event.last or len(outbox) != count or worker.phase is not before[0] or not _is_batch(outbox[-1]):
            effects = worker.take_ready().effects
            _stepped(world, process, quiet, effects[: count - 1])
            follow(world, process, event, effects[count - 1 :], *before)
            for further in told[1:]:
                world.tell(process, further)
            return count
        quiet.append(event)  # it has a plan, and nothing has come that it must obey: it can take another step
    _stepped(world, process, quiet, worker.take_ready().effects)
    return most


def _is_batch(effect: Any) -> bool:
    return effect.__class__ is fx.Reporting and effect.report.__class__ is m.Batch


def _stepped(world: World, process: Process, events: list[Any], effects: tuple[Any, ...]) -> None:
    """What the steps of a run led to."""
    if len(events) > 1:
        world.turns.append(Run(process.number, tuple(events), effects))
    elif events:
        world.turns.append(Turn(process.number, events[0], effects))
    for effect in effects:
        post(process, effect.report)


def reports(world: World, process: Process, most: int) -> int:
    """The next reports of a process, up to `most`, that tell of a step and lead to nothing; and the first that leads to
    more. Gives their number, 0 if the next one is of another kind."""
    co, up, now = world.co, process.up, world.now + world.skew
    first = up[0]
    before = report_seq_of(co, first)
    if first.__class__ is not m.Batch or before is None:
        return 0
    rank, incarnation, confirmed = first.rank, first.incarnation, first.control_seq
    peer = co.peers[rank]
    quiet: list[Any] = []
    for report in list(itertools.islice(up, most)):
        told = report.__class__ is m.Batch and report.rank == rank and report.incarnation == incarnation
        if not told or report.control_seq != confirmed or now > co.late_after:
            break  # it is of another kind or life, or may be heard by others than the books of its rank
        event = ev.Received(up.popleft())
        world.into_coordinator(event, now)
        if co.outbox or co.peers[rank] is not peer or not peer.report_seq == before + 1 == report.report_seq:
            applied_in_order(co, report, before)
            ready = co.take_ready()
            _heard(world, quiet, ready.records[:-1])
            world.follow(event, True, fx.Ready(ready.records[-1:], ready.effects))
            return len(quiet) + 1
        booked(co, rank)
        quiet.append(event)
        before += 1
    _heard(world, quiet, co.take_ready().records)
    return len(quiet)


def _heard(world: World, events: list[Any], records: tuple[Any, ...]) -> None:
    """What the reports of a run led to: the journal."""
    if events:
        world.turns.append(Run(COORDINATOR, tuple(events), ()))
        world.journal.keep_quiet(records)
