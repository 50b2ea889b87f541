"""`initial_state=check` with real processes over tcp: ranks that begin from the same model, and one that does not."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.backends.checkpoint import load_model
from paceline.backends.report import account, read_timeline

from support.launcher import UNRULY, paceline

EPOCHS = 4


def test_ranks_that_begin_from_the_same_model_train_it(tmp_path: Path) -> None:
    """M-6, I42: nothing is sent before the training, every batch is merged once, and the model is there in the end."""
    with paceline("run", "--ranks=2", "--set", "initial_state=check", UNRULY, cwd=tmp_path) as command:
        assert command.end() == 0, command.err
    assert command.err == []
    records = read_timeline(tmp_path / "paceline-run" / "timeline.jsonl")
    found = account(records, EPOCHS)
    assert (found.lost, found.twice, found.merged) == (0, 0, 160)
    given = [record for record in records if record.get("what") == "state_transfer"]
    trains = next(record for record in records if record.get("phase") == "training")
    assert [record["rank"] for record in given] == ["averager"] and given[0]["t"] >= trains["t"]
    tensors, _ = load_model(tmp_path / "paceline-run" / "consensus.safetensors")
    assert sorted(tensors) == ["bias", "weight"]


def test_a_rank_with_another_model_ends_the_run_and_is_named(tmp_path: Path) -> None:
    """M-6: one line that names who has what and what to do, exit code 6, and no rank ends as if it had trained."""
    with paceline("run", "--ranks=3", "--set", "initial_state=check", UNRULY, "stray=1", cwd=tmp_path) as command:
        assert command.end() == 6
    line = command.err[-1]
    assert re.match(r"paceline: the run did not form: .* ranks 0, 2 have [0-9a-f]{32}, rank 1 has [0-9a-f]{32}; ", line)
    assert line.endswith("or set initial_state = 'rank' to begin from those of the lowest rank")
    told = [text for text in command.err if "the run did not form (consensus_mismatch)" in text]
    assert sorted(text[:8] for text in told) == ["[rank 0]", "[rank 1]", "[rank 2]"]
    assert not any("done, " in text for text in command.out)
    assert read_timeline(tmp_path / "paceline-run" / "timeline.jsonl")[-1]["status"] == "failed"


def test_a_run_without_an_epoch_leaves_the_model_that_all_brought(tmp_path: Path) -> None:
    """M-6, K-4: nothing is averaged, so a rank gives the averager what it saves before the run ends."""
    with paceline("run", "--ranks=2", "--set", "initial_state=check", UNRULY, "epochs=0", cwd=tmp_path) as command:
        assert command.end() == 0, command.err
    assert command.err == []
    tensors, metadata = load_model(tmp_path / "paceline-run" / "consensus.safetensors")
    assert sorted(tensors) == ["bias", "weight"] and metadata["version"] == "0"


def test_a_model_that_cannot_be_written_ends_no_run_well(tmp_path: Path) -> None:
    """K-8: with exit code 7 and the reason, from `run` as from `coordinate`."""
    (tmp_path / "paceline-run" / "consensus.safetensors").mkdir(parents=True)
    with paceline("run", "--ranks=1", UNRULY, "epochs=1", cwd=tmp_path) as command:
        assert command.end() == 7, command.err
    assert command.err[-1].startswith("paceline: the coordinator ended with exit code 7: the run is over (every epoch ")
    assert "its model is not saved" in command.err[-1]
    assert not any("the model is" in line for line in command.out)
