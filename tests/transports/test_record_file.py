"""The record of a whole run: several machines in one file, gone through again one by one (I25, O-8)."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from paceline.core.coordinator import Coordinator
from paceline.core.effects import Ready
from paceline.core.errors import CheckpointError
from paceline.core.events import StepDone
from paceline.core.journal import Head
from paceline.core.simulation.action import COORDINATOR
from paceline.core.worker import Worker, WorkerSettings
from paceline.transports.record_file import RunRecord, read_record, replay_batches, replay_record

from support.cohort import Cohort


def recorded(path: Path) -> None:
    """Two ranks, one epoch; the three machines take turns in the file."""
    cohort = Cohort(ranks=2, num_epochs=1, samples=24)
    cohort.run()
    machines: list[tuple[Coordinator | Worker, list[tuple[float, object]]]] = [
        (Coordinator(cohort.config, now=100.0), list(cohort.records[COORDINATOR])),
        *((Worker.create(p.worker.settings, 100.0), list(cohort.records[p.number])) for p in cohort.processes),
    ]
    files = [RunRecord(path, machine) for machine, _ in machines]
    while any(events for _, events in machines):
        for file, (machine, events) in zip(files, machines, strict=True):
            for second, event in events[:3]:
                machine.handle(event, second)  # type: ignore[arg-type]
            del events[:3]
            file.append(machine.take_ready())
    for file in files:
        file.close()
        file.close()


def test_every_machine_of_a_record_decides_the_same_again(tmp_path: Path) -> None:
    """I25: named by generation, and by rank and incarnation."""
    recorded(tmp_path / "deep" / "run.jsonl")
    found = replay_record(tmp_path / "deep" / "run.jsonl")
    assert [machine.by for machine in found] == ["coordinator 1", "rank 0.1", "rank 1.1"]
    assert all(machine.difference is None and machine.events > 20 and machine.effects > 20 for machine in found)


def test_a_changed_effect_is_named_at_its_machine_and_nowhere_else(tmp_path: Path) -> None:
    """O-8: the first effect that differs."""
    path = tmp_path / "run.jsonl"
    recorded(path)
    lines = path.read_text().splitlines()
    for number, text in enumerate(lines):
        line = json.loads(text)
        if line["by"] == "rank 1.1" and line.get("out"):
            del line["out"][0]
            lines[number] = json.dumps(line)
            break
    path.write_text("\n".join(lines) + "\n")
    found = [machine for machine in replay_record(path) if machine.difference is not None]
    assert [machine.by for machine in found] == ["rank 1.1"]
    assert str(found[0].difference).startswith("effect 0 differs: recorded ")


def test_a_line_that_was_never_finished_is_left_out(tmp_path: Path) -> None:
    """A disk that was full in the middle of a line."""
    path = tmp_path / "run.jsonl"
    recorded(path)
    whole = read_record(path)
    path.write_text(path.read_text() + '{"by":"rank 0.1","in":[[1')
    assert read_record(path) == whole


def test_lines_that_are_doubled_or_not_in_their_order_are_named(tmp_path: Path) -> None:
    """A copy of a run behind it was passed over once, and swapped lines were blamed on the clock of the user."""
    path = tmp_path / "run.jsonl"
    recorded(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines * 2))
    with pytest.raises(CheckpointError, match=rf"line {len(lines) + 1}: .* begins again, as it did in line 1: this"):
        read_record(path)
    mine = [n for n, line in enumerate(lines) if line.startswith('{"by":"coordinator 1","in"')]
    lines[mine[0]], lines[mine[-1]] = lines[mine[-1]], lines[mine[0]]
    path.write_text("".join(lines))
    with pytest.raises(CheckpointError, match=rf"line {mine[1] + 1}: time goes back from .* not in their order"):
        read_record(path)


def test_events_that_cannot_happen_are_damage_of_the_file() -> None:
    """A worker says of a step in no plan that it is misuse (N-12): here it was no caller who did it."""
    settings = WorkerSettings(run_id=bytes(16), generation=1, rank=0, incarnation=1, policy="cadence", batch_size=8)
    begun = Head(settings, Worker.create(settings, 0.0).snapshot())
    step = StepDone(samples=8, batch_ms=1.0, data_ms=0.0)
    with pytest.raises(CheckpointError, match=r"rank 0\.1: one of these events cannot happen here: StepDone cannot"):
        replay_batches("rank 0.1", begun, [Ready(((1.0, step),), ())])


@pytest.mark.parametrize(("text", "said"), [
    ("", "line 1: it has no head"),
    ('{"by":"rank 0.1","journal":1,"mach', "line 1: it breaks off inside its head"),
    ("[]\n", "line 1: this line does not say whose it is"),
    ('{"by":"rank 0.1","in":[],"out":[]}\n', "line 1: rank 0.1 has no head"),
    ('{"by":\n', "line 1: "),
])  # fmt: skip
def test_what_is_no_record_is_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r").write_text(text)
    with pytest.raises(CheckpointError, match=said):
        read_record(tmp_path / "r")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing"):
        read_record(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="give another path"):
        RunRecord(tmp_path / "file" / "run.jsonl", Coordinator(Cohort(ranks=1).config))


def test_a_full_disk_ends_the_record_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking on must not end a run (O-3)."""
    cohort = Cohort(ranks=1)
    co = Coordinator(cohort.config, now=100.0)
    file = RunRecord(tmp_path / "r", co)
    co.handle(cohort.records[COORDINATOR][0][1], 100.0)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", full)
    file.append(co.take_ready())
    assert file.failure is not None and file.failure.errno == errno.ENOSPC
    monkeypatch.undo()
    file.append(co.take_ready())
    assert len((tmp_path / "r").read_text().splitlines()) == 1
    assert json.loads((tmp_path / "r").read_text())["by"] == "coordinator 1"
