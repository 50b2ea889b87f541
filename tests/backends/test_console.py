"""What a person reads of waits and alerts (O-2, O-3): records of a machine that is driven by hand, and their lines."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from rich.console import Console

from paceline.backends import console
from paceline.backends.console import Board, Display
from paceline.backends.serve import Recorder
from paceline.backends.words import ranks_in_words, waited_in_words, waiting_in_words
from paceline.core import effects as fx
from paceline.core import messages as m

from support.hand import Hand

REFUSED = fx.Alert("refused", "rank 1", "contribution refused: nonfinite")


def slow() -> Hand:
    """Rank 1 is in a step, and rank 0 has done its part."""
    hand = Hand(2, samples=400).form()
    hand.step(1)
    hand.step(0, 3)
    hand.complete(0)
    return hand


def recorded(hand: Hand, seconds: int, recorder: Recorder) -> None:
    """Time passes; the recorder looks once a second."""
    for _ in range(seconds):
        hand.tick(1.0)
        recorder.status()


def test_a_wait_is_in_the_timeline_and_on_the_console(tmp_path: Path) -> None:
    """O-3, F93: the same facts as a record and as a line; one of each when it is over."""
    hand, board, lines, shown = slow(), Board(), [], []

    def look(record: dict[str, Any]) -> None:
        shown.append(record)
        line = board.feed(record)
        lines.extend([] if line is None else [line])

    recorder = Recorder(hand.co, tmp_path / "t.jsonl", look)
    recorded(hand, 20, recorder)
    assert shown[-1]["waiting"] == {key: shown[-2][key] for key in shown[-1]["waiting"]}, "F93: a status says the same"
    recorded(hand, 1, recorder)
    hand.step(1, 2)
    hand.complete(1)
    hand.average()
    recorded(hand, 1, recorder)
    recorder.close()

    assert lines == [
        "waiting for rank 1 for 10 s (cycle 0, training): rank 0 has used its budget of this window; rank 1 trains: "
        "1 of 3 steps; last sign: rank 1 a step 10 s ago; in 50 s it is suspected",
        "waiting for rank 1 for 20 s (cycle 0, training): rank 0 has used its budget of this window; rank 1 trains: "
        "1 of 3 steps; last sign: rank 1 a step 20 s ago; in 40 s it is suspected",
        "rank 1 arrived after 22 s",
    ]
    kept = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [(r["event"], r["cycle"]) for r in kept] == [("Waiting", 0), ("Waiting", 0), ("Waited", 1)]
    assert shown[-1]["waiting"] is None


def test_a_line_says_what_there_is_and_no_more() -> None:
    """O-3: absent is never zero. A rank that has not come has no last sign, an averager is no rank."""
    facts = {"cycle": 0, "during": "joining", "waited_s": 10.2, "missing": [0, 1], "what": [], "next_s": 589.6,
             "why": "forming: 0 ranks here, 2 wanted", "progress": {"0": None, "1": None},
             "next": "the run fails"}  # fmt: skip
    assert waiting_in_words(facts) == (
        "waiting for ranks 0 and 1 for 10 s (cycle 0, joining): forming: 0 ranks here, 2 wanted; in 590 s the run fails"
    )
    rest = {"missing": [], "why": None, "progress": {}, "next": None, "next_s": None}
    assert waiting_in_words({**facts, **rest}) == "waiting for 10 s (cycle 0, joining)"
    assert waited_in_words({"how": {}, "waited_s": 12.4}) == "the wait is over after 12 s"
    ends = {"3": "arrived", "5": "died", "7": "arrived"}
    assert waited_in_words({"how": ends, "waited_s": 45.0}) == "ranks 3 and 7 arrived; rank 5 died after 45 s"


def test_of_many_ranks_the_first_ones_are_listed() -> None:
    assert (ranks_in_words([5]), ranks_in_words([1, 5])) == ("rank 5", "ranks 1 and 5")
    assert ranks_in_words([1, 3, 5]) == "ranks 1, 3 and 5"
    assert ranks_in_words(range(704)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 696 more"


def test_equal_alerts_are_one_record_and_one_line_with_a_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O-2: five in five seconds are one, and once more with their number; at the end nothing is kept back. Where nobody
    looks on they are printed all the same."""
    hand = Hand(1, num_epochs=9).form()
    recorder = Recorder(hand.co, tmp_path / "t.jsonl", None)
    for _ in range(5):
        recorder.observe(REFUSED)
        hand.tick(1.0)
    recorded(hand, 5, recorder)
    line = "rank 1: contribution refused: nonfinite"
    assert capsys.readouterr().out == f"paceline: {line}\npaceline: {line} (5 times so far)\n"
    recorder.observe(REFUSED)
    recorder.observe(fx.Finish("ok", "done"))
    recorder.close()

    kept = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [(r["event"], r.get("count")) for r in kept] == [("Alert", 1), ("Alert", 5), ("Alert", 6), ("Finish", None)]
    assert [Board().feed(record) for record in kept[:2]] == [line, f"{line} (5 times so far)"]
    assert capsys.readouterr().out == f"paceline: {line} (6 times so far)\n"


