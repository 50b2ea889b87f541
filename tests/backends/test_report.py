"""What the report makes of a timeline: every batch accounted for, times, shares and the picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.backends.chart import draw_report
from paceline.backends.demo import summary
from paceline.backends.report import (
    Accounting,
    Figures,
    Recording,
    Span,
    account,
    figures,
    mean_figures,
    read_timeline,
)
from paceline.backends.serve import Recorder
from paceline.core import effects as fx
from paceline.core.alerts import FOLD_S
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.errors import CheckpointError, InvariantError


def start(epoch: int, batches: int) -> dict[str, Any]:
    return {"event": "EpochStart", "t": 0.0, "epoch": epoch, "batches": batches}


def covered(*slices: list[int], t: float = 1.0, cycle: int = 1, replayed: int = 0) -> dict[str, Any]:
    return {"event": "Covered", "t": t, "cycle": cycle, "replayed": replayed, "slices": list(slices)}


# --- accounting (I42) ------------------------------------------------------------------------------------------


def test_each_batch_once_is_nothing_lost_and_nothing_twice() -> None:
    """I42, whatever rank trained a batch and in whatever order."""
    records = [start(0, 6), start(1, 2), covered([0, 0, 3, 3]), covered([1, 0, 0, 3], [0, 1, 0, 2])]
    assert account(records, 2) == Accounting(merged=8, lost=0, twice=0, replayed=0)


def test_a_batch_in_no_consensus_is_lost() -> None:
    """I42: a hole in the middle of an epoch and a missing end count alike."""
    records = [start(0, 6), covered([0, 0, 0, 2]), covered([1, 0, 3, 2])]
    assert account(records, 1) == Accounting(merged=4, lost=2, twice=0, replayed=0)


def test_a_batch_in_two_consensuses_was_merged_twice() -> None:
    """I42: every merge after the first counts, within a cycle and across cycles."""
    records = [start(0, 4), covered([0, 0, 0, 3], [1, 0, 2, 2]), covered([1, 0, 2, 1])]
    assert account(records, 1) == Accounting(merged=6, lost=0, twice=2, replayed=0)


def test_lost_and_twice_do_not_cancel() -> None:
    """I42: as many merges as batches is not yet each batch once."""
    assert account([start(0, 2), covered([0, 0, 0, 1], [1, 0, 0, 1])], 1) == Accounting(2, 1, 1, 0)


def test_an_epoch_that_never_started_is_lost() -> None:
    """I42: a run that ends early has not trained what it did not even begin."""
    assert account([start(0, 3), covered([0, 0, 0, 3])], 3).lost == 6


def test_the_same_batch_number_of_two_epochs_is_two_batches() -> None:
    """I42."""
    assert account([start(0, 1), start(1, 1), covered([0, 0, 0, 1], [0, 1, 0, 1])], 2).twice == 0


def test_replayed_steps_are_the_last_word_of_the_coordinator() -> None:
    """D-12, D-19: the count only grows, and is in Covered and in Returned records."""
    returned = {"event": "Returned", "t": 1.0, "rank": 1, "batches": 9, "replayed": 5}
    assert account([start(0, 1), returned, covered([0, 0, 0, 1], replayed=2)], 1).replayed == 5


def test_the_own_counters_of_the_coordinator_are_not_asked() -> None:
    """A total that is wrong in every other record changes nothing."""
    liar = {"event": "Status", "t": 1.0, "merged": 99, "total": 99}
    assert account([start(0, 2), liar, covered([0, 0, 0, 1])], 1) == Accounting(1, 1, 0, 0)


@pytest.mark.parametrize("part", [[0, 0, 3, 2], [0, 0, -1, 1], [0, 7, 0, 1]])
def test_a_slice_outside_its_epoch_is_a_broken_invariant(part: list[int]) -> None:
    """I42: such a record cannot be counted as anything."""
    with pytest.raises(InvariantError, match="I42"):
        account([start(0, 4), covered(part)], 1)


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(1, 5)), max_size=30))
def test_merged_lost_and_twice_always_add_up(slices: list[tuple[int, int]]) -> None:
    """I42: batches - lost = merged - twice, both being the number of batches that are in a consensus."""
    inside = [[0, 0, first, min(count, 20 - first)] for first, count in slices]
    found = account([start(0, 20), covered(*inside)], 1)
    assert 20 - found.lost == found.merged - found.twice == len({b for _, _, f, n in inside for b in range(f, f + n)})


def test_the_sentence_counts_samples() -> None:
    """Its form is what scripts look for."""
    assert Accounting(9, 1, 2, 3).sentence(32) == "samples lost 32, merged twice 64, replayed 96"


# --- times -----------------------------------------------------------------------------------------------------


def recording(*more: dict[str, Any], name: str = "cadence") -> Recording:
    """Training from 10 s to 14 s, two ranks, 8 batches."""
    phase = {"event": "PhaseChanged", "t": 10.0, "phase": "training"}
    traces = [(10.0, 0, "training"), (12.0, 0, "waiting"), (12.5, 0, "averaging"), (13.0, 0, "training"),
              (10.0, 1, "training"), (20.0, 1, "stopped")]  # fmt: skip
    losses = [(12.0, {"0": 2, "1": 2}, {"0": 2.0, "1": 1.0}), (14.0, {"0": 4, "1": 0}, {"0": 0.5, "1": None})]
    return Recording(name, [
        phase, start(0, 8), covered([0, 0, 0, 2], [1, 0, 2, 2], t=12.0), covered([0, 0, 4, 4], t=14.0),
        *({"event": "Trace", "t": t, "rank": r, "state": s, "step": 0} for t, r, s in traces),
        *({"event": "Cycle", "t": t, "merged": n, "loss": loss} for t, n, loss in losses), *more,
    ])  # fmt: skip


def test_time_runs_from_the_first_work_to_the_last_merge() -> None:
    """An empty last average, and the end of the processes, are not training."""
    late = covered(t=19.0)
    assert recording(late).seconds == 4.0


def test_a_run_that_never_trained_has_no_times() -> None:
    """It says so in place of a division by nothing."""
    with pytest.raises(CheckpointError, match="did not form"):
        _ = Recording("cadence", []).began


def test_spans_are_cut_to_the_run() -> None:
    """Whatever a rank does after the last merge is not part of it."""
    assert recording().spans(1) == [Span(0.0, 4.0, "training")]
    assert recording().spans(0)[1] == Span(2.0, 2.5, "waiting")


def test_the_dead_do_not_wait() -> None:
    """A rank killed in the middle of a state leaves no trace of its end; its Died record is that."""
    dead = {"event": "Died", "t": 11.0, "rank": 1}
    assert recording(dead).spans(1) == [Span(0.0, 1.0, "training"), Span(1.0, 4.0, "stopped")]


def test_waiting_for_an_average_is_waiting() -> None:
    """The share of the time in which a rank was there and did not train."""
    assert recording().waited(0) == pytest.approx(0.25)
    assert recording().waited(1) == 0.0


def test_loss_is_a_mean_over_batches_not_over_cycles_or_ranks() -> None:
    """Weighted by what was merged, over at least the window's batches."""
    assert recording().losses(4) == [(2.0, 1.5), (4.0, 0.5)]
    assert recording().losses(8) == [(4.0, 1.0)]
    assert recording().losses(9) == []


