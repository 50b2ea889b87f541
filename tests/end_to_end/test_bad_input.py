"""Bad input at the door: one clear line, a documented exit code, nobody else disturbed (M-5, N-7, N-22, N-29)."""

from __future__ import annotations

import errno
import json
import signal
import socket
from pathlib import Path

import pytest
import torch
import trio
from torch.utils.data import TensorDataset

import paceline
from paceline.backends.connection import Environment
from paceline.backends.serve import serve
from paceline.core.config import Config
from paceline.core.wire import Lane
from paceline.transports.api import Credentials

from support.patience import PATIENCE_S
from support.processes import RUN_ID, TOKEN, Child, accounting, stage

WRONG = {
    "token": (["--samples", "480"], {"PACELINE_TOKEN": "00" * 32}, 4, "token"),
    "run": ([], {"PACELINE_RUN_ID": "22" * 16}, 4, "run"),
    "shape": (["--hidden", "17"], {}, 4, "another model: the run has 0.weight: param float32[16, 4], this rank has "
              "0.weight: param float32[17, 4]"),
    "names": (["--rename"], {}, 4, "another model: the run has 0.weight: param float32[16, 4], this rank has "
              "layer0.weight: param float32[16, 4]"),
    "data set": (["--samples", "481"], {}, 4, "the run has 480 samples, this rank 481"),
    "batch size": (["--batch-size", "9"], {}, 4, "batch_size: the run has 8, this rank wants 9"),
    "seat": ([], {"PACELINE_RANK": "0"}, 4, "rank 0 is taken"),
    "no such seat": ([], {"PACELINE_RANK": "7"}, 4, "no rank 7"),
}


def _refused(child: Child, code: int, text: str) -> None:
    assert child.end() == code, child.stderr
    assert text in child.stderr
    assert "Traceback" not in child.stderr
    assert len([line for line in child.stderr.splitlines() if line.startswith("paceline:")]) == 1


def _garbage(url: str) -> None:
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    other_version = b"PCLN" + bytes([1, 1, 9, 9, int(Lane.CONTROL)]) + bytes(7) + bytes.fromhex(RUN_ID) + bytes(32)
    for noise in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + bytes(80), b"", bytes(64), other_version):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as link:
            link.sendall(noise)
            link.settimeout(PATIENCE_S)
            try:
                link.shutdown(socket.SHUT_WR)
                answer = link.recv(64)
            except OSError as error:  # noise left unread when the listener closes, which may be done already
                assert error.errno in (errno.ECONNRESET, errno.ENOTCONN), error
                answer = b""
            if noise == other_version:
                assert answer[:4] == b"PCLN" and answer[6] == 0, "N-22: told the range, nothing else"
            else:
                assert answer == b"", "N-29: closed without a word"


def test_everyone_who_does_not_belong_is_turned_away_and_the_run_goes_on(tmp_path: Path) -> None:
    """Each wrong rank gets one line and exit code 4; noise costs nothing; two right ranks then train to the end."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=2)
        first = s.rank(PACELINE_RANK="0")
        first.until(lambda line: "joined" in line)
        wrong = {name: s.rank(*options, **environment) for name, (options, environment, _, _) in WRONG.items()}
        _garbage(s.url)
        for name, child in wrong.items():
            _refused(child, WRONG[name][2], WRONG[name][3])
        second = s.rank()
        assert (coordinator.end(), first.end(), second.end()) == (0, 0, 0)
        assert accounting(coordinator.lines) == (0, 0)
        late = s.rank(PACELINE_DIAL_S="0.2")
        assert late.end() == 3
        assert "nobody answers at 127.0.0.1" in late.stderr and "Traceback" not in late.stderr


def test_a_rank_that_finds_no_seat_is_told_so(tmp_path: Path) -> None:
    """N-29: refused with the reason and what to do, the others go on."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=1)
        only = s.rank("--epochs", "5000", "--say-steps")
        only.until(lambda line: "step" in line)
        _refused(s.rank("--epochs", "5000"), 4, "max_ranks sets their number")
        coordinator.process.send_signal(signal.SIGINT)
        assert (coordinator.end(), only.end()) == (0, 0)


