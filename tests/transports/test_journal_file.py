"""The journal on disk: kept before anything leaves, read back whole, and no reason for a run to end (M-40)."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import journal
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.errors import CheckpointError, InvariantError
from paceline.core.simulation.action import COORDINATOR
from paceline.transports import file_lock
from paceline.transports.driver import CoordinatorDriver
from paceline.transports.journal_file import JournalFile, read_journal
from paceline.transports.memory import MemoryTransport

from support.cohort import Cohort
from support.glue import HELLO, Plane, Scripted, run_in_no_time
from support.transports import CREDENTIALS, beacon

URL = "memory://journal"
CONFIG = Config(batch_size=2, num_epochs=1, target_ranks=2)


def written(path: Path, sync: str = "process") -> Coordinator:
    """The journal of a short run, and its machine at the end."""
    cohort = Cohort(ranks=2)
    co = Coordinator(cohort.config, now=100.0)
    file = JournalFile(path, co, sync=sync)
    for second, event in cohort.records[COORDINATOR]:
        co.handle(event, second)
        file.append(co.take_ready())
    file.close()
    return co


def test_what_was_written_replays_to_the_same_effects(tmp_path: Path) -> None:
    """O-8, from the file alone."""
    written(tmp_path / "deep" / "run.jsonl")
    [(head, batches)] = read_journal(tmp_path / "deep" / "run.jsonl")
    records = [record for ready in batches for record in ready.records]
    recorded = [effect for ready in batches for effect in ready.effects]
    assert len(recorded) > 4
    effects = journal.replay(head.settings, records, snapshot=head.snapshot)
    assert journal.first_difference(recorded, effects) is None


def test_a_batch_with_nothing_in_it_takes_no_line(tmp_path: Path) -> None:
    """A driver asks for one after each turn."""
    file = JournalFile(tmp_path / "j", Coordinator(CONFIG))
    file.append(fx.Ready((), ()))
    file.close()
    assert read_journal(tmp_path / "j")[0][1] == []


def test_a_line_that_was_never_finished_was_never_performed(tmp_path: Path) -> None:
    """The crash came before the effects: the journal ends with the batch before."""
    path = tmp_path / "j"
    written(path)
    whole = read_journal(path)[0][1]
    text = path.read_text()
    for cut in (1, 2, 40):
        path.write_text(text[:-cut])
        assert read_journal(path)[0][1] == whole[:-1]


@pytest.mark.parametrize(("line", "word"), [(1, "line 1"), (2, "line 2")])
def test_damage_before_the_end_is_named(tmp_path: Path, line: int, word: str) -> None:
    """A hole in the events would replay to something that never happened."""
    path = tmp_path / "j"
    written(path)
    lines = path.read_text().split("\n")
    lines[line - 1] = lines[line - 1][:-10]
    path.write_text("\n".join(lines))
    with pytest.raises(CheckpointError, match=word):
        read_journal(path)


@pytest.mark.parametrize("content", [b"", b"no end of a line", b"\xff\n"])
def test_what_is_no_journal_is_refused(tmp_path: Path, content: bytes) -> None:
    """The error names the file."""
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="other"):
        read_journal(path)
    with pytest.raises(CheckpointError, match="missing"):
        read_journal(tmp_path / "missing")


def test_disk_means_flushed_to_the_disk_and_process_does_not(tmp_path: Path, monkeypatch: Any) -> None:
    """journal_sync: one flush for each line, the head's too."""
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    written(tmp_path / "a", "process")
    assert flushed == []
    written(tmp_path / "b", "disk")
    assert len(flushed) == len((tmp_path / "b").read_text().splitlines())


def test_a_journal_that_cannot_be_begun_is_an_error_at_once(tmp_path: Path) -> None:
    """Asked for and not possible: better no run than one that cannot be explained."""
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="the journal cannot be written"):
        JournalFile(tmp_path / "file" / "j", Coordinator(CONFIG))