def test_figures_of_a_run() -> None:
    """All in the units of their names."""
    evaluated = {"event": "Evaluated", "t": 14.0, "accuracy": 0.9}
    found = figures(recording(evaluated), batch_size=4, target_loss=0.6, window=4)
    assert found == Figures(
        name="cadence", seconds=4.0, seconds_to_target=4.0, samples_per_second=8.0, cycles=2,
        waited={0: pytest.approx(0.25), 1: 0.0}, accuracy=0.9,
    )  # fmt: skip


def test_a_target_that_was_never_reached_is_none() -> None:
    """And stays none in a mean with runs that reached it."""
    never = figures(recording(), batch_size=4, target_loss=0.1, window=4)
    reached = figures(recording(), batch_size=4, target_loss=1.5, window=4)
    assert never.seconds_to_target is None
    assert mean_figures([never, reached]).seconds_to_target is None
    assert mean_figures([reached, reached]).seconds_to_target == 2.0


# --- files and pictures ----------------------------------------------------------------------------------------


def test_a_timeline_may_end_in_the_middle_of_a_line(tmp_path: Path) -> None:
    """The writer may have been killed; the lines before are whole."""
    path = tmp_path / "timeline.jsonl"
    path.write_text('{"t": 1}\n{"t": 2}\n{"t"')
    assert read_timeline(path) == [{"t": 1}, {"t": 2}]


@pytest.mark.parametrize("text", ['{"t": 1\n{"t": 2}\n', "7\n{}\n"])
def test_a_timeline_with_anything_else_in_it_is_refused(tmp_path: Path, text: str) -> None:
    """With the line's number."""
    path = tmp_path / "timeline.jsonl"
    path.write_text(text)
    with pytest.raises(CheckpointError, match="line 1"):
        read_timeline(path)


