"""Fuzzing: the corpus is replayed, each target gets a short campaign and bytes of hypothesis, and the engine is shown
to find what it should (N-7, N-23 to N-26, I3, I22). Longer: `python tests/fuzz/run.py TARGET --seconds N`."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline
from paceline.backends.cli import cli
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.errors import InvariantError
from paceline.core.simulation import Violation
from paceline.core.simulation import world as world_module
from paceline.core.simulation.schedule import Schedule
from paceline.core.values import rha
from paceline.core.worker import Worker
from paceline.transports.record_file import replay_record

from fuzz import run
from fuzz.coverage import watch
from fuzz.engine import CORPUS, Finding, Report, Target, campaign, fault_of, inputs
from fuzz.machines import MACHINES, recorded
from fuzz.mutate import LONGEST, mutated
from fuzz.schedules import broken_schedule
from fuzz.targets import TARGETS
from support.patience import PATIENCE_S

REPLAYED = [(name, file, data) for name, target in TARGETS.items() for file, data in inputs(target)]
HEAVY = ("coordinator", "door", "worker", "snapshot", "schedule")
"""Targets whose inputs take a whole machine or run."""
OF_BYTES = [name for name in TARGETS if name not in HEAVY]


@pytest.mark.parametrize(("name", "file", "data"), REPLAYED, ids=[f"{name}-{file}" for name, file, _ in REPLAYED])
def test_every_input_of_the_corpus_keeps_the_promises(name: str, file: str, data: bytes) -> None:
    """What a campaign once found, and what runs rare lines: no other error than the documented one, bounded work."""
    finding, _ = fault_of(TARGETS[name], data)
    assert finding is None, f"{file}: {finding}"


def test_every_folder_of_the_corpus_has_a_target() -> None:
    """A target that is renamed takes its inputs along."""
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_campaign_finds_nothing(name: str) -> None:
    """The seeds, and some changes of them: flips, cuts, splices, replays, lengths; other types, edges, depth, sizes."""
    target = TARGETS[name]
    runs = 12 if name in HEAVY else 40
    report = campaign(target, random.Random(20), runs=runs)
    assert [str(finding) for finding in report.findings] == []
    assert report.runs == runs and report.steps


@pytest.mark.parametrize("name", OF_BYTES)
@settings(max_examples=10, derandomize=True)
@given(data=st.data())
def test_arbitrary_bytes(name: str, data: st.DataObject) -> None:
    """I22, N-7: bytes of nobody, and of a peer whose bytes were changed on the way."""
    target = TARGETS[name]
    seed = data.draw(st.sampled_from(list(target.seeds())))
    noise = data.draw(st.binary(max_size=80))
    cut = data.draw(st.integers(0, len(seed)))
    for given_bytes in (noise, seed[:cut] + noise, seed[:cut] + noise + seed[cut:]):
        target.run(given_bytes)


@pytest.mark.parametrize("name", ["link", "payloads", "codec", "record", "walk", "bulk", "handshake"])
def test_memory_stays_near_the_size_of_the_input(name: str) -> None:
    """N-25: what an input claims is never set aside for it."""
    target, rng = TARGETS[name], random.Random(5)
    seeds = target.seeds()
    for _ in range(12):
        data = mutated(rng.choice(seeds), rng, other=rng.choice(seeds), words=target.words)
        tracemalloc.start()
        target.run(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 500_000 + 100 * len(data), f"{peak} bytes for {data[:80].hex()}"


# --- the engine ------------------------------------------------------------------------------------------------------


def test_a_campaign_finds_a_planted_fault_and_shrinks_it() -> None:
    """Two words that random inputs would have to hit together: only that the first one runs new lines leads there."""
    target = Target("planted", _planted, lambda: [b"...."], (100, 10), words=(b"ab", b"cd"))
    report = campaign(target, random.Random(1), runs=4000, most_findings=1)
    (finding,) = report.findings
    assert finding.error.startswith("ZeroDivisionError") and finding.data == b"abcd"


def _planted(data: bytes) -> None:
    if data.startswith(b"ab") and rha(0.2) == 0 and data[2:4] == b"cd":
        _ = 1 / 0


def test_an_input_that_breaks_an_invariant_becomes_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding is kept as what happened, shrunk, and not as the bytes that chose it."""

    def books(co: Coordinator) -> None:
        if co.cycle.number == 1 and co.deaths:
            raise Violation("I41", "planted")

    monkeypatch.setattr(world_module, "books", books)
    target = TARGETS["schedule"]
    data = next(data for data in target.seeds() if fault_of(target, data)[0] is not None)
    found = broken_schedule(data)
    assert found is not None and found.breaks == "I41" and len(found.actions) < 30
    assert Schedule.parse(str(found)) == found


