"""Runs of quiet events: steps of one rank that lead to a report each, and reports that lead to nothing.

Where a rank takes many steps as one action (`strides.py`) nearly all events are of these two kinds. Each is an event of
the production machine, and is judged by itself as far as it could have changed anything: the order of the reports
(I53), the books of its rank (D-11), what the worker gave for it. What cannot differ from one to the next is done once
for the run: to train, to take the effects out, to keep the journal, to tell the ghost and the watch. With the first
event that is not quiet, because it has another effect, changes a phase or is not applied, a run ends; it goes the way
of all events.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from ..values import maker
from .action import COORDINATOR
from .invariants import applied_in_order, booked, report_seq_of
from .step import Run, Turn
from .telling import follow, post
from .violation import raised

if TYPE_CHECKING:
    from .process import Process
    from .world import World

__all__ = ["reports", "steps"]

received = maker(ev.Received)

BATCH, HEARTBEAT, REPORTING = m.Batch, m.Heartbeat, fx.Reporting
"""What a rank says between two things that happen to it, and the order to say it."""


def steps(world: World, process: Process, most: int) -> int:
    """Some of the next `most` steps of a process that can step, at least one: up to the last of a plan, or the first
    that is not quiet."""
    size, worker, number = world.co.config.batch_size or 1, process.worker, process.number
    most = min(most, process.alike(size))
    if not most:
        return _last_of_plan(world, process, size)
    before = phase, _, _ = worker.phase, worker.throttle, worker.committed
    event, handle, outbox, now = process.step_done(size), worker.handle, worker.outbox, world.now + process.skew
    for count in range(1, most + 1):  # what the worker is told does not depend on what was trained, nor that on this
        try:
            handle(event, now)
        except Exception as error:
            raise raised(event, number, error) from error
        if len(outbox) != count or (effect := outbox[-1]).__class__ is not REPORTING:
            break
        if effect.report.__class__ is not BATCH or worker.phase is not phase:
            break
    else:  # it has a plan, and nothing has come that it must obey: it can take another step
        world.ghost.steps(number, process.train(size, most))
        _stepped(world, process, event, worker.take_ready().effects)
        return most
    world.ghost.steps(number, process.train(size, count))
    effects = worker.take_ready().effects
    _stepped(world, process, event, effects[: count - 1])
    follow(world, process, event, effects[count - 1 :], *before)
    return count


def _last_of_plan(world: World, process: Process, size: int) -> int:
    """The step that ends a plan, and what follows it."""
    picks, told = process.last_step(size)
    world.ghost.steps(process.number, picks)
    for event in told:
        world.tell(process, event)
    return 1


def _stepped(world: World, process: Process, event: ev.StepDone, effects: tuple[Any, ...]) -> None:
    """What the steps of a run led to, each to one effect."""
    if len(effects) > 1:
        world.turns.append(Run(process.number, (event,) * len(effects), effects))
    elif effects:
        world.turns.append(Turn(process.number, event, effects))
    post(process, [effect.report for effect in effects])


def reports(world: World, process: Process, most: int) -> int:
    """The next reports of a process, up to `most`, that tell of steps or of life and lead to nothing; and the first
    that leads to more. Gives their number, 0 if the next one is of another kind."""
    co, up, now = world.co, process.up, world.now + world.skew
    first = up[0]
    number = report_seq_of(co, first)
    if number is None or first.__class__ not in (BATCH, HEARTBEAT):
        return 0
    rank, incarnation, confirmed = first.rank, first.incarnation, first.control_seq
    peer, handle, outbox, held = co.peers[rank], co.handle, co.outbox, co.book.holdings(rank)
    quiet: list[Any] = []
    world.touch_coordinator()
    for report in list(itertools.islice(up, most)):
        kind = report.__class__
        if kind is not BATCH and kind is not HEARTBEAT:
            break
        if report.rank != rank or report.incarnation != incarnation:
            break  # it is of another life
        if report.control_seq < confirmed or now > co.late_after:
            break  # it may be heard by others than the books of its rank
        event, confirmed = received(up.popleft()), report.control_seq
        try:
            handle(event, now)
        except Exception as error:
            raise raised(event, COORDINATOR, error) from error
        number += 1
        if outbox or peer.report_seq != number or report.report_seq != number:
            applied_in_order(co, report, number - 1)
            ready = co.take_ready()
            _heard(world, quiet, ready.records[:-1])
            world.follow(event, True, fx.Ready(ready.records[-1:], ready.effects))
            return len(quiet) + 1
        if peer.steps != held.trained_batches:
            booked(co, peer)
        quiet.append(event)
    _heard(world, quiet, co.take_ready().records)
    return len(quiet)


def _heard(world: World, events: list[Any], records: tuple[Any, ...]) -> None:
    """What the reports of a run led to: the journal."""
    if events:
        world.turns.append(Run(COORDINATOR, tuple(events), ()))
        world.journal.keep_quiet(records)
