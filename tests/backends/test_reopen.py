"""What a coordinator makes of a journal that is there already (M-40): go on with it, or one line that says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from paceline.backends import coordinate as module
from paceline.backends.reopen import begin, run_id_of
from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.detector import FixedDetector
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.policies import Policies
from paceline.core.simulation.action import COORDINATOR
from paceline.core.worker import Worker
from paceline.transports.journal_file import LEAST_BETWEEN, JournalFile, read_end, read_journal

from conformance.examples import example
from support.cohort import Cohort
from support.rank import Rank
from support.words import hello


def config(path: Path, **knobs: Any) -> Config:
    """A run that keeps its journal there."""
    return Config(**{"batch_size": 2, "num_epochs": 2, "target_ranks": 2, "anchor": 3, "journal": str(path), **knobs})


def kept(path: Path, events: int | None = None, policies: Policies | None = None, **knobs: Any) -> Coordinator:
    """The journal of a run of two ranks, cut off after so many events."""
    cohort = Cohort(ranks=2)
    cohort.run()
    co, file, goes_on = begin(config(path, **knobs), 100.0, None, policies)
    assert file is not None and not goes_on
    for second, event in cohort.records[COORDINATOR][:events]:
        co.handle(event, second)
        file.append(co.take_ready())
    file.close()
    return co


def test_a_run_that_was_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    """M-40, I37: the same books, the next generation; and again, from what the restart itself has kept."""
    path = tmp_path / "j"
    before = kept(path, 60)
    for generation in (2, 3):
        again, file, goes_on = begin(config(path), 5.0, None)
        assert file is not None and goes_on and again.generation == generation
        assert (again.cycle.version, again.book.covered) == (before.cycle.version, before.book.covered)
        file.append(again.take_ready())
        file.close()
    assert [head.settings.run_id for head, _ in read_journal(path)] == [before.config.run_id] * 3


def test_the_effects_of_the_last_batch_are_those_that_may_be_missing(tmp_path: Path) -> None:
    """M-44: also when a snapshot came right behind it."""
    path = tmp_path / "j"
    co = Coordinator(config(path))
    file = JournalFile(path, co)
    co.handle(ev.HelloReceived(1, hello(60)), 1.0)
    ready = co.take_ready()
    file.append(ready)
    assert (read_end(path).undone, len(read_end(path).records)) == (ready.effects, 1)
    file._write_head(flush=False)
    file.close()
    assert (read_end(path).undone, read_end(path).records) == (ready.effects, ())


def test_a_long_journal_has_snapshots_and_a_restart_reads_only_its_end(tmp_path: Path) -> None:
    """M-40: what is older than the last snapshot may be anything; a replay of all of it (O-8) would notice."""
    path = tmp_path / "j"
    co = Coordinator(config(path))
    file = JournalFile(path, co)
    large = fx.Ready(((1.0, ev.CallbackFailed("x", "y" * (LEAST_BETWEEN // 8))),), ())
    for _ in range(20):
        file.append(large)
    file.close()
    parts = read_journal(path)
    assert len(parts) >= 3 and sum(len(batches) for _, batches in parts) == 20
    lines = path.read_bytes().split(b"\n")
    lines[1] = b"rubbish"
    path.write_bytes(b"\n".join(lines))
    assert len(read_end(path).records) < 10
    with pytest.raises(CheckpointError, match="line 2"):
        read_journal(path)


def test_a_torn_last_line_is_cut_off_before_the_journal_goes_on(tmp_path: Path) -> None:
    """Else it would swallow the head of the next generation."""
    path = tmp_path / "j"
    kept(path, 40)
    path.write_bytes(path.read_bytes()[:-30])
    _, file, _ = begin(config(path), 5.0, None)
    assert file is not None
    file.close()
    assert len(read_journal(path)) == 2


def test_a_journal_in_use_is_nobody_elses(tmp_path: Path) -> None:
    """F90: the old coordinator lives, so a second one of the same run must not."""
    path = tmp_path / "j"
    kept(path, 40)
    _, file, _ = begin(config(path), 5.0, None)
    assert file is not None
    with pytest.raises(CheckpointError, match="still running"):
        begin(config(path), 5.0, None)
    file.close()


def test_a_journal_that_cannot_be_gone_on_with_is_left_alone(tmp_path: Path) -> None:
    """Another run, other options, a rank's, a damaged one, one of a run that is over: one line each, nothing
    written."""
    path, over, of_rank = tmp_path / "j", tmp_path / "over", tmp_path / "rank"
    kept(path, 40)
    kept(over)
    worker: Worker = Rank().worker
    JournalFile(of_rank, worker).close()
    before = path.read_bytes()
    mine = config(path)
    refusals: list[tuple[Config, type[Exception], str]] = [
        (attrs.evolve(mine, run_id=b"x" * 16), CheckpointError, "is of run 0000.*PACELINE_RUN_ID"),
        (attrs.evolve(mine, anchor=7), ConfigError, "anchor: .*has 3, this command 7"),
        (attrs.evolve(mine, guard="none"), ConfigError, "guard: .*has 'level', this command 'none'"),
        (attrs.evolve(mine, cadence="own:Mine"), ConfigError, "cadence: .*has None, this command 'own:Mine'"),
        (attrs.evolve(mine, journal=str(over)), CheckpointError, "is over"),
        (attrs.evolve(mine, journal=str(of_rank)), CheckpointError, "journal of a rank"),
    ]
    for given, error, words in refusals:
        with pytest.raises(error, match=words):
            begin(given, 5.0, None)
    assert path.read_bytes() == before
    path.write_bytes(before.replace(b'"cycle"', b'"cyc', 1))
    with pytest.raises(CheckpointError, match=r"j, line \d+"):
        begin(mine, 5.0, None)
    begin(attrs.evolve(mine, journal=str(tmp_path / "deep" / "new")), 5.0, None)[1].close()  # type: ignore[union-attr]
    assert run_id_of(over) == mine.run_id


def test_a_run_goes_on_with_the_policies_that_it_had(tmp_path: Path) -> None:
    """M-40, N-13: those that the journal names are loaded again; those of a program are given again, or the run is
    refused, by the name of what it lacks."""
    example("own_policies")
    named, given = tmp_path / "named", tmp_path / "given"
    guard, mine = "own_policies:PatientGuard", Policies(detector=FixedDetector(9.0))
    kept(named, 40, guard=guard)
    kept(given, 40, policies=mine)
    again, file, _ = begin(config(named, guard=guard), 5.0, None)
    assert type(again.guard).__name__ == "PatientGuard" and file is not None
    file.close()
    with pytest.raises(CheckpointError, match=r"detector: this run has .*:FixedDetector, not .*:LearnedDetector"):
        begin(config(given), 5.0, None)
    again, file, goes_on = begin(config(given), 5.0, None, mine)
    assert goes_on and again.policies.detector == FixedDetector(9.0) and file is not None
    file.close()


def test_the_command_takes_the_run_from_the_journal_and_asks_for_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret has no place in a file; the id of the run has."""
    path = tmp_path / "j"
    kept(path, 40, run_id=b"q" * 16)
    seen: list[Any] = []
    monkeypatch.setattr(module, "_records", lambda *given: seen.append(given[-1]) or 0)
    monkeypatch.delenv("PACELINE_TOKEN", raising=False), monkeypatch.delenv("PACELINE_RUN_ID", raising=False)
    with pytest.raises(ConfigError, match="PACELINE_TOKEN is not set"):
        module.coordinate(config(path), "tcp://127.0.0.1:0", tmp_path, records=True)
    monkeypatch.setenv("PACELINE_TOKEN", "ab" * 32)
    assert module.coordinate(config(path), "tcp://127.0.0.1:0", tmp_path, records=True) == 0
    assert seen[0].run_id == b"q" * 16