@pytest.mark.parametrize(
    ("name", "machine", "kind"), [("coordinator", Coordinator, m.Batch), ("worker", Worker, m.Update)]
)
def test_what_breaks_a_machine_becomes_a_record_that_replay_shows(
    name: str, machine: type[Any], kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 4: what the machine was told, not the bytes that chose it. It is the same once the fault is mended."""
    handle = machine.handle

    def planted(self: Any, event: Any, now: float) -> None:
        handle(self, event, now)
        if isinstance(getattr(event, "message", None), kind):
            raise KeyError("planted")

    target = TARGETS[name]
    target.run(target.seeds()[0])  # the run from which its states are taken is a sound one
    with monkeypatch.context() as patch:
        patch.setattr(machine, "handle", planted)
        data = next(data for data in target.seeds() if fault_of(target, data)[0] is not None)
        path = recorded(name, data, tmp_path / "found.record")
        assert path is not None
        broken = CliRunner().invoke(cli, ["replay", str(path)], standalone_mode=False)
    assert isinstance(broken.exception, InvariantError)
    assert re.search(rf"event \d+, {kind.__name__}, raises KeyError: 'planted' \(I22\)", str(broken.exception))
    mended = CliRunner().invoke(cli, ["replay", str(path), "--diagram"], standalone_mode=False)
    assert mended.exception is None and mended.return_value == 0, mended.output
    assert "the replay is the same" in mended.output


@pytest.mark.parametrize("name", MACHINES)
def test_whatever_a_machine_is_told_can_be_recorded(name: str, tmp_path: Path) -> None:
    """Numbers that are none and numbers that no float holds, too."""
    for file, data in inputs(TARGETS[name])[:40]:
        path = recorded(name, data, tmp_path / file)
        assert path is not None
        for found in replay_record(path):
            assert found.difference is None, file


def test_too_much_work_is_a_finding() -> None:
    """Bounded time, counted in lines of paceline so that no machine is too slow for it."""

    def slow(data: bytes) -> None:
        for _ in range(len(data) ** 2):
            rha(0.5)

    target = Target("slow", slow, lambda: [b""], (50, 10))
    finding, seen = fault_of(target, b"x" * 30)
    assert finding is not None and finding.place == "work" and seen.work > 1000


def test_coverage_sees_paceline_only_and_gives_the_tracer_back() -> None:
    """A campaign under a debugger or a coverage tool leaves it in place."""
    before = sys.gettrace()
    seen, raised = watch(lambda: rha(-0.5))
    assert raised is None and seen.work == 5 and {Path(name).name for name, _, _ in seen.steps} == {"values.py"}
    assert sys.gettrace() is before


@settings(max_examples=15, derandomize=True)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(["codec", "plain", "journal", "link"]))
def test_a_change_is_a_function_of_its_random_source(seed: int, name: str) -> None:
    """A campaign with the same seed feeds the same inputs; none is longer than the limit."""
    target = TARGETS[name]
    data = target.seeds()[0]
    first, second = (mutated(data, random.Random(seed), other=data, words=target.words, tree=target.tree)
                     for _ in range(2))  # fmt: skip
    assert first == second and len(first) <= LONGEST


def test_the_runner_says_what_it_did() -> None:
    """`python tests/fuzz/run.py TARGET --seconds N`, without an engine."""
    script = Path(__file__).with_name("run.py")
    source = str(Path(paceline.__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, str(script), "handshake", "--seconds", "0.2", "--seed", "3", "--engine", "own"],
        capture_output=True, text=True, timeout=PATIENCE_S, env={"PYTHONPATH": source, "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 3" in done.stdout and "handshake: " in done.stdout and "0 findings" in done.stdout


def test_the_runner_tells_what_it_found_before_it_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hours of a campaign are not lost with Ctrl-C, and what it says is no traceback."""
    def interrupted(target: Target, rng: object, *, report: Report, **more: object) -> Report:
        report.runs, report.findings = 3, [Finding(b"x", "ValueError: no", "here:1")]
        raise KeyboardInterrupt

    kept: list[bytes] = []
    monkeypatch.setattr(run, "campaign", interrupted)
    monkeypatch.setattr(run, "keep", lambda target, name, data: kept.append(data))
    assert run.main(["codec", "--engine", "own", "--seed", "1"]) == run.INTERRUPTED
    told = capsys.readouterr()
    assert "codec: 3 inputs" in told.out and "ValueError: no at here:1" in told.out and kept == [b"x"]
    assert told.err == "interrupted\n"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_campaign_of_no_time_is_none(seconds: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(["codec", "--seconds", seconds])


def test_what_the_optional_engine_finds_is_shrunk_and_told_like_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends its own process and leaves bytes; a finding becomes what `paceline replay` shows (issue 4)."""

    def fails(data: bytes) -> None:
        if b"!" in data:
            raise ValueError("planted")

    def engine(words: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        (tmp_path / "planted" / "found-crash-1").write_bytes(b"bytes! and more")
        return subprocess.CompletedProcess(words, 77)

    kept: list[bytes] = []
    (tmp_path / "planted").mkdir()
    monkeypatch.setattr(run, "CORPUS", tmp_path)
    monkeypatch.setattr(run, "keep", lambda target, name, data: kept.append(data))
    monkeypatch.setattr(subprocess, "run", engine)
    assert run._guided(Target("planted", fails, lambda: [b"seed"], (10_000, 100)), 1.0) == 1
    assert kept == [b"!"] and "ValueError: planted" in capsys.readouterr().out
    assert list((tmp_path / "planted").iterdir()) == []
