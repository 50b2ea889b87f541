"""A session in a run that resumes: where its weights, its schedule and its samples begin (K-12, M-6)."""

from __future__ import annotations

import builtins
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import trio

from paceline.backends.bundle import check_file, read_bundle
from paceline.backends.checkpoint import load_flat, load_model, save_model, save_optimizer
from paceline.backends.serve import serve
from paceline.core import effects as fx
from paceline.core.config import Config
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.schema import Schema

from support.small_run import BATCH, SAMPLES, Seen, SmallRun
from support.transports import CREDENTIALS

STEPS = SAMPLES // BATCH


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of one rank and two epochs, which nobody may change."""
    run_dir = tmp_path_factory.mktemp("ended")
    run = SmallRun(run_dir=run_dir, target_ranks=1)
    run.train(0)
    run.coordinator.result()
    return run_dir


@pytest.fixture
def ended(once: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(once, tmp_path / "run"))


def test_the_first_step_is_taken_from_the_saved_model_at_its_schedule_position(
    ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-12, F57: weights from the file for every rank, whatever its own model was, and read by one, so that no other
    one's view of the disk matters; the position is global_step, set once."""
    opened: list[str] = []

    def read(path: str, schema: Schema) -> tuple[memoryview, dict[str, str]]:
        opened.append(path)
        return load_flat(path, schema)

    monkeypatch.setattr("paceline.backends.session.load_flat", read)
    saved, _ = load_model(ended / "consensus.safetensors")
    weights = torch.cat([saved[name].reshape(-1) for name in ("0.weight", "0.bias", "2.weight", "2.bias")])
    begun: list[torch.Tensor] = []

    def note(seen: Seen) -> None:
        if not seen.rates:
            begun.append(seen.parameters)

    run = SmallRun(initial_state=str(ended), target_ranks=2)
    ranks = [run.start(rank, epochs=4, lr_schedule=float, before=note) for rank in (0, 1)]
    seen = [rank.result() for rank in ranks]
    run.coordinator.result()
    assert len(begun) == 2 and all(torch.equal(start, weights) for start in begun)
    assert opened == [str(ended / "consensus.safetensors")]
    assert min(rate for one in seen for rate in one.rates) == 2 * STEPS
    samples = sorted(index for one in seen for epoch in (2, 3) for index in one.samples.get(epoch, []))
    assert samples == sorted([*range(SAMPLES)] * 2) and not any(0 in one.samples or 1 in one.samples for one in seen)
    assert all(one.session.global_step == 4 * STEPS and one.session.version > 0 for one in seen)