def _environment(url: str = "tcp://127.0.0.1:9") -> Environment:
    return Environment(url=url, token=bytes.fromhex(TOKEN), run_id=bytes.fromhex(RUN_ID), dial_s=0.1)


def _session(samples: int, batch_size: int) -> paceline.Session:
    model = torch.nn.Linear(2, 2)
    dataset = TensorDataset(torch.zeros(samples, 2), torch.zeros(samples, dtype=torch.long))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return paceline.Session(model, optimizer, dataset, batch_size=batch_size, epochs=1, environment=_environment())


@pytest.mark.parametrize(
    ("samples", "batch_size", "text"),
    [(0, 8, "the data set is empty"), (7, 8, "batch_size = 8 is more than the data set's 7 samples")],
)
def test_a_data_set_nobody_can_train_on_is_refused_before_dialling(samples: int, batch_size: int, text: str) -> None:
    """D-2, I54: a ConfigError (exit code 2) that says what to do."""
    with pytest.raises(paceline.ConfigError, match=text) as error:
        _session(samples, batch_size)
    assert error.value.exit_code == 2


def test_without_a_coordinator_the_error_names_the_address() -> None:
    """M-3: the dial ends with one line, exit code 3."""
    with pytest.raises(paceline.TransportError, match=r"nobody answers at 127\.0\.0\.1:9, .*running") as error:
        _session(16, 8)
    assert error.value.exit_code == 3


def test_a_script_started_by_hand_is_told_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment: the line names the variable and the commands."""
    monkeypatch.delenv("PACELINE_URL", raising=False)
    with pytest.raises(paceline.ConfigError, match="PACELINE_URL is not set: start this script with `paceline run"):
        Environment.from_process()


@pytest.mark.parametrize("name", ["PACELINE_TOKEN", "PACELINE_SLOW", "PACELINE_RANK", "PACELINE_DIAL_S"])
def test_a_broken_environment_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each variable is checked, and named."""
    good = {"PACELINE_URL": "tcp://127.0.0.1:9", "PACELINE_TOKEN": TOKEN, "PACELINE_RUN_ID": RUN_ID}
    for key, text in {**good, name: "rubbish"}.items():
        monkeypatch.setenv(key, text)
    with pytest.raises(paceline.ConfigError, match=name):
        Environment.from_process()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """Exit code 3, the address, the remedy."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        credentials = Credentials(run_id=bytes.fromhex(RUN_ID), token=bytes.fromhex(TOKEN))
        with pytest.raises(paceline.TransportError, match=rf"127\.0\.0\.1:{port}") as error:
            trio.run(lambda: serve(Config(), f"tcp://127.0.0.1:{port}", credentials, run_dir=tmp_path))
        assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"policy": "fast"}, "policy = 'fast' is not allowed: choose one of sync, cadence, async"),
        ({"policy": "async", "averager": "collective"}, "policy = 'async' does not go with averager = 'collective'"),
        ({"min_ranks": 0}, "min_ranks = 0"),
        ({"target_ranks": 0}, "target_ranks = 0"),
        ({"anchro": 3}, "no knob 'anchro'"),
        ({"wire_dtype": "bfloat16"}, "this version of paceline does not have yet"),
    ],
)
def test_a_bad_knob_is_named_with_its_rule(knobs: dict[str, object], text: str) -> None:
    """Section 15: knob, value and rule, before any machine exists."""
    with pytest.raises(paceline.ConfigError) as error:
        Config.from_knobs(knobs)
    assert text in str(error.value)


def test_records_are_lines_of_json(tmp_path: Path) -> None:
    """O-3: every record of the timeline has run id, generation, cycle, phase and both times."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=1)
        rank = s.rank("--epochs", "1")
        assert (coordinator.end(), rank.end()) == (0, 0)
    records = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert records and all(
        {"t", "wall", "run_id", "generation", "cycle", "phase", "run_phase", "event"} <= record.keys()
        for record in records
    )
    assert records[-1]["event"] == "Finish"
