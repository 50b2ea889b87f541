"""`paceline demo`, with real processes and real data. Short runs: what they show is the way, not the speed."""

from __future__ import annotations

import json
import signal
import xml.etree.ElementTree as ET
from pathlib import Path

from paceline.backends.checkpoint import load_model
from paceline.backends.demo_data import load_split
from paceline.backends.demo_train import build_model, evaluate
from paceline.backends.report import Recording, account, read_timeline

from support.launcher import fresh, left_over, paceline


def test_the_demo_compares_four_runs_and_leaves_its_files(tmp_path: Path) -> None:
    """I42 in each of them; the table has a row for each, and the files hold all of them."""
    with paceline("demo", "--epochs=2", cwd=tmp_path) as command:
        assert command.end() == 0
    assert command.err == []
    said = "\n".join(command.out)
    assert "split seed 1797" in said and "training seeds 0" in said
    rows = (" fast rank alone ", " lock-step ", " cadence ", " async ")
    assert [line.split()[0] for line in command.out if line.startswith(rows)] == [row.split()[0] for row in rows]
    assert "samples lost 0, merged twice 0, replayed 0" in command.out
    assert any(line.startswith("At a cadence the two ranks trained the 2,816 samples in ") for line in command.out)

    out = tmp_path / "paceline-demo"
    records = read_timeline(out / "timeline.jsonl")
    for name, ranks in (("alone", [0]), ("lock-step", [0, 1]), ("cadence", [0, 1]), ("async", [0, 1])):
        run = Recording(name, [record for record in records if record["run"] == name])
        assert run.ranks == ranks
        assert run.seconds > 0
        found = account(run.records, 2)
        assert (found.merged, found.lost, found.twice) == (88, 0, 0)
    ET.parse(out / "report.svg")
    model = build_model(1)
    model.load_state_dict(load_model(out / "averaged.safetensors")[0])
    shown = next(r["accuracy"] for r in records if r["run"] == "cadence" and r["event"] == "Evaluated")
    assert evaluate(model, load_split()[1]) == shown


def test_a_killed_rank_costs_no_sample(tmp_path: Path) -> None:
    """M-17, M-19, I42: SIGKILL in the middle, exit code 0, and the report accounts for every batch. The rank is so slow
    that it is in its first step then, and no run ends without it."""
    with paceline("demo", "--kill=1@0.1s", "--slow=1:10000", "--epochs=15", "--out=here", cwd=tmp_path) as command:
        assert command.end() == 0
    assert "with --kill only cadence runs" in command.out
    assert any(line.startswith("killing rank 1 with SIGKILL") for line in command.out)
    assert any(line.startswith("rank 1 died (") for line in command.out)
    sentence = next(line for line in command.out if line.startswith("samples lost "))
    assert sentence.startswith("samples lost 0, merged twice 0, replayed ")
    records = read_timeline(tmp_path / "here" / "timeline.jsonl")
    assert [r["rank"] for r in records if r["event"] == "Died"] == [1]
    assert account(records, 15).merged == 15 * 44
    assert "died" in (tmp_path / "here" / "report.svg").read_text()


def test_a_kill_that_comes_too_late_is_an_error(tmp_path: Path) -> None:
    """A demonstration of a death must not pass without one."""
    with paceline("demo", "--kill=1@600s", "--epochs=1", cwd=tmp_path) as command:
        assert command.end() == 1
    expected = "paceline: the run was over before rank 1 could be killed; give more --epochs"
    assert command.err == [expected]


def test_an_interrupt_ends_the_demo(tmp_path: Path) -> None:
    """Not only the run that goes on at that moment, and no process is left."""
    with fresh("demo", "--epochs=100000", "--debug", cwd=tmp_path) as command:
        children = command.children(1)
        command.until("merged, cycle")
        command.process.send_signal(signal.SIGINT)
        assert command.end() == 130
        assert left_over([*children.values()]) == []
    assert command.err[-1].startswith("paceline: fast rank alone: stopped")


def test_the_split_is_the_same_everywhere_and_holds_nothing_twice() -> None:
    """What a model is scored on it has not been trained on."""
    train, test = load_split()
    assert (len(train), len(test)) == (1437, 360)
    again, _ = load_split()
    assert json.dumps(train.tensors[1].tolist()) == json.dumps(again.tensors[1].tolist())
    images = {tuple(image.tolist()) for image in train.tensors[0]}
    assert sum(tuple(image.tolist()) in images for image in test.tensors[0]) == 0
