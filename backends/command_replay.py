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

if TYPE_CHECKING:
    from ..core.effects import Ready
    from ..core.journal import Head
    from ..core.simulation.schedule import Schedule

__all__ = ["replay"]

MAGIC = "paceline schedule"


@click.command()
@click.option("--until", type=click.IntRange(min=0), metavar="N",
              help="Stop after N actions, or N events of a journal.")
@click.option("--diagram", is_flag=True, help="Print a Mermaid sequence diagram in place of the lines.")
@click.option("--explain", "explains", is_flag=True, help="Say at the end why what waits waits.")
@click.argument("file", type=click.Path(path_type=Path))
def replay(until: int | None, diagram: bool, explains: bool, file: Path) -> int:
    """Go through FILE again: a record, journal or schedule.

    FILE is a recorded run (--record FILE), the journal of a coordinator (coordinate --journal FILE), or the schedule of
    a simulated run.

    What was recorded is compared: the command ends with 1 if a machine decides anything differently, and names the
    first effect that differs. A schedule is played, one line for each event, and every invariant is checked: the
    command ends with 1 if one breaks, or if the run does not end as the file expects.
    """
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            first = opened.readline()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    if first.startswith(MAGIC):
        from ..core.simulation.schedule import Schedule

        return _play(Schedule.parse(file.read_text(encoding="utf-8")), until, diagram, explains)
    if not first.startswith("{"):
        raise CheckpointError(f"{file} cannot be replayed: it begins with {first[:40].rstrip()!r}, and is neither a "
                              "schedule, nor a journal, nor the record of a run")  # fmt: skip
    return _compare(file, until, diagram, explains)


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
    if explains:
        _explain(world.co.explain())
    well, verdict = judge(schedule, world, broken, whole=until is None)
    click.echo(f"%% {verdict}" if diagram else verdict)
    return 0 if well else 1


def _explain(reasons: Iterable[Any]) -> None:
    for reason in reasons:
        click.echo(str(reason))


# --- records and journals --------------------------------------------------------------------------------------------


def _compare(file: Path, until: int | None, diagram: bool, explains: bool) -> int:
    from ..transports.journal_file import read_journal
    from ..transports.record_file import is_record, read_record, replay_batches

    recorded = is_record(file)
    machines = read_record(file) if recorded else {
        f"part {number}" if number else "": part for number, part in enumerate(read_journal(file))
    }  # fmt: skip
    remark = "%% " if diagram else ""
    differs = False
    for by, (head, whole) in machines.items():
        batches = whole if until is None else _cut(whole, until)
        if not recorded or by.startswith("coordinator"):
            _show(head, batches, diagram, explains)
        found = replay_batches(by, head, batches)
        differs = differs or found.difference is not None
        name = f"{by}: " if recorded else ""
        if found.difference is not None and not recorded:
            click.echo(f"{remark}{found.difference}")
        else:
            said = found.difference or "the replay is the same"
            click.echo(f"{remark}{name}{found.events} events, {found.effects} effects: {said}")
    return 1 if differs else 0


def _show(head: Head, batches: list[Ready], diagram: bool, explains: bool) -> None:
    """What is to be seen of one machine besides its comparison."""
    from ..core.simulation.sequence import of_records

    if diagram:
        turns: list[tuple[Any, Iterable[Any]]] = []
        for batch in batches:
            turns += [(event, ()) for _, event in batch.records[:-1]]
            turns += [(event, batch.effects) for _, event in batch.records[-1:]]
        click.echo(of_records(turns), nl=False)
    if explains:
        _explain(_machine(head, [record for batch in batches for record in batch.records]).explain())


def _cut(batches: list[Ready], events: int) -> list[Ready]:
    """The first batches, so that at most so many events are in them: a batch is the least that can be compared."""
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
