"""`paceline replay FILE`: go through a run again, recorded or simulated.

The first line of the file says what it is. A record (`--record FILE`) holds the events of every machine of a run and
what they decided, a journal (`coordinate --journal FILE`) those of the coordinator; the replay says whether the same is
decided now. A schedule (`core/simulation/schedule.py`) holds a simulated run, and the replay is the run itself, with
every invariant checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import CheckpointError
from .knobs import find_here
from .places import reading, refuse_order_mark, text_of
from .words import counted

if TYPE_CHECKING:
    from ..core.effects import Ready
    from ..core.journal import Head
    from ..core.simulation.schedule import Schedule

__all__ = ["replay"]

MAGIC = b"paceline schedule"
FIRST = 200
"""Bytes that are looked at before all the others are read."""
REMARK = "%% "
"""How a line begins that Mermaid passes over."""
MOST_ACTIONS = 1_000_000_000


@click.command()
@click.option("--until", type=click.IntRange(0, MOST_ACTIONS), metavar="N",
              help="Stop after N actions, N events of a journal, or N events of each machine of a record.")
@click.option("--diagram", is_flag=True, help="Print a Mermaid sequence diagram in place of the lines; of a record "
                                              "that of its coordinator.")
@click.option("--explain", "explains", is_flag=True, help="Say at the end why what waits waits.")
@click.argument("file", type=click.Path(path_type=Path))
def replay(until: int | None, diagram: bool, explains: bool, file: Path) -> int:
    """Go through FILE again: a record, journal or schedule.

    FILE is a recorded run (--record FILE), the journal of a coordinator (coordinate --journal FILE), or the schedule of
    a simulated run.

    What was recorded is compared: the command ends with 1 if a machine decides anything differently, and names the
    first effect that differs. A schedule is played, one line for each event, and every invariant is checked: the
    command ends with 1 if one breaks, or if the run does not end as the file expects.

    A long journal has parts, each of which begins with a snapshot: each is compared, and all of them are one run, with
    one diagram and one end.
    """
    find_here()  # a record and a schedule may name policies
    data = _contents(file)
    if data.startswith(MAGIC):
        from ..core.simulation.schedule import Schedule, ScheduleError

        schedule = None
        try:
            schedule = Schedule.parse(text_of(file, data))
            return _play(schedule, until, diagram, explains)
        except ScheduleError as error:
            line = "" if schedule is None or error.action is None else f"line {schedule.numbers[error.action - 1]}: "
            raise ScheduleError(f"{file}, {line}{error}") from error
    return _compare(file, data, until, diagram, explains)


def _contents(file: Path) -> bytes:
    """What is in a file that can be replayed. It is read once, and from its beginning on: what is not there again for a
    second look, as in a pipe, can be replayed as well, and what is nothing of ours may go on without an end."""
    with reading(file), open(file, "rb") as opened:
        first = opened.read(FIRST)
        if not first:
            raise CheckpointError(f"{file} cannot be replayed: it is empty")
        if not first.startswith((MAGIC, b"{")):
            refuse_order_mark(file, first)
            begins = first[:40].decode(errors="replace").partition("\n")[0].rstrip()
            raise CheckpointError(f"{file} cannot be replayed: it begins with {begins!r}, and is neither a "
                                  "schedule, nor a journal, nor the record of a run")  # fmt: skip
        return first + opened.read()


# --- schedules -------------------------------------------------------------------------------------------------------


def _play(schedule: Schedule, until: int | None, diagram: bool, explains: bool) -> int:
    from itertools import islice

    from ..core.simulation import Violation, World
    from ..core.simulation.schedule import judge, play
    from ..core.simulation.sequence import of_steps
    from ..core.simulation.transcript import lines
    from ..transports.codec import MsgpackCodec

    world = World(schedule.setup, codec=MsgpackCodec() if schedule.setup.wire else None)
    steps, broken = [], None
    try:
        for step in islice(play(world, schedule.actions, dullest=schedule.dullest), until):
            steps.append(step)
            if not diagram:
                for line in lines(step):
                    click.echo(line)
    except Violation as violation:
        broken = violation
    if diagram:
        click.echo(of_steps([(p.rank, p.incarnation) for p in world.processes], steps), nl=False)
    remark = REMARK if diagram else ""
    if explains:
        _explain(world.co.explain(), remark)
    whole = until is None or len(steps) < until or (not schedule.dullest and until == len(schedule.actions))
    well, verdict = judge(schedule, world, broken, whole=whole)
    click.echo(f"{remark}{verdict}")
    return 0 if well else 1


def _explain(reasons: Iterable[Any], remark: str) -> None:
    for reason in reasons:
        click.echo(f"{remark}{reason}")


# --- records and journals --------------------------------------------------------------------------------------------


Part = tuple[str, "Head", "list[Ready]"]
"""Of a record one machine, of a journal what follows one of its snapshots: its name, how it begins, what happened."""


def _compare(file: Path, data: bytes, until: int | None, diagram: bool, explains: bool) -> int:
    from ..transports.journal_file import is_torn, read_journal
    from ..transports.record_file import is_record, read_record, replay_batches

    recorded = is_record(data)
    if recorded:
        parts = [(by, head, _cut(batches, until)) for by, (head, batches) in read_record(file, data).items()]
    else:
        whole = read_journal(file, data)
        names = [f"part {number}" if len(whole) > 1 else "" for number in range(1, len(whole) + 1)]
        parts = _cut_parts([(name, *part) for name, part in zip(names, whole, strict=True)], until)
    shown = [part for part in parts if not recorded or part[0].startswith("coordinator")]
    remark = REMARK if diagram else ""
    if diagram:
        _draw(shown)
    if explains and shown:
        _, head, batches = shown[-1]
        _explain(_machine(head, [record for batch in batches for record in batch.records]).explain(), remark)
    differs = False
    for by, head, batches in parts:
        try:
            found = replay_batches(by, head, batches)
        except CheckpointError as error:
            raise CheckpointError(f"{file}: {error}") from error
        differs = differs or found.difference is not None
        name = f"{by}: " if by else ""
        if found.difference is not None and not recorded:
            click.echo(f"{remark}{name}{found.difference}")
        else:
            said = found.difference or "the replay is the same"
            counts = f"{counted(found.events, 'event')}, {counted(found.effects, 'effect')}"
            click.echo(f"{remark}{name}{counts}: {said}")
    if is_torn(data):
        click.echo(f"{remark}the last line was never finished, so it is left out")
    return 1 if differs else 0


def _draw(parts: Iterable[Part]) -> None:
    """One diagram of all that the coordinator saw."""
    from ..core.simulation.sequence import of_records

    turns: list[tuple[Any, Iterable[Any]]] = []
    for _, _, batches in parts:
        for batch in batches:
            turns += [(event, ()) for _, event in batch.records[:-1]]
            turns += [(event, batch.effects) for _, event in batch.records[-1:]]
    click.echo(of_records(turns), nl=False)


def _cut_parts(parts: list[Part], until: int | None) -> list[Part]:
    """The first parts of a journal, so that at most `until` events are in all of them; the first one always."""
    kept: list[Part] = []
    left = until
    for name, head, batches in parts:
        cut = _cut(batches, left)
        kept.append((name, head, cut))
        if len(cut) < len(batches):
            break
        left = None if left is None else left - sum(len(batch.records) for batch in cut)
        if left == 0:
            break
    return kept


def _cut(batches: list[Ready], events: int | None) -> list[Ready]:
    """The first batches, so that at most so many events are in them, None being any number: a batch is the least that
    can be compared."""
    if events is None:
        return batches
    kept: list[Ready] = []
    for batch in batches:
        events -= len(batch.records)
        if events < 0:
            break
        kept.append(batch)
    return kept


def _machine(head: Head, records: list[Any]) -> Any:
    """The machine of a journal after these events."""
    from ..core.coordinator import Coordinator
    from ..core.worker import Worker, WorkerSettings

    of_rank = isinstance(head.settings, WorkerSettings)
    made: Any = (Worker if of_rank else Coordinator).restore(head.settings, head.snapshot)  # type: ignore[arg-type]
    for second, event in records:
        made.handle(event, second)
    return made