def test_a_disk_without_locks_is_not_taken_for_another_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M-40: who reads that its coordinator is still running looks for one in vain."""

    def flock(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(file_lock.fcntl, "flock", flock)
    with pytest.raises(CheckpointError, match=r"the journal cannot be written: .*No locks.*give another path"):
        JournalFile(tmp_path / "j", Coordinator(CONFIG))


# --- the driver ------------------------------------------------------------------------------------------------------


async def run_with(machine: Any, sink: Any, body: Any, plane: Plane | None = None) -> Any:
    """A driver with a journal; gives what its run raised or returned."""
    driver = CoordinatorDriver(machine, plane or Plane(), lambda effect: None, journal=sink)
    listener = await MemoryTransport().listen(URL, CREDENTIALS)
    ended: list[Any] = []

    async def run() -> None:
        try:
            ended.append(await driver.run(listener))
        except Exception as error:
            ended.append(error)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await body(driver)
    finally:
        await listener.aclose()
    return ended[0]


def test_a_batch_is_kept_before_any_effect_of_it_leaves() -> None:
    """M-40: when the data plane or a rank hears of it, it is in the journal."""
    kept: list[fx.Ready] = []
    known: list[bool] = []

    class Watching(Plane):
        def perform(self, effect: Any) -> None:
            known.append(any(effect in ready.effects for ready in kept))

    async def body(driver: CoordinatorDriver) -> None:
        channel = await MemoryTransport().dial(URL, CREDENTIALS)
        await channel.send(HELLO)
        await channel.receive()
        assert any(isinstance(effect, fx.Admit) for ready in kept for effect in ready.effects)
        said = fx.Send(attrs.evolve(beacon(1), incarnation=1))
        machine.todo += [fx.SaveConsensus(1, 2, "stem"), said, fx.Finish("ok", "done")]
        await driver.settle(ev.LinkUp())

    machine = Scripted()
    run_in_no_time(lambda: _ends(run_with(machine, kept.append, body, Watching()), "Finish"))
    assert known == [True]


def test_a_full_disk_costs_the_journal_and_not_the_run() -> None:
    """K-8: told once, and the training goes on."""
    tried: list[fx.Ready] = []

    def full(ready: fx.Ready) -> None:
        tried.append(ready)
        raise OSError(28, "No space left on device")

    async def body(driver: CoordinatorDriver) -> None:
        [told] = await machine.until(ev.CallbackFailed)
        assert told.name == "journal" and "No space left" in told.text
        machine.todo.append(fx.Finish("ok", "done"))
        await driver.settle(ev.LinkUp())
        assert len(tried) == 1

    machine = Scripted()

    async def knocked(driver: CoordinatorDriver) -> None:
        driver.post(ev.LinkUp())
        await body(driver)

    run_in_no_time(lambda: _ends(run_with(machine, full, knocked), "Finish"))


def test_the_batch_of_a_failure_is_kept() -> None:
    """The event that broke the machine is the last thing in the journal."""
    kept: list[fx.Ready] = []
    co = Coordinator(CONFIG)
    co.alive.append(9)  # a rank that does not exist: the books are broken

    async def body(driver: CoordinatorDriver) -> None:
        driver.post(ev.LinkUp(3, 4))
        await trio.sleep(1000)

    async def main() -> None:
        ended = await run_with(co, kept.append, body)
        assert isinstance(ended, InvariantError)
        events = [event for ready in kept for _, event in ready.records]
        assert ev.LinkUp(3, 4) in events

    run_in_no_time(main)


async def _ends(run: Any, kind: str) -> None:
    assert type(await run).__name__ == kind


def test_a_journal_is_plain_lines_of_json(tmp_path: Path) -> None:
    """Anybody can read it: a line has what went in and what came out."""
    written(tmp_path / "j")
    first, *rest = [json.loads(line) for line in (tmp_path / "j").read_text().splitlines()]
    assert first["journal"] == 1 and first["machine"] == "coordinator"
    assert all(set(line) == {"in", "out"} for line in rest)
    assert rest[0]["in"][0][1]["is"] == "events:HelloReceived"