def test_a_wait_that_the_end_of_the_run_ends_is_told_before_it(tmp_path: Path) -> None:
    """O-3, M-53: the last exit is what was waited for."""
    hand = Hand(2, num_epochs=0).form()
    recorder = Recorder(hand.co, tmp_path / "t.jsonl", None)
    hand.say(0, m.Exiting, reason="done")
    recorded(hand, 11, recorder)
    for effect in hand.say(1, m.Exiting, reason="done"):
        recorder.observe(effect)
    recorder.close()

    kept = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    told = [record["event"] for record in kept if record["event"] in ("Waiting", "Waited", "Finish")]
    assert told == ["Waiting", "Waited", "Finish"]


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("kind", ["drift", "send_failed", "stalled", "unserved_role"])
def test_every_class_of_alert_is_on_standard_output(kind: str, quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """O-2: always, `drift` too, and where the output of the ranks is not shown."""
    alert = fx.Alert(kind, "cycle 3", "said")
    with Display(quiet=quiet) as display:
        display.record({"event": "Alert", "count": 1, **attrs.asdict(alert)})
    assert capsys.readouterr().out == "cycle 3: said\n"


def test_lines_of_a_wait_take_the_place_of_progress_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """O-3: what has not changed is not repeated while a wait is told; what moves all the same is shown, and so is
    everything once the wait is over."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: clock.now))
    output = io.StringIO()
    display = Display(console=Console(file=output, highlight=False))
    facts = {"during": "training", "waited_s": 10.0, "missing": [1], "why": None, "what": [], "progress": {},
             "next": None, "next_s": None, "how": {"1": "arrived"}}  # fmt: skip

    def told(event: str, steps: int = 30) -> int:
        """How many lines a record makes, six seconds after the last one."""
        clock.now += 6.0
        before = output.getvalue().count("\n")
        ranks = [{"rank": 0, "steps": steps, "per_s": 0.0, "state": "waiting", "loss": None}]
        display.record({"event": event, "t": clock.now, "cycle": 1, "run_phase": "training", "ranks": ranks, "epoch": 0,
                        "merged": 8, "total": 80, **facts})  # fmt: skip
        return output.getvalue().count("\n") - before

    told("PhaseChanged")
    assert [told("Status"), told("Status")] == [1, 1], "no wait is told yet"
    assert [told("Waiting"), told("Status"), told("Status", 31), told("Status", 31)] == [1, 0, 1, 0]
    assert [told("Waited"), told("Status", 31)] == [1, 1]


def test_a_wait_is_told_above_the_live_display_as_well() -> None:
    """O-3: on a terminal."""
    output = io.StringIO()
    with Display(console=Console(file=output, force_terminal=True, width=200, highlight=False)) as display:
        display.record({"event": "Waited", "how": {"5": "arrived"}, "waited_s": 45.0})
    assert "rank 5 arrived after 45 s" in output.getvalue()