def test_a_source_that_stands_on_a_consensus_gives_that_and_not_the_file(
    ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M-45, R-10: the run forms once more. Neither the state it once began with nor steps that count nowhere become its
    version."""
    run = SmallRun(initial_state=str(ended), target_ranks=1)
    seen = run.train(0, epochs=3)
    run.coordinator.result()
    session, consensus = seen.session, seen.parameters
    monkeypatch.setattr(session._connection.driver, "feed", lambda event: None)
    monkeypatch.setattr(session._connection.link, "offer", lambda order, snapshot: None)
    for put_back in (True, False):
        with torch.no_grad():
            next(session.model.parameters()).add_(1.0)
        session._obey(fx.TakeSnapshot(0, 0, 2, 0, header_only=False, state=True, fresh=True, put_back=put_back))
        assert torch.equal(seen.parameters, consensus) is put_back


def test_the_source_refuses_a_file_that_is_not_the_one_of_the_record(ended: Path) -> None:
    """K-12: on another host something else may lie under the same name; the next rank would be the source then."""
    run = SmallRun(initial_state=str(ended), target_ranks=1)
    (ended / "consensus.safetensors").write_bytes(b"something else")
    with pytest.raises(CheckpointError, match="SHA-256"):
        run.train(0, epochs=4)
    assert run.coordinator.result().status == "failed"


def test_a_run_cannot_be_resumed_with_another_batch_size(ended: Path) -> None:
    """Said by the coordinator before it listens."""
    with pytest.raises(CheckpointError, match=f"batch_size: .*{BATCH}.*7"):
        _start(initial_state=str(ended), batch_size=7)


def _start(**knobs: Any) -> None:
    trio.run(lambda: serve(Config(target_ranks=1, **knobs), "tcp://127.0.0.1:0", CREDENTIALS))


# --- bundles ---------------------------------------------------------------------------------------------------------


def test_a_bundle_is_named_by_its_directory_or_its_file(ended: Path) -> None:
    """Either way it is the same absolute file, since ranks have directories of their own."""
    by_directory, by_file = read_bundle(ended), read_bundle(ended / "consensus.safetensors")
    assert by_directory == by_file and by_file.file.is_absolute()
    assert by_file.resume.global_step == 2 * STEPS and by_file.resume.last_closed_epoch == 1


def _without(ended: Path, name: str) -> None:
    (ended / name).unlink()


def _rewritten(ended: Path, **changes: Any) -> None:
    path = ended / "consensus.meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(("harm", "said"), [
    (lambda ended: _without(ended, "consensus.safetensors"), "consensus.safetensors cannot be read"),
    (lambda ended: _without(ended, "consensus.meta.json"), "consensus.meta.json cannot be read"),
    (lambda ended: (ended / "consensus.meta.json").write_text("{"), "cannot be read"),
    (lambda ended: _rewritten(ended, format=99), "consensus.meta.json: format: the record has 99"),
    (lambda ended: _rewritten(ended, files={"other": "00"}), r"does not name consensus.safetensors, but \['other'\]"),
    (lambda ended: _rewritten(ended, files={"consensus.safetensors": "00"}), "the record of the run 00"),
], ids=["no file", "no record", "cut", "newer", "another name", "another hash"])  # fmt: skip
def test_a_bundle_that_is_not_whole_is_refused(ended: Path, harm: Any, said: str) -> None:
    """K-12: missing or damaged file, by name."""
    harm(ended)
    with pytest.raises(CheckpointError, match=said):
        read_bundle(ended)


def _copied(ended: Path, name: str, version: int) -> None:
    """The same consensus under another name and version, whole."""
    (ended / f"{name}.safetensors").write_bytes((ended / "consensus.safetensors").read_bytes())
    record = json.loads((ended / "consensus.meta.json").read_text())
    record |= {"version": version, "files": {f"{name}.safetensors": record["files"]["consensus.safetensors"]}}
    (ended / f"{name}.meta.json").write_text(json.dumps(record))


@pytest.mark.parametrize("harm", [
    lambda ended: _without(ended, "consensus.safetensors"),
    lambda ended: (ended / "consensus.safetensors").write_bytes(b"half of it"),
    lambda ended: _without(ended, "consensus.meta.json"),
    lambda ended: (ended / "consensus.meta.json").write_text("[" * 100_000),
], ids=["missing", "damaged", "no record", "record too deep"])  # fmt: skip
def test_a_bundle_that_is_refused_names_the_next_older_one_that_is_whole(ended: Path, harm: Any) -> None:
    """K-12, K-6: the newest below it; one that is damaged too is passed over, a newer one is no older one."""
    newest = read_bundle(ended).resume.version
    for name, version in (("checkpoint.v0", 0), ("checkpoint.v1", 1), ("torn", 1)):
        _copied(ended, name, version)
    (ended / "torn.safetensors").write_bytes(b"")
    (ended / "deep.meta.json").write_text("[" * 100_000)
    assert newest > 1
    harm(ended)

    with pytest.raises(CheckpointError, match=r"bundle that is whole is .*checkpoint\.v1\.safetensors, version 1"):
        read_bundle(ended)
    _without(ended, "checkpoint.v1.safetensors")
    with pytest.raises(CheckpointError, match=r"checkpoint\.v0\.safetensors, version 0"):
        read_bundle(ended)


def _by_a_rank(ended: Path, name: str, **said: str) -> None:
    """The consensus as a rank writes it, and a record that was in place before it."""
    record = json.loads((ended / "consensus.meta.json").read_text()) | {"files": {f"{name}.safetensors": None}}
    told = {"run_id": record["run_id"], "version": str(record["version"])} | said
    save_model(ended / f"{name}.safetensors", load_model(ended / "consensus.safetensors")[0], told)
    (ended / f"{name}.meta.json").write_text(json.dumps(record))


def test_a_bundle_of_a_rank_says_itself_what_it_is(ended: Path) -> None:
    """K-6, K-12: of which run and version, and its SHA-256; the rank that loads it is told that of the whole file."""
    _by_a_rank(ended, "by_rank")
    bundle = read_bundle(ended / "by_rank.safetensors")
    assert bundle.resume.version == read_bundle(ended).resume.version
    named = bundle.resume.files["by_rank.safetensors"]
    assert named is not None
    check_file(bundle.file, named)


def test_a_bundle_of_a_rank_is_read_once(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K-6, K-12: what the rank is told to load is what was checked, not what was put in its place meanwhile; and a
    model of many gigabytes is not read twice before a run resumes."""
    _by_a_rank(ended, "by_rank")
    file, opened, open_ = ended / "by_rank.safetensors", [], builtins.open

    def counting(path: Any, *arguments: Any, **named: Any) -> Any:
        opened.append(path)
        return open_(path, *arguments, **named)

    monkeypatch.setattr(builtins, "open", counting)
    read_bundle(file)
    assert opened.count(file) == 1


@pytest.mark.parametrize(("harm", "said"), [
    (lambda file: file.unlink(), "cannot be read"),
    (lambda file: file.write_bytes(file.read_bytes()[:-1]), "damaged"),
    (lambda file: _by_a_rank(file.parent, file.stem, version="1"), "version: the record is of .*, .* of 1;"),
    (lambda file: _by_a_rank(file.parent, file.stem, run_id="77" * 16), f"run_id: .* of {'77' * 16};"),
    (lambda file: shutil.copy(file.parent / "consensus.safetensors", file), "says no SHA-256 of itself"),
], ids=["missing", "damaged", "another version", "another run", "not sealed"])  # fmt: skip
def test_a_bundle_that_its_rank_did_not_write_is_refused(ended: Path, harm: Any, said: str) -> None:
    """K-6, K-12: the record is in place all the same. The newest older bundle that is whole is named."""
    _by_a_rank(ended, "by_rank")
    _copied(ended, "checkpoint.v1", 1)
    harm(ended / "by_rank.safetensors")

    with pytest.raises(CheckpointError, match=rf"{said}.*whole is .*checkpoint\.v1\.safetensors, version 1"):
        read_bundle(ended / "by_rank.safetensors")


def test_without_an_older_bundle_none_is_named(ended: Path) -> None:
    """K-12: one of the same version is no older one."""
    version = read_bundle(ended).resume.version
    _copied(ended, "twin", version)
    (ended / "consensus.safetensors").write_bytes(b"half of it")

    with pytest.raises(CheckpointError) as refused:
        read_bundle(ended)
    assert "that is whole" not in str(refused.value)


# --- momentum --------------------------------------------------------------------------------------------------------


def _momentum(session: Any) -> torch.Tensor:
    return torch.cat([state["momentum_buffer"].reshape(-1) for state in session.optimizer.state.values()])


def test_a_rank_gets_its_own_momentum_back(ended: Path) -> None:
    """K-12, K-11: from the file that it wrote; without one the optimizer starts fresh."""
    run = SmallRun(initial_state=str(ended), target_ranks=1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    known = torch.cat([state["momentum_buffer"].reshape(-1) for state in optimizer.state.values()])
    save_optimizer(ended / "reduce_stall.rank0.optim.safetensors", optimizer, {"rank": "0"})
    begun: list[torch.Tensor] = []

    def note(seen: Seen) -> None:
        if not seen.rates:
            begun.append(_momentum(seen.session))

    run.train(0, before=note, epochs=3, optimizer_file=ended / "reduce_stall.rank{rank}.optim.safetensors")
    assert run.coordinator.result().status == "ok"
    assert torch.equal(begun[0], known)


@pytest.mark.parametrize(("own", "resumed", "error", "said"), [
    ("1", True, CheckpointError, "is of rank 1, this is rank 0"),
    (None, True, CheckpointError, "cannot be read"),
    ("0", True, CheckpointError, "does not fit this SGD"),
    ("0", False, ConfigError, "begins anew"),
], ids=["of another rank", "missing", "of another optimizer", "no resume"])  # fmt: skip
def test_momentum_that_is_not_its_own_is_refused(
    ended: Path, own: str | None, resumed: bool, error: type[Exception], said: str
) -> None:
    """K-12: by name, and the run goes on without this rank, or ends."""
    file = ended / "o.safetensors"
    if own is not None:
        save_optimizer(file, torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), {"rank": own})
    run = SmallRun(target_ranks=1, **({"initial_state": str(ended)} if resumed else {}))
    with pytest.raises(error, match=said):
        run.train(0, epochs=3, optimizer_file=file)
    assert run.coordinator.result().status == "failed"


def test_a_file_is_checked_against_its_hash(tmp_path: Path) -> None:
    """Both are named."""
    (tmp_path / "f").write_bytes(b"abc")
    check_file(tmp_path / "f", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    with pytest.raises(CheckpointError, match=r"ba7816bf.*00000000"):
        check_file(tmp_path / "f", "00" * 32)