def test_a_timeline_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot read"):
        read_timeline(tmp_path / "nothing.jsonl")


def test_the_picture_is_well_formed_and_names_everything() -> None:
    """Labels come out as text, whatever characters they have."""
    dead = {"event": "Died", "t": 11.0, "rank": 1}
    runs = [recording(), recording(dead, name="async")]
    svg = draw_report(runs, {"cadence": "a < b & c", "async": "async"}, target_loss=0.6, window=4)
    texts = {"".join(element.itertext()) for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert {"a < b & c", "async", "rank 0", "rank 1", "training", "waiting", "averaging", "target 0.6", "died"} <= texts


def test_a_lane_is_filled_to_its_height_by_the_shares_of_its_states() -> None:
    """However short the spans: a column with two states shows both."""
    states = ["training", "waiting"] * 4000
    traces = [{"event": "Trace", "t": 10.0 + i / 2000, "rank": 0, "state": s, "step": i} for i, s in enumerate(states)]
    run = Recording("lock-step", [{"event": "PhaseChanged", "t": 10.0, "phase": "training"}, start(0, 1), *traces,
                                  covered([0, 0, 0, 1], t=14.0)])  # fmt: skip
    svg = draw_report([run], {}, target_loss=0.1, window=1)
    assert svg.count('<path d="M') == 2
    assert "v-9.0h2v9.0z" in svg


def test_a_run_without_a_single_loss_can_still_be_drawn() -> None:
    """A script need not report any."""
    run = recording()
    quiet = Recording("cadence", [r for r in run.records if r["event"] != "Cycle"])
    ET.fromstring(draw_report([quiet], {}, target_loss=0.1, window=4))


def test_records_survive_the_way_through_a_file(tmp_path: Path) -> None:
    """The report needs nothing but the timeline."""
    path = tmp_path / "timeline.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in recording().records))
    assert Recording("cadence", read_timeline(path)).seconds == 4.0


def test_the_two_sentences_say_what_the_numbers_say() -> None:
    """Both directions of a comparison: nothing is praised that was not measured."""
    def run(name: str, seconds: float, waited: float, accuracy: float) -> Figures:
        return Figures(name=name, seconds=seconds, seconds_to_target=1.0, samples_per_second=1000 / seconds, cycles=1,
                       waited={0: waited}, accuracy=accuracy)  # fmt: skip

    means = {one.name: one for one in (run("alone", 10, 0.0, 0.97), run("lock-step", 20, 0.66, 0.96),
                                       run("cadence", 8, 0.02, 0.975), run("async", 8, 0.01, 0.95))}  # fmt: skip
    first, second = summary(means, 1000)
    assert "2.50 times as many a second as in lock-step" in first
    assert "waited 2 % of the time in place of 66 %" in first
    assert "1.25 times the pace" in second
    assert "97.5 %" in second
    assert "-2.0 points" in second
    assert len(summary({"cadence": means["cadence"]}, 1000)) == 1


def test_what_a_restarted_coordinator_says_again_counts_once(tmp_path: Path) -> None:
    """M-44: where the dead one said it; what it never came to say counts."""
    said = {"event": "Covered", "cycle": 3, "replayed": 0, "slices": [[0, 0, 0, 4]]}
    unsaid = {**said, "cycle": 4, "slices": [[0, 0, 4, 2]]}
    again = [{**record, "t": 9.0, "generation": 2, "again": True} for record in (said, unsaid)]
    path = tmp_path / "timeline.jsonl"
    lines = [{"event": "EpochStart", "epoch": 0, "batches": 6}, {**said, "t": 1.0, "generation": 1}, *again]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = account(read_timeline(path), 1)
    assert (found.merged, found.lost, found.twice) == (6, 0, 0)


def test_an_alert_that_is_said_again_is_one(tmp_path: Path) -> None:
    """M-44: a restarted coordinator says it with a mark, the recorder writes that, and the reader knows it."""
    path, co = tmp_path / "timeline.jsonl", Coordinator(Config(batch_size=2, num_epochs=1))
    recorder = Recorder(co, path, None)
    for again in (False, True):
        recorder.observe(fx.Alert("accounting", "journal", "rank 1 holds version 3", critical=True, again=again))
        co.now += 2 * FOLD_S  # equal ones are one for a while (O-2)
    recorder.close()

    assert len(path.read_text().splitlines()) == 2
    assert [record["again"] for record in read_timeline(path)] == [False]
