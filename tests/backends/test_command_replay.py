"""`paceline replay` of journals: one that has parts is one run, and what cannot be read is told."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.backends.cli import cli
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.errors import CheckpointError
from paceline.core.events import HelloReceived
from paceline.transports import journal_file
from paceline.transports.journal_file import JournalFile

from support.words import hello

EVENTS = 6


def call(*words: str) -> tuple[int, list[str]]:
    """Exit code and lines; an error of ours is raised."""
    done = CliRunner().invoke(cli, ["replay", *words], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value or 0, done.output.splitlines()


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A coordinator that hears of `EVENTS` ranks, with a snapshot behind each batch."""
    monkeypatch.setattr(journal_file, "LEAST_BETWEEN", 0)
    monkeypatch.setattr(journal_file, "TIMES_HEAD", 0)
    coordinator = Coordinator(Config(batch_size=2, num_epochs=1, target_ranks=EVENTS + 1))
    file = JournalFile(tmp_path / "j", coordinator)
    for number in range(EVENTS):
        coordinator.handle(HelloReceived(number, hello(60, host="here")), float(number))
        file.append(coordinator.take_ready())
    file.close()
    return str(tmp_path / "j")


def test_a_journal_with_snapshots_is_one_run(journal: str) -> None:
    """O-8: each part is compared and named; an end and a diagram are of the whole."""
    code, lines = call(journal)
    assert code == 0 and len(lines) == EVENTS + 1
    assert [line.partition(":")[0] for line in lines] == [f"part {number}" for number in range(1, EVENTS + 2)]
    assert lines[0].endswith("1 event, 2 effects: the replay is the same")

    _, drawn = call(journal, "--diagram", "--explain")
    assert drawn.count("sequenceDiagram") == 1 and drawn[0] == "sequenceDiagram"
    rest = drawn[1:]
    assert all(line.startswith(("    ", "%% ")) for line in rest), "each line is Mermaid"
    assert sum(line.startswith("%% E") for line in rest) == 1, "one end, so one answer"


@pytest.mark.parametrize("until", [0, 1, 3, EVENTS, 99])
def test_until_counts_over_all_parts(until: int, journal: str) -> None:
    _, lines = call(journal, "--until", str(until))
    counts = [int(line.split()[2]) for line in lines]
    assert sum(counts) == min(until, EVENTS)


def test_a_last_line_that_was_never_finished_is_told(journal: str) -> None:
    """M-40: its batch was never performed, so it is no difference."""
    whole = Path(journal).read_bytes()
    Path(journal).write_bytes(whole + b'{"in": [[')
    code, lines = call(journal)
    assert code == 0 and lines[-1] == "the last line was never finished, so it is left out"


def test_a_schedule_that_is_drawn_and_explained_is_mermaid() -> None:
    file = Path(__file__).parents[1] / "schedules" / "a-donor-was-asked.schedule"
    _, lines = call(str(file), "--until", "5", "--diagram", "--explain")
    assert lines[0] == "sequenceDiagram" and all(line.startswith(("    ", "%% ")) for line in lines[1:])
    assert any(line.startswith("%% E") for line in lines)


def test_what_is_no_text_is_told(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"paceline schedule 1\n# \xff\n")
    with pytest.raises(CheckpointError, match="byte 22 is no text in UTF-8"):
        call(str(bad))
    with pytest.raises(CheckpointError, match="cannot be read: is a directory"):
        call(str(tmp_path))


ENDS_OK = "paceline schedule 1\nsetup ranks 1\nends {}\nthen dullest\n"


@pytest.mark.parametrize(("until", "code", "said"), [
    (None, 1, "expected to end failed"), (99999, 1, "expected to end failed"), (3, 0, "stopped at "),
])  # fmt: skip
def test_a_wrong_end_is_told_however_far_beyond_it_one_looks(
    until: int | None, code: int, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.schedule"
    file.write_text(ENDS_OK.format("failed"))
    found, lines = call(str(file), *(() if until is None else ("--until", str(until))))
    assert found == code and said in lines[-1]


def piped(content: bytes, tmp_path: Path) -> tuple[int, list[str]]:
    """As `call`, of a pipe with this content: what is read once is gone, and who opens it again may wait for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True)
    writer.start()
    told = call(str(pipe))
    writer.join()
    return told


def test_a_schedule_in_a_pipe_is_replayed_as_a_file_is(tmp_path: Path) -> None:
    code, lines = piped(ENDS_OK.format("ok").encode(), tmp_path)
    assert code == 0 and lines[-1].startswith("every invariant holds")


def test_a_journal_in_a_pipe_is_replayed_too(journal: str, tmp_path: Path) -> None:
    assert piped(Path(journal).read_bytes(), tmp_path) == call(journal)


@pytest.mark.parametrize(("content", "said"), [
    (b"", "is empty"), (b"\xef\xbb\xbfpaceline schedule 1\n", r"the byte order mark \(BOM\) of UTF-8"),
    ("paceline".encode("utf-16"), r"\(BOM\) of UTF-16"), ("ä".encode() * 30, "it begins with 'ää"),
    (b'{"by":"rank 0.1","jour', "x, line 1: it breaks off inside its head"),
    (b'{"journal":1,"mach', "x, line 1: it breaks off inside its head"),
    (b"paceline schedule 1\nsetup ranks 2\nknob anchor 5\nknob policy 3\n", "x, line 4: policy = 3 is not allowed"),
    (b"paceline schedule 1\nknob nope 5\n", "x, line 2: there is no knob 'nope'"),
    (b"paceline schedule 1\nsetup ranks 0\n", "x, line 2: ranks = 0 is not allowed"),
    (b"paceline schedule 1\nthen nothing\n", "x, line 2: 'then nothing' is not allowed; write 'then dullest'"),
    (b"paceline schedule 1\n0.0 crash 7\n", "x, line 2: "),
    (b"paceline schedule 1\n0.0 crash 0 9999999999999999999\n", "a number of at most 18 digits"),
])  # fmt: skip
def test_what_cannot_be_replayed_is_named_by_file_and_line(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        call(str(tmp_path / "x"))


def test_lines_of_a_journal_that_are_not_in_their_order_are_named(tmp_path: Path) -> None:
    coordinator = Coordinator(Config(batch_size=2, num_epochs=1, target_ranks=3))
    file = JournalFile(tmp_path / "j", coordinator)
    for number in range(2):
        coordinator.handle(HelloReceived(number, hello(60, host="here")), float(number))
        file.append(coordinator.take_ready())
    file.close()
    first, *batches = (tmp_path / "j").read_text().splitlines(keepends=True)
    (tmp_path / "j").write_text("".join([first, *reversed(batches)]))
    with pytest.raises(CheckpointError, match=r"j, line 3: time goes back from 1\.0+ to 0\.0+: "):
        call(str(tmp_path / "j"))


def test_a_second_of_hundreds_of_digits_is_printed_short(tmp_path: Path) -> None:
    file = tmp_path / "late.schedule"
    file.write_text("paceline schedule 1\nsetup ranks 1\n1e300 control 0\n")
    _, lines = call(str(file), "--explain")
    assert lines[0].split()[0] == "1e+300" and max(map(len, lines)) < 400
